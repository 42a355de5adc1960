"""Figure 6 on digits: the same code at a small size, its arithmetic, and a loaded network."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from models import generator

from mpt_lml import ViTMAE, data
from mpt_lml.experiments import cli, ledger, vit_mae
from mpt_lml.models import mae_networks
from mpt_lml.models.mae_networks import small_network
from mpt_lml.results import read_json

pytest.importorskip("transformers")
QUICK = vit_mae.Figure6.quick()


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple:
    folder = tmp_path_factory.mktemp("state")
    return vit_mae.figure_6(QUICK, checkpoints=folder), folder


def test_what_is_finished_is_not_done_again(outcome: tuple, monkeypatch) -> None:
    found, folder = outcome
    assert len(list(folder.glob("*.npz"))) == 4

    def again(*args: object, **options: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(vit_mae, "train", again)
    same = vit_mae.figure_6(QUICK, checkpoints=folder)
    assert all(torch.equal(found.arrays[key], same.arrays[key]) for key in found.arrays)
    (folder / "digits-trained-4.npz").unlink()
    with pytest.raises(AssertionError, match="trained again"):
        vit_mae.figure_6(QUICK, checkpoints=folder)


def test_training_gains(outcome: tuple) -> None:
    found, _ = outcome
    assert found.findings["fig-6"].verdict == "confirmed"
    assert found.findings["fig-6"].measured > 0
    # Twenty steps: better than the mean of all pixels, not yet as good as the mean of each (0.073).
    trained = found.arrays["error/test/digits/trained"].mean().item()
    assert 0.07 < trained < found.arrays["baseline/digits"].item()


def test_scores_are_those_of_the_model(outcome: tuple) -> None:
    """From the stored squared errors, and from the model's log-densities at the same masks."""
    found, _ = outcome
    x = data.images("digits").grid[: QUICK.num_train].float()
    test = data.images("digits", "test").grid[: QUICK.num_test].float()
    mean, scale = vit_mae.channel_moments(x)
    network = small_network(8, 1, 2, width=16, num_layers=1, decoder_layers=1, seed=4)
    model = ViTMAE(network, 1.0, pixel_mean=mean, pixel_scale=scale)
    sizes = vit_mae.grid_sizes(QUICK.rates, 16)
    assert sizes == [2, 8, 14]
    g = generator(1004)
    fitted = model.squared_error(x[: QUICK.num_variance], generator=g, sizes=sizes).mean(dim=1)
    variance = torch.ones(16, dtype=torch.float64)
    variance[torch.tensor(sizes) - 1] = fitted.double()
    score = model.with_variance(variance).size_scores(test, generator=g, sizes=sizes)
    stored = found.arrays["score/digits/random/size"][0]
    torch.testing.assert_close(score.mean(dim=1).double(), stored, atol=1e-5, rtol=1e-5)


def test_one_number_maximizes_the_area(outcome: tuple) -> None:
    found, _ = outcome
    error, sizes = found.arrays["error/train/digits/random"][0], found.arrays["sizes/digits"]
    chosen = vit_mae.chosen_variances(error, sizes, 16)
    curve = vit_mae.MaskCurve(sizes, error, error, 16)
    weights = curve.area_weights()

    def area(variance: torch.Tensor) -> float:
        return float(weights @ vit_mae.gaussian_score(error, variance, 4))

    best = area(chosen["one"])
    assert best > max(area(chosen["one"] * 1.01), area(chosen["one"] * 0.99))
    assert best <= area(chosen["size"])


def test_sizes_of_a_cycle_are_visited_once(monkeypatch) -> None:
    x = data.images("digits").grid[:8].float()
    seen = []

    def watched(network: object, size: int, count: int) -> None:
        seen.append(size)
        real(network, size, count)

    real = vit_mae.set_masked_patches
    monkeypatch.setattr(vit_mae, "set_masked_patches", watched)
    moments = vit_mae.channel_moments(x)
    options = {"batch_size": 2, "learning_rate": 1e-3, "generator": generator()}
    options |= {"pixel_mean": moments[0], "pixel_scale": moments[1]}
    network = small_network(8, 1, 2, width=8, num_layers=1, decoder_layers=1, seed=0)
    vit_mae.train(network, x, num_steps=32, **options)
    assert sorted(seen[:16]) == sorted(seen[16:]) == list(range(1, 17))
    assert seen[:16] != seen[16:]


def test_a_local_checkpoint_takes_the_place_of_the_small_ones(tmp_path: Path) -> None:
    """The path of facebook/vit-mae-base, with a small network of the same classes, enlarged images."""
    small_network(12, 3, 4, width=8, num_layers=1, decoder_layers=1, seed=1).save_pretrained(
        tmp_path
    )
    config = dataclasses.replace(
        vit_mae.Figure6.pretrained(str(tmp_path)),
        seeds=(4,),
        data_sets=QUICK.data_sets,
        rates=QUICK.rates,
        num_variance=9,
        num_test=7,
    )
    with pytest.warns(UserWarning, match="enlarged"):
        found = vit_mae.figure_6(config)
    assert found.arrays["sizes/digits"].tolist() == [1, 4, 8]
    errors = found.arrays["error/test/digits/trained"], found.arrays["error/test/digits/random"]
    assert all(torch.isfinite(each).all() for each in errors)
    assert not torch.equal(*errors)
    assert found.weights == {"name": str(tmp_path), "revision": None}


def test_one_command_runs_the_pretrained_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with facebook/vit-mae-base, whose name the paper preset has; the ledger is not touched."""
    assert vit_mae.PreTrained.paper().model == mae_networks.HUB_NAME
    monkeypatch.chdir(tmp_path)
    small_network(12, 3, 4, width=8, num_layers=1, decoder_layers=1, seed=1).save_pretrained("mae")
    before = ledger.location().read_bytes()
    call = ["run", "figure-6-pretrained", "--preset", "quick", "--seed", "4", "--model", "mae"]
    with pytest.warns(UserWarning, match="enlarged"):
        assert cli.main(call) == 0
    found = read_json("mpt-lml-results/figure-6-pretrained.json")
    assert found["weights"] == {"name": "mae", "revision": None}
    assert found["provenance"]["command"].endswith("--seed 4 --model mae")
    assert list(found["findings"]) == ["fig-6-pretrained"]
    assert len(found["arrays"]["score/digits/trained/size"]) == 1
    assert "fig-6-pretrained: " in capsys.readouterr().out
    assert ledger.location().read_bytes() == before
