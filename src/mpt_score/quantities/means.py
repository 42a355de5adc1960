"""Means and ratios over texts with their standard errors, and columns of numbers as rows."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from mpt_lml.checks import checked, require_entries
from mpt_lml.results import Estimate
from mpt_lml.verdicts import mean_and_error


def mean_estimate(samples: Float[Tensor, " N"], unit: str = "nats") -> Estimate:
    """The mean of N independent samples with its standard error, which is NaN for a single one.

    >>> import torch
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

    >>> import torch
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


def as_rows(columns: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """Rows of a table from its columns: one dictionary for each entry."""
    lists = []
    for values in columns.values():
        lists.append(values.tolist() if isinstance(values, Tensor) else values)
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
