"""Two texts that differ in k tokens: the log-ratio of those k given the rest."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.checks import Index, Within, checked
from mpt_lml.masks import subsets
from mpt_lml.scores import over_orders
from mpt_lml.verdicts import mean_and_error
from mpt_score.errors import TextError
from mpt_score.loading import load
from mpt_score.quantities.estimate import along_orders
from mpt_score.quantities.means import as_rows
from mpt_score.rows.reading import Read, num_unknown, read
from mpt_score.rows.requests import (
    Request,
    Row,
    each_alone,
    num_masks_of_orders,
    orders_differ,
    orders_of_places,
    takes_every_order,
)
from mpt_score.rows.scheduler import Answers, BatchScheduler
from mpt_score.scorer import Scorer
from mpt_score.tokens import Texts, Tokens, as_list

_log = logging.getLogger(__name__)

NUMBERS_OF_A_PAIR = {"log_ratio", "standard_error", "inconsistency", "pseudo_difference"}
"""Columns that a pair which was skipped has no number in."""


class Accuracy(NamedTuple):
    """The share of pairs whose first text is the more probable one.

    >>> print(Accuracy(1.0, 0.342, 1.0, 2))
    100.0 % of 2 pairs (95 % interval 34.2 to 100.0 %)
    """

    value: float
    """A tie is half a hit, as of a coin that decides it."""
    low: float
    """Of Wilson's 95 % interval over pairs, which is right also where all are hits."""
    high: float
    num_pairs: int

    def __str__(self) -> str:
        return (
            f"{100 * self.value:.1f} % of {self.num_pairs} pairs (95 % interval {100 * self.low:.1f} "
            f"to {100 * self.high:.1f} %)"
        )


def accuracy_of(num_hits: int, num_ties: int, num_pairs: int) -> Accuracy:
    """An accuracy with Wilson's interval; of ties its ends count none and all.

    >>> print(accuracy_of(2, 0, 2))
    100.0 % of 2 pairs (95 % interval 34.2 to 100.0 %)
    """
    from scipy import stats  # takes long to import

    def interval(hits: int) -> Any:
        return stats.binomtest(hits, num_pairs).proportion_ci(0.95, method="wilson")

    value = (num_hits + num_ties / 2) / num_pairs
    return Accuracy(value, interval(num_hits).low, interval(num_hits + num_ties).high, num_pairs)


@dataclass(frozen=True, eq=False)
class PairScores:
    """Log-ratios of N pairs of texts; :func:`pairs` makes them.

    Numbers are nan for pairs that were skipped.

    Attributes:
        log_ratio: log q(x_A | x_R) − log q(y_A | x_R), A being the places where x and y differ, mean
            over orders of A; nats, (N,).
        standard_error: of ``log_ratio``, over orders; 0 where all k! are in it, nan where the drawn
            ones happen to be the same, (N,).
        inconsistency: the standard deviation over orders, both texts in the same order: 0 for
            conditionals of one joint distribution, and no error of the truth; nan as the error, (N,).
        num_changed: k, (N,).
        num_passes: different rows that the pair asks of the model, (N,). What both texts show alike is
            one row, so that k = 1 takes one pass. A row that other pairs of the call ask for as well
            goes through the model once and counts for each of them: all substitutions at one site
            are one pass together.
        skipped: the pairs that were not compared, with the reason, by their number.
        pseudo_difference: of two pseudo-log-likelihoods (2D more passes), which is another quantity,
            (N,); None where it was not asked for.

    >>> coin = lambda ids, mask: torch.tensor([0.25, 0.75]).double().log().expand(ids.shape + (2,))
    >>> pairs(coin, [[0, 1, 0]], [[0, 0, 0]]).log_ratio.exp()
    tensor([3.0000], dtype=torch.float64)
    """

    log_ratio: Float[Tensor, " N"]
    standard_error: Float[Tensor, " N"]
    inconsistency: Float[Tensor, " N"]
    num_changed: Int[Tensor, " N"]
    num_passes: Int[Tensor, " N"]
    pseudo_difference: Float[Tensor, " N"] | None = None
    skipped: dict[int, str] = field(default_factory=dict)

    def accuracy(self) -> Accuracy:
        """The share of pairs whose first text is the more probable one.

        Pairs that were skipped are left out, and ``num_pairs`` says how many are left. A tie is
        half a hit, as of a coin that decides it.

        Raises:
            ValueError: where no pair was compared.

        >>> coin = lambda ids, mask: (
        ...     torch.tensor([0.25, 0.75]).double().log().expand(ids.shape + (2,))
        ... )
        >>> scores = pairs(coin, [[0, 1], [1, 1], [0, 0]], [[0, 0], [0, 1], [1, 0]])
        >>> print(scores.accuracy())
        66.7 % of 3 pairs (95 % interval 20.8 to 93.9 %)
        """
        known = self.log_ratio[~self.log_ratio.isnan()]
        if len(known) == 0:
            raise ValueError("no pair was compared: there is no accuracy.")
        return accuracy_of(int((known > 0).sum()), int((known == 0).sum()), len(known))

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a pair, for a table. Numbers of a skipped pair are None, with its reason."""
        columns = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        records = as_rows(columns)
        for number, record in enumerate(records):
            if number in self.skipped:
                record |= dict.fromkeys(NUMBERS_OF_A_PAIR & record.keys())
            if self.skipped:
                record["skipped"] = self.skipped.get(number)
        return records


@checked
def pairs(
    model: Any,
    first: Texts,
    second: Texts,
    *,
    tokenizer: Any = None,
    num_orders: Annotated[int, Within(2)] = 32,
    pseudo: bool = False,
    skip: bool = False,
    seed: Index = 0,
) -> PairScores:
    """log p(x) − log p(y) of texts x of ``first`` and y of ``second``, by the k tokens that differ.

    For conditionals of one joint that is log p(x_A | x_R) − log p(y_A | x_R), in any order of A. A
    network's orders differ: their mean is taken. All k! are in the 2^k − 1 masks of each text; where
    k masks for each of ``num_orders`` are fewer (32: k > 8), so many are drawn, the same for both.
    k = 0 gives 0 without a pass. A pair's orders follow from ``seed`` and its texts, whichever of them
    is the first.

    Texts with different numbers of tokens are not comparable by any masked model, which is told the
    number; nor are those with unknown tokens, which stand for any word. Texts that are longer than the
    model takes are scored in a window of as many tokens around those that differ, which is said.

    Args:
        model: as of :func:`~mpt_score.loading.load`.
        first: as of :meth:`Scorer.encode`.
        second: as many.
        tokenizer: as of :func:`~mpt_score.loading.load`.
        num_orders: most random orders.
        pseudo: whether the difference of pseudo-log-likelihoods is computed as well.
        skip: a pair that is not comparable, of which a text cannot be read or an answer of the model is
            not finite gives nan, and is listed in the result.
        seed: of the orders.

    Raises:
        TextError: without ``skip``, for such a pair.
        ValueError: for another number of second texts.

    >>> from mpt_lml import HMM
    >>> language = HMM.cyclic(num_features=4)
    >>> x, y = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 4, 2, 9]])
    >>> scores = pairs(language.log_values, x, y)
    >>> torch.allclose(scores.log_ratio, language.log_marginal(x) - language.log_marginal(y))
    True
    """
    scorer = load(model, tokenizer)
    first = as_list(first)
    second = as_list(second)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} first texts came with {len(second)} second ones.")
    count = len(first)
    numbers = ("log_ratio", "standard_error", "inconsistency", "pseudo_difference")
    columns = {name: torch.zeros(count, dtype=torch.float64) for name in numbers}
    columns["num_passes"] = torch.zeros(count, dtype=torch.int64)
    num_changed = torch.zeros(count, dtype=torch.int64)
    to_score = []
    num_cut = 0
    of_first = _read(scorer, "first", first, skip=skip)
    of_second = _read(scorer, "second", second, skip=skip)
    rows_of_first = of_first.rows
    rows_of_second = of_second.rows
    skipped = of_second.faults | of_first.faults
    for number in range(count):
        if number in skipped:
            continue
        x = rows_of_first[number]
        y = rows_of_second[number]
        reason = _why_incomparable(scorer, x, y)
        if reason is not None:
            skipped[number] = reason
            continue
        changed = _changed(x, y)
        num_changed[number] = len(changed)
        if len(changed):  # equal texts have the ratio 0, without a pass
            window = _window(scorer, x, changed)
            num_cut += len(window) < int(x.lengths)
            to_score.append(_Pair.of(x, y, window, number, seed))
    if skipped and not skip:
        _refuse_first(skipped)
    if num_cut:
        _log.warning(
            "%d of %d pairs have more tokens than the %d that the model takes: each is scored in a "
            "window of as many around the tokens that differ.",
            num_cut,
            count,
            scorer.max_length,
        )
    scheduler = BatchScheduler(scorer, skip=skip, noun="pair")
    for name, values in _scored(scheduler, to_score, num_orders, pseudo=pseudo).items():
        columns[name][[pair.low.text for pair in to_score]] = values
    skipped |= scheduler.faults
    for name in numbers:
        columns[name][sorted(skipped)] = math.nan
    return PairScores(
        log_ratio=columns["log_ratio"],
        standard_error=columns["standard_error"],
        inconsistency=columns["inconsistency"],
        num_changed=num_changed,
        num_passes=columns["num_passes"],
        pseudo_difference=columns["pseudo_difference"] if pseudo else None,
        skipped=dict(sorted(skipped.items())),
    )


class _Pair(NamedTuple):
    """Two texts of one length as rows, in an order that does not depend on which is the first."""

    low: Row
    high: Row
    sign: float  # 1 where ``low`` is the first text, −1 where it is the second
    tokens: Int[Tensor, " D"]  # places of all that are scored, for pseudo-log-likelihoods

    @classmethod
    def of(cls, x: Tokens, y: Tokens, window: Int[Tensor, " W"], number: int, seed: int) -> "_Pair":
        """A pair as far as its window goes, whose places are counted from the window's first."""
        both = [(text.ids[0, window], text.types[0, window]) for text in (x, y)]
        ids_of_x, ids_of_y = (ids.tolist() for ids, _ in both)
        is_first_low = ids_of_x <= ids_of_y
        if not is_first_low:
            both.reverse()
        key = f"{seed} pair {sorted([ids_of_x, ids_of_y])}"
        places = (x.ids[0, window] != y.ids[0, window]).nonzero().flatten()
        nothing = torch.zeros(len(window), dtype=torch.bool)
        low, high = (Row(ids, types, places, nothing, number, key) for ids, types in both)
        tokens = x.maskable[0, window].nonzero().flatten()
        return cls(low, high, 1.0 if is_first_low else -1.0, tokens)


def _scored(
    scheduler: BatchScheduler, pairs: Sequence[_Pair], num_orders: int, *, pseudo: bool
) -> dict[str, Tensor]:
    """The columns of some pairs, in the order in which they come."""
    nothing = torch.zeros(len(pairs), dtype=torch.float64)
    columns = {
        "log_ratio": nothing,
        "standard_error": nothing.clone(),
        "inconsistency": nothing.clone(),
        "num_passes": nothing.long(),
        "pseudo_difference": nothing.clone(),
    }
    sign = torch.tensor([pair.sign for pair in pairs], dtype=torch.float64)
    low = [pair.low for pair in pairs]
    high = [pair.high for pair in pairs]
    for answers in scheduler.ask(
        low,
        lambda batch: orders_of_places(batch.rows, num_orders),
        partial(num_masks_of_orders, num_orders),
        partners=high,
    ):
        group = answers.batch.numbers
        for name, values in _log_ratios(answers, num_orders).items():
            columns[name][group] = values
        columns["log_ratio"][group] *= sign[group]
    if pseudo:
        low = [pair.low._replace(places=pair.tokens) for pair in pairs]
        high = [pair.high._replace(places=pair.tokens) for pair in pairs]
        for answers in scheduler.ask(
            low, lambda batch: each_alone(batch.rows), lambda count: count, partners=high
        ):
            group = answers.batch.numbers
            of_low, of_high = answers.values.sum(dim=(1, 2)).chunk(2)
            columns["pseudo_difference"][group] = sign[group] * (of_low - of_high)
    return columns


def _log_ratios(answers: Answers, num_orders: int) -> dict[str, Tensor]:
    """Columns, (B,) each, of 2B rows: row B + i is compared with row i along the same orders."""
    rows = answers.batch.rows
    low, high = answers.values.chunk(2)
    difference = low - high
    columns = {"num_passes": answers.num_passes.view(2, -1).sum(dim=0)}
    if takes_every_order(rows, num_orders):
        statistics = over_orders(difference.transpose(0, 1), subsets(rows.num_places))
        columns["log_ratio"] = statistics.mean
        columns["standard_error"] = torch.zeros_like(statistics.mean)
        columns["inconsistency"] = statistics.variance.sqrt()
        return columns
    of_low = Request(*(each.chunk(2)[0] for each in answers.request))
    totals = along_orders(difference, of_low).sum(dim=2)
    mean, error = mean_and_error(totals, dim=1)
    has_spread = orders_differ(of_low.hidden)
    columns["log_ratio"] = mean
    columns["standard_error"] = error.where(has_spread, math.nan)
    columns["inconsistency"] = totals.std(dim=1).where(has_spread, math.nan)
    return columns


def _refuse_first(skipped: dict[int, str]) -> None:
    """Raise for the first of the pairs that cannot be compared."""
    number = min(skipped)
    reason = skipped[number]
    remedy = f"({len(skipped)} such pairs). Leave it out, or skip=True gives nan and lists it."
    raise TextError(f"pair {number} {reason} {remedy}", number, f"{reason}.")


def _read(scorer: Scorer, name: str, texts: Any, *, skip: bool) -> Read:
    try:
        reading = read(scorer, texts, skip=skip)
    except TextError as error:
        reason = f"the {name} text {error.reason}"
        raise TextError(f"pair {error.number}: {reason}", error.number, reason) from error
    faults = {
        number: f"the {name} text {reason.rstrip('.')}" for number, reason in reading.faults.items()
    }
    return reading._replace(faults=faults)


def _changed(x: Tokens, y: Tokens) -> Int[Tensor, " k"]:
    """The places where the tokens of two texts of one length differ."""
    return (x.ids[0] != y.ids[0]).nonzero().flatten()


def _room(scorer: Scorer, x: Tokens) -> tuple[int, int, int]:
    """How many tokens of the frame stand in front of a text and behind it, and the room between.

    The room is what the model has places for; for a text that fits, its own tokens.
    """
    length = int(x.lengths)
    inner = x.maskable[0].nonzero().flatten()
    num_front = int(inner[0])
    num_behind = length - 1 - int(inner[-1])
    longest = length if scorer.max_length is None else min(length, scorer.max_length)
    return num_front, num_behind, longest - num_front - num_behind


def _window(scorer: Scorer, x: Tokens, changed: Int[Tensor, " k"]) -> Int[Tensor, " W"]:
    """The places of a text that the model is shown: its frame, and what fits around the changed ones."""
    length = int(x.lengths)
    num_front, num_behind, room = _room(scorer, x)
    middle = (int(changed[0]) + int(changed[-1]) + 1) // 2
    start = max(num_front, min(middle - room // 2, length - num_behind - room))
    return torch.cat(
        [
            torch.arange(num_front),
            torch.arange(start, start + room),
            torch.arange(length - num_behind, length),
        ]
    )


def _why_incomparable(scorer: Scorer, x: Tokens, y: Tokens) -> str | None:
    """Why two texts, each one row, cannot be compared; None where they can."""
    if x.lengths != y.lengths:
        return (
            f"has texts of {int(x.num_features)} and {int(y.num_features)} tokens; a masked model is "
            "told their number and cannot compare them without a model of length"
        )
    changed = _changed(x, y)
    _, _, room = _room(scorer, x)
    if len(changed) and int(changed[-1] - changed[0]) >= room:
        return (
            f"has {int(x.lengths)} tokens, the model has places for {scorer.max_length}, and no window "
            "of as many has all tokens that differ"
        )
    if num_unknown(scorer, x) + num_unknown(scorer, y) > 0:
        return "has a token that is unknown to the tokenizer and may stand for any word"
    if not (x.maskable & y.maskable)[0, changed].all():
        return "differs in a special token, which has no probability"
    return None
