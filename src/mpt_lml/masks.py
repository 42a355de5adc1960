"""Masks of coordinates, enumerated or sampled, and laws of their size.

Everywhere **True means masked**.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Generator, Tensor

from mpt_lml.checks import (
    Count,
    Rate,
    Within,
    check,
    checked,
    require_count,
    require_log_enumerable,
)

__all__ = [
    "BernoulliRate",
    "FixedRate",
    "FixedSize",
    "PowerSize",
    "SizeLaw",
    "UniformSize",
    "all_masks",
    "nested_masks",
    "row_of",
    "sample_masks",
    "sample_ranks",
    "stratified_masks",
    "subsets",
]


@checked
def all_masks(num_features: Count, num_masked: int) -> Bool[Tensor, "P D"]:
    """Every mask of size M.

    Args:
        num_features: D.
        num_masked: M, within 1..D.

    Returns:
        Boolean, (C(D, M), D).

    Raises:
        ValueError: when M is outside 1..D, or there are too many masks to enumerate.

    >>> all_masks(3, 2).int().tolist()
    [[1, 1, 0], [1, 0, 1], [0, 1, 1]]
    """
    require_count("num_masked", num_masked, 1, num_features)
    # C(D, M) itself may have millions of digits: its logarithm, by ln n! = lgamma(n + 1).
    log_number = (
        math.lgamma(num_features + 1)
        - math.lgamma(num_masked + 1)
        - math.lgamma(num_features - num_masked + 1)
    )
    what = f"the masks that hide {num_masked} of {num_features} coordinates"
    require_log_enumerable(what, log_number, "masks.sample_masks")
    hidden = torch.tensor(list(itertools.combinations(range(num_features), num_masked)))
    mask = torch.zeros(len(hidden), num_features, dtype=torch.bool)
    return mask.scatter_(1, hidden, True)


@checked
def subsets(num_features: Count, *, instead: str = "masks.sample_masks") -> Bool[Tensor, "P D"]:
    """All 2^D subsets; coordinate j is in row i where bit j of i is set, and row 0 is empty.

    True means in the subset: as a mask a row hides it, as the ``observed`` of a model it shows it.

    Args:
        num_features: D.
        instead: the function that the error recommends.

    Returns:
        Boolean, (2^D, D). :func:`row_of` is the inverse.

    Raises:
        ValueError: when there are too many to enumerate.

    >>> subsets(2).int().tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    what = f"the subsets of D = {num_features} coordinates"
    require_log_enumerable(what, num_features * math.log(2.0), instead)
    row = torch.arange(2**num_features)
    bit = torch.arange(num_features)
    return ((row.unsqueeze(1) >> bit) & 1).bool()


@checked
def row_of(subset: Bool[Tensor, "... D"]) -> Int[Tensor, "..."]:
    """The row of :func:`subsets` in which each ``subset`` (..., D) stands: Σ_j 2^j over its members.

    Raises:
        ValueError: for D > 62, where the number does not fit into an integer.

    >>> row_of(torch.tensor([[False, True], [True, True]]))
    tensor([2, 3])
    """
    num_features = subset.shape[-1]
    require_count("num_features", num_features, 1, 62)
    bit = torch.arange(num_features, device=subset.device)
    return (subset.long() << bit).sum(dim=-1)


MAX_CATEGORIES = 2**24
"""The largest number of categories that torch.multinomial draws from."""


class SizeLaw(ABC):
    """A probability law of the number M of masked coordinates, given D.

    A subclass writes ``probabilities``.

    >>> isinstance(UniformSize(), SizeLaw)
    True
    """

    @abstractmethod
    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        """Probability of M = 1, ..., D (float64, sums to 1)."""

    @checked
    def weights(self, num_features: Count) -> Float[Tensor, " D"]:
        """1/(D ν(M)), ν this law: with them D·S(x; M) of a random M is unbiased for log p(x).

        Importance weights: Σ_M ν(M) · D·S(x; M) / (D ν(M)) is the area Σ_M S(x; M), which is log p(x)
        (see :mod:`mpt_lml.curves`).

        Args:
            num_features: D.

        Returns:
            One weight for each size M = 1, ..., D; their mean under the law is 1.

        Raises:
            ValueError: for a law that never draws some size.

        >>> UniformSize().weights(3).tolist()
        [1.0, 1.0, 1.0]
        """
        probabilities = self.probabilities(num_features)
        never = (probabilities <= 0).nonzero().flatten()
        if len(never):
            raise ValueError(
                f"{self} never draws M = {1 + int(never[0])} of D = {num_features}, so that no weights "
                "make it unbiased for log p(x). Use a law that draws every size, such as UniformSize()."
            )
        return 1.0 / (num_features * probabilities)

    @checked
    def sample(
        self,
        num_masks: Count,
        num_features: Annotated[int, Within(1, MAX_CATEGORIES)],
        *,
        generator: Generator,
    ) -> Int[Tensor, " P"]:
        """``num_masks`` independent sizes in 1..D, (P,)."""
        weights = self.probabilities(num_features)
        return 1 + torch.multinomial(weights, num_masks, replacement=True, generator=generator)

    @checked
    def stratified(
        self, num_masks: Count, num_features: Count, *, generator: Generator
    ) -> Int[Tensor, " P"]:
        """``num_masks`` sizes at evenly spaced quantiles with one random shift, (P,).

        Each is unbiased for the law, and all are as even as can be: with the uniform law and P = D
        every size comes once.
        """
        shift = torch.rand(1, generator=generator, dtype=torch.float64)
        return self.sizes_at(quantiles(num_masks, shift), num_features)

    @checked
    def sizes_at(self, quantile: Float[Tensor, "..."], num_features: Count) -> Int[Tensor, "..."]:
        """The size M at each quantile of the law.

        Args:
            quantile: numbers in [0, 1), of any shape.
            num_features: D.

        Returns:
            Sizes in 1..D, of the shape of ``quantile``.

        >>> UniformSize().sizes_at(torch.tensor([0.0, 0.4, 0.5]), 2).tolist()
        [1, 1, 2]
        """
        # The last partial sum may round below 1; no quantile may fall behind it. A quantile on a bound
        # belongs to the next size: they lie in [0, 1), and 0 may be drawn.
        bounds = self.probabilities(num_features).cumsum(0)[:-1]
        sizes = 1 + torch.bucketize(quantile.cpu(), bounds, right=True)
        return sizes.to(quantile.device)


def quantiles(num_masks: int, shift: Float[Tensor, "*B 1"]) -> Float[Tensor, "*B P"]:
    """Evenly spaced numbers in [0, 1), (..., P): one in each of P equal parts, all moved by ``shift``."""
    return (torch.arange(num_masks, dtype=torch.float64) + shift) / num_masks


# An argument that is neither is refused, and this sentence ends the message (see checks).
SizeOrLaw = Annotated[int | SizeLaw, "A law is such as FixedRate(0.15) or UniformSize()."]


@checked
@dataclass(frozen=True)
class FixedSize(SizeLaw):
    """Always M = ``num_masked``.

    >>> FixedSize(2).probabilities(4).tolist()
    [0.0, 1.0, 0.0, 0.0]
    """

    num_masked: Count

    @checked
    def probabilities(self, num_features: Count) -> Float[Tensor, " D"]:
        return _certainly(self.num_masked, num_features)


def _certainly(num_masked: int, num_features: int) -> Float[Tensor, " D"]:
    """Probabilities of the sizes 1, ..., D where M is known."""
    require_count("num_masked", num_masked, 1, num_features)
    return (torch.arange(1, num_features + 1) == num_masked).double()


@checked
@dataclass(frozen=True)
class FixedRate(SizeLaw):
    """Always M = max(1, ⌊rate · D⌋): 15 % of 512 coordinates are the paper's 76.

    >>> FixedRate(0.15).num_masked(512)
    76
    """

    rate: Rate

    @checked
    def num_masked(self, num_features: Count) -> int:
        """The number M of masked coordinates for this D."""
        # 1e-9: 0.29 * 100 is 28.999999999999996 in floating point and has to give 29.
        return max(1, math.floor(self.rate * num_features + 1e-9))

    @checked
    def probabilities(self, num_features: Count) -> Float[Tensor, " D"]:
        return _certainly(self.num_masked(num_features), num_features)


@dataclass(frozen=True)
class UniformSize(SizeLaw):
    """M uniform on 1..D: with it, D times the score of one random mask is unbiased for log p(x).

    >>> UniformSize().probabilities(4).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    @checked
    def probabilities(self, num_features: Count) -> Float[Tensor, " D"]:
        return torch.full((num_features,), 1.0 / num_features, dtype=torch.float64)


@checked
@dataclass(frozen=True)
class PowerSize(SizeLaw):
    """P(M) proportional to M^exponent; with -1/2 small masks come more often, and count less.

    The rate M/D of the exponent -1/2 is about the square of a uniform number. With its
    :meth:`~SizeLaw.weights` the gradient of log p(x) stays as noisy as it is when D grows, where
    uniform sizes pay ln D (note A).

    >>> PowerSize(-0.5).probabilities(4)
    tensor([0.3591, 0.2539, 0.2073, 0.1796], dtype=torch.float64)
    """

    exponent: float

    @checked
    def probabilities(self, num_features: Count) -> Float[Tensor, " D"]:
        logarithm = self.exponent * torch.arange(1, num_features + 1).double().log()
        return logarithm.softmax(dim=0)


@checked
@dataclass(frozen=True)
class BernoulliRate(SizeLaw):
    """Every coordinate masked with probability ``rate`` on its own, given that at least one is.

    >>> BernoulliRate(0.5).probabilities(2)
    tensor([0.6667, 0.3333], dtype=torch.float64)
    """

    rate: Rate

    @checked
    def probabilities(self, num_features: Count) -> Float[Tensor, " D"]:
        from scipy.stats import binom

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
    """Make masks that hide the coordinates of rank 0..M − 1, M from ``sizes``, broadcast, (..., D).

    These are ranks of hiding: the mask of size 1 hides rank 0. The ranks of :mod:`mpt_lml.orders` are
    the steps at which coordinates are shown.
    """
    return ranks < torch.as_tensor(sizes, device=ranks.device)[..., None]


def ranks_of(draws: Shaped[Tensor, "*B D"]) -> Int[Tensor, "*B D"]:
    """``draws.argsort(dim=-1)`` of numbers that differ, ranks 0..D−1 in every row, (..., D).

    On a CPU by NumPy, whose sort takes a fifth of the time of PyTorch's. Where numbers are equal the
    two may answer differently; draws in double precision differ.
    """
    if draws.device.type != "cpu":
        return draws.argsort(dim=-1)
    return torch.from_numpy(draws.numpy().argsort(axis=-1))


@checked
def sample_ranks(
    num_masks: Count, num_features: Count, *, generator: Generator
) -> Int[Tensor, "P D"]:
    """Draw ranks of the coordinates in uniformly random orders: ``ranks < M`` are masks of size M.

    As masks they are ranks of hiding, of which 0 is shown last. :func:`mpt_lml.orders.draw` reads them as
    steps of showing.

    Args:
        num_masks: P, how many orders.
        num_features: D.
        generator: the source of randomness, on the CPU.

    Returns:
        Ranks 0..D−1, (P, D).

    >>> sample_ranks(2, 3, generator=torch.Generator().manual_seed(0))
    tensor([[2, 1, 0],
            [1, 2, 0]])
    """
    uniform = torch.rand(
        num_masks,
        num_features,
        generator=generator,
        dtype=torch.float64,
    )
    # An order's ranks are its inverse; a random order and its inverse have the same distribution.
    return ranks_of(uniform)


@checked
def sample_masks(
    num_masks: Count, num_features: Count, size: SizeOrLaw, *, generator: Generator
) -> Bool[Tensor, "P D"]:
    """Random masks: sizes from ``size``, coordinates uniform given the size.

    Args:
        num_masks: P.
        num_features: D.
        size: an integer, or a law: ``FixedRate(0.15)``, ``UniformSize()``, ``BernoulliRate(0.15)``.
        generator: source of randomness.

    Returns:
        Boolean, (P, D).

    >>> g = torch.Generator().manual_seed(0)
    >>> sample_masks(4, 10, FixedRate(0.3), generator=g).sum(dim=1).tolist()
    [3, 3, 3, 3]
    """
    if isinstance(size, SizeLaw):
        law = size
    else:
        require_count("num_masked", size, 1, num_features)
        law = FixedSize(size)
    law.probabilities(num_features)  # refuses a size that this D does not have, before drawing
    # Orders are drawn before sizes: recorded numbers depend on it.
    ranks = sample_ranks(num_masks, num_features, generator=generator)
    sizes = law.sample(num_masks, num_features, generator=generator)
    return from_ranks(ranks, sizes)


@checked
def stratified_masks(
    num_masks: Count,
    num_features: Count,
    law: SizeLaw | Sequence[SizeLaw],
    *,
    generator: Generator | Sequence[Generator],
) -> Bool[Tensor, "... P D"]:
    """Masks for one training step: sizes spread evenly over the law, coordinates uniform.

    With ``num_masks`` = D and the uniform law that is one fresh mask of every size, the paper's
    training.

    Args:
        num_masks: P.
        num_features: D.
        law: of the sizes; several share random numbers.
        generator: source of randomness; several are as many runs.

    Returns:
        Boolean, (P, D), with an axis in front for a sequence of generators and one before that for a
        sequence of laws.

    >>> g = torch.Generator().manual_seed(0)
    >>> stratified_masks(5, 5, UniformSize(), generator=g).sum(dim=1).tolist()
    [1, 2, 3, 4, 5]
    """
    generators = [generator] if isinstance(generator, Generator) else list(generator)
    laws = [law] if isinstance(law, SizeLaw) else list(law)
    if not generators:
        raise ValueError(f"generator must be one or several torch.Generator, got {generator!r}.")
    if not laws:
        raise ValueError(f"law must be one or several size laws, got {law!r}.")
    num_draws = 1 + num_masks * num_features  # the shift of the sizes, then an order for each mask
    draws = [torch.rand(num_draws, generator=g, dtype=torch.float64) for g in generators]
    shift, values = torch.stack(draws).tensor_split([1], dim=1)
    quantile = quantiles(num_masks, shift)  # (generators, P)
    ranks = ranks_of(values.view(len(generators), num_masks, num_features))
    sizes = torch.stack([size_law.sizes_at(quantile, num_features) for size_law in laws])
    mask = from_ranks(ranks, sizes)  # (laws, generators, P, D)
    if isinstance(generator, Generator):
        mask = mask.squeeze(1)
    if isinstance(law, SizeLaw):
        mask = mask.squeeze(0)
    return mask


@checked
def nested_masks(order: Int[Tensor, "*batch D"]) -> Bool[Tensor, "*batch D D"]:
    """One order of the coordinates -> masks of sizes 1..D.

    ``order`` lists the coordinates as they are revealed. Row M − 1 masks its last M, of which
    ``order[D − M]`` is revealed next.

    Args:
        order: permutations of 0..D−1, (..., D).

    Returns:
        Boolean, (..., D, D).

    >>> nested_masks(torch.tensor([2, 0, 1])).int().tolist()
    [[0, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    num_features = order.shape[-1]
    in_order = torch.arange(num_features, device=order.device)
    if not torch.equal(order.sort(dim=-1).values, in_order.expand_as(order)):
        legal = f"0..{num_features - 1}, got {order.tolist()}"
        raise ValueError(f"order must be a permutation of {legal}.")
    ranks = order.flip(-1).argsort(dim=-1)  # the last of the order is hidden in every mask
    return from_ranks(ranks[..., None, :], in_order + 1)


# -- checks of masks and of their sizes --------------------------------------------------------------


def each_masks_something(name: str, mask: Tensor) -> None:
    """Check that each row of ``mask`` (..., D) hides something; for ``Annotated``."""
    hides_nothing = mask.sum(dim=-1) == 0
    if hides_nothing.any():
        place = hides_nothing.nonzero()[0].tolist() or ""  # a single mask has no row number
        raise ValueError(f"{name}{place} masks nothing: one True at least is needed.")


def require_sizes(sizes: Any, num_features: int, *, increase: bool = True) -> list[int]:
    """``sizes`` as a list, checked: mask sizes within 1..``num_features`` that ``increase``."""
    sizes = sizes.tolist() if hasattr(sizes, "tolist") else sizes
    check(("sizes", sizes, Sequence))
    for size in sizes:
        require_count("a mask size in sizes", size, 1, num_features)
    if not sizes or (increase and list(sizes) != sorted(set(sizes))):
        raise ValueError(f"sizes must be at least one mask size, and increase, got {sizes!r}.")
    return list(sizes)
