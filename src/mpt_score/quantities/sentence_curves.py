"""The curve of a masked language model on texts of many lengths: exact sizes, no padding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.checks import checked, require_count
from mpt_lml.results import Estimate
from mpt_lml.scores import mask_score
from mpt_lml.theory.rates import crossover, jackknife
from mpt_lml.verdicts import mean_and_error
from mpt_score.loading import load
from mpt_score.quantities.design import Design
from mpt_score.quantities.means import as_rows, mean_estimate
from mpt_score.rows.requests import Request, Row
from mpt_score.rows.scheduler import Batch, BatchScheduler
from mpt_score.scorer import Scorer
from mpt_score.tokens import Texts, Tokens

PAPER_UNIT = 0.01 * 512 * 99
"""The paper's area of a curve that is 1 everywhere: 512 · 0.01 · Σ over 1, ..., 99 %."""
FEWEST_DEGREES = 5
"""The fewest degrees of freedom of a fitted slope: from fewer it has no finite variance."""
MOST_GROUPS = 10
"""The most groups of texts, one of which a jackknife leaves out at a time."""
FIXED_RATES = (0.15, 0.25, 0.4)
"""Rates at which networks are trained, as shares of a text's tokens."""
CHUNK_SIZE = 16
"""Texts whose masks go through the model together."""
_TINY = 1e-30


@checked
@dataclass(frozen=True, eq=False)
class SentenceCurves:
    """Scores of every text, repeat and rate, with a control variate for each.

    Args:
        design: at which rates, in how many repeats.
        raw: (1/M) Σ_{j∈A} log q(x_j | x_R) of a text's mask A, nats a token, (N, K, R).
        control: (1/M) Σ_{j∈A} b_j less its mean over masks, b_j = log q(x_j), everything hidden;
            nats a token, (N, K, R).
        hidden: (1/D) Σ_j b_j, the curve's right end, exact, nats a token, (N,).
        num_features: D of each text, (N,).

    >>> raw, sizes = torch.tensor([[[-1.0, -3.0]], [[-2.0, -6.0]]]), torch.tensor([10, 20])
    >>> SentenceCurves(Design(strata=2), raw, 0 * raw, raw[:, 0, 1], sizes).area("sentence")
    -50.0000 ± 30.0000 nats
    """

    design: Design
    raw: Float[Tensor, "N K R"]
    control: Float[Tensor, "N K R"]
    hidden: Float[Tensor, " N"]
    num_features: Int[Tensor, " N"]

    def __post_init__(self) -> None:
        num_columns = len(self.design.columns)
        if self.raw.shape[2] != num_columns:
            raise ValueError(
                f"raw must have shape (N, K, {num_columns}), one column a rate or stratum of the "
                f"design, got {tuple(self.raw.shape)}."
            )
        for size in self.num_features.tolist():
            require_count("each of num_features", size, 1)

    @property
    def values(self) -> Float[Tensor, "N K R"]:
        """The scores less a multiple of their control variates, nats a token, (N, K, R).

        The factor for each rate comes from the other half of the texts, so that the mean stays
        what it was. From fewer than five degrees of freedom it has no finite variance; the raw
        scores are better then.
        """
        half = len(self.raw) // 2
        repeats = self.raw.shape[1]
        degrees = half * (repeats - 1) if repeats > 1 else half - 1
        if degrees < FEWEST_DEGREES:
            return self.raw
        result = self.raw.clone()
        even = slice(0, None, 2)
        odd = slice(1, None, 2)
        for rows, others in ((even, odd), (odd, even)):
            slope = _slope(self.control[others], self.raw[others])
            result[rows] -= slope * self.control[rows]
        return result

    @property
    def by_sentence(self) -> Float[Tensor, "N R"]:
        """The curve of each text: mean over its masks, nats a token, (N, R)."""
        return self.values.mean(dim=1)

    @property
    def score(self) -> Float[Tensor, " R"]:
        """The curve: mean over texts and masks, nats a token, (R,)."""
        return self.by_sentence.mean(dim=0)

    @property
    def standard_error(self) -> Float[Tensor, " R"]:
        """Of :attr:`score`, over texts (it contains the spread over masks), (R,); nan for one."""
        return mean_and_error(self.by_sentence)[1]

    @checked
    def area(self, per: Literal["token", "sentence", "paper"] = "token") -> Estimate:
        """The area with its error over texts.

        Args:
            per: "token": mean score over the rates. "sentence": Σ_{M=1}^D S(M), each over its own D.
                "paper": 512 · 0.01 · Σ over 1..99 %, as if every text had 512 tokens.

        Returns:
            Nats.

        Raises:
            ValueError: where the design's rates have no area.
        """
        self.design.require_area()
        unit: Tensor | float = 1.0
        if per == "paper":
            unit = PAPER_UNIT
        if per == "sentence":
            unit = self.num_features
        return mean_estimate(self.by_sentence.mean(dim=1) * unit)

    @checked
    def mean_rate(self) -> Estimate:
        """r*, the rate at which the curve has its mean height; jackknife error over texts.

        Returns:
            A fraction of the tokens.

        Raises:
            ValueError: where the design's rates have no area, or all lie on one side of it.
        """
        self.design.require_area()
        require_count("texts behind a jackknife", len(self.raw), 2)
        rates = torch.tensor(self.design.columns, dtype=torch.float64)
        curves = self.by_sentence
        count = min(MOST_GROUPS, len(curves))
        # Sums for means: a curve has its mean height where any multiple of it has.
        sums = torch.stack([curves[group::count].sum(dim=0) for group in range(count)])
        rate, error = jackknife(lambda curve: crossover(curve, rates), sums)
        return Estimate(rate, error, count, "of the tokens")

    @checked
    def bias_at(self, rates: Sequence[float] = FIXED_RATES) -> dict[float, Estimate]:
        """D·S(rate) − area: what a fixed rate gives a text too much.

        Args:
            rates: between those of the design; S is a straight line between two of these.

        Returns:
            Nats with their error over texts, by rate.

        Raises:
            ValueError: for a rate outside those of the design, and where they have no area.
        """
        self.design.require_area()
        columns = np.array(self.design.columns)
        curves = self.by_sentence
        biases = {}
        for rate in rates:
            if not columns[0] <= rate <= columns[-1]:
                raise ValueError(
                    f"a rate of {rate} is outside the design's {columns[0]:.4g}..{columns[-1]:.4g}."
                )
            weights = [np.interp(rate, columns, row) for row in np.eye(len(columns))]
            score_at_rate = curves @ torch.tensor(np.array(weights)).to(curves)
            excess = score_at_rate - curves.mean(dim=1)
            biases[rate] = mean_estimate(self.num_features * excess)
        return biases

    def rows(self) -> list[dict[str, Any]]:
        """One a rate, for a table: the rate, the score and its error over texts, nats a token."""
        return as_rows(
            {
                "rate": self.design.columns,
                "score": self.score,
                "standard_error": self.standard_error,
            }
        )


def _slope(control: Float[Tensor, "N K R"], score: Float[Tensor, "N K R"]) -> Float[Tensor, " R"]:
    """Least squares within texts where several masks of one rate allow it, else over all."""
    axes = (1,) if score.shape[1] > 1 else (0, 1)
    x = control - control.mean(dim=axes, keepdim=True)
    y = score - score.mean(dim=axes, keepdim=True)
    return (x * y).sum(dim=(0, 1)) / x.square().sum(dim=(0, 1)).clamp_min(_TINY)


@checked
def curve(
    model: Any,
    texts: Texts,
    design: Design | None = None,
    *,
    tokenizer: Any = None,
) -> SentenceCurves:
    """Score every text under every mask of a design (paper, Section 3.2).

    Args:
        model: as of :func:`~mpt_score.loading.load`.
        texts: as of :meth:`Scorer.encode`.
        design: by default one mask at 1, 2, ..., 99 %.
        tokenizer: as of :func:`~mpt_score.loading.load`.

    Raises:
        TextError: for a text that is longer than the model takes.

    >>> from mpt_score.networks import small_bert_folder
    >>> texts = ["She was alone in the house."]
    >>> curve(small_bert_folder(), texts, Design((0.2, 0.5, 0.8))).score.shape
    torch.Size([3])
    """
    scorer = load(model, tokenizer)
    if design is None:
        design = Design()
    tokens = scorer.encode(texts)
    scorer.require_length(tokens)
    chunks = chunks_by_length(tokens)
    scores = [score_chunk(scorer, tokens, numbers, design) for numbers in chunks]
    return curves_of_chunks(design, tokens, chunks, scores)


def chunks_by_length(tokens: Tokens, chunk_size: int = CHUNK_SIZE) -> list[Int[Tensor, " B"]]:
    """The numbers of the texts that are scored together, in the order of their length.

    Args:
        tokens: the texts.
        chunk_size: texts of a chunk.
    """
    return list(tokens.lengths.argsort(stable=True).split(chunk_size))


def curves_of_chunks(
    design: Design,
    tokens: Tokens,
    chunks: Sequence[Int[Tensor, " _"]],
    scores: Sequence[Mapping[str, Tensor]],
) -> SentenceCurves:
    """The curves of all texts in their own order.

    Args:
        design: at which rates.
        tokens: the texts.
        chunks: as of :func:`chunks_by_length`.
        scores: of each chunk what :func:`score_chunk` gave.
    """
    place = torch.cat(list(chunks)).argsort()
    columns = {
        name: torch.cat([score[name] for score in scores])[place]
        for name in ("raw", "control", "hidden")
    }
    return SentenceCurves(design, num_features=tokens.num_features, **columns)


def score_chunk(
    scorer: Scorer, tokens: Tokens, chosen: Int[Tensor, " B"], design: Design
) -> dict[str, Tensor]:
    """Scores and control variates of the texts of a chunk.

    Args:
        scorer: says log q of tokens.
        tokens: all texts; their masks follow from their numbers.
        chosen: the numbers of these.
        design: which masks they get.

    Returns:
        ``raw``, ``control`` and ``hidden`` of :class:`SentenceCurves`, in the order of ``chosen``.
    """
    rows = []
    masks = []
    for number in chosen.tolist():
        text = tokens.row(number)
        places = text.maskable[0].nonzero().flatten()
        nothing = torch.zeros_like(text.maskable[0])
        # Its masks follow from the design, and no orders from a key.
        rows.append(Row(text.ids[0], text.types[0], places, nothing, number, key=""))
        masks.append(design.masks(text, number)[:, places])
    raw = torch.zeros(len(chosen), masks[0].shape[0], dtype=torch.float64)
    score_alone = torch.zeros_like(raw)

    def request_of(batch: Batch) -> Request:
        hidden = torch.stack([masks[number] for number in batch.numbers])
        return Request(hidden, hidden)

    scheduler = BatchScheduler(scorer, skip=False)
    for answers in scheduler.ask(rows, request_of, lambda _: masks[0].shape[0]):
        is_hidden = answers.request.hidden
        # The last mask hides everything: it says b_j.
        alone = answers.values[:, -1:].expand_as(answers.values)
        raw[answers.batch.numbers] = mask_score(answers.values, is_hidden)
        score_alone[answers.batch.numbers] = mask_score(alone, is_hidden)
    hidden = raw[:, -1]
    control = score_alone[:, :-1] - hidden[:, None]
    shape = (len(chosen), design.num_masks, -1)
    return {"raw": raw[:, :-1].reshape(shape), "control": control.reshape(shape), "hidden": hidden}
