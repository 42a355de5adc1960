"""Annealed importance sampling: of log p(x) over z, and of PPCA's evidence over the loadings."""

import itertools
import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import objectives
from mpt_lml.estimators.latent import (
    from_prior,
    log_mean_weight,
    mean_over_data,
    require_decoded,
)
from mpt_lml.models.vae import LatentVariableModel
from mpt_lml.numerics import differentiable, without_inference
from mpt_lml.results import Estimate
from mpt_lml.spec import require, require_memory, require_second_moment

_Chains = tuple[Tensor, Tensor, Tensor]  # where they are, the log-likelihood there and its slope


@differentiable()
def ais(
    model: LatentVariableModel,
    x: Float[Tensor, "N D"],
    num_chains: int,
    num_temperatures: int,
    *,
    generator: torch.Generator,
) -> Estimate:
    """Annealed importance sampling from the prior to p(z | x), mean over the data, nats (Neal 2001).

    Densities p(z) p(x | z)^β with β from 0 to 1 along a sigmoid, one Hamiltonian move of
    five leapfrogs at each (Wu et al. 2017), its step size by the acceptance of a datum's
    chains. The value is a lower bound in expectation; the standard error is over chains. Raises
    ``ValueError`` for a decoder that answers NaN.

    >>> model, g = BernoulliPCA(torch.zeros(3, 2)), torch.Generator().manual_seed(0)
    >>> ais(model, torch.ones(1, 3), 4, 5, generator=g)
    -2.0794 ± 0.0000 nats
    """
    require(locals(), "model LatentVariableModel, x data, generator")
    require(locals(), "num_chains 2.., num_temperatures 2..")
    states = 8 * num_chains * len(x) * model.latent_dim
    require_memory(f"{num_chains} chains a datum", states, "fewer num_chains")

    x = without_inference(x)

    def log_likelihood(z: Tensor) -> Tensor:
        return model.log_joint(x, z) - model.log_prior(z)

    z = from_prior(model, x, None).sample(num_chains, generator=generator)
    state, step = _with_slope(log_likelihood, z), torch.full_like(z[:1, :, :1], 0.2)
    require_decoded("log p(x | z) at draws from the prior", state[1])
    log_weight = torch.zeros_like(state[1])
    raw = torch.linspace(-4, 4, num_temperatures, dtype=torch.float64).sigmoid()
    betas = ((raw - raw[0]) / (raw[-1] - raw[0])).tolist()
    for before, beta in itertools.pairwise(betas):
        log_weight = log_weight + (beta - before) * state[1]
        state, took = _hamiltonian_move(state, log_likelihood, beta, step, 5, generator)
        rate = took.to(x).mean(dim=0)[None, :, None]
        step = (step * torch.where(rate > 0.65, 1.05, 0.95)).clamp(1e-4, 1.0)
    return mean_over_data(log_weight)


@differentiable()
def annealed_evidence(
    second_moment: Float[Tensor, "B D D"],
    num_data: int,
    latent_dim: int,
    noise_variance: float,
    *,
    num_chains: int,
    num_steps: int,
    generator: torch.Generator,
    backward_from: Float[Tensor, "B D K"] | None = None,
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """log p(X | K) = log ∫ Π_n p(x_n | W) p(W) dW of PPCA for B data sets, and its error, nats.

    The entries of W are independent N(0, 1), the mean is 0 and σ² known; the data enter through XᵀX/N,
    their ``second_moment``. Chains start at draws from the prior and pass through prior × likelihood^β
    with ``num_steps`` rising β, one Hamiltonian move each; the mean of their weights is an unbiased
    estimate of p(X | K), and its logarithm low by about half the squared error (Neal 2001).

    Loadings that generated the data are one exact draw from the posterior: chains that run
    ``backward_from`` there are high on average, and both directions enclose log p(X | K) (Grosse,
    Ghahramani & Adams 2015). Their error leaves out that the chains of a data set share their start.

    >>> g, settings = torch.Generator().manual_seed(0), {"num_chains": 2, "num_steps": 1}
    >>> annealed_evidence(torch.eye(2)[None], 1, 0, 1.0, generator=g, **settings)  # exact
    (tensor([-2.8379]), tensor([0.]))
    """
    require(locals(), "num_data 1.., latent_dim 0.., noise_variance (0,inf), generator")
    require(locals(), "num_chains 2.., num_steps 1..")
    require(locals(), "second_moment B D D, backward_from? B D k", k=latent_dim)
    require_second_moment("second_moment", second_moment)
    second_moment = without_inference(second_moment)
    noise, shape = second_moment.new_tensor(noise_variance), (second_moment.shape[-1], latent_dim)

    def log_likelihood(at: Tensor) -> Tensor:
        loadings = at.unflatten(-1, shape)
        return num_data * objectives.log_marginal(loadings, noise, second_moment[:, None])

    upward = backward_from is None
    if backward_from is None:
        size = (len(second_moment), num_chains, *shape)
        start = torch.randn(size, generator=generator, dtype=second_moment.dtype)
    else:
        start = backward_from[:, None].expand(-1, num_chains, -1, -1)
    chains = _with_slope(log_likelihood, start.flatten(2))
    weight = torch.zeros_like(chains[1])
    bend = 0.3 * num_data  # even steps while β N is small, where the prior rules, then equal ratios
    betas = [math.expm1(s / num_steps * math.log1p(bend)) / bend for s in range(num_steps + 1)]
    steps = list(itertools.pairwise(betas if upward else betas[::-1]))
    for number, (beta, after) in enumerate(steps):
        weight = weight + (after - beta) * chains[1]
        if latent_dim and number < num_steps - 1:
            # The stiffest direction has a precision of about 1 + β N / σ². Random lengths: with a
            # fixed one, a direction that it takes half a period round would hardly mix.
            uniform = torch.rand((*weight.shape, 1), generator=generator, dtype=weight.dtype)
            step = (0.2 + 0.7 * uniform) / math.sqrt(1.0 + after * num_data / noise_variance)
            chains, _ = _hamiltonian_move(chains, log_likelihood, after, step, 3, generator)
    value, error = log_mean_weight(weight.T)
    return (value if upward else -value), error


def _with_slope(log_likelihood: Callable[[Tensor], Tensor], at: Tensor) -> _Chains:
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        value = log_likelihood(at)
        total = value.sum() + 0.0 * at.sum()  # it may not depend on where they are
        return at.detach(), value.detach(), torch.autograd.grad(total, at)[0]


def _hamiltonian_move(
    chains: _Chains,
    log_likelihood: Callable[[Tensor], Tensor],
    beta: float,
    step: Float[Tensor, "*#B 1"],
    num_leaps: int,
    generator: torch.Generator,
) -> tuple[_Chains, Bool[Tensor, "*B"]]:
    """One Metropolis-corrected trajectory that leaves N(0, I) × likelihood^β in place; who took it."""
    at, value, slope = chains
    momentum = torch.randn(at.shape, generator=generator, dtype=at.dtype)
    start = beta * value - 0.5 * (at.square() + momentum.square()).sum(dim=-1)
    for _ in range(num_leaps):
        momentum = momentum + 0.5 * step * (beta * slope - at)
        at, value, slope = _with_slope(log_likelihood, at + step * momentum)
        momentum = momentum + 0.5 * step * (beta * slope - at)
    change = beta * value - 0.5 * (at.square() + momentum.square()).sum(dim=-1) - start
    accepted = torch.rand(change.shape, generator=generator, dtype=change.dtype).log() < change
    moved = accepted[..., None]
    at, slope = torch.where(moved, at, chains[0]), torch.where(moved, slope, chains[2])
    return (at, torch.where(accepted, value, chains[1]), slope), accepted
