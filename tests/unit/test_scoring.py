"""Estimators of a score, looked up among all masks: unbiased, and of the variance that theory has."""

from __future__ import annotations

import math

import pytest
import torch

from mpt_experiments.findings import scoring
from mpt_lml import HMM, ConditionalTable, FromFunction, JointTable, orders, scores
from mpt_lml.masks import subsets
from mpt_lml.models.base import ConditionalModel

REPEATS = 20_000


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def family() -> ConditionalModel:
    """Conditionals of four coordinates that fit no joint."""
    joint = JointTable.random((3, 3, 3, 3), generator=seeded(1))
    return ConditionalTable.of(joint, 3, noise=0.7, generator=seeded(2))


X = torch.tensor([[2, 0, 1, 1]])


def found(model: ConditionalModel, passes: int, slope: float = 0.75) -> dict[str, torch.Tensor]:
    values = scoring.table(model, X, 16)
    return scoring.errors(values, passes, REPEATS, slope, seeded(3))


@pytest.mark.parametrize("passes", [8, 32])
def test_every_estimator_is_unbiased(family: ConditionalModel, passes: int) -> None:
    for name, error in found(family, passes).items():
        # Five standard errors: eight means miss them once in 200,000 seeds.
        assert abs(error.mean()) < 5 * error.std() / REPEATS**0.5, name
        assert error.std() > 0.01, name


def test_variances_are_those_of_theory(family: ConditionalModel) -> None:
    values, error = scoring.table(family, X, 16), found(family, 8)
    over = orders.exact(family, X)
    mask = subsets(4)[1:]
    score = values[1:].sum(dim=1) / mask.sum(dim=1)
    weight = torch.tensor([4.0, 6.0, 4.0, 1.0]).double().reciprocal()[mask.sum(dim=1) - 1] / 4
    uniform = 16 * (weight @ score.square() - (weight @ score).square()) / 8
    for name, expected in (("orders", over.variance[0] / 2), ("uniform sizes", uniform)):
        square = error[name].square()
        assert abs(square.mean() - expected) < 5 * square.std() / REPEATS**0.5, name
    # Strata remove the variance between sizes, coins add that of the number hidden.
    assert error["strata"].std() < error["uniform sizes"].std() < error["random t, coins"].std()


def test_random_rates_begin_at_a_thousandth(
    family: ConditionalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly_zero(*shape: int, dtype: torch.dtype, **_: object) -> torch.Tensor:
        return torch.full(shape, 1e-12, dtype=dtype)

    values = scoring.table(family, X, 16)
    monkeypatch.setattr(torch, "rand", nearly_zero)
    error = scoring.errors(values, 8, 1, 0.75, seeded(3))
    # Every coin falls below its rate, so each pass hides all and is divided by its rate.
    everything = values[-1].sum()
    size = subsets(4).sum(dim=1)
    area = scores.mean_by_size(values.sum(dim=1) / size, size, 4)[1:].sum()
    grid = 1e-3 + 0.999 * torch.arange(8).double() / 8
    assert abs(error["random t, coins"] + area - everything / 1e-3) < 1e-4
    assert abs(error["shifted grid of t, coins"] + area - (everything / grid).mean()) < 1e-4


def test_mean_squares_at_random_rates_are_those_of_many_draws(
    family: ConditionalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rates from 0.2 on have light tails, so that draws tell their mean square.
    monkeypatch.setattr(scoring, "SMALLEST_RATE", 0.2)
    drawn = found(family, 8)
    for name, expected in scoring.exact_squares(scoring.table(family, X, 16), 8).items():
        square = drawn[name].square()
        assert abs(square.mean() - expected) < 5 * square.std() / REPEATS**0.5, name
        assert square.std() / REPEATS**0.5 < 0.02 * expected, name


def test_mean_square_at_random_rates_by_a_fine_grid_of_rates(family: ConditionalModel) -> None:
    values = scoring.table(family, X, 16)
    size, total = subsets(4).sum(dim=1), values.sum(dim=1)
    # Midpoints of equal steps in ln t; the mean over t weighs each with t.
    steps = 100_000
    t = (math.log(1e-3) * (torch.arange(steps).double() + 0.5) / steps).exp()[:, None]
    weight = t[:, 0] / t.sum()
    chance = t**size * (1 - t) ** (4 - size)
    mean, square = ((weight @ (chance * (total / t) ** n).sum(dim=1)) for n in (1, 2))
    area = scores.mean_by_size(total / size, size, 4)[1:].sum()
    expected = (square - mean**2) / 8 + (mean - area) ** 2
    assert abs(scoring.exact_squares(values, 8)["random t, coins"] / expected - 1) < 1e-6


def test_a_grid_of_one_rate_is_a_random_rate(family: ConditionalModel) -> None:
    random, grid = scoring.exact_squares(scoring.table(family, X, 16), 1).values()
    assert abs(grid / random - 1) < 1e-12


def test_complete_orders_of_one_joint_are_exact() -> None:
    joint = JointTable.random((3, 3, 3, 3), generator=seeded(1))
    error = found(joint, 8)
    for name in ("orders", "orders and reverses"):
        assert error[name].abs().max() < 1e-12, name
    assert error["strata, control"].std() > 0.01
    assert found(joint, 8)["orders"].isfinite().all()


def test_a_control_variate_takes_all_where_context_says_nothing() -> None:
    alone = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.6, 0.3, 0.1], [0.25, 0.5, 0.25]])
    coins = FromFunction(lambda x, mask: alone.double().log().expand(len(x), 4, 3), 4)
    error = found(coins, 8, slope=1.0)
    assert error["strata, control"].abs().max() < 1e-12
    assert error["strata"].std() > 0.1


def test_a_table_of_the_last_places_is_a_score_given_the_others() -> None:
    language = HMM.cyclic(num_features=6)
    x = language.sample(1, generator=seeded(4))
    values = scoring.table(language, x, 4)
    assert values.shape == (16, 4) and (values[0] == 0).all()
    seen = torch.tensor([[True, True, False, False, False, False]])
    answer = language.log_marginal(x) - language.log_subset_marginal(x, seen)[0]
    order = torch.tensor([2, 0, 3, 1])
    along = values[(1 << order).cumsum(dim=0), order].sum()
    assert abs(along - answer) < 1e-12


def test_too_few_passes_for_an_order_give_nan(family: ConditionalModel) -> None:
    values = scoring.table(HMM.cyclic(), torch.zeros(1, 16).long(), 9)
    error = scoring.errors(values, 8, 10, 0.75, seeded(5))
    assert error["orders"].isnan().all() and error["strata"].isfinite().all()
    error = scoring.errors(values, 16, 10, 0.75, seeded(5))
    assert error["orders and reverses"].isnan().all() and error["orders"].isfinite().all()
