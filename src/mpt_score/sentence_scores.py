"""Scores of whole texts: the mean of log p_π over orders, what it costs and how far it is off."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import Count, Index, Interval, Positive, check, checked
from mpt_lml.results import Estimate, as_rows, ratio_estimate
from mpt_score.estimate import Plan, RowScore, score_blocks
from mpt_score.loading import load
from mpt_score.parts import Part, Runner, compute_parts, named_parts, run_parts
from mpt_score.scorer import Scorer
from mpt_score.text_blocks import Later, TextBlock, split_into_blocks
from mpt_score.tokens import (
    Texts,
    TextSize,
    Tokens,
    as_list,
    size_without_unknown,
    split_into_windows,
)

PART_PASSES = 2**19
"""Tokens times passes of a part: some seconds of a small network."""
TEXTS_AT_A_TIME = 512
"""That are tokenized, and padded to the longest of them, together."""
NATS_TO_BITS = -1.0 / math.log(2.0)
"""Bits are counted as a length of code: the logarithm with its sign turned."""
USUAL_ORDERS = 4
"""An error of three degrees of freedom; at equal passes no other masks are known to do better."""
FEWEST_MASKS_TO_STOP = 3
"""Of strata: the mask that hides everything, and two whose difference is an error."""
Unit = Literal["sentence", "token", "character", "byte"]
Quantity = Literal["log_score", "mixture_lower", "mixture_upper"]

if TYPE_CHECKING:
    Documents = Sequence[Hashable]
else:

    def _require_labels(name: str, documents: Any) -> None:
        labels = _labels(documents)
        check((name, labels, Sequence[Hashable]))
        for number, label in enumerate(labels):
            if isinstance(label, float) and math.isnan(label):
                raise ValueError(
                    f"{name}: text {number} has no document (nan). Name one, or leave the text out."
                )

    Documents = Annotated[Any, _require_labels]


def _labels(documents: Any) -> Any:
    """A tensor, or a column of pandas or NumPy, as a list; anything else as it is."""
    return documents.tolist() if isinstance(documents, Tensor) else as_list(documents)


@dataclass(frozen=True, eq=False)
class SentenceScores:
    """Scores of N texts in nats; :func:`sentences` makes them.

    Attributes:
        num_tokens: D, those scored: no special and no unknown ones, (N,).
        num_unknown: tokens that stand for any word: they are shown, not scored, (N,).
        num_characters: of what is scored: those of unknown tokens, and of the space in front of them,
            are left out. 0 where that is not known: for texts that came as token ids, and for those
            with unknown tokens whose tokenizer does not say where they stand, (N,).
        num_bytes: in UTF-8, likewise, (N,).
        num_windows: a text longer than the model takes is cut into so many, each scored as if it
            stood alone, (N,).
        num_passes: rows that went through the model, (N,).
        log_score: the mean of log p_π over orders, (N,).
        standard_error: of ``log_score``, over masks or orders; 0 where every mask was visited, nan
            from one order, from fewer than three masks, and where all that were drawn happen to be
            the same, as a few do in texts of three or four tokens, (N,).
        degrees: of freedom of ``standard_error``: 0 where that is nan, (N,).
        inconsistency: the standard deviation of log p_π over orders: 0 for a joint distribution, no
            error of ``log_score``, silent about the truth; nan where no two orders that differ were
            drawn, (N,).
        inconsistency_degrees: of freedom of ``inconsistency``, 0 where that is nan, (N,).
        pseudo_log_likelihood: Σ_j log q(x_j | all others) (Salazar et al. 2020); nan where it was not
            asked for, (N,).
        mixture_lower: a lower bound, in expectation over orders, on log p_mix, the log-probability of
            the mixture of orders, from the orders of ``log_score``; nan where no two orders that
            differ were drawn, (N,).
        mixture_lower_error: its standard error over orders, (N,).
        mixture_upper: an upper bound, likewise (:func:`mpt_lml.orders.mixture_bounds`), (N,). Where
            every mask was visited, both bounds are log p_mix itself, and their errors are 0.
        mixture_upper_error: its standard error over orders; nan from two orders, (N,).
        is_heavy_tailed: whether one order holds more than half of the probability of those that were
            drawn. Others may hold more still: then only ``mixture_lower`` counts, (N,).
        documents: the number of the first text of each text's document, (N,). Texts of one document
            are not independent.

    >>> from mpt_score import load
    >>> coin = load(lambda ids, mask: torch.zeros(ids.shape + (2,)).log_softmax(-1))
    >>> scores = sentences(coin, [[0, 1, 1]])
    >>> scores.bits_per("token"), scores.standard_error
    (tensor([1.0000], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """

    num_tokens: Int[Tensor, " N"]
    num_unknown: Int[Tensor, " N"]
    num_characters: Int[Tensor, " N"]
    num_bytes: Int[Tensor, " N"]
    num_windows: Int[Tensor, " N"]
    num_passes: Int[Tensor, " N"]
    log_score: Float[Tensor, " N"]
    standard_error: Float[Tensor, " N"]
    degrees: Float[Tensor, " N"]
    inconsistency: Float[Tensor, " N"]
    inconsistency_degrees: Float[Tensor, " N"]
    pseudo_log_likelihood: Float[Tensor, " N"]
    mixture_lower: Float[Tensor, " N"]
    mixture_lower_error: Float[Tensor, " N"]
    mixture_upper: Float[Tensor, " N"]
    mixture_upper_error: Float[Tensor, " N"]
    is_heavy_tailed: Bool[Tensor, " N"]
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
    def inconsistency_interval(
        self, level: Annotated[float, Interval("(0,1)")] = 0.95
    ) -> Float[Tensor, "N two"]:
        """Where ``inconsistency`` would be with every order, if log p_π is normal over orders.

        Four orders tell it to a factor: from 0.57 to 3.7 times what was found, at 95 %.

        Args:
            level: its coverage.

        Returns:
            Its ends, nats, (N, 2).
        """
        from scipy import stats

        degrees = self.inconsistency_degrees.numpy()
        ends = []
        for quantile in (0.5 * (1 + level), 0.5 * (1 - level)):
            per_degree = torch.tensor(stats.chi2.ppf(quantile, degrees) / degrees)
            # With all orders in it there is nothing left to vary.
            ratio = torch.where(self.inconsistency_degrees.isinf(), 1.0, per_degree)
            ends.append(self.inconsistency / ratio.sqrt())
        return torch.stack(ends, dim=1)

    @checked
    def bits_per(self, unit: Literal["token", "character", "byte"]) -> Float[Tensor, " N"]:
        """−``log_score`` in bits by what is scored.

        Args:
            unit: what bits are counted by.

        Returns:
            Bits, (N,); nan for a text of which characters or bytes are not known.

        Raises:
            ValueError: where they are not known of any text.
        """
        size = self._size(unit)
        return (NATS_TO_BITS * self.log_score / size).where(size > 0, math.nan)

    @checked
    def mean(self, per: Unit = "sentence", of: Quantity = "log_score") -> Estimate:
        """Mean log-score in nats a sentence, or all bits by all tokens, characters or bytes.

        The error is over documents (every text one of its own unless they were named), that of a
        ratio of their sums (``mpt_lml.results.ratio_estimate``). It contains the error over
        masks, since texts have masks of their own: it is honest also where a text has one mask only,
        and no error. Texts of which characters or bytes are not known are left out of a mean over
        these.

        Args:
            per: "sentence" for nats; "token", "character" or "byte" for bits.
            of: "log_score", or "mixture_lower" or "mixture_upper" for the bounds on the mixture of
                orders. Where :attr:`is_heavy_tailed`, the upper one is not to be relied on.

        Raises:
            ValueError: where characters or bytes are not known of any text, and for bounds that a text
                has not.
        """
        value = self._value(of)
        if per == "sentence":
            size = torch.ones_like(value)
        else:
            value = NATS_TO_BITS * value
            size = self._size(per).double()
        is_known = size > 0
        document = self.documents[is_known].unique(return_inverse=True)[1]
        nothing = torch.zeros(int(document.max()) + 1, dtype=torch.float64)
        value_of_document = nothing.index_add(0, document, value[is_known])
        size_of_document = nothing.index_add(0, document, size[is_known])
        unit = "nats" if per == "sentence" else f"bits a {per}"
        return ratio_estimate(value_of_document, size_of_document, unit)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a text, for a table; what was not asked for or is not known is left out.

        ``low`` and ``high`` are the ends of 95 % intervals. What is not finite is None. The documents
        are among them where several texts are of one.
        """
        columns = {name: value for name, value in vars(self).items() if not value.isnan().all()}
        if len(self.documents.unique()) == len(self.documents):
            del columns["documents"]  # every text is one of its own: none was named
        if "standard_error" in columns:
            columns["low"], columns["high"] = self.interval().T
        else:
            del columns["degrees"]
        if "inconsistency" in columns:
            ends = self.inconsistency_interval().T
            columns["inconsistency_low"], columns["inconsistency_high"] = ends
        else:
            del columns["inconsistency_degrees"]
        if "mixture_lower" not in columns:
            del columns["is_heavy_tailed"]
        if self.num_bytes.any():
            columns["bits_per_character"] = self.bits_per("character")
            columns["bits_per_byte"] = self.bits_per("byte")
        columns["bits_per_token"] = self.bits_per("token")
        return [
            {name: value if math.isfinite(value) else None for name, value in row.items()}
            for row in as_rows(columns)
        ]

    def _value(self, of: Quantity) -> Tensor:
        value: Tensor = getattr(self, of)
        is_missing = value.isnan()
        if of != "log_score" and is_missing.any():
            raise ValueError(
                f"{of} of text {int(is_missing.int().argmax())} is not known: bounds on the mixture of "
                "orders take at least two orders that differ, and not single masks. Score with "
                "num_orders=2 or more."
            )
        return value

    def _size(self, unit: str) -> Tensor:
        size: Tensor = getattr(self, f"num_{unit}s")
        if not size.any():
            raise ValueError(
                f"these texts have no {unit}s: they came as token ids, or hold unknown tokens of which "
                "the tokenizer does not say where they stand. Score strings, with a fast tokenizer, "
                f"or say how many each has: dataclasses.replace(scores, num_{unit}s=torch.tensor([...]))."
            )
        return size


@checked
def sentences(
    model: Any,
    texts: Texts,
    *,
    tokenizer: Any = None,
    documents: Documents | None = None,
    num_orders: Count | None = None,
    num_masks: Count | None = None,
    pseudo: bool = False,
    target_error: Positive | None = None,
    seed: Index = 0,
    block_length: Count | None = None,
    later: Later = "hidden",
    run: Runner = compute_parts,
) -> SentenceScores:
    """Log-score of every text: E_π log p_π(x), the area under its mask-rate curve, nats.

    A text's masks follow from ``seed`` and its tokens, not from its neighbors. What they cost is
    told beforehand by :func:`passes`. A text that is longer than the model takes is cut into windows,
    and each window has so many orders or masks.

    Args:
        model: as of :func:`~mpt_score.loading.load`.
        texts: as of :meth:`Scorer.encode`.
        tokenizer: as of :func:`~mpt_score.loading.load`.
        documents: the document of each text, by name or number, in a list or a column; by default
            each text is one of its own.
        num_orders: whole orders of D masks for each text, or all 2^D − 1 masks where that is not more
            than these have; by default four. Their mean is the score, their spread its error and the
            inconsistency, and two or more of them bound the mixture of orders from both sides.
        num_masks: stands instead of orders for at most so many masks of each text: all of them where
            they fit; whole orders where at least four fit; else one that hides everything and two
            or more in each stratum of sizes. From one or two masks a text has no error, though
            :meth:`SentenceScores.mean` has.
        pseudo: whether D masks of one token are added for the pseudo-log-likelihood.
        target_error: more orders or masks, up to 64 times as many, until the standard error is at
            most that many nats a token; see it in the result, which is slightly optimistic after such
            a stop.
        seed: of the masks.
        block_length: scores a text block by block from left to right, as block diffusion models write
            it (Arriola et al. 2025): Σ_b area(block b | earlier blocks), with so many scored tokens in
            a block and what is left in the last one. Each block has so many orders or masks as are
            asked for. 1 is left to right; as many as the text has, or None, is one block, the area.
        later: what a block sees of later blocks: "hidden", their places with mask tokens, as a network
            does that was trained on whole rows; or "absent", nothing, for networks whose blocks attend
            to earlier ones only: rows end with the block. The two ask a network different questions.
        run: takes a label and parts of about equal work, and returns what each gives, computed now or
            in an earlier call: see :meth:`Scorer.checkpoints_in`.

    Raises:
        TextError: as :meth:`Scorer.encode`, and where an answer of the model is not finite.
        ValueError: for another number of documents than of texts, for orders and masks together, for
            fewer than three masks with a target error, for pseudo-log-likelihoods of blocks, and for
            later blocks that are absent where there are no blocks.

    >>> from mpt_score.networks import small_bert_folder
    >>> scores = sentences(small_bert_folder(), ["She was alone.", "He had come back."])
    >>> scores.num_tokens, scores.num_passes
    (tensor([4, 5]), tensor([15, 15]))
    """
    plan = plan_of(num_orders, num_masks, pseudo, target_error, seed, block_length, later)
    scorer = load(model, tokenizer)
    texts = as_list(texts)
    labels = range(len(texts)) if documents is None else _labels(documents)
    if len(labels) != len(texts):
        raise ValueError(f"{len(texts)} texts came with {len(labels)} documents.")
    columns = _scored(scorer, texts, plan, run)
    num_unknown = columns["num_unknown"].long()
    sizes = _sizes(scorer, texts, num_unknown)
    return SentenceScores(
        num_tokens=columns["num_tokens"].long(),
        num_unknown=num_unknown,
        num_characters=torch.tensor([size.num_characters for size in sizes]),
        num_bytes=torch.tensor([size.num_bytes for size in sizes]),
        num_windows=columns["num_windows"].long(),
        num_passes=columns["num_passes"].long(),
        log_score=columns["log_score"],
        standard_error=columns["variance"].sqrt(),
        degrees=_degrees(columns["variance"], columns["squared_variance_per_degree"]),
        inconsistency=columns["order_variance"].sqrt(),
        inconsistency_degrees=_degrees(
            columns["order_variance"], columns["squared_order_variance_per_degree"]
        ),
        pseudo_log_likelihood=columns["pseudo_log_likelihood"],
        mixture_lower=columns["mixture_lower"],
        mixture_lower_error=columns["mixture_lower_variance"].sqrt(),
        mixture_upper=columns["mixture_upper"],
        mixture_upper_error=columns["mixture_upper_variance"].sqrt(),
        is_heavy_tailed=columns["num_heavy_tailed"] > 0,
        documents=torch.tensor(_first_of_each(labels)),
    )


@checked
def passes(
    model: Any,
    texts: Texts,
    *,
    tokenizer: Any = None,
    num_orders: Count | None = None,
    num_masks: Count | None = None,
    pseudo: bool = False,
    block_length: Count | None = None,
) -> Int[Tensor, " N"]:
    """How many rows :func:`sentences` sends through the model for each text, at most.

    Fewer where two masks happen to be the same. A ``target_error`` can take 64 times as many.

    Args:
        model: as of :func:`~mpt_score.loading.load`; it is not asked anything.
        texts: as of :meth:`Scorer.encode`.
        tokenizer: as of :func:`~mpt_score.loading.load`.
        num_orders: as of :func:`sentences`.
        num_masks: as of :func:`sentences`.
        pseudo: as of :func:`sentences`.
        block_length: as of :func:`sentences`. Whole orders of blocks cost what those of the text do;
            a number of masks is paid for each block.

    Returns:
        Passes, (N,).

    >>> coin = lambda ids, mask: torch.zeros(ids.shape + (2,)).log_softmax(-1)
    >>> passes(coin, [[0, 1, 1], [0] * 100]), passes(coin, [[0] * 100], num_masks=32)
    (tensor([  7, 397]), tensor([32]))
    """
    plan = plan_of(num_orders, num_masks, pseudo, block_length=block_length)
    return prices(load(model, tokenizer), texts, plan.most_passes).num_passes


class Prices(NamedTuple):
    """What the scores of N texts cost."""

    num_tokens: Int[Tensor, " N"]  # that are scored
    num_passes: Int[Tensor, " N"]  # at most


def prices(scorer: Scorer, texts: Texts, most_passes: Callable[[int], int]) -> Prices:
    """What each text will cost; the model is not asked anything.

    Args:
        scorer: encodes texts.
        texts: as of :meth:`Scorer.encode`.
        most_passes: of a row with so many tokens to score.
    """
    texts = as_list(texts)
    num_tokens = torch.zeros(len(texts), dtype=torch.int64)
    num_passes = torch.zeros(len(texts), dtype=torch.int64)
    for numbers, tokens in _encoded(scorer, texts):
        num_tokens[numbers] = tokens.num_features
        counts = tokens.num_features.tolist()
        lengths = tokens.lengths.tolist()
        for place, number in enumerate(numbers):
            sizes = [counts[place]]
            if scorer.max_length is not None and lengths[place] > scorer.max_length:
                windows = windows_of(scorer, tokens.row(place))
                sizes = [int(window.num_features) for window in windows]
            num_passes[number] = sum(map(most_passes, sizes))
    return Prices(num_tokens, num_passes)


@checked
def plan_of(
    num_orders: Count | None,
    num_masks: Count | None,
    pseudo: bool,
    target_error: Positive | None = None,
    seed: Index = 0,
    block_length: Count | None = None,
    later: Later = "hidden",
) -> Plan:
    """The orders or masks that are asked for, four orders if nothing is."""
    if block_length is None and later != "hidden":
        raise ValueError(
            f"later must be 'hidden' without blocks, got {later!r}: there are no later ones. Give a "
            "block_length, or leave later out."
        )
    if block_length is not None and pseudo:
        raise ValueError(
            f"block_length must be None for a pseudo-log-likelihood, got {block_length}: that shows a "
            "token all others, later blocks too. Ask for it in a call of its own."
        )
    if num_orders is not None and num_masks is not None:
        raise ValueError(
            f"num_orders = {num_orders} and num_masks = {num_masks} are two budgets for one score: "
            "give one. Whole orders are the better use of passes where four of them can be paid."
        )
    if num_masks is not None and num_masks < FEWEST_MASKS_TO_STOP and target_error is not None:
        raise ValueError(
            f"num_masks must be >= {FEWEST_MASKS_TO_STOP} with a target_error, got {num_masks}: "
            "fewer have no error that could be compared with it."
        )
    if num_orders is None and num_masks is None:
        num_orders = USUAL_ORDERS
    return Plan(num_orders, num_masks, pseudo, target_error, seed, block_length, later)


def _degrees(variance: Tensor, squared_per_degree: Tensor) -> Tensor:
    """Of freedom: 0 where there is no variance, without end where every mask was visited."""
    degrees = variance.square() / squared_per_degree
    return torch.where(variance.isnan(), 0.0, degrees.nan_to_num(math.inf))


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


def _sizes(scorer: Scorer, texts: Texts, num_unknown: Int[Tensor, " N"]) -> list[TextSize]:
    """Characters and bytes of what is scored of each text; zeros where they are not known."""
    sizes = []
    for text, count in zip(_each_text(texts), num_unknown.tolist(), strict=True):
        if not isinstance(text, str):
            sizes.append(TextSize(0, 0))
        elif count:
            sizes.append(size_without_unknown(scorer.tokenizer, text))
        else:
            sizes.append(TextSize(len(text), len(text.encode())))
    return sizes


def _num_unknown(scorer: Scorer, tokens: Tokens) -> Int[Tensor, " N"]:
    if scorer.unknown_id is None:
        return torch.zeros(len(tokens), dtype=torch.int64)
    is_token = torch.arange(tokens.ids.shape[1]) < tokens.lengths[:, None]
    return ((tokens.ids == scorer.unknown_id) & is_token).sum(dim=1)


def _scored(scorer: Scorer, texts: Texts, plan: Plan, run: Runner) -> dict[str, Tensor]:
    """Of every text the fields of :class:`RowScore`, its windows and unknown tokens, (N,) each."""
    parts = list(parts_by_length(scorer, texts, plan.most_passes))
    works = [partial(_score_part, scorer, numbers, tokens, plan) for numbers, tokens in parts]
    fields = (*RowScore._fields, "num_windows")
    settings = (plan, fields)  # what was kept before a field was added lacks it
    named = named_parts("part", settings, [tokens for _, tokens in parts], works)
    results = run_parts(run, "texts", named, *fields)
    numbers = torch.tensor([number for numbers, _ in parts for number in numbers])
    place = numbers.argsort()  # of text n among those that were scored by length
    columns = {}
    for field in fields:
        columns[field] = torch.cat([result[field] for result in results])[place]
    num_unknown = [_num_unknown(scorer, tokens) for _, tokens in parts]
    columns["num_unknown"] = torch.cat(num_unknown)[place]
    return columns


def parts_by_length(
    scorer: Scorer, texts: Texts, most_passes: Callable[[int], int]
) -> Iterator[tuple[list[int], Tokens]]:
    """Numbers and tokens of texts of like length, cut where they are work enough.

    Args:
        scorer: encodes texts.
        texts: as of :meth:`Scorer.encode`.
        most_passes: of a text with so many tokens to score.
    """
    for numbers, tokens in _encoded(scorer, texts):
        num_passes = torch.tensor([most_passes(count) for count in tokens.num_features.tolist()])
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
    """The fields of :class:`RowScore` of some texts, summed over the windows and blocks of each."""
    blocks: list[TextBlock] = []
    plans: list[Plan] = []
    text_of_block: list[int] = []
    num_windows: list[int] = []
    for place in range(len(tokens)):
        windows = windows_of(scorer, tokens.row(place))
        num_windows.append(len(windows))
        for window in windows:
            count = int(window.num_features)
            for block in split_into_blocks(window, plan.block_length, plan.later):
                blocks.append(block)
                plans.append(plan.of_block(block, count))
                text_of_block.append(place)
    owner = torch.tensor(text_of_block)
    scores = score_blocks(scorer, blocks, torch.tensor(numbers)[owner], plans)
    columns = {"num_windows": torch.tensor(num_windows, dtype=torch.float64)}
    for field in RowScore._fields:
        values = torch.tensor([getattr(score, field) for score in scores], dtype=torch.float64)
        nothing = torch.zeros(len(tokens), dtype=torch.float64)
        columns[field] = nothing.index_add(0, owner, values)
    return columns


def windows_of(scorer: Scorer, row: Tokens) -> list[Tokens]:
    """A text as rows that the model takes whole: itself, or windows of it."""
    if scorer.max_length is None or row.ids.shape[1] <= scorer.max_length:
        return [row]
    return split_into_windows(row, scorer.max_length, scorer.is_frame(row.ids[0]))
