"""Orders drawn, enumerated and adaptive: what is scored along them, its mixture and its bounds."""

from __future__ import annotations

import functools
import itertools
import math

import mpmath
import pytest
import torch
from models import generator, points, random_hmm, random_ppca, random_table

from mpt_lml import PPCA, curves, orders
from mpt_lml.models.base import FromFunction
from mpt_lml.models.tables import ConditionalTable
from mpt_score import MaskedLM
from mpt_score.networks import load_small_bert

f64 = {"dtype": torch.float64}
EXACT = 1e-12  # sums of at most 120 × 5 logarithms of size 10


@functools.cache
def inconsistent(
    num_features: int = 4, num_values: int = 3, noise: float = 0.7, seed: int = 0
) -> ConditionalTable:
    joint = random_table(*[num_values] * num_features, seed=seed)
    return ConditionalTable.of(joint, noise=noise, generator=generator(seed + 1))


def by_hand(model: ConditionalTable, x: torch.Tensor, ranks: list[int]) -> float:
    """The product along one order, one conditional at a time."""
    total = 0.0
    for j, when in enumerate(ranks):
        hidden = torch.tensor([other >= when for other in ranks])
        total += model.log_conditional(x[None], hidden[None])[0, 0, j].item()
    return total


class TestLogProbability:
    def test_steps_are_named_by_any_number(self) -> None:
        """Only their order counts, also where coordinates are shown together."""
        model, x = inconsistent(), points(4, 3)[[5, 40]]
        ranks = torch.tensor([[3, 0, 1, 2], [1, 0, 1, 0]])
        far = torch.tensor([[10**12, 2, 30, 10**9], [10**15, 7, 10**15, 7]])
        found = orders.log_probability(model, x, far)
        assert torch.equal(found, orders.log_probability(model, x, ranks))
        hidden = torch.tensor([[True, True, True, True], [True, False, True, False]])
        first, second = model.log_conditional(x, hidden)
        together = first[:, [1, 3]].sum(dim=1) + second[:, [0, 2]].sum(dim=1)
        torch.testing.assert_close(found[1], together)

    def test_one_order_at_a_time(self) -> None:
        model, x = inconsistent(), points(4, 3)[[5, 40, 80]]
        ranks = orders.every(4)
        values = orders.log_probability(model, x, ranks)
        for s in range(0, 24, 5):
            for n in range(3):
                expected = by_hand(model, x[n], ranks[s].tolist())
                assert abs(values[s, n].item() - expected) < EXACT

    def test_blocks(self) -> None:
        model, x = inconsistent(), points(4, 3)[[5, 40]]
        ranks = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [3, 0, 3, 7]])
        values = orders.log_probability(model, x, ranks)
        for s, row in enumerate(ranks.tolist()):
            for n in range(2):
                assert abs(values[s, n].item() - by_hand(model, x[n], row)) < EXACT

    def test_every_order_is_a_distribution(self) -> None:
        total = orders.log_probability(inconsistent(), points(4, 3), orders.every(4))
        one = torch.ones(24, **f64)
        torch.testing.assert_close(total.exp().sum(dim=1), one, rtol=0, atol=EXACT)

    def test_orders_of_a_joint_agree(self) -> None:
        model = random_ppca(6, 2)
        x = model.sample(5, generator=generator(1))
        values = orders.log_probability(model, x, orders.draw(20, 6, generator=generator(2)))
        expected = model.log_marginal(x).expand(20, -1)
        torch.testing.assert_close(values, expected, rtol=0, atol=1e-10)

    def test_chunks_change_nothing(self, monkeypatch) -> None:
        model, x, ranks = inconsistent(), points(4, 3), orders.every(4)
        whole = orders.log_probability(model, x, ranks), orders.exact(model, x).log_mix
        monkeypatch.setattr(
            "mpt_lml.orders.chunks", lambda total, size: (slice(i, i + 1) for i in range(total))
        )
        again = orders.log_probability(model, x, ranks), orders.exact(model, x).log_mix
        for a, b in zip(whole, again, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=EXACT)


class TestExact:
    @pytest.mark.parametrize("num_features", [1, 2, 3, 5])
    def test_agrees_with_all_orders(self, num_features: int) -> None:
        model = inconsistent(num_features, 2, seed=num_features)
        x = points(num_features, 2)
        every = orders.log_probability(model, x, orders.every(num_features))
        found = orders.exact(model, x)
        expected = {
            "mean": every.mean(dim=0),
            "variance": every.var(dim=0, correction=0),
            "log_mix": every.logsumexp(dim=0) - math.log(len(every)),
            "lowest": every.amin(dim=0),
            "highest": every.amax(dim=0),
        }
        for name, value in expected.items():
            torch.testing.assert_close(getattr(found, name), value, rtol=0, atol=EXACT)

    def test_mean_is_the_area(self) -> None:
        model, x = inconsistent(), points(4, 3)
        area = [curves.exact_curve(model, row[None]).area() for row in x]
        found = orders.exact(model, x)
        torch.testing.assert_close(found.mean, torch.tensor(area, **f64), rtol=0, atol=EXACT)

    def test_mixture_is_a_distribution_and_the_geometric_mean_is_not(self) -> None:
        found = orders.exact(inconsistent(), points(4, 3))
        assert abs(found.log_mix.exp().sum() - 1.0) < EXACT
        assert (found.mean <= found.log_mix).all()
        assert found.mean.exp().sum() < 0.99

    def test_a_joint_has_no_spread(self) -> None:
        model = random_ppca(7, 3)
        x = model.sample(4, generator=generator(3))
        found = orders.exact(model, x)
        assert found.variance.max() < 1e-20
        for value in (found.mean, found.log_mix, found.lowest, found.highest):
            torch.testing.assert_close(value, model.log_marginal(x), rtol=0, atol=1e-10)

    def test_a_joint_has_the_derivative_of_its_log_probability(self) -> None:
        loadings = random_ppca(4, 2).loadings.requires_grad_()
        model = PPCA(loadings, 0.3)
        x = model.sample(3, generator=generator(3)).detach()
        (wanted,) = torch.autograd.grad(model.log_marginal(x).sum(), loadings)
        found = orders.exact(model, x)
        for value in (found.mean, found.log_mix, found.lowest, found.highest):
            (slope,) = torch.autograd.grad(value.sum(), loadings, retain_graph=True)
            torch.testing.assert_close(slope, wanted, rtol=0, atol=1e-10)


def upper_bounds(every: torch.Tensor, picks: torch.Tensor) -> torch.Tensor:
    """The bounds (P, N) of P picks of orders, each beside the others as if it were more texts."""
    log_p = every[picks].transpose(0, 1)
    found = orders.mixture_bounds(log_p.flatten(1))
    return found.upper.view(log_p.shape[1:])


class TestMixtureBounds:
    def test_by_hand(self) -> None:
        """The two orders of the umbrella: 0.36 and 0.21. ψ is the other one."""
        first, second = 0.36, 0.21
        expected = (
            math.log(second) + first / second - 1 + math.log(first) + second / first - 1
        ) / 2
        values = torch.tensor([[first], [second]], **f64).log()
        found = orders.mixture_bounds(values)
        assert abs(found.upper.item() - expected) < EXACT
        assert abs(found.largest_share.item() - first / (first + second)) < EXACT
        assert found.is_heavy_tailed.item()

    @pytest.mark.parametrize("num_features", [2, 3])
    def test_expectation_is_above_the_mixture(self, num_features: int) -> None:
        """Every outcome of K orders drawn with replacement; it falls with K towards the mixture."""
        model = inconsistent(num_features, 3, noise=0.7, seed=4)
        x = points(num_features, 3)
        every = orders.log_probability(model, x, orders.every(num_features))
        mix = orders.exact(model, x).log_mix
        means = []
        for count in (2, 3, 4):
            picks = torch.tensor(list(itertools.product(range(len(every)), repeat=count)))
            bounds = upper_bounds(every, picks)
            means.append(bounds.mean(dim=0))
        for more, less in itertools.pairwise([*means, mix]):
            assert (more > less).all()

    def test_expectation_with_three_other_orders(self) -> None:
        """With every order of D = 5: E[log ψ + p_mix / ψ − 1] for a ψ of three orders."""
        model, x = inconsistent(5, 2, seed=7), points(5, 2)[::5]
        every = orders.log_probability(model, x, orders.every(5))
        exact = orders.exact(model, x)
        picks = torch.randint(120, (20000, 4), generator=generator(5))
        drawn = upper_bounds(every, picks)
        others = every[torch.randint(120, (20000, 3), generator=generator(9))]
        log_tangent = others.logsumexp(dim=1) - math.log(3)
        expected = log_tangent + (exact.log_mix - log_tangent).exp() - 1
        error = (drawn.var(dim=0) + expected.var(dim=0)).sqrt() / math.sqrt(20000)
        assert ((drawn.mean(dim=0) - expected.mean(dim=0)).abs() < 4.5 * error).all()
        assert (drawn.mean(dim=0) + 4.5 * error > exact.log_mix).all()

    def test_a_joint_has_one_value(self) -> None:
        values = torch.full((5, 2), -700.0, **f64)  # far below what a probability can be stored as
        found = orders.mixture_bounds(values)
        torch.testing.assert_close(found.upper, values[0], rtol=0, atol=EXACT)
        torch.testing.assert_close(found.largest_share, torch.full((2,), 0.2, **f64))
        assert not found.is_heavy_tailed.any()


class TestMixtureBoundsOnBothSides:
    """Against every outcome of K orders, and the two expansions in 1/K."""

    def test_lower_is_the_logarithm_of_the_mean(self) -> None:
        values = torch.randn(6, 9, generator=generator(2), **f64)
        found = orders.mixture_bounds(values)
        expected = values.exp().mean(dim=0).log()
        torch.testing.assert_close(found.lower, expected, rtol=0, atol=EXACT)
        torch.testing.assert_close(found.midpoint, (found.lower + found.upper) / 2)

    @pytest.mark.parametrize("count", [40, 80])
    def test_expansions(self, count: int) -> None:
        """Two kinds of orders: how many of K are of the second is a binomial number, so all is a sum.

        v and κ are the variance and the third moment of w = p_π / p_mix. The bounds are off by
        −v/2K + (κ/3 − 3v²/4)/K² and v/2K + (v/2 + 9v²/4 − 2κ/3)/K², the midpoint by half their sum.
        """
        chance, low, high = 0.2, 0.8, 1.8  # with mean 1
        variance = 0.8 * (low - 1) ** 2 + 0.2 * (high - 1) ** 2
        third = 0.8 * (low - 1) ** 3 + 0.2 * (high - 1) ** 3
        number = torch.arange(count + 1)
        is_high = torch.arange(count)[:, None] < number  # a column for each number
        ratio = torch.where(is_high, high, low).double()
        binomial = torch.distributions.Binomial(count, torch.tensor(chance, **f64))
        weight = binomial.log_prob(number.double()).exp()
        found = orders.mixture_bounds(ratio.log())
        half = variance / (2 * count)
        second = 1 / count**2
        expected_lower = -half + (third / 3 - 0.75 * variance**2) * second
        expected_upper = half + (variance / 2 + 2.25 * variance**2 - 2 * third / 3) * second
        expected_middle = (variance / 4 + 0.75 * variance**2 - third / 6) * second
        next_order = variance / count**3
        assert abs(weight @ found.lower - expected_lower) < next_order
        assert abs(weight @ found.upper - expected_upper) < next_order
        assert abs(weight @ found.midpoint - expected_middle) < next_order

    def test_errors_are_those_of_repeated_draws(self) -> None:
        """Orders that differ by 0.4 nats: the jackknife is right on average, to its own noise."""
        values = 0.4 * torch.randn(16, 4000, generator=generator(8), **f64)
        found = orders.mixture_bounds(values)
        for value, error in ((found.lower, found.lower_error), (found.upper, found.upper_error)):
            assert abs(error.square().mean() / value.var() - 1) < 0.1

    def test_the_jackknife_by_hand(self) -> None:
        values = torch.tensor([[-41.0], [-42.0], [-40.5]], **f64)
        found = orders.mixture_bounds(values)
        lower = []
        upper = []
        for left_out in range(3):
            pair = [value for i, value in enumerate(values[:, 0].tolist()) if i != left_out]
            lower.append(math.log(sum(map(math.exp, pair)) / 2))
            first, second = pair
            ratios = math.exp(first - second) + math.exp(second - first)
            upper.append((first + second + ratios) / 2 - 1)
        for error, again in ((found.lower_error, lower), (found.upper_error, upper)):
            centered = [value - sum(again) / 3 for value in again]
            expected = math.sqrt(2 / 3 * sum(value**2 for value in centered))
            assert abs(error.item() - expected) < EXACT

    def test_bounds_are_in_double_precision(self) -> None:
        """At −20,000 nats single precision would add an error as large as the gap between them."""
        values = torch.tensor([[-20000.30], [-20000.25], [-20000.10]])
        bounds = orders.mixture_bounds(values)
        exact = orders.mixture_bounds(values.double() + 20000)
        for ours, near_zero in ((bounds.lower, exact.lower), (bounds.upper, exact.upper)):
            assert abs(ours.item() + 20000 - near_zero.item()) < 1e-9
        assert bounds.upper_error.item() == pytest.approx(exact.upper_error.item(), rel=1e-6)

    def test_two_orders_have_no_error_of_the_upper_bound(self) -> None:
        found = orders.mixture_bounds(torch.tensor([[-3.0], [-4.0]], **f64))
        assert found.upper_error.isnan().all()
        assert abs(found.lower_error.item() - 0.5) < EXACT

    @pytest.mark.parametrize("gap", [30.0, 360.0, 700.0])
    def test_errors_of_bounds_whose_squares_overflow(self, gap: float) -> None:
        """By hand in 60 digits: orders that differ by 360 nats have a bound of 1e156."""
        values = torch.tensor([[0.0], [-gap], [-gap - 1.0]], **f64)
        found = orders.mixture_bounds(values)
        with mpmath.workdps(60):
            exact = [mpmath.mpf(value) for value in values[:, 0].tolist()]
            upper = []
            for first, second in itertools.combinations(exact, 2):
                ratios = mpmath.exp(first - second) + mpmath.exp(second - first)
                upper.append((first + second + ratios) / 2 - 1)
            mean = mpmath.fsum(upper) / 3
            squares = mpmath.fsum((value - mean) ** 2 for value in upper)
            expected = float(mpmath.sqrt(2 * squares / 3))
        assert found.upper_error.item() == pytest.approx(expected, rel=1e-12)

    def test_a_bound_beyond_all_floats_has_no_finite_error(self) -> None:
        # Of the second text every order is nothing beside the one before, whichever is left out.
        columns = [[0.0, -800.0, -801.0, -802.0], [0.0, -800.0, -1600.0, -2400.0]]
        values = torch.tensor(columns, **f64).T
        found = orders.mixture_bounds(values)
        for value in (found.upper, found.upper_error, found.midpoint):
            assert value.tolist() == [math.inf, math.inf]
        assert found.lower.isfinite().all() and found.lower_error.isfinite().all()

    def test_orders_that_agree_have_no_error(self) -> None:
        found = orders.mixture_bounds(torch.full((5, 2), -700.0, **f64))
        for error in (found.lower_error, found.upper_error):
            assert error.abs().max() < EXACT

    def test_one_dominant_order_does_not_cancel(self) -> None:
        """The others are 60 nats below it: a sum less the largest would be zero."""
        found = orders.mixture_bounds(torch.tensor([[0.0], [-60.0], [-61.0]], **f64))
        others = math.log((math.exp(-60.0) + math.exp(-61.0)) / 2)
        # The other two turns add numbers of size 60 to exp(60).
        assert abs(found.upper.log().item() - (-others - math.log(3))) < 1e-9
        assert found.is_heavy_tailed.item()

    def test_two_orders_that_agree_are_not_heavy_tailed(self) -> None:
        """Each has a half of the probability, and not more."""
        half = torch.tensor([0.5, 0.5 + 2.0**-20], **f64)
        bounds = orders.MixtureBounds(half, half, half, half, largest_share=half)
        assert bounds.is_heavy_tailed.tolist() == [False, True]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: orders.every(9), ValueError, r"all orders of D = 9.*3\.629e\+05"),
        (
            lambda: orders.exact(random_ppca(19, 1), torch.zeros(1, 19, **f64)),
            ValueError,
            r"orders\.draw and orders\.log_probability",
        ),
        (
            lambda: orders.log_probability(inconsistent(), points(4, 3), torch.arange(4)),
            ValueError,
            r"\(S, 4\).*ranks\[None, :\]",
        ),
        (
            lambda: orders.log_probability(inconsistent(), points(4, 3), torch.zeros(1, 4)),
            TypeError,
            "int64",
        ),
        (
            lambda: orders.log_probability(
                inconsistent(), points(4, 3), torch.tensor([[-1, 0, 1, 2]])
            ),
            ValueError,
            "count steps from 0, got -1",
        ),
        (lambda: orders.mixture_bounds(torch.zeros(1, 3)), ValueError, ">= 2 orders, got 1"),
        (
            lambda: orders.mixture_bounds(torch.tensor([[0.0, 0.0], [0.0, -math.inf]])),
            ValueError,
            r"log_probability\[1, 1\] is -inf",
        ),
    ],
)
def test_refuses(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


def test_an_order_with_a_step_of_probability_zero_has_probability_zero() -> None:
    """And no more than that one: the steps beside it are unchanged."""

    def first_is_never_one(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        values = torch.full((*x.shape, 2), 0.5, **f64)
        values[:, 0] = torch.tensor([1.0, 0.0], **f64)
        return values.log()

    model, x = FromFunction(first_is_never_one, 2), torch.tensor([[0, 0], [1, 0]])
    found = orders.log_probability(model, x, orders.every(2))
    expected = torch.tensor([math.log(0.5), -math.inf], **f64)
    torch.testing.assert_close(found, expected.expand(2, 2))


# -- orders that look at what has been shown: each is a distribution, whatever the conditionals

RULES = {
    "confidence": orders.confidence,
    "left_to_right": orders.left_to_right,
    "blocks of two by confidence": orders.by_blocks(orders.confidence, 2),
    "blocks of four by confidence": orders.by_blocks(orders.confidence, 4),
}
SIZES = [(1, 3), (3, 4), (5, 3), (6, 2)]


def adaptively_by_hand(model: ConditionalTable, x: torch.Tensor, rule) -> tuple[float, list[int]]:
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
            found = orders.adaptive(ConditionalTable.of(model), x, rule)
            expected = model.log_marginal(x)
            torch.testing.assert_close(found.log_probability, expected, rtol=0, atol=EXACT)

    def test_is_the_product_along_its_order(self, rule) -> None:
        """One text at a time by hand, and along its ranks by the function for orders that do not look."""
        model, x = inconsistent(5, 3), points(5, 3)[::17]
        found = orders.adaptive(model, x, rule)
        along_ranks = orders.log_probability(model, x, found.ranks).diagonal()
        torch.testing.assert_close(found.log_probability, along_ranks, rtol=0, atol=EXACT)
        for row, text in enumerate(x):
            total, ranks = adaptively_by_hand(model, text, rule)
            assert found.ranks[row].tolist() == ranks
            assert abs(found.log_probability[row].item() - total) < EXACT

    def test_asks_once_a_step(self, rule) -> None:
        model = inconsistent(5, 3)
        asked = []

        def log_values(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            asked.append(len(x))
            return model.log_values(x, mask)

        orders.adaptive(FromFunction(log_values, 5), points(5, 3), rule)
        # One text tells how many values there are, and FromFunction tries it under four masks, twice,
        # and two rows at a time.
        assert asked == [1, *[1] * 8, 2, 2, *[243] * 5]


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
    for rule in (orders.left_to_right, orders.confidence):
        found = orders.adaptive(model, x, rule)
        along = orders.log_probability(model, x, found.ranks).diagonal()
        assert (found.log_probability - along).abs().max() < 1e-3  # single precision
    straight = orders.adaptive(model, x, orders.left_to_right)
    assert straight.ranks.tolist() == [[0, 1, 2, 3]] * 2


def test_confidence_is_the_largest_probability() -> None:
    logits = 2.0 * torch.randn(3, 2, 4, generator=generator(7), dtype=torch.float64)
    log_values = logits.log_softmax(dim=-1)
    everything = torch.ones(3, 2, dtype=torch.bool)
    for row, column in [(n, j) for n in range(3) for j in range(2)]:
        most = orders.confidence(everything, log_values)[row, column].exp().item()
        assert most == pytest.approx(max(log_values[row, column].exp().tolist()), rel=EXACT)


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
    """No rule meets NaN there, and a text that has one has probability 0."""

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
    for block_size, same in (
        (1, orders.left_to_right),
        (5, orders.confidence),
        (9, orders.confidence),
    ):
        found = orders.adaptive(model, x, orders.by_blocks(orders.confidence, block_size))
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


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        ("confidence", TypeError, "rule must be of type"),
        (lambda mask, values: 1.0, TypeError, "floating-point tensor, got float"),
        (lambda mask, values: mask, TypeError, "floating-point tensor, got torch.bool"),
        (lambda mask, values: values, ValueError, r"\(2, 4\), got \(2, 4, 3\)"),
        (lambda mask, values: values[..., 0] * torch.nan, ValueError, "got NaN at a hidden"),
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
        orders.adaptive(random_table(2, 3), torch.zeros(1, 2).long(), orders.confidence)


@pytest.mark.bad_input
def test_refuses_a_model_that_answers_nan() -> None:
    def broken(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        values = torch.zeros(*x.shape, 2).log_softmax(-1)
        return values.where((mask.sum(dim=1) > 2)[:, None, None], torch.nan)

    model = FromFunction(broken, 3)
    with pytest.raises(ValueError, match="model must answer logarithms of probabilities, got NaN"):
        orders.adaptive(model, torch.zeros(1, 3).long(), orders.left_to_right)


def test_a_rule_may_answer_anything_where_nothing_is_hidden() -> None:
    model = random_hmm(3, 3, 4)
    x = model.sample(4, generator=generator(1))

    def undefined_if_shown(mask: torch.Tensor, log_values: torch.Tensor) -> torch.Tensor:
        return orders.confidence(mask, log_values).masked_fill(~mask, math.nan)

    plain = orders.adaptive(model, x, orders.confidence)
    assert torch.equal(orders.adaptive(model, x, undefined_if_shown).ranks, plain.ranks)
