"""The summary of all records of a run, as lines for a terminal: quantity, mean and error."""

from argparse import Namespace
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from mpt_lml.results import Estimate
from mpt_score.quantities.means import ratio_estimate
from mpt_score.quantities.pair_scores import accuracy_of
from mpt_score.quantities.sentence_curves import FIXED_RATES, SentenceCurves
from mpt_score.quantities.sentence_scores import NATS_TO_BITS

HEADS = {
    "sentences": "log-score, the mean over orders of log p",
    "pairs": "log p(first) - log p(second), the mean over orders",
    "answers": "log-score of an option given its prompt, the mean over orders",
}
UNKNOWN = "unknown tokens, which are shown and not scored, and whose bytes do not count"
WINDOWS = "texts longer than the model takes, scored in windows"
TIES = "pairs that are equally probable, each half a hit"
INCOMPARABLE = (
    "prompts with options of different numbers of tokens, which a masked model is told, so that they "
    "are not comparable"
)
MERGED = "prompts whose last token is joined with an option's first one, which is scored, too"
Record = Mapping[str, Any]


class Ratio:
    """Σ a_i / Σ b_i over units that come one after the other: texts, or items of several texts."""

    def __init__(self) -> None:
        self._numerators = array("d")
        self._denominators = array("d")
        self._places: dict[str, int] = {}  # of items

    def add(self, a: float, b: float = 1.0, item: str | None = None) -> None:
        """Add one text: a unit of its own, or one of the texts of its item."""
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


class Summary:
    """The summary of the records of a call: means with their errors, and counts.

    Args:
        options: Those of the command line. Texts of one of its ``items`` are not independent; items are.
    """

    def __init__(self, options: Namespace) -> None:
        self.curves: SentenceCurves | None = None  # of a curve, which its records do not tell
        self._options = options
        self._first: Record = {}
        self._means: defaultdict[str, Ratio] = defaultdict(Ratio)  # by their unit
        self._counts: Counter[str] = Counter()  # by what is counted, in words
        self._num_hits = 0

    def add(self, record: Record) -> None:
        self._first = self._first or record
        if self._options.kind == "sentences":
            self._add_text(record)
        elif self._options.kind == "pairs":
            self._add_pair(record)
        elif self._options.kind == "answers":
            self._add_option(record)

    def _add_text(self, record: Record) -> None:
        item = str(record[self._options.items]) if self._options.items else None
        self._means["nats a text"].add(record["log_score"], item=item)
        for unit in ("token", "byte"):
            size = record[f"num_{unit}s"]
            if size:
                self._means[f"bits a {unit}"].add(
                    NATS_TO_BITS * record["log_score"], float(size), item
                )
        self._counts["texts"] += 1
        self._counts["texts with unknown tokens"] += record["num_unknown"] > 0
        self._counts[UNKNOWN] += record["num_unknown"]
        self._counts[WINDOWS] += record["num_windows"] > 1

    def _add_pair(self, record: Record) -> None:
        self._means["nats a pair"].add(record["log_ratio"])
        self._num_hits += record["log_ratio"] > 0
        self._counts["pairs"] += 1
        self._counts[TIES] += record["log_ratio"] == 0

    def _add_option(self, record: Record) -> None:
        self._counts["options"] += 1
        if record["option"] == 0:
            self._counts["prompts"] += 1
            self._counts[INCOMPARABLE] += not record["comparable"]
            self._counts[MERGED] += record["merged"]

    def lines(self) -> list[str]:
        kind = self._options.kind
        if kind == "curve":
            return [] if self.curves is None else _of_curve(self.curves)
        lines = [HEADS[kind] + blocks_in_words(self._options)]
        if self._counts["texts"] == 1:
            lines.append(_of_one_text(self._first))
        else:
            lines += [f"mean: {mean.estimate(unit)}" for unit, mean in self._means.items()]
        if self._counts["pairs"] > 1:
            accuracy = accuracy_of(self._num_hits, self._counts[TIES], self._counts["pairs"])
            lines.append(f"the first text is the more probable one in {accuracy}")
        lines += [f"{what}: {count}" for what, count in self._counts.items() if count]
        return lines


def _of_one_text(record: Record) -> str:
    value = f"{record['log_score']:.4f} nats"
    if record["standard_error"] is None:
        return f"{value}; error over masks not known: take two orders, or three masks, that differ"
    if record["standard_error"] == 0:
        return f"{value}; exact, as every mask was visited"
    return f"{value}; 95 % interval over masks {record['low']:.4f} to {record['high']:.4f}"


def _of_curve(curves: SentenceCurves) -> list[str]:
    """The area with its error, and what usual rates of training are off by, if they were asked for."""
    if not curves.design.has_area:
        return []
    lines = [f"area: {curves.area()} a token"]
    rates = [rate for rate in FIXED_RATES if rate in curves.design.columns]
    for rate, bias in curves.bias_at(rates).items():
        lines.append(f"D·S − area at {100 * rate:g} %: {bias}")
    return lines


def blocks_in_words(options: Namespace) -> str:
    """How texts are cut into blocks; "" where they are not."""
    if options.block_length is None:
        return ""
    return f"; in blocks of {options.block_length} from left to right, later ones {options.later}"
