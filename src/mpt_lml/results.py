"""Results as values: a number with its error, a curve, and what ``fit`` leaves of a training."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import (
    Count,
    Index,
    Interval,
    check,
    checked,
    require_entries,
    require_finite,
    require_number,
)
from mpt_lml.verdicts import mean_and_error

__all__ = ["Estimate", "History", "MaskCurve", "Maxima"]

# The ~ lets NaN pass.
AnyNumber = Annotated[float, Interval("[-inf,inf]~")]
ErrorOrNan = Annotated[float, Interval("[0,inf]~")]


class Estimate(float):
    """A number that knows its error. It *is* a float: subtract it, format it, compare it.

    Args:
        value: the number, stored as a plain float, too.
        standard_error: over the random choices of the estimator (masks, orders), with the data held
            fixed: 0 for an exact computation, NaN where a single sample gives none.
        num_samples: the independent replicates behind it, 0 for an exact computation and where their
            number is not known.
        unit: nats as a rule.

    >>> Estimate(-60.3, 0.02, 100) + 0.3
    -60.0
    """

    value: float
    standard_error: float
    num_samples: int
    unit: str

    @checked
    def __new__(
        cls,
        value: AnyNumber,
        standard_error: ErrorOrNan = 0.0,
        num_samples: Index = 0,
        unit: str = "nats",
    ) -> "Estimate":
        self = super().__new__(cls, value)
        # Past __setattr__, which refuses: an estimate does not change.
        self.__dict__["value"] = float(value)
        self.__dict__["standard_error"] = float(standard_error)
        self.__dict__["num_samples"] = int(num_samples)
        self.__dict__["unit"] = unit
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an Estimate is immutable; cannot set {name!r}")

    def __repr__(self) -> str:
        if math.isnan(self.standard_error):
            reason = "no error from one sample" if self.num_samples == 1 else "error not known"
            return f"{self:.4f} {self.unit} ({reason})"
        if self.num_samples == 0 and self.standard_error == 0.0:
            return f"{self:.4f} {self.unit} (exact)"
        return f"{self:.4f} ± {self.standard_error:.4f} {self.unit}"


def mean_estimate(samples: Float[Tensor, " N"], unit: str = "nats") -> Estimate:
    """The mean of N independent samples with its standard error, which is NaN for a single one.

    >>> mean_estimate(torch.tensor([1.0, 2.0, 3.0]), "nats a pair")
    2.0000 ± 0.5774 nats a pair
    """
    mean, error = mean_and_error(samples)
    return Estimate(mean.item(), error.item(), len(samples), unit)


@checked(finite=False)
def ratio_estimate(
    numerator: Float[Tensor, " N"], denominator: Float[Tensor, " N"], unit: str = "nats"
) -> Estimate:
    """R = Σ a_i / Σ b_i over N independent units, such as texts, with its standard error.

    A ratio of two sums is no mean, but nearly that of the residuals e_i = a_i − R b_i, which add up
    to 0 (linearization, or the delta method): its error is √(N/(N − 1) Σ e_i²) / Σ b_i (Cochran,
    Sampling Techniques, 3rd ed. 1977, chapter 6, without the correction for a finite population).
    With every b_i = 1 that is the mean and its usual error.

    Args:
        numerator: a_i, such as the nats of a text, (N,).
        denominator: b_i, such as its bytes, not negative, (N,).
        unit: of the ratio.

    Returns:
        The ratio; its error is NaN for a single unit. Computed in double precision.

    Raises:
        ValueError: for a negative denominator, and where all are 0.

    >>> ratio_estimate(torch.tensor([2.0, 4.0]), torch.tensor([1.0, 1.0]), "bits a byte")
    3.0000 ± 1.0000 bits a byte
    """
    is_wrong = ~(denominator >= 0) | (denominator == 0).all()
    legal = "at least 0, and not 0 in all units"
    remedy = "It is the size of each unit, such as the tokens of a text."
    require_entries("denominator", denominator, is_wrong, legal, remedy)
    a = numerator.double()
    b = denominator.double()
    count = len(b)
    ratio = a.sum() / b.sum()
    residual = a - ratio * b
    error = math.nan
    if count > 1:
        error = math.sqrt(residual.square().sum() * count / (count - 1)) / b.sum().item()
    return Estimate(ratio.item(), error, count, unit)


def trapezoid_weights(sizes: Any, num_features: int) -> Tensor:
    """Weights (L,) of S at ``sizes`` in Σ_M S(M), M = 1..D: straight lines between, constant outside.

    All are 1 where every size is there.
    """
    if len(sizes) == num_features:
        return torch.ones(num_features, dtype=torch.float64, device="cpu")
    if isinstance(sizes, Tensor):
        sizes = sizes.tolist()
    every_size = np.arange(1, num_features + 1)
    # The sum is linear in the scores: the weight of one is the sum where it alone is 1.
    weights = [np.interp(every_size, sizes, one).sum() for one in np.eye(len(sizes))]
    return torch.tensor(weights, dtype=torch.float64, device="cpu")


@checked(finite=False)
@dataclass(frozen=True, eq=False)
class MaskCurve:
    """The mask-rate curve S(x; M) of a model, averaged over the data.

    Args:
        num_masked: the sizes M, increasing within 1..D, (L,).
        score: S(x; M) at them, nats a masked coordinate, (L,).
        standard_error: over masks, data held fixed, (L,): 0 for an exact curve, NaN where one mask a
            size was drawn.
        num_features: D.
        num_masks: masks a size; 0 for every mask.
        area_standard_error: of :meth:`area`, where sizes are not independent (nested masks).
        each: the score of every mask that was drawn, (L, P), P = ``num_masks``.

    Raises:
        ValueError: for other shapes, for sizes that do not increase within 1..D, for a score that is
            not finite, and for a negative error.

    >>> sizes = torch.arange(1, 4)
    >>> MaskCurve(sizes, -1.0 * sizes, 0.1 * sizes, num_features=3, num_masks=9).area()
    -6.0000 ± 0.3742 nats
    """

    num_masked: Int[Tensor, " L"]
    score: Float[Tensor, " L"]
    standard_error: Float[Tensor, " L"]
    num_features: Count
    num_masks: Index = 0
    area_standard_error: ErrorOrNan | None = None
    # Float[Tensor, "L P"] or None; Any, so that mypy lets callers use it without asking for None.
    each: Any = None

    def __post_init__(self) -> None:
        if self.each is not None:
            sizes = {"L": len(self.num_masked), "P": self.num_masks}
            check(("each", self.each, Float[Tensor, "L P"]), finite=False, **sizes)
        require_finite("score", self.score)
        if (self.standard_error < 0).any():  # NaN is not, and is left out below for the message
            require_number("standard_error", self.standard_error.nan_to_num().min(), "[0,inf]")
        visited: list[int] = self.num_masked.tolist()
        is_increasing = visited == sorted(set(visited))
        if not is_increasing or visited[0] < 1 or visited[-1] > self.num_features:
            legal = f"1..{self.num_features}, got {visited}"
            raise ValueError(f"num_masked must increase within {legal}.")

    def area(self) -> Estimate:
        """Area under the curve, sum over M = 1..D of S(x; M): log p(x) by Proposition 1, in nats.

        It is the sum over all sizes where each of them is there, and otherwise the trapezoidal rule on
        those that are. The standard error covers the masks, not the error of that rule: where no masks
        were drawn, that rule's is all there is, and the standard error is NaN.
        """
        weights = trapezoid_weights(self.num_masked, self.num_features).to(self.score)
        error = self.area_standard_error
        if error is None:  # sizes are independent
            error = (weights * self.standard_error).square().sum().sqrt().item()
        is_exact = self.num_masks == 0 and error == 0.0
        if is_exact and len(weights) < self.num_features:
            error = math.nan
        return Estimate((weights * self.score).sum().item(), error, self.num_masks)

    def partial_sums(self) -> Tensor:
        """Cumulative sums over sizes (D,): the mean of log p(x_A | x_R) over the masks A of size M.

        They are log p(x) − ℓ_{D−M}, with ℓ_r the mean of log p(x_R) over the sets R of size r, see
        :func:`mpt_lml.curves.subset_levels`.

        Returns:
            Nats, (D,).

        Raises:
            ValueError: where a size is missing.
        """
        if len(self.num_masked) < self.num_features:
            raise ValueError(f"partial sums need every size 1..{self.num_features}.")
        return self.score.cumsum(0)


def as_rows(columns: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """Rows of a table from its columns: one dictionary for each entry."""
    lists = []
    for values in columns.values():
        lists.append(values.tolist() if isinstance(values, Tensor) else values)
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


@dataclass(frozen=True, eq=False)
class History:
    """History of B training runs side by side (:func:`mpt_lml.fit.maximize`).

    ``values`` (E + 1, B): row e belongs to the parameters after e updates. ``parameters`` (B, ...)
    are those after the last epoch, ``snapshots`` those after the epochs asked for.

    >>> History({"lml": torch.zeros(3, 2)}, {}, {}).values["lml"][-1]
    tensor([0., 0.])
    """

    values: dict[str, Tensor]
    parameters: dict[str, Tensor]
    snapshots: dict[int, dict[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Maxima:
    """Ends of B maximizations side by side (:func:`mpt_lml.fit.bfgs`).

    ``parameters`` (B, ...); ``value`` (B,), of the objective there, in its unit; ``converged`` (B,),
    whether a run has arrived at a maximum, as far as its precision can tell; ``num_steps`` (B,), the
    steps that it took. Code that needs a maximum calls ``maxima.require_converged()``.

    >>> steps, converged = torch.tensor([3]), torch.tensor([True])
    >>> Maxima(torch.ones(1, 2), torch.zeros(1), converged, steps).parameters
    tensor([[1., 1.]])
    """

    parameters: Float[Tensor, "B ..."]
    value: Float[Tensor, " B"]
    converged: Bool[Tensor, " B"]
    num_steps: Int[Tensor, " B"]

    def require_converged(self) -> "Maxima":
        """Return these maxima if all runs have converged, and refuse them otherwise.

        Raises:
            RuntimeError: where a run has not arrived; the message names the first one.

        >>> maxima = Maxima(
        ...     torch.ones(1, 2), torch.zeros(1), torch.tensor([True]), torch.tensor([3])
        ... )
        >>> maxima.require_converged().parameters
        tensor([[1., 1.]])
        """
        if not self.converged.all():
            run = int((~self.converged).nonzero()[0])
            raise RuntimeError(
                f"{int((~self.converged).sum())} of {len(self.converged)} climbs have not arrived at a "
                f"maximum, the first of them run {run} after {int(self.num_steps[run])} steps. Give "
                "them more steps, or another start; an objective with kinks may have none."
            )
        return self
