"""Does the project work on a machine with a GPU of CUDA's, and what does it gain there?

    bash .ci/gpu                                at most nine minutes; it ends in a table
    bash .ci/gpu --json benchmarks/gpu.json     the table as JSON, too, with card, versions and commit
    bash .ci/gpu --tiny                         without a GPU: tries the script itself on a CPU

Six steps share the time: tests of devices, the scorer beside its network (benchmarks/gpu.py), each
quick preset of an experiment that can use a GPU there beside the CPU, every chapter's notebook with its
outputs beside the stored ones, the trainings of the experiments beside their records, and the longest of
the chapters' cells. A training has its milliseconds a step. One that took fewer steps than its record has
not passed: it is "not in full". So MPT_LML_DATA should name the folder of MNIST and the books, which a
chapter trains on. What there was no time for is listed as not reached. Nothing is loaded from the hub,
and nothing is installed: the packages are those of the checkout.

The page "How to run" shows what `benchmarks/gpu.json` says of the chapters. Make it at a commit without
changes.

The status is 1 where something failed, and 0 otherwise, also without a GPU.
"""

import argparse
import dataclasses
import functools
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import CellRun, run_notebook

import mpt_lml
from experiments import experiment
from experiments.provenance import provenance
from experiments.records import write_json
from mpt_lml.recorded import Outcome

ROOT = Path(__file__).resolve().parents[1]

PASSED = "passed"
FAILED = "FAILED"
MEASURED = "measured"
NOT_IN_FULL = "not in full"  # a training that took fewer steps than that of its record
NOT_REACHED = "not reached"
STATUSES = (PASSED, FAILED, NOT_IN_FULL, NOT_REACHED, MEASURED)

# Of the whole time, when a step has to be over. The trainings have the rest.
END_OF_TESTS = 0.18
END_OF_SCORER = 0.32
END_OF_EXPERIMENTS = 0.42
END_OF_CHAPTERS = 0.75

# Two devices add up in different orders. A quantity differs where it is off by more than this, relative
# to the largest entry of its array. Measured on a CPU, in the quick presets: other kernels change 1e-4
# at most, other seeds 0.29 at least.
TOLERANCE = 1e-3
# These report small differences of what networks in single precision say, after training: other kernels
# change some of them by 0.11, other seeds by 0.43 at least.
NETWORK_TOLERANCE = 0.25
OF_NETWORKS = ("antibody-curves", "bert-curve", "known-language", "text-rates")
ROUNDING = 1e-3  # added to the largest entry, for what is zero up to rounding

MAX_WORKERS = 8  # each holds some 0.5 GB of the card
NUM_SLOW_CELLS = 10
# Experiments that train, of those that can use a GPU, the shortest first.
TRAININGS = ("known-language", "small-bert", "figure-6", "figure-3-lower", "whole-tables")
TRAININGS += ("figure-3-upper", "six-sentences")
TINY_EXPERIMENTS = ("figure-1-left", "table-1")
TINY_CHAPTERS = ("03", "11", "14")
TINY_TRAININGS = ("known-language",)


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table."""

    step: str
    what: str
    status: str
    seconds: float | None = None
    note: str = ""
    cells: tuple[CellRun, ...] = ()  # of a chapter
    training: float | None = None  # seconds, of all, in which a chapter trains at full settings
    step_milliseconds: float | None = None  # of a training


# -- other processes --------------------------------------------------------------------------------


def run_program(step: str, what: str, *arguments: object, deadline: float) -> Row:
    """Run a Python program; the last line that it says is the row's note."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds_until(deadline),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Row(step, what, NOT_REACHED, time.monotonic() - start, "stopped for time")
    status = PASSED
    if done.returncode != 0:
        status = FAILED
        print(done.stdout)
    last_line = done.stdout.strip().rpartition("\n")[2]
    return Row(step, what, status, time.monotonic() - start, last_line)


def in_processes(
    step: str, work: Callable[[str], Row], names: list[str], deadline: float
) -> Iterator[Row]:
    """The rows of ``work(name)`` for each name, each in a process of its own.

    Processes are spawned: in a fork of one that has asked for a GPU, CUDA cannot be used.
    """
    context = multiprocessing.get_context("spawn")
    num_workers = min(MAX_WORKERS, os.cpu_count() or 1)
    with context.Pool(num_workers, maxtasksperchild=1) as pool:
        results = [pool.apply_async(work, (name,)) for name in names]
        for name, result in zip(names, results, strict=True):
            try:
                row = result.get(timeout=seconds_until(deadline))
            except multiprocessing.TimeoutError:  # or its process was killed, and says nothing more
                row = Row(step, name, NOT_REACHED)
            except Exception as error:
                first_line = str(error).partition("\n")[0]
                row = Row(step, name, FAILED, note=f"{type(error).__name__}: {first_line[:200]}")
            yield row


def seconds_until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


# -- the steps --------------------------------------------------------------------------------------


def device_tests(deadline: float) -> Row:
    """The tests of devices, which take the real one where there is one."""
    file = ROOT / "tests" / "unit" / "test_devices.py"
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    return run_program("tests", file.name, *pytest, file, deadline=deadline)


def scorer(tiny: bool, deadline: float) -> Iterator[Row]:
    """Tokens a second of the scorer, of its network alone, and of the naive loop."""
    program = ROOT / "benchmarks" / "gpu.py"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        arguments: list[object] = ["--json", file]
        if tiny:
            arguments.append("--tiny")
        ended = run_program("scorer", program.name, program, *arguments, deadline=deadline)
        measured = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    for values in measured:
        names = [
            str(values.pop(key)) for key in ("what", "precision", "num_lines") if key in values
        ]
        note = ", ".join(f"{key.replace('_', ' ')} {value:.3g}" for key, value in values.items())
        yield Row("scorer", " ".join(names), MEASURED, values.get("seconds"), note)
    if ended.status != PASSED:  # what was measured before counts
        yield ended


def quantities(outcome: Outcome) -> dict[str, np.ndarray]:
    """Everything that a run found, by name."""
    values = {f"array {name}": array.double().numpy() for name, array in outcome.arrays.items()}
    for name, finding in outcome.findings.items():
        values[f"finding {name}"] = np.array(finding.measured)
        values[f"error of {name}"] = np.array(finding.standard_error or 0.0)
    return values


def farthest(one: Outcome, other: Outcome) -> tuple[float, str]:
    """The largest relative difference between two runs of the same settings, and where it is.

    It is infinite where they found different quantities. Checksums of data are left out: data that a
    GPU computes differ in their last bits.
    """
    values = quantities(one)
    theirs = quantities(other)
    if values.keys() != theirs.keys():
        return math.inf, "the names of what they found"
    largest, where = 0.0, ""
    for name, value in values.items():
        wanted = theirs[name]
        if value.shape != wanted.shape:
            return math.inf, f"the shape of {name}"
        if np.array_equal(value, wanted, equal_nan=True):
            continue
        finite = np.isfinite(value) & np.isfinite(wanted)
        if not np.array_equal(value[~finite], wanted[~finite], equal_nan=True):
            return math.inf, f"where {name} is finite"
        distance = np.abs(value - wanted)[finite].max()
        scale = np.maximum(np.abs(value), np.abs(wanted))[finite].max()
        relative = float(distance / (scale + ROUNDING))
        if relative > largest:
            largest, where = relative, name
    return largest, where


def compare_devices(device: experiment.Device, name: str) -> Row:
    """The quick preset of an experiment, first on the CPU, then on ``device``."""
    start = time.monotonic()
    on_cpu = experiment.run(name, "quick", device="cpu")
    largest, where = farthest(on_cpu, experiment.run(name, "quick", device=device))
    tolerance = NETWORK_TOLERANCE if name in OF_NETWORKS else TOLERANCE
    note = "no difference"
    if largest > 0:
        note = f"relative difference {largest:.1e} (allowed: {tolerance}) in {where}"
    status = PASSED if largest <= tolerance else FAILED
    # Seconds of both together: so short a run says little of either.
    return Row("experiments", name, status, time.monotonic() - start, note)


def run_chapter(name: str) -> Row:
    """A notebook passes if all of its cells put out what is stored, and what it trains is in full."""
    start = time.monotonic()
    cells = tuple(run_notebook(ROOT / "book" / f"{name}.ipynb"))
    seconds = time.monotonic() - start
    notes = [f"{len(cells)} cells as stored"]
    status = PASSED
    training = None
    step_milliseconds = None
    for cell in cells:
        if cell.num_steps:
            step_milliseconds = 1000 * cell.seconds / cell.num_steps
            notes.append(
                f"{cell.num_steps} of {cell.num_full_steps} steps, {step_milliseconds:.3g} ms a step"
            )
            if cell.num_steps < cell.num_full_steps:
                status = NOT_IN_FULL
            else:
                training = cell.seconds
        if cell.compared:
            notes.append(cell.compared)
    faults = [f"cell {cell.number} ({cell.title}): {cell.fault}" for cell in cells if cell.fault]
    if faults:
        status = FAILED
        notes[0] = f"{faults[0]}; {len(faults) - 1} more"
    note = "; ".join(notes)
    return Row("chapters", name, status, seconds, note, cells, training, step_milliseconds)


class Stopwatch:
    """Progress that takes the time of every loop over steps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.num_steps = 0

    def __call__(self, items: Iterable[Any], description: str) -> Iterable[Any]:
        if not description.endswith(("step", "epoch")):
            return items
        return self.timed(items)

    def timed(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            start = time.perf_counter()
            yield item
            self.seconds += time.perf_counter() - start
            self.num_steps += 1


def train_again(device: experiment.Device, preset: experiment.Preset, name: str) -> Row:
    """An experiment that trains, at a preset, beside the record of the paper's preset."""
    start = time.monotonic()
    chosen = experiment.find(name).preset(preset)
    watch = Stopwatch()
    outcome = chosen.run(experiment.context_for(chosen, device, watch))
    seconds = time.monotonic() - start
    # The card computes on after the last step, but no longer than a step.
    step_milliseconds = 1000 * watch.seconds / watch.num_steps if watch.num_steps else None
    largest, where = farthest(outcome, mpt_lml.load(name))
    note = f"relative difference from the record {largest:.1e} in {where}"
    status = PASSED if math.isfinite(largest) else FAILED
    if preset != "paper":
        status = NOT_IN_FULL
        note = f"the {preset} preset; {note}"
    if step_milliseconds is not None:
        note = f"{watch.num_steps} steps, {step_milliseconds:.3g} ms a step; {note}"
    return Row("trainings", name, status, seconds, note, (), None, step_milliseconds)


def cell_times(rows: list[Row]) -> Iterator[Row]:
    """The longest cells of the chapters. They compute on the CPU, as the hub's networks are not here."""
    times = [(cell.seconds, row.what, cell) for row in rows for cell in row.cells]
    times.sort(key=lambda time: -time[0])
    for seconds, chapter, cell in times[:NUM_SLOW_CELLS]:
        yield Row("cells", f"{chapter}, cell {cell.number}: {cell.title}", MEASURED, seconds)


# -- the table --------------------------------------------------------------------------------------


def table(rows: Iterable[Row]) -> str:
    """Rows in columns."""
    lines = []
    for row in rows:
        seconds = "" if row.seconds is None else f"{row.seconds:.1f} s"
        lines.append(f"{row.step:12} {row.status:12} {seconds:>8}  {row.what[:70]:42}  {row.note}")
    return "\n".join(lines)


def set_environment() -> None:
    """For the processes of all steps."""
    # Stored outputs are those of a machine without networks of the hub. Data are for trainings.
    os.environ.pop("MPT_LML_BERT", None)
    os.environ["TQDM_DISABLE"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_CACHE"] = str(ROOT / "_build" / "empty-cache")
    os.environ["MPLBACKEND"] = "Agg"
    os.environ["OMP_NUM_THREADS"] = "1"  # as many processes as cores
    # Else a card's convolutions round their numbers to ten bits.
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything (default: 9)")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the table there, too")
    parser.add_argument("--tiny", action="store_true", help="a little of each step, on a CPU too")
    options = parser.parse_args(given)
    if not torch.cuda.is_available() and not options.tiny:
        print(
            "There is no CUDA device here, so that nothing was run: with one, this runs the tests of "
            "devices, the scorer's benchmark, each experiment's quick preset on the GPU beside the CPU, "
            "every chapter's notebook and the trainings at full settings, in nine minutes. --tiny tries "
            "it on a CPU."
        )
        return 0
    device: experiment.Device = "cuda" if torch.cuda.is_available() else "cpu"
    set_environment()
    start = time.monotonic()
    chapters = sorted(path.stem for path in (ROOT / "book").glob("*.ipynb"))
    experiments = [name for name in experiment.names() if experiment.find(name).gpu]
    trainings = TRAININGS
    preset: experiment.Preset = "paper"
    if options.tiny:
        chapters = [name for name in chapters if name.startswith(TINY_CHAPTERS)]
        experiments = list(TINY_EXPERIMENTS)
        trainings = TINY_TRAININGS
        preset = "quick"
    rows: list[Row] = []

    def keep(more: Iterable[Row]) -> None:
        for row in more:
            print(table([row]), flush=True)
            rows.append(row)

    def at(share: float) -> float:
        return start + share * 60 * options.minutes

    keep([device_tests(at(END_OF_TESTS))])
    keep(scorer(options.tiny, at(END_OF_SCORER)))
    compare = functools.partial(compare_devices, device)
    keep(in_processes("experiments", compare, experiments, at(END_OF_EXPERIMENTS)))
    keep(in_processes("chapters", run_chapter, chapters, at(END_OF_CHAPTERS)))
    train = functools.partial(train_again, device, preset)
    keep(in_processes("trainings", train, list(trainings), at(1.0)))
    keep(cell_times(rows))

    about = provenance("bash .ci/gpu", device)
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    card = about["hardware"].get("gpu", "no GPU: only the script was tried")
    print(f"\n{card}; {os.cpu_count()} processors; commit {about['commit']}")
    # Other versions of torch and transformers start random networks with other weights.
    print(f"{versions}; the stored outputs are from those in constraints.txt\n")
    print(table(sorted(rows, key=lambda row: row.status != FAILED)))
    counts = Counter(row.status for row in rows)
    print("\n" + ", ".join(f"{counts[status]} {status}" for status in STATUSES))
    if options.json:
        write_json(options.json, {**about, "rows": [dataclasses.asdict(row) for row in rows]})
    return int(counts[FAILED] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
