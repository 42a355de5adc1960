"""The log-score of one row of tokens from few masks, with an honest error.

Where four whole orders of D masks fit the budget, their mean is the score and their spread its error:
no estimator measured in chapter 18 does better. Otherwise the area Σ_M S(M) is S(D), which one pass
with everything hidden gives, plus D − 1 times the mean of S over the sizes 1..D − 1. These are cut
into K strata, and R masks take a random size from each. A mask's score less β times its control
variate (the mean of b_j = log q(x_j | nothing) over the mask, less that over the row) has the same
expectation whatever β is, as long as β does not see this mask: it is fitted to the other repeats, and
drawn towards 1 where they say little. The R values of a stratum are then uncorrelated, but for the
square of E β c, which is 0 without skewness; with their variance s_k², Σ_k s_k²/(R K²) is unbiased
for the variance of the mean. R = 2 is enough.
"""

import hashlib
import math
from collections.abc import Generator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from mpt_lml.masks import from_ranks, sample_ranks, subsets
from mpt_lml.scores import mask_score, over_orders
from mpt_score.tokens import Tokens

FEWEST_ORDERS = 4
"""For an error of three degrees of freedom; with fewer, Student's intervals are wider than strata's."""
MOST_ROUNDS = 64
"""Most masks for a target error, as a multiple of those of the first round."""
FIELDS = ("tokens", "windows", "passes", "score", "variance", "fourth", "orders", "pseudo")


class Plan(NamedTuple):
    """What is asked of every row; see :func:`mpt_score.sentences`."""

    num_masks: int
    num_orders: int
    pseudo: bool
    error: float | None
    seed: int


def one_row(row: Tokens, plan: Plan) -> Generator[Tensor, Tensor, list[float]]:
    """Yields masks (P, L) of ``row``, is sent log q (P, L) of their tokens, returns ``FIELDS``."""
    said = f"{plan.seed} {row.ids[0].tolist()}"
    seed = int.from_bytes(hashlib.sha256(said.encode()).digest()[:7])
    generator = torch.Generator().manual_seed(seed)
    places = row.maskable[0].nonzero().flatten()
    count = len(places)
    exact = count <= 16 and 2**count - 1 <= plan.num_masks
    fitting = plan.num_masks // count + plan.num_orders
    whole = not exact and plan.num_orders > 0 and fitting >= FEWEST_ORDERS
    strata = max(1, min(count - 1, plan.num_masks // 2))
    if plan.error is not None:  # to stop early by chance is less likely with eight
        fitting = max(fitting, 2 * FEWEST_ORDERS)
    size, repeats = (count, fitting) if whole else (strata, plan.num_masks // strata)

    def along(num_orders: int) -> Bool[Tensor, "P D"]:
        ranks = sample_ranks(max(1, num_orders), count, generator=generator)[:num_orders]
        return from_ranks(ranks[:, None], torch.arange(1, count + 1)).flatten(0, 1)

    def draw(repeats: int) -> Bool[Tensor, "P D"]:
        """Whole orders, or for each repeat one mask a stratum, of sizes 1..D − 1."""
        if whole:
            return along(repeats)
        jitter = torch.rand(repeats, strata, generator=generator, dtype=torch.float64)
        level = (torch.arange(strata) + jitter) / strata
        sizes = ((level * (count - 1)).long() + 1).clamp(max=count - 1)
        ranks = sample_ranks(repeats * strata, count, generator=generator)
        return from_ranks(ranks, sizes.flatten())

    def padded(masks: Bool[Tensor, "P D"]) -> Bool[Tensor, "P L"]:
        return row.maskable.new_zeros(len(masks), row.ids.shape[1]).index_copy(1, places, masks)

    hidden = subsets(count)[1:] if exact else draw(repeats)
    orders = along(plan.num_orders if not exact and not whole else 0)
    single = torch.eye(count, dtype=torch.bool)[: count if plan.pseudo else 0]
    together = [torch.ones(1, count, dtype=torch.bool), hidden, orders, single]
    # Orders begin with everything hidden and end with one token: no mask is asked for twice.
    masks, where = torch.cat(together).unique(dim=0, return_inverse=True)
    values, passes = (yield padded(masks))[:, places][where], len(masks)
    alone, found, totals, each = values.split([len(mask) for mask in together])
    pseudo = each.sum().item() if plan.pseudo else math.nan
    if exact:
        statistics = over_orders(found[:, None], subsets(count))
        area, spread = statistics.mean.item(), statistics.variance.item()
        return [count, 1, passes, area, 0.0, 0.0, spread, pseudo]
    totals = over_steps(totals, orders)
    target, most = (plan.error or math.inf) * count, MOST_ROUNDS * plan.num_masks // size
    while True:
        if whole:
            totals = over_steps(found, hidden)
            area, variance = totals.mean().item(), totals.var().item() / len(totals)
            fourth = variance**2 / (len(totals) - 1)
        else:
            area, variance, fourth = _area(found, hidden, alone[0], strata)
        repeats = len(hidden) // size
        if variance <= target**2 or repeats >= most:
            spread = totals.var().item() if len(totals) > 1 else math.nan
            return [count, 1, passes, area, variance, fourth, spread, pseudo]
        more = draw(min(most, math.ceil(repeats * variance / target**2)) - repeats)
        found = torch.cat([found, (yield padded(more))[:, places]])
        hidden, passes = torch.cat([hidden, more]), passes + len(more)


def over_steps(
    values: Float[Tensor, "*B P D"], hidden: Bool[Tensor, "*B P D"]
) -> Float[Tensor, "*B S"]:
    """log p_σ along S = P/D orders, whose masks of sizes 1..D follow each other in ``hidden``."""
    steps = hidden.unflatten(-2, (-1, hidden.shape[-1]))
    shown_next = steps & ~pad(steps[..., :-1, :], (0, 0, 1, 0))
    return (values.view(steps.shape) * shown_next).sum(dim=(-2, -1))


def _area(
    values: Float[Tensor, "P D"],
    hidden: Bool[Tensor, "P D"],
    alone: Float[Tensor, " D"],
    strata: int,
) -> tuple[float, float, float]:
    """Area, its variance over masks, and what the variance squared is to be divided by for degrees.

    Satterthwaite's Σ_k a_k²/(R − 1) for the strata's shares a_k. The squares are too large on
    average, so that there are too few degrees and intervals err on the wide side.
    """
    sizes = hidden.sum(dim=1).double()
    score = mask_score(values, hidden).view(-1, strata)
    control = (mask_score(alone.expand_as(values), hidden) - alone.mean()).view(-1, strata)
    adjusted = score - _slopes(score, control, sizes.view(-1, strata)) * control
    rest, repeats = len(alone) - 1, len(score)
    area = alone.mean() + rest * adjusted.mean()
    share = rest**2 * adjusted.var(dim=0) / (repeats * strata**2)
    return area.item(), share.sum().item(), (share.square().sum() / (repeats - 1)).item()


def _slopes(
    score: Float[Tensor, "R K"], control: Float[Tensor, "R K"], sizes: Float[Tensor, "R K"]
) -> Float[Tensor, "R one"]:
    """β of each repeat, from the others: least squares beside a line in the size.

    Its prior is normal around 1, the slope where tokens do not depend on each other, with standard
    deviation ½.
    """
    found = []
    for own in range(len(score)):
        others = torch.arange(len(score)) != own
        y, c, size = (each[others].flatten() for each in (score, control, sizes))
        y, c, size = (each - each.mean() for each in (y, c, size))
        scale = size.square().sum().clamp_min(1e-30)
        y, c = (each - (each @ size) / scale * size for each in (y, c))
        prior = 4 * (y - c).square().mean() + 1e-30
        found.append((c @ y + prior) / (c @ c + prior))
    return torch.stack(found)[:, None]


def windows(row: Tokens, longest: int | None, special: Bool[Tensor, " L"]) -> list[Tokens]:
    """``row`` (1, L), cut into nearly equal windows of ``longest`` tokens if need be.

    Each is framed by the ``special`` tokens at the ends of the row; one without a token to mask is
    left out.
    """
    length = row.ids.shape[1]
    if longest is None or length <= longest:
        return [row]
    front = int(special.long().cumprod(0).sum())
    back = int(special.flip(0).long().cumprod(0).sum())
    body = torch.arange(front, length - back)
    room = max(1, longest - front - back)
    found = []
    for part in body.tensor_split(math.ceil(len(body) / room)):
        at = torch.cat([torch.arange(front), part, torch.arange(length - back, length)])
        if row.maskable[0, at].any():
            ids, types, maskable = row.ids[:, at], row.types[:, at], row.maskable[:, at]
            found.append(Tokens(ids, types, maskable, torch.tensor([len(at)])))
    return found
