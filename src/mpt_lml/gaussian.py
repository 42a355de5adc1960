"""Conditioning a Gaussian, as the textbook writes it and as low-rank structure allows.

For N(μ, W Wᵀ + σ² I) with loadings W (D, K), an observed set R and Λ_R = I + W_Rᵀ W_R / σ² (K, K),

    p(x_j | x_R) = N(μ_j + w_jᵀ E[z | x_R],  σ² + w_jᵀ Λ_R⁻¹ w_j)

with E[z | x_R] = Λ_R⁻¹ W_Rᵀ (x_R − μ_R) / σ²: never a D×D inverse (Woodbury identity; Tipping & Bishop
1999; paper, Eqs. 6–7 and Appendix B with the sign of Eq. 7 corrected). Masks are one batch axis.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.checks import check, checked
from mpt_lml.masks import each_masks_something
from mpt_lml.numerics import LOG_2PI, double, log_normal, split, to_host

__all__ = [
    "LowRankPosterior",
    "condition_dense",
    "divergence",
    "log_density",
]

MOST_ROUNDING = 1e-8
"""Nats a coordinate: more is not lost to rounding, or a call is refused."""

# Rounding of means is bounded twice: from the largest number alone, and more closely where that bound is
# above this one. Two questions are asked of it: is it below MOST_ROUNDING, and below a tenth of that
# (PPCA._mean)? What is negligible answers both with yes, as any number up to that tenth would.
_NEGLIGIBLE_ROUNDING = 0.01 * MOST_ROUNDING

# The root of 2e4. So many standard deviations out, a log-density is about −1e4, and its twelfth digit is
# 1e-8 nats. Further out it grows with the square of the distance and its error with the distance: if the
# error would be within 1e-8 nats here, it is within the twelfth digit there.
_FARTHEST = 141.4

_EPSILON = torch.finfo(torch.float64).eps
# How many entries of w_d w_dᵀ for all d, D K² doubles, a core's cache holds: 2 MiB.
_CACHED_ENTRIES = 2**18


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
            rounding would show.

    >>> log_density(torch.zeros(1, 2), torch.zeros(2), torch.eye(2))
    tensor([-1.8379])
    """
    factor, growth = _cholesky("covariance", covariance)
    centered = double(x) - double(mean)
    whitened = torch.linalg.solve_triangular(factor, centered.mT, upper=False)
    square = whitened.square().sum(dim=0)
    # A coordinate's share, of the log-determinant (1) and of the square of the worst datum.
    mean_square = square.detach().max() / len(mean)
    _require_little_rounding(growth * (1.0 + mean_square), x.dtype, "covariance")
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

    Paper, Eqs. 6–7 with the minus sign: Σ_AA − Σ_AR Σ_RR⁻¹ Σ_RA. The exact sibling of
    :class:`LowRankPosterior`.

    Args:
        x: data, (N, D); what it holds in A is not read.
        mean: (D,).
        covariance: symmetric positive definite, (D, D).
        mask: A, (D,), boolean; True means masked.

    Returns:
        The mean, (N, M), and the covariance, (M, M), of the M masked coordinates.

    Raises:
        ValueError: for a covariance that is not positive definite or has directions so narrow that
            rounding would show, and for a mask that hides nothing.

    >>> pair, mask = torch.tensor([[1.0, 0.5], [0.5, 1.0]]), torch.tensor([True, False])
    >>> condition_dense(torch.tensor([[0.0, 2.0]]), torch.zeros(2), pair, mask)
    (tensor([[1.]]), tensor([[0.7500]]))
    """
    _, growth = _cholesky("covariance", covariance)
    # Of a covariance that is definite by its last digits alone, a block may not be.
    _require_little_rounding(growth, x.dtype, "covariance")
    wide = double(covariance)
    factor = torch.linalg.cholesky(wide[~mask][:, ~mask])
    cross = wide[mask][:, ~mask]
    centered = (double(x) - double(mean))[:, ~mask]
    # With L Lᵀ = Σ_RR: L⁻¹ Σ_RA and L⁻¹ (x_R − μ_R) in one solve.
    both = torch.linalg.solve_triangular(factor, torch.cat([cross, centered]).mT, upper=False)
    gain, whitened = both.mT.tensor_split([len(cross)])
    farthest = whitened.detach().square().sum(dim=-1).max().sqrt()
    _require_little_rounding(growth * (1.0 + farthest), x.dtype, "covariance")
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
        ValueError: for a covariance that is not positive definite, or so narrow beside the other that
            rounding would show.

    >>> divergence(torch.eye(2), 2 * torch.eye(2))
    tensor(0.1931)
    """
    factor_p, _ = _cholesky("p", p)
    factor_q, growth = _cholesky("q", q)
    ratio = torch.linalg.solve_triangular(factor_q, factor_p, upper=False)
    trace = ratio.square().sum(dim=(-2, -1))  # of q⁻¹ p
    _require_little_rounding(growth * (1.0 + trace.detach().max() / len(p)), p.dtype, "q")
    log_det = (factor_q.diagonal(dim1=-2, dim2=-1) / factor_p.diagonal()).log().sum(dim=-1)
    return (0.5 * (trace - len(p)) + log_det).to(p)


def _cholesky(name: str, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The Cholesky factor in double precision, and nats that rounding may change at 1 sd."""
    require_definite(name, matrix)
    wide = double(matrix)
    factor = torch.linalg.cholesky(wide)
    with torch.no_grad():
        identity = torch.eye(wide.shape[-1]).to(wide)
        inverse = torch.linalg.solve_triangular(factor, identity.expand_as(wide), upper=False)
        # At least the condition number, from Frobenius norms.
        condition = inverse.square().sum(dim=(-2, -1)) * wide.square().sum(dim=(-2, -1)).sqrt()
        # One rounding of Σ is ε/2 of it. That moves xᵀΣ⁻¹x by ε/2 times the condition number of itself
        # at most, and each coordinate's share of log det Σ by as much. A log-density has half of both.
        return factor, 0.25 * _EPSILON * condition.max()


@dataclass(frozen=True, eq=False)
class Centered:
    """x − μ in double precision, for a :class:`LowRankPosterior` that may need it still more exactly.

    >>> centered = Centered.of(torch.ones(1, 1), torch.tensor([1e-17], dtype=torch.float64))
    >>> centered.rounded.item(), centered.rounding_error().item()
    (1.0, -1e-17)
    """

    rounded: Float[Tensor, "... N D"]
    x: Tensor
    mean: Tensor

    @classmethod
    def of(cls, x: Tensor, mean: Tensor) -> "Centered":
        """``x`` (..., N, D) minus ``mean`` (D,)."""
        x = double(x)
        mean = double(mean)
        return cls(x - mean, x, mean)

    @classmethod
    def exactly(cls, x: Tensor) -> "Centered":
        """``x`` (..., N, D), whose mean is 0."""
        x = double(x)
        return cls(x, x, x.new_zeros(()))

    def rounding_error(self) -> Tensor:
        """What rounding took: with it, ``rounded`` is exact.

        Knuth's two-sum (The Art of Computer Programming, volume 2, section 4.2.2).
        """
        minus_mean = self.rounded - self.x
        return (self.x - (self.rounded - minus_mean)) - (self.mean + minus_mean)


class _Conditionals(NamedTuple):
    """What is known of z and x_j given x_R."""

    latent_mean: Tensor  # E[z | x_R], (..., P, N, K)
    residual: Tensor  # x − W E[z | x_R], (..., P, N, D)
    log_density: Tensor  # log p(x_j | x_R), (..., P, N, D)


class _Moments(NamedTuple):
    """What is needed of a second moment C = XᵀX/N about the mean, with T and T_R of the posterior."""

    square: Tensor  # the diagonal of C
    cross: Tensor  # T_R C_R:, the only product with D² terms
    inner: Tensor  # T_R C_RR T_Rᵀ


_LOADINGS = Float[Tensor, "... D k"]
_DATA = Float[Tensor, "N D"]
_DATA_OF_EACH_SET = Float[Tensor, "... N D"]
_MOMENT = Float[Tensor, "... D D"]


@dataclass(frozen=True, eq=False)
class LowRankPosterior:
    """p(z | x_R) for P observed sets at once: all that the conditionals of x need.

    L is the ``factor`` of σ² Λ_R = L Lᵀ, T = L⁻¹ Wᵀ is called ``whitened``, and T_R are its columns
    in R. All axes before those named (written ...) are a batch of models, each with its own loadings
    and, where wanted, its own noise variance and sets. Data are given as x − μ, called ``centered``.

    All arithmetic is in double precision, and results are in the ``dtype`` of the loadings. They are
    promised to 1e-8 nats a coordinate (``MOST_ROUNDING``) or to their 12th digit. With s = ‖W‖/σ (the
    ``scale``) and ε the spacing of doubles at 1, there are two ways to them:

    * The quick one takes L from the Cholesky factorization of W_Rᵀ W_R + σ² I. This squares the
      loadings, and variances are off by up to ε s² of themselves.
    * The careful one takes L from the QR factorization of W_R above σ I, which squares nothing: L is
      off by about ε s. Then it corrects to first order, with products that are exact
      (:func:`_exact_product`). E[z | x_R] gets a step of refinement from its exact residual. The
      log-determinant and variances get what L Lᵀ is short of σ² Λ_R. What is left is of second order.

    Which of them is taken is decided twice. Where the posterior is made, by the noise: the careful one
    if ε s² is above a tenth of the promise, which is σ²/‖W‖² < 2e-7. And at each call, by the data: if
    they are so far out that the quick one might break the promise, a careful posterior is made for
    this call. Where that is not enough either, the call raises ``ValueError``. The two methods
    ``..._and_rounding`` return the bound instead, and who calls them decides. A careful quadratic form,
    and with it :meth:`log_marginal`, is a sum of squares, which has its 12 digits at any size.

    >>> W, R = torch.ones(3, 1), torch.tensor([[True, True, False]])
    >>> LowRankPosterior.of(W, torch.tensor(1.0), R).variance()[0, 2]  # 1 + 1 / (1 + 2)
    tensor(1.3333)
    """

    loadings: Float[Tensor, "*B D K"]
    noise_variance: Float[Tensor, "..."]
    observed: Float[Tensor, "*#B P D"]  # 1 for what is in R, 0 for what is masked
    factor: Float[Tensor, "*B P K K"]
    whitened: Float[Tensor, "*B P K D"]
    whitened_observed: Float[Tensor, "*B P K D"]
    smallest_noise: float  # σ² of all models
    scale: float  # s = ‖W‖/σ of the worst model: errors grow with s, and with s² the quick way
    careful: bool
    dtype: torch.dtype

    @classmethod
    @checked(finite=False)
    def of(
        cls,
        loadings: Float[Tensor, "*B D k"],
        noise_variance: Float[Tensor, "..."],
        observed: Bool[Tensor, "*#B P D"],
        *,
        careful: bool = False,
    ) -> "LowRankPosterior":
        """Factor σ² Λ_R for every row R of ``observed``: O(P (D K² + K³)) a model.

        Args:
            loadings: W, (..., D, K).
            noise_variance: σ² > 0 of each model, (...), or one for all of them, ().
            observed: sets, (..., P, D), boolean; True means in R.
            careful: take the way that does not square the loadings, also where the quick one would do.

        Returns:
            The posteriors.

        Raises:
            TypeError: for tensors that are not floating point, or of two dtypes.
            ValueError: for shapes that do not fit and, as its methods do, where so small a σ² would
                let rounding be seen.
        """
        return cls._of(loadings, noise_variance, observed, careful=careful)

    @classmethod
    def _of(
        cls, loadings: Tensor, noise_variance: Tensor, observed: Tensor, *, careful: bool = False
    ) -> "LowRankPosterior":
        dtype = loadings.dtype
        loadings = double(loadings)
        noise_variance = double(noise_variance)
        scale, smallest_noise = _scale_and_noise(loadings, noise_variance)
        if smallest_noise <= 0.0:
            raise ValueError(f"noise_variance must be > 0, got {smallest_noise:.4g}.")
        # The careful way needs this much itself. With 100 digits beside it, its variances were off by
        # 0.06 ε s of themselves at most (s from 1e4 to 1e7, rows and columns nearly alike). The 10 is a
        # margin that is not derived; it refuses σ²/‖W‖² below 5e-14.
        _require_little_rounding(10.0 * _EPSILON * scale, dtype)
        # A tenth, because the bound on the data (_is_too_rounded) multiplies ε s² by
        # (1 + |E[z | x_R]|) (1 + distance of x_j), which is 9 where both are 2: the quick way would
        # be taken in vain for most data.
        careful = careful or _EPSILON * scale**2 > 0.1 * MOST_ROUNDING
        weights = observed.double()
        if careful:
            matrices = _factor_carefully(loadings, noise_variance, weights)
        else:
            matrices = _factor_quickly(loadings, noise_variance, weights)
        return cls(
            loadings, noise_variance, weights, *matrices, smallest_noise, scale, careful, dtype
        )

    def variance(self) -> Float[Tensor, "*B P D"]:
        """Conditional variance of every coordinate j given x_R: σ² (1 + T_jᵀT_j), (..., P, D)."""
        return self._variance().to(self.dtype)

    def mean_and_residual(
        self, centered: Float[Tensor, "... N D"] | Centered
    ) -> tuple[Tensor, Tensor]:
        """E[z | x_R] of every datum, or of each set's own, and what it leaves of x.

        Args:
            centered: x − μ, (..., N, D).

        Returns:
            E[z | x_R], (..., P, N, K), and x − μ − W E[z | x_R], (..., P, N, D).
        """
        conditionals = self._conditionals(self._as_centered(centered, _DATA_OF_EACH_SET))
        return conditionals.latent_mean.to(self.dtype), conditionals.residual.to(self.dtype)

    def log_conditional(
        self, centered: Float[Tensor, "... N D"] | Centered
    ) -> Float[Tensor, "*B P N D"]:
        """log p(x_j | x_R) of every datum; meaningful where j is not in R.

        Args:
            centered: x − μ, (..., N, D).

        Returns:
            Nats, (..., P, N, D).
        """
        conditionals = self._conditionals(self._as_centered(centered, _DATA_OF_EACH_SET))
        return conditionals.log_density.to(self.dtype)

    def mean_log_conditional(self, moment: Float[Tensor, "*#B D D"]) -> Float[Tensor, "*B P D"]:
        """The same averaged over data, which enter through their second moment.

        The mean squared residual is ``C_jj − 2 T_jᵀ T_R C_:j + T_jᵀ (T_R C T_Rᵀ) T_j``: O(D² K) a
        mask, whatever N.

        Args:
            moment: C = XᵀX/N about the mean, (..., D, D): each model of a batch may have its own.

        Returns:
            Nats, (..., P, D).
        """
        wide = self._wide("moment", moment, _MOMENT)
        return self._rounded(wide, *self.mean_log_conditional_and_rounding(wide))

    def log_marginal(self, centered: Float[Tensor, "N D"] | Centered) -> Float[Tensor, "*B P N"]:
        """log p(x_R) of every datum; 0 where R is empty.

        Args:
            centered: x − μ, (N, D).

        Returns:
            Nats, (..., P, N).
        """
        quadratic = self._quadratic(self._as_centered(centered, _DATA))
        return (self.log_constant()[..., None] - 0.5 * quadratic).to(self.dtype)

    def mean_log_marginal(self, moment: Float[Tensor, "*#B D D"]) -> Float[Tensor, "*B P"]:
        """log p(x_R) averaged over data, which enter through their second moment.

        Args:
            moment: C = XᵀX/N about the mean, (..., D, D).

        Returns:
            Nats, (..., P).
        """
        wide = self._wide("moment", moment, _MOMENT)
        return self._rounded(wide, *self.mean_log_marginal_and_rounding(wide))

    def quadratic(self, centered: Float[Tensor, "N D"] | Centered) -> Float[Tensor, "*B P N"]:
        """x_Rᵀ (W_R W_Rᵀ + σ² I)⁻¹ x_R of every datum, to a relative 1e-12 or so at any size.

        Args:
            centered: x − μ, (N, D).

        Returns:
            No unit, (..., P, N).
        """
        return self._quadratic(self._as_centered(centered, _DATA)).to(self.dtype)

    def log_constant(self) -> Tensor:
        """log N(0; 0, W_R W_Rᵀ + σ² I) of every set, nats, (..., P), in double precision."""
        log_det = 2.0 * self.factor.diagonal(dim1=-2, dim2=-1).abs().log().sum(dim=-1)
        if self.careful:  # to first order in what the factor has lost
            half = torch.linalg.solve_triangular(self.factor, self._factor_error(), upper=False)
            error = torch.linalg.solve_triangular(self.factor, half.mT, upper=False)
            log_det = log_det + error.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        size = self.observed.sum(dim=-1)
        latent_dim = self.loadings.shape[-1]
        log_noise = self.noise_variance[..., None].log()
        return -0.5 * (size * LOG_2PI + log_det + (size - latent_dim) * log_noise)

    def mean_log_conditional_and_rounding(self, moment: Tensor) -> tuple[Tensor, float]:
        """:meth:`mean_log_conditional` in double precision, and nats that rounding may have changed."""
        values, rounding = self._mean_conditional(moment)
        if not rounding <= MOST_ROUNDING and not self.careful:  # NaN is too much, too
            return self._carefully().mean_log_conditional_and_rounding(moment)
        return values, rounding

    def mean_log_marginal_and_rounding(self, moment: Tensor) -> tuple[Tensor, float]:
        """:meth:`mean_log_marginal` in double precision, and nats that rounding may have changed."""
        values, rounding = self._mean_marginal(moment)
        if not rounding <= MOST_ROUNDING and not self.careful:
            return self._carefully().mean_log_marginal_and_rounding(moment)
        return values, rounding

    # -- arguments and results --------------------------------------------------------------------

    def _as_centered(self, centered: Tensor | Centered, annotation: object) -> Centered:
        if isinstance(centered, Centered):
            return centered
        return Centered.exactly(self._wide("centered", centered, annotation))

    def _wide(self, name: str, value: Tensor, annotation: object) -> Tensor:
        """``value`` checked and in double precision. It may be wider than the loadings were."""
        # For the check only, which refuses two dtypes: loadings as the caller gave them.
        is_wide = getattr(value, "dtype", None) == torch.float64
        loadings = self.loadings if is_wide else self.loadings.to(self.dtype)
        check(("loadings", loadings, _LOADINGS), (name, value, annotation), finite=False)
        return double(value)

    def _rounded(self, moment: Tensor, values: Tensor, rounding: float) -> Tensor:
        """Means in the precision of the loadings, or a refusal where rounding has changed too much."""
        self._require_squares(rounding, moment)
        _require_little_rounding(rounding, self.dtype)
        return values.to(self.dtype)

    def _require_squares(self, value: float, data: Tensor) -> None:
        """Refuse finite ``data`` whose squares, of which ``value`` is made, overflow.

        What is not finite itself is passed on, as everywhere here.
        """
        if abs(value) <= torch.finfo(self.dtype).max:
            return
        if math.isfinite(self.scale) and data.isfinite().all():
            raise ValueError(
                f"the data (x, centered or moment) are up to {data.detach().abs().max().item():.3g} from "
                f"the mean: their log-densities overflow {self.dtype}. Use data nearer to the model, in "
                "another unit for example."
            )

    def _carefully(self) -> "LowRankPosterior":
        posterior = LowRankPosterior._of(
            self.loadings, self.noise_variance, self.observed.bool(), careful=True
        )
        return replace(posterior, dtype=self.dtype)

    # -- one datum after the other ------------------------------------------------------------------

    def _conditionals(self, centered: Centered) -> _Conditionals:
        latent_mean, residual = self._mean_and_residual(centered)
        variance = self._variance().unsqueeze(-2)
        log_density = log_normal(residual, variance)
        if not self.careful:
            if self._is_too_rounded(centered.rounded, latent_mean, log_density, variance):
                return self._carefully()._conditionals(centered)
            return _Conditionals(latent_mean, residual, log_density)
        with torch.no_grad():
            farthest = _farthest(log_density.amin(dim=-2, keepdim=True), variance)
            square = self._squares(latent_mean, residual).max()
            # What may overflow is a square, of a distance or in the quadratic form.
            largest = torch.where(square.isfinite(), farthest.square(), square)
            self._require_squares(largest.item(), centered.rounded)
            # What a step of refinement leaves: the square of the factor's error, of what there was to
            # solve for, √square. The 4 is a margin that is not derived. Not in this bound: residuals
            # in R are rounded themselves, by ε of theirs. Two coordinates with the same loadings, in
            # data 1e9 standard deviations apart, cost the others 4e-8 nats.
            of_residual = (4.0 * _EPSILON * self.scale) ** 2 * (1.0 + square.sqrt())
            nats = of_residual * (1.0 + farthest.clamp(max=_FARTHEST))
            _require_little_rounding(nats.item(), self.dtype)
        return _Conditionals(latent_mean, residual, log_density)

    def _is_too_rounded(
        self, centered: Tensor, latent_mean: Tensor, log_density: Tensor, variance: Tensor
    ) -> bool:
        """Whether rounding may change log p(x_j | x_R) by more than is promised, the quick way.

        A relative error ε s² of Λ_R moves w_jᵀ E[z | x_R] by ε s² |E[z | x_R]| standard deviations of
        x_j at most (Cauchy–Schwarz), and rounding of x_j moves it by ε |x_j|/σ. Log-densities change by
        that times the distance of x_j, and by ε s² with the variance. The bound is

            ε (s² (1 + |E[z | x_R]|) + |x_j|/σ) (1 + distance).

        In 180 random cases with 100 digits beside them, errors were a third of it at most. It is taken
        three times, each time closer and dearer: from the largest number of the data, from three numbers
        of the results, and with each distance by itself. The first that is small enough answers.
        """
        if not log_density.numel():
            return False
        largest = torch.linalg.vector_norm(centered.detach(), torch.inf).item()
        data = largest / math.sqrt(self.smallest_noise)
        if math.isnan(data) or math.isnan(self.scale):
            return False  # what is not a number is passed on
        # |x_R − W_R z|²/σ² + |z|² is |x_R|²/σ² at z = 0, and not more at E[z | x_R]. Nor is |w_jᵀ z| more
        # than |x_R|/σ standard deviations of x_j, by the Cauchy–Schwarz inequality with Λ_R⁻¹.
        longest = math.sqrt(centered.shape[-1]) * data
        growth = self.scale**2 * (1.0 + longest) + data
        if _EPSILON * growth * (1.0 + data + longest) <= MOST_ROUNDING:
            return False
        latent_mean = latent_mean.detach()
        log_density = log_density.detach()
        variance = variance.detach()
        if latent_mean.numel():
            largest_latent = torch.linalg.vector_norm(latent_mean, dim=-1).max()
        else:
            largest_latent = log_density.new_zeros(())
        length, least_density, least_variance = to_host(
            largest_latent, log_density.min(), variance.min()
        )
        growth = self.scale**2 * (1.0 + length) + data
        # The least of all densities beside the least variance: no residual is further out than that,
        # and it takes one pass over memory as it lies. Only where that is too far are they paired.
        square = -2.0 * least_density - LOG_2PI - math.log(least_variance)
        if _EPSILON * growth * (1.0 + math.sqrt(max(square, 0.0))) <= MOST_ROUNDING:
            return False
        farthest = _farthest(log_density.amin(dim=-2, keepdim=True), variance)
        return not _EPSILON * growth * (1.0 + farthest.item()) <= MOST_ROUNDING  # NaN is, too

    def _mean_and_residual(self, centered: Centered) -> tuple[Tensor, Tensor]:
        half = centered.rounded @ self.whitened_observed.mT
        latent_mean = torch.linalg.solve_triangular(self.factor, half, upper=False, left=False)
        columns = self.loadings.unsqueeze(-3)
        if not self.careful:
            return latent_mean, centered.rounded - latent_mean @ columns.mT
        # One step of refinement from a residual that has all its digits.
        explained, explained_error = _exact_product(latent_mean, columns.mT)
        residual = (centered.rounded - explained) + (centered.rounding_error() - explained_error)
        slope, slope_error = _exact_product(self.observed[..., None, :] * residual, columns)
        noise = self.noise_variance[..., None, None, None]
        slope = (slope - noise * latent_mean) + slope_error
        half = torch.linalg.solve_triangular(self.factor.mT, slope, upper=True, left=False)
        step = torch.linalg.solve_triangular(self.factor, half, upper=False, left=False)
        return latent_mean + step, residual - step @ columns.mT

    def _variance(self) -> Tensor:
        explained = self.whitened.square().sum(dim=-2)
        if self.careful:  # (L Lᵀ + E)⁻¹ is (L Lᵀ)⁻¹ − (L Lᵀ)⁻¹ E (L Lᵀ)⁻¹ but for squares of E
            gain = torch.linalg.solve_triangular(self.factor.mT, self.whitened, upper=True)
            explained = explained - (gain * (self._factor_error() @ gain)).sum(dim=-2)
        noise = _with_axes(self.noise_variance, 2)
        return torch.addcmul(noise, noise, explained)

    def _factor_error(self) -> Float[Tensor, "*B P K K"]:
        """E = σ² Λ_R − L Lᵀ, what rounding has left out of the factor."""
        observed_rows = self.observed[..., None] * self.loadings[..., None, :, :]
        gram, gram_error = _exact_product(observed_rows.mT, observed_rows)
        square, square_error = _exact_product(self.factor, self.factor.mT)
        noise = self.noise_variance[..., None, None, None]
        identity = torch.eye(self.loadings.shape[-1]).to(self.loadings)
        return (gram - square) + noise * identity + (gram_error - square_error)

    def _quadratic(self, centered: Centered) -> Tensor:
        """x_Rᵀ Σ_RR⁻¹ x_R, (..., P, N)."""
        if self.careful:
            squares = self._squares(*self._mean_and_residual(centered))
            self._require_squares(squares.detach().sum().item(), centered.rounded)
            return squares
        noise = self.noise_variance[..., None, None]
        total = self.observed @ centered.rounded.square().mT / noise
        explained = (centered.rounded @ self.whitened_observed.mT).square().sum(dim=-1) / noise
        difference = total - explained
        with torch.no_grad():  # the two may be nearly equal
            count = self.observed.sum(dim=-1).clamp(min=1.0)
            # The difference loses ε of ``total``, and ε s² of itself by the factor.
            worst = total.amax(dim=-1) + self.scale**2 * difference.amax(dim=-1)
            is_exact_enough = (_EPSILON * worst / count).max() <= MOST_ROUNDING
        if not is_exact_enough:
            return self._carefully()._quadratic(centered)
        return difference

    def _squares(self, latent: Tensor, residual: Tensor) -> Tensor:
        """|x_R − W_R z|²/σ² + |z|²: at the best z, the quadratic form."""
        residual_square = (residual.square() @ self.observed[..., None])[..., 0]
        noise = self.noise_variance[..., None, None]
        return residual_square / noise + latent.square().sum(dim=-1)

    # -- means over the data, from their second moment ----------------------------------------------

    def _mean_conditional(self, moment: Tensor) -> tuple[Tensor, float]:
        square, cross, inner = self._moments(moment)
        explained = self.whitened * (inner @ self.whitened - 2.0 * cross)
        residual_square = square + explained.sum(dim=-2)
        variance = self._variance()
        distance = residual_square / variance
        values = -0.5 * (LOG_2PI + variance.log() + distance)
        most_rounding = self._most_rounding_of_means(moment)
        if most_rounding <= _NEGLIGIBLE_ROUNDING:
            return values, most_rounding
        with torch.no_grad():
            farthest = distance.max().clamp(min=0.0).sqrt()
            length = self._mean_quadratic(square, inner).max().clamp(min=0.0).sqrt()
            mean_square, spread = to_host((square / variance).max(), length * farthest)
        return values, self._rounding_of_means(mean_square, spread)

    def _mean_marginal(self, moment: Tensor) -> tuple[Tensor, float]:
        square, _, inner = self._moments(moment)
        quadratic = self._mean_quadratic(square, inner)
        values = self.log_constant() - 0.5 * quadratic
        most_rounding = self._most_rounding_of_means(moment)
        if most_rounding <= _NEGLIGIBLE_ROUNDING:
            return values, most_rounding
        with torch.no_grad():
            count = self.observed.sum(dim=-1).clamp(min=1.0)
            total = (self.observed * square).sum(dim=-1) / self.noise_variance[..., None]
            mean_square, spread = to_host((total / count).max(), (quadratic / count).max())
        return values, self._rounding_of_means(mean_square, spread)

    def _most_rounding_of_means(self, moment: Tensor) -> float:
        """At least :meth:`_rounding_of_means`, from one number: the largest entry of the moment."""
        largest = torch.linalg.vector_norm(moment.detach(), torch.inf).item()
        square = moment.shape[-1] * largest / self.smallest_noise  # not below the mean of |x|²/σ²
        # No mean quadratic form is larger, and no x_j further out than twice its root: see
        # _is_too_rounded.
        return self._rounding_of_means(square, 2.0 * square)

    def _rounding_of_means(self, mean_square: float, spread: float) -> float:
        """Nats that rounding may change where means of squares are known and not the data.

        Args:
            mean_square: of the data, in variances.
            spread: of a conditional, the distance of its residual times that of x_R from the model, in
                standard deviations; of a marginal, a coordinate's share of its quadratic form.
        """
        growth = self.scale if self.careful else self.scale**2
        # One rounding is ε/2, and a log-density has half of a square, as in _cholesky.
        return 0.25 * _EPSILON * (mean_square + growth * (1.0 + max(spread, 0.0)))

    def _mean_quadratic(self, square: Tensor, inner: Tensor) -> Tensor:
        explained = inner.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        difference = (self.observed * square).sum(dim=-1) - explained
        return difference / _with_axes(self.noise_variance, 1)

    def _moments(self, moment: Tensor) -> _Moments:
        rows = self.whitened_observed.flatten(-3, -2)  # of all sets: one product
        cross = (rows @ moment).reshape(*rows.shape[:-2], *self.whitened_observed.shape[-3:])
        square = moment.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
        return _Moments(square, cross, cross @ self.whitened_observed.mT)


def _scale_and_noise(loadings: Tensor, noise_variance: Tensor) -> tuple[float, float]:
    """‖W‖/σ of the worst model, and the smallest σ²."""
    lengths = torch.linalg.vector_norm(loadings.detach(), dim=(-2, -1))
    variances = noise_variance.detach()
    if lengths.ndim or variances.ndim:  # several models
        scale, smallest = to_host((lengths / variances.sqrt()).max(), variances.min())
        return scale, smallest
    length, variance = to_host(lengths, variances)
    scale = length / math.sqrt(variance) if variance > 0.0 else math.nan
    return scale, variance


def _factor_quickly(
    loadings: Tensor, noise_variance: Tensor, observed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """L, T and T_R from W_Rᵀ W_R, a square."""
    num_features, latent_dim = loadings.shape[-2:]
    identity = torch.eye(latent_dim, dtype=loadings.dtype, device=loadings.device)
    rows = loadings.unsqueeze(-3)
    if loadings.numel() * latent_dim <= _CACHED_ENTRIES:
        outer = (loadings.unsqueeze(-1) * loadings.unsqueeze(-2)).flatten(-2)
        gram = observed @ outer  # all masks in one product
        gram = gram.reshape(*gram.shape[:-1], latent_dim, latent_dim)
    else:
        gram = (observed[..., None, :] * rows.mT) @ rows
    noise = _with_axes(noise_variance, 3)
    factor = torch.linalg.cholesky_ex(torch.addcmul(gram, noise, identity)).L
    if num_features < 8 * latent_dim:
        whitened = _whiten(factor, rows)
    else:  # one large product, which threads share
        inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
        whitened = inverse @ (loadings if loadings.ndim == 2 else rows).mT
    return factor, whitened, observed.unsqueeze(-2) * whitened


def _factor_carefully(
    loadings: Tensor, noise_variance: Tensor, observed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """L, T and T_R from the root of σ² Λ_R, which is W_R above σ I: R of its QR is Lᵀ, Q_R is T_Rᵀ."""
    num_features, latent_dim = loadings.shape[-2:]
    identity = torch.eye(latent_dim, dtype=loadings.dtype, device=loadings.device)
    rows = loadings[..., None, :, :]
    observed_rows = observed[..., None] * rows
    noise = noise_variance[..., None, None, None]
    root = (noise.sqrt() * identity).expand(*observed_rows.shape[:-2], *identity.shape)
    q, r = torch.linalg.qr(torch.cat([observed_rows, root], dim=-2))
    factor = r.mT
    whitened_observed = observed[..., None, :] * q[..., :num_features, :].mT
    return factor, _whiten(factor, rows), whitened_observed


def _with_axes(values: Tensor, count: int) -> Tensor:
    """``values`` with so many axes of size 1 behind their own; one number needs none."""
    return values.reshape(*values.shape, *[1] * count) if values.ndim else values


def _whiten(factor: Tensor, rows: Tensor) -> Tensor:
    """L⁻¹ Wᵀ, solved from the right: its transpose is contiguous, for products with it."""
    return torch.linalg.solve_triangular(factor.mT, rows, upper=True, left=False).mT


def _farthest(log_densities: Tensor, variance: Tensor) -> Tensor:
    """The largest residual in standard deviations, from log N(residual; 0, variance)."""
    squares = -2.0 * log_densities - LOG_2PI - variance.log()
    return squares.max().clamp(min=0.0).sqrt()


def _exact_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a @ b as a sum of two: the first is exact for rounded factors, the second small.

    Ozaki et al. 2012: numbers with few enough bits have products and sums that are not rounded.
    """
    num_terms = a.shape[-1]
    if num_terms == 0:
        return a @ b, a @ b
    # Products of two such parts have twice the bits, and a sum of n of them log₂ n more: a double has 53.
    bits = (52 - num_terms.bit_length()) // 2
    a_leading, a_remainder = split(a, -1, bits)
    b_leading, b_remainder = split(b, -2, bits)
    return a_leading @ b_leading, a_remainder @ b + a_leading @ b_remainder


def _require_little_rounding(
    nats: float | Tensor, dtype: torch.dtype, covariance: str = ""
) -> None:
    """Refuse what rounding may change by more than is promised.

    ``covariance`` is the name of the matrix that is to blame; without one, σ² is.
    """
    if nats <= MOST_ROUNDING:
        return
    if not covariance and nats != nats:
        return  # NaN parameters are passed on
    remedy = "Use larger noise, data nearer to the model"
    if covariance:
        cause = f"{covariance} has directions so narrow"
        remedy += "."
    else:
        cause = "noise_variance is so small"
        remedy += " and, where moments were given, methods of PPCA, which see the data."
    raise ValueError(
        f"{cause} beside the rest that rounding in double precision changes log-densities"
        f" of {dtype} input by {float(nats):.0e} nats a coordinate, more than {MOST_ROUNDING:.0e}. "
        f"{remedy}"
    )
