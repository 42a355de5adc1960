"""Dense variational autoencoders, many runs side by side, and their objectives."""

from __future__ import annotations

import torch
from models import elbo, generator

from experiments.trainings import dense_vae
from mpt_lml import masks


def recursive_objective(
    parameters: dict[str, torch.Tensor],
    x: torch.Tensor,
    mask: torch.Tensor,
    noise: torch.Tensor,
    noise_variance: float,
) -> torch.Tensor:
    """The last of ``noise`` is scored, the others refill x, a round each."""
    with torch.no_grad():
        filled = dense_vae.refill(parameters, x, mask, noise[:-1])
    return dense_vae.recursive(parameters, x, mask, filled, noise[-1:], noise_variance)


def test_batched_networks_are_torchs() -> None:
    drawn = dense_vae.dense_parameters(5, [7, 6], 2, generators=[generator(1), generator(2)])
    x = torch.randn(2, 3, 5, generator=generator(3))
    for run in range(2):
        layers: list[torch.nn.Module] = []
        for layer in range(3):
            weight = drawn[f"encoder/{layer}/weight"][run]
            linear = torch.nn.Linear(*weight.shape)
            linear.weight.data, linear.bias.data = weight.T, drawn[f"encoder/{layer}/bias"][run, 0]
            layers += [linear, torch.nn.Tanh()]
        theirs = torch.nn.Sequential(*layers[:-1])(x[run])
        torch.testing.assert_close(dense_vae.dense(drawn, "encoder", x)[run], theirs)


def test_vae_gradients_agree_with_finite_differences() -> None:
    drawn = dense_vae.dense_parameters(4, [3], 2, generators=[generator(1), generator(2)])
    names = list(drawn)
    x = torch.rand(3, 4, generator=generator(3), dtype=torch.float64)
    noise = torch.randn(2, 3, 2, generator=generator(4), dtype=torch.float64)
    mask = masks.sample_masks(3, 4, 2, generator=generator(5))[None].expand(2, -1, -1)
    start = [drawn[name].double().requires_grad_() for name in names]

    def elbo(*values: torch.Tensor) -> torch.Tensor:
        return dense_vae.elbo(dict(zip(names, values, strict=True)), x, noise, 0.3)

    def recursive(*values: torch.Tensor) -> torch.Tensor:
        parameters = dict(zip(names, values, strict=True))
        return recursive_objective(parameters, x, mask, noise[None], 0.3)

    assert torch.autograd.gradcheck(elbo, start)
    assert torch.autograd.gradcheck(recursive, start)


def test_the_recursion_by_hand() -> None:
    """Two rounds: the value, and a gradient that goes through the last one only."""
    drawn = dense_vae.dense_parameters(4, [3], 2, generators=[generator(1), generator(2)])
    parameters = {name: value.double().requires_grad_() for name, value in drawn.items()}
    x = torch.rand(5, 4, generator=generator(3), dtype=torch.float64)
    noise = torch.randn(2, 2, 5, 2, generator=generator(4), dtype=torch.float64)
    mask = masks.sample_masks(10, 4, masks.UniformSize(), generator=generator(5)).view(2, 5, 4)
    ours = recursive_objective(parameters, x, mask, noise, 0.3)
    expected = []
    for run in range(2):
        model, hidden = dense_vae.dense_model(parameters, run, 0.3), mask[run]
        mean, variance = model.encode(x.masked_fill(hidden, 0.0))
        guess = model.decode(mean + variance.sqrt() * noise[0, run]).detach()
        mean, variance = model.encode(torch.where(hidden, guess, x))
        log_p = model.log_factors(x, mean + variance.sqrt() * noise[1, run])
        rows = [4 * values[row].mean() for values, row in zip(log_p, hidden, strict=True)]
        expected.append(torch.stack(rows).mean())
    torch.testing.assert_close(ours, torch.stack(expected), atol=1e-12, rtol=0)
    names = list(parameters.values())
    theirs = torch.autograd.grad(torch.stack(expected).sum(), names)
    for mine, wanted in zip(torch.autograd.grad(ours.sum(), names), theirs, strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-12, rtol=0)


def test_the_batched_elbo_is_the_models() -> None:
    drawn = dense_vae.dense_parameters(4, [3], 2, generators=[generator(1), generator(2)])
    parameters = {name: value.double() for name, value in drawn.items()}
    x = torch.rand(6, 4, generator=generator(3), dtype=torch.float64)
    noise = torch.randn(2, 6, 2, generator=generator(4), dtype=torch.float64)
    together = dense_vae.elbo(parameters, x, noise, 0.3)
    for run in range(2):
        model = dense_vae.dense_model(parameters, run, 0.3)
        one = elbo(model, x, noise[run : run + 1]).mean()
        torch.testing.assert_close(together[run], one, atol=1e-12, rtol=0)
