"""Annealed importance sampling of log p(x) over the latent z: a second opinion on ``iwae``."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.estimators.latent import from_prior, mean_over_data, require_decoded
from mpt_lml.models.vae import LatentVariableModel
from mpt_lml.numerics import draw_normal, draw_uniform
from mpt_lml.results import Estimate

_LogLikelihood = Callable[[Tensor], Tensor]

# Hamiltonian Monte Carlo accepts about 65 % of its moves where its step size is best (Neal 2011).
_BEST_ACCEPTANCE = 0.65


class _Chains(NamedTuple):
    """State of chains: their positions, and the likelihood there with its gradient."""

    position: Float[Tensor, "*B K"]
    log_likelihood: Float[Tensor, "*B"]
    gradient: Float[Tensor, "*B K"]


def ais(
    model: LatentVariableModel,
    x: Float[Tensor, "N D"],
    num_chains: int,
    num_temperatures: int,
    *,
    generator: torch.Generator,
) -> Estimate:
    """Annealed importance sampling from the prior to p(z | x), mean over the data (Neal 2001).

    Densities p(z) p(x | z)^β with β from 0 to 1 along a sigmoid, one Hamiltonian move of five
    leapfrog steps at each (Wu et al. 2017), its step size by the acceptance of a datum's chains.

    Args:
        model: one with a latent z.
        x: data, (N, D).
        num_chains: independent chains a datum, at least 2.
        num_temperatures: values of β, at least 2.
        generator: of starts and moves.

    Returns:
        Nats, in expectation a lower bound of log p(x); the standard error is over chains.

    Raises:
        ValueError: for a decoder that answers NaN.
    """
    log_joint = model._log_joint_of(x)

    def log_likelihood(z: Tensor) -> Tensor:
        return log_joint(z) - model._log_prior(z)

    z = from_prior(model, x).sample(num_chains, generator=generator)
    chains = _chains_at(log_likelihood, z)
    require_decoded("log p(x | z) at draws from the prior", chains.log_likelihood)
    step_size = torch.full_like(z[:1, :, :1], 0.2)
    log_weight = torch.zeros_like(chains.log_likelihood)
    for beta, next_beta in itertools.pairwise(_sigmoid_temperatures(num_temperatures)):
        log_weight = log_weight + (next_beta - beta) * chains.log_likelihood
        chains, is_accepted = _hamiltonian_move(
            chains, log_likelihood, next_beta, step_size, num_leapfrogs=5, generator=generator
        )
        acceptance = is_accepted.to(x).mean(dim=0)[None, :, None]
        change = torch.where(acceptance > _BEST_ACCEPTANCE, 1.05, 0.95)
        step_size = (step_size * change).clamp(1e-4, 1.0)
    return mean_over_data(log_weight)


def _sigmoid_temperatures(count: int) -> list[float]:
    """β from 0 to 1, dense at both ends, where the densities change fastest."""
    sigmoid = torch.linspace(-4, 4, count, dtype=torch.float64).sigmoid()
    return ((sigmoid - sigmoid[0]) / (sigmoid[-1] - sigmoid[0])).tolist()


def _chains_at(log_likelihood: _LogLikelihood, position: Tensor) -> _Chains:
    with torch.enable_grad():
        position = position.detach().requires_grad_()
        value = log_likelihood(position)
        total = value.sum() + 0.0 * position.sum()  # the likelihood may not depend on the position
        (gradient,) = torch.autograd.grad(total, position)
    return _Chains(position.detach(), value.detach(), gradient)


def _hamiltonian_move(
    chains: _Chains,
    log_likelihood: _LogLikelihood,
    beta: float,
    step_size: Float[Tensor, "*#B 1"],
    num_leapfrogs: int,
    generator: torch.Generator,
) -> tuple[_Chains, Bool[Tensor, "*B"]]:
    """A Metropolis-corrected trajectory that leaves N(0, I) × likelihood^β in place; who took it."""
    momentum = draw_normal(chains.position.shape, generator=generator, like=chains.position)
    start = _negative_energy(chains, momentum, beta)
    proposed = chains
    for _ in range(num_leapfrogs):
        momentum = momentum + 0.5 * step_size * (beta * proposed.gradient - proposed.position)
        proposed = _chains_at(log_likelihood, proposed.position + step_size * momentum)
        momentum = momentum + 0.5 * step_size * (beta * proposed.gradient - proposed.position)
    change = _negative_energy(proposed, momentum, beta) - start
    uniform = draw_uniform(change.shape, generator=generator, like=change)
    is_accepted = uniform.log() < change
    is_moved = is_accepted[..., None]
    after = _Chains(
        torch.where(is_moved, proposed.position, chains.position),
        torch.where(is_accepted, proposed.log_likelihood, chains.log_likelihood),
        torch.where(is_moved, proposed.gradient, chains.gradient),
    )
    return after, is_accepted


def _negative_energy(chains: _Chains, momentum: Tensor, beta: float) -> Tensor:
    squares = chains.position.square() + momentum.square()
    return beta * chains.log_likelihood - 0.5 * squares.sum(dim=-1)
