from __future__ import annotations

import math

import pytest
import torch

from mpt_lml import results
from mpt_lml.results import Estimate, MaskCurve


def test_an_estimate_is_a_number_with_an_error() -> None:
    estimate = Estimate(-60.3, 0.02, 100)
    assert estimate - 1.0 == pytest.approx(-61.3)
    assert f"{estimate:.1f}" == "-60.3"
    assert repr(estimate) == "-60.3000 ± 0.0200 nats"
    assert repr(Estimate(-1.5)) == "-1.5000 nats (exact)"
    assert repr(Estimate(-1.5, math.nan, 1)) == "-1.5000 nats (no error from one sample)"
    assert (estimate.value, estimate.standard_error, estimate.num_samples) == (-60.3, 0.02, 100)
    assert type(estimate.value) is float
    assert (torch.ones(2) - estimate).tolist() == pytest.approx([61.3, 61.3])


def test_curves_can_be_compared() -> None:
    """What holds tensors is equal to itself only: tensors have no single answer."""
    sizes = torch.arange(1, 4)
    one, other = (MaskCurve(sizes, -1.0 * sizes, 0.1 * sizes, 3) for _ in range(2))
    assert one == one and one != other
    assert len({one, other}) == 2


def test_a_plain_number_is_exact() -> None:
    assert Estimate(1.0).standard_error == 0.0 and Estimate(1.0).num_samples == 0


def test_a_size_stands_once_in_a_curve() -> None:
    for sizes in ([1, 1], [2, 1], [0, 1], [1, 5]):
        with pytest.raises(ValueError, match="must increase within 1..4"):
            MaskCurve(torch.tensor(sizes), -torch.ones(2), torch.zeros(2), 4)
    assert MaskCurve(torch.tensor([4]), -torch.ones(1), torch.zeros(1), 4).num_features == 4


def test_columns_of_a_table_are_of_one_length() -> None:
    assert results.as_rows({"a": [1, 2], "b": torch.tensor([3, 4])})[1] == {"a": 2, "b": 4}
    for columns in ({"a": [1, 2], "b": [3]}, {"a": [1], "b": [3, 4]}):
        with pytest.raises(ValueError, match="zip"):
            results.as_rows(columns)


def test_a_grid_of_rates_is_sizes_over_coordinates() -> None:
    curve = MaskCurve(torch.tensor([1, 3, 4]), -torch.ones(3), torch.zeros(3), num_features=4)
    assert curve.mask_rate.tolist() == [0.25, 0.75, 1.0]


def test_a_curve_is_exact_unless_masks_were_drawn() -> None:
    one = torch.ones(1)
    assert repr(MaskCurve(one.long(), -one, 0 * one, 1).area()) == "-1.0000 nats (exact)"
