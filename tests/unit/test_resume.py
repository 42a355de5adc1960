"""What a run has kept belongs to its inputs: goes on with those, is refused by name with others.

Every resumable experiment runs once, small; then again with one thing changed, or from a file that
was damaged. Nothing may come back that these inputs did not give, and no file may be touched.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_bert import tiny, tokenizer

import mpt_experiments
from mpt_experiments import command, experiment, recording
from mpt_experiments.experiment import Outcome
from mpt_experiments.options import RunOptions
from mpt_experiments.paper import training
from mpt_experiments.resume import FileCheckpoint
from mpt_lml import fit, masks
from mpt_lml.data import image_sets
from mpt_lml.files import CheckpointMismatchError, load_tensors, read_json, save_tensors
from mpt_lml.models.hmm import HMM
from mpt_score import antibodies, networks, texts

RESUMABLE = [name for name in experiment.names() if experiment.find(name).resumable]
WITH_A_NETWORK = ["bert-curve", "table-2-pretrained", "figure-6", "figure-6-pretrained"]
every = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in RESUMABLE]
)
pytestmark = pytest.mark.filterwarnings("ignore:images .* become")


def run(name: str, folder: Path, **settings: object) -> Outcome:
    return mpt_experiments.run(name, "quick", device="cpu", checkpoints=folder, **settings)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of state; the trained network of small-bert is a result."""
    kept = [p for p in sorted(folder.rglob("*.safetensors")) if p.parent.name != "model"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


Done = tuple[Outcome, Path]


def refused(name: str, folder: Path, **settings: object) -> str:
    """What the refusal says; the state is what it was."""
    before = contents(folder)
    with pytest.raises(CheckpointMismatchError) as caught:
        run(name, folder, **settings)
    assert contents(folder) == before
    return str(caught.value)


@every
def test_the_same_inputs_go_on(name: str, quick: Callable[[str], Done]) -> None:
    first, folder = quick(name)
    before = contents(folder)
    again = run(name, folder)
    assert before and contents(folder) == before
    for key, array in first.arrays.items():
        torch.testing.assert_close(again.arrays[key], array, rtol=0, atol=0, equal_nan=True)


@every
def test_other_seeds_are_refused(name: str, quick: Callable[[str], Done], tmp_path: Path) -> None:
    _, folder = quick(name)
    seeds = experiment.find(name).preset("quick").seeds
    other = tuple(seed + 1 for seed in seeds)
    if name == "known-language":  # which has a file for each seed: others are computed
        own = shutil.copytree(folder, tmp_path / "own")
        assert run(name, own, seeds=other).as_dict() == run(name, tmp_path, seeds=other).as_dict()
        assert contents(folder).items() < contents(own).items()
        other = seeds[::-1]
    assert "its seeds is" in refused(name, folder, seeds=other)


@every
def test_every_file_says_all_that_it_depends_on(name: str, quick: Callable[[str], Done]) -> None:
    _, folder = quick(name)
    settings = {each.name for each in dataclasses.fields(experiment.find(name))}
    wanted = settings | {"experiment", "device", "precision", "data"}
    wanted |= {"version of mpt-lml", "version of torch"}
    for path in contents(folder):
        with safe_open(folder / path, framework="pt") as stored:
            said = json.loads(stored.metadata()["mpt-lml"].partition(" ")[2])
        assert wanted <= said.keys(), path
        assert said["experiment"] == name


@every
def test_other_data_are_refused(
    name: str, quick: Callable[[str], Done], monkeypatch: pytest.MonkeyPatch
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
    assert "its data is" in refused(name, folder)


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


@pytest.mark.parametrize("name", WITH_A_NETWORK)
def test_other_weights_are_refused(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(texts, "_WRITTEN", ("the cat sat", "the cats sat.", "a cat sat the"))
    net, state = tmp_path / "a" / "net", tmp_path / "state"
    a_network(net, name)
    first = run(name, state, model=str(net))
    again = run(name, state, model=str(net))
    assert first.as_dict() == again.as_dict()
    a_network(tmp_path / "b" / "net", name, seed=1)  # the same last name
    assert "its model is" in refused(name, state, model=str(tmp_path / "b" / "net"))
    # In place: other weights, the same weights in another function, another vocabulary.
    a_network(net, name, seed=1)
    assert "its weights is" in refused(name, state, model=str(net))
    a_network(net, name)
    assert run(name, state, model=str(net)).as_dict() == first.as_dict()
    set_in_config(net, hidden_act="relu")
    assert "its weights is" in refused(name, state, model=str(net))
    if not name.startswith("figure"):
        a_network(net, name)
        path = net / "tokenizer.json"
        path.write_text(path.read_text().replace('"dog"', '"bird"'))
        assert "its tokenizer is" in refused(name, state, model=str(net))


@pytest.mark.parametrize("name", ["bert-curve", "table-2-pretrained"])
def test_state_stays_in_its_folder(name: str, tmp_path: Path, monkeypatch) -> None:
    """Sentences of a file have its path for a name, be it from the root or through a parent."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "lines.txt"
    path.write_text("the cat sat\na dog sat\n")
    a_network(tmp_path / "net", name)
    for place in (str(path), "../lines.txt", "../here/../lines.txt"):
        options = {"model": str(tmp_path / "net"), "data_sets": (place,)}
        first = run(name, Path("state"), **options)
        assert first.as_dict() == run(name, Path("state"), **options).as_dict()
    kept = {each for each in tmp_path.rglob("*.safetensors") if each.parent.name != "net"}
    assert kept and all(each.is_relative_to(tmp_path / "here" / "state") for each in kept)


def test_experiments_share_no_state(tmp_path: Path) -> None:
    same = {"data_sets": ("written",), "rates": tuple(range(5, 100, 10)), "num_sentences": 4}
    run("table-2-pretrained", tmp_path, **same)
    said = refused("text-rates", tmp_path, **same, num_groups=2)
    assert "its experiment is 'table-2-pretrained', wanted 'text-rates'" in said
    before = contents(tmp_path)
    run("bert-curve", tmp_path, **same)  # has names of its own
    assert before.items() < contents(tmp_path).items()


# -- damaged files -----------------------------------------------------------------------------


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 0x10
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def rewritten(path: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """By somebody who keeps the names and what the file says of itself."""
    with safe_open(path, framework="pt") as stored:
        said = stored.metadata()
    save_file({name: change(value) for name, value in load_file(path).items()}, path, said)


def other_shapes(path: Path) -> None:
    rewritten(path, lambda value: value.reshape(-1).repeat(2))


def not_a_number(path: Path) -> None:
    rewritten(path, lambda v: torch.full_like(v, torch.nan) if v.is_floating_point() else v)


DAMAGE = [truncated, flipped, emptied, zeroed, other_shapes, not_a_number]
damages = pytest.mark.parametrize("damage", DAMAGE, ids=lambda each: each.__name__)


def say(message: str, path: str | Path) -> bool:
    """Which file, what to do, and nothing that would make it worse."""
    ways = "damaged" in message and "Remove it" in message
    return str(path) in message and ways and "pickle" not in message.lower()


@damages
@every
def test_damaged_state_is_refused(
    name: str, damage: Callable[[Path], None], quick: Callable[[str], Done], tmp_path: Path
) -> None:
    shutil.copytree(quick(name)[1], tmp_path, dirs_exist_ok=True)
    for path in contents(tmp_path):
        damage(tmp_path / path)
    assert say(refused(name, tmp_path), tmp_path)


def test_every_flipped_byte_is_seen(tmp_path: Path) -> None:
    path, identity = tmp_path / "x.safetensors", {"seeds": [4], "law": "uniform"}
    tensors = {"a": torch.tensor([1.5, -2.0]), "b": torch.tensor(3)}
    save_tensors(path, tensors, identity)
    whole = path.read_bytes()
    seen = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x01
        path.write_bytes(changed)
        if whole[place] == ord(" ") and changed[place] in b" \t\r\n":  # says nothing
            continue
        with pytest.raises(CheckpointMismatchError, match=f"{path} (is damaged|belongs)"):
            load_tensors(path, identity)
        seen += 1
    assert seen > len(whole) - 9
    path.write_bytes(whole)
    assert load_tensors(path, identity).keys() == tensors.keys()


@pytest.mark.parametrize("change", [lambda v: v[None], lambda v: v.view(torch.int32)])
def test_the_same_bytes_in_another_form_are_seen(tmp_path: Path, change) -> None:
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"a": torch.tensor([1.5, -2.0])}, {})
    rewritten(path, change)
    with pytest.raises(CheckpointMismatchError, match="is damaged"):
        load_tensors(path, {})


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(CheckpointMismatchError) as caught:
        load_tensors(path, {})
    assert say(str(caught.value), path)


@damages
@pytest.mark.xdist_group("figure-6")
def test_the_command_says_so_in_one_line(
    damage: Callable[[Path], None], quick: Callable[[str], Done], tmp_path: Path, capsys
) -> None:
    shutil.copytree(quick("figure-6")[1], tmp_path, dirs_exist_ok=True)
    for path in contents(tmp_path):
        damage(tmp_path / path)
    call = ["run", "figure-6", "--preset", "quick", "--json", "-", "--checkpoints", str(tmp_path)]
    assert command.main(call) == 2
    said = capsys.readouterr().err
    assert say(said, tmp_path) and said.count("\n") == 1


def train(checkpoint: FileCheckpoint | None, size: int = 3, **options: object) -> torch.Tensor:
    """Two runs of a parabola in ``size`` numbers: how far they come in nine epochs."""
    settings = {"num_epochs": 9, "learning_rate": 0.1} | options
    return fit.maximize(
        {"level": torch.zeros(2, size)},
        lambda p, _: -(p["level"] - 1).square().sum(dim=1),
        checkpoint=checkpoint,
        **settings,  # type: ignore[arg-type]
    ).parameters["level"]


def nameless(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: x


class TestTraining:
    """The file of one training: its settings, and what the training says of itself."""

    @pytest.mark.parametrize(
        "settings",
        [
            {"x": math.nan, "y": [math.inf, None]},
            {1: "a", "b": {2: "c", 0.5: True}},
            {"data": torch.arange(5000.0), "of": np.arange(3), "law": masks.UniformSize()},
            {"name": {"b", "a", "c"}, "path": Path("x"), "rule": masks.row_of, "a": torch.float32},
        ],
    )
    def test_settings_of_any_plain_kind_are_equal_to_themselves(
        self, tmp_path: Path, settings: dict
    ) -> None:
        checkpoint = FileCheckpoint(tmp_path / "run", settings)
        whole = train(checkpoint)
        assert torch.equal(train(checkpoint), whole)

    def test_a_long_tensor_is_compared_whole(self, tmp_path: Path) -> None:
        data = torch.zeros(5000)
        other = data.clone()
        other[2500] = 1.0
        assert str(data) == str(other)
        train(FileCheckpoint(tmp_path / "run", {"data": data}))
        with pytest.raises(CheckpointMismatchError, match=r"its data is .*\(5000,\) with SHA-256"):
            train(FileCheckpoint(tmp_path / "run", {"data": other}))

    def test_other_settings_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        train(FileCheckpoint(path, {"law": "uniform"}))
        with pytest.raises(CheckpointMismatchError, match="law is 'uniform', wanted 'fixed'"):
            train(FileCheckpoint(path, {"law": "fixed"}))

    def test_a_setting_does_not_hide_one_of_the_training(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        names = ("learning_rate", "rows", "streams", "shapes", "dtypes", "precision", "device")
        settings = dict.fromkeys(names, 5)
        whole = train(FileCheckpoint(path, settings))
        for name in names:
            with pytest.raises(
                CheckpointMismatchError, match=rf"its settings\['{name}'\] is 5, wanted 6"
            ):
                train(FileCheckpoint(path, settings | {name: 6}))
        with pytest.raises(CheckpointMismatchError, match="its learning_rate is 0.1"):
            train(FileCheckpoint(path, settings), learning_rate=0.2)
        assert torch.equal(train(FileCheckpoint(path, settings)), whole)

    def test_another_size_is_refused(self, tmp_path: Path) -> None:
        checkpoint = FileCheckpoint(tmp_path / "run", {"law": "uniform"})
        train(checkpoint, 3)
        for size in (1, 4):
            with pytest.raises(CheckpointMismatchError, match=r"its shapes is .*\[2, 3\].*wanted"):
                train(checkpoint, size)
        assert train(checkpoint, 3).shape == (2, 3)

    def test_so_are_other_streams_and_rows(self, tmp_path: Path) -> None:
        checkpoint = FileCheckpoint(tmp_path / "run", {"law": "uniform"})
        train(checkpoint)
        with pytest.raises(CheckpointMismatchError, match="its streams is 0, wanted 1"):
            train(checkpoint, generators=[torch.Generator()])
        with pytest.raises(CheckpointMismatchError, match="its rows is"):
            train(checkpoint, track={"mean": lambda p: p["level"].mean(dim=1)})

    @pytest.mark.bad_input
    def test_what_is_no_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(IsADirectoryError, match="is a folder: name a file in it"):
            train(FileCheckpoint(tmp_path, {}))
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        with pytest.raises(ValueError, match="pipe must be a file that can be read again"):
            train(FileCheckpoint(pipe, {}))
        (tmp_path / "file").write_text("")
        with pytest.raises(PermissionError, match="cannot write .* Name another one .of a command"):
            train(FileCheckpoint(tmp_path / "file" / "run", {}))

    @pytest.mark.bad_input
    def test_settings_that_cannot_be_compared(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        with pytest.raises(
            TypeError, match=r"settings\['a'\]\[1\] must be .* object at 0x.*address"
        ):
            FileCheckpoint(path, {"a": [1, object()]})
        for rule in (lambda x: x, nameless(torch.ones(1))):
            with pytest.raises(TypeError, match="rule'] must be told apart by a name, got .*<l"):
                FileCheckpoint(path, {"rule": rule})
        with pytest.raises(ValueError, match="settings has keys that are equal as texts"):
            FileCheckpoint(path, {1: "a", "1": "b"})
        for arguments in (("run", {}), (path, 3), (path, {}, 0)):
            with pytest.raises((TypeError, ValueError), match="path|settings|every"):
                FileCheckpoint(*arguments)  # type: ignore[arg-type]


def test_a_path_is_a_setting(tmp_path: Path) -> None:
    """Settings are written as JSON: what it has no word for is refused before hours of work, or fits."""
    a_network(tmp_path / "net", "figure-6")
    first = run("figure-6", tmp_path / "state", model=tmp_path / "net", seeds=(4,))
    again = run("figure-6", tmp_path / "state", model=tmp_path / "net", seeds=(4,))
    assert first.as_dict() == again.as_dict()


# -- the command: state and results of different inputs lie side by side -------------------------

SMALL = ["run", "bert-curve", "--preset", "quick", "--rates", "15,85"]


def state_folder(**settings: object) -> Path:
    chosen = experiment.find("bert-curve").preset("quick", rates=(15, 85), **settings)
    folder = recording._state_folder(chosen, RunOptions(preset="quick"))
    assert folder is not None
    return folder


class TestCommand:
    def test_models_of_one_last_name_have_a_state_each(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        found = {}
        for name in ("a/net", "b/net", "a-net"):
            found[name] = state_folder(model=name)
        assert len(set(found.values())) == 3
        assert state_folder(model="a/net", num_sentences=3) not in found.values()
        assert state_folder(data_sets=("x" * 300,)).is_dir()  # however long the settings

    def test_no_result_replaces_one_of_other_inputs(self, tmp_path: Path, capsys) -> None:
        a_network(tmp_path / "net", "bert-curve")
        path = tmp_path / "lines.txt"
        path.write_text("the cat sat\na dog sat\n")
        call = [*SMALL, "--out", str(tmp_path), "--model", str(tmp_path / "net")]
        call += ["--data-sets", str(path)]

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
        a_network(tmp_path / "net", "bert-curve", seed=1)  # other weights
        assert wrote() == "bert-curve-4.json"
        assert wrote() == "bert-curve-4.json"
        (tmp_path / "bert-curve-4.json").write_text("{")  # whose it is, nobody knows
        assert wrote() == "bert-curve-5.json"
        content = json.loads(first)
        content["seconds"] = content["provenance"] = None
        kept = read_json(tmp_path / "bert-curve.json")
        assert kept | {"seconds": None, "provenance": None} == content

    def test_a_path_of_no_letters_is_none(self, tmp_path: Path, monkeypatch, capsys) -> None:
        """As of a variable of the shell that is not set."""
        monkeypatch.chdir(tmp_path)
        assert command.main(["run", "table-1", "--preset", "quick", "--json", ""]) == 2
        assert "is a folder: name a file in it" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())
