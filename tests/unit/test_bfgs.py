"""Quasi-Newton steps: short ones, halved until the objective rises."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mpt_lml import bfgs


def test_steps_of_a_climb_are_at_most_half_a_unit() -> None:
    seen = []

    def hill(at: Tensor) -> Tensor:
        seen.append(at.detach().clone())
        return -0.5 * (at - 3.0).square().sum(dim=1)

    top = bfgs.climb(torch.zeros(1, 2, dtype=torch.float64), hill)
    torch.testing.assert_close(top, torch.full((1, 2), 3.0).double(), atol=1e-6, rtol=0)
    moved = torch.stack(seen).diff(dim=0).norm(dim=-1)
    assert moved.max() <= 0.5 + 1e-12
    assert moved[0] == pytest.approx(0.5)  # the slope there is 3 √2


def test_a_step_that_overshoots_is_halved_until_it_rises() -> None:
    """Tops at ±0.01, far within half a unit: every point that is kept is higher than the last."""
    top = bfgs.climb(
        torch.tensor([[0.03], [-0.02]], dtype=torch.float64),
        lambda at: -(1e4 * at.square() - 1.0).square().sum(dim=1),
    )
    torch.testing.assert_close(top.abs(), torch.full((2, 1), 0.01).double(), atol=1e-8, rtol=0)


def test_a_step_of_less_than_half_a_unit_is_as_long_as_its_slope() -> None:
    seen = []

    def hill(at: Tensor) -> Tensor:
        seen.append(at.detach().clone())
        return -0.5 * at.square().sum(dim=1)

    bfgs.climb(torch.tensor([[0.3, 0.0]], dtype=torch.float64), hill)
    assert torch.equal(seen[1], torch.zeros(1, 2).double())  # and not as far beyond


def test_trials_are_halved_along_one_direction() -> None:
    seen = []

    def narrow(at: Tensor) -> Tensor:
        seen.append(at.item())
        return -(1e4 * at.square() - 1.0).square().sum(dim=1)

    bfgs.climb(torch.tensor([[0.03]], dtype=torch.float64), narrow, max_steps=1)
    moved = torch.tensor(seen[1:]) - seen[0]
    assert len(moved) > 2
    torch.testing.assert_close(moved[1:] / moved[:-1], torch.full((len(moved) - 1,), 0.5))
