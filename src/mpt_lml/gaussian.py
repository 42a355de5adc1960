"""Conditioning a Gaussian, as the textbook writes it and as low-rank structure allows.

For N(μ, W Wᵀ + σ² I) with loadings W (D, K), an observed set R and Λ_R = I + W_Rᵀ W_R / σ² (K, K),

    p(x_j | x_R) = N(μ_j + w_jᵀ E[z | x_R],  σ² + w_jᵀ Λ_R⁻¹ w_j)

with E[z | x_R] = Λ_R⁻¹ W_Rᵀ (x_R − μ_R) / σ²: never a D×D inverse (Woodbury identity; Tipping & Bishop
1999; paper, Eqs. 6–7 and Appendix B with the sign of Eq. 7 corrected). Masks are one batch axis.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.checks import checked
from mpt_lml.masks import each_masks_something
from mpt_lml.numerics import CACHE_BYTES, LOG_2PI, double

__all__ = [
    "LowRankPosterior",
    "condition_dense",
    "divergence",
    "log_density",
]

MAX_SIGNAL_TO_NOISE = 2e10
"""Largest ‖W‖²/σ² of a :class:`LowRankPosterior`. Rounding changes conditional variances by about 2^−52
times that, in parts of themselves: 4e-6 here."""

MAX_DEVIATION = 1e5
"""Largest distance of x_j from μ_j, in σ. A sum of squares of 10¹⁰ has a rounding error of 1e-6."""

_MOST_ROUNDING = 1e-8
"""Largest error of rounding, in nats a coordinate, with which a dense covariance is accepted."""

_EPSILON = torch.finfo(torch.float64).eps


def require_definite(name: str, matrix: Tensor) -> None:
    """Check that a finite matrix is symmetric up to rounding, and positive definite.

    Args:
        name: of the matrix, in messages.
        matrix: (..., D, D).

    Raises:
        ValueError: where it is not.
    """
    skew = (matrix - matrix.mT).abs().max()
    largest = matrix.abs().max()
    if skew > torch.finfo(matrix.dtype).eps ** 0.5 * largest:
        raise ValueError(f"{name} must be symmetric, got entries that differ by {skew:.3g}.")
    # In single precision the last pivot of a matrix that is nearly singular is noise.
    wide = double(matrix.detach())
    if torch.linalg.cholesky_ex(wide).info.any():
        eigenvalues = torch.linalg.eigvalsh(wide)
        raise ValueError(
            f"{name} must be positive definite, but its smallest eigenvalue is "
            f"{eigenvalues.min().item():.3e} beside a largest of {eigenvalues.max().item():.3e}."
        )


@checked
def log_density(
    x: Float[Tensor, "N D"], mean: Float[Tensor, " D"], covariance: Float[Tensor, "D D"]
) -> Float[Tensor, " N"]:
    """log N(x; mean, covariance) by a dense Cholesky factorization.

    Args:
        x: points, (N, D).
        mean: (D,).
        covariance: symmetric positive definite, (D, D).

    Returns:
        Nats, (N,).

    Raises:
        ValueError: for a covariance that is not positive definite, or has directions so narrow that
            log-densities lose too many digits.

    >>> log_density(torch.zeros(1, 2), torch.zeros(2), torch.eye(2))
    tensor([-1.8379])
    """
    factor = _cholesky("covariance", covariance)
    centered = double(x) - double(mean)
    whitened = torch.linalg.solve_triangular(factor, centered.mT, upper=False)
    square = whitened.square().sum(dim=0)
    log_det = 2.0 * factor.diagonal().log().sum()
    return (-0.5 * (len(mean) * LOG_2PI + log_det + square)).to(x)


@checked
def condition_dense(
    x: Float[Tensor, "N D"],
    mean: Float[Tensor, " D"],
    covariance: Float[Tensor, "D D"],
    mask: Annotated[Bool[Tensor, " D"], each_masks_something],
) -> tuple[Float[Tensor, "N M"], Float[Tensor, "M M"]]:
    """The Gaussian of x_A given x_R, from the blocks of a dense covariance.

    Paper, Eqs. 6–7 with the minus sign: Σ_AA − Σ_AR Σ_RR⁻¹ Σ_RA. What :class:`LowRankPosterior`
    computes without a D×D matrix.

    Args:
        x: data, (N, D), finite; what it holds in A does not change the answer.
        mean: (D,).
        covariance: symmetric positive definite, (D, D).
        mask: A, (D,), boolean; True means masked.

    Returns:
        The mean, (N, M), and the covariance, (M, M), of the M masked coordinates.

    Raises:
        ValueError: for a covariance that is not positive definite or has directions so narrow that
            log-densities lose too many digits, and for a mask that hides nothing.

    >>> pair, mask = torch.tensor([[1.0, 0.5], [0.5, 1.0]]), torch.tensor([True, False])
    >>> condition_dense(torch.tensor([[0.0, 2.0]]), torch.zeros(2), pair, mask)
    (tensor([[1.]]), tensor([[0.7500]]))
    """
    # Of a covariance that is definite by its last digits alone, a block may not be.
    _cholesky("covariance", covariance)
    wide = double(covariance)
    factor = torch.linalg.cholesky(wide[~mask][:, ~mask])
    cross = wide[mask][:, ~mask]
    centered = (double(x) - double(mean))[:, ~mask]
    # With L Lᵀ = Σ_RR: L⁻¹ Σ_RA and L⁻¹ (x_R − μ_R) in one solve.
    both = torch.linalg.solve_triangular(factor, torch.cat([cross, centered]).mT, upper=False)
    gain, whitened = both.mT.tensor_split([len(cross)])
    conditional_mean = double(mean)[mask] + whitened @ gain.mT
    conditional_covariance = wide[mask][:, mask] - gain @ gain.mT
    return conditional_mean.to(x), conditional_covariance.to(x)


@checked
def divergence(p: Float[Tensor, "D D"], q: Float[Tensor, "*B D D"]) -> Float[Tensor, "*B"]:
    """KL(N(0, p) ‖ N(0, q)) of two Gaussians of mean 0.

    Args:
        p: covariance of the first, (D, D).
        q: covariance of the second, or of several, (..., D, D).

    Returns:
        Nats, (...).

    Raises:
        ValueError: for a covariance that is not positive definite, or has directions so narrow that
            log-densities lose too many digits.

    >>> divergence(torch.eye(2), 2 * torch.eye(2))
    tensor(0.1931)
    """
    factor_p = _cholesky("p", p)
    factor_q = _cholesky("q", q)
    ratio = torch.linalg.solve_triangular(factor_q, factor_p, upper=False)
    trace = ratio.square().sum(dim=(-2, -1))  # of q⁻¹ p
    log_det = (factor_q.diagonal(dim1=-2, dim2=-1) / factor_p.diagonal()).log().sum(dim=-1)
    return (0.5 * (trace - len(p)) + log_det).to(p)


def _cholesky(name: str, matrix: Tensor) -> Tensor:
    """The Cholesky factor in double precision of a matrix that is far enough from singular."""
    require_definite(name, matrix)
    wide = double(matrix)
    condition = torch.linalg.cond(wide.detach(), p="fro").max()
    # One rounding of Σ is ε/2 of it. That moves xᵀΣ⁻¹x by ε/2 times the condition number of itself
    # at most, and each coordinate's share of log det Σ by as much. A log-density has half of both.
    nats = 0.25 * _EPSILON * condition.item()
    if not nats <= _MOST_ROUNDING:
        raise ValueError(
            f"{name} has directions so narrow beside the rest that rounding changes log-densities by "
            f"{nats:.0e} nats a coordinate, more than {_MOST_ROUNDING:.0e}. Use larger noise."
        )
    return torch.linalg.cholesky(wide)


@dataclass(frozen=True, eq=False)
class LowRankPosterior:
    """The posterior p(z | x_R) for P observed sets at once, from which every conditional of x follows.

    :meth:`of` makes one. The Cholesky factorization σ² Λ_R = W_Rᵀ W_R + σ² I = L Lᵀ gives L, the
    ``factor``. T = L⁻¹ Wᵀ is called ``whitened``, and T_R are its columns in R. Axes written ... are a
    batch of models, each with its own loadings and, where wanted, its own noise variance and sets.
    Data are given as x − μ, called ``centered``. Results are in double precision.

    Log-densities are right to 1e-7 nats a coordinate where σ²/‖W‖² is from 1e-6 to 1e6 and data are up
    to 10 standard deviations from the model. With smaller noise errors grow with ‖W‖²/σ², which bounds
    the condition number of L Lᵀ: the largest that was measured at 10¹⁰ is 4e-5 nats. With data further
    out they grow with the square of the distance, as log-densities do. Refused are parameters with
    ‖W‖² > 2·10¹⁰ σ², and data further than 10⁵ σ from μ in a coordinate.

    >>> W, R = torch.ones(3, 1), torch.tensor([[True, True, False]])
    >>> LowRankPosterior.of(W, torch.tensor(1.0), R).variance()[0, 2]  # 1 + 1 / (1 + 2)
    tensor(1.3333, dtype=torch.float64)
    """

    loadings: Float[Tensor, "*B D K"]
    noise_variance: Float[Tensor, "... 1 1"]
    observed: Float[Tensor, "*#B P D"]  # 1 for what is in R, 0 for what is masked
    factor: Float[Tensor, "*B P K K"]
    whitened: Float[Tensor, "*B P K D"]
    whitened_observed: Float[Tensor, "*B P K D"]

    @classmethod
    @checked(finite=False)
    def of(
        cls,
        loadings: Float[Tensor, "*B D k"],
        noise_variance: Float[Tensor, "..."],
        observed: Bool[Tensor, "*#B P D"],
    ) -> "LowRankPosterior":
        """Factor σ² Λ_R for every row R of ``observed``, in O(P (D K² + K³)) operations a model.

        Args:
            loadings: W, (..., D, K).
            noise_variance: σ² > 0 of each model, (...), or one for all of them, ().
            observed: sets, (..., P, D), boolean; True means in R.

        Returns:
            The posteriors.

        Raises:
            TypeError: for tensors that are not floating point, or of two dtypes.
            ValueError: for shapes that do not fit, and for loadings that are too long beside the noise.
        """
        loadings = double(loadings)
        noise_variance = double(noise_variance)
        _require_enough_noise(loadings, noise_variance)
        # With axes for the sets, and for coordinates or data.
        noise_variance = noise_variance.unsqueeze(-1).unsqueeze(-1)
        weights = observed.double()
        num_features, latent_dim = loadings.shape[-2:]
        identity = torch.eye(latent_dim, dtype=loadings.dtype, device=loadings.device)
        rows = loadings.unsqueeze(-3)
        if 8 * loadings.numel() * latent_dim <= CACHE_BYTES // 2:  # w_d w_dᵀ for all d
            outer = (loadings.unsqueeze(-1) * loadings.unsqueeze(-2)).flatten(-2)
            gram = weights @ outer  # all sets in one product
            gram = gram.reshape(*gram.shape[:-1], latent_dim, latent_dim)
        else:
            gram = (weights.unsqueeze(-2) * rows.mT) @ rows
        matrix = torch.addcmul(gram, noise_variance.unsqueeze(-1), identity)
        factor = torch.linalg.cholesky_ex(matrix).L
        if num_features < 8 * latent_dim:
            # Solved from the right, so that the transpose is contiguous, which products need.
            whitened = torch.linalg.solve_triangular(factor.mT, rows, upper=True, left=False).mT
        else:  # one large product, which threads share
            inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
            whitened = inverse @ (loadings if loadings.ndim == 2 else rows).mT
        whitened_observed = weights.unsqueeze(-2) * whitened
        return cls(loadings, noise_variance, weights, factor, whitened, whitened_observed)

    @property
    def num_features(self) -> int:
        """D, the number of coordinates."""
        return self.loadings.shape[-2]

    @property
    def data_device(self) -> torch.device:
        """The device of the loadings, on which data have to be."""
        return self.loadings.device

    def variance(self) -> Float[Tensor, "*B P D"]:
        """Conditional variance of each masked x_j given x_R: σ² (1 + T_jᵀT_j), (..., P, D).

        For j in R it is that of a second measurement of x_j.
        """
        noise = self.noise_variance
        return torch.addcmul(noise, noise, self.whitened.square().sum(dim=-2))

    @checked(finite=False)
    def log_conditional(
        self, centered: Float[Tensor, "... N D"], *, out: Tensor | None = None
    ) -> Float[Tensor, "*B P N D"]:
        """Log-density of each x_j given x_R, of every datum.

        Args:
            centered: x − μ, (..., N, D).
            out: where the result is written to, (..., P, N, D); without derivatives only.

        Returns:
            Nats, (..., P, N, D); 0 where j is in R.
        """
        require_near(centered, self.noise_variance)
        square = self.squared_residual(centered)
        variance = self.variance()
        is_observed = self.observed > 0
        constant = (-0.5 * (LOG_2PI + variance.log())).masked_fill(is_observed, 0.0)
        weight = (-0.5 / variance).masked_fill(is_observed, 0.0)
        return torch.addcmul(constant.unsqueeze(-2), square, weight.unsqueeze(-2), out=out)

    @checked(finite=False)
    def mean_log_conditional(self, moment: Float[Tensor, "*#B D D"]) -> Float[Tensor, "*B P D"]:
        """Mean over data of log p(x_j | x_R), from their second moment; entries of R are not set to 0.

        The mean squared residual is ``C_jj − 2 T_jᵀ T_R C_:j + T_jᵀ (T_R C T_Rᵀ) T_j``: O(D² K) a
        mask, whatever N.

        Args:
            moment: C = XᵀX/N about the mean, (..., D, D): each model of a batch may have its own.

        Returns:
            Nats, (..., P, D).
        """
        square, cross, inner = self._whitened_moment(moment)
        explained = self.whitened * (inner @ self.whitened - 2.0 * cross)
        residual_square = square + explained.sum(dim=-2)
        variance = self.variance()
        return -0.5 * (LOG_2PI + variance.log() + residual_square / variance)

    @checked(finite=False)
    def log_marginal(self, centered: Float[Tensor, "N D"]) -> Float[Tensor, "*B P N"]:
        """Log-density of x_R, of every datum; 0 where R is empty.

        Args:
            centered: x − μ, (N, D).

        Returns:
            Nats, (..., P, N).
        """
        require_near(centered, self.noise_variance)
        return self.log_constant().unsqueeze(-1) - 0.5 * self.quadratic(centered)

    @checked(finite=False)
    def mean_log_marginal(self, moment: Float[Tensor, "*#B D D"]) -> Float[Tensor, "*B P"]:
        """Mean over data of :meth:`log_marginal`, from their second moment.

        Args:
            moment: C = XᵀX/N about the mean, (..., D, D).

        Returns:
            Nats, (..., P).
        """
        square, _, inner = self._whitened_moment(moment)
        explained = inner.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        difference = (self.observed * square).sum(dim=-1) - explained
        quadratic = difference / self.noise_variance.squeeze(-1)
        return self.log_constant() - 0.5 * quadratic

    # -- parts of densities, for models: arguments are checked before they come here -----------------

    def squared_residual(self, centered: Float[Tensor, "... N D"]) -> Float[Tensor, "*B P N D"]:
        """(x_j − E[x_j | x_R])² of every datum, or of data of each set.

        For j in R the mean is that of a second measurement of x_j.

        Args:
            centered: x − μ, (..., N, D).

        Returns:
            In the square of the data's unit, (..., P, N, D).
        """
        centered = centered.double()
        # W E[z | x_R] is Tᵀ T_R x.
        explained = centered @ self.whitened_observed.mT @ self.whitened
        return explained.sub_(centered).square_()

    def quadratic(self, centered: Float[Tensor, "N D"]) -> Float[Tensor, "*B P N"]:
        """Quadratic form x_Rᵀ (W_R W_Rᵀ + σ² I)⁻¹ x_R of every datum.

        Args:
            centered: x − μ, (N, D).

        Returns:
            No unit, (..., P, N).
        """
        centered = centered.double()
        total = self.observed @ centered.square().mT
        explained = (centered @ self.whitened_observed.mT).square().sum(dim=-1)
        return (total - explained) / self.noise_variance

    def log_constant(self) -> Float[Tensor, "*B P"]:
        """Log-density of x_R at its mean, nats, (..., P)."""
        log_det = 2.0 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        size = self.observed.sum(dim=-1)
        latent_dim = self.loadings.shape[-1]
        log_noise = self.noise_variance.squeeze(-1).log()
        return -0.5 * (size * LOG_2PI + log_det + (size - latent_dim) * log_noise)

    def _whitened_moment(self, moment: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The diagonal of a second moment C, T_R C, the only product with D² terms, and T_R C T_Rᵀ."""
        moment = moment.double()
        square = moment.diagonal(dim1=-2, dim2=-1)
        require_near(square.detach().max().sqrt(), self.noise_variance)
        rows = self.whitened_observed.flatten(-3, -2)  # of all sets: one product
        cross = (rows @ moment).unflatten(-2, self.whitened_observed.shape[-3:-1])
        return square.unsqueeze(-2), cross, cross @ self.whitened_observed.mT


def _require_enough_noise(loadings: Tensor, noise_variance: Tensor) -> None:
    """Check σ² of every model: above 0, and not too small beside its ‖W‖²."""
    signal = loadings.detach().square().sum(dim=(-2, -1))
    noise = noise_variance.detach()
    ratio = (signal / noise).max().item()
    smallest = noise.min().item()
    if smallest <= 0.0:
        raise ValueError(f"noise_variance must be > 0, got {smallest:.4g}.")
    if ratio > MAX_SIGNAL_TO_NOISE:  # NaN is not: a training that diverges names the epoch
        raise ValueError(
            f"noise_variance is so small that ‖W‖² is {ratio:.3g} times as large, more than "
            f"{MAX_SIGNAL_TO_NOISE:.0e}: log-densities would lose too many digits. Use "
            "larger noise, or smaller loadings."
        )


def require_near(deviation: Tensor, noise_variance: Tensor) -> None:
    """Refuse data so far from the mean that log-densities would lose too many digits.

    Args:
        deviation: x − μ, or standard deviations, of any shape.
        noise_variance: σ², of any shape; the smallest counts.

    Raises:
        ValueError: where an entry is more than ``MAX_DEVIATION`` σ from 0.
    """
    lowest, highest = deviation.detach().aminmax()  # in one pass over memory
    largest = max(-lowest.item(), highest.item())
    distance = largest / math.sqrt(noise_variance.min().item())
    if distance > MAX_DEVIATION:
        raise ValueError(
            f"the data (x, centered or moment) are up to {largest:.3g} from the mean, {distance:.3g} "
            f"standard deviations of the noise and more than {MAX_DEVIATION:.0e}: log-densities "
            "would lose too many digits. Use data nearer to the model, or larger noise."
        )
