"""The run of ``mpt-score``: read a file, score its lines, write records, print their summary."""

import hashlib
import json
import math
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from scipy.special import stdtrit
from torch import distributed
from tqdm.auto import tqdm

from mpt_lml import files
from mpt_score import lines, summaries
from mpt_score.batch_store import BatchStore
from mpt_score.command_line import write_output
from mpt_score.errors import TextError, is_out_of_memory
from mpt_score.functions import TokenFunction
from mpt_score.lines import Fault, Line, copied_columns
from mpt_score.loading import load
from mpt_score.networks.masked_lm import MaskedLM
from mpt_score.output import RecordFile, State
from mpt_score.quantities.answer_scores import answers
from mpt_score.quantities.design import Design
from mpt_score.quantities.pair_scores import pairs
from mpt_score.quantities.sentence_curves import SentenceCurves, curve
from mpt_score.quantities.sentence_scores import sentences
from mpt_score.rows.reading import read
from mpt_score.scorer import Scorer
from mpt_score.tokens import Tokens

QUANTITIES = {
    "sentences": "log-score: log p of the text, mean over orders of its tokens",
    "pairs": "log p(first) - log p(second), mean over orders of the tokens that differ",
    "answers": "log-score: log p(option | prompt), mean over orders of the option's tokens",
    "curve": "score at this rate: log q(hidden token | shown), mean over texts",
}
"""The quantity that a record's number is."""
COLUMNS = {
    "sentences": "log_score low high unit quantity model standard_error num_tokens num_unknown num_bytes "
    "num_windows num_passes inconsistency inconsistency_low inconsistency_high mixture_lower "
    "mixture_lower_error mixture_upper mixture_upper_error is_heavy_tailed bits_per_token bits_per_byte",
    "pairs": "log_ratio low high unit quantity model standard_error inconsistency num_changed num_passes",
    "answers": "option log_score low high unit quantity model standard_error difference "
    "difference_error best comparable num_tokens merged num_passes",
    "curve": "rate score low high unit quantity model standard_error num_texts",
}
"""The columns of a record, behind its line and the cells that the line keeps."""
NUMBERS = {"pairs": "log_ratio", "answers": "log_score", "curve": "score"}
"""The columns of numbers whose intervals are made here."""
NOT_IN_FINGERPRINT = ("file", "out", "skip", "device")
"""Options that are not in a run's fingerprint: the device is there with the model's identity."""
Record = dict[str, Any]
Part = list[Line | Fault]
COLLECTIVE_TIMEOUT = timedelta(days=365)
"""How long one process waits for the others. The default, half an hour, is less than a part may take."""


def run(options: Namespace) -> None:
    """Score the lines of a file.

    Records go to ``options.out`` or standard output as they come, their summary to standard error. With
    torchrun each process scores one of so many parts, and the first process writes all of them.
    """
    columns = columns_of(options)
    rank = int(os.environ.get("RANK", 0))
    num_processes = int(os.environ.get("WORLD_SIZE", 1))
    device = options.device
    if num_processes > 1:
        if not Path(options.file).is_file():
            raise ValueError(f"several processes need a file to read, got {options.file}.")
        distributed.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
        if torch.cuda.is_available() and device in ("auto", "cuda"):
            device = f"cuda:{os.environ['LOCAL_RANK']}"
    writes = options.out is not None and rank == 0
    with RecordFile(Path(options.out), columns) if writes else nullcontext() as records:
        scorer = load(
            options.model,
            options.tokenizer,
            revision=options.revision,
            device=device,
            precision=options.precision,
            max_tokens=options.max_tokens,
            max_length=options.max_length,
        )
        _Run(options, columns, scorer, records, rank, num_processes).run()
    if num_processes > 1:
        distributed.destroy_process_group()


def columns_of(options: Namespace) -> tuple[str, ...]:
    """The columns of the records of one call; none that the input has may be among the others."""
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
            raise ValueError(f"--keep {name}: records have a column of that name. Rename it.")
    return ("line", *copied, *columns)


def curve_of_texts(scorer: Scorer, tokens: Tokens, options: Namespace) -> SentenceCurves:
    """The library's curve of some texts."""
    fractions = tuple(percent / 100 for percent in options.rates)
    design = Design(fractions, num_masks=options.num_masks, seed=options.seed)
    return curve(scorer, tokens, design)


def score_lines(scorer: Scorer, good: Sequence[Line], options: Namespace) -> Any:
    """The library's scores of some lines, which skips or refuses what cannot be scored."""
    first = [line.texts[0] for line in good]
    settings: dict[str, Any] = {
        "num_orders": options.num_orders,
        "pseudo": options.pseudo,
        "seed": options.seed,
        "skip": options.skip,
    }
    if options.kind == "pairs":
        second = [line.texts[1] for line in good]
        return pairs(scorer, first, second, **settings)
    if options.kind == "answers":
        settings["within_word"] = options.within_word
        prompts = [line.prompt for line in good]
        return answers(scorer, prompts, [line.texts for line in good], **settings)
    if options.items:
        settings["items"] = [line.copied[options.items] for line in good]
    for name in ("num_masks", "target_error", "block_length", "later"):
        settings[name] = getattr(options, name)
    return sentences(scorer, first, **settings)


def _finite_or_none(value: Any) -> Any:
    """The value, and None for nan and infinity, for which JSON has no word."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass
class _Run:
    """The run over the lines of a file, in one process of ``num_processes``."""

    options: Namespace
    columns: Sequence[str]
    scorer: Scorer
    records: RecordFile | None  # of the first process, where records are not printed
    rank: int = 0
    num_processes: int = 1
    num_records: int = 0
    num_faults: int = 0

    def __post_init__(self) -> None:
        self.store: BatchStore | None = None
        self.summary = summaries.Summary(self.options)
        self.digest = hashlib.sha256()  # of the lines that were read

    def run(self) -> None:
        """Score the lines behind those that are done, and print the summary of all records."""
        try:
            self._score_remaining(self._lines_behind(self._resume()))
        except KeyboardInterrupt as stop:
            raise type(stop)(self._progress) from None
        except Exception as error:
            if is_out_of_memory(error) or isinstance(error, ArithmeticError):
                error.add_note(self._progress)
            raise
        if self.rank == 0:
            self._finish()

    def _resume(self) -> State:
        """How far the run has come, by its file of records; the same in all processes."""
        state = State({})
        if self.records is not None:
            self.records.begin(self._fingerprint())
            state = self.records.state
            self.num_faults = state.num_faults
            self._add(self.records.written(copied_columns(self.options)))
        if self.num_processes > 1:
            shared = [state]
            distributed.broadcast_object_list(shared)
            (state,) = shared
        return state

    def _lines_behind(self, done: State) -> Iterator[Line | Fault]:
        """The lines behind those that are done, if these are still the lines that they were."""
        lines_to_read = lines.read(self.options)
        if done.last_line > 0:
            for line in lines_to_read:
                self._update_digest(line)
                if line.number >= done.last_line:
                    break
        has_changed = self.digest.hexdigest() != done.lines_digest
        if has_changed or (done.is_whole and next(lines_to_read, None) is not None):
            raise ValueError(
                f"{self.options.file} is not what the records in {self.options.out} are of: a line up to "
                f"{done.last_line} has changed, or there are more. Name another --out for it."
            )
        return lines_to_read

    def _fingerprint(self) -> dict[str, Any]:
        """The fingerprint of the run: what decides the records besides the input, by name.

        Without an identity of the model nothing can be known to be the same.
        """
        settings = dict(vars(self.options))
        for name in NOT_IN_FINGERPRINT:
            del settings[name]
        identity = self.scorer.identity or {"identity": None}
        versions = {f"version of {name}": found for name, found in files.versions().items()}
        return {**settings, "model": self.scorer.name, **identity, **versions}

    def _parts(self, of_lines: Iterable[Line | Fault]) -> Iterator[list[Line | Fault]]:
        if self.options.kind == "curve":
            whole = list(of_lines)  # a curve is of all texts together
            return iter([whole] if whole else [])
        whole_orders = self.options.kind == "sentences" and self.options.num_masks is None
        network = self.scorer.network
        on_gpu = network is not None and network.device.type != "cpu"
        return lines.parts(of_lines, whole_orders=whole_orders, on_gpu=on_gpu)

    def _score_remaining(self, remaining: Iterable[Line | Fault]) -> None:
        """Score part by part, and write each before the next one is read."""
        parts = self._parts(remaining)
        # Not among records that a terminal shows; disable=None: a bar on a terminal only.
        is_hidden = True if self.options.out is None and sys.stdout.isatty() else None
        with tqdm(unit=" passes", disable=is_hidden, leave=False) as bar:
            self._watch_model(bar)
            while together := list(islice(parts, self.num_processes)):
                for part, scored in zip(together, self._scores_of_parts(together), strict=True):
                    if isinstance(scored, ValueError) and self.rank > 0:
                        return  # the first process says it
                    try:
                        if isinstance(scored, ValueError):
                            raise scored
                        self._write(part, *scored)
                    except BrokenPipeError:
                        raise  # whoever read the records has had enough
                    except (ValueError, OSError) as error:
                        raise type(error)(f"{error} {self._progress}".strip()) from error

    def _watch_model(self, bar: tqdm) -> None:
        """Have the model show its passes on the bar, and keep its answers where a run can go on."""
        model = self.scorer.model
        if not isinstance(model, MaskedLM | TokenFunction):
            return
        if self.records is not None and self.records.can_go_on:
            self.store = BatchStore(self.records.passes_path)
        model.store = self.store
        model.count_passes = bar.update

    def _scores_of_parts(
        self, parts: Sequence[Part]
    ) -> list[tuple[list[Record], list[Fault]] | ValueError]:
        """The records and faults of some parts, each scored by one process, or why there are none."""
        scored: Any = None
        if self.rank < len(parts):
            try:
                scored = self._records_of_part(parts[self.rank])
            except ValueError as error:
                scored = ValueError(str(error))
        if self.num_processes == 1:
            return [scored]
        of_all: list[Any] = [None] * self.num_processes
        distributed.all_gather_object(of_all, scored)
        return of_all[: len(parts)]

    def _records_of_part(self, part: Part) -> tuple[list[Record], list[Fault]]:
        faults = [line for line in part if isinstance(line, Fault)]
        good = [line for line in part if isinstance(line, Line)]
        tokens: Tokens | None = None
        if good and self.options.kind == "curve":
            good, tokens = self._with_a_curve(good, faults)
        _require_skipped(self.options, faults)
        if not good:
            return [], faults
        try:
            if tokens is None:
                scores = score_lines(self.scorer, good, self.options)
            else:
                scores = curve_of_texts(self.scorer, tokens, self.options)
        except TextError as error:
            _require_skipped(self.options, [Fault(good[error.number].number, error.reason)])
            raise
        if self.options.kind == "curve":
            self.summary.curves = scores
        elif scores.skipped:
            for place, reason in scores.skipped.items():
                faults.append(Fault(good[place].number, f"{reason.rstrip('.')}."))
            if len(scores.skipped) == len(good):
                return [], faults
        return self._records_of(scores, good), faults

    def _with_a_curve(
        self, good: Sequence[Line], faults: list[Fault]
    ) -> tuple[list[Line], Tokens | None]:
        """The lines whose text has a curve, with their tokens; ``faults`` takes the others."""
        reading = read(self.scorer, [line.texts[0] for line in good], skip=True)
        reasons = dict(reading.faults)
        for number, row in reading.rows.items():
            try:
                self.scorer.require_length(row)
            except TextError as error:
                reasons[number] = error.reason
        faults += [Fault(good[number].number, reason) for number, reason in reasons.items()]
        places = [place for place, number in enumerate(reading.numbers) if number not in reasons]
        if reading.tokens is None or not places:
            return [], None
        tokens = reading.tokens.rows(torch.tensor(places))
        return [line for number, line in enumerate(good) if number not in reasons], tokens

    def _records_of(self, scores: Any, good: Sequence[Line]) -> list[Record]:
        """One record a text, pair, option of a prompt, or rate; none for a line that was skipped."""
        kind = self.options.kind
        of_all = {
            "unit": "nats a token" if kind == "curve" else "nats",
            "quantity": QUANTITIES[kind] + summaries.blocks_in_words(self.options),
            "model": self.scorer.name,
            "num_texts": len(good),
        }
        degrees = len(good) - 1 if kind == "curve" else (self.options.num_orders or 0) - 1
        records = []
        for place, of_place in enumerate(scores.rows()):
            cells = {"is_heavy_tailed": False, **of_place, **of_all}
            if kind != "curve":
                place_of_line = of_place.get("prompt", place)
                if place_of_line in scores.skipped:
                    continue
                line = good[place_of_line]
                cells |= {**line.copied, "line": line.number}
            if kind != "sentences":
                # Student's interval, over texts of a curve, and over orders of the others.
                reach = stdtrit(degrees, 0.975) * cells.get("standard_error", math.nan)
                cells["low"] = float(cells[NUMBERS[kind]] - reach)
                cells["high"] = float(cells[NUMBERS[kind]] + reach)
            records.append({name: _finite_or_none(cells.get(name)) for name in self.columns})
        return records

    def _write(self, part: Part, records: list[Record], faults: list[Fault]) -> None:
        for line in part:
            self._update_digest(line)
        if self.rank > 0:
            return
        for fault in sorted(faults):
            print(f"skipped: {_located(self.options, fault)}", file=sys.stderr)
        if self.records is None:
            # A terminal or a pipe need not know UTF-8, and JSON can say all of it in ASCII.
            write_output("".join(json.dumps(record, allow_nan=False) + "\n" for record in records))
        else:
            self.records.write(
                records,
                last_line=part[-1].number,
                lines_digest=self.digest.hexdigest(),
                num_faults=len(faults),
            )
            if self.store is not None:
                self.store.forget()
        self._add(records)
        self.num_faults += len(faults)

    def _update_digest(self, line: Line | Fault) -> None:
        self.digest.update(json.dumps(line).encode())

    def _add(self, records: Iterable[Record]) -> None:
        for record in records:
            self.summary.add(record)
            self.num_records += 1

    @property
    def _progress(self) -> str:
        """What a run that was stopped has written; "" where nothing."""
        if self.num_records == 0:
            if self.records is None or not self.records.has_passes:
                return ""
            return f"passes are in {self.records.passes_path}, the same command goes on from there."
        if self.records is None:
            return f"{self.num_records} records were written."
        place = self.records.path
        return f"{self.num_records} records are in {place}, the same command goes on from there."

    def _finish(self) -> None:
        """Print the summary of all records, and mark their file as whole."""
        if self.num_records == 0:
            raise ValueError(f"no line of {self.options.file} can be scored.")
        if self.records is not None and self.records.state.is_whole:
            print(f"{self.records.path} is whole already, nothing was scored", file=sys.stderr)
        elif self.records is not None:
            self.records.finish()
        summary = [f"{self.scorer.name}, seed {self.options.seed}", *self.summary.lines()]
        if self.num_faults:
            summary.append(f"skipped lines: {self.num_faults}")
        print("\n".join(summary), file=sys.stderr)


def _located(options: Namespace, fault: Fault) -> str:
    return f"{options.file}, line {fault.number}: {fault.reason}"


def _require_skipped(options: Namespace, faults: Sequence[Fault]) -> None:
    if faults and not options.skip:
        remedy = "Mend it, or leave such lines out: --skip."
        raise ValueError(f"{_located(options, min(faults))} {remedy}")
