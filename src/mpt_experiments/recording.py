"""Run an experiment for the command line and store what it finds."""

import argparse
import ast
import dataclasses
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

import torch
from tqdm.auto import tqdm

from mpt_experiments import ledger, provenance
from mpt_experiments.experiment import Experiment, Outcome, context_for, find
from mpt_lml import files


class _Clock:
    """Seconds of a run over all of its parts; the earlier ones are noted beside its state."""

    def __init__(self, folder: Path | None, chosen: Experiment) -> None:
        self.note = folder / f"seconds-{_mark(chosen)}.json" if folder else None
        before = files.read_json(self.note) if self.note and self.note.exists() else 0.0
        self.start = self.noted = time.perf_counter() - before

    def seconds(self) -> float:
        return round(time.perf_counter() - self.start, 2)

    def save(self) -> None:
        if self.note is not None:
            files.write_json(self.note, self.seconds())
        self.noted = time.perf_counter()

    def __call__(self, items: Iterable[Any], description: str) -> Iterable[Any]:
        """A bar on a terminal's standard error that also notes, once a second, the time so far."""
        for item in tqdm(items, desc=description, disable=None, leave=False):
            yield item
            if time.perf_counter() - self.noted > 1.0:
                self.save()


def run_and_store(options: argparse.Namespace) -> None:
    """Run one experiment; print, or write, what it found."""
    chosen = _settings(options)
    if not chosen.resumable and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # two gain little with small matrices, and lose where it is busy
    published = chosen == type(chosen).preset("paper")
    root = (
        provenance.checkout()
        if published and options.json is None and options.out is None
        else None
    )
    target = _target(options, root)
    folder = _folder(options, chosen)
    clock = _Clock(folder, chosen)
    context = context_for(chosen, options.device, clock, folder)
    try:
        outcome = chosen.run(context)
    except BaseException:
        clock.save()
        raise
    content = _content(options, chosen, outcome, clock.seconds(), context.device.type)
    if target is None:
        json.dump(content, sys.stdout, indent=2, allow_nan=False)
        print()
        return
    if root is None and options.json is None:
        target = _unused(target, content)
    files.write_json(target, content)
    print(f"wrote {target}")
    if folder is not None and options.checkpoints is None:
        shutil.rmtree(folder, ignore_errors=True)
    if root is not None:
        print(_tables(ledger.record(outcome.findings, ledger.location())))
    else:
        for name, each in outcome.findings.items():
            print(f"{name}: {each.measured:.6g}")


def _settings(options: argparse.Namespace) -> Experiment:
    """The preset with every setting that the command line replaces."""
    found = find(options.name)
    hints = get_type_hints(found)
    given: dict[str, Any] = {}
    for each in options.set:
        field, equals, text = each.partition("=")
        if not equals:
            raise ValueError(f"--set takes FIELD=VALUE, got {each!r}.")
        given[field] = _value(text, hints.get(field))
    own = {"seeds": options.seed, "model": options.model}
    given |= {name: value for name, value in own.items() if value is not None}
    return found.preset(options.preset, **given)


def _value(text: str, kind: Any) -> Any:
    """``text`` as a value of the type that a setting has."""
    if str(kind).startswith("tuple"):
        parts = text.split(",")
        return tuple(each for part in parts for each in _range(part, "str" in str(kind)))
    if "str" in str(kind):
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _range(part: str, words: bool) -> Iterable[Any]:
    ends = part.split(":")
    if len(ends) == 1 or not all(end.isdigit() for end in ends):
        return [_value(part, str if words else None)]
    first, last, *step = map(int, ends)
    return range(first, last + 1, *step)


def _target(options: argparse.Namespace, root: Path | None) -> Path | None:
    """Where the result goes (``None``: stdout), proven writable before any work."""
    if options.json == "-":
        return None
    home = root / "book" / "results" if root else Path("mpt-lml-results")
    name = f"{options.out or home}/{options.name}.json" if options.json is None else options.json
    files.require_target(path := Path(name))
    return path


def _unused(path: Path, content: Mapping[str, Any]) -> Path:
    """``path``, or the first of its numbered siblings that holds no result of other inputs."""
    keys = ("config", "data_sha256", "weights")
    own = json.loads(json.dumps([content.get(key) for key in keys], default=str))
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    for each in itertools.chain([path], numbered):
        if not each.exists():
            break
        with suppress(OSError, ValueError, AttributeError):  # others' files are not replaced
            found = files.read_json(each)
            if [found.get(key) for key in keys] == own:
                break
    return each


def _mark(chosen: Experiment) -> str:
    """A short name of all settings."""
    return files.digest(repr(chosen), {})[:12]


def _folder(options: argparse.Namespace, chosen: Experiment) -> Path | None:
    """The folder for the state of a run that has one."""
    if options.checkpoints is None and not chosen.resumable:
        return None
    name = f"{options.name}-{options.preset}"
    if chosen != type(chosen).preset(options.preset):
        name += f"-{_mark(chosen)}"
    home = Path("mpt-lml-results", "checkpoints", name)
    return files.require_writable(options.checkpoints or home)


def left_behind(options: argparse.Namespace) -> str:
    folder = getattr(options, "checkpoints", None)
    if options.action == "run":
        folder = _folder(options, _settings(options))
    return f"the same command goes on from {folder}" if folder else "nothing was written"


def _content(
    options: argparse.Namespace, chosen: Experiment, outcome: Outcome, seconds: float, device: str
) -> dict[str, Any]:
    given = ["--preset", options.preset] if options.preset != "paper" else []
    given += ["--seed", *map(str, options.seed)] if options.seed else []
    given += ["--model", options.model] if options.model else []
    given += [part for each in options.set for part in ("--set", each)]
    return {
        "experiment": options.name,
        "preset": options.preset,
        "config": dataclasses.asdict(chosen),
        **outcome.as_dict(),
        "seconds": seconds,
        "provenance": provenance.provenance(
            " ".join(["mpt-lml", "run", options.name, *given]), device
        ),
    }


def _tables(entries: Sequence[dict[str, Any]]) -> str:
    """What the paper prints with its verdicts, then what this book finds, as aligned columns."""
    parts, names = [], ("published", "measured", "standard_error", "unit", "verdict")
    for title, keys in (("in the paper", names), ("found by this book", names[1:-1])):
        found = [each for each in entries if ("verdict" in each) == (keys == names)]
        heads = (title, *(key.replace("standard", "std.").replace("_", " ") for key in keys))
        rows = [heads, *((each["id"], *(_cell(each[key]) for key in keys)) for each in found)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        parts += ["\n".join(lines)] * bool(found)
    return "\n\n".join(parts) or "the ledger has no entry for this experiment"


def compared(name: str | None) -> str:
    """Measured against published, of the experiment ``name`` or of all."""
    recorded = None if name is None else f"mpt-lml run {find(name).name}"
    return _tables(ledger.compare(recorded, ledger.location()))


def _cell(value: str | float | None) -> str:
    return value if isinstance(value, str) else "–" if value is None else f"{value:.6g}"
