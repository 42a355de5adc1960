"""Estimates of log p(x): exact, as the area of a curve, along orders, at one random size (floor 4).

All sampled ones are unbiased for every P. Their standard errors are over masks, the data held fixed,
and every value is the mean over the data, in nats.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

import torch
from torch import Tensor

from mpt_lml import curves, masks, scores
from mpt_lml.curves import Scheme, Tokens
from mpt_lml.models.base import ConditionalModel, TractableModel
from mpt_lml.numerics import mean_and_error
from mpt_lml.results import Estimate
from mpt_lml.shapes import require_count, require_enumerable


def exact(model: TractableModel, x: Tensor) -> Estimate:
    """log p(x) as the model knows it, mean over the data."""
    return Estimate(model.log_marginal(x).mean().item())


def area(
    model: ConditionalModel,
    x: Tensor,
    num_masks: int,
    *,
    generator: torch.Generator,
    scheme: Scheme = "independent",
    tokens: Tokens = "all",
) -> Estimate:
    """Area of the sampled curve with ``num_masks`` masks a size (paper, Proposition 1).

    The defaults are the paper's estimator; see :func:`mpt_lml.curves.sampled_curve` for the rest.
    """
    curve = curves.sampled_curve(
        model, x, num_masks, generator=generator, scheme=scheme, tokens=tokens
    )
    return curve.area()


def ordered_chain(
    model: ConditionalModel, x: Tensor, num_orders: int, *, generator: torch.Generator
) -> Estimate:
    """Chain rule log p(x) = Σ_t log p(x_σ(t) | later ones), averaged over random orders σ (Eq. 2).

    For conditionals of one joint distribution every order gives the same number, so the error is
    rounding. For conditionals that are not, it is the spread over orders.
    """
    return area(model, x, num_orders, generator=generator, scheme="nested", tokens="one")


def random_size(
    model: ConditionalModel, x: Tensor, num_masks: int, *, generator: torch.Generator
) -> Estimate:
    """D times the score of masks of uniformly random size (Uria et al. 2014; paper, Discussion)."""
    require_count("num_masks", num_masks, 1)
    num_features = model.num_features
    mask = masks.sample_masks(num_masks, num_features, masks.UniformSize(), generator=generator)
    mask = mask.to(x.device)
    values = num_features * curves.size_scores(model, x, mask[None])[0]
    mean, error = mean_and_error(values)
    return Estimate(mean.item(), error.item(), num_masks)


def exact_variance(
    model: ConditionalModel,
    x: Tensor,
    scheme: Literal["independent", "nested", "random_size"] = "independent",
    tokens: Tokens = "all",
) -> float:
    """Variance over masks of one replicate of an estimator, nats², by visiting every outcome.

    With P replicates the variance is this over P. Raises ``ValueError`` for D > 8 or an
    unknown scheme.
    """
    num_features = model.num_features
    what = f"all orders of D = {num_features} coordinates"
    instead = "the standard error of estimators.area"
    require_enumerable(what, math.factorial(num_features), instead)
    subset = masks.subsets(num_features)[1:]
    values = model.mean_log_conditional(x, subset.to(x.device)).cpu()
    if scheme == "nested":
        return _variance_over_orders(values, num_features, tokens)
    if scheme not in ("independent", "random_size"):
        raise ValueError(
            f"scheme must be 'independent', 'nested' or 'random_size', got {scheme!r}."
        )
    sizes = subset.sum(dim=1)
    mean = scores.mask_score(values, subset)
    square = mean.square() if tokens == "all" else scores.mask_score(values.square(), subset)
    first = scores.mean_by_size(mean, sizes, num_features)[1:]
    second = scores.mean_by_size(square, sizes, num_features)[1:]
    if scheme == "independent":
        return (second - first.square()).sum().item()
    return (num_features**2 * (second.mean() - first.mean().square())).item()


def _variance_over_orders(values: Tensor, num_features: int, tokens: Tokens) -> float:
    orders = torch.tensor(list(itertools.permutations(range(num_features))))
    row = (1 << orders).cumsum(dim=1) - 1  # row of subsets()[1:] that masks order[:M]
    if tokens == "all":
        subset = masks.subsets(num_features)[1:]
        totals = scores.mask_score(values, subset)[row].sum(dim=1)
    else:
        totals = values[row, orders].sum(dim=1)
    return totals.var(correction=0).item()
