"""What rows say together, as lines for a terminal: of what, over what, with which error.

Summaries take one row after the other and keep sums, so that their memory does not grow with a file.
"""

import math
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import torch

from mpt_lml.results import Estimate
from mpt_lml.theory.rates import crossover
from mpt_score.line_scores import blocks_in_words
from mpt_score.pair_scores import accuracy_of
from mpt_score.sentence_curves import SentenceCurves

NATS_TO_BITS = -1.0 / math.log(2.0)
"""Bits are counted as a length of code: the logarithm with its sign turned."""
SHOWN_LINES = 10
"""Numbers of lines that are listed."""
_NO_ERROR = "not known, which takes two orders, or three masks, that differ"
Row = Mapping[str, Any]


class RatioOfSums:
    """Σ a_i / Σ b_i over units that come one after the other, with its error.

    The estimate is that of :func:`mpt_lml.results.ratio_estimate`. Its residuals e_i = a_i − R b_i are
    (a_i − mean a) − R (b_i − mean b), because R is the ratio of the means, too. So Σ e_i² is made of
    sums of squares and products about the means, which are updated unit by unit (Welford 1962).
    """

    def __init__(self) -> None:
        self.num_pieces = 0
        self._count = 0
        self._mean_a = 0.0
        self._mean_b = 0.0
        self._squares_a = 0.0
        self._squares_b = 0.0
        self._products = 0.0
        self._clusters: dict[Any, list[float]] = {}

    def add(self, a: float, b: float = 1.0, cluster: Any = None) -> None:
        """One unit more, or a further piece of the unit ``cluster``, whose sums are kept."""
        self.num_pieces += 1
        if cluster is not None:
            sums = self._clusters.setdefault(cluster, [0.0, 0.0])
            sums[0] += a
            sums[1] += b
        else:
            self._add_unit(a, b)

    def _add_unit(self, a: float, b: float) -> None:
        self._count += 1
        step_a = a - self._mean_a
        step_b = b - self._mean_b
        self._mean_a += step_a / self._count
        self._mean_b += step_b / self._count
        self._squares_a += step_a * (a - self._mean_a)
        self._squares_b += step_b * (b - self._mean_b)
        self._products += step_a * (b - self._mean_b)

    def estimate(self, unit: str) -> Estimate:
        """The ratio with its error over units, nan for a single one."""
        for a, b in self._clusters.values():
            self._add_unit(a, b)
        self._clusters = {}
        ratio = self._mean_a / self._mean_b
        error = math.nan
        if self._count > 1:
            residuals = self._squares_a - 2 * ratio * self._products + ratio**2 * self._squares_b
            variance = max(residuals, 0.0) / (self._count - 1) / self._count
            error = math.sqrt(variance) / self._mean_b
        return Estimate(ratio, error, self._count, unit)


class SentenceSummary:
    """What texts say together.

    Args:
        blocks: How they were cut into blocks, in words; "" where they were not.
        items: The column of their items, which are independent, unlike texts of one; None where every
            text is.
    """

    def __init__(self, blocks: str, items: str | None) -> None:
        self._blocks = blocks
        self._items = items
        self._nats = RatioOfSums()
        self._bits = {unit: RatioOfSums() for unit in ("token", "byte")}
        self._lower = RatioOfSums()  # of the mixture of orders
        self._upper = RatioOfSums()
        self._first: Row = {}
        self._num_heavy_tailed = 0
        self._num_unknown = 0
        self._with_unknown = 0
        self._with_windows = 0

    def add(self, row: Row) -> None:
        if self._nats.num_pieces == 0:
            self._first = row
        item = row[self._items] if self._items else None
        self._nats.add(row["log_score"], 1, item)
        for unit, ratio in self._bits.items():
            if row[f"num_{unit}s"]:
                ratio.add(NATS_TO_BITS * row["log_score"], row[f"num_{unit}s"], item)
        if row["mixture_upper"] is not None:
            self._lower.add(row["mixture_lower"], 1, item)
            self._upper.add(row["mixture_upper"], 1, item)
            self._num_heavy_tailed += row["is_heavy_tailed"]
        self._num_unknown += row["num_unknown"]
        self._with_unknown += row["num_unknown"] > 0
        self._with_windows += row["num_windows"] > 1

    def lines(self) -> list[str]:
        count = self._nats.num_pieces
        blocks = f", {self._blocks}" if self._blocks else ""
        lines = [f"log-score, the mean over orders of log p{blocks}; texts: {count}"]
        if count == 1:
            lines.append(_of_one_text(self._first))
        else:
            lines.append(f"mean: {self._nats.estimate('nats a text')}")
        for unit, ratio in self._bits.items():
            if ratio.num_pieces:
                bits = ratio.estimate(f"bits a {unit}")
                lines.append(f"mean: {bits}" if count > 1 else f"{bits:.4f} bits a {unit}")
        if self._upper.num_pieces == count:
            lines += self._of_mixture()
        if self._num_unknown:
            lines.append(
                f"unknown tokens: {self._num_unknown}, in {self._with_unknown} of {count} texts; they "
                "are shown, not scored, and their bytes do not count"
            )
        without_bytes = count - self._bits["byte"].num_pieces
        if 0 < without_bytes < count:
            lines.append(
                f"texts left out of bits a byte: {without_bytes}; the tokenizer does not say where their "
                "unknown tokens stand"
            )
        if self._with_windows:
            lines.append(
                f"texts longer than the model takes, scored in windows: {self._with_windows}"
            )
        return lines

    def _of_mixture(self) -> list[str]:
        """The bounds on the mixture of orders, which every text has."""
        count = self._upper.num_pieces
        lower = self._lower.estimate("nats a text")
        upper = self._upper.estimate("nats a text")
        bounds = f"{lower} to {upper}" if count > 1 else f"{lower:.4f} to {upper:.4f} nats"
        lines = [f"log p of the mixture of orders, bounds from below and above: {bounds}"]
        if self._num_heavy_tailed:
            lines.append(
                f"the bound from above is not to be relied on in {self._num_heavy_tailed} of {count} "
                "texts: one order holds more than half of the probability, and orders that were not "
                "drawn may hold more; more orders tell"
            )
        return lines


def _of_one_text(row: Row) -> str:
    """What is said of the first text, if no other comes."""
    value = f"{row['log_score']:.4f} nats"
    if row["standard_error"] is None:
        return f"{value}; error over masks: {_NO_ERROR}"
    if row["standard_error"] == 0:
        return f"{value}; exact, as every mask was visited"
    return f"{value}; 95 % interval over masks {row['low']:.4f} to {row['high']:.4f}"


class PairSummary:
    """What pairs say together."""

    def __init__(self) -> None:
        self._ratio = RatioOfSums()
        self._num_hits = 0
        self._num_equal = 0

    def add(self, row: Row) -> None:
        value = row["log_ratio"]
        self._ratio.add(value)
        self._num_equal += value == 0
        self._num_hits += value > 0

    def lines(self) -> list[str]:
        count = self._ratio.num_pieces
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
        self._line = 0  # the last one
        self._num_prompts = 0
        self._num_options = 0
        self._num_merged = 0
        self._num_incomparable = 0
        self._incomparable: list[int] = []  # lines, the first ones

    def add(self, row: Row) -> None:
        self._num_options += 1
        if row["line"] == self._line:
            return
        self._line = row["line"]
        self._num_prompts += 1
        self._num_merged += row["merged"]
        if not row["comparable"]:
            self._num_incomparable += 1
            if len(self._incomparable) < SHOWN_LINES:
                self._incomparable.append(row["line"])

    def lines(self) -> list[str]:
        lines = [
            "log-score of an option given its prompt, the mean over orders; "
            f"prompts: {self._num_prompts}, options: {self._num_options}"
        ]
        if self._num_incomparable:
            numbers = ", ".join(map(str, self._incomparable))
            more = ", ..." if self._num_incomparable > SHOWN_LINES else ""
            lines.append(
                f"prompts with options of different numbers of tokens: {self._num_incomparable} (line "
                f"{numbers}{more}); a masked model is told that number, so they are not comparable"
            )
        if self._num_merged:
            lines.append(
                f"prompts whose last token is joined with an option's first one: {self._num_merged}; "
                "it is scored, too"
            )
        return lines


Summary = SentenceSummary | PairSummary | AnswerSummary


def new_summary(options: Namespace) -> Summary:
    """What takes the rows of such a call."""
    if options.kind == "pairs":
        return PairSummary()
    if options.kind == "answers":
        return AnswerSummary()
    return SentenceSummary(blocks_in_words(options), options.items)


def of_curve(scores: SentenceCurves) -> list[str]:
    """The area with its error, or the scores at rates that have none.

    Returns:
        Lines without an end.
    """
    if not scores.design.has_area:
        lines = []
        for row in scores.rows():
            point = Estimate(
                row["score"], row["standard_error"], len(scores.num_features), "nats a token"
            )
            lines.append(f"score at {100 * row['rate']:g} %: {point}")
        return lines
    lines = [f"area: {scores.area()} a token"]
    rate = _reading_rate(scores)
    if rate is not None:
        lines.append(f"the rate that reads it: {rate}")
    for rate_of_bias, bias in scores.bias_at().items():
        lines.append(f"D·S − area at {100 * rate_of_bias:g} %: {bias}")
    return lines


def _reading_rate(curves: SentenceCurves) -> str | Estimate | None:
    """Where one rate reads the area, if the curve tells: None for one text or a one-sided curve.

    A curve of few texts zigzags through its mean height, and :meth:`SentenceCurves.mean_rate` is the
    first of its crossings. The rate is given where the last crossing is at most one standard error
    above the first. A zigzag can also widen that error, which is a jackknife over texts. Then the
    rate is given although the curve crosses more than once, and its wide error says how little it
    tells.
    """
    try:
        first = curves.mean_rate()
    except ValueError:
        return None
    rates = torch.tensor(curves.design.columns, dtype=torch.float64)
    # The last crossing is the first one from the right.
    last = 1 - crossover(curves.score.flip(0), 1 - rates.flip(0)).item()
    if last - first > first.standard_error:
        return (
            "unclear: the curve crosses its mean height more than once, "
            f"between {100 * first:.1f} and {100 * last:.1f} %"
        )
    return Estimate(100 * first, 100 * first.standard_error, first.num_samples, "%")
