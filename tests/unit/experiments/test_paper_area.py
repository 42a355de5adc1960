"""Smooth curves and what is read off them."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import linprog

from experiments.experiment import RunContext
from experiments.paper import area
from mpt_lml import PPCA, curves, objectives

f64 = {"dtype": torch.float64}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model_and_moment() -> tuple[PPCA, torch.Tensor, torch.Tensor]:
    model = PPCA(torch.randn(6, 2, generator=generator(), **f64), 0.2)
    x = torch.randn(40, 6, generator=generator(1), **f64)
    return model, x, objectives.second_moment(x)


def test_both_ends_of_a_dense_curve_are_exact() -> None:
    model, x, moment = model_and_moment()
    exact = curves.exact_curve(model, x).score
    dense = area.dense_curve(model, moment, 6, generator=generator(2))
    torch.testing.assert_close(dense[[0, -1]], exact[[0, -1]], rtol=0, atol=1e-12)
    assert (dense - exact).abs().max() > 1e-3  # six masks do not settle the middle


def test_a_dense_curve_is_unbiased() -> None:
    model, x, moment = model_and_moment()
    exact = curves.exact_curve(model, x).score
    for num_masks in (2, 12):  # a part of the shifts, and two orders
        many = torch.stack(
            [area.dense_curve(model, moment, num_masks, generator=generator(s)) for s in range(100)]
        )
        error = many.std(dim=0) / 100**0.5
        assert ((many.mean(dim=0) - exact).abs() < 4 * error + 1e-12).all()


def test_shares_of_a_straight_fall() -> None:
    line = -torch.arange(1, 101, **f64)
    assert abs(area.fall_beyond(line, 0.9) - 10 / 99) < 1e-12
    # 5 % of the fall of 99 is 4.95: passed at the sixth of the hundred sizes.
    assert area.rate_of_fall(line[None], 0.05).tolist() == [0.06]


def test_findings_of_curves_that_are_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """K = 2 falls by one from size to size; K = 8 as well, and by 20 from 12 to 13 of 20."""
    size = torch.arange(1, 21, **f64)
    of_dim = {2: -size, 8: -size - 19 * (size >= 13)}
    monkeypatch.setattr(area, "dense_curve", lambda model, *_, **options: of_dim[model.latent_dim])
    found = area.CurveShape.preset("quick").run(RunContext()).findings
    for name, expected in (
        ("claim-tail-90", 2 / 19),
        ("tail-90/k50", 2 / 38),
        ("tail-85/k50", 3 / 38),
        ("decay-begins/2", 2 / 20),  # 2 % of 38 are passed by one step, 5 % by two, and so on
        ("claim-decay-50", 3 / 20),
        ("decay-begins/10", 5 / 20),
        ("decay-begins/20", 9 / 20),
        ("steepest-rate-k-50", 12 / 20),
    ):
        assert found[name].measured == pytest.approx(expected), name


def test_the_exponential_residual_knows_an_exponential() -> None:
    rate = torch.arange(1, 201, **f64) / 200
    exponential = -0.3 - 0.5 * (20 * (rate - 1)).exp()
    assert area.exponential_residual(exponential) < 5e-3  # the nearest of 400 rate constants
    assert area.exponential_residual(exponential.log1p()) < 5e-3  # or the probability is one
    step = (rate > 0.6).to(rate)
    assert area.exponential_residual(-step) > 0.2


def test_a_curve_that_falls_ever_faster_is_no_decay() -> None:
    rate = torch.arange(1, 201, **f64) / 200
    decay = -1.0 + 0.5 * (-20 * rate).exp()
    assert area.exponential_residual(decay, decaying=True) < 5e-3
    mirrored = -0.3 - 0.5 * (20 * (rate - 1)).exp()
    assert area.exponential_residual(mirrored) < 5e-3  # an exponential, but one that grows
    assert area.exponential_residual(mirrored, decaying=True) > 0.3


def test_the_nearest_fit_is_that_of_a_linear_program() -> None:
    """Minimize t subject to |values − a − b column| ≤ t."""
    values = torch.randn(30, generator=generator(3), **f64)
    columns = torch.randn(3, 30, generator=generator(4), **f64).exp()
    found = area.smallest_largest_error(values, columns)
    for column, share in zip(columns, found, strict=True):
        one = torch.ones_like(column)
        above = torch.stack([one, column, -one], dim=1)
        below = torch.stack([-one, -column, -one], dim=1)
        program = linprog(
            [0.0, 0.0, 1.0],
            A_ub=torch.cat([above, below]).numpy(),
            b_ub=torch.cat([values, -values]).numpy(),
            bounds=(None, None),
        )
        assert share == pytest.approx(program.fun / (values.max() - values.min()).item(), rel=1e-6)


def test_no_curve_is_farther_from_an_exponential_than_from_a_constant() -> None:
    for seed in range(5):
        curve = torch.randn(50, generator=generator(seed), **f64)
        assert area.exponential_residual(curve, decaying=True) <= 0.5 + 1e-12


def test_the_shape_of_a_curve_has_no_height_and_no_scale() -> None:
    rate = torch.linspace(0, 1, 11, **f64)
    one, other = -(rate**2), -(rate**3)
    assert area.shape_distance(one, 5.0 + 3.0 * one) < 1e-12
    # The largest difference of r² and r³ on this grid is at r = 0.7.
    assert area.shape_distance(one, 2.0 * other) == pytest.approx(0.7**2 - 0.7**3)
    both = area.shape_distance(torch.stack([one, other]), one)
    assert both.tolist() == pytest.approx([0.0, 0.7**2 - 0.7**3])
