"""Variational autoencoders and their dense networks, many runs side by side."""

from __future__ import annotations

import math

import pytest
import torch
from models import generator, recursive_objective

from mpt_lml import masks, objectives
from mpt_lml.models import vae

DENSE = vae.dense_parameters(3, [4], 1, generators=[generator()])


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
    x = torch.rand(3, 4, generator=generator(3), dtype=torch.float64)
    noise = torch.randn(2, 3, 2, generator=generator(4), dtype=torch.float64)
    mask = masks.sample_masks(3, 4, 2, generator=generator(5))[None].expand(2, -1, -1)
    start = [drawn[name].double().requires_grad_() for name in names]

    def elbo(*values: torch.Tensor) -> torch.Tensor:
        return objectives.elbo(dict(zip(names, values, strict=True)), x, noise, 0.3)

    def recursive(*values: torch.Tensor) -> torch.Tensor:
        parameters = dict(zip(names, values, strict=True))
        return recursive_objective(parameters, x, mask, noise[None], 0.3)

    assert torch.autograd.gradcheck(elbo, start)
    assert torch.autograd.gradcheck(recursive, start)


REFUSED = {
    "a noise variance that single precision rounds to 0": (
        lambda: vae.dense_model(DENSE, 0, 1e-60).log_joint(torch.ones(2, 3), torch.zeros(2, 1)),
        ValueError,
        "noise_variance must be .*torch.float32, got 1e-60",
    ),
    "networks whose layers do not fit": (
        lambda: vae.dense_model(DENSE | {"decoder/1/weight": torch.zeros(1, 5, 3)}, 0),
        ValueError,
        r"parameters\['decoder/1/weight'\] must have shape \(1, 4, O\), got \(1, 5, 3\)",
    ),
    "networks of other K": (
        lambda: vae.dense_model(
            DENSE
            | {"decoder/0/weight": torch.zeros(1, 2, 4), "decoder/0/bias": torch.zeros(1, 1, 4)},
            0,
        ),
        ValueError,
        "K = 2 numbers that the decoder takes, got 2 outputs",
    ),
    "networks of other D": (
        lambda: vae.dense_model(DENSE | {"encoder/0/weight": torch.zeros(1, 4, 4)}, 0),
        ValueError,
        "D = 3 numbers that the decoder makes, got 4 inputs",
    ),
    "networks of other runs": (
        lambda: vae.dense_model(
            {
                name: value.repeat(2, 1, 1) if name.startswith("decoder") else value
                for name, value in DENSE.items()
            },
            0,
        ),
        ValueError,
        "the same runs, got an encoder of 1 and a decoder of 2",
    ),
    "a layer without a bias": (
        lambda: vae.dense_model(
            {name: value for name, value in DENSE.items() if name != "encoder/1/bias"}, 0
        ),
        ValueError,
        "parameters must have 'encoder/1/bias', got",
    ),
    "noise of one run for the networks of two": (
        lambda: objectives.elbo(
            {name: value.repeat(2, 1, 1) for name, value in DENSE.items()},
            torch.ones(2, 3),
            torch.zeros(1, 2, 1),
            0.5,
        ),
        ValueError,
        "noise must have an axis of the B = 2 runs",
    ),
    "a node at infinity": (
        lambda: vae.dense_model(DENSE, 0).log_table(torch.ones(1, 3), torch.tensor([[math.inf]])),
        ValueError,
        "^nodes must be finite",
    ),
    "networks of no run": (
        lambda: vae.dense_parameters(3, [4], 1, generators=[]),
        ValueError,
        "generators must be one for each run",
    ),
    "networks of a negative width": (
        lambda: vae.dense_parameters(-4, [4], 1, generators=[generator()]),
        ValueError,
        "num_features must be >= 1, got -4",
    ),
    "a width that is no list": (
        lambda: vae.dense_parameters(4, 3, 1, generators=[generator()]),
        TypeError,
        "hidden must be of type Sequence, got 3",
    ),
    "a model without parameters": (
        lambda: vae.dense_model({}, 0),
        ValueError,
        "no weights of the encoder",
    ),
    "a model of a run that is not there": (
        lambda: vae.dense_model(DENSE, 5),
        ValueError,
        r"run must be in 0\.\.0, got 5",
    ),
}


@pytest.mark.bad_input
@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_a_reason(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()
