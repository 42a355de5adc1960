"""Two texts that differ in k tokens: the log-ratio of those k given the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import Within, checked
from mpt_lml.results import Estimate, as_rows, mean_estimate
from mpt_lml.verdicts import mean_and_error
from mpt_score.blocks import Blocks, draw_numbers
from mpt_score.errors import TextError
from mpt_score.loading import load
from mpt_score.parts import Runner, compute_parts
from mpt_score.scorer import Scorer
from mpt_score.streams import StreamSeed, TextNumber
from mpt_score.tokens import Texts, Tokens, as_list

NUMBERS_OF_A_PAIR = {"log_ratio", "standard_error", "inconsistency", "pseudo_difference"}
"""Columns that a pair which was skipped has no number in."""


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
        incomparable: the pairs that were skipped, with the reason.
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
    incomparable: dict[int, str]
    pseudo_difference: Float[Tensor, " N"] | None = None

    def accuracy(self, pseudo: bool = False) -> Estimate:
        """The share of pairs whose first text is the more probable one, with its error over pairs.

        Pairs that are not comparable are left out, and ``num_samples`` says how many are left. A tie is
        half a hit, as of a coin that decides it.

        Args:
            pseudo: whether pseudo-log-likelihoods decide, and not log-ratios.

        Raises:
            ValueError: where no pair is comparable, and without pseudo-log-likelihoods to decide by.

        >>> coin = lambda ids, mask: (
        ...     torch.tensor([0.25, 0.75]).double().log().expand(ids.shape + (2,))
        ... )
        >>> scores = pairs(coin, [[0, 1], [1, 1], [0, 0]], [[0, 0], [0, 1], [1, 0]])
        >>> f"{scores.accuracy():.3f}", scores.accuracy().num_samples
        ('0.667', 3)
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
        hits = (1 + known.sign()) / 2
        return mean_estimate(hits, "of the pairs")

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a pair, for a table. Numbers of a skipped pair are None, with its reason."""
        columns = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        rows = []
        for place, row in enumerate(as_rows(columns)):
            if place in self.incomparable:
                row |= dict.fromkeys(NUMBERS_OF_A_PAIR & row.keys())
            if self.incomparable:
                row["skipped"] = self.incomparable.get(place)
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
    seed: StreamSeed = 0,
    draws: Sequence[TextNumber] | None = None,
    run: Runner = compute_parts,
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
        draws: a number of each pair, which decides with ``seed`` its random orders; by default its
            place. With numbers of its own a pair keeps its orders wherever it stands.
        run: takes a label and the parts, and returns what each gives, computed now or in an earlier
            call: see :meth:`Scorer.checkpoints_in`.

    Raises:
        TextError: for a pair that is not comparable, without ``skip``.
        ValueError: for another number of second texts, or of ``draws``.

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
    incomparable = _incomparable(scorer, x, y)
    if not skip:
        _refuse_first(incomparable)
    is_comparable = torch.tensor([number not in incomparable for number in range(len(x))])
    width = min(x.ids.shape[1], y.ids.shape[1])
    texts = [x.cut(width), y.cut(width)]
    changed = (texts[0].ids != texts[1].ids) & is_comparable[:, None]
    blocks = Blocks(scorer, num_orders, seed)
    numbers = torch.arange(len(x))
    scores = blocks(texts, changed, numbers, run, draw_numbers(draws, len(x)))
    pseudo_difference = None
    if pseudo:
        difference = _pseudo_difference(scorer, texts, changed, seed, run)
        pseudo_difference = difference.where(is_comparable, torch.nan)
    mean, error = mean_and_error(scores.totals, dim=1)
    num_changed = changed.sum(dim=1)
    return PairScores(
        log_ratio=mean.where(is_comparable, torch.nan),
        standard_error=error.where(is_comparable, torch.nan),
        inconsistency=scores.spread.where(is_comparable, torch.nan),
        num_changed=num_changed,
        num_passes=2 * blocks.num_masks(num_changed),
        incomparable=incomparable,
        pseudo_difference=pseudo_difference,
    )


def _refuse_first(incomparable: dict[int, str]) -> None:
    """Raise for the first of the pairs that cannot be compared, if there is one."""
    for number, reason in incomparable.items():
        remedy = (
            f"({len(incomparable)} such pairs). Leave it out, or skip=True gives nan and lists it."
        )
        raise TextError(f"pair {number} {reason} {remedy}", number, f"{reason}.")


def _pseudo_difference(
    scorer: Scorer, texts: list[Tokens], changed: Bool[Tensor, "N L"], seed: int, run: Runner
) -> Float[Tensor, " N"]:
    """First minus second pseudo-log-likelihood; equal texts have equal ones, which needs no pass."""
    places = texts[0].maskable & changed.any(dim=1, keepdim=True)
    numbers = torch.arange(len(changed))
    return Blocks(scorer, 0, seed)(texts, places, numbers, run).totals[:, 0]


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
