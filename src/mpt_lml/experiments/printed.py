"""Formulas of the paper exactly as printed, slips included, on small models.

The tables are added up entry by entry and the orders visited one by one: no identity of this package
is used, so that a formula which fails here fails by itself. ``table`` is a tensor of probabilities
with one axis per coordinate, ``x`` one cell of it, ``t`` a position from 1 to D. All values in nats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import gaussian, masks
from mpt_lml.models.ppca import PPCA
from mpt_lml.numerics import log_normal


def _log_conditional(table: Tensor, x: Sequence[int], j: int, given: Sequence[int]) -> float:
    """log p(x_j | x_given) by adding up entries of a table; 0 where j is itself given."""

    def weight(observed: set[int]) -> float:
        cell = [x[i] if i in observed else slice(None) for i in range(table.ndim)]
        return table[tuple(cell)].sum().item()

    return math.log(weight({*given, j}) / weight(set(given)))


def _orders(table: Tensor) -> Iterator[tuple[int, ...]]:
    return itertools.permutations(range(table.ndim))


def _visible_sets(table: Tensor, size: int, x: Sequence[int]) -> list[list[float]]:
    """For every set R of ``size`` coordinates, log p(x_j | x_R) of every j outside R."""
    everything = range(table.ndim)
    return [
        [_log_conditional(table, x, j, given) for j in everything if j not in given]
        for given in itertools.combinations(everything, size)
    ]


def score(table: Tensor, x: Sequence[int], num_masked: int) -> float:
    """S(x; M) of a table, by its definition."""
    sets = _visible_sets(table, table.ndim - num_masked, x)
    return sum(sum(values) for values in sets) / (len(sets) * num_masked)


def equation_four(table: Tensor, x: Sequence[int], t: int) -> float:
    """Eq. 4 at t, left side minus right side, nats: the counts C(D, t−1) and D − t + 1 as printed."""
    left = sum(_log_conditional(table, x, o[t - 1], o[t:]) for o in _orders(table))
    return left - sum(sum(values) for values in _visible_sets(table, t - 1, x))


def line_before_a3(table: Tensor, x: Sequence[int], t: int) -> float:
    """The line before A.3 at t, nats: the least |left − right| over all choices of C_t orders.

    Its right side has x_M(t+1:D) behind the bar and j up to D − t + 1, so that for t < (D + 1)/2
    a token is also predicted from itself (log 1 = 0).
    """
    size = table.ndim
    left = sum(_log_conditional(table, x, o[t - 1], o[t:]) for o in _orders(table))
    inner = [
        sum(_log_conditional(table, x, o[j], o[t:]) for j in range(size - t + 1))
        for o in _orders(table)
    ]
    chosen = itertools.combinations(inner, math.comb(size, t - 1))
    return min(abs(left - sum(values)) for values in chosen)


def mislabeled_size(table: Tensor, x: Sequence[int], t: int) -> float:
    """A.3's term t, nats: with the t − 1 visible tokens of M = D − t + 1, minus with R(1:D−t)."""
    return score(table, x, table.ndim - t + 1) - score(table, x, t)


def middle_expression(table: Tensor, x: Sequence[int]) -> float:
    """Σ_M of Prop. 1's middle expression minus log p(x), nats; R(1:D−j) is what follows token j."""
    orders = list(_orders(table))
    total = 0.0
    for size in range(1, table.ndim + 1):
        for o in orders:
            terms = [_log_conditional(table, x, o[j], o[j + 1 :]) for j in range(size)]
            total += sum(terms) / (size * len(orders))
    return total - math.log(table[tuple(x)])


def sign_loss(model: PPCA, num_draws: int, generator: torch.Generator) -> Float[Tensor, " N"]:
    """log p(x_j | x_R) with the minus of the textbook in Eq. 7, less that with the printed plus.

    One value per datum drawn from the model, the mean over the two coordinates of one mask, nats.
    """
    x = model.sample(num_draws, generator=generator)
    mask = masks.sample_masks(1, model.num_features, 2, generator=generator)[0]
    mean, covariance = gaussian.condition_dense(x, model.mean, model.covariance, mask)
    variance = covariance.diagonal()
    printed = 2.0 * model.covariance[mask][:, mask].diagonal() - variance
    residual = x[:, mask] - mean
    return (log_normal(residual, variance) - log_normal(residual, printed)).mean(dim=1)


def conforms(model: PPCA, num_masked: int) -> bool:
    """Whether S_MRᵀ S_RR⁻¹ S_MR, with Appendix B's blocks, is a product of matrices that fit."""
    masked, rest = slice(None, num_masked), slice(num_masked, None)
    block, visible = model.covariance[masked, rest], model.covariance[rest, rest]
    try:
        block.T @ torch.linalg.inv(visible) @ block
    except RuntimeError:
        return False
    return True
