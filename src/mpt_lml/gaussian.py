"""Conditioning a Gaussian, as the textbook writes it and as low-rank structure allows.

The model is N(μ, W Wᵀ + σ² I) with loadings W (D, K). For an observed set R,

    Λ_R = I + W_Rᵀ W_R / σ²                      (K, K)
    E[z | x_R] = Λ_R⁻¹ W_Rᵀ (x_R − μ_R) / σ²
    p(x_j | x_R) = N(μ_j + w_jᵀ E[z | x_R],  σ² + w_jᵀ Λ_R⁻¹ w_j)

which never forms a D×D inverse (Woodbury identity; Tipping & Bishop 1999; paper, Eqs. 6–7 and
Appendix B with the sign of Eq. 7 corrected). Masks are one batch axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.numerics import LOG_2PI, cholesky, log_normal

__all__ = [
    "LowRankPosterior",
    "condition_dense",
    "conditional_divergence",
    "divergence",
    "log_density",
]


def log_density(
    x: Float[Tensor, "N D"], mean: Float[Tensor, " D"], covariance: Float[Tensor, "D D"]
) -> Float[Tensor, " N"]:
    """log N(x; mean, covariance), shape (N,), nats, by a dense Cholesky factorization.

    >>> log_density(torch.zeros(1, 2), torch.zeros(2), torch.eye(2))
    tensor([-1.8379])
    """
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

    Paper, Eqs. 6–7 with the minus sign: Σ_AA − Σ_AR Σ_RR⁻¹ Σ_RA. The exact sibling of
    :class:`LowRankPosterior`.

    >>> pair, mask = torch.tensor([[1.0, 0.5], [0.5, 1.0]]), torch.tensor([True, False])
    >>> condition_dense(torch.tensor([[0.0, 2.0]]), torch.zeros(2), pair, mask)
    (tensor([[1.]]), tensor([[0.7500]]))
    """
    cross, observed = covariance[mask][:, ~mask], covariance[~mask][:, ~mask]
    gain = torch.linalg.solve(observed, cross.T).T
    conditional_mean = mean[mask] + (x - mean)[:, ~mask] @ gain.T
    return conditional_mean, covariance[mask][:, mask] - gain @ cross.T


def divergence(p: Float[Tensor, "D D"], q: Float[Tensor, "*B D D"]) -> Float[Tensor, "*B"]:
    """KL(N(0, p) ‖ N(0, q)) of the covariances p and q, nats, shape (...).

    >>> divergence(torch.eye(2), 2 * torch.eye(2))
    tensor(0.1931)
    """
    ratio = torch.linalg.solve(q, p)
    trace = ratio.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return 0.5 * (trace - len(p) - torch.linalg.slogdet(ratio).logabsdet)


def conditional_divergence(
    p: Float[Tensor, "D D"], q: Float[Tensor, "D D"], mask: Bool[Tensor, " D"]
) -> Float[Tensor, ""]:
    """(1/M) Σ_{j∈A} E_p KL(p(x_j | x_R) ‖ q(x_j | x_R)) for the mask A, zero means, nats.

    What the score of the mask loses in expectation when x follows N(0, p) and the model is N(0, q).

    >>> conditional_divergence(torch.eye(2), 2 * torch.eye(2), torch.tensor([True, False]))
    tensor(0.0966)
    """
    x = len(p) ** 0.5 * cholesky(p).mT  # data whose second moment is p
    (at_p, within_p), (at_q, within_q) = (condition_dense(x, 0 * x[0], c, mask) for c in (p, q))
    square, v_p, v_q = (at_p - at_q).square().mean(dim=0), within_p.diagonal(), within_q.diagonal()
    return 0.5 * ((v_q / v_p).log() + (v_p + square) / v_q - 1.0).mean()


@dataclass(frozen=True)
class LowRankPosterior:
    """p(z | x_R) for P observed sets at once: all that the conditionals of x need.

    W, σ², 1 for what is kept and 0 for what is masked, and Λ_R⁻¹. All axes before those named (written
    ...) are a batch of models, each with its own loadings and, where wanted, its own noise variance
    and sets.

    >>> W, R = torch.ones(3, 1), torch.tensor([[True, True, False]])
    >>> LowRankPosterior.of(W, torch.tensor(1.0), R).variance()[0, 2]  # 1 + 1 / (1 + 2)
    tensor(1.3333)
    """

    loadings: Float[Tensor, "*B D K"]
    noise_variance: Float[Tensor, "..."]
    keep: Float[Tensor, "*#B P D"]
    inverse: Float[Tensor, "*B P K K"]

    @classmethod
    def of(
        cls, loadings: Tensor, noise_variance: Tensor, observed: Bool[Tensor, "*#B P D"]
    ) -> LowRankPosterior:
        """Invert Λ_R for every row R of ``observed``; cost O(P (D K² + K³)) a model."""
        keep = observed.to(loadings.dtype)
        dim = loadings.shape[-1]
        gram = (keep @ _outer(loadings)).unflatten(-1, (dim, dim))
        identity = torch.eye(dim, dtype=loadings.dtype, device=loadings.device)
        # All eigenvalues are at least 1: no factorization is needed to know that an inverse exists.
        inverse, _ = torch.linalg.inv_ex(identity + gram / noise_variance[..., None, None, None])
        return cls(loadings, noise_variance, keep, inverse)

    def variance(self) -> Float[Tensor, "*B P D"]:
        """Var(x_j | x_R) = σ² + w_jᵀ Λ_R⁻¹ w_j for every coordinate j."""
        return self._noise(2) + self.inverse.flatten(-2) @ _outer(self.loadings).mT

    def log_conditional(self, centered: Float[Tensor, "N D"]) -> Float[Tensor, "*B P N D"]:
        """log p(x_j | x_R) of every datum; meaningful where j is not in R."""
        loadings = self.loadings[..., None, :, :]
        weights = self.keep[..., None] * (loadings @ self.inverse) / self._noise(3)
        residual = centered - (centered @ weights) @ loadings.mT
        return log_normal(residual, self.variance()[..., None, :])

    def mean_log_conditional(
        self, second_moment: Float[Tensor, "*#B D D"]
    ) -> Float[Tensor, "*B P D"]:
        """The same averaged over data of the given ``second_moment`` XᵀX/N about the mean.

        Each model of a batch may have data of its own. Its squared residual is
        ``C_jj − 2 w_jᵀ G_Rᵀ C_:j + w_jᵀ (G_Rᵀ C G_R) w_j`` with ``G_R = diag(keep) W Λ_R⁻¹/σ²``:
        O(D² K) a mask, whatever the number of data.
        """
        cross, moment = self._moments(second_moment)
        quadratic = (self.inverse @ moment @ self.inverse).flatten(-2)
        slope = ((self.inverse @ self._rows()) * cross).sum(dim=-2)
        square = (
            _diagonal(second_moment)
            - 2.0 * slope / self._noise(2)
            + quadratic @ _outer(self.loadings).mT / self._noise(2) ** 2
        )
        variance = self.variance()
        return -0.5 * (LOG_2PI + variance.log() + square / variance)

    def log_marginal(self, centered: Float[Tensor, "N D"]) -> Float[Tensor, "*B P N"]:
        """log p(x_R) of every datum; 0 where R is empty."""
        projected = (self.keep[..., None, :] * centered) @ self.loadings[..., None, :, :]
        explained = ((projected @ self.inverse) * projected).sum(dim=-1)
        total = self.keep @ centered.square().mT
        return self._log_density(total, explained, 1)

    def mean_log_marginal(self, second_moment: Float[Tensor, "*#B D D"]) -> Float[Tensor, "*B P"]:
        """log p(x_R) averaged over data of the given ``second_moment``."""
        _, moment = self._moments(second_moment)
        explained = (self.inverse * moment).sum(dim=(-2, -1))
        total = (self.keep * _diagonal(second_moment)).sum(dim=-1)
        return self._log_density(total, explained, 0)

    def _log_density(self, total: Tensor, explained: Tensor, axes: int) -> Tensor:
        """log p(x_R) from the squared norm of x_R and what the latents explain of it."""
        noise, last = self._noise(1 + axes), (..., *[None] * axes)
        log_det = -torch.linalg.slogdet(self.inverse).logabsdet[last]
        size, quadratic = self.keep.sum(dim=-1)[last], (total - explained / noise) / noise
        return -0.5 * (size * (LOG_2PI + noise.log()) + log_det + quadratic)

    def _noise(self, axes: int) -> Tensor:
        """σ² with ``axes`` trailing axes to broadcast over."""
        return self.noise_variance[(..., *[None] * axes)]

    def _rows(self) -> Float[Tensor, "*B 1 K D"]:
        """Wᵀ, contiguous: batched products with it then run as one large matrix product."""
        return self.loadings.mT.contiguous()[..., None, :, :]

    def _moments(self, second_moment: Tensor) -> tuple[Tensor, Tensor]:
        """W_Rᵀ C_R: (the only product with D² terms) and W_Rᵀ C_RR W_R."""
        kept_rows = self.keep[..., None, :] * self._rows()
        # One moment for all: a single large product. One each: a batched product over the masks.
        shared = second_moment.ndim == 2
        cross = kept_rows @ (second_moment if shared else second_moment[..., None, :, :])
        return cross, cross @ kept_rows.mT


def _diagonal(second_moment: Float[Tensor, "*B D D"]) -> Float[Tensor, "*B 1 D"]:
    """E x_j², with an axis for the masks."""
    return second_moment.diagonal(dim1=-2, dim2=-1)[..., None, :]


def _outer(loadings: Float[Tensor, "*B D K"]) -> Float[Tensor, "*B D KK"]:
    """w_j w_jᵀ as rows: turns a batch of K×K forms into one matrix product."""
    return (loadings[..., :, None] * loadings[..., None, :]).flatten(-2)
