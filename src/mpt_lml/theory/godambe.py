"""How much a fixed mask size loses as an estimating equation: Godambe information, exact.

Of families N(0, Σ(θ)) at their true parameter. For coordinates R, ∇ log p(x_R) = x_Rᵀ G_R x_R − its
mean, G_{R,q} = ½ Σ_R⁻¹ (∂_q Σ)_R Σ_R⁻¹, and two such forms have covariance 2 tr(G Σ G' Σ). A masked
score is a difference of these, so that every expectation is a sum over the 2^D subsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import masks
from mpt_lml.gaussian import require_definite
from mpt_lml.scores import mean_by_size
from mpt_lml.spec import require, require_count

__all__ = ["GaussianFamily", "Godambe"]

MAX_FEATURES = 12


@dataclass(frozen=True)
class GaussianFamily:
    """A point of a family N(0, Σ(θ)) and its tangent space.

    ``covariance`` is Σ at the true θ, ``directions`` (Q, D, D) are ∂Σ/∂θ_q; ``ValueError`` where they
    are not linearly independent.

    >>> identity = torch.eye(4)  # unit variances and one correlation, θ = c = 0.5
    >>> family = GaussianFamily(0.5 + 0.5 * identity, (1 - identity)[None])
    >>> family.mask_forms().shape
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
    def ppca(cls, loadings: Float[Tensor, "D K"], noise_variance: float) -> GaussianFamily:
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

    def mask_forms(self) -> Float[Tensor, "S Q D D"]:
        """F of every mask, as ``masks.subsets``: ∇ D s(A) = xᵀ F_A x − its mean, 0 for no mask.

        F_A = (D/M) Σ_{j∈A} (G_{R∪j} − G_R), with R the complement of A.
        """
        forms, num_features = self._subset_forms(), len(self.covariance)
        mask = torch.arange(len(forms))
        rest = len(forms) - 1 - mask
        total = torch.zeros_like(forms)
        for j in range(num_features):
            masked = ((mask >> j) & 1).bool()
            total[masked] += forms[rest[masked] | (1 << j)] - forms[rest[masked]]
        size = masks.subsets(num_features).sum(dim=1).clamp(min=1).to(forms)
        return total * (num_features / size)[:, None, None, None]

    def _subset_forms(self) -> Float[Tensor, "S Q D D"]:
        """G of every subset in the order of ``masks.subsets``."""
        keep = masks.subsets(len(self.covariance)).to(self.covariance)
        inside = keep[:, :, None] * keep[:, None, :]
        # The identity outside makes all blocks D×D; its part of the inverse is cut off again.
        outside = torch.eye(keep.shape[1]).to(keep) * (1.0 - inside)
        inverse = torch.linalg.inv(self.covariance * inside + outside) * inside
        return 0.5 * inverse[:, None] @ self.directions @ inverse[:, None]

    def _products(self, forms: Float[Tensor, "S Q D D"]) -> Float[Tensor, "S Q Q"]:
        """2 tr(G Σ G' Σ) of all pairs: the covariance of the forms under N(0, Σ)."""
        product = forms @ self.covariance
        return 2.0 * product.flatten(2) @ product.mT.flatten(2).mT


@dataclass(frozen=True)
class Godambe:
    """Information H J⁻¹ H of every mask size, M = 1..D, for Q parameters, nats per datum.

    After Godambe (1960); Varin, Reid & Firth (2011), Section 2. ``fisher`` (Q, Q) is the likelihood's,
    ``sensitivity`` (D, Q, Q) is H_M = −E ∇² D·S(x; M), ``all_masks`` J_M = Cov ∇ D·S(x; M) where every
    datum is scored under all masks of the size, ``one_mask`` that under one random mask of its own.

    >>> family = GaussianFamily.ppca(torch.tensor([[1.0], [2.0], [3.0]]).double(), 0.5)
    >>> [round(v, 2) for v in Godambe.of(family).efficiency().tolist()]
    [0.92, 0.93, 0.93]
    """

    fisher: Float[Tensor, "Q Q"]
    sensitivity: Float[Tensor, "D Q Q"]
    all_masks: Float[Tensor, "D Q Q"]
    one_mask: Float[Tensor, "D Q Q"]

    def __post_init__(self) -> None:
        require(vars(self), "fisher Q Q, sensitivity D Q Q, all_masks D Q Q, one_mask D Q Q")
        for name, each in vars(self).items():  # where a size says nothing of a parameter, singular
            slack = (name != "fisher") * (1e-6 * each.abs().max() + 1e-30)
            require_definite(name, each + slack * torch.eye(len(self.fisher)).to(each))

    @classmethod
    def of(cls, family: GaussianFamily) -> Godambe:
        """At the point of ``family``, from all 2^D subsets; ``ValueError`` for D above 12."""
        require(locals(), "family GaussianFamily")
        num_features = len(family.covariance)
        require_count("D, whose 2^D subsets are all visited,", num_features, 1, MAX_FEATURES)
        forms, size = family.mask_forms(), masks.subsets(num_features).sum(dim=1)
        information = mean_by_size(family._products(family._subset_forms()), size, num_features)
        return cls(
            fisher=information[-1],
            sensitivity=num_features * information.diff(dim=0).flip(0),
            all_masks=family._products(mean_by_size(forms, size, num_features)[1:]),
            one_mask=mean_by_size(family._products(forms), size, num_features)[1:],
        )

    def variability(self, masks_per_datum: int | None) -> Float[Tensor, "D Q Q"]:
        """J_M with that many independent masks per datum; ``None`` is all of them."""
        if masks_per_datum is None:
            return self.all_masks
        require_count("masks_per_datum", masks_per_datum, 1)
        return self.all_masks + (self.one_mask - self.all_masks) / masks_per_datum

    def efficiency(self, masks_per_datum: int | None = None) -> Float[Tensor, " D"]:
        """Q / tr(I H⁻¹ J H⁻¹) of every size: 1 is maximum likelihood, ½ needs twice the data.

        NaN where H_M is singular: the size does not identify the parameters.
        """
        return self._relative(self.sensitivity, self.variability(masks_per_datum))

    def law_efficiency(self, probabilities: Float[Tensor, " D"]) -> float:
        """The same for one mask per datum whose size follows ``probabilities`` ν.

        Scores are divided by D ν(M), so that the objective is the LML over the sizes of ν.
        """
        given = vars(self) | {"probabilities": probabilities}
        require(given, "sensitivity D Q Q, probabilities D")
        if (probabilities < 0).any() or abs(probabilities.sum().item() - 1.0) > 1e-6:
            raise ValueError(f"probabilities must be >= 0 and sum to 1, got {probabilities}.")
        weight = (1.0 / probabilities).where(probabilities > 0, 0.0) / len(probabilities)
        sensitivity = torch.einsum("m,mpq->pq", probabilities * weight, self.sensitivity)
        variability = torch.einsum("m,mpq->pq", probabilities * weight**2, self.one_mask)
        return self._relative(sensitivity[None], variability[None]).item()

    def gradient_rms(
        self, metric: Literal["euclidean", "fisher"] = "euclidean"
    ) -> Float[Tensor, " D"]:
        """Root mean square of the gradient of one mask's score, for every size: √(tr J_M)/D.

        ``"euclidean"`` in the family's coordinates, ``"fisher"`` in those in which I = 1, which do
        not depend on the parameterization. The law ν(M) of sizes that is proportional to it has
        the smallest mean square of the gradient of s(A)/(D ν(M)) · D, unbiased for that of the LML.
        """
        require(locals(), "metric euclidean|fisher")
        moment = self.one_mask
        if metric == "fisher":
            moment = torch.linalg.solve(self.fisher, moment)
        return moment.diagonal(dim1=1, dim2=2).sum(dim=1).sqrt() / len(moment)

    def _relative(
        self, sensitivity: Float[Tensor, "B Q Q"], variability: Float[Tensor, "B Q Q"]
    ) -> Float[Tensor, " B"]:
        h, identity = self._white(sensitivity), torch.eye(len(self.fisher)).to(sensitivity)
        identified = torch.linalg.eigvalsh(h)[:, 0] > 1e-10
        h = h.where(identified[:, None, None], identity)
        half = torch.linalg.solve(h, self._white(variability))
        loss = torch.linalg.solve(h, half.mT).diagonal(dim1=1, dim2=2).sum(dim=1)
        return (len(identity) / loss).where(identified, torch.nan)

    def _white(self, matrices: Float[Tensor, "B Q Q"]) -> Float[Tensor, "B Q Q"]:
        """L⁻¹ · L⁻ᵀ with I = L Lᵀ: in the coordinates in which the Fisher information is 1."""
        factor = torch.linalg.cholesky(self.fisher)
        left = torch.linalg.solve_triangular(factor, matrices, upper=False)
        return torch.linalg.solve_triangular(factor, left.mT, upper=False)
