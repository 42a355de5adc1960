"""Conditioning a Gaussian, as the textbook writes it and as low-rank structure allows (floor 1).

The model is N(μ, W Wᵀ + σ² I) with loadings W (D, K). For an observed set R,

    A_R = I + W_Rᵀ W_R / σ²                      (K, K)
    E[z | x_R] = A_R⁻¹ W_Rᵀ (x_R − μ_R) / σ²
    p(x_j | x_R) = N(μ_j + w_jᵀ E[z | x_R],  σ² + w_jᵀ A_R⁻¹ w_j)

which never forms a D×D inverse (Woodbury identity; Tipping & Bishop 1999; paper, Eqs. 6–7 and
Appendix B with the sign of Eq. 7 corrected). Masks are one batch axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.numerics import LOG_2PI, cholesky, log_normal


def log_density(
    x: Float[Tensor, "N D"], mean: Float[Tensor, " D"], covariance: Float[Tensor, "D D"]
) -> Float[Tensor, " N"]:
    """log N(x; mean, covariance), shape (N,), nats, by a dense Cholesky factorization."""
    factor = cholesky(covariance, "covariance")
    white = torch.linalg.solve_triangular(factor, (x - mean).T, upper=False)
    log_det = 2.0 * factor.diagonal().log().sum()
    return -0.5 * (x.shape[1] * LOG_2PI + log_det + white.square().sum(dim=0))


def condition_dense(
    x: Float[Tensor, "N D"],
    mean: Float[Tensor, " D"],
    covariance: Float[Tensor, "D D"],
    mask: Bool[Tensor, " D"],
) -> tuple[Float[Tensor, "N M"], Float[Tensor, "M M"]]:
    """Mean (N, M) and covariance (M, M) of x_A given x_R, from the blocks of a dense covariance.

    Paper, Eqs. 6–7 with the minus sign: S_AA − S_AR S_RR⁻¹ S_RA. The exact sibling of
    :class:`LowRankPosterior`.
    """
    cross, observed = covariance[mask][:, ~mask], covariance[~mask][:, ~mask]
    gain = torch.linalg.solve(observed, cross.T).T
    conditional_mean = mean[mask] + (x - mean)[:, ~mask] @ gain.T
    return conditional_mean, covariance[mask][:, mask] - gain @ cross.T


@dataclass(frozen=True)
class LowRankPosterior:
    """p(z | x_R) for P observed sets at once: all that the conditionals of x need.

    Attributes
    ----------
    keep : Tensor (P, D)
        1 where observed, 0 where masked.
    inverse : Tensor (P, K, K)
        A_R⁻¹.
    log_det : Tensor (P,)
        log det A_R.
    """

    loadings: Float[Tensor, "D K"]
    noise_variance: Float[Tensor, ""]
    keep: Float[Tensor, "P D"]
    inverse: Float[Tensor, "P K K"]
    log_det: Float[Tensor, " P"]

    @classmethod
    def of(
        cls,
        loadings: Float[Tensor, "D K"],
        noise_variance: Float[Tensor, ""],
        observed: Bool[Tensor, "P D"],
    ) -> LowRankPosterior:
        """Factorize A_R for every row R of ``observed``; cost O(P (D K² + K³))."""
        keep = observed.to(loadings.dtype)
        dim = loadings.shape[1]
        gram = (keep @ _outer(loadings)).view(len(keep), dim, dim)
        identity = torch.eye(dim, dtype=loadings.dtype, device=loadings.device)
        factor = cholesky(identity + gram / noise_variance, "I + W_R' W_R / noise_variance")
        log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        return cls(loadings, noise_variance, keep, torch.cholesky_inverse(factor), log_det)

    def variance(self) -> Float[Tensor, "P D"]:
        """Var(x_j | x_R) = σ² + w_jᵀ A_R⁻¹ w_j for every coordinate j, shape (P, D)."""
        return self.noise_variance + self.inverse.flatten(1) @ _outer(self.loadings).T

    def log_conditional(self, centered: Float[Tensor, "N D"]) -> Float[Tensor, "P N D"]:
        """log p(x_j | x_R) of every datum, (P, N, D); meaningful where j is not in R."""
        weights = self.keep[:, :, None] * (self.loadings @ self.inverse) / self.noise_variance
        residual = centered - (centered @ weights) @ self.loadings.T
        return log_normal(residual, self.variance()[:, None, :])

    def mean_log_conditional(self, second_moment: Float[Tensor, "D D"]) -> Float[Tensor, "P D"]:
        """The same averaged over data of the given ``second_moment`` XᵀX/N about the mean, (P, D).

        Its squared residual is C_jj − 2 w_jᵀ B_Rᵀ C_:j + w_jᵀ (B_Rᵀ C B_R) w_j with
        B_R = diag(keep) W A_R⁻¹/σ²: O(D² K) a mask, whatever the number of data.
        """
        cross, moment = self._moments(second_moment)
        quadratic = self.inverse @ moment @ self.inverse
        slope = ((self.inverse @ _rows(self.loadings)) * cross).sum(dim=1)
        square = (
            second_moment.diagonal()
            - 2.0 * slope / self.noise_variance
            + quadratic.flatten(1) @ _outer(self.loadings).T / self.noise_variance**2
        )
        variance = self.variance()
        return -0.5 * (LOG_2PI + variance.log() + square / variance)

    def log_marginal(self, centered: Float[Tensor, "N D"]) -> Float[Tensor, "P N"]:
        """log p(x_R) of every datum, (P, N); 0 where R is empty."""
        projected = (self.keep[:, None, :] * centered) @ self.loadings
        explained = ((projected @ self.inverse) * projected).sum(dim=-1)
        total = self.keep @ centered.square().T
        return self._log_marginal(total, explained, self.log_det[:, None])

    def mean_log_marginal(self, second_moment: Float[Tensor, "D D"]) -> Float[Tensor, " P"]:
        """log p(x_R) averaged over data of the given ``second_moment``, (P,)."""
        _, moment = self._moments(second_moment)
        explained = (self.inverse * moment).sum(dim=(1, 2))
        return self._log_marginal(self.keep @ second_moment.diagonal(), explained, self.log_det)

    def _log_marginal(self, total: Tensor, explained: Tensor, log_det: Tensor) -> Tensor:
        size = self.keep.sum(dim=1).view(-1, *[1] * (total.ndim - 1))
        quadratic = (total - explained / self.noise_variance) / self.noise_variance
        return -0.5 * (size * (LOG_2PI + self.noise_variance.log()) + log_det + quadratic)

    def _moments(
        self, second_moment: Float[Tensor, "D D"]
    ) -> tuple[Float[Tensor, "P K D"], Float[Tensor, "P K K"]]:
        """W_Rᵀ C_R: (the only product with D² terms) and W_Rᵀ C_RR W_R."""
        kept_rows = self.keep[:, None, :] * _rows(self.loadings)
        cross = kept_rows @ second_moment
        return cross, cross @ kept_rows.mT


def _rows(loadings: Float[Tensor, "D K"]) -> Float[Tensor, "K D"]:
    """Wᵀ, contiguous: batched products with it then run as one large matrix product."""
    return loadings.mT.contiguous()


def _outer(loadings: Float[Tensor, "D K"]) -> Float[Tensor, "D KK"]:
    """w_j w_jᵀ as rows: turns a batch of K×K forms into one matrix product."""
    return (loadings[:, :, None] * loadings[:, None, :]).flatten(1)
