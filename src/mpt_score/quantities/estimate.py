"""The log-score of rows of tokens from few masks, with an honest error (note B).

The score of a row of D tokens is the area under its curve, Σ_M S(M), which is the mean of log p_π over
the orders π. There are four ways to it, from the dearest to the cheapest, and :meth:`Plan.way`
chooses: every mask, whole orders, one mask a stratum of sizes, or a single mask.

Some k places of a row given the rest, as an answer's, are scored along orders of these places: what
follows holds for them with k for D.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.masks import sample_ranks, subsets
from mpt_lml.orders import mixture_bounds
from mpt_lml.scores import mask_score, over_orders
from mpt_score.rows.reading import Later, block_sizes
from mpt_score.rows.requests import (
    Request,
    Row,
    Rows,
    each_alone,
    every_mask,
    masks_along_orders,
    masks_in_strata,
    orders_differ,
    pays_every_mask,
)
from mpt_score.rows.scheduler import (
    Answers,
    Batch,
    BatchScheduler,
    batch_of,
    bucket_by_shape,
    groups_for_memory,
)

FEWEST_ORDERS = 4
"""The fewest orders that masks are spent on; from fewer, Student's intervals are wider than strata's."""
FEWEST_ORDERS_TO_STOP = 2 * FEWEST_ORDERS
"""The fewest orders with a target error; with eight the error is less often small by chance."""
ROUNDS_AT_ONCE = 8
"""The rounds of masks that memory is to hold together where there is a target error."""
MOST_ROUNDS = 64
"""The most masks for a target error, as a multiple of those that are paid for without one."""
_TINY = 1e-30
_ROUNDING = 1e-12
"""The largest share of a number that rounding leaves where it is subtracted from its equal."""


Way = Literal["every mask", "whole orders", "one mask", "one mask a stratum"]
"""How a row is scored."""


class Plan(NamedTuple):
    """What is asked of every row; see :func:`mpt_score.sentences`. One of the first two is None."""

    num_orders: int | None
    num_masks: int | None
    pseudo: bool = False
    target_error: float | None = None
    seed: int = 0
    block_length: int | None = None
    later: Later = "hidden"

    def of_block(self, count_of_block: int, count_of_row: int) -> "Plan":
        """What is asked of a block of a row of D = ``count_of_row`` tokens.

        The variances of a row's blocks add up. So that together they meet the target error of the row,
        t D, each may have a variance of t² D nats² for each of its tokens.
        """
        if self.target_error is None:
            return self
        share = count_of_block / count_of_row
        return self._replace(target_error=self.target_error / math.sqrt(share))

    def num_masks_of(self, count: int) -> int:
        """The masks that are paid for the score of D = ``count`` tokens."""
        if self.num_orders is not None:
            return self.num_orders * count
        assert self.num_masks is not None
        return self.num_masks

    def way(self, count: int) -> Way:
        """The best way to the score of D = ``count`` tokens that is paid for.

        Every mask, where there are not more: the score is exact. Else whole orders: no estimator
        measured in note B does better. A number of masks is spent on them if it holds four or more,
        as three degrees of freedom are enough for an error; else on one mask a stratum. A single mask
        has a random size.
        """
        if pays_every_mask(self.num_masks_of(count), count):
            return "every mask"
        if self.num_orders_of(count) > 0:
            return "whole orders"
        if self.num_masks_of(count) == 1:
            return "one mask"
        return "one mask a stratum"

    def num_orders_of(self, count: int) -> int:
        """Whole orders that a row of D = ``count`` tokens gets; 0 where masks do not pay four."""
        if self.num_orders is not None:
            return self.num_orders
        num_orders = self.num_masks_of(count) // count
        return num_orders if num_orders >= FEWEST_ORDERS else 0

    def most_masks(self, count: int) -> int:
        """Masks that a row or block of D = ``count`` tokens is asked about at a time, about."""
        rounds = 1 if self.target_error is None else ROUNDS_AT_ONCE
        return rounds * self._most_passes_of_block(count)

    def most_passes(self, count: int) -> int:
        """The price of a row of D = ``count`` tokens, without what a target error may add."""
        return sum(map(self._most_passes_of_block, block_sizes(count, self.block_length)))

    def _most_passes_of_block(self, count: int) -> int:
        """The price of a block of ``count`` tokens, which may be the whole row.

        All orders begin with the mask of everything and end with one of a single token. So these are
        paid once, and the single tokens of the pseudo-log-likelihood are among them.
        """
        way = self.way(count)
        if way == "every mask":
            return int(2**count - 1)
        if way == "whole orders":
            num_orders = self.num_orders_of(count)
            num_single = count if self.pseudo else min(num_orders, count)
            return 1 + num_orders * (count - 2) + num_single
        return self.num_masks_of(count) + (count if self.pseudo else 0)


class RowScores(NamedTuple):
    """What B rows got, each field (B,); in nats, summed over a row's tokens."""

    num_passes: Int[Tensor, " B"]
    log_score: Float[Tensor, " B"]
    variance: Float[Tensor, " B"]
    """Of ``log_score``, over masks; nan where no two masks or orders differ."""
    squared_variance_per_degree: Float[Tensor, " B"]
    """variance² over its degrees of freedom (Satterthwaite)."""
    order_variance: Float[Tensor, " B"]
    """Of log p_π, over orders; nan where no two differ."""
    squared_order_variance_per_degree: Float[Tensor, " B"]
    pseudo_log_likelihood: Float[Tensor, " B"]
    """nan where it was not asked for."""
    along_orders: Float[Tensor, "B S"]
    """log p_π along each of S orders; where all orders are in it, their mean S times."""
    log_mixture: Float[Tensor, " B"]
    """log of the mean of p_π over all orders, where all are in it; else nan."""


class Bounds(NamedTuple):
    """Bounds on log p_mix, the mixture of orders, each (B,); nan where no two orders differ."""

    lower: Float[Tensor, " B"]
    lower_variance: Float[Tensor, " B"]
    upper: Float[Tensor, " B"]
    upper_variance: Float[Tensor, " B"]
    is_heavy_tailed: Bool[Tensor, " B"]


def score_rows(
    scheduler: BatchScheduler, rows: Sequence[Row], plan: Plan, plans: Sequence[Plan]
) -> Iterator[tuple[Rows, RowScores]]:
    """The scores of rows, batch by batch, each by :meth:`Plan.way`.

    Args:
        scheduler: asks about them.
        rows: of any shape.
        plan: of the call.
        plans: of each row; they have the same orders and masks, and a target error of their own.
    """
    if plan.target_error is None:
        for answers in scheduler.ask(
            rows, lambda batch: _first_request(batch.rows, plan), plan.most_masks
        ):
            yield answers.batch.rows, _score_by_way(_Seen.of(answers, plan), plan)
        return
    # Each row alone in its batch, which is asked about until the error is small enough.
    numbers = [number for bucket in bucket_by_shape(rows, plan.most_masks) for number in bucket]
    batches = [batch_of([number], [rows[number]], plan.most_masks) for number in numbers]
    for group in groups_for_memory(batches):
        yield from _score_to_target(scheduler, group, plans)


def _score_to_target(
    scheduler: BatchScheduler, batches: list[Batch], plans: Sequence[Plan]
) -> list[tuple[Rows, RowScores]]:
    """The scores of single rows, each of which is asked about until it meets its target error."""
    streams = {batch.numbers[0]: batch.rows.generators() for batch in batches}
    requests: dict[int, Request] = {}
    for batch in batches:
        number = batch.numbers[0]
        requests[number] = _first_request(batch.rows, plans[number], streams[number])
    seen: dict[int, _Seen] = {}
    scores: dict[int, RowScores] = {}
    pending = batches
    while pending:
        for answers in scheduler.ask_group(pending, lambda batch: requests[batch.numbers[0]]):
            number = answers.batch.numbers[0]
            plan = plans[number]
            if number in seen:
                seen[number] = seen[number].with_more(answers)
            else:
                seen[number] = _Seen.of(answers, plan)
            scores[number] = _score_by_way(seen[number], plan)
            more = _more(seen[number], scores[number], plan, streams[number])
            if more is None:
                del requests[number]
            else:
                requests[number] = more
        pending = [batch for batch in pending if batch.numbers[0] in requests]
    return [(batch.rows, scores[batch.numbers[0]]) for batch in batches]


def _first_request(
    rows: Rows, plan: Plan, generators: list[torch.Generator] | None = None
) -> Request:
    """The masks with which the score of rows begins, and behind them each token alone.

    Args:
        rows: of one shape.
        plan: what is asked of them.
        generators: the source of each row's masks, where more of them may be drawn.
    """
    count = rows.num_places
    generators = generators or rows.generators()
    way = plan.way(count)
    if way == "every mask":
        masks = every_mask(rows)
    elif way == "whole orders":
        num_orders = plan.num_orders_of(count)
        if plan.target_error is not None:
            num_orders = max(num_orders, FEWEST_ORDERS_TO_STOP)
        masks = masks_along_orders(num_orders, count, generators)
        if plan.target_error is not None:
            # No order more, but the draw of one: further masks are then those of recorded runs.
            masks_along_orders(1, count, generators)
    elif way == "one mask":
        hidden = _masks_of_random_size(count, generators)
        masks = Request(hidden, hidden)
    else:
        num_strata, repeats = _strata(plan, count)
        everything = torch.ones(len(rows), 1, count, dtype=torch.bool)
        of_strata = masks_in_strata(repeats, num_strata, count, generators)
        hidden = torch.cat([everything, of_strata], dim=1)
        masks = Request(hidden, hidden)
    return Request.joined([masks, each_alone(rows)]) if plan.pseudo else masks


def _strata(plan: Plan, count: int) -> tuple[int, int]:
    """Into how many strata the sizes are cut, and how many masks each has at first."""
    num_masks = plan.num_masks_of(count) - 1  # besides the one that hides everything
    num_strata = max(1, min(count - 1, num_masks // 2))
    return num_strata, num_masks // num_strata


def _masks_of_random_size(count: int, generators: list[torch.Generator]) -> Bool[Tensor, "B one D"]:
    """For each row one mask whose size is uniform on 1..D."""
    masks = []
    for generator in generators:
        size = 1 + torch.randint(count, (1,), generator=generator)
        masks.append(sample_ranks(1, count, generator=generator) < size)
    return torch.stack(masks)


class _Seen(NamedTuple):
    """The masks of B rows of one shape so far, and what they said."""

    rows: Rows
    masks: Request
    values: Float[Tensor, "B P D"]
    pseudo_log_likelihood: Float[Tensor, " B"]
    """nan where it was not asked for."""
    num_passes: Int[Tensor, " B"]

    @classmethod
    def of(cls, answers: Answers, plan: Plan) -> "_Seen":
        """The answers to a first request."""
        rows = answers.batch.rows
        values = answers.values
        pseudo = values.new_full((len(rows),), math.nan)
        num_masks = values.shape[1]
        if plan.pseudo:
            num_masks -= rows.num_places
            pseudo = values[:, num_masks:].sum(dim=(1, 2))
        masks = answers.request.first(num_masks)
        return cls(rows, masks, values[:, :num_masks], pseudo, answers.num_passes)

    def with_more(self, answers: Answers) -> "_Seen":
        """The same with the answers to a further request."""
        return self._replace(
            masks=Request.joined([self.masks, answers.request]),
            values=torch.cat([self.values, answers.values], dim=1),
            num_passes=self.num_passes + answers.num_passes,
        )


def _more(
    seen: _Seen, scores: RowScores, plan: Plan, generators: list[torch.Generator]
) -> Request | None:
    """Further masks of a row whose error is above the target; None where it is not."""
    count = seen.rows.num_places
    num_masks = seen.masks.hidden.shape[1]
    way = plan.way(count)
    if way == "every mask":
        return None
    if way == "whole orders":
        most_orders = MOST_ROUNDS * plan.num_masks_of(count) // count
        num_more = _num_more(num_masks // count, scores.variance, most_orders, plan, count)
        return masks_along_orders(num_more, count, generators) if num_more > 0 else None
    num_strata, _ = _strata(plan, count)
    repeats = (num_masks - 1) // num_strata
    most_repeats = MOST_ROUNDS * (plan.num_masks_of(count) - 1) // num_strata
    num_more = _num_more(repeats, scores.variance, most_repeats, plan, count)
    if num_more <= 0:
        return None
    hidden = masks_in_strata(num_more, num_strata, count, generators)
    return Request(hidden, hidden)


def _score_by_way(seen: _Seen, plan: Plan) -> RowScores:
    """The scores by the way that the plan pays for."""
    count = seen.rows.num_places
    way = plan.way(count)
    if way == "every mask":
        return _score_exactly(seen, plan)
    if way == "whole orders":
        return _score_by_orders(seen)
    if way == "one mask":
        return _score_by_one_mask(seen)
    return _score_by_strata(seen, plan)


def _score_exactly(seen: _Seen, plan: Plan) -> RowScores:
    """E_π log p_π and its variance over orders, from all 2^D − 1 masks."""
    statistics = over_orders(seen.values.transpose(0, 1), subsets(seen.rows.num_places))
    nothing = torch.zeros_like(statistics.mean)
    return RowScores(
        num_passes=seen.num_passes,
        log_score=statistics.mean,
        variance=nothing,
        squared_variance_per_degree=nothing,
        order_variance=statistics.variance,
        squared_order_variance_per_degree=nothing,
        pseudo_log_likelihood=seen.pseudo_log_likelihood,
        along_orders=statistics.mean[:, None].repeat(1, plan.num_orders or 1),
        log_mixture=statistics.log_mix,
    )


def _score_by_orders(seen: _Seen) -> RowScores:
    """The mean of log p_π over random orders; their spread is its error."""
    totals = along_orders(seen.values, seen.masks).sum(dim=2)
    has_error = orders_differ(seen.masks.hidden)  # which one order alone does not
    degrees = max(1, totals.shape[1] - 1)  # of a single order the variance is nan in any case
    correction = min(1, totals.shape[1] - 1)
    order_variance = totals.var(dim=1, correction=correction).where(has_error, math.nan)
    variance = order_variance / totals.shape[1]
    return RowScores(
        num_passes=seen.num_passes,
        log_score=totals.mean(dim=1),
        variance=variance,
        squared_variance_per_degree=variance**2 / degrees,
        order_variance=order_variance,
        squared_order_variance_per_degree=order_variance**2 / degrees,
        pseudo_log_likelihood=seen.pseudo_log_likelihood,
        along_orders=totals,
        log_mixture=torch.full_like(variance, math.nan),
    )


def _score_by_strata(seen: _Seen, plan: Plan) -> RowScores:
    """S(D), exactly, and D − 1 times the mean of S over the sizes 1..D − 1 from one mask a stratum."""
    num_strata, _ = _strata(plan, seen.rows.num_places)
    alone = seen.values[:, 0]
    area = areas_by_strata(seen.values[:, 1:], seen.masks.hidden[:, 1:], alone, num_strata)
    return _without_orders(seen, area)


def _score_by_one_mask(seen: _Seen) -> RowScores:
    """D times the score of one mask whose size is uniform on 1..D: unbiased, without an error."""
    score = seen.rows.num_places * mask_score(seen.values[:, 0], seen.masks.hidden[:, 0])
    not_known = torch.full_like(score, math.nan)
    return _without_orders(seen, Areas(score, not_known, not_known))


def _without_orders(seen: _Seen, area: "Areas") -> RowScores:
    """The scores of rows that no whole order was asked about."""
    not_known = torch.full_like(area.value, math.nan)
    return RowScores(
        num_passes=seen.num_passes,
        log_score=area.value,
        variance=area.variance,
        squared_variance_per_degree=area.squared_variance_per_degree,
        order_variance=not_known,
        squared_order_variance_per_degree=not_known,
        pseudo_log_likelihood=seen.pseudo_log_likelihood,
        along_orders=not_known[:, None][:, :0],
        log_mixture=not_known,
    )


def bounds_of(scores: RowScores) -> Bounds:
    """Bounds on the mixture of orders of B rows, or the mixture itself where all orders are in it."""
    size = len(scores.log_score)
    lower, lower_variance, upper, upper_variance = torch.full((4, size), math.nan).double()
    is_heavy_tailed = torch.zeros(size, dtype=torch.bool)
    is_exact = ~scores.log_mixture.isnan()
    lower[is_exact] = scores.log_mixture[is_exact]
    lower_variance[is_exact] = 0.0
    upper[is_exact] = scores.log_mixture[is_exact]
    upper_variance[is_exact] = 0.0
    has_bounds = ~is_exact & ~scores.order_variance.isnan()
    if has_bounds.any():
        bounds = mixture_bounds(scores.along_orders[has_bounds].T)
        lower[has_bounds] = bounds.lower
        lower_variance[has_bounds] = bounds.lower_error.square()
        upper[has_bounds] = bounds.upper
        upper_variance[has_bounds] = bounds.upper_error.square()
        is_heavy_tailed[has_bounds] = bounds.is_heavy_tailed
    return Bounds(lower, lower_variance, upper, upper_variance, is_heavy_tailed)


def _num_more(repeats: int, variance: Tensor, most: int, plan: Plan, count: int) -> int:
    """How many repeats are missing for the target error of one row of ``count`` tokens."""
    if plan.target_error is None or repeats >= most:
        return 0
    if variance.isnan():
        return repeats  # as many again: so far no two of them differ
    target = plan.target_error * count
    target_variance = target * target  # of extreme targets 0 or infinite, as ** would not be
    if variance <= target_variance:
        return 0
    if repeats * variance.item() >= most * target_variance:
        return most - repeats
    return math.ceil(repeats * variance.item() / target_variance) - repeats


# -- estimates ----------------------------------------------------------------------------------------


def along_orders(values: Float[Tensor, "B P D"], masks: Request) -> Float[Tensor, "B S D"]:
    """What each of D tokens adds to log p_π along S = P/D orders: log q of it when it is shown next.

    Args:
        values: log q, 0 where not wanted.
        masks: of each order those of sizes 1..D follow each other.

    Returns:
        Nats, (B, S, D).
    """
    count = masks.wanted.shape[2]
    return values.where(masks.wanted, 0.0).unflatten(1, (-1, count)).sum(dim=2)


def mean_terms(
    values: Float[Tensor, "B subsets D"], hidden: Bool[Tensor, "B subsets D"]
) -> Float[Tensor, "B D"]:
    """What each of D tokens adds to the mean of log p_π over all D! orders.

    A random order passes through a given set of M hidden tokens, and shows a given one of them next,
    with probability (M − 1)! (D − M)! / D!.

    Args:
        values: log q of every hidden token.
        hidden: all sets but the empty one.

    Returns:
        Nats, (B, D).
    """
    count = hidden.shape[2]
    size = hidden[0].sum(dim=1).tolist()
    weight = torch.tensor([1 / (m * math.comb(count, m)) for m in size], dtype=torch.float64)
    return weight @ values.where(hidden, 0.0)


class Areas(NamedTuple):
    """Areas of B rows in nats, their variances over masks, and what these have of degrees of freedom."""

    value: Float[Tensor, " B"]
    variance: Float[Tensor, " B"]
    squared_variance_per_degree: Float[Tensor, " B"]


def areas_by_strata(
    values: Float[Tensor, "B P D"],
    hidden: Bool[Tensor, "B P D"],
    alone: Float[Tensor, "B D"],
    num_strata: int,
) -> Areas:
    """Area from R repeats of one mask a stratum, less a control variate with a fitted slope.

    A mask's control variate is the mean of b_j = log q(x_j | nothing) over it, less that over the row.
    A mask's score less β times it has the same expectation whatever β is, as long as β does not see
    this mask: it is fitted to the other repeats, and is 1 where there are none. The R values of a
    stratum are then uncorrelated, but for the square of E β c, which is 0 without skewness; with
    their variance s_k², Σ_k s_k²/(R K²) is unbiased for the variance of the mean over K strata. R = 2
    is enough; it is nan from R = 1, and where all repeats happen to have the same masks.

    Args:
        values: log q of every hidden token, P = R K.
        hidden: the masks, for each repeat one a stratum.
        alone: b_j.
        num_strata: K.

    Returns:
        The areas and their errors. Degrees of freedom are Satterthwaite's, Σ_k a_k²/(R − 1) for the
        strata's shares a_k of the variance. The squares are too large on average, so that there are
        too few degrees and intervals err on the wide side.
    """
    shape = (len(values), -1, num_strata)
    sizes = hidden.sum(dim=2).double().view(shape)
    score = (values.where(hidden, 0.0).sum(dim=2) / hidden.sum(dim=2)).view(shape)
    alone_of_masks = alone[:, None].expand_as(values).where(hidden, 0.0)
    mean_alone = alone_of_masks.sum(dim=2) / hidden.sum(dim=2)
    control = mean_alone.view(shape) - alone.mean(dim=1)[:, None, None]
    adjusted = score - slopes_of_others(score, control, sizes) * control
    num_other_sizes = alone.shape[1] - 1  # than D, whose score is the mean of b_j
    repeats = score.shape[1]
    area = alone.mean(dim=1) + num_other_sizes * adjusted.mean(dim=(1, 2))
    of_repeats = hidden.unflatten(1, (repeats, num_strata))
    differ = (of_repeats != of_repeats[:, :1]).flatten(1).any(dim=1)
    share = torch.full((len(values), num_strata), math.nan, dtype=torch.float64)
    if repeats > 1:
        share = num_other_sizes**2 * adjusted.var(dim=1) / (repeats * num_strata**2)
    share = share.where(differ[:, None], math.nan)
    return Areas(
        value=area,
        variance=share.sum(dim=1),
        squared_variance_per_degree=share.square().sum(dim=1) / max(1, repeats - 1),
    )


def slopes_of_others(
    score: Float[Tensor, "B R K"], control: Float[Tensor, "B R K"], sizes: Float[Tensor, "B R K"]
) -> Float[Tensor, "B R one"]:
    """β of each repeat, from the others: least squares beside a line in the size.

    Its prior is normal around 1, the slope where tokens do not depend on each other, with standard
    deviation ½: where the others say little, it stays there.
    """
    repeats = score.shape[1]
    if repeats == 1:
        return torch.ones_like(score[..., :1])
    rounding = _ROUNDING**2 * (score.square() + control.square()).mean(dim=(1, 2))
    slopes = []
    for repeat in range(repeats):
        others = torch.arange(repeats) != repeat
        size = _centered(sizes[:, others])
        scale = size.square().sum(dim=1, keepdim=True).clamp_min(_TINY)
        y = _centered(score[:, others])
        c = _centered(control[:, others])
        # What a line in the size explains is no business of the control variate. Of two points it
        # explains all: what is left is rounding, which must weigh nothing beside the prior.
        y = y - (y * size).sum(dim=1, keepdim=True) / scale * size
        c = c - (c * size).sum(dim=1, keepdim=True) / scale * size
        # The prior weighs as much as the noise, here around the slope 1, over its variance ¼.
        prior = 4 * (y - c).square().mean(dim=1) + rounding + _TINY
        slopes.append(((c * y).sum(dim=1) + prior) / (c.square().sum(dim=1) + prior))
    return torch.stack(slopes, dim=1)[..., None]


def _centered(values: Float[Tensor, "B R K"]) -> Float[Tensor, "B RK"]:
    values = values.flatten(1)
    return values - values.mean(dim=1, keepdim=True)
