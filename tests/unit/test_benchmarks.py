"""The literal formulas of ``benchmarks/`` as oracle: same masks, same numbers, dense against low rank."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from models import generator, random_ppca

from mpt_lml import curves, estimators, masks

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import literal


@pytest.mark.parametrize(("num_features", "latent_dim"), [(1, 1), (6, 2), (9, 4), (50, 2)])
def test_the_package_agrees_with_the_literal_formula(num_features: int, latent_dim: int) -> None:
    model = random_ppca(num_features, latent_dim, seed=3)
    x = model.sample(10, generator=generator(1))
    sizes = torch.arange(1, num_features + 1)
    ranks = masks.sample_ranks(num_features * 3, num_features, generator=generator(2))
    mask = ranks.view(num_features, 3, num_features) < sizes[:, None, None]
    ours = curves.size_scores(model, x, mask)
    slow = literal.area(x, model.mean, model.covariance, mask)
    assert ours.mean(dim=1).sum().item() == pytest.approx(slow, abs=1e-10)
    running = curves.running_area(ours)[1].item()
    assert running == pytest.approx(
        literal.area(x, model.mean, model.covariance, mask[:, :2]), abs=1e-10
    )
    exact = literal.log_marginal(x, model.mean, model.covariance)
    assert estimators.exact(model, x) == pytest.approx(exact, abs=1e-10)


def test_the_exact_curve_agrees_with_the_literal_formula() -> None:
    model = random_ppca(6, 2, seed=4)
    x = model.sample(10, generator=generator(1))
    slow = literal.exact_curve(x, model.mean, model.covariance)
    assert curves.exact_curve(model, x).score.tolist() == pytest.approx(slow, abs=1e-10)
