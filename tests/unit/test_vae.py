"""Variational autoencoders and their dense networks, many runs side by side."""

from __future__ import annotations

import torch
from models import generator, recursive_objective

from mpt_lml import VAE, masks, objectives
from mpt_lml.models import vae


def elbo(model: VAE, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Mean over draws of log p(x|z) less the divergence that PyTorch knows."""
    mean, variance = model.encode(x)
    fit = model.log_factors(x, mean + variance.sqrt() * noise).sum(dim=-1).mean(dim=0)
    q = torch.distributions.Normal(mean, variance.sqrt())
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    return fit - torch.distributions.kl_divergence(q, prior).sum(dim=-1)


def test_batched_networks_are_torchs() -> None:
    drawn = vae.dense_parameters(5, [7, 6], 2, generators=[generator(1), generator(2)])
    x = torch.randn(2, 3, 5, generator=generator(3))
    for run in range(2):
        layers: list[torch.nn.Module] = []
        for layer in range(3):
            weight = drawn[f"encoder/{layer}/weight"][run]
            linear = torch.nn.Linear(*weight.shape)
            linear.weight.data, linear.bias.data = weight.T, drawn[f"encoder/{layer}/bias"][run, 0]
            layers += [linear, torch.nn.Tanh()]
        theirs = torch.nn.Sequential(*layers[:-1])(x[run])
        torch.testing.assert_close(vae.dense(drawn, "encoder", x)[run], theirs)


def test_vae_gradients_agree_with_finite_differences() -> None:
    drawn = vae.dense_parameters(4, [3], 2, generators=[generator(1), generator(2)])
    names = list(drawn)
    x = (torch.rand(3, 4, generator=generator(3)) < 0.5).double()
    noise = torch.randn(2, 3, 2, generator=generator(4), dtype=torch.float64)
    mask = masks.sample_masks(3, 4, 2, generator=generator(5))[None].expand(2, -1, -1)
    start = [drawn[name].double().requires_grad_() for name in names]

    def elbo(*values: torch.Tensor) -> torch.Tensor:
        return objectives.elbo(dict(zip(names, values, strict=True)), x, noise, None)

    def recursive(*values: torch.Tensor) -> torch.Tensor:
        parameters = dict(zip(names, values, strict=True))
        return recursive_objective(parameters, x, mask, noise[None], 0.3)

    assert torch.autograd.gradcheck(elbo, start)
    assert torch.autograd.gradcheck(recursive, start)
