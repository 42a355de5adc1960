"""log p(x) from conditionals: exact, areas of curves, and how far masks spread them.

Those with masks are unbiased for every number of masks; errors are over masks, the data held fixed.
"""

import itertools
import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import curves, masks, scores
from mpt_lml.checks import Count, Data, checked, require_log_enumerable
from mpt_lml.curves import Targets
from mpt_lml.models.base import ConditionalModel, TractableModel
from mpt_lml.results import Estimate

_INSTEAD = "the standard error of estimators.area"  # of visiting every outcome


@checked
def exact(model: TractableModel, x: Data) -> Estimate:
    """log p(x) as the model knows it.

    Args:
        model: one whose marginals have a closed form.
        x: data, (N, D).

    Returns:
        The mean over the data, nats, with the error 0.

    >>> exact(PPCA(torch.zeros(2, 0), 1.0), torch.zeros(1, 2))
    -1.8379 nats (exact)
    """
    return Estimate(model.log_marginal(x).mean().item())


@checked
def area(
    model: ConditionalModel, x: Data, num_masks: Count, *, generator: torch.Generator
) -> Estimate:
    """Area of the sampled curve (paper, Proposition 1): the paper's estimator of log p(x).

    :func:`mpt_lml.curves.sampled_curve` has others.

    Args:
        model: any conditionals.
        x: data, (N, D).
        num_masks: masks of every size 1..D, drawn independently.
        generator: of the masks.

    Returns:
        The mean over the data, nats, with its standard error over masks.

    >>> model, x = PPCA(torch.zeros(2, 0), 1.0), torch.zeros(1, 2)
    >>> area(model, x, 3, generator=torch.Generator().manual_seed(0))
    -1.8379 ± 0.0000 nats
    """
    return curves.sampled_curve(model, x, num_masks, generator=generator).area()


@checked
def exact_variance(
    model: ConditionalModel,
    x: Data,
    scheme: Literal["independent", "nested", "random_size"] = "independent",
    targets: Targets = "all",
) -> float:
    """Variance over masks of one replicate of an estimator of log p(x), by visiting every outcome.

    With P replicates the variance is this over P.

    Args:
        model: any conditionals.
        x: data, (N, D), over which estimates are averaged.
        scheme: ``independent`` masks of every size (as in the paper); ``nested``, the masks of one
            random order; ``random_size``, D times the score of one mask of a uniformly random size.
        targets: ``all`` masked coordinates are scored, or a random ``one`` of them.

    Returns:
        Nats²; NaN where a conditional has probability 0: its logarithm has no variance.

    Raises:
        ValueError: where there are too many subsets, or for ``nested`` too many orders, to visit.

    >>> exact_variance(PPCA(torch.zeros(2, 0), 1.0), torch.zeros(1, 2))
    0.0
    """
    num_features = model.num_features
    subset = masks.subsets(num_features, instead=_INSTEAD)[1:].to(x.device)
    if scheme == "nested":
        what = f"the orders of D = {num_features} coordinates"
        require_log_enumerable(what, math.lgamma(num_features + 1), _INSTEAD)
    values = model.mean_log_conditional(x, subset)
    if scheme == "nested":
        return _variance_over_orders(values, subset, targets)
    mean, square = _moments_by_size(values, subset, targets)
    if scheme == "independent":  # of a sum over sizes
        return (square - mean.square()).sum().item()
    # Of D times a score of random size: moments first averaged over the sizes.
    return (num_features**2 * (square.mean() - mean.mean().square())).item()


def _variance_over_orders(
    values: Float[Tensor, "P D"], subset: Bool[Tensor, "P D"], targets: Targets
) -> float:
    """Variance over all D! orders of hiding, each of whose beginnings is a mask.

    ``subset`` has the masks of all sizes but the empty one.
    """
    orders = torch.tensor(list(itertools.permutations(range(subset.shape[1])))).to(subset.device)
    # The row of ``subset`` that masks the first M: one less than in masks.subsets, with its empty set.
    row = (1 << orders).cumsum(dim=1) - 1
    if targets == "all":
        terms = scores._mask_score(values, subset)[row]
    else:
        terms = values[row, orders]
    return terms.sum(dim=1).var(correction=0).item()


def _moments_by_size(
    values: Float[Tensor, "P D"], subset: Bool[Tensor, "P D"], targets: Targets
) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """First and second moment of what one random mask of each size 1..D gives."""
    num_features = subset.shape[1]
    mean = scores._mask_score(values, subset)
    if targets == "all":
        square = mean.square()
    else:
        square = scores._mask_score(values.square(), subset)
    sizes = subset.sum(dim=1)
    first = scores.mean_by_size(mean, sizes, num_features)[1:]
    second = scores.mean_by_size(square, sizes, num_features)[1:]
    return first, second
