"""What scores say together, as lines for a terminal."""

from functools import singledispatch

import torch

from mpt_lml.results import Estimate
from mpt_lml.theory.rates import crossover
from mpt_score.answer_scores import AnswerScores
from mpt_score.pair_scores import PairScores
from mpt_score.sentence_curves import SentenceCurves
from mpt_score.sentence_scores import SentenceScores


@singledispatch
def of(scores: object) -> list[str]:
    """Means with their errors, and what a reader has to know of them.

    Args:
        scores: :class:`SentenceScores`, :class:`PairScores`, :class:`AnswerScores` or
            :class:`SentenceCurves`.

    Returns:
        Lines without an end; none where there is nothing to say.
    """
    raise TypeError(f"there is no summary of {type(scores).__name__}.")


@of.register
def _(scores: SentenceScores) -> list[str]:
    mean = scores.mean()
    lines = [f"mean: {mean}", f"mean: {scores.mean('token')}", f"mean: {scores.mean('byte')}"]
    if mean.num_samples == 1:
        # Texts of one document are no sample of documents, but their masks are one of masks.
        count = len(scores.log_score)
        over_masks = scores.standard_error.square().sum().sqrt().item() / count
        lines.append(f"error over masks alone, of one document: {over_masks:.4f} nats")
    num_long = int((scores.num_windows > 1).sum())
    if num_long:
        lines.append(f"{num_long} texts are longer than the model takes: scored in windows")
    return lines


@of.register
def _(scores: PairScores) -> list[str]:
    return [f"skipped: pair {number} {why}" for number, why in scores.incomparable.items()]


@of.register
def _(scores: AnswerScores) -> list[str]:
    incomparable = (~scores.comparable).nonzero().flatten().tolist()
    return [f"prompt {n}: its options have different numbers of tokens" for n in incomparable]


@of.register
def _(scores: SentenceCurves) -> list[str]:
    if not scores.design.has_area:
        points = zip(
            scores.design.columns,
            scores.score.tolist(),
            scores.standard_error.tolist(),
            strict=True,
        )
        return [f"score at {100 * r:g} %: {s:.4f} ± {e:.4f} nats a token" for r, s, e in points]
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
