"""Where to look for p(z | x_R): normal proposals for importance weighting (floor 4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import quadrature
from mpt_lml.models.base import LatentVariableModel
from mpt_lml.models.vae import VAE
from mpt_lml.numerics import LOG_2PI


@dataclass(frozen=True)
class GaussianProposal:
    """A normal distribution of z for every datum: where to look for p(z | x).

    Attributes
    ----------
    mean : Tensor (N, K)
    factor : Tensor (N, K, K)
        Any L with L Lᵀ the covariance.
    prior_share : float
        Share of the draws that come from the prior instead (a defensive mixture, Hesterberg 1995):
        with a share a > 0 no weight exceeds p(x | z)/a, and their variance is finite.
    """

    mean: Float[Tensor, "N K"]
    factor: Float[Tensor, "N K K"]
    prior_share: float = 0.0

    def sample(self, num_samples: int, *, generator: torch.Generator) -> Float[Tensor, "S N K"]:
        """``num_samples`` draws for every datum."""
        shape = (num_samples, *self.mean.shape)
        noise = torch.randn(shape, generator=generator, dtype=self.mean.dtype)
        z = self.mean + (self.factor @ noise[..., None])[..., 0]
        if not self.prior_share:
            return z
        choice = torch.rand(shape[:2], generator=generator, dtype=self.mean.dtype)
        return torch.where((choice < self.prior_share)[..., None], noise, z)

    def log_density(self, z: Float[Tensor, "S N K"]) -> Float[Tensor, "S N"]:
        """log q(z), nats."""
        white = torch.linalg.solve(self.factor, (z - self.mean)[..., None])[..., 0]
        log_volume = torch.linalg.slogdet(self.factor).logabsdet
        constant = 0.5 * z.shape[-1] * LOG_2PI
        own = -0.5 * white.square().sum(dim=-1) - constant - log_volume
        if not self.prior_share:
            return own
        prior = -0.5 * z.square().sum(dim=-1) - constant
        return torch.logaddexp(
            own + math.log1p(-self.prior_share), prior + math.log(self.prior_share)
        )


def from_prior(
    model: LatentVariableModel, x: Float[Tensor, "N D"], observed: Bool[Tensor, "#N D"] | None
) -> GaussianProposal:
    """The prior N(0, I): knows nothing of x, and its weights have the largest variance."""
    identity = torch.eye(model.latent_dim, dtype=x.dtype, device=x.device)
    return GaussianProposal(x.new_zeros(len(x), model.latent_dim), identity.expand(len(x), -1, -1))


def from_encoder(
    model: LatentVariableModel, x: Float[Tensor, "N D"], observed: Bool[Tensor, "#N D"] | None
) -> GaussianProposal:
    """q(z | x) of a :class:`VAE`; hidden coordinates are filled with the prior mean of x.

    An encoder has never seen holes. What it says of a filled-in datum may be far from p(z | x_R) and
    too narrow, and then importance weights have no finite variance.
    """
    if not isinstance(model, VAE):
        raise TypeError(f"{type(model).__name__} has no encoder; use at_mode or from_prior.")
    if observed is not None:
        fill = model.decode(x.new_zeros(1, model.latent_dim)).detach()
        x = torch.where(observed, x, fill)
    mean, variance = model.encode(x)
    return GaussianProposal(mean, torch.diag_embed(variance.sqrt()))


def at_mode(
    model: LatentVariableModel,
    x: Float[Tensor, "N D"],
    observed: Bool[Tensor, "#N D"] | None,
    *,
    widen: float = 1.2,
    prior_share: float = 0.1,
) -> GaussianProposal:
    """The normal at the mode of p(z | x_R) with its curvature, ``widen`` times as wide.

    Wider than the Laplace approximation, because posteriors have heavier tails than the normal, and
    with a share of draws from the prior, which see the modes that the search did not find. The search
    starts at z = 0 or, where that is more probable, at the encoder's mean.
    """
    with torch.no_grad():
        start = _better_start(model, x, observed)
    mode, precision = quadrature.find_modes(
        lambda z: model.log_joint(x, z, observed), start, tolerance=1e-4, accepted=0.1
    )
    factor = torch.linalg.inv(torch.linalg.cholesky(precision)).mT
    return GaussianProposal(mode, widen * factor, prior_share)


def _better_start(
    model: LatentVariableModel, x: Float[Tensor, "N D"], observed: Bool[Tensor, "#N D"] | None
) -> Float[Tensor, "N K"]:
    zero = x.new_zeros(len(x), model.latent_dim)
    if not isinstance(model, VAE):
        return zero
    encoded = from_encoder(model, x, observed).mean
    better = model.log_joint(x, encoded, observed) > model.log_joint(x, zero, observed)
    return torch.where(better[:, None], encoded, zero)


ProposalRule = Callable[
    [LatentVariableModel, Tensor, "Tensor | None"],
    GaussianProposal,
]
