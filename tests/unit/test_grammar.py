"""The grammar against a sum over its trees, one by one, and at the book's size."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from cases import TractableModelCase
from models import generator
from torch import Tensor

from mpt_lml import Grammar, masks

EXACT = 1e-10


def random_grammar(num_kinds: int, num_symbols: int, num_features: int, seed: int = 0) -> Grammar:
    at = generator(seed)
    width = num_kinds**2 + num_symbols
    weights = torch.rand(num_kinds, width, generator=at, dtype=torch.float64) + 0.1
    weights = weights / weights.sum(dim=1, keepdim=True)
    rules, emission = weights.split([num_kinds**2, num_symbols], dim=1)
    return Grammar(rules.reshape(num_kinds, num_kinds, num_kinds), emission, num_features)


class Trees:
    """Probabilities of strings rule by rule and cut by cut, as they are defined, in fractions.

    A symbol is its number v, or (v, a) for a symbol v that a phrase of kind a has become.
    """

    def __init__(self, model: Grammar) -> None:
        kinds = range(len(model.rules))
        self.emission = [[Fraction(p) for p in row] for row in model.emission.tolist()]
        self.rules: list[list[tuple[int, int, Fraction]]] = [[] for _ in kinds]
        for kind, first, second in (model.rules > 0).nonzero().tolist():
            probability = Fraction(model.rules[kind, first, second].item())
            self.rules[kind].append((first, second, probability))
        self.inside = functools.cache(self._inside)

    def _inside(self, kind: int, string: tuple) -> Fraction:
        """Probability that a phrase becomes ``string``."""
        if len(string) == 1:
            return self._of_symbol(kind, string[0])
        total = Fraction(0)
        for first, second, probability in self.rules[kind]:
            for cut in range(1, len(string)):
                left = self.inside(first, string[:cut])
                if left != 0:
                    total += probability * left * self.inside(second, string[cut:])
        return total

    def _of_symbol(self, kind: int, symbol: int | tuple[int, int]) -> Fraction:
        if isinstance(symbol, int):
            return self.emission[kind][symbol]
        value, only_kind = symbol
        return self.emission[kind][value] if kind == only_kind else Fraction(0)


def every_string(model: Grammar) -> list[tuple[int, ...]]:
    return list(itertools.product(range(model.num_values), repeat=model.num_features))


GRAMMARS = {
    "D=1": random_grammar(2, 3, 1),
    "one kind": random_grammar(1, 2, 4, seed=1),
    "three kinds": random_grammar(3, 3, 4, seed=2),
    "brackets": Grammar.brackets(1, 1, 4),
}


@pytest.mark.parametrize("model", GRAMMARS.values(), ids=GRAMMARS.keys())
class TestGrammar(TractableModelCase):
    def test_every_string_against_its_trees(self, model: Grammar) -> None:
        strings = every_string(model)
        trees = Trees(model)
        inside = [trees.inside(0, string) for string in strings]
        of_length = sum(inside)
        probabilities = [float(value / of_length) for value in inside]
        expected = torch.tensor(probabilities, dtype=torch.float64)
        log_probability = model.log_marginal(torch.tensor(strings))
        torch.testing.assert_close(log_probability, expected.log(), atol=EXACT, rtol=0)
        assert log_probability.exp().sum().item() == pytest.approx(1.0, abs=EXACT)

    def test_hidden_places_are_sums_over_strings(self, model: Grammar) -> None:
        strings = torch.tensor(every_string(model))
        probability = model.log_marginal(strings).exp()
        x = self.data(model, 2)
        for mask in masks.subsets(model.num_features)[:-1]:
            for row in x:
                agrees = ((strings == row) | mask).all(dim=1)
                summed = probability[agrees].sum().log()
                value = model.log_subset_marginal(row[None], ~mask[None])[0, 0]
                torch.testing.assert_close(value, summed, atol=EXACT, rtol=0)

    def test_the_draws_have_these_frequencies(self, model: Grammar) -> None:
        strings = torch.tensor(every_string(model))
        count = 20_000
        drawn = model.sample(count, generator=generator(3))
        place_value = model.num_values ** torch.arange(model.num_features).flip(0)
        observed = torch.bincount(drawn @ place_value, minlength=len(strings))
        expected = count * model.log_marginal(strings).exp()
        # Pearson's statistic has mean C − 1 and variance about 2 C where cells are not small.
        is_common = expected > 5
        statistic = ((observed - expected).square() / expected)[is_common].sum()
        num_cells = is_common.sum()
        assert statistic < num_cells + 5 * (2 * num_cells) ** 0.5 + 5


def test_every_value_of_a_hidden_place_adds_up_to_one() -> None:
    model = Grammar.brackets()
    x = model.sample(4, generator=generator(1))
    mask = masks.sample_masks(4, 16, masks.UniformSize(), generator=generator(2))
    total = model.log_values(x, mask).logsumexp(dim=2)
    torch.testing.assert_close(total[mask], torch.zeros(int(mask.sum())).double())


def test_a_long_string_neither_underflows_nor_loses_digits() -> None:
    model = Grammar.brackets(num_features=120)
    x = model.sample(1, generator=generator(1))
    order = torch.randperm(120, generator=generator(2))
    shown = torch.zeros(1, 120, dtype=torch.bool)
    shown[0, order[:90]] = True
    first = model.log_subset_marginal(x, shown)[0, 0]
    next_shown = shown.clone()
    next_shown[0, order[90]] = True
    second = model.log_subset_marginal(x, next_shown)[0, 0]
    conditional = model.log_each(x, ~shown)[0, order[90]]
    assert model.log_marginal(x).item() < -90  # single precision ends at −87
    torch.testing.assert_close(conditional, second - first, atol=EXACT, rtol=0)


def test_an_opening_bracket_says_which_closes() -> None:
    model = Grammar.brackets(num_features=12)
    x = torch.full((1, 12), 6)
    x[0, 0] = 2
    hide_last = torch.arange(12)[None] == 11
    closing = model.log_values(x, hide_last)[0, 11, torch.tensor([1, 3, 5])]
    assert closing[1] > closing[0] + 1
    assert closing[1] > closing[2] + 1


@pytest.mark.bad_input
def test_tables_that_are_no_grammar_are_refused() -> None:
    good = Grammar.brackets()
    with pytest.raises(ValueError, match=r"sum to 1 together for every kind"):
        Grammar(good.rules, 0.5 * good.emission, 4)
    with pytest.raises(ValueError, match=r"rules\[0, 0, 0\] must be positive"):
        rules = good.rules.clone()
        rules[0, 0, 1] += rules[0, 0, 0]
        rules[0, 0, 0] = 0
        Grammar(rules, good.emission, 4)
    with pytest.raises(ValueError, match=r"emission\[0, 0\] is 0"):
        emission = good.emission.clone()
        emission[0, 1] += emission[0, 0]
        emission[0, 0] = 0
        Grammar(good.rules, emission, 4)
    with pytest.raises(ValueError, match="not negative"):
        Grammar(-good.rules, good.emission, 4)


@pytest.mark.parametrize("name", ["three kinds", "brackets"])
def test_posteriors_of_kinds_are_sums_over_trees(name: str) -> None:
    model = GRAMMARS[name]
    trees = Trees(model)
    x = torch.tensor(every_string(model)[::7])
    seen = model.log_posterior(x, torch.ones_like(x, dtype=torch.bool)).exp()
    hidden = torch.zeros_like(x, dtype=torch.bool)
    hidden[:, 1] = True
    around = model.log_posterior(x, ~hidden).exp()

    def through_kind(string: tuple[int, ...], place: int, kind: int) -> Fraction:
        """Probability of ``string`` where what stands at ``place`` comes from a phrase of ``kind``."""
        return trees.inside(0, (*string[:place], (string[place], kind), *string[place + 1 :]))

    for row, string in enumerate(map(tuple, x.tolist())):
        whole = trees.inside(0, string)
        # Place 1 hidden: add up over the symbols that may stand there.
        fillings = [(string[0], v, *string[2:]) for v in range(model.num_values)]
        total = sum(trees.inside(0, filling) for filling in fillings)
        for kind in range(len(model.rules)):
            shares = [float(through_kind(string, place, kind) / whole) for place in range(4)]
            expected = torch.tensor(shares, dtype=torch.float64)
            torch.testing.assert_close(seen[row, :, kind], expected, atol=EXACT, rtol=0)
            share = sum(through_kind(filling, 1, kind) for filling in fillings)
            assert abs(around[row, 1, kind].item() - float(share / total)) < EXACT


def useless_kind(unlikely: Tensor, num_features: int) -> Grammar:
    """Kind 1 makes zeros out of zeros, with probability 1/2 each, but from kind 0 nothing leads there.

    Kind 0 makes its own, each with the probability ``unlikely``. Every tree of a string has the same
    shapes, so that p(x) is the product of the shares ``unlikely`` and 1/2 − ``unlikely`` in 1/2.
    """
    rules = unlikely.new_zeros(2, 2, 2)
    rules[0, 0, 0] = 0.5
    rules[1, 1, 1] = 0.5
    emission = torch.stack([torch.stack([unlikely, 0.5 - unlikely]), unlikely.new_tensor([0.5, 0])])
    return Grammar(rules, emission, num_features)


@pytest.mark.parametrize(
    ("unlikely", "num_features", "dtype"),
    [
        (1e-3, 125, torch.float64),
        (1e-5, 70, torch.float64),
        (3e-21, 16, torch.float64),
        (1e-300, 2, torch.float64),
        (1e-300, 60, torch.float64),
        (1e-38, 40, torch.float32),
    ],
)
def test_the_only_derivation_may_be_the_least_likely(
    unlikely: float, num_features: int, dtype: torch.dtype
) -> None:
    model = useless_kind(torch.tensor(unlikely, dtype=dtype), num_features)
    of_zero, of_one = model.emission[0].tolist()
    log_share = math.log(of_zero / (of_zero + of_one))
    x = torch.zeros(1, num_features, dtype=torch.int64)
    hidden = torch.zeros(1, num_features, dtype=torch.bool)
    hidden[0, num_features // 2] = True
    rounding = 1e-12 if dtype == torch.float64 else 1e-6
    log_marginal = model.log_marginal(x).item()
    assert log_marginal == pytest.approx(num_features * log_share, rel=rounding)
    log_rest = model.log_subset_marginal(x, ~hidden).item()
    assert log_rest == pytest.approx((num_features - 1) * log_share, rel=rounding)
    log_conditional = model.log_conditional(x, hidden)[0, 0, num_features // 2].item()
    assert log_conditional == pytest.approx(log_share, rel=rounding)
    log_kinds = model.log_posterior(x, ~hidden)[0]
    assert log_kinds[:, 0].abs().max().item() < rounding
    assert (log_kinds[:, 1] == -math.inf).all()


def test_derivatives_through_the_least_likely_derivation() -> None:
    unlikely = torch.tensor(1e-300, dtype=torch.float64, requires_grad=True)
    model = useless_kind(unlikely, 12)
    x = torch.zeros(1, 12, dtype=torch.int64)
    hidden = torch.ones(1, 12, dtype=torch.bool)
    # log p(x) = 12 log(2 u), and each of its conditionals is log(2 u).
    (of_marginal,) = torch.autograd.grad(model.log_marginal(x).sum(), unlikely)
    assert of_marginal.item() == pytest.approx(12e300, rel=1e-12)
    (of_conditionals,) = torch.autograd.grad(model.log_conditional(x, hidden).sum(), unlikely)
    assert of_conditionals.item() == pytest.approx(12e300, rel=1e-12)


def test_derivatives_with_respect_to_what_hardly_happens() -> None:
    rare = torch.tensor(1e-250, dtype=torch.float64, requires_grad=True)
    rules = rare.new_zeros(2, 2, 2)
    rules[0, 0, 0] = 0.25
    rules[0, 1, 0] = 0.25
    emission = torch.stack([rare.new_tensor([0.125, 0.375]), torch.stack([rare, 1 - rare])])
    model = Grammar(rules, emission, 2)
    x = torch.zeros(1, 2, dtype=torch.int64)
    # p(00, D = 2) is (.125 + u) times .125 / 4, while p(D = 2), and p(?0, D = 2) as well, have no u.
    log_conditional = model.log_conditional(x, torch.tensor([[True, False]]))
    for log_probability in (model.log_marginal(x), log_conditional):
        (slope,) = torch.autograd.grad(log_probability.sum(), rare)
        assert slope.item() == pytest.approx(8.0, rel=1e-12)


def log_kinds_that_can_be(model: Grammar, x: Tensor, mask: Tensor) -> Tensor:
    log_kinds = model.log_posterior(x, ~mask)
    return log_kinds[log_kinds.isfinite()]


@pytest.mark.parametrize("name", ["three kinds", "brackets"])
@pytest.mark.parametrize(
    "answer",
    [
        lambda model, x, mask: model.log_marginal(x),
        lambda model, x, mask: model.log_each(x, mask),
        lambda model, x, mask: model.log_values(x, mask)[mask],
        log_kinds_that_can_be,
    ],
    ids=["log_marginal", "log_each", "log_values", "log_posterior"],
)
def test_derivatives_are_slopes(
    name: str, answer: Callable[[Grammar, Tensor, Tensor], Tensor]
) -> None:
    tables = torch.cat([GRAMMARS[name].rules.flatten(1), GRAMMARS[name].emission], dim=1)
    num_kinds = len(tables)
    can_be = tables > 0
    x = GRAMMARS[name].sample(2, generator=generator(1))
    mask = torch.tensor([[True, False, True, False], [True, True, True, True]])

    def of_logits(logits: Tensor) -> Tensor:
        rows = torch.full_like(tables, -math.inf).masked_scatter(can_be, logits).softmax(dim=1)
        rules, emission = rows.split([num_kinds**2, rows.shape[1] - num_kinds**2], dim=1)
        model = Grammar(rules.reshape(num_kinds, num_kinds, num_kinds), emission, 4)
        return answer(model, x, mask)

    logits = tables[can_be].log().requires_grad_()
    assert torch.autograd.gradcheck(of_logits, logits)


def test_what_cannot_happen_has_the_derivative_0() -> None:
    book = Grammar.brackets(1, 1, 6)
    rules = book.rules.clone().requires_grad_()
    emission = book.emission.clone().requires_grad_()
    model = Grammar(rules, emission, 6)
    log_marginal = model.log_marginal(model.sample(3, generator=generator(1))).sum()
    of_rules, of_emission = torch.autograd.grad(log_marginal, [rules, emission])
    assert (of_rules[rules == 0] == 0).all()
    assert (of_emission[emission == 0] == 0).all()
    assert (of_emission[emission > 0] != 0).any()
    # All trees of D symbols have D leaves: D times log emission in log p(x, D) and in log p(D).
    assert abs((of_emission * emission).sum().item()) < EXACT


@pytest.mark.bad_input
def test_what_no_memory_holds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one string of 1000000 symbols .* smaller num_features"):
        Grammar.brackets(num_features=1_000_000)
    with pytest.raises(ValueError, match=r"30001³ rules .* fewer num_kinds"):
        Grammar.brackets(num_kinds=10_000)
