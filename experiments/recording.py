"""Run an experiment for the command line and store what it finds."""

import dataclasses
import itertools
import json
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from experiments import ledger, provenance
from experiments.experiment import Experiment, RunContext, context_for, require_known
from experiments.options import RunOptions, as_arguments
from mpt_lml import files
from mpt_lml.files import book_file
from mpt_lml.recorded import Outcome

RESULTS_FOLDER = Path("mpt-lml-results")
"""Where results and states go that nobody named a place for."""
SECONDS_BETWEEN_NOTES = 1.0
INPUTS = ("config", "data_sha256", "weights")
"""The parts of a stored result that say what it was measured on."""


class Clock:
    """Seconds of a run over all of its parts; the earlier ones are noted beside its state."""

    def __init__(self, folder: Path | None, experiment: Experiment) -> None:
        self.note = folder / f"seconds-{_digest(experiment)}.json" if folder else None
        earlier = _noted_seconds(self.note) if self.note and self.note.exists() else 0.0
        now = time.perf_counter()
        self.start = now - earlier
        self.last_note = now

    def seconds(self) -> float:
        return round(time.perf_counter() - self.start, 2)

    def save(self) -> None:
        if self.note is not None:
            files.write_json(self.note, self.seconds())
        self.last_note = time.perf_counter()

    def progress(self, items: Iterable[Any], description: str) -> Iterator[Any]:
        """A bar on a terminal's standard error that also notes the time so far."""
        for item in tqdm(items, desc=description, disable=None, leave=False):
            yield item
            if time.perf_counter() - self.last_note > SECONDS_BETWEEN_NOTES:
                self.save()


def _noted_seconds(note: Path) -> float:
    """What :meth:`Clock.save` has written."""
    try:
        seconds = files.read_json(note)
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    except ValueError:
        is_number = False
    if not is_number or not 0.0 <= seconds < math.inf:
        raise files.CheckpointMismatchError(
            f"{note} is damaged: it must hold the seconds that the parts of this run took so far, a "
            "number. Remove it; the time is then counted from here."
        )
    return float(seconds)


def run_and_store(kind: type[Experiment], options: RunOptions, settings: Mapping[str, Any]) -> None:
    """Run one experiment; print, or write, what it found.

    Args:
        kind: The experiment.
        options: Its preset, and where the result goes.
        settings: What replaces fields of the preset.

    Raises:
        ValueError: For settings that the experiment refuses.
        OSError: For a place that cannot be written, before any work.
        KeyboardInterrupt: When interrupted; the message says where the same command goes on.
    """
    experiment = kind.preset(options.preset, **settings)
    if not experiment.resumable and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # two gain little with small matrices, and lose where it is busy
    is_recorded = _is_recorded(experiment, options)
    target = _target(experiment, options, is_recorded)
    folder = _state_folder(experiment, options)
    clock = Clock(folder, experiment)
    context = context_for(experiment, options.device, clock.progress, folder)
    outcome = _run(experiment, context, clock, folder)
    given = shlex.join(_command(experiment, options, settings))
    content = {
        "experiment": experiment.name,
        "preset": options.preset,
        "config": dataclasses.asdict(experiment),
        **outcome.as_dict(),
        "seconds": clock.seconds(),
        "provenance": provenance.provenance(given, context.device.type),
    }
    if target is None:
        json.dump(content, sys.stdout, indent=2, allow_nan=False)
        print()
        return
    if not is_recorded and options.json is None:
        target = _free_path(target, content)
    files.write_json(target, content)
    print(f"wrote {target}")
    if folder is not None and options.checkpoints is None:
        shutil.rmtree(folder, ignore_errors=True)
    _report(outcome, is_recorded)


def _is_recorded(experiment: Experiment, options: RunOptions) -> bool:
    """Whether the book's results and ledger get this run: one as published, put nowhere else."""
    as_published = experiment == type(experiment).preset("paper")
    return as_published and options.json is None and options.out is None


def _target(experiment: Experiment, options: RunOptions, is_recorded: bool) -> Path | None:
    """Where the result goes (``None``: standard output), proven writable before any work."""
    if options.json == "-":
        return None
    if options.json is not None:
        path = Path(options.json)
    elif options.out is not None:
        path = Path(options.out, f"{experiment.name}.json")
    else:
        home = book_file("results") if is_recorded else RESULTS_FOLDER
        path = home / f"{experiment.name}.json"
    files.require_target(path)
    return path


def _state_folder(experiment: Experiment, options: RunOptions) -> Path | None:
    """The folder for the state of a run that has one; runs of other settings have others."""
    if options.checkpoints is not None:
        return files.require_writable(options.checkpoints)
    if not experiment.resumable:
        return None
    name = f"{experiment.name}-{options.preset}"
    if experiment != type(experiment).preset(options.preset):
        name += f"-{_digest(experiment)}"
    return files.require_writable(RESULTS_FOLDER / "checkpoints" / name)


def _digest(experiment: Experiment) -> str:
    """A short name of all settings."""
    return files.digest(repr(experiment), {})[:12]


def _run(experiment: Experiment, context: RunContext, clock: Clock, folder: Path | None) -> Outcome:
    """Measure; the time is noted however it ends."""
    try:
        return experiment.run(context)
    except KeyboardInterrupt:
        clock.save()
        if folder is None:
            raise
        raise KeyboardInterrupt(f"the same command goes on from {folder}") from None
    except BaseException:
        clock.save()
        raise


def _command(experiment: Experiment, options: RunOptions, settings: Mapping[str, Any]) -> list[str]:
    """The command that measures the same again, wherever its result goes."""
    preset = [] if options.preset == "paper" else ["--preset", options.preset]
    return ["python", "-m", "experiments", "run", experiment.name, *preset, *as_arguments(settings)]


def _free_path(path: Path, content: Mapping[str, Any]) -> Path:
    """``path``, or the first of its numbered siblings that holds no result of other inputs."""
    inputs = json.loads(json.dumps([content.get(key) for key in INPUTS], default=str))
    siblings = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    for candidate in itertools.chain([path], siblings):
        if not candidate.exists() or _stored_inputs(candidate) == inputs:
            return candidate
    raise AssertionError("there is always one more number")


def _stored_inputs(path: Path) -> list[Any] | None:
    """What the result in ``path`` was measured on; ``None`` where it is no result of ours."""
    try:
        content = files.read_json(path)
        return [content.get(key) for key in INPUTS]
    except (OSError, ValueError, AttributeError):
        return None


def _report(outcome: Outcome, is_recorded: bool) -> None:
    """Enter the findings into the ledger, if this run is recorded, and print them as it has them."""
    if is_recorded:
        print(_tables(ledger.record(outcome.findings, ledger.location())))
        return
    for name, finding in outcome.findings.items():
        print(f"{name}: {finding.measured:.6g}")


def comparison(name: str | None) -> str:
    """Measured against published, as text.

    Args:
        name: An experiment or a recorded run; ``None`` for all of them.
    """
    if name is not None:
        require_known(name)
    return _tables(ledger.compare(name, ledger.location()))


def _tables(entries: Sequence[Mapping[str, Any]]) -> str:
    """What the paper prints with its verdicts, then what this book finds, as aligned columns."""
    printed = [entry for entry in entries if "verdict" in entry]
    found = [entry for entry in entries if "verdict" not in entry]
    tables = []
    if printed:
        columns = ("published", "measured", "standard_error", "unit", "verdict")
        tables.append(_table("in the paper", columns, printed))
    if found:
        tables.append(_table("found by this book", ("measured", "standard_error", "unit"), found))
    return "\n\n".join(tables) or "the ledger has no entry for this experiment"


def _table(title: str, columns: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> str:
    headings = [column.replace("standard_error", "std. error") for column in columns]
    rows = [[title, *headings]]
    rows += [[entry["id"], *(_cell(entry[column]) for column in columns)] for entry in entries]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines)


def _cell(value: str | float | None) -> str:
    if isinstance(value, str):
        return value
    return "–" if value is None else f"{value:.6g}"
