"""Cells that run pre-trained networks: live on a GPU, from a recorded run, and one line otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from chapter_cells import record, run_cells
from other_device import OtherDevice
from tiny_bert import LINES, MASK, some_lines, tiny, tokenizer

from experiments import experiment
from experiments.trainings.small_bert import mean_score
from mpt_lml.data import sources
from mpt_lml.recorded import Outcome
from mpt_score import texts
from mpt_score.networks import hub, small_mae
from mpt_score.networks.hub import (
    BERT_BASE,
    BERT_BASE_COMMIT,
    VIT_MAE_BASE,
    VIT_MAE_BASE_COMMIT,
)

pytestmark = pytest.mark.xdist_group("live cells")  # they share networks and runs
ENLARGED = pytest.mark.filterwarnings("ignore:images .* become")


def bert_cells() -> str:
    return run_cells("12-bert", "networks.require_available(base")


def vit_mae_cells() -> str:
    return run_cells("13-images", "pretrained", titles={"digits": "digits"})


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BertForMaskedLM that has learned its five lines, so that its curve falls."""
    path = tmp_path_factory.mktemp("network")
    network, reader = tiny().float(), tokenizer()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.tensor([reader(line)["input_ids"]]) for line in LINES]
    for _ in range(40):
        masks = [torch.rand(1, row.shape[1] - 2, generator=generator) for row in rows]
        masks = [mask <= mask.min().clamp_min(0.4) for mask in masks]
        score = sum(
            mean_score(network, row, mask, MASK) for row, mask in zip(rows, masks, strict=True)
        )
        optimizer.zero_grad()
        (-score).backward()
        optimizer.step()
    network.save_pretrained(path)
    reader.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def bert_run(bert_folder: Path) -> Outcome:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(texts, "sentences", some_lines)
        return experiment.run("table-2-pretrained", model=str(bert_folder), num_sentences=128)


@pytest.fixture(scope="module")
def mae_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of 25 patches: each of the nineteen rates has a size of its own."""
    path = tmp_path_factory.mktemp("mae")
    network = small_mae(20, 3, 4, width=8, num_layers=1, decoder_layers=1, seed=1)
    network.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def mae_run(mae_folder: Path) -> Outcome:
    settings = {"data_sets": (("digits", 0, 0),), "num_variance": 32, "num_test": 32}
    with pytest.warns(UserWarning, match="enlarged"):
        return experiment.run("figure-6-pretrained", model=str(mae_folder), seeds=(4,), **settings)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of a hub that cannot be asked, beside a GPU, which is emulated."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with OtherDevice():
        yield tmp_path / "hub"


def put_into(cache: Path, name: str, commit: str, folder: Path) -> None:
    """A network under a commit of its name."""
    snapshots = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / commit).symlink_to(folder)


def require_bert(printed: str, run: Outcome) -> None:
    """Check that the cell prints the mean height of ``run`` and its crossover rate."""
    height, crossover = (numbers_in(line)[0] for line in printed.splitlines()[:2])
    area = run.arrays["area/glue/ax"][0].item()
    assert height == pytest.approx(area / (0.01 * 512 * 99), abs=0.01)
    assert crossover == pytest.approx(run.arrays["mean_rate/glue/ax"][0].item(), abs=0.6)
    assert "Compared with the record: mean height of 99 rates" in printed


def require_vit_mae(printed: str, run: Outcome) -> None:
    """Check that the cell prints area and ends of both curves of ``run``, and nothing else."""
    lines = printed.splitlines()
    assert len(lines) == 2
    for line, kind in zip(lines, ("random", "trained"), strict=True):
        assert line.startswith(f"digits, {kind}: area ")
        area = run.arrays[f"area/digits/{kind}/size"][0].item()
        score = run.arrays[f"score/digits/{kind}/size"][0].tolist()
        assert numbers_in(line) == pytest.approx([area, score[0], score[-1]], abs=1)


def numbers_in(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", line)]


class TestLive:
    """From the cache, under a name and commit of the hub: the numbers of the experiment."""

    def test_bert(self, bert_folder: Path, bert_run: Outcome, cache: Path, monkeypatch) -> None:
        monkeypatch.setattr(texts, "sentences", some_lines)
        put_into(cache, BERT_BASE, BERT_BASE_COMMIT, bert_folder)
        printed = bert_cells()
        require_bert(printed, bert_run)
        assert "not run here" not in printed

    @ENLARGED
    def test_vit_mae(self, mae_folder: Path, mae_run: Outcome, cache: Path) -> None:
        put_into(cache, VIT_MAE_BASE, VIT_MAE_BASE_COMMIT, mae_folder)
        require_vit_mae(vit_mae_cells(), mae_run)

    def test_a_folder_needs_no_gpu(self, bert_folder: Path, bert_run: Outcome, monkeypatch) -> None:
        monkeypatch.setattr(hub, "gpu", lambda: None)
        monkeypatch.setattr(texts, "sentences", some_lines)
        monkeypatch.setenv("MPT_LML_BERT", str(bert_folder))
        require_bert(bert_cells(), bert_run)


class TestRecorded:
    """The full run is shown where there is a record of it, and nothing is loaded."""

    def test_vit_mae(self, mae_run: Outcome, tmp_path: Path, monkeypatch) -> None:
        record("figure-6-pretrained", mae_run, tmp_path, monkeypatch)
        require_vit_mae(vit_mae_cells(), mae_run)


class TestNotHere:
    """One line says why not."""

    def test_no_gpu(self, monkeypatch) -> None:
        monkeypatch.setattr(hub, "gpu", lambda: None)
        wanted = "not run here (no GPU): with a GPU and a network this cell "
        assert bert_cells() == "not run here (no GPU)\n"
        assert vit_mae_cells() == f"{wanted}scores vit-mae-base and its random twin\n"

    def test_no_network(self, cache: Path) -> None:
        assert bert_cells() == "not run here (no network)\n"
        assert vit_mae_cells().startswith("not run here (no network): ")

    def test_no_weights_in_the_folder(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setenv("MPT_LML_BERT", str(tmp_path))
        assert "has no config.json (it holds nothing)" in bert_cells().splitlines()[0]

    def test_no_sentences(self, bert_folder: Path, monkeypatch) -> None:
        monkeypatch.delenv(sources.DATA_VARIABLE, raising=False)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setenv("MPT_LML_BERT", str(bert_folder))
        assert "not run here (glue/ax is not on this machine" in bert_cells()
