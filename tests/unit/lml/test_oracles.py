"""Every model with a closed form against 60 digits, a sample of the grid (``make oracles``: all)."""

from __future__ import annotations

import oracles
import pytest

SAMPLE = list(oracles.points(full_grid=False))


@pytest.mark.parametrize("point", SAMPLE, ids=map(str, SAMPLE))
def test_every_number_is_right_to_its_precision(point: oracles.Point) -> None:
    errors = oracles.errors(point)
    assert {name: error for name, error in errors.items() if not error <= point.tolerance} == {}
