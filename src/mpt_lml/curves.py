"""The mask-rate curve S(x; M) of any model.

``S(x; M) = C(D, M)⁻¹ Σ_{|A|=M} (1/M) Σ_{j∈A} log p(x_j | x_R)``  (paper, Proposition 1)

Why the area under it is log p(x): let ℓ_r be the mean of log p(x_R) over all sets R of r coordinates. A
random mask A of size M and a random j in it make R a random set of D − M coordinates, and R with j a
random set of D − M + 1. A term of the sum is log p(x_{R ∪ j}) − log p(x_R). So
``S(x; M) = ℓ_{D−M+1} − ℓ_{D−M}`` (the telescoping lemma), and Σ_M S(x; M) = ℓ_D − ℓ_0 = log p(x) − 0.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml import masks, scores
from mpt_lml.checks import Count, Data, checked
from mpt_lml.masks import each_masks_something, require_sizes
from mpt_lml.models.base import ConditionalModel, TractableModel
from mpt_lml.results import MaskCurve, trapezoid_weights
from mpt_lml.verdicts import mean_and_error

__all__ = [
    "exact_curve",
    "running_area",
    "sampled_curve",
    "size_scores",
    "subset_curve",
    "subset_levels",
]

Scheme = Literal["independent", "nested"]
Targets = Literal["all", "one"]


@checked
def exact_curve(model: ConditionalModel, x: Data) -> MaskCurve:
    """S(x; M) for M = 1..D from every mask: literally the definition.

    Args:
        model: of D ≤ 18 coordinates.
        x: data, (N, D).

    Returns:
        The curve, nats a coordinate, mean over the data, without error.

    Raises:
        ValueError: for D > 18.

    >>> model, x = PPCA(torch.ones(4, 1).double(), 0.2), torch.zeros(1, 4).double()
    >>> abs(exact_curve(model, x).area() - model.log_marginal(x).item()) < 1e-12
    True
    """
    mask = masks.subsets(model.num_features, instead="curves.sampled_curve")[1:].to(x.device)
    score_of_mask = scores._mask_score(model.mean_log_conditional(x, mask), mask)
    by_size = scores.mean_by_size(score_of_mask, mask.sum(dim=1), model.num_features)
    return _curve_by_subsets(by_size[1:])  # no mask has size 0


@checked
def subset_curve(model: TractableModel, x: Data) -> MaskCurve:
    """Exact curve from 2^D marginals: S(x; M) = ℓ_{D−M+1} − ℓ_{D−M} (telescoping lemma).

    Every marginal is computed once, where the definition asks for D 2^{D−1} conditionals.

    Args:
        model: of D ≤ 18 coordinates.
        x: data, (N, D).

    Returns:
        The curve, nats a coordinate, mean over the data, without error.

    Raises:
        ValueError: for D > 18, and for marginals so large that rounding moves a difference of them
            by more than 1e-8 nats a coordinate and more than 1e-10 of itself (in single precision
            1e-3 nats and 2e-7).

    >>> subset_curve(HMM.cyclic(num_features=3), torch.zeros(1, 3).long()).num_masked
    tensor([1, 2, 3])
    """
    levels = subset_levels(model, x)
    score = levels.diff()  # S(x; D), ..., S(x; 1): from nothing observed to all but one
    in_double = levels.dtype == torch.float64
    # The most that rounding may take: ``nats`` or, where a difference is large, a ``share`` of it. In
    # double precision a coordinate may lose 1e-8 nats, and the levels have D of them.
    nats = (1e-8 if in_double else 1e-3) * model.num_features
    share = 1e-10 if in_double else 2e-7
    rounding = 0.5 * torch.finfo(levels.dtype).eps * levels.abs().max()  # one, of the largest level
    if (rounding > (share * score.abs()).clamp(min=nats)).any():
        raise ValueError(
            f"mean log-marginals of up to {levels.abs().max().item():.3g} nats leave "
            f"{rounding.item():.1g} nats of rounding in their differences. Use exact_curve, or a model "
            "and data in float64."
        )
    return _curve_by_subsets(score.flip(0))


@checked
def subset_levels(model: TractableModel, x: Data) -> Float[Tensor, " L"]:
    """ℓ_0, ..., ℓ_D: mean of log p(x_R) over the sets R of each size and over the data.

    Args:
        model: of D ≤ 18 coordinates.
        x: data, (N, D).

    Returns:
        Nats, (D + 1,).

    Raises:
        ValueError: for D > 18.

    >>> subset_levels(HMM.cyclic(num_features=3), torch.zeros(1, 3).long()).shape
    torch.Size([4])
    """
    observed = masks.subsets(model.num_features, instead="curves.sampled_curve").to(x.device)
    log_marginal = model.mean_log_subset_marginal(x, observed)
    return scores.mean_by_size(log_marginal, observed.sum(dim=1), model.num_features)


def _curve_by_subsets(score: Float[Tensor, " D"]) -> MaskCurve:
    """The curve of S(x; 1), ..., S(x; D) over all subsets, so without error."""
    sizes = torch.arange(1, len(score) + 1, device=score.device)
    return MaskCurve(sizes, score, torch.zeros_like(score), len(score))


@checked
def sampled_curve(
    model: ConditionalModel,
    x: Data,
    num_masks: Count,
    *,
    generator: torch.Generator,
    scheme: Scheme = "independent",
    targets: Targets = "all",
    sizes: Sequence[int] | None = None,
) -> MaskCurve:
    """Unbiased estimate of S(x; M) from random masks of each size.

    Args:
        model: of any number D of coordinates.
        x: data, (N, D).
        num_masks: P, masks a size.
        generator: source of randomness.
        scheme: ``"independent"``: fresh masks for every size (as in the paper). ``"nested"``: one
            random order a replicate, whose last M coordinates are the mask of size M.
        targets: ``"all"``: score every masked coordinate. ``"one"``: the first of them in the order,
            which is a random one; with ``"nested"`` that is the chain rule along each order.
        sizes: those to visit, increasing; all of 1..D by default.

    Returns:
        The curve, nats a coordinate, mean over the data. Standard errors are over masks, with the
        data held fixed; ``each`` is the score of every mask, (L, P).

    >>> model, g = PPCA(torch.ones(9, 1), 0.2), torch.Generator().manual_seed(0)
    >>> curve = sampled_curve(model, torch.zeros(5, 9), 2, generator=g, sizes=[1, 9])
    >>> curve.score.shape, curve.each.shape
    (torch.Size([2]), torch.Size([2, 2]))
    """
    num_features = model.num_features
    visited = _sizes_to_visit(sizes, num_features).to(x.device)
    num_orders = num_masks
    if scheme == "independent":
        num_orders = num_masks * len(visited)
    ranks = masks.sample_ranks(num_orders, num_features, generator=generator)
    # Independent: L blocks of P orders. Nested: one block, which all L sizes share.
    ranks = ranks.view(-1, num_masks, num_features).expand(len(visited), -1, -1).to(x.device)
    mask = masks.from_ranks(ranks, visited[:, None])  # (L, P, D)
    if targets == "all":
        values = size_scores(model, x, mask)
    else:
        revealed_next = mask & ~masks.from_ranks(ranks, visited[:, None] - 1)
        log_conditional = model.mean_log_conditional(x, mask.flatten(0, 1))
        log_conditional = log_conditional.view(mask.shape)
        # Others count 0, also where their log-probability is −inf.
        values = log_conditional.where(revealed_next, 0.0).sum(dim=-1)
    mean, error = mean_and_error(values, dim=1)
    curve = MaskCurve(visited, mean, error, num_features, num_masks, each=values)
    # Independent sizes: the curve adds up the variances of its sizes itself.
    if scheme == "independent":
        return curve
    # Nested masks share an order: the error of the area is that of one area an order.
    weights = trapezoid_weights(visited, num_features).to(values)
    area_of_order = (weights[:, None] * values).sum(dim=0)
    _, area_error = mean_and_error(area_of_order)
    return replace(curve, area_standard_error=area_error.item())


def _sizes_to_visit(sizes: Sequence[int] | None, num_features: int) -> Int[Tensor, " L"]:
    if sizes is None:
        return torch.arange(1, num_features + 1)
    return torch.tensor(require_sizes(sizes, num_features))


@checked
def size_scores(
    model: ConditionalModel,
    x: Data,
    mask: Annotated[Bool[Tensor, "L P D"], each_masks_something],
) -> Float[Tensor, "L P"]:
    """Score of every given mask, mean over the data; one batch for the whole curve.

    Args:
        model: of D coordinates.
        x: data, (N, D).
        mask: P masks of each of L sizes, (L, P, D), boolean; True means masked.

    Returns:
        Nats a coordinate, (L, P).

    >>> mask = masks.all_masks(4, 2)[None]
    >>> size_scores(HMM.cyclic(num_features=4), torch.zeros(3, 4).long(), mask).shape
    torch.Size([1, 6])
    """
    flat_mask = mask.flatten(0, 1)
    log_conditional = model.mean_log_conditional(x, flat_mask)
    return scores._mask_score(log_conditional, flat_mask).view(mask.shape[:2])


@checked(finite=False)
def running_area(values: Float[Tensor, "L P"]) -> Float[Tensor, " P"]:
    """Area Σ_M Ŝ(M) after 1, 2, ..., P masks a size: one cumulative mean, not P estimates.

    Args:
        values: score of every mask at every size, nats a coordinate, (L, P).

    Returns:
        Nats, (P,).

    >>> running_area(torch.tensor([[-1.0, -3.0], [-2.0, -2.0]]))
    tensor([-3., -4.])
    """
    # Replicate p of every size together is one area; the area after p of them is the mean of these.
    counts = torch.arange(1, values.shape[1] + 1, dtype=values.dtype, device=values.device)
    return values.sum(dim=0).cumsum(0) / counts
