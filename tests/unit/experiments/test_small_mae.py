"""The training of small ViT-MAEs, and the experiment of Figure 6."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from chapter_cells import defined_by
from first_steps import START_OF_ONE_CYCLE, after_adamw, clipped_to
from models import generator
from other_device import OtherDevice

from experiments import command, experiment, ledger
from experiments.experiment import RunContext
from experiments.paper import vit_mae
from experiments.records import CheckpointMismatchError
from experiments.trainings import small_mae
from experiments.trainings.small_mae import SmallMAESettings
from mpt_lml import PPCA, data, masks
from mpt_lml.files import read_json
from mpt_lml.models.base import Grouped
from mpt_score import networks
from mpt_score.networks import hub
from mpt_score.networks.vit_mae import ViTMAE

pytest.importorskip("transformers")
SMALL = SmallMAESettings(patch_size=2, width=8, num_layers=1, batch_size=2, matrix_rate=None)


def digits(count: int) -> torch.Tensor:
    return data.images("digits").grid[:count].float()


def small(**changes: Any) -> SmallMAESettings:
    return dataclasses.replace(SMALL, **changes)


def untrained(settings: SmallMAESettings, x: torch.Tensor, seed: int = 4) -> ViTMAE:
    """A network of random weights for images like ``x``, which are in [0, 1]."""
    network = small_mae.small_network(settings, x, seed)
    return ViTMAE(network.to(x.device), 1.0, pixel_mean=0.3, pixel_scale=0.4)


def losses_of(settings: SmallMAESettings, x: torch.Tensor) -> torch.Tensor:
    """The losses of a training from nothing."""
    return small_mae.train(untrained(settings, x), x, settings, generator(4))


def test_sizes_of_a_cycle_are_visited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = small_mae.masking_noise

    def watched(network: Any, mask: torch.Tensor, size: int) -> torch.Tensor:
        assert (mask.sum(dim=1) == size).all()
        seen.append(size)
        return real(network, mask, size)

    monkeypatch.setattr(small_mae, "masking_noise", watched)
    losses_of(small(num_steps=32), digits(8))
    assert sorted(seen[:16]) == sorted(seen[16:]) == list(range(1, 17))
    assert seen[:16] != seen[16:]


def test_blocks_change_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    for steps_of_a_block in (100, 3):
        monkeypatch.setattr(small_mae, "_STEPS_OF_A_BLOCK", steps_of_a_block)
        losses.append(losses_of(small(num_steps=8), digits(20)))
    assert torch.equal(*losses)


def test_the_loss_is_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first step, from its rows and mask, by :meth:`ViTMAE.loss`."""
    x = digits(20)
    shown = []
    real = small_mae._Draws.of_step

    def watched(self: Any, step: int) -> Any:
        shown.append(real(self, step))
        return shown[-1]

    monkeypatch.setattr(small_mae._Draws, "of_step", watched)
    losses = losses_of(small(num_steps=1), x)
    rows, mask, _ = shown[0]
    before = untrained(small(), x)
    assert torch.equal(losses[0], before.loss(x[rows], mask).detach())


def test_a_step_is_one_of_adamw_on_the_loss() -> None:
    x = digits(20)
    model = untrained(small(), x)
    network = model.network
    before = [weight.detach().clone() for weight in network.parameters()]
    # A step draws the order of the sizes first, then rows, then masks.
    draws = generator()
    order = torch.randperm(16, generator=draws) + 1
    rows = torch.randint(20, (2,), generator=draws)
    mask = masks.sample_masks(2, 16, int(order[-1]), generator=draws)
    model.loss(x[rows], mask).backward()
    moving = [weight for weight in network.parameters() if weight.requires_grad]
    gradients = iter(clipped_to(1.0, [weight.grad for weight in moving]))

    settings = small(num_steps=100)
    with pytest.raises(KeyboardInterrupt):
        small_mae.train(model, x, settings, generator(), progress=Interrupted(1))
    rate = settings.learning_rate * START_OF_ONE_CYCLE
    for weight, old in zip(network.parameters(), before, strict=True):
        if not weight.requires_grad:
            assert torch.equal(weight, old)
            continue
        gradient = next(gradients)
        is_clear = gradient.abs() > 1e-6  # elsewhere rounding decides how far a step goes
        expected = after_adamw(old, gradient, rate)
        torch.testing.assert_close(weight[is_clear], expected[is_clear], rtol=0, atol=1e-6)


def test_a_tiny_training_gains() -> None:
    x = digits(200)
    settings = small(num_steps=100, width=16, batch_size=32)
    model = untrained(settings, x)
    losses = small_mae.train(model, x, settings, generator(4))
    assert len(losses) == 100
    assert losses[-16:].mean() < 0.8 * losses[:16].mean()
    assert not model.network.training


@functools.cache
def page() -> dict[str, Any]:
    """What chapter 13 defines for its training; its own is run at the page's tiny settings."""
    cells = ("def units_of", "def ask", "class Settings", "FULL = Settings")
    return defined_by("13-images", *cells)


def test_the_settings_of_the_page_are_those_of_the_record() -> None:
    full = page()["FULL"]
    figure = vit_mae.Figure6()
    images, *patch_and_steps = figure.data_sets[0]
    record = figure._settings_of(*patch_and_steps)
    names = {"steps": "num_steps"}
    shared = ("patch_size", "width", "learning_rate", "matrix_rate", "batch_size")
    names |= {name: name for name in shared}
    for of_the_page, of_the_record in names.items():
        assert getattr(full, of_the_page) == getattr(record, of_the_record)
    assert full.images == images and full.seed == figure.seeds[0]
    shape = page()["yours"].config
    assert shape.num_hidden_layers == record.num_layers and shape.decoder_num_hidden_layers == 1


@pytest.mark.parametrize("matrix_rate", [None, 0.03])
def test_the_page_trains_as_the_experiment(matrix_rate: float | None) -> None:
    """Twenty steps from the same weights, past the sixteen sizes of a cycle: the same losses."""
    shared = {"patch_size": 2, "width": 8, "batch_size": 4, "matrix_rate": matrix_rate}
    x = digits(20)
    settings = small(num_steps=20, learning_rate=0.01, num_layers=2, **shared)
    pixels = x.double()
    units = {"pixel_mean": pixels.mean(), "pixel_scale": pixels.std()}
    model = ViTMAE(small_mae.small_network(settings, x, 6), 1.0, **units)
    expected = small_mae.train(model, x, settings, generator(6))
    network = networks.small_mae(8, 1, 2, seed=6, width=8, num_layers=2, decoder_layers=1)
    of_page = page()["Settings"](steps=20, learning_rate=0.01, seed=6, **shared)
    losses = page()["train"](network, x.double(), of_page)
    torch.testing.assert_close(torch.tensor(losses), expected, atol=1e-3, rtol=0)


class Interrupted:
    """A progress that is stopped by hand after some steps."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def __call__(self, items: Iterable[Any], description: str) -> Iterator[Any]:
        for count, item in enumerate(items):
            if count == self.num_steps:
                raise KeyboardInterrupt
            yield item


def test_a_loss_that_is_no_number_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_mae, "_STEPS_OF_A_BLOCK", 2)
    with pytest.raises(FloatingPointError, match="not finite in step [2-4]"):
        losses_of(small(num_steps=6, learning_rate=1e30), digits(9))


def test_on_another_device() -> None:
    """Nothing meets across devices, the program waits once, and the numbers are those of the CPU."""
    # clip_grad_norm_ asks for the gradients' device past the emulation, and moves a number to the CPU.
    clipped = 6
    settings = small(num_steps=6)
    here = losses_of(settings, digits(20))
    with OtherDevice() as other:
        model = untrained(settings, digits(20))
        model.network.to(other.device)
        other.waits.clear()
        losses = small_mae.train(model, digits(20), settings, generator(4))
        assert other.is_there(next(model.network.parameters()))
        assert other.waits == {"to": clipped, "aten._local_scalar_dense.default": 1, "cpu": 1}
    torch.testing.assert_close(losses, here)


def test_muon_takes_the_matrices_of_the_layers() -> None:
    x = digits(50)
    settings = small(num_steps=4, batch_size=4, learning_rate=1e-9, matrix_rate=0.1)
    model = untrained(settings, x)
    first = {key: value.clone() for key, value in model.network.state_dict().items()}
    small_mae.train(model, x, settings, generator())
    state = model.network.state_dict()
    moved = [k for k, v in state.items() if (v - first[k]).abs().max() > 1e-4]
    assert len(moved) == 12  # four of attention and two of the MLP, in one layer and one decoder's
    assert all(re.search(r"layers?\.0\.", key) for key in moved)  # transformers 5.0: "layer"


def test_matrices_move_with_the_momentum_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    momenta = []
    second_betas = []

    class WatchedMuon(torch.optim.Muon):
        def step(self, closure=None):
            momenta.extend(group["momentum"] for group in self.param_groups)
            return super().step(closure)

    class WatchedAdamW(torch.optim.AdamW):
        def step(self, closure=None):
            second_betas.extend(group["betas"][1] for group in self.param_groups)
            return super().step(closure)

    monkeypatch.setattr(small_mae, "Muon", WatchedMuon)
    monkeypatch.setattr(small_mae, "AdamW", WatchedAdamW)
    losses_of(small(num_steps=4, matrix_rate=0.02), digits(4))
    assert (momenta, second_betas) == ([0.95] * 4, [0.95] * 4)


QUICK = vit_mae.Figure6.preset("quick")


@pytest.fixture
def outcome(quick) -> tuple:
    return quick("figure-6")


@pytest.mark.xdist_group("figure-6")
def test_what_is_finished_is_not_done_again(outcome: tuple, monkeypatch, tmp_path: Path) -> None:
    found, folder = outcome[0], shutil.copytree(outcome[1], tmp_path, dirs_exist_ok=True)
    kept = sorted(path.stem for path in folder.glob("*.safetensors"))
    assert len(kept) == 5 and "digits-linear" in kept  # two seeds trained, two random, PPCA

    def again(*args: object, **options: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(small_mae, "train", again)
    same = QUICK.run(RunContext(folder=folder))
    assert all(torch.equal(found.arrays[key], same.arrays[key]) for key in found.arrays)
    with pytest.raises(CheckpointMismatchError, match="its width is 16, wanted 32"):
        dataclasses.replace(QUICK, width=32).run(RunContext(folder=folder))
    (folder / "digits-trained-4.safetensors").unlink()
    with pytest.raises(AssertionError, match="trained again"):
        QUICK.run(RunContext(folder=folder))


@pytest.mark.xdist_group("figure-6")
def test_training_gains(outcome: tuple) -> None:
    found, _ = outcome
    assert found.findings["fig-6-gain"].measured > 0

    def score_of(squared_error: float) -> float:
        """Of a patch of four pixels with this error, which is also the variance."""
        return -2 * (math.log(2 * math.pi * squared_error) + 1)

    trained = found.arrays["score/digits/trained/size"]
    # Twenty steps: better than the mean of all pixels, not yet as good as the mean of each (0.073).
    assert score_of(found.arrays["baseline/digits"].item()) < trained.mean() < score_of(0.07)


@pytest.mark.xdist_group("figure-6")
def test_scores_are_those_of_the_model(outcome: tuple) -> None:
    """From the stored squared errors, and from the model's log-densities at the same masks."""
    found, _ = outcome
    x = data.images("digits").grid[: QUICK.num_train].float()
    test = data.images("digits", "test").grid[: QUICK.num_test].float()
    mean, scale = x.double().mean((0, 2, 3)), x.double().std((0, 2, 3))
    network = networks.small_mae(8, 1, 2, width=16, num_layers=1, decoder_layers=1, seed=4)
    model = ViTMAE(network, 1.0, pixel_mean=mean, pixel_scale=scale)
    sizes = small_mae.sizes_of(QUICK.rates, 16)
    assert sizes == [2, 8, 14]
    g = generator(1004)
    fitted = model.squared_error(x[: QUICK.num_variance], generator=g, sizes=sizes).mean(dim=1)
    variance = torch.ones(16, dtype=torch.float64)
    variance[torch.tensor(sizes) - 1] = fitted.double()
    score = model.with_variance(variance).image_scores(test, generator=g, sizes=sizes)
    stored = found.arrays["score/digits/random/size"][0]
    torch.testing.assert_close(score.mean(dim=1).double(), stored, atol=1e-5, rtol=1e-5)


def test_a_local_checkpoint_takes_the_place_of_the_small_ones(tmp_path: Path) -> None:
    """The path of facebook/vit-mae-base, with a small network of the same classes, enlarged images."""
    networks.small_mae(12, 3, 4, width=8, num_layers=1, decoder_layers=1, seed=1).save_pretrained(
        tmp_path
    )
    settings = vit_mae.PreTrained(
        model=str(tmp_path),
        seeds=(4,),
        data_sets=QUICK.data_sets,
        rates=QUICK.rates,
        num_variance=9,
        num_test=7,
    )
    with pytest.warns(UserWarning, match="enlarged"):
        found = settings.run(RunContext())
    assert found.arrays["sizes/digits"].tolist() == [1, 4, 8]
    scores = [found.arrays[f"score/digits/{kind}/size"] for kind in ("trained", "random")]
    assert all(torch.isfinite(each).all() for each in scores)
    assert not torch.equal(*scores)
    assert found.weights == {"name": str(tmp_path), "revision": None, "sha256": mock.ANY}


def test_one_command_runs_the_pretrained_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with facebook/vit-mae-base, whose name the paper preset has; the ledger is not touched."""
    assert vit_mae.PreTrained().model == hub.VIT_MAE_BASE
    monkeypatch.chdir(tmp_path)
    networks.small_mae(12, 3, 4, width=8, num_layers=1, decoder_layers=1, seed=1).save_pretrained(
        "mae"
    )
    before = ledger.location().read_bytes()
    call = ["run", "figure-6-pretrained", "--preset", "quick", "--out", "out"]
    call += ["--set", "seeds=4,", "--set", "model=mae"]
    with pytest.warns(UserWarning, match="enlarged"):
        assert command.main(call) == 0
    (path,) = Path("out").iterdir()
    found = read_json(path)
    assert found["weights"] == {"name": "mae", "revision": None, "sha256": mock.ANY}
    assert found["provenance"]["command"].endswith("--set seeds=4, --set model=mae")
    assert list(found["findings"]) == ["fig-6"]
    assert len(found["arrays"]["score/digits/trained/size"]) == 1
    assert "fig-6: " in capsys.readouterr().out
    assert ledger.location().read_bytes() == before


def test_linear_models_are_those_of_the_package() -> None:
    """Subspace iteration against the closed form, and one mask's conditionals against Grouped."""
    x = data.images("digits").pixels
    test = data.images("digits", "test").pixels[:40]
    models = vit_mae.fit_ppca(x, (3, 20))
    for K, model in zip((3, 20), models, strict=True):
        exact = PPCA.fit_closed_form(x, K)
        expected = exact.log_marginal(test)
        torch.testing.assert_close(model.log_marginal(test), expected, rtol=1e-4, atol=1e-3)
        assert model.noise_variance.item() == pytest.approx(exact.noise_variance.item(), rel=1e-5)
    group, g = Grouped.patches(8, 8, 2), generator()
    for mask in masks.sample_masks(4, 16, 3, generator=g):
        values = vit_mae.log_conditional(models[1], test, mask[group])
        expected = Grouped(models[1], group).log_conditional(test, mask[None])[0]
        torch.testing.assert_close(values.sum(dim=1), expected.sum(dim=1))
    images = [each.view(-1, 1, 8, 8) for each in (x, test)]
    of = vit_mae._Images(*images, 2, None, x.mean()[None], x.std()[None], 16, [3, 16])
    found = vit_mae.Figure6(linear_dims=(20,), linear_masks=4)._linear(of)
    assert found["linear"].shape == (1, 2)
    everything = torch.ones(1, 16, dtype=torch.bool)  # one mask: every image has it
    by_pixel = Grouped(models[1], group).log_conditional(test, everything)[0].sum(dim=1) / 16
    torch.testing.assert_close(found["linear"][0, 1], by_pixel.mean())


def test_proposition_1_holds_for_patches() -> None:
    found = experiment.run("patches").findings
    assert found["patches-jointly"].measured < 1e-10
    loss = found["claim-patches"]  # pixels scored one by one
    assert loss.measured > 10 * loss.standard_error
