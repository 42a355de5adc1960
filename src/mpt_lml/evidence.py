"""The evidence of a PPCA model, its loadings integrated out by annealed importance sampling (floor 1).

p(X | K) = ∫ Π_n p(x_n | W) p(W) dW,   W_jk ~ N(0, 1) independent, mean 0 and noise variance σ² known.

What a model with a fixed W calls log p(x) is an integral over the latent z alone. This is the integral
over the parameters as well. It has no closed form for K ≥ 1; Neal (2001) gives an unbiased estimate.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.numerics import LOG_2PI
from mpt_lml.shapes import require_count, require_finite, require_generator


def log_likelihood(
    loadings: Float[Tensor, "B C D K"],
    second_moment: Float[Tensor, "B 1 D D"],
    num_data: int,
    noise_variance: float,
) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C D K"]]:
    """Σ_n log p(x_n | W) in nats and its gradient N (S⁻¹ C S⁻¹ − S⁻¹) W; C is the second moment.

    With A = I + WᵀW/σ² and V = S⁻¹ W = W A⁻¹/σ², only K×K matrices are factorized.
    """
    dim, num_features = loadings.shape[-1], loadings.shape[-2]
    identity = torch.eye(dim, dtype=loadings.dtype, device=loadings.device)
    factor, _ = torch.linalg.cholesky_ex(identity + loadings.mT @ loadings / noise_variance)
    log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    log_det = log_det + num_features * math.log(noise_variance)
    weights = loadings @ torch.cholesky_inverse(factor) / noise_variance
    cross = second_moment @ weights  # C V
    explained = (loadings * cross).sum(dim=(-2, -1))
    trace = (second_moment.diagonal(dim1=-2, dim2=-1).sum(dim=-1) - explained) / noise_variance
    value = -0.5 * num_data * (num_features * LOG_2PI + log_det + trace)
    fitted = (cross - weights @ (loadings.mT @ cross)) / noise_variance  # S⁻¹ C V
    return value, num_data * (fitted - weights)


def annealed_ppca(
    second_moment: Float[Tensor, "B D D"],
    num_data: int,
    latent_dim: int,
    noise_variance: float,
    *,
    num_chains: int,
    num_steps: int,
    generator: torch.Generator,
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """log p(X | K) of B data sets, and its standard error over the chains, both (B,), nats.

    Chains start at draws from the prior and pass through prior × likelihood^β with β rising from 0 to
    1, one Hamiltonian move each; the mean of their weights is an unbiased estimate of p(X | K), and
    its logarithm is low by about half the squared standard error.

    Parameters
    ----------
    second_moment : Tensor (B, D, D)
        XᵀX/N of each data set: all that the likelihood needs.
    num_data : int
        N.
    latent_dim : int
        K; 0 is exact.
    noise_variance : float
        σ² > 0.
    num_chains, num_steps : int
        Weights averaged for each data set, and values of β.
    """
    _check(second_moment, num_data, latent_dim, noise_variance, num_chains, num_steps)
    require_generator(generator)
    moment = second_moment[:, None]
    shape = (len(moment), num_chains, moment.shape[-1], latent_dim)
    loadings = torch.randn(shape, generator=generator, dtype=moment.dtype)
    problem = (moment, num_data, noise_variance)
    return _log_mean(_chain(loadings, problem, range(1, num_steps + 1), num_steps, generator))


def reversed_annealed_ppca(
    second_moment: Float[Tensor, "B D D"],
    num_data: int,
    loadings: Float[Tensor, "B D K"],
    noise_variance: float,
    *,
    num_chains: int,
    num_steps: int,
    generator: torch.Generator,
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """An estimate of log p(X | K) that is high on average, and its standard error over the chains.

    The chains of :func:`annealed_ppca` run backward, from ``loadings`` W that generated the data after
    being drawn from the prior: such a W is one exact draw from the posterior. The mean of the inverse
    weights is then an unbiased estimate of 1/p(X | K), so that forward and backward estimates
    enclose log p(X | K) (Grosse, Ghahramani & Adams 2015). Both (B,), nats; the error leaves out
    that all chains of a data set share their start.
    """
    latent_dim = loadings.shape[-1]
    _check(second_moment, num_data, latent_dim, noise_variance, num_chains, num_steps)
    require_generator(generator)
    start = loadings[:, None].expand(-1, num_chains, -1, -1)
    problem = (second_moment[:, None], num_data, noise_variance)
    weight = _chain(start, problem, range(num_steps, 0, -1), num_steps, generator)
    value, error = _log_mean(-weight)
    return -value, error


def _chain(
    loadings: Float[Tensor, "B C D K"],
    problem: tuple[Tensor, int, float],
    steps: range,
    num_steps: int,
    generator: torch.Generator,
) -> Float[Tensor, "B C"]:
    """Log-weights Σ_s (β_s − β_{s−1}) log p(X | W) along ``steps``, up or down, with moves between."""
    num_data = problem[1]
    weight = torch.zeros(loadings.shape[:2], dtype=loadings.dtype)
    for step in steps:
        low, high = (_temperature(s / num_steps, num_data) for s in (step - 1, step))
        weight = weight + (high - low) * log_likelihood(loadings, *problem)[0]
        between = high if steps.step > 0 else low  # next temperature, at either end none
        if loadings.shape[-1] and step != steps[-1]:
            loadings = _hamiltonian_move(loadings, *problem, between, generator=generator)
    return weight


def _temperature(progress: float, num_data: int) -> float:
    """β from 0 to 1: even steps while β N is small, where the prior rules, then equal ratios."""
    bend = 0.3 * num_data
    return math.expm1(progress * math.log1p(bend)) / bend


def _check(
    second_moment: Tensor,
    num_data: int,
    latent_dim: int,
    noise_variance: float,
    num_chains: int,
    num_steps: int,
) -> None:
    if second_moment.ndim != 3 or second_moment.shape[1] != second_moment.shape[2]:
        raise ValueError(
            f"second_moment must have shape (B, D, D), got {tuple(second_moment.shape)}. "
            "A single data set is passed as (x.T @ x / len(x))[None]."
        )
    require_finite("second_moment", second_moment)
    require_count("num_data", num_data, 1)
    require_count("latent_dim", latent_dim, 0)
    require_count("num_chains", num_chains, 2)
    require_count("num_steps", num_steps, 1)
    if not (math.isfinite(noise_variance) and noise_variance > 0):
        raise ValueError(f"noise_variance must be a finite number > 0, got {noise_variance}.")


def _hamiltonian_move(
    loadings: Tensor,
    moment: Tensor,
    num_data: int,
    noise_variance: float,
    temperature: float,
    *,
    generator: torch.Generator,
    num_leaps: int = 3,
) -> Tensor:
    """One Metropolis-corrected Hamiltonian move that leaves prior × likelihood^β invariant."""

    def force(at: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = log_likelihood(at, moment, num_data, noise_variance)
        energy = temperature * value - 0.5 * at.square().sum(dim=(-2, -1))
        return energy, temperature * gradient - at

    # The stiffest direction of the posterior has a precision of about 1 + β N / σ². Random lengths:
    # with a fixed one, a direction that it takes half a period round would hardly mix.
    uniform = torch.rand((*loadings.shape[:2], 1, 1), generator=generator, dtype=loadings.dtype)
    size = (0.2 + 0.7 * uniform) / math.sqrt(1.0 + temperature * num_data / noise_variance)
    momentum = torch.randn(loadings.shape, generator=generator, dtype=loadings.dtype)
    start, gradient = force(loadings)
    start = start - 0.5 * momentum.square().sum(dim=(-2, -1))
    moved, velocity = loadings, momentum + 0.5 * size * gradient
    for leap in range(num_leaps):
        moved = moved + size * velocity
        energy, gradient = force(moved)
        velocity = velocity + (1.0 if leap < num_leaps - 1 else 0.5) * size * gradient
    change = energy - 0.5 * velocity.square().sum(dim=(-2, -1)) - start
    accepted = torch.rand(change.shape, generator=generator, dtype=change.dtype).log() < change
    return torch.where(accepted[..., None, None], moved, loadings)


def _log_mean(weight: Float[Tensor, "B C"]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Logarithm of the mean weight, and its standard error by the delta method."""
    count = weight.shape[1]
    value = weight.logsumexp(dim=1) - math.log(count)
    relative = (weight - value[:, None]).exp()
    return value, relative.std(dim=1) / math.sqrt(count)
