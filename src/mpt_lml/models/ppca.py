"""Probabilistic principal component analysis: every marginal and conditional in closed form."""

from typing import Annotated, final

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.checks import (
    Interval,
    Positive,
    check,
    checked,
    require_count,
    require_one_dtype,
)
from mpt_lml.gaussian import LowRankPosterior, require_near
from mpt_lml.models.base import TractableModel
from mpt_lml.numerics import CACHE_BYTES, chunks, double, draw_normal, num_at_once

__all__ = ["PPCA"]

NoiseVariance = Annotated[
    float | Tensor,
    Interval(
        "(0,inf)", "It is a variance (sigma squared), not a precision or a standard deviation."
    ),
]
_DATA = Float[Tensor, "N D"]


@final
class PPCA(TractableModel):
    """x = μ + W z + ε with z ~ N(0, I_K) and ε ~ N(0, σ² I_D), so x ~ N(μ, W Wᵀ + σ² I).

    Tipping & Bishop 1999; paper, Section 3 and Appendix B.

    Args:
        loadings: W, (D, K). K = 0 is allowed: independent coordinates.
        noise_variance: σ² > 0 (the paper's 1/σ² = 5 is 0.2).
        mean: μ, (D,); zero by default.

    Raises:
        TypeError: for tensors that are not floating point, or of two dtypes.
        ValueError: for shapes that do not fit, entries that are not finite, or σ² ≤ 0.

    >>> model = PPCA(torch.ones(2, 1), noise_variance=1.0)
    >>> mask = torch.tensor([[True, False]])
    >>> model.log_conditional(torch.tensor([[0.5, 1.0]]), mask)  # x_1 given x_2 ~ N(1/2, 3/2)
    tensor([[[-1.1217,  0.0000]]])
    """

    @checked
    def __init__(
        self,
        loadings: Float[Tensor, "D k"],  # a small k: K may be 0
        noise_variance: NoiseVariance,
        mean: Float[Tensor, " D"] | None = None,
    ) -> None:
        if mean is None:
            mean = loadings.new_zeros(len(loadings))
        self.loadings = loadings
        self.mean = mean.to(loadings)
        self.noise_variance = torch.as_tensor(noise_variance, dtype=loadings.dtype).to(loadings)
        self.num_features, self.latent_dim = loadings.shape
        # Four arrays of D × K in double precision for each pair.
        self._pairs_at_once = num_at_once(4 * 8 * loadings.numel(), CACHE_BYTES)
        # T, T_R and T_R C (see gaussian.LowRankPosterior), the rows they are made of, six vectors.
        self._bytes_of_a_set = 8 * self.num_features * (4 * self.latent_dim + 6)

    @property
    def covariance(self) -> Float[Tensor, "D D"]:
        """Σ = W Wᵀ + σ² I, (D, D)."""
        loadings = double(self.loadings)
        noise = double(self.noise_variance) * torch.eye(self.num_features).to(loadings)
        return (loadings @ loadings.T + noise).to(self.loadings)

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        latent = draw_normal((n, self.latent_dim), generator=generator, like=self.loadings)
        noise = draw_normal((n, self.num_features), generator=generator, like=self.loadings)
        return self.mean + latent @ self.loadings.T + self.noise_variance.sqrt() * noise

    @classmethod
    @checked
    def fit_closed_form(
        cls,
        x: Float[Tensor, "N D"],
        latent_dim: int,
        *,
        ddof: int = 0,
        noise_variance: Positive | None = None,
        mean: Float[Tensor, " D"] | None = None,
    ) -> "PPCA":
        """Maximum likelihood in closed form (Tipping & Bishop 1999, Section 3.2).

        μ is the sample mean, σ² the mean of the D − K smallest eigenvalues of the sample covariance
        and W = U (Λ − σ² I)^{1/2} from the K largest, with max(Λ − σ², 0) where σ² is given.

        Args:
            x: data, (N, D).
            latent_dim: K, in 0..D−1.
            ddof: the covariance divides by N − ``ddof``: 0 is maximum likelihood, 1 is what
                scikit-learn's ``PCA`` uses.
            noise_variance: σ², where it is not to be estimated (the paper trains W alone).
            mean: μ, (D,), where it is not to be estimated.

        Returns:
            The model.

        Raises:
            ValueError: for K outside 0..D−1, and when nothing is left for the noise (σ² = 0).
        """
        num_data, num_features = x.shape
        require_count("latent_dim", latent_dim, 0, num_features - 1)
        require_count("ddof", ddof, 0, num_data - 1)
        center = x.mean(dim=0) if mean is None else mean
        # Singular values of the data, not eigenvalues of their square: twice as many digits. R of their
        # QR has the same ones and the same axes, in D rows at most.
        root = torch.linalg.qr(x - center, mode="r").R / (num_data - ddof) ** 0.5
        _, singular_values, axes = torch.linalg.svd(root)
        num_missing = num_features - len(singular_values)  # fewer data than coordinates
        eigenvalues = torch.nn.functional.pad(singular_values.square(), (0, num_missing))
        largest, smallest = eigenvalues.tensor_split([latent_dim])
        if noise_variance is None:
            variance = smallest.mean()
            if variance <= torch.finfo(x.dtype).eps * eigenvalues[0]:
                raise ValueError(
                    f"latent_dim={latent_dim} explains all the variance of these {num_data} data, "
                    "which leaves no noise. Use fewer latent dimensions."
                )
        else:
            variance = x.new_tensor(noise_variance)
        scale = (largest - variance).clamp(min=0.0).sqrt()
        return cls(axes[:latent_dim].T * scale, variance, center)

    @property
    def data_device(self) -> torch.device | None:
        return self.loadings.device

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is (N, D), finite, and of the dtype of the loadings."""
        check(("x", x, _DATA), D=self.num_features)
        if x.dtype != self.loadings.dtype:
            require_one_dtype(loadings=self.loadings, x=x)

    def _posterior(self, observed: Tensor) -> LowRankPosterior:
        """p(z | x_R) for every row R of ``observed``."""
        return LowRankPosterior.of(self.loadings, self.noise_variance, observed)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return self._posterior(observed).log_marginal(self._centered(x)).to(x)

    def _masked_log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        centered = self._centered(x)
        of_parameters = self.loadings.requires_grad or self.noise_variance.requires_grad
        if centered.requires_grad or (of_parameters and torch.is_grad_enabled()):
            return self._posterior(~mask).log_conditional(centered).to(x)
        values = x.new_empty(len(mask), *x.shape)
        for rows in chunks(len(mask), 8 * x.numel(), 2 * CACHE_BYTES):
            self._posterior(~mask[rows]).log_conditional(centered, out=values[rows])
        return values

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        # A mask of its own for each datum: sets of one datum, so that masks remain the batch axis.
        centered = self._centered(x).unsqueeze(1)
        return self._posterior(~mask).log_conditional(centered).squeeze(1).to(x)

    # Log-densities are linear in the squares and products of the data, and so are their means over
    # data, which enter through their second moment: O(D² K) a set, whatever N.

    def _mean_log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        moment = self._second_moment(x)
        means = []
        for rows in chunks(len(observed), self._bytes_of_a_set, 2 * CACHE_BYTES):
            means.append(self._posterior(observed[rows]).mean_log_marginal(moment))
        return torch.cat(means).to(x)

    def _mean_log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        moment = self._second_moment(x)
        means = []
        for rows in chunks(len(mask), self._bytes_of_a_set, 2 * CACHE_BYTES):
            means.append(self._posterior(~mask[rows]).mean_log_conditional(moment))
        return torch.cat(means).to(x)

    def _centered(self, x: Tensor) -> Tensor:
        """x − μ in double precision."""
        return double(x) - self.mean

    def _second_moment(self, x: Tensor) -> Tensor:
        """Mean of (x − μ)(x − μ)ᵀ over the data, (D, D)."""
        centered = self._centered(x)
        # The mean square of many data does not show that one of them is far out.
        require_near(centered, self.noise_variance)
        return centered.T @ centered / len(x)
