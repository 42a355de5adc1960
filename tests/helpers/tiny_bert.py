"""BERTs of one or two small layers with a vocabulary of twelve pieces, and their tokenizer."""

from __future__ import annotations

import torch
from models import generator
from transformers import BertTokenizer, DistilBertConfig, DistilBertForMaskedLM

from mpt_score import networks
from mpt_score.texts import Sentences

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", ".", "a", "dog"]
CLS, SEP, MASK = 2, 3, 4
LINES = ("the cat sat", "the dogs sat.", "a cat sat the", "dog the cat a dog", "a dog sat a cat.")


def tokenizer() -> BertTokenizer:
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})


def tiny(kind: str = "classic", seed: int = 0) -> torch.nn.Module:
    """A network of each form whose logits differ from token to token."""
    size = len(PIECES)
    if kind == "distil":
        config = DistilBertConfig(
            vocab_size=size,
            dim=32,
            n_layers=1,
            n_heads=1,
            hidden_dim=64,
            max_position_embeddings=16,
        )
        network = networks.at_random(DistilBertForMaskedLM, config, seed=seed)
    else:
        network = networks.small_masked_lm(
            size, kind, width=32, num_layers=2, max_length=16, seed=seed
        )
    draws = generator(seed)
    with torch.no_grad():
        for each in network.parameters():
            each.add_(0.3 * torch.randn(each.shape, generator=draws))
    return network.double()


def some_lines(name: str, split: str = "test") -> Sentences:
    """Lines that the tiny tokenizer knows, under any name."""
    return Sentences(LINES * 3)
