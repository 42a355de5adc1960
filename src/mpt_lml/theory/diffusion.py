"""Absorbing-state (masked) diffusion: its bound from the mask-rate curve, and its sampler; nats.

A schedule is a mask rate ρ(t), increasing from ρ(0) = 0 to ρ(1) = 1: at time t every coordinate is
masked with that probability, independently. A curve is the tensor (..., D) of S(x; M), M = 1..D.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.models.base import ConditionalModel
from mpt_lml.spec import (
    require,
    require_answer,
    require_count,
    require_entries,
    require_memory,
    require_reveal,
    require_slope,
)

__all__ = ["bernstein", "block_elbo", "nelbo", "sample", "speed", "step_elbo"]

Schedule = Callable[[Tensor], Tensor]


def bernstein(score: Float[Tensor, "*B D"], rate: Float[Tensor, " L"]) -> Float[Tensor, "*B L"]:
    """S̃(ρ) = Σ_M C(D−1, M−1) ρ^{M−1} (1−ρ)^{D−M} S(M) at every ``rate`` ρ in [0, 1], (..., L).

    The mean over Bernoulli(ρ) masks of (1/(ρD)) Σ_{j masked} log q(x_j | x_R), and the Bernstein
    polynomial of the curve, of degree D − 1, by de Casteljau's algorithm.

    >>> bernstein(torch.tensor([-1.0, -2.0]), torch.tensor([0.0, 0.5, 1.0]))
    tensor([-1.0000, -1.5000, -2.0000])
    """
    require(locals(), "score ... D", finite=False)
    require(locals(), "rate L")
    if not ((rate >= 0) & (rate <= 1)).all():
        raise ValueError(f"rate must be a vector of probabilities, got {rate.tolist()}.")
    levels = score[..., None].expand(*score.shape, len(rate))
    for _ in range(score.shape[-1] - 1):
        levels = (1.0 - rate) * levels[..., :-1, :] + rate * levels[..., 1:, :]
    return levels[..., 0, :]


def speed(schedule: Schedule, time: Float[Tensor, "*T"]) -> Float[Tensor, "*T"]:
    """ρ'(t), of the shape of ``time``, by automatic differentiation.

    >>> speed(torch.square, torch.tensor([0.0, 0.5]))
    tensor([0., 1.])
    """
    require(locals(), "time ...")
    require_entries("time", time, (time < 0) | (time > 1), "in [0, 1]", "Divide by the last one.")
    at = time.clone().requires_grad_()
    level = _level(schedule, at)
    require_answer("schedule(time)", level, time.shape)
    (slope,) = torch.autograd.grad(level.sum(), at, allow_unused=True)
    require_slope("schedule(time)", slope)
    return slope


def _level(schedule: Schedule, time: Tensor) -> Tensor:
    require(locals(), "schedule Callable")
    level, ends = schedule(time), schedule(time.new_tensor([0.0, 1.0]))
    require_answer("schedule(time)", level, time.shape, slope=False)
    require_answer("schedule([0, 1])", ends, (2,), slope=False)
    if not (abs(ends[0]) < 1e-3 and abs(ends[1] - 1.0) < 1e-3):
        raise ValueError(f"schedule must lead from 0 at 0 to 1 at 1, got {ends.tolist()}.")
    order = time.detach().flatten().argsort()
    rise = level.detach().flatten()[order].diff()
    if not (rise >= -1e-6).all():
        at = time.flatten()[order][int(rise.argmin())].item()
        raise ValueError(
            f"schedule must increase with time, but it falls by {-rise.min().item():.3g} after time "
            f"{at:.3g}."
        )
    return level


def nelbo(
    score: Float[Tensor, "*B D"], schedule: Schedule, num_nodes: int = 64
) -> Float[Tensor, "*B"]:
    """Negative evidence lower bound of masked diffusion in continuous time, by Gauss–Legendre.

    −∫_0^1 ρ'(t)/ρ(t) E[Σ_{j masked at t} log q(x_j | x_R)] dt = −∫ ρ'(t) D S̃(ρ(t)) dt
    (Sahoo et al. 2024; Shi et al. 2024). For every schedule it is −Σ_M S(M).

    >>> nelbo(torch.tensor([-1.0, -2.0]).double(), torch.square).float()
    tensor(3.)
    """
    require(locals(), "score ... D, num_nodes 1..4096", finite=False)  # far more would take hours
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(num_nodes))
    time = 0.5 * (nodes + 1.0)
    heights = score.shape[-1] * bernstein(score, _level(schedule, time))
    return -(0.5 * weights * speed(schedule, time) * heights).sum(dim=-1)


def step_elbo(
    score: Float[Tensor, "*B D"], schedule: Schedule, num_steps: int
) -> Float[Tensor, "*B"]:
    """Evidence lower bound of the process with T steps: Σ_i (ρ_i − ρ_{i−1}) D S̃(ρ_i), ρ_i = ρ(i/T).

    The right Riemann sum of D ∫ S̃(ρ) dρ, which is Σ_M S(M).

    >>> step_elbo(torch.tensor([-1.0, -2.0]).double(), torch.square, 1)
    tensor(-4., dtype=torch.float64)
    """
    require(locals(), "score ... D, num_steps 1..", finite=False)
    require_memory(f"{num_steps} steps", 8 * num_steps, "fewer num_steps")
    level = _level(schedule, torch.arange(num_steps + 1, dtype=torch.float64) / num_steps)
    return score.shape[-1] * (level.diff() * bernstein(score, level[1:])).sum(dim=-1)


def block_elbo(score: Float[Tensor, "*B D"], num_steps: int) -> Float[Tensor, "*B"]:
    """The same for T random blocks of (nearly) equal size: Σ_i (size of block i) S(M_i).

    M_i is how many coordinates are masked before block i. At T = D it is Σ_M S(M).

    >>> block_elbo(torch.tensor([-1.0, -2.0]), 2)
    tensor(-3.)
    """
    require(locals(), "score ... D", finite=False)
    num_features = score.shape[-1]
    require_count("num_steps", num_steps, 1, num_features)
    block = torch.arange(num_features) * num_steps // num_features
    size = torch.bincount(block, minlength=num_steps)
    before = num_features - (size.cumsum(0) - size)
    return (size * score[..., before - 1]).sum(dim=-1)


def sample(
    model: ConditionalModel, reveal: Int[Tensor, "N D"], *, generator: torch.Generator
) -> tuple[Int[Tensor, "N D"], Float[Tensor, " N"]]:
    """One draw x for every row of ``reveal``, (N, D), and its log-probability along that row, (N,).

    Coordinates shown together are drawn independently of each other, given what came before. Given
    x alone one would have to average over reveals. Raises ``TypeError`` for a model whose
    coordinates are not discrete.

    >>> g, reveal = torch.Generator().manual_seed(0), torch.arange(16)[None]
    >>> x, log_probability = sample(HMM.cyclic(), reveal, generator=g)
    >>> torch.allclose(log_probability, HMM.cyclic().log_marginal(x))
    True
    """
    require(locals(), "model ConditionalModel, generator")
    require_reveal(reveal, model.num_features)
    x = torch.zeros_like(reveal)
    total = torch.zeros(len(reveal), dtype=torch.float64)
    for step in reveal.unique().tolist():
        now = reveal == step
        active = now.any(dim=1)
        values = model.log_values(x[active], reveal[active] >= step)[now[active]]
        if values.isnan().any() or (values == torch.inf).any():
            raise ValueError(
                "model.log_values must answer log-probabilities, which are at most 0, and gave NaN or "
                f"infinity at step {step} of reveal: look at the model."
            )
        x[now] = torch.multinomial(values.exp(), 1, generator=generator)[:, 0]
        said = values.gather(1, x[now][:, None])[:, 0].to(total)
        total.index_add_(0, now.nonzero()[:, 0], said)
    return x, total
