from __future__ import annotations

import pytest
import torch
from models import generator, random_ppca

from mpt_lml import PPCA, curves, gaussian, masks, objectives

EXACT = 1e-10


def pair(num_features: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(random_ppca(num_features, 2, seed=s).covariance for s in (1, 2))


def test_divergence_is_torchs() -> None:
    p, q = pair()
    zero = torch.zeros(5, dtype=torch.float64)
    first, second = (torch.distributions.MultivariateNormal(zero, c) for c in (p, q))
    expected = torch.distributions.kl_divergence(first, second).item()
    assert gaussian.divergence(p, q).item() == pytest.approx(expected, abs=EXACT)
    assert abs(gaussian.divergence(p, p).item()) <= EXACT


def lost(p: torch.Tensor, q: torch.Tensor, mask: torch.Tensor) -> float:
    """(1/M) Σ_{j∈A} E KL(p(x_j | x_R) ‖ q(x_j | x_R)): of R and j together less that of R."""

    def divergence(rows: torch.Tensor) -> float:
        if not rows.any():
            return 0.0
        return gaussian.divergence(p[rows][:, rows], q[rows][:, rows]).item()

    hidden = torch.eye(len(mask)).bool()[mask]
    each = [divergence(~mask | j) - divergence(~mask) for j in hidden]
    return sum(each) / len(each)


def test_divergence_is_what_the_score_loses_in_expectation() -> None:
    """The mean score of x from N(0, p) needs only its second moment, which is p."""
    first, second = random_ppca(5, 2, seed=1), random_ppca(5, 2, seed=2)
    p, q = first.covariance, second.covariance
    mask = masks.subsets(5)[1:]
    noise = torch.tensor(0.3, dtype=torch.float64)
    right, wrong = (objectives.mask_scores(m.loadings, noise, p, mask) for m in (first, second))
    for row, expected in zip(mask, (right - wrong).tolist(), strict=True):
        assert lost(p, q, row) == pytest.approx(expected, abs=EXACT)


def test_bias_identity() -> None:
    """bias_M(θ) − bias_M(θ*) = KL(p* ‖ p_θ) − D K_M(θ), both sides from different formulas."""
    first, second = random_ppca(5, 2, seed=1), random_ppca(5, 2, seed=2)
    p, q = first.covariance, second.covariance
    noise = torch.tensor(0.3, dtype=torch.float64)
    pairs = torch.stack([second.loadings, first.loadings])
    bias = 5 * objectives.curve(pairs, noise, p) - objectives.log_marginal(pairs, noise, p)[:, None]
    for size in range(1, 6):
        rows = masks.all_masks(5, size)
        right = gaussian.divergence(p, q).item() - 5 * sum(lost(p, q, r) for r in rows) / len(rows)
        moved = (bias[0, size - 1] - bias[1, size - 1]).item()
        assert moved == pytest.approx(right, abs=1e-9)


def test_both_ways_have_one_derivative() -> None:
    w = torch.randn(6, 2, generator=generator(5), dtype=torch.float64)
    x, mask = PPCA(w, 1e-2).sample(40, generator=generator(6)), masks.subsets(6)[1:]
    found = []
    for careful in (False, True):
        at = [w.clone().requires_grad_(), torch.tensor(1e-2).double().requires_grad_()]
        given = gaussian.LowRankPosterior.of(*at, ~mask, careful=careful)
        assert given.careful == careful
        each, joint = given.log_conditional(x), given.log_marginal(x)
        values = torch.cat([each.mean(dim=1)[mask], joint.mean(dim=1), given.variance()[mask]])
        weights = torch.randn(len(values), generator=generator(7), dtype=torch.float64)
        found.append(torch.autograd.grad(weights @ values, at))
    for quick, careful in zip(*found, strict=True):
        torch.testing.assert_close(quick, careful, atol=0, rtol=1e-7)


def test_area_where_rounding_once_was_thirteen_nats_a_coordinate() -> None:
    """D = 200 and σ² = 1e-8: conditionals of single targets add up to log p along every order."""
    w = torch.randn(200, 5, generator=generator(0), dtype=torch.float64)
    model = PPCA(w, 1e-8)
    x = model.sample(3, generator=generator(1))
    area = curves.sampled_curve(model, x, 1, generator=generator(3), targets="one", scheme="nested")
    assert abs(area.area() - model.log_marginal(x).mean().item()) <= 200 * 1e-8


def test_single_precision_is_double_rounded_once() -> None:
    """σ² = 1e-4: single precision alone is nats off in the third digit."""
    w = torch.randn(20, 3, generator=generator(1))
    narrow = PPCA(w, 1e-4, torch.ones(20))
    wide = PPCA(w.double(), narrow.noise_variance.double(), torch.ones(20).double())
    x, mask = narrow.sample(9, generator=generator(2)), masks.all_masks(20, 1)
    for name in ("log_conditional", "mean_log_conditional", "log_subset_marginal"):
        given = ~mask if name == "log_subset_marginal" else mask
        got, wanted = getattr(narrow, name)(x, given), getattr(wide, name)(x.double(), given)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, wanted.float(), atol=0, rtol=3e-7)


def test_data_of_fewer_rows_than_dimensions_have_a_fit() -> None:
    x = torch.randn(3, 5, generator=generator(8), dtype=torch.float64)
    model = PPCA.fit_closed_form(x, 4, noise_variance=0.1)
    assert model.loadings.shape == (5, 4)
    assert (model.loadings[:, 2:] == 0).all()  # two directions vary more than the noise at most


@pytest.mark.bad_input
class TestRefused:
    MESSAGE = r"rounding in double precision changes .* by \de[-+]\d+ nats a coordinate, more than"

    def test_noise_that_rounding_swallows(self) -> None:
        w = torch.randn(5, 3, generator=generator(1), dtype=torch.float64)
        with pytest.raises(ValueError, match=f"noise_variance is so small .*{self.MESSAGE}"):
            PPCA(1e5 * w, 1e-8).log_marginal(torch.zeros(1, 5, dtype=torch.float64))

    def test_moments_that_have_lost_their_digits(self) -> None:
        """One last bit of the moment is more than 1e-8 nats: the data have what it has lost."""
        w = torch.randn(5, 3, generator=generator(1), dtype=torch.float64)
        model = PPCA(1e2 * w, 1e-6)
        x = model.sample(9, generator=generator(2))
        moment = objectives.second_moment(x)
        assert model.mean_log_conditional(x, masks.subsets(5)[1:]).isfinite().all()
        with pytest.raises(ValueError, match=f"{self.MESSAGE} .* methods of PPCA"):
            objectives.log_marginal(model.loadings, model.noise_variance, moment)

    def test_data_that_contradict_each_other(self) -> None:
        """Twins that differ by 10^11 standard deviations: nothing is known of the rest."""
        w = torch.randn(5, 3, generator=generator(1), dtype=torch.float64)
        model = PPCA(torch.cat([w[:2], w[:3]]), 1e-14)
        mask = torch.tensor([[False, True, False, True, False]])
        x = 1e4 * torch.eye(5, dtype=torch.float64)[:1]
        with pytest.raises(ValueError, match=self.MESSAGE):
            model.log_conditional(x, mask)

    def test_covariances_that_are_almost_flat(self) -> None:
        w = torch.randn(5, 3, generator=generator(1), dtype=torch.float64)
        flat, x = PPCA(w, 1e-12).covariance, torch.ones(2, 5, dtype=torch.float64)
        mask = torch.arange(5) < 2
        with pytest.raises(
            ValueError, match=f"covariance has directions so narrow .*{self.MESSAGE}"
        ):
            gaussian.log_density(x, x[0], flat)
        with pytest.raises(ValueError, match=self.MESSAGE):
            gaussian.condition_dense(x, x[0], flat, mask)
        with pytest.raises(ValueError, match=f"q has .*{self.MESSAGE}"):
            gaussian.divergence(torch.eye(5, dtype=torch.float64), flat)


def test_a_dense_conditional_is_a_ratio_of_densities() -> None:
    """log p(x_A | x_R) = log p(x) − log p(x_R), with a mean that is not zero."""
    covariance, _ = pair()
    mean = torch.arange(5, dtype=torch.float64)
    x = mean + torch.randn(4, 5, generator=generator(3), dtype=torch.float64)
    mask = torch.tensor([True, False, True, False, False])
    center, spread = gaussian.condition_dense(x, mean, covariance, mask)
    conditional = torch.distributions.MultivariateNormal(center, spread).log_prob(x[:, mask])
    rest = gaussian.log_density(x[:, ~mask], mean[~mask], covariance[~mask][:, ~mask])
    ratio = gaussian.log_density(x, mean, covariance) - rest
    torch.testing.assert_close(conditional, ratio, atol=EXACT, rtol=0)
