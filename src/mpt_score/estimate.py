"""The log-score of one row of tokens from few masks, with an honest error (chapter 18).

The score of a row of D tokens is the area under its curve, Σ_M S(M), which is the mean of log p_π over
the orders π. There are four ways to it, from the dearest to the cheapest, and :func:`score_row`
chooses: every mask, whole orders, one mask a stratum of sizes, or a single mask.

Each is a coroutine, a :data:`Dialogue`: it yields the masks that it wants to know of, is sent log q of
their tokens, and returns a :class:`RowScore`. So :func:`answer_dialogues` can ask a network for the
masks of many rows at once.
"""

import hashlib
import math
from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from mpt_lml.masks import from_ranks, sample_ranks, subsets
from mpt_lml.orders import mixture_bounds
from mpt_lml.scores import mask_score, over_orders
from mpt_score.scorer import Scorer
from mpt_score.text_blocks import Later, TextBlock, block_sizes, with_hidden
from mpt_score.tokens import Tokens

MOST_TOKENS_EXACT = 16
"""D up to which all 2^D − 1 masks may be asked for."""
FEWEST_ORDERS = 4
"""For an error of three degrees of freedom; with fewer, Student's intervals are wider than strata's."""
FEWEST_ORDERS_TO_STOP = 2 * FEWEST_ORDERS
"""Where orders follow until the error is small: with eight it is less often small by chance."""
MOST_ROUNDS = 64
"""Most masks for a target error, as a multiple of those that are paid for without one."""
_SEEDS_APART = 2**32
"""Between the seeds of two blocks of a row: their draws are independent."""
_TINY = 1e-30
_ROUNDING = 1e-12
"""What may be left of a number from which it is subtracted in double precision, as a share of it."""

Result = TypeVar("Result")


class Plan(NamedTuple):
    """What is asked of every row; see :func:`mpt_score.sentences`. One of the first two is None."""

    num_orders: int | None
    num_masks: int | None
    pseudo: bool = False
    target_error: float | None = None
    seed: int = 0
    block_length: int | None = None
    later: Later = "hidden"

    def of_block(self, block: TextBlock, count_of_row: int) -> "Plan":
        """What is asked of one block of a row of D = ``count_of_row`` tokens.

        The variances of a row's blocks add up. So that together they meet the target error of the row,
        t D, each may have a variance of t² D nats² for each of its tokens.
        """
        target_error = self.target_error
        if target_error is not None:
            share = int(block.row.num_features) / count_of_row
            target_error = float(target_error) / math.sqrt(share)
        seed = self.seed + block.number * _SEEDS_APART
        return self._replace(target_error=target_error, seed=seed, block_length=None)

    def num_masks_of(self, count: int) -> int:
        """The masks that are paid for the score of D = ``count`` tokens."""
        if self.num_orders is not None:
            return self.num_orders * count
        assert self.num_masks is not None
        return self.num_masks

    def takes_every_mask(self, count: int) -> bool:
        """Whether all 2^D − 1 masks are not more than what is paid for."""
        return count <= MOST_TOKENS_EXACT and 2**count - 1 <= self.num_masks_of(count)

    def num_orders_of(self, count: int) -> int:
        """Whole orders that a row of D = ``count`` tokens gets; 0 where masks do not pay four."""
        if self.num_orders is not None:
            return self.num_orders
        num_orders = self.num_masks_of(count) // count
        return num_orders if num_orders >= FEWEST_ORDERS else 0

    def most_passes(self, count: int) -> int:
        """The price of a row of D = ``count`` tokens, without what a target error may add."""
        return sum(map(self._most_passes_of_block, block_sizes(count, self.block_length)))

    def _most_passes_of_block(self, count: int) -> int:
        """The price of a block of ``count`` tokens, which may be the whole row.

        All orders begin with the mask of everything and end with one of a single token. So these are
        paid once, and the single tokens of the pseudo-log-likelihood are among them.
        """
        if self.takes_every_mask(count):
            return int(2**count - 1)
        num_orders = self.num_orders_of(count)
        if num_orders == 0:
            return self.num_masks_of(count) + (count if self.pseudo else 0)
        num_single = count if self.pseudo else min(num_orders, count)
        return 1 + num_orders * (count - 2) + num_single


class RowScore(NamedTuple):
    """What one row got; in nats, summed over its tokens. Rows of one text add up, field by field."""

    num_tokens: int
    num_passes: int
    log_score: float
    variance: float  # of log_score, over masks; nan where no two masks or orders differ
    squared_variance_per_degree: float  # variance² over its degrees of freedom (Satterthwaite)
    order_variance: float  # of log p_π, over orders; nan where no two differ
    squared_order_variance_per_degree: float
    pseudo_log_likelihood: float  # nan where it was not asked for
    # Bounds on log p_mix, the mixture of orders; nan where no two orders differ.
    mixture_lower: float = math.nan
    mixture_lower_variance: float = math.nan  # over orders
    mixture_upper: float = math.nan
    mixture_upper_variance: float = math.nan
    num_heavy_tailed: int = 0  # rows in which one order holds more than half of the probability


RowMasks = Bool[Tensor, "P L"]
RowValues = Float[Tensor, "P L"]
Dialogue = Generator[RowMasks, RowValues, Result]


def score_blocks(
    scorer: Scorer, blocks: Sequence[TextBlock], numbers: Int[Tensor, " R"], plans: Sequence[Plan]
) -> list[RowScore]:
    """The score of each of R blocks, of which many are whole rows.

    Args:
        scorer: says log q of their tokens.
        blocks: each of a row of tokens that the model takes whole.
        numbers: of the rows' texts, for messages, (R,).
        plans: what is asked of each block.
    """
    dialogues = []
    for block, plan in zip(blocks, plans, strict=True):
        dialogues.append(with_hidden(score_row(block.row, plan), block.hidden))
    return answer_dialogues(scorer, [block.row for block in blocks], numbers, dialogues)


def answer_dialogues(
    scorer: Scorer,
    rows: Sequence[Tokens],
    numbers: Int[Tensor, " R"],
    dialogues: Sequence[Dialogue[Result]],
) -> list[Result]:
    """What each of R rows' dialogues returns; rows of one length go through the model together.

    Args:
        scorer: says log q of their tokens.
        rows: each one row of tokens that the model takes whole.
        numbers: of the rows' texts, for messages, (R,).
        dialogues: of each row one, not begun.
    """
    results: dict[int, Result] = {}
    lengths = torch.tensor([row.ids.shape[1] for row in rows])
    for length in lengths.unique():
        masks = {}
        for index in (lengths == length).nonzero().flatten().tolist():
            masks[index] = next(dialogues[index])
        while masks:
            answers = _log_tokens(scorer, rows, numbers, masks)
            for index, answer in answers.items():
                try:
                    masks[index] = dialogues[index].send(answer)
                except StopIteration as end:
                    results[index] = end.value
                    del masks[index]
    return [results[index] for index in range(len(rows))]


def _log_tokens(
    scorer: Scorer,
    rows: Sequence[Tokens],
    numbers: Int[Tensor, " R"],
    masks: dict[int, RowMasks],
) -> dict[int, RowValues]:
    """log q of some rows of one length, each under masks of its own."""
    counts = [len(mask) for mask in masks.values()]
    repeated = [index for index, count in zip(masks, counts, strict=True) for _ in range(count)]
    values = scorer.log_tokens(
        torch.cat([rows[index].ids for index in repeated]),
        torch.cat(list(masks.values())),
        torch.cat([rows[index].types for index in repeated]),
        numbers=numbers[repeated],
    )
    return dict(zip(masks, values.split(counts), strict=True))


def score_row(row: Tokens, plan: Plan) -> Dialogue[RowScore]:
    """The score of one row, by the best of the ways that the plan pays for.

    Every mask, where there are not more: the score is exact. Else whole orders: no estimator
    measured in chapter 18 does better. A number of masks is spent on them if it holds four or more,
    as three degrees of freedom are enough for an error; else on one mask a stratum.
    """
    count = int(row.maskable.sum())
    generator = generator_of(row, plan.seed)
    if plan.takes_every_mask(count):
        return (yield from _score_exactly(row, plan))
    num_orders = plan.num_orders_of(count)
    if num_orders > 0:
        if plan.target_error is not None:
            num_orders = max(num_orders, FEWEST_ORDERS_TO_STOP)
        return (yield from _score_by_orders(row, plan, num_orders, generator))
    if plan.num_masks_of(count) == 1:
        return (yield from _score_by_one_mask(row, plan, generator))
    return (yield from _score_by_strata(row, plan, generator))


def generator_of(row: Tokens, seed: int) -> torch.Generator:
    """A row's draws follow from its tokens: not from its place among others."""
    text = f"{seed} {row.ids[0].tolist()}"
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


def _score_exactly(row: Tokens, plan: Plan) -> Dialogue[RowScore]:
    """E_π log p_π and its variance over orders, from all 2^D − 1 masks."""
    count = int(row.maskable.sum())
    hidden = subsets(count)[1:]
    asked = yield from ask(row, [hidden, _single_tokens(count, plan)])
    values, single = asked.values
    statistics = over_orders(values[:, None], subsets(count))
    log_mixture = statistics.log_mix[0].item()
    return RowScore(
        num_tokens=count,
        num_passes=asked.num_passes,
        log_score=statistics.mean[0].item(),
        variance=0.0,
        squared_variance_per_degree=0.0,
        order_variance=statistics.variance[0].item(),
        squared_order_variance_per_degree=0.0,
        pseudo_log_likelihood=_pseudo_log_likelihood(single, plan),
        mixture_lower=log_mixture,
        mixture_lower_variance=0.0,
        mixture_upper=log_mixture,
        mixture_upper_variance=0.0,
    )


def _score_by_orders(
    row: Tokens, plan: Plan, num_orders: int, generator: torch.Generator
) -> Dialogue[RowScore]:
    """The mean of log p_π over random orders; their spread is its error."""
    count = int(row.maskable.sum())
    hidden = masks_along_orders(num_orders, count, generator)
    # No order more, but the draw of one: further masks are then those of recorded runs.
    masks_along_orders(0, count, generator)
    asked = yield from ask(row, [hidden, _single_tokens(count, plan)])
    values, single = asked.values
    num_passes = asked.num_passes
    totals = sum_along_orders(values, hidden)
    most_orders = MOST_ROUNDS * plan.num_masks_of(count) // count
    has_error = _differ(hidden.unflatten(0, (num_orders, count)))
    while True:
        order_variance = totals.var().item() if has_error else math.nan
        variance = order_variance / len(totals)
        num_more = _num_more(len(totals), variance, most_orders, plan, count)
        if num_more <= 0:
            break
        more = masks_along_orders(num_more, count, generator)
        totals = torch.cat([totals, sum_along_orders((yield from _ask_all(row, more)), more)])
        num_passes += len(more)
    degrees = max(1, len(totals) - 1)  # of a single order the variance is nan, whatever its degrees
    score = RowScore(
        num_tokens=count,
        num_passes=num_passes,
        log_score=totals.mean().item(),
        variance=variance,
        squared_variance_per_degree=variance**2 / degrees,
        order_variance=order_variance,
        squared_order_variance_per_degree=order_variance**2 / degrees,
        pseudo_log_likelihood=_pseudo_log_likelihood(single, plan),
    )
    if not has_error or not totals.isfinite().all():
        return score
    bounds = mixture_bounds(totals[:, None])
    return score._replace(
        mixture_lower=bounds.lower.item(),
        mixture_lower_variance=bounds.lower_error.square().item(),
        mixture_upper=bounds.upper.item(),
        mixture_upper_variance=bounds.upper_error.square().item(),
        num_heavy_tailed=int(bounds.is_heavy_tailed),
    )


def _score_by_strata(row: Tokens, plan: Plan, generator: torch.Generator) -> Dialogue[RowScore]:
    """S(D), exactly, and D − 1 times the mean of S over the sizes 1..D − 1 from one mask a stratum."""
    count = int(row.maskable.sum())
    num_masks = plan.num_masks_of(count) - 1  # besides the one that hides everything
    num_strata = max(1, min(count - 1, num_masks // 2))
    everything = torch.ones(1, count, dtype=torch.bool)
    hidden = _masks_in_strata(num_masks // num_strata, num_strata, count, generator)
    asked = yield from ask(row, [everything, hidden, _single_tokens(count, plan)])
    alone, values, single = asked.values
    num_passes = asked.num_passes
    most_repeats = MOST_ROUNDS * num_masks // num_strata
    while True:
        area = area_by_strata(values, hidden, alone[0], num_strata)
        repeats = len(hidden) // num_strata
        num_more = _num_more(repeats, area.variance, most_repeats, plan, count)
        if num_more <= 0:
            break
        more = _masks_in_strata(num_more, num_strata, count, generator)
        values = torch.cat([values, (yield from _ask_all(row, more))])
        hidden = torch.cat([hidden, more])
        num_passes += len(more)
    return RowScore(
        num_tokens=count,
        num_passes=num_passes,
        log_score=area.value,
        variance=area.variance,
        squared_variance_per_degree=area.squared_variance_per_degree,
        order_variance=math.nan,
        squared_order_variance_per_degree=math.nan,
        pseudo_log_likelihood=_pseudo_log_likelihood(single, plan),
    )


def _score_by_one_mask(row: Tokens, plan: Plan, generator: torch.Generator) -> Dialogue[RowScore]:
    """D times the score of one mask whose size is uniform on 1..D: unbiased, without an error."""
    count = int(row.maskable.sum())
    size = 1 + torch.randint(count, (1,), generator=generator)
    hidden = from_ranks(sample_ranks(1, count, generator=generator), size)
    asked = yield from ask(row, [hidden, _single_tokens(count, plan)])
    values, single = asked.values
    return RowScore(
        num_tokens=count,
        num_passes=asked.num_passes,
        log_score=count * mask_score(values, hidden).item(),
        variance=math.nan,
        squared_variance_per_degree=math.nan,
        order_variance=math.nan,
        squared_order_variance_per_degree=math.nan,
        pseudo_log_likelihood=_pseudo_log_likelihood(single, plan),
    )


# -- asking -----------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """log q of the tokens of some sets of masks, and how many different masks they were."""

    values: list[Float[Tensor, "P D"]]
    num_passes: int


def ask(row: Tokens, sets: Sequence[Bool[Tensor, "_ D"]]) -> Generator[RowMasks, RowValues, Asked]:
    """Ask for several sets of masks at once, and for no mask twice.

    Orders begin with everything hidden and end with one token, so that sets have masks in common.
    """
    different, index = torch.cat(list(sets)).unique(dim=0, return_inverse=True)
    values = yield from _ask_all(row, different)
    return Asked(list(values[index].split([len(masks) for masks in sets])), len(different))


def _ask_all(
    row: Tokens, masks: Bool[Tensor, "P D"]
) -> Generator[RowMasks, RowValues, Float[Tensor, "P D"]]:
    """Ask for masks of the D maskable tokens of a row of L."""
    places = row.maskable[0].nonzero().flatten()
    nothing = row.maskable.new_zeros(len(masks), row.ids.shape[1])
    values = yield nothing.index_copy(1, places, masks)
    return values[:, places]


def _num_more(repeats: int, variance: float, most: int, plan: Plan, count: int) -> int:
    """How many repeats are missing for the target error of a row of ``count`` tokens; 0 for none."""
    if plan.target_error is None:
        return 0
    if math.isnan(variance):
        return repeats  # as many again: so far no two of them differ
    target_variance = (plan.target_error * count) ** 2
    if variance <= target_variance or repeats >= most:
        return 0
    return min(most, math.ceil(repeats * variance / target_variance)) - repeats


# -- masks --------------------------------------------------------------------------------------------


def masks_along_orders(
    num_orders: int, count: int, generator: torch.Generator
) -> Bool[Tensor, "P D"]:
    """Along each random order its D masks, of sizes 1..D."""
    ranks = sample_ranks(max(1, num_orders), count, generator=generator)[:num_orders]
    return from_ranks(ranks[:, None], torch.arange(1, count + 1)).flatten(0, 1)


def _masks_in_strata(
    repeats: int, num_strata: int, count: int, generator: torch.Generator
) -> Bool[Tensor, "P D"]:
    """For each repeat one mask a stratum; the strata cut the sizes 1..D − 1."""
    jitter = torch.rand(repeats, num_strata, generator=generator, dtype=torch.float64)
    level = (torch.arange(num_strata) + jitter) / num_strata
    sizes = ((level * (count - 1)).long() + 1).clamp(max=count - 1)
    ranks = sample_ranks(repeats * num_strata, count, generator=generator)
    return from_ranks(ranks, sizes.flatten())


def _single_tokens(count: int, plan: Plan) -> Bool[Tensor, "P D"]:
    """Each token hidden alone, for the pseudo-log-likelihood; none where it is not asked for."""
    return torch.eye(count, dtype=torch.bool)[: count if plan.pseudo else 0]


# -- estimates ----------------------------------------------------------------------------------------


def _pseudo_log_likelihood(values: Float[Tensor, "P D"], plan: Plan) -> float:
    return values.sum().item() if plan.pseudo else math.nan


def _differ(draws: Bool[Tensor, "S K D"]) -> bool:
    """Whether there are two draws that are not the same: without, nothing is known of their spread.

    Of three tokens, two orders are the same one time in six.
    """
    return bool((draws != draws[:1]).any())


def terms_along_orders(
    values: Float[Tensor, "*B P D"], hidden: Bool[Tensor, "*B P D"]
) -> Float[Tensor, "*B S D"]:
    """What each of D tokens adds to log p_π along S = P/D orders: log q of it when it is shown next.

    Args:
        values: log q of every hidden token, (..., P, D).
        hidden: the masks, (..., P, D); of each order those of sizes 1..D follow each other.

    Returns:
        Nats, (..., S, D).
    """
    steps = hidden.unflatten(-2, (-1, hidden.shape[-1]))
    smaller = pad(steps[..., :-1, :], (0, 0, 1, 0))  # the mask one size down; none of size 0
    shown_next = steps & ~smaller
    return (values.view(steps.shape) * shown_next).sum(dim=-2)


def sum_along_orders(
    values: Float[Tensor, "*B P D"], hidden: Bool[Tensor, "*B P D"]
) -> Float[Tensor, "*B S"]:
    """log p_π along S = P/D orders, nats, (..., S); see :func:`terms_along_orders`."""
    return terms_along_orders(values, hidden).sum(dim=-1)


def mean_terms(
    values: Float[Tensor, "subsets D"], hidden: Bool[Tensor, "subsets D"]
) -> Float[Tensor, " D"]:
    """What each of D tokens adds to the mean of log p_π over all D! orders.

    A random order passes through a given set of M hidden tokens, and shows a given one of them next,
    with probability (M − 1)! (D − M)! / D!.

    Args:
        values: log q of every hidden token, (2^D − 1, D).
        hidden: all sets but the empty one, (2^D − 1, D).

    Returns:
        Nats, (D,).
    """
    count = hidden.shape[1]
    size = hidden.sum(dim=1).tolist()
    weight = torch.tensor([1 / (m * math.comb(count, m)) for m in size], dtype=torch.float64)
    return weight @ (values * hidden)


class Area(NamedTuple):
    """An area in nats, its variance over masks, and what that has of degrees of freedom."""

    value: float
    variance: float
    squared_variance_per_degree: float


def area_by_strata(
    values: Float[Tensor, "P D"],
    hidden: Bool[Tensor, "P D"],
    alone: Float[Tensor, " D"],
    num_strata: int,
) -> Area:
    """Area from R repeats of one mask a stratum, less a control variate with a fitted slope.

    A mask's control variate is the mean of b_j = log q(x_j | nothing) over it, less that over the row.
    A mask's score less β times it has the same expectation whatever β is, as long as β does not see
    this mask: it is fitted to the other repeats, and is 1 where there are none. The R values of a
    stratum are then uncorrelated, but for the square of E β c, which is 0 without skewness; with
    their variance s_k², Σ_k s_k²/(R K²) is unbiased for the variance of the mean over K strata. R = 2
    is enough; it is nan from R = 1, and where all repeats happen to have the same masks.

    Args:
        values: log q of every hidden token, (P, D), P = R K.
        hidden: the masks, (P, D), for each repeat one a stratum.
        alone: b_j, (D,).
        num_strata: K.

    Returns:
        The area and its error. Degrees of freedom are Satterthwaite's, Σ_k a_k²/(R − 1) for the
        strata's shares a_k of the variance. The squares are too large on average, so that there are
        too few degrees and intervals err on the wide side.
    """
    sizes = hidden.sum(dim=1).double().view(-1, num_strata)
    score = mask_score(values, hidden).view(-1, num_strata)
    mean_alone = mask_score(alone.expand_as(values), hidden)
    control = (mean_alone - alone.mean()).view(-1, num_strata)
    adjusted = score - slopes_of_others(score, control, sizes) * control
    num_other_sizes = len(alone) - 1  # than D, whose score is the mean of b_j
    repeats = len(score)
    area = alone.mean() + num_other_sizes * adjusted.mean()
    if not _differ(hidden.unflatten(0, (repeats, num_strata))):
        return Area(area.item(), math.nan, math.nan)
    share = num_other_sizes**2 * adjusted.var(dim=0) / (repeats * num_strata**2)
    return Area(
        value=area.item(),
        variance=share.sum().item(),
        squared_variance_per_degree=(share.square().sum() / (repeats - 1)).item(),
    )


def slopes_of_others(
    score: Float[Tensor, "R K"], control: Float[Tensor, "R K"], sizes: Float[Tensor, "R K"]
) -> Float[Tensor, "R one"]:
    """β of each repeat, from the others: least squares beside a line in the size.

    Its prior is normal around 1, the slope where tokens do not depend on each other, with standard
    deviation ½: where the others say little, it stays there.
    """
    if len(score) == 1:
        return torch.ones_like(score[:, :1])
    rounding = _ROUNDING**2 * (score.square() + control.square()).mean()
    slopes = []
    for repeat in range(len(score)):
        others = torch.arange(len(score)) != repeat
        size = _centered(sizes[others])
        scale = size.square().sum().clamp_min(_TINY)
        y = _centered(score[others])
        c = _centered(control[others])
        # What a line in the size explains is no business of the control variate. Of two points it
        # explains all: what is left is rounding, which must weigh nothing beside the prior.
        y = y - (y @ size) / scale * size
        c = c - (c @ size) / scale * size
        # The prior weighs as much as the noise, here around the slope 1, over its variance ¼.
        prior = 4 * (y - c).square().mean() + rounding + _TINY
        slopes.append((c @ y + prior) / (c @ c + prior))
    return torch.stack(slopes)[:, None]


def _centered(values: Tensor) -> Tensor:
    values = values.flatten()
    return values - values.mean()
