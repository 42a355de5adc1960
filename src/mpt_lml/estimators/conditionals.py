"""log p(x_j | x_R) of latent-variable models: exact on a grid, estimated by sampling (floor 4).

Each is a :class:`ConditionalModel`, so curves and areas work with them. Only the grid's belong to
one joint distribution; for the others Σ_M S(x; M) need not be log p(x).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import quadrature
from mpt_lml.estimators.proposals import ProposalRule, at_mode
from mpt_lml.models.base import ConditionalModel, LatentVariableModel, TractableModel
from mpt_lml.models.vae import VAE
from mpt_lml.numerics import chunks
from mpt_lml.quadrature import Grid
from mpt_lml.shapes import (
    require_count,
    require_generator,
)


@final
class GridConditional(TractableModel):
    """A latent-variable model with its prior on a grid: the exact sibling of everything below.

    K ≤ 3. The decoder is evaluated at the nodes once; no encoder is asked. It is a finite mixture,
    so Proposition 1 holds to rounding on any grid, and log p(x) converges as the grid is refined.
    Gradients of the model's parameters are kept.
    """

    def __init__(self, model: LatentVariableModel, grid: Grid) -> None:
        quadrature.require_grid(grid, model.latent_dim)
        self.model, self.grid = model, grid

    @property
    def num_features(self) -> int:
        """D."""
        return self.model.num_features

    def require_data(self, x: Tensor) -> None:
        """Check ``x`` as the model does."""
        self.model.require_data(x)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        parts = []
        for factors in self._factors(x):
            joint = torch.einsum("gnd,pd->png", factors, observed.to(x))
            parts.append((joint + self.grid.log_weights.to(x)).logsumexp(dim=-1))
        return torch.cat(parts, dim=1)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        parts = []
        for factors in self._factors(x):
            seen = torch.einsum("gnd,pd->png", factors, (~mask).to(x))
            omega = (seen + self.grid.log_weights.to(x)).softmax(dim=-1)
            top = factors.detach().amax(dim=0)
            mixed = torch.einsum("png,gnd->pnd", omega, (factors - top).exp())
            parts.append(mixed.log() + top)
        return torch.cat(parts, dim=1)

    def sample(self, n: int, *, generator: torch.Generator) -> Float[Tensor, "n D"]:
        """``n`` draws from the mixture."""
        require_count("n", n, 1)
        require_generator(generator)
        weights = self.grid.log_weights.exp()
        nodes = torch.multinomial(weights, n, replacement=True, generator=generator)
        return self.model.sample_given(self.grid.nodes[nodes], generator=generator)

    def _factors(self, x: Float[Tensor, "N D"]) -> Iterator[Float[Tensor, "G N D"]]:
        """log p(x_d | z_g) for some data at a time."""
        nodes = self.grid.nodes.to(x)
        for rows in chunks(len(x), x.element_size() * 4 * len(self.grid) * self.num_features):
            yield self.model.log_table(x[rows], nodes)


class EstimatedConditional(ConditionalModel):
    """Conditionals of a latent-variable model that are estimated one mask at a time."""

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
    def _one(self, x: Float[Tensor, "N D"], hidden: Bool[Tensor, " D"]) -> Float[Tensor, "N D"]:
        """Of every coordinate, under one mask for all data."""


@final
class ImportanceConditional(EstimatedConditional):
    """Self-normalized importance sampling: Σ_s w̄_s p(x_j | z_s) with w_s ∝ p(x_R, z_s)/q(z_s).

    Consistent as S grows, with a bias of order 1/S; the same draws serve every coordinate of a mask.
    """

    def __init__(
        self,
        model: LatentVariableModel,
        num_samples: int,
        *,
        generator: torch.Generator,
        proposal: ProposalRule = at_mode,
    ) -> None:
        require_count("num_samples", num_samples, 1)
        require_generator(generator)
        self.model, self.num_samples = model, num_samples
        self.generator, self.proposal = generator, proposal

    def _one(self, x: Float[Tensor, "N D"], hidden: Bool[Tensor, " D"]) -> Float[Tensor, "N D"]:
        observed = ~hidden[None]
        q = self.proposal(self.model, x, observed)
        z = q.sample(self.num_samples, generator=self.generator)
        factors = self.model.log_factors(x, z)
        joint = self.model.log_prior(z) + factors.where(observed, 0.0).sum(dim=-1)
        weight = (joint - q.log_density(z)).log_softmax(dim=0)
        return (weight[..., None] + factors).logsumexp(dim=0)


@final
class GibbsConditional(EstimatedConditional):
    """Chains that alternate z given (x_R, x_A) and x_A given z; p(x_j | z) averaged along them.

    ``corrected=False`` is pseudo-Gibbs, the recursive encoding–decoding of Rezende et al. 2014
    (Appendix F) that the paper uses: z comes from the encoder. It converges to the conditionals of
    the model only where the encoder *is* the posterior. ``corrected=True`` accepts the encoder's z
    with the Metropolis–Hastings probability and converges to the right ones for any encoder
    (Metropolis-within-Gibbs, Mattei & Frellsen 2018).

    The first half of the steps is thrown away. Hidden coordinates start at the decoder's mean at
    z = 0.
    """

    model: VAE

    def __init__(
        self,
        model: VAE,
        num_steps: int,
        *,
        generator: torch.Generator,
        corrected: bool,
        num_chains: int = 1,
    ) -> None:
        if not isinstance(model, VAE):
            raise TypeError(f"GibbsConditional needs a VAE with its encoder, got {model!r}.")
        require_count("num_steps", num_steps, 1)
        require_count("num_chains", num_chains, 1)
        require_generator(generator)
        self.model, self.num_steps, self.num_chains = model, num_steps, num_chains
        self.generator, self.corrected = generator, corrected

    def impute(self, x: Float[Tensor, "N D"], mask: Bool[Tensor, "N D"]) -> Float[Tensor, "C N D"]:
        """x with a draw of its hidden coordinates at the end of every chain, (chains, N, D)."""
        with torch.no_grad():
            return self._run(x, mask)[0]

    def _one(self, x: Float[Tensor, "N D"], hidden: Bool[Tensor, " D"]) -> Float[Tensor, "N D"]:
        return self._run(x, hidden[None].expand(len(x), -1))[1]

    def _run(
        self, x: Float[Tensor, "N D"], hidden: Bool[Tensor, "N D"]
    ) -> tuple[Float[Tensor, "C N D"], Float[Tensor, "N D"]]:
        model, chains = self.model, (self.num_chains, -1, -1)
        fill = model.decode(x.new_zeros(1, model.latent_dim))
        filled = torch.where(hidden, fill, x).expand(*chains)
        z = None
        kept: list[Tensor] = []
        for step in range(self.num_steps):
            z = self._latent(filled, z)
            drawn = model.sample_given(z, generator=self.generator)
            filled = torch.where(hidden, drawn, x)
            if step >= self.num_steps // 2:
                kept.append(model.log_factors(x, z))
        log_mean = torch.stack(kept).flatten(0, 1).logsumexp(dim=0)
        return filled, log_mean - math.log(len(kept) * self.num_chains)

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
