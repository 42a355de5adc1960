"""Two texts that differ in k tokens: the log-ratio of those k given the rest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.checks import Index, Within, checked
from mpt_lml.masks import subsets
from mpt_lml.results import as_rows
from mpt_lml.scores import over_orders
from mpt_lml.verdicts import mean_and_error
from mpt_score.errors import TextError
from mpt_score.estimate import along_orders, orders_of_places, takes_every_order
from mpt_score.loading import load
from mpt_score.rows import Asker, Dialogue, Piece, Question, Rows, by_form
from mpt_score.scorer import Scorer
from mpt_score.sentence_scores import PART_TOKENS
from mpt_score.tokens import Texts, Tokens, as_list

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

    Numbers are nan for pairs that are not comparable.

    Attributes:
        log_ratio: log q(x_A | x_R) − log q(y_A | x_R), A being the places where x and y differ, mean
            over orders of A; nats, (N,).
        standard_error: of ``log_ratio``, over orders; 0 where all k! are in it, (N,).
        inconsistency: the standard deviation over orders, both texts in the same order: 0 for
            conditionals of one joint distribution, and no error of the truth, (N,).
        num_changed: k, (N,).
        num_passes: rows that went through the model for both texts, (N,).
        skipped: the pairs that cannot be compared, with the reason, by their number.
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

    def accuracy(self, pseudo: bool = False) -> Accuracy:
        """The share of pairs whose first text is the more probable one.

        Pairs that are not comparable are left out, and ``num_pairs`` says how many are left. A tie is
        half a hit, as of a coin that decides it.

        Args:
            pseudo: whether pseudo-log-likelihoods decide, and not log-ratios.

        Raises:
            ValueError: where no pair is comparable, and without pseudo-log-likelihoods to decide by.

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
            raise ValueError("no pair is comparable: there is no accuracy.")
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
    k = 0 gives 0 without a pass.

    Texts with different numbers of tokens are not comparable by any masked model, which is told the
    number; nor are those with unknown tokens, which stand for any word, and too long ones.

    Args:
        model: as of :func:`~mpt_score.loading.load`.
        first: as of :meth:`Scorer.encode`.
        second: as many.
        tokenizer: as of :func:`~mpt_score.loading.load`.
        num_orders: most random orders.
        pseudo: whether the difference of pseudo-log-likelihoods is computed as well.
        skip: a pair that is not comparable gives nan, and is listed in the result.
        seed: of the orders.

    A pair's orders follow from ``seed`` and its texts, whichever of them is the first.

    Raises:
        TextError: without ``skip`` for a pair that is not comparable, and for one of which an answer of
            the model is not finite.
        ValueError: for another number of second texts.

    >>> from mpt_lml import HMM
    >>> language = HMM.cyclic(num_features=4)
    >>> x, y = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 4, 2, 9]])
    >>> scores = pairs(language.log_values, x, y)
    >>> torch.allclose(scores.log_ratio, language.log_marginal(x) - language.log_marginal(y))
    True
    """
    scorer = load(model, tokenizer)
    x = _encode(scorer, "first", first)
    y = _encode(scorer, "second", second)
    if len(x) != len(y):
        raise ValueError(f"{len(x)} first texts came with {len(y)} second ones.")
    skipped = _incomparable(scorer, x, y)
    if not skip:
        _refuse_first(skipped)
    asker = Asker(scorer, skip=skip, noun="pair")
    count = len(x)
    numbers = ("log_ratio", "standard_error", "inconsistency", "pseudo_difference")
    columns = {name: torch.zeros(count, dtype=torch.float64) for name in numbers}
    columns["num_passes"] = torch.zeros(count, dtype=torch.int64)
    num_changed = torch.zeros(count, dtype=torch.int64)
    to_score = []
    for number in range(count):
        if number in skipped:
            continue
        pair = _Pair.of(x, y, number, seed)
        num_changed[number] = len(pair.low.places)
        if num_changed[number]:  # equal texts have the ratio 0, without a pass
            to_score.append(pair)
    for part in _parts(to_score, num_orders):
        texts = [pair.low.text for pair in part]
        for name, values in _score_part(asker, part, num_orders, pseudo=pseudo).items():
            columns[name][texts] = values
    skipped |= asker.faults
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

    low: Piece
    high: Piece
    sign: float  # 1 where ``low`` is the first text, −1 where it is the second
    tokens: Int[Tensor, " D"]  # places of all that are scored, for pseudo-log-likelihoods

    @classmethod
    def of(cls, x: Tokens, y: Tokens, number: int, seed: int) -> "_Pair":
        length = int(x.lengths[number])
        rows = [(texts.ids[number, :length], texts.types[number, :length]) for texts in (x, y)]
        places = (rows[0][0] != rows[1][0]).nonzero().flatten()
        nothing = torch.zeros(length, dtype=torch.bool)
        is_first_low = rows[0][0].tolist() <= rows[1][0].tolist()
        ordered = rows if is_first_low else rows[::-1]
        key = f"{seed} pair {[ids.tolist() for ids, _ in ordered]}"
        pieces = [Piece(ids, types, places, nothing, number, key) for ids, types in ordered]
        tokens = x.maskable[number, :length].nonzero().flatten()
        return cls(*pieces, 1.0 if is_first_low else -1.0, tokens)


def _parts(pairs: list[_Pair], num_orders: int) -> list[list[_Pair]]:
    """Pairs of like length, cut where they are work enough."""
    parts: list[list[_Pair]] = [[]]
    num_tokens = 0
    for pair in sorted(pairs, key=lambda pair: (len(pair.low.ids), len(pair.low.places))):
        num_masks = num_orders * len(pair.low.places) + len(pair.tokens)
        num_tokens += 2 * num_masks * len(pair.low.ids)
        parts[-1].append(pair)
        if num_tokens >= PART_TOKENS:
            parts.append([])
            num_tokens = 0
    return [part for part in parts if part]


class _Ratios(NamedTuple):
    """log q of the first half of 2B rows less that of the second, (B,) each; nats."""

    mean: Float[Tensor, " B"]
    standard_error: Float[Tensor, " B"]
    inconsistency: Float[Tensor, " B"]
    num_passes: Int[Tensor, " B"]


def _rows_of(pairs: Sequence[_Pair]) -> Rows:
    return Rows.of([pair.low for pair in pairs] + [pair.high for pair in pairs])


def _score_part(
    asker: Asker, pairs: list[_Pair], num_orders: int, *, pseudo: bool
) -> dict[str, Tensor]:
    """The columns of some pairs, in the order in which they come."""
    groups = by_form([pair.low for pair in pairs])
    rows = [_rows_of([pairs[number] for number in group]) for group in groups]
    dialogues = [_log_ratios(each, num_orders) for each in rows]
    ratios = asker.answer(zip(rows, dialogues, strict=True))
    place = torch.tensor([number for group in groups for number in group]).argsort()
    sign = torch.tensor([pair.sign for pair in pairs], dtype=torch.float64)
    mean, error, inconsistency, num_passes = (
        torch.cat(column)[place] for column in zip(*ratios, strict=True)
    )
    columns = {
        "log_ratio": sign * mean,
        "standard_error": error,
        "inconsistency": inconsistency,
        "num_passes": num_passes,
    }
    if pseudo:
        columns["pseudo_difference"] = sign * _pseudo_differences(asker, pairs)
    return columns


def _log_ratios(rows: Rows, num_orders: int) -> Dialogue[_Ratios]:
    """Of 2B rows, of which row B + i is compared with row i along the same orders."""
    masks = orders_of_places(rows, num_orders)
    asked = yield masks
    low, high = asked.values.chunk(2)
    difference = low - high
    num_passes = asked.num_passes.view(2, -1).sum(dim=0)
    if takes_every_order(rows, num_orders):
        statistics = over_orders(difference.transpose(0, 1), subsets(rows.num_places))
        nothing = torch.zeros_like(statistics.mean)
        return _Ratios(statistics.mean, nothing, statistics.variance.sqrt(), num_passes)
    of_low = Question(*(each.chunk(2)[0] for each in masks))
    totals = along_orders(difference, of_low).sum(dim=2)
    return _Ratios(*mean_and_error(totals, dim=1), totals.std(dim=1), num_passes)


def _pseudo_differences(asker: Asker, pairs: Sequence[_Pair]) -> Float[Tensor, " B"]:
    """The pseudo-log-likelihood of each pair's low text less that of its high one."""
    whole = []
    for pair in pairs:
        low, high = (each._replace(places=pair.tokens) for each in (pair.low, pair.high))
        whole.append(pair._replace(low=low, high=high))
    groups = by_form([pair.low for pair in whole])
    rows = [_rows_of([whole[number] for number in group]) for group in groups]
    dialogues = [_pseudo_log_likelihoods(each) for each in rows]
    values = asker.answer(zip(rows, dialogues, strict=True))
    place = torch.tensor([number for group in groups for number in group]).argsort()
    return torch.cat([low - high for low, high in (each.chunk(2) for each in values)])[place]


def _pseudo_log_likelihoods(rows: Rows) -> Dialogue[Tensor]:
    single = torch.eye(rows.num_places, dtype=torch.bool).expand(len(rows), -1, -1)
    asked = yield Question(single, single)
    return asked.values.sum(dim=(1, 2))


def _refuse_first(skipped: dict[int, str]) -> None:
    """Raise for the first of the pairs that cannot be compared, if there is one."""
    for number, reason in skipped.items():
        remedy = f"({len(skipped)} such pairs). Leave it out, or skip=True gives nan and lists it."
        raise TextError(f"pair {number} {reason} {remedy}", number, f"{reason}.")


def _encode(scorer: Scorer, name: str, texts: Texts) -> Tokens:
    try:
        return scorer.encode(as_list(texts))
    except TextError as error:
        raise TextError(f"{name}: {error}", error.number, f"({name}) {error.reason}") from error


def _incomparable(scorer: Scorer, x: Tokens, y: Tokens) -> dict[int, str]:
    """The numbers of the pairs that cannot be compared, and why."""
    reasons = {}
    for number in range(len(x)):
        reason = _why_incomparable(scorer, x, y, number)
        if reason is not None:
            reasons[number] = reason
    return reasons


def _why_incomparable(scorer: Scorer, x: Tokens, y: Tokens, number: int) -> str | None:
    length = int(x.lengths[number])
    if length != int(y.lengths[number]):
        return (
            f"has texts of {x.num_features[number]} and {y.num_features[number]} tokens; a masked "
            "model is told their number and cannot compare them without a model of length"
        )
    if scorer.max_length is not None and length > scorer.max_length:
        return f"has {length} tokens, the model has places for {scorer.max_length}"
    ids_of_x = x.ids[number, :length]
    ids_of_y = y.ids[number, :length]
    if scorer.unknown_id in [*ids_of_x.tolist(), *ids_of_y.tolist()]:
        return "has a token that is unknown to the tokenizer and may stand for any word"
    is_scored = x.maskable[number, :length] & y.maskable[number, :length]
    if ((ids_of_x != ids_of_y) & ~is_scored).any():
        return "differs in a special token, which has no probability"
    return None
