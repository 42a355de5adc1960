from __future__ import annotations

import itertools
import math

import pytest
import torch
from models import generator, random_ppca, random_table

from mpt_lml import curves, estimators, masks
from mpt_lml.models.base import TractableModel

MODELS = {"ppca": random_ppca(5, 2, seed=1), "table": random_table(2, 3, 2, 2, seed=2)}
MODEL = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
SCHEMES = [
    (scheme, tokens)
    for scheme in ("independent", "nested", "random_size")
    for tokens in ("all", "one")
]


def replicates(
    model: TractableModel, x: torch.Tensor, scheme: str, tokens: str, count: int
) -> torch.Tensor:
    """``count`` independent draws of one estimator with P = 1."""
    g = generator(10)
    if scheme != "random_size":
        values = curves.sampled_curve(
            model, x, count, generator=g, scheme=scheme, targets=tokens
        ).each
        return values.sum(dim=0)
    mask = masks.sample_masks(count, model.num_features, masks.UniformSize(), generator=g)
    values = model.mean_log_conditional(x, mask)
    if tokens == "one":
        noise = torch.rand(mask.shape, generator=g, dtype=torch.float64).masked_fill(~mask, -1.0)
        picked = values.gather(1, noise.argmax(dim=1, keepdim=True))[:, 0]
        return model.num_features * picked
    return model.num_features * values.sum(dim=1) / mask.sum(dim=1)


@MODEL
@pytest.mark.parametrize(("scheme", "tokens"), SCHEMES)
def test_every_estimator_is_unbiased_with_the_variance_that_enumeration_gives(
    model: TractableModel, scheme: str, tokens: str
) -> None:
    x = model.sample(3, generator=generator(3))
    count = 20_000
    draws = replicates(model, x, scheme, tokens, count)
    truth = estimators.exact(model, x)
    variance = estimators.exact_variance(model, x, scheme, tokens)
    assert abs(draws.mean().item() - truth) <= 5 * math.sqrt(variance / count) + 1e-10
    fourth = (draws - draws.mean()).pow(4).mean().item()
    spread = math.sqrt(max(fourth - variance**2, 0.0) / count)
    assert abs(draws.var().item() - variance) <= 5 * spread + 1e-10


@MODEL
def test_the_chain_rule_has_no_variance(model: TractableModel) -> None:
    x = model.sample(3, generator=generator(3))
    assert estimators.exact_variance(model, x, "nested", "one") <= 1e-20
    curve = curves.sampled_curve(
        model, x, 30, generator=generator(4), scheme="nested", targets="one"
    )
    assert abs(curve.area() - estimators.exact(model, x)) <= 1e-10
    assert curve.area().standard_error <= 1e-10


def test_averaging_more_tokens_along_one_order_adds_variance() -> None:
    model = MODELS["ppca"]
    x = model.sample(3, generator=generator(3))
    assert estimators.exact_variance(model, x, "nested", "all") > 1e-3


def test_nested_variance_by_walking_every_order() -> None:
    model = MODELS["table"]
    x = model.sample(3, generator=generator(3))
    totals = []
    for order in itertools.permutations(range(model.num_features)):
        mask = masks.nested_masks(torch.tensor(order))
        values = model.mean_log_conditional(x, mask)
        totals.append((values.sum(dim=1) / mask.sum(dim=1)).sum().item())
    expected = torch.tensor(totals, dtype=torch.float64).var(correction=0).item()
    assert estimators.exact_variance(model, x, "nested") == pytest.approx(expected, rel=1e-9)


@MODEL
def test_estimates_carry_honest_errors(model: TractableModel) -> None:
    x = model.sample(3, generator=generator(3))
    truth, count = estimators.exact(model, x), 2000
    estimate = estimators.area(model, x, count, generator=generator(5))
    theory = math.sqrt(estimators.exact_variance(model, x) / count)
    assert estimate.standard_error == pytest.approx(theory, rel=0.15)
    assert abs(estimate - truth) <= 5 * estimate.standard_error
    assert estimate.num_samples == count


def test_error_falls_like_one_over_root_p() -> None:
    model = MODELS["ppca"]
    x = model.sample(3, generator=generator(3))
    replicas, grid = 400, torch.tensor([1, 2, 4, 8, 16, 32])
    truth, errors = estimators.exact(model, x), []
    for count in grid.tolist():
        values = curves.sampled_curve(model, x, count * replicas, generator=generator(count)).each
        areas = values.sum(dim=0).view(replicas, count).mean(dim=1)
        errors.append((areas - truth).square().mean().sqrt())
    position = grid.double().log()
    position -= position.mean()
    slope = (position @ torch.stack(errors).log() / position.square().sum()).item()
    # log of a root mean square over R draws: standard error 1/sqrt(2R)
    slope_error = math.sqrt(1 / (2 * replicas) / position.square().sum().item())
    assert abs(slope + 0.5) <= 4 * slope_error
