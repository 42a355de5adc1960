"""Crossover rates, their jackknife errors, and curves in closed form."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch

from mpt_lml import gaussian, masks
from mpt_lml.theory import rates

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
        lines = torch.stack([1.0 - rate, 3.0 - 3.0 * rate])
        found = rates.crossover(lines, rate, 0.35)
        torch.testing.assert_close(found, torch.tensor([0.65, 1.0 - 0.35 / 3], **f64))

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


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rates.crossover(torch.ones(5)), r"no crossover.*Widen the rates"),
        (
            lambda: rates.crossover(torch.rand(2, 5), height=math.nan),
            r"height must be a single number in \(-inf, inf\), got nan",
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
