"""Results and finished parts: written whole or not at all, and those of their identity."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from experiments import records
from experiments.records import as_dict, finding_over
from mpt_lml import files, masks
from mpt_lml.recorded import Finding, Outcome


def test_json_is_readable_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "result.json"
    content = {"name": "σ² – ok", "rows": [[15, 2.5e-7, -31], [None, 3.0]], "texts": ["[1, 2]"]}
    records.write_json(path, content)
    text = path.read_text(encoding="utf-8")
    assert "σ² – ok" in text and "[15, 2.5e-07, -31]" in text and text.endswith("}\n")
    assert files.read_json(path) == content
    with pytest.raises(ValueError, match="JSON"):
        records.write_json(path, {"a": math.nan})
    assert files.read_json(path) == content
    assert list(path.parent.iterdir()) == [path]


def test_a_target_is_proved_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    records.require_target(path)
    assert path.parent.is_dir() and not path.exists()


def test_a_kept_file_does_not_depend_on_the_order_of_what_it_belongs_to(tmp_path: Path) -> None:
    for name, identity in (("one", {"a": 1, "b": 2}), ("other", {"b": 2, "a": 1})):
        records.save_tensors(tmp_path / name, {"x": torch.ones(2)}, identity)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process grows beyond a kilobyte; nor would one that pytest's words go to."""
    resource = pytest.importorskip("resource")
    usual, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (usual, most))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "write",
    [
        lambda path: records.write_json(path, ["a text"] * 1000),
        lambda path: records.save_tensors(path, {"a": torch.ones(1000)}, {}),
    ],
    ids=["write_json", "save_tensors"],
)
def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path, write) -> None:
    path = tmp_path / "result"
    path.write_text("old")
    refusal = pytest.raises(OSError, match=f"File too large.*{path}|{path}.*File too large")
    with refusal, full_disk():
        write(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_file_has_the_mode_of_its_user(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        records.write_json(tmp_path / "result.json", {"a": 1})
        records.save_tensors(tmp_path / "state", {"a": torch.ones(2)}, {})
    finally:
        os.umask(before)
    for name in ("result.json", "state"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_set_has_one_order() -> None:
    """Of its own it has another one each time a program runs."""
    assert records.as_plain("names", {"b", "a", "c"}) == ["a", "b", "c"]


def test_of_several_differences_a_reader_is_told_of_no_hash(tmp_path: Path) -> None:
    path = tmp_path / "state"
    records.save_tensors(path, {"a": torch.ones(2)}, {"data": "0" * 64, "seed": 4})
    with pytest.raises(records.CheckpointMismatchError, match="its seed is 4, wanted 5"):
        records.load_tensors(path, {"data": "1" * 64, "seed": 5})
    with pytest.raises(records.CheckpointMismatchError, match="its data is '000"):
        records.load_tensors(path, {"data": "1" * 64, "seed": 4})


def test_an_array_of_numpy_is_the_tensor_of_its_numbers() -> None:
    """Its own text leaves out the middle."""
    data = np.zeros(5000)
    other = data.copy()
    other[2500] = 1.0
    assert str(data) == str(other)
    assert records.as_plain("data", data) == records.as_plain("data", torch.from_numpy(data))
    assert records.as_plain("data", data) != records.as_plain("data", other)


def test_nan_is_equal_to_itself() -> None:
    assert records.as_plain("x", [math.nan]) == records.as_plain("x", [math.nan]) == ["nan"]


def test_what_is_computed_once_is_read_the_second_time(tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    calls = []

    def compute() -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"a": torch.arange(3)}

    for _ in range(2):
        found = records.computed_once(path, compute, {"seed": 4})
        assert torch.equal(found["a"], torch.arange(3))
    assert len(calls) == 1
    with pytest.raises(records.CheckpointMismatchError, match="its seed is 4, wanted 5"):
        records.computed_once(path, compute, {"seed": 5})


@pytest.mark.parametrize(
    "identity",
    [
        {"x": math.nan, "y": [math.inf, None]},
        {1: "a", "b": {2: "c", 0.5: True}},
        {"data": torch.arange(5000.0), "of": np.arange(3), "law": masks.UniformSize()},
        {"name": {"b", "a", "c"}, "path": Path("x"), "rule": masks.row_of, "a": torch.float32},
    ],
)
def test_an_identity_of_any_plain_kind_is_equal_to_itself(tmp_path: Path, identity: dict) -> None:
    records.save_tensors(tmp_path / "run", {"a": torch.ones(2)}, identity)
    assert torch.equal(records.load_tensors(tmp_path / "run", identity)["a"], torch.ones(2))


def test_a_long_tensor_is_compared_whole(tmp_path: Path) -> None:
    data = torch.zeros(5000)
    other = data.clone()
    other[2500] = 1.0
    assert str(data) == str(other)
    records.save_tensors(tmp_path / "run", {}, {"data": data})
    with pytest.raises(
        records.CheckpointMismatchError, match=r"its data is .*\(5000,\) with SHA-256"
    ):
        records.load_tensors(tmp_path / "run", {"data": other})


def nameless(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: x


@pytest.mark.bad_input
def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(TypeError, match=r"it\['a'\]\[1\] must be .* object at 0x.*address"):
        records.as_plain("it", {"a": [1, object()]})
    for rule in (lambda x: x, nameless(torch.ones(1))):
        with pytest.raises(TypeError, match="rule'] must be told apart by a name, got .*<l"):
            records.as_plain("it", {"rule": rule})
    with pytest.raises(ValueError, match="it has keys that are equal as texts"):
        records.as_plain("it", {1: "a", "1": "b"})


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


def one_more_axis(path: Path) -> None:
    rewritten(path, lambda value: value[None])


def integers(path: Path) -> None:
    rewritten(path, lambda value: value.view(torch.int32))


def not_a_number(path: Path) -> None:
    rewritten(path, lambda value: torch.full_like(value, torch.nan))


def of_somebody_else(path: Path) -> None:
    save_file({"a": torch.ones(2)}, path)


@pytest.mark.parametrize(
    "damage",
    [
        truncated,
        flipped,
        emptied,
        zeroed,
        other_shapes,
        one_more_axis,
        integers,
        not_a_number,
        of_somebody_else,
    ],
)
def test_a_damaged_file_is_refused_and_left_alone(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "x.safetensors"
    records.save_tensors(path, {"a": torch.tensor([1.5, -2.0])}, {"seed": 4})
    damage(path)
    before = path.read_bytes()
    with pytest.raises(records.CheckpointMismatchError) as caught:
        records.computed_once(path, lambda: {"a": torch.ones(2)}, {"seed": 4})
    message = str(caught.value)
    assert f"{path} is damaged" in message and "Remove it" in message
    assert path.read_bytes() == before


def test_every_flipped_byte_is_seen(tmp_path: Path) -> None:
    path, identity = tmp_path / "x.safetensors", {"seeds": [4], "law": "uniform"}
    tensors = {"a": torch.tensor([1.5, -2.0]), "b": torch.tensor(3)}
    records.save_tensors(path, tensors, identity)
    whole = path.read_bytes()
    seen = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x01
        path.write_bytes(changed)
        if whole[place] == ord(" ") and changed[place] in b" \t\r\n":  # says nothing
            continue
        with pytest.raises(records.CheckpointMismatchError, match=f"{path} (is damaged|belongs)"):
            records.load_tensors(path, identity)
        seen += 1
    assert seen > len(whole) - 9
    path.write_bytes(whole)
    assert records.load_tensors(path, identity).keys() == tensors.keys()


def test_a_single_value_has_no_error() -> None:
    assert finding_over(torch.tensor([2.0])) == Finding(2.0, None)
    assert finding_over(torch.tensor([1.0, 3.0])) == Finding(2.0, 1.0)


def test_arrays_are_written_with_eight_digits_and_without_nan() -> None:
    rows = torch.tensor([[1.23456789, -98765.43214], [math.nan, math.inf]], dtype=torch.float64)
    written = as_dict(Outcome({}, {"rows": rows}))["arrays"]["rows"]
    assert written == [[1.2345679, -98765.432], [None, None]]
