"""What ``mpt-score`` does: read a file, score it, write rows and say what they say together."""

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import mpt_score
from mpt_lml import files
from mpt_lml.checks import Within, check
from mpt_score import networks, summaries
from mpt_score.errors import TextError
from mpt_score.lines import Line, readable
from mpt_score.options import (
    AnswerOptions,
    CurveOptions,
    NetworkOptions,
    OutputOptions,
    PairOptions,
    ScoreOptions,
    SentenceOptions,
)
from mpt_score.parts import Runner, compute_parts
from mpt_score.processes import ProcessGroup
from mpt_score.scorer import Scorer

Percent = Annotated[int, Within(1, 100)]
TABLES = (".jsonl", ".csv", ".json")
PICTURES = (".svg", ".pdf", ".png")


def run(
    path: str,
    options: ScoreOptions,
    network: NetworkOptions,
    output: OutputOptions,
    plot: str | None = None,
) -> None:
    """Score the lines of a file.

    Rows go to ``output.out`` or standard output, their summary to standard error.

    Args:
        path: The file, in UTF-8; ``-`` is standard input.
        options: What is computed; its class says of what kind the lines are.
        network: Which network computes it.
        output: What becomes of bad lines, of rows and of parts that are done.
        plot: Where a picture of a curve goes.

    Raises:
        ValueError: For a line that cannot be scored, which is named, and for wrong options.
        OSError: For a file that cannot be read or written.
    """
    _require_new(output.out, TABLES)
    _require_new(plot, PICTURES)
    group = ProcessGroup.from_environment(output.checkpoints)
    scorer = _load(network, group)
    lines, faults = readable(path, options.kind, scorer, skip=output.skip)
    score = _call(lines, options, skip=output.skip)
    record = {"kind": options.kind, **asdict(options), "calls": files.digest(repr(score), {})}
    runner: Runner = compute_parts
    if group.folder:
        runner = scorer.checkpoints_in(group.folder, **record)
    try:
        scores = score(scorer, run=group.share(runner))
    except TextError as error:
        where = f"{path}, line {lines[error.number].number}"
        raise ValueError(f"{where}: {error}") from error
    if group.rank > 0:
        return
    _write(output.out, _rows(scores, lines, options), {**record, "model": scorer.identity})
    skipped = [f"skipped: {fault}" for fault in faults]
    print("\n".join([*skipped, *summaries.of(scores)]), file=sys.stderr)
    if plot is not None:
        _draw(scores, plot)


def _require_new(path: str | None, suffixes: Sequence[str]) -> None:
    """Before any work: that a file can be written, in a known form, where none is."""
    if path is None:
        return
    if Path(path).suffix not in suffixes:
        raise ValueError(f"{path} must end in one of {', '.join(suffixes)}.")
    if Path(path).exists():
        raise ValueError(f"{path} is there already: remove it, or name another file.")
    files.require_writable(Path(path).parent)


def _load(network: NetworkOptions, group: ProcessGroup) -> Scorer:
    return mpt_score.load(
        network.model or networks.small_bert_folder(),
        revision=network.revision,
        device=group.device(network.device),
        precision=network.precision,
        max_tokens=network.max_tokens,
    )


def _call(lines: Sequence[Line], options: ScoreOptions, *, skip: bool) -> Callable[..., Any]:
    """The call of the library that scores ``lines``, still without its model."""
    match options:
        case SentenceOptions():
            return _sentences(lines, options)
        case PairOptions():
            return _pairs(lines, options, skip=skip)
        case AnswerOptions():
            return _answers(lines, options)
        case CurveOptions():
            return _curve(lines, options)


def _sentences(lines: Sequence[Line], options: SentenceOptions) -> Callable[..., Any]:
    documents = [line.document for line in lines] if options.documents else None
    return partial(
        mpt_score.sentences,
        texts=[line.texts[0] for line in lines],
        documents=documents,
        num_masks=options.num_masks,
        num_orders=options.num_orders,
        pseudo=options.pseudo,
        target_error=options.target_error,
        seed=options.seed,
    )


def _pairs(lines: Sequence[Line], options: PairOptions, *, skip: bool) -> Callable[..., Any]:
    return partial(
        mpt_score.pairs,
        first=[line.texts[0] for line in lines],
        second=[line.texts[1] for line in lines],
        num_orders=options.num_orders,
        pseudo=options.pseudo,
        skip=skip,
        seed=options.seed,
    )


def _answers(lines: Sequence[Line], options: AnswerOptions) -> Callable[..., Any]:
    return partial(
        mpt_score.answers,
        prompts=[line.prompt for line in lines],
        options=[[text[len(line.prompt) :] for text in line.texts] for line in lines],
        num_orders=options.num_orders,
        seed=options.seed,
    )


def _curve(lines: Sequence[Line], options: CurveOptions) -> Callable[..., Any]:
    check(("rates", options.rates, tuple[Percent, ...]))
    rates = tuple(percent / 100 for percent in options.rates)
    design = mpt_score.Design(rates, num_masks=options.num_masks, seed=options.seed)
    return partial(mpt_score.curve, texts=[line.texts[0] for line in lines], design=design)


def _rows(scores: Any, lines: Sequence[Line], options: ScoreOptions) -> list[dict[str, Any]]:
    """The rows of a table, each with the line of the file that it belongs to.

    A row is a text, a pair or an option of a prompt; those of a curve are rates, of all lines.
    """
    rows: list[dict[str, Any]] = scores.rows()
    if isinstance(options, CurveOptions):
        return rows
    for place, row in enumerate(rows):
        row["line"] = lines[row.get("prompt", place)].number
    return rows


def _write(path: str | None, rows: list[dict[str, Any]], record: dict[str, Any]) -> None:
    """Rows as CSV, as JSON lines, or as one JSON with what they belong to; whole or not at all."""
    rows = [{name: _or_none(value) for name, value in row.items()} for row in rows]
    if path is None:
        # A terminal or a pipe need not know UTF-8, and JSON can say all of it in ASCII.
        for row in rows:
            print(json.dumps(row))
        return
    match Path(path).suffix:
        case ".csv":
            text = _as_csv(rows)
        case ".json":
            text = json.dumps({**record, "rows": rows}, indent=1, ensure_ascii=False)
        case _:
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with files.replacing(Path(path)) as unfinished:
        # Bytes: no system may change the ends of lines.
        unfinished.write_bytes(text.encode())


def _or_none(value: Any) -> Any:
    """JSON has no word for nan."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _as_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _draw(curves: Any, path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    curves.plot(figure.subplots())
    with files.replacing(Path(path)) as unfinished:
        figure.savefig(unfinished, format=Path(path).suffix[1:])
