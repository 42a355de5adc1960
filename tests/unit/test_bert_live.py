"""The cells of chapter 11 that meet pre-trained weights: live, from a stored run, and without."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import torch
from hub import local_hub
from tiny_bert import LINES, MASK, some_lines, tiny, tokenizer

from experiments import experiment
from experiments.paper import bert
from experiments.small_bert import mean_score
from mpt_lml import recorded
from mpt_lml.data import sources
from mpt_lml.files import write_json
from mpt_score.networks import hub
from mpt_score.networks.hub import BERT_BASE, PINNED

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
    before = [cell.source for cell in code if 'load("bert-curve")' in cell.source]
    return "\n".join([code[1].source, before[0], "rates = torch.arange(1, 100, 2)", *shown])


# The cells three times: from a stored run; from a folder; and with a device check that says there is
# a GPU, and names the CPU. The last two on sentences that the network knows.
THRICE = """
import os
from pathlib import Path
from urllib.request import urlopen
import torch
from mpt_score.networks import hub as checkpoints
from experiments import experiment
from experiments.paper import bert
from tiny_bert import some_lines

def show(title):
    print("##", title)
    space = {{}}
    exec({cells!r}, space)
    print([each.get_text() for each in space["ax"].texts])

beside, stored_in = experiment.book_file, Path({stored!r})
experiment.book_file = lambda name: stored_in / Path(name).name if "pretrained" in name else beside(name)
show("stored")
experiment.book_file = beside
bert.sentences = some_lines
os.environ["MPT_LML_BERT"] = {folder!r}
show("folder")
del os.environ["MPT_LML_BERT"]
urlopen(os.environ["HF_ENDPOINT"] + "/api/models/{name}/revision/{revision}")  # from here on it is asked
checkpoints.gpu = lambda: torch.device("cpu")
show("live")
"""
together = pytest.mark.xdist_group("bert-live")


@pytest.fixture(scope="module")
def shown(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, str], list[str], recorded.Outcome]:
    """What the cells print, in a process of their own and an empty folder; what the hub was asked."""
    place = tmp_path_factory.mktemp("chapter")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bert, "sentences", some_lines)
        outcome = experiment.run("table-2-pretrained", model=str(folder), num_sentences=15)
    content = {"config": {}, "seconds": 1.0, "provenance": {}, **outcome.as_dict()}
    write_json(place / "table-2-pretrained.json", content)
    revision = PINNED[BERT_BASE]
    names = {"stored": str(place), "folder": str(folder), "name": BERT_BASE, "revision": revision}
    with local_hub(BERT_BASE, revision, folder) as (address, asked):
        env = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(place / "home")}
        path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        env |= {"MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join(path)}
        found = subprocess.run(
            [sys.executable, "-c", THRICE.format(cells=chapter_cells(), **names)],
            cwd=place,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )
    assert found.returncode == 0, found.stderr[-3000:]
    parts = [each.partition("\n") for each in found.stdout.split("## ")[1:]]
    return {title: printed for title, _, printed in parts}, asked, outcome


@together
@pytest.mark.slow  # a process of its own imports transformers and draws the figure
def test_live_on_a_gpu_with_a_network(shown) -> None:
    """Through the hub's own protocol, served on this machine, at the pinned commit."""
    printed, asked, _ = shown
    assert "      run again: -" in printed["live"] and "not run here" not in printed["live"]
    assert any(f"resolve/{PINNED[BERT_BASE]}/model.safetensors" in each for each in asked)


@together
@pytest.mark.slow
def test_a_stored_run_is_shown(shown) -> None:
    """The file that mpt-lml run table-2-pretrained writes, of a network of the same class."""
    printed, _, outcome = shown
    area, error = outcome.arrays["area/glue/cola"].tolist()
    assert f"run again: {area:.1f} ± {error:.1f}; rho* = " in printed["stored"]
    assert printed["stored"].count("run again") == 5 and "not run here" not in printed["stored"]


@together
@pytest.mark.slow
def test_a_folder_runs_on_any_device(shown) -> None:
    printed, asked, _ = shown
    assert printed["folder"].count("run again: -") == 1
    assert "not run here" not in printed["folder"]
    assert (
        asked[0] == f"GET /api/models/{BERT_BASE}/revision/{PINNED[BERT_BASE]}"
    )  # not before that


def live(**settings: object) -> dict[str, torch.Tensor]:
    otherwise = "with a GPU it would"
    return experiment.run("table-2-pretrained", otherwise=otherwise, **settings).arrays


def test_without_a_gpu_nothing_is_asked(monkeypatch, capsys) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(hub, "urlopen", fails)
    monkeypatch.setattr(hub, "gpu", lambda: None)
    assert live() == {}
    assert capsys.readouterr().out == "not run here (no GPU): with a GPU it would\n"


@pytest.mark.parametrize("answers", [False, True])
def test_without_a_network_it_goes_on_at_once(monkeypatch, capsys, answers: bool) -> None:
    """Nobody there, or somebody who takes the call and says nothing."""
    import socket

    monkeypatch.setattr(hub, "gpu", lambda: torch.device("cpu"))
    monkeypatch.setattr(hub, "HUB_SECONDS", 0.3)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        if answers:
            deaf.listen()
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        start = time.perf_counter()
        assert live() == {}
        assert (
            time.perf_counter() - start < 60
        )  # a hundred times HUB_SECONDS; the client waits 400 s
    assert "not run here (no network)" in capsys.readouterr().out


def test_a_folder_is_run_and_what_is_none_says_so(folder: Path, tmp_path, capsys) -> None:
    found = live(model=str(folder), data_sets=("written",), num_sentences=2, rates=(25, 50, 75))
    area, curve = found["area/written"][0].item(), found["curve/written"]
    assert area == pytest.approx(506.88 * curve.mean().item())
    assert live(model=str(tmp_path)) == {}
    assert "has no config.json (it holds nothing)" in capsys.readouterr().out


def test_sentences_that_are_not_there_are_one_line(folder: Path, monkeypatch, capsys) -> None:
    monkeypatch.delenv(sources.DATA_VARIABLE, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert live(model=str(folder)) == {}
    assert "glue/ax is not on this machine" in capsys.readouterr().out
