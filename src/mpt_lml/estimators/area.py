"""log p(x) from conditionals: exact, areas of curves, along orders, and how far masks spread them.

Those with masks are unbiased for every P; errors are over masks, the data held fixed; mean, nats.
"""

import itertools
import math
from typing import Any, Literal

import torch
from torch import Tensor

from mpt_lml import curves, masks, scores
from mpt_lml.curves import Targets
from mpt_lml.models.base import ConditionalModel, TractableModel
from mpt_lml.results import Estimate
from mpt_lml.spec import require, require_log_enumerable


def exact(model: TractableModel, x: Tensor) -> Estimate:
    """log p(x) as the model knows it.

    >>> exact(PPCA(torch.zeros(2, 0), 1.0), torch.zeros(1, 2))
    -1.8379 nats (exact)
    """
    require(locals(), "model TractableModel")
    return Estimate(model.log_marginal(x).mean().item())


def area(
    model: ConditionalModel, x: Tensor, num_masks: int, *, generator: torch.Generator
) -> Estimate:
    """Area of the sampled curve with ``num_masks`` masks a size (paper, Proposition 1).

    The paper's estimator; see :func:`mpt_lml.curves.sampled_curve` for others.

    >>> model, x = PPCA(torch.zeros(2, 0), 1.0), torch.zeros(1, 2)
    >>> area(model, x, 3, generator=torch.Generator().manual_seed(0))
    -1.8379 ± 0.0000 nats
    """
    return curves.sampled_curve(model, x, num_masks, generator=generator).area()


def ordered_chain(
    model: ConditionalModel, x: Tensor, num_orders: int, *, generator: torch.Generator
) -> Estimate:
    """Chain rule log p(x) = Σ_t log p(x_σ(t) | later ones), averaged over random orders σ, nats (Eq. 2).

    For conditionals of one joint distribution every order gives the same number, so the error is
    rounding. For conditionals that are not, it is the spread over orders, in nats.

    >>> model, x = PPCA(torch.ones(2, 1), 1.0), torch.zeros(1, 2)
    >>> ordered_chain(model, x, 3, generator=torch.Generator().manual_seed(0)) - exact(model, x)
    0.0
    """
    require(locals(), "num_orders 1..")
    one: Any = {"scheme": "nested", "targets": "one"}
    return curves.sampled_curve(model, x, num_orders, generator=generator, **one).area()


def exact_variance(
    model: ConditionalModel,
    x: Tensor,
    scheme: Literal["independent", "nested", "random_size"] = "independent",
    targets: Targets = "all",
) -> float:
    """Variance over masks of one replicate of an estimator, nats², by visiting every outcome.

    With P replicates the variance is this over P. Raises ``ValueError`` for an unknown scheme and
    where there are too many subsets, or for ``nested`` orders, to visit. NaN where a conditional has
    probability 0: its logarithm has no variance.

    >>> exact_variance(PPCA(torch.zeros(2, 0), 1.0), torch.zeros(1, 2))
    0.0
    """
    require(locals(), "model ConditionalModel, x data, targets all|one")
    require(locals(), "scheme independent|nested|random_size")
    num_features, instead = model.num_features, "the standard error of estimators.area"
    subset = masks.subsets(num_features, instead=instead)[1:]
    values = model.mean_log_conditional(x, subset.to(x.device)).cpu()
    mean = scores.mask_score(values, subset)
    if scheme == "nested":
        what = f"the orders of D = {num_features} coordinates"
        require_log_enumerable(what, math.lgamma(num_features + 1), instead)
        orders = torch.tensor(list(itertools.permutations(range(num_features))))
        row = (1 << orders).cumsum(dim=1) - 1  # row of ``subset`` that masks order[:M]
        along = mean[row] if targets == "all" else values[row, orders]
        return along.sum(dim=1).var(correction=0).item()
    square = mean.square() if targets == "all" else scores.mask_score(values.square(), subset)
    sizes = subset.sum(dim=1)
    first, second = (scores.mean_by_size(v, sizes, num_features)[1:] for v in (mean, square))
    if scheme == "independent":
        return (second - first.square()).sum().item()
    return (num_features**2 * (second.mean() - first.mean().square())).item()
