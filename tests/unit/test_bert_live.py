"""The cells of chapter 11 that meet pre-trained weights: live, from a stored run, and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import torch
from hub import local_hub
from tiny_bert import LINES, MASK, some_lines, tiny, tokenizer

from mpt_lml import checkpoints, data
from mpt_lml.checkpoints import PINNED
from mpt_lml.experiments import bert, bert_live
from mpt_lml.experiments.small_bert import mean_score
from mpt_lml.files import write_json
from mpt_lml.models.bert_networks import HUB_NAME

NOTEBOOK = Path(__file__).parents[2] / "book" / "11-bert.ipynb"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def chapter_cells() -> str:
    """The imports of chapter 11 and its cells on pre-trained weights, as they are in Colab."""
    code = [cell for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"]
    shown = [cell.source for cell in code if "pretrained" in cell.metadata.get("tags", [])]
    assert len(shown) == 2
    return "\n".join([code[1].source, "recorded, c, texts, rates = None, {}, (), None", *shown])


def run_chapter(folder: Path, before: str, **env: str) -> str:
    """The cells in a process of their own, in an empty folder; what they print."""
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{before}\n{chapter_cells()}\nprint([t.get_text() for t in ax.texts])",
        ],
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "Agg", "HF_HOME": str(folder / "home"), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout


# The device check says that there is a GPU, and names the CPU; sentences that the network knows.
PATCHED = """
import torch
from mpt_lml import checkpoints
from mpt_lml.experiments import bert, bert_live
from tiny_bert import some_lines
checkpoints.gpu = bert_live.gpu = lambda: torch.device("cpu")
bert.data.sentences = some_lines
"""


@pytest.mark.slow  # a process of its own imports transformers and draws the figure
def test_live_on_a_gpu_with_a_network(folder: Path, tmp_path: Path) -> None:
    """Through the hub's own protocol, served on this machine, at the pinned commit."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with local_hub(HUB_NAME, PINNED[HUB_NAME], folder) as (address, asked):
        env = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "PYTHONPATH": path}
        printed = run_chapter(tmp_path, PATCHED, **env)
    assert f"{HUB_NAME}, 15 sentences of glue/ax: area -" in printed
    assert "not run here" not in printed and "run here, glue/ax" in printed
    assert any(f"resolve/{PINNED[HUB_NAME]}/model.safetensors" in each for each in asked)


@pytest.mark.slow  # a process of its own imports transformers and draws the figure
def test_a_stored_run_is_shown(folder: Path, tmp_path: Path, monkeypatch) -> None:
    """The file that mpt-lml run table-2-pretrained writes, of a network of the same class."""
    monkeypatch.setattr(data, "sentences", some_lines)
    rates = tuple(range(5, 100, 10))
    config = replace(bert.PreTrained.paper(), model=str(folder), num_sentences=15, rates=rates)
    outcome = bert.table_2_pretrained(config)
    content = {"config": {"rates": rates}, **outcome.as_dict()}
    (tmp_path / "results").mkdir()
    write_json(tmp_path / "results" / "table-2-pretrained.json", json.loads(json.dumps(content)))
    printed = run_chapter(tmp_path, "")
    area, error = outcome.arrays["area/glue/cola"].tolist()
    assert f"run again: {area:.1f} ± {error:.1f}; r* = " in printed
    assert printed.count("run again") == 5 and "no stored result" not in printed


def test_without_a_gpu_nothing_is_asked(monkeypatch, capsys) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(checkpoints, "urlopen", fails)
    monkeypatch.setattr(checkpoints, "gpu", lambda: None)
    monkeypatch.delenv(bert_live.VARIABLE, raising=False)
    assert bert_live.pretrained() is None
    printed = capsys.readouterr().out
    assert printed.startswith("not run here (no GPU): with a GPU and a network this cell takes")
    assert printed.count("\n") == 1 and PINNED[HUB_NAME][:7] in printed


@pytest.mark.parametrize("answers", [False, True])
def test_without_a_network_it_goes_on_at_once(monkeypatch, capsys, answers: bool) -> None:
    """Nobody there, or somebody who takes the call and says nothing."""
    import socket

    monkeypatch.setattr(checkpoints, "gpu", lambda: torch.device("cpu"))
    monkeypatch.setattr(checkpoints, "HUB_SECONDS", 0.3)
    monkeypatch.delenv(bert_live.VARIABLE, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        if answers:
            deaf.listen()
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        start = time.perf_counter()
        assert bert_live.pretrained() is None
        assert time.perf_counter() - start < 3.0
    assert "not run here (no network)" in capsys.readouterr().out


def test_a_folder_runs_on_any_device(folder: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv(bert_live.VARIABLE, str(folder))
    monkeypatch.setattr(data, "sentences", some_lines)
    found = bert_live.pretrained("glue/ax", num_sentences=9, rates=(10, 30, 50, 70, 90))
    assert found is not None and found.data == "glue/ax" and len(found.curve.raw) == 9
    assert found.area.value == pytest.approx(506.88 * found.curve.score.mean().item())
    assert "r* = " in capsys.readouterr().out
    monkeypatch.setenv(bert_live.VARIABLE, str(folder / "nothing"))
    assert bert_live.pretrained() is None
    assert "is not a folder" in capsys.readouterr().out


def test_sentences_that_are_not_there_have_a_substitute(folder: Path, monkeypatch, capsys) -> None:
    def only_written(name: str, split: str = "test") -> data.Sentences:
        if name != "written":
            raise data.DataNotFoundError(name)
        return some_lines(name)

    monkeypatch.setenv(bert_live.VARIABLE, str(folder))
    monkeypatch.setattr(data, "sentences", only_written)
    found = bert_live.pretrained(num_sentences=9, rates=(10, 50, 90))
    assert found is not None and found.data == "written"
