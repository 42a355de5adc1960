"""Objectives of probabilistic PCA: everything they need of the data is one second moment."""

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import masks, scores
from mpt_lml.checks import checked, require_finite
from mpt_lml.gaussian import LowRankPosterior
from mpt_lml.masks import each_masks_something

# One PPCA, or several with a common shape in front: B runs, for example.
_Loadings = Float[Tensor, "*B D k"]
_NoiseVariance = Float[Tensor, "..."]
_Moment = Float[Tensor, "*#B D D"]
_MasksOfEachRun = Annotated[Bool[Tensor, "*#B P D"], each_masks_something]

_WANTED = "must be a second moment XᵀX/N, symmetric without negative eigenvalues"


@checked
def second_moment(x: Float[Tensor, "N D"]) -> Float[Tensor, "D D"]:
    """XᵀX/N (about zero): all that a Gaussian's mean log-density needs of the data.

    Args:
        x: data, (N, D), less the model's mean where that is not zero.

    Returns:
        (D, D), in the square of the data's unit.

    Raises:
        ValueError: where squares overflow.

    >>> second_moment(torch.tensor([[1.0, 1.0], [1.0, -1.0]])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    moment = x.mT @ x / len(x)
    if not moment.isfinite().all():
        largest = f"{x.detach().abs().max().item():.3g}"
        raise ValueError(f"x of up to {largest} has squares beyond {x.dtype}. Use another unit.")
    return moment


@checked(finite=False)
def log_marginal(
    loadings: _Loadings, noise_variance: _NoiseVariance, moment: _Moment
) -> Float[Tensor, "*B"]:
    """The exact mean log p(x) of PPCA.

    Args:
        loadings: W, (..., D, K).
        noise_variance: σ², (...).
        moment: second moment of the data about the model's mean, (D, D) or (..., D, D).

    Returns:
        Nats, (...).

    Raises:
        ValueError: for a moment that is not symmetric or has a negative eigenvalue.

    >>> log_marginal(torch.zeros(2, 1), torch.tensor(1.0), torch.eye(2))
    tensor(-2.8379)
    """
    require_second_moment("moment", moment)
    everything = torch.ones(1, loadings.shape[-2], dtype=torch.bool, device=loadings.device)
    posterior = LowRankPosterior.of(loadings, noise_variance, everything)
    return posterior.mean_log_marginal(moment)[..., 0].to(loadings)


@checked(finite=False)
def mask_scores(
    loadings: _Loadings, noise_variance: _NoiseVariance, moment: _Moment, mask: _MasksOfEachRun
) -> Float[Tensor, "*B P"]:
    """The score of every mask under PPCA, mean over the data.

    Args:
        loadings: W, (..., D, K).
        noise_variance: σ², (...).
        moment: second moment of the data about the model's mean, (D, D) or (..., D, D). It is not
            searched for negative eigenvalues: one datum's x xᵀ for each of many masks may be meant.
        mask: (P, D) or (..., P, D); True means masked.

    Returns:
        Nats a masked coordinate, (..., P).

    Raises:
        ValueError: for a moment that is not symmetric.

    >>> w, mask = torch.zeros(2, 1), torch.tensor([[True, False], [True, True]])
    >>> mask_scores(w, torch.tensor(1.0), torch.eye(2), mask)
    tensor([-1.4189, -1.4189])
    """
    require_symmetric_moment("moment", moment)
    return _mask_scores(loadings, noise_variance, moment, mask)


def _mask_scores(
    loadings: Tensor, noise_variance: Tensor, moment: Tensor, mask: Tensor
) -> Float[Tensor, "*B P"]:
    """:func:`mask_scores` of a moment that has been checked, which takes a pass over its D² entries."""
    posterior = LowRankPosterior.of(loadings, noise_variance, ~mask)
    values = posterior.mean_log_conditional(moment).to(loadings)
    return scores._mask_score(values, mask.expand_as(values))


@checked(finite=False)
def sampled(
    loadings: _Loadings, noise_variance: _NoiseVariance, moment: _Moment, mask: _MasksOfEachRun
) -> Float[Tensor, "*B"]:
    """D times the mean score of the given masks: unbiased for the law that their sizes follow.

    Args:
        loadings: W, (..., D, K).
        noise_variance: σ², (...).
        moment: second moment of the data about the model's mean, (D, D) or (..., D, D).
        mask: (P, D) or (..., P, D); True means masked.

    Returns:
        Nats, (...).

    Raises:
        ValueError: for a mask that hides nothing, and as :func:`log_marginal`.

    >>> sampled(torch.zeros(2, 1), torch.tensor(1.0), torch.eye(2), torch.ones(1, 2).bool())
    tensor(-2.8379)
    """
    require_second_moment("moment", moment)
    values = _mask_scores(loadings, noise_variance, moment, mask)
    return loadings.shape[-2] * values.mean(dim=-1)


@checked(finite=False)
def exact(
    loadings: _Loadings, noise_variance: _NoiseVariance, moment: _Moment, law: masks.SizeLaw
) -> Float[Tensor, "*B"]:
    """D Σ_M ν(M) S(x; M) of PPCA over every mask that the law can draw.

    Args:
        loadings: W, (..., D, K).
        noise_variance: σ², (...).
        moment: second moment of the data about the model's mean, (D, D) or (..., D, D).
        law: ν, of the number of masked coordinates.

    Returns:
        Nats, (...).

    Raises:
        ValueError: where 2^D masks are too many (use :func:`sampled`), and as :func:`log_marginal`.

    >>> exact(torch.zeros(2, 1), torch.tensor(1.0), torch.eye(2), masks.UniformSize())
    tensor(-2.8379)
    """
    require_second_moment("moment", moment)
    num_features = loadings.shape[-2]
    mask = masks.subsets(num_features, instead="objectives.sampled")[1:]
    sizes = mask.sum(dim=1)
    weight_of_size = law.probabilities(num_features) / torch.bincount(sizes)[1:]
    weights = weight_of_size[sizes - 1]
    is_possible = weights > 0
    mask = mask[is_possible].to(loadings.device)
    weights = weights[is_possible].to(loadings)
    values = _mask_scores(loadings, noise_variance, moment, mask)
    return num_features * (values * weights).sum(dim=-1)


@checked(finite=False)
def curve(
    loadings: _Loadings, noise_variance: _NoiseVariance, moment: _Moment
) -> Float[Tensor, "*B D"]:
    """The exact S(x; M), M = 1..D, of every PPCA of the batch.

    Args:
        loadings: W, (..., D, K).
        noise_variance: σ², (...).
        moment: second moment of the data about the model's mean, (D, D) or (..., D, D).

    Returns:
        Nats a masked coordinate, (..., D).

    Raises:
        ValueError: where 2^D masks are too many, and as :func:`log_marginal`.

    >>> curve(torch.zeros(2, 1), torch.tensor(1.0), torch.eye(2))
    tensor([-1.4189, -1.4189])
    """
    require_second_moment("moment", moment)
    mask = masks.subsets(loadings.shape[-2], instead="objectives.sampled")[1:].to(loadings.device)
    values = _mask_scores(loadings, noise_variance, moment, mask).movedim(-1, 0)
    return scores.mean_by_size(values, mask.sum(dim=1), mask.shape[1])[1:].movedim(0, -1)


def require_second_moment(name: str, moment: Tensor) -> None:
    """Check that ``moment`` (..., D, D) can be the mean of x xᵀ: symmetric, no negative eigenvalue.

    Both hold up to a millionth of the trace, so that moments rounded to single precision pass.
    """
    moment = moment.detach()
    require_finite(name, moment)
    require_symmetric_moment(name, moment)
    trace = _trace(moment)
    identity = torch.eye(moment.shape[-1]).to(moment)
    least_pivot = torch.finfo(moment.dtype).tiny  # where all data are 0
    shifted = moment + (1e-6 * trace + least_pivot) * identity
    if torch.linalg.cholesky_ex(shifted).info.any():  # far cheaper than eigenvalues, if D is large
        least = torch.linalg.eigvalsh(moment).min()
        raise ValueError(
            f"{name} {_WANTED}, but {name} has the eigenvalue {least:.4g}. "
            "objectives.second_moment(x) makes one."
        )


def require_symmetric_moment(name: str, moment: Tensor) -> None:
    """The part of :func:`require_second_moment` that costs nothing; what is not finite passes."""
    moment = moment.detach()
    skew = (moment - moment.mT).abs()
    if (skew > 1e-6 * _trace(moment).abs()).any():
        raise ValueError(
            f"{name} {_WANTED}, but {name} and its transpose differ by {skew.max():.4g}. "
            "objectives.second_moment(x) makes one."
        )


def _trace(moment: Tensor) -> Tensor:
    return moment.diagonal(dim1=-2, dim2=-1).sum(dim=-1)[..., None, None]
