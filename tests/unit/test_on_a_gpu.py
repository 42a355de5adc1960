"""What .ci/gpu does, as far as a machine without a GPU can tell."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from experiments import experiment
from mpt_lml.data import DataNotFoundError, images
from mpt_lml.data.sources import DATA_VARIABLE
from mpt_lml.recorded import Finding, Outcome

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import on_a_gpu
from cells import FULL, TRAINS, CellRun, run_notebook
from on_a_gpu import FAILED, MEASURED, NOT_IN_FULL, NOT_REACHED, PASSED, Row

ROOT = Path(__file__).parents[2]


# -- notebooks ----------------------------------------------------------------------------------------


def code(source: str, *outputs: dict, tags: tuple[str, ...] = ()) -> dict:
    lines = source.splitlines(keepends=True)
    metadata = {"tags": list(tags)}
    return {"cell_type": "code", "source": lines, "outputs": list(outputs), "metadata": metadata}


def printed(text: str, name: str = "stdout") -> dict:
    return {"output_type": "stream", "name": name, "text": text.splitlines(keepends=True)}


def displayed(**data: str) -> dict:
    kinds = {kind.replace("_", "/"): text for kind, text in data.items()}
    return {"output_type": "display_data", "metadata": {}, "data": kinds}


def faults_of(folder: Path, *cells: dict) -> list[str]:
    """What a run of a notebook of these cells finds."""
    path = folder / "99-sample.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    return [run.fault for run in run_notebook(path)]


FIGURE = """\
import matplotlib.pyplot as plt
print("before")
plt.subplots(figsize=(3, 2))
plt.show()
print("after")"""
GLUE = """\
from mpt_lml.page import glue
glue("99-half", "0.50")"""
HTML = "from IPython.display import HTML\nHTML(f'<b>{half + 6.5:.0f}</b>')"


class TestNotebook:
    @pytest.fixture(autouse=True)
    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a run leaves in its process is put back."""
        import IPython.display

        monkeypatch.setitem(sys.modules, "IPython.display", IPython.display)

    def test_cells_that_put_out_what_is_stored(self, tmp_path: Path) -> None:
        """Each kind of output that the book has, and what a cell defines is there in the next."""
        picture = displayed(image_png="abc", text_plain="<Figure size 300x200 with 1 Axes>")
        html = displayed(text_html="<b>7</b>", text_plain="<IPython.core.display.HTML object>")
        faults = faults_of(
            tmp_path,
            code("this is no Python", tags=("colab",)),
            {"cell_type": "markdown", "source": ["text"], "metadata": {}},
            code(
                "half = 0.5\nprint(half, end='')\nprint('!')",
                printed("a warning\n", "stderr"),
                printed("0.5!\n"),
            ),
            code(FIGURE, printed("before\n"), picture, printed("after\n")),
            code(GLUE, displayed(**{"application/papermill.record/text/plain": "'0.50'"})),
            code(HTML, html),
            code("print('not run here (no network): 3')", printed("not run here (no GPU): 3\n")),
        )
        assert faults == [""] * 5

    def test_missing_data_are_no_fault(self, tmp_path: Path, monkeypatch) -> None:
        """On a GPU cells that train ask for data, which .ci/gpu hides; stored outputs do not."""
        monkeypatch.delenv(DATA_VARIABLE, raising=False)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(DataNotFoundError) as missing:
            images("mnist")
        tells = ("No MNIST here: install `datasets`.", f"The images are not here: {missing.value}")
        faults = faults_of(
            tmp_path, *(code(f"print({told!r})\nprint(1)", printed("1\n")) for told in tells)
        )
        assert faults == ["", ""]

    def test_a_training_has_passed_if_it_took_all_its_steps(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its seconds are those of the cell that trains, not of the comparison."""
        monkeypatch.setattr(on_a_gpu, "ROOT", tmp_path)
        book = tmp_path / "book"
        book.mkdir()
        settings = (
            "from dataclasses import dataclass, replace\n@dataclass\nclass Settings:\n    {}: int\n"
        )
        said = (
            "Compared with the record: steps.\n"
            "Largest difference 0.1 nats (0.2 allowed): agrees with the record.\n"
        )

        def chapter(num_steps: int, name: str) -> Row:
            define = code(settings.format(name) + "FULL = Settings(3000)")
            train = code(f"settings = replace(FULL, {name}={num_steps})")
            compare = code(f"print({said!r}, end='')" if num_steps == 3000 else "")
            faults_of(book, define, train, compare)
            return on_a_gpu.run_chapter("99-sample")

        for name in ("num_steps", "num_epochs", "steps"):
            short = chapter(30, name)
            assert short.status == NOT_IN_FULL
            assert short.training is None
            assert "30 of 3000 steps" in short.note
            full = chapter(3000, name)
            assert full.status == PASSED
            assert full.training == full.cells[1].seconds
            assert full.step_milliseconds == pytest.approx(full.training / 3)
            assert full.note.endswith("; Largest difference 0.1 nats (0.2 allowed)")

    def test_a_training_that_is_wrong_has_failed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Though it is short, too."""
        monkeypatch.setattr(on_a_gpu, "ROOT", tmp_path)
        book = tmp_path / "book"
        book.mkdir()
        define = code("from types import SimpleNamespace as Settings\nFULL = Settings(steps=2)")
        train = code("replace = Settings\nsettings = replace(steps=1)\nprint(1)", printed("2\n"))
        faults_of(book, define, train)
        row = on_a_gpu.run_chapter("99-sample")
        assert row.status == FAILED
        assert row.note.startswith("cell 1 ")

    def test_a_wrong_output_is_seen(self, tmp_path: Path) -> None:
        number, right, text, less, glued = faults_of(
            tmp_path,
            code("print('area −1.5')", printed("area −3.0\n")),
            code("print('right')", printed("right\n")),
            code("print('a\\nb')", printed("a\nc\n")),
            code("print('a')", printed("a\nmore\n")),
            code(GLUE, displayed(**{"application/papermill.record/text/plain": "0.50"})),
        )
        assert number == "its numbers differ by up to 0.5 of their size"
        assert right == ""
        assert text == "it put out 'b', stored is 'c'"
        assert less == "it put out '', stored is 'more'"
        assert glued.startswith("it put out ")

    def test_an_error_is_a_fault_and_ends_it(self, tmp_path: Path) -> None:
        faults = faults_of(tmp_path, code("1 / 0"), code("print('never')"))
        assert faults == ["ZeroDivisionError: division by zero"]


def test_each_chapter_with_full_settings_has_one_cell_that_trains() -> None:
    num_chapters = 0
    for path in sorted((ROOT / "book").glob("*.ipynb")):
        sources = ["".join(cell["source"]) for cell in json.loads(path.read_text("utf-8"))["cells"]]
        if any(re.search(rf"^{FULL} = ", source, re.MULTILINE) for source in sources):
            num_chapters += 1
            assert sum(TRAINS.search(source) is not None for source in sources) == 1, path.stem
    assert num_chapters >= 6


@pytest.mark.parametrize(("fault", "status"), [("", PASSED), ("other numbers", FAILED)])
def test_a_chapter_passes_if_each_cell_is_right(
    fault: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [CellRun(1, "first", 1.0, fault), CellRun(2, "second", 1.0, "")]
    monkeypatch.setattr(on_a_gpu, "run_notebook", lambda _: runs)
    row = on_a_gpu.run_chapter("99-sample")
    assert row.status == status and fault in row.note


# -- experiments --------------------------------------------------------------------------------------

BASE = Outcome(
    {"gap": Finding(2.0, 0.5)},
    {"curve": torch.tensor([4.0, 1.0, math.nan]), "few": torch.tensor([1])},
)


def with_array(name: str, *values: float) -> Outcome:
    return dataclasses.replace(BASE, arrays=BASE.arrays | {name: torch.tensor(values)})


OTHERS = [
    (BASE, 0.0, ""),
    (dataclasses.replace(BASE, findings={"gap": Finding(2.02, 0.5)}), 0.02 / 2.02, "finding gap"),
    (dataclasses.replace(BASE, findings={"gap": Finding(2.0, 0.4)}), 0.1 / 0.5, "error of gap"),
    (dataclasses.replace(BASE, findings={}), math.inf, "the names of what they found"),
    (with_array("few", 2), 0.5, "array few"),
    (with_array("few", 1, 1), math.inf, "the shape of array few"),
    (with_array("curve", 4.0, 1.0, 0.0), math.inf, "where array curve is finite"),
    (with_array("few", math.nan), math.inf, "where array few is finite"),
]


@pytest.mark.parametrize(("other", "largest", "where"), OTHERS)
def test_how_far_two_runs_are_apart(other: Outcome, largest: float, where: str) -> None:
    # The allowance for rounding is at most that part of a scale, which here is 0.5 at least.
    tolerance = 2 * on_a_gpu.ROUNDING
    assert on_a_gpu.farthest(BASE, other) == (pytest.approx(largest, rel=tolerance), where)


def test_a_run_that_differs_on_another_device_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"cpu": BASE, "cuda": dataclasses.replace(BASE, findings={"gap": Finding(2.02, 0.5)})}
    monkeypatch.setattr(on_a_gpu.experiment, "run", lambda name, preset, *, device: runs[device])
    row = on_a_gpu.compare_devices("cuda", "table-1")
    assert row.status == FAILED
    assert row.note == "relative difference 9.9e-03 (allowed: 0.001) in finding gap"
    # Small differences of networks after training move more.
    assert on_a_gpu.compare_devices("cuda", "text-rates").status == PASSED


# -- trainings ----------------------------------------------------------------------------------------


class Training:
    """A stand-in for an experiment that takes four steps of a hundredth of a second."""

    gpu = True
    resumable = False

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def preset(self, preset: str) -> Training:
        return self

    def run(self, context: experiment.RunContext) -> Outcome:
        for _ in context.progress(range(4), "a network, step"):
            time.sleep(0.01)
        for _ in context.progress(range(2), "LML of seed"):
            time.sleep(0.1)
        return self.outcome


@pytest.mark.parametrize(
    ("preset", "outcome", "status"),
    [
        ("paper", with_array("few", 2), PASSED),
        ("paper", with_array("few", 1, 1), FAILED),
        ("quick", with_array("few", 2), NOT_IN_FULL),
        ("quick", with_array("few", 1, 1), NOT_IN_FULL),
    ],
)
def test_a_training_is_timed_and_set_beside_its_record(
    preset: str, outcome: Outcome, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_a_gpu.experiment, "find", lambda name: Training(outcome))
    monkeypatch.setattr(
        on_a_gpu.experiment,
        "context_for",
        lambda chosen, device, progress: experiment.RunContext(progress=progress),
    )
    monkeypatch.setattr(on_a_gpu.mpt_lml, "load", lambda name: BASE)
    row = on_a_gpu.train_again("cpu", preset, "known-language")
    assert row.status == status
    assert row.step_milliseconds is not None
    assert 10 <= row.step_milliseconds < 1000 * row.seconds / 4 - 10
    assert row.note.startswith("4 steps, ")
    assert row.note.endswith(" array few")


def test_trainings_are_experiments_that_use_a_gpu() -> None:
    for name in on_a_gpu.TRAININGS:
        assert on_a_gpu.experiment.find(name).gpu


# -- the scorer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "capability", "counts"),
    [("bfloat16", 9, (100, 1000)), ("float32", 9, (100,)), ("float16", 7, (100,))],
)
def test_a_thousand_lines_are_for_the_fast_precision_of_a_fast_card(
    precision: str, capability: int, counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu  # here, since it brings transformers, which the processes below do not need

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (capability, 0))
    assert gpu.line_counts(torch.device("cuda"), precision) == counts


# -- the rest -----------------------------------------------------------------------------------------


def work(name: str) -> Row:
    """What a process of its own may do."""
    if name == "raises":
        raise ValueError("one\ntwo")
    if name == "stays":
        time.sleep(3600)
    return Row("step", name, PASSED)


def test_what_fails_and_what_there_is_no_time_for_has_not_passed() -> None:
    def statuses(names: list[str], seconds: float) -> list[tuple[str, str]]:
        rows = on_a_gpu.in_processes("step", work, names, time.monotonic() + seconds)
        return [(row.what, row.status) for row in rows]

    assert statuses(["ends", "raises"], 600) == [("ends", PASSED), ("raises", FAILED)]
    # When the second is asked for there is no time left.
    assert statuses(["stays", "stays"], 1) == [("stays", NOT_REACHED)] * 2


@pytest.mark.parametrize(("result", "status"), [(PASSED, 0), (NOT_REACHED, 0), (FAILED, 1)])
def test_a_failure_is_in_the_table_and_in_the_status(
    result: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    cell = CellRun(4, "longest", 2.0, "a fault")

    def steps(step: str, *_: object) -> Iterator[Row]:
        if step == "chapters":
            yield Row(step, "03-sample", result, cells=(cell,))

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(on_a_gpu, "device_tests", lambda _: Row("tests", "", MEASURED))
    monkeypatch.setattr(on_a_gpu, "scorer", lambda *_: [])
    monkeypatch.setattr(on_a_gpu, "in_processes", steps)
    file = tmp_path / "rows.json"
    assert on_a_gpu.main(["--tiny", "--json", str(file)]) == status
    _, chapter, longest = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert chapter["status"] == result and chapter["cells"][0]["number"] == 4
    assert longest["what"] == "03-sample, cell 4: longest" and longest["seconds"] == 2.0
    assert f"1 {result}" in capsys.readouterr().out.splitlines()[-1]


def test_without_a_gpu_it_says_so_and_ends_well() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable}
    command = ["bash", str(ROOT / ".ci" / "gpu")]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("There is no CUDA device here")
