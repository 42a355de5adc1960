"""Orders of revealing the coordinates, and what conditionals say along each.

A *reveal* (S, D) holds when each coordinate is shown, 0 first; those that share a number are shown
together. Without ties it is an order σ and log p_σ(x) = Σ_j log q(x_j | coordinates shown before j).
For conditionals of one joint every order gives log p(x). For others the orders differ, and their
mixture p_mix = E_σ p_σ is a distribution (Uria et al. 2014; Hoogeboom et al. 2022).
"""

import itertools
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml import masks
from mpt_lml.models.base import ConditionalModel
from mpt_lml.numerics import chunks
from mpt_lml.scores import OverOrders, over_orders
from mpt_lml.spec import require, require_count, require_log_enumerable, require_reveal

__all__ = ["draw", "every", "exact", "log_probability", "mixture_bound"]


def every(num_features: int) -> Int[Tensor, "S D"]:
    """All D! orders as reveals, shape (D!, D). Raises ``ValueError`` for D > 8.

    >>> every(3).tolist()
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
    """
    require_count("num_features", num_features, 1)
    what = f"all orders of D = {num_features} coordinates"
    require_log_enumerable(what, math.lgamma(num_features + 1), "orders.exact or orders.draw")
    return torch.tensor(list(itertools.permutations(range(num_features))))


def draw(num_orders: int, num_features: int, *, generator: torch.Generator) -> Int[Tensor, "S D"]:
    """S uniformly random orders as reveals, (S, D).

    ``reveal * T // D`` shows the coordinates in T blocks of (nearly) equal size instead.

    >>> draw(2, 3, generator=torch.Generator().manual_seed(0)).sort(dim=1).values.tolist()
    [[0, 1, 2], [0, 1, 2]]
    """
    require(locals(), "num_orders 1..")
    return masks.sample_ranks(num_orders, num_features, generator=generator)


def log_probability(
    model: ConditionalModel, x: Tensor, reveal: Int[Tensor, "S D"]
) -> Float[Tensor, "S N"]:
    """log p_σ(x) of every reveal and every datum, nats, (S, N).

    Equal masks of different orders are asked for once. Raises ``TypeError`` or ``ValueError`` for a
    reveal that is not int64, of another shape or with negative entries.

    >>> model, x = HMM.cyclic(num_features=3), torch.zeros(1, 3).long()
    >>> torch.allclose(log_probability(model, x, every(3)), model.log_marginal(x))
    True
    """
    require(locals(), "model ConditionalModel, x data")
    require_reveal(reveal, model.num_features)
    reveal = _without_gaps(reveal)
    steps, parts = torch.arange(int(reveal.max()) + 1)[:, None], []
    for rows in chunks(len(reveal), 8 * 2 * len(steps) * x.shape[0] * model.num_features):
        some = reveal[rows]
        now = (some[:, None] == steps).flatten(0, 1)
        used = now.any(dim=1)
        now, hidden = now[used], (some[:, None] >= steps).flatten(0, 1)[used]
        order = torch.arange(len(some)).repeat_interleave(len(steps))[used]
        mask, which = hidden.unique(dim=0, return_inverse=True)
        values = model.log_conditional(x, mask.to(x.device))[which.to(x.device)]
        # What is shown at another step counts 0, also where its log-probability is −inf.
        terms = values.where(now[:, None].to(values.device), 0.0).sum(dim=-1)
        total = terms.new_zeros(len(some), x.shape[0])
        parts.append(total.index_add(0, order.to(x.device), terms))
    return torch.cat(parts)


def _without_gaps(reveal: Int[Tensor, "S D"]) -> Int[Tensor, "S D"]:
    """The same orders with the steps of each counted 0, 1, 2, ...: at most D, however they are named."""
    step, coordinate = reveal.sort(dim=1)
    is_new = torch.nn.functional.pad(step.diff(dim=1) != 0, (1, 0))
    return torch.zeros_like(reveal).scatter(1, coordinate, is_new.cumsum(dim=1))


def exact(model: ConditionalModel, x: Tensor) -> OverOrders:
    """log p_σ(x) over all D! orders σ from 2^D masks; every field (N,), nats (variance: nats²).

    ``mean`` = E_σ log p_σ(x) = Σ_M S(x; M); ``variance`` = Var_σ log p_σ(x), 0 for conditionals of
    one joint; ``log_mix`` = log p_mix(x) = log E_σ p_σ(x), at least ``mean``; ``lowest`` and
    ``highest``: the worst and the best order. Where an order has probability 0, ``mean`` and
    ``lowest`` are −inf, and ``variance`` is NaN: there is none.

    Raises ``ValueError`` for D > 18.

    >>> model, x = HMM.cyclic(num_features=4), torch.zeros(1, 4).long()
    >>> torch.allclose(exact(model, x).log_mix, model.log_marginal(x))
    True
    """
    require(locals(), "model ConditionalModel, x data")
    instead = "orders.draw and orders.log_probability"
    mask, parts = masks.subsets(model.num_features, instead=instead), []
    for rows in chunks(len(x), 8 * 4 * mask.numel()):
        some = chunks(len(mask) - 1, 8 * 4 * x[rows].shape[0] * model.num_features)
        values = [model.log_conditional(x[rows], mask[1:][m].to(x.device)).cpu() for m in some]
        parts.append(over_orders(torch.cat(values).to(torch.float64), mask))
    return OverOrders(*(torch.cat(statistic) for statistic in zip(*parts, strict=True)))


def mixture_bound(log_probability: Float[Tensor, "S N"], num_orders: int) -> Float[Tensor, "G N"]:
    """log of the mean of p_σ over groups of K orders, (G, N) with G = ⌊S / K⌋ disjoint groups.

    Each group is a lower bound on log p_mix(x) in expectation, and the expectation rises with K to
    log p_mix(x): the argument of Burda, Grosse & Salakhutdinov (2016) with orders for latents.

    >>> mixture_bound(torch.tensor([[0.1], [0.3], [0.5]]).log(), 2).exp()
    tensor([[0.2000]])
    """
    require(locals(), "log_probability S N", finite=False)
    count = len(log_probability)
    require_count("num_orders", num_orders, 1, count)
    groups = log_probability[: count // num_orders * num_orders]
    groups = groups.view(-1, num_orders, *log_probability.shape[1:])
    return groups.logsumexp(dim=1) - math.log(num_orders)
