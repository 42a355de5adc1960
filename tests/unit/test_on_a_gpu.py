"""What .ci/gpu does, as far as a machine without a GPU can tell."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mpt_lml.recorded import Finding, Outcome

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import cells
import on_a_gpu
from cells import CellRun
from on_a_gpu import FAILED, NOT_REACHED, PASSED, Ended, Job, Settings

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.unshaped

STDERR = {"output_type": "stream", "name": "stderr", "text": ["a warning\n"]}


def printed(text: str) -> dict:
    lines = text.splitlines(keepends=True)
    return {"output_type": "stream", "name": "stdout", "text": lines}


def displayed(**data: str) -> dict:
    kinds = {kind.replace("_", "/"): text for kind, text in data.items()}
    return {"output_type": "display_data", "metadata": {}, "data": kinds}


def code(source: str, *outputs: dict, tags: tuple[str, ...] = ()) -> dict:
    lines = source.splitlines(keepends=True)
    metadata = {"tags": list(tags)}
    return {"cell_type": "code", "source": lines, "outputs": list(outputs), "metadata": metadata}


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a notebook of these cells; what it changes in this process is put back."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def notebook(*some: dict) -> Path:
        path = tmp_path / "99-sample.ipynb"
        path.write_text(json.dumps({"cells": list(some)}), encoding="utf-8")
        return path

    return notebook


FIGURE = """\
import matplotlib.pyplot as plt
print("before")
fig, ax = plt.subplots(figsize=(3, 2))
plt.show()
print("after")"""
GLUE = """\
from mpt_lml.page import glue
glue("99-half", "0.50")"""


class TestNotebook:
    def test_cells_that_put_out_what_is_stored(self, write: Write) -> None:
        """Each kind of output that the book has, and what a cell defines is there in the next."""
        picture = displayed(image_png="abc", text_plain="<Figure size 300x200 with 1 Axes>")
        html = displayed(text_html="<b>7</b>", text_plain="<IPython.core.display.HTML object>")
        path = write(
            code("this is no Python", tags=("colab",)),
            {"cell_type": "markdown", "source": ["text"], "metadata": {}},
            code(
                "# @title Half\nhalf = 0.5\nprint(half, end='')\nprint('!')",
                STDERR,
                printed("0.5!\n"),
            ),
            code(FIGURE, printed("before\n"), picture, printed("after\n")),
            code(GLUE, displayed(**{"application/papermill.record/text/plain": "'0.50'"})),
            code("from IPython.display import HTML\nHTML(f'<b>{half + 6.5:.0f}</b>')", html),
            code("half + 1", displayed(text_plain="1.5")),
            code("half + 1;"),
            code("None"),
            code("print('not run here (no network): 3')", printed("not run here (no GPU): 3\n")),
            code("print(__import__('os').getcwd())", printed(f"{path_of_book(write)}\n")),
        )
        runs = list(cells.run_notebook(path))
        assert [run.fault for run in runs] == [""] * 9
        assert runs[0].title == "Half" and runs[0].number == 2
        assert not any(run.used_gpu for run in runs)

    def test_a_wrong_output_is_seen(self, write: Write) -> None:
        path = write(
            code("print('area −1.5')", printed("area −3.0\n")),
            code("print('right')", printed("right\n")),
            code("print('a\\nb')", printed("a\nc\n")),
            code("2", displayed(text_plain="2"), printed("more\n")),
        )
        number, right, text, less = [run.fault for run in cells.run_notebook(path)]
        assert number == "its numbers differ by up to 0.5 of their size"
        assert right == ""
        assert text == "it put out 'b', stored is 'c'"
        assert less == "it put out 1 lines, stored are 2"

    def test_an_error_is_a_fault_and_ends_it(self, write: Write) -> None:
        path = write(code("1 / 0"), code("print('never')"))
        (run,) = cells.run_notebook(path)
        assert run.fault == "ZeroDivisionError: division by zero"

    def test_classes_of_a_cell_know_their_module(self, write: Write) -> None:
        source = "from __future__ import annotations\nimport dataclasses, typing, inspect\n"
        source += "Size = int\n@dataclasses.dataclass\nclass A:\n    x: Size\n"
        source += "def double(a): return 2 * a\n"
        source += "print(typing.get_type_hints(A)['x'], inspect.getsource(double), end='')"
        wanted = "<class 'int'> def double(a): return 2 * a\n"
        (run,) = cells.run_notebook(write(code(source, printed(wanted))))
        assert run.fault == ""


def path_of_book(write: Write) -> Path:
    return write().parent


BASE = Outcome(
    {"gap": Finding(2.0, 0.5)},
    {"curve": torch.tensor([4.0, 1.0, math.nan]), "few": torch.tensor([1])},
)


class TestDevices:
    def test_the_same_is_not_different(self) -> None:
        assert on_a_gpu.farthest(BASE, BASE) == (0.0, "")

    @pytest.mark.parametrize(
        ("changes", "wanted", "where"),
        [
            ({"findings": {"gap": Finding(2.02, 0.5)}}, 0.02 / 2.02, "finding gap"),
            ({"findings": {"gap": Finding(2.0, 0.4)}}, 0.1 / 0.5, "error of gap"),
            ({"findings": {}}, math.inf, "the names of what they found"),
            (
                {"arrays": BASE.arrays | {"few": torch.tensor([1, 1])}},
                math.inf,
                "the shape of array few",
            ),
            ({"arrays": BASE.arrays | {"few": torch.tensor([2])}}, 0.5, "array few"),
        ],
    )
    def test_a_wrong_number_is_seen(self, changes: dict, wanted: float, where: str) -> None:
        other = dataclasses.replace(BASE, **changes)
        largest, name = on_a_gpu.farthest(BASE, other)
        assert largest == pytest.approx(wanted, rel=2 * on_a_gpu.ROUNDING) and name == where

    def test_where_numbers_are_finite_is_compared(self) -> None:
        other = dataclasses.replace(
            BASE, arrays=BASE.arrays | {"curve": torch.tensor([4.0, 1.0, 0.0])}
        )
        assert on_a_gpu.farthest(BASE, other) == (math.inf, "where array curve is finite")

    def test_a_run_on_another_device_that_differs_has_failed(self, monkeypatch) -> None:
        runs = {
            "cpu": BASE,
            "meta": dataclasses.replace(BASE, findings={"gap": Finding(2.02, 0.5)}),
        }
        monkeypatch.setattr(
            on_a_gpu.experiment, "run", lambda name, preset, *, device: runs[device]
        )
        (row,) = on_a_gpu.compare_devices("table-1", "meta")
        assert row.status == FAILED
        assert row.note == "relative difference 9.9e-03 (allowed: 0.001) in finding gap"
        (row,) = on_a_gpu.compare_devices("text-rates", "meta")
        assert row.status == PASSED and "allowed: 0.25" in row.note


class TestProcesses:
    def test_results_and_errors_come_back(self) -> None:
        jobs = [
            Job("range", range, (3,)),
            Job("error", map, (int, ["1", "one"])),
            Job("dies", os._exit, (7,)),
        ]
        ended = on_a_gpu.in_processes(jobs, 2, time.monotonic() + 600)
        by_name = {each.name: each for each in ended}
        assert by_name["range"].results == [0, 1, 2] and by_name["range"].status == PASSED
        assert by_name["error"].results == [1] and by_name["error"].status == FAILED
        assert by_name["error"].note.startswith("ValueError: invalid literal")
        assert by_name["dies"][3:] == (FAILED, "its process ended with status 7")

    def test_what_there_is_no_time_for_was_not_reached(self) -> None:
        jobs = [Job("long", time.sleep, (3600,)), Job("next", range, (3,))]
        for seconds in (0, 1):
            ended = on_a_gpu.in_processes(jobs, 1, time.monotonic() + seconds)
            assert {each.name: each.status for each in ended} == {
                "long": NOT_REACHED,
                "next": NOT_REACHED,
            }


def ran(*faults: str, status: str = PASSED, note: str = "") -> Ended:
    runs = [CellRun(number, "title", 1.0, True, fault) for number, fault in enumerate(faults)]
    return Ended("99-sample", runs, 1.0, status, note)


def test_a_chapter_passes_only_if_it_was_run_to_its_end_and_each_cell_is_right() -> None:
    assert on_a_gpu.chapter_row(ran("", "")).status == PASSED
    assert on_a_gpu.chapter_row(ran("", "a", "b")).note == "cell 1 (title): a; others: 2"
    assert (
        on_a_gpu.chapter_row(ran("", status=FAILED, note="died")).note == "died, 1 cells as stored"
    )
    for faults, status in [((), NOT_REACHED), (("",), NOT_REACHED), ((), FAILED), (("",), FAILED)]:
        assert on_a_gpu.chapter_row(ran(*faults, status=status)).status == status
    assert on_a_gpu.chapter_row(ran("a", status=NOT_REACHED)).status == FAILED


def test_cells_that_used_the_gpu_are_run_again_without_it(write: Write) -> None:
    path = write(code("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], 1)", printed(" 1\n")))
    settings = Settings(torch.device("cpu"), True, 1, [path], [])
    deadline = time.monotonic() + 600
    (again,) = on_a_gpu.chapters([path], 1, deadline, hide_gpu=True)
    assert [cell.fault for cell in again.results] == [""]
    (row,) = on_a_gpu.cell_times([ran("")], settings, deadline)
    assert row.note.startswith("on the GPU; on the CPU ")
    (row,) = on_a_gpu.cell_times([ran("")], settings, time.monotonic())
    assert row.note == "on the GPU; the CPU was not reached"


def test_versions_other_than_the_pinned_are_named() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (torch_pin,) = [line.partition("==")[2] for line in pins if line.startswith("torch==")]
    assert on_a_gpu.other_than_pinned({"torch": f"{torch_pin}+cpu", "mpt-lml": "0"}) == []
    others = on_a_gpu.other_than_pinned({"torch": "2.0"})
    assert others == [f"torch 2.0 (pinned: {torch_pin})"]


@pytest.mark.parametrize(("fault", "status"), [("", 0), ("it put out 'b', stored is 'c'", 1)])
def test_a_failure_is_in_the_table_and_in_the_status(
    fault: str, status: int, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for step in ("device_tests", "scorer", "quick_presets", "cell_times"):
        monkeypatch.setattr(on_a_gpu, step, lambda *_: [])
    monkeypatch.setattr(on_a_gpu, "chapters", lambda *_: [ran("", fault)])
    file = tmp_path / "rows.json"
    assert on_a_gpu.main(["--tiny", "--json", str(file)]) == status
    (row,) = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert row["status"] == (FAILED if fault else PASSED)
    assert fault in capsys.readouterr().out.splitlines()[-3]


def test_without_a_gpu_it_says_so_and_ends_well() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable}
    command = ["bash", str(ROOT / ".ci" / "gpu")]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("There is no CUDA device here")
