"""Means and ratios with their errors, and rows of a table."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from mpt_lml.verdicts import mean_and_error
from mpt_score.quantities import means


def test_a_mean_of_samples_knows_its_error() -> None:
    mean = means.mean_estimate(torch.tensor([1.0, 2.0, 6.0]), "bits")
    assert mean == 3.0 and mean.num_samples == 3 and mean.unit == "bits"
    assert mean.standard_error == pytest.approx(math.sqrt((4 + 1 + 9) / 2 / 3))


class TestRatio:
    def test_it_is_the_formula(self) -> None:
        """Σ a / Σ b = 15/10; residuals −1, −1/2, 3/2 of three units."""
        a = torch.tensor([2.0, 4.0, 9.0])
        b = torch.tensor([2.0, 3.0, 5.0])
        ratio = means.ratio_estimate(a, b, "bits a byte")
        assert ratio == 1.5 and ratio.unit == "bits a byte" and ratio.num_samples == 3
        squares = 1 + 1 / 4 + 9 / 4
        assert ratio.standard_error == pytest.approx(math.sqrt(3 / 2 * squares) / 10, rel=1e-14)

    def test_of_equal_units_it_is_a_mean(self) -> None:
        samples = torch.randn(20, generator=torch.Generator().manual_seed(1)).double()
        ratio = means.ratio_estimate(samples, torch.full_like(samples, 4.0))
        mean, error = mean_and_error(samples)
        assert ratio == pytest.approx(mean.item() / 4, rel=1e-13)
        assert ratio.standard_error == pytest.approx(error.item() / 4, rel=1e-13)

    def test_its_interval_covers_what_it_should(self) -> None:
        """Values that grow with a random size, of which a mean of ratios would tell another number.

        Sizes are uniform over 1..20, a value is (size + 3) times a gamma variable of mean 1, so that
        the ratio is 13.5/10.5. With 200 units the bias is 1/200 of the spread squared, and Student's
        interval is right to a percent.
        """
        generator = np.random.default_rng(5)
        num_corpora = 1000
        size = generator.integers(1, 21, size=(num_corpora, 200)).astype(float)
        value = (size + 3) * generator.gamma(4.0, 0.25, size=size.shape)
        truth = 13.5 / 10.5
        quantile = stats.t.ppf(0.975, 199)
        covered = []
        for a, b in zip(torch.tensor(value), torch.tensor(size), strict=True):
            ratio = means.ratio_estimate(a, b)
            covered.append(abs(ratio - truth) < quantile * ratio.standard_error)
        # Three standard deviations of the share, and the percent.
        allowed = 3 * math.sqrt(0.95 * 0.05 / num_corpora) + 0.01
        assert abs(np.mean(covered) - 0.95) < allowed

    def test_sums_of_single_precision_are_in_double(self) -> None:
        """2²⁴ + 1, the first integer that single precision has not."""
        large, ones = torch.tensor([2.0**24, 1.0]), torch.ones(2)
        assert means.ratio_estimate(large, ones) == (2**24 + 1) / 2
        assert means.ratio_estimate(ones, large) == 2 / (2**24 + 1)

    def test_one_unit_has_no_error(self) -> None:
        ratio = means.ratio_estimate(torch.tensor([3.0]), torch.tensor([2.0]))
        assert ratio == 1.5 and math.isnan(ratio.standard_error) and ratio.num_samples == 1

    def test_an_infinite_value_is_an_infinite_ratio(self) -> None:
        """As a bound from above may be."""
        ratio = means.ratio_estimate(torch.tensor([1.0, math.inf]), torch.ones(2))
        assert ratio == math.inf and math.isnan(ratio.standard_error)

    @pytest.mark.bad_input
    @pytest.mark.parametrize("wrong", [[1.0, -1.0], [0.0, 0.0], [1.0, math.nan]])
    def test_sizes_that_are_none_are_refused(self, wrong: list[float]) -> None:
        with pytest.raises(ValueError, match="denominator must be at least 0, and not 0 in all"):
            means.ratio_estimate(torch.ones(2), torch.tensor(wrong))


def test_columns_of_a_table_are_of_one_length() -> None:
    assert means.as_rows({"a": [1, 2], "b": torch.tensor([3, 4])})[1] == {"a": 2, "b": 4}
    for columns in ({"a": [1, 2], "b": [3]}, {"a": [1], "b": [3, 4]}):
        with pytest.raises(ValueError, match="zip"):
            means.as_rows(columns)
