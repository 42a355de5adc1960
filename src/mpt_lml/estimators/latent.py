"""log p(x) of models that are an integral over z, by importance weights, and where to look for z."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import grids
from mpt_lml.checks import (
    Count,
    Data,
    Within,
    check,
    checked,
    require_entries,
    require_memory,
)
from mpt_lml.models.vae import VAE, LatentVariableModel
from mpt_lml.numerics import (
    LOG_2PI,
    chunks,
    draw_normal,
    draw_uniform,
)
from mpt_lml.results import Estimate
from mpt_lml.verdicts import mean_and_error

Observed = Bool[Tensor, "... D"] | None
"""Observed coordinates of each datum, (N, D), or in one row for all; None stands for every coordinate."""


@dataclass(frozen=True, eq=False)
class GaussianProposal:
    """N(mean, factor factorᵀ) of z for every datum: where to look for p(z | x).

    Args:
        mean: (N, K).
        factor: a square root of the covariance, (N, K, K).
        prior_share: the share of draws that come from the prior instead (a defensive mixture,
            Hesterberg 1995). With a share a > 0 no weight exceeds p(x | z)/a, and the variance of the
            weights is finite.
    """

    mean: Float[Tensor, "N K"]
    factor: Float[Tensor, "N K K"]
    prior_share: float = 0.0

    @checked
    def sample(self, num_samples: Count, *, generator: torch.Generator) -> Float[Tensor, "S N K"]:
        """``num_samples`` draws of z for every datum, (S, N, K)."""
        shape = (num_samples, *self.mean.shape)
        noise = draw_normal(shape, generator=generator, like=self.mean)
        z = self.mean + (self.factor @ noise[..., None])[..., 0]
        if not self.prior_share:
            return z
        uniform = draw_uniform(shape[:2], generator=generator, like=self.mean)
        is_from_prior = uniform < self.prior_share
        return torch.where(is_from_prior[..., None], noise, z)

    def log_density(self, z: Float[Tensor, "... N K"]) -> Float[Tensor, "... N"]:
        """Log-density of the mixture at ``z`` (..., N, K), nats, (..., N)."""
        log_volume = torch.linalg.slogdet(self.factor).logabsdet
        white = torch.linalg.solve(self.factor, (z - self.mean)[..., None])[..., 0]
        constant = 0.5 * z.shape[-1] * LOG_2PI
        log_normal = -0.5 * white.square().sum(dim=-1) - constant - log_volume
        if not self.prior_share:
            return log_normal
        log_prior = -0.5 * z.square().sum(dim=-1) - constant
        return torch.logaddexp(
            log_normal + math.log1p(-self.prior_share), log_prior + math.log(self.prior_share)
        )


ProposalRule = Callable[[LatentVariableModel, Tensor], GaussianProposal]
"""Function (model, x (N, D)) -> the proposal for p(z | x)."""


# -- three rules for a proposal ---------------------------------------------------------------------


@checked
def from_prior(model: LatentVariableModel, x: Data) -> GaussianProposal:
    """The prior N(0, I): knows nothing of x, and its weights have the largest variance.

    Args:
        model: one with a latent z.
        x: data, (N, D).

    Returns:
        The same proposal for every datum.

    >>> from_prior(BernoulliPCA(torch.ones(3, 2)), torch.ones(1, 3)).mean
    tensor([[0., 0.]])
    """
    identity = torch.eye(model.latent_dim, dtype=x.dtype, device=x.device)
    return GaussianProposal(x.new_zeros(len(x), model.latent_dim), identity.expand(len(x), -1, -1))


@checked
def from_encoder(
    model: LatentVariableModel, x: Data, observed: Observed = None
) -> GaussianProposal:
    """q(z | x) of a ``VAE``; hidden coordinates are filled with the decoder's mean at z = 0.

    An encoder has never seen holes: what it says of a filled-in datum may be far from p(z | x_R) and
    too narrow for weights of finite variance.

    Args:
        model: a ``VAE``.
        x: data, (N, D).
        observed: which coordinates are observed, (N, D) or one row for all; None: every one.

    Returns:
        The encoder's normal distribution of every datum.

    Raises:
        TypeError: for a model without an encoder.
        ValueError: for an encoder that is not finite.

    >>> model = VAE(lambda x: (x, 0 * x), lambda z: z, num_features=2, latent_dim=2)
    >>> from_encoder(model, torch.ones(1, 2)).mean
    tensor([[1., 1.]])
    """
    _require_observed(x, observed)
    if not isinstance(model, VAE):
        raise TypeError(f"{type(model).__name__} has no encoder; use at_mode or from_prior.")
    if observed is not None:
        fill = model.decode(x.new_zeros(1, model.latent_dim)).detach()
        require_decoded("the decoder's output at z = 0", fill)
        x = torch.where(observed, x, fill)
    mean, variance = model.encode(x)
    require_encoded(mean, variance)
    return GaussianProposal(mean, torch.diag_embed(variance.sqrt()))


# Posteriors have heavier tails than the normal at their mode (Laplace's approximation): a proposal
# that is wider, and sees other modes through the prior, has weights of smaller variance.
_WIDER = 1.2
_PRIOR_SHARE = 0.1


@checked
def at_mode(model: LatentVariableModel, x: Data, observed: Observed = None) -> GaussianProposal:
    """The normal at the mode of p(z | x_R) with its curvature, 1.2 times as wide.

    A tenth of the draws come from the prior. The search starts at z = 0 or, where that is more
    probable, at the encoder's mean.

    Args:
        model: one with a latent z; it needs no encoder.
        x: data, (N, D).
        observed: which coordinates are observed, (N, D) or one row for all; None: every one.

    Returns:
        The proposal, which costs some Newton steps.

    Raises:
        ValueError: for a decoder that answers NaN.
        RuntimeError: where no mode is found.

    >>> at_mode(BernoulliPCA(torch.zeros(3, 2)), torch.ones(1, 3)).mean
    tensor([[0., 0.]])
    """
    _require_observed(x, observed)
    log_joint = model._log_joint_of(x, observed)
    start = _start_of_search(model, x, observed, log_joint)
    mode, precision = grids.find_modes(log_joint, start, tolerance=1e-4, accepted=0.1)
    factor = torch.linalg.inv(torch.linalg.cholesky(precision)).mT
    return GaussianProposal(mode, _WIDER * factor, prior_share=_PRIOR_SHARE)


@torch.no_grad()
def _start_of_search(
    model: LatentVariableModel,
    x: Tensor,
    observed: Observed,
    log_joint: Callable[[Tensor], Tensor],
) -> Float[Tensor, "N K"]:
    """z = 0 or the encoder's mean, whichever is more probable."""
    origin = x.new_zeros(len(x), model.latent_dim)
    log_joint_at_origin = log_joint(origin)
    require_decoded("log p(x, z) at z = 0", log_joint_at_origin)
    if not isinstance(model, VAE):
        return origin
    mean = from_encoder(model, x, observed).mean
    is_better = log_joint(mean) > log_joint_at_origin
    return torch.where(is_better[:, None], mean, origin)


def _require_observed(x: Tensor, observed: Observed) -> None:
    """Check that ``observed`` says of every coordinate of ``x`` whether it is there."""
    check(
        ("x", x, Float[Tensor, "... D"]),
        ("observed", observed, Bool[Tensor, "... D"] | None),
        finite=False,
    )


def require_decoded(what: str, value: Tensor) -> None:
    """Refuse NaN in ``what`` a model says at finite z: its decoder's, as data are checked before."""
    num_lost = int(value.isnan().sum())
    if num_lost:
        raise ValueError(
            f"{what} is NaN in {num_lost} of {value.numel()} places: the model's decoder overflows, or "
            "its weights are NaN. Look at what it returns."
        )


def require_encoded(mean: Tensor, variance: Tensor) -> None:
    """Refuse what is no normal distribution of z: an encoder's mean and variance."""
    remedy = "Look at its weights, or use estimators.at_mode, which needs no encoder."
    mean = mean.detach()
    variance = variance.detach()
    require_entries("the encoder's mean", mean, ~mean.isfinite(), "finite", remedy)
    is_wrong = (variance == 0) | ~variance.isfinite()
    legal = "finite and > 0 (the encoder returns its logarithm)"
    require_entries("the encoder's variance", variance, is_wrong, legal, remedy)


# -- weights and their mean -------------------------------------------------------------------------


@checked
def log_weights(
    model: LatentVariableModel,
    x: Data,
    proposal: GaussianProposal,
    num_samples: Count,
    *,
    generator: torch.Generator,
) -> Float[Tensor, "S N"]:
    """log p(x, z_s) − log q(z_s) for z_s ~ q, in bounded memory.

    Args:
        model: one with a latent z.
        x: data, (N, D).
        proposal: q, a normal distribution of z for every datum.
        num_samples: S, the draws of z a datum.
        generator: of the draws.

    Returns:
        Nats, (S, N).

    Raises:
        ValueError: for a decoder that answers NaN.

    >>> model, x = BernoulliPCA(torch.zeros(3, 2)), torch.ones(1, 3)
    >>> log_weights(model, x, from_prior(model, x), 2, generator=torch.Generator()).exp()
    tensor([[0.1250],
            [0.1250]])
    """
    bytes_of_weights = 8 * num_samples * len(x)
    what = f"{num_samples} weights a datum"
    require_memory(what, bytes_of_weights, "fewer num_samples or data")
    parts = []
    for rows in chunks(num_samples, x.element_size() * x.numel() * 6):
        z = proposal.sample(rows.stop - rows.start, generator=generator)
        log_joint = model.log_joint(x, z)
        require_decoded("log p(x, z) at draws from the proposal", log_joint)
        parts.append(log_joint - proposal.log_density(z))
    return torch.cat(parts)


def mean_over_data(log_weight: Float[Tensor, "S N"]) -> Estimate:
    """Mean over the data of log mean_s w_s, nats.

    The error of each logarithm is that of the mean of S weights by the delta method; the data are
    independent, so that the squares of these errors add up.
    """
    value = log_weight.logsumexp(dim=0) - math.log(len(log_weight))
    _, error = mean_and_error((log_weight - value).exp())
    is_lost = value == -math.inf
    if is_lost.any():
        row = int(is_lost.long().argmax())
        raise ValueError(
            f"all weights of row {row} of x are 0 in {value.dtype}: log p(x, z) overflows at every draw. "
            "Use float64, data nearer to the model, or another proposal."
        )
    error_of_mean = error.square().sum().sqrt().item() / len(error)
    return Estimate(value.mean().item(), error_of_mean, len(log_weight))


@checked
def iwae(
    model: LatentVariableModel,
    x: Data,
    num_samples: Annotated[int, Within(2)],
    *,
    generator: torch.Generator,
    proposal: ProposalRule = at_mode,
) -> Estimate:
    """log (1/S) Σ_s p(x, z_s)/q(z_s), z_s ~ q(z | x), mean over the data (Burda et al. 2016, Eq. 8).

    In expectation a lower bound of log p(x) that rises with S; for weights of finite variance the bias
    is −Var(w)/(2 S E[w]²) + O(1/S²) a datum.

    Args:
        model: one with a latent z.
        x: data, (N, D).
        num_samples: S, the draws of z a datum, at least 2.
        generator: of the draws.
        proposal: :func:`at_mode`, :func:`from_encoder` (what Burda et al. use) or
            :func:`from_prior`.

    Returns:
        Nats. The standard error, over z, is that of the weights' mean by the delta method and says
        nothing about a bias.

    Raises:
        ValueError: for an encoder that is not finite, and a decoder that answers NaN.

    >>> model, g = BernoulliPCA(torch.zeros(3, 2)), torch.Generator().manual_seed(0)
    >>> iwae(model, torch.ones(1, 3), 50, generator=g, proposal=from_prior)
    -2.0794 ± 0.0000 nats
    """
    with torch.no_grad():
        q = proposal(model, x)
        return mean_over_data(log_weights(model, x, q, num_samples, generator=generator))
