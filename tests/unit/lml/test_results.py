from __future__ import annotations

import math

import pytest
import torch

from mpt_lml.results import Estimate, MaskCurve, Maxima, trapezoid_weights


def test_an_estimate_is_a_number_with_an_error() -> None:
    estimate = Estimate(-60.3, 0.02, 100)
    assert estimate - 1.0 == pytest.approx(-61.3)
    assert f"{estimate:.1f}" == "-60.3"
    assert repr(estimate) == "-60.3000 ± 0.0200 nats"
    assert repr(Estimate(-1.5)) == "-1.5000 nats (exact)"
    assert repr(Estimate(-1.5, math.nan, 1)) == "-1.5000 nats (no error from one sample)"
    assert (estimate.standard_error, estimate.num_samples) == (0.02, 100)
    assert (torch.ones(2) - estimate).tolist() == pytest.approx([61.3, 61.3])


def test_what_has_an_error_is_not_called_exact() -> None:
    """Also where nobody says how many samples are behind it, as in a published table."""
    assert repr(Estimate(-1.5, 0.25)) == "-1.5000 ± 0.2500 nats"
    for num_samples in (0, 2):
        assert repr(Estimate(-1.5, math.nan, num_samples)) == "-1.5000 nats (error not known)"


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


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": torch.tensor([-1.0, math.nan])}, r"score must be finite, but score\[1\] is nan"),
        ({"score": torch.tensor([-1.0, -math.inf])}, r"score\[1\] is -inf"),
        (
            {"standard_error": torch.tensor([0.1, -0.1])},
            "standard_error must be a single number in",
        ),
        ({"standard_error": torch.zeros(3)}, r"standard_error must have shape \(2,\), got \(3,\)"),
        ({"area_standard_error": -0.1}, "area_standard_error must be .* got -0.1"),
        ({"each": torch.zeros(3, 5)}, r"each must have shape \(2, 5\), got \(3, 5\)"),
        ({"each": torch.zeros(2, 4)}, r"each must have shape \(2, 5\), got \(2, 4\)"),
        ({"num_masks": -1}, "num_masks must be >= 0"),
    ],
)
def test_a_curve_made_by_hand_can_be_one(change: dict, message: str) -> None:
    parts = {
        "num_masked": torch.tensor([1, 3]),
        "score": torch.tensor([-1.0, -2.0]),
        "standard_error": torch.tensor([0.1, math.nan]),
        "num_features": 4,
        "num_masks": 5,
        "each": torch.full((2, 5), -1.5),
    }
    MaskCurve(**parts)
    with pytest.raises(ValueError, match=message):
        MaskCurve(**parts | change)


@pytest.mark.bad_input
@pytest.mark.parametrize("error", [-0.1, -math.inf])
def test_no_error_is_negative(error: float) -> None:
    with pytest.raises(ValueError, match="standard_error must be a single number in"):
        Estimate(1.0, error, 3)


def test_a_curve_is_exact_unless_masks_were_drawn() -> None:
    one = torch.ones(1)
    assert repr(MaskCurve(one.long(), -one, 0 * one, 1).area()) == "-1.0000 nats (exact)"


def test_an_area_between_few_sizes_is_not_exact() -> None:
    """Exact scores of some sizes: straight lines between them have an error that nothing tells."""
    sizes = torch.tensor([1, 4])
    no_error = torch.zeros(2)
    exact_scores = MaskCurve(sizes, -1.0 * sizes, no_error, 4)
    assert repr(exact_scores.area()) == "-10.0000 nats (error not known)"
    drawn = MaskCurve(sizes, -1.0 * sizes, no_error, 4, num_masks=3)
    assert repr(drawn.area()) == "-10.0000 ± 0.0000 nats"
    published = MaskCurve(sizes, -1.0 * sizes, torch.tensor([0.1, 0.0]), 4)  # masks not known
    assert published.area().standard_error > 0.0


def test_the_trapezoidal_rule_is_exact_for_a_straight_line() -> None:
    score = 2.0 - 0.5 * torch.arange(1, 11).double()
    for missing in range(2, 10):
        sizes = torch.tensor([size for size in range(1, 11) if size != missing])
        nearly = MaskCurve(sizes, score[sizes - 1], torch.ones(9).double(), 10, 5)
        assert nearly.area() == pytest.approx(score.sum().item(), abs=1e-12)
    sizes = torch.tensor([1, 4, 10])
    line = MaskCurve(sizes, score[sizes - 1], torch.ones(3).double(), 10, 5)
    assert line.area() == pytest.approx(score.sum().item(), abs=1e-12)
    weights = trapezoid_weights(sizes, 10)
    assert weights.sum().item() == pytest.approx(10.0)
    assert line.area().standard_error == pytest.approx(weights.square().sum().sqrt().item())


def test_area_outside_the_grid_is_constant() -> None:
    curve = MaskCurve(torch.tensor([3]), torch.tensor([-2.0]), torch.zeros(1), 8)
    assert curve.area() == pytest.approx(-16.0)


def test_maxima_are_asked_for_by_name() -> None:
    value, num_steps = torch.zeros(3), torch.tensor([4, 5, 6])
    whole = Maxima(torch.ones(3, 2), value, torch.tensor([True, True, True]), num_steps)
    assert whole.require_converged() is whole
    part = Maxima(torch.ones(3, 2), value, torch.tensor([True, False, False]), num_steps)
    with pytest.raises(
        RuntimeError, match=r"2 of 3 climbs .* the first of them run 1 after 5 steps"
    ):
        part.require_converged()
