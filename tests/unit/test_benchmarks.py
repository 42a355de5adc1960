"""The literal formulas of ``benchmarks/`` as oracle: same masks, same numbers, dense against low rank."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch
from models import generator, random_ppca, random_table

from mpt_lml import ConditionalTable, curves, estimators, masks, objectives, orders, quadrature
from mpt_lml.experiments import training

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


def test_batched_training_is_the_literal_loop() -> None:
    config = training.Training(num_data=40, num_features=5, num_epochs=6, seeds=(4, 44))
    of = training.problem(config, "model")
    for law in training.laws(config).values():
        history = training.train(config, of, law)
        starts, generators = training.initial_loadings(config)
        for run, g in enumerate(generators):
            mask = [objectives.draw_masks(5, 5, law, generator=g) for _ in range(6)]
            loadings, lml = literal.train(of.x, starts[run], 0.2, torch.stack(mask), 0.01)
            ours = history.parameters["loadings"][run]
            torch.testing.assert_close(ours, loadings, atol=1e-9, rtol=0)
            assert history.values["lml"][1:, run].tolist() == pytest.approx(lml, abs=1e-9)


def test_everything_in_one_batch_is_everything_one_by_one() -> None:
    config = training.Training(num_data=40, num_features=5, num_epochs=6, seeds=(4, 44))
    problems = [training.problem(config, draw) for draw in ("paper", "model")]
    laws = list(training.laws(config).values())
    together = training.train_together(config, problems, laws)
    for p, of in enumerate(problems):
        for q, law in enumerate(laws):
            alone = training.train(config, of, law).values
            for name in ("lml", "objective"):
                torch.testing.assert_close(
                    together[name][p, q].T, alone[name], atol=1e-9, rtol=0, equal_nan=True
                )


def test_all_orders_agree_with_one_conditional_at_a_time() -> None:
    joint = random_table(2, 2, 2, 2, 2)
    model = ConditionalTable.of(joint, 2, noise=0.8, generator=generator(1))
    x = joint.sample(1, generator=generator(2))
    slow = literal.over_orders(model, x, itertools.permutations(range(5)))
    found = orders.exact(model, x)
    for name, value in slow.items():
        assert getattr(found, name).item() == pytest.approx(value, abs=1e-12)
    assert slow["variance"] > 0.01


def test_bernoulli_score_is_the_literal_one_in_both_precisions() -> None:
    """Single precision: sums of some hundred terms of order one, relative error a few 1e-6."""
    normal = {"generator": generator(1), "dtype": torch.float64}
    x = (torch.rand(30, 60, **normal) < 0.3).double()
    loadings, offset = torch.randn(60, 2, **normal), torch.randn(60, **normal)
    mask = masks.sample_masks(1, 60, 9, generator=generator(2))
    grid = quadrature.trapezoid(2, 20)
    slow = literal.bernoulli_score(x, loadings, offset, mask[0], grid.nodes, grid.log_weights)
    batch = (loadings[None], offset[None], x)
    ours = objectives.bernoulli.masked(*batch, mask[None], grid)
    assert ours.item() == pytest.approx(slow.item(), abs=1e-10)
    single = objectives.bernoulli.masked(
        *(each.float() for each in batch), mask[None], grid.to(x.float())
    )
    assert single.item() == pytest.approx(slow.item(), rel=1e-5)
