"""What a run from the command line stores, and that only the paper's settings reach the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments import command, experiment, ledger, recording
from experiments.experiment import RunContext
from experiments.records import CheckpointMismatchError, write_json
from mpt_lml.files import read_json
from mpt_lml.recorded import Finding, Outcome


def test_a_run_with_other_settings_is_not_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its preset is: nothing goes to the ledger and the results of the checkout."""

    def fail() -> None:
        raise AssertionError("the ledger was asked for")

    monkeypatch.setattr(ledger, "record", fail)
    monkeypatch.chdir(tmp_path)
    call = ["run", "figure-1-left", "--set", "seeds=1,2", "--set", "num_masks=2"]
    assert command.main(call) == 0
    (path,) = (tmp_path / "mpt-lml-results").iterdir()
    assert path.name.startswith("figure-1-left-") and path.suffix == ".json"


def test_a_run_of_the_papers_settings_enters_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of it, in which nothing is measured yet."""
    copy = tmp_path / "ledger.json"
    content = read_json(ledger.location())
    for entry in (*content["paper"], *content["findings"]):
        entry["measured"] = None
    write_json(copy, content)
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(ledger, "location", lambda: copy)
    monkeypatch.setattr(recording, "book_file", lambda name: tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert command.main(["run", "figure-1-left"]) == 0
    stored = read_json(tmp_path / "results" / "figure-1-left.json")
    entered = {entry["id"]: entry["measured"] for entry in ledger.entries(copy)}
    for name, finding in stored["findings"].items():
        assert entered.pop(name) == pytest.approx(finding["measured"], rel=1e-5)
    assert set(entered.values()) == {None}


# -- state and results of different inputs lie side by side -----------------------------------------


def test_runs_of_other_settings_have_other_names() -> None:
    kind = experiment.find("bert-curve")
    changes = (
        {},
        {"model": "a/net"},
        {"model": "b/net"},
        {"model": "a-net"},
        {"model": "a/net", "num_sentences": 3},
        {"data_sets": ("x" * 300,)},
    )
    names = [recording._name(kind.preset("quick", **change), "quick") for change in changes]
    assert names[0] == "bert-curve-quick"
    assert len(set(names)) == len(changes)
    assert max(map(len, names)) < 100  # however long the settings
    assert recording._name(kind.preset("paper"), "paper") == "bert-curve"


# -- what --set reads -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("4", 4),
        ("4,", (4,)),
        ("1,2,3", (1, 2, 3)),
        ("3e-3", 0.003),
        ("False", False),
        ("(64,10,3e-3),", ((64, 10, 0.003),)),
        ("some/folder", "some/folder"),
        ("two words", "two words"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_a_setting_is_what_python_reads_or_else_its_text(written: str, value: object) -> None:
    assert command._setting(f"name={written}") == ("name", value)


# -- wrong command lines ------------------------------------------------------------------------------

SHORT = ["run", "table-1", "--preset", "quick", "--set", "num_data=20"]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "given, message",
    [
        ("seeds=4", "seeds, which spread, must be >= 2, got 1"),
        ("seeds=4,4", "seeds must differ, got (4, 4)"),
        ("seeds=-1,4", "a seed must be in"),
    ],
)
def test_seeds_are_refused_in_one_line(given: str, message: str, tmp_path: Path, capsys) -> None:
    assert command.main([*SHORT, "--set", given, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1


NO_NUMBERS = ("", "0", "-3", "2.5", "nan", "inf", "one", "None", "True", "[1]", "1,2", "1e400")
WRONG_SETTINGS = [
    *(f"num_features={number}" for number in NO_NUMBERS),
    *(f"latent_dim={number}" for number in NO_NUMBERS if number != "0"),
    *(f"num_masks={numbers}" for numbers in ("", "0", "1.5", "a,b")),
    *(f"seeds=4,{seed}" for seed in ("4", "-1", "a", "1.5", "nan", str(2**70))),
    "nothing=1",
]
WRONG_LINES = [
    *(["run", name] for name in ("table1", "zzz", "../table-1", "", "nan", "-1", "None")),
    *(["compare", name] for name in ("table1", "zzz", "")),
    *(["list", name] for name in ("table1", "scoring")),
    *([*SHORT[:2], "--preset", preset] for preset in ("fast", "", "Quick", "1")),
    *([*SHORT, "--device", device] for device in ("tpu", "cuda:0", "", "1.5")),
    *([*SHORT, "--out", place] for place in ("/dev/null/x", "/proc/x")),
    *([*SHORT, "--set", setting] for setting in WRONG_SETTINGS),
    *([*SHORT[:4], "--set", f"num_data={number}"] for number in NO_NUMBERS),
    [*SHORT, "x"],
]


@pytest.mark.bad_input
@pytest.mark.parametrize("line", WRONG_LINES, ids=" ".join)
def test_a_wrong_command_line_ends_in_a_sentence(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = command.main(line)
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert "python -m experiments" in printed.err and "Traceback" not in printed.err


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--set", "num_data=30"], "--set num_data is given twice. Leave one of them out."),
        (["--preset", "paper"], "--preset: is given twice. Leave one of them out."),
        (["--set", "num_features=1000000000000"], "1000000000000"),
    ],
)
def test_a_call_that_cannot_be_meant_is_one_sentence(
    more: list[str], message: str, tmp_path: Path, capsys
) -> None:
    assert command.main([*SHORT, "--out", str(tmp_path), *more]) == 2
    said = capsys.readouterr().err
    assert said.startswith("python -m experiments: ") and said.count("\n") == 1 and message in said
    assert list(tmp_path.iterdir()) == []


class Unlisted(experiment.Experiment, name="unlisted", resumable=True):
    """It finds what the ledger has no entry for."""

    def measure(self, context: RunContext) -> Outcome:
        context.computed_once("piece", lambda: {"x": torch.ones(1)})
        return Outcome({"never-heard-of": Finding(1.0)})


@pytest.mark.bad_input
def test_a_finding_without_an_entry_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was computed is kept, so that the same command goes on once the entry is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(recording, "book_file", lambda name: tmp_path / name)
    with pytest.raises(ValueError, match="has no entry for never-heard-of"):
        recording.run_and_store(Unlisted, {})
    assert not list((tmp_path / "results").iterdir())
    assert list((tmp_path / "mpt-lml-results").rglob("piece.safetensors"))


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
    recording.Clock(tmp_path, chosen)  # as it was noted, it is read
    note.write_bytes(content)
    with pytest.raises(CheckpointMismatchError) as caught:
        recording.Clock(tmp_path, chosen)
    assert f"{note} is damaged" in str(caught.value) and "Remove it" in str(caught.value)
    assert note.read_bytes() == content
