"""A mean with its standard error, and verdicts on the one 99 % interval."""

import math

import pytest
import torch
from scipy import stats

from mpt_lml import verdicts


def test_the_interval_covers_its_share_of_small_samples() -> None:
    """Five normal values: 99 % of the intervals by t hold the truth, far fewer by the normal."""
    draws = stats.norm.rvs(size=(20000, 5), random_state=4)
    means, errors = draws.mean(axis=1), draws.std(axis=1, ddof=1) / 5**0.5

    def share(replicates: int | None) -> float:
        reach = verdicts.interval(0.0, 1.0, replicates)[1]
        return float((abs(means) < reach * errors).mean())

    assert abs(share(5) - 0.99) < 5 * (0.99 * 0.01 / 20000) ** 0.5
    assert share(None) < 0.96


@pytest.mark.parametrize("error", [None, 0.0])
def test_a_number_without_an_error_is_an_interval_by_itself(error: float | None) -> None:
    assert verdicts.interval(2.5, error, 5) == (2.5, 2.5)


def test_the_four_verdicts_and_their_interval() -> None:
    reach = stats.t.ppf(0.995, 4)
    assert verdicts.agrees(2.0, 2.01 / reach, 5) and verdicts.apart(2.0, 1.99 / reach, 5)
    assert verdicts.exceeds(2.0, 0.99 / reach, 5, at=1.0)
    assert not verdicts.exceeds(2.0, 1.01 / reach, 5, at=1.0)
    assert not verdicts.exceeds(-2.0, 0.0)
    assert verdicts.equivalent(2.0, 0.49 / reach, 5, margin=1.5, at=1.0)
    assert not verdicts.equivalent(2.0, 0.51 / reach, 5, margin=1.5, at=1.0)
    assert verdicts.agrees(1.0, 10.0) and not verdicts.equivalent(1.0, 10.0, margin=5.0)


def test_a_standard_error_divides_by_n_less_one() -> None:
    samples = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 3.0]])
    mean, error = verdicts.mean_and_error(samples, dim=1)
    assert mean.tolist() == pytest.approx([7 / 3, 1.0])
    squares = (14 / 3, 6.0)  # Σ (x − mean)²
    assert error.tolist() == pytest.approx([math.sqrt(s / 2 / 3) for s in squares])
    assert verdicts.mean_and_error(samples[:, :1], dim=1)[1].isnan().all()


def test_without_a_value_to_compare_with_it_is_zero() -> None:
    assert verdicts.exceeds(0.5, 0.1)  # 0.5 is five errors above 0
    assert verdicts.apart(0.5, 0.1)
    assert verdicts.agrees(0.1, 0.1)


def test_a_value_without_an_error_is_judged_as_it_stands() -> None:
    assert verdicts.agrees(0.3, None, at=0.3)
    assert not verdicts.exceeds(0.3, None, at=0.3)
    assert verdicts.equivalent(0.3, None, margin=0.1, at=0.2 + 1e-12)


def test_apart_is_apart_from_the_value_that_is_named() -> None:
    assert not verdicts.apart(1.0, 0.1, at=1.1)
    assert verdicts.apart(0.0, 0.1, at=1.0)


def test_a_mean_of_what_is_no_number_is_none() -> None:
    mean, error = verdicts.mean_and_error(torch.tensor([1.0, math.nan]))
    assert mean.isnan() and error.isnan()
