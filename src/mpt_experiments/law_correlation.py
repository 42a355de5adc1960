"""Whether two measurements go together over laws of the mask size: the law is the unit."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mpt_experiments.experiment import seeded

NUM_PERMUTATIONS = 10_000
LEVEL = 0.99
"""Coverage of the interval of a correlation, as of every interval behind a verdict of the book."""


class OfLaws(NamedTuple):
    """How a second measurement follows a first one, over laws and within them.

    It is the mixed model y_ls = a + between · x̄_l + within · (x_ls − x̄_l) + u_l + e_ls, with a random
    effect u_l of each law l and seeds s as its replicates. With equally many seeds a law its estimates
    have closed forms: ``between`` is least squares on the laws' means, judged by the scatter of the
    laws around the line, and ``within`` is least squares on what is left.
    """

    correlation: float  # of the laws' means
    low: float  # of its 99 % interval, by Fisher's z
    high: float
    p_value: float  # by permutations of the laws
    between: float  # units of y a unit of x
    between_error: float
    within: float
    within_error: float

    @property
    def direction(self) -> int:
        """The rule: 1 where the interval lies above 0, −1 where it lies below, 0 for undecided."""
        return int(self.low > 0) - int(self.high < 0)

    @property
    def standard_error(self) -> float:
        """Of the correlation, from the width of its interval."""
        return (self.high - self.low) / (2 * _normal_quantile(0.5 + LEVEL / 2))


def of_laws(x: Float[Tensor, "laws seeds"], y: Float[Tensor, "laws seeds"]) -> OfLaws:
    """Correlation and slopes of ``y`` on ``x``, one row a law, one column a seed.

    Needs four laws or more, since the interval's width is 1/√(laws − 3).

    >>> x = torch.arange(5.0)[:, None] + torch.tensor([[0.0, 0.1]])
    >>> round(of_laws(x, 2 * x).between, 6)
    2.0
    """
    x = x.double()
    y = y.double()
    num_laws, num_seeds = x.shape
    if num_laws < 4:
        raise ValueError(f"x must have at least 4 laws, one row each, got {num_laws}.")
    x_of_law = x.mean(dim=1)
    y_of_law = y.mean(dim=1)
    correlation = _correlation(x_of_law, y_of_law)
    low, high = interval(correlation, num_laws)
    between, between_error = _slope(x_of_law, y_of_law, num_laws - 2)
    x_within = (x - x_of_law[:, None]).flatten()
    y_within = (y - y_of_law[:, None]).flatten()
    within, within_error = _slope(x_within, y_within, num_laws * (num_seeds - 1) - 1)
    return OfLaws(
        correlation,
        low,
        high,
        _permutation_p_value(x_of_law, y_of_law),
        between,
        between_error,
        within,
        within_error,
    )


def interval(correlation: float, num_laws: int) -> tuple[float, float]:
    """The 99 % interval of a correlation of so many laws, by Fisher's z.

    >>> low, high = interval(0.67, 15)
    >>> print(f"{low:.2f} {high:.2f}")
    0.07 0.91
    """
    half_width = _normal_quantile(0.5 + LEVEL / 2) / np.sqrt(num_laws - 3)
    z = np.arctanh(np.clip(correlation, -1 + 1e-12, 1 - 1e-12))
    return float(np.tanh(z - half_width)), float(np.tanh(z + half_width))


def power(correlation: float, num_laws: int) -> float:
    """How probable it is that the interval lies above 0, where the true correlation is this.

    >>> print(f"{power(0.756, 15):.2f}")
    0.80
    """
    from scipy import stats

    z = np.arctanh(correlation) * np.sqrt(num_laws - 3)
    return float(stats.norm.sf(_normal_quantile(0.5 + LEVEL / 2) - z))


def _normal_quantile(probability: float) -> float:
    from scipy import stats

    return float(stats.norm.ppf(probability))


def _correlation(x: Tensor, y: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


def _slope(x: Tensor, y: Tensor, degrees_of_freedom: int) -> tuple[float, float]:
    """Of least squares, and its standard error."""
    x = x - x.mean()
    y = y - y.mean()
    square = (x @ x).item()
    if square == 0 or degrees_of_freedom < 1:
        return float("nan"), float("nan")
    slope = (x @ y).item() / square
    residual = y - slope * x
    variance = (residual @ residual).item() / degrees_of_freedom
    return slope, float(np.sqrt(variance / square))


def _permutation_p_value(x: Tensor, y: Tensor) -> float:
    """Share of permutations of the laws with a correlation as far from 0, either side."""
    generator = seeded(0)
    x = (x - x.mean()) / x.std(correction=0)
    y = (y - y.mean()) / y.std(correction=0)
    order = torch.rand(NUM_PERMUTATIONS, len(x), generator=generator).argsort(dim=1)
    of_permutations = (y[order] @ x).abs()
    as_far = (of_permutations >= (x @ y).abs() - 1e-12).sum().item()
    return (as_far + 1) / (NUM_PERMUTATIONS + 1)
