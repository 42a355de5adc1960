"""What ``mpt-score`` does: read a file, score it, write rows and say what they say together."""

import hashlib
import json
import math
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from scipy.special import stdtrit
from torch import distributed
from tqdm.auto import tqdm

import mpt_score
from mpt_lml import files
from mpt_score import lines, summaries
from mpt_score.batch_store import BatchStore
from mpt_score.command_line import write_output
from mpt_score.errors import TextError, is_out_of_memory
from mpt_score.functions import TokenFunction
from mpt_score.lines import Fault, Line, copied_columns
from mpt_score.networks.masked_lm import MaskedLM
from mpt_score.output import RowFile, State
from mpt_score.quantities.sentence_scores import estimate_cost, plan_of
from mpt_score.scorer import Scorer

QUANTITIES = {
    "sentences": "log-score: log p of the text, mean over orders of its tokens",
    "pairs": "log p(first) - log p(second), mean over orders of the tokens that differ",
    "answers": "log-score: log p(option | prompt), mean over orders of the option's tokens",
    "curve": "score at this rate: log q(hidden token | shown), mean over texts",
}
"""What the number of a row is."""
COLUMNS = {
    "sentences": "log_score low high unit quantity model standard_error num_tokens num_unknown num_bytes "
    "num_windows num_passes inconsistency inconsistency_low inconsistency_high mixture_lower "
    "mixture_lower_error mixture_upper mixture_upper_error is_heavy_tailed bits_per_token bits_per_byte",
    "pairs": "log_ratio low high unit quantity model standard_error inconsistency num_changed num_passes",
    "answers": "option log_score low high unit quantity model standard_error difference "
    "difference_error best comparable num_tokens merged num_passes",
    "curve": "rate score low high unit quantity model standard_error num_texts",
}
"""Of a row, behind its line and the cells that the line keeps."""
NUMBERS = {"pairs": "log_ratio", "answers": "log_score", "curve": "score"}
"""The columns of numbers whose intervals are made here."""
UNDECISIVE = ("file", "out", "skip", "device")
"""Options that rows do not depend on, other than by what the model says of its device."""
Row = dict[str, Any]
Part = list[Line | Fault]
LONGEST_WAIT = timedelta(days=365)
"""Of one process for the others. The default, half an hour, is less than a part may take."""


def run(options: Namespace) -> None:
    """Score the lines of a file.

    Rows go to ``options.out`` or standard output as they come, their summary to standard error. With
    torchrun each process scores one of so many parts, and the first process writes all of them.
    """
    columns = columns_of(options)
    rank = int(os.environ.get("RANK", 0))
    num_processes = int(os.environ.get("WORLD_SIZE", 1))
    device = options.device
    if num_processes > 1:
        if not Path(options.file).is_file():
            raise ValueError(f"several processes need a file to read, got {options.file}.")
        distributed.init_process_group("gloo", timeout=LONGEST_WAIT)
        if torch.cuda.is_available() and device in ("auto", "cuda"):
            device = f"cuda:{os.environ['LOCAL_RANK']}"
    writes = options.out is not None and rank == 0
    with RowFile(Path(options.out), columns) if writes else nullcontext() as rows:
        _Run(options, columns, _load(options, device), rows, rank, num_processes).go()
    if num_processes > 1:
        distributed.destroy_process_group()


def columns_of(options: Namespace) -> tuple[str, ...]:
    """The columns of the rows of one call; none that the input has may be among the others."""
    columns = tuple(COLUMNS[options.kind].split())
    if options.kind == "curve":
        return columns
    if options.pseudo:
        name = "pseudo_difference" if options.kind == "pairs" else "pseudo_log_likelihood"
        columns = (*columns, name)
    if options.within_word:
        columns = (*columns, "within_word")
    copied = copied_columns(options)
    for name in copied:
        if name in ("line", *columns):
            raise ValueError(f"--keep {name}: rows have a column of that name. Rename it.")
    return ("line", *copied, *columns)


def score(scorer: Scorer, good: Sequence[Line], options: Namespace) -> Any:
    """The library's scores of some lines. What of them cannot be scored, it skips or refuses."""
    first = [line.texts[0] for line in good]
    if options.kind == "curve":
        fractions = tuple(percent / 100 for percent in options.rates)
        design = mpt_score.Design(fractions, num_masks=options.num_masks, seed=options.seed)
        return mpt_score.curve(scorer, first, design)
    settings: dict[str, Any] = {
        "num_orders": options.num_orders,
        "pseudo": options.pseudo,
        "seed": options.seed,
        "skip": options.skip,
    }
    if options.kind == "pairs":
        second = [line.texts[1] for line in good]
        return mpt_score.pairs(scorer, first, second, **settings)
    if options.kind == "answers":
        settings["within_word"] = options.within_word
        prompts = [line.prompt for line in good]
        return mpt_score.answers(scorer, prompts, [line.texts for line in good], **settings)
    if options.items:
        settings["items"] = [line.copied[options.items] for line in good]
    for name in ("num_masks", "target_error", "block_length", "later"):
        settings[name] = getattr(options, name)
    return mpt_score.sentences(scorer, first, **settings)


def _finite_or_none(value: Any) -> Any:
    """JSON has no word for nan and infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass
class _Run:
    """What is done with the lines of a file, by one process of ``num_processes``."""

    options: Namespace
    columns: Sequence[str]
    scorer: Scorer
    rows: RowFile | None  # of the first process, where rows are not printed
    rank: int = 0
    num_processes: int = 1
    num_rows: int = 0
    num_faults: int = 0

    def __post_init__(self) -> None:
        self.model = self.scorer.name
        self.store: BatchStore | None = None
        self.summary = summaries.Summary(self.options)
        self.digest = hashlib.sha256()  # of the lines that were read

    def go(self) -> None:
        """Score the lines behind those that are done, and say what all rows say together."""
        try:
            self._score(self._begin())
        except KeyboardInterrupt as stop:
            raise type(stop)(self._left) from None
        except Exception as error:
            if is_out_of_memory(error) or isinstance(error, ArithmeticError):
                error.add_note(self._left)
            raise
        if self.rank == 0:
            self._finish()

    def _begin(self) -> Iterator[Line | Fault]:
        """The lines that are not done yet."""
        done = State({})
        if self.rows is not None:
            self.rows.begin(self._what_decides())
            done = self.rows.state
            self.num_faults = done.num_faults
            self._add(self.rows.rows(copied_columns(self.options)))
        if self.rank == 0 and not done.is_whole:
            self._say_price()
        shared: list[Any] = [done.last_line, done.lines_digest]
        if self.num_processes > 1:
            distributed.broadcast_object_list(shared)
        last_line, lines_digest = shared
        lines_to_read = lines.read(self.options)
        number = 0
        while number < last_line and (line := next(lines_to_read, None)):
            self._take_in(line)
            number = line.number
        is_same = self.digest.hexdigest() == lines_digest
        if done.is_whole and next(lines_to_read, None) is not None:
            is_same = False
        if not is_same:
            raise ValueError(
                f"{self.options.file} is not what the rows in {self.options.out} are of: a line up to "
                f"{last_line} has changed, or there are more. Name another --out for it."
            )
        return lines_to_read

    def _what_decides(self) -> dict[str, Any]:
        """What decides the rows besides the input, by name. Of a function that may be unknown."""
        settings = dict(vars(self.options))
        for name in UNDECISIVE:
            del settings[name]
        identity = self.scorer.identity or {"identity": None}
        versions = {f"version of {name}": found for name, found in files.versions().items()}
        return {**settings, "model": self.model, **identity, **versions}

    def _parts(self, of_lines: Iterable[Line | Fault]) -> Iterator[list[Line | Fault]]:
        if self.options.kind == "curve":
            whole = list(of_lines)  # is of all texts together
            return iter([whole] if whole else [])
        whole_orders = self.options.kind == "sentences" and self.options.num_masks is None
        network = self.scorer.network
        on_gpu = network is not None and network.device.type != "cpu"
        return lines.parts(of_lines, whole_orders=whole_orders, on_gpu=on_gpu)

    def _say_price(self) -> None:
        """What texts will cost, from a first reading; a pipe can be read only once, and has none."""
        options = self.options
        if options.kind != "sentences" or not Path(options.file).is_file():
            return
        orders_or_masks = (options.num_orders, options.num_masks, options.pseudo)
        plan = plan_of(*orders_or_masks, block_length=options.block_length)
        num_texts = 0
        num_tokens = 0
        num_passes = 0
        for part in self._parts(lines.read(options)):
            texts = [line.texts[0] for line in part if isinstance(line, Line)]
            if texts:
                of_texts = estimate_cost(self.scorer, texts, plan.most_passes, skip=True)
                num_texts += int((of_texts.num_tokens > 0).sum())
                num_tokens += int(of_texts.num_tokens.sum())
                num_passes += int(of_texts.num_passes.sum())
        price = f"to score: {num_texts} texts, {num_tokens} tokens; passes at most: {num_passes}"
        more = ", more where --target-error asks for them" if options.target_error else ""
        print(price + more, file=sys.stderr)

    def _score(self, remaining: Iterable[Line | Fault]) -> None:
        """Score part by part, and write each before the next one is read."""
        parts = self._parts(remaining)
        # Not among rows that a terminal shows; disable=None: a bar on a terminal only.
        is_hidden = True if self.options.out is None and sys.stdout.isatty() else None
        with tqdm(unit=" passes", disable=is_hidden, leave=False) as bar, self._kept_passes(bar):
            while together := list(islice(parts, self.num_processes)):
                for part, found in zip(together, self._found(together), strict=True):
                    if isinstance(found, ValueError) and self.rank > 0:
                        return  # the first process says it
                    try:
                        if isinstance(found, ValueError):
                            raise found
                        self._write(part, *found)
                    except BrokenPipeError:
                        raise  # whoever read the rows has had enough
                    except (ValueError, OSError) as error:
                        raise type(error)(f"{error} {self._left}".strip()) from error

    @contextmanager
    def _kept_passes(self, bar: tqdm) -> Iterator[None]:
        """Count what goes through the network, and keep its answers where a run can go on."""
        path = None
        if self.rows is not None and self.rows.can_go_on and self.num_processes == 1:
            path = self.rows.passes_path
        self.store = BatchStore(path, bar.update)
        model = self.scorer.model
        if not isinstance(model, MaskedLM | TokenFunction):
            yield
            return
        model.store = self.store
        try:
            yield
        finally:
            model.store = None

    def _found(self, parts: Sequence[Part]) -> list[tuple[list[Row], list[Fault]] | ValueError]:
        """The rows and faults of some parts, each scored by one process, or why there are none."""
        found: Any = None
        if self.rank < len(parts):
            try:
                found = self._rows(parts[self.rank])
            except ValueError as error:
                found = ValueError(str(error))
        if self.num_processes == 1:
            return [found]
        of_all: list[Any] = [None] * self.num_processes
        distributed.all_gather_object(of_all, found)
        return of_all[: len(parts)]

    def _rows(self, part: Part) -> tuple[list[Row], list[Fault]]:
        faults = [line for line in part if isinstance(line, Fault)]
        good = [line for line in part if isinstance(line, Line)]
        if self.options.kind == "curve":
            good = self._scorable(good, faults)
        _require_skipped(self.options, faults)
        if not good:
            return [], faults
        try:
            scores = score(self.scorer, good, self.options)
        except TextError as error:
            _require_skipped(self.options, [Fault(good[error.number].number, error.reason)])
            raise
        if self.options.kind == "curve":
            self.summary.curves = scores
        elif scores.skipped:
            for place, reason in scores.skipped.items():
                faults.append(Fault(good[place].number, f"{reason.rstrip('.')}."))
            if len(scores.skipped) == len(good):
                return [], sorted(faults)
        return self._rows_of(scores, good), sorted(faults)

    def _rows_of(self, scores: Any, good: Sequence[Line]) -> list[Row]:
        """One row a text, a pair, an option of a prompt, or a rate; none for a line that was skipped."""
        kind = self.options.kind
        said = {
            "unit": "nats a token" if kind == "curve" else "nats",
            "quantity": QUANTITIES[kind] + summaries.blocks_in_words(self.options),
            "model": self.model,
            "num_texts": len(good),
        }
        degrees = len(good) - 1 if kind == "curve" else (self.options.num_orders or 0) - 1
        rows = []
        for place, found in enumerate(scores.rows()):
            cells = {"is_heavy_tailed": False, **found, **said}
            if kind != "curve":
                place_of_line = found.get("prompt", place)
                if place_of_line in scores.skipped:
                    continue
                line = good[place_of_line]
                cells |= {**line.copied, "line": line.number}
            if kind != "sentences":
                # Student's interval, over texts of a curve, and over orders of the others.
                reach = stdtrit(degrees, 0.975) * cells.get("standard_error", math.nan)
                cells["low"] = float(cells[NUMBERS[kind]] - reach)
                cells["high"] = float(cells[NUMBERS[kind]] + reach)
            rows.append({name: _finite_or_none(cells.get(name)) for name in self.columns})
        return rows

    def _scorable(self, good: Sequence[Line], faults: list[Fault]) -> list[Line]:
        """The lines of a curve that have one; ``faults`` takes the others."""
        scorable = []
        for line in good:
            try:
                self.scorer.require_length(self.scorer.encode([line.texts[0]]))
                scorable.append(line)
            except TextError as error:
                faults.append(Fault(line.number, error.reason))
        return scorable

    def _write(self, part: Part, rows: list[Row], faults: list[Fault]) -> None:
        for line in part:
            self._take_in(line)
        if self.rank > 0:
            return
        for fault in faults:
            print(f"skipped: {_in_words(self.options, fault)}", file=sys.stderr)
        if self.rows is None:
            # A terminal or a pipe need not know UTF-8, and JSON can say all of it in ASCII.
            write_output("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
        else:
            self.rows.write(
                rows,
                last_line=part[-1].number,
                lines_digest=self.digest.hexdigest(),
                num_faults=len(faults),
            )
            if self.store is not None:
                self.store.forget()
        self._add(rows)
        self.num_faults += len(faults)

    def _take_in(self, line: Line | Fault) -> None:
        self.digest.update(json.dumps(line).encode())

    def _add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.summary.add(row)
            self.num_rows += 1

    @property
    def _left(self) -> str:
        """What there is of a run that was stopped; "" where nothing."""
        if self.num_rows == 0:
            if self.rows is None or not self.rows.has_passes:
                return ""
            return f"passes are in {self.rows.passes_path}, the same command goes on from there."
        if self.rows is None:
            return f"{self.num_rows} rows were written."
        return f"{self.num_rows} rows are in {self.rows.path}, the same command goes on from there."

    def _finish(self) -> None:
        """Say what all rows say together, and mark their file as whole."""
        if self.num_rows == 0:
            raise ValueError(f"no line of {self.options.file} can be scored.")
        if self.rows is not None and self.rows.state.is_whole:
            print(f"{self.rows.path} is whole already, nothing was scored", file=sys.stderr)
        elif self.rows is not None:
            self.rows.finish()
        said = [f"{self.model}, seed {self.options.seed}", *self.summary.lines()]
        if self.num_faults:
            said.append(f"skipped lines: {self.num_faults}")
        print("\n".join(said), file=sys.stderr)


def _in_words(options: Namespace, fault: Fault) -> str:
    return f"{options.file}, line {fault.number}: {fault.reason}"


def _require_skipped(options: Namespace, faults: Sequence[Fault]) -> None:
    if faults and not options.skip:
        remedy = "Mend it, or leave such lines out: --skip."
        raise ValueError(f"{_in_words(options, faults[0])} {remedy}")


def _load(options: Namespace, device: str) -> Scorer:
    return mpt_score.load(
        options.model,
        options.tokenizer,
        revision=options.revision,
        device=device,
        precision=options.precision,
        max_tokens=options.max_tokens,
        max_length=options.max_length,
    )
