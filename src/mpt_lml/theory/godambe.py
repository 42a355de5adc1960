"""Godambe information of mask sizes and laws: the efficiency of masked scores as estimating equations.

Families are N(0, Σ(θ)) at their true parameter. For coordinates R, ∇ log p(x_R) = x_Rᵀ G_R x_R − its
mean, G_{R,q} = ½ Σ_R⁻¹ (∂_q Σ)_R Σ_R⁻¹, and two such forms have covariance 2 tr(G Σ G' Σ). A masked
score is a difference of these: no data are drawn, and masks only where 2^D are too many.

Axes: Q parameters, S mask sizes, P masks, D coordinates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import masks
from mpt_lml.checks import (
    Count,
    NonNegative,
    Positive,
    Within,
    check,
    checked,
    require_count,
    require_memory,
)
from mpt_lml.gaussian import require_definite
from mpt_lml.numerics import WORKING_BYTES, chunks, double

__all__ = ["GaussianFamily", "Godambe"]

MAX_FEATURES = 12
"""Largest D for which all 2^D masks are visited."""

_EPSILON = torch.finfo(torch.float64).eps
_MOST_ERROR = 1e-3  # relative, of an efficiency; where rounding may cost more, it is refused
_MOST_SINGULAR = 1e-8  # rounding of H, in units of the Fisher information, that may hide a zero

_Matrices = Float[Tensor, "S Q Q"]


@checked
@dataclass(frozen=True, eq=False)
class GaussianFamily:
    """A point of a family N(0, Σ(θ)) and its tangent space.

    Args:
        covariance: Σ at the true θ, (D, D).
        directions: ∂Σ/∂θ_q, (Q, D, D).

    Raises:
        ValueError: for directions that are not symmetric or not linearly independent, and for a
            covariance that is not positive definite.

    >>> identity = torch.eye(4)  # unit variances and one correlation, θ = c = 0.5
    >>> family = GaussianFamily(0.5 + 0.5 * identity, (1 - identity)[None])
    >>> family.mask_forms(masks.subsets(4)).shape
    torch.Size([16, 1, 4, 4])
    """

    covariance: Float[Tensor, "D D"]
    directions: Float[Tensor, "Q D D"]

    def __post_init__(self) -> None:
        require_definite("covariance", self.covariance)
        if not torch.allclose(self.directions, self.directions.mT):
            raise ValueError("directions must be symmetric, as the covariance is.")
        flat = self.directions.flatten(1)
        rank = int(torch.linalg.matrix_rank(flat))
        if rank < len(flat):
            raise ValueError(
                f"directions must be linearly independent, got {len(flat)} of rank {rank}. Leave out "
                "rotations of loadings and the like."
            )

    @property
    def num_features(self) -> int:
        """D."""
        return len(self.covariance)

    @property
    def data_device(self) -> torch.device:
        """Device of the family's tensors."""
        return self.covariance.device

    @classmethod
    @checked
    def ppca(cls, loadings: Float[Tensor, "D K"], noise_variance: Positive) -> "GaussianFamily":
        """PPCA with known σ²: orthonormal directions of W, without the rotations W (skew).

        Args:
            loadings: W, (D, K) with K ≤ D.
            noise_variance: σ².

        Returns:
            A family of DK − K(K−1)/2 parameters.

        Raises:
            ValueError: for more columns than rows.
        """
        num_features, latent_dim = loadings.shape
        if latent_dim > num_features:
            raise ValueError(f"loadings must have at most D columns, got {tuple(loadings.shape)}.")
        dtype = loadings.dtype
        loadings = double(loadings)
        rows, columns = torch.triu_indices(latent_dim, latent_dim, 1)
        half_skew = loadings.new_zeros(len(rows), latent_dim, latent_dim)
        half_skew[torch.arange(len(rows)), rows, columns] = 1.0
        basis = torch.eye(loadings.numel()).to(loadings)
        if len(rows):
            rotations = (loadings @ (half_skew - half_skew.mT)).flatten(1)
            # The columns of Q after those that span the rotations are orthogonal to them.
            basis = torch.linalg.qr(rotations.mT, mode="complete").Q[:, len(rows) :]
        half = basis.mT.reshape(-1, num_features, latent_dim) @ loadings.mT
        identity = torch.eye(num_features).to(loadings)
        covariance = loadings @ loadings.mT + noise_variance * identity
        return cls(covariance.to(dtype), (half + half.mT).to(dtype))

    @checked
    def mask_forms(self, mask: Bool[Tensor, "P D"]) -> Float[Tensor, "P Q D D"]:
        """F of every mask, for which ∇ D s(A) = xᵀ F_A x − its mean.

        With u_j = e_j − b_j and v_j from p(x_j | x_R) = N(b_jᵀx_R, v_j), and ∂ for a direction,
        F_A = (D/M) Σ_{j∈A} (∂v_j u_j u_jᵀ/(2v_j²) + sym(u_j ∂b_jᵀ)/v_j).

        Args:
            mask: (P, D); True means masked.

        Returns:
            (P, Q, D, D), nats; zero where a mask is empty.
        """
        factor = self._factor
        half = torch.linalg.solve_triangular(factor.mT, self._whitened_forms(mask), upper=True)
        forms = torch.linalg.solve_triangular(factor.mT, half.mT, upper=True)
        return (0.5 * (forms + forms.mT)).to(self.directions)

    @property
    def _factor(self) -> Float[Tensor, "D D"]:
        """L, Σ = L Lᵀ: x = L z."""
        return torch.linalg.cholesky(double(self.covariance))

    def _whitened_directions(self) -> Float[Tensor, "Q D D"]:
        """T = L⁻¹ ∂Σ L⁻ᵀ: the score ∇ log p(x) is ½ zᵀ T z − its mean."""
        factor = self._factor
        half = torch.linalg.solve_triangular(factor, double(self.directions), upper=False)
        whitened = torch.linalg.solve_triangular(factor, half.mT, upper=False)
        return 0.5 * (whitened + whitened.mT)

    def _whitened_forms(self, mask: Bool[Tensor, "P D"]) -> Float[Tensor, "P Q D D"]:
        """Lᵀ F_A L: the same forms of z = L⁻¹ x.

        A coordinate is x_j = l_jᵀ z with the row l_j of L. Π projects on the rows of R, and of the
        residual l_j − Π l_j = √v_j n_j: Lᵀ u_j = √v_j n_j and Lᵀ ∂b_j = √v_j Π T n_j, so that
        Lᵀ F_A L = (D/M) Σ_{j∈A} (½ (n_jᵀ T n_j) n_j n_jᵀ + sym(n_j (Π T n_j)ᵀ)), where nothing large
        is subtracted, however narrow Σ is.
        """
        num_features = mask.shape[1]
        factor = self._factor
        hidden = mask.to(factor)
        rows = factor * torch.linalg.vector_norm(factor, dim=1, keepdim=True).reciprocal()
        observed_first = mask.long().argsort(dim=1, stable=True)
        num_masked = hidden.sum(dim=1, keepdim=True)
        place = torch.arange(num_features, device=mask.device)
        is_observed = place < num_features - num_masked
        basis = torch.linalg.qr(rows[observed_first].mT).Q * is_observed[:, None]
        projector = basis @ basis.mT
        residual = rows - rows @ projector
        residual = residual - residual @ projector  # twice is enough (Parlett)
        norm = torch.linalg.vector_norm(residual, dim=2, keepdim=True)
        n = (residual / norm).where(mask[..., None], 0.0)
        change = n[:, None] @ self._whitened_directions()
        relative_dv = (change * n[:, None]).sum(dim=3)  # ∂v_j / v_j
        right = (change @ projector[:, None]) + 0.5 * relative_dv[..., None] * n[:, None]
        scale = num_features / num_masked.clamp(min=1)
        forms = (n * scale[:, :, None]).mT[:, None] @ right
        return 0.5 * (forms + forms.mT)

    @checked(finite=False)
    def products(
        self,
        forms: Float[Tensor, "*S P D D"],
        others: Float[Tensor, "*#S Q D D"] | None = None,
    ) -> Float[Tensor, "*S P Q"]:
        """2 tr(F Σ F' Σ) of all pairs: the covariance of the forms under N(0, Σ).

        Args:
            forms: F, (..., P, D, D).
            others: F', (..., Q, D, D); the same forms by default.

        Returns:
            (..., P, Q).
        """
        others = forms if others is None else others
        covariance = double(self.covariance)
        left = (double(forms) @ covariance).flatten(-2)
        right = (covariance @ double(others)).flatten(-2)
        return (2.0 * left @ right.mT).to(forms)

    def _rounding(self) -> float:
        """Bound of the error of H and of the roots of J from rounding Σ and ∂Σ to double precision.

        It holds to the first order, in coordinates in which the Fisher information is 1. With R the
        correlations, T = L⁻¹ ∂Σ L⁻ᵀ is off by ε tr(R⁻¹) times the entries of ∂Σ, and by as much of
        itself for the error of Σ; forms are D times as large.
        """
        whitened = self._whitened_directions().flatten(1)
        size = torch.linalg.vector_norm(whitened, dim=1)
        covariance = double(self.covariance)
        unit = covariance.diagonal().rsqrt()
        # tr(R⁻¹) from a factor of R: a sum of squares, which rounding does not make negative.
        identity = torch.eye(self.num_features).to(covariance)
        inverse = torch.linalg.solve_triangular(self._factor * unit[:, None], identity, upper=False)
        narrow = inverse.square().sum()
        directions = self.directions * unit[:, None] * unit / size[:, None, None]
        smallest = torch.linalg.svdvals(whitened / size[:, None])[-1]
        error = narrow * (1.0 + torch.linalg.vector_norm(directions) / smallest)
        return _EPSILON * self.num_features * error.item()


@checked
@dataclass(frozen=True, eq=False)
class Godambe:
    """Information H J⁻¹ H of masked scores, for S mask sizes and Q parameters, nats per datum.

    After Godambe (1960); Varin, Reid & Firth (2011), Section 2. :meth:`of` makes one.

    Args:
        fisher: the information of the likelihood, (Q, Q).
        sensitivity: H_M = −E ∇² D·S(x; M), (S, Q, Q).
        shared: the covariances of ∇ D·S(x; M) and ∇ D·S(x; M'), each over all masks of its size,
            (S, S, Q, Q).
        one_mask: J_M where every datum is scored under one random mask, (S, Q, Q).
        num_features: D; left out where the sizes are 1, ..., D.
        rounding: of the H_M and of the roots of J_M, in coordinates in which ``fisher`` is 1: what
            they may be off by, besides the last digits of their entries.

    Raises:
        ValueError: for matrices that are no covariances: not symmetric, or with a negative direction,
            and where a datum under all masks of a size would vary more than under one of them.

    >>> family = GaussianFamily.ppca(torch.tensor([[1.0], [2.0], [3.0]]).double(), 0.5)
    >>> [round(v, 2) for v in Godambe.of(family).efficiency().tolist()]
    [0.92, 0.93, 0.93]
    """

    fisher: Float[Tensor, "Q Q"]
    sensitivity: _Matrices
    shared: Float[Tensor, "S S Q Q"]
    one_mask: _Matrices
    num_features: Count | None = None
    rounding: NonNegative = 0.0

    def __post_init__(self) -> None:
        if self.num_features is not None:
            require_count("num_features", self.num_features, len(self.sensitivity))
        require_definite("fisher", self.fisher)
        identity = torch.eye(len(self.fisher))
        for name in ("sensitivity", "one_mask"):
            matrices = vars(self)[name]
            # Where a size says nothing of a parameter, they are singular.
            unit = self.fisher.diagonal().rsqrt().to(matrices)
            matrices = matrices * unit[:, None] * unit
            slack = 1e-6 * matrices.abs().amax(dim=(1, 2), keepdim=True) + 1e-30
            require_definite(name, matrices + slack * identity.to(matrices))
        self._require_shared()

    def _require_shared(self) -> None:
        """Check that ``shared`` can be the part of the noise that more masks do not take away."""
        largest = self.one_mask.abs().max()
        skew = (self.shared - self.shared.transpose(0, 1).mT).abs().max()
        if skew > torch.finfo(self.shared.dtype).eps ** 0.5 * largest:
            raise ValueError("shared[M, M'] must be the transpose of shared[M', M].")
        between_masks = self.one_mask - self.all_masks
        eigenvalues = torch.linalg.eigvalsh(0.5 * (between_masks + between_masks.mT))
        if (eigenvalues < -1e-6 * largest).any():
            raise ValueError(
                "one_mask[M] must not be less than shared[M, M]: under one mask a gradient varies at "
                "least as much as under all masks of its size."
            )

    @classmethod
    @checked
    def of(
        cls,
        family: GaussianFamily,
        sizes: Sequence[Count] = (),
        *,
        num_masks: Annotated[int, Within(2)] = 64,
        generator: torch.Generator | None = None,
    ) -> "Godambe":
        """Information at the point of a family, from all masks, or from random ones with a generator.

        Args:
            family: the family at its true parameter.
            sizes: mask sizes, all from 1 to D by default.
            num_masks: random masks of each size, at least 2. H and J are unbiased then, and
                efficiencies off by the noise of both: repeat it for a standard error.
            generator: of random masks; None visits all of them.

        Returns:
            The information of each size.

        Raises:
            ValueError: for D above 12 without a generator, for a size given twice, and for more
                parameters than memory holds.
        """
        num_features = family.num_features
        if generator is None:
            require_count("D, whose 2^D masks are all visited,", num_features, 1, MAX_FEATURES)
        sizes = sizes or range(1, num_features + 1)
        if len(set(sizes)) < len(sizes):
            raise ValueError(f"sizes must differ, got {list(sizes)}: name each of them once.")
        num_products = len(sizes) * len(family.directions)
        what = f"covariances of {len(family.directions)} parameters at {len(sizes)} sizes"
        require_memory(what, 8 * num_products**2, "fewer sizes at a time")
        mean_forms = []
        one_mask = []
        for size in sizes:
            if generator is None:
                mask = masks.all_masks(num_features, size)
            else:
                mask = masks.sample_masks(num_masks, num_features, size, generator=generator)
            moments = _moments_of_forms(family, mask.to(family.data_device))
            mean_forms.append(moments.mean)
            one_mask.append(moments.square)
        score_forms = 0.5 * family._whitened_directions()  # of ∇ log p(x)
        sensitivity = torch.stack([_products(mean, score_forms) for mean in mean_forms])
        one_mask_covariance = torch.stack(one_mask)
        shared = _shared_covariance(mean_forms)
        if generator is not None:
            # Without each mask's product with itself, the mean over pairs of masks is unbiased.
            of_one_size = shared.diagonal().movedim(-1, 0)
            of_one_size.sub_((one_mask_covariance - of_one_size) / (num_masks - 1))
        fisher = _products(score_forms, score_forms)
        dtype = family.covariance.dtype
        return cls(
            fisher=fisher.to(dtype),
            sensitivity=sensitivity.to(dtype),
            shared=shared.to(dtype),
            one_mask=one_mask_covariance.to(dtype),
            num_features=num_features,
            rounding=family._rounding(),
        )

    @property
    def data_device(self) -> torch.device:
        """Device of these matrices."""
        return self.fisher.device

    @property
    def all_masks(self) -> _Matrices:
        """J_M = Cov ∇ D·S(x; M) where every datum is scored under all masks of the size, (S, Q, Q)."""
        return self.shared.diagonal().movedim(-1, 0)

    @checked
    def variability(self, masks_per_datum: Count | None) -> _Matrices:
        """J_M with that many independent masks per datum, (S, Q, Q); ``None`` is all of them."""
        if masks_per_datum is None:
            return self.all_masks
        return self.all_masks + (self.one_mask - self.all_masks) / masks_per_datum

    @checked
    def efficiency(self, masks_per_datum: Count | None = None) -> Float[Tensor, " S"]:
        """Q / tr(I H⁻¹ J H⁻¹) of every size: 1 is maximum likelihood, ½ needs twice the data.

        Args:
            masks_per_datum: independent masks of each datum; ``None`` is all of the size.

        Returns:
            A share, (S,); NaN where H_M is singular up to rounding: the size does not identify the
            parameters.


        Raises:
            ValueError: where rounding could change the third digit: masked scores say so little of
                some direction, compared with others, that H or J hardly knows it.
        """
        return self._efficiency_of(self.sensitivity, self.variability(masks_per_datum))

    @checked
    def law_efficiency(
        self,
        probabilities: Float[Tensor, "*B S"],
        weights: Float[Tensor, "*B S"] | None = None,
        *,
        masks_per_datum: Count = 1,
    ) -> Float[Tensor, "*B"]:
        """Efficiency where the size of every mask follows a law ν; it can be differentiated.

        Args:
            probabilities: ν, (..., S).
            weights: by which the gradient of D·s(A) is multiplied, for each size, (..., S). Left out,
                1/(D ν(M)): then the objective is the LML, and all D sizes must be there. With weights
                ν may be a law of some sizes.
            masks_per_datum: independent masks of each datum.

        Returns:
            A share, (...); NaN where the parameters are not identified.

        Raises:
            ValueError: for what are no probabilities, for negative weights, and where no weights are
                given and a size has probability 0 or is not there. As
                :meth:`efficiency` where rounding shows.
        """
        num_sizes = len(self.sensitivity)
        check(
            ("probabilities", probabilities, Float[Tensor, "*B S"]),
            ("weights", weights, Float[Tensor, "*B S"] | None),
            ("sensitivity", self.sensitivity, _Matrices),
            S=num_sizes,
        )
        _require_probabilities(probabilities)
        is_given = weights is not None
        if weights is None:
            self._require_every_size()
            _require_positive(probabilities)
            weights = 1.0 / (probabilities * num_sizes)
        share = double(probabilities * weights)
        if (weights < 0).any() or not (share.sum(dim=-1) > 0).all():
            raise ValueError(
                "weights must be >= 0, and not all 0 where probabilities are positive, got "
                f"{weights.tolist()}."
            )
        if is_given:
            # Multiplied by a number they have the same efficiency; near 1 none leaves the range.
            exponent = share.detach().sum(dim=-1, keepdim=True).frexp().exponent
            scale = 2.0 ** -double(exponent)
            share = share * scale
            weights = double(weights) * scale
        sensitivity = torch.einsum("...m,mpq->...pq", share, double(self.sensitivity))
        variability = torch.einsum("...m,mpq->...pq", share * weights, double(self.one_mask))
        if masks_per_datum > 1:
            shared = torch.einsum("...m,...n,mnpq->...pq", share, share, double(self.shared))
            variability = shared + (variability - shared) / masks_per_datum
        weight = (share * weights).sum(dim=-1).sqrt()
        return self._efficiency_of(sensitivity, variability, weight)

    def gradient_rms(self) -> Float[Tensor, " S"]:
        """Root mean square of the gradient of one mask's score, for every size: √(tr J_M)/D.

        In the family's coordinates, nats a coordinate, (S,). Of all D sizes, the law ν(M) that is
        proportional to it has the smallest mean square of the gradient of s(A)/(D ν(M)) · D, unbiased
        for that of the LML.
        """
        total = self.one_mask.diagonal(dim1=1, dim2=2).sum(dim=1)
        return total.sqrt() / self._num_features

    @property
    def _num_features(self) -> int:
        """D."""
        return len(self.sensitivity) if self.num_features is None else self.num_features

    def _require_every_size(self) -> None:
        num_sizes = len(self.sensitivity)
        if num_sizes < self._num_features:
            raise ValueError(
                f"weights must be given, for {num_sizes} of D = {self._num_features} sizes are there: "
                "left out, they are 1/(D ν(M)), which makes the objective the LML over all sizes only. "
                "Give weights, such as torch.ones_like(probabilities), or use Godambe.of(family)."
            )

    def _is_identified(self, whitened_sensitivity: Float[Tensor, "*B Q Q"]) -> Bool[Tensor, "*B"]:
        """True where every combination of the parameters has information beyond rounding."""
        return torch.linalg.eigvalsh(whitened_sensitivity.detach())[..., 0] > self._rounding

    @property
    def _rounding(self) -> float:
        """Share of the largest eigenvalue below which another one may be 0."""
        return max(1e-10, 10 * torch.finfo(self.fisher.dtype).eps)

    def _efficiency_of(
        self,
        sensitivity: Float[Tensor, "*B Q Q"],
        variability: Float[Tensor, "*B Q Q"],
        weight: float | Float[Tensor, "*B"] = 1.0,
    ) -> Float[Tensor, "*B"]:
        """Efficiency from H and J of any precision, in the precision of the information.

        ``weight`` is the root mean square by which the gradients of masks are multiplied.
        """
        h = self._whitened(sensitivity)
        identity = torch.eye(len(self.fisher)).to(h)
        is_identified = self._is_identified(h)
        h = h.where(is_identified[..., None, None], identity)
        h_inverse_j = torch.linalg.solve(h, self._whitened(variability))
        loss = torch.linalg.solve(h, h_inverse_j.mT).diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        error_of_h = weight * self.rounding + self._entry_error(sensitivity)
        inverse_norm = torch.linalg.matrix_norm(torch.linalg.inv(h.detach()), 2)
        # To the first order of tr H⁻¹ J H⁻¹, which is at least Q for J >= H H.
        error = 2.0 * (error_of_h + weight * self.rounding) * inverse_norm
        error = error + self._entry_error(variability) * inverse_norm.square()
        is_nothing = ~is_identified & (error_of_h <= _MOST_SINGULAR)
        error = error.where(is_identified, torch.inf)
        _require_known(is_nothing | (error <= _MOST_ERROR), error)
        return (len(identity) / loss).where(is_identified, torch.nan).to(self.fisher)

    def _entry_error(self, matrices: Float[Tensor, "*B Q Q"]) -> Float[Tensor, "*B"]:
        """Bound of the rounding error of entries in coordinates in which I is 1."""
        fisher = double(self.fisher)
        unit = fisher.diagonal().rsqrt()
        smallest = torch.linalg.eigvalsh(fisher * unit[:, None] * unit)[0]
        largest = (matrices.detach() * unit[:, None] * unit).abs().amax(dim=(-2, -1))
        return _EPSILON * len(unit) * largest / smallest

    def _whitened(self, matrices: Float[Tensor, "*B Q Q"]) -> Float[Tensor, "*B Q Q"]:
        """L⁻¹ · L⁻ᵀ with I = L Lᵀ: in the coordinates in which the Fisher information is 1.

        In double precision.
        """
        factor = torch.linalg.cholesky(double(self.fisher))
        left = torch.linalg.solve_triangular(factor, double(matrices), upper=False)
        return torch.linalg.solve_triangular(factor, left.mT, upper=False).mT


class _Moments(NamedTuple):
    mean: Float[Tensor, "Q D D"]  # of the forms of some masks, of z = L⁻¹ x
    square: Float[Tensor, "Q Q"]  # mean of each form's products with itself


def _moments_of_forms(family: GaussianFamily, mask: Bool[Tensor, "P D"]) -> _Moments:
    """Moments of the forms over masks, computed in batches of masks."""
    total = double(torch.zeros_like(family.directions))
    square = torch.zeros(())
    for rows in chunks(len(mask), 64 * family.directions.numel(), 2 * WORKING_BYTES):
        forms = family._whitened_forms(mask[rows])
        total = total + forms.sum(dim=0)
        square = square + _products(forms, forms).sum(dim=0)
    return _Moments(total / len(mask), square / len(mask))


def _shared_covariance(
    mean_forms: Sequence[Float[Tensor, "Q D D"]],
) -> Float[Tensor, "S S Q Q"]:
    """Products of the mean forms of all pairs of sizes."""
    shape = (len(mean_forms), len(mean_forms[0]))
    forms = torch.cat(list(mean_forms))
    products = _products(forms, forms)  # (S·Q, S·Q)
    return products.unflatten(1, shape).unflatten(0, shape).movedim(2, 1)


def _products(
    forms: Float[Tensor, "*S P D D"], others: Float[Tensor, "*#S Q D D"]
) -> Float[Tensor, "*S P Q"]:
    """2 tr(G G') of all pairs: the covariance of the forms under N(0, 1)."""
    return 2.0 * forms.flatten(-2) @ others.flatten(-2).mT


def _require_known(is_known: Bool[Tensor, "*B"], error: Float[Tensor, "*B"]) -> None:
    """Check that no efficiency is lost to rounding, by bounds of its relative error."""
    if not is_known.all():
        raise ValueError(
            f"efficiencies must be known within a share of {_MOST_ERROR:g}, but rounding may change "
            f"one by a share of {error[~is_known].max().item():.1e}: masked scores say almost nothing "
            "of some direction of the parameters. Leave out sizes that do not identify it, leave out "
            "that direction, or take a larger noise variance."
        )


def _require_probabilities(probabilities: Tensor) -> None:
    error = (probabilities.sum(dim=-1) - 1.0).abs().max().item()
    if (probabilities < 0).any() or error > 1e-6:
        raise ValueError(f"probabilities must be >= 0 and sum to 1, got {probabilities}.")


def _require_positive(probabilities: Tensor) -> None:
    if (probabilities == 0).any():
        raise ValueError(
            "probabilities must be positive where no weights are given, for they are then "
            f"1/(D ν(M)), got {probabilities.tolist()}. Give weights, such as "
            "torch.ones_like(probabilities)."
        )
