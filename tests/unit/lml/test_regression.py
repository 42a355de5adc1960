"""Regression as a model of its observations: the same mathematics, and its own closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from cases import EXACT, TractableModelCase
from models import generator
from scipy import integrate, stats

from mpt_lml import PPCA, curves, estimators, masks
from mpt_lml.models.regression import ConjugateRegression


def regression(num_data: int, dim: int, seed: int = 0, **prior: float) -> ConjugateRegression:
    inputs = torch.randn(num_data, dim, generator=generator(seed), dtype=torch.float64)
    return ConjugateRegression(inputs, **prior)


REGRESSIONS = {
    "n=1 K=1": regression(1, 1),
    "n=4 K=0": regression(4, 0, rate=0.3),
    "n=6 K=2": regression(6, 2, seed=1, prior_scale=3.0, shape=1.5, rate=0.7),
    "n=5 K=7": regression(5, 7, seed=2, shape=4.0),
}


@pytest.mark.parametrize("model", REGRESSIONS.values(), ids=REGRESSIONS.keys())
class TestConjugateRegression(TractableModelCase):
    def test_evidence_is_the_multivariate_t(self, model: ConjugateRegression) -> None:
        y = self.data(model)
        for row in self.every_mask(model):
            scaled = model.prior_scale * model.inputs[row]
            scale = torch.eye(len(scaled)) + scaled @ scaled.T
            oracle = stats.multivariate_t(
                shape=(model.rate / model.shape * scale).numpy(), df=2 * model.shape
            )
            expected = torch.from_numpy(oracle.logpdf(y[:, row].numpy()).reshape(-1))
            value = model.log_subset_marginal(y, row[None])[0]
            torch.testing.assert_close(value, expected, atol=1e-9, rtol=0)

    def test_the_noise_is_integrated_out(self, model: ConjugateRegression) -> None:
        y = self.data(model, 1)

        def integrand(noise: float) -> float:
            given = PPCA(noise**0.5 * model.prior_scale * model.inputs, noise)
            prior = stats.invgamma.pdf(noise, model.shape, scale=model.rate)
            return math.exp(given.log_marginal(y).item()) * prior

        value, _ = integrate.quad(integrand, 0, math.inf, epsabs=0, epsrel=1e-9, limit=200)
        assert model.log_marginal(y).item() == pytest.approx(math.log(value), abs=1e-7)

    def test_sampler_has_the_scale_of_the_scorer(self, model: ConjugateRegression) -> None:
        # y / (scale of the t) is Student-t: compare the fraction within one unit with its law.
        count = 40_000
        y = model.sample(count, generator=generator(4))
        scale = 1.0 + (model.prior_scale * model.inputs).square().sum(dim=1)
        inside = (y.abs() < (model.rate / model.shape * scale).sqrt()).double().mean(dim=0)
        expected = 2 * stats.t.cdf(1, 2 * model.shape) - 1
        assert ((inside - expected).abs() < 5 * math.sqrt(0.25 / count)).all()


def test_regression_with_known_noise_is_ppca() -> None:
    """Weights N(0, τ²), noise σ²: evidence and predictive by the textbook posterior of the weights."""
    inputs = torch.randn(8, 3, generator=generator(1), dtype=torch.float64)
    tau, noise = 1.7, 0.4
    model = PPCA(tau * inputs, noise)
    y = model.sample(1, generator=generator(2))
    mask = masks.all_masks(8, 3)
    values = model.log_conditional(y, mask)[:, 0]
    for row, value in zip(mask, values, strict=True):
        seen, held = inputs[~row], inputs[row]
        precision = seen.T @ seen / noise + torch.eye(3, dtype=torch.float64) / tau**2
        weights = torch.linalg.solve(precision, seen.T @ y[0, ~row] / noise)
        variance = noise + (held @ torch.linalg.inv(precision) * held).sum(dim=1)
        oracle = torch.distributions.Normal(held @ weights, variance.sqrt()).log_prob(y[0, row])
        torch.testing.assert_close(value[row], oracle, atol=EXACT, rtol=0)


def test_leave_p_out_sums_to_the_evidence() -> None:
    model = regression(8, 3, seed=3)
    y = model.sample(1, generator=generator(5))
    evidence = estimators.exact(model, y)
    assert abs(curves.exact_curve(model, y).area() - evidence) <= EXACT
    assert abs(curves.subset_curve(model, y).area() - evidence) <= EXACT
    assert estimators.exact_variance(model, y, "nested", "one") < 1e-20


def test_what_heavy_tails_draw_is_answered() -> None:
    """A 25th of a degree of freedom: its own data lie up to 1e24 units of the noise out."""
    model = regression(4, 2, seed=4, shape=0.02)
    y = model.sample(6, generator=generator(1))
    assert y.abs().max() > 1e20
    for row, expected in zip(y, model.log_marginal(y).tolist(), strict=True):
        assert curves.exact_curve(model, row[None]).area() == pytest.approx(expected, rel=1e-12)
    # So far out a density has no scale but that of y_R: p(c y_j | c y_R) is p(y_j | y_R) / c.
    far = y[y.abs().amin(dim=1) > 1e8]
    mask = torch.tensor([[True, False, False, True]])
    moved = model.log_conditional(1e3 * far, mask) - model.log_conditional(far, mask)
    expected = torch.full((len(far), 2), -3 * math.log(10.0), dtype=torch.float64)
    torch.testing.assert_close(moved[0, :, mask[0]], expected, atol=1e-10, rtol=0)


@pytest.mark.bad_input
def test_what_double_precision_cannot_tell_is_refused_in_the_words_of_the_model() -> None:
    model = regression(4, 2)
    mask = torch.eye(4).bool()
    y = torch.full((1, 4), 1e160, dtype=torch.float64)
    steep = ConjugateRegression(model.inputs, prior_scale=1e9)
    for x, given in ((y, model), (0 * y, steep)):
        message = (
            r"its squares overflow" if given is model else r"inputs times prior_scale are up to"
        )
        with pytest.raises(ValueError, match=message):
            given.log_marginal(x)
        with pytest.raises(ValueError, match=message):
            given.log_conditional(x, mask)


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["prior_scale", "rate"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_priors_must_be_positive(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a single finite number > 0, got {value}"):
        ConjugateRegression(torch.ones(3, 1), **{name: value})


@pytest.mark.bad_input
@pytest.mark.parametrize("shape", [0.0, 1.1e6, math.nan])
def test_a_noise_that_is_all_but_known_is_refused(shape: float) -> None:
    with pytest.raises(
        ValueError, match=r"shape must be a single number in \(0, 1e6\], .* use PPCA"
    ):
        ConjugateRegression(torch.ones(3, 1), shape=shape)


@pytest.mark.bad_input
def test_inputs_are_checked_at_the_door() -> None:
    with pytest.raises(ValueError, match=r"\(D, K\).*got \(3,\)"):
        ConjugateRegression(torch.ones(3))
    with pytest.raises(ValueError, match=r"inputs\[1, 0\] is nan"):
        ConjugateRegression(torch.tensor([[1.0], [math.nan]]))
    with pytest.raises(ValueError, match=r"\(N, 3\).*got \(1, 2\)"):
        ConjugateRegression(torch.ones(3, 1)).log_marginal(torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"mask\[0\] masks nothing"):
        nothing = torch.zeros(1, 3, dtype=torch.bool)
        ConjugateRegression(torch.ones(3, 1)).log_conditional(torch.zeros(1, 3), nothing)
