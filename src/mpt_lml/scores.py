"""Reductions over masked positions: the one place that divides by M, and means over orders."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.spec import require, require_mask

__all__ = ["mask_score", "mean_by_size"]


def mask_score(
    log_conditional: Float[Tensor, "... D"], mask: Bool[Tensor, "... D"]
) -> Float[Tensor, "..."]:
    """(1/M) Σ_{j∈A} log p(x_j | x_R), the score of a mask A, in nats a coordinate.

    With as many axes as ``mask``, such as (P, D) averaged over the data or (B, D) with one mask a
    datum, every row has its own mask. With one axis more, (P, N, D), every mask meets all data: (P, N).
    Raises ``ValueError`` for a mask that hides nothing: it has no score.

    >>> mask_score(torch.tensor([[-1.0, -3.0, 0.0]]), torch.tensor([[True, True, False]]))
    tensor([-2.])
    """
    require(locals(), "log_conditional D ..., bool mask P ...", finite=False)
    require_mask(mask)
    if log_conditional.ndim > mask.ndim:
        mask = mask[..., None, :]
    require(locals(), "log_conditional ... D, bool mask ... D", finite=False)
    return log_conditional.where(mask, 0.0).sum(dim=-1) / mask.sum(dim=-1)


def mean_by_size(
    values: Float[Tensor, "P *rest"], sizes: Int[Tensor, " P"], num_features: int
) -> Float[Tensor, "L *rest"]:
    """Mean of ``values`` over all masks of size 0, ..., D, shape (D + 1, ...); NaN where none is.

    >>> mean_by_size(torch.tensor([5.0, 1.0, 3.0]), torch.tensor([0, 1, 1]), 1)
    tensor([5., 2.])
    """
    require(locals(), "values P ..., int sizes P, num_features 1..", finite=False)
    if sizes.min() < 0 or sizes.max() > num_features:
        raise ValueError(f"sizes must lie in 0..{num_features}, got {sizes.tolist()}.")
    empty = values.new_zeros(num_features + 1, *values.shape[1:])
    number = torch.bincount(sizes, minlength=num_features + 1)
    rows = sizes.view(-1, *[1] * (values.ndim - 1)).expand_as(values)
    return empty.scatter_add(0, rows, values) / number.view(-1, *[1] * (values.ndim - 1))


def over_orders(
    values: Float[Tensor, "subsets N D"], mask: Bool[Tensor, "P D"]
) -> Float[Tensor, "5 N"]:
    """Mean, variance, log of the mean exponential, least and greatest of Σ_j v over all D! orders.

    ``mask`` are the 2^D subsets as :func:`mpt_lml.masks.subsets` numbers them; ``values`` say of every j
    in each but the empty one what an order adds that shows j next. The first of a mask's coordinates
    to show is any of the M: each statistic follows from those of its M subsets of size M − 1.
    """
    sizes = mask.sum(dim=1)
    state = values.new_zeros(5, len(mask), values.shape[1])
    for size in range(1, mask.shape[1] + 1):
        rows = (sizes == size).nonzero().flatten()
        member = mask[rows].nonzero()[:, 1].view(-1, size)
        term = values[(rows - 1)[:, None], :, member]  # (C(D, M), M, N)
        rest = state[:, rows[:, None] - (1 << member)]
        mean, _, log_mix, lowest, highest = term + rest
        variance = rest[1].mean(dim=1) + mean.var(dim=1, correction=0)
        mixed = log_mix.logsumexp(dim=1) - math.log(size)
        found = (mean.mean(dim=1), variance, mixed, lowest.amin(dim=1), highest.amax(dim=1))
        state[:, rows] = torch.stack(found)
    return state[:, -1]
