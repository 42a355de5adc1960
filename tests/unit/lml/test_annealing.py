"""Annealed evidence of PPCA against integrals that can be done."""

from __future__ import annotations

import math

import pytest
import torch
from models import generator, random_bernoulli

from mpt_lml import PPCA, BernoulliPCA, estimators, objectives
from mpt_lml.estimators import annealing, latent

F64 = {"dtype": torch.float64}


def moments(num_sets: int, num_data: int, num_features: int, latent_dim: int) -> torch.Tensor:
    g = generator(3)
    rows = []
    for _ in range(num_sets):
        model = PPCA(torch.randn(num_features, latent_dim, generator=g, **F64), 0.5)
        x = model.sample(num_data, generator=g)
        rows.append(x.T @ x / num_data)
    return torch.stack(rows)


def test_no_latent_dimension_is_exact() -> None:
    moment = moments(3, 10, 4, 2)
    value, error = estimators.annealed_evidence(
        moment, 10, 0, 0.5, num_chains=2, num_steps=3, generator=generator()
    )
    trace = moment.diagonal(dim1=1, dim2=2).sum(dim=1)
    expected = -0.5 * 10 * (4 * math.log(2 * math.pi * 0.5) + trace / 0.5)
    torch.testing.assert_close(value, expected, atol=1e-10, rtol=0)
    assert (error < 1e-12).all()


def by_quadrature(moment: torch.Tensor, num_data: int, noise_variance: float) -> float:
    """K = 1 and D = 1 or 2: the trapezoid rule for a smooth integrand that vanishes at the ends."""
    axis = torch.linspace(-7, 7, 161, **F64)
    points = torch.cartesian_prod(*[axis] * len(moment)).view(1, -1, len(moment), 1)
    noise = torch.tensor(noise_variance, **F64)
    value = num_data * objectives.log_marginal(points, noise, moment)
    prior = -0.5 * points.square().sum(dim=(-2, -1)) - 0.5 * len(moment) * math.log(2 * math.pi)
    cell = len(moment) * math.log(axis[1] - axis[0])
    return ((value + prior).logsumexp(dim=1) + cell).item()


@pytest.mark.parametrize("num_features", [1, 2])
def test_one_latent_dimension_against_quadrature(num_features: int) -> None:
    num_data = 12
    moment = moments(4, num_data, num_features, 1)
    value, error = estimators.annealed_evidence(
        moment, num_data, 1, 0.5, num_chains=400, num_steps=60, generator=generator(2)
    )
    expected = torch.tensor([by_quadrature(m, num_data, 0.5) for m in moment], **F64)
    assert (error < 0.1).all()
    assert ((value - expected).abs() < 4.5 * error).all()


def test_chains_up_and_chains_down_enclose_the_evidence() -> None:
    """Backward chains start at the loadings that made the data: one exact draw of the posterior."""
    num_data, g = 12, generator(11)
    loadings = torch.randn(24, 3, 2, generator=g, **F64)
    rows = [PPCA(W, 0.5).sample(num_data, generator=g) for W in loadings]
    moment = torch.stack([x.T @ x / num_data for x in rows])
    settings = {"num_chains": 60, "num_steps": 60, "generator": g}
    low, low_error = estimators.annealed_evidence(moment, num_data, 2, 0.5, **settings)
    high, high_error = estimators.annealed_evidence(
        moment, num_data, 2, 0.5, backward_from=loadings, **settings
    )
    gap = high - low
    assert abs(gap.mean()) < 4 * gap.std() / 24**0.5 + (low_error**2 + high_error**2).mean() / 2
    assert gap.std() < 0.4
    few = {"num_chains": 60, "num_steps": 6, "generator": g}  # too few steps: each on its side
    rough_low, _ = estimators.annealed_evidence(moment, num_data, 2, 0.5, **few)
    rough_high, _ = estimators.annealed_evidence(
        moment, num_data, 2, 0.5, backward_from=loadings, **few
    )
    assert rough_low.mean() < low.mean() and rough_high.mean() > high.mean()


def test_backward_chains_against_quadrature() -> None:
    num_data, g = 12, generator(12)
    loadings = torch.randn(24, 2, 1, generator=g, **F64)
    rows = [PPCA(W, 0.5).sample(num_data, generator=g) for W in loadings]
    moment = torch.stack([x.T @ x / num_data for x in rows])
    settings = {"num_chains": 60, "num_steps": 100, "generator": g}
    value, _ = estimators.annealed_evidence(
        moment, num_data, 1, 0.5, backward_from=loadings, **settings
    )
    expected = torch.tensor([by_quadrature(m, num_data, 0.5) for m in moment], **F64)
    off = value - expected  # chains of one data set share their start: the error is over data sets
    assert abs(off.mean()) < 4 * off.std() / 24**0.5 < 0.1


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


def test_more_steps_and_fewer_agree() -> None:
    moment = moments(3, 15, 5, 2)
    results = [
        estimators.annealed_evidence(
            moment, 15, 2, 0.5, num_chains=count, num_steps=steps, generator=generator(steps)
        )
        for count, steps in ((400, 30), (100, 100))
    ]
    (a, a_error), (b, b_error) = results
    assert ((a - b).abs() < 4.5 * (a_error.square() + b_error.square()).sqrt()).all()
    assert (b_error < 0.3).all()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"second_moment": torch.eye(3)}, r"\(B, D, D\), got \(3, 3\)"),
        ({"second_moment": torch.full((1, 2, 2), math.nan)}, r"second_moment\[0, 0, 0\] is nan"),
        ({"num_data": 0}, "num_data.*got 0"),
        ({"latent_dim": -1}, "latent_dim.*got -1"),
        ({"noise_variance": 0.0}, "noise_variance must be a single finite number > 0, got 0.0"),
        ({"num_chains": 1}, "num_chains.*>= 2.*got 1"),
        ({"num_steps": 0}, "num_steps.*got 0"),
    ],
)
def test_wrong_calls(change: dict, message: str) -> None:
    call = {"second_moment": torch.eye(2)[None], "num_data": 5, "latent_dim": 1}
    call |= {"noise_variance": 0.5, "num_chains": 4, "num_steps": 4} | change
    with pytest.raises(ValueError, match=message):
        estimators.annealed_evidence(**call, generator=generator())


BERNOULLI = random_bernoulli(6, 2, 12)


POINTS = BERNOULLI.sample(3, generator=generator(1))


def test_with_two_temperatures_annealing_is_importance_sampling_from_the_prior() -> None:
    """β = 0 and 1: the move comes after the only weight."""
    found = estimators.ais(BERNOULLI, POINTS, 50, 2, generator=generator(4))
    z = latent.from_prior(BERNOULLI, POINTS, None).sample(50, generator=generator(4))
    log_likelihood = BERNOULLI.log_factors(POINTS, z).sum(dim=-1)
    expected = (log_likelihood.logsumexp(dim=0) - math.log(50)).mean()
    assert found == pytest.approx(expected.item(), abs=1e-10)


def test_annealing_ends_at_the_posterior_and_begins_at_the_prior() -> None:
    """With three temperatures β has to be 0, 1/2, 1: shifted, another ratio is estimated."""
    found = estimators.ais(BERNOULLI, POINTS, 4000, 3, generator=generator(4))
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
    estimators.ais(BernoulliPCA(torch.zeros(3, 1)), torch.ones(2, 3), 50, 4, generator=generator())
    factors = torch.tensor([1.05, 0.95])
    expected = torch.stack([0.2 * factors**k for k in range(3)])
    torch.testing.assert_close(torch.stack(steps).expand(3, 2), expected)
    # A sigmoid: as dense at one end as at the other, and denser than in the middle.
    assert betas[0] + betas[1] == pytest.approx(1.0) and betas[2] == 1.0
    assert betas[0] < betas[1] - betas[0]
