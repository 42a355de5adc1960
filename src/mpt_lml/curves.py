"""The mask-rate curve S(x; M) of any model.

``S(x; M) = C(D, M)⁻¹ Σ_{|A|=M} (1/M) Σ_{j∈A} log p(x_j | x_R)``  (paper, Proposition 1)
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml import masks, scores
from mpt_lml.models.base import ConditionalModel, TractableModel
from mpt_lml.results import MaskCurve, trapezoid_weights
from mpt_lml.spec import require, require_sizes
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


def exact_curve(model: ConditionalModel, x: Tensor) -> MaskCurve:
    """S(x; M) for M = 1..D from every mask, mean over the data, nats; literally the definition.

    Raises ``ValueError`` for D > 18.

    >>> model, x = PPCA(torch.ones(4, 1).double(), 0.2), torch.zeros(1, 4).double()
    >>> abs(exact_curve(model, x).area() - model.log_marginal(x).item()) < 1e-12
    True
    """
    require(locals(), "model ConditionalModel, x data")
    mask = masks.subsets(model.num_features, instead="curves.sampled_curve")[1:].to(x.device)
    values = scores.mask_score(model.mean_log_conditional(x, mask), mask)
    return _exact(scores.mean_by_size(values, mask.sum(dim=1), model.num_features)[1:])


def subset_curve(model: TractableModel, x: Tensor) -> MaskCurve:
    """The same curve from 2^D marginals: S(x; M) = ℓ_{D−M+1} − ℓ_{D−M} (telescoping lemma).

    Mean over the data, nats. Every marginal is computed once, where the definition asks for
    D 2^{D−1} conditionals. Raises ``ValueError`` for D > 18, and for marginals so large that their
    differences lose their digits: 1e-8 nats a coordinate in double precision, 1e-3 in single.

    >>> subset_curve(HMM.cyclic(num_features=3), torch.zeros(1, 3).long()).num_masked
    tensor([1, 2, 3])
    """
    levels = subset_levels(model, x)
    score = levels.diff()
    in_double = levels.dtype == torch.float64
    # What is still right: nats a coordinate or, where a difference is large, a part of it.
    nats = (1e-8 if in_double else 1e-3) * model.num_features
    share = 1e-10 if in_double else 2e-7
    rounding = 0.5 * torch.finfo(levels.dtype).eps * levels.abs().max()
    if (rounding > (share * score.abs()).clamp(min=nats)).any():
        raise ValueError(
            f"mean log-marginals of up to {levels.abs().max().item():.3g} nats leave "
            f"{rounding.item():.1g} nats of rounding in their differences. Use exact_curve, or a model "
            "and data in float64."
        )
    return _exact(score.flip(0))


def subset_levels(model: TractableModel, x: Tensor) -> Float[Tensor, " L"]:
    """ℓ_0, ..., ℓ_D: mean of log p(x_R) over the sets R of each size and the data, nats, (D + 1,).

    >>> subset_levels(HMM.cyclic(num_features=3), torch.zeros(1, 3).long()).shape
    torch.Size([4])
    """
    require(locals(), "model TractableModel, x data")
    observed = masks.subsets(model.num_features, instead="curves.sampled_curve").to(x.device)
    values = model.mean_log_subset_marginal(x, observed)
    return scores.mean_by_size(values, observed.sum(dim=1), model.num_features)


def _exact(score: Float[Tensor, " D"]) -> MaskCurve:
    sizes = torch.arange(1, len(score) + 1)
    return MaskCurve(sizes, score.cpu(), torch.zeros(len(score), dtype=score.dtype), len(score))


def sampled_curve(
    model: ConditionalModel,
    x: Tensor,
    num_masks: int,
    *,
    generator: torch.Generator,
    scheme: Scheme = "independent",
    targets: Targets = "all",
    sizes: Sequence[int] | None = None,
) -> MaskCurve:
    """Unbiased estimate of S(x; M) from ``num_masks`` random masks a size, mean over the data, nats.

    ``scheme``: fresh masks for every size (the paper's way), or one random order a replicate whose
    first M coordinates are the mask of size M. ``targets``: score every masked coordinate, or a random
    one of them; ``nested`` with ``one`` is the chain rule along each order. ``sizes`` are those to
    visit, all of 1..D by default. Standard errors are over masks, with the data held fixed; ``each``
    of the curve is the score of every mask.

    >>> model, g = PPCA(torch.ones(9, 1), 0.2), torch.Generator().manual_seed(0)
    >>> curve = sampled_curve(model, torch.zeros(5, 9), 2, generator=g, sizes=[1, 9])
    >>> curve.score.shape, curve.each.shape
    (torch.Size([2]), torch.Size([2, 2]))
    """
    require(locals(), "model ConditionalModel, x data, num_masks 1..")
    require(locals(), "scheme independent|nested, targets all|one")
    grid = _grid(sizes, model)
    orders = num_masks * (len(grid) if scheme == "independent" else 1)
    ranks = masks.sample_ranks(orders, model.num_features, generator=generator)
    ranks = ranks.view(-1, num_masks, model.num_features).expand(len(grid), -1, -1).to(x.device)
    mask = masks.from_ranks(ranks, grid[:, None])
    if targets == "all":
        values = size_scores(model, x, mask).cpu()
    else:
        last = mask & ~masks.from_ranks(ranks, grid[:, None] - 1)
        found = model.mean_log_conditional(x, mask.flatten(0, 1)).view(mask.shape)
        values = (found * last).sum(dim=-1).cpu()
    mean, error = mean_and_error(values, dim=1)
    curve = MaskCurve(grid, mean, error, model.num_features, num_masks, each=values)
    if scheme == "independent":
        return curve
    weights = trapezoid_weights(grid, model.num_features).to(values)
    _, area_error = mean_and_error(weights @ values)
    return replace(curve, area_standard_error=area_error.item())


def _grid(sizes: Sequence[int] | None, model: ConditionalModel) -> Int[Tensor, " L"]:
    every = range(1, model.num_features + 1)
    return torch.tensor(every if sizes is None else require_sizes(sizes, model.num_features))


def size_scores(
    model: ConditionalModel, x: Tensor, mask: Bool[Tensor, "L P D"]
) -> Float[Tensor, "L P"]:
    """Score of every given mask, mean over the data, nats, (L, P); one batch for the whole curve.

    >>> mask = masks.all_masks(4, 2)[None]
    >>> size_scores(HMM.cyclic(num_features=4), torch.zeros(3, 4).long(), mask).shape
    torch.Size([1, 6])
    """
    require(locals(), "model ConditionalModel, bool mask L P D")
    flat = mask.flatten(0, 1)
    return scores.mask_score(model.mean_log_conditional(x, flat), flat).view(mask.shape[:2])


def running_area(values: Float[Tensor, "L P"]) -> Float[Tensor, " P"]:
    """Area Σ_M Ŝ(M) after 1, 2, ..., P masks a size, (P,): one cumulative mean, not P estimates.

    >>> running_area(torch.tensor([[-1.0, -3.0], [-2.0, -2.0]]))
    tensor([-3., -4.])
    """
    require(locals(), "values L P", finite=False)
    counts = torch.arange(1, values.shape[1] + 1, dtype=values.dtype, device=values.device)
    return values.sum(dim=0).cumsum(0) / counts
