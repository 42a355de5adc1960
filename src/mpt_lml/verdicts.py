"""A mean with its standard error, and verdicts on it: each looks at the same 99 % interval."""

import math

import torch
from torch import Tensor

from mpt_lml.spec import require, require_count

__all__ = ["agrees", "apart", "equivalent", "exceeds", "interval", "mean_and_error"]

LEVEL = 0.99
"""Coverage of the interval behind every verdict."""


def mean_and_error(samples: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Mean along ``dim`` and its standard error, both of the shape that is left.

    In the unit of the samples, which are independent; the error of a single one is NaN.

    >>> mean_and_error(torch.tensor([1.0, 2.0, 3.0]))
    (tensor(2.), tensor(0.5774))
    """
    require(locals(), "samples N ...", finite=False)
    require_count("dim", dim, -samples.ndim, samples.ndim - 1)
    count = samples.shape[dim]
    require_count("the number of samples", count, 1)
    mean = samples.mean(dim)
    if count == 1:
        return mean, torch.full_like(mean, math.nan)
    return mean, samples.std(dim) / math.sqrt(count)


def interval(value: float, error: float | None, n: int | None = None) -> tuple[float, float]:
    """The 99 % interval of ``value``, in its own unit; without an ``error``, the value itself.

    By Student's t with ``n - 1`` degrees of freedom where ``error`` is the standard error of ``n``
    replicates, by the normal distribution where ``n`` is None.

    >>> [round(end, 2) for end in interval(0.0, 1.0, n=5)]
    [-4.6, 4.6]
    """
    require(locals(), "value (-inf,inf), error? [0,inf), n? 2..")
    if not error:
        return float(value), float(value)
    from scipy import stats

    law = stats.norm() if n is None else stats.t(n - 1)
    low, high = (float(value) + float(end) * float(error) for end in law.interval(LEVEL))
    return low, high


def agrees(value: float, error: float | None, n: int | None = None, *, at: float = 0.0) -> bool:
    """Does the 99 % interval hold ``at``? Noise alone can make it so: see :func:`equivalent`.

    >>> agrees(0.3, 0.2)
    True
    """
    require(locals(), "at (-inf,inf)")
    low, high = interval(value, error, n)
    return low <= at <= high


def apart(value: float, error: float | None, n: int | None = None, *, at: float = 0.0) -> bool:
    """Does the whole 99 % interval lie on one side of ``at``?

    >>> apart(0.3, 0.1), apart(0.3, 0.1, n=5)
    (True, False)
    """
    return not agrees(value, error, n, at=at)


def exceeds(value: float, error: float | None, n: int | None = None, *, at: float = 0.0) -> bool:
    """Does the whole 99 % interval lie above ``at``?

    >>> exceeds(-0.3, 0.1)
    False
    """
    require(locals(), "at (-inf,inf)")
    return interval(value, error, n)[0] > at


def equivalent(
    value: float, error: float | None, n: int | None = None, *, margin: float, at: float = 0.0
) -> bool:
    """Does the whole 99 % interval lie within ``margin`` of ``at``? A large error never does.

    >>> equivalent(0.3, 0.1, margin=1.0), equivalent(0.3, 1.0, margin=1.0)
    (True, False)
    """
    require(locals(), "margin (0,inf), at (-inf,inf)")
    low, high = interval(value, error, n)
    return at - margin <= low and high <= at + margin
