"""Training objectives as pure functions of PPCA's parameters, in nats a datum (floor 3).

All of them are *maximized* and comparable with the mean log p(x): D Σ_M π(M) S(x; M) for a law π of
mask sizes. With the uniform law that is the LML itself (Proposition 1), with M fixed it is D S(x; M).
The data enter through their second moment about the model's mean, and leading axes of the loadings
(written ...) are models trained side by side, on the same data or, with a
second moment that has those axes too, each on its own.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import masks, scores
from mpt_lml.gaussian import LowRankPosterior
from mpt_lml.masks import SizeLaw
from mpt_lml.shapes import require_data


def second_moment(x: Float[Tensor, "N D"]) -> Float[Tensor, "D D"]:
    """XᵀX/N (about zero): all that a Gaussian's mean log-density needs of the data."""
    require_data(x, x.shape[-1])
    return x.mT @ x / len(x)


def log_marginal(
    loadings: Float[Tensor, "*B D K"],
    noise_variance: Float[Tensor, "..."],
    moment: Float[Tensor, "*#B D D"],
) -> Float[Tensor, "*B"]:
    """The exact mean log p(x), shape (...)."""
    everything = torch.ones(1, loadings.shape[-2], dtype=torch.bool, device=loadings.device)
    posterior = LowRankPosterior.of(loadings, noise_variance, everything)
    return posterior.mean_log_marginal(moment)[..., 0]


def mask_scores(
    loadings: Float[Tensor, "*B D K"],
    noise_variance: Float[Tensor, "..."],
    moment: Float[Tensor, "*#B D D"],
    mask: Bool[Tensor, "*#B P D"],
) -> Float[Tensor, "*B P"]:
    """(1/M) Σ_{j∈A} log p(x_j | x_R) of every mask, mean over the data, shape (..., P)."""
    posterior = LowRankPosterior.of(loadings, noise_variance, ~mask)
    values = posterior.mean_log_conditional(moment)
    return scores.mask_score(values, mask.expand_as(values))


def sampled(
    loadings: Float[Tensor, "*B D K"],
    noise_variance: Float[Tensor, "..."],
    moment: Float[Tensor, "*#B D D"],
    mask: Bool[Tensor, "*#B P D"],
) -> Float[Tensor, "*B"]:
    """D times the mean score of the given masks: unbiased for the law that their sizes follow."""
    return loadings.shape[-2] * mask_scores(loadings, noise_variance, moment, mask).mean(dim=-1)


def exact(
    loadings: Float[Tensor, "*B D K"],
    noise_variance: Float[Tensor, "..."],
    moment: Float[Tensor, "*#B D D"],
    law: SizeLaw,
) -> Float[Tensor, "*B"]:
    """D Σ_M π(M) S(x; M) over every mask that the law can draw.

    Raises ``ValueError`` where 2^D masks are too many; use :func:`sampled` there.
    """
    num_features = loadings.shape[-2]
    mask, weights = weighted_masks(num_features, law)
    each = mask_scores(loadings, noise_variance, moment, mask.to(loadings.device))
    return num_features * (each * weights.to(loadings)).sum(dim=-1)


def weighted_masks(
    num_features: int, law: SizeLaw
) -> tuple[Bool[Tensor, "P D"], Float[Tensor, " P"]]:
    """Every mask of positive probability under ``law`` and its probability, (P, D) and (P,)."""
    probabilities = law.probabilities(num_features)
    mask = masks.subsets(num_features, instead="objectives.sampled")[1:]
    sizes = mask.sum(dim=1)
    counts = torch.bincount(sizes, minlength=num_features + 1)[1:]
    weights = (probabilities / counts)[sizes - 1]
    return mask[weights > 0], weights[weights > 0]


def curve(
    loadings: Float[Tensor, "*B D K"],
    noise_variance: Float[Tensor, "..."],
    moment: Float[Tensor, "*#B D D"],
) -> Float[Tensor, "*B D"]:
    """The exact S(x; M), M = 1..D, of every model of the batch, shape (..., D)."""
    num_features = loadings.shape[-2]
    mask, _ = weighted_masks(num_features, masks.UniformSize())
    each = mask_scores(loadings, noise_variance, moment, mask.to(loadings.device))
    sizes = mask.sum(dim=1).to(loadings.device)
    return scores.mean_by_size(each.movedim(-1, 0), sizes, num_features)[1:].movedim(0, -1)
