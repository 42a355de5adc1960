"""The grammar against a sum over its trees, one by one, and at the book's size."""

from __future__ import annotations

import itertools
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from cases import TractableModelCase
from models import generator

from mpt_lml import Grammar, masks

EXACT = 1e-10


def random_grammar(num_kinds: int, num_symbols: int, num_features: int, seed: int = 0) -> Grammar:
    at = generator(seed)
    width = num_kinds**2 + num_symbols
    weights = torch.rand(num_kinds, width, generator=at, dtype=torch.float64) + 0.1
    weights = weights / weights.sum(dim=1, keepdim=True)
    rules, emission = weights.split([num_kinds**2, num_symbols], dim=1)
    return Grammar(rules.reshape(num_kinds, num_kinds, num_kinds), emission, num_features)


def by_trees(model: Grammar, kind: int, string: tuple[int, ...]) -> Fraction:
    """Probability that a phrase becomes ``string``: rule by rule, cut by cut, as it is defined."""
    if len(string) == 1:
        return Fraction(model.emission[kind, string[0]].item())
    total = Fraction(0)
    for first, second in itertools.product(range(len(model.rules)), repeat=2):
        probability = Fraction(model.rules[kind, first, second].item())
        if probability == 0:
            continue
        for cut in range(1, len(string)):
            left = by_trees(model, first, string[:cut])
            if left != 0:
                total += probability * left * by_trees(model, second, string[cut:])
    return total


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
        inside = [by_trees(model, 0, string) for string in strings]
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
    model = Grammar.brackets(num_features=200)
    x = model.sample(1, generator=generator(1))
    order = torch.randperm(200, generator=generator(2))
    shown = torch.zeros(1, 200, dtype=torch.bool)
    shown[0, order[:150]] = True
    first = model.log_subset_marginal(x, shown)[0, 0]
    next_shown = shown.clone()
    next_shown[0, order[150]] = True
    second = model.log_subset_marginal(x, next_shown)[0, 0]
    conditional = model.log_each(x, ~shown)[0, order[150]]
    assert model.log_marginal(x).item() < -150
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


def through_kind(model: Grammar, string: tuple[int, ...], place: int, kind: int) -> Fraction:
    """Probability of ``string`` where what stands at ``place`` comes from a phrase of ``kind``.

    A symbol of its own stands there, which no other kind emits.
    """
    own = torch.zeros(len(model.emission), 1, dtype=torch.float64)
    own[kind] = model.emission[kind, string[place]]
    other = SimpleNamespace(rules=model.rules, emission=torch.cat([model.emission, own], dim=1))
    marked = (*string[:place], model.num_values, *string[place + 1 :])
    return by_trees(other, 0, marked)


@pytest.mark.parametrize("name", ["three kinds", "brackets"])
def test_posteriors_of_kinds_are_sums_over_trees(name: str) -> None:
    model = GRAMMARS[name]
    x = torch.tensor(every_string(model)[::7])
    seen = model.log_posterior(x, torch.ones_like(x, dtype=torch.bool)).exp()
    hidden = torch.zeros_like(x, dtype=torch.bool)
    hidden[:, 1] = True
    around = model.log_posterior(x, ~hidden).exp()
    for row, string in enumerate(x.tolist()):
        for kind in range(len(model.rules)):
            shares = [through_kind(model, tuple(string), place, kind) for place in range(4)]
            whole = by_trees(model, 0, tuple(string))
            expected = torch.tensor([float(share / whole) for share in shares], dtype=torch.float64)
            torch.testing.assert_close(seen[row, :, kind], expected, atol=EXACT, rtol=0)
            # Place 1 hidden: add up over the symbols that may stand there.
            fillings = [(string[0], v, *string[2:]) for v in range(model.num_values)]
            share = sum(through_kind(model, filling, 1, kind) for filling in fillings)
            total = sum(by_trees(model, 0, filling) for filling in fillings)
            assert abs(around[row, 1, kind].item() - float(share / total)) < EXACT
