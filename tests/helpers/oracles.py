"""Every public number of the models with a closed form, beside the same number in 60 digits.

A family is a module with ``points(full_grid)``: models at the sizes and scales that users run, what the
package says of each, and the same quantities by other formulas in ``mpmath``, whose numbers neither
underflow nor round visibly. ``test_oracles.py`` takes a sample of each family, ``make oracles`` all.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import mpmath
import torch
from torch import Tensor

from mpt_lml import curves
from mpt_lml.models.base import TractableModel

DIGITS = 60
FAMILIES = (
    "oracles_hmm",
    "oracles_tables",
    "oracles_mixture",
    "oracles_ppca",
    "oracles_regression",
)
# Nats a coordinate. No model may be refused for missing these, but where ``may_refuse`` says so.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
# Parts of the number itself: three roundings in single precision, of which no arithmetic knows
# better, and twelve digits in double. They take over from 1e4 nats a coordinate on, 140 standard
# deviations out, where a nat is none of the quantities that anybody compares.
RELATIVE = {torch.float64: 1e-12, torch.float32: 2e-7}
BEYOND = 1e-10  # outside the floors: ten digits


@dataclass(frozen=True)
class Point:
    """One model in one precision at one size: what the package says, and the same in 60 digits.

    ``measured`` and ``exact`` name the same quantities and list their numbers in the same order.
    ``coordinates`` says of how many coordinates the numbers of a quantity speak, one count for all
    of its numbers or one for each: log p(x) of D, a conditional of one (the default).
    """

    family: str
    name: str
    dtype: torch.dtype
    num_features: int
    measured: Callable[[], Mapping[str, Tensor]]
    exact: Callable[[], Mapping[str, Sequence[mpmath.mpf]]]
    coordinates: Mapping[str, int | Sequence[int]] = field(default_factory=dict)
    may_refuse: bool = False  # outside the floors: a right number, or a ValueError that says why
    nats: float = 0.0  # what rounding may take, where that is more than TOLERANCE

    @property
    def tolerance(self) -> float:
        """Nats a coordinate."""
        return max(TOLERANCE[self.dtype], self.nats)

    @property
    def relative(self) -> float:
        """What a number cannot be nearer than, in parts of itself, however few its coordinates."""
        return max(RELATIVE[self.dtype], BEYOND if self.may_refuse else 0.0)

    def __str__(self) -> str:
        precision = str(self.dtype).removeprefix("torch.")
        return f"{self.family}: {self.name}, {precision}, D = {self.num_features}"


def points(full_grid: bool) -> Iterator[Point]:
    """The points of every family: a sample of a few seconds each, or the whole grid."""
    for name in FAMILIES:
        yield from importlib.import_module(name).points(full_grid)


def errors(point: Point) -> dict[str, float]:
    """The largest error of every quantity, nats a coordinate; empty where the package refuses.

    A refusal where the point allows none is raised as it is.
    """
    try:
        measured = point.measured()
    except ValueError as refusal:
        if point.may_refuse and str(refusal):
            return {}
        raise
    with mpmath.workdps(DIGITS):
        exact = point.exact()
        if measured.keys() != exact.keys():
            raise TypeError(f"{point}: {list(measured)} are measured, {list(exact)} are exact.")
        return {name: _largest(point, name, measured[name], exact[name]) for name in measured}


def _largest(point: Point, name: str, measured: Tensor, exact: Sequence[mpmath.mpf]) -> float:
    numbers = measured.detach().flatten().tolist()
    counts = point.coordinates.get(name, 1)
    if isinstance(counts, int):
        counts = [counts] * len(numbers)
    if not len(numbers) == len(exact) == len(counts) > 0:
        lengths = f"{len(numbers)} measured, {len(exact)} exact, {len(counts)} counts"
        raise TypeError(f"{point}: {name} must have as many of each, got {lengths}.")
    fair = point.relative / point.tolerance
    units = [max(n, fair * abs(float(e))) for n, e in zip(counts, exact, strict=True)]
    units = [n if unit == math.inf else unit for n, unit in zip(counts, units, strict=True)]
    return max(map(_error, numbers, exact, units))


def _error(measured: float, exact: mpmath.mpf, count: float) -> float:
    """−∞ is right where the exact number is −∞; any other infinity and NaN are infinitely wrong."""
    if mpmath.isnan(exact) or exact == mpmath.inf:
        raise TypeError(f"an exact number is {exact}.")
    if exact == -mpmath.inf:
        return 0.0 if measured == -math.inf else math.inf
    if not math.isfinite(measured):
        return math.inf
    return float(abs(mpmath.mpf(measured) - exact) / count)


def digits(values: Tensor) -> list:
    """The floating-point numbers themselves, as nested lists of mpf."""
    if values.ndim:
        return [digits(value) for value in values]
    return mpmath.mpf(values.item())


class Oracle(ABC):
    """A joint distribution in mpmath: what :func:`tractable` asks of every family."""

    @abstractmethod
    def log_subset_marginal(self, row: int, observed: Sequence[bool]) -> mpmath.mpf:
        """log p(x_R) of datum ``row``, R where ``observed``; 0 where that is nowhere."""

    @abstractmethod
    def log_conditional(self, row: int, mask: Sequence[bool]) -> list[mpmath.mpf]:
        """log p(x_j | x_R) of datum ``row`` for every j; 0 where j is not masked."""


class DiscreteOracle(Oracle):
    """The same of a model of counted values."""

    x: list[list[int]]

    @abstractmethod
    def log_values(self, row: int, mask: Sequence[bool]) -> list[list[mpmath.mpf] | None]:
        """log p(x_j = v | x_R) of every value v at every masked j, None where j is not masked."""

    def log_conditional(self, row: int, mask: Sequence[bool]) -> list[mpmath.mpf]:
        pairs = zip(self.log_values(row, mask), self.x[row], strict=True)
        return [values[v] if values else mpmath.mpf(0) for values, v in pairs]


def tractable(
    make: Callable[[], TractableModel],
    x: Tensor,
    mask: Tensor,
    oracle: Callable[[], Oracle],
    *,
    family: str,
    name: str,
    dtype: torch.dtype,
    may_refuse: bool = False,
) -> Point:
    """The point of a model: all of its public methods under all of ``mask``.

    ``make`` makes the model when it is asked, ``oracle`` its oracle. Mask p goes with datum p where
    they come in pairs. The area under the curve is asked for where 2^D masks are few.
    """
    num_masks, num_features = mask.shape
    pairs = torch.arange(len(x)) % num_masks
    few = num_features <= 5

    def measured() -> dict[str, Tensor]:
        model = make()
        answers = {
            "log_marginal": model.log_marginal(x),
            "log_subset_marginal": model.log_subset_marginal(x, ~mask),
            "mean_log_subset_marginal": model.mean_log_subset_marginal(x, ~mask),
            "log_conditional": model.log_conditional(x, mask),
            "mean_log_conditional": model.mean_log_conditional(x, mask),
            "log_each": model.log_each(x, mask[pairs]),
            "size_scores": curves.size_scores(model, x, mask[None]),
        }
        if model.num_values is not None:
            answers["log_values"] = model.log_values(x, mask[pairs])[mask[pairs]]
        if few:
            areas = [curves.exact_curve(model, x).area(), curves.subset_curve(model, x).area()]
            answers["areas"] = torch.tensor(areas, dtype=torch.float64)
        return answers

    def exact() -> dict[str, list[mpmath.mpf]]:
        truth = oracle()
        rows = range(len(x))
        masked = mask.tolist()
        observed = (~mask).tolist()
        subsets = [[truth.log_subset_marginal(row, seen) for row in rows] for seen in observed]
        each = [[truth.log_conditional(row, hidden) for row in rows] for hidden in masked]
        means = [[_mean(column) for column in zip(*each[p], strict=True)] for p in range(num_masks)]
        paired = [(pairs[row].item(), row) for row in rows]
        everything = [True] * num_features
        marginal = [truth.log_subset_marginal(row, everything) for row in rows]
        answers = {
            "log_marginal": marginal,
            "log_subset_marginal": [value for row in subsets for value in row],
            "mean_log_subset_marginal": [_mean(row) for row in subsets],
            "log_conditional": [value for p in each for row in p for value in row],
            "mean_log_conditional": [value for row in means for value in row],
            "log_each": [value for p, row in paired for value in each[p][row]],
            "size_scores": [
                mpmath.fsum(row) / sum(hidden) for row, hidden in zip(means, masked, strict=True)
            ],
        }
        if isinstance(truth, DiscreteOracle):
            of_rows = [truth.log_values(row, masked[p]) for p, row in paired]
            answers["log_values"] = [
                value for row in of_rows for values in row if values for value in values
            ]
        if few:
            answers["areas"] = [_mean(marginal)] * 2
        return answers

    sizes = (~mask).sum(dim=1).clamp(min=1)
    coordinates = {
        "log_marginal": num_features,
        "log_subset_marginal": sizes.repeat_interleave(len(x)).tolist(),
        "mean_log_subset_marginal": sizes.tolist(),
        "areas": num_features,
    }
    return Point(family, name, dtype, num_features, measured, exact, coordinates, may_refuse)


def _mean(values: Sequence[mpmath.mpf]) -> mpmath.mpf:
    return mpmath.fsum(values) / len(values)
