"""Models that are an integral over z: log p(x) and log p(x_j | x_R) by importance weights and chains."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import grids
from mpt_lml.models.base import ConditionalModel, LatentVariableModel
from mpt_lml.models.vae import VAE
from mpt_lml.numerics import LOG_2PI, chunks, mean_and_error
from mpt_lml.results import Estimate
from mpt_lml.shapes import require_count, require_generator

__all__ = [
    "GaussianProposal",
    "GibbsConditional",
    "ImportanceConditional",
    "at_mode",
    "from_encoder",
    "from_prior",
    "iwae",
    "log_weights",
]


@dataclass(frozen=True)
class GaussianProposal:
    """N(mean, factor factorᵀ) of z for every datum, (N, K) and (N, K, K): where to look for p(z | x).

    ``prior_share`` of the draws come from the prior instead (a defensive mixture, Hesterberg 1995):
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


_Data = Float[Tensor, "N D"]
_Observed = Bool[Tensor, "#N D"] | None
ProposalRule = Callable[[LatentVariableModel, _Data, _Observed], GaussianProposal]


def from_prior(model: LatentVariableModel, x: _Data, observed: _Observed) -> GaussianProposal:
    """The prior N(0, I): knows nothing of x, and its weights have the largest variance."""
    identity = torch.eye(model.latent_dim, dtype=x.dtype, device=x.device)
    return GaussianProposal(x.new_zeros(len(x), model.latent_dim), identity.expand(len(x), -1, -1))


def from_encoder(model: LatentVariableModel, x: _Data, observed: _Observed) -> GaussianProposal:
    """q(z | x) of a :class:`VAE`; hidden coordinates are filled with the decoder's mean at z = 0.

    An encoder has never seen holes. What it says of a filled-in datum may be far from p(z | x_R) and
    too narrow, and then importance weights have no finite variance. Raises ``TypeError`` for a model
    without an encoder.
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
    x: _Data,
    observed: _Observed,
    *,
    widen: float = 1.2,
    prior_share: float = 0.1,
) -> GaussianProposal:
    """The normal at the mode of p(z | x_R) with its curvature, ``widen`` times as wide.

    Wider than the Laplace approximation, because posteriors have heavier tails than the normal, and
    with a share of draws from the prior, which see the modes that the search did not find. The search
    starts at z = 0 or, where that is more probable, at the encoder's mean.
    """
    start = x.new_zeros(len(x), model.latent_dim)
    if isinstance(model, VAE):
        with torch.no_grad():
            mean = from_encoder(model, x, observed).mean
            better = model.log_joint(x, mean, observed) > model.log_joint(x, start, observed)
            start = torch.where(better[:, None], mean, start)
    mode, precision = grids.find_modes(
        lambda z: model.log_joint(x, z, observed), start, tolerance=1e-4, accepted=0.1
    )
    factor = torch.linalg.inv(torch.linalg.cholesky(precision)).mT
    return GaussianProposal(mode, widen * factor, prior_share)


def log_weights(
    model: LatentVariableModel,
    x: Float[Tensor, "N D"],
    proposal: GaussianProposal,
    num_samples: int,
    *,
    generator: torch.Generator,
) -> Float[Tensor, "S N"]:
    """log p(x, z_s) − log q(z_s) for z_s ~ q, nats, (S, N), in bounded memory."""
    parts = []
    for rows in chunks(num_samples, x.element_size() * x.numel() * 6):
        z = proposal.sample(rows.stop - rows.start, generator=generator)
        parts.append(model.log_joint(x, z) - proposal.log_density(z))
    return torch.cat(parts)


def log_mean_weight(log_weight: Float[Tensor, "S B"]) -> tuple[Tensor, Tensor]:
    """Logarithm of the mean of S weights, and its standard error by the delta method."""
    value = log_weight.logsumexp(dim=0) - math.log(len(log_weight))
    return value, mean_and_error((log_weight - value).exp())[1]


def mean_over_data(log_weight: Float[Tensor, "S N"]) -> Estimate:
    """Mean of log mean_s w_s; its error adds up those of the data, which are independent."""
    value, error = log_mean_weight(log_weight)
    total = error.square().sum().sqrt().item() / len(error)
    return Estimate(value.mean().item(), total, len(log_weight))


def iwae(
    model: LatentVariableModel,
    x: Float[Tensor, "N D"],
    num_samples: int,
    *,
    generator: torch.Generator,
    proposal: ProposalRule = at_mode,
) -> Estimate:
    """log (1/S) Σ_s p(x, z_s)/q(z_s), z_s ~ q(z | x), mean over the data, nats.

    Burda et al. 2016, Eq. 8. In expectation a lower bound of log p(x) that rises with S; for weights
    of finite variance the bias is −Var(w)/(2 S E[w]²) + O(1/S²) a datum. The standard error is that of
    the weights' mean by the delta method: over z, with the data held fixed. It says nothing about a
    bias. ``proposal`` is :func:`at_mode`, :func:`from_encoder` (what Burda et al. use) or
    :func:`from_prior`.
    """
    require_count("num_samples", num_samples, 2)
    require_generator(generator)
    model.require_data(x)
    with torch.no_grad():
        q = proposal(model, x, None)
        return mean_over_data(log_weights(model, x, q, num_samples, generator=generator))


class _EstimatedConditional(ConditionalModel):
    """Conditionals that are estimated one mask at a time; Σ_M S(x; M) need not be log p(x)."""

    model: LatentVariableModel

    @property
    def num_features(self) -> int:
        """D."""
        return self.model.num_features

    def require_data(self, x: Tensor) -> None:
        """Check ``x`` as the model does."""
        self.model.require_data(x)

    @torch.no_grad()
    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.stack([self._one(x, hidden) for hidden in mask])

    @abstractmethod
    def _one(self, x: Float[Tensor, "N D"], hidden: Bool[Tensor, " D"]) -> Float[Tensor, "N D"]: ...


@final
@dataclass(frozen=True, eq=False)
class ImportanceConditional(_EstimatedConditional):
    """Self-normalized importance sampling: Σ_s w̄_s p(x_j | z_s) with w_s ∝ p(x_R, z_s)/q(z_s).

    Consistent as S grows, with a bias of order 1/S; the same draws serve every coordinate of a mask.
    """

    model: LatentVariableModel
    num_samples: int
    _: KW_ONLY
    generator: torch.Generator
    proposal: ProposalRule = at_mode

    def __post_init__(self) -> None:
        require_count("num_samples", self.num_samples, 1)
        require_generator(self.generator)

    def _one(self, x: Float[Tensor, "N D"], hidden: Bool[Tensor, " D"]) -> Float[Tensor, "N D"]:
        observed = ~hidden[None]
        q = self.proposal(self.model, x, observed)
        z = q.sample(self.num_samples, generator=self.generator)
        factors = self.model.log_factors(x, z)
        joint = self.model.log_prior(z) + factors.where(observed, 0.0).sum(dim=-1)
        weight = (joint - q.log_density(z)).log_softmax(dim=0)
        return (weight[..., None] + factors).logsumexp(dim=0)


@final
@dataclass(frozen=True, eq=False)
class GibbsConditional(_EstimatedConditional):
    """Chains that alternate z given (x_R, x_A) and x_A given z; p(x_j | z) averaged along them.

    ``corrected=False`` is pseudo-Gibbs, the recursive encoding–decoding of Rezende et al. 2014
    (Appendix F) that the paper uses: z comes from the encoder. It converges to the conditionals of
    the model only where the encoder *is* the posterior. ``corrected=True`` accepts the encoder's z
    with the Metropolis–Hastings probability and converges to the right ones for any encoder
    (Metropolis-within-Gibbs, Mattei & Frellsen 2018).

    The first half of the steps is thrown away. Hidden coordinates start at the decoder's mean at
    z = 0. Raises ``TypeError`` for a model without an encoder.
    """

    model: VAE
    num_steps: int
    _: KW_ONLY
    generator: torch.Generator
    corrected: bool
    num_chains: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.model, VAE):
            raise TypeError(f"GibbsConditional needs a VAE with its encoder, got {self.model!r}.")
        require_count("num_steps", self.num_steps, 1)
        require_count("num_chains", self.num_chains, 1)
        require_generator(self.generator)

    def _one(self, x: Float[Tensor, "N D"], hidden: Bool[Tensor, " D"]) -> Float[Tensor, "N D"]:
        fill = self.model.decode(x.new_zeros(1, self.model.latent_dim))
        filled = torch.where(hidden, fill, x).expand(self.num_chains, -1, -1)
        z = None
        kept: list[Tensor] = []
        for step in range(self.num_steps):
            z = self._latent(filled, z)
            drawn = self.model.sample_given(z, generator=self.generator)
            filled = torch.where(hidden, drawn, x)
            if step >= self.num_steps // 2:
                kept.append(self.model.log_factors(x, z))
        factors = torch.stack(kept).flatten(0, 1)
        return factors.logsumexp(dim=0) - math.log(len(factors))

    def _latent(
        self, filled: Float[Tensor, "C N D"], z: Float[Tensor, "C N K"] | None
    ) -> Float[Tensor, "C N K"]:
        """The next z: the encoder's, or the old one where that is rejected."""
        mean, variance = self.model.encode(filled)
        noise = torch.randn(mean.shape, generator=self.generator, dtype=mean.dtype)
        proposed = mean + variance.sqrt() * noise
        if not self.corrected or z is None:
            return proposed

        def log_weight(at: Tensor) -> Tensor:
            white = (at - mean).square() / variance + variance.log()
            flat = (filled.flatten(0, 1), at.flatten(0, 1))
            return self.model.log_joint(*flat).view(at.shape[:2]) + 0.5 * white.sum(dim=-1)

        ratio = log_weight(proposed) - log_weight(z)
        uniform = torch.rand(ratio.shape, generator=self.generator, dtype=ratio.dtype)
        return torch.where((uniform.log() < ratio)[..., None], proposed, z)
