"""Reductions over masked positions: the one place that divides by M (floor 1)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def mask_score(
    log_conditional: Float[Tensor, "P *N D"], mask: Bool[Tensor, "P D"]
) -> Float[Tensor, "P *N"]:
    """(1/M) Σ_{j∈A} log p(x_j | x_R) for every mask A: the score of one mask, in nats a coordinate.

    ``log_conditional`` is (P, N, D), or (P, D) when already averaged over the data; its entries at
    unmasked coordinates are 0.
    """
    sizes = mask.sum(dim=1).to(log_conditional.dtype)
    return log_conditional.sum(dim=-1) / sizes.view(-1, *[1] * (log_conditional.ndim - 2))


def mean_by_size(
    values: Float[Tensor, " P"], sizes: Tensor, num_features: int
) -> Float[Tensor, " L"]:
    """Mean of ``values`` over all masks of size 0, ..., D, shape (D + 1,); NaN where there is none."""
    empty = torch.zeros(num_features + 1, dtype=values.dtype, device=values.device)
    total = empty.index_add(0, sizes, values)
    return total / torch.bincount(sizes, minlength=num_features + 1)
