"""Grammars by sums over their trees in 60 digits: ambiguous, impossible and improbable rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import mpmath
import torch
from models import generator
from oracles import DiscreteOracle, Point, digits, tractable
from torch import Tensor

from mpt_lml import Grammar, masks

SIZES = (128, 70, 16, 5, 3, 2, 1)
SAMPLE = {
    1: ("a symbol that nobody emits",),
    4: None,  # every grammar
    16: ("the likely kind leads nowhere", "each pair of kinds has a rule"),
    40: ("the likely kind leads nowhere",),
}
LONG = 50  # from here on only the grammars that fewest rules have
FEW_RULES = (
    "one kind",
    "the likely kind leads nowhere",
    "the likely kind has to be closed",
    "a rule that is hardly used",
)
Inside = dict[tuple[int, int], list[mpmath.mpf]]


class Trees(DiscreteOracle):
    """Σ over all trees: the probability of the phrases of each span, and of what is around them."""

    def __init__(self, model: Grammar, x: Tensor) -> None:
        self.emission = digits(model.emission)
        self.of_any = [mpmath.fsum(row) for row in self.emission]
        self.rules = []
        for a, b, c in (model.rules > 0).nonzero().tolist():
            self.rules.append((a, b, c, digits(model.rules[a, b, c])))
        self.num_kinds = len(self.emission)
        self.num_features = model.num_features
        self.x = x.tolist()
        self.inside = cache(self.inside)
        self.around = cache(self.around)

    def leaves(self, row: int, observed: Sequence[bool]) -> list[list[mpmath.mpf]]:
        columns = list(zip(*self.emission, strict=True))
        pairs = zip(self.x[row], observed, strict=True)
        return [list(columns[symbol]) if seen else self.of_any for symbol, seen in pairs]

    def inside(self, row: int, observed: tuple[bool, ...]) -> Inside:
        """Probability that a phrase of each kind becomes places i, ..., k − 1 of x_R."""
        spans = {(i, i + 1): leaf for i, leaf in enumerate(self.leaves(row, observed))}
        for length in range(2, self.num_features + 1):
            for i in range(self.num_features - length + 1):
                k = i + length
                phrases = [mpmath.mpf(0)] * self.num_kinds
                for a, b, c, probability in self.rules:
                    products = [
                        spans[i, cut][b] * spans[cut, k][c]
                        for cut in range(i + 1, k)
                        if spans[i, cut][b] and spans[cut, k][c]
                    ]
                    phrases[a] += probability * mpmath.fsum(products)
                spans[i, k] = phrases
        return spans

    def around(self, row: int, observed: tuple[bool, ...]) -> list[list[mpmath.mpf]]:
        """Probability of everything but place j where a phrase of each kind is to stand there."""
        inside = self.inside(row, observed)
        around = {span: [mpmath.mpf(0)] * self.num_kinds for span in inside}
        around[0, self.num_features][0] = mpmath.mpf(1)
        for length in range(self.num_features, 1, -1):
            for i in range(self.num_features - length + 1):
                k = i + length
                for a, b, c, probability in self.rules:
                    weight = around[i, k][a] * probability
                    if not weight:
                        continue
                    for cut in range(i + 1, k):
                        first, second = inside[i, cut][b], inside[cut, k][c]
                        if second:
                            around[i, cut][b] += weight * second
                        if first:
                            around[cut, k][c] += weight * first
        return [around[j, j + 1] for j in range(self.num_features)]

    def whole(self, row: int, observed: Sequence[bool]) -> mpmath.mpf:
        """p(x_R, length D)."""
        return self.inside(row, tuple(observed))[0, self.num_features][0]

    def log_subset_marginal(self, row: int, observed: Sequence[bool]) -> mpmath.mpf:
        of_length = self.whole(0, [False] * self.num_features)
        return mpmath.log(self.whole(row, observed) / of_length)

    def log_values(self, row: int, mask: Sequence[bool]) -> list[list[mpmath.mpf] | None]:
        observed = tuple(not hidden for hidden in mask)
        total = self.whole(row, observed)
        values: list[list[mpmath.mpf] | None] = []
        for around, hidden in zip(self.around(row, observed), mask, strict=True):
            if not hidden:
                values.append(None)
                continue
            columns = zip(*self.emission, strict=True)
            values.append([mpmath.log(mpmath.fdot(around, column) / total) for column in columns])
        return values

    def log_kinds(self, row: int, mask: Sequence[bool]) -> list[mpmath.mpf]:
        """log p(a_j | x_R) of every place and kind."""
        observed = tuple(not hidden for hidden in mask)
        total = self.whole(row, observed)
        places = zip(self.around(row, observed), self.leaves(row, observed), strict=True)
        return [
            mpmath.log(outside * leaf / total)
            for around, leaves in places
            for outside, leaf in zip(around, leaves, strict=True)
        ]


def models(num_features: int, dtype: torch.dtype) -> Iterator[tuple[str, Grammar]]:
    """Grammars in which the only derivation is improbable, and others beside them."""
    tiny = 1e-300 if dtype == torch.float64 else 1e-38

    def made(rules: dict[tuple[int, int, int], float], emission: list[list[float]]) -> Grammar:
        table = torch.zeros(len(emission), len(emission), len(emission), dtype=torch.float64)
        for rule, probability in rules.items():
            table[rule] = probability
        symbols = torch.tensor(emission, dtype=torch.float64)
        total = table.sum(dim=(1, 2)) + symbols.sum(dim=1)
        table = table / total[:, None, None]
        return Grammar(table.to(dtype), (symbols / total[:, None]).to(dtype), num_features)

    yield "one kind", made({(0, 0, 0): 0.4}, [[0.2, 0.4]])
    loops = {(0, 0, 0): 0.5, (1, 1, 1): 0.5}
    yield "the likely kind leads nowhere", made(loops, [[tiny, 0.5], [0.5, 0.0]])
    yield "the unlikely kind is e^-7", made(loops, [[1e-3, 0.499], [0.5, 0.0]])
    # Zeros may come from kind 1, which has to be closed by a one.
    closed = {(0, 0, 0): 0.4, (0, 1, 2): 0.1, (1, 1, 1): 0.5}
    yield "the likely kind has to be closed", made(closed, [[tiny, 0.5], [0.5, 0.0], [0.0, 1.0]])
    hardly = {(0, 0, 0): tiny, (0, 1, 0): 0.5, (1, 1, 1): tiny}
    yield "a rule that is hardly used", made(hardly, [[0.2, 0.3], [0.9, 0.1]])
    mirrored = {(0, 0, 0): tiny, (0, 0, 1): 0.5, (1, 0, 1): 0.3}
    yield "a kind that stands at the end", made(mirrored, [[tiny, 0.5], [0.7, tiny]])
    alike = {(0, 0, 0): 0.5, (1, 1, 0): 0.2}
    yield "a symbol that nobody emits", made(alike, [[tiny, 0.5], [0.01 * tiny, 0.8]])
    random = torch.rand(3, 12, generator=generator(num_features), dtype=torch.float64)
    ambiguous = {(a, b, c): random[a, 3 * b + c].item() for a, b, c in _triples(3)}
    symbols = random[:, 9:].tolist()
    yield "each pair of kinds has a rule", made(ambiguous, symbols)
    some = {rule: p for rule, p in ambiguous.items() if p > 0.6 or rule == (0, 0, 0)}
    spread = [[1e-30, 0.3, 0.7], [0.9, 0.0, tiny], [0.0, 0.1, 1e-10]]
    yield "some pairs have a rule", made(some, spread)
    book = Grammar.brackets(2, 1, num_features)
    yield "the book's", Grammar(book.rules.to(dtype), book.emission.to(dtype), num_features)


def _triples(num_kinds: int) -> list[tuple[int, int, int]]:
    kinds = range(num_kinds)
    return [(a, b, c) for a in kinds for b in kinds for c in kinds]


def data(model: Grammar) -> Tensor:
    """Zeros, halves, evenly random symbols, and a draw, (4, D)."""
    shape = (1, model.num_features)
    zeros = torch.zeros(shape, dtype=torch.int64)
    halves = (2 * torch.arange(model.num_features) >= model.num_features).long()
    even = torch.randint(model.num_values, shape, generator=generator(1))
    return torch.cat([zeros, halves[None], even, model.sample(1, generator=generator(2))])


def masks_of(num_features: int) -> Tensor:
    """Hidden: about half, one, everything, the second half, (P, D)."""
    some = masks.sample_masks(1, num_features, (num_features + 1) // 2, generator=generator(3))[0]
    one = masks.sample_masks(1, num_features, 1, generator=generator(4))[0]
    everything = torch.ones(num_features, dtype=torch.bool)
    second = 2 * torch.arange(num_features) >= num_features
    return torch.stack([row for row in (some, one, everything, second) if row.any()])


def points(full_grid: bool) -> Iterator[Point]:
    for dtype in (torch.float64, torch.float32):
        for num_features in SIZES if full_grid else SAMPLE:
            names = None if full_grid else SAMPLE[num_features]
            if num_features > LONG:
                names = FEW_RULES
            for name, model in models(num_features, dtype):
                if names is not None and name not in names:
                    continue
                x = data(model)
                mask = masks_of(num_features)
                if num_features > 5 and not full_grid:
                    x, mask = x[:1], mask[:1]
                elif num_features > LONG:
                    x, mask = x[::3], mask[:1]
                yield point(name, model, x, mask)


def point(name: str, model: Grammar, x: Tensor, mask: Tensor) -> Point:
    """The public methods of every model, and the kinds of phrases."""
    oracle = cache(lambda: Trees(model, x))
    dtype = model.emission.dtype
    common = tractable(lambda: model, x, mask, oracle, family="grammar", name=name, dtype=dtype)
    pairs = torch.arange(len(x)) % len(mask)

    def measured() -> Mapping[str, Tensor]:
        return {**common.measured(), "log_posterior": model.log_posterior(x, ~mask[pairs])}

    def exact() -> Mapping[str, Sequence[mpmath.mpf]]:
        rows = [oracle().log_kinds(row, mask[p].tolist()) for row, p in enumerate(pairs)]
        kinds = [value for row in rows for value in row]
        return {**common.exact(), "log_posterior": kinds}

    return dataclasses.replace(common, measured=measured, exact=exact)
