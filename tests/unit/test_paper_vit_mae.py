"""Figure 6 on digits: the same code at a small size, its arithmetic, and a loaded network."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch
from models import generator

from experiments import command, experiment, ledger
from experiments.experiment import RunContext
from experiments.paper import vit_mae
from experiments.records import CheckpointMismatchError
from mpt_lml import PPCA, data, masks
from mpt_lml.files import read_json
from mpt_lml.models.base import Grouped
from mpt_score.networks import hub, small_mae
from mpt_score.networks.vit_mae import ViTMAE
from mpt_score.trainings import small_mae as small_mae_training

pytest.importorskip("transformers")
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

    monkeypatch.setattr(small_mae_training, "train", again)
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
    network = small_mae(8, 1, 2, width=16, num_layers=1, decoder_layers=1, seed=4)
    model = ViTMAE(network, 1.0, pixel_mean=mean, pixel_scale=scale)
    sizes = small_mae_training.sizes_of(QUICK.rates, 16)
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
    small_mae(12, 3, 4, width=8, num_layers=1, decoder_layers=1, seed=1).save_pretrained(tmp_path)
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
    small_mae(12, 3, 4, width=8, num_layers=1, decoder_layers=1, seed=1).save_pretrained("mae")
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
