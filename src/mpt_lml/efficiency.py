"""How much a fixed mask size loses as an estimating equation: Godambe information, exact (floor 3).

Zero-mean Gaussian families N(0, C(θ)) at their true parameter. For a set S of coordinates,
∇ log p(x_S) = x_Sᵀ G_S x_S − E with G_{S,q} = ½ C_S⁻¹ (∂_q C)_S C_S⁻¹, and two such forms have
covariance 2 tr(G C G' C). By the chain rule a masked score is a difference of these, so that every
expectation below is a sum over the 2^D subsets and nothing is sampled.

Per datum, in nats: sensitivity H_M = −E ∇² D·S(x; M), variability J_M = Cov ∇ D·S(x; M), Godambe
information H J⁻¹ H (Godambe 1960; Varin, Reid & Firth 2011, Section 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import masks
from mpt_lml.shapes import require_count, require_enumerable

Metric = Literal["euclidean", "fisher"]


@dataclass(frozen=True)
class GaussianFamily:
    """A point of a family N(0, C(θ)) and its tangent space.

    Attributes
    ----------
    covariance : Tensor (D, D)
        C at the true θ.
    directions : Tensor (Q, D, D)
        ∂C/∂θ_q; they have to be linearly independent.
    """

    covariance: Float[Tensor, "D D"]
    directions: Float[Tensor, "Q D D"]

    def __post_init__(self) -> None:
        flat = self.directions.flatten(1)
        rank = int(torch.linalg.matrix_rank(flat))
        if rank < len(flat):
            raise ValueError(
                f"directions must be linearly independent, got {len(flat)} of rank {rank}. "
                "Leave out what does not change the covariance, such as rotations of loadings."
            )

    @classmethod
    def autoregressive(cls, num_features: int, correlation: float) -> GaussianFamily:
        """AR(1) with unit variance, θ = φ: C_ij = φ^{|i−j|}."""
        index = torch.arange(num_features, dtype=torch.float64)
        lag = (index[:, None] - index).abs()
        slope = lag * correlation ** (lag - 1.0).clamp(min=0.0)
        return cls(correlation**lag, slope[None])

    @classmethod
    def equicorrelated(cls, num_features: int, correlation: float) -> GaussianFamily:
        """Unit variances and one correlation, θ = ρ."""
        identity = torch.eye(num_features, dtype=torch.float64)
        return cls(identity + correlation * (1.0 - identity), (1.0 - identity)[None])

    @classmethod
    def ppca(cls, loadings: Float[Tensor, "D K"], noise_variance: float) -> GaussianFamily:
        """PPCA with known σ²: orthonormal directions of W, without the rotations W (skew)."""
        num_features, latent_dim = loadings.shape
        identity = torch.eye(num_features, dtype=loadings.dtype)
        rows, columns = torch.triu_indices(latent_dim, latent_dim, 1)
        skew = torch.zeros(len(rows), latent_dim, latent_dim, dtype=loadings.dtype)
        skew[torch.arange(len(rows)), rows, columns] = 1.0
        turned = (loadings @ (skew - skew.mT)).flatten(1)
        gauge = torch.linalg.qr(turned.mT, mode="complete").Q if len(rows) else None
        count = num_features * latent_dim
        basis = torch.eye(count, dtype=loadings.dtype) if gauge is None else gauge[:, len(rows) :]
        steps = basis.mT.reshape(-1, num_features, latent_dim)
        half = steps @ loadings.mT
        return cls(loadings @ loadings.mT + noise_variance * identity, half + half.mT)


@dataclass(frozen=True)
class Godambe:
    """Information of every mask size, M = 1..D, for Q parameters, per datum.

    Attributes
    ----------
    fisher : Tensor (Q, Q)
        Of the likelihood.
    sensitivity : Tensor (D, Q, Q)
        H_M of D·S(x; M).
    all_masks : Tensor (D, Q, Q)
        Variability where every datum is scored under all masks of the size.
    one_mask : Tensor (D, Q, Q)
        Variability where every datum is scored under one random mask of its own.
    """

    fisher: Float[Tensor, "Q Q"]
    sensitivity: Float[Tensor, "D Q Q"]
    all_masks: Float[Tensor, "D Q Q"]
    one_mask: Float[Tensor, "D Q Q"]

    def variability(self, masks_per_datum: int | None) -> Float[Tensor, "D Q Q"]:
        """J_M with that many independent masks per datum; ``None`` is all of them."""
        if masks_per_datum is None:
            return self.all_masks
        require_count("masks_per_datum", masks_per_datum, 1)
        return self.all_masks + (self.one_mask - self.all_masks) / masks_per_datum

    def efficiency(self, masks_per_datum: int | None = None) -> Float[Tensor, " D"]:
        """Q / tr(I H⁻¹ J H⁻¹) of every size: 1 is maximum likelihood, ½ needs twice the data.

        The trace is 2N times the expected divergence of the fitted model from the true one. NaN
        where H_M is singular: the size does not identify the parameters.
        """
        return self._relative(self.sensitivity, self.variability(masks_per_datum))

    def law_efficiency(self, probabilities: Float[Tensor, " D"], weighted: bool = True) -> float:
        """The same for one mask per datum whose size follows ``probabilities``.

        ``weighted``: scores are divided by D π(M), so that the objective is the LML; otherwise they
        are left as they are and the objective is D Σ π(M) S(M).
        """
        uniform = 1.0 / len(probabilities)
        weight = torch.where(probabilities > 0, uniform / probabilities, 0.0)
        weight = weight if weighted else torch.ones_like(weight)
        sensitivity = torch.einsum("m,mpq->pq", probabilities * weight, self.sensitivity)
        variability = torch.einsum("m,mpq->pq", probabilities * weight**2, self.one_mask)
        return self._relative(sensitivity[None], variability[None]).item()

    def condition(self) -> Float[Tensor, " D"]:
        """Largest over smallest eigenvalue of H_M; infinite where it is singular."""
        values = torch.linalg.eigvalsh(self.sensitivity)
        ratio = values[:, -1] / values[:, 0]
        return ratio.where(self._identified(self.sensitivity), torch.inf)

    def gradient_rms(self, metric: Metric = "euclidean") -> Float[Tensor, " D"]:
        """Root mean square of the gradient of one mask's score, for every size: √(tr J_M)/D.

        ``"euclidean"`` in the family's coordinates, ``"fisher"`` in those in which I = 1, which do
        not depend on the parameterization. The law π(M) of sizes that is proportional to it has
        the smallest mean square of the gradient of s(A)/(D π(M)) · D, unbiased for that of the LML.
        """
        if metric not in ("euclidean", "fisher"):
            raise ValueError(f"metric must be 'euclidean' or 'fisher', got {metric!r}.")
        moment = self.one_mask if metric == "euclidean" else self._white(self.one_mask)
        return moment.diagonal(dim1=1, dim2=2).sum(dim=1).sqrt() / len(moment)

    def _relative(
        self, sensitivity: Float[Tensor, "B Q Q"], variability: Float[Tensor, "B Q Q"]
    ) -> Float[Tensor, " B"]:
        identified = self._identified(sensitivity)
        identity = torch.eye(len(self.fisher)).to(sensitivity)
        h = self._white(sensitivity).where(identified[:, None, None], identity)
        half = torch.linalg.solve(h, self._white(variability))
        loss = torch.linalg.solve(h, half.mT).diagonal(dim1=1, dim2=2).sum(dim=1)
        return (len(identity) / loss).where(identified, torch.nan)

    def _identified(self, sensitivity: Float[Tensor, "B Q Q"]) -> Bool[Tensor, " B"]:
        return torch.linalg.eigvalsh(self._white(sensitivity))[:, 0] > 1e-10

    def _white(self, matrices: Float[Tensor, "B Q Q"]) -> Float[Tensor, "B Q Q"]:
        """L⁻¹ · L⁻ᵀ with I = L Lᵀ: in the coordinates in which the Fisher information is 1."""
        factor = torch.linalg.cholesky(self.fisher)
        left = torch.linalg.solve_triangular(factor, matrices, upper=False)
        return torch.linalg.solve_triangular(factor, left.mT, upper=False)


def subset_forms(family: GaussianFamily) -> Float[Tensor, "S Q D D"]:
    """G of every subset in the order of ``masks.subsets``: ∇ log p(x_S) = x_Sᵀ G_S x_S − E."""
    keep = masks.subsets(len(family.covariance)).to(family.covariance)
    inside = keep[:, :, None] * keep[:, None, :]
    identity = torch.eye(len(family.covariance)).to(family.covariance)
    # The identity outside S makes all blocks D×D; its part of the inverse is cut off again.
    inverse = torch.linalg.inv(family.covariance * inside + identity * (1.0 - inside)) * inside
    return 0.5 * inverse[:, None] @ family.directions @ inverse[:, None]


def mask_forms(forms: Float[Tensor, "S Q D D"]) -> Float[Tensor, "S Q D D"]:
    """B of every mask in the order of ``masks.subsets``: ∇ D s(A) = xᵀ B_A x − E, 0 for no mask.

    B_A = (D/M) Σ_{j∈A} (G_{R∪j} − G_R), with R the complement of A.
    """
    number, num_features = forms.shape[0], forms.shape[-1]
    mask = torch.arange(number)
    rest = number - 1 - mask
    total = torch.zeros_like(forms)
    for j in range(num_features):
        masked = ((mask >> j) & 1).bool()
        total[masked] += forms[rest[masked] | (1 << j)] - forms[rest[masked]]
    size = masks.subsets(num_features).sum(dim=1).clamp(min=1).to(forms)
    return total * (num_features / size)[:, None, None, None]


def godambe(family: GaussianFamily) -> Godambe:
    """Exact Godambe information of every size at the point of ``family``, from all 2^D subsets.

    Raises ``ValueError`` for D > 12.
    """
    num_features = len(family.covariance)
    what = f"all subsets of D = {num_features} coordinates"
    require_enumerable(2**num_features, what, "a smaller D", limit=2**12)
    forms = subset_forms(family)
    by_mask = mask_forms(forms)
    information = _by_size(_covariance(forms, family.covariance))
    sensitivity = num_features * information.diff(dim=0).flip(0)
    all_masks = _covariance(_by_size(by_mask)[1:], family.covariance)
    one_mask = _by_size(_covariance(by_mask, family.covariance))[1:]
    return Godambe(information[-1], sensitivity, all_masks, one_mask)


def _covariance(
    forms: Float[Tensor, "S Q D D"], covariance: Float[Tensor, "D D"]
) -> Float[Tensor, "S Q Q"]:
    """2 tr(G C G' C) of all pairs: the covariance of the forms under N(0, C)."""
    product = forms @ covariance
    return 2.0 * product.flatten(2) @ product.mT.flatten(2).mT


def _by_size(values: Float[Tensor, "S ..."]) -> Float[Tensor, "L ..."]:
    """Means over the subsets of size 0, 1, ..., D."""
    num_features = len(values).bit_length() - 1
    group = torch.nn.functional.one_hot(masks.subsets(num_features).sum(dim=1)).to(values)
    mean = (group / group.sum(dim=0)).mT @ values.flatten(1)
    return mean.unflatten(1, values.shape[1:])
