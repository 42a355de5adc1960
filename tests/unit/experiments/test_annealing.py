"""Annealed importance sampling against integrals that can be done."""

from __future__ import annotations

import math

import pytest
import torch
from models import generator, random_bernoulli

from experiments import annealing
from experiments.trainings import dense_vae
from mpt_lml import VAE, BernoulliPCA, GridConditional, grids
from mpt_lml.estimators import latent

F64 = {"dtype": torch.float64}


def test_a_move_leaves_the_prior_as_it_is() -> None:
    count = 100_000
    start = torch.randn(1, count, 2, generator=generator(8), **F64)

    def log_likelihood(at: torch.Tensor) -> torch.Tensor:
        return -0.5 * at.square().sum(dim=-1)

    step = torch.full((1, 1, 1), 0.6, **F64)
    chains = annealing._chains_at(log_likelihood, start)
    (end, value, slope), accepted = annealing._hamiltonian_move(
        chains, log_likelihood, 0.0, step, num_leapfrogs=3, generator=generator(9)
    )
    assert torch.equal(value, log_likelihood(end)) and torch.equal(slope, -end)  # of where they are
    assert torch.equal((end != start).any(dim=-1), accepted)
    assert (end != start).double().mean() > 0.8
    square = end.square().sum(dim=-1)  # chi-square with 2 degrees of freedom: variance 4
    assert abs(square.mean() - 2) < 4.5 * math.sqrt(4 / count)
    assert abs(square.var() - 4) < 0.3


BERNOULLI = random_bernoulli(6, 2, 12)
POINTS = BERNOULLI.sample(3, generator=generator(1))


def test_with_two_temperatures_annealing_is_importance_sampling_from_the_prior() -> None:
    """β = 0 and 1: the move comes after the only weight."""
    found = annealing.ais(BERNOULLI, POINTS, 50, 2, generator=generator(4))
    z = latent.from_prior(BERNOULLI, POINTS).sample(50, generator=generator(4))
    log_likelihood = BERNOULLI.log_factors(POINTS, z).sum(dim=-1)
    expected = (log_likelihood.logsumexp(dim=0) - math.log(50)).mean()
    assert found == pytest.approx(expected.item(), abs=1e-10)


def test_annealing_ends_at_the_posterior_and_begins_at_the_prior() -> None:
    """With three temperatures β has to be 0, 1/2, 1: shifted, another ratio is estimated."""
    found = annealing.ais(BERNOULLI, POINTS, 4000, 3, generator=generator(4))
    exact = BERNOULLI.adaptive_log_marginal(POINTS, nodes_per_axis=41, extent=8.0).mean().item()
    assert abs(found - exact) <= 5 * found.standard_error
    assert found.standard_error < 0.05


def test_steps_of_a_datum_grow_where_moves_are_taken_and_shrink_where_not(monkeypatch) -> None:
    """Short ones on a constant likelihood nearly all are; into what is no number, none is."""
    steps, betas, move = [], [], annealing._hamiltonian_move
    likelihood = torch.tensor([0.0, math.nan])  # of the two data

    def watched(chains, log_likelihood, beta, step, **settings):
        steps.append(step.flatten())
        betas.append(beta)
        return move(chains, lambda z: log_likelihood(z) + likelihood, beta, step, **settings)

    monkeypatch.setattr(annealing, "_hamiltonian_move", watched)
    annealing.ais(BernoulliPCA(torch.zeros(3, 1)), torch.ones(2, 3), 50, 4, generator=generator())
    factors = torch.tensor([1.05, 0.95])
    expected = torch.stack([0.2 * factors**k for k in range(3)])
    torch.testing.assert_close(torch.stack(steps).expand(3, 2), expected)
    # A sigmoid: as dense at one end as at the other, and denser than in the middle.
    assert betas[0] + betas[1] == pytest.approx(1.0) and betas[2] == 1.0
    assert betas[0] < betas[1] - betas[0]


def test_a_gaussian_vae_against_a_fine_grid() -> None:
    drawn = dense_vae.dense_parameters(8, [16], 2, generators=[generator()])
    doubled = {name: 2.5 * value.double() for name, value in drawn.items()}  # far from linear
    model = dense_vae.dense_model(doubled, 0, 0.2)
    x = model.sample_given(
        torch.randn(10, 2, generator=generator(3), **F64), generator=generator(4)
    )
    on_grid = GridConditional(model, grids.trapezoid(2, 161, extent=8.0).to(x))
    found = annealing.ais(model, x, 200, 60, generator=generator(9))
    exact = on_grid.log_marginal(x).mean().item()
    assert abs(found - exact) <= 3 * found.standard_error
    assert found.standard_error < 0.05


@pytest.mark.bad_input
def test_a_decoder_that_answers_nothing_is_refused() -> None:
    def decoder(z: torch.Tensor) -> torch.Tensor:
        return torch.full((*z.shape[:-1], 3), math.nan)

    model = VAE(lambda x: (x[..., :1], x[..., :1]), decoder, num_features=3, latent_dim=1)
    with pytest.raises(ValueError, match="draws from the prior is NaN in 8 of 8 places"):
        annealing.ais(model, torch.ones(2, 3), 4, 5, generator=generator())
