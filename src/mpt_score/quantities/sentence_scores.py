"""Scores of whole texts: the mean of log p_π over orders, what it costs and how far it is off."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import Count, Index, Positive, check, checked
from mpt_lml.results import Estimate
from mpt_score.loading import load
from mpt_score.quantities.contrasts import (
    Contrast,
    contrast_of,
    degrees_of_sum,
    item_names,
    students_interval,
)
from mpt_score.quantities.estimate import Plan, RowScores, bounds_of, score_rows
from mpt_score.quantities.means import as_rows, ratio_estimate
from mpt_score.rows.reading import Later, num_unknown, read_in_chunks, rows_of_text, windows_of
from mpt_score.rows.requests import Row, Rows, first_equal
from mpt_score.rows.scheduler import BatchScheduler
from mpt_score.scorer import Scorer
from mpt_score.tokens import Texts, Tokens, as_list, bytes_without_unknown

NATS_TO_BITS = -1.0 / math.log(2.0)
"""Bits are counted as a length of code: the logarithm with its sign turned."""
USUAL_ORDERS = 4
"""The orders of each text by default: their error has three degrees of freedom."""
FEWEST_MASKS_TO_STOP = 3
"""The fewest masks with a target error: one hides everything, and two differ by an error."""
Unit = Literal["sentence", "token", "byte"]

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
        num_bytes: of what is scored, in UTF-8: those of unknown tokens, and of the space in front of
            them, are left out. 0 where that is not known: for texts that came as token ids, and for
            those with unknown tokens whose tokenizer does not say where they stand, (N,).
        num_windows: a text longer than the model takes is cut into so many, each scored as if it
            stood alone, (N,).
        num_passes: different rows that the text asks of the model, (N,). A row that other texts of the
            call ask for as well, as that in which everything is hidden, goes through it once.
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
        skipped: the texts that could not be scored, with the reason, by their number: their scores
            are nan, and their counts 0.
        items: the item of each text, where items were named.
        along_orders: log p_π along each of S orders, (N, S), where items were named; where all orders
            are in it, their mean S times.
        same_orders: of each text the number of the first one that was scored along the same orders,
            (N,).

    >>> from mpt_score import load
    >>> coin = load(lambda ids, mask: torch.zeros(ids.shape + (2,)).log_softmax(-1))
    >>> scores = sentences(coin, [[0, 1, 1]])
    >>> scores.bits_per("token"), scores.standard_error
    (tensor([1.0000], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """

    num_tokens: Int[Tensor, " N"]
    num_unknown: Int[Tensor, " N"]
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
    skipped: dict[int, str] = field(default_factory=dict)
    items: tuple[Any, ...] = ()
    along_orders: Float[Tensor, "N S"] | None = None
    same_orders: Int[Tensor, " N"] | None = None

    def interval(self) -> Float[Tensor, "N two"]:
        """Where ``log_score`` would be with every mask: Student's 95 % interval over masks.

        Returns:
            Its ends, nats, (N, 2).
        """
        return students_interval(self.log_score, self.standard_error, self.degrees)

    def inconsistency_interval(self) -> Float[Tensor, "N two"]:
        """Where ``inconsistency`` would be with every order, if log p_π is normal over orders, at 95 %.

        Four orders tell it to a factor: from 0.57 to 3.7 times what was found.

        Returns:
            Its ends, nats, (N, 2).
        """
        from scipy import stats

        degrees = self.inconsistency_degrees.numpy()
        ends = []
        for quantile in (0.975, 0.025):
            per_degree = torch.tensor(stats.chi2.ppf(quantile, degrees) / degrees)
            # With all orders in it there is nothing left to vary.
            ratio = torch.where(self.inconsistency_degrees.isinf(), 1.0, per_degree)
            ends.append(self.inconsistency / ratio.sqrt())
        return torch.stack(ends, dim=1)

    @checked
    def bits_per(self, unit: Literal["token", "byte"]) -> Float[Tensor, " N"]:
        """−``log_score`` in bits by what is scored.

        Args:
            unit: what bits are counted by.

        Returns:
            Bits, (N,); nan for a text of which bytes are not known.

        Raises:
            ValueError: where they are not known of any text.
        """
        size = self._size(unit)
        return (NATS_TO_BITS * self.log_score / size).where(size > 0, math.nan)

    @checked
    def mean(self, per: Unit = "sentence") -> Estimate:
        """Mean log-score in nats a sentence, or all bits by all tokens or bytes.

        The error is over documents (every text one of its own unless they were named), that of a
        ratio of their sums (``mpt_score.quantities.means.ratio_estimate``). It contains the error over
        masks, since texts have masks of their own: it is honest also where a text has one mask only,
        and no error. Texts that were skipped, and those of which bytes are not known, are left out.

        Args:
            per: "sentence" for nats; "token" or "byte" for bits.

        Raises:
            ValueError: where bytes are not known of any text, and where all texts were skipped.
        """
        if per == "sentence":
            value = self.log_score
            size = self._size("token").sign().double()
        else:
            value = NATS_TO_BITS * self.log_score
            size = self._size(per).double()
        is_known = size > 0
        document = self.documents[is_known].unique(return_inverse=True)[1]
        nothing = torch.zeros(int(document.max()) + 1, dtype=torch.float64)
        value_of_document = nothing.index_add(0, document, value[is_known])
        size_of_document = nothing.index_add(0, document, size[is_known])
        unit = "nats" if per == "sentence" else f"bits a {per}"
        return ratio_estimate(value_of_document, size_of_document, unit)

    @checked
    def contrast(self, weights: Any) -> Contrast:
        """A difference of conditions, or an interaction, for each item.

        Args:
            weights: one a text, in a list or a column: 1 and −1 for a difference of two conditions; 1,
                −1, −1 and 1 for the interaction of a 2 × 2 design; 0 for a text that does not count.

        Returns:
            Σ w · log-score of each item, nats, with its error over orders, and means over items.

        Raises:
            ValueError: where items were not named, for another number of weights, and for an item whose
                texts have other weights than those of most items: one is missing, or there twice.

        >>> coin = lambda ids, mask: torch.tensor([0.25, 0.75]).log().expand(ids.shape + (2,))
        >>> scores = sentences(coin, [[0, 1], [0, 0]], items=["a", "a"])
        >>> scores.contrast([1, -1]).value.exp()
        tensor([3.0000], dtype=torch.float64)
        """
        if self.along_orders is None or self.same_orders is None:
            raise ValueError("items were not named: sentences(..., items=[...]), one a text.")
        texts = torch.arange(len(self.items))
        unknown: dict[Any, set[int]] = {}
        for item, count in zip(self.items, self.num_unknown.tolist(), strict=True):
            unknown.setdefault(item, set()).add(count)
        is_alike = torch.tensor([len(unknown[item]) == 1 for item in self.items])
        along_orders = self.along_orders.where(is_alike[:, None], math.nan)
        return contrast_of(
            weights, along_orders, self.items, texts, self.same_orders, self.degrees, "nats"
        )

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a text, for a table; what was not asked for or is not known is left out.

        ``low`` and ``high`` are the ends of 95 % intervals. What is not finite is None. The documents
        are among them where several texts are of one.
        """
        left_out = {"same_orders"}
        if len(self.documents.unique()) == len(self.documents):
            left_out.add("documents")  # every text is one of its own: none was named
        if self.standard_error.isnan().all():
            left_out.add("degrees")
        if self.inconsistency.isnan().all():
            left_out.add("inconsistency_degrees")
        if self.mixture_lower.isnan().all():
            left_out.add("is_heavy_tailed")
        columns: dict[str, Any] = {}
        for name, value in vars(self).items():
            is_column = isinstance(value, Tensor) and value.ndim == 1
            if is_column and name not in left_out and not value.isnan().all():
                columns[name] = value
        if "standard_error" in columns:
            columns["low"], columns["high"] = self.interval().T
        if "inconsistency" in columns:
            ends = self.inconsistency_interval().T
            columns["inconsistency_low"], columns["inconsistency_high"] = ends
        if self.num_bytes.any():
            columns["bits_per_byte"] = self.bits_per("byte")
        columns["bits_per_token"] = self.bits_per("token")
        records = []
        for number, cells in enumerate(as_rows(columns)):
            record = {name: cell if math.isfinite(cell) else None for name, cell in cells.items()}
            if self.items:
                record["item"] = self.items[number]
            if self.skipped:
                record["skipped"] = self.skipped.get(number)
            records.append(record)
        return records

    def _size(self, unit: str) -> Tensor:
        size: Tensor = getattr(self, f"num_{unit}s")
        if not size.any():
            raise ValueError(
                f"these texts have no {unit}s: they were skipped, came as token ids, or hold unknown "
                "tokens of which the tokenizer does not say where they stand. Score strings, with a fast "
                f"tokenizer, or say how many each has: dataclasses.replace(scores, "
                f"num_{unit}s=torch.tensor([...]))."
            )
        return size


@checked
def sentences(
    model: Any,
    texts: Texts,
    *,
    tokenizer: Any = None,
    documents: Documents | None = None,
    items: Any = None,
    num_orders: Count | None = None,
    num_masks: Count | None = None,
    pseudo: bool = False,
    target_error: Positive | None = None,
    seed: Index = 0,
    block_length: Count | None = None,
    later: Later = "hidden",
    skip: bool = False,
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
            each text is one of its own, or all texts of an item are one.
        items: the item of each text in an experiment, in a list or a column. Texts of one item with as
            many tokens to score see the same orders, so that most of their noise cancels in
            :meth:`SentenceScores.contrast`.
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
        skip: a text that cannot be scored gives nan, and is listed in the result.

    Raises:
        TextError: without ``skip``, as :meth:`Scorer.encode`, and where an answer of the model is not
            finite.
        ValueError: for another number of documents or items than of texts, for orders and masks
            together, for fewer than three masks with a target error, for pseudo-log-likelihoods of
            blocks, for later blocks that are absent where there are no blocks, for items without a
            fixed number of orders, and for an item or document that is nan.

    >>> from mpt_score.networks import small_bert_folder
    >>> scores = sentences(small_bert_folder(), ["She was alone.", "He had come back."])
    >>> scores.num_tokens, scores.num_passes
    (tensor([4, 5]), tensor([15, 15]))
    """
    plan = plan_of(num_orders, num_masks, pseudo, target_error, seed, block_length, later)
    scorer = load(model, tokenizer)
    texts = as_list(texts)
    names = [] if items is None else item_names(items, len(texts))
    if names and (num_masks is not None or target_error is not None):
        raise ValueError(
            "items are compared along orders, the same number for each text: give num_orders, and "
            "neither num_masks nor target_error."
        )
    if documents is None:
        labels: Sequence[Hashable] = names or range(len(texts))
    else:
        labels = _labels(documents)
    if len(labels) != len(texts):
        raise ValueError(f"{len(texts)} texts came with {len(labels)} documents.")
    scheduler = BatchScheduler(scorer, skip=skip)
    columns = _Columns(len(texts), plan.num_orders if names else None)
    for numbers, tokens in read_in_chunks(scorer, texts, scheduler.faults, skip=skip):
        _score_chunk(scheduler, numbers, tokens, plan, names, columns)
    columns.leave_out(scheduler.faults)
    return SentenceScores(
        num_tokens=columns.counts["num_tokens"],
        num_unknown=columns.counts["num_unknown"],
        num_bytes=_num_bytes(scorer, texts, columns.counts["num_unknown"], scheduler.faults),
        num_windows=columns.counts["num_windows"],
        num_passes=columns.counts["num_passes"],
        log_score=columns.sums["log_score"],
        standard_error=columns.sums["variance"].sqrt(),
        degrees=degrees_of_sum(
            columns.sums["variance"], columns.sums["squared_variance_per_degree"]
        ),
        inconsistency=columns.sums["order_variance"].sqrt(),
        inconsistency_degrees=degrees_of_sum(
            columns.sums["order_variance"], columns.sums["squared_order_variance_per_degree"]
        ),
        pseudo_log_likelihood=columns.sums["pseudo_log_likelihood"],
        mixture_lower=columns.sums["lower"],
        mixture_lower_error=columns.sums["lower_variance"].sqrt(),
        mixture_upper=columns.sums["upper"],
        mixture_upper_error=columns.sums["upper_variance"].sqrt(),
        is_heavy_tailed=columns.counts["is_heavy_tailed"] > 0,
        documents=torch.tensor(first_equal(labels)),
        skipped=dict(sorted(scheduler.faults.items())),
        items=tuple(names),
        along_orders=columns.along_orders,
        same_orders=columns.same_orders() if names else None,
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
    scorer = load(model, tokenizer)
    texts = as_list(texts)
    num_passes = torch.zeros(len(texts), dtype=torch.int64)
    for numbers, tokens in read_in_chunks(scorer, texts, {}, skip=False):
        for place, number in enumerate(numbers):
            windows = windows_of(scorer, tokens.row(place))
            sizes = [int(window.num_features) for window in windows]
            num_passes[number] = sum(map(plan.most_passes, sizes))
    return num_passes


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


def _num_bytes(
    scorer: Scorer, texts: Texts, num_unknown: Int[Tensor, " N"], faults: dict[int, str]
) -> Int[Tensor, " N"]:
    """Bytes of what is scored of each text; 0 where they are not known."""
    num_bytes = torch.zeros(len(texts), dtype=torch.int64)
    if isinstance(texts, Tokens):
        return num_bytes
    for number, text in enumerate(texts):
        if not isinstance(text, str) or number in faults:
            continue
        if num_unknown[number]:
            num_bytes[number] = bytes_without_unknown(scorer.tokenizer, text)
        else:
            num_bytes[number] = len(text.encode())
    return num_bytes


# -- scores -------------------------------------------------------------------------------------------

_SUMMED_OF_ROWS = (
    "log_score",
    "variance",
    "squared_variance_per_degree",
    "order_variance",
    "squared_order_variance_per_degree",
    "pseudo_log_likelihood",
)
_SUMMED_OF_BOUNDS = ("lower", "lower_variance", "upper", "upper_variance")
_COUNTS = ("num_tokens", "num_passes", "is_heavy_tailed", "num_windows", "num_unknown")


class _Columns:
    """The scores of N texts, each a sum over its rows; filled chunk by chunk.

    Args:
        count: N.
        num_orders: S, where log p_π is kept along each order; else None.
    """

    def __init__(self, count: int, num_orders: int | None) -> None:
        names = (*_SUMMED_OF_ROWS, *_SUMMED_OF_BOUNDS)
        self.sums = {name: torch.zeros(count, dtype=torch.float64) for name in names}
        self.counts = {name: torch.zeros(count, dtype=torch.int64) for name in _COUNTS}
        self.along_orders: Tensor | None = None
        if num_orders is not None:
            self.along_orders = torch.zeros(count, num_orders, dtype=torch.float64)
        self.keys: dict[int, Hashable] = {}  # of the orders of each text, where items were named

    def add(self, rows: Rows, scores: RowScores) -> None:
        """What some rows got."""
        for name in _SUMMED_OF_ROWS:
            self.sums[name].index_add_(0, rows.text, getattr(scores, name))
        self.counts["num_tokens"].index_add_(
            0, rows.text, torch.full_like(rows.text, rows.num_places)
        )
        self.counts["num_passes"].index_add_(0, rows.text, scores.num_passes)
        if self.along_orders is not None:
            self.along_orders.index_add_(0, rows.text, scores.along_orders)

    def add_bounds(self, scored: Sequence[tuple[Rows, RowScores]]) -> None:
        """Bounds on the mixture, computed for all rows with equally many orders at once."""
        by_orders: dict[int, list[tuple[Rows, RowScores]]] = {}
        for rows, scores in scored:
            by_orders.setdefault(scores.along_orders.shape[1], []).append((rows, scores))
        for group in by_orders.values():
            text = torch.cat([rows.text for rows, _ in group])
            columns = zip(*(scores for _, scores in group), strict=True)
            bounds = bounds_of(RowScores(*map(torch.cat, columns)))
            for name in _SUMMED_OF_BOUNDS:
                self.sums[name].index_add_(0, text, getattr(bounds, name))
            self.counts["is_heavy_tailed"].index_add_(0, text, bounds.is_heavy_tailed.long())

    def same_orders(self) -> Int[Tensor, " N"]:
        """Of each text the first one that was scored along the same orders; one without is its own."""
        count = len(self.counts["num_tokens"])
        return torch.tensor(first_equal([self.keys.get(n, n) for n in range(count)]))

    def leave_out(self, faults: dict[int, str]) -> None:
        """No number of a text that cannot be scored."""
        numbers = sorted(faults)
        for values in self.sums.values():
            values[numbers] = math.nan
        for counts in self.counts.values():
            counts[numbers] = 0
        if self.along_orders is not None:
            self.along_orders[numbers] = math.nan


def _score_chunk(
    scheduler: BatchScheduler,
    numbers: list[int],
    tokens: Tokens,
    plan: Plan,
    names: Sequence[Hashable],
    columns: _Columns,
) -> None:
    """The scores of all rows of some texts: whole texts, windows of long ones, or blocks of these."""
    rows: list[Row] = []
    plans: list[Plan] = []
    for place, number in enumerate(numbers):
        text = rows_of_text(
            scheduler.scorer,
            tokens.row(place),
            number,
            plan.seed,
            names[number] if names else None,
            block_length=plan.block_length,
            later=plan.later,
        )
        rows += text.rows
        plans += [
            plan.of_block(len(row.places), size)
            for row, size in zip(text.rows, text.sizes, strict=True)
        ]
        columns.counts["num_windows"][number] = text.num_windows
        columns.keys[number] = text.key
    columns.counts["num_unknown"][numbers] = num_unknown(scheduler.scorer, tokens)
    scored = list(score_rows(scheduler, rows, plan, plans))
    for rows_of_batch, scores in scored:
        columns.add(rows_of_batch, scores)
    columns.add_bounds(scored)
