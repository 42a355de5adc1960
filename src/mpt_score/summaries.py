"""What rows say together, as lines for a terminal: of what, over what, with which error."""

import math
from argparse import Namespace
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from mpt_lml.results import Estimate, ratio_estimate
from mpt_score.pair_scores import accuracy_of
from mpt_score.sentence_curves import SentenceCurves

NATS_TO_BITS = -1.0 / math.log(2.0)
"""Bits are counted as a length of code: the logarithm with its sign turned."""
Row = Mapping[str, Any]


class Ratio:
    """Σ a_i / Σ b_i over units that come one after the other: texts, or items of several texts."""

    def __init__(self) -> None:
        self.num_texts = 0
        self._numerators = array("d")
        self._denominators = array("d")
        self._places: dict[str, int] = {}  # of items

    def add(self, a: float, b: float = 1.0, item: str | None = None) -> None:
        """One text more: a unit of its own, or a part of its item."""
        self.num_texts += 1
        end = len(self._numerators)
        place = end if item is None else self._places.setdefault(item, end)
        if place == end:
            self._numerators.append(0.0)
            self._denominators.append(0.0)
        self._numerators[place] += a
        self._denominators[place] += b

    def estimate(self, unit: str) -> Estimate:
        """The ratio with its error over units, nan for a single one."""
        a = torch.tensor(self._numerators, dtype=torch.float64)
        b = torch.tensor(self._denominators, dtype=torch.float64)
        return ratio_estimate(a, b, unit)


class SentenceSummary:
    """What texts say together. Those of one item are not independent, items are."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._nats = Ratio()
        self._bits = {unit: Ratio() for unit in ("token", "byte")}
        self._first: Row = {}
        self._counts: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        self._first = self._first or row
        item = str(row[self._options.items]) if self._options.items else None
        self._nats.add(row["log_score"], 1, item)
        for unit, ratio in self._bits.items():
            if row[f"num_{unit}s"]:
                ratio.add(NATS_TO_BITS * row["log_score"], row[f"num_{unit}s"], item)
        self._counts["unknown"] += row["num_unknown"]
        self._counts["with unknown"] += row["num_unknown"] > 0
        self._counts["with windows"] += row["num_windows"] > 1

    def lines(self) -> list[str]:
        count = self._nats.num_texts
        blocks = blocks_in_words(self._options)
        lines = [f"log-score, the mean over orders of log p{blocks}; texts: {count}"]
        lines += self._means() if count > 1 else [_of_one_text(self._first)]
        if self._counts["unknown"]:
            lines.append(
                f"unknown tokens: {self._counts['unknown']}, in {self._counts['with unknown']} of "
                f"{count} texts; they are shown, not scored, and their bytes do not count"
            )
        if self._counts["with windows"]:
            lines.append(
                "texts longer than the model takes, scored in windows: "
                f"{self._counts['with windows']}"
            )
        return lines

    def _means(self) -> list[str]:
        lines = [f"mean: {self._nats.estimate('nats a text')}"]
        for unit, ratio in self._bits.items():
            if ratio.num_texts:
                lines.append(f"mean: {ratio.estimate(f'bits a {unit}')}")
        return lines


def _of_one_text(row: Row) -> str:
    value = f"{row['log_score']:.4f} nats"
    if row["standard_error"] is None:
        return f"{value}; error over masks not known: take two orders, or three masks, that differ"
    if row["standard_error"] == 0:
        return f"{value}; exact, as every mask was visited"
    return f"{value}; 95 % interval over masks {row['low']:.4f} to {row['high']:.4f}"


class PairSummary:
    """What pairs say together."""

    def __init__(self) -> None:
        self._ratio = Ratio()
        self._num_hits = 0
        self._num_equal = 0

    def add(self, row: Row) -> None:
        self._ratio.add(row["log_ratio"])
        self._num_hits += row["log_ratio"] > 0
        self._num_equal += row["log_ratio"] == 0

    def lines(self) -> list[str]:
        count = self._ratio.num_texts
        lines = [f"log p(first) - log p(second), the mean over orders; pairs: {count}"]
        if count == 1:
            return [*lines, f"{self._ratio.estimate(''):.4f} nats"]
        lines.append(f"mean: {self._ratio.estimate('nats a pair')}")
        accuracy = accuracy_of(self._num_hits, self._num_equal, count)
        lines.append(f"the first text is the more probable one in {accuracy}")
        if self._num_equal:
            lines.append(f"pairs that are equally probable, each half a hit: {self._num_equal}")
        return lines


class AnswerSummary:
    """What may be compared among the options of prompts."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        self._counts["options"] += 1
        if row["option"] == 0:
            self._counts["prompts"] += 1
            self._counts["incomparable"] += not row["comparable"]
            self._counts["merged"] += row["merged"]

    def lines(self) -> list[str]:
        counts = self._counts
        lines = [
            "log-score of an option given its prompt, the mean over orders; "
            f"prompts: {counts['prompts']}, options: {counts['options']}"
        ]
        if counts["incomparable"]:
            lines.append(
                f"prompts with options of different numbers of tokens: {counts['incomparable']}; a "
                "masked model is told that number, so they are not comparable"
            )
        if counts["merged"]:
            lines.append(
                f"prompts whose last token is joined with an option's first one: {counts['merged']}; it "
                "is scored, too"
            )
        return lines


class CurveSummary:
    """What a curve says; nothing of one that was drawn by an earlier call."""

    def __init__(self, curves: SentenceCurves | None = None) -> None:
        self._curves = curves

    def add(self, row: Row) -> None:
        """A rate says nothing of the others."""

    def lines(self) -> list[str]:
        """The area with its error, and what rates are off by."""
        if self._curves is None or not self._curves.design.has_area:
            return []
        lines = [f"area: {self._curves.area()} a token"]
        for rate, bias in self._curves.bias_at().items():
            lines.append(f"D·S − area at {100 * rate:g} %: {bias}")
        return lines


Summary = SentenceSummary | PairSummary | AnswerSummary | CurveSummary


def new_summary(options: Namespace) -> Summary:
    """What takes the rows of such a call."""
    if options.kind == "sentences":
        return SentenceSummary(options)
    kinds = {"pairs": PairSummary, "answers": AnswerSummary, "curve": CurveSummary}
    return kinds[options.kind]()


def blocks_in_words(options: Namespace) -> str:
    """How texts are cut into blocks; "" where they are not."""
    if options.block_length is None:
        return ""
    return f"; in blocks of {options.block_length} from left to right, later ones {options.later}"
