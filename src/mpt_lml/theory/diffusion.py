"""Absorbing-state (masked) diffusion: its bound from the mask-rate curve, and its sampler; nats.

A schedule is a mask rate ρ(t), increasing from ρ(0) = 0 to ρ(1) = 1: at time t every coordinate is
masked with that probability, independently. A curve is the tensor (..., D) of S(x; M), M = 1..D.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.checks import (
    Count,
    check,
    checked,
    require_answer,
    require_entries,
    require_gradient,
)
from mpt_lml.models.base import ConditionalModel
from mpt_lml.numerics import double, draw_categories
from mpt_lml.orders import Ranks

__all__ = ["Draws", "bernstein", "nelbo", "sample", "schedule_derivative", "step_elbo"]

Schedule = Callable[[Tensor], Tensor]
"""Function from times in [0, 1], of any shape, to mask rates."""

AREA_TOLERANCE = 1e-6
"""Tolerance of the integral over time, whose value is known, as a share of D times the largest score."""


@checked(finite=False)
def bernstein(score: Float[Tensor, "*B D"], rate: Tensor) -> Float[Tensor, "*B L"]:
    """S̃(ρ) = Σ_M C(D−1, M−1) ρ^{M−1} (1−ρ)^{D−M} S(M), the Bernstein polynomial of the curve.

    It is the mean over Bernoulli(ρ) masks of (1/(ρD)) Σ_{j masked} log q(x_j | x_R), of degree D − 1,
    computed by de Casteljau's algorithm.

    Args:
        score: S(x; M) for M = 1..D, nats, (..., D).
        rate: mask rates ρ in [0, 1], (L,).

    Returns:
        Nats, (..., L).

    Raises:
        ValueError: for rates outside [0, 1].

    >>> bernstein(torch.tensor([-1.0, -2.0]), torch.tensor([0.0, 0.5, 1.0]))
    tensor([-1.0000, -1.5000, -2.0000])
    """
    # Apart from score: rates of another precision are welcome.
    check(("rate", rate, Float[Tensor, " L"]))
    if not ((rate >= 0) & (rate <= 1)).all():
        raise ValueError(f"rate must be a vector of probabilities, got {rate.tolist()}.")
    levels = score[..., None].expand(*score.shape, len(rate))
    for _ in range(score.shape[-1] - 1):
        levels = (1.0 - rate) * levels[..., :-1, :] + rate * levels[..., 1:, :]
    return levels[..., 0, :]


@checked
def schedule_derivative(schedule: Schedule, time: Float[Tensor, "*T"]) -> Float[Tensor, "*T"]:
    """ρ'(t) by automatic differentiation.

    Args:
        schedule: mask rates, increasing from 0 at 0 to 1 at 1, that can be differentiated.
        time: in [0, 1].

    Returns:
        Per unit of time, of the shape of ``time``.

    Raises:
        ValueError: for times outside [0, 1], and for what is no schedule.

    >>> schedule_derivative(torch.square, torch.tensor([0.0, 0.5]))
    tensor([0., 1.])
    """
    is_outside = (time < 0) | (time > 1)
    require_entries("time", time, is_outside, "in [0, 1]", "Divide by the last one.")
    time = time.clone().requires_grad_()
    rate = _rate_at(schedule, time)
    require_answer("schedule(time)", rate, time.shape)
    (derivative,) = torch.autograd.grad(rate.sum(), time, allow_unused=True)
    require_gradient("schedule(time)", derivative)
    return derivative


def _rate_at(schedule: Schedule, time: Tensor) -> Tensor:
    """ρ(t), after a check that ``schedule`` is one."""
    rate = schedule(time)
    ends = schedule(time.new_tensor([0.0, 1.0]))
    require_answer("schedule(time)", rate, time.shape, gradient=False)
    require_answer("schedule([0, 1])", ends, (2,), gradient=False)
    if not (abs(ends[0]) < 1e-3 and abs(ends[1] - 1.0) < 1e-3):
        raise ValueError(f"schedule must lead from 0 at 0 to 1 at 1, got {ends.tolist()}.")
    order = time.detach().flatten().argsort()
    rise = rate.detach().flatten()[order].diff()
    if not (rise >= -1e-6).all():
        start_of_fall = time.flatten()[order][int(rise.argmin())].item()
        raise ValueError(
            f"schedule must increase with time, but it falls by {-rise.min().item():.3g} after time "
            f"{start_of_fall:.3g}."
        )
    return rate


@checked(finite=False)
def nelbo(score: Float[Tensor, "*B D"], schedule: Schedule) -> Float[Tensor, "*B"]:
    """Negative evidence lower bound of masked diffusion in continuous time, by Gauss–Legendre.

    −∫_0^1 ρ'(t)/ρ(t) E[Σ_{j masked at t} log q(x_j | x_R)] dt = −∫ ρ'(t) D S̃(ρ(t)) dt
    (Sahoo et al. 2024; Shi et al. 2024). For every schedule that all coordinates share it is −Σ_M S(M).
    The integral has so many nodes that it is exact up to rounding for smooth schedules, to t⁴ and
    somewhat steeper.

    Args:
        score: S(x; M) for M = 1..D, nats, (..., D).
        schedule: mask rates, increasing from 0 at 0 to 1 at 1, that can be differentiated.

    Returns:
        Nats, (...).

    Raises:
        ValueError: for what is no schedule, and for one that is so steep somewhere, such as √t at 0,
            that the integral misses −Σ_M S(M) by a millionth of D times the largest score.

    >>> nelbo(torch.tensor([-1.0, -2.0]).double(), torch.square).float()
    tensor(3.)
    """
    num_features = score.shape[-1]
    rule = np.polynomial.legendre.leggauss(_num_nodes(num_features))
    nodes, weights = double(score).new_tensor(np.stack(rule))
    time = 0.5 * (nodes + 1.0)
    heights = num_features * bernstein(score, _rate_at(schedule, time))
    integrand = 0.5 * weights * schedule_derivative(schedule, time) * heights
    bound = -integrand.sum(dim=-1)
    _require_area(bound, score, schedule)
    return bound


def _num_nodes(num_features: int) -> int:
    """Number of nodes with which Gauss–Legendre integrates ρ' S̃(ρ(t)) to rounding, also for ρ = t⁴.

    On the ellipse with foci 0 and 1 on which |z| + |1 − z| = cosh η, the polynomial S̃ is at most
    cosh(η)^(D−1) max |S|, so that n nodes err by about exp(D η²/2 − 2 n η), at best exp(−2 n²/D). A
    schedule tᵏ widens the ellipse, as if D were k D. With n = 9 √D and k = 4 that is exp(−40).
    """
    return max(64, math.ceil(9.0 * num_features**0.5))


def _require_area(bound: Tensor, score: Tensor, schedule: Schedule) -> None:
    """Refuse an integral over time that misses −Σ_M S(M), which it is for every schedule."""
    start, end = schedule(bound.new_tensor([0.0, 1.0])).detach().tolist()
    # A schedule that begins a little above 0 leaves out as much, and likewise at its end.
    allowed = AREA_TOLERANCE + abs(start) + abs(1.0 - end)
    largest = score.shape[-1] * score.abs().amax(dim=-1)
    missed = (bound + score.sum(dim=-1)).abs()
    if (missed > allowed * largest).any():
        raise ValueError(
            "schedule is so steep somewhere that the integral over time misses −Σ_M S(M) by "
            f"{missed.max().item():.2g} nats. Give a smoother one."
        )


@checked(finite=False)
def step_elbo(
    score: Float[Tensor, "*B D"], schedule: Schedule, num_steps: Count
) -> Float[Tensor, "*B"]:
    """Evidence lower bound of the process with T steps: Σ_i (ρ_i − ρ_{i−1}) D S̃(ρ_i), ρ_i = ρ(i/T).

    The right Riemann sum of D ∫ S̃(ρ) dρ, which is Σ_M S(M).

    Args:
        score: S(x; M) for M = 1..D, nats, (..., D).
        schedule: mask rates, increasing from 0 at 0 to 1 at 1.
        num_steps: T.

    Returns:
        Nats, (...).

    >>> step_elbo(torch.tensor([-1.0, -2.0]).double(), torch.square, 1)
    tensor(-4., dtype=torch.float64)
    """
    step = double(torch.arange(num_steps + 1, device=score.device))
    rate = _rate_at(schedule, step / num_steps)
    return score.shape[-1] * (rate.diff() * bernstein(score, rate[1:])).sum(dim=-1)


class Draws(NamedTuple):
    """Draws of x, and the log-probability of each along the order in which it was drawn.

    >>> g, coins = torch.Generator().manual_seed(0), mpt_lml.JointTable(torch.full((2, 2), 0.25))
    >>> sample(coins, torch.tensor([[0, 1]]), generator=g).log_probability.exp()
    tensor([0.2500], dtype=torch.float64)
    """

    x: Int[Tensor, "N D"]
    log_probability: Float[Tensor, " N"]
    """Nats."""


@checked
def sample(model: ConditionalModel, ranks: Ranks, *, generator: torch.Generator) -> Draws:
    """One draw x for every order, and its log-probability along that order.

    Coordinates shown together are drawn independently of each other, given what came before. Given
    x alone one would have to average over orders.

    Args:
        model: one of discrete coordinates.
        ranks: of every draw, the step at which each coordinate is shown, from 0, (N, D). The orders
            of :func:`mpt_lml.orders.draw`, with ``ranks * T // D`` in T blocks.
        generator: of the draws.

    Returns:
        ``x`` (N, D) and ``log_probability`` (N,), nats.

    Raises:
        TypeError: for a model whose coordinates are not discrete.
        ValueError: for a model that answers NaN or infinity.

    >>> g, ranks = torch.Generator().manual_seed(0), torch.arange(16)[None]
    >>> x, log_probability = sample(HMM.cyclic(), ranks, generator=g)
    >>> torch.allclose(log_probability, HMM.cyclic().log_marginal(x))
    True
    """
    x = torch.zeros_like(ranks)
    total = double(torch.zeros(len(ranks), device=ranks.device))
    for step in ranks.unique().tolist():
        shown_now = ranks == step
        rows = shown_now.any(dim=1)
        log_values = model.log_values(x[rows], ranks[rows] >= step)
        values = log_values[shown_now[rows]]
        if values.isnan().any() or (values == torch.inf).any():
            raise ValueError(
                "model.log_values must answer log-probabilities, which are at most 0, and gave NaN or "
                f"infinity at step {step} of ranks: look at the model."
            )
        x[shown_now] = draw_categories(values.exp(), 1, generator=generator)[:, 0]
        log_probability = values.gather(1, x[shown_now][:, None])[:, 0].to(total)
        total.index_add_(0, shown_now.nonzero()[:, 0], log_probability)
    return Draws(x, total)
