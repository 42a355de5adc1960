"""The training behind Figure 3, upper: what a page calls, on every device and when it is stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TypeVar

import pytest
import torch
from first_steps import after_adam
from moved import other_device
from other_device import DEVICE
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import logsigmoid

from experiments.paper.linear_vae import Figure3Upper
from mpt_lml import data, recorded
from mpt_lml.masks import FixedRate, stratified_masks
from mpt_lml.trainings import linear_vae
from mpt_lml.trainings.linear_vae import FULL, TINY, train_linear_vae

Item = TypeVar("Item")
SHORT = dataclasses.replace(TINY, num_data=40, num_epochs=6, track_every=2)


def test_full_is_what_the_record_was_made_with() -> None:
    assert Figure3Upper().settings("mnist") == FULL
    settings = recorded.load("figure-3-upper").settings
    for field in dataclasses.fields(FULL):
        if field.name != "images":
            value = getattr(FULL, field.name)
            assert settings[field.name] == (list(value) if isinstance(value, tuple) else value)


def test_a_pixel_is_one_from_one_half_on() -> None:
    pixels = data.images("digits", "train").pixels[: TINY.num_data]
    ones = linear_vae.binary_images(TINY)
    assert (pixels == 0.5).any() and (ones[pixels == 0.5] == 1).all()
    assert (ones[pixels == 7 / 16] == 0).all() and (ones[pixels == 9 / 16] == 1).all()


def literal_objective(name: str, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """The objective of the first seed's first step, in nats a datum, as its formula is written."""
    num_features = x.shape[1]
    draws = linear_vae.generators_of_steps(SHORT)[0]

    def log_p(z: Tensor) -> Tensor:
        logits = z @ parameters["loadings"].T + parameters["offset"]
        return x * logsigmoid(logits) + (1 - x) * logsigmoid(-logits)

    if name == "elbo":
        noise = torch.randn((len(x), 2), generator=draws)
        mean = x @ parameters["encoder"].T + parameters["encoder_offset"]
        posterior = Normal(mean, (0.5 * parameters["encoder_log_variance"]).exp())
        divergence = kl_divergence(posterior, Normal(0.0, 1.0)).sum(dim=1)
        z = mean + posterior.stddev * noise
        return (log_p(z).sum(dim=1) - divergence).mean()
    grid = linear_vae.training_grid(SHORT, name)
    mask = stratified_masks(1, num_features, FixedRate(0.15), generator=draws)[0]
    at_nodes = torch.stack([log_p(node.to(x)) for node in grid.nodes])  # (G, N, D)
    log_weights = grid.log_weights.to(x)[:, None]
    if name == "published":  # D/M log p(x_A)
        log_block = (log_weights + at_nodes[..., mask].sum(dim=2)).logsumexp(dim=0)
        return num_features / mask.sum() * log_block.mean()
    given = (log_weights + at_nodes[..., ~mask].sum(dim=2)).log_softmax(dim=0)  # of z given x_R
    values = (given[..., None] + at_nodes[..., mask]).logsumexp(dim=0)
    return num_features * values.mean()


@pytest.mark.parametrize("name", ["elbo", "published", "fixed"])
def test_a_step_is_one_of_adam_on_the_objective(name: str) -> None:
    settings = dataclasses.replace(SHORT, num_epochs=1)
    x = linear_vae.binary_images(settings)
    history = train_linear_vae(settings, (name,))[name]
    first = linear_vae.start(settings, x.shape[1], name)
    weights = {key: value[0].double().requires_grad_() for key, value in first.items()}
    value = literal_objective(name, weights, x.double())
    value.backward()
    torch.testing.assert_close(
        history.values["objective"][0, 0].double(), value.detach(), rtol=1e-4, atol=0
    )
    for key, weight in weights.items():
        after = history.parameters[key][0].double()
        is_clear = weight.grad.abs() > 1e-3  # elsewhere rounding decides how far a step goes
        expected = after_adam(weight.detach(), weight.grad, settings.learning_rate)
        assert is_clear.any()
        torch.testing.assert_close(after[is_clear], expected[is_clear], rtol=0, atol=1e-5)


def test_both_objectives_start_alike_and_rise() -> None:
    histories = train_linear_vae(TINY)
    assert list(histories) == ["published", "elbo"]
    starts = [history.values["lml"][0] for history in histories.values()]
    assert torch.equal(*starts)
    for history in histories.values():
        assert history.num_epochs == TINY.num_epochs
        assert (history.values["lml"][-1] > starts[0] + 1.0).all()


def test_the_quadrature_along_the_way_is_that_of_the_end() -> None:
    """Two rules for the same integral: one grid for all data, and one around each datum."""
    history = train_linear_vae(TINY, ("elbo",))["elbo"]
    ends = linear_vae.mean_log_marginal(history.parameters, linear_vae.binary_images(TINY))
    torch.testing.assert_close(history.values["lml"][-1].double(), ends, atol=0.01, rtol=0)


def test_what_is_trained_does_not_depend_on_what_was_trained_before() -> None:
    both = train_linear_vae(SHORT)
    alone = train_linear_vae(SHORT, ("elbo",))
    torch.testing.assert_close(both["elbo"].parameters, alone["elbo"].parameters, rtol=0, atol=0)


@pytest.mark.parametrize(("stopped", "after"), [("published", 3), ("elbo", 4)])
def test_an_interrupt_leaves_what_was_trained(stopped: str, after: int) -> None:
    def progress(items: Iterable[Item], label: str) -> Iterator[Item]:
        for number, item in enumerate(items):
            if label == stopped and number == after:
                raise KeyboardInterrupt
            yield item

    histories = train_linear_vae(SHORT, progress=progress)
    assert list(histories)[-1] == stopped
    history = histories[stopped]
    assert history.num_epochs == after
    shorter = dataclasses.replace(SHORT, num_epochs=after)
    expected = train_linear_vae(shorter, (stopped,))[stopped]
    torch.testing.assert_close(history.parameters, expected.parameters, rtol=0, atol=0)
    assert not history.values["lml"][-1].isnan().any()


def test_a_second_device_finds_the_same() -> None:
    here = train_linear_vae(SHORT)
    with other_device():
        there = train_linear_vae(SHORT, device=DEVICE)
        for name, history in there.items():
            assert history.values["lml"].device == DEVICE
            last = history.values["lml"][-1].cpu()
            torch.testing.assert_close(last, here[name].values["lml"][-1], atol=1e-3, rtol=0)


def test_data_that_are_not_there_are_asked_for_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("MPT_LML_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setattr("mpt_lml.data.image_sets.local_path", lambda name: None)

    def nothing(name: str, split: str) -> None:
        raise data.DataNotFoundError(f"no {name}")

    monkeypatch.setattr("mpt_lml.data.image_sets._from_hub", nothing)
    with pytest.raises(data.DataNotFoundError, match="no mnist"):
        train_linear_vae(FULL)
