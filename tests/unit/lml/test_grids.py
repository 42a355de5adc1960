"""Grids for integrals over z: their mass, their edges, the integral by default."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from models import generator, random_bernoulli
from moved import other_device
from other_device import DEVICE
from torch import Tensor

from mpt_lml import grids, masks


def test_an_integral_by_the_default_grid_is_that_of_a_normal() -> None:
    start = torch.zeros(2, 2, dtype=torch.float64)
    found = grids.log_integral(lambda z: -0.5 * (z - 1.0).square().sum(dim=-1), start)
    # Trapezoids of width 1: the error is that of their Fourier series, 2 e^{-2π²} < 1e-8, and of the
    # tails beyond five standard deviations, below 1e-6 an axis.
    torch.testing.assert_close(
        found, torch.full((2,), math.log(2 * math.pi)).double(), atol=4e-6, rtol=0
    )


@pytest.mark.parametrize("latent_dim", [1, 2, 3])
@pytest.mark.parametrize("spacing", [0.5, 0.8])
def test_an_integral_does_not_know_the_spacing_of_its_nodes(
    latent_dim: int, spacing: float
) -> None:
    """A cell has a side of that length for every axis, in standard deviations of the posterior."""
    scale = 1.0 / torch.arange(1.0, latent_dim + 1.0, dtype=torch.float64)  # of the axes of z

    def log_joint(z: Tensor) -> Tensor:
        return -0.5 * (z / scale).square().sum(dim=-1)

    start = torch.ones(2, latent_dim, dtype=torch.float64)
    nodes = int(12 / spacing) + 1
    found = grids.log_integral(log_joint, start, nodes, extent=6.0)
    # Six standard deviations leave 2e-9 of the mass out, an axis; the rule itself is off by 1e-13.
    expected = 0.5 * latent_dim * math.log(2 * math.pi) + scale.log().sum().item()
    torch.testing.assert_close(found, torch.full_like(found, expected), atol=1e-8, rtol=0)


def test_mass_at_one_side_of_a_grid_is_seen() -> None:
    """A long tail along one of two axes: at the sides of the square, hardly at its corners."""

    def tail(z: Tensor) -> Tensor:
        return -(1.0 + z[..., 0].square()).sqrt() - 0.5 * z[..., 1].square()

    with pytest.warns(RuntimeWarning, match="edge holds"):
        grids.log_integral(tail, torch.zeros(1, 2).double())


WARNED = """
from mpt_lml import grids
from models import generator, random_bernoulli

model = random_bernoulli(4, 1, 9)
x = model.sample(1, generator=generator())
grids.trapezoid(1, 4, 1.0)
model.adaptive_log_marginal(x, extent=1.0)
"""


def test_a_warning_names_the_line_that_asked_for_the_grid(tmp_path: Path) -> None:
    # In a process of its own: what looks at shapes here stands between the two lines.
    script = tmp_path / "script.py"
    script.write_text(WARNED)
    path = os.pathsep.join(
        [str(Path(__file__).parents[2] / "helpers"), os.environ.get("PYTHONPATH", "")]
    )
    printed = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert f"{script}:7: RuntimeWarning" in printed
    assert f"{script}:8: RuntimeWarning" in printed


def every_datum(num_features: int) -> torch.Tensor:
    return masks.subsets(num_features).double()


def test_a_search_that_accepts_any_step_takes_none() -> None:
    start = torch.ones(1, 1).double()
    mode, precision = grids.find_modes(
        lambda z: -2 * (z - 3).square().sum(dim=-1), start, tolerance=1e308
    )
    assert torch.equal(mode, start) and precision.item() == pytest.approx(4.0)


def test_modes_have_no_gradient_left() -> None:
    model = random_bernoulli(30, 2, 20, seed=8)
    x = model.sample(50, generator=generator(9))
    mode, precision = grids.find_modes(lambda z: model.log_joint(x, z), torch.zeros(50, 2).double())
    p = model.decode(mode)
    gradient = (x - p) @ model.loadings - mode
    assert gradient.abs().max() < 1e-6
    hessian = torch.einsum("nd,dk,dl->nkl", p * (1 - p), model.loadings, model.loadings)
    expected = hessian + torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(precision, expected, atol=1e-6, rtol=0)


def test_a_log_density_answers_on_any_device() -> None:
    def log_joint(z: Tensor) -> Tensor:
        return (-2 * (z - 3).square().sum(dim=-1)).cpu()

    with other_device():
        mode, precision = grids.find_modes(log_joint, torch.zeros(4, 1, device=DEVICE))
        assert mode.device == precision.device == DEVICE
        mode = mode.cpu()
    torch.testing.assert_close(mode, torch.full((4, 1), 3.0))


class TestGrids:
    @pytest.mark.parametrize("latent_dim", [1, 2, 3])
    def test_moments_of_the_normal(self, latent_dim: int) -> None:
        grid = grids.trapezoid(latent_dim, 24, 6.0)
        weights = grid.log_weights.exp()
        assert weights.sum().item() == pytest.approx(1, abs=1e-12)
        second = torch.einsum("g,gk,gl->kl", weights, grid.nodes, grid.nodes)
        identity = torch.eye(latent_dim, dtype=torch.float64)
        torch.testing.assert_close(second, identity, atol=1e-6, rtol=0)
        fourth = (weights[:, None] * grid.nodes**4).sum(dim=0)
        torch.testing.assert_close(fourth, torch.full_like(fourth, 3.0), atol=1e-5, rtol=0)

    def test_a_coarse_grid_says_what_mass_it_sees(self) -> None:
        axis = torch.linspace(-5, 5, 4).double()
        mass = (torch.distributions.Normal(0.0, 1.0).log_prob(axis).exp().sum() * 10 / 3) ** 2
        with pytest.warns(RuntimeWarning, match=f"4 × 4 on ±5 sees a mass of {mass:.4f} "):
            grid = grids.trapezoid(2, 4)
        assert grid.log_weights.exp().sum().item() == pytest.approx(1, abs=1e-12)

    def test_an_adaptive_grid_that_is_too_narrow_warns(self) -> None:
        model = random_bernoulli(5, 2, 40)
        x = model.sample(4, generator=generator())
        with pytest.warns(RuntimeWarning, match="edge holds"):
            model.adaptive_log_marginal(x, extent=1.0)

    @pytest.mark.bad_input
    @pytest.mark.parametrize("total", [0.5, 2.0])
    def test_weights_are_those_of_probabilities(self, total: float) -> None:
        probabilities = torch.tensor([0.25, 0.75]).double()
        nodes = torch.zeros(2, 1).double()
        grids.Grid(nodes, probabilities.log())
        with pytest.raises(ValueError, match="probabilities that sum to 1"):
            grids.Grid(nodes, (total * probabilities).log())

    def test_fine_grids_are_silent(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            grids.trapezoid(2, 20)
            random_bernoulli(5, 2, 20).adaptive_log_marginal(every_datum(5))


@pytest.mark.bad_input
def test_a_search_that_ended_early_is_measured_in_standard_deviations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One Newton step from 1 leads to 1/2, where the gradient is −5/8 and the precision 7/4."""

    def log_joint(z: Tensor) -> Tensor:
        return (-0.5 * z.square() - 0.25 * z**4).sum(dim=-1)

    start = torch.ones(1, 1).double()
    monkeypatch.setattr(grids, "_MOST_NEWTON_STEPS", 1)
    grids.find_modes(log_joint, start, accepted=0.5)
    with pytest.raises(RuntimeError, match=r"after 1 Newton steps: 4\.7e-01 sd off"):
        grids.find_modes(log_joint, start, accepted=0.3)
