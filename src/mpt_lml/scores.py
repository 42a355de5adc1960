"""Scores of masks, which divide by M, means over masks of a size, and statistics over orders.

A mask hides the set A of M coordinates of a datum x; R is the rest, which is observed.
"""

import math
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import Count, check, checked
from mpt_lml.masks import each_masks_something

__all__ = ["OverOrders", "mask_score", "mean_by_size"]

# Made once: to write an annotation takes as long as to check a small tensor.
_LOG_CONDITIONAL = Float[Tensor, "... D"]
_MASK = Bool[Tensor, "... D"]


@checked(finite=False)
def mask_score(
    log_conditional: Float[Tensor, "P ..."],
    mask: Annotated[Bool[Tensor, "P ..."], each_masks_something],
) -> Float[Tensor, "P ..."]:
    """(1/M) Σ_{j∈A} log p(x_j | x_R), the score of a mask A.

    Args:
        log_conditional: nats. With as many axes as ``mask``, such as (P, D) averaged over the data or
            (B, D) with one mask a datum, every row has its own mask. With one axis more, (P, N, D),
            every mask meets all data.
        mask: boolean, (P, D); True means masked.

    Returns:
        Nats a coordinate, (P,) or (P, N).

    Raises:
        ValueError: for a mask that hides nothing: it has no score.

    >>> mask_score(torch.tensor([[-1.0, -3.0, 0.0]]), torch.tensor([[True, True, False]]))
    tensor([-2.])
    """
    if log_conditional.ndim > mask.ndim:
        mask = mask[..., None, :]
    # Only here do both have the same number of axes, so that their shapes can be compared. The
    # signature cannot: it does not know whether there is an axis of data between.
    check(
        ("log_conditional", log_conditional, _LOG_CONDITIONAL),
        ("mask", mask, _MASK),
        finite=False,
    )
    return _mask_score(log_conditional, mask)


def _mask_score(log_conditional: Tensor, mask: Tensor) -> Tensor:
    # where() and no product: a log-probability of −inf that is not masked has to count 0, not NaN.
    total = log_conditional.where(mask, 0.0).sum(dim=-1)
    return total / mask.sum(dim=-1)


@checked(finite=False)
def mean_by_size(
    values: Float[Tensor, " P *rest"], sizes: Int[Tensor, " P"], num_features: Count
) -> Float[Tensor, " L *rest"]:
    """Mean of ``values`` over all masks, or other sets of coordinates, of each size.

    Args:
        values: one row a set, (P, ...).
        sizes: how many coordinates each set has, within 0..D, (P,).
        num_features: D.

    Returns:
        One mean for each size 0, ..., D, (D + 1, ...); NaN for a size without masks.

    >>> mean_by_size(torch.tensor([5.0, 1.0, 3.0]), torch.tensor([0, 1, 1]), 1)
    tensor([5., 2.])
    """
    if sizes.min() < 0 or sizes.max() > num_features:
        raise ValueError(f"sizes must lie in 0..{num_features}, got {sizes.tolist()}.")
    zeros = values.new_zeros(num_features + 1, *values.shape[1:])
    totals = zeros.index_add(0, sizes, values)
    counts = torch.bincount(sizes, minlength=num_features + 1)
    other_axes = [1] * (values.ndim - 1)
    return totals / counts.view(-1, *other_axes)  # 0 / 0 is the NaN of a size without masks


class OverOrders(NamedTuple):
    """Statistics of log p_π(x) over all D! orders π, for N data (:func:`mpt_lml.orders.exact`).

    >>> model, x = HMM.cyclic(num_features=3), torch.zeros(1, 3).long()
    >>> over = mpt_lml.orders.exact(model, x)  # one joint: all orders agree
    >>> torch.allclose(over.lowest, over.highest)
    True
    """

    mean: Float[Tensor, " N"]
    """Mean log-probability, nats."""
    variance: Float[Tensor, " N"]
    """Variance of the log-probability, nats²."""
    log_mix: Float[Tensor, " N"]
    """Logarithm of the mean probability, nats."""
    lowest: Float[Tensor, " N"]
    highest: Float[Tensor, " N"]


def over_orders(values: Float[Tensor, "subsets N D"], mask: Bool[Tensor, "P D"]) -> OverOrders:
    """Statistics over all D! orders of a sum along the order, from the 2^D subsets that orders pass.

    An order shows the coordinates one after the other. Shown first is any of the M of a mask, and what
    follows is an order of the M − 1 that are left. So each statistic of a mask follows from those of
    its M subsets of size M − 1: one pass over the sizes, where a sum over orders would have D! terms.

    Args:
        values: the terms, log q(x_j | x_R), of every subset A but the empty one and every j in it,
            (2^D − 1, N, D). An order adds that of A and j where A is still hidden and j shown next.
        mask: the subsets as :func:`mpt_lml.masks.subsets` numbers them, (2^D, D).

    Returns:
        The statistics, each (N,).
    """
    num_subsets, num_features = mask.shape
    size_of_subset = mask.sum(dim=1)
    # Over the orders of each subset; the empty one, row 0, has one order, which adds 0.
    # Tensors of their own: parts of one could not be written into where a derivative is taken.
    zeros = values.new_zeros(num_subsets, values.shape[1])
    statistics = OverOrders(*(zeros.clone() for _ in OverOrders._fields))
    for size in range(1, num_features + 1):
        subsets = (size_of_subset == size).nonzero().flatten()
        # nonzero() goes row by row, and each row has M coordinates.
        shown_first = mask[subsets].nonzero()[:, 1].view(-1, size)
        # (C(D, M), M, N): the subsets, of each the coordinates that may be shown first, and the data.
        # ``values`` begin with subset 1, and subset i has coordinate j where bit j of i is set.
        term = values[(subsets - 1)[:, None], :, shown_first]
        without_first = subsets[:, None] - (1 << shown_first)
        after = OverOrders(*(statistic[without_first] for statistic in statistics))
        mean = term + after.mean
        log_mix = term + after.log_mix
        statistics.mean[subsets] = mean.mean(dim=1)
        # The law of total variance: within and between the choices of the first.
        between = mean.var(dim=1, correction=0)
        statistics.variance[subsets] = after.variance.mean(dim=1) + between
        statistics.log_mix[subsets] = log_mix.logsumexp(dim=1) - math.log(size)
        statistics.lowest[subsets] = (term + after.lowest).amin(dim=1)
        statistics.highest[subsets] = (term + after.highest).amax(dim=1)
    return OverOrders(*(statistic[-1] for statistic in statistics))
