"""Probabilistic principal component analysis: every marginal and conditional in closed form (floor 2)."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.gaussian import LowRankPosterior
from mpt_lml.models.base import TractableModel
from mpt_lml.numerics import chunks
from mpt_lml.shapes import (
    require_count,
    require_data,
    require_finite,
    require_generator,
)

CHUNK_BYTES = 2**22  # 4 MiB a batch of masks stays in the cache: measured fastest


@final
class PPCA(TractableModel):
    """x = μ + W z + ε with z ~ N(0, I_K) and ε ~ N(0, σ² I_D), so x ~ N(μ, W Wᵀ + σ² I).

    Tipping & Bishop 1999; paper, Section 3 and Appendix B.

    Parameters
    ----------
    loadings : Tensor (D, K)
        W. K = 0 is allowed: independent coordinates.
    noise_variance : float or Tensor ()
        σ² > 0 (the paper's 1/σ² = 5 is ``noise_variance=0.2``).
    mean : Tensor (D,), optional
        μ, zero by default.

    Raises
    ------
    ValueError
        For shapes that do not fit, entries that are not finite, or σ² ≤ 0.
    """

    def __init__(
        self,
        loadings: Float[Tensor, "D K"],
        noise_variance: float | Tensor,
        mean: Float[Tensor, " D"] | None = None,
    ) -> None:
        if not isinstance(loadings, Tensor) or not loadings.is_floating_point():
            raise TypeError(f"loadings must be a floating-point tensor (D, K), got {loadings!r}.")
        if loadings.ndim != 2 or loadings.shape[0] == 0:
            raise ValueError(f"loadings must have shape (D, K), got {tuple(loadings.shape)}.")
        require_finite("loadings", loadings.detach())
        variance = torch.as_tensor(noise_variance, dtype=loadings.dtype, device=loadings.device)
        if variance.ndim != 0 or not torch.isfinite(variance) or variance <= 0:
            raise ValueError(
                f"noise_variance must be a single finite number > 0, got {noise_variance}. "
                "It is a variance (sigma squared), not a precision or a standard deviation."
            )
        if mean is None:
            mean = torch.zeros(loadings.shape[0], dtype=loadings.dtype, device=loadings.device)
        if mean.shape != loadings.shape[:1]:
            raise ValueError(
                f"mean must have shape ({loadings.shape[0]},) to fit loadings "
                f"{tuple(loadings.shape)}, got {tuple(mean.shape)}."
            )
        require_finite("mean", mean.detach())
        self.loadings = loadings
        self.noise_variance = variance
        self.mean = mean.to(loadings)

    @property
    def num_features(self) -> int:
        """D."""
        return self.loadings.shape[0]

    @property
    def latent_dim(self) -> int:
        """K."""
        return self.loadings.shape[1]

    @property
    def covariance(self) -> Float[Tensor, "D D"]:
        """S = W Wᵀ + σ² I, shape (D, D)."""
        identity = torch.eye(
            self.num_features, dtype=self.loadings.dtype, device=self.loadings.device
        )
        return self.loadings @ self.loadings.T + self.noise_variance * identity

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is (N, D), finite, of the loadings' dtype."""
        require_data(x, self.num_features)
        if x.dtype != self.loadings.dtype:
            raise TypeError(
                f"x is {x.dtype} but the loadings are {self.loadings.dtype}. "
                f"Convert with x.to({self.loadings.dtype})."
            )

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return self._posterior(observed).log_marginal(x - self.mean)

    def _mean_log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        second_moment = self._second_moment(x)
        parts = [
            self._posterior(observed[rows]).mean_log_marginal(second_moment)
            for rows in chunks(len(observed), self._bytes_per_mask(), CHUNK_BYTES)
        ]
        return torch.cat(parts)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        return self._posterior(~mask).log_conditional(x - self.mean)

    def _mean_log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        # The data enter through their second moment: O(D² K) a mask, N drops out.
        second_moment = self._second_moment(x)
        parts = [
            self._posterior(~mask[rows]).mean_log_conditional(second_moment)
            for rows in chunks(len(mask), self._bytes_per_mask(), CHUNK_BYTES)
        ]
        return torch.cat(parts)

    def posterior(
        self, x: Float[Tensor, "N D"]
    ) -> tuple[Float[Tensor, "N K"], Float[Tensor, "K K"]]:
        """Mean (N, K) and covariance (K, K) of p(z | x)."""
        self.require_data(x)
        everything = torch.ones_like(self.mean, dtype=torch.bool)[None]
        covariance = self._posterior(everything).inverse[0]
        return (x - self.mean) @ self.loadings @ covariance / self.noise_variance, covariance

    def sample(self, n: int, *, generator: torch.Generator) -> Float[Tensor, "N D"]:
        """``n`` draws from the model, shape (n, D)."""
        require_count("n", n, 1)
        require_generator(generator)
        dtype = self.loadings.dtype
        latent = torch.randn(n, self.latent_dim, generator=generator, dtype=dtype)
        noise = torch.randn(n, self.num_features, generator=generator, dtype=dtype)
        return self.mean + latent @ self.loadings.T + self.noise_variance.sqrt() * noise

    @classmethod
    def fit_closed_form(
        cls,
        x: Float[Tensor, "N D"],
        latent_dim: int,
        *,
        ddof: int = 0,
        noise_variance: float | None = None,
        mean: Float[Tensor, " D"] | None = None,
    ) -> PPCA:
        """Maximum likelihood in closed form (Tipping & Bishop 1999, Section 3.2).

        μ is the sample mean, σ² the mean of the D − K smallest eigenvalues of the sample covariance
        and W = U (Λ − σ² I)^{1/2} from the K largest, with max(Λ − σ², 0) where σ² is given.

        Parameters
        ----------
        x : Tensor (N, D)
        latent_dim : int
            K, in 0..D−1.
        ddof : int
            The covariance divides by N − ddof: 0 is maximum likelihood, 1 is what scikit-learn's
            ``PCA`` uses.
        noise_variance, mean : optional
            Known values, which are then not estimated (the paper trains W alone).

        Raises
        ------
        ValueError
            When K is outside 0..D−1, or nothing is left for the noise (σ² = 0).
        """
        require_data(x, x.shape[-1])
        require_count("latent_dim", latent_dim, 0, x.shape[1] - 1)
        require_count("ddof", ddof, 0, len(x) - 1)
        center = x.mean(dim=0) if mean is None else mean
        covariance = (x - center).T @ (x - center) / (len(x) - ddof)
        eigenvalues, eigenvectors = torch.linalg.eigh(covariance)
        top = slice(x.shape[1] - latent_dim, None)
        if noise_variance is None:
            variance = eigenvalues[: x.shape[1] - latent_dim].mean()
            if variance <= torch.finfo(x.dtype).eps * eigenvalues[-1]:
                raise ValueError(
                    f"latent_dim={latent_dim} explains all the variance of these {len(x)} data, "
                    "which leaves a noise variance of 0. Use fewer latent dimensions."
                )
        else:
            variance = torch.as_tensor(noise_variance, dtype=x.dtype)
        scale = (eigenvalues[top] - variance).clamp(min=0.0).sqrt()
        return cls((eigenvectors[:, top] * scale).flip(1), variance, center)

    def _posterior(self, observed: Bool[Tensor, "P D"]) -> LowRankPosterior:
        return LowRankPosterior.of(self.loadings, self.noise_variance, observed)

    def _second_moment(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "D D"]:
        centered = x - self.mean
        return centered.T @ centered / len(x)

    def _bytes_per_mask(self) -> int:
        return 8 * self.num_features * (4 * self.latent_dim + 6)
