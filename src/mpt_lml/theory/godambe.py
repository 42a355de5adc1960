"""How much masked scores lose as an estimating equation: Godambe information of sizes and laws.

Of families N(0, Σ(θ)) at their true parameter. For coordinates R, ∇ log p(x_R) = x_Rᵀ G_R x_R − its
mean, G_{R,q} = ½ Σ_R⁻¹ (∂_q Σ)_R Σ_R⁻¹, and two such forms have covariance 2 tr(G Σ G' Σ). A masked
score is a difference of these: no data are drawn, and masks only where 2^D are too many.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import masks
from mpt_lml.gaussian import require_definite
from mpt_lml.numerics import chunks
from mpt_lml.spec import require, require_count

__all__ = ["GaussianFamily", "Godambe"]

MAX_FEATURES = 12


@dataclass(frozen=True, eq=False)
class GaussianFamily:
    """A point of a family N(0, Σ(θ)) and its tangent space.

    ``covariance`` is Σ at the true θ, ``directions`` (Q, D, D) are ∂Σ/∂θ_q; ``ValueError`` where they
    are not linearly independent.

    >>> identity = torch.eye(4)  # unit variances and one correlation, θ = c = 0.5
    >>> family = GaussianFamily(0.5 + 0.5 * identity, (1 - identity)[None])
    >>> family.mask_forms(masks.subsets(4)).shape
    torch.Size([16, 1, 4, 4])
    """

    covariance: Float[Tensor, "D D"]
    directions: Float[Tensor, "Q D D"]

    def __post_init__(self) -> None:
        require(vars(self), "covariance D D, directions Q D D")
        require_definite("covariance", self.covariance)
        if not torch.allclose(self.directions, self.directions.mT):
            raise ValueError("directions must be symmetric, as the covariance is.")
        flat = self.directions.flatten(1)
        rank = int(torch.linalg.matrix_rank(flat))
        if rank < len(flat):
            got = f"got {len(flat)} of rank {rank}. Leave out rotations of loadings and the like"
            raise ValueError(f"directions must be linearly independent, {got}.")

    @classmethod
    def ppca(cls, loadings: Float[Tensor, "D K"], noise_variance: float) -> "GaussianFamily":
        """PPCA with known σ²: orthonormal directions of W, without the rotations W (skew)."""
        require(locals(), "loadings D K, noise_variance (0,inf)")
        num_features, latent_dim = loadings.shape
        if latent_dim > num_features:
            raise ValueError(f"loadings must have at most D columns, got {tuple(loadings.shape)}.")
        rows, columns = torch.triu_indices(latent_dim, latent_dim, 1)
        skew = torch.zeros(len(rows), latent_dim, latent_dim, dtype=loadings.dtype)
        skew[torch.arange(len(rows)), rows, columns] = 1.0
        basis = torch.eye(loadings.numel(), dtype=loadings.dtype)
        if len(rows):
            turned = (loadings @ (skew - skew.mT)).flatten(1)
            basis = torch.linalg.qr(turned.mT, mode="complete").Q[:, len(rows) :]
        half = basis.mT.reshape(-1, num_features, latent_dim) @ loadings.mT
        identity = torch.eye(num_features, dtype=loadings.dtype)
        return cls(loadings @ loadings.mT + noise_variance * identity, half + half.mT)

    def mask_forms(self, mask: Bool[Tensor, "P D"]) -> Float[Tensor, "P Q D D"]:
        """F of every mask, (P, Q, D, D): ∇ D s(A) = xᵀ F_A x − its mean; zero where A is empty.

        With u_j = e_j − b_j and v_j from p(x_j | x_R) = N(b_jᵀx_R, v_j), and ∂ for a direction,
        F_A = (D/M) Σ_{j∈A} (∂v_j u_j u_jᵀ/(2v_j²) + sym(u_j ∂b_jᵀ)/v_j).
        """
        require(vars(self) | {"mask": mask}, "covariance D D, directions Q D D, bool mask P D")
        covariance, hidden = self.covariance, mask.to(self.covariance)
        seen, identity = 1.0 - hidden, torch.eye(mask.shape[1]).to(hidden)
        inside = seen[:, :, None] * seen[:, None, :]
        # The identity outside makes all blocks D×D; its part of the inverse is cut off again.
        inverse = torch.linalg.inv(covariance * inside + identity * (1.0 - inside)) * inside
        weights = covariance @ inverse
        rest = hidden[:, :, None] * (identity - weights)
        variance = ((rest @ covariance) * rest).sum(dim=2).where(mask, 1.0)
        scale = hidden * (mask.shape[1] / hidden.sum(dim=1, keepdim=True).clamp(min=1)) / variance
        change = rest[:, None] @ self.directions
        spread = (change * rest[:, None]).sum(dim=3) / variance[:, None]
        right = (change @ inverse[:, None]) + 0.5 * spread[..., None] * rest[:, None]
        forms = (rest * scale[:, :, None]).mT[:, None] @ right
        return 0.5 * (forms + forms.mT)

    def products(
        self, forms: Float[Tensor, "... Q D D"], others: Float[Tensor, "... Q D D"] | None = None
    ) -> Float[Tensor, "... Q Q"]:
        """2 tr(F Σ F' Σ) of all pairs: the covariance of the forms under N(0, Σ)."""
        given = vars(self) | {"forms": forms, "others": others}
        spec = "covariance D D, forms ... P D D, others? ... Q D D"
        require(given, spec, finite=False)
        product = (forms @ self.covariance).flatten(-2)
        other = forms if others is None else others
        return 2.0 * product @ (self.covariance @ other).flatten(-2).mT


@dataclass(frozen=True, eq=False)
class Godambe:
    """Information H J⁻¹ H of masked scores, for S mask sizes and Q parameters, nats per datum.

    After Godambe (1960); Varin, Reid & Firth (2011), Section 2. ``fisher`` (Q, Q) is the likelihood's,
    ``sensitivity`` (S, Q, Q) is H_M = −E ∇² D·S(x; M), ``shared`` the covariances of ∇ D·S(x; M) and
    ∇ D·S(x; M'), each over all masks of its size, ``one_mask`` J_M where every datum is scored under
    one random mask of its own.

    >>> family = GaussianFamily.ppca(torch.tensor([[1.0], [2.0], [3.0]]).double(), 0.5)
    >>> [round(v, 2) for v in Godambe.of(family).efficiency().tolist()]
    [0.92, 0.93, 0.93]
    """

    fisher: Float[Tensor, "Q Q"]
    sensitivity: Float[Tensor, "S Q Q"]
    shared: Float[Tensor, "S S Q Q"]
    one_mask: Float[Tensor, "S Q Q"]

    def __post_init__(self) -> None:
        require(vars(self), "fisher Q Q, sensitivity S Q Q, shared S S Q Q, one_mask S Q Q")
        for name in ("fisher", "sensitivity", "one_mask"):
            each = vars(self)[name]  # where a size says nothing of a parameter, singular
            slack = (name != "fisher") * (1e-6 * each.abs().max() + 1e-30)
            require_definite(name, each + slack * torch.eye(len(self.fisher)).to(each))

    @classmethod
    def of(
        cls,
        family: GaussianFamily,
        sizes: Sequence[int] = (),
        *,
        num_masks: int = 64,
        generator: torch.Generator | None = None,
    ) -> "Godambe":
        """At the point of ``family``, for the given sizes, or all from 1 to D.

        From all masks, ``ValueError`` for D above 12; with a ``generator`` from ``num_masks`` random
        ones per size: H and J are unbiased, and efficiencies off by the noise of both. Repeat it
        for a standard error.
        """
        require(locals(), "family GaussianFamily, sizes* 1.., num_masks 2.., generator? Generator")
        count = len(family.covariance)
        if generator is None:
            require_count("D, whose 2^D masks are all visited,", count, 1, MAX_FEATURES)
        mean, one = [], []
        for size in sizes or range(1, count + 1):
            if generator is None:
                mask = masks.all_masks(count, size)
            else:
                mask = masks.sample_masks(num_masks, count, size, generator=generator)
            total, square = torch.zeros_like(family.directions), torch.zeros(())
            for rows in chunks(len(mask), 64 * family.directions.numel(), 2**28):
                forms = family.mask_forms(mask[rows])
                total, square = total + forms.sum(dim=0), square + family.products(forms).sum(dim=0)
            mean.append(total / len(mask))
            one.append(square / len(mask))
        moment, inverse = torch.stack(one), torch.linalg.inv(family.covariance)
        score = 0.5 * inverse @ family.directions @ inverse
        sensitivity = torch.stack([family.products(bar, score) for bar in mean])
        shared = family.products(torch.cat(mean)).unflatten(1, moment.shape[:2])
        shared = shared.unflatten(0, moment.shape[:2]).movedim(2, 1)
        if generator is not None:  # without each mask's product with itself
            own = shared.diagonal().movedim(-1, 0)
            own.sub_((moment - own) / (num_masks - 1))
        return cls(family.products(score), sensitivity, shared, moment)

    @property
    def all_masks(self) -> Float[Tensor, "S Q Q"]:
        """J_M = Cov ∇ D·S(x; M) where every datum is scored under all masks of the size."""
        return self.shared.diagonal().movedim(-1, 0)

    def variability(self, masks_per_datum: int | None) -> Float[Tensor, "S Q Q"]:
        """J_M with that many independent masks per datum; ``None`` is all of them."""
        if masks_per_datum is None:
            return self.all_masks
        require_count("masks_per_datum", masks_per_datum, 1)
        return self.all_masks + (self.one_mask - self.all_masks) / masks_per_datum

    def efficiency(self, masks_per_datum: int | None = None) -> Float[Tensor, " S"]:
        """Q / tr(I H⁻¹ J H⁻¹) of every size: 1 is maximum likelihood, ½ needs twice the data.

        NaN where H_M is singular: the size does not identify the parameters.
        """
        return self._relative(self.sensitivity, self.variability(masks_per_datum))

    def law_efficiency(
        self,
        probabilities: Float[Tensor, "*B S"],
        weights: Float[Tensor, "*B S"] | None = None,
        *,
        masks_per_datum: int = 1,
    ) -> Float[Tensor, "*B"]:
        """The same where the size of every mask follows ``probabilities`` ν, (...); differentiable.

        The gradient of D·s(A) is multiplied by ``weights`` of its size; left out, by 1/(D ν(M)):
        then the objective is the LML over the sizes of ν, and all D sizes must be there.
        Raises ``ValueError`` where a size has probability 0 and no weights are given.
        """
        given = vars(self) | {"probabilities": probabilities, "weights": weights}
        require(given, "sensitivity S Q Q, probabilities ... S, weights? ... S")
        off = (probabilities.sum(dim=-1) - 1.0).abs().max().item()
        if (probabilities < 0).any() or off > 1e-6:
            raise ValueError(f"probabilities must be >= 0 and sum to 1, got {probabilities}.")
        require_count("masks_per_datum", masks_per_datum, 1)
        if weights is None:
            if (probabilities == 0).any():
                raise ValueError(
                    "probabilities must be positive where no weights are given, for they are then "
                    f"1/(D ν(M)), got {probabilities.tolist()}. Give weights, such as "
                    "torch.ones_like(probabilities)."
                )
            weights = 1.0 / (probabilities * probabilities.shape[-1])
        share = probabilities * weights
        if (weights < 0).any() or not (share.sum(dim=-1) > 0).all():
            raise ValueError(
                "weights must be >= 0, and not all 0 where probabilities are positive, got "
                f"{weights.tolist()}."
            )
        sensitivity = torch.einsum("...m,mpq->...pq", share, self.sensitivity)
        variability = torch.einsum("...m,mpq->...pq", share * weights, self.one_mask)
        if masks_per_datum > 1:
            both = torch.einsum("...m,...n,mnpq->...pq", share, share, self.shared)
            variability = both + (variability - both) / masks_per_datum
        return self._relative(sensitivity, variability)

    def best_law(
        self, masks_per_datum: int = 1, *, num_steps: int = 2000
    ) -> tuple[Float[Tensor, " S"], float, float]:
        """The law of sizes with most information, its efficiency, and what no law exceeds.

        Every size has the best *matrix* to multiply its gradient by (Godambe's weights, H_M J_M⁻¹ at
        one mask per datum). The loss is convex in the law then; its slope is that of the equivalence
        theorem (Kiefer & Wolfowitz 1960) and bounds the optimum. By multiplicative steps.
        """
        require(locals(), "masks_per_datum 1.., num_steps 1..")
        h, one = self._white(self.sensitivity), self._white(self.one_mask)
        count, num_parameters = h.shape[:2]
        values, vectors = torch.linalg.eigh(one)
        alive = values > 1e-10 * values.amax()
        root = vectors * (1.0 / values.where(alive, 1.0)).sqrt().where(alive, 0.0)[:, None]
        # One draw of size M tells root_Mᵀ ψ, of unit covariance; `between` is what draws share.
        told = root.mT @ h
        between = root.mT[:, None] @ self._white(self.shared) @ root[None]
        between = between.movedim(2, 1).flatten(2).flatten(0, 1) * (1.0 - 1.0 / masks_per_datum)
        law = torch.full_like(h[:, 0, 0], 1.0 / count)
        for _ in range(num_steps):
            scale = (masks_per_datum * law).sqrt().repeat_interleave(num_parameters)[:, None]
            system = torch.eye(len(scale)).to(h) + scale * between * scale.mT
            solved = torch.linalg.solve(system, scale * told.flatten(0, 1))
            inverse = torch.linalg.inv((scale * told.flatten(0, 1)).mT @ solved)
            slope = (solved @ inverse).unflatten(0, told.shape[:2]).square().sum(dim=(1, 2)) / law
            loss, gap = inverse.trace(), slope.max() - law @ slope
            if gap < 1e-6 * loss:
                break
            law = (law * slope.sqrt()).clamp(min=1e-30)
            law = law / law.sum()
        bound = num_parameters / (loss - gap).clamp(min=num_parameters).item()
        return law, num_parameters / loss.item(), bound

    def gradient_rms(self) -> Float[Tensor, " D"]:
        """Root mean square of the gradient of one mask's score, for every size: √(tr J_M)/D.

        In the family's coordinates. The law ν(M) of sizes that is proportional to it has
        the smallest mean square of the gradient of s(A)/(D ν(M)) · D, unbiased for that of the LML.
        """
        total = self.one_mask.diagonal(dim1=1, dim2=2).sum(dim=1)
        return total.sqrt() / len(self.one_mask)

    def _relative(
        self, sensitivity: Float[Tensor, "*B Q Q"], variability: Float[Tensor, "*B Q Q"]
    ) -> Float[Tensor, "*B"]:
        h, identity = self._white(sensitivity), torch.eye(len(self.fisher)).to(sensitivity)
        identified = torch.linalg.eigvalsh(h.detach())[..., 0] > 1e-10
        h = h.where(identified[..., None, None], identity)
        half = torch.linalg.solve(h, self._white(variability))
        loss = torch.linalg.solve(h, half.mT).diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        return (len(identity) / loss).where(identified, torch.nan)

    def _white(self, matrices: Float[Tensor, "*B Q Q"]) -> Float[Tensor, "*B Q Q"]:
        """L⁻¹ · L⁻ᵀ with I = L Lᵀ: in the coordinates in which the Fisher information is 1."""
        factor = torch.linalg.cholesky(self.fisher)
        left = torch.linalg.solve_triangular(factor, matrices, upper=False)
        return torch.linalg.solve_triangular(factor, left.mT, upper=False).mT
