"""Two texts that differ in k tokens: the log-ratio of those k given the rest."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import Index, Within, checked
from mpt_lml.masks import subsets
from mpt_lml.results import as_rows
from mpt_lml.scores import over_orders
from mpt_lml.verdicts import mean_and_error
from mpt_score.errors import TextError
from mpt_score.loading import load
from mpt_score.quantities.estimate import along_orders
from mpt_score.rows.reading import Read, num_unknown, read
from mpt_score.rows.requests import (
    Request,
    Row,
    num_masks_of_orders,
    orders_differ,
    orders_of_places,
    takes_every_order,
)
from mpt_score.rows.scheduler import Answers, Batch, BatchScheduler
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

    @checked
    def accuracy(self, pseudo: bool = False) -> Accuracy:
        """The share of pairs whose first text is the more probable one.

        Pairs that were skipped are left out, and ``num_pairs`` says how many are left. A tie is
        half a hit, as of a coin that decides it.

        Args:
            pseudo: whether pseudo-log-likelihoods decide, and not log-ratios.

        Raises:
            ValueError: where no pair was compared, and without pseudo-log-likelihoods to decide by.

        >>> coin = lambda ids, mask: (
        ...     torch.tensor([0.25, 0.75]).double().log().expand(ids.shape + (2,))
        ... )
        >>> scores = pairs(coin, [[0, 1], [1, 1], [0, 0]], [[0, 0], [0, 1], [1, 0]])
        >>> print(scores.accuracy())
        66.7 % of 3 pairs (95 % interval 20.8 to 93.9 %)
        """
        difference = self.log_ratio
        if pseudo:
            if self.pseudo_difference is None:
                raise ValueError(
                    "pseudo-log-likelihoods were not asked for: pairs(..., pseudo=True)."
                )
            difference = self.pseudo_difference
        known = difference[~difference.isnan()]
        if len(known) == 0:
            raise ValueError("no pair was compared: there is no accuracy.")
        return accuracy_of(int((known > 0).sum()), int((known == 0).sum()), len(known))

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a pair, for a table. Numbers of a skipped pair are None, with its reason."""
        columns = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        rows = []
        for place, row in enumerate(as_rows(columns)):
            if place in self.skipped:
                row |= dict.fromkeys(NUMBERS_OF_A_PAIR & row.keys())
            if self.skipped:
                row["skipped"] = self.skipped.get(place)
            rows.append(row)
        return rows


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
    skipped = of_second.faults | of_first.faults
    readable = [number for number in range(count) if number not in skipped]
    if readable:
        x = _rows_of(of_first, readable)
        y = _rows_of(of_second, readable)
        is_changed = _is_changed(x, y)
        reasons = _incomparable(scorer, x, y, is_changed)
        skipped |= {readable[row]: reason for row, reason in reasons.items()}
        if not skip:
            _refuse_first(skipped)
        for row, number in enumerate(readable):
            if number in skipped:
                continue
            num_changed[number] = is_changed[row].sum()
            if num_changed[number]:  # equal texts have the ratio 0, without a pass
                window = _window(scorer, x, row, is_changed[row])
                num_cut += len(window) < int(x.lengths[row])
                to_score.append(_Pair.of(x, y, row, is_changed[row], number, seed, window))
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
    def of(
        cls,
        x: Tokens,
        y: Tokens,
        row: int,
        is_changed: Bool[Tensor, " L"],
        number: int,
        seed: int,
        window: Int[Tensor, " W"],
    ) -> "_Pair":
        """A pair as far as its window goes, whose places are counted from the window's first."""
        both = [(texts.ids[row, window], texts.types[row, window]) for texts in (x, y)]
        ids_of_x, ids_of_y = (ids.tolist() for ids, _ in both)
        is_first_low = ids_of_x <= ids_of_y
        if not is_first_low:
            both.reverse()
        key = f"{seed} pair {sorted([ids_of_x, ids_of_y])}"
        places = is_changed[window].nonzero().flatten()
        nothing = torch.zeros(len(window), dtype=torch.bool)
        low, high = (Row(ids, types, places, nothing, number, key) for ids, types in both)
        tokens = x.maskable[row, window].nonzero().flatten()
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
    for answers in scheduler.score(
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
        for answers in scheduler.score(low, _singles, lambda count: count, partners=high):
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


def _singles(batch: Batch) -> Request:
    """Each place hidden alone."""
    single = torch.eye(batch.rows.num_places, dtype=torch.bool).expand(len(batch.rows), -1, -1)
    return Request(single, single)


def _is_wide(scorer: Scorer, x: Tokens, row: int, is_changed: Bool[Tensor, " L"]) -> bool:
    """Whether the changed places lie too far apart for one window."""
    changed = is_changed.nonzero().flatten()
    if len(changed) == 0 or not x.maskable[row].any():
        return False
    _, _, room = _room(scorer, x, row)
    return int(changed[-1] - changed[0]) >= room


def _refuse_first(skipped: dict[int, str]) -> None:
    """Raise for the first of the pairs that cannot be compared, if there is one."""
    if not skipped:
        return
    number = min(skipped)
    reason = skipped[number]
    remedy = f"({len(skipped)} such pairs). Leave it out, or skip=True gives nan and lists it."
    raise TextError(f"pair {number} {reason} {remedy}", number, f"{reason}.")


def _read(scorer: Scorer, name: str, texts: Any, *, skip: bool) -> Read:
    try:
        found = read(scorer, texts, skip=skip)
    except TextError as error:
        raise TextError(f"{name}: {error}", error.number, f"({name}) {error.reason}") from error
    faults = {
        number: f"has a {name} text that {reason.rstrip('.')}"
        for number, reason in found.faults.items()
    }
    return found._replace(faults=faults)


def _rows_of(found: Read, numbers: Sequence[int]) -> Tokens:
    """The tokens of some of the texts that can be read."""
    assert found.tokens is not None
    place = {number: place for place, number in enumerate(found.numbers)}
    return found.tokens.rows(torch.tensor([place[number] for number in numbers]))


def _is_changed(x: Tokens, y: Tokens) -> Bool[Tensor, "N L"]:
    """Where the tokens of two texts differ, as far as both go."""
    width = min(x.ids.shape[1], y.ids.shape[1])
    is_token = torch.arange(width) < torch.minimum(x.lengths, y.lengths)[:, None]
    return is_token & (x.ids[:, :width] != y.ids[:, :width])


def _room(scorer: Scorer, x: Tokens, row: int) -> tuple[int, int, int]:
    """How many tokens of the frame stand in front of a text and behind it, and the room between.

    The room is what the model has places for; for a text that fits, its own tokens.
    """
    length = int(x.lengths[row])
    inner = x.maskable[row].nonzero().flatten()
    num_front = int(inner[0])
    num_behind = length - 1 - int(inner[-1])
    longest = length if scorer.max_length is None else min(length, scorer.max_length)
    return num_front, num_behind, longest - num_front - num_behind


def _window(
    scorer: Scorer, x: Tokens, row: int, is_changed: Bool[Tensor, " L"]
) -> Int[Tensor, " W"]:
    """The places of a text that the model is shown: its frame, and what fits around the changed ones."""
    length = int(x.lengths[row])
    num_front, num_behind, room = _room(scorer, x, row)
    changed = is_changed.nonzero().flatten()
    middle = (int(changed[0]) + int(changed[-1]) + 1) // 2
    start = max(num_front, min(middle - room // 2, length - num_behind - room))
    return torch.cat(
        [
            torch.arange(num_front),
            torch.arange(start, start + room),
            torch.arange(length - num_behind, length),
        ]
    )


def _incomparable(
    scorer: Scorer, x: Tokens, y: Tokens, is_changed: Bool[Tensor, "N L"]
) -> dict[int, str]:
    """The rows of the pairs that cannot be compared, and why."""
    width = is_changed.shape[1]
    is_scored = x.maskable[:, :width] & y.maskable[:, :width]
    in_special = (is_changed & ~is_scored).any(dim=1)
    has_unknown = num_unknown(scorer, x) + num_unknown(scorer, y) > 0
    has_other_length = x.lengths != y.lengths
    is_wide = torch.tensor(
        [_is_wide(scorer, x, row, of_row) for row, of_row in enumerate(is_changed)]
    )
    reasons = {}
    for row in (has_other_length | is_wide | has_unknown | in_special).nonzero().flatten().tolist():
        if has_other_length[row]:
            reasons[row] = (
                f"has texts of {x.num_features[row]} and {y.num_features[row]} tokens; a masked "
                "model is told their number and cannot compare them without a model of length"
            )
        elif is_wide[row]:
            reasons[row] = (
                f"has {x.lengths[row]} tokens, the model has places for {scorer.max_length}, and no "
                "window of as many has all tokens that differ"
            )
        elif has_unknown[row]:
            reasons[row] = "has a token that is unknown to the tokenizer and may stand for any word"
        else:
            reasons[row] = "differs in a special token, which has no probability"
    return reasons
