"""Networks built at random: their sizes, and what attends to what."""

from __future__ import annotations

import torch

from mpt_score import networks


def test_small_networks_are_of_the_size_that_is_described() -> None:
    shapes = {name: tuple(value.shape) for name, value in bert("modern").state_dict().items()}
    assert shapes["model.embeddings.tok_embeddings.weight"] == (40, 160)
    assert bert("modern").config.num_hidden_layers == 6
    assert bert("classic").bert.embeddings.position_embeddings.weight.shape == (64, 160)
    assert networks.small_mae(8, 1, 2, seed=0).config.hidden_size == 64


def bert(architecture: str) -> torch.nn.Module:
    return networks.small_masked_lm(40, architecture, seed=0)


def test_attention_of_the_modern_network_is_local_and_global_in_turn() -> None:
    config = networks.small_masked_lm(9, width=32, num_layers=4, seed=1).config
    turns = ["full_attention", "sliding_attention"] * 2
    assert (config.local_attention, config.layer_types, config.pad_token_id) == (32, turns, 0)
