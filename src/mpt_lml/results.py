"""Results as values: a number with its error, a curve, what a training run leaves."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpt_lml.spec import require, require_finite, require_number


class Estimate(float):
    """A number that knows its error. It *is* a float: subtract it, format it, compare it.

    ``value`` is a plain float; ``standard_error`` is over the random choices of the estimator (masks,
    orders), with the data held fixed: 0 for an exact computation, NaN where a single sample gives
    none. ``num_samples`` are the independent replicates behind it, 0 for an exact computation;
    ``unit`` is nats as a rule.

    >>> Estimate(-60.3, 0.02, 100) + 0.3
    -60.0
    """

    value: float
    standard_error: float
    num_samples: int
    unit: str

    def __new__(
        cls, value: float, standard_error: float = 0.0, num_samples: int = 0, unit: str = "nats"
    ) -> "Estimate":
        spec = "value [-inf,inf]~, standard_error [0,inf]~, num_samples 0.., unit str"
        require(locals(), spec)
        self = super().__new__(cls, value)
        fields = {"standard_error": float(standard_error), "num_samples": int(num_samples)}
        self.__dict__.update(fields, value=float(value), unit=unit)
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an Estimate is immutable; cannot set {name!r}")

    def __repr__(self) -> str:
        if self.num_samples == 0:
            return f"{self:.4f} {self.unit} (exact)"
        if math.isnan(self.standard_error):
            return f"{self:.4f} {self.unit} (no error from one sample)"
        return f"{self:.4f} ± {self.standard_error:.4f} {self.unit}"


def trapezoid_weights(sizes: Any, num_features: int) -> Tensor:
    """Weights (L,) of S at ``sizes`` in Σ_M S(M), M = 1..D: straight lines between, constant outside.

    All are 1 where every size is there.
    """
    every = np.arange(1, num_features + 1)
    return torch.tensor([np.interp(every, sizes, row).sum() for row in np.eye(len(sizes))]).double()


@dataclass(frozen=True, eq=False)
class MaskCurve:
    """The mask-rate curve S(x; M) of a model, averaged over the data.

    ``score`` (L,) is S(x; M) in nats per masked coordinate at the increasing sizes ``num_masked``.
    ``standard_error`` (L,) is over masks, data held fixed: 0 for an exact curve, NaN where one mask a
    size was drawn. ``num_features`` is D, ``num_masks`` the masks a size (0: every mask);
    ``area_standard_error`` that of :meth:`area` where sizes are not independent (nested masks);
    ``each`` (L, P) the score of every mask that was drawn.
    Raises ``ValueError`` for other shapes and for sizes that do not increase within 1..D.

    >>> sizes = torch.arange(1, 4)
    >>> MaskCurve(sizes, -1.0 * sizes, 0.1 * sizes, num_features=3, num_masks=9).area()
    -6.0000 ± 0.3742 nats
    """

    num_masked: Tensor
    score: Tensor
    standard_error: Tensor
    num_features: int
    num_masks: int = 0
    area_standard_error: float | None = None
    each: Any = None

    def __post_init__(self) -> None:
        require(vars(self), "int num_masked L, score L, standard_error L, each? L P", finite=False)
        require(vars(self), "num_features 1.., num_masks 0.., area_standard_error? [0,inf]~")
        require_finite("score", self.score)
        require_number("standard_error", self.standard_error.nan_to_num().min(), "[0,inf]")
        sizes = self.num_masked
        if sizes[0] < 1 or sizes[-1] > self.num_features or (sizes.diff() <= 0).any():
            legal = f"1..{self.num_features}, got {sizes.tolist()}"
            raise ValueError(f"num_masked must increase within {legal}.")

    @property
    def mask_rate(self) -> Tensor:
        """M / D, shape (L,)."""
        return self.num_masked / self.num_features

    @property
    def area_rule(self) -> str:
        """``"exact sum"`` when every size 1..D is there, otherwise ``"trapezoid"``."""
        return "exact sum" if len(self.num_masked) == self.num_features else "trapezoid"

    def area(self) -> Estimate:
        """Area under the curve, sum over M = 1..D of S(x; M): log p(x) by Proposition 1, in nats.

        ``area_rule`` says whether it is the exact sum over all sizes or a trapezoid on a grid of
        them. The standard error covers the masks, not the error of the trapezoid.
        """
        weights = trapezoid_weights(self.num_masked, self.num_features).to(self.score)
        error = self.area_standard_error
        if error is None:
            error = (weights * self.standard_error).square().sum().sqrt().item()
        return Estimate((weights * self.score).sum().item(), error, self.num_masks)

    def partial_sums(self) -> Tensor:
        """Cumulative sums over sizes (D,): log p(x) − ℓ_{D−M}, the mean log-probability of a block.

        Raises ``ValueError`` on a grid with missing sizes.
        """
        if self.area_rule != "exact sum":
            raise ValueError(f"partial sums need every size 1..{self.num_features}.")
        return self.score.cumsum(0)


def as_rows(columns: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """One dictionary for each entry of columns of equal length, for a table."""
    lists = [each.tolist() if isinstance(each, Tensor) else each for each in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


@dataclass(frozen=True, eq=False)
class History:
    """What B training runs side by side leave.

    ``values`` (E + 1, B): row e belongs to the parameters after e updates. ``parameters`` (B, ...)
    are those after the last epoch, ``snapshots`` those after the epochs asked for.
    """

    values: dict[str, Tensor]
    parameters: dict[str, Tensor]
    snapshots: dict[int, dict[str, Tensor]]
