"""Variational autoencoders."""

from __future__ import annotations

import math

import pytest
import torch

from mpt_lml import VAE

MODEL = {
    "encoder": lambda x: (x[..., :1], x[..., :1]),
    "decoder": lambda z: z.expand(*z.shape[:-1], 3),
    "num_features": 3,
    "latent_dim": 1,
}


@pytest.mark.bad_input
def test_a_noise_variance_that_single_precision_rounds_to_0() -> None:
    model = VAE(**MODEL, noise_variance=1e-60)
    with pytest.raises(ValueError, match=r"noise_variance must be .*torch.float32, got 1e-60"):
        model.log_joint(torch.ones(2, 3), torch.zeros(2, 1))


@pytest.mark.bad_input
def test_a_node_at_infinity() -> None:
    with pytest.raises(ValueError, match="^nodes must be finite"):
        VAE(**MODEL).log_factors_at_nodes(torch.ones(1, 3), torch.tensor([[math.inf]]))
