"""Estimated conditionals: importance weights and chains."""

from __future__ import annotations

import math

import pytest
import torch
from models import generator
from torch import Tensor

from experiments.trainings import dense_vae
from mpt_lml import VAE, GridConditional, estimators, grids, masks
from mpt_lml.models.vae import LatentVariableModel


def test_a_chain_starts_with_the_decoders_mean_where_it_does_not_see() -> None:
    seen = []

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(x.clone())
        return x[..., :1] * 0, x[..., :1] * 0

    model = VAE(encode, lambda z: 0 * z + torch.tensor([0.25, 0.75]), num_features=2, latent_dim=1)
    chain = estimators.GibbsConditional(model, 1, generator=generator(), corrected=False)
    chain.log_each(torch.tensor([[1.0, 0.0]]), torch.tensor([[True, False]]))
    assert seen[0].flatten().tolist() == pytest.approx([1 / (1 + math.exp(-0.25)), 0.0])


def test_what_a_chain_says_is_a_mean_of_probabilities() -> None:
    """z is drawn from the prior whatever x is: p(x_j = 1) = E sigmoid(5 z) = 1/2, by symmetry.

    The mean of the logarithms would be E log sigmoid(5 z), about −2.3 and not −0.7.
    """
    model = VAE(
        lambda x: (0 * x[..., :1], 0 * x[..., :1]),
        lambda z: 5 * z.expand(*z.shape[:-1], 2),
        num_features=2,
        latent_dim=1,
    )
    x, mask = torch.ones(1, 2).double(), torch.tensor([[True, False]])
    steps, chains = 200, 50
    gibbs = estimators.GibbsConditional(
        model, steps, generator=generator(1), corrected=False, num_chains=chains
    )
    value = gibbs.log_each(x, mask)[0, 0].item()
    num_draws = chains * steps / 2
    # A probability has a standard deviation of at most 1/2: that of the logarithm of the mean is 1/√n.
    assert abs(value - math.log(0.5)) <= 5 / math.sqrt(num_draws)


def nonlinear_vae(likelihood: str, seed: int = 0) -> VAE:
    """A random network with K = 2, in float64, its weights doubled so that it is far from linear."""
    drawn = dense_vae.dense_parameters(8, [16], 2, generators=[generator(seed)])
    parameters = {name: 2.5 * value.double() for name, value in drawn.items()}
    noise = 0.2 if likelihood == "gaussian" else None
    return dense_vae.dense_model(parameters, 0, noise)


def data_of(model: LatentVariableModel, n: int, seed: int = 3) -> torch.Tensor:
    z = torch.randn(n, model.latent_dim, generator=generator(seed), dtype=torch.float64)
    return model.sample_given(z, generator=generator(seed + 1))


def every_pair(
    sampler: estimators.GibbsConditional, x: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """``log_conditional`` with the chains of all masks side by side."""
    found = sampler.log_each(x.repeat(len(mask), 1), mask.repeat_interleave(len(x), dim=0))
    return found.unflatten(0, (len(mask), len(x)))


NONLINEAR = {kind: nonlinear_vae(kind) for kind in ("bernoulli", "gaussian")}


FINE = grids.trapezoid(2, 161, 8.0)


def test_corrected_gibbs_reaches_the_grid_where_pseudo_gibbs_does_not() -> None:
    """A random encoder has nothing to do with the posterior."""
    model = NONLINEAR["bernoulli"]
    x = data_of(model, 6)
    mask = masks.sample_masks(2, 8, 4, generator=generator(2))
    exact = GridConditional(model, FINE).log_conditional(x, mask)
    error = {}
    for corrected in (False, True):
        steps = 800 if corrected else 100  # rejections: it mixes slowly
        gibbs = estimators.GibbsConditional(
            model, steps, generator=generator(4), corrected=corrected, num_chains=100
        )
        error[corrected] = (every_pair(gibbs, x, mask) - exact).abs().max().item()
    assert error[True] < 0.15
    assert error[False] > 3 * error[True]


@pytest.mark.parametrize("kind", ["importance", "gibbs"])
def test_one_mask_a_datum(kind: str) -> None:
    """The same mask for all gives the same draws as that mask with every datum; others do not mix."""
    model = NONLINEAR["bernoulli"]
    x, mask = data_of(model, 4), masks.sample_masks(4, 8, 3, generator=generator(1))

    def sampler(steps: int) -> estimators.ImportanceConditional | estimators.GibbsConditional:
        g = generator(2)
        if kind == "importance":
            return estimators.ImportanceConditional(model, 3 * steps, generator=g)
        return estimators.GibbsConditional(model, steps, generator=g, corrected=True, num_chains=30)

    same = sampler(20).log_each(x, mask[:1].expand(4, -1))
    assert torch.equal(same, sampler(20).log_conditional(x, mask[:1])[0])
    exact = GridConditional(model, FINE).log_each(x, mask)
    assert (sampler(600).log_each(x, mask) - exact).abs().max() < 0.25
