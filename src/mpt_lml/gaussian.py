"""Conditioning a Gaussian, as the textbook writes it and as low-rank structure allows.

For N(μ, W Wᵀ + σ² I) with loadings W (D, K), an observed set R and Λ_R = I + W_Rᵀ W_R / σ² (K, K),

    p(x_j | x_R) = N(μ_j + w_jᵀ E[z | x_R],  σ² + w_jᵀ Λ_R⁻¹ w_j)

with E[z | x_R] = Λ_R⁻¹ W_Rᵀ (x_R − μ_R) / σ²: never a D×D inverse (Woodbury identity; Tipping & Bishop
1999; paper, Eqs. 6–7 and Appendix B with the sign of Eq. 7 corrected). Masks are one batch axis.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.numerics import LOG_2PI, log_normal
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
    white = torch.linalg.solve_triangular(factor, (x.double() - mean.double()).mT, upper=False)
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
    given = torch.linalg.cholesky(covariance.double()[~mask][:, ~mask])
    cross = covariance.double()[mask][:, ~mask]
    centered = (x.double() - mean.double())[:, ~mask]
    white = torch.linalg.solve_triangular(given, torch.cat([cross, centered]).mT, upper=False)
    gain, seen = white.mT.tensor_split([len(cross)])
    size = seen.detach().square().sum(dim=-1).max().sqrt()
    require_nats(growth * (1.0 + size), x.dtype, "covariance")
    conditional_mean = mean.double()[mask] + seen @ gain.mT
    left = covariance.double()[mask][:, mask] - gain @ gain.mT
    return conditional_mean.to(x), left.to(x)


def divergence(p: Float[Tensor, "D D"], q: Float[Tensor, "*B D D"]) -> Float[Tensor, "*B"]:
    """KL(N(0, p) ‖ N(0, q)) of the covariances p and q, nats, shape (...).

    >>> divergence(torch.eye(2), 2 * torch.eye(2))
    tensor(0.1931)
    """
    require(locals(), "p D D, q ... D D")
    (factor, _), (other, growth) = _factor("p", p), _factor("q", q)
    share = torch.linalg.solve_triangular(other, factor, upper=False).square().sum(dim=(-2, -1))
    require_nats(growth * (1.0 + share.detach().max() / len(p)), p.dtype, "q")
    log_det = (other.diagonal(dim1=-2, dim2=-1) / factor.diagonal()).log().sum(dim=-1)
    return (0.5 * (share - len(p)) + log_det).to(p)


def _factor(name: str, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The Cholesky factor in double precision, and nats that rounding may change at 1 sd."""
    require_definite(name, matrix)
    wide = matrix.double()
    factor = torch.linalg.cholesky(wide)
    with torch.no_grad():
        identity = torch.eye(wide.shape[-1]).to(wide)
        inverse = torch.linalg.solve_triangular(factor, identity.expand_as(wide), upper=False)
        condition = inverse.square().sum(dim=(-2, -1)) * wide.square().sum(dim=(-2, -1)).sqrt()
        return factor, 0.25 * _EPSILON * condition.max()


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
        loadings, noise_variance = loadings.double(), noise_variance.double()
        keep, noise = observed.to(loadings.dtype), noise_variance[..., None, None, None]
        identity, rows = torch.eye(loadings.shape[-1]).to(loadings), loadings[..., None, :, :]
        ratio = loadings.detach().square().sum(dim=(-2, -1)) / noise_variance.detach()
        scale, low = torch.stack([ratio.max().sqrt(), noise_variance.detach().min()]).tolist()
        if low <= 0.0:
            raise ValueError(f"noise_variance must be > 0, got {low:.4g}.")
        require_nats(10.0 * _EPSILON * scale, dtype)
        careful = careful or _EPSILON * scale**2 > 0.1 * NATS
        if careful:  # from the root of σ² Λ_R
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
        if careful or loadings.shape[-2] < 8 * loadings.shape[-1]:
            # From the right, its transpose is contiguous: products with it run as one large product.
            white = torch.linalg.solve_triangular(factor.mT, rows, upper=True, left=False).mT
        else:  # one large product, which threads share
            inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
            white = inverse @ (loadings if loadings.ndim == 2 else rows).mT
        seen = keep[..., None, :] * (white if own is None else own)
        return cls(loadings, noise_variance, keep, factor, white, seen, scale, careful, dtype)

    def variance(self) -> Float[Tensor, "*B P D"]:
        """Conditional variance of every coordinate j given x_R: σ² (1 + T_jᵀT_j)."""
        return self._variance().to(self.dtype)

    def explain(self, centered: Tensor) -> tuple[Tensor, Tensor]:
        """E[z | x_R], (..., P, N, K), of every datum or of each set's own, and what it leaves of x."""
        latent, residual, _ = self._conditionals(self._wide("centered ... N D", centered))
        return latent.to(self.dtype), residual.to(self.dtype)

    def log_conditional(self, centered: Float[Tensor, "... N D"]) -> Float[Tensor, "*B P N D"]:
        """log p(x_j | x_R) of every datum; meaningful where j is not in R."""
        _, _, values = self._conditionals(self._wide("centered ... N D", centered))
        return values.to(self.dtype)

    def mean_log_conditional(self, moment: Float[Tensor, "*#B D D"]) -> Float[Tensor, "*B P D"]:
        """The same averaged over data of the given second moment C = XᵀX/N about the mean.

        Each model of a batch may have data of its own. The squared residual is
        ``C_jj − 2 T_jᵀ T_R C_:j + T_jᵀ (T_R C T_Rᵀ) T_j``: O(D² K) a mask, whatever N.
        """
        return self._mean("conditional", moment)

    def log_marginal(self, centered: Float[Tensor, "N D"]) -> Float[Tensor, "*B P N"]:
        """log p(x_R) of every datum; 0 where R is empty."""
        quadratic = self._quadratic(self._wide("centered N D", centered))
        return (self.log_constant()[..., None] - 0.5 * quadratic).to(self.dtype)

    def mean_log_marginal(self, moment: Float[Tensor, "*#B D D"]) -> Float[Tensor, "*B P"]:
        """log p(x_R) averaged over data of the given second ``moment``."""
        return self._mean("marginal", moment)

    def quadratic(self, centered: Float[Tensor, "N D"]) -> Float[Tensor, "*B P N"]:
        """x_Rᵀ (W_R W_Rᵀ + σ² I)⁻¹ x_R of every datum, to a relative 1e-12 or so at any size."""
        return self._quadratic(self._wide("centered N D", centered)).to(self.dtype)

    def _wide(self, spec: str, given: Tensor) -> Tensor:
        """``given`` checked and in double precision. It may be wider than the loadings were."""
        name, wide = spec.split()[0], getattr(given, "dtype", None) == torch.float64
        loadings = self.loadings if wide else self.loadings.to(self.dtype)
        require({"loadings": loadings, name: given}, f"loadings ... D k, {spec}", finite=False)
        return given.double()

    def _carefully(self) -> "LowRankPosterior":
        return LowRankPosterior.of(
            self.loadings, self.noise_variance, self.keep.bool(), careful=True
        )

    def _variance(self) -> Tensor:
        explained = self.white.square().sum(dim=-2)
        if self.careful:  # (L Lᵀ + E)⁻¹ is (L Lᵀ)⁻¹ − (L Lᵀ)⁻¹ E (L Lᵀ)⁻¹ but for squares of E
            gain = torch.linalg.solve_triangular(self.factor.mT, self.white, upper=True)
            explained = explained - (gain * (self._factor_error() @ gain)).sum(dim=-2)
        return self.noise_variance[..., None, None] * (1.0 + explained)

    def _factor_error(self) -> Float[Tensor, "*B P K K"]:
        """E = σ² Λ_R − L Lᵀ, what rounding has left out of the factor."""
        kept = self.keep[..., None] * self.loadings[..., None, :, :]
        (gram, low), (square, less) = _product(kept.mT, kept), _product(self.factor, self.factor.mT)
        noise = self.noise_variance[..., None, None, None]
        identity = torch.eye(self.loadings.shape[-1]).to(self.loadings)
        return (gram - square) + noise * identity + (low - less)

    def _conditionals(self, centered: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """E[z | x_R], what it leaves of x, and log p(x_j | x_R)."""
        latent, residual = self._explain(centered)
        variance = self._variance()[..., None, :]
        values = log_normal(residual, variance)
        with torch.no_grad():
            least = values.amin(dim=-2, keepdim=True)
            far = (-2.0 * least - LOG_2PI - variance.log()).max().clamp(min=0.0).sqrt()
            size = latent.square().sum(dim=-1).max().sqrt() if latent.numel() else 0.0 * far
            if not self.careful:
                data = (centered.abs().amax() / self.noise_variance.min().sqrt()).to(far)
                lost = _EPSILON * (self.scale**2 * (1.0 + size) + data) * (1.0 + far)
                if lost > NATS:
                    return self._carefully()._conditionals(centered)
            else:
                fit = self._squares(latent, residual).max().sqrt()
                lost = (4.0 * _EPSILON * self.scale) ** 2 * (1.0 + fit) * (1.0 + far)
                require_nats(lost.item(), self.dtype)
        return latent, residual, values

    def _explain(self, centered: Tensor) -> tuple[Tensor, Tensor]:
        seen = centered @ self.seen.mT
        latent = torch.linalg.solve_triangular(self.factor, seen, upper=False, left=False)
        columns = self.loadings[..., None, :, :]
        if not self.careful:
            return latent, centered - latent @ columns.mT
        # One step of refinement from a residual that has all its digits.
        most, low = _product(latent, columns.mT)
        rest = (centered - most) - low
        slope, low = _product(self.keep[..., None, :] * rest, columns)
        slope = (slope - self.noise_variance[..., None, None, None] * latent) + low
        half = torch.linalg.solve_triangular(self.factor.mT, slope, upper=True, left=False)
        step = torch.linalg.solve_triangular(self.factor, half, upper=False, left=False)
        return latent + step, rest - step @ columns.mT

    def averaged(self, name: str, moment: Tensor) -> tuple[Tensor, float]:
        """``mean_log_`` and ``name`` in double precision, and nats that rounding may have changed."""
        values, lost = getattr(self, f"_mean_{name}")(moment)
        if lost > NATS and not self.careful:
            return self._carefully().averaged(name, moment)
        return values, lost.item()

    def _mean(self, name: str, moment: Tensor) -> Tensor:
        values, lost = self.averaged(name, self._wide("moment ... D D", moment))
        require_nats(lost, self.dtype)
        return values.to(self.dtype)

    def _mean_conditional(self, moment: Tensor) -> tuple[Tensor, Tensor]:
        square, cross, inner = self._moments(moment)
        left = square + (self.white * (inner @ self.white - 2.0 * cross)).sum(dim=-2)
        variance = self._variance()
        with torch.no_grad():
            far = (left / variance).max().clamp(min=0.0).sqrt()
            size = self._mean_quadratic(square, inner).max().clamp(min=0.0).sqrt()
            lost = self._lost((square / variance).max(), size * far)
        return -0.5 * (LOG_2PI + variance.log() + left / variance), lost

    def _mean_marginal(self, moment: Tensor) -> tuple[Tensor, Tensor]:
        square, _, inner = self._moments(moment)
        quadratic = self._mean_quadratic(square, inner)
        with torch.no_grad():
            count = self.keep.sum(dim=-1).clamp(min=1.0)
            total = (self.keep * square).sum(dim=-1) / self.noise_variance[..., None]
            lost = self._lost((total / count).max(), (quadratic / count).max())
        return self.log_constant() - 0.5 * quadratic, lost

    def _lost(self, data: Tensor, spread: Tensor) -> Tensor:
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
            whole = torch.linalg.solve_triangular(self.factor, half.mT, upper=False)
            log_det = log_det + whole.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        size, dim = self.keep.sum(dim=-1), self.loadings.shape[-1]
        noise = self.noise_variance[..., None].log()
        return -0.5 * (size * LOG_2PI + log_det + (size - dim) * noise)

    def _quadratic(self, centered: Tensor) -> Tensor:
        """x_Rᵀ Σ_RR⁻¹ x_R, (..., P, N)."""
        if self.careful:
            return self._squares(*self._explain(centered))
        noise = self.noise_variance[..., None, None]
        total = self.keep @ centered.square().mT / noise
        left = total - (centered @ self.seen.mT).square().sum(dim=-1) / noise
        with torch.no_grad():  # left is a difference of two that may be nearly equal
            count = self.keep.sum(dim=-1).clamp(min=1.0)
            worst = total.amax(dim=-1) + self.scale**2 * left.amax(dim=-1)
            if (_EPSILON * worst / count).max() > NATS:
                return self._carefully()._quadratic(centered)
        return left

    def _squares(self, latent: Tensor, residual: Tensor) -> Tensor:
        """|x_R − W_R z|²/σ² + |z|²: at the best z, the quadratic form."""
        left = (residual.square() @ self.keep[..., None])[..., 0]
        return left / self.noise_variance[..., None, None] + latent.square().sum(dim=-1)


def _split(values: Tensor, dim: int, bits: int) -> tuple[Tensor, Tensor]:
    """``values`` as two parts, the first with so many bits below the largest along ``dim``."""
    with torch.no_grad():
        unit = torch.frexp(values.abs().amax(dim=dim, keepdim=True)).exponent - bits
        most = torch.ldexp(torch.ldexp(values, -unit).round(), unit)
    return most, values - most


def _product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a @ b as a sum of two: the first is exact for rounded factors, the second small.

    Ozaki et al. 2012: numbers with few enough bits have products and sums that are not rounded.
    """
    count = a.shape[-1]
    if count == 0:
        return a @ b, a @ b
    bits = (52 - count.bit_length()) // 2
    (most, rest), (other, less) = _split(a, -1, bits), _split(b, -2, bits)
    return most @ other, rest @ b + most @ less


def require_nats(lost: float | Tensor, dtype: torch.dtype, what: str = "") -> None:
    """Refuse what rounding may change by more than is promised."""
    if lost > NATS:
        said = f"{what} has directions so narrow" if what else "noise_variance is so small"
        remedy = "Use larger noise, data nearer to the model"
        remedy += (
            "." if what else " and, where moments were given, methods of PPCA, which see the data."
        )
        raise ValueError(
            f"{said} beside the rest that rounding in double precision changes log-densities"
            f" of {dtype} input by {float(lost):.0e} nats a coordinate, more than {NATS:.0e}. {remedy}"
        )
