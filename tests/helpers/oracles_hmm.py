"""Hidden Markov models, with every kind of zero that a table may have, by sums in 60 digits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mpmath
import torch
from models import generator, random_hmm
from oracles import DiscreteOracle, Point, digits, tractable
from torch import Tensor

from mpt_lml import HMM, masks

SIZES = (2000, 400, 90, 16, 5, 3, 2, 1)
SAMPLE = {
    4: None,  # every model
    90: (
        "never moves, emission .95",
        "always moves",
        "moves with 1e-30",
        "moves with 1e-70, a symbol that nobody emits",
        "starts with the smallest number",
        "left to right",
        "never moves, emission near 0",
        "a symbol that nobody emits",
        "the book's",
    ),
    500: ("never moves, emission .99", "left to right"),
}


class Paths(DiscreteOracle):
    """Σ over hidden paths, by what came before and what comes after, neither ever divided."""

    def __init__(self, model: HMM, x: Tensor) -> None:
        self.initial = digits(model.initial)
        self.emission = digits(model.emission)
        self.x = x.tolist()
        transition = digits(model.transition)
        states = range(len(transition))
        # Only the moves that can happen: (to, probability) of each state, and (from, probability).
        self.leaving = [[(r, transition[q][r]) for r in states if transition[q][r]] for q in states]
        self.arriving = [
            [(q, transition[q][r]) for q in states if transition[q][r]] for r in states
        ]

    def weights(self, row: int, observed: Sequence[bool]) -> list[list[mpmath.mpf]]:
        """p(x_j | z_j) where x_j is observed, 1 elsewhere, for every j and state."""
        one = [mpmath.mpf(1)] * len(self.initial)
        column = [list(each) for each in zip(*self.emission, strict=True)]
        pairs = zip(self.x[row], observed, strict=True)
        return [column[symbol] if seen else one for symbol, seen in pairs]

    def before(self, weights: list[list[mpmath.mpf]]) -> list[list[mpmath.mpf]]:
        """p(x_R before j, z_j), j = 1..D + 1."""
        message = self.initial
        messages = [message]
        for weight in weights:
            joint = [m * w for m, w in zip(message, weight, strict=True)]
            message = [mpmath.fsum(joint[q] * p for q, p in moves) for moves in self.arriving]
            messages.append(message)
        return messages

    def after(self, weights: list[list[mpmath.mpf]]) -> list[list[mpmath.mpf]]:
        """p(x_R after j | z_j), j = 1..D."""
        message = [mpmath.mpf(1)] * len(self.initial)
        messages = [message]
        for weight in reversed(weights[1:]):
            joint = [m * w for m, w in zip(message, weight, strict=True)]
            message = [mpmath.fsum(joint[r] * p for r, p in moves) for moves in self.leaving]
            messages.append(message)
        return messages[::-1]

    def log_subset_marginal(self, row: int, observed: Sequence[bool]) -> mpmath.mpf:
        if not any(observed):
            return mpmath.mpf(0)
        weights = self.weights(row, observed)
        last = self.before(weights)[len(weights) - 1]
        return mpmath.log(mpmath.fdot(last, weights[-1]))

    def log_values(self, row: int, mask: Sequence[bool]) -> list[list[mpmath.mpf] | None]:
        weights = self.weights(row, [not hidden for hidden in mask])
        before = self.before(weights)
        after = self.after(weights)
        values: list[list[mpmath.mpf] | None] = []
        for j, hidden in enumerate(mask):
            if not hidden:
                values.append(None)
                continue
            states = [a * b for a, b in zip(before[j], after[j], strict=True)]
            total = mpmath.fsum(states)
            columns = zip(*self.emission, strict=True)
            values.append([mpmath.log(mpmath.fdot(states, column) / total) for column in columns])
        return values


def models(num_features: int, dtype: torch.dtype) -> Iterator[tuple[str, HMM]]:
    """Chains that forget, chains that never forget, and chains that nearly never do."""
    tiny = 1e-300 if dtype == torch.float64 else 1e-38
    eye = torch.eye(2, dtype=torch.float64)
    swap = eye.flip(0)
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    first = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def emission(likely: float) -> Tensor:
        return torch.tensor([[likely, 1 - likely], [1 - likely, likely]], dtype=torch.float64)

    def near(zero: float, table: Tensor) -> Tensor:
        return table.clamp(min=zero)

    def made(initial: Tensor, transition: Tensor, emission: Tensor) -> HMM:
        return HMM(initial.to(dtype), transition.to(dtype), emission.to(dtype), num_features)

    yield "never moves, emission .95", made(half, eye, emission(0.95))
    yield "never moves, emission .99", made(half, eye, emission(0.99))
    yield "never moves, first state alone", made(first, eye, emission(0.95))
    yield "always moves", made(half, swap, emission(0.9))
    yield "moves with 1e-30", made(half, near(1e-30, eye), emission(0.95))
    yield "moves with the smallest number", made(half, near(tiny, eye), emission(0.95))
    yield "starts with the smallest number", made(near(tiny, first), eye, emission(0.9))
    yield "never moves, emission near 0", made(half, eye, near(tiny, eye))
    yield "moves, emission near 0", made(half, emission(0.9), near(tiny, eye))
    rare = torch.tensor([[1.0, 1e-30], [1.0, tiny]], dtype=torch.float64)
    yield "a symbol that nobody emits", made(half, emission(0.9), rare)

    apart = torch.tensor([[0.999, 0.001, tiny], [0.001, 0.999, tiny]], dtype=torch.float64)
    yield "moves with 1e-70, a symbol that nobody emits", made(half, near(1e-70, eye), apart)

    chain = 0.7 * torch.eye(4, dtype=torch.float64) + 0.3 * torch.eye(4).double().roll(1, dims=1)
    chain[3] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    block = random_hmm(4, 3, num_features, seed=5)
    start = torch.eye(4, dtype=torch.float64)[0]
    yield "left to right", made(start, chain, block.emission)
    closed = block.transition.clone()
    closed[:2, 2:] = 0
    closed[2:, :2] = 0
    closed /= closed.sum(dim=1, keepdim=True)
    yield "two closed classes", made(block.initial, closed, block.emission)
    yield (
        "a cycle of five",
        made(
            torch.full((5,), 0.2, dtype=torch.float64),
            torch.eye(5, dtype=torch.float64).roll(1, dims=1),
            random_hmm(5, 3, num_features, seed=6).emission,
        ),
    )
    yield "generic", made(block.initial, block.transition, block.emission)
    book = HMM.cyclic(num_features=num_features)
    yield "the book's", made(book.initial, book.transition, book.emission)
    yield "one state", made(torch.ones(1), torch.ones(1, 1), torch.tensor([[0.25, 0.75]]))


def data(model: HMM) -> Tensor:
    """Half zeros and half ones, alternating, evenly random symbols, and a draw, (4, D)."""
    steps = torch.arange(model.num_features)
    halves = (2 * steps >= model.num_features).long()
    shape = (1, model.num_features)
    even = torch.randint(model.num_values, shape, generator=generator(1))
    return torch.cat(
        [halves[None], (steps % 2)[None], even, model.sample(1, generator=generator(2))]
    )


def masks_of(num_features: int) -> Tensor:
    """Hidden: about half, the last half, one, everything, the first half, (P, D)."""
    steps = torch.arange(num_features)
    last = 2 * steps >= num_features
    everything = torch.ones(num_features, dtype=torch.bool)
    some = masks.sample_masks(1, num_features, (num_features + 1) // 2, generator=generator(3))[0]
    one = masks.sample_masks(1, num_features, 1, generator=generator(4))[0]
    rows = [some, last, one, everything, ~last]
    return torch.stack([row for row in rows if row.any()])


def points(full_grid: bool) -> Iterator[Point]:
    for dtype in (torch.float64, torch.float32):
        for num_features in SIZES if full_grid else SAMPLE:
            names = None if full_grid else SAMPLE[num_features]
            for name, model in models(num_features, dtype):
                if names is not None and name not in names:
                    continue
                x = data(model)
                mask = masks_of(num_features)
                if num_features > 16:
                    x = x[:: 1 if full_grid else 3]
                    mask = mask[:2]
                if num_features > 100:
                    x = x[:: 2 if full_grid else 3]
                yield point(name, model, x, mask)


def point(name: str, model: HMM, x: Tensor, mask: Tensor) -> Point:
    return tractable(
        lambda: model,
        x,
        mask,
        lambda: Paths(model, x),
        family="HMM",
        name=name,
        dtype=model.emission.dtype,
    )
