from __future__ import annotations

import dataclasses

import mpmath
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


class InSixtyDigits:
    """x_R, and x_j given x_R, under N(μ, W Wᵀ + σ² I) by the dense formulas."""

    def __init__(
        self,
        w: torch.Tensor,
        noise: float,
        mean: torch.Tensor,
        x: torch.Tensor,
        observed: list[int],
    ) -> None:
        rows = mpmath.matrix(w.tolist())
        self.covariance = rows * rows.T + mpmath.mpf(noise) * mpmath.eye(len(w))
        self.centered = mpmath.matrix(x.tolist()) - mpmath.matrix(mean.tolist())
        self.observed = observed
        self.x_R = mpmath.matrix([self.centered[i] for i in observed])
        self.within = mpmath.matrix([self.with_observed(i) for i in observed])
        self.whitened = mpmath.lu_solve(self.within, self.x_R)

    def with_observed(self, j: int) -> list[mpmath.mpf]:
        """Σ_jR."""
        return [self.covariance[j, i] for i in self.observed]

    def log_marginal(self) -> mpmath.mpf:
        square = mpmath.fdot(self.x_R, self.whitened)
        log_det = mpmath.log(mpmath.det(self.within))
        return -(len(self.observed) * mpmath.log(2 * mpmath.pi) + log_det + square) / 2

    def variance(self, j: int) -> mpmath.mpf:
        cross = self.with_observed(j)
        gain = mpmath.lu_solve(self.within, mpmath.matrix(cross))
        return self.covariance[j, j] - mpmath.fdot(cross, gain)

    def log_conditional(self, j: int) -> mpmath.mpf:
        variance = self.variance(j)
        residual = self.centered[j] - mpmath.fdot(self.with_observed(j), self.whitened)
        return -(mpmath.log(2 * mpmath.pi * variance) + residual**2 / variance) / 2


@pytest.mark.parametrize(("along", "beside"), [(1.0, 1.0), (1e3, 1.0), (1e7, 1e7)])
@pytest.mark.parametrize("noise", [1e-6, 1e-9, 1e-11])
def test_the_careful_way_at_little_noise(noise: float, along: float, beside: float) -> None:
    """σ²/‖W‖² down to 1e-12, data far along W and far beside it, two rows alike."""
    observed = [0, 2, 3, 5]
    w = torch.randn(6, 2, generator=generator(1), dtype=torch.float64)
    w[2] = w[0]
    z, e = (torch.randn(n, generator=generator(2), dtype=torch.float64) for n in (2, 6))
    mean = torch.randn(6, generator=generator(3), dtype=torch.float64)
    x = mean + along * w @ z + beside * noise**0.5 * e
    centered = gaussian.Centered.of(x[None], mean)
    is_observed = torch.zeros(1, 6, dtype=torch.bool)
    is_observed[0, observed] = True
    variance = torch.tensor(noise, dtype=torch.float64)
    given = gaussian.LowRankPosterior.of(w, variance, is_observed, careful=True)
    # 1e-8 nats a coordinate, or the twelfth digit.
    close = {"abs": 1e-8, "rel": 1e-12}
    with mpmath.workdps(60):
        exact = InSixtyDigits(w, noise, mean, x, observed)
        marginal = exact.log_marginal()
        assert given.log_marginal(centered).item() == pytest.approx(float(marginal), **close)
        for j in (1, 4):
            value = given.log_conditional(centered)[0, 0, j].item()
            assert value == pytest.approx(float(exact.log_conditional(j)), **close)
            log_ratio = mpmath.log(mpmath.mpf(given.variance()[0, j].item()) / exact.variance(j))
            assert abs(log_ratio) <= 1e-8


def test_the_careful_way_forgives_its_factor() -> None:
    """Where the factor is off by δ, corrections of first order leave δ² and no more."""
    w = torch.randn(6, 2, generator=generator(1), dtype=torch.float64)
    x = PPCA(w, 0.3).sample(5, generator=generator(2))
    observed = masks.subsets(6)[1:-1]
    noise = torch.tensor(0.3, dtype=torch.float64)
    given = gaussian.LowRankPosterior.of(w, noise, observed, careful=True)
    delta = 1e-6
    draws = torch.randn(given.factor.shape, generator=generator(3), dtype=torch.float64)
    factor = given.factor * (1.0 + delta * draws)
    whitened = torch.linalg.solve_triangular(
        factor, w.mT.expand(len(observed), -1, -1), upper=False
    )
    is_observed = observed[:, None].to(whitened)
    off = dataclasses.replace(
        given, factor=factor, whitened=whitened, whitened_observed=is_observed * whitened
    )
    pairs = {
        "variance": (off.variance(), given.variance()),
        "log_constant": (off.log_constant(), given.log_constant()),
        "mean": (off.mean_and_residual(x)[0], given.mean_and_residual(x)[0]),
        "residual": (off.mean_and_residual(x)[1], given.mean_and_residual(x)[1]),
        "log_marginal": (off.log_marginal(x), given.log_marginal(x)),
        "log_conditional": (off.log_conditional(x), given.log_conditional(x)),
    }
    for found, expected in pairs.values():
        error = (found - expected).abs().max()
        assert error <= 1000 * delta**2 < delta


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


def slope_of_density(
    w: torch.Tensor, noise: float, x: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """∂/∂W log N(x_R; 0, Σ) = (Σ⁻¹ x xᵀ Σ⁻¹ − Σ⁻¹) W with Σ = W_R W_Rᵀ + σ² I, for the rows in R."""
    slope = torch.zeros_like(w)
    if rows.any():
        inverse = torch.linalg.inv(w[rows] @ w[rows].mT + noise * torch.eye(int(rows.sum())).to(w))
        white = inverse @ x[rows]
        slope[rows] = (white[:, None] * white - inverse) @ w[rows]
    return slope


@pytest.mark.parametrize("far", [1.0, 1e4])
def test_the_careful_way_has_the_derivatives_of_the_quick_one(far: float) -> None:
    """Far from the model, where the quick way has found that it does not do."""
    noise = 1e-3
    w = torch.randn(5, 2, generator=generator(1), dtype=torch.float64).requires_grad_()
    x = far * torch.randn(1, 5, generator=generator(2), dtype=torch.float64)
    mask = masks.subsets(5)[1:]
    model = PPCA(w, noise)
    for row in mask:
        of_rest = slope_of_density(w.detach(), noise, x[0], ~row)
        (slope,) = torch.autograd.grad(model.log_subset_marginal(x, row[None]).sum(), w)
        expected = slope_of_density(w.detach(), noise, x[0], row)
        torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-6)
        target = int(row.int().argmax())
        with_target = (~row).index_fill(0, torch.tensor(target), True)
        value = model.log_each(x, row[None])[0, target]
        (slope,) = torch.autograd.grad(value, w)
        expected = slope_of_density(w.detach(), noise, x[0], with_target) - of_rest
        torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("far", [0.1, 1.0, 1e3])
def test_what_rounding_can_change_is_bounded_by_the_largest_number(
    noise: float, far: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths of E[z | x_R] and distances of x_j are not above what is looked at first."""
    w = torch.randn(6, 3, generator=generator(1), dtype=torch.float64)
    x = far * torch.randn(9, 6, generator=generator(2), dtype=torch.float64)
    sigma = torch.tensor(noise, dtype=torch.float64)
    given = gaussian.LowRankPosterior.of(w, sigma, masks.subsets(6))
    latent, residual = given.mean_and_residual(x)
    data = x.abs().max() / noise**0.5
    assert latent.norm(dim=-1).max() <= 6**0.5 * data
    distance = residual / given.variance().sqrt()[:, None]
    assert distance.abs().max() <= data + 6**0.5 * data

    monkeypatch.setattr(gaussian, "_NEGLIGIBLE_ROUNDING", -1.0)
    moment = x.mT @ x / len(x)
    most = given._most_rounding_of_means(moment)
    assert 0 < given._mean_conditional(moment)[1] <= most
    assert 0 < given._mean_marginal(moment)[1] <= most


def test_data_of_fewer_rows_than_dimensions_have_a_fit() -> None:
    x = torch.randn(3, 5, generator=generator(8), dtype=torch.float64)
    model = PPCA.fit_closed_form(x, 4, noise_variance=0.1)
    assert model.loadings.shape == (5, 4)
    assert (model.loadings[:, 2:] == 0).all()  # two directions vary more than the noise at most


def is_definite(matrix: torch.Tensor) -> bool:
    try:
        gaussian.require_definite("matrix", matrix)
    except ValueError:
        return False
    return True


@pytest.mark.bad_input
@pytest.mark.parametrize("seed", range(40))
def test_a_single_precision_matrix_is_definite_where_double_precision_says_so(seed: int) -> None:
    """Of rank 4 up to its last digit: what is left of six pivots is rounding, of either sign."""
    factor = torch.randn(6, 4, generator=generator(seed))
    product = factor @ factor.mT
    matrix = 0.5 * (product + product.mT)
    assert is_definite(matrix) == is_definite(matrix.double())


@pytest.mark.bad_input
def test_a_block_of_a_covariance_that_is_hardly_definite() -> None:
    """Of rank 6 up to rounding: where it passes for definite, none of its blocks needs to."""
    x = torch.zeros(1, 8, dtype=torch.float64)
    mask = torch.arange(8) == 0
    refusals = "covariance (has directions so narrow|must be positive definite)"
    for seed in range(150):
        factor = torch.randn(8, 6, generator=generator(seed), dtype=torch.float64)
        covariance = factor @ factor.mT + 1e-16 * torch.eye(8, dtype=torch.float64)
        with pytest.raises(ValueError, match=refusals):
            gaussian.condition_dense(x, x[0], covariance, mask)


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

    def test_data_so_far_along_the_loadings_that_no_digit_of_the_noise_is_left(self) -> None:
        w = torch.randn(5, 3, generator=generator(1), dtype=torch.float64)
        x = 1e14 * w[:, :1].mT
        with pytest.raises(ValueError, match=self.MESSAGE):
            PPCA(w, 1e-12).log_conditional(x, torch.arange(5)[None] < 1)

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
