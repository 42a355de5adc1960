"""Every model with a closed form against 60 digits, a sample of the grid (``make oracles``: all)."""

from __future__ import annotations

import math

import mpmath
import oracles
import pytest
import torch

SAMPLE = list(oracles.points(full_grid=False))


@pytest.mark.parametrize("point", SAMPLE, ids=map(str, SAMPLE))
def test_every_number_is_right_to_its_precision(point: oracles.Point) -> None:
    errors = oracles.errors(point)
    assert {name: error for name, error in errors.items() if not error <= point.tolerance} == {}


def test_the_sample_has_every_family_in_both_precisions() -> None:
    families = {point.family for point in SAMPLE}
    assert len(families) >= len(oracles.FAMILIES)
    for dtype in (torch.float64, torch.float32):
        assert {point.family for point in SAMPLE if point.dtype == dtype} == families


def a_point(measured: list[float], exact: list[float], **more) -> oracles.Point:
    """A point that says ``measured`` where ``exact`` is right."""
    values = torch.tensor(measured, dtype=torch.float64)
    wanted = [mpmath.mpf(value) for value in exact]
    answers = {"measured": lambda: {"number": values}, "exact": lambda: {"number": wanted}}
    return oracles.Point("none", "by hand", torch.float64, 4, **answers, **more)


@pytest.mark.parametrize(
    ("measured", "exact", "error"),
    [
        (-1.5, -1.0, 0.5),
        (-math.inf, -math.inf, 0.0),
        (-87.34, -math.inf, math.inf),  # a floor is no zero
        (-math.inf, -800.0, math.inf),
        (math.nan, -1.0, math.inf),
        (math.nan, -math.inf, math.inf),
    ],
)
def test_what_counts_as_an_error(measured: float, exact: float, error: float) -> None:
    point = a_point([measured], [exact])
    assert oracles.errors(point) == {"number": error}


def test_the_largest_error_is_told_and_shared_by_coordinates() -> None:
    point = a_point([-2.0, -4.0], [-1.0, -4.0], coordinates={"number": 4})
    assert oracles.errors(point) == {"number": 0.25}
    point = a_point([-2.0, -4.0], [-1.0, -7.0], coordinates={"number": [1, 2]})
    assert oracles.errors(point) == {"number": 1.5}


def test_numbers_that_were_not_measured_are_missed() -> None:
    with pytest.raises(TypeError, match="1 measured, 2 exact"):
        oracles.errors(a_point([-1.0], [-1.0, -2.0]))


@pytest.mark.parametrize("may_refuse", [False, True])
def test_a_refusal_counts_only_where_it_is_allowed(may_refuse: bool) -> None:
    def refuse() -> dict:
        raise ValueError("rounding swallows it.")

    point = oracles.Point("none", "by hand", torch.float64, 1, refuse, dict, may_refuse=may_refuse)
    if may_refuse:
        assert oracles.errors(point) == {}
    else:
        with pytest.raises(ValueError, match="rounding swallows it"):
            oracles.errors(point)
