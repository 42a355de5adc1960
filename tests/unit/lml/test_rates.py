from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch

from experiments import masking_rates
from experiments.experiment import RunContext
from experiments.masking_rates import (
    RULES,
    MaskingRates,
    expected_log_marginal,
    expected_scores,
)
from mpt_lml import PPCA, curves, gaussian, masks, objectives
from mpt_lml.theory import godambe, rates

f64 = {"dtype": torch.float64}


def equal(size: int, rho: float) -> torch.Tensor:
    """E S(x; M) of Gaussian coordinates with variance 1 and one correlation, exact."""
    r = torch.arange(size + 1, **f64)
    log_det = (r - 1) * math.log1p(-rho) + torch.log1p((r - 1) * rho)
    return -0.5 * (math.log(2 * math.pi * math.e) + log_det.diff()).flip(0)


def test_weak_dependence_crosses_in_the_middle() -> None:
    assert abs(rates.crossover(equal(40, 1e-6)).item() - 41 / 80) < 1e-3


class TestCrossover:
    def test_of_a_straight_line(self) -> None:
        rate = torch.linspace(0.1, 1.0, 10, **f64)
        lines = torch.stack([1.0 - rate, 3.0 - 2.0 * rate])
        found = rates.crossover(lines, rate, torch.tensor([0.35, 2.1], **f64))
        torch.testing.assert_close(found, torch.tensor([0.65, 0.45], **f64))

    def test_of_a_curve_that_has_its_height_at_a_size(self) -> None:
        assert rates.crossover(torch.tensor([0.0, -1.0, -2.0], **f64)).item() == pytest.approx(
            2 / 3
        )

    def test_is_where_d_times_s_is_the_area(self) -> None:
        score = equal(30, 0.4)
        at = 30 * rates.crossover(score).item()
        low = math.floor(at)
        value = score[low - 1] + (at - low) * (score[low] - score[low - 1])
        assert abs(30 * value - score.sum()) < 1e-10

    def test_between_two_sizes_is_interpolated(self) -> None:
        # Equal correlations 0.5 at D = 10, by hand: S(M) = -(h(11 - M) - h(10 - M)) with the entropies
        # h(r) = r/2 ln(2 pi e / 2) + ln(1 + r)/2, and h(10)/10 between S(7) and S(8).
        level = [0.5 * r * math.log(math.pi * math.e) + 0.5 * math.log(1 + r) for r in range(11)]
        left, right = (level[10 - m] - level[11 - m] for m in (7, 8))
        share = (left + level[10] / 10) / (left - right)
        assert 0.1 < share < 0.4  # not the middle of the step
        found = rates.crossover(equal(10, 0.5)).item()
        assert abs(found - (7 + share) / 10) < 1e-12

    @pytest.mark.parametrize("scale", [1.0, 1e-170, 1e-300])
    def test_heights_may_be_tiny(self, scale: float) -> None:
        """A product of two of them would be 0, and look like a crossing at the first rate."""
        curve = scale * torch.tensor([3.0, 2.0, 1.0, -9.0], **f64)
        # The mean, −0.75, lies 1.75 of 10 below the third height.
        assert rates.crossover(curve).item() == pytest.approx(0.75 + 0.25 * 1.75 / 10)

    def test_is_the_first(self) -> None:
        curve = torch.tensor([1.0, -1.0, 1.0, -1.0], **f64)
        assert rates.crossover(curve, torch.tensor([0.0, 0.2, 0.4, 1.0], **f64)).item() == 0.1

    def test_error_shrinks_with_the_groups(self) -> None:
        g = torch.Generator().manual_seed(0)
        rows = equal(20, 0.5) + 0.02 * torch.randn(400, 20, generator=g, **f64)
        _, small = rates.jackknife(rates.crossover, rows[:100])
        _, large = rates.jackknife(rates.crossover, rows)
        assert 1.4 < small / large < 2.8

    def test_jackknife_of_a_mean_is_its_standard_error(self) -> None:
        rows = torch.randn(30, 1, generator=torch.Generator().manual_seed(1), **f64)
        value, error = rates.jackknife(lambda mean: mean[..., 0], rows)
        assert abs(value - rows.mean().item()) < 1e-12
        assert abs(error - rows.std().item() / math.sqrt(30)) < 1e-12


def two_state(flip: float, gaps: int) -> torch.Tensor:
    """h(1), ..., h(gaps) of a fair coin that is turned with probability ``flip`` each step."""
    p = 0.5 - 0.5 * (1 - 2 * flip) ** torch.arange(1, gaps + 1, **f64)
    return -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))


def log_variance(phi: float, gaps: int) -> torch.Tensor:
    """h(1), ..., h(gaps) of AR(1) with variance 1."""
    lag = torch.arange(1, gaps + 1, **f64)
    return 0.5 * (math.log(2 * math.pi * math.e) + torch.log1p(-(phi ** (2 * lag))))


def log_binomial(n: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """log C(n, k); −inf where k is not in 0..n."""
    value = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return value.where((k >= 0) & (k <= n), -math.inf)


def curve_of_a_chain(gap_entropy: torch.Tensor, marginal_entropy: float) -> torch.Tensor:
    """E S(x; M) of D = G + 1 coordinates, of which the sets R have −E log p(x_R) = h + Σ_g h(g).

    A set of r coordinates has each of the D − g places of a gap g in a share C(D−g−1, r−2)/C(D, r).
    """
    size = len(gap_entropy) + 1
    r = torch.arange(1, size + 1, **f64)[:, None]
    gap = torch.arange(1, size, **f64)
    share = (log_binomial(size - gap - 1, r - 2) - log_binomial(torch.tensor(size), r)).exp()
    joint_entropy = marginal_entropy + ((size - gap) * share) @ gap_entropy
    return -torch.cat([torch.zeros(1, **f64), joint_entropy]).diff().flip(0)


class TestChain:
    """Closed forms of the limit, and long chains."""

    def test_limit_of_the_logarithm_to_twelve_digits(self) -> None:
        # 1 - argmax of rho E ln G, by mpmath with 40 digits from an integral without a series.
        found = rates.chain_crossover(torch.arange(1, 3000, **f64).log())
        assert abs(found - 0.658321695719613759749) < 1e-12

    def test_gaps_that_are_not_given_hardly_count_or_more_are_asked_for(self) -> None:
        num_accepted = 0
        for gaps in range(20, 80):
            with contextlib.suppress(ValueError):
                found = rates.chain_crossover(torch.arange(1, gaps + 1, **f64).log())
                assert abs(found - 0.658321695719613759749) < 1e-10
                num_accepted += 1
        assert 20 < num_accepted < 40

    @pytest.mark.parametrize("k", [1, 2, 5])
    def test_limit_of_a_ramp_in_closed_form(self, k: int) -> None:
        ramp = (torch.arange(1, 900, **f64) - 1).clamp(max=k)  # q (1 - q^k)
        assert abs(rates.chain_crossover(ramp) - (k + 1) ** (-1 / k)) < 1e-12

    @pytest.mark.parametrize("phi", [0.3, 0.9, 0.97])
    def test_long_chains_approach_the_limit_like_one_over_d(self, phi: float) -> None:
        limit, edge = (
            rates.chain_crossover(log_variance(phi, 4000)),
            0.5 * math.log(2 * math.pi * math.e),
        )
        gaps = [
            rates.crossover(curve_of_a_chain(log_variance(phi, D - 1), edge)).item() - limit
            for D in (200, 400, 800)
        ]
        assert 1.9 < gaps[0] / gaps[1] < 2.1 and 1.95 < gaps[1] / gaps[2] < 2.05
        assert 0 < gaps[2] < 2e-3

    def test_limit_of_ar1_falls_linearly_from_the_logarithm(self) -> None:
        # E ln((1 - phi^(2G))/(1 - phi^2)) = E ln G - E(G - 1)(1 - phi^2)/2 + ...
        log, far = rates.chain_crossover(torch.arange(1, 3000, **f64).log()), []
        for phi2 in (0.99, 0.999):
            far.append((log - rates.chain_crossover(log_variance(phi2**0.5, 40_000))) / (1 - phi2))
        assert far[1] > 0 and abs(far[0] / far[1] - 1) < 0.02

    def test_persistent_coin(self) -> None:
        # u(g) = g ln(1/flip) - g ln g to first order: 1 - 1/ln(1/flip), up to the order of its square.
        for flip in (1e-3, 1e-5):
            short = 1 / math.log(1 / flip)
            found = rates.chain_crossover(two_state(flip, 100_000))
            assert abs(found - (1 - short)) < short**2

    def test_scale_and_offset_do_not_matter(self) -> None:
        h = log_variance(0.95, 2000)
        assert abs(rates.chain_crossover(3 * h + 7) - rates.chain_crossover(h)) < 1e-9

    @pytest.mark.bad_input
    def test_what_no_chain_has_is_refused(self) -> None:
        log = torch.arange(1, 200, **f64).log()
        for wrong in (-log.exp(), log**2):
            with pytest.raises(ValueError, match="by less and less"):
                rates.chain_crossover(wrong)
        with pytest.raises(ValueError, match="finite"):
            rates.chain_crossover(log_variance(1.5, 9))
        with pytest.raises(ValueError, match="the curve of a long chain is flat"):
            rates.chain_crossover(torch.zeros(9, **f64))
        with pytest.raises(ValueError, match="further than 20 gaps"):
            rates.chain_crossover(log[:20])


class TestFewSizes:
    @pytest.mark.parametrize("rule", ["gauss-legendre", "clenshaw-curtis"])
    @pytest.mark.parametrize("count", [1, 3, 8])
    def test_polynomials_are_summed_exactly(self, rule: rates.Rule, count: int) -> None:
        sizes, weights = rates.sizes_and_weights(50, count, rule)
        every = torch.arange(1.0, 51.0, **f64) / 50
        for power in range(count):
            few = weights @ (sizes.double() / 50) ** power
            assert abs(few - (every**power).sum()) < 1e-9

    @pytest.mark.parametrize("rule", RULES)
    def test_every_rule_has_the_total_weight(self, rule: rates.Rule) -> None:
        for count in (1, 2, 5, 12):
            sizes, weights = rates.sizes_and_weights(200, count, rule)
            assert len(sizes) == len(weights) == count
            assert abs(weights.sum() - 200) < 1e-8

    @pytest.mark.parametrize("rule", ["gauss-legendre", "clenshaw-curtis"])
    @pytest.mark.parametrize("num_features", [9, 50, 400])
    def test_no_weight_is_negative(self, num_features: int, rule: rates.Rule) -> None:
        """Noise is multiplied by Σ|w|/D, which then is 1; and what a refusal names works."""
        refused = 0
        for count in range(1, min(num_features, 70) + 1):
            try:
                _, weights = rates.sizes_and_weights(num_features, count, rule)
            except ValueError as error:
                refused += 1
                fewer = int(str(error).partition("num_sizes=")[2].partition(",")[0])
                assert fewer < count
                _, weights = rates.sizes_and_weights(num_features, fewer, rule)
            assert abs(weights.abs().sum() / num_features - 1) < 1e-6
        assert refused > 0 or num_features == 9

    def test_weights_lost_to_rounding_are_none(self) -> None:
        """Through all sizes each is 1. With 50 of them the equations are singular up to rounding."""
        for num_features in (10, 30, 40):
            every = np.arange(1, num_features + 1)
            weights = rates._weights(every, num_features, "gauss-legendre")
            assert abs(weights - 1).max() < 0.1
        assert rates._weights(np.arange(1, 51), 50, "gauss-legendre") is None
        assert rates._weights(np.array([3, 3]), 9, "gauss-legendre") is None

    def test_a_weight_of_zero_is_not_negative(self) -> None:
        """Through 1, 2, 6 and 7 of D = 7 a cubic is summed by 2 and 6 alone: 7/2 each."""
        sizes, weights = rates.sizes_and_weights(7, 4, "clenshaw-curtis")
        assert sizes.tolist() == [1, 2, 6, 7]
        expected = torch.tensor([0.0, 3.5, 3.5, 0.0], **f64)
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("rule", ["trapezoid", "midpoint"])
    def test_all_sizes_are_the_sum(self, rule: rates.Rule) -> None:
        sizes, weights = rates.sizes_and_weights(9, 9, rule)
        assert sizes.tolist() == list(range(1, 10))
        torch.testing.assert_close(weights, torch.ones(9, **f64))


class TestRandomLoadings:
    @pytest.mark.parametrize("latent_dim", [10, 100])
    def test_curve_is_the_limit_of_many_coordinates(self, latent_dim: int) -> None:
        g = torch.Generator().manual_seed(3)
        loadings = torch.randn(400, latent_dim, generator=g, **f64)
        curve = rates.random_loadings_curve(400, latent_dim, 0.2)
        for observed in (0, 1, latent_dim // 2, 2 * latent_dim, 3 * latent_dim):
            mask = masks.sample_masks(20, 400, 400 - observed, generator=g)
            noise = torch.tensor(0.2, **f64)
            variance = gaussian.LowRankPosterior.of(loadings, noise, ~mask).variance()
            expected = (-2 * curve[399 - observed] - 1).exp() / (2 * math.pi)
            # Self-averaging: the spread of w_j' A^-1 w_j is O(1/sqrt(K)) an entry and averaged over
            # hundreds; what is left is the O(1/K) correction of the limit.
            assert variance[mask].mean().item() == pytest.approx(
                expected.item(), rel=3 / latent_dim
            )

    def test_curve_at_the_ends(self) -> None:
        curve = rates.random_loadings_curve(10**6, 5, 0.2)
        end, start = ((-2 * curve[[0, -1]] - 1).exp() / (2 * math.pi)).tolist()
        assert start == pytest.approx(5.2) and end == pytest.approx(0.2, rel=1e-4)

    @pytest.mark.parametrize("latent_dim", [100, 150])
    def test_its_crossover_is_the_measured_one(self, latent_dim: int) -> None:
        found = []
        for seed in range(3):
            g = torch.Generator().manual_seed(seed)
            model = PPCA(torch.randn(200, latent_dim, generator=g, **f64), 0.2)
            score = expected_scores(model, 3, generator=g, balanced=True).mean(dim=1)
            truth = expected_log_marginal(model) / 200
            found.append(rates.crossover(score, height=truth))
        found = torch.stack([torch.as_tensor(each) for each in found])
        # Draws of W scatter by a few thousandths; what the limit neglects is of order 1/D.
        limit = rates.crossover(rates.random_loadings_curve(200, latent_dim, 0.2))
        assert abs(found.mean() - limit) < 0.01

    def test_expected_scores_are_those_of_the_model(self) -> None:
        g = torch.Generator().manual_seed(3)
        model = PPCA(torch.randn(6, 2, generator=g, **f64), 0.3)
        rows = 6**0.5 * torch.linalg.cholesky(model.covariance).T  # second moment = covariance
        exact = curves.subset_curve(model, rows)
        sampled = expected_scores(model, 4000, generator=g)
        error = sampled.std(dim=1) / 4000**0.5
        assert ((sampled.mean(dim=1) - exact.score).abs() < 4 * error + 1e-12).all()
        balanced = torch.stack(
            [expected_scores(model, 3, generator=g, balanced=True).mean(dim=1) for _ in range(400)]
        )
        spread = balanced.std(dim=0)
        assert ((balanced.mean(dim=0) - exact.score).abs() < 4 * spread / 20 + 1e-12).all()
        assert (spread < sampled.std(dim=1) / 3**0.5 + 1e-12).all()  # than three independent masks
        assert abs(expected_log_marginal(model) - exact.area()) < 1e-10


def literal_scores(monkeypatch: pytest.MonkeyPatch, rows: list[list[float]], lml: float) -> None:
    """Scores of two masks of every size, and E log p(x), as if a model had given them."""
    scores = torch.tensor(rows, **f64)
    monkeypatch.setattr(masking_rates, "expected_scores", lambda *args, **options: scores)
    monkeypatch.setattr(masking_rates, "expected_log_marginal", lambda model: lml)


def test_the_error_of_a_rate_is_d_times_its_score_less_the_likelihood(monkeypatch) -> None:
    """The mean score of M of 20 coordinates is -M/10; it is log p(x)/20 at 10.5 of them."""
    literal_scores(monkeypatch, [[-m / 10 - 1.0, -m / 10 + 1.0] for m in range(1, 21)], -21.0)
    found = MaskingRates()._errors((20, 2, 0.3), 4)
    at_1, at_15, at_25, at_85, at_100 = -2 + 21, -6 + 21, -10 + 21, -34 + 21, -40 + 21
    assert found["error"].tolist() == pytest.approx([at_1, at_15, at_25, at_85, at_100])
    assert found["crossover"].item() == pytest.approx(10.5 / 20)


def test_few_sizes_share_as_many_masks_as_there_are_coordinates(monkeypatch) -> None:
    """Two masks of every size; the scores of M of 4 coordinates have variance 2 M^2 among masks."""
    literal_scores(monkeypatch, [[-1.0, -3.0], [-1.0, -5.0], [0.0, -6.0], [0.0, -8.0]], -10.0)
    found = MaskingRates(num_sizes=(1, 2))._few((4, 1, 0.3), 4)
    trapezoid = RULES.index("trapezoid")
    # Two sizes, 1 and 4, stand for two each, and each has two of the four masks.
    assert found["bias"][trapezoid, 1].item() == pytest.approx(2 * -2 + 2 * -4 + 10)
    assert found["variance"][trapezoid, 1].item() == pytest.approx(4 * 2 / 2 + 4 * 32 / 2)
    assert found["every_size"].item() == pytest.approx(2 + 8 + 18 + 32)


def test_findings_of_masking_rates() -> None:
    """Of two draws each, the errors at M = 1, 15, 25, 85 % and D written down."""
    settings = ((20, 5, 0.1), (20, 50, 0.1), (20, 5, 0.9), (50, 5, 0.1))
    experiment = MaskingRates(settings=settings, num_sizes=(2, 12, 16), few_settings=(2,))
    rows = [
        [[9.0, 6.0, -7.0, -8.0, -9.0], [9.0, 8.0, -5.0, -8.0, -9.0]],
        [[9.0, 1.0, 0.0, -1.0, -7.0], [9.0, 2.0, 0.0, -1.0, -7.0]],
        [[3.0, 70.0, 0.0, 0.0, -30.0], [5.0, 70.0, 0.0, 0.0, -30.0]],
        [[30.0, -70.0, 0.0, 0.0, -5.0], [30.0, -70.0, 0.0, 0.0, -5.0]],
    ]
    arrays = {"error": torch.tensor(rows, **f64)}
    arrays["crossover"] = torch.tensor([[0.4, 0.5], [0.1, 0.1], [0.2, 0.2], [0.3, 0.3]], **f64)
    arrays["few/2/bias"] = torch.zeros(2, len(RULES), 3, **f64)
    arrays["few/2/variance"] = torch.zeros_like(arrays["few/2/bias"])
    arrays["few/2/bias"][:, -1, 1] = torch.tensor([3.0, -4.0])  # by the last rule, of 12 sizes
    arrays["few/2/variance"][:, -1, 1] = torch.tensor([16.0, 9.0])
    arrays["few/2/every_size"] = torch.tensor([4.0, 1.0], **f64)
    found = experiment._findings(arrays)
    for name, first, second in (
        ("claim-masking-rate", 6 - 1, 8 - 2),  # of models that differ in K alone
        ("fig-4-smaller-rates", 6 + 8, 8 + 8),
        ("claim-bound-by-rate", 3, 5),  # the model nearest to a bound, at either end
        ("25-against-15", 7 - 6, 5 - 8),
        ("crossover", 0.4, 0.5),
        ("few-sizes/k5", 5 / 2, 5 / 1),
    ):
        assert found[name].measured == pytest.approx((first + second) / 2), name
        assert found[name].standard_error == pytest.approx(abs(first - second) / 2), name


def test_a_constraint_turns_around_which_rate_has_the_smaller_bias() -> None:
    """E log p of a normal is -(r log 2 pi e + log det)/2, here by the determinants of all sizes."""
    correlation = -0.999 / 99
    covariance = torch.full((100, 100), correlation, **f64).fill_diagonal_(1.0)
    log_det = [covariance[:r, :r].logdet().item() for r in (100, 86, 85, 76, 75)]
    log_p = -50 * math.log(2 * math.pi * math.e) - 0.5 * log_det[0]
    biases = [
        -50 * math.log(2 * math.pi * math.e) - 50 * (one_more - observed) - log_p
        for one_more, observed in (log_det[1:3], log_det[3:5])
    ]
    expected = abs(biases[1]) - abs(biases[0])
    assert masking_rates._difference_under_a_constraint() == pytest.approx(expected)
    assert expected > 1.0


def test_gradients_of_both_laws_are_unbiased() -> None:
    config = MaskingRates(num_runs=4000)
    truth = PPCA(torch.randn(10, 2, generator=torch.Generator().manual_seed(4), **f64), 0.2)
    start = (0.4 * truth.loadings).requires_grad_()
    value = objectives.log_marginal(start, truth.noise_variance, truth.covariance)
    (expected,) = torch.autograd.grad(value, start)
    laws = torch.stack([torch.full((10,), 0.1, **f64), torch.arange(10.0, 0.0, -1.0, **f64) / 55])
    loadings = start.detach().repeat(2, config.num_runs, 1, 1)
    g = torch.Generator().manual_seed(6)
    drawn = config._gradient(loadings, truth.covariance, laws, g)
    along = (drawn * expected).sum(dim=(2, 3)) / expected.square().sum()  # 1 in expectation
    error = along.std(dim=1) / config.num_runs**0.5
    assert (error < 0.025).all()  # so that a factor of 1.1 would be seen
    assert ((along.mean(dim=1) - 1.0).abs() < 3.5 * error).all()


def test_learning_rate_and_the_excess_of_sgd() -> None:
    """The stationary divergence of plain SGD is η tr(J)/4: both laws, three standard errors."""
    config = MaskingRates(num_steps=300, num_runs=32, learning_rate=3e-3)
    excess, predicted = config._descend(RunContext())
    truth, _ = masking_rates.normal_ppca(4, 10, 2)
    family = godambe.GaussianFamily.ppca(truth.loadings, truth.noise_variance.item())
    rms = godambe.Godambe.of(family).gradient_rms()
    # D Σ rms² of uniform sizes, (Σ rms)² of those in proportion to their gradient; a batch of four.
    trace = torch.stack([10 * rms.square().sum(), rms.sum().square()]) / 4
    torch.testing.assert_close(predicted, 3e-3 * trace / 4)
    error = excess.std(dim=1) / 32**0.5
    # Second order in η and the last of the transient: 10 %.
    assert ((excess.mean(dim=1) - predicted).abs() < 3 * error + 0.1 * predicted).all()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rates.sizes_and_weights(5, 6), r"num_sizes must be in 1..5, got 6"),
        (
            lambda: rates.sizes_and_weights(1000, 300),
            r"num_sizes = 300 are too many for D = 1000 .*\. Use num_sizes=86, or rule='trapezoid'",
        ),
        (
            lambda: rates.sizes_and_weights(100, 13, "clenshaw-curtis"),
            r"too many for D = 100 by clenshaw-curtis: .* negative .* Use num_sizes=12,",
        ),
        (
            lambda: rates.sizes_and_weights(5, 3, "simpson"),
            "rule must be 'midpoint' or .*'simpson'",
        ),
        (lambda: rates.crossover(torch.ones(5)), r"no crossover.*Widen the rates"),
        (
            lambda: rates.crossover(torch.rand(2, 5), height=torch.zeros(3)),
            r"height must have the shape of score without its last axis, \(2,\), got \(3,\)",
        ),
        (
            lambda: rates.crossover(torch.rand(2, 5), height=torch.zeros(2, 2)),
            r"height must have the shape of score without its last axis, \(2,\), got \(2, 2\)",
        ),
    ],
)
def test_wrong_calls_say_what_to_do(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_bend_of_random_loadings_is_exact_at_any_noise() -> None:
    """Far above it v(r) is σ² r/(r − K) to first order in σ², however small that is."""
    noise, observed = 1e-17, torch.arange(19, 1, -1, **f64)
    expected = -0.5 * (math.log(2 * math.pi) + 1 + (noise * observed / (observed - 1)).log())
    found = rates.random_loadings_curve(20, 1, noise)[:18]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dim", [1, 3, 9])
def test_the_curve_of_random_loadings_counts_what_is_observed(dim: int) -> None:
    """v² − (σ² + K − r) v − σ² r = 0 with r = D − M observed."""
    noise, size = 0.2, 7
    curve = rates.random_loadings_curve(size, dim, noise)
    v = (-2.0 * curve - 1.0).exp() / (2.0 * math.pi)
    r = size - torch.arange(1, size + 1).double()
    assert ((v.square() - (noise + dim - r) * v - noise * r).abs() <= 1e-12).all()
    assert len(curve) == size
