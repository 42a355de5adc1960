"""What a model's name means."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mpt_score
from mpt_score import networks


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
