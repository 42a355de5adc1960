"""Choices of the recursion, and the partial encoder."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import pytest
import torch
from models import generator
from torch.distributions import Normal, kl_divergence

from experiments import recursion
from experiments.masked_vae import MaskedObjective, PartialEncoder, RecursiveVariant, without_mask
from experiments.trainings import dense_vae
from experiments.trainings.deep_vae import (
    DeepVAESettings,
    RecursiveScore,
    drawn,
    train_deep_vae,
)
from mpt_lml import GridConditional, grids, masks, scores

CONFIG = recursion.Recursion.preset("quick")
X = CONFIG.images()[:60]
SETTINGS = DeepVAESettings(
    seeds=(4, 44),
    dataset="digits",
    num_data=200,
    hidden=(5,),
    latent_dim=2,
    noise_variance=0.3,
    track_data=3,
)


def parameters(*, partial: bool = False) -> dict[str, torch.Tensor]:
    """Random networks of two runs on six coordinates, double precision."""
    objective = PartialEncoder() if partial else RecursiveVariant()
    drawn = objective.networks(6, SETTINGS, [generator(1), generator(2)])
    return {name: 2 * value.double() for name, value in drawn.items()}


def score(
    objective: MaskedObjective,
    drawn: dict[str, torch.Tensor],
    x: torch.Tensor,
    mask: torch.Tensor,
    **draws: torch.Tensor,
) -> torch.Tensor:
    """With an axis of rounds or samples before that of the runs, (S, B, ...)."""
    of_runs = {name: value.transpose(0, 1) for name, value in draws.items()}
    return objective.score(drawn, x, mask, of_runs, SETTINGS)


def normal(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def hidden(count: int, size: int = 3) -> torch.Tensor:
    drawn = masks.sample_masks(count, 6, size, generator=generator(5))
    return drawn[None].expand(2, -1, -1)


def test_weighted_conditionals_approach_the_grids() -> None:
    """With a thousand weights the partial encoder's score is D·S of the model, on a grid."""
    drawn, x, mask = parameters(partial=True), normal(2, 4, 6, seed=2), hidden(4)
    many = score(PartialEncoder(), drawn, x, mask, noise=normal(20_000, 2, 4, 2))
    few = score(PartialEncoder(), drawn, x, mask, noise=normal(1, 2, 4, 2))
    for run in range(2):
        model = dense_vae.dense_model(without_mask(drawn), run, 0.3)
        grid = GridConditional(model, grids.trapezoid(2, 61))
        exact = [
            6 * scores.mask_score(grid.log_conditional(x[run, i : i + 1], row[None]), row[None])
            for i, row in enumerate(mask[run])
        ]
        assert abs(many[run] - torch.cat(exact).mean()) < 0.05
        assert abs(few[run] - torch.cat(exact).mean()) > 0.3


def test_the_partial_encoder_is_trained_by_its_own_bound() -> None:
    """Its gradient is that of the ELBO of x_R; the decoder's holds the weights' part as well."""
    drawn = {name: value.requires_grad_() for name, value in parameters(partial=True).items()}
    x, mask, noise = normal(2, 4, 6, seed=2), hidden(4), normal(3, 2, 4, 2)
    value = score(PartialEncoder(), drawn, x, mask, noise=noise).sum()
    names = [name for name in drawn if name.startswith("encoder")]
    ours = torch.autograd.grad(value, [drawn[name] for name in names])
    bound = torch.zeros((), dtype=torch.float64)
    for run in range(2):
        model = dense_vae.dense_model(without_mask(drawn), run, 0.3)
        seen = torch.where(mask[run], 0.0, x[run])
        inputs = torch.cat([seen, mask[run].double()], dim=-1)[None]
        own = {name: each[run : run + 1] for name, each in drawn.items()}
        mean, log_variance = dense_vae.dense(own, "encoder", inputs)[0].chunk(2, dim=-1)
        z = mean + (0.5 * log_variance).exp() * noise[0, run]
        fit = model.log_factors(x[run], z).where(~mask[run], 0.0).sum(dim=-1)
        q, prior = Normal(mean, (0.5 * log_variance).exp()), Normal(0.0, 1.0)
        bound = bound + (fit - kl_divergence(q, prior).sum(dim=-1)).mean()
    theirs = torch.autograd.grad(bound, [drawn[name] for name in names])
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-12, rtol=0)


def test_the_log_mean_stands_over_draws_of_the_last_round() -> None:
    drawn, x, mask = parameters(), normal(2, 4, 6, seed=2), hidden(4)
    noise = normal(4, 2, 4, 2)  # two rounds; three draws in the second
    variant = RecursiveVariant(num_rounds=2, num_samples=3)
    together = score(variant, drawn, x, mask, noise=noise)
    for run in range(2):
        model, holes = dense_vae.dense_model(drawn, run, 0.3), mask[run]
        mean, variance = model.encode(torch.where(holes, 0.0, x[run]))
        guess = model.decode(mean + variance.sqrt() * noise[0, run])
        mean, variance = model.encode(torch.where(holes, guess, x[run]))
        draws = [
            model.log_factors(x[run], mean + variance.sqrt() * noise[1 + s, run]) for s in range(3)
        ]
        values = torch.stack(draws).logsumexp(dim=0) - math.log(3)
        expected = 6 * (values.where(holes, 0.0).sum(dim=-1) / 3).mean()
        torch.testing.assert_close(together[run], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("gradient", ["last", "all", "decoder"])
def test_how_far_the_gradient_goes(gradient: Literal["last", "all", "decoder"]) -> None:
    """Nothing reaches the encoder, one use of it does, or both; the value is the same."""
    drawn = {name: value.requires_grad_() for name, value in parameters().items()}
    x, mask, noise = normal(2, 4, 6, seed=2), hidden(4), normal(2, 2, 4, 2)
    variant = RecursiveVariant(num_rounds=2, gradient=gradient)
    value = score(variant, drawn, x, mask, noise=noise).sum()
    reference = score(RecursiveVariant(num_rounds=2), drawn, x, mask, noise=noise).sum()
    assert torch.equal(value, reference)
    (found,) = torch.autograd.grad(value, [drawn["encoder/0/weight"]], allow_unused=True)
    (last,) = torch.autograd.grad(reference, [drawn["encoder/0/weight"]])
    if gradient == "decoder":
        assert found is None
    else:
        assert torch.equal(found, last) == (gradient == "last")


def test_the_defaults_are_those_of_the_recorded_training() -> None:
    settings = dataclasses.replace(SETTINGS, hidden=(4,), latent_dim=1, num_steps=4)
    ours = train_deep_vae(settings, RecursiveVariant()).objective
    assert torch.equal(ours, train_deep_vae(settings, RecursiveScore()).objective)


def test_where_the_holes_start_and_what_fills_them() -> None:
    drawn, x, mask = parameters(), normal(2, 4, 6, seed=2), hidden(4, 6)
    drawn["decoder/1/bias"] = drawn["decoder/1/bias"] + 0.5  # else decode(0) = 0
    noise, pixels = normal(2, 2, 4, 2), normal(1, 2, 4, 6, seed=9)
    from_zero = RecursiveVariant(num_rounds=2)
    with_draws = RecursiveVariant(num_rounds=2, filled_with_draws=True)
    values = [
        score(from_zero, drawn, x, mask, noise=noise),
        score(RecursiveVariant(num_rounds=2, from_decoder=True), drawn, x, mask, noise=noise),
        score(with_draws, drawn, x, mask, noise=noise, pixel_noise=pixels),
    ]
    assert len({value.sum().item() for value in values}) == 3
    quiet = score(with_draws, drawn, x, mask, noise=noise, pixel_noise=0 * pixels)
    assert torch.equal(quiet, values[0])
    # A draw is the mean plus σ times the pixel's own number.
    mean = with_draws.fill(drawn, x, mask, noise[:1], None)
    filled = mean + math.sqrt(0.3) * mask * pixels[0]
    expected = dense_vae.recursive(drawn, x, mask, filled, noise[1:], 0.3)
    torch.testing.assert_close(values[2], expected)
    origin = torch.zeros(2, 4, 2, dtype=torch.float64)
    start = torch.where(mask, dense_vae.dense(drawn, "decoder", origin), x)
    from_decoder = RecursiveVariant(from_decoder=True)
    torch.testing.assert_close(from_decoder.fill(drawn, x, mask, noise[:0], None), start)


def test_a_partial_encoder_is_told_that_all_is_seen() -> None:
    drawn, x = parameters(partial=True), normal(3, 6)
    model = dense_vae.dense_model(without_mask(drawn), 1, 0.3)
    assert (model.num_features, model.latent_dim) == (6, 2)
    own = {name: value[1:] for name, value in drawn.items()}
    inputs = torch.cat([x, torch.zeros_like(x)], dim=-1)[None]
    mean, log_variance = dense_vae.dense(own, "encoder", inputs)[0].chunk(2, dim=-1)
    torch.testing.assert_close(model.encode(x)[0], mean)
    torch.testing.assert_close(model.encode(x)[1], log_variance.exp())


def test_the_bias_of_a_score() -> None:
    """Large weights make the partial encoder's score the exact one; a single draw lies below it."""
    drawn = PartialEncoder().networks(64, SETTINGS, [generator(1), generator(2)])
    drawn = {name: 0.5 * value.double() for name, value in drawn.items()}  # broad posteriors
    few, config = X[:5].double(), dataclasses.replace(CONFIG, num_masks=1, repeats=8)
    many = config.score_bias(PartialEncoder(num_samples=10_000), drawn, few)
    one = dataclasses.replace(config, repeats=20).score_bias(
        PartialEncoder(encoder_follows="score"), drawn, few
    )
    assert many.abs().max() < 0.02  # a repeat has a spread of 0.015, eight an error of 0.0054
    assert (one < -5 * many.abs().max()).all()


def test_every_variant_takes_a_step() -> None:
    settings = CONFIG.settings
    for name, variant in recursion.VARIANTS.items():
        generators = settings.generators()
        start = variant.networks(64, settings, generators)
        weights = {key: value.requires_grad_() for key, value in start.items()}
        x = X.expand(2, -1, -1)
        block = drawn(variant.noise((60, 64), settings), 1, generators)
        draws = {
            key: value[0] for key, value in variant.to_device(block, torch.device("cpu")).items()
        }
        value = variant.value(weights, x, draws, settings)
        gradients = torch.autograd.grad(value.sum(), list(weights.values()))
        assert all(gradient.abs().sum() > 0 for gradient in gradients), name
        mask = masks.sample_masks(60, 64, 21, generator=generator(1)).expand(2, -1, -1)
        values = variant.score(weights, x, mask, draws, settings)
        assert values.shape == (2,) and values.isfinite().all(), name
