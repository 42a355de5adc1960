"""The experiment of Figure 3, upper: what it trains, what it compares, when it decides."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from models import generator

from mpt_lml import BernoulliPCA, fit, objectives
from mpt_lml.experiments import bernoulli
from mpt_lml.experiments.bernoulli import Bernoulli

QUICK = Bernoulli.quick()


def test_the_elbo_is_the_fit_minus_the_divergence() -> None:
    """The fit through K numbers a datum against the sum over pixels."""
    normal = {"generator": generator(1), "dtype": torch.float64}
    x = (torch.rand(12, 9, **normal) < 0.4).double()
    loadings, offset = torch.randn(9, 2, **normal), torch.randn(9, **normal)
    encoder, shift, spread = (torch.randn(*s, **normal) for s in ((2, 9), (2,), (2,)))
    noise = torch.randn(12, 2, **normal)
    mean, variance = x @ encoder.T + shift, spread.exp()
    posterior = torch.distributions.Normal(mean, variance.sqrt())
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    divergence = torch.distributions.kl_divergence(posterior, prior).sum(dim=1)
    z = mean + variance.sqrt() * noise
    slow = BernoulliPCA(loadings, offset).log_factors(x, z).sum(dim=1) - divergence
    parts = (loadings, offset, encoder, shift, spread)
    ours = objectives.bernoulli.elbo(*(each[None] for each in parts), x, noise[None])
    assert ours.item() == pytest.approx(slow.mean().item(), abs=1e-10)


def test_all_objectives_start_alike_and_rise() -> None:
    x = bernoulli.binary_images("digits", QUICK.num_data)
    config = dataclasses.replace(QUICK, num_epochs=40, track_every=40)
    tracked = {
        name: bernoulli.train(config, x, name).values["lml"] for name in bernoulli.OBJECTIVES
    }
    first = tracked["elbo"][0]
    for values in tracked.values():
        torch.testing.assert_close(values[0], first, rtol=0, atol=0)
        assert (values[-1] > values[0] + 1.0).all()


def test_the_long_elbo_begins_as_the_short_one(tmp_path: Path) -> None:
    outcome = bernoulli.figure_3_upper(QUICK, checkpoints=tmp_path)
    short, long = (outcome.arrays[f"track/digits/{name}"] for name in ("elbo", bernoulli.LONG))
    assert len(long) == len(outcome.arrays["long_epochs"]) > len(short)
    torch.testing.assert_close(long[: len(short)], short, rtol=0, atol=0)
    small = outcome.arrays[f"track/digits/{bernoulli.SMALL}"]
    torch.testing.assert_close(small[0], short[0], rtol=0, atol=0)  # the model starts alike
    assert not torch.equal(small[-1], short[-1])
    for name in (
        "elbo",
        bernoulli.LONG,
        bernoulli.SMALL,
    ):  # a bound, up to the noise of 20 draws of z
        gap = outcome.arrays[f"lml/digits/{name}"] - outcome.arrays[f"bound/digits/{name}"]
        assert (gap > 0).all()
    again = bernoulli.figure_3_upper(QUICK, checkpoints=tmp_path)  # nothing is left to be trained
    for name, value in outcome.arrays.items():
        torch.testing.assert_close(again.arrays[name], value, rtol=0, atol=0, equal_nan=True)


def test_a_small_encoder_starts_at_the_prior() -> None:
    x = bernoulli.binary_images("digits", QUICK.num_data)
    still = dataclasses.replace(QUICK, num_epochs=1, learning_rate=1e-9)
    whole, small, none = (
        bernoulli.train(still, x, "elbo", encoder_scale=scale).parameters
        for scale in (1.0, 0.01, 0.0)
    )
    for name in ("encoder", "encoder_offset"):
        torch.testing.assert_close(small[name], 0.01 * whole[name], rtol=1e-6, atol=1e-8)
        assert none[name].abs().max() < 1e-8  # one step of Adam
    torch.testing.assert_close(small["loadings"], whole["loadings"], rtol=0, atol=1e-8)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    bernoulli.figure_3_upper(QUICK, checkpoints=tmp_path)
    other = dataclasses.replace(QUICK, learning_rate=0.02)
    with pytest.raises(fit.CheckpointMismatchError, match="learning_rate"):
        bernoulli.figure_3_upper(other, checkpoints=tmp_path)


def test_grids_against_importance_sampling() -> None:
    """A coarse grid is caught, a fine one and the adaptive one are not."""
    normal = {"generator": generator(3), "dtype": torch.float64}
    model = BernoulliPCA(torch.randn(60, 2, **normal), torch.randn(60, **normal))
    x = model.sample(40, generator=generator(4))
    off, error = bernoulli.compare_grids(model, x, 500).T
    assert off[0].abs() > 5 * error[0]
    assert (off[-2:].abs() < 4 * error[-2:]).all()


@pytest.mark.parametrize(
    ("gap", "error", "sign", "verdict"),
    [
        (0.1, 0.2, 0, "confirmed"),
        (3.0, 2.0, 0, "open"),
        (3.0, 0.2, 0, "refuted"),
        (-3.0, 0.2, 0, "refuted"),
        (3.0, 0.2, 1, "confirmed"),
        (-3.0, 0.2, 1, "refuted"),
        (0.5, 0.2, 1, "open"),
    ],
)
def test_verdicts(gap: float, error: float, sign: int, verdict: str) -> None:
    assert bernoulli._decide(gap, error, sign) == verdict


def test_differences_are_paired_by_seed() -> None:
    arrays = {"lml/a": torch.tensor([1.0, 2.0, 3.0]), "lml/b": torch.tensor([0.0, 1.0, 1.0])}
    mean, error = bernoulli._difference(arrays, "a", "b")
    assert mean == pytest.approx(4 / 3, abs=1e-6)
    assert error == pytest.approx(1 / 3, abs=1e-6)  # differences 1, 1, 2
