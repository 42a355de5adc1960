"""Bernoulli PCA (logistic PCA), the linear VAE for binary data, by quadrature (floor 2).

On a grid z_1..z_G the model is a mixture of G products of Bernoullis. Nothing is ever tiled to
(N, D, G), because the data enter the posterior through K numbers a datum: with logits
ℓ_gd = w_d·z_g + b_d,

    log p(x_R | z_g) = z_g·(W_Rᵀ x_R) + b_R·x_R − Σ_{d∈R} softplus(ℓ_gd)   (N, K) times (K, G)
    p(x_j | x_R)     = Σ_g ω_g(x_R) p(x_j | z_g)                           (N, G) times (G, D)
    ω_g(x_R)         ∝ w_g p(x_R | z_g)
"""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import quadrature
from mpt_lml.models.base import LatentVariableModel, TractableModel
from mpt_lml.numerics import chunks
from mpt_lml.quadrature import Grid
from mpt_lml.shapes import (
    require_binary,
    require_boolean_rows,
    require_count,
    require_data,
    require_finite,
    require_generator,
)

CACHE_BYTES = 2**24
"""Working memory of a chunk: larger ones leave the cache, and the kernel clears pages all the time."""


@final
class BernoulliPCA(TractableModel, LatentVariableModel):
    """x_d ~ Bernoulli(sigmoid(w_d·z + b_d)) independently given z ~ N(0, I_K).

    Paper, Section 3.1 ("linear VAE", Figure 3, upper row); Tipping 1998.

    Parameters
    ----------
    loadings : Tensor (D, K)
        W, with K ≤ 3.
    offset : Tensor (D,), optional
        b, the logits at z = 0; zero by default.
    grid : Grid, optional
        Where z lives; 40 nodes an axis on [−5, 5] by default (20 for K = 3). All methods without
        "adaptive" in their name are exact for the mixture on this grid.

    Raises
    ------
    ValueError
        For K > 3 (``estimators.iwae`` and ``estimators.ais`` need no grid), shapes that do not fit,
        entries that are not finite.
    """

    def __init__(
        self,
        loadings: Float[Tensor, "D K"],
        offset: Float[Tensor, " D"] | None = None,
        *,
        grid: Grid | None = None,
    ) -> None:
        if not isinstance(loadings, Tensor) or not loadings.is_floating_point():
            raise TypeError(f"loadings must be a floating-point tensor (D, K), got {loadings!r}.")
        if loadings.ndim != 2 or 0 in loadings.shape:
            raise ValueError(
                f"loadings must have shape (D, K), D, K >= 1, got {tuple(loadings.shape)}."
            )
        require_finite("loadings", loadings.detach())
        if offset is None:
            offset = torch.zeros_like(loadings[:, 0])
        if offset.shape != loadings.shape[:1]:
            raise ValueError(
                f"offset must have shape ({loadings.shape[0]},) to fit loadings "
                f"{tuple(loadings.shape)}, got {tuple(offset.shape)}."
            )
        require_finite("offset", offset.detach())
        latent_dim = loadings.shape[1]
        if grid is None:
            grid = quadrature.trapezoid(latent_dim, 40 if latent_dim < 3 else 20)
        quadrature.require_grid(grid, latent_dim)
        self.loadings = loadings
        self.offset = offset.to(loadings)
        self.grid = grid.to(loadings)

    @property
    def num_features(self) -> int:
        """D."""
        return self.loadings.shape[0]

    @property
    def latent_dim(self) -> int:
        """K."""
        return self.loadings.shape[1]

    def logits(self, z: Float[Tensor, "... K"]) -> Float[Tensor, "... D"]:
        """ℓ(z) = W z + b."""
        return z @ self.loadings.T + self.offset

    def log_factors(
        self, x: Float[Tensor, "N D"], z: Float[Tensor, "*S N K"]
    ) -> Float[Tensor, "*S N D"]:
        """log p(x_d | z) for every datum and its own z, nats, (..., N, D)."""
        logits = self.logits(z)
        return x * logits - F.softplus(logits)

    def sample_given(
        self, z: Float[Tensor, "*S K"], *, generator: torch.Generator
    ) -> Float[Tensor, "*S D"]:
        """One x ~ p(x | z) for every z, zeros and ones."""
        probability = self.logits(z).sigmoid()
        noise = torch.rand(probability.shape, generator=generator, dtype=probability.dtype)
        return (noise < probability).to(probability)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        parts = [
            self._log_weights(x, observed[rows]).logsumexp(dim=-1)
            for rows in chunks(len(observed), self._bytes_per_mask(x), CACHE_BYTES)
        ]
        return torch.cat(parts)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        logits = self.logits(self.grid.nodes)
        parts = [
            _log_mixture(x, self._log_weights(x, ~mask[rows]).softmax(dim=-1), logits)
            for rows in chunks(len(mask), self._bytes_per_mask(x), CACHE_BYTES)
        ]
        return torch.cat(parts)

    def posterior_weights(
        self, x: Float[Tensor, "N D"], observed: Bool[Tensor, "P D"]
    ) -> Float[Tensor, "P N G"]:
        """ω_g(x_R), the probability of every node given x_R, (P, N, G); the prior's for empty R."""
        self.require_data(x)
        require_boolean_rows("observed", observed, self.num_features)
        return self._log_weights(x, observed).softmax(dim=-1)

    def posterior_grid(
        self,
        x: Float[Tensor, "N D"],
        observed: Bool[Tensor, " D"] | None = None,
        *,
        nodes_per_axis: int = 11,
        extent: float = 5.0,
    ) -> Grid:
        """A grid around the mode of p(z | x_R) for every datum; everything observed by default.

        The posterior is log-concave, so the mode is the only one.
        """
        self.require_data(x)
        keep = None if observed is None else observed[None]
        mode, precision = quadrature.find_modes(
            lambda z: self.log_joint(x, z, keep), torch.zeros_like(x[:, : self.latent_dim])
        )
        return quadrature.adaptive(
            lambda z: self.log_joint(x, z.transpose(0, 1), keep).T,
            mode,
            precision,
            nodes_per_axis=nodes_per_axis,
            extent=extent,
        )

    def adaptive_log_marginal(
        self, x: Float[Tensor, "N D"], *, nodes_per_axis: int = 11, extent: float = 5.0
    ) -> Float[Tensor, " N"]:
        """log p(x) of the model with continuous z, nats, (N,): every datum on its own grid.

        The shared grid plays no role here; the difference from :meth:`log_marginal` is its error.
        With hundreds of pixels a posterior is nearly normal and the defaults leave an error below
        1e-5; with a handful its tails are the prior's, longer than the curvature at the mode says,
        and ``extent`` has to grow.
        """
        parts = []
        per_datum = 8 * 4 * self.num_features * nodes_per_axis**self.latent_dim
        for rows in chunks(len(x), per_datum, CACHE_BYTES):
            grid = self.posterior_grid(x[rows], nodes_per_axis=nodes_per_axis, extent=extent)
            likelihood = self.log_factors(x[rows], grid.nodes.transpose(0, 1)).sum(dim=-1)
            parts.append((grid.log_weights + likelihood.T).logsumexp(dim=-1))
        return torch.cat(parts)

    def sample(self, n: int, *, generator: torch.Generator) -> Float[Tensor, "N D"]:
        """``n`` draws of x from the mixture on the grid, zeros and ones, (n, D)."""
        require_count("n", n, 1)
        require_generator(generator)
        weights = self.grid.log_weights.exp()
        nodes = torch.multinomial(weights, n, replacement=True, generator=generator)
        return self.sample_given(self.grid.nodes[nodes], generator=generator)

    def _log_weights(
        self, x: Float[Tensor, "N D"], observed: Bool[Tensor, "P D"]
    ) -> Float[Tensor, "P N G"]:
        """log w_g + log p(x_R | z_g)."""
        keep = observed.to(x)
        seen = keep[:, None, :] * x
        fit = (seen @ self.loadings) @ self.grid.nodes.T + (seen @ self.offset)[..., None]
        price = keep @ F.softplus(self.logits(self.grid.nodes)).T
        return self.grid.log_weights + fit - price[:, None, :]

    def _bytes_per_mask(self, x: Float[Tensor, "N D"]) -> int:
        return x.element_size() * len(x) * (3 * len(self.grid) + 4 * self.num_features)

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is (N, D), zeros and ones, of the loadings' dtype."""
        require_data(x, self.num_features)
        require_binary(x)
        if x.dtype != self.loadings.dtype:
            raise TypeError(
                f"x is {x.dtype} but the loadings are {self.loadings.dtype}. "
                f"Convert with x.to({self.loadings.dtype})."
            )


def _log_mixture(
    x: Float[Tensor, "N D"], weights: Float[Tensor, "... N G"], logits: Float[Tensor, "G D"]
) -> Float[Tensor, "... N D"]:
    """log Σ_g ω_g p(x_d | z_g); ones and zeros each by their own product, so neither is 1 − p."""
    tiny = torch.finfo(x.dtype).tiny
    one, zero = weights @ logits.sigmoid(), weights @ (-logits).sigmoid()
    return (x * one + (1 - x) * zero).clamp(min=tiny).log()
