from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

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


class InSixtyDigits:
    """log p(x_R) and log p(x_j | x_R) under N(0, W Wᵀ + σ² I) by the dense formulas.

    Their parameters are W, row by row, and σ².

    Args:
        x: one datum.
        observed: R.
        target: j.
        dim: K.
    """

    def __init__(self, x: list[float], observed: list[int], target: int, dim: int) -> None:
        self.x = [mpmath.mpf(value) for value in x]
        self.observed = observed
        self.target = target
        self.dim = dim

    def log_marginal(self, parameters: list[mpmath.mpf]) -> mpmath.mpf:
        return self.log_density(parameters, self.observed)

    def log_conditional(self, parameters: list[mpmath.mpf]) -> mpmath.mpf:
        both = self.log_density(parameters, [*self.observed, self.target])
        return both - self.log_marginal(parameters)

    def log_density(self, parameters: list[mpmath.mpf], rows: list[int]) -> mpmath.mpf:
        *entries, noise = parameters
        w = [entries[self.dim * d : self.dim * (d + 1)] for d in rows]
        covariance = mpmath.matrix(w) * mpmath.matrix(w).T + noise * mpmath.eye(len(rows))
        x = mpmath.matrix([self.x[d] for d in rows])
        square = mpmath.fdot(x, mpmath.lu_solve(covariance, x))
        log_det = mpmath.log(mpmath.det(covariance))
        return -(len(rows) * mpmath.log(2 * mpmath.pi) + log_det + square) / 2


def derivatives(
    function: Callable[[list[mpmath.mpf]], mpmath.mpf], at: list[mpmath.mpf]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient and Hessian by central differences, whose own error is 1e-30 here."""
    step = [mpmath.mpf(10) ** -20 * (abs(value) + mpmath.mpf(at[-1])) for value in at]

    def moved(*changes: tuple[int, int]) -> mpmath.mpf:
        point = list(at)
        for k, sign in changes:
            point[k] += sign * step[k]
        return function(point)

    size = range(len(at))
    gradient = [(moved((i, 1)) - moved((i, -1))) / (2 * step[i]) for i in size]
    hessian = [[mpmath.mpf(0)] * len(at) for _ in size]
    for i in size:
        for k in range(i + 1):
            total = mpmath.mpf(0)
            for first, second in itertools.product((1, -1), repeat=2):
                total += first * second * moved((i, first), (k, second))
            hessian[i][k] = hessian[k][i] = total / (4 * step[i] * step[k])
    to_tensor = partial(torch.tensor, dtype=torch.float64)
    return to_tensor([float(v) for v in gradient]), to_tensor(
        [[float(v) for v in row] for row in hessian]
    )


@pytest.mark.parametrize("kind", ["generic", "two columns alike", "two rows alike"])
@pytest.mark.parametrize("far", [1.0, 10.0])
@pytest.mark.parametrize("noise", [1e-6, 1.0, 1e6])
def test_values_and_two_derivatives_in_the_stated_range(
    noise: float, far: float, kind: str
) -> None:
    """σ²/‖W‖² from 1e-6 to 1e6, data up to 10 standard deviations out, in W and in σ²."""
    w = torch.randn(4, 2, generator=generator(1), dtype=torch.float64)
    if kind == "two columns alike":
        w[:, 1] = w[:, 0]
    if kind == "two rows alike":
        w[2] = w[0]
    w = w / w.norm()
    x = 10.0 * PPCA(w, noise).sample(1, generator=generator(2))
    mask = torch.tensor([[False, True, False, True]])
    target = 1
    exact = InSixtyDigits(x[0].tolist(), [0, 2], target, dim=2)

    def marginal(parameters: torch.Tensor) -> torch.Tensor:
        return PPCA(parameters[:-1].view(4, 2), parameters[-1]).log_subset_marginal(x, ~mask)[0, 0]

    def conditional(parameters: torch.Tensor) -> torch.Tensor:
        model = PPCA(parameters[:-1].view(4, 2), parameters[-1])
        return model.log_conditional(x, mask)[0, 0, target]

    def mean_conditional(parameters: torch.Tensor) -> torch.Tensor:
        model = PPCA(parameters[:-1].view(4, 2), parameters[-1])
        return model.mean_log_conditional(x, mask)[0, target]

    at = torch.cat([w.flatten(), torch.tensor([noise], dtype=torch.float64)])
    pairs = [
        (marginal, exact.log_marginal),
        (conditional, exact.log_conditional),
        (mean_conditional, exact.log_conditional),
    ]
    # W and σ², and their sizes: a nat in a parameter's own size is no small derivative.
    blocks = [(slice(0, 8), 1.0), (slice(8, 9), noise)]
    for ours, theirs in pairs:
        with mpmath.workdps(60):
            parameters = [mpmath.mpf(value) for value in at.tolist()]
            value = float(theirs(parameters))
            gradient, hessian = derivatives(theirs, parameters)
        assert ours(at).item() == pytest.approx(value, abs=1e-7)
        found = torch.autograd.functional.jacobian(ours, at)
        second = torch.autograd.functional.hessian(ours, at)
        for i, size in blocks:
            largest = gradient[i].abs().max().clamp(min=1.0 / size)
            assert (found[i] - gradient[i]).abs().max() <= 1e-6 * largest
            for k, other in blocks:
                largest = hessian[i, k].abs().max().clamp(min=1.0 / (size * other))
                assert (second[i, k] - hessian[i, k]).abs().max() <= 1e-6 * largest


def test_area_where_rounding_once_was_thirteen_nats_a_coordinate() -> None:
    """Little noise: conditionals of single targets add up to log p along every order."""
    w = torch.randn(200, 5, generator=generator(0), dtype=torch.float64)
    model = PPCA(w, 1e-3)  # ‖W‖² is about 1,000
    x = model.sample(3, generator=generator(1))
    area = curves.sampled_curve(model, x, 1, generator=generator(3), targets="one", scheme="nested")
    assert abs(area.area() - model.log_marginal(x).mean().item()) <= 200 * 1e-7


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
    MESSAGE = r"rounding changes log-densities by \de[-+]\d+ nats a coordinate, more than 1e-08"

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


@pytest.mark.parametrize("unit", [1e-10, 1e10])
def test_a_dense_log_density_knows_no_unit(unit: float) -> None:
    covariance, _ = pair()
    x = torch.randn(4, 5, generator=generator(3), dtype=torch.float64)
    expected = gaussian.log_density(x, x[0], covariance) - 5 * math.log(unit)
    found = gaussian.log_density(unit * x, unit * x[0], unit**2 * covariance)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


def test_more_latents_than_one_product_for_all_masks_takes() -> None:
    """D K² above the size of a core's cache."""
    w = torch.randn(80, 60, generator=generator(1), dtype=torch.float64)
    model = PPCA(w, 1.0)
    x = model.sample(2, generator=generator(2))
    observed = torch.arange(80) % 3 > 0
    found = model.log_subset_marginal(x, observed[None])[0]
    block = model.covariance[observed][:, observed]
    expected = gaussian.log_density(x[:, observed], model.mean[observed], block)
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)


MASK = masks.subsets(5)[1:]
ANSWERS: dict[str, Callable[[PPCA, torch.Tensor], object]] = {
    "exact_curve": curves.exact_curve,
    "subset_curve": curves.subset_curve,
    "log_marginal": lambda model, x: model.log_marginal(x),
    "log_subset_marginal": lambda model, x: model.log_subset_marginal(x, MASK),
    "mean_log_subset_marginal": lambda model, x: model.mean_log_subset_marginal(x, MASK),
    "log_conditional": lambda model, x: model.log_conditional(x, MASK),
    "mean_log_conditional": lambda model, x: model.mean_log_conditional(x, MASK),
    "log_each": lambda model, x: model.log_each(x, MASK[: len(x)]),
}


def at_the_edge(noise_variance: float, deviation: float) -> tuple[PPCA, torch.Tensor]:
    """A model with ‖W‖ = 1 and four data near its mean, one number of which is so many σ from it."""
    w = torch.randn(5, 2, generator=generator(1), dtype=torch.float64)
    mean = torch.ones(5, dtype=torch.float64)
    model = PPCA(w / w.norm(), noise_variance, mean)
    x = mean + 0.1 * (model.sample(4, generator=generator(2)) - mean)
    if deviation:
        x[3, 4] = 1.0 - deviation * noise_variance**0.5
    return model, x


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ANSWERS)
class TestAllRefuseAlike:
    def test_little_noise(self, name: str) -> None:
        ANSWERS[name](*at_the_edge(5.01e-11, 0))
        with pytest.raises(
            ValueError, match=r"noise_variance .* ‖W‖² is 2\.\d+e\+10 times as large"
        ):
            ANSWERS[name](*at_the_edge(4.9e-11, 0))

    def test_one_number_far_from_the_mean(self, name: str) -> None:
        ANSWERS[name](*at_the_edge(1e-2, 0.99e5))
        message = r"up to .* from the mean, 1\.0\de\+05 standard deviations"
        with pytest.raises(ValueError, match=message):
            ANSWERS[name](*at_the_edge(1e-2, 1.02e5))


@pytest.mark.bad_input
def test_moments_refuse_alike() -> None:
    w = torch.ones(2, 1, dtype=torch.float64)
    moment = 1e10 * torch.eye(2, dtype=torch.float64)
    for objective in (objectives.log_marginal, objectives.curve):
        objective(w, torch.tensor(1.01).double(), moment)
        with pytest.raises(ValueError, match=r"moment\) are up to 1e\+05 from the mean"):
            objective(w, torch.tensor(0.99).double(), moment)
        with pytest.raises(ValueError, match=r"‖W‖² is 2\.02e\+10 times as large"):
            objective(w, torch.tensor(0.99e-10).double(), 0 * moment)


@pytest.mark.bad_input
def test_every_model_of_a_batch_has_enough_noise() -> None:
    w = torch.ones(2, 1, dtype=torch.float64)
    moment = torch.eye(2, dtype=torch.float64)
    for noise, message in (
        ([1.0, 0.99e-10], r"‖W‖² is 2\.02e\+10 times as large"),
        ([1.0, 0.0], r"noise_variance must be > 0, got 0\."),
    ):
        with pytest.raises(ValueError, match=message):
            objectives.log_marginal(w.expand(2, 2, 1), torch.tensor(noise).double(), moment)
    with pytest.raises(ValueError, match=r"moment\) are up to 1e\+05 from the mean"):
        noises = torch.tensor([1.0, 0.99]).double()
        objectives.log_marginal(w.expand(2, 2, 1), noises, 1e10 * moment)


@pytest.mark.parametrize("noise", [1e-10, 1e-6, 1e-2])
def test_the_area_is_log_p_as_far_out_as_anything_is_answered(noise: float) -> None:
    """Errors grow with the square of the distance, as log p does."""
    for deviation in (1e2, 9e4):
        model, x = at_the_edge(noise, deviation)
        log_p = model.log_marginal(x).mean().item()
        assert curves.exact_curve(model, x).area() == pytest.approx(log_p, rel=1e-9)
        assert curves.subset_curve(model, x).area() == pytest.approx(log_p, rel=1e-9)


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


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["log_conditional", "log_marginal"])
def test_data_of_another_size_than_the_loadings(name: str) -> None:
    loadings = random_ppca(5, 2).loadings
    posterior = gaussian.LowRankPosterior.of(loadings, loadings.new_tensor(0.3), masks.subsets(5))
    with pytest.raises(ValueError, match=r"centered must have shape \(.*N, 5\), got \(3, 4\)"):
        getattr(posterior, name)(torch.zeros(3, 4, dtype=torch.float64))
