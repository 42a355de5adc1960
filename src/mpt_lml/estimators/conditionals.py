"""log p(x_j | x_R) of models that are an integral over z, estimated by importance weights and chains."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.checks import Count, checked
from mpt_lml.estimators.latent import at_mode, require_decoded, require_encoded
from mpt_lml.models.base import ConditionalModel
from mpt_lml.models.vae import VAE, LatentVariableModel
from mpt_lml.numerics import draw_normal, draw_uniform, log_likelihood


class _EstimatedConditional(ConditionalModel):
    """Conditionals that are estimated one mask at a time; Σ_M S(x; M) need not be log p(x)."""

    model: LatentVariableModel

    @property
    def data_device(self) -> torch.device | None:
        return self.model.data_device

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is something the model can have made."""
        self.model.require_data(x)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.stack([self._log_each(x, row.expand(len(x), -1)) for row in mask])


@final
@checked
@dataclass(eq=False)
class ImportanceConditional(_EstimatedConditional):
    """Self-normalized importance sampling: Σ_s w̄_s p(x_j | z_s) with w_s ∝ p(x_R, z_s)/q(z_s).

    The draws are those of ``estimators.at_mode``, and the same serve every coordinate of a mask.
    Consistent as S grows, with a bias of order 1/S.

    Args:
        model: one with a latent z.
        num_samples: S.
        generator: source of the draws.

    Raises:
        ValueError: (when it is used) for a decoder that answers NaN.
        RuntimeError: (when it is used) where no mode is found.

    >>> sampler = ImportanceConditional(
    ...     BernoulliPCA(torch.zeros(2, 1)), 9, generator=torch.Generator()
    ... )
    >>> sampler.log_conditional(torch.ones(1, 2), torch.tensor([[True, False]])).exp()
    tensor([[[0.5000, 1.0000]]])
    """

    model: LatentVariableModel
    num_samples: Count
    _: KW_ONLY
    generator: torch.Generator

    def __post_init__(self) -> None:
        self.num_features = self.model.num_features

    @torch.no_grad()
    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        q = at_mode(self.model, x, ~mask)
        z = q.sample(self.num_samples, generator=self.generator)
        factors = self.model.log_factors(x, z)
        require_decoded("log p(x_j | z) at draws from the proposal", factors)
        log_joint = self.model._log_prior(z) + factors.where(~mask, 0.0).sum(dim=-1)
        log_weights = (log_joint - q.log_density(z)).log_softmax(dim=0)
        return (log_weights[..., None] + factors).logsumexp(dim=0)


@final
@checked
@dataclass(eq=False)
class GibbsConditional(_EstimatedConditional):
    """Chains that alternate z given (x_R, x_A) and x_A given z; p(x_j | z) averaged along them.

    ``corrected=False`` is pseudo-Gibbs, the recursive encoding–decoding of Rezende et al. 2014
    (Appendix F) that the paper uses: right only where the encoder *is* the posterior.
    ``corrected=True`` accepts the encoder's z with the Metropolis–Hastings probability and is right
    for any encoder (Metropolis-within-Gibbs, Mattei & Frellsen 2018). Hidden coordinates start at the
    decoder's mean at z = 0, half of the steps are thrown away.

    Args:
        model: a ``VAE``: the encoder proposes z.
        num_steps: of each chain.
        generator: source of the draws.
        corrected: whether a z is accepted or the old one stays.
        num_chains: independent chains a datum.

    Raises:
        TypeError: for a model without an encoder.
        ValueError: (when it is used) for networks that answer NaN.

    >>> nothing, zero = lambda x: (0 * x[..., :1],) * 2, lambda z: z.new_zeros(*z.shape[:-1], 2)
    >>> model = VAE(nothing, zero, num_features=2, latent_dim=1)
    >>> chain = GibbsConditional(model, 4, generator=torch.Generator(), corrected=True)
    >>> chain.log_conditional(torch.ones(1, 2), torch.tensor([[True, False]])).exp()
    tensor([[[0.5000, 1.0000]]])
    """

    model: VAE
    num_steps: Count
    _: KW_ONLY
    generator: torch.Generator
    corrected: bool
    num_chains: Count = 1

    def __post_init__(self) -> None:
        self.num_features = self.model.num_features

    @torch.no_grad()
    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        start = self.model.decode(x.new_zeros(1, self.model.latent_dim))
        require_decoded("the decoder's output at z = 0", start)
        filled = torch.where(mask, start, x).expand(self.num_chains, -1, -1)
        z = None
        log_factors = []
        for step in range(self.num_steps):
            z = self._next_latent(filled, z)
            drawn = self.model.sample_given(z, generator=self.generator)
            filled = torch.where(mask, drawn, x)
            if step >= self.num_steps // 2:
                output = self.model._decoded(z)
                log_factors.append(log_likelihood(x, output, self.model.noise_variance))
        factors = torch.stack(log_factors).flatten(0, 1)
        require_decoded("log p(x_j | z) along the chain", factors)
        return factors.logsumexp(dim=0) - math.log(len(factors))

    def _next_latent(
        self, filled: Float[Tensor, "C N D"], z: Float[Tensor, "C N K"] | None
    ) -> Float[Tensor, "C N K"]:
        """The next z: the encoder's, or the old one where that is rejected."""
        mean, variance = self.model.encode(filled)
        require_encoded(mean, variance)
        noise = draw_normal(mean.shape, generator=self.generator, like=mean)
        proposed = mean + variance.sqrt() * noise
        if not self.corrected or z is None:
            return proposed

        log_joint = self.model._log_joint_of(filled.flatten(0, 1))

        def log_weight(latent: Tensor) -> Tensor:
            """log p(x, z) − log q(z | x) but for a constant, (C, N)."""
            square = (latent - mean).square() / variance
            return log_joint(latent.flatten(0, 1)).view(square.shape[:2]) + 0.5 * square.sum(dim=-1)

        log_ratio = log_weight(proposed) - log_weight(z)
        uniform = draw_uniform(log_ratio.shape, generator=self.generator, like=log_ratio)
        is_accepted = uniform.log() < log_ratio
        return torch.where(is_accepted[..., None], proposed, z)
