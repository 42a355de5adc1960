"""Does the project work on a machine with a GPU of CUDA's, and what does it gain there?

    bash .ci/gpu                        at most nine minutes; it ends in a table
    bash .ci/gpu --json gpu.json        the table as JSON, too, with card, versions and commit
    bash .ci/gpu --tiny                 without a GPU: tries the script itself on a CPU

Five steps share the time: tests of devices, the scorer beside its network (benchmarks/gpu.py), each
experiment's quick preset on the GPU beside the CPU, every chapter's notebook with its outputs beside the
stored ones, and the times of its cells. What there was no time for is listed as not reached. Nothing is
loaded from the hub, and nothing is installed: the packages are those of the checkout.

The status is 1 where something failed, and 0 otherwise, also without a GPU.
"""

import argparse
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
from importlib.util import find_spec
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cells import CellRun, run_notebook

from experiments import experiment
from experiments.provenance import provenance
from mpt_lml.files import write_json
from mpt_lml.recorded import Outcome

ROOT = Path(__file__).resolve().parents[1]
DEVICE_TESTS = ROOT / "tests" / "unit" / "test_devices.py"

PASSED = "passed"
FAILED = "FAILED"
MEASURED = "measured"
LEFT_OUT = "left out"
NOT_REACHED = "not reached"
STATUSES = (PASSED, FAILED, NOT_REACHED, LEFT_OUT, MEASURED)

# Of the time that is left when a step begins. The chapters take longest and come last.
SHARE_OF_TESTS = 0.2
SHARE_OF_SCORER = 0.3
SHARE_OF_EXPERIMENTS = 0.3
SHARE_OF_CHAPTERS = 0.85

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
TINY_EXPERIMENTS = ["figure-1-left", "table-1"]
TINY_CHAPTERS = ["03", "14"]


class Row(NamedTuple):
    """A line of the table."""

    step: str
    what: str
    status: str
    seconds: float | None = None
    note: str = ""


# -- work in processes of their own -----------------------------------------------------------------


class Job(NamedTuple):
    """Work for one process, which gives its results one after the other."""

    name: str
    work: Callable[..., Iterable[Any]]
    arguments: tuple[Any, ...]


class Ended(NamedTuple):
    """What came of a job."""

    name: str
    results: list[Any]
    seconds: float
    status: str  # passed, failed or not reached
    note: str = ""


class _Running(NamedTuple):
    job: Job
    process: multiprocessing.process.BaseProcess
    start: float
    results: list[Any]


def in_processes(jobs: Iterable[Job], num_workers: int, deadline: float) -> Iterator[Ended]:
    """Do ``num_workers`` jobs at a time, until ``deadline`` (of ``time.monotonic``).

    Processes are forked from one that has imported the packages and has done nothing with the GPU.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mpt_lml", "mpt_score.networks", "on_a_gpu"])
    waiting = list(jobs)
    running: dict[connection.Connection, _Running] = {}
    while waiting or running:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        while waiting and len(running) < num_workers:
            job = waiting.pop(0)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_do, args=(sender, job.work, job.arguments), daemon=True
            )
            process.start()
            sender.close()  # the child's end is then the only one, and closes when it dies
            running[receiver] = _Running(job, process, time.monotonic(), [])
        for receiver in connection.wait(list(running), timeout=left):
            job, process, start, results = running[receiver]
            try:
                kind, value = receiver.recv()
            except EOFError:
                process.join()
                kind, value = "error", f"its process ended with status {process.exitcode}"
            if kind == "result":
                results.append(value)
                continue
            process.join()
            del running[receiver]
            status = PASSED if kind == "end" else FAILED
            yield Ended(job.name, results, time.monotonic() - start, status, value)
    for job, process, start, results in running.values():
        process.kill()
        process.join()
        yield Ended(job.name, results, time.monotonic() - start, NOT_REACHED, "stopped for time")
    for job in waiting:
        yield Ended(job.name, [], 0.0, NOT_REACHED)


def _do(sender: connection.Connection, work: Callable, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)  # as many processes as cores
    try:
        for result in work(*arguments):
            sender.send(("result", result))
    except Exception as error:
        sender.send(("error", in_one_line(error)))
    else:
        sender.send(("end", ""))


def in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def run_program(*arguments: object, deadline: float) -> tuple[int | None, str]:
    """Exit status of a Python program, None where it was stopped for time, and what it said."""
    command = [sys.executable, *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as file:
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=max(1.0, deadline - time.monotonic()),
                check=False,
            )
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = None
        file.seek(0)
        return status, file.read()


# -- the steps --------------------------------------------------------------------------------------


class Settings(NamedTuple):
    """What the steps share."""

    device: torch.device
    tiny: bool
    num_workers: int
    chapters: list[Path]
    experiments: list[str]


def device_tests(deadline: float) -> Iterator[Row]:
    """The tests of devices, which take the real one where there is one."""
    name = DEVICE_TESTS.name
    if not DEVICE_TESTS.exists():
        yield Row("tests", name, LEFT_OUT, note="this checkout has no such file")
        return
    if find_spec("pytest") is None:
        yield Row("tests", name, LEFT_OUT, note="pytest is not installed")
        return
    start = time.monotonic()
    status, output = run_program(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", DEVICE_TESTS, deadline=deadline
    )
    seconds = time.monotonic() - start
    if status is None:
        yield Row("tests", name, NOT_REACHED, seconds, "stopped for time")
        return
    if status != 0:
        print(output)
    last_line = output.strip().splitlines()[-1] if output.strip() else ""
    yield Row("tests", name, FAILED if status else PASSED, seconds, last_line)


def scorer(settings: Settings, deadline: float) -> Iterator[Row]:
    """Tokens a second of the scorer, of its network alone, and of the naive loop."""
    arguments: list[object] = []
    if settings.tiny:
        arguments = ["--tiny", "--lines", 4]
    elif torch.cuda.get_device_capability()[0] < 8:
        arguments = ["--lines", 100]  # a thousand take minutes on a T4
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        status, output = run_program(
            ROOT / "benchmarks" / "gpu.py", "--json", file, *arguments, deadline=deadline
        )
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    for row in rows:
        name = " ".join(
            str(row.pop(key)) for key in ("what", "precision", "num_lines") if key in row
        )
        note = ", ".join(f"{key.replace('_', ' ')} {value:.3g}" for key, value in row.items())
        yield Row("scorer", name, MEASURED, row.get("seconds"), note)
    seconds = time.monotonic() - start
    if status is None:
        yield Row("scorer", "what comes after it", NOT_REACHED, seconds, "stopped for time")
    elif status != 0:
        print(output)
        last_line = output.strip().splitlines()[-1] if output.strip() else ""
        yield Row("scorer", "benchmarks/gpu.py", FAILED, seconds, last_line)


def quantities(outcome: Outcome) -> dict[str, torch.Tensor]:
    """Everything that a run found, by name."""
    values = {f"array {name}": array.double().cpu() for name, array in outcome.arrays.items()}
    for name, finding in outcome.findings.items():
        error = finding.standard_error
        values[f"finding {name}"] = torch.tensor(finding.measured, dtype=torch.float64)
        values[f"error of {name}"] = torch.tensor(error or 0.0, dtype=torch.float64)
    return values


def farthest(one: Outcome, other: Outcome) -> tuple[float, str]:
    """The largest relative difference between two runs of the same settings, and where it is.

    It is infinite where they found different quantities. Checksums of data are left out: data that a
    GPU computes differ in their last bits.
    """
    values, theirs = quantities(one), quantities(other)
    if values.keys() != theirs.keys():
        return math.inf, "the names of what they found"
    largest, name = 0.0, ""
    for key, value in values.items():
        wanted = theirs[key]
        if value.shape != wanted.shape:
            return math.inf, f"the shape of {key}"
        if not torch.equal(value.isfinite(), wanted.isfinite()):
            return math.inf, f"where {key} is finite"
        finite = value.isfinite()
        if not finite.any():
            continue
        distance = (value - wanted)[finite].abs().max().item()
        scale = torch.maximum(value[finite].abs(), wanted[finite].abs()).max().item()
        relative = distance / (scale + ROUNDING)
        if relative > largest:
            largest, name = relative, key
    return largest, name


def compare_devices(name: str, device: str) -> Iterator[Row]:
    """The quick preset of an experiment, first on the CPU, then on ``device``."""
    start = time.monotonic()
    outcomes = [experiment.run(name, "quick", device=place) for place in ("cpu", device)]
    largest, where = farthest(*outcomes)
    tolerance = NETWORK_TOLERANCE if name in OF_NETWORKS else TOLERANCE
    status = FAILED if largest > tolerance else PASSED
    note = "no difference"
    if largest > 0:
        note = f"relative difference {largest:.1e} (allowed: {tolerance}) in {where}"
    # Of both together: so short a run says little of either.
    yield Row("experiments", name, status, time.monotonic() - start, note)


def quick_presets(settings: Settings, deadline: float) -> Iterator[Row]:
    """Each experiment that can use a GPU, on it and on the CPU."""
    on_the_cpu = [name for name in settings.experiments if not experiment.find(name).gpu]
    jobs = [
        Job(name, compare_devices, (name, settings.device.type))
        for name in settings.experiments
        if name not in on_the_cpu
    ]
    for ended in in_processes(jobs, settings.num_workers, deadline):
        if ended.status == PASSED:
            yield from ended.results
        else:
            yield Row("experiments", ended.name, ended.status, ended.seconds, ended.note)
    if on_the_cpu:
        note = "they compute on the CPU only"
        yield Row("experiments", ", ".join(on_the_cpu), LEFT_OUT, note=note)


def chapter_row(ended: Ended) -> Row:
    """A notebook passed if all of its cells put out what is stored."""
    faults = [cell for cell in ended.results if cell.fault]
    if not faults:
        note = ", ".join(filter(None, [ended.note, f"{len(ended.results)} cells as stored"]))
        return Row("chapters", ended.name, ended.status, ended.seconds, note)
    first = faults[0]
    note = f"cell {first.number} ({first.title}): {first.fault}"
    if len(faults) > 1:
        note += f"; others: {', '.join(str(cell.number) for cell in faults[1:])}"
    return Row("chapters", ended.name, FAILED, ended.seconds, note)


def run_chapter(path: Path, hide_gpu: bool) -> Iterator[CellRun]:
    if hide_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # read when CUDA is first used
    yield from run_notebook(path)


def chapters(
    paths: list[Path], num_workers: int, deadline: float, *, hide_gpu: bool = False
) -> Iterator[Ended]:
    """Run notebooks; what came of each."""
    jobs = [Job(path.stem, run_chapter, (path, hide_gpu)) for path in paths]
    return in_processes(jobs, num_workers, deadline)


def cell_times(ran: list[Ended], settings: Settings, deadline: float) -> Iterator[Row]:
    """The longest cells, and all that computed on the GPU, these beside a CPU."""
    all_cells = [(ended.name, cell) for ended in ran for cell in ended.results]
    all_cells.sort(key=lambda pair: -pair[1].seconds)
    used_gpu = {name for name, cell in all_cells if cell.used_gpu}
    again = [path for path in settings.chapters if path.stem in used_gpu]
    without = {
        (ended.name, cell.number): cell.seconds
        for ended in chapters(again, settings.num_workers, deadline, hide_gpu=True)
        for cell in ended.results
    }
    for place, (name, cell) in enumerate(all_cells):
        if place >= NUM_SLOW_CELLS and not cell.used_gpu:
            continue
        note = "on the CPU"
        if cell.used_gpu:
            seconds = without.get((name, cell.number))
            note = "on the GPU; the CPU was not reached"
            if seconds is not None:
                note = f"on the GPU; on the CPU {seconds:.1f} s"
        what = f"{name}, cell {cell.number}: {cell.title}"
        yield Row("cells", what, MEASURED, cell.seconds, note)


# -- the table --------------------------------------------------------------------------------------


def table(rows: list[Row]) -> str:
    """Rows in columns."""
    lines = []
    for row in rows:
        seconds = "" if row.seconds is None else f"{row.seconds:.1f} s"
        lines.append(f"{row.step:12} {row.status:12} {seconds:>8}  {row.what[:70]:42}  {row.note}")
    return "\n".join(lines)


def other_than_pinned(versions: dict[str, str]) -> list[str]:
    """Packages in other versions than those from which the stored outputs come."""
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, equals, version = line.partition("==")
        if equals:
            pins[name] = version.strip()
    return [
        f"{name} {version} (pinned: {pins[name]})"
        for name, version in versions.items()
        if name in pins and version.partition("+")[0] != pins[name]
    ]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything (default: 9)")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the table there, too")
    parser.add_argument("--tiny", action="store_true", help="a little of each step, on a CPU too")
    parser.add_argument("--chapters", nargs="*", help="as 03 09; all by default")
    parser.add_argument("--experiments", nargs="*", help="names; all by default")
    return parser


def chosen(options: argparse.Namespace) -> Settings:
    """What is to be done, and where."""
    beginnings = options.chapters
    names = options.experiments
    if options.tiny:
        beginnings = beginnings or TINY_CHAPTERS
        names = names or TINY_EXPERIMENTS
    notebooks = sorted((ROOT / "book").glob("*.ipynb"))
    return Settings(
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        tiny=options.tiny,
        num_workers=min(MAX_WORKERS, os.cpu_count() or 1),
        chapters=[path for path in notebooks if path.stem.startswith(tuple(beginnings or ("",)))],
        experiments=names or experiment.names(),
    )


def main(given: list[str] | None = None) -> int:
    options = arguments().parse_args(given)
    if not torch.cuda.is_available() and not options.tiny:
        print(
            "There is no CUDA device here, so that nothing was run: with one, this runs the tests of "
            "devices, the scorer's benchmark, each experiment's quick preset on the GPU beside the CPU, "
            "and every chapter's notebook, in nine minutes. --tiny tries it on a CPU."
        )
        return 0
    # Stored outputs are those of a machine without data files and without the hub.
    for name in ("MPT_LML_DATA", "MPT_LML_BERT"):
        os.environ.pop(name, None)
    os.environ.update(HF_HUB_OFFLINE="1", MPLBACKEND="Agg")
    # Asked otherwise whether there is a GPU, a process can no longer fork others that use it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    settings = chosen(options)
    end = time.monotonic() + 60 * options.minutes

    def by(share: float) -> float:
        now = time.monotonic()
        return now + share * (end - now)

    rows: list[Row] = []

    def keep(more: Iterable[Row]) -> None:
        for row in more:
            print(table([row]), flush=True)
            rows.append(row)

    keep(device_tests(by(SHARE_OF_TESTS)))
    keep(scorer(settings, by(SHARE_OF_SCORER)))
    keep(quick_presets(settings, by(SHARE_OF_EXPERIMENTS)))
    ran = []
    for ended in chapters(settings.chapters, settings.num_workers, by(SHARE_OF_CHAPTERS)):
        keep([chapter_row(ended)])
        ran.append(ended)
    keep(cell_times(ran, settings, end))

    about = provenance("bash .ci/gpu", settings.device.type)
    others = other_than_pinned(about["versions"])
    device = about["hardware"].get("gpu", "no GPU: only the script was tried")
    print(f"\n{device}; {os.cpu_count()} processors; commit {about['commit']}")
    print(f"other versions than the book's: {', '.join(others) or 'none'}\n")
    print(table(sorted(rows, key=lambda row: row.status != FAILED)))
    counts = Counter(row.status for row in rows)
    print("\n" + ", ".join(f"{counts[status]} {status}" for status in STATUSES))
    if options.json:
        cells = [{"chapter": each.name, **cell._asdict()} for each in ran for cell in each.results]
        content = {**about, "rows": [row._asdict() for row in rows], "cells": cells}
        write_json(options.json, content)
    return int(counts[FAILED] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
