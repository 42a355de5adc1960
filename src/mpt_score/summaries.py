"""What scores say together, as lines for a terminal: of what, over what, with which error."""

import math
from array import array
from collections.abc import Sequence

import torch

from mpt_lml.results import Estimate, ratio_estimate
from mpt_lml.theory.rates import crossover
from mpt_score.answer_scores import AnswerScores
from mpt_score.lines import Line
from mpt_score.pair_scores import PairScores
from mpt_score.sentence_curves import SentenceCurves
from mpt_score.sentence_scores import NATS_TO_BITS, SentenceScores

SHOWN_LINES = 10
"""Numbers of lines that are listed."""
_NO_ERROR = "not known, which takes two orders, or three masks, that differ"


class RatioOfSums:
    """Sum of y by sum of u over documents that come one after the other, with its error.

    Of a document it keeps two numbers: its texts' sums of y and of u.
    """

    def __init__(self) -> None:
        self.num_texts = 0
        self._document: int | None = None  # the last one, which may have more texts
        self._values = array("d")  # of each document
        self._sizes = array("d")

    def add(self, value: float, size: float | int, document: int) -> None:
        """One text more.

        Args:
            value: its y.
            size: its u.
            document: the number of its document. Texts of one follow each other.
        """
        if document != self._document:
            self._values.append(0.0)
            self._sizes.append(0.0)
            self._document = document
        self.num_texts += 1
        self._values[-1] += value
        self._sizes[-1] += size

    def estimate(self, unit: str) -> Estimate:
        """The ratio with its error over documents, nan for a single one."""
        values = torch.tensor(self._values, dtype=torch.float64)
        sizes = torch.tensor(self._sizes, dtype=torch.float64)
        return ratio_estimate(values, sizes, unit)


class SentenceSummary:
    """What texts say together; they come in batches, in the order of the file."""

    def __init__(self, *, has_documents: bool, blocks: str = "") -> None:
        self._has_documents = has_documents
        self._blocks = blocks  # how texts were cut, in words
        self._nats = RatioOfSums()
        self._bits = {unit: RatioOfSums() for unit in ("token", "character", "byte")}
        self._lower = RatioOfSums()  # of the mixture of orders
        self._upper = RatioOfSums()
        self._num_heavy_tailed = 0
        self._count = 0
        self._variance = 0.0  # over masks, of the sum of all
        self._first_text = ""
        self._num_unknown = 0
        self._with_unknown = 0
        self._without_size = 0
        self._with_windows = 0

    def add(self, scores: SentenceScores, lines: Sequence[Line]) -> None:
        if self._count == 0:
            self._first_text = _of_one_text(scores)
        values = scores.log_score.tolist()
        bounds = torch.stack([scores.mixture_lower, scores.mixture_upper], dim=1).tolist()
        sizes = {unit: getattr(scores, f"num_{unit}s").tolist() for unit in self._bits}
        for place, (line, value) in enumerate(zip(lines, values, strict=True)):
            document = line.document if self._has_documents else line.number
            self._nats.add(value, 1.0, document)
            lower, upper = bounds[place]
            if not math.isnan(upper):
                self._lower.add(lower, 1.0, document)
                self._upper.add(upper, 1.0, document)
            for unit, ratio in self._bits.items():
                if sizes[unit][place]:
                    ratio.add(NATS_TO_BITS * value, sizes[unit][place], document)
        self._count += len(lines)
        self._num_heavy_tailed += int(scores.is_heavy_tailed.sum())
        self._variance += scores.standard_error.square().sum().item()
        self._num_unknown += int(scores.num_unknown.sum())
        self._with_unknown += int((scores.num_unknown > 0).sum())
        has_ids = torch.tensor([line.has_ids for line in lines])
        self._without_size += int(((scores.num_bytes == 0) & ~has_ids).sum())
        self._with_windows += int((scores.num_windows > 1).sum())

    def lines(self) -> list[str]:
        nats = self._nats.estimate("nats a text")
        over = f"documents: {nats.num_samples}, " if self._has_documents else ""
        blocks = f", {self._blocks}" if self._blocks else ""
        lines = [f"log-score, the mean over orders of log p{blocks}; {over}texts: {self._count}"]
        if self._count == 1:
            lines.append(self._first_text)
        else:
            lines.append(f"mean: {nats}")
        for unit, ratio in self._bits.items():
            if ratio.num_texts:
                bits = ratio.estimate(f"bits a {unit}")
                lines.append(f"mean: {bits}" if self._count > 1 else f"{bits:.4f} bits a {unit}")
        lines += self._of_mixture()
        if nats.num_samples == 1 and self._count > 1:
            # Texts of one document are no sample of documents, but their masks are one of masks.
            over_masks = math.sqrt(self._variance) / self._count
            if math.isnan(over_masks):
                lines.append(f"error over masks alone, of one document: {_NO_ERROR}")
            else:
                lines.append(f"error over masks alone, of one document: {over_masks:.4f} nats")
        if self._num_unknown:
            lines.append(
                f"unknown tokens: {self._num_unknown}, in {self._with_unknown} of {self._count} texts; "
                "they are shown, not scored, and their bytes do not count"
            )
        if self._without_size:
            lines.append(
                f"texts left out of bits a character and a byte: {self._without_size}; the tokenizer "
                "does not say where their unknown tokens stand"
            )
        if self._with_windows:
            lines.append(
                f"texts longer than the model takes, scored in windows: {self._with_windows}"
            )
        return lines

    def _of_mixture(self) -> list[str]:
        """The bounds on the mixture of orders, where every text has them."""
        if self._upper.num_texts < self._count:
            return []
        lower = self._lower.estimate("nats a text")
        upper = self._upper.estimate("nats a text")
        if self._count == 1:
            bounds = f"{lower:.4f} to {upper:.4f} nats"
        else:
            bounds = f"{lower} to {upper}"
        lines = [f"log p of the mixture of orders, bounds from below and above: {bounds}"]
        if self._num_heavy_tailed:
            lines.append(
                f"the bound from above is not to be relied on in {self._num_heavy_tailed} of "
                f"{self._count} texts: one order holds more than half of the probability, and orders "
                "that were not drawn may hold more; more orders tell"
            )
        return lines


def _of_one_text(scores: SentenceScores) -> str:
    """What is said of the first text, if no other comes."""
    value = f"{scores.log_score[0]:.4f} nats"
    error = scores.standard_error[0].item()
    if math.isnan(error):
        return f"{value}; error over masks: {_NO_ERROR}"
    num_masks = 2 ** int(scores.num_tokens[0]) - 1
    if error == 0 and scores.num_windows[0] == 1 and scores.num_passes[0] == num_masks:
        return f"{value}; exact, as every mask was visited"
    low, high = scores.interval()[0].tolist()
    return f"{value}; 95 % interval over masks {low:.4f} to {high:.4f}"


class PairSummary:
    """What pairs say together."""

    def __init__(self) -> None:
        self._ratio = RatioOfSums()
        self._is_first_higher = RatioOfSums()
        self._count = 0
        self._num_equal = 0

    def add(self, scores: PairScores, lines: Sequence[Line]) -> None:
        for line, value in zip(lines, scores.log_ratio.tolist(), strict=True):
            if math.isnan(value):
                continue
            self._count += 1
            self._num_equal += value == 0
            self._ratio.add(value, 1.0, line.number)
            # A tie is half a hit, as of a coin that decides it.
            hit = 0.5 if value == 0 else float(value > 0)
            self._is_first_higher.add(hit, 1.0, line.number)

    def lines(self) -> list[str]:
        if self._count == 0:
            return ["no pair is comparable"]
        accuracy = self._is_first_higher.estimate("")
        lines = [f"log p(first) - log p(second), the mean over orders; pairs: {self._count}"]
        if self._count == 1:
            return [*lines, f"{self._ratio.estimate(''):.4f} nats"]
        lines.append(f"mean: {self._ratio.estimate('nats a pair')}")
        percent = f"{100 * accuracy:.1f} ± {100 * accuracy.standard_error:.1f} %"
        lines.append(f"the first text is the more probable one in {percent} of the pairs")
        if self._num_equal:
            lines.append(f"pairs that are equally probable, each half a hit: {self._num_equal}")
        return lines


class AnswerSummary:
    """What may be compared among the options of prompts."""

    def __init__(self) -> None:
        self._num_prompts = 0
        self._num_options = 0
        self._incomparable: list[int] = []
        self._num_incomparable = 0
        self._num_merged = 0

    def add(self, scores: AnswerScores, lines: Sequence[Line]) -> None:
        self._num_prompts += len(lines) - len(scores.skipped)
        self._num_options += int((scores.num_tokens > 0).sum())
        self._num_merged += int(scores.merged.sum())
        for place in (~scores.comparable).nonzero().flatten().tolist():
            self._num_incomparable += 1
            if len(self._incomparable) < SHOWN_LINES:
                self._incomparable.append(lines[place].number)

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


def of_curve(scores: SentenceCurves) -> list[str]:
    """The area with its error, or the scores at rates that have none.

    Returns:
        Lines without an end.
    """
    if not scores.design.has_area:
        points = zip(
            scores.design.columns,
            scores.score.tolist(),
            scores.standard_error.tolist(),
            strict=True,
        )
        return [f"score at {100 * rate:g} %: {_with_error(*point)}" for rate, *point in points]
    lines = [f"area: {scores.area()} a token"]
    rate = _reading_rate(scores)
    if rate is not None:
        lines.append(f"the rate that reads it: {rate}")
    for rate_of_bias, bias in scores.bias_at().items():
        lines.append(f"D·S − area at {100 * rate_of_bias:g} %: {bias}")
    return lines


def _with_error(score: float, error: float) -> str:
    if math.isnan(error):
        return f"{score:.4f} nats a token (no error from one text)"
    return f"{score:.4f} ± {error:.4f} nats a token"


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
