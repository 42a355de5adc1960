"""Results as values: a number with its error, a curve, and what ``fit`` leaves of a training."""

import math
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
    require_finite,
    require_number,
)

__all__ = ["Estimate", "History", "MaskCurve", "Maxima"]

# The ~ lets NaN pass.
AnyNumber = Annotated[float, Interval("[-inf,inf]~")]
ErrorOrNan = Annotated[float, Interval("[0,inf]~")]


class Estimate(float):
    """A number that knows its error. It *is* a float: subtract it, format it, compare it.

    Args:
        value: the number.
        standard_error: over the random choices of the estimator (masks, orders), with the data held
            fixed: 0 for an exact computation, NaN where it is not known, as from a single sample.
        num_samples: how many independent samples it is the mean of; 0 for an exact computation, or
            where that is not known.
        unit: nats as a rule.

    >>> Estimate(-60.3, 0.02, 100) + 0.3
    -60.0
    """

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


def trapezoid_weights(sizes: Int[Tensor, " L"], num_features: int) -> Float[Tensor, " L"]:
    """Weights of S at ``sizes`` in Σ_M S(M), M = 1..D: straight lines between, constant outside.

    All are 1 where every size is there.
    """
    if len(sizes) == num_features:
        return torch.ones(num_features, dtype=torch.float64, device="cpu")
    every_size = np.arange(1, num_features + 1)
    # The sum is linear in the scores: the weight of one is the sum where it alone is 1.
    weights = [np.interp(every_size, sizes.tolist(), one).sum() for one in np.eye(len(sizes))]
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

    ``parameters`` (B, ...) are the last ones of each run, and ``value`` (B,) is the objective there, in
    its unit. ``converged`` (B,) says whether that is a maximum as far as the precision can tell, and
    ``num_steps`` (B,) how many steps it took. Code that needs maxima calls :meth:`require_converged`.

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
