"""Annealed importance sampling: of log p(x) over z, and of PPCA's evidence over the loadings."""

import itertools
import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import objectives
from mpt_lml.checks import (
    Count,
    Data,
    Index,
    Positive,
    Within,
    check,
    checked,
    require_enumerable,
    require_memory,
)
from mpt_lml.estimators.latent import (
    from_prior,
    log_mean_weight,
    mean_over_data,
    require_decoded,
)
from mpt_lml.models.vae import LatentVariableModel
from mpt_lml.numerics import draw_normal, draw_uniform
from mpt_lml.objectives.ppca import require_second_moment
from mpt_lml.results import Estimate

_LogLikelihood = Callable[[Tensor], Tensor]

# Hamiltonian Monte Carlo accepts about 65 % of its moves where its step size is best (Neal 2011).
_BEST_ACCEPTANCE = 0.65


class _Chains(NamedTuple):
    """State of chains: their positions, and the likelihood there with its gradient."""

    position: Float[Tensor, "*B K"]
    log_likelihood: Float[Tensor, "*B"]
    gradient: Float[Tensor, "*B K"]


@checked
def ais(
    model: LatentVariableModel,
    x: Data,
    num_chains: Annotated[int, Within(2)],
    num_temperatures: Annotated[int, Within(2)],
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
        ValueError: for a decoder that answers NaN, and for more chains or temperatures than can be
            held or visited.

    >>> model, g = BernoulliPCA(torch.zeros(3, 2)), torch.Generator().manual_seed(0)
    >>> ais(model, torch.ones(1, 3), 4, 5, generator=g)
    -2.0794 ± 0.0000 nats
    """
    bytes_of_chains = 8 * num_chains * len(x) * model.latent_dim
    what = f"K = {model.latent_dim} in {num_chains} chains a datum"
    require_memory(what, bytes_of_chains, "fewer num_chains or data, or a smaller K")
    require_enumerable("the temperatures", num_temperatures, "fewer num_temperatures")

    log_joint = model._log_joint_with(x)

    def log_likelihood(z: Tensor) -> Tensor:
        return log_joint(z) - model._log_prior(z)

    z = from_prior(model, x, None).sample(num_chains, generator=generator)
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


@checked
def annealed_evidence(
    second_moment: Float[Tensor, "B D D"],
    num_data: Count,
    latent_dim: Index,
    noise_variance: Positive,
    *,
    num_chains: Annotated[int, Within(2)],
    num_steps: Count,
    generator: torch.Generator,
    backward_from: Float[Tensor, "B D k"] | None = None,
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """log p(X | K) = log ∫ Π_n p(x_n | W) p(W) dW of PPCA for B data sets, by annealing.

    The entries of W are independent N(0, 1), the mean is 0 and σ² known. Chains start at draws from
    the prior and pass through prior × likelihood^β with rising β; the mean of their weights is an
    unbiased estimate of p(X | K), and its logarithm low by about half the squared error (Neal 2001).

    Args:
        second_moment: XᵀX/N of every data set, through which alone the data enter, (B, D, D).
        num_data: N, the same for all.
        latent_dim: K.
        noise_variance: σ².
        num_chains: independent chains a data set, at least 2.
        num_steps: values of β after the first, with one Hamiltonian move each but the last.
        generator: of starts and moves.
        backward_from: loadings (B, D, K) that generated the data, which are one exact draw from the
            posterior. Chains that run backward from there are high on average, and both directions
            enclose log p(X | K) (Grosse, Ghahramani & Adams 2015).

    Returns:
        log p(X | K) and its standard error over chains, nats, (B,) each. Backward, the error leaves
        out that the chains of a data set share their start.

    Raises:
        ValueError: for a moment that no data have, and for more chains or steps than can be held or
            visited.

    >>> g, settings = torch.Generator().manual_seed(0), {"num_chains": 2, "num_steps": 1}
    >>> annealed_evidence(torch.eye(2)[None], 1, 0, 1.0, generator=g, **settings)  # exact
    (tensor([-2.8379]), tensor([0.]))
    """
    check(("backward_from", backward_from, Float[Tensor, "B D k"] | None), k=latent_dim)
    require_second_moment("second_moment", second_moment)
    loadings_shape = (second_moment.shape[-1], latent_dim)
    bytes_of_chains = 8 * num_chains * len(second_moment) * math.prod(loadings_shape)
    what = f"{num_chains} chains of K = {latent_dim} a data set"
    require_memory(what, bytes_of_chains, "fewer num_chains, or a smaller latent_dim")
    require_enumerable("the steps of annealing", num_steps, "fewer num_steps")
    variance = second_moment.new_tensor(noise_variance)

    def log_likelihood(flat_loadings: Tensor) -> Tensor:
        loadings = flat_loadings.unflatten(-1, loadings_shape)
        return num_data * objectives.log_marginal(loadings, variance, second_moment[:, None])

    betas = _geometric_temperatures(num_steps, num_data)
    if backward_from is None:
        size = (len(second_moment), num_chains, *loadings_shape)
        start = draw_normal(size, generator=generator, like=second_moment)
    else:
        start = backward_from[:, None].expand(-1, num_chains, -1, -1)
        betas = betas[::-1]
    log_weight = _annealed_weights(
        log_likelihood,
        start.flatten(2),
        betas,
        num_data=num_data,
        noise_variance=noise_variance,
        generator=generator,
    )
    value, error = log_mean_weight(log_weight.T)
    # Backward chains estimate 1/p(X | K).
    return (value if backward_from is None else -value), error


def _geometric_temperatures(num_steps: int, num_data: int) -> list[float]:
    """Temperatures β from 0 to 1: even steps while β N is small (the prior rules), then equal ratios."""
    scale = 0.3 * num_data
    log_last = math.log1p(scale)
    return [math.expm1(step / num_steps * log_last) / scale for step in range(num_steps + 1)]


def _annealed_weights(
    log_likelihood: _LogLikelihood,
    start: Float[Tensor, "B C K"],
    betas: list[float],
    *,
    num_data: int,
    noise_variance: float,
    generator: torch.Generator,
) -> Float[Tensor, "B C"]:
    """Log-weights of chains from ``start`` through N(0, I) × likelihood^β, one move at each β inside.

    The stiffest direction has a precision of about 1 + β N / σ². Lengths of steps are random: with a
    fixed one, a direction that it takes half a period round would hardly mix.
    """
    chains = _chains_at(log_likelihood, start)
    log_weight = torch.zeros_like(chains.log_likelihood)
    num_steps = len(betas) - 1
    for number, (beta, next_beta) in enumerate(itertools.pairwise(betas)):
        log_weight = log_weight + (next_beta - beta) * chains.log_likelihood
        is_last = number == num_steps - 1  # what comes after the last weight is not read
        has_position = start.shape[-1] > 0  # K = 0 latent dimensions have none
        if is_last or not has_position:
            continue
        uniform = draw_uniform((*log_weight.shape, 1), generator=generator, like=log_weight)
        precision = 1.0 + next_beta * num_data / noise_variance
        step_size = (0.2 + 0.7 * uniform) / math.sqrt(precision)
        chains, _ = _hamiltonian_move(
            chains, log_likelihood, next_beta, step_size, num_leapfrogs=3, generator=generator
        )
    return log_weight


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
