"""log p(x) = log ∫ p(x, z) dz by importance weighting and by annealing (floor 4)."""

from __future__ import annotations

import itertools
import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.estimators.proposals import GaussianProposal, ProposalRule, at_mode, from_prior
from mpt_lml.models.base import LatentVariableModel
from mpt_lml.numerics import chunks
from mpt_lml.results import Estimate
from mpt_lml.shapes import require_count, require_generator


def log_weights(
    model: LatentVariableModel,
    x: Float[Tensor, "N D"],
    proposal: GaussianProposal,
    num_samples: int,
    *,
    generator: torch.Generator,
    observed: Bool[Tensor, "#N D"] | None = None,
) -> Float[Tensor, "S N"]:
    """log p(x_R, z_s) − log q(z_s) for z_s ~ q, nats, (S, N), in bounded memory."""
    parts = []
    per_sample = x.element_size() * x.numel() * 6
    for rows in chunks(num_samples, per_sample):
        z = proposal.sample(rows.stop - rows.start, generator=generator)
        parts.append(model.log_joint(x, z, observed) - proposal.log_density(z))
    return torch.cat(parts)


def iwae(
    model: LatentVariableModel,
    x: Float[Tensor, "N D"],
    num_samples: int,
    *,
    generator: torch.Generator,
    proposal: ProposalRule = at_mode,
) -> Estimate:
    """log (1/S) Σ_s p(x, z_s)/q(z_s), z_s ~ q(z | x), mean over the data (Burda et al. 2016, Eq. 8).

    In expectation a lower bound of log p(x) that rises with S; for weights of finite variance the
    bias is −Var(w)/(2 S E[w]²) + O(1/S²) a datum. The standard error is that of the weights' mean by
    the delta method: over z, with the data held fixed. It says nothing about a bias.

    Parameters
    ----------
    proposal : callable
        ``(model, x, None) -> GaussianProposal``: :func:`at_mode` (default), :func:`from_encoder`
        (what Burda et al. use), :func:`from_prior`.
    """
    require_count("num_samples", num_samples, 2)
    require_generator(generator)
    model.require_data(x)
    with torch.no_grad():
        logs = log_weights(model, x, proposal(model, x, None), num_samples, generator=generator)
    return _mean_over_data(logs)


def log_mean_of(log_weight: Float[Tensor, "S N"], group: int) -> Float[Tensor, " N"]:
    """E[log of the mean of ``group`` weights], from disjoint groups of S weights, (N,).

    With ``group`` = 1 the ELBO, with S the IWAE bound: the bias against the number of samples from
    one set of draws.
    """
    require_count("group", group, 1, len(log_weight))
    whole = log_weight[: len(log_weight) // group * group]
    grouped = whole.unflatten(0, (-1, group))
    return (grouped.logsumexp(dim=1) - math.log(group)).mean(dim=0)


def ais(
    model: LatentVariableModel,
    x: Float[Tensor, "N D"],
    num_chains: int,
    num_temperatures: int,
    *,
    generator: torch.Generator,
    num_leapfrog: int = 5,
) -> Estimate:
    """Annealed importance sampling from the prior to p(z | x), mean over the data (Neal 2001).

    Intermediate densities p(z) p(x | z)^β with β from 0 to 1 along a sigmoid, one Hamiltonian step of
    ``num_leapfrog`` leapfrogs at each (Wu et al. 2017). The step size of every datum follows the
    acceptance of its chains. exp(value) is unbiased for p(x) at fixed step sizes, so the value is a
    lower bound in expectation; the standard error is over chains, by the delta method.
    """
    require_count("num_chains", num_chains, 2)
    require_count("num_temperatures", num_temperatures, 2)
    require_generator(generator)
    model.require_data(x)
    z = from_prior(model, x, None).sample(num_chains, generator=generator)
    log_weight, step = torch.zeros_like(z[..., 0]), torch.full_like(z[:1, :, :1], 0.2)
    betas = _sigmoid_schedule(num_temperatures).tolist()
    for before, beta in itertools.pairwise(betas):
        with torch.no_grad():
            likelihood = model.log_joint(x, z) - model.log_prior(z)
        log_weight = log_weight + (beta - before) * likelihood
        z, accepted = _hamiltonian_step(model, x, z, beta, step, num_leapfrog, generator)
        rate = accepted.to(x).mean(dim=0)[None, :, None]
        step = (step * torch.where(rate > 0.65, 1.05, 0.95)).clamp(1e-4, 1.0)
    return _mean_over_data(log_weight)


def _sigmoid_schedule(num_temperatures: int) -> Float[Tensor, " T"]:
    """0 to 1, dense at both ends."""
    raw = torch.linspace(-4, 4, num_temperatures, dtype=torch.float64).sigmoid()
    return (raw - raw[0]) / (raw[-1] - raw[0])


def _hamiltonian_step(
    model: LatentVariableModel,
    x: Float[Tensor, "N D"],
    z: Float[Tensor, "S N K"],
    beta: float,
    step: Float[Tensor, "1 N 1"],
    num_leapfrog: int,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "S N K"], Bool[Tensor, "S N"]]:
    """One Metropolis-corrected trajectory that leaves p(z) p(x|z)^β in place."""

    def energy(at: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            at = at.detach().requires_grad_()
            prior = model.log_prior(at)
            value = -(prior + beta * (model.log_joint(x, at) - prior))
            (slope,) = torch.autograd.grad(value.sum(), at)
        return value.detach(), slope

    momentum = torch.randn(z.shape, generator=generator, dtype=z.dtype)
    value, slope = energy(z)
    start = value + 0.5 * momentum.square().sum(dim=-1)
    moved = z
    for _ in range(num_leapfrog):
        momentum = momentum - 0.5 * step * slope
        moved = moved + step * momentum
        value, slope = energy(moved)
        momentum = momentum - 0.5 * step * slope
    end = value + 0.5 * momentum.square().sum(dim=-1)
    noise = torch.rand(end.shape, generator=generator, dtype=end.dtype)
    accepted = noise.log() < start - end
    return torch.where(accepted[..., None], moved, z), accepted


def _mean_over_data(log_weight: Float[Tensor, "S N"]) -> Estimate:
    """Mean over data of log mean_s w_s; its error adds up those of the data, which are independent."""
    count, num_data = log_weight.shape
    value = log_weight.logsumexp(dim=0) - math.log(count)
    relative = (log_weight - value).exp().std(dim=0) / math.sqrt(count)
    error = relative.square().sum().sqrt().item() / num_data
    return Estimate(value.mean().item(), error, count)
