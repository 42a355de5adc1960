"""PPCA: what every tractable model satisfies, its closed form, its gradients."""

from __future__ import annotations

import math

import pytest
import torch
from cases import EXACT, TractableModelCase
from models import generator, random_ppca
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from mpt_lml import PPCA, gaussian, masks
from mpt_lml.models import ppca
from mpt_lml.numerics import log_normal

PPCAS = {
    "D=1 K=0": random_ppca(1, 0),
    "D=1 K=1": random_ppca(1, 1),
    "D=4 K=0": random_ppca(4, 0),
    "D=5 K=2": random_ppca(5, 2, seed=1),
    "D=6 K=6": random_ppca(6, 6, seed=2),
    "D=7 K=9": random_ppca(7, 9, seed=3),
}


@pytest.mark.parametrize("model", PPCAS.values(), ids=PPCAS.keys())
class TestPPCA(TractableModelCase):
    def test_conditionals_equal_the_dense_ones(self, model: PPCA) -> None:
        x, mask = self.data(model), self.every_mask(model)
        values = model.log_conditional(x, mask)
        for row, value in zip(mask, values, strict=True):
            mean, covariance = gaussian.condition_dense(x, model.mean, model.covariance, row)
            dense = log_normal(x[:, row] - mean, covariance.diagonal())
            torch.testing.assert_close(value[:, row], dense, atol=EXACT, rtol=0)

    def test_marginal_equals_the_dense_one(self, model: PPCA) -> None:
        x = self.data(model)
        dense = gaussian.log_density(x, model.mean, model.covariance)
        torch.testing.assert_close(model.log_marginal(x), dense, atol=EXACT, rtol=0)
        oracle = torch.distributions.MultivariateNormal(model.mean, model.covariance).log_prob(x)
        torch.testing.assert_close(dense, oracle, atol=EXACT, rtol=0)

    def test_permuting_coordinates_changes_nothing(self, model: PPCA) -> None:
        x, mask = self.data(model), self.every_mask(model)
        order = torch.randperm(model.num_features, generator=generator(3))
        moved = PPCA(model.loadings[order], model.noise_variance, model.mean[order])
        torch.testing.assert_close(
            moved.log_conditional(x[:, order], mask[:, order]),
            model.log_conditional(x, mask)[:, :, order],
            atol=EXACT,
            rtol=0,
        )

    def test_sampler_has_the_covariance_of_the_scorer(self, model: PPCA) -> None:
        count = 40_000
        x = model.sample(count, generator=generator(11))
        covariance = model.covariance
        # Var of a product moment of a Gaussian: S_ii S_jj + S_ij^2 (Isserlis), mean known.
        spread = (covariance.diagonal().outer(covariance.diagonal()) + covariance**2) / count
        moment = (x - model.mean).T @ (x - model.mean) / count
        assert ((moment - covariance).abs() <= 5 * spread.sqrt()).all()
        error = (covariance.diagonal() / count).sqrt()
        assert ((x.mean(dim=0) - model.mean).abs() <= 5 * error).all()


def test_gradient_of_the_score_agrees_with_finite_differences() -> None:
    model = random_ppca(5, 2, seed=4)
    x, mask = model.sample(4, generator=generator(1)), masks.subsets(5)[1:]

    def score(loadings: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return PPCA(loadings, noise, model.mean).mean_log_conditional(x, mask).sum()

    loadings = model.loadings.clone().requires_grad_()
    noise = model.noise_variance.clone().requires_grad_()
    assert torch.autograd.gradcheck(score, (loadings, noise))


def test_closed_form_is_scikit_learns_with_its_divisor() -> None:
    x = torch.from_numpy(load_digits().data / 16.0)
    for latent_dim in (1, 10, 40):
        theirs = PCA(latent_dim, svd_solver="full").fit(x.numpy())
        ours = PPCA.fit_closed_form(x, latent_dim, ddof=1)
        assert float(ours.noise_variance) == pytest.approx(theirs.noise_variance_, rel=1e-10)
        mean = ours.log_marginal(x).mean().item()
        # scikit-learn inverts the covariance and takes its determinant: 1e-9 is what it leaves.
        assert mean == pytest.approx(theirs.score(x.numpy()), rel=1e-9)
        assert PPCA.fit_closed_form(x, latent_dim).log_marginal(x).mean().item() > mean


def test_closed_form_is_a_maximum() -> None:
    x = random_ppca(6, 2, seed=5).sample(200, generator=generator(2))
    best = PPCA.fit_closed_form(x, 2)
    loadings = best.loadings.clone().requires_grad_()
    noise = best.noise_variance.clone().requires_grad_()
    mean = best.mean.clone().requires_grad_()
    value = PPCA(loadings, noise, mean).log_marginal(x).mean()
    for gradient in torch.autograd.grad(value, (loadings, noise, mean)):
        assert gradient.abs().max() < 1e-10
    for seed in range(10):
        step = 0.05 * torch.randn(6, 2, generator=generator(seed), dtype=torch.float64)
        moved = PPCA(best.loadings + step, best.noise_variance, best.mean)
        assert moved.log_marginal(x).mean() < value


def test_closed_form_with_no_latent_dimension_is_isotropic() -> None:
    x = random_ppca(4, 1, seed=6).sample(50, generator=generator(3))
    model = PPCA.fit_closed_form(x, 0)
    assert model.loadings.shape == (4, 0)
    spread = (x - x.mean(dim=0)).square().mean().item()
    assert float(model.noise_variance) == pytest.approx(spread, rel=1e-12)


def test_one_coordinate_is_a_plain_normal() -> None:
    model = PPCA(torch.tensor([[2.0]]).double(), 0.5, torch.tensor([1.0]).double())
    x = torch.tensor([[3.0]]).double()
    expected = -0.5 * (math.log(2 * math.pi * 4.5) + 4.0 / 4.5)
    mask = torch.ones(1, 1, dtype=torch.bool)
    assert model.log_marginal(x).item() == pytest.approx(expected, rel=1e-14)
    assert model.log_conditional(x, mask).item() == pytest.approx(expected, rel=1e-14)


@pytest.mark.bad_input
def test_a_mean_with_one_infinite_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="mean"):
        PPCA(torch.ones(2, 1), 1.0, torch.tensor([0.0, math.inf]))


def test_the_mean_over_data_of_a_stiff_model_is_the_mean() -> None:
    loadings = torch.randn(6, 2, generator=generator(), dtype=torch.float64)
    model = PPCA(loadings, 1e-5)  # ‖W‖² is about 10
    x, mask = model.sample(4, generator=generator(1)), masks.subsets(6)[1:]
    each = model.log_conditional(x, mask).mean(dim=1)
    torch.testing.assert_close(model.mean_log_conditional(x, mask), each, atol=1e-7, rtol=0)


@pytest.mark.parametrize("with_gradient", [False, True])
def test_conditionals_are_those_of_one_mask_at_a_time(
    with_gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More masks than are computed at once, the last ones fewer, and zeros between."""
    model = random_ppca(6, 2, seed=1)
    loadings = model.loadings.clone().requires_grad_(with_gradient)
    model = PPCA(loadings, model.noise_variance, model.mean)
    x = model.sample(9, generator=generator(1)).detach()
    mask = masks.sample_masks(17, 6, masks.UniformSize(), generator=generator(2))
    monkeypatch.setattr(ppca, "CACHE_BYTES", 3 * x.numel() * x.element_size() // 2)  # three masks
    expected = torch.cat([model.log_conditional(x, row[None]) for row in mask])
    values = model.log_conditional(x, mask)
    torch.testing.assert_close(values, expected, atol=EXACT, rtol=0)
    assert (values[~mask[:, None].expand_as(values)] == 0).all()
    assert values.requires_grad == with_gradient
    if with_gradient:
        gradients = [torch.autograd.grad(each.sum(), loadings)[0] for each in (values, expected)]
        torch.testing.assert_close(*gradients, atol=0, rtol=1e-9)


def test_a_conditional_has_gradients_in_noise_or_data_alone() -> None:
    model = random_ppca(3, 1, seed=1)
    x = model.sample(2, generator=generator(1))
    mask = masks.subsets(3)[1:]

    def at(noise: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return PPCA(model.loadings, noise).log_conditional(x, mask)

    noise = model.noise_variance.clone()
    assert torch.autograd.gradcheck(at, (noise.requires_grad_(), x))
    assert torch.autograd.gradcheck(at, (noise.detach(), x.clone().requires_grad_()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_conditionals_are_written_where_they_are_wanted(dtype: torch.dtype) -> None:
    model = random_ppca(6, 2, seed=1)
    loadings = model.loadings.to(dtype)
    x = torch.randn(4, 6, generator=generator(1), dtype=dtype)
    posterior = gaussian.LowRankPosterior.of(loadings, loadings.new_tensor(0.3), masks.subsets(6))
    expected = posterior.log_conditional(x).to(dtype)
    output = torch.full_like(expected, math.nan)
    assert posterior.log_conditional(x, out=output) is output
    torch.testing.assert_close(output, expected, atol=0, rtol=2 * torch.finfo(dtype).eps)
