"""Which coordinates to hide: enumerating and sampling masks, and laws of their size.

Everywhere **True means masked**.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from mpt_lml.spec import (
    require,
    require_count,
    require_log_enumerable,
    require_memory,
    require_number,
)

__all__ = [
    "BernoulliRate",
    "FixedRate",
    "FixedSize",
    "UniformSize",
    "all_masks",
    "nested_masks",
    "sample_masks",
    "stratified_masks",
    "subsets",
]


def all_masks(num_features: int, num_masked: int) -> Bool[Tensor, "P D"]:
    """Every mask of size M, shape (C(D, M), D).

    Raises ``ValueError`` when M is outside 1..D or there are too many masks to enumerate.

    >>> all_masks(3, 2).int().tolist()
    [[1, 1, 0], [1, 0, 1], [0, 1, 1]]
    """
    require(locals(), "num_features 1..")
    require_count("num_masked", num_masked, 1, num_features)
    what = f"the masks that hide {num_masked} of {num_features} coordinates"
    terms = (num_features + 1, num_masked + 1, num_features - num_masked + 1)
    whole, hidden, shown = map(math.lgamma, terms)
    require_log_enumerable(what, whole - hidden - shown, "masks.sample_masks")
    number = math.comb(num_features, num_masked)
    chosen = torch.tensor(list(itertools.combinations(range(num_features), num_masked)))
    return torch.zeros(number, num_features, dtype=torch.bool).scatter_(1, chosen, True)


def subsets(num_features: int, *, instead: str = "masks.sample_masks") -> Bool[Tensor, "P D"]:
    """All 2^D subsets, shape (2^D, D); coordinate j is in row i where bit j of i is set.

    Row 0 is the empty set. Raises ``ValueError``, which says what to use ``instead``, when there are
    too many to enumerate.

    >>> subsets(2).int().tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    require(locals(), "num_features 1.., instead str")
    what = f"the subsets of D = {num_features} coordinates"
    require_log_enumerable(what, num_features * math.log(2.0), instead)
    rows = torch.arange(2**num_features)
    return (rows[:, None] >> torch.arange(num_features)) & 1 == 1


class SizeLaw(ABC):
    """A probability law of the number M of masked coordinates, given D."""

    @abstractmethod
    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        """Probability of M = 1, ..., D (float64, sums to 1)."""

    def sample(self, num_masks: int, num_features: int, *, generator: Generator) -> Tensor:
        """``num_masks`` independent sizes in 1..D, (P,) int64."""
        require(locals(), "num_masks 1.., generator")
        require_count("num_features", num_features, 1, 2**24)  # torch.multinomial takes no more
        weights = self.probabilities(num_features)
        return 1 + torch.multinomial(weights, num_masks, replacement=True, generator=generator)

    def stratified(self, num_masks: int, num_features: int, *, generator: Generator) -> Tensor:
        """``num_masks`` sizes at evenly spaced quantiles with one random shift, (P,) int64.

        Each is unbiased for the law, and all are as even as can be: uniform, P = D, every size once.
        """
        require(locals(), "num_masks 1.., generator")
        require_memory(f"{num_masks} masks", 8 * num_masks, "fewer at a time")
        shift = torch.rand(1, generator=generator, dtype=torch.float64)
        return self._at(_quantiles(num_masks, shift), num_features)

    def _at(self, quantile: Tensor, num_features: int) -> Tensor:
        # The last partial sum may round below 1; no quantile may fall behind it.
        bounds = self.probabilities(num_features).cumsum(0)[:-1]
        return torch.bucketize(quantile, bounds, right=True) + 1


def _quantiles(num_masks: int, shift: Float[Tensor, "*B 1"]) -> Float[Tensor, "*B P"]:
    return (torch.arange(num_masks, dtype=torch.float64) + shift) / num_masks


@dataclass(frozen=True)
class FixedSize(SizeLaw):
    """Always M = ``num_masked``.

    >>> FixedSize(2).probabilities(4).tolist()
    [0.0, 1.0, 0.0, 0.0]
    """

    num_masked: int

    def __post_init__(self) -> None:
        require_count("num_masked", self.num_masked, 1)

    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        require(locals(), "num_features 1..")
        require_count("num_masked", self.num_masked, 1, num_features)
        require_memory(f"probabilities of {num_features} sizes", 8 * num_features, "a smaller D")
        return (torch.arange(1, num_features + 1) == self.num_masked).double()


@dataclass(frozen=True)
class _Rate(SizeLaw):
    rate: float

    def __post_init__(self) -> None:
        require_number("rate", self.rate, "(0,1]", hint=" 15 % is rate=0.15.")


@dataclass(frozen=True)
class FixedRate(_Rate):
    """Always M = max(1, ⌊rate · D⌋): 15 % of 512 coordinates are the paper's 76.

    >>> FixedRate(0.15).num_masked(512)
    76
    """

    def num_masked(self, num_features: int) -> int:
        """M for this D."""
        require(locals(), "num_features 1..")
        # 1e-9: 0.29 * 100 is 28.999999999999996 in floating point and has to give 29.
        return max(1, math.floor(self.rate * num_features + 1e-9))

    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        return FixedSize(self.num_masked(num_features)).probabilities(num_features)


@dataclass(frozen=True)
class UniformSize(SizeLaw):
    """M uniform on 1..D: with it, D times the score of one random mask is unbiased for log p(x).

    >>> UniformSize().probabilities(4).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        require_count("num_features", num_features, 1)
        require_memory(f"probabilities of {num_features} sizes", 8 * num_features, "a smaller D")
        return torch.full((num_features,), 1.0 / num_features, dtype=torch.float64)


@dataclass(frozen=True)
class BernoulliRate(_Rate):
    """Every coordinate masked with probability ``rate`` on its own, given that at least one is.

    >>> BernoulliRate(0.5).probabilities(2)
    tensor([0.6667, 0.3333], dtype=torch.float64)
    """

    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        from scipy.stats import binom

        require_count("num_features", num_features, 1)
        require_memory(f"probabilities of {num_features} sizes", 8 * num_features, "a smaller D")
        sizes = torch.arange(1, num_features + 1)
        weights = torch.from_numpy(binom.pmf(sizes.numpy(), num_features, float(self.rate)))
        if not weights.sum() > 0:
            raise ValueError(
                f"rate = {self.rate} is so small that no probability of D = {num_features} coordinates "
                "is above 0 in double precision. Use FixedSize(1), which is its limit."
            )
        return weights / weights.sum()


def from_ranks(
    ranks: Int[Tensor, "*#B D"], sizes: int | Int[Tensor, "*#B"]
) -> Bool[Tensor, "*B D"]:
    """The masks that hide the coordinates of rank 0..M − 1, M from ``sizes``, broadcast, (..., D)."""
    return ranks < torch.as_tensor(sizes, device=ranks.device)[..., None]


def sample_ranks(num_masks: int, num_features: int, *, generator: Generator) -> Int[Tensor, "P D"]:
    """Ranks 0..D−1 of the coordinates in P uniformly random orders, (P, D), for :func:`from_ranks`."""
    require(locals(), "num_masks 1.., num_features 1.., generator")
    what = f"{num_masks} orders of {num_features} coordinates"
    require_memory(what, 8 * num_masks * num_features, "fewer at a time")
    where: Any = {"dtype": torch.float64, "device": generator.device}
    return torch.rand(num_masks, num_features, generator=generator, **where).argsort(dim=1)


def sample_masks(
    num_masks: int, num_features: int, size: int | SizeLaw, *, generator: Generator
) -> Bool[Tensor, "P D"]:
    """P random masks, shape (P, D): sizes from ``size``, coordinates uniform given the size.

    ``size`` is an integer or a law: ``FixedRate(0.15)``, ``UniformSize()``, ``BernoulliRate(0.15)``.

    >>> g = torch.Generator().manual_seed(0)
    >>> sample_masks(4, 10, FixedRate(0.3), generator=g).sum(dim=1).tolist()
    [3, 3, 3, 3]
    """
    require_count("num_features", num_features, 1)
    law: Any = FixedSize(size) if type(size) is int else size
    if not isinstance(law, SizeLaw):
        raise TypeError(f"size must be an integer or a size law such as FixedRate(.15): {size!r}.")
    law.probabilities(num_features)  # refuses a size that this D does not have, before drawing
    ranks = sample_ranks(num_masks, num_features, generator=generator)
    return from_ranks(ranks, law.sample(num_masks, num_features, generator=generator))


def stratified_masks(
    num_masks: int,
    num_features: int,
    law: SizeLaw | Sequence[SizeLaw],
    *,
    generator: Generator | Sequence[Generator],
) -> Bool[Tensor, "... P D"]:
    """Masks for one training step: sizes spread evenly over the law, coordinates uniform.

    With ``num_masks`` = D and the uniform law that is one fresh mask of every size, the paper's
    training. Shape (P, D), with an axis in front for a sequence of generators and one before that for
    a sequence of laws, which share random numbers.

    >>> g = torch.Generator().manual_seed(0)
    >>> stratified_masks(5, 5, UniformSize(), generator=g).sum(dim=1).tolist()
    [1, 2, 3, 4, 5]
    """
    generators: Any = generator if isinstance(generator, list | tuple) else [generator]
    laws: Any = law if isinstance(law, list | tuple) else [law]
    require({"law": laws or [None]}, "law* SizeLaw")
    rows = []
    for g in generators or [None]:
        require(locals() | {"generator": g}, "num_masks 1.., num_features 1.., generator")
        rows.append(torch.rand(1 + num_masks * num_features, generator=g, dtype=torch.float64))
    shift, values = torch.stack(rows).tensor_split([1], dim=1)
    levels, ranks = _quantiles(num_masks, shift), values.view(len(rows), num_masks, -1).argsort()
    mask = from_ranks(ranks, torch.stack([each._at(levels, num_features) for each in laws]))
    mask = mask[0] if isinstance(law, SizeLaw) else mask
    return mask[..., 0, :, :] if isinstance(generator, Generator) else mask


def nested_masks(order: Int[Tensor, "*batch D"]) -> Bool[Tensor, "*batch D D"]:
    """One order of the coordinates -> masks of sizes 1..D, (D, D); row M − 1 masks ``order[:M]``.

    The coordinates are revealed from the last of ``order`` to the first. From (..., D) to (..., D, D).

    >>> nested_masks(torch.tensor([2, 0, 1])).int().tolist()
    [[0, 0, 1], [1, 0, 1], [1, 1, 1]]
    """
    require(locals(), "int order ... D")
    num_features = order.shape[-1]
    if not torch.equal(order.sort(dim=-1).values, torch.arange(num_features).expand_as(order)):
        legal = f"0..{num_features - 1}, got {order.tolist()}"
        raise ValueError(f"order must be a permutation of {legal}.")
    return from_ranks(order.argsort(dim=-1)[..., None, :], torch.arange(1, num_features + 1))
