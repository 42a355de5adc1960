"""The experiment on the choice of the masking rate, and few mask sizes in place of all."""

from __future__ import annotations

import math

import pytest
import torch

from experiments import masking_rates
from experiments.experiment import RunContext
from experiments.masking_rates import (
    RULES,
    MaskingRates,
    Rule,
    expected_log_marginal,
    expected_scores,
    sizes_and_weights,
)
from mpt_lml import PPCA, curves, objectives
from mpt_lml.theory import godambe, rates

f64 = {"dtype": torch.float64}


class TestFewSizes:
    @pytest.mark.parametrize("rule", ["gauss-legendre", "clenshaw-curtis"])
    @pytest.mark.parametrize("count", [1, 3, 8])
    def test_polynomials_are_summed_exactly(self, rule: Rule, count: int) -> None:
        sizes, weights = sizes_and_weights(50, count, rule)
        every = torch.arange(1.0, 51.0, **f64) / 50
        for power in range(count):
            few = weights @ (sizes.double() / 50) ** power
            assert abs(few - (every**power).sum()) < 1e-9

    @pytest.mark.parametrize("rule", ["gauss-legendre", "clenshaw-curtis"])
    def test_no_weight_is_negative_where_few_stand_for_200(self, rule: Rule) -> None:
        """Noise is multiplied by Σ|w|/D, which then is 1: all counts of the experiment."""
        for count in MaskingRates().num_sizes:
            _, weights = sizes_and_weights(200, count, rule)
            assert abs(weights.abs().sum() / 200 - 1) < 1e-9

    @pytest.mark.parametrize("rule", RULES)
    def test_every_rule_has_the_total_weight(self, rule: Rule) -> None:
        for count in (1, 2, 5, 12):
            sizes, weights = sizes_and_weights(200, count, rule)
            assert len(sizes) == len(weights) == count
            assert abs(weights.sum() - 200) < 1e-8

    def test_a_cubic_through_two_pairs_of_neighbors(self) -> None:
        """Through 1, 2, 6 and 7 of D = 7 a cubic is summed by 2 and 6 alone: 7/2 each."""
        sizes, weights = sizes_and_weights(7, 4, "clenshaw-curtis")
        assert sizes.tolist() == [1, 2, 6, 7]
        expected = torch.tensor([0.0, 3.5, 3.5, 0.0], **f64)
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("rule", ["trapezoid", "midpoint"])
    def test_all_sizes_are_the_sum(self, rule: Rule) -> None:
        sizes, weights = sizes_and_weights(9, 9, rule)
        assert sizes.tolist() == list(range(1, 10))
        torch.testing.assert_close(weights, torch.ones(9, **f64))


@pytest.mark.parametrize("latent_dim", [100, 150])
def test_the_crossover_of_random_loadings_is_the_measured_one(latent_dim: int) -> None:
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


def test_expected_scores_are_those_of_the_model() -> None:
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
