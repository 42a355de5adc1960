"""Training PPCA by masks, one run or many side by side, and maximizing the exact objective of a size."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import pytest
import torch

from experiments import records
from experiments.experiment import RunContext
from experiments.paper import training
from experiments.paper.training import NOISE, DigitsTraining, Figure2, FixedSizes
from mpt_lml import fit, masks
from mpt_lml.recorded import Outcome
from mpt_lml.results import Maxima

CONFIG = Figure2(num_data=200, num_features=5, num_epochs=20, seeds=(4, 44, 444))
OF = CONFIG.problem("model", RunContext())
STARTS, _ = CONFIG.starts()
SHORT = FixedSizes.preset("quick", num_epochs=5, truths=(1991, 1), num_features=4, sizes=(1, 3))


def test_bfgs_at_every_size_ends_at_the_maximum_of_the_likelihood() -> None:
    ends = fit.bfgs(STARTS, partial(OF.exact, law=masks.UniformSize()))
    assert ends.converged.all()
    best = OF.log_marginal(OF.best)
    torch.testing.assert_close(ends.value, best.expand(3), rtol=0, atol=1e-10)
    for loadings in ends.parameters:  # W Wᵀ, which unlike W is not free to rotate
        off = loadings @ loadings.T - OF.best @ OF.best.T
        assert off.norm() < 1e-5 * (OF.best @ OF.best.T).norm()


def test_every_end_is_stationary_and_above_its_start() -> None:
    law = masks.FixedSize(4)
    ends = fit.bfgs(STARTS, partial(OF.exact, law=law))
    assert ends.converged.all()
    loadings = ends.parameters.requires_grad_()
    value = OF.exact(loadings, law)
    (slope,) = torch.autograd.grad(value.sum(), loadings)
    assert slope.abs().max() < 1e-5
    assert (value > OF.exact(STARTS, law)).all()
    torch.testing.assert_close(ends.value, value, rtol=0, atol=1e-12)


def test_runs_of_bfgs_do_not_see_each_other() -> None:
    objective = partial(OF.exact, law=masks.FixedSize(2))
    together = fit.bfgs(STARTS, objective, max_steps=4)
    alone = [fit.bfgs(start[None], objective, max_steps=4) for start in STARTS]
    ends = torch.cat([each.parameters for each in alone])
    torch.testing.assert_close(together.parameters, ends, rtol=0, atol=1e-10)
    assert not together.converged.any() and together.num_steps.tolist() == [4, 4, 4]


def test_a_climb_that_begins_beside_a_saddle_takes_no_detour() -> None:
    """W = 0 is a saddle: the first step meets the wrong curvature, which must not scale what follows."""
    config = Figure2(num_data=200, num_features=10, seeds=tuple(range(10)))
    problem = config.problem("paper", RunContext())
    starts = 0.01 * config.starts()[0]
    ends = fit.bfgs(starts, partial(problem.exact, law=masks.FixedSize(1)), max_steps=300)
    assert ends.converged.all()


def test_full_masking_learns_the_lengths_of_the_rows() -> None:
    ends = fit.bfgs(STARTS, partial(OF.exact, law=masks.FixedSize(5))).parameters
    wanted = (OF.moment.diagonal() - NOISE).clamp(min=0)
    torch.testing.assert_close(ends.square().sum(dim=2), wanted.expand(3, -1), rtol=0, atol=1e-5)


def test_an_objective_that_sums_over_the_runs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\), got \(\)"):
        fit.bfgs(STARTS, lambda W: -W.square().sum())


def test_scaled_starts_train_as_they_do_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    law, context = masks.FixedRate(0.4), RunContext()
    together = CONFIG.train([OF, OF], [law], context, scales=(1.0, 0.1)).values["lml"]
    plain = CONFIG.train([OF], [law], context).values["lml"]
    torch.testing.assert_close(together[:, :3], plain, rtol=0, atol=1e-12)
    start, generators = CONFIG.starts()
    monkeypatch.setattr(training.PPCATraining, "starts", lambda self: (0.1 * start, generators))
    small = CONFIG.train([OF], [law], context).values["lml"]
    torch.testing.assert_close(together[:, 3:], small, rtol=0, atol=1e-12)


def test_the_gradient_error_is_zero_only_for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    short = dataclasses.replace(CONFIG, num_epochs=1)
    assert short.run(RunContext()).arrays["gradient_error"] < 1e-11
    monkeypatch.setattr(masks, "UniformSize", lambda: masks.FixedSize(2))
    assert short.run(RunContext()).arrays["gradient_error"] > 1


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    folder = tmp_path_factory.mktemp("short")
    return SHORT.run(RunContext(folder=folder)), folder


@pytest.mark.xdist_group("short-fixed-sizes")
def test_a_run_goes_on_from_its_cells_and_from_no_other_settings(
    short: tuple[Outcome, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, folder = short
    (folder / "model-1.safetensors").unlink()
    calls = []
    bfgs = fit.bfgs

    def counted(*args: object, **options: object) -> Maxima:
        calls.append(1)
        return bfgs(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(fit, "bfgs", counted)
    again = SHORT.run(RunContext(folder=folder))
    assert len(calls) == 2  # the two sizes of the one cell that was gone
    for name, values in first.arrays.items():
        assert torch.equal(again.arrays[name], values)
    other = dataclasses.replace(SHORT, scales=(1.0, 0.2))
    with pytest.raises(records.CheckpointMismatchError, match="scales"):
        other.run(RunContext(folder=folder))


@pytest.mark.xdist_group("short-fixed-sizes")
def test_below_is_measured_from_the_highest_end(short: tuple[Outcome, Path]) -> None:
    arrays = short[0].arrays
    for draw in ("paper", "model"):
        assert (arrays[f"below/{draw}"] >= 0).all()
        assert (arrays[f"short/{draw}"] > 0).all()
        assert arrays[f"short/{draw}"].shape == (2, 3, 2, 2)  # truths, two sizes and all, scales
        highest = arrays[f"below/{draw}"].flatten(2).argmin(dim=2)
        converged = arrays[f"converged/{draw}"].flatten(2)
        assert converged.gather(2, highest[..., None]).all()


def test_no_maximum_is_recorded_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bfgs = fit.bfgs
    monkeypatch.setattr(fit, "bfgs", partial(bfgs, max_steps=2))
    with pytest.raises(RuntimeError, match="of 5 climbs at size 1 has not arrived after 2 steps"):
        SHORT.run(RunContext())
    with pytest.raises(RuntimeError, match="2 of 2 climbs have not arrived at a maximum"):
        DigitsTraining.preset("quick", seeds=(4,)).run(RunContext())


def test_of_all_climbs_the_highest_has_to_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    bfgs = fit.bfgs

    def all_but_the_highest(*args: object, **options: object) -> Maxima:
        ends = bfgs(*args, **options)  # type: ignore[arg-type]
        is_below = torch.arange(len(ends.value)) != ends.value.argmax()
        return dataclasses.replace(ends, converged=is_below)

    monkeypatch.setattr(fit, "bfgs", all_but_the_highest)
    with pytest.raises(RuntimeError, match="the highest of 5 climbs at size 1 has not arrived"):
        SHORT.run(RunContext())


@pytest.mark.xdist_group("digits-training")
def test_nothing_on_the_digits_is_above_the_closed_form(quick) -> None:
    arrays = quick("digits-training")[0].arrays
    for ends in ("early", "end", "top"):
        assert (arrays[f"{ends}/train"] < arrays["best/train"]).all()
    # Twenty epochs from a random start; the climbs begin at the closed form and at that end.
    assert (arrays["lml/train"][0] < arrays["end/train"]).all()
    assert (arrays["top/train"][:, 0] > arrays["end/train"]).all()


def test_packed_parameters_come_back() -> None:
    loadings = torch.arange(12, dtype=torch.float64).view(4, 3)
    log_noise = torch.tensor([-1.0], dtype=torch.float64)
    flat = training._packed({"loadings": loadings, "log_noise": log_noise})
    again = training._unpacked(flat[None], loadings.shape)
    assert torch.equal(again["loadings"][0], loadings)
    assert training._noise_variance(again).item() == pytest.approx(log_noise.exp().item())
