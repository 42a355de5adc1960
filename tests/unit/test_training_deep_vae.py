"""``mpt_lml.trainings.deep_vae``: the objective, a step, draws ahead, interrupts, another device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from first_steps import after_adam
from models import generator
from other_device import OtherDevice
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from experiments.masked_vae import PartialEncoder
from experiments.paper.deep_vae import Figure3Lower
from mpt_lml import masks
from mpt_lml.masks import FixedRate, UniformSize
from mpt_lml.models.vae import VAE, dense_model
from mpt_lml.trainings import deep_vae
from mpt_lml.trainings.deep_vae import ELBO, OBJECTIVES, TINY, train_deep_vae

SHORT = replace(
    TINY, num_data=60, hidden=(4,), latent_dim=1, num_steps=8, track_every=4, track_data=3
)
ALL = {**OBJECTIVES, "partial": PartialEncoder(num_samples=3)}


def test_the_full_settings_are_those_of_the_experiment() -> None:
    assert Figure3Lower.preset().settings == deep_vae.FULL


def literal_objective(name: str, model: VAE, x: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
    """The objective of one run and step, nats a datum, as its formula is written.

    Args:
        x: the minibatch, (n, D).
        noise: of z, one row of (n, K) for each time that z is drawn.
        mask: one a datum, (n, D).
    """

    def code(images: Tensor, normal: Tensor) -> tuple[Normal, Tensor]:
        mean, variance = model.encode(images)
        return Normal(mean, variance.sqrt()), mean + variance.sqrt() * normal

    def log_p(z: Tensor) -> Tensor:
        return Normal(model.decode(z), SHORT.noise_variance**0.5).log_prob(x)

    if name == "elbo":
        posterior, z = code(x, noise[0])
        divergence = kl_divergence(posterior, Normal(0.0, 1.0)).sum(dim=1)
        return (log_p(z).sum(dim=1) - divergence).mean()
    filled = torch.where(mask, 0.0, x)
    with torch.no_grad():
        for normal in noise[:2]:
            filled = torch.where(mask, model.decode(code(filled, normal)[1]), x)
    values = log_p(code(filled, noise[2])[1]).where(mask, 0.0).sum(dim=1) / mask.sum(dim=1)
    return x.shape[1] * values.mean()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_is_one_of_adam_on_the_objective(name: str) -> None:
    settings = replace(SHORT, num_steps=1)
    x = settings.images()
    # The first run: its generator draws the networks, then the rows, then what the objective needs.
    generators = settings.generators()
    start = OBJECTIVES[name].networks(64, settings, generators)
    num_images = settings.batch_size
    rows = torch.randint(len(x), (num_images,), generator=generators[0])
    mask = torch.ones(num_images, 64, dtype=torch.bool)
    if name == "fixed":
        mask = masks.stratified_masks(num_images, 64, FixedRate(0.33), generator=generators[0])
    noise = torch.randn((3 if name == "fixed" else 1, num_images, 1), generator=generators[0])

    weights = {key: value[:1].double().requires_grad_() for key, value in start.items()}
    model = dense_model(weights, 0, settings.noise_variance)
    value = literal_objective(name, model, x[rows].double(), noise.double(), mask)
    value.backward()
    run = train_deep_vae(settings, OBJECTIVES[name])
    torch.testing.assert_close(run.objective[0, 0].double(), value.detach(), rtol=1e-4, atol=0)
    for key, weight in weights.items():
        after = run.parameters[key][0].double()
        gradient = weight.grad[0]
        is_clear = gradient.abs() > 1e-3  # elsewhere rounding decides how far a step goes
        expected = after_adam(weight.detach()[0], gradient, settings.learning_rate)
        torch.testing.assert_close(after[is_clear], expected[is_clear], rtol=0, atol=1e-5)


@pytest.mark.parametrize("law", [FixedRate(0.33), UniformSize()])
def test_masks_that_are_drawn_ahead_are_stratified_masks(law: masks.SizeLaw) -> None:
    wanted = masks.stratified_masks(5, 7, law, generator=[generator(1), generator(2)])
    block = deep_vae.drawn(deep_vae.for_masks(5, 7), 1, [generator(1), generator(2)])
    mask = deep_vae.masks_from(block, law, torch.device("cpu"))
    assert torch.equal(mask[0], wanted)


@pytest.mark.parametrize("name", ALL)
def test_how_many_steps_are_drawn_ahead_changes_no_number(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_deep_vae(SHORT, ALL[name])
    monkeypatch.setattr(deep_vae, "_BLOCK_BYTES", 3 * 8 * 100 * 64 * 2)  # three steps at a time
    pieces = train_deep_vae(SHORT, ALL[name])
    assert torch.equal(whole.objective, pieces.objective)
    assert torch.equal(whole.log_p_x, pieces.log_p_x)


def test_an_evaluation_is_of_the_steps_that_it_names() -> None:
    run = train_deep_vae(SHORT, ELBO())
    assert run.steps.tolist() == [0, 4, 8] and run.num_steps == 8
    shorter = train_deep_vae(replace(SHORT, num_steps=4), ELBO())
    assert torch.equal(run.log_p_x[:2], shorter.log_p_x)
    few = SHORT.images()[:3]
    assert torch.equal(run.log_p_x[2], deep_vae.log_p_x(run.parameters, few, SHORT).float())
    assert run.objective.shape == (8, 2) and (run.objective[-1] > run.objective[0]).all()


def test_an_interrupt_leaves_what_was_trained() -> None:
    def interrupted(items: Iterable[Any], description: str) -> Iterator[Any]:
        for number, item in enumerate(items):
            if number == 6:
                raise KeyboardInterrupt
            yield item

    run = train_deep_vae(SHORT, ELBO(), progress=interrupted)
    whole = train_deep_vae(SHORT, ELBO())
    assert run.num_steps == 6 and run.steps.tolist() == [0, 4]
    assert torch.equal(run.log_p_x, whole.log_p_x[:2])
    assert torch.equal(run.objective, whole.objective[:6])
    six = train_deep_vae(replace(SHORT, num_steps=6), ELBO())
    for key, value in run.parameters.items():
        assert torch.equal(value, six.parameters[key])


def test_an_interrupt_before_the_first_step_leaves_empty_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(deep_vae, "log_p_x", interrupt)
    run = train_deep_vae(SHORT, ELBO())
    assert run.num_steps == 0 and run.log_p_x.shape == (0, 2) and run.steps.shape == (0,)


def test_a_training_that_leaves_the_numbers_says_where() -> None:
    with pytest.raises(FloatingPointError, match="at step 1 in run 0 of 2. A smaller learning"):
        train_deep_vae(replace(SHORT, learning_rate=1e30), ELBO())


@pytest.mark.parametrize("name", ALL)
def test_on_another_device_the_numbers_are_the_same(name: str) -> None:
    here = train_deep_vae(SHORT, ALL[name])
    with OtherDevice() as other:
        there = train_deep_vae(SHORT, ALL[name], device=other.device)
        assert there.log_p_x.device.type == "cuda"
        values, objective = there.log_p_x.cpu(), there.objective.cpu()
    torch.testing.assert_close(values, here.log_p_x, rtol=0, atol=1e-4)
    torch.testing.assert_close(objective, here.objective, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_between_evaluations_no_step_waits_for_the_device(name: str) -> None:
    waits = []
    for num_steps in (2, 14):
        with OtherDevice() as other:
            settings = replace(SHORT, num_steps=num_steps, track_every=30, latent_dim=2)
            train_deep_vae(settings, ALL[name], device=other.device)
            waits.append(sum(other.waits.values()))
    assert waits[0] == waits[1]
