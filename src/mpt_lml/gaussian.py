"""Conditioning a Gaussian, as the textbook writes it and as low-rank structure allows.

For N(μ, W Wᵀ + σ² I) with loadings W (D, K), an observed set R and Λ_R = I + W_Rᵀ W_R / σ² (K, K),

    p(x_j | x_R) = N(μ_j + w_jᵀ E[z | x_R],  σ² + w_jᵀ Λ_R⁻¹ w_j)

with E[z | x_R] = Λ_R⁻¹ W_Rᵀ (x_R − μ_R) / σ²: never a D×D inverse (Woodbury identity; Tipping & Bishop
1999; paper, Eqs. 6–7 and Appendix B with the sign of Eq. 7 corrected). Masks are one batch axis.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.numerics import LOG_2PI, double, log_normal
from mpt_lml.spec import require, require_mask

__all__ = [
    "LowRankPosterior",
    "condition_dense",
    "divergence",
    "log_density",
]

_EPSILON = torch.finfo(torch.float64).eps
NATS = 1e-8  # a coordinate: more is not lost to rounding, or a call is refused
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
    factor, growth = _factor("covariance", covariance)
    centered = double(x) - double(mean)
    white = torch.linalg.solve_triangular(factor, centered.mT, upper=False)
    square = white.square().sum(dim=0)
    require_nats(growth * (1.0 + square.detach().max() / len(mean)), x.dtype, "covariance")
    log_det = 2.0 * factor.diagonal().log().sum()
    return (-0.5 * (len(mean) * LOG_2PI + log_det + square)).to(x)


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
    factor, growth = _factor("covariance", covariance)
    wide = double(covariance)
    given = torch.linalg.cholesky(wide[~mask][:, ~mask])
    cross = wide[mask][:, ~mask]
    centered = (double(x) - double(mean))[:, ~mask]
    white = torch.linalg.solve_triangular(given, torch.cat([cross, centered]).mT, upper=False)
    gain, seen = white.mT.tensor_split([len(cross)])
    size = seen.detach().square().sum(dim=-1).max().sqrt()
    require_nats(growth * (1.0 + size), x.dtype, "covariance")
    conditional_mean = double(mean)[mask] + seen @ gain.mT
    conditional_covariance = wide[mask][:, mask] - gain @ gain.mT
    return conditional_mean.to(x), conditional_covariance.to(x)


def divergence(p: Float[Tensor, "D D"], q: Float[Tensor, "*B D D"]) -> Float[Tensor, "*B"]:
    """KL(N(0, p) ‖ N(0, q)) of the covariances p and q, nats, shape (...).

    >>> divergence(torch.eye(2), 2 * torch.eye(2))
    tensor(0.1931)
    """
    require(locals(), "p D D, q ... D D")
    factor, _ = _factor("p", p)
    other, growth = _factor("q", q)
    share = torch.linalg.solve_triangular(other, factor, upper=False).square().sum(dim=(-2, -1))
    require_nats(growth * (1.0 + share.detach().max() / len(p)), p.dtype, "q")
    log_det = (other.diagonal(dim1=-2, dim2=-1) / factor.diagonal()).log().sum(dim=-1)
    return (0.5 * (share - len(p)) + log_det).to(p)


def _factor(name: str, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The Cholesky factor in double precision, and nats that rounding may change at 1 sd."""
    require_definite(name, matrix)
    wide = double(matrix)
    factor = torch.linalg.cholesky(wide)
    with torch.no_grad():
        identity = torch.eye(wide.shape[-1]).to(wide)
        inverse = torch.linalg.solve_triangular(factor, identity.expand_as(wide), upper=False)
        condition = inverse.square().sum(dim=(-2, -1)) * wide.square().sum(dim=(-2, -1)).sqrt()
        return factor, 0.25 * _EPSILON * condition.max()


@dataclass(frozen=True, eq=False)
class Centered:
    """x − μ in double precision, for a :class:`LowRankPosterior` that may need it still more exactly.

    >>> centered = Centered.of(torch.ones(1, 1), torch.tensor([1e-17], dtype=torch.float64))
    >>> centered.rounded.item(), centered.lost().item()
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

    def lost(self) -> Tensor:
        """What rounding took: with it, ``rounded`` is exact.

        Knuth's two-sum (The Art of Computer Programming, volume 2, section 4.2.2).
        """
        minus_mean = self.rounded - self.x
        return (self.x - (self.rounded - minus_mean)) - (self.mean + minus_mean)


@dataclass(frozen=True, eq=False)
class LowRankPosterior:
    """p(z | x_R) for P observed sets at once: all that the conditionals of x need.

    W, σ², 1 for what is kept and 0 for what is masked, L with σ² Λ_R = L Lᵀ, T = L⁻¹ Wᵀ and its columns
    in R, T_R. All axes before those named (written ...) are a batch of models, each with its own
    loadings and, where wanted, its own noise variance and sets.

    All arithmetic is in double precision, and results are in the ``dtype`` of the loadings. There are
    two ways. The quick one squares the loadings, which doubles the digits that are lost. The
    ``careful`` one does not, and it is taken where the quick one may miss a result by more than
    1e-8 nats a coordinate (or its 12th digit): very little noise, or data far from the model. Where
    that is not enough either, methods raise ``ValueError``.

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
    smallest_noise: float  # σ² of all models
    scale: float  # ‖W‖/σ of the worst model: with it errors grow, and with its square for squares
    careful: bool
    dtype: torch.dtype

    @classmethod
    def of(
        cls, loadings: Tensor, noise_variance: Tensor, observed: Tensor, *, careful: bool = False
    ) -> "LowRankPosterior":
        """Factor σ² Λ_R for every row R of ``observed`` (..., P, D); O(P (D K² + K³)) a model.

        Raises ``ValueError``, as its methods do, where so small a σ² would let rounding be seen.
        """
        spec = "loadings ... D k, noise_variance ..., bool observed ... P D"
        require(locals(), spec, finite=False)
        dtype = loadings.dtype
        loadings = double(loadings)
        noise_variance = double(noise_variance)
        keep = observed.to(loadings.dtype)
        noise = noise_variance[..., None, None, None]
        identity = torch.eye(loadings.shape[-1]).to(loadings)
        rows = loadings[..., None, :, :]
        ratio = loadings.detach().square().sum(dim=(-2, -1)) / noise_variance.detach()
        # Both in one copy to the host.
        extremes = torch.stack([ratio.max().sqrt(), noise_variance.detach().min()])
        scale, smallest_noise = extremes.tolist()
        if smallest_noise <= 0.0:
            raise ValueError(f"noise_variance must be > 0, got {smallest_noise:.4g}.")
        require_nats(10.0 * _EPSILON * scale, dtype)
        careful = careful or _EPSILON * scale**2 > 0.1 * NATS
        seen = None
        if careful:  # from the root of σ² Λ_R
            observed_rows = keep[..., None] * rows
            root = (noise.sqrt() * identity).expand(*observed_rows.shape[:-2], *identity.shape)
            q, r = torch.linalg.qr(torch.cat([observed_rows, root], dim=-2))
            factor = r.mT
            seen = keep[..., None, :] * q[..., : loadings.shape[-2], :].mT
        else:
            if loadings.numel() * loadings.shape[-1] <= _CACHED:
                outer = (loadings[..., :, None] * loadings[..., None, :]).flatten(-2)
                gram = (keep @ outer).unflatten(-1, identity.shape)  # all masks in one product
            else:
                gram = (keep[..., None, :] * rows.mT) @ rows
            factor = torch.linalg.cholesky_ex(gram + noise * identity).L
        if careful or loadings.shape[-2] < 8 * loadings.shape[-1]:
            # From the right, its transpose is contiguous: products with it run as one large product.
            white = torch.linalg.solve_triangular(factor.mT, rows, upper=True, left=False).mT
        else:  # one large product, which threads share
            inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
            white = inverse @ (loadings if loadings.ndim == 2 else rows).mT
        if seen is None:
            seen = keep[..., None, :] * white
        matrices = loadings, noise_variance, keep, factor, white, seen
        return cls(*matrices, smallest_noise, scale, careful, dtype)

    def variance(self) -> Float[Tensor, "*B P D"]:
        """Conditional variance of every coordinate j given x_R: σ² (1 + T_jᵀT_j)."""
        return self._variance().to(self.dtype)

    def explain(self, centered: Tensor | Centered) -> tuple[Tensor, Tensor]:
        """E[z | x_R], (..., P, N, K), of every datum or of each set's own, and what it leaves of x."""
        latent, residual, _ = self._conditionals(self._centered("centered ... N D", centered))
        return latent.to(self.dtype), residual.to(self.dtype)

    def log_conditional(
        self, centered: Float[Tensor, "... N D"] | Centered
    ) -> Float[Tensor, "*B P N D"]:
        """log p(x_j | x_R) of every datum; meaningful where j is not in R."""
        _, _, values = self._conditionals(self._centered("centered ... N D", centered))
        return values.to(self.dtype)

    def mean_log_conditional(self, moment: Float[Tensor, "*#B D D"]) -> Float[Tensor, "*B P D"]:
        """The same averaged over data of the given second moment C = XᵀX/N about the mean.

        Each model of a batch may have data of its own. The squared residual is
        ``C_jj − 2 T_jᵀ T_R C_:j + T_jᵀ (T_R C T_Rᵀ) T_j``: O(D² K) a mask, whatever N.
        """
        return self._mean("conditional", moment)

    def log_marginal(self, centered: Float[Tensor, "N D"] | Centered) -> Float[Tensor, "*B P N"]:
        """log p(x_R) of every datum; 0 where R is empty."""
        quadratic = self._quadratic(self._centered("centered N D", centered))
        return (self.log_constant()[..., None] - 0.5 * quadratic).to(self.dtype)

    def mean_log_marginal(self, moment: Float[Tensor, "*#B D D"]) -> Float[Tensor, "*B P"]:
        """log p(x_R) averaged over data of the given second ``moment``."""
        return self._mean("marginal", moment)

    def quadratic(self, centered: Float[Tensor, "N D"]) -> Float[Tensor, "*B P N"]:
        """x_Rᵀ (W_R W_Rᵀ + σ² I)⁻¹ x_R of every datum, to a relative 1e-12 or so at any size."""
        return self._quadratic(self._centered("centered N D", centered)).to(self.dtype)

    def _centered(self, spec: str, given: Tensor | Centered) -> Centered:
        if isinstance(given, Centered):
            return given
        wide = self._wide(spec, given)
        return Centered(wide, wide, wide.new_zeros(()))

    def _wide(self, spec: str, given: Tensor) -> Tensor:
        """``given`` checked and in double precision. It may be wider than the loadings were."""
        name = spec.split()[0]
        is_wide = getattr(given, "dtype", None) == torch.float64
        loadings = self.loadings if is_wide else self.loadings.to(self.dtype)
        require({"loadings": loadings, name: given}, f"loadings ... D k, {spec}", finite=False)
        return double(given)

    def _carefully(self) -> "LowRankPosterior":
        matrices = self.loadings, self.noise_variance, self.keep.bool()
        return replace(LowRankPosterior.of(*matrices, careful=True), dtype=self.dtype)

    def _variance(self) -> Tensor:
        explained = self.white.square().sum(dim=-2)
        if self.careful:  # (L Lᵀ + E)⁻¹ is (L Lᵀ)⁻¹ − (L Lᵀ)⁻¹ E (L Lᵀ)⁻¹ but for squares of E
            gain = torch.linalg.solve_triangular(self.factor.mT, self.white, upper=True)
            explained = explained - (gain * (self._factor_error() @ gain)).sum(dim=-2)
        return self.noise_variance[..., None, None] * (1.0 + explained)

    def _factor_error(self) -> Float[Tensor, "*B P K K"]:
        """E = σ² Λ_R − L Lᵀ, what rounding has left out of the factor."""
        observed_rows = self.keep[..., None] * self.loadings[..., None, :, :]
        gram, gram_rest = _product(observed_rows.mT, observed_rows)
        square, square_rest = _product(self.factor, self.factor.mT)
        noise = self.noise_variance[..., None, None, None]
        identity = torch.eye(self.loadings.shape[-1]).to(self.loadings)
        return (gram - square) + noise * identity + (gram_rest - square_rest)

    def _conditionals(self, centered: Centered) -> tuple[Tensor, Tensor, Tensor]:
        """E[z | x_R], what it leaves of x, and log p(x_j | x_R)."""
        latent, residual = self._explain(centered)
        variance = self._variance()[..., None, :]
        values = log_normal(residual, variance)
        with torch.no_grad():
            if self.careful:
                farthest = _farthest(values.amin(dim=-2, keepdim=True), variance)
                fit = self._squares(latent, residual).max().sqrt()
                nats = (4.0 * _EPSILON * self.scale) ** 2 * (1.0 + fit) * (1.0 + farthest)
                self._require_squares(nats.item(), centered.rounded)
                require_nats(nats.item(), self.dtype)
            elif self._is_lost(centered.rounded, latent, values, variance):
                return self._carefully()._conditionals(centered)
        return latent, residual, values

    def _is_lost(self, centered: Tensor, latent: Tensor, values: Tensor, variance: Tensor) -> bool:
        """Whether rounding may change log p(x_j | x_R) by more than is promised, the quick way."""
        if not values.numel():
            return False
        largest_latent = values.new_zeros(())
        if latent.numel():
            largest_latent = torch.linalg.vector_norm(latent, dim=-1).max()
        largest = torch.linalg.vector_norm(centered, torch.inf)
        # All in one copy to the host.
        numbers = torch.stack([largest_latent, largest, values.min(), variance.min()])
        size, data, least_value, least_variance = numbers.tolist()
        if math.isnan(data) or math.isnan(self.scale):
            return False  # what is not a number is passed on
        growth = self.scale**2 * (1.0 + size) + data / math.sqrt(self.smallest_noise)
        # The least of all values beside the least variance: no residual is further out than that,
        # and it takes one pass over memory as it lies. Only where that is too far are they paired.
        square = -2.0 * least_value - LOG_2PI - math.log(least_variance)
        if _EPSILON * growth * (1.0 + math.sqrt(max(square, 0.0))) <= NATS:
            return False
        farthest = _farthest(values.amin(dim=-2, keepdim=True), variance)
        return not _EPSILON * growth * (1.0 + farthest.item()) <= NATS  # NaN is lost, too

    def _explain(self, centered: Centered) -> tuple[Tensor, Tensor]:
        seen = centered.rounded @ self.seen.mT
        latent = torch.linalg.solve_triangular(self.factor, seen, upper=False, left=False)
        columns = self.loadings[..., None, :, :]
        if not self.careful:
            return latent, centered.rounded - latent @ columns.mT
        # One step of refinement from a residual that has all its digits.
        explained, explained_rest = _product(latent, columns.mT)
        residual = (centered.rounded - explained) + (centered.lost() - explained_rest)
        slope, slope_rest = _product(self.keep[..., None, :] * residual, columns)
        slope = (slope - self.noise_variance[..., None, None, None] * latent) + slope_rest
        half = torch.linalg.solve_triangular(self.factor.mT, slope, upper=True, left=False)
        step = torch.linalg.solve_triangular(self.factor, half, upper=False, left=False)
        return latent + step, residual - step @ columns.mT

    def averaged(self, name: str, moment: Tensor) -> tuple[Tensor, float]:
        """``mean_log_`` and ``name`` in double precision, and nats that rounding may have changed."""
        values, nats = getattr(self, f"_mean_{name}")(moment)
        if not nats <= NATS and not self.careful:
            return self._carefully().averaged(name, moment)
        return values, nats.item()

    def _mean(self, name: str, moment: Tensor) -> Tensor:
        wide = self._wide("moment ... D D", moment)
        values, nats = self.averaged(name, wide)
        self._require_squares(nats, wide)
        require_nats(nats, self.dtype)
        return values.to(self.dtype)

    def _mean_conditional(self, moment: Tensor) -> tuple[Tensor, Tensor]:
        square, cross, inner = self._moments(moment)
        left = square + (self.white * (inner @ self.white - 2.0 * cross)).sum(dim=-2)
        variance = self._variance()
        with torch.no_grad():
            farthest = (left / variance).max().clamp(min=0.0).sqrt()
            size = self._mean_quadratic(square, inner).max().clamp(min=0.0).sqrt()
            nats = self._lost_of_means((square / variance).max(), size * farthest)
        return -0.5 * (LOG_2PI + variance.log() + left / variance), nats

    def _mean_marginal(self, moment: Tensor) -> tuple[Tensor, Tensor]:
        square, _, inner = self._moments(moment)
        quadratic = self._mean_quadratic(square, inner)
        with torch.no_grad():
            count = self.keep.sum(dim=-1).clamp(min=1.0)
            total = (self.keep * square).sum(dim=-1) / self.noise_variance[..., None]
            nats = self._lost_of_means((total / count).max(), (quadratic / count).max())
        return self.log_constant() - 0.5 * quadratic, nats

    def _lost_of_means(self, data: Tensor, spread: Tensor) -> Tensor:
        """Nats that rounding may change where means of squares are known and not the data."""
        growth = self.scale if self.careful else self.scale**2
        return 0.25 * _EPSILON * (data + growth * (1.0 + spread.clamp(min=0.0)))

    def _mean_quadratic(self, square: Tensor, inner: Tensor) -> Tensor:
        left = (self.keep * square).sum(dim=-1) - inner.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        return left / self.noise_variance[..., None]

    def _moments(self, moment: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The diagonal of C, T_R C_R: (the only product with D² terms) and T_R C_RR T_Rᵀ."""
        cross = (self.seen.flatten(-3, -2) @ moment).unflatten(-2, self.seen.shape[-3:-1])
        return moment.diagonal(dim1=-2, dim2=-1)[..., None, :], cross, cross @ self.seen.mT

    def log_constant(self) -> Tensor:
        """log N(0; 0, W_R W_Rᵀ + σ² I) of every set, nats, in double precision."""
        log_det = 2.0 * self.factor.diagonal(dim1=-2, dim2=-1).abs().log().sum(dim=-1)
        if self.careful:  # to first order in what the factor has lost
            half = torch.linalg.solve_triangular(self.factor, self._factor_error(), upper=False)
            error = torch.linalg.solve_triangular(self.factor, half.mT, upper=False)
            log_det = log_det + error.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        size = self.keep.sum(dim=-1)
        dim = self.loadings.shape[-1]
        log_noise = self.noise_variance[..., None].log()
        return -0.5 * (size * LOG_2PI + log_det + (size - dim) * log_noise)

    def _quadratic(self, centered: Centered) -> Tensor:
        """x_Rᵀ Σ_RR⁻¹ x_R, (..., P, N)."""
        if self.careful:
            squares = self._squares(*self._explain(centered))
            self._require_squares(squares.detach().sum().item(), centered.rounded)
            return squares
        noise = self.noise_variance[..., None, None]
        total = self.keep @ centered.rounded.square().mT / noise
        left = total - (centered.rounded @ self.seen.mT).square().sum(dim=-1) / noise
        with torch.no_grad():  # left is a difference of two that may be nearly equal
            count = self.keep.sum(dim=-1).clamp(min=1.0)
            worst = total.amax(dim=-1) + self.scale**2 * left.amax(dim=-1)
            if not (_EPSILON * worst / count).max() <= NATS:
                return self._carefully()._quadratic(centered)
        return left

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

    def _squares(self, latent: Tensor, residual: Tensor) -> Tensor:
        """|x_R − W_R z|²/σ² + |z|²: at the best z, the quadratic form."""
        left = (residual.square() @ self.keep[..., None])[..., 0]
        return left / self.noise_variance[..., None, None] + latent.square().sum(dim=-1)


def _farthest(log_densities: Tensor, variance: Tensor) -> Tensor:
    """The largest residual in standard deviations, from log N(residual; 0, variance)."""
    squares = -2.0 * log_densities - LOG_2PI - variance.log()
    return squares.max().clamp(min=0.0).sqrt()


def _split(values: Tensor, dim: int, bits: int) -> tuple[Tensor, Tensor]:
    """``values`` as two parts, the first with so many bits below the largest along ``dim``."""
    with torch.no_grad():
        unit = torch.frexp(values.abs().amax(dim=dim, keepdim=True)).exponent - bits
        leading = torch.ldexp(torch.ldexp(values, -unit).round(), unit)
    return leading, values - leading


def _product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a @ b as a sum of two: the first is exact for rounded factors, the second small.

    Ozaki et al. 2012: numbers with few enough bits have products and sums that are not rounded.
    """
    count = a.shape[-1]
    if count == 0:
        return a @ b, a @ b
    bits = (52 - count.bit_length()) // 2
    a_leading, a_rest = _split(a, -1, bits)
    b_leading, b_rest = _split(b, -2, bits)
    return a_leading @ b_leading, a_rest @ b + a_leading @ b_rest


def require_nats(nats: float | Tensor, dtype: torch.dtype, matrix: str = "") -> None:
    """Refuse what rounding may change by more than is promised.

    ``matrix`` is the name of the covariance that is to blame; without one, σ² is.
    """
    if nats <= NATS or (not matrix and nats != nats):  # NaN parameters are passed on
        return
    remedy = "Use larger noise, data nearer to the model"
    if matrix:
        cause = f"{matrix} has directions so narrow"
        remedy += "."
    else:
        cause = "noise_variance is so small"
        remedy += " and, where moments were given, methods of PPCA, which see the data."
    raise ValueError(
        f"{cause} beside the rest that rounding in double precision changes log-densities"
        f" of {dtype} input by {float(nats):.0e} nats a coordinate, more than {NATS:.0e}. {remedy}"
    )
