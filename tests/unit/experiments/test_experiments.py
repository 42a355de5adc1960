"""What every experiment does: presets, state that belongs to its inputs, refusals."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest import mock

import pytest
import torch
from other_device import OtherDevice
from safetensors import safe_open
from tiny_bert import tiny, tokenizer

from experiments import (
    antibodies,
    command,
    experiment,
    ledger,
    recording,
    records,
    whole_tables,
)
from experiments.experiment import RunContext
from experiments.paper import training
from experiments.records import CheckpointMismatchError, as_dict
from experiments.registry import EXPERIMENTS, Entry
from mpt_lml import HMM, recorded
from mpt_lml.data import image_sets
from mpt_lml.files import read_json
from mpt_lml.recorded import Finding, Outcome
from mpt_score import networks, texts

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in experiment.names()],
)
def test_quick_presets_run_and_their_findings_are_in_the_ledger(name: str, quick) -> None:
    outcome, _ = quick(name)
    entries = {e["id"]: e for e in ledger.entries(ROOT / "book" / "ledger.json")}
    # One chain, and six sentences, are examples of a page and no entries of the ledger.
    assert outcome.findings or name in ("antibody-chain", "six-sentences")
    for found_id, found in outcome.findings.items():
        assert entries[found_id]["command"] == f"python -m experiments run {name}", found_id
        assert math.isfinite(found.measured)
    json.dumps(as_dict(outcome), allow_nan=False)


FROM_ARRAYS = (
    "antibody-curves",
    "figure-2",
    "figure-3-lower",
    "figure-3-upper",
    "figure-5-left",
    "figure-6",
    "fixed-sizes",
    "masking-rates",
)


@pytest.mark.parametrize("name", FROM_ARRAYS)
def test_the_ledger_has_what_follows_from_the_recorded_arrays(name: str) -> None:
    chosen = experiment.find(name).preset()
    findings = getattr(chosen, "findings", None) or chosen._findings
    more = ("mnist", "fashion_mnist") if name == "figure-3-upper" else ()
    entries = {entry["id"]: entry for entry in ledger.entries(ledger.location())}
    for of_entry, finding in findings(recorded.load(name).arrays, *more).items():
        written = (entries[of_entry]["measured"], entries[of_entry]["standard_error"])
        found = (finding.measured, finding.standard_error)
        assert found == pytest.approx(written, rel=2e-5, abs=1e-5), of_entry


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("table-1", {"latent_dim": 3}),
        ("figure-1-left", {"latent_dim": 1}),
        ("figure-2", {"fixed_rate": 0.5}),
    ],
)
def test_what_a_reader_turns_has_an_effect(name: str, setting: dict) -> None:
    one, other = (experiment.run(name, "quick", **more).arrays for more in ({}, setting))
    same = {
        key: torch.allclose(one[key], other[key], rtol=0, atol=0, equal_nan=True) for key in one
    }
    assert not all(same.values())


class Counting(experiment.Experiment, name="counting", resumable=True):
    """It stops in its second step the first time."""

    num_steps: int = experiment.setting(3, quick=2)
    model: str | None = None

    done: ClassVar[list[int]] = []

    def measure(self, context: RunContext) -> Outcome:
        for step in range(self.num_steps):
            found = context.computed_once(f"{step}", lambda step=step: self.work(step))
            assert found["step"] == step
        return Outcome({"fig-3-upper": Finding(1.0)})

    def work(self, step: int) -> dict[str, torch.Tensor]:
        if self.done == [0]:
            self.done.append(-1)
            raise KeyboardInterrupt
        self.done.append(step)
        return {"step": torch.tensor(step)}


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The steps that the resumable experiment "counting" has done."""
    monkeypatch.chdir(tmp_path)
    entry = Entry(__name__, "Counting", "seconds", "It stops.")
    monkeypatch.setitem(EXPERIMENTS, "counting", entry)
    monkeypatch.setattr(Counting, "done", [])
    return Counting.done


class TestResumableRuns:
    def test_the_same_command_goes_on_and_cleans_up(
        self, counting: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        call = ["run", "counting", "--preset", "quick"]
        assert command.main(call) == 130
        state = Path("mpt-lml-results", "checkpoints", "counting-quick")
        assert f"goes on from {state}" in capsys.readouterr().err
        assert not Path("mpt-lml-results", "counting-quick.json").exists()
        assert command.main(call) == 0
        assert counting == [0, -1, 1]
        assert read_json(Path("mpt-lml-results", "counting-quick.json"))["seconds"] >= 0
        assert not state.exists()

    def test_a_named_folder_stays(self, counting: list[int], tmp_path: Path) -> None:
        call = ["run", "counting", "--preset", "quick", "--checkpoints", str(tmp_path / "mine")]
        assert command.main(call) == 130
        assert command.main(call) == 0
        zero, one, seconds = sorted(path.name for path in (tmp_path / "mine").iterdir())
        assert (zero, one, seconds[:8]) == ("0.safetensors", "1.safetensors", "seconds-")

    def test_what_was_kept_for_other_settings_is_refused(
        self, counting: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        call = ["run", "counting", "--preset", "quick", "--checkpoints", str(tmp_path / "mine")]
        assert [command.main(call), command.main(call)] == [130, 0]
        for change in ("seeds=1", "model=other", "num_steps=3"):
            assert command.main([*call, "--set", change]) == 2
            assert "belongs to another configuration: its" in capsys.readouterr().err

    def test_so_is_what_another_device_or_precision_left(self, tmp_path: Path) -> None:
        work = {"a": torch.tensor(1)}
        RunContext(folder=tmp_path).computed_once("x", lambda: work)
        with pytest.raises(records.CheckpointMismatchError, match="its device is 'cpu'"):
            RunContext(torch.device("cuda"), folder=tmp_path).computed_once("x", lambda: work)
        with pytest.raises(
            records.CheckpointMismatchError, match="its weights is 'absent', wanted 'b'"
        ):
            RunContext(folder=tmp_path).computed_once("x", lambda: work, weights="b")
        torch.set_default_dtype(torch.float64)
        try:
            with pytest.raises(
                records.CheckpointMismatchError, match="its precision is 'torch.float3"
            ):
                RunContext(folder=tmp_path).computed_once("x", lambda: work)
        finally:
            torch.set_default_dtype(torch.float32)

    def test_kept_work_comes_back_to_the_device_that_asks(self, tmp_path: Path) -> None:
        with OtherDevice() as other:
            work = {"a": torch.arange(3.0).to(other.device)}
            for folder in (None, tmp_path, tmp_path):  # not kept, kept now, kept before
                context = RunContext(other.device, folder=folder)
                computed = context.computed_once("x", lambda: work)
                assert computed["a"].device == other.device
                assert computed["a"].tolist() == [0, 1, 2]

    def test_the_recorded_time_is_that_of_all_parts(
        self, counting: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hundreds = SimpleNamespace(perf_counter=lambda: 100.0 * len(counting))  # for each step
        monkeypatch.setattr(recording, "time", hundreds)
        call = ["run", "counting", "--preset", "quick", "--checkpoints", str(tmp_path / "mine")]
        assert command.main(call) == 130
        (note,) = (tmp_path / "mine").glob("seconds-*")
        assert read_json(note) == 200.0
        assert command.main([*call, "--out", "out"]) == 0
        assert read_json("out/counting-quick.json")["seconds"] == 300.0

    def test_an_experiment_of_seconds_refuses_the_folder(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        call = ["run", "table-1", "--out", str(tmp_path), "--checkpoints", str(tmp_path)]
        assert command.main(call) == 2
        assert "table-1 keeps no state to go on from" in capsys.readouterr().err


class TestOtherNetworks:
    def test_the_books_own_folder_in_place_of_the_hub(self, tmp_path: Path) -> None:
        folder = str(networks.small_bert_folder())
        call = ["run", "table-2-pretrained", "--preset", "quick", "--out", str(tmp_path)]
        assert command.main(call) == 0
        assert command.main([*call, "--set", f"model={folder}"]) == 0
        own, named = (read_json(path) for path in sorted(tmp_path.iterdir(), key=lambda p: p.stem))
        if "weights" in own:
            own, named = named, own
        assert "weights" not in own
        assert named["weights"] == {"name": folder, "revision": None, "sha256": mock.ANY}
        assert own["arrays"]["curve/written"] == named["arrays"]["curve/written"]

    def test_an_experiment_without_one_refuses_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["run", "table-1", "--set", "model=here"]) == 2
        said = capsys.readouterr().err
        assert "table-1 has no setting 'model'" in said and "table-2-pretrained" in said

    @pytest.mark.parametrize("name", ["table-2-pretrained", "figure-6-pretrained"])
    def test_a_name_that_is_not_pinned(
        self, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        call = ["run", name, "--preset", "quick", "--out", str(tmp_path)]
        assert command.main([*call, "--set", "model=some/body"]) == 2
        assert "No folder is called that" in capsys.readouterr().err


class TestCommand:
    def test_the_list_names_every_experiment_and_its_cost(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.main(["list"]) == 0
        listed = capsys.readouterr().out
        for name, entry in EXPERIMENTS.items():
            assert name in listed and entry.cost in listed and entry.title in listed

    def test_of_one_it_says_the_settings(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["list", "table-1"]) == 0
        listed = capsys.readouterr().out
        assert listed.startswith("Table 1: LML")
        assert "  num_masks = (1, 10, 100)  (quick: (1, 10))\n" in listed

    @pytest.mark.parametrize("call", [["list"], ["compare", "table-1"], ["compare", "--all"]])
    def test_a_terminal_need_not_know_more_than_ascii(
        self, call: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written = io.BytesIO()
        terminal = io.TextIOWrapper(written, encoding="ascii")
        monkeypatch.setattr(sys, "stdout", terminal)
        assert command.main(call) == 0
        terminal.flush()
        assert b"table-1" in written.getvalue() and b"?" in written.getvalue()

    def test_settings_replace_the_presets_and_are_in_the_recorded_command(
        self, tmp_path: Path
    ) -> None:
        call = ["run", "figure-1-left", "--preset", "quick"]
        call += ["--set", "seeds=1,2,3", "--set", "num_features=4", "--set", "num_masks=6"]
        assert command.main([*call, "--out", str(tmp_path)]) == 0
        (path,) = tmp_path.iterdir()
        content = read_json(path)
        assert content["config"]["seeds"] == [1, 2, 3]
        assert tuple(torch.tensor(content["arrays"]["difference"]).shape) == (3, 6)
        words = shlex.split(content["provenance"]["command"])
        assert words == ["python", "-m", "experiments", *call]

    def test_a_run_with_other_settings_leaves_the_ledger_alone(self, tmp_path: Path) -> None:
        path = ROOT / "book" / "ledger.json"
        before = path.read_bytes()
        call = ["run", "figure-1-left", "--preset", "quick", "--out", str(tmp_path)]
        assert command.main(call) == 0
        assert path.read_bytes() == before

    def test_so_does_a_run_that_is_written_elsewhere(self, tmp_path: Path) -> None:
        path = ROOT / "book" / "ledger.json"
        before, touched = path.read_bytes(), path.stat().st_mtime_ns
        assert command.main(["run", "figure-1-left", "--out", str(tmp_path)]) == 0
        assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, touched)

    def test_an_unwritable_folder_stops_before_the_run(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("")

        def fail(*args: object, **kwargs: object) -> None:
            raise AssertionError("the run was started")

        monkeypatch.setattr(experiment.find("table-1"), "run", fail)
        assert command.main(["run", "table-1", "--out", str(tmp_path / "file" / "x")]) == 2
        assert "cannot write to the output folder" in capsys.readouterr().err

    def test_unknown_names_suggest_the_nearest(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["run", "figure-1-centre"]) == 2
        assert "figure-1-center" in capsys.readouterr().err
        assert command.main(["compare", "tabel-1"]) == 2
        assert "table-1" in capsys.readouterr().err

    def test_compare_shows_published_measured_and_verdict(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.main(["compare", "table-1"]) == 0
        lines = capsys.readouterr().out.splitlines()
        row = next(line for line in lines if line.startswith("table-1/p10-sd"))
        numbers = ["0.12", "0.129928", "0.0459365", "nats", "misprint"]
        assert row.split() == ["table-1/p10-sd", *numbers]

    def test_compare_all_prints_both_ledgers(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["compare", "--all"]) == 0
        judged, found = capsys.readouterr().out.split("\n\n")
        content = read_json(ROOT / "book" / "ledger.json")
        for part, printed in (("paper", judged), ("findings", found)):
            names = [line.split()[0] for line in printed.splitlines()[1:]]
            assert names == [entry["id"] for entry in content[part]]
        assert command.main(["compare"]) == 2
        assert command.main(["compare", "table-1", "--all"]) == 2
        assert capsys.readouterr().err.count("the name of an experiment, or --all") == 2

    def test_a_gpu_that_is_not_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
        assert command.main(["run", "table-1", "--device", "cuda"]) == 2
        assert "torch sees no GPU" in capsys.readouterr().err

    def test_one_that_computes_on_the_cpu_only_refuses_a_gpu(
        self, counting: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        chosen = experiment.find("counting").preset()
        monkeypatch.setattr(type(chosen), "gpu", False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert experiment.context_for(chosen).device.type == "cpu"
        assert experiment.context_for(experiment.find("table-1").preset()).device.type == "cuda"
        with pytest.raises(ValueError, match="counting computes on the CPU only"):
            experiment.context_for(chosen, "cuda")


class TestArchive:
    """A record of which the package has no code: it is read, and says how to have the code."""

    @pytest.fixture(autouse=True)
    def book(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder like ``book`` with one record, of which the ledger says nothing."""
        rerun = "git checkout 0abc && mpt-lml run old-run"
        finding = {"measured": 2.5, "standard_error": None}
        record = {"findings": {"old": finding}, "arrays": {}, "config": {}, "provenance": {}}
        record["rerun"] = rerun
        (tmp_path / "results").mkdir()
        records.write_json(tmp_path / "results" / "old-run.json", record)
        records.write_json(tmp_path / "ledger.json", {"paper": [], "findings": []})
        for module in (experiment, ledger, recorded):
            monkeypatch.setattr(module, "book_file", lambda name: tmp_path / name)
        return tmp_path

    def test_the_ledger_has_nothing_to_compare(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["compare", "old-run"]) == 0
        assert capsys.readouterr().out == "the ledger has no entry for this experiment\n"

    @pytest.mark.bad_input
    def test_whoever_runs_it_is_told_how(
        self, book: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        left = r"the code of 'old-run' left; its record stays: mpt_lml.load\('old-run'\)\."
        again = r" To run it again, in a checkout: git checkout 0abc && mpt-lml run old-run$"
        with pytest.raises(experiment.UnknownExperimentError, match=left + again):
            experiment.run("old-run", "quick")
        assert command.main(["run", "old-run"]) == 2
        assert "git checkout 0abc" in capsys.readouterr().err
        record = read_json(book / "results" / "old-run.json")
        del record["rerun"]
        records.write_json(book / "results" / "old-run.json", record)
        with pytest.raises(experiment.UnknownExperimentError, match=left + "$"):
            experiment.find("old-run")

    @pytest.mark.bad_input
    @pytest.mark.parametrize("name", ["old-rum", "../ledger", "tabel-1"])
    def test_another_name_is_unknown(self, name: str) -> None:
        near = {"old-rum": "Did you mean old-run", "tabel-1": "Did you mean table-1"}
        message = rf"unknown experiment '{name}'\. {near.get(name, '')}"
        with pytest.raises(experiment.UnknownExperimentError, match=message):
            experiment.find(name)


@pytest.mark.parametrize("name", experiment.names())
def test_settings_of_every_preset_can_be_written_and_read(name: str) -> None:
    """What a recorded command says comes back, of every experiment's every setting."""
    kind = experiment.find(name)
    quick = kind.preset("quick")
    settings = {
        field.name: getattr(quick, field.name)
        for field in dataclasses.fields(kind)
        if getattr(quick, field.name) not in ((), None)
    }
    words = shlex.split(recording._command(quick, "quick", settings))
    given = command.parser().parse_args(words[3:])
    again = dict(command._setting(text) for text in given.set)
    assert kind.preset("quick", **again) == quick


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("nothing=1", "table-1 has no setting 'nothing'; it has seeds, num_data"),
        ("num_data", "--set takes NAME=VALUE, got 'num_data'"),
        ("num_data=2.5", "num_data must be an integer"),
        ("num_masks=1-3", "each of num_masks must be an integer (>= 1), got '1-3'"),
    ],
)
def test_other_settings_are_refused(
    setting: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["run", "table-1", "--set", setting]) == 2
    out, error = capsys.readouterr()
    assert out == "" and message in error and error.count("\n") == 1


# -- what a run has kept belongs to its inputs --------------------------------------------------------

RESUMABLE = [name for name in experiment.names() if experiment.find(name).resumable]
FILE_OF_A_SEED = ["known-language", "self-contradiction", "whole-tables"]
WITH_A_NETWORK = ["bert-curve", "table-2-pretrained", "figure-6", "figure-6-pretrained"]
resumable = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in RESUMABLE]
)
Done = tuple[Outcome, Path]


def run_in(folder: Path, name: str, **settings: object) -> Outcome:
    return experiment.run(name, "quick", device="cpu", checkpoints=folder, **settings)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of state; the trained network of small-bert is a result."""
    kept = [path for path in sorted(folder.rglob("*.safetensors")) if path.parent.name != "model"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def refused(folder: Path, name: str, **settings: object) -> str:
    """What the refusal says; the state is what it was."""
    before = contents(folder)
    with pytest.raises(CheckpointMismatchError) as caught:
        run_in(folder, name, **settings)
    assert contents(folder) == before
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:images .* become")
class TestKeptWork:
    """Every resumable experiment runs once, small; then again, or with one thing changed.

    Nothing may come back that these inputs did not give, and no file may be touched.
    """

    @resumable
    def test_the_same_inputs_go_on(self, name: str, quick: Callable[[str], Done]) -> None:
        first, folder = quick(name)
        before = contents(folder)
        again = run_in(folder, name)
        assert before and contents(folder) == before
        assert again.arrays.keys() == first.arrays.keys()
        for key, array in first.arrays.items():
            torch.testing.assert_close(again.arrays[key], array, rtol=0, atol=0, equal_nan=True)

    @resumable
    def test_other_seeds_are_refused(
        self, name: str, quick: Callable[[str], Done], tmp_path: Path
    ) -> None:
        _, folder = quick(name)
        seeds = experiment.find(name).preset("quick").seeds
        other = tuple(seed + 1 for seed in seeds)
        if name in FILE_OF_A_SEED:  # others are computed
            own = shutil.copytree(folder, tmp_path / "own")
            beside = run_in(own, name, seeds=other[:1])
            assert as_dict(beside) == as_dict(run_in(tmp_path, name, seeds=other[:1]))
            assert contents(folder).items() < contents(own).items()
            other = seeds[::-1]
        assert "its seeds is" in refused(folder, name, seeds=other)

    @resumable
    def test_every_file_says_all_that_it_depends_on(
        self, name: str, quick: Callable[[str], Done]
    ) -> None:
        _, folder = quick(name)
        settings = {each.name for each in dataclasses.fields(experiment.find(name))}
        environment = {"device", "precision", "version of mpt-lml", "version of torch"}
        for path in contents(folder):
            with safe_open(folder / path, framework="pt") as stored:
                said = json.loads(stored.metadata()["mpt-lml"].partition(" ")[2])
            assert settings | environment | {"experiment", "data"} <= said.keys(), path
            assert said["experiment"] == name

    @resumable
    def test_other_data_are_refused(
        self, name: str, quick: Callable[[str], Done], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever the run draws on is changed where it comes from."""
        _, folder = quick(name)
        digits = image_sets._digits
        monkeypatch.setattr(image_sets, "_digits", lambda split: digits(split).flip(0))
        monkeypatch.setattr(texts, "_WRITTEN", texts._WRITTEN[::-1])
        chains = antibodies.few()[::-1]
        monkeypatch.setattr(antibodies, "few", lambda: chains)
        problem, sample = training.paper_problem, HMM.sample

        def other_problem(*arguments: object) -> tuple:
            model, x = problem(*arguments)
            return model, 1.01 * x

        monkeypatch.setattr(training, "paper_problem", other_problem)
        monkeypatch.setattr(HMM, "sample", lambda *a, **o: sample(*a, **o).flip(0))
        tables = whole_tables.draw_tables
        monkeypatch.setattr(
            whole_tables, "draw_tables", lambda *a, **o: [v.flip(0) for v in tables(*a, **o)]
        )
        assert "its data is" in refused(folder, name)


def a_network(folder: Path, name: str, seed: int = 0) -> None:
    """A network that ``name`` can load, in ``folder``."""
    if name.startswith("figure"):
        size = {"width": 8, "num_layers": 1, "decoder_layers": 1}
        networks.small_mae(12, 3, 4, **size, seed=seed).save_pretrained(folder)
    else:
        tiny(seed=seed).float().save_pretrained(folder)
        tokenizer().save_pretrained(folder)


def set_in_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(read_json(path) | changes))


@pytest.mark.filterwarnings("ignore:images .* become")
@pytest.mark.parametrize("name", WITH_A_NETWORK)
def test_kept_work_of_other_weights_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_WRITTEN", ("the cat sat", "the cats sat.", "a cat sat the"))
    net, state = tmp_path / "a" / "net", tmp_path / "state"
    a_network(net, name)
    first = run_in(state, name, model=str(net))
    again = run_in(state, name, model=str(net))
    assert as_dict(first) == as_dict(again)
    a_network(tmp_path / "b" / "net", name, seed=1)  # the same last name
    assert "its model is" in refused(state, name, model=str(tmp_path / "b" / "net"))
    # In place: other weights, the same weights in another function, another vocabulary.
    a_network(net, name, seed=1)
    assert "its weights is" in refused(state, name, model=str(net))
    a_network(net, name)
    assert as_dict(run_in(state, name, model=str(net))) == as_dict(first)
    set_in_config(net, hidden_act="relu")
    assert "its weights is" in refused(state, name, model=str(net))
    if not name.startswith("figure"):
        a_network(net, name)
        path = net / "tokenizer.json"
        path.write_text(path.read_text().replace('"dog"', '"bird"'))
        assert "its tokenizer is" in refused(state, name, model=str(net))


@pytest.mark.parametrize("name", ["bert-curve", "table-2-pretrained"])
def test_kept_work_stays_in_its_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentences of a file have its path for a name, be it from the root or through a parent."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "lines.txt"
    path.write_text("the cat sat\na dog sat\n")
    a_network(tmp_path / "net", name)
    for place in (str(path), "../lines.txt", "../here/../lines.txt"):
        options = {"model": str(tmp_path / "net"), "data_sets": (place,)}
        first = run_in(Path("state"), name, **options)
        assert as_dict(first) == as_dict(run_in(Path("state"), name, **options))
    kept = {each for each in tmp_path.rglob("*.safetensors") if each.parent.name != "net"}
    assert kept and all(each.is_relative_to(tmp_path / "here" / "state") for each in kept)


def test_experiments_share_no_kept_work(tmp_path: Path) -> None:
    same = {"data_sets": ("written",), "rates": tuple(range(5, 100, 10)), "num_sentences": 4}
    run_in(tmp_path, "table-2-pretrained", **same)
    said = refused(tmp_path, "text-rates", **same, num_groups=2)
    assert "its experiment is 'table-2-pretrained', wanted 'text-rates'" in said
    before = contents(tmp_path)
    run_in(tmp_path, "bert-curve", **same)  # has names of its own
    assert before.items() < contents(tmp_path).items()


@pytest.mark.filterwarnings("ignore:images .* become")
def test_a_path_is_a_setting(tmp_path: Path) -> None:
    """Settings are written as JSON: what it has no word for is refused before hours of work, or fits."""
    a_network(tmp_path / "net", "figure-6")
    first = run_in(tmp_path / "state", "figure-6", model=tmp_path / "net", seeds=(4,))
    again = run_in(tmp_path / "state", "figure-6", model=tmp_path / "net", seeds=(4,))
    assert as_dict(first) == as_dict(again)


@pytest.mark.xdist_group("figure-6")
def test_the_command_names_a_damaged_file_in_one_line(
    quick: Callable[[str], Done], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(quick("figure-6")[1], tmp_path, dirs_exist_ok=True)
    for path in contents(tmp_path):
        (tmp_path / path).write_bytes(b"")
    call = ["run", "figure-6", "--preset", "quick", "--checkpoints", str(tmp_path)]
    assert command.main(call) == 2
    said = capsys.readouterr().err
    assert str(tmp_path) in said and "damaged" in said and "Remove it" in said
    assert said.count("\n") == 1
