"""The networks of whole tables: their training, their evidence, and what warns of a wrong one."""

from __future__ import annotations

import math

import pytest
import torch
from models import generator
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from experiments import experiment, whole_tables
from experiments.trainings.row_network import (
    hidden_rows,
    objective,
    train_row_network,
)
from experiments.whole_tables import (
    ELSEWHERE,
    OffTotals,
    along,
    log_evidence,
    logistic_regression,
    roc_area,
    same_choice,
    tables_from,
)
from mpt_lml import PPCA, orders
from mpt_lml.models.row_network import (
    NOISE_VARIANCE,
    PRIORS,
    RowConditional,
    RowNetwork,
    draw_tables,
)

# -- the training -----------------------------------------------------------------------------------


def test_the_objective_is_the_mean_score_of_the_hidden_rows() -> None:
    network = RowNetwork(8, seed=0)
    x, y = draw_tables("linear", 2, 3, generator=generator(1))
    mask = torch.tensor([[True, False, False], [True, True, False]])
    mean, log_variance = network(x, y, mask)
    normal = torch.distributions.Normal(mean, (0.5 * log_variance).exp()).log_prob(y)
    expected = 0.5 * (normal[0, 0] + 0.5 * (normal[1, 0] + normal[1, 1]))
    torch.testing.assert_close(objective(network, x, y, mask), expected)


def test_every_size_is_hidden_equally_often() -> None:
    mask = hidden_rows(24)
    assert mask.sum(dim=1).tolist() == 2 * list(range(1, 13))


def test_one_step_is_adams_first() -> None:
    """It is the sign of the gradient times the rate; then the weights are rounded to halves."""
    rate = 1e4  # a cycle of a single step is at its end, where the rate is the 250,000th part
    trained = train_row_network(
        "quadratic", seed=4, num_steps=1, batch_size=12, learning_rate=rate, width=8
    )
    network = RowNetwork(8, seed=4)
    x, y = draw_tables("quadratic", 12, generator=generator(4))
    (-objective(network, x, y, hidden_rows(12))).backward()
    for before, after in zip(network.parameters(), trained.parameters(), strict=True):
        assert before.grad is not None
        step = (before - after) / (rate / 250_000)
        is_clear = before.grad.abs() > 1e-6
        torch.testing.assert_close(step[is_clear], before.grad.sign()[is_clear], atol=0.03, rtol=0)
        assert (after == after.half()).all()


# -- tables and their evidence ------------------------------------------------------------------------


def test_the_evidence_is_that_of_the_exact_model() -> None:
    x, y = draw_tables("quadratic", 3, generator=generator(2))
    for degree in PRIORS.values():
        exact = [
            PPCA(torch.linalg.vander(a.double(), N=degree + 1), NOISE_VARIANCE).log_marginal(
                b[None].double()
            )
            for a, b in zip(x, y, strict=True)
        ]
        torch.testing.assert_close(log_evidence(x, y, degree), torch.cat(exact))


def test_a_total_adds_up_along_the_order() -> None:
    """Later rows left out, as if they were hidden: the same as one mask after the other."""
    network = RowNetwork(8, seed=0)
    x, y = draw_tables("linear", 2, generator=generator(3))
    order = torch.stack([torch.arange(12), torch.arange(12).roll(3)])
    totals = along(network, x, y, order)
    for row in range(2):
        ranks = order[row].argsort()[None]
        expected = orders.log_probability(RowConditional(network, x[row]), y[row][None], ranks)
        torch.testing.assert_close(totals[row].float(), expected[0, 0])


def test_families_from_elsewhere_have_the_moments_of_their_names() -> None:
    """The matrix of second moments of two, whitened; of Student's noise, which has none, quantiles."""
    scale = math.sqrt(NOISE_VARIANCE)
    for family in ("cubic", "noise"):
        x, y = tables_from(family, 1, 4000, generator(5))
        powers = torch.linalg.vander(x, N=4 if family == "cubic" else 2)
        variance = NOISE_VARIANCE * (9.0 if family == "noise" else 1.0)
        covariance = powers @ powers.mT + variance * torch.eye(12)
        white = torch.linalg.solve(torch.linalg.cholesky(covariance), y[..., None])[..., 0]
        torch.testing.assert_close(white.mT @ white / 4000, torch.eye(12), atol=0.12, rtol=0)
    x, y = tables_from("student", 1, 20_000, generator(6))
    # Where x is near 0 an output is a normal coefficient plus the noise.
    near = x.abs() < 0.05
    draws = stats.norm.rvs(size=200_000, random_state=1)
    draws = draws + scale * stats.t(2).rvs(size=200_000, random_state=2)
    for quantile in (0.5, 0.9, 0.99):
        expected = float(torch.tensor(draws).abs().quantile(quantile))
        assert y[near].abs().quantile(quantile).item() == pytest.approx(expected, rel=0.1)


# -- what is judged ---------------------------------------------------------------------------------


def test_the_factors_are_compared_on_the_tables_of_both_priors() -> None:
    """Four tables by hand: two beyond a nat and judged alike, one judged otherwise, one unclear."""
    linear = {
        "own/exact": torch.tensor([-10.0, -10.0]),
        "own/mixture": torch.tensor([-10.5, -10.0]),
        "other/exact": torch.tensor([-20.0, -20.0]),
        "other/mixture": torch.tensor([-20.0, -20.0]),
    }
    quadratic = {
        "other/exact": torch.tensor([-13.0, -12.0]),
        "other/mixture": torch.tensor([-13.0, -9.0]),
        "own/exact": torch.tensor([-15.0, -19.5]),
        "own/mixture": torch.tensor([-15.0, -25.0]),
    }
    choice, factor = same_choice(linear, quadratic)
    torch.testing.assert_close(choice, torch.tensor([2 / 3, 3.0]).double())
    # Exact factors −3, −2, 5, 0.5; of the networks −2.5, 1, 5, −5.
    error = torch.tensor([0.5, 3.0, 0.0, -5.5])
    torch.testing.assert_close(factor, torch.stack([error.mean(), error.std(), torch.tensor(5.5)]))


def test_the_area_under_the_roc_curve_is_the_librarys() -> None:
    is_true = torch.arange(70) < 25
    score = torch.randn(70, generator=generator(7), dtype=torch.float64)
    score[:25] += 0.5
    score = (4 * score).round()  # with ties
    expected = roc_auc_score(is_true.numpy(), score.numpy())
    assert roc_area(score, is_true) == pytest.approx(expected)
    assert math.isnan(roc_area(score[6:], is_true[6:]))  # 19 that are true


def test_the_logistic_regression_is_the_librarys() -> None:
    features = torch.randn(300, 3, generator=generator(8), dtype=torch.float64)
    is_true = features[:, 0] - 0.5 * features[:, 1] > torch.randn(300, generator=generator(9))
    library = LogisticRegression(C=100.0, fit_intercept=False, tol=1e-10)
    library.fit(features.numpy(), is_true.numpy())
    expected = torch.from_numpy(library.coef_[0])
    torch.testing.assert_close(
        logistic_regression(features, is_true), expected, atol=1e-4, rtol=1e-4
    )


def test_both_together_see_what_either_sees() -> None:
    """Totals are off where the spread is large in one family, and where they are low in another."""
    count = 100
    bad = torch.arange(count) < 50

    def family(spread: torch.Tensor, area: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"exact": torch.where(bad, area + 5.0, area), "area": area, "spread": spread}

    noise = torch.rand(count, generator=generator(10), dtype=torch.float64)
    flat = torch.full((count,), -10.0).double() - noise
    wide = torch.where(bad, 3.0, 0.3).double() * (1.0 + noise)
    narrow = 0.3 * (1.0 + noise)
    low = torch.where(bad, -60.0, -10.0).double() - noise
    answers = {}
    for name in ("own", *ELSEWHERE):
        part = family(narrow, low) if name == "student" else family(wide, flat)
        answers |= {f"{name}/{key}": value for key, value in part.items()}
    warnings = OffTotals(answers, count)
    within_cubic = warnings.judged(answers, "cubic", count)[0]
    within_student = warnings.judged(answers, "student", count)[0]
    assert within_cubic[0] == 1.0 and within_student[1] == 1.0
    assert within_cubic[1] < 0.7 and within_student[0] < 0.7
    assert within_cubic[2] > 0.95 and within_student[2] > 0.95


def test_both_networks_of_a_seed_have_the_same_tables() -> None:
    quick = whole_tables.WholeTables.preset("quick")
    linear, quadratic = quick.tables("linear", 4), quick.tables("quadratic", 4)
    for one, other in zip(
        linear["own"] + linear["other"], quadratic["other"] + quadratic["own"], strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert not torch.equal(linear["own"][1], quick.tables("linear", 44)["own"][1])


def test_the_quick_preset_has_the_shapes_that_the_docstring_says() -> None:
    outcome = experiment.run("whole-tables", "quick", device="cpu")
    for prior in PRIORS:
        assert outcome.arrays[f"area_error/{prior}"].shape == (2,)
        for family in ELSEWHERE:
            assert outcome.arrays[f"auc/{prior}/{family}"].shape == (2, 2, 3)
            assert outcome.arrays[f"error/{prior}/{family}"].shape == (2, 2)
    assert outcome.arrays["choice"].shape == (2, 2)
    assert outcome.arrays["factor"].shape == (2, 3)
    # A network of four steps is nats away from the evidence, and never above it in the mean.
    worst = torch.stack([outcome.arrays[f"area_error/{prior}"] for prior in PRIORS])
    assert worst.max() < -1.0
    assert outcome.findings["whole-tables/area"].measured == pytest.approx(-worst.min().item())
    assert whole_tables.WholeTables.preset().seeds == (4, 44, 444, 4444, 44444)
