"""Conditioning a Gaussian, as the textbook writes it and as low-rank structure allows.

For N(μ, W Wᵀ + σ² I) with loadings W (D, K), an observed set R and Λ_R = I + W_Rᵀ W_R / σ² (K, K),

    p(x_j | x_R) = N(μ_j + w_jᵀ E[z | x_R],  σ² + w_jᵀ Λ_R⁻¹ w_j)

with E[z | x_R] = Λ_R⁻¹ W_Rᵀ (x_R − μ_R) / σ²: never a D×D inverse (Woodbury identity; Tipping & Bishop
1999; paper, Eqs. 6–7 and Appendix B with the sign of Eq. 7 corrected). Masks are one batch axis.
"""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from mpt_lml.numerics import LOG_2PI, log_normal
from mpt_lml.spec import require, require_mask

__all__ = [
    "LowRankPosterior",
    "condition_dense",
    "divergence",
    "log_density",
]

_CACHED = 2**18  # entries of w_d w_dᵀ for all d that a cache holds (2 MiB)


def require_definite(name: str, matrix: Tensor) -> None:
    """Check that finite ``matrix`` (..., D, D) is symmetric up to rounding, positive definite."""
    skew, size = (matrix - matrix.mT).abs().max(), matrix.abs().max()
    if skew > torch.finfo(matrix.dtype).eps ** 0.5 * size:
        raise ValueError(f"{name} must be symmetric, got entries that differ by {skew:.3g}.")
    if torch.linalg.cholesky_ex(matrix).info.any():
        smallest = f"its smallest eigenvalue is {torch.linalg.eigvalsh(matrix).min().item():.3e}"
        raise ValueError(f"{name} must be positive definite, but {smallest}.")


def log_density(
    x: Float[Tensor, "N D"], mean: Float[Tensor, " D"], covariance: Float[Tensor, "D D"]
) -> Float[Tensor, " N"]:
    """log N(x; mean, covariance), shape (N,), nats, by a dense Cholesky factorization.

    >>> log_density(torch.zeros(1, 2), torch.zeros(2), torch.eye(2))
    tensor([-1.8379])
    """
    require(locals(), "x N D, mean D, covariance D D")
    require_definite("covariance", covariance)
    return MultivariateNormal(mean, covariance, validate_args=False).log_prob(x)


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
    require(locals(), "x N D, mean D, covariance D D, bool mask D")
    require_definite("covariance", covariance)
    require_mask(mask[None])
    cross, observed = covariance[mask][:, ~mask], covariance[~mask][:, ~mask]
    gain = torch.linalg.solve(observed, cross.T).T
    conditional_mean = mean[mask] + (x - mean)[:, ~mask] @ gain.T
    return conditional_mean, covariance[mask][:, mask] - gain @ cross.T


def divergence(p: Float[Tensor, "D D"], q: Float[Tensor, "*B D D"]) -> Float[Tensor, "*B"]:
    """KL(N(0, p) ‖ N(0, q)) of the covariances p and q, nats, shape (...).

    >>> divergence(torch.eye(2), 2 * torch.eye(2))
    tensor(0.1931)
    """
    require(locals(), "p D D, q ... D D")
    require_definite("p", p)
    require_definite("q", q)
    centered = partial(MultivariateNormal, torch.zeros_like(p[0]), validate_args=False)
    return kl_divergence(centered(p), centered(q))


@dataclass(frozen=True)
class LowRankPosterior:
    """p(z | x_R) for P observed sets at once: all that the conditionals of x need.

    W, σ², 1 for what is kept and 0 for what is masked, L with σ² Λ_R = L Lᵀ, T = L⁻¹ Wᵀ and its columns
    in R, T_R. All axes before those named (written ...) are a batch of models, each with its own
    loadings and, where wanted, its own noise variance and sets.

    >>> W, R = torch.ones(3, 1), torch.tensor([[True, True, False]])
    >>> LowRankPosterior.of(W, torch.tensor(1.0), R).variance()[0, 2]  # 1 + 1 / (1 + 2)
    tensor(1.3333)
    """

    loadings: Float[Tensor, "*B D K"]
    noise_variance: Float[Tensor, "..."]
    keep: Float[Tensor, "*#B P D"]
    factor: Float[Tensor, "*B P K K"]
    white: Float[Tensor, "*B P K D"]
    seen: Float[Tensor, "*B P K D"]
    scale: float  # ‖W‖/σ of the worst model: with it errors grow, and with its square for squares
    stiff: bool  # more than half of the digits are lost in differences of squares

    @classmethod
    def of(cls, loadings: Tensor, noise_variance: Tensor, observed: Tensor) -> "LowRankPosterior":
        """Factor σ² Λ_R for every row R of ``observed`` (..., P, D); O(P (D K² + K³)) a model.

        Raises ``ValueError``, as its methods do, where so small a σ² would let rounding be seen.
        """
        spec = "loadings ... D k, noise_variance ..., bool observed ... P D"
        require(locals(), spec, finite=False)
        keep, noise = observed.to(loadings.dtype), noise_variance[..., None, None, None]
        identity, rows = torch.eye(loadings.shape[-1]).to(loadings), loadings[..., None, :, :]
        ratio = loadings.detach().square().sum(dim=(-2, -1)) / noise_variance.detach()
        scale, low = torch.stack([ratio.max().sqrt(), noise_variance.detach().min()]).tolist()
        if low <= 0.0:
            raise ValueError(f"noise_variance must be > 0, got {low:.4g}.")
        _require_digits(10.0 * scale, loadings)
        if stiff := scale**4 * torch.finfo(loadings.dtype).eps > 1.0:  # from the root of σ² Λ_R
            kept = keep[..., None] * rows
            root = (noise.sqrt() * identity).expand(*kept.shape[:-2], *identity.shape)
            q, r = torch.linalg.qr(torch.cat([kept, root], dim=-2))
            factor, own = r.mT, q[..., : loadings.shape[-2], :].mT
        else:
            if loadings.numel() * loadings.shape[-1] <= _CACHED:
                outer = (loadings[..., :, None] * loadings[..., None, :]).flatten(-2)
                gram = (keep @ outer).unflatten(-1, identity.shape)  # all masks in one product
            else:
                gram = (keep[..., None, :] * rows.mT) @ rows
            factor, own = torch.linalg.cholesky_ex(gram + noise * identity).L, None
        if stiff or loadings.shape[-2] < 8 * loadings.shape[-1]:
            # From the right, its transpose is contiguous: products with it run as one large product.
            white = torch.linalg.solve_triangular(factor.mT, rows, upper=True, left=False).mT
        else:  # one large product, which threads share
            inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
            white = inverse @ (loadings if loadings.ndim == 2 else rows).mT
        seen = keep[..., None, :] * (white if own is None else own)
        return cls(loadings, noise_variance, keep, factor, white, seen, scale, stiff)

    def variance(self) -> Float[Tensor, "*B P D"]:
        """Conditional variance of every coordinate j given x_R: σ² (1 + T_jᵀT_j)."""
        return self.noise_variance[..., None, None] * (1.0 + self.white.square().sum(dim=-2))

    def explain(self, centered: Tensor) -> tuple[Tensor, Tensor]:
        """E[z | x_R], (..., P, N, K), of every datum or of each set's own, and what it leaves of x."""
        given = vars(self) | {"centered": centered}
        require(given, "loadings ... D k, centered ... N D", finite=False)
        seen = centered @ self.seen.mT
        latent = torch.linalg.solve_triangular(self.factor, seen, upper=False, left=False)
        residual = centered - latent @ self.loadings[..., None, :, :].mT
        if self.stiff:
            far = self._square(residual.detach()).max().sqrt().item()
            _require_digits(0.3 * self.scale * far, residual)
        return latent, residual

    def log_conditional(self, centered: Float[Tensor, "... N D"]) -> Float[Tensor, "*B P N D"]:
        """log p(x_j | x_R) of every datum; meaningful where j is not in R."""
        return log_normal(self.explain(centered)[1], self.variance()[..., None, :])

    def mean_log_conditional(self, moment: Float[Tensor, "*#B D D"]) -> Float[Tensor, "*B P D"]:
        """The same averaged over data of the given second moment C = XᵀX/N about the mean.

        Each model of a batch may have data of its own. The squared residual is
        ``C_jj − 2 T_jᵀ T_R C_:j + T_jᵀ (T_R C T_Rᵀ) T_j``: O(D² K) a mask, whatever N.
        """
        square, cross, inner = self._moments(moment)
        square = square + (self.white * (inner @ self.white - 2.0 * cross)).sum(dim=-2)
        variance = self.variance()
        return -0.5 * (LOG_2PI + variance.log() + square / variance)

    def log_marginal(self, centered: Float[Tensor, "N D"]) -> Float[Tensor, "*B P N"]:
        """log p(x_R) of every datum; 0 where R is empty."""
        require(vars(self) | {"centered": centered}, "loadings ... D k, centered N D", finite=False)
        if self.stiff:  # sums of squares; below, a difference of two that are nearly equal
            latent, residual = self.explain(centered)
            return self._log_density(self._square(residual) + latent.square().sum(dim=-1), 1)
        explained = (centered @ self.seen.mT).square().sum(dim=-1)
        left = self.keep @ centered.square().mT - explained
        return self._log_density(left / self.noise_variance[..., None, None], 1)

    def mean_log_marginal(self, moment: Float[Tensor, "*#B D D"]) -> Float[Tensor, "*B P"]:
        """log p(x_R) averaged over data of the given second ``moment``."""
        square, _, inner = self._moments(moment)
        left = (self.keep * square).sum(dim=-1) - inner.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        return self._log_density(left / self.noise_variance[..., None], 0)

    def _log_density(self, quadratic: Tensor, axes: int) -> Tensor:
        """log p(x_R) from x_Rᵀ Σ_RR⁻¹ x_R."""
        noise, last = self.noise_variance[(..., *[None] * (1 + axes))], (..., *[None] * axes)
        log_det = 2.0 * self.factor.diagonal(dim1=-2, dim2=-1).abs().log().sum(dim=-1)[last]
        size, dim = self.keep.sum(dim=-1)[last], self.loadings.shape[-1]
        return -0.5 * (size * LOG_2PI + log_det + (size - dim) * noise.log() + quadratic)

    def _square(self, residual: Tensor) -> Tensor:
        """|x_R − W_R z|²/σ², (..., P, N)."""
        total = (residual.square() @ self.keep[..., None])[..., 0]
        return total / self.noise_variance[..., None, None]

    def _moments(self, moment: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The diagonal of C, T_R C_R: (the only product with D² terms) and T_R C_RR T_Rᵀ."""
        given = vars(self) | {"moment": moment}
        require(given, "loadings ... D k, moment ... D D", finite=False)
        _require_digits(0.5 * self.scale**2, moment)
        cross = (self.seen.flatten(-3, -2) @ moment).unflatten(-2, self.seen.shape[-3:-1])
        return moment.diagonal(dim1=-2, dim2=-1)[..., None, :], cross, cross @ self.seen.mT


def _require_digits(growth: float, of: Tensor) -> None:
    """Refuse what rounding may change by more than ε^0.4 nats: 5e-7 in float64, 2e-3 in float32."""
    epsilon = torch.finfo(of.dtype).eps
    if growth * epsilon > epsilon**0.4:
        raise ValueError(
            f"noise_variance is so small beside loadings or data that rounding in {of.dtype} changes"
            f" log-densities by {growth * epsilon:.0e} nats, more than {epsilon**0.4:.0e}. Use float64,"
            " larger noise and, where moments were given, methods of PPCA, which see the data."
        )
