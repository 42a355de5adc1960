"""Climbing the exact objective of one size, and training from starts of several scales."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from mpt_lml import masks, objectives
from mpt_lml.experiments import maxima, training
from mpt_lml.files import read_json, write_json

CONFIG = training.Training(num_data=200, num_features=5, num_epochs=20, seeds=(4, 44, 444))
OF = training.problem(CONFIG, "model")
STARTS, _ = training.initial_loadings(CONFIG)


def test_the_climb_at_every_size_ends_at_the_maximum_of_the_likelihood() -> None:
    ends = maxima.climb(OF, masks.UniformSize(), STARTS)
    best = OF.log_marginal(OF.best.loadings)
    torch.testing.assert_close(OF.log_marginal(ends), best.expand(3), rtol=0, atol=1e-10)
    for loadings in ends:
        assert maxima.product_error(loadings, OF.best.loadings) < 1e-5


def test_every_end_is_stationary_and_above_its_start() -> None:
    law = masks.FixedSize(4)
    ends = maxima.climb(OF, law, STARTS).requires_grad_()
    noise = OF.best.noise_variance
    value = objectives.exact(ends, noise, OF.moment, law)
    (slope,) = torch.autograd.grad(value.sum(), ends)
    assert slope.abs().max() < 1e-5
    assert (value > objectives.exact(STARTS, noise, OF.moment, law)).all()


def test_the_climbs_do_not_see_each_other() -> None:
    law = masks.FixedSize(2)
    together = maxima.climb(OF, law, STARTS, max_steps=4)
    alone = [maxima.climb(OF, law, start[None], max_steps=4) for start in STARTS]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-10)


def test_full_masking_learns_the_lengths_of_the_rows() -> None:
    ends = maxima.climb(OF, masks.FixedSize(5), STARTS)
    wanted = (OF.moment.diagonal() - OF.best.noise_variance).clamp(min=0)
    torch.testing.assert_close(ends.square().sum(dim=2), wanted.expand(3, -1), rtol=0, atol=1e-5)


def test_product_error_ignores_rotations() -> None:
    turned = STARTS[0] @ torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    assert maxima.product_error(turned, STARTS[0]) < 1e-14
    assert maxima.product_error(1.1 * STARTS[0], STARTS[0]) == pytest.approx(0.21)


def test_scaled_starts_train_as_they_do_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    law = masks.FixedRate(0.4)
    together = training.train_together(CONFIG, [OF, OF], [law], scales=(1.0, 0.1))
    plain = training.train(CONFIG, OF, law).values
    torch.testing.assert_close(together["lml"][0, 0].T, plain["lml"], rtol=0, atol=1e-12)
    start, generators = training.initial_loadings(CONFIG)
    monkeypatch.setattr(training, "initial_loadings", lambda config: (0.1 * start, generators))
    small = training.train(CONFIG, OF, law).values
    torch.testing.assert_close(together["lml"][1, 0].T, small["lml"], rtol=0, atol=1e-12)


def test_the_gradient_error_is_zero_only_for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert training.gradient_error(OF, STARTS) < 1e-11
    monkeypatch.setattr(masks, "UniformSize", lambda: masks.FixedSize(2))
    assert training.gradient_error(OF, STARTS) > 1


def test_a_run_goes_on_from_its_cells_and_from_no_other_settings(tmp_path: Path) -> None:
    config = dataclasses.replace(maxima.FixedSizes.quick(), num_epochs=5)
    first = maxima.fixed_sizes(config, checkpoints=tmp_path)
    path = tmp_path / "model-1991.json"
    kept = read_json(path)
    kept["cell"]["lost"][0] = 7.0
    write_json(path, kept)
    again = maxima.fixed_sizes(config, checkpoints=tmp_path)
    assert again.arrays["lost/model"][0, 0] == 7.0
    assert torch.equal(again.arrays["short/paper"], first.arrays["short/paper"])
    other = dataclasses.replace(config, scales=(1.0, 0.2))
    assert maxima.fixed_sizes(other, checkpoints=tmp_path).arrays["lost/model"][0, 0] < 1


def test_below_is_measured_from_the_highest_end() -> None:
    config = dataclasses.replace(maxima.FixedSizes.quick(), num_epochs=5)
    arrays = maxima.fixed_sizes(config).arrays
    for draw in ("paper", "model"):
        assert (arrays[f"below/{draw}"] >= 0).all()
        assert (arrays[f"short/{draw}"] > 0).all()
        assert arrays[f"short/{draw}"].shape == (2, 3, 2, 2)  # truths, two sizes and all, scales
