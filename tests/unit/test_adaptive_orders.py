"""Orders that look at what has been shown: each is a distribution, whatever the conditionals."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from models import generator, points, random_hmm, random_table

from mpt_lml import orders
from mpt_lml.models.base import FromFunction
from mpt_lml.models.tables import ConditionalTable
from mpt_score import MaskedLM
from mpt_score.networks import load_small_bert

f64 = {"dtype": torch.float64}
EXACT = 1e-12  # sums of at most 243 probabilities

RULES = {
    "confidence": orders.confidence,
    "margin": orders.margin,
    "entropy": orders.entropy,
    "left_to_right": orders.left_to_right,
    "blocks of two by confidence": orders.by_blocks(orders.confidence, 2),
    "blocks of four by entropy": orders.by_blocks(orders.entropy, 4),
}
SIZES = [(1, 3), (3, 4), (5, 3), (6, 2)]


@functools.cache
def inconsistent(num_features: int, num_values: int, seed: int = 0) -> ConditionalTable:
    joint = random_table(*[num_values] * num_features, seed=seed)
    return ConditionalTable.of(joint, num_values, noise=0.7, generator=generator(seed + 1))


def by_hand(model: ConditionalTable, x: torch.Tensor, rule) -> tuple[float, list[int]]:
    """One text, one step at a time, with Python's own maximum."""
    num_features = model.num_features
    hidden = list(range(num_features))
    ranks = [0] * num_features
    total = 0.0
    for step in range(num_features):
        mask = torch.zeros(1, num_features, dtype=torch.bool)
        mask[0, hidden] = True
        log_values = model.log_values(x[None], mask)
        priority = rule(mask, log_values)[0].tolist()
        chosen = max(hidden, key=lambda j: (priority[j], -j))
        total += log_values[0, chosen, x[chosen]].item()
        ranks[chosen] = step
        hidden.remove(chosen)
    return total, ranks


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
class TestEachRule:
    @pytest.mark.parametrize(("num_features", "num_values"), SIZES)
    def test_is_a_distribution(self, rule, num_features: int, num_values: int) -> None:
        for seed in range(3):
            model = inconsistent(num_features, num_values, seed=10 * seed)
            found = orders.adaptive(model, points(num_features, num_values), rule)
            assert abs(found.log_probability.exp().sum() - 1.0) < EXACT

    def test_of_one_joint_gives_its_log_probability(self, rule) -> None:
        for model in (random_table(3, 3, 3, 3), random_hmm(3, 3, 4)):
            x = points(4, 3)
            found = orders.adaptive(ConditionalTable.of(model, 3), x, rule)
            expected = model.log_marginal(x)
            torch.testing.assert_close(found.log_probability, expected, rtol=0, atol=EXACT)

    def test_is_the_product_along_its_order(self, rule) -> None:
        """One text at a time by hand, and along its ranks by the function for orders that do not look."""
        model, x = inconsistent(5, 3), points(5, 3)[::17]
        found = orders.adaptive(model, x, rule)
        along_ranks = orders.log_probability(model, x, found.ranks).diagonal()
        torch.testing.assert_close(found.log_probability, along_ranks, rtol=0, atol=EXACT)
        for row, text in enumerate(x):
            total, ranks = by_hand(model, text, rule)
            assert found.ranks[row].tolist() == ranks
            assert abs(found.log_probability[row].item() - total) < EXACT

    def test_asks_once_a_step(self, rule) -> None:
        model = inconsistent(5, 3)
        asked = []

        def log_values(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            asked.append(len(x))
            return model.log_values(x, mask)

        orders.adaptive(FromFunction(log_values, 5), points(5, 3), rule)
        # One text tells how many values there are, and FromFunction tries it under two masks, twice.
        assert asked == [1, *[1] * 4, *[243] * 5]


def test_a_masked_language_model() -> None:
    """Of the small BERT: the words of two sentences, framed as it was trained."""
    network, tokenizer = load_small_bert()
    x = torch.tensor([[300, 400, 500, 310], [420, 330, 340, 350]])
    model = MaskedLM.of(network, tokenizer, num_features=4)
    hidden = torch.tensor([[True, False, True, True], [False, True, False, False]])
    log_values = model.log_values(x, hidden)
    assert log_values.exp().sum(dim=-1)[hidden].sub(1).abs().max() < 1e-5
    of_x = log_values.gather(2, x[..., None])[..., 0].double()
    torch.testing.assert_close(of_x[hidden], model.log_each(x, hidden)[hidden], rtol=0, atol=1e-4)
    for rule in (orders.left_to_right, orders.confidence, orders.entropy):
        found = orders.adaptive(model, x, rule)
        along = orders.log_probability(model, x, found.ranks).diagonal()
        assert (found.log_probability - along).abs().max() < 1e-3  # single precision
    straight = orders.adaptive(model, x, orders.left_to_right)
    assert straight.ranks.tolist() == [[0, 1, 2, 3]] * 2


def test_rules_are_their_formulas() -> None:
    """Of distributions over four values, one number at a time; the larger, the earlier it is shown."""
    logits = 2.0 * torch.randn(3, 2, 4, generator=generator(7), dtype=torch.float64)
    log_values = logits.log_softmax(dim=-1)
    everything = torch.ones(3, 2, dtype=torch.bool)
    for row, column in [(n, j) for n in range(3) for j in range(2)]:
        chances = sorted(log_values[row, column].exp().tolist())
        most = orders.confidence(everything, log_values)[row, column].exp().item()
        lead = orders.margin(everything, log_values)[row, column].item()
        known = orders.entropy(everything, log_values)[row, column].item()
        assert most == pytest.approx(chances[-1], rel=EXACT)
        assert lead == pytest.approx(chances[-1] - chances[-2], abs=EXACT)
        assert known == pytest.approx(sum(p * math.log(p) for p in chances), abs=EXACT)


def test_orders_of_texts_differ() -> None:
    found = orders.adaptive(inconsistent(5, 3), points(5, 3), orders.confidence)
    assert len(found.ranks.unique(dim=0)) > 5


def test_the_best_order_chosen_with_the_text_in_view_is_no_distribution() -> None:
    model, x = inconsistent(5, 3), points(5, 3)
    assert orders.exact(model, x).highest.exp().sum() > 1.5


def test_ties_are_broken_by_position() -> None:
    coins = FromFunction(lambda x, mask: torch.zeros(*x.shape, 3).log_softmax(-1), 4)
    x = points(4, 3)[:5]
    for rule in RULES.values():
        found = orders.adaptive(coins, x, rule)
        assert found.ranks.tolist() == [[0, 1, 2, 3]] * 5


def test_a_rule_may_put_coordinates_last_for_ever() -> None:
    """Of equal ones at −inf the first hidden one is taken, not one that has been shown."""
    never = orders.adaptive(
        inconsistent(4, 3),
        points(4, 3)[:3],
        lambda mask, values: torch.full(mask.shape, -torch.inf),
    )
    assert never.ranks.tolist() == [[0, 1, 2, 3]] * 3


def test_values_of_probability_zero() -> None:
    """Entropy and margin have no NaN there, and a text that has one has probability 0."""

    def never_one(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        values = torch.tensor([1.0, 0.0], **f64).expand(*x.shape, 2)
        return values.log()

    model, x = FromFunction(never_one, 2), torch.tensor([[0, 0], [0, 1]])
    for rule in RULES.values():
        found = orders.adaptive(model, x, rule)
        assert found.log_probability.tolist() == [0.0, -torch.inf]


def test_the_rule_holds_within_every_block() -> None:
    """Coins that know nothing of each other: within each pair the surer one comes first."""
    chance = torch.tensor([0.6, 0.8, 0.7, 0.9, 0.5], **f64)
    log_values = torch.stack([chance, 1 - chance], dim=1).log()
    coins = FromFunction(lambda x, mask: log_values.expand(*x.shape, 2), 5)
    found = orders.adaptive(coins, torch.zeros(1, 5).long(), orders.by_blocks(orders.confidence, 2))
    assert found.ranks.tolist() == [[1, 0, 3, 2, 4]]


def test_blocks_of_one_are_left_to_right_and_of_all_the_rule() -> None:
    model, x = inconsistent(5, 3), points(5, 3)
    for block_size, same in ((1, orders.left_to_right), (5, orders.margin), (9, orders.margin)):
        found = orders.adaptive(model, x, orders.by_blocks(orders.margin, block_size))
        expected = orders.adaptive(model, x, same)
        assert torch.equal(found.ranks, expected.ranks)


def test_parts_change_nothing(monkeypatch) -> None:
    model, x = inconsistent(4, 3), points(4, 3)
    whole = orders.adaptive(model, x, orders.confidence)
    one_at_a_time = lambda total, size: (slice(i, i + 1) for i in range(total))  # noqa: E731
    monkeypatch.setattr("mpt_lml.orders.chunks", one_at_a_time)
    parts = orders.adaptive(model, x, orders.confidence)
    assert torch.equal(whole.ranks, parts.ranks)
    torch.testing.assert_close(whole.log_probability, parts.log_probability, rtol=0, atol=EXACT)


def test_a_rule_may_write_into_what_it_is_given() -> None:
    def careless(mask: torch.Tensor, log_values: torch.Tensor) -> torch.Tensor:
        result = log_values.amax(dim=-1)
        log_values.zero_()
        mask.fill_(False)
        return result

    model, x = inconsistent(4, 3), points(4, 3)
    found = orders.adaptive(model, x, careless)
    expected = orders.adaptive(model, x, orders.confidence)
    assert torch.equal(found.log_probability, expected.log_probability)


class TestTokenRule:
    def test_that_reads_what_is_shown_is_a_distribution(self) -> None:
        """Show the last coordinate next if more twos than zeros have been shown, else the first."""

        def by_majority(x: torch.Tensor, mask: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            balance = (x - 1).masked_fill(mask, 0).sum(dim=1, keepdim=True)
            place = torch.arange(x.shape[1], **f64)
            return torch.where(balance > 0, place, -place)

        model, x = inconsistent(4, 3), points(4, 3)
        found = orders.adaptive(model, x, orders.TokenRule(by_majority))
        assert len(found.ranks.unique(dim=0)) > 2
        assert abs(found.log_probability.exp().sum() - 1.0) < EXACT

    def test_that_reads_hidden_values_late_is_still_a_distribution(self) -> None:
        """It is given zeros there: nothing that is hidden can reach its choice."""

        def cheats_late(x: torch.Tensor, mask: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            num_hidden = mask.sum(dim=1, keepdim=True)
            return torch.where(num_hidden <= 2, x.double(), torch.zeros(x.shape, **f64))

        model, x = inconsistent(5, 3), points(5, 3)
        found = orders.adaptive(model, x, orders.TokenRule(cheats_late))
        assert abs(found.log_probability.exp().sum() - 1.0) < EXACT

    @pytest.mark.bad_input
    @pytest.mark.parametrize("first_step", [0, 1, 2])
    def test_that_reads_hidden_values_is_refused(self, first_step: int) -> None:
        def oracle(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            if (~mask).sum(dim=1)[0] < first_step:
                return orders.left_to_right(mask, values)
            return values.gather(2, x[..., None])[..., 0]

        with pytest.raises(ValueError, match="reads what it scores"):
            orders.adaptive(inconsistent(4, 3), points(4, 3), orders.TokenRule(oracle))

    @pytest.mark.bad_input
    def test_of_a_text_of_zeros(self) -> None:
        """What is hidden looks then like what the function is given."""
        first_zero = orders.TokenRule(lambda x, mask, values: (x == 0).double().cumsum(dim=1))
        with pytest.raises(ValueError, match="reads what it scores"):
            orders.adaptive(inconsistent(4, 3), points(4, 3)[:1], first_zero)

    @pytest.mark.bad_input
    def test_that_is_random_is_refused(self) -> None:
        draws = generator(3)
        rule = orders.TokenRule(lambda x, mask, values: torch.rand(x.shape, generator=draws))
        with pytest.raises(ValueError, match="or is random"):
            orders.adaptive(inconsistent(4, 3), points(4, 3), rule)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        ("confidence", TypeError, "rule must be of type"),
        (lambda mask, values: 1.0, TypeError, "floating-point tensor, got float"),
        (lambda mask, values: mask, TypeError, "floating-point tensor, got torch.bool"),
        (lambda mask, values: values, ValueError, r"\(2, 4\), got \(2, 4, 3\)"),
        (lambda mask, values: values[..., 0] * torch.nan, ValueError, "got NaN at a hidden"),
        (
            lambda mask, values: orders.margin(mask, values[..., :1]),
            ValueError,
            "V must be >= 2, got 1",
        ),
        (lambda mask, values: values[..., 0].half(), None, ""),
    ],
)
def test_what_a_rule_answers(rule, error, message) -> None:
    def call() -> None:
        orders.adaptive(inconsistent(4, 3), points(4, 3)[:2], rule)

    if error is None:
        call()
        return
    with pytest.raises(error, match=message):
        call()


@pytest.mark.bad_input
def test_refuses_values_that_the_model_has_not() -> None:
    coins = FromFunction(lambda x, mask: torch.zeros(*x.shape, 2).log_softmax(-1), 2)
    with pytest.raises(ValueError, match=r"0\.\.1"):
        orders.adaptive(coins, torch.tensor([[0, 2]]), orders.confidence)


@pytest.mark.bad_input
def test_refuses_a_model_that_has_no_list_of_values() -> None:
    with pytest.raises(TypeError, match="JointTable has no list of values"):
        orders.adaptive(random_table(2, 2), points(2, 2), orders.confidence)


@pytest.mark.bad_input
def test_refuses_a_model_that_answers_nan() -> None:
    def broken(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        values = torch.zeros(*x.shape, 2).log_softmax(-1)
        return values.where(mask.any(dim=1)[:, None, None] & (mask.sum() > 2), torch.nan)

    model = FromFunction(broken, 3)
    with pytest.raises(ValueError, match="model must answer logarithms of probabilities, got NaN"):
        orders.adaptive(model, torch.zeros(1, 3).long(), orders.left_to_right)
