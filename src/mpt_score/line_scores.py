"""What the library says of some lines, as rows: each its line, its number with an interval, whose."""

import math
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from scipy.special import stdtrit
from torch import Tensor

import mpt_score
from mpt_score.lines import Line, copied_columns
from mpt_score.scorer import Scorer
from mpt_score.sentence_curves import SentenceCurves

SETTINGS = {
    "sentences": (
        "num_orders",
        "num_masks",
        "target_error",
        "pseudo",
        "seed",
        "block_length",
        "later",
    ),
    "pairs": ("num_orders", "pseudo", "seed"),
    "answers": ("num_orders", "pseudo", "within_word", "seed"),
    "curve": ("rates", "num_masks", "seed"),
}
"""The options of each kind that are arguments of the library."""
QUANTITIES = {
    "sentences": "log-score: log p of the text, mean over orders of its tokens",
    "pairs": "log p(first) - log p(second), mean over orders of the tokens that differ",
    "answers": "log-score: log p(option | prompt), mean over orders of the option's tokens",
    "curve": "score at this rate: log q(hidden token | shown), mean over texts",
}
"""What the number of a row is."""
SAID = ("low", "high", "unit", "quantity", "model")
"""Columns of every row: the interval of its number, what that is, and who said it."""
COLUMNS = {
    "sentences": (
        *("log_score", *SAID, "standard_error", "num_tokens", "num_unknown", "num_bytes"),
        *("num_windows", "num_passes", "inconsistency", "inconsistency_low", "inconsistency_high"),
        *("mixture_lower", "mixture_lower_error", "mixture_upper", "mixture_upper_error"),
        *("is_heavy_tailed", "bits_per_token", "bits_per_byte"),
    ),
    "pairs": (
        *("log_ratio", *SAID, "standard_error", "inconsistency", "num_changed", "num_passes"),
    ),
    "answers": (
        *("option", "log_score", *SAID, "standard_error", "difference", "difference_error"),
        *("best", "comparable", "num_tokens", "merged", "num_passes"),
    ),
    "curve": ("rate", "score", *SAID, "standard_error", "num_texts"),
}
"""Of a row, behind its line and the cells that the line keeps."""
PSEUDO_COLUMNS = {
    "sentences": "pseudo_log_likelihood",
    "pairs": "pseudo_difference",
    "answers": "pseudo_log_likelihood",
}
LEVEL = 0.95
"""Coverage of the intervals."""


def settings_of(options: Namespace) -> dict[str, Any]:
    """The arguments of the library that were asked for, by name."""
    values = {name: getattr(options, name) for name in SETTINGS[options.kind]}
    return {
        name: value for name, value in values.items() if value is not None and value is not False
    }


def columns_of(options: Namespace) -> tuple[str, ...]:
    """The columns of the rows of one call.

    Raises:
        ValueError: For a column of the input that is to be copied, and that rows have already.
    """
    columns = COLUMNS[options.kind]
    if options.pseudo:
        columns = (*columns, PSEUDO_COLUMNS[options.kind])
    if options.within_word:
        columns = (*columns, "within_word")
    if options.kind == "curve":
        return columns
    copied = copied_columns(options)
    for name in copied:
        if name in ("line", *columns):
            raise ValueError(f"--keep {name}: rows have a column of that name. Rename it.")
    return ("line", *copied, *columns)


def blocks_in_words(options: Namespace) -> str:
    """How texts are cut into blocks; "" where they are not."""
    if options.block_length is None:
        return ""
    return f"in blocks of {options.block_length} from left to right, later ones {options.later}"


def score(scorer: Scorer, lines: Sequence[Line], options: Namespace) -> Any:
    """The library's scores of some lines. What of them cannot be scored, it skips or refuses."""
    settings: dict[str, Any] = {**settings_of(options), "skip": options.skip}
    if options.kind == "sentences":
        if options.items:
            settings["items"] = [line.copied[options.items] for line in lines]
        texts = [line.texts[0] for line in lines]
        return mpt_score.sentences(scorer, texts, **settings)
    if options.kind == "pairs":
        first = [line.texts[0] for line in lines]
        second = [line.texts[1] for line in lines]
        return mpt_score.pairs(scorer, first, second, **settings)
    prompts = [line.prompt for line in lines]
    answers = [list(line.texts) for line in lines]
    return mpt_score.answers(scorer, prompts, answers, **settings)


def rows_of(
    scores: Any,
    lines: Sequence[Line],
    options: Namespace,
    model: str,
    columns: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """One row a text, a pair, or an option of a prompt; none for a line that was skipped.

    Args:
        scores: Of ``lines``.
        lines: In the order in which they were scored.
        options: What was asked for.
        model: Its name.
        columns: As of :func:`columns_of`.
    """
    said = _said(options, model)
    values = {name: value.tolist() for name, value in _values(scores, options).items()}
    for place, line in enumerate(lines):
        if place in scores.skipped:
            continue
        cells = {"line": line.number, **line.copied, **said}
        numbers = {name: value[place] for name, value in values.items()}
        if options.kind != "answers":
            yield _row(cells | numbers, columns)
            continue
        for option in range(len(line.texts)):
            cells["option"] = option
            of_option = {
                name: value[option] if isinstance(value, list) else value
                for name, value in numbers.items()
            }
            yield _row(cells | of_option, columns)


def rows_of_curve(
    curves: SentenceCurves, options: Namespace, model: str, columns: Sequence[str]
) -> list[dict[str, Any]]:
    """One row a rate."""
    num_texts = len(curves.num_features)
    reach = stdtrit(num_texts - 1, 0.5 * (1 + LEVEL)) if num_texts > 1 else math.nan
    rows = []
    for point in curves.rows():
        cells = {**point, **_said(options, model), "num_texts": num_texts}
        cells["low"] = point["score"] - reach * point["standard_error"]
        cells["high"] = point["score"] + reach * point["standard_error"]
        rows.append(_row(cells, columns))
    return rows


def _said(options: Namespace, model: str) -> dict[str, str]:
    blocks = blocks_in_words(options)
    quantity = QUANTITIES[options.kind] + (f"; {blocks}" if blocks else "")
    unit = "nats a token" if options.kind == "curve" else "nats"
    return {"unit": unit, "quantity": quantity, "model": model}


def _values(scores: Any, options: Namespace) -> dict[str, Tensor]:
    """The numbers of rows by their column, a text, pair or prompt on the first axis."""
    values = {name: value for name, value in vars(scores).items() if isinstance(value, Tensor)}
    if options.kind == "sentences":
        values["low"], values["high"] = scores.interval(LEVEL).T
        ends = scores.inconsistency_interval(LEVEL).T
        values["inconsistency_low"], values["inconsistency_high"] = ends
        values["bits_per_token"] = scores.bits_per("token")
        values["bits_per_byte"] = torch.full_like(scores.log_score, math.nan)
        if scores.num_bytes.any():  # of token ids they are not known
            values["bits_per_byte"] = scores.bits_per("byte")
        return values
    number = "log_ratio" if options.kind == "pairs" else "log_score"
    # Student's interval over orders.
    reach = stdtrit(options.num_orders - 1, 0.5 * (1 + LEVEL)) * scores.standard_error
    values["low"] = values[number] - reach
    values["high"] = values[number] + reach
    if options.kind == "answers":
        values["best"] = scores.best[:, None] == torch.arange(scores.num_tokens.shape[1])
    return values


def _row(cells: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    return {name: _finite_or_none(cells[name]) for name in columns}


def _finite_or_none(value: Any) -> Any:
    """JSON has no word for nan and infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
