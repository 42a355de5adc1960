"""What ``mpt-score`` does: read a file, score it, write rows and say what they say together."""

import hashlib
import heapq
import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from tqdm.auto import tqdm

import mpt_score
from mpt_lml import files
from mpt_score import line_scores, lines, output, summaries
from mpt_score.errors import TextError
from mpt_score.lines import Fault, Line
from mpt_score.output import Part, RowFile, StandardOutput
from mpt_score.scorer import Scorer
from mpt_score.sentence_scores import plan_of, prices

Rows = StandardOutput | RowFile
LONGEST_WAIT = timedelta(days=365)
"""Of one process for the others. The default, half an hour, is less than a share may take."""


def run(options: Namespace) -> None:
    """Score the lines of a file.

    Rows go to ``options.out`` or standard output as they come, their summary to standard error. With
    torchrun each process scores every so-many-th part into a file of its own; when all have, the first
    one puts the parts together, in their order.

    Args:
        options: What the command line says; see :mod:`mpt_score.command`.

    Raises:
        ValueError: For a line that cannot be scored, which is named, and for wrong options.
        OSError: For a file that cannot be read or written.
        KeyboardInterrupt: Where it was stopped, with what is left behind.
    """
    columns = line_scores.columns_of(options)
    rank = int(os.environ.get("RANK", 0))
    num_processes = int(os.environ.get("WORLD_SIZE", 1))
    if num_processes > 1:
        if options.kind == "curve" or options.file == "-" or options.out is None:
            raise ValueError("several processes need a file to read, --out for rows, and no curve.")
        _score_together(options, columns, rank, num_processes)
    elif options.kind == "curve":
        _score_curve(options, columns)
    else:
        rows = RowFile(Path(options.out), columns) if options.out else StandardOutput()
        with rows, _says_what_is_left(rows):
            scoring = _Scoring(options, columns, _load(options))
            if isinstance(rows, RowFile):
                rows.begin(scoring.what_decides())
            scoring.say_price(rows)
            scoring.score(rows, rows)
            scoring.finish(rows)


def _score_together(
    options: Namespace, columns: Sequence[str], rank: int, num_processes: int
) -> None:
    path = Path(options.out)
    shares = [
        path.with_name(f"{path.stem}.rank-{number}-of-{num_processes}{path.suffix}")
        for number in range(num_processes)
    ]
    distributed.init_process_group("gloo", timeout=LONGEST_WAIT)
    with ExitStack() as stack:
        rows = stack.enter_context(RowFile(path, columns)) if rank == 0 else None
        with RowFile(shares[rank], columns) as share, _says_what_is_left(share):
            device = options.device
            if torch.cuda.is_available() and device in ("auto", "cuda"):
                device = f"cuda:{os.environ['LOCAL_RANK']}"
            scoring = _Scoring(options, columns, _load(options, device), rank, num_processes)
            num_written = [0]
            if rows is not None:
                rows.begin(scoring.what_decides())
                scoring.say_price(rows)
                num_written = [len(rows.parts)]
            distributed.broadcast_object_list(num_written)
            share.begin(scoring.what_decides())
            num_parts = scoring.score(share, rows, num_written[0])
        distributed.barrier()
        if rows is not None:
            with _says_what_is_left(rows):
                _join(shares, rows)
                if len(rows.parts) < num_parts:
                    raise ValueError(f"parts of {path} are missing: the same command scores them.")
                scoring.finish(rows)
    distributed.destroy_process_group()


def _remove_shares(path: Path) -> None:
    """Remove what processes have written beside a file that is whole by now."""
    name = re.escape(path.stem) + r"\.rank-\d+-of-\d+" + re.escape(path.suffix) + r"(\.state)?"
    for share in path.parent.iterdir():
        if re.fullmatch(name, share.name):
            share.unlink(missing_ok=True)


def _join(paths: Sequence[Path], rows: RowFile) -> None:
    """Put the parts of several files into one, in their order."""
    with ExitStack() as stack:
        opened = [RowFile(path, rows.columns) for path in paths if path.exists()]
        contents = [stack.enter_context(share).contents() for share in opened]
        for part, content in heapq.merge(*contents, key=lambda entry: entry[0].number):
            if part.number == len(rows.parts):
                rows.copy(part, content)


@dataclass
class _Scoring:
    """What is done with the lines of a file.

    Args:
        options: As of :func:`run`.
        columns: Of the rows.
        scorer: The model.
        rank: Of several processes, which one this is.
        num_processes: How many there are. Each scores every so-many-th part.
    """

    options: Namespace
    columns: Sequence[str]
    scorer: Scorer
    rank: int = 0
    num_processes: int = 1

    def __post_init__(self) -> None:
        self.summary = summaries.new_summary(self.options)
        commit = self.scorer.commit
        self.model = f"{self.options.model}@{commit}" if commit else str(self.options.model)

    def what_decides(self) -> dict[str, Any]:
        """What decides the rows besides the input, by name. Of a function that may be unknown."""
        identity = self.scorer.identity or {output.IDENTITY: None}
        names = ("kind", *line_scores.SETTINGS[self.options.kind])
        names = (*names, "max_tokens", "column", "keep", "items")
        settings = {name: getattr(self.options, name) for name in names}
        versions = {f"version of {name}": found for name, found in files.versions().items()}
        return {"model": self.model, **settings, **identity, **versions}

    def _parts(self) -> Iterator[list[Line | Fault]]:
        whole_orders = self.options.kind == "sentences" and self.options.num_masks is None
        return lines.parts(lines.read(self.options), whole_orders=whole_orders)

    def say_price(self, rows: Rows) -> None:
        """What texts will cost, from a first reading; a pipe can be read only once, and has none."""
        options = self.options
        is_known = rows.is_whole or options.kind != "sentences" or not Path(options.file).is_file()
        if is_known:
            return
        plan = plan_of(
            options.num_orders,
            options.num_masks,
            options.pseudo,
            options.target_error,
            block_length=options.block_length,
            later=options.later,
        )
        num_texts = 0
        num_tokens = 0
        num_passes = 0
        for part in self._parts():
            texts = [line.texts[0] for line in part if isinstance(line, Line)]
            if texts:
                of_texts = prices(self.scorer, texts, plan.most_passes, skip=True)
                num_texts += int((of_texts.num_tokens > 0).sum())
                num_tokens += int(of_texts.num_tokens.sum())
                num_passes += int(of_texts.num_passes.sum())
        price = f"to score: {num_texts} texts, {num_tokens} tokens; passes at most: {num_passes}"
        more = ", more where --target-error asks for them" if options.target_error else ""
        print(price + more, file=sys.stderr)

    def score(self, target: Rows, rows: Rows | None, num_written: int = 0) -> int:
        """Score what is not known yet, part by part, and write each before the next one is read.

        Args:
            target: Takes rows, and has those of an earlier run.
            rows: Where those of all processes are in the end; None where another process sees to it.
            num_written: Of parts that are there already.

        Returns:
            How many parts the input has.

        Raises:
            ValueError: Where the input is not what it was.
        """
        options = self.options
        parts = [*target.parts, *(rows.parts if rows is not None else [])]
        known = {part.number: part for part in parts}
        digest = hashlib.sha256()
        num_parts = 0
        last_line = 0
        # Not among rows that a terminal shows; disable=None: a bar on a terminal only.
        is_hidden = True if options.out is None and sys.stdout.isatty() else None
        with tqdm(unit=" lines", disable=is_hidden, leave=False) as bar:
            for number, part in enumerate(self._parts()):
                digest.update(json.dumps(part).encode())
                place = f"from line {last_line + 1} on"
                last_line = part[-1].number
                before = known.pop(number, None)
                if before is not None and before.lines_digest != digest.hexdigest():
                    raise self._changed(f"{place}, up to line {before.last_line}, it has changed")
                if before is None and rows is not None and rows.is_whole:
                    raise self._changed(f"{place} there is more")
                is_mine = number >= num_written and number % self.num_processes == self.rank
                if before is None and is_mine:
                    self._score_part(target, number, part, digest.hexdigest())
                num_parts = number + 1
                bar.update(len(part))
        if known:
            raise self._changed(f"it ends at line {last_line}")
        return num_parts

    def _changed(self, how: str) -> ValueError:
        return ValueError(
            f"{self.options.file} is not what the rows in {self.options.out} are of: {how}. Name another "
            "--out for it."
        )

    def _score_part(
        self, target: Rows, number: int, part: Sequence[Line | Fault], digest: str
    ) -> None:
        faults = [line for line in part if isinstance(line, Fault)]
        good = [line for line in part if isinstance(line, Line)]
        try:
            rows = self._rows(good, faults)
        except ValueError as error:
            raise ValueError(f"{error} {target.left}".strip()) from error
        faults.sort()
        for fault in faults:
            print(f"skipped: {_in_words(self.options, fault)}", file=sys.stderr)
        first_fault = _in_words(self.options, faults[0]) if faults else ""
        last_line = part[-1].number
        target.write(rows, Part(number, last_line, digest, len(rows), len(faults), first_fault))
        if isinstance(target, StandardOutput):
            for row in rows:
                self.summary.add(row)

    def _rows(self, good: Sequence[Line], faults: list[Fault]) -> list[dict[str, Any]]:
        """The rows of good lines; ``faults`` takes those that the library cannot score."""
        _require_skipped(self.options, faults)
        if not good:
            return []
        try:
            scores = line_scores.score(self.scorer, good, self.options)
        except TextError as error:
            _require_skipped(self.options, [Fault(good[error.number].number, error.reason)])
            raise
        for place, reason in scores.skipped.items():
            faults.append(Fault(good[place].number, f"{reason.rstrip('.')}."))
        if len(scores.skipped) == len(good):
            return []
        rows = line_scores.rows_of(scores, good, self.options, self.model, self.columns)
        return list(rows)

    def finish(self, rows: Rows) -> None:
        """Say what all rows say together, and mark their file as whole."""
        if not any(part.num_rows for part in rows.parts):
            first_fault = next(part.first_fault for part in rows.parts if part.first_fault)
            raise ValueError(f"no line of {self.options.file} can be scored: {first_fault}")
        if isinstance(rows, RowFile):
            if rows.is_whole:
                print(f"{rows.path} is whole already, nothing was scored", file=sys.stderr)
            for row in rows.rows():
                self.summary.add(row)
            rows.finish()
            _remove_shares(rows.path)
        said = [f"{self.model}, seed {self.options.seed}", *self.summary.lines()]
        num_faults = sum(part.num_faults for part in rows.parts)
        if num_faults:
            said.append(f"skipped lines: {num_faults}")
        print("\n".join(said), file=sys.stderr)


def _score_curve(options: Namespace, columns: Sequence[str]) -> None:
    """Score all texts at all rates; rows are rates."""
    out = Path(options.out) if options.out else None
    if out is not None and out.exists():
        raise ValueError(f"--out {out} is there already: remove it, or name another file.")
    if out is not None:
        files.require_writable(out.parent)
    scoring = _Scoring(options, columns, _load(options))
    scorer = scoring.scorer
    texts = []
    faults = []
    for line in lines.read(options):
        if isinstance(line, Fault):
            faults.append(line)
            continue
        try:
            scorer.require_length(scorer.encode([line.texts[0]]))
            texts.append(line.texts[0])
        except TextError as error:
            faults.append(Fault(line.number, error.reason))
    _require_skipped(options, faults)
    if not texts:
        raise ValueError(
            f"no line of {options.file} can be scored: {_in_words(options, faults[0])}"
        )
    fractions = tuple(percent / 100 for percent in options.rates)
    design = mpt_score.Design(fractions, num_masks=options.num_masks, seed=options.seed)
    curves = mpt_score.curve(scorer, texts, design)
    rows = line_scores.rows_of_curve(curves, options, scoring.model, columns)
    if out is None:
        output.print_rows(rows)
    else:
        with files.replacing(out) as partial:
            partial.write_bytes(output.as_bytes(rows, columns, out.suffix, with_header=True))
    said = [f"skipped: {_in_words(options, fault)}" for fault in faults]
    said += [f"{scoring.model}, seed {options.seed}", *summaries.of_curve(curves)]
    print("\n".join(said), file=sys.stderr)


def _in_words(options: Namespace, fault: Fault) -> str:
    return f"{options.file}, line {fault.number}: {fault.reason}"


def _require_skipped(options: Namespace, faults: Sequence[Fault]) -> None:
    if faults and not options.skip:
        remedy = "Mend it, or leave such lines out: --skip."
        raise ValueError(f"{_in_words(options, faults[0])} {remedy}")


def _load(options: Namespace, device: str | None = None) -> Scorer:
    names = ("tokenizer", "revision", "precision", "max_tokens", "max_length")
    given = {name: getattr(options, name) for name in names}
    return mpt_score.load(
        options.model,
        device=device or options.device,
        **{name: value for name, value in given.items() if value is not None},
    )


@contextmanager
def _says_what_is_left(rows: Rows) -> Iterator[None]:
    """A run that is stopped says where its rows are."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise type(stop)(rows.left) from None
