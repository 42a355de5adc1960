"""Experiments on a GPU, which is emulated: their quick runs find what they find on the CPU.

Those of :data:`EVERY_TIME` in each run of the tests, the others once a week: an emulated device takes
five to ten times as long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from other_device import OtherDevice

from experiments import command, experiment
from mpt_lml.files import read_json
from mpt_lml.recorded import Outcome

pytestmark = [
    pytest.mark.filterwarnings("ignore:images .* become"),
]

EVERY_TIME = ("figure-1-left", "table-1", "table-2-pretrained")
ON_A_GPU = [name for name in experiment.names() if experiment.find(name).gpu]
once_a_week = pytest.mark.skipif(
    os.environ.get("MPT_LML_AGAIN") != "all",
    reason="takes long on an emulated device: set MPT_LML_AGAIN to all",
)


@pytest.fixture
def other_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtherDevice]:
    """What looks like a GPU that multiplies in bfloat16."""

    class AutocastHere(torch.autocast):
        def __init__(self, device_type: str, *arguments: Any, **options: Any) -> None:
            super().__init__("cpu", *arguments, **options)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *device: "an emulated one")
    monkeypatch.setattr(torch, "autocast", AutocastHere)
    with OtherDevice() as other:
        yield other


def parameter(name: str) -> Any:
    marks = [pytest.mark.xdist_group(name)]  # of the quick run on the CPU
    if name not in EVERY_TIME:
        marks.append(once_a_week)
    return pytest.param(name, marks=marks)


def require_same(found: Outcome, expected: Outcome, other: OtherDevice) -> None:
    """Results are on the CPU, and have these numbers, to rounding in single precision."""
    assert not any(other.is_there(array) for array in found.arrays.values())
    assert found.data_sha256 == expected.data_sha256
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        torch.testing.assert_close(
            found.arrays[name], array, rtol=1e-5, atol=1e-4, equal_nan=True, msg=name
        )
    measured = {name: finding.measured for name, finding in found.findings.items()}
    wanted = {name: finding.measured for name, finding in expected.findings.items()}
    assert measured == pytest.approx(wanted, rel=1e-4, abs=1e-4, nan_ok=True)


@pytest.mark.parametrize("name", [parameter(name) for name in ON_A_GPU])
def test_quick_presets_find_what_they_find_on_the_cpu(
    name: str, quick: Callable[[str], tuple], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Computed there, and where an earlier run has kept its pieces."""
    expected, _ = quick(name)
    other = request.getfixturevalue("other_device")  # from here on
    folder = tmp_path if experiment.find(name).resumable else None
    for _ in range(1 if folder is None else 2):
        found = experiment.run(name, "quick", device="cuda", checkpoints=folder)
        require_same(found, expected, other)


@pytest.mark.xdist_group("table-1")
def test_the_command_writes_what_it_finds_there(
    quick: Callable[[str], tuple], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    expected, _ = quick("table-1")
    request.getfixturevalue("other_device")
    call = ["run", "table-1", "--preset", "quick", "--device", "cuda", "--out", str(tmp_path)]
    assert command.main(call) == 0
    (path,) = tmp_path.iterdir()
    record = read_json(path)
    assert record["provenance"]["hardware"]["gpu"] == "an emulated one"
    found = torch.tensor(record["arrays"]["estimates"], dtype=torch.float64)
    torch.testing.assert_close(found, expected.arrays["estimates"], rtol=1e-5, atol=1e-4)
