"""What a run from the command line stores, and that only the paper's settings reach the ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_bert import tiny, tokenizer

from experiments import command, experiment, ledger, recording
from experiments.options import RunOptions
from mpt_lml.files import CheckpointMismatchError, read_json


def test_a_run_with_other_settings_is_not_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its preset is: nothing goes to the ledger and the results of the checkout."""

    def fail() -> None:
        raise AssertionError("the ledger was asked for")

    monkeypatch.setattr(ledger, "record", fail)
    monkeypatch.chdir(tmp_path)
    call = ["run", "figure-1-left", "--seeds", "1,2", "--num-masks", "2"]
    assert command.main(call) == 0
    assert (tmp_path / "mpt-lml-results" / "figure-1-left.json").is_file()


# -- state and results of different inputs lie side by side -----------------------------------------


def state_folder(**settings: object) -> Path:
    chosen = experiment.find("bert-curve").preset("quick", rates=(15, 85), **settings)
    folder = recording._state_folder(chosen, RunOptions(preset="quick"))
    assert folder is not None
    return folder


def test_models_of_one_last_name_have_a_state_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = {}
    for name in ("a/net", "b/net", "a-net"):
        found[name] = state_folder(model=name)
    assert len(set(found.values())) == 3
    assert state_folder(model="a/net", num_sentences=3) not in found.values()
    assert state_folder(data_sets=("x" * 300,)).is_dir()  # however long the settings


def a_network(folder: Path, seed: int = 0) -> None:
    tiny(seed=seed).float().save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def test_no_result_replaces_one_of_other_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_network(tmp_path / "net")
    path = tmp_path / "lines.txt"
    path.write_text("the cat sat\na dog sat\n")
    call = ["run", "bert-curve", "--preset", "quick", "--rates", "15,85", "--out", str(tmp_path)]
    call += ["--model", str(tmp_path / "net"), "--data-sets", str(path)]

    def wrote() -> str:
        assert command.main(call) == 0
        return Path(capsys.readouterr().out.split()[1]).name

    assert wrote() == "bert-curve.json"
    first = (tmp_path / "bert-curve.json").read_bytes()
    assert wrote() == "bert-curve.json"  # the same inputs
    call += ["--seeds", "5"]
    assert wrote() == "bert-curve-2.json"
    path.write_text("the cat sat\na cat sat\n")  # other sentences in the same place
    assert wrote() == "bert-curve-3.json"
    a_network(tmp_path / "net", seed=1)  # other weights
    assert wrote() == "bert-curve-4.json"
    assert wrote() == "bert-curve-4.json"
    (tmp_path / "bert-curve-4.json").write_text("{")  # whose it is, nobody knows
    assert wrote() == "bert-curve-5.json"
    content = json.loads(first)
    content["seconds"] = content["provenance"] = None
    kept = read_json(tmp_path / "bert-curve.json")
    assert kept | {"seconds": None, "provenance": None} == content


@pytest.mark.bad_input
def test_a_path_of_no_letters_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a variable of the shell that is not set."""
    monkeypatch.chdir(tmp_path)
    assert command.main(["run", "table-1", "--preset", "quick", "--json", ""]) == 2
    assert "is a folder: name a file in it" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# -- the time of a run in parts ---------------------------------------------------------------------


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "content", [b"", b"12.", b'"12"', b"[12.5]", b"NaN", b"Infinity", b"-3.0", b"true", b"\xff"]
)
def test_a_damaged_note_of_the_seconds_is_named(content: bytes, tmp_path: Path) -> None:
    chosen = experiment.find("bert-curve").preset("quick")
    clock = recording.Clock(tmp_path, chosen)
    clock.save()
    (note,) = tmp_path.iterdir()
    assert recording.Clock(tmp_path, chosen).seconds() < 60
    note.write_bytes(content)
    with pytest.raises(CheckpointMismatchError) as caught:
        recording.Clock(tmp_path, chosen)
    assert f"{note} is damaged" in str(caught.value) and "Remove it" in str(caught.value)
    assert note.read_bytes() == content
