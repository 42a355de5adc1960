"""What ``mpt-score`` does: read a file, score it, write rows."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import mpt_score
from mpt_lml import files
from mpt_lml.theory.rates import crossover
from mpt_score import networks
from mpt_score.errors import TextError
from mpt_score.keep import afresh
from mpt_score.lines import Line, readable
from mpt_score.processes import Team

USED = {  # the keyword that an option becomes, where it becomes one
    "sentences": {"masks": "num_masks", "orders": "num_orders", "error": "error"}
    | {"pseudo": "pseudo", "seed": "seed", "documents": "", "checkpoints": ""},
    "curve": {"masks": "num_masks", "seed": "seed", "rates": "", "plot": "", "checkpoints": ""},
    "pairs": {"orders": "num_orders", "pseudo": "pseudo", "seed": "seed", "checkpoints": ""},
    "answers": {"orders": "num_orders", "seed": "seed", "checkpoints": ""},
}
TEXT: dict[str, Any] = {"precision": "float32", "max_tokens": 8192}


def run(options: argparse.Namespace) -> None:
    """Score; rows go to --out or stdout, what they say together to standard error."""
    _require_new(options.out)
    _require_new(options.plot)
    given = _given(options)
    team = Team.here(options.checkpoints)
    model = options.model or networks.small_bert_folder()
    about: dict[str, Any] = {"kind": options.kind, **given}
    device = team.device(options.device)
    given_loading = {name: getattr(options, name) for name in TEXT}
    loading = TEXT | {k: value for k, value in given_loading.items() if value is not None}
    scorer = mpt_score.load(model, device=device, revision=options.revision, **loading)
    lines, faults = readable(options.file, options.kind, scorer, skip=options.skip)
    work = _work(options, lines, given)
    about["calls"] = files.digest(repr(work), {})
    kept = scorer.keep(team.folder, **about) if team.folder else afresh
    try:
        found = work(scorer, run=team.together(kept))
    except TextError as error:
        where = f"{options.file}, line {lines[error.number].number}"
        raise ValueError(f"{where}: {error}") from error
    about["model"] = scorer.identity
    if team.rank > 0:
        return
    rows = found.rows()
    for place, row in enumerate(rows if options.kind != "curve" else ()):
        row["line"] = lines[row.get("prompt", place)].number
    _write(options.out, rows, about)
    print("\n".join([f"skipped: {fault}" for fault in faults] + _summary(found)), file=sys.stderr)
    if options.plot is not None:
        _plot(found, options.plot)


def _require_new(path: str | None) -> None:
    """Before any work: that a file can be written, in a known form, where none is."""
    known = (".jsonl", ".csv", ".json", ".svg", ".pdf", ".png")
    if path is None:
        return
    if Path(path).suffix not in known:
        raise ValueError(f"{path} must end in one of {', '.join(known)}.")
    if Path(path).exists():
        raise ValueError(f"{path} is there already: remove it, or name another file.")
    files.require_writable(Path(path).parent)


def _summary(found: Any) -> list[str]:
    if isinstance(found, mpt_score.SentenceCurves):
        columns = found.design.columns
        if not found.design.has_area:
            pairs = zip(columns, found.score.tolist(), found.standard_error.tolist(), strict=True)
            return [f"score at {r:g} %: {s:.4f} ± {e:.4f} nats a token" for r, s, e in pairs]
        said = [f"area: {found.area()} a token"]
        said += _reading_rate(found)
        return said + [f"D·S − area at {r:g} %: {e}" for r, e in found.bias_at().items()]
    if isinstance(found, mpt_score.SentenceScores):
        long = int((found.num_windows > 1).sum())
        said = [f"mean: {each}" for each in (found.mean(), found.mean("token"), found.mean("byte"))]
        return said + [f"{long} texts are longer than the model takes: scored in windows"][:long]
    if isinstance(found, mpt_score.PairScores):
        return [f"skipped: pair {n} {why}" for n, why in found.incomparable.items()]
    odd = (~found.comparable).nonzero().flatten().tolist()
    return [f"prompt {n}: its options have different numbers of tokens" for n in odd]


def _reading_rate(found: mpt_score.SentenceCurves) -> list[str]:
    """Where one rate reads the area, if the curve tells: nothing for one text or a one-sided curve.

    A curve of few texts zigzags through its mean height, and :meth:`mean_rate` is the first of
    its crossings. The rate is given where the last crossing is at most one standard error above the
    first. A zigzag can also widen that error, which is a jackknife over texts. Then the rate is
    given although the curve crosses more than once, and its wide error says how little it tells.
    """
    try:
        first = found.mean_rate()
    except ValueError:
        return []
    percent = torch.tensor(found.design.columns).double()
    # The last crossing is the first one from the right.
    last = 100 - crossover(found.score.flip(0), 100 - percent.flip(0)).item()
    if last - first > first.standard_error:
        return [
            "the rate that reads it: unclear: the curve crosses its mean height more than once, "
            f"between {first:.1f} and {last:.1f} %"
        ]
    return [f"the rate that reads it: {first}"]


def _plot(found: Any, path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    found.plot(figure.subplots())
    with files.replacing(Path(path)) as unfinished:
        figure.savefig(unfinished, format=Path(path).suffix[1:])


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The keywords of the call. Raises ``ValueError`` for an option that says nothing to it."""
    used = USED[options.kind]
    names = ("masks", "orders", "error", "pseudo", "documents", "rates", "plot")
    for name in names:
        if getattr(options, name) not in (None, False) and name not in used:
            raise ValueError(f"--{name} means nothing for {options.kind}. Leave it out.")
    values = {word: getattr(options, name) for name, word in used.items() if word}
    return {word: value for word, value in values.items() if value is not None}


def _work(
    options: argparse.Namespace, lines: Sequence[Line], given: dict[str, Any]
) -> partial[Any]:
    """The call that ``kind`` asks for, still without its model."""
    first = [line.texts[0] for line in lines]
    if options.kind == "sentences":
        named = [line.document for line in lines] if options.documents else None
        return partial(mpt_score.sentences, texts=first, documents=named, **given)
    if options.kind == "curve":
        design = mpt_score.Design(_rates(options.rates or "1:99"), **given)
        return partial(mpt_score.curve, texts=first, design=design)
    if options.kind == "pairs":
        second, skip = [line.texts[1] for line in lines], options.skip
        return partial(mpt_score.pairs, first=first, second=second, skip=skip, **given)
    prompts = [line.prompt for line in lines]
    choices = [[each[len(line.prompt) :] for each in line.texts] for line in lines]
    return partial(mpt_score.answers, prompts=prompts, options=choices, **given)


def _rates(text: str) -> tuple[int, ...]:
    """Rates in percent: 15, or 5,50, or 5:95:10 with its last number."""
    found: list[int] = []
    for part in text.split(","):
        try:
            first, last, step, *_ = (*map(int, part.split(":")), None, None)
        except ValueError:
            raise ValueError(f"--rates must be as 15, 5,50 or 5:95:10, got {text!r}.") from None
        found += range(first, (first if last is None else last) + 1, step or 1)
    return tuple(found)


def _write(path: str | None, rows: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Rows as CSV, as JSON lines, or as one JSON with what they belong to; whole or not at all."""
    rows = [{k: None if v != v else v for k, v in row.items()} for row in rows]  # nan is not JSON
    text = io.StringIO(newline="")
    if path is not None and path.endswith(".csv"):
        table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    elif path is not None and path.endswith(".json"):
        json.dump({**about, "rows": rows}, text, indent=1, ensure_ascii=False)
    else:
        # A terminal or a pipe need not know UTF-8, and JSON can say all of it in ASCII.
        text.writelines(json.dumps(row, ensure_ascii=path is None) + "\n" for row in rows)
    if path is None:
        sys.stdout.write(text.getvalue())
        return
    with files.replacing(Path(path)) as unfinished:
        unfinished.write_text(text.getvalue(), encoding="utf-8")
