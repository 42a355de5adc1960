"""Correlations whose unit is the law: against other libraries and against a mixed model's equations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from models import generator
from scipy import stats

from mpt_experiments import law_correlation
from mpt_experiments.law_correlation import of_laws, power


def example(num_laws: int = 15, num_seeds: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    at = generator(3)
    x = torch.randn(num_laws, 1, generator=at) + 0.5 * torch.randn(
        num_laws, num_seeds, generator=at
    )
    of_law = torch.randn(num_laws, 1, generator=at)
    noise = torch.randn(num_laws, num_seeds, generator=at)
    return x, x.mean(dim=1, keepdim=True) - 0.3 * x + of_law + 0.2 * noise


def test_the_correlation_is_that_of_the_laws_means() -> None:
    x, y = example()
    found = of_laws(x, y)
    other = stats.pearsonr(x.mean(dim=1).numpy(), y.mean(dim=1).numpy())
    assert found.correlation == pytest.approx(other.statistic, abs=1e-6)
    low, high = other.confidence_interval(0.99)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)
    line = stats.linregress(x.mean(dim=1).numpy(), y.mean(dim=1).numpy())
    assert found.between == pytest.approx(line.slope, abs=1e-6)
    assert found.between_error == pytest.approx(line.stderr, abs=1e-6)
    half_width = (math.atanh(found.high) - math.atanh(found.low)) / 2
    assert half_width == pytest.approx(stats.norm.ppf(0.995) / math.sqrt(12))


@pytest.mark.parametrize("variance_of_laws", [0.0, 0.3, 7.0])
def test_the_slopes_are_those_of_the_mixed_model(variance_of_laws: float) -> None:
    """Generalized least squares, whatever the variance of the random effect."""
    x, y = (values.double().numpy() for values in example())
    num_laws, num_seeds = x.shape
    mean = np.repeat(x.mean(axis=1), num_seeds)
    design = np.stack([np.ones(x.size), mean, x.flatten() - mean], axis=1)
    same_law = np.kron(np.eye(num_laws), np.ones((num_seeds, num_seeds)))
    precision = np.linalg.inv(np.eye(x.size) + variance_of_laws * same_law)
    solution = np.linalg.solve(design.T @ precision @ design, design.T @ precision @ y.flatten())
    found = of_laws(torch.tensor(x), torch.tensor(y))
    assert [found.between, found.within] == pytest.approx(solution[1:].tolist(), abs=1e-9)


def test_the_error_within_laws_is_that_of_a_regression_with_a_constant_for_each() -> None:
    x, y = (values.double().numpy() for values in example())
    num_laws, num_seeds = x.shape
    constants = np.kron(np.eye(num_laws), np.ones((num_seeds, 1)))
    design = np.hstack([constants, x.reshape(-1, 1)])
    solution, squares, *_ = np.linalg.lstsq(design, y.flatten(), rcond=None)
    variance = squares[0] / (x.size - num_laws - 1)
    error = math.sqrt(variance * np.linalg.inv(design.T @ design)[-1, -1])
    found = of_laws(torch.tensor(x), torch.tensor(y))
    assert (found.within, found.within_error) == pytest.approx((solution[-1], error))


def test_the_p_value_is_a_share_of_all_permutations() -> None:
    x, y = example(num_laws=6)
    means = x.mean(dim=1), y.mean(dim=1)
    seen = abs(torch.corrcoef(torch.stack(means))[0, 1].item())
    as_far = [
        abs(torch.corrcoef(torch.stack([means[0], means[1][list(order)]]))[0, 1].item())
        >= seen - 1e-6
        for order in itertools.permutations(range(6))
    ]
    share = sum(as_far) / len(as_far)
    error = math.sqrt(share * (1 - share) / law_correlation.NUM_PERMUTATIONS)
    assert of_laws(x, y).p_value == pytest.approx(share, abs=4 * error)


def test_power_is_what_simulations_have() -> None:
    at = generator(1)
    true = 0.6
    x = torch.randn(4000, 15, generator=at, dtype=torch.float64)
    y = true * x + math.sqrt(1 - true**2) * torch.randn(4000, 15, generator=at, dtype=torch.float64)
    found = 0
    for pair in zip(x, y, strict=True):
        correlation = torch.corrcoef(torch.stack(pair))[0, 1].item()
        found += law_correlation.interval(correlation, 15)[0] > 0
    assert found / 4000 == pytest.approx(power(true, 15), abs=0.04)  # Fisher's z is approximate


def test_the_rule_looks_at_both_ends_of_the_interval() -> None:
    x = torch.arange(8.0)[:, None] + torch.zeros(8, 2)
    assert of_laws(x, x + torch.tensor([1.0, -1.0])).direction == 1
    assert of_laws(x, -x).direction == -1
    scattered = torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1])[:, None] + torch.zeros(8, 2)
    assert of_laws(x, scattered).direction == 0


@pytest.mark.bad_input
def test_three_laws_are_too_few() -> None:
    with pytest.raises(ValueError, match="at least 4 laws, one row each, got 3"):
        of_laws(torch.rand(3, 5), torch.rand(3, 5))
