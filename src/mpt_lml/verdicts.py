"""A mean with its standard error, and verdicts on it: each looks at the same 99 % interval."""

import math
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.checks import NonNegative, Positive, Within, checked, require_count

__all__ = ["agrees", "apart", "equivalent", "exceeds", "interval", "mean_and_error"]

LEVEL = 0.99
"""Coverage of the interval behind every verdict."""

Replicates = Annotated[int, Within(2)]


@checked(finite=False)
def mean_and_error(samples: Float[Tensor, "N ..."], dim: int = 0) -> tuple[Tensor, Tensor]:
    """Mean and standard error of independent samples.

    Args:
        samples: in any unit.
        dim: the axis along which they are samples.

    Returns:
        Mean and standard error, both of the shape that is left and in the unit of the samples. The
        error of a single sample is NaN.

    >>> mean_and_error(torch.tensor([1.0, 2.0, 3.0]))
    (tensor(2.), tensor(0.5774))
    """
    require_count("dim", dim, -samples.ndim, samples.ndim - 1)
    count = samples.shape[dim]
    require_count("the number of samples", count, 1)
    mean = samples.mean(dim)
    if count == 1:
        return mean, torch.full_like(mean, math.nan)
    return mean, samples.std(dim) / math.sqrt(count)


def jackknife_error(without_one: Float[Tensor, "S ..."]) -> Float[Tensor, "..."]:
    """The standard error of a statistic of S draws, from its values without each of them in turn.

    Where these are so large that their squares would overflow, as an upper bound may be, it is right
    all the same; infinite where one of them is.
    """
    lowest = without_one.amin(dim=0)
    spread = without_one.amax(dim=0) - lowest
    unit = spread.where(spread > 0, 1.0)
    in_units = (without_one - lowest) / unit
    # The jackknife's variance is (S − 1)/S times the sum of squares, S − 1 times their mean.
    error = in_units.std(dim=0, correction=0) * math.sqrt(len(without_one) - 1) * unit
    return error.where(without_one.amax(dim=0) != math.inf, math.inf)


@checked
def interval(
    value: float, error: NonNegative | None, n: Replicates | None = None
) -> tuple[float, float]:
    """The 99 % interval of a value.

    Args:
        value: a number, in any unit.
        error: its standard error; None or 0 for an exact number.
        n: the independent replicates behind the error, for Student's t with n − 1 degrees of
            freedom; None for the normal distribution.

    Returns:
        Both ends, in the unit of the value, which they are where there is no error.

    >>> [round(end, 2) for end in interval(0.0, 1.0, n=5)]
    [-4.6, 4.6]
    """
    center = float(value)
    if not error:
        return center, center
    from scipy import stats  # takes longer to import than all of this package

    law = stats.norm() if n is None else stats.t(n - 1)
    low, high = law.interval(LEVEL)
    return center + float(low) * float(error), center + float(high) * float(error)


@checked
def agrees(
    value: float, error: NonNegative | None, n: Replicates | None = None, *, at: float = 0.0
) -> bool:
    """Check whether the 99 % interval contains ``at``; noise alone can do it: see :func:`equivalent`.

    >>> agrees(0.3, 0.2)
    True
    """
    low, high = interval(value, error, n)
    return low <= at <= high


@checked
def apart(
    value: float, error: NonNegative | None, n: Replicates | None = None, *, at: float = 0.0
) -> bool:
    """Check whether the whole 99 % interval lies on one side of ``at``.

    >>> apart(0.3, 0.1), apart(0.3, 0.1, n=5)
    (True, False)
    """
    return not agrees(value, error, n, at=at)


@checked
def exceeds(
    value: float, error: NonNegative | None, n: Replicates | None = None, *, at: float = 0.0
) -> bool:
    """Check whether the whole 99 % interval lies above ``at``.

    >>> exceeds(-0.3, 0.1)
    False
    """
    low, _ = interval(value, error, n)
    return low > at


@checked
def equivalent(
    value: float,
    error: NonNegative | None,
    n: Replicates | None = None,
    *,
    margin: Positive,
    at: float = 0.0,
) -> bool:
    """Check whether the whole 99 % interval lies within ``margin`` of ``at``. A large error never does.

    >>> equivalent(0.3, 0.1, margin=1.0), equivalent(0.3, 1.0, margin=1.0)
    (True, False)
    """
    low, high = interval(value, error, n)
    return at - margin <= low and high <= at + margin
