"""What a model's name means."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_bert import tiny, tokenizer

import mpt_score
from mpt_score import loading, networks


def coin(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(*ids.shape, 2).log_softmax(dim=-1)


def test_the_books_network_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It brings what the folder holds, wherever that lies."""
    monkeypatch.chdir(tmp_path)
    by_name = mpt_score.load("small-bert")
    by_folder = mpt_score.load(networks.small_bert_folder())
    assert by_name.identity == by_folder.identity
    assert by_name.name == "small-bert"


def test_the_books_tokenizer_has_its_name() -> None:
    _, wanted = networks.load_small_bert()
    found = mpt_score.load(coin, "small-bert").tokenizer
    assert found.get_vocab() == wanted.get_vocab()


@pytest.mark.bad_input
def test_the_books_network_has_no_revision() -> None:
    with pytest.raises(ValueError, match="has no revision 'main'"):
        mpt_score.load("small-bert", revision="main")


@pytest.mark.bad_input
@pytest.mark.parametrize("model", ["small-bert", coin], ids=["network", "function"])
@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("gpu", "it names none. Give 'auto', 'cpu', 'cuda'"),
        ("", "it names none"),
        ("cuda", "torch sees no GPU. Give 'cpu', or 'auto'"),
        ("cuda:1", "torch sees no GPU. Give"),
        ("mps", "torch sees no GPU of Apple's. Give"),
        ("meta", "what is on it has no numbers. Give"),
        ("xla", "torch has no such device. Give"),
    ],
)
def test_a_device_that_is_not_here_is_named(
    device: str, said: str, model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError) as caught:
        mpt_score.load(model, device=device)
    assert str(caught.value).startswith(f"device {device!r} cannot be used here: {said}")


@pytest.mark.bad_input
def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="'cuda:2' cannot be .* sees 2 GPUs, and counts them from"):
        mpt_score.load("small-bert", device="cuda:2")


@pytest.mark.bad_input
def test_a_network_in_double_precision_stays_off_apples_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "require_device", lambda device: None)  # as on a machine with one
    with pytest.raises(ValueError, match=r"double precision.*Give network.float"):
        mpt_score.load(tiny().double(), tokenizer(), device="mps")
