"""The training behind Figure 3, upper: what a page calls, on every device and when it is stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TypeVar

import pytest
import torch
from moved import other_device
from other_device import DEVICE

from experiments.paper.linear_vae import Figure3Upper
from mpt_lml import data, recorded
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
