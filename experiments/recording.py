"""Run an experiment for the command line and store what it finds."""

import dataclasses
import math
import os
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from experiments import ledger, provenance, records
from experiments.experiment import (
    Device,
    Experiment,
    Preset,
    RunContext,
    context_for,
    require_known,
)
from experiments.records import as_dict
from mpt_lml import files
from mpt_lml.files import book_file
from mpt_lml.recorded import Outcome

RESULTS_FOLDER = Path("mpt-lml-results")
"""Folder of results and states for which no place is named."""
SECONDS_BETWEEN_NOTES = 1.0


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
            records.write_json(self.note, self.seconds())
        self.last_note = time.perf_counter()

    def progress(self, items: Iterable[Any], description: str) -> Iterator[Any]:
        """A bar on a terminal's standard error that also notes the time so far."""
        for item in tqdm(items, desc=description, disable=None, leave=False):
            yield item
            if time.perf_counter() - self.last_note > SECONDS_BETWEEN_NOTES:
                self.save()


def _noted_seconds(note: Path) -> float:
    """Seconds that :meth:`Clock.save` has written into ``note``."""
    try:
        seconds = files.read_json(note)
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    except ValueError:
        is_number = False
    if not is_number or not 0.0 <= seconds < math.inf:
        raise records.CheckpointMismatchError(
            f"{note} is damaged: it must hold the seconds that the parts of this run took so far, a "
            "number. Remove it; the time is then counted from here."
        )
    return float(seconds)


def run_and_store(
    kind: type[Experiment],
    settings: Mapping[str, Any],
    *,
    preset: Preset = "paper",
    device: Device = "auto",
    out: str | None = None,
    checkpoints: str | None = None,
) -> None:
    """Run one experiment and write its results.

    Args:
        kind: The experiment.
        settings: What replaces fields of the preset.
        preset: The settings that are not given.
        device: Where to compute.
        out: Folder for the result. Without it the paper's settings go to book/results and into the
            ledger, and all others to mpt-lml-results.
        checkpoints: Folder for the finished parts of a long run, from which the same command goes on.

    Raises:
        ValueError: For settings that the experiment refuses.
        OSError: For a place that cannot be written, before any work.
        KeyboardInterrupt: When interrupted; the message says where the same command goes on.
    """
    experiment = kind.preset(preset, **settings)
    # Those that keep no state are short: five minutes at most.
    if not experiment.resumable and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # two gain little with small matrices, and lose where it is busy
    name = _name(experiment, preset)
    # Only the paper's settings have the name of the experiment itself.
    is_recorded = name == experiment.name and out is None
    home = book_file("results") if is_recorded else Path(out or RESULTS_FOLDER)
    target = home / f"{name}.json"
    records.require_target(target)
    folder = _state_folder(experiment, name, checkpoints)
    clock = Clock(folder, experiment)
    context = context_for(experiment, device, clock.progress, folder)
    outcome = _run(experiment, context, clock, folder)
    command = _command(experiment, preset, settings)
    content = {
        "experiment": experiment.name,
        "preset": preset,
        "config": dataclasses.asdict(experiment),
        **as_dict(outcome),
        "seconds": clock.seconds(),
        "provenance": provenance.provenance(command, context.device.type),
    }
    # First: a finding without an entry is refused here, while nothing is written and no state is lost.
    entries = ledger.record(outcome.findings, ledger.location()) if is_recorded else []
    records.write_json(target, content)
    print(f"wrote {target}")
    # Only now, when the result is on disk, and only a folder that nobody named.
    if folder is not None and checkpoints is None:
        shutil.rmtree(folder, ignore_errors=True)
    if is_recorded:
        print(_tables(entries))
    else:
        for entry, finding in outcome.findings.items():
            print(f"{entry}: {finding.measured:.6g}")


def _name(experiment: Experiment, preset: Preset) -> str:
    """Name of the files of a run: the experiment's for the paper's settings, another for any other."""
    name = experiment.name if preset == "paper" else f"{experiment.name}-{preset}"
    if experiment != type(experiment).preset(preset):
        name += f"-{_digest(experiment)}"
    return name


def _state_folder(experiment: Experiment, name: str, checkpoints: str | None) -> Path | None:
    """The folder for the state of a run that has one; runs of other settings have others."""
    if checkpoints is not None:
        return files.require_writable(checkpoints)
    if not experiment.resumable:
        return None
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


def _command(experiment: Experiment, preset: Preset, settings: Mapping[str, Any]) -> str:
    """The command that measures the same again, wherever its result goes."""
    words = ["python", "-m", "experiments", "run", experiment.name]
    if preset != "paper":
        words += ["--preset", preset]
    for name, value in settings.items():
        words += ["--set", f"{name}={_literal(value)}"]
    return shlex.join(words)


def _literal(value: Any) -> str:
    """A setting as ``--set`` reads it: a tuple without its brackets.

    >>> _literal((1, 10)), _literal((4,)), _literal("some/folder"), _literal(("two words", "one"))
    ('1,10', '4,', 'some/folder', "'two words','one'")
    """
    if isinstance(value, tuple | list) and value:
        entries = ",".join(map(repr, value))
        return f"{entries}," if len(value) == 1 else entries
    return str(value)


def comparison(name: str | None) -> str:
    """Measured against published, as text.

    Args:
        name: An experiment or a recorded run; ``None`` for all of them.
    """
    if name is not None:
        require_known(name)
    return _tables(ledger.compare(name, ledger.location()))


def _tables(entries: Sequence[Mapping[str, Any]]) -> str:
    """Entries of the paper with their verdicts, then findings of this book, as aligned columns."""
    printed = [{**entry, "verdict": ledger.shown(entry)} for entry in entries if "verdict" in entry]
    findings = [entry for entry in entries if "verdict" not in entry]
    tables = []
    if printed:
        columns = ("published", "measured", "standard_error", "unit", "verdict")
        tables.append(_table("in the paper", columns, printed))
    if findings:
        tables.append(
            _table("found by this book", ("measured", "standard_error", "unit"), findings)
        )
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
