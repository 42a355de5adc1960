"""Probabilistic principal component analysis: every marginal and conditional in closed form."""

from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.gaussian import NATS, Centered, LowRankPosterior
from mpt_lml.models.base import TractableModel
from mpt_lml.numerics import chunks, double
from mpt_lml.spec import require, require_number


@final
class PPCA(TractableModel):
    """x = μ + W z + ε with z ~ N(0, I_K) and ε ~ N(0, σ² I_D), so x ~ N(μ, W Wᵀ + σ² I).

    Tipping & Bishop 1999; paper, Section 3 and Appendix B. ``loadings`` (D, K) are W; K = 0 is
    allowed: independent coordinates. ``noise_variance`` is σ² > 0 (the paper's 1/σ² = 5 is 0.2),
    ``mean`` (D,) is μ, zero by default.

    Raises ``ValueError`` for shapes that do not fit, entries that are not finite, or σ² ≤ 0.

    >>> model = PPCA(torch.ones(2, 1), noise_variance=1.0)
    >>> mask = torch.tensor([[True, False]])
    >>> model.log_conditional(torch.tensor([[0.5, 1.0]]), mask)  # x_1 given x_2 ~ N(1/2, 3/2)
    tensor([[[-1.1217,  0.0000]]])
    """

    def __init__(
        self,
        loadings: Float[Tensor, "D K"],
        noise_variance: float | Tensor,
        mean: Float[Tensor, " D"] | None = None,
    ) -> None:
        require(locals(), "loadings D k, mean? D")
        hint = " It is a variance (sigma squared), not a precision or a standard deviation."
        require_number("noise_variance", noise_variance, hint=hint)
        mean = loadings.new_zeros(len(loadings)) if mean is None else mean
        self.loadings, self.mean = loadings, mean.to(loadings)
        self.num_features, self.latent_dim = loadings.shape
        self._pairs_at_once = 2**22 // (32 * loadings.numel() or 1) or 1  # fits a cache
        self.noise_variance = torch.as_tensor(noise_variance, dtype=loadings.dtype).to(loadings)

    @property
    def covariance(self) -> Float[Tensor, "D D"]:
        """Σ = W Wᵀ + σ² I, shape (D, D)."""
        loadings = double(self.loadings)
        noise = double(self.noise_variance) * torch.eye(self.num_features).to(loadings)
        return (loadings @ loadings.T + noise).to(self.loadings)

    def posterior(
        self, x: Float[Tensor, "N D"]
    ) -> tuple[Float[Tensor, "N K"], Float[Tensor, "K K"]]:
        """Mean (N, K) and covariance (K, K) of p(z | x)."""
        self.require_data(x)
        given = self._given(torch.ones_like(self.mean, dtype=torch.bool)[None])
        latent, _ = given.explain(Centered.of(x, self.mean))
        covariance = given.noise_variance * torch.cholesky_inverse(given.factor[0])
        return latent[0], covariance.to(x)

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
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
    ) -> "PPCA":
        """Maximum likelihood in closed form (Tipping & Bishop 1999, Section 3.2).

        μ is the sample mean, σ² the mean of the D − K smallest eigenvalues of the sample covariance
        and W = U (Λ − σ² I)^{1/2} from the K largest, with max(Λ − σ², 0) where σ² is given. Values
        of ``noise_variance`` and ``mean`` that are given are not estimated (the paper trains W
        alone). The covariance divides by N − ``ddof``: 0 is maximum likelihood, 1 is what
        scikit-learn's ``PCA`` uses. Raises ``ValueError`` when K is outside 0..D−1, or nothing is
        left for the noise (σ² = 0).
        """
        require(locals(), "x N D, mean? D, noise_variance? (0,inf)")
        require(locals(), f"latent_dim 0..{x.shape[1] - 1}, ddof 0..{len(x) - 1}")
        center = x.mean(dim=0) if mean is None else mean
        # Singular values of the data, not eigenvalues of their square: twice as many digits.
        root = torch.linalg.qr(x - center, mode="r").R / (len(x) - ddof) ** 0.5
        _, singular, axes = torch.linalg.svd(root)
        square = torch.nn.functional.pad(singular.square(), (0, x.shape[1] - len(singular)))
        top, rest = square.tensor_split([latent_dim])
        variance = rest.mean() if noise_variance is None else x.new_tensor(noise_variance)
        if noise_variance is None and variance <= torch.finfo(x.dtype).eps * square[0]:
            said = f"latent_dim={latent_dim} explains all the variance of these {len(x)} data"
            raise ValueError(f"{said}, which leaves no noise. Use fewer latent dimensions.")
        scale = (top - variance).clamp(min=0.0).sqrt()
        return cls(axes[:latent_dim].T * scale, variance, center)

    def require_data(self, x: Tensor) -> None:
        require(vars(self) | {"x": x}, "loadings D k, x N D")

    def _given(self, observed: Tensor) -> LowRankPosterior:
        return LowRankPosterior.of(self.loadings, self.noise_variance, observed)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return self._given(observed).log_marginal(Centered.of(x, self.mean))

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        centered = Centered.of(x, self.mean)
        rows = chunks(len(mask), 8 * 2 * x.numel(), 2**22)  # fits a cache
        return torch.cat([self._given(~mask[some]).log_conditional(centered) for some in rows])

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        centered = Centered.of(x[:, None], self.mean)
        return self._given(~mask).log_conditional(centered)[:, 0]

    def _mean_log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return self._mean("marginal", x, observed)

    def _mean_log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        return self._mean("conditional", x, ~mask)

    def _mean(
        self, name: Literal["marginal", "conditional"], x: Tensor, observed: Tensor
    ) -> Tensor:
        """The data enter through their second moment, O(D² K) a mask, where that has the digits."""
        size = self.num_features
        centered = Centered.of(x, self.mean).rounded
        rows = chunks(len(observed), 8 * size * (4 * self.latent_dim + 6), 2**23)  # fits a cache
        moment = centered.T @ centered / len(x)
        means = []
        for some in rows:
            values, nats = self._given(observed[some]).averaged(name, moment)
            is_exact_enough = nats <= 0.1 * NATS  # NaN is not
            if not is_exact_enough and name == "marginal":
                values = super()._mean_log_subset_marginal(x, observed[some])
            elif not is_exact_enough:
                values = super()._mean_log_conditional(x, ~observed[some])
            means.append(values.to(self.loadings))
        return torch.cat(means)
