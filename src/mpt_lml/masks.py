"""Which coordinates to hide: counting, enumerating and sampling masks, and laws of their size (floor 1).

Everywhere **True means masked**.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.shapes import require_count, require_enumerable, require_generator


def count(num_features: int, num_masked: int) -> int:
    """C(D, M), how many masks of size M there are, as an exact integer (paper, Section 2)."""
    require_count("num_masked", num_masked, 0, num_features)
    return math.comb(num_features, num_masked)


def all_masks(num_features: int, num_masked: int) -> Bool[Tensor, "P D"]:
    """Every mask of size M, shape (C(D, M), D).

    Raises ``ValueError`` when M is outside 1..D or there are more than 2^20 masks.
    """
    require_count("num_features", num_features, 1)
    require_count("num_masked", num_masked, 1, num_features)
    number = count(num_features, num_masked)
    what = f"all masks of size {num_masked} of D = {num_features} coordinates"
    require_enumerable(number, what, "masks.sample_masks")
    chosen = torch.tensor(list(itertools.combinations(range(num_features), num_masked)))
    mask = torch.zeros(number, num_features, dtype=torch.bool)
    return mask.scatter_(1, chosen, True)


def subsets(num_features: int) -> Bool[Tensor, "P D"]:
    """All 2^D subsets, shape (2^D, D); coordinate j is in row i where bit j of i is set.

    Row 0 is the empty set. Raises ``ValueError`` for D > 20.
    """
    require_count("num_features", num_features, 1)
    what = f"all masks of D = {num_features} coordinates"
    require_enumerable(2**num_features, what, "curves.sampled_curve or masks.sample_masks")
    rows = torch.arange(2**num_features)
    return (rows[:, None] >> torch.arange(num_features)) & 1 == 1


class SizeLaw(ABC):
    """A probability law of the number M of masked coordinates, given D."""

    @abstractmethod
    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        """Probability of M = 1, ..., D (float64, sums to 1)."""

    def sample(self, num_masks: int, num_features: int, *, generator: torch.Generator) -> Tensor:
        """``num_masks`` sizes in 1..D, shape (P,) int64."""
        weights = self.probabilities(num_features)
        draws = torch.multinomial(weights, num_masks, replacement=True, generator=generator)
        return draws + 1

    def stratified(
        self, num_masks: int, num_features: int, *, generator: torch.Generator
    ) -> Tensor:
        """``num_masks`` sizes at evenly spaced quantiles with one random shift, shape (P,) int64.

        Each size is unbiased for the law, and the set is as even as it can be: with P = D and the
        uniform law it is every size 1..D once, whatever the shift.
        """
        shift = torch.rand((), generator=generator, dtype=torch.float64)
        return self.quantile(spread(shift, num_masks), num_features)

    def quantile(self, level: Tensor, num_features: int) -> Tensor:
        """The sizes at quantiles ``level`` in [0, 1), int64 of the same shape."""
        # The last partial sum may round below 1; no quantile may fall behind it.
        bounds = self.probabilities(num_features).cumsum(0)[:-1]
        return torch.bucketize(level, bounds, right=True) + 1


def spread(shift: Float[Tensor, "*B"], num_masks: int) -> Float[Tensor, "*B P"]:
    """``num_masks`` evenly spaced quantiles in [0, 1), moved by ``shift`` in [0, 1)."""
    return (torch.arange(num_masks, dtype=torch.float64) + shift[..., None]) / num_masks


@dataclass(frozen=True)
class FixedSize(SizeLaw):
    """Always M = ``num_masked``."""

    num_masked: int

    def __post_init__(self) -> None:
        require_count("num_masked", self.num_masked, 1)

    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        require_count("num_masked", self.num_masked, 1, num_features)
        weights = torch.zeros(num_features, dtype=torch.float64)
        weights[self.num_masked - 1] = 1.0
        return weights


@dataclass(frozen=True)
class SizeSet(SizeLaw):
    """M uniform on the given sizes: what training sees that visits some sizes and not others."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) == 0:
            raise ValueError("sizes must name at least one size, got an empty sequence.")
        for size in self.sizes:
            require_count("size", size, 1)

    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        for size in self.sizes:
            require_count("size", size, 1, num_features)
        counts = torch.bincount(torch.tensor(self.sizes) - 1, minlength=num_features)
        return counts.double() / len(self.sizes)


@dataclass(frozen=True)
class FixedRate(SizeLaw):
    """Always M = max(1, ⌊rate · D⌋): 15 % of 512 coordinates are the paper's 76."""

    rate: float

    def __post_init__(self) -> None:
        _require_rate("rate", self.rate)

    def num_masked(self, num_features: int) -> int:
        """M for this D."""
        # 1e-9: 0.29 * 100 is 28.999999999999996 in floating point and has to give 29.
        return max(1, math.floor(self.rate * num_features + 1e-9))

    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        return FixedSize(self.num_masked(num_features)).probabilities(num_features)


@dataclass(frozen=True)
class UniformSize(SizeLaw):
    """M uniform on 1..D: with it, D times the score of one random mask is unbiased for log p(x)."""

    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        require_count("num_features", num_features, 1)
        return torch.full((num_features,), 1.0 / num_features, dtype=torch.float64)


@dataclass(frozen=True)
class BernoulliRate(SizeLaw):
    """Every coordinate masked with probability ``rate`` on its own, given that at least one is."""

    rate: float

    def __post_init__(self) -> None:
        _require_rate("rate", self.rate)

    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        require_count("num_features", num_features, 1)
        sizes = torch.arange(1, num_features + 1, dtype=torch.float64)
        total = torch.tensor(float(num_features), dtype=torch.float64)
        log_choose = (total + 1).lgamma() - (sizes + 1).lgamma() - (total - sizes + 1).lgamma()
        # xlogy: at rate 1 the factor (1 - rate)^0 has to be 1.
        rest = torch.xlogy(total - sizes, torch.tensor(1.0 - self.rate, dtype=torch.float64))
        weights = (log_choose + sizes * math.log(self.rate) + rest).exp()
        return weights / weights.sum()


def _require_rate(name: str, rate: float) -> None:
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"{name} must be in (0, 1], got {rate}. 15 % is {name}=0.15.")


def sample_ranks(
    num_masks: int, num_features: int, *, generator: torch.Generator
) -> Int[Tensor, "P D"]:
    """Ranks of the coordinates in P uniformly random orders, shape (P, D) with values 0..D−1.

    ``ranks < M`` is then a uniformly random mask of size M, and the coordinate of rank M − 1 is a
    uniformly random member of it.
    """
    require_count("num_masks", num_masks, 1)
    require_generator(generator)
    noise = torch.rand(
        num_masks, num_features, generator=generator, dtype=torch.float64, device=generator.device
    )
    return noise.argsort(dim=1)


def sample_masks(
    num_masks: int, num_features: int, size: int | SizeLaw, *, generator: torch.Generator
) -> Bool[Tensor, "P D"]:
    """P random masks, shape (P, D): sizes from ``size``, coordinates uniform given the size.

    ``size`` is an integer or a law: ``FixedRate(0.15)``, ``UniformSize()``, ``BernoulliRate(0.15)``.
    """
    require_count("num_features", num_features, 1)
    law = FixedSize(size) if isinstance(size, int) and not isinstance(size, bool) else size
    if not isinstance(law, SizeLaw):
        raise TypeError(
            f"size must be an integer or a size law such as FixedRate(0.15), got {size!r}."
        )
    law.probabilities(num_features)  # refuses a size that this D does not have, before drawing
    ranks = sample_ranks(num_masks, num_features, generator=generator)
    sizes = law.sample(num_masks, num_features, generator=generator)
    return ranks < sizes.to(ranks.device)[:, None]


def nested_masks(order: Int[Tensor, "*batch D"]) -> Bool[Tensor, "*batch D D"]:
    """One order of the coordinates -> D masks of sizes 1..D; row M − 1 masks ``order[:M]``.

    The coordinates are revealed from the last of ``order`` to the first. Leading axes are batches.
    """
    num_features = order.shape[-1]
    ranks = order.argsort(dim=-1)
    if not torch.equal(order.sort(dim=-1).values, torch.arange(num_features).expand_as(order)):
        raise ValueError(
            f"order must be a permutation of 0..{num_features - 1}, got {order.tolist()}."
        )
    sizes = torch.arange(1, num_features + 1)
    return ranks[..., None, :] < sizes[:, None]
