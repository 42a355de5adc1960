"""Scores of whole texts: the mean of log p_π over orders, what it costs and how far it is off."""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.checks import Index, Interval, Positive, Within, checked
from mpt_lml.results import Estimate, as_rows
from mpt_score.estimate import Plan, RowScore, score_rows
from mpt_score.loading import load
from mpt_score.parts import Part, Runner, compute_parts, named_parts, run_parts
from mpt_score.scorer import Scorer
from mpt_score.tokens import Texts, Tokens, split_into_windows

PART_PASSES = 2**19
"""Tokens times passes of a part: some seconds of a small network."""
TEXTS_AT_A_TIME = 512
"""That are tokenized, and padded to the longest of them, together."""
NATS_TO_BITS = -1.0 / math.log(2.0)
"""Bits are counted as a length of code: the logarithm with its sign turned."""
Unit = Literal["sentence", "token", "character", "byte"]


@dataclass(frozen=True, eq=False)
class SentenceScores:
    """Scores of N texts in nats; :func:`sentences` makes them.

    Attributes:
        num_tokens: D, those scored: no special and no unknown ones, (N,).
        num_characters: of texts that came as strings, 0 for token ids, (N,).
        num_bytes: in UTF-8, likewise, (N,).
        num_windows: a text longer than the model takes is cut into so many, each scored as if it
            stood alone, (N,).
        num_passes: rows that went through the model, (N,).
        log_score: the mean of log p_π over orders, (N,).
        standard_error: of ``log_score``, over masks or orders; 0 where every mask was visited, (N,).
        degrees: of freedom of ``standard_error``, (N,).
        inconsistency: the standard deviation of log p_π over orders: 0 for a joint distribution, no
            error of ``log_score``, silent about the truth; nan for fewer than two orders drawn, (N,).
        pseudo_log_likelihood: Σ_j log q(x_j | all others) (Salazar et al. 2020); nan where it was not
            asked for, (N,).
        documents: the number of the first text of each text's document, (N,). Texts of one document
            are not independent.

    >>> from mpt_score import load
    >>> coin = load(lambda ids, mask: torch.zeros(ids.shape + (2,)).log_softmax(-1))
    >>> scores = sentences(coin, [[0, 1, 1]])
    >>> scores.bits_per("token"), scores.standard_error
    (tensor([1.0000], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """

    num_tokens: Int[Tensor, " N"]
    num_characters: Int[Tensor, " N"]
    num_bytes: Int[Tensor, " N"]
    num_windows: Int[Tensor, " N"]
    num_passes: Int[Tensor, " N"]
    log_score: Float[Tensor, " N"]
    standard_error: Float[Tensor, " N"]
    degrees: Float[Tensor, " N"]
    inconsistency: Float[Tensor, " N"]
    pseudo_log_likelihood: Float[Tensor, " N"]
    documents: Int[Tensor, " N"]

    @checked
    def interval(self, level: Annotated[float, Interval("(0,1)")] = 0.95) -> Float[Tensor, "N two"]:
        """Where ``log_score`` would be with every mask: Student's interval over masks.

        Args:
            level: its coverage.

        Returns:
            Its ends, nats, (N, 2).
        """
        from scipy import stats

        quantile = torch.tensor(stats.t.ppf(0.5 * (1 + level), self.degrees.numpy()))
        reach = quantile * self.standard_error
        return torch.stack([self.log_score - reach, self.log_score + reach], dim=1)

    @checked
    def bits_per(self, unit: Literal["token", "character", "byte"]) -> Float[Tensor, " N"]:
        """−``log_score`` in bits by what is scored.

        Args:
            unit: what bits are counted by.

        Returns:
            Bits, (N,).

        Raises:
            ValueError: for characters or bytes of texts that came as token ids.
        """
        return NATS_TO_BITS * self.log_score / self._size(unit)

    @checked
    def mean(self, per: Unit = "sentence") -> Estimate:
        """Mean log-score in nats a sentence, or all bits by all tokens, characters or bytes.

        The error is over documents, G of them (every text one of its own unless they were named):
        √(G/(G − 1) Σ_g (Σ_{i∈g} r_i)²) / Σ_i u_i with the residuals r_i = y_i − mean · u_i. It
        contains the error over masks.

        Args:
            per: "sentence" for nats; "token", "character" or "byte" for bits.

        Raises:
            ValueError: for characters or bytes of texts that came as token ids.
        """
        if per == "sentence":
            value = self.log_score
            size = torch.ones_like(value)
        else:
            value = NATS_TO_BITS * self.log_score
            size = self._size(per).double()
        mean = value.sum() / size.sum()
        document = self.documents.unique(return_inverse=True)[1]
        count = int(document.max()) + 1
        residuals = torch.zeros(count).double().index_add(0, document, value - mean * size)
        error = torch.tensor(math.nan)
        if count > 1:
            error = (residuals.square().sum() * count / (count - 1)).sqrt()
        unit = "nats" if per == "sentence" else f"bits a {per}"
        return Estimate(mean.item(), float(error / size.sum()), count, unit)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a text, for a table; what was not asked for or is not known is left out."""
        columns = {name: value for name, value in vars(self).items() if not value.isnan().all()}
        if self.num_bytes.any():
            columns["bits_per_character"] = self.bits_per("character")
            columns["bits_per_byte"] = self.bits_per("byte")
        columns["bits_per_token"] = self.bits_per("token")
        return as_rows(columns)

    def _size(self, unit: str) -> Tensor:
        size: Tensor = getattr(self, f"num_{unit}s")
        if not size.all():
            raise ValueError(
                f"texts that came as token ids have no {unit}s: score them as strings."
            )
        return size


@checked
def sentences(
    model: Any,
    texts: Texts,
    *,
    tokenizer: Any = None,
    documents: Sequence[Hashable] | None = None,
    num_masks: Annotated[int, Within(2)] = 32,
    num_orders: Index = 2,
    pseudo: bool = True,
    target_error: Positive | None = None,
    seed: Index = 0,
    run: Runner = compute_parts,
) -> SentenceScores:
    """Log-score of every text: E_π log p_π(x), the area under its mask-rate curve, nats.

    A text's masks follow from ``seed`` and its tokens, not from its neighbors.

    Args:
        model: as of :func:`~mpt_score.loading.load`.
        texts: as of :meth:`Scorer.encode`.
        tokenizer: as of :func:`~mpt_score.loading.load`.
        documents: the document of each text; by default each is one of its own.
        num_masks: masks for each text, or all 2^D − 1 where that is not more.
        num_orders: whole orders of D masks for the inconsistency. Where four orders fit masks and
            orders together, there are these and no others, and the score is their mean.
        pseudo: whether D masks of one token are added for the pseudo-log-likelihood.
        target_error: more masks, up to 64 times as many, until the standard error is at most that
            many nats a token; see it in the result, which is slightly optimistic after such a stop.
        seed: of the masks.
        run: takes a label and parts of about equal work, and returns what each gives, computed now or
            in an earlier call: see :meth:`Scorer.checkpoints_in`.

    Raises:
        TextError: as :meth:`Scorer.encode`, and where an answer of the model is not finite.
        ValueError: for another number of documents than of texts.

    >>> from mpt_score.networks import small_bert_folder
    >>> scores = sentences(small_bert_folder(), ["She was alone.", "He had come back."])
    >>> scores.num_tokens, scores.num_passes
    (tensor([4, 5]), tensor([15, 31]))
    """
    scorer = load(model, tokenizer)
    labels = list(range(len(texts))) if documents is None else list(documents)
    if len(labels) != len(texts):
        raise ValueError(f"{len(texts)} texts came with {len(labels)} documents.")
    plan = Plan(num_masks, num_orders, pseudo, target_error, seed)
    columns = _scored(scorer, texts, plan, run)
    strings = [text if isinstance(text, str) else "" for text in _each_text(texts)]
    variance = columns["variance"]
    degrees = variance.square() / columns["squared_variance_per_degree"]
    return SentenceScores(
        num_tokens=columns["num_tokens"].long(),
        num_characters=torch.tensor([len(text) for text in strings]),
        num_bytes=torch.tensor([len(text.encode()) for text in strings]),
        num_windows=columns["num_windows"].long(),
        num_passes=columns["num_passes"].long(),
        log_score=columns["log_score"],
        standard_error=variance.sqrt(),
        degrees=degrees.nan_to_num(math.inf),  # 0/0: every mask was visited
        inconsistency=columns["order_variance"].sqrt(),
        pseudo_log_likelihood=columns["pseudo_log_likelihood"],
        documents=torch.tensor(_first_of_each(labels)),
    )


def _first_of_each(labels: Sequence[Hashable]) -> list[int]:
    """For each label the place of the first one that is equal."""
    first: dict[Hashable, int] = {}
    for place, label in enumerate(labels):
        first.setdefault(label, place)
    return [first[label] for label in labels]


def _each_text(texts: Texts) -> Any:
    """What can be gone through text by text: strings, rows of token ids, or nothing of each."""
    if isinstance(texts, Tokens):
        return [None] * len(texts)
    return texts


def _scored(scorer: Scorer, texts: Texts, plan: Plan, run: Runner) -> dict[str, Tensor]:
    """The fields of :class:`RowScore` of every text, (N,) each, in the order of the texts."""
    parts = list(_parts(scorer, texts, plan))
    works = [partial(_score_part, scorer, numbers, tokens, plan) for numbers, tokens in parts]
    named = named_parts("part", plan, [tokens for _, tokens in parts], works)
    results = run_parts(run, "texts", named, *RowScore._fields)
    numbers = torch.tensor([number for numbers, _ in parts for number in numbers])
    place = numbers.argsort()  # of text n among those that were scored by length
    columns = {}
    for field in RowScore._fields:
        columns[field] = torch.cat([result[field] for result in results])[place]
    return columns


def _parts(scorer: Scorer, texts: Texts, plan: Plan) -> Iterator[tuple[list[int], Tokens]]:
    """Numbers and tokens of texts of like length, cut where they are work enough."""
    for numbers, tokens in _encoded(scorer, texts):
        num_passes = plan.num_masks + (plan.num_orders + plan.pseudo) * tokens.lengths
        work = (tokens.lengths * num_passes / PART_PASSES).double()
        part = (work.cumsum(0) - work / 2).floor()
        sizes = part.unique_consecutive(return_counts=True)[1]
        for rows in torch.arange(len(numbers)).split(sizes.tolist()):
            yield [numbers[row] for row in rows.tolist()], tokens.rows(rows)


def _encoded(scorer: Scorer, texts: Any) -> Iterator[tuple[list[int], Tokens]]:
    """Some texts at a time, by length, so that a long one pads none but its like."""
    if isinstance(texts, Tokens):
        order = texts.lengths.argsort(stable=True)
        for rows in order.split(TEXTS_AT_A_TIME):
            yield rows.tolist(), texts.rows(rows)
        return
    order_of_texts = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    for start in range(0, len(order_of_texts), TEXTS_AT_A_TIME):
        numbers = order_of_texts[start : start + TEXTS_AT_A_TIME]
        try:
            yield numbers, scorer.encode([texts[number] for number in numbers])
        except ValueError:
            scorer.encode(texts)  # the message has to name a text by its own number
            raise


def _score_part(scorer: Scorer, numbers: list[int], tokens: Tokens, plan: Plan) -> Part:
    """The fields of :class:`RowScore` of some texts, summed over the windows of each."""
    windows: list[Tokens] = []
    text_of_window: list[int] = []
    for place in range(len(tokens)):
        row = tokens.row(place)
        windows_of_text = split_into_windows(row, scorer.max_length, scorer.is_frame(row.ids[0]))
        windows += windows_of_text
        text_of_window += [place] * len(windows_of_text)
    owner = torch.tensor(text_of_window)
    scores = score_rows(scorer, windows, torch.tensor(numbers)[owner], plan)
    columns = {}
    for field in RowScore._fields:
        values = torch.tensor([getattr(score, field) for score in scores], dtype=torch.float64)
        nothing = torch.zeros(len(tokens), dtype=torch.float64)
        columns[field] = nothing.index_add(0, owner, values)
    return columns
