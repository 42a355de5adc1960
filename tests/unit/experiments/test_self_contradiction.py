"""The share of self-contradiction in a network's error: its parts, its errors and its verdict."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from models import generator

from experiments import experiment, self_contradiction
from experiments.experiment import RunContext
from experiments.self_contradiction import (
    FAMILIES,
    GAP,
    HIGH,
    LOW,
    PLAIN,
    Data,
    OfLanguage,
    OfTables,
    findings,
    means_of,
    one_look,
    pooled,
    ratio_of_means,
    shares_of_looks,
    split,
    training,
    verdict,
)
from mpt_lml import FromFunction, orders
from mpt_lml.recorded import Finding

pytest.importorskip("transformers")
f64 = {"dtype": torch.float64}


def language() -> OfLanguage:
    return OfLanguage(8, 8, 3)


# -- the parts of the gap ---------------------------------------------------------------------------


def test_the_parts_of_two_orders_by_hand() -> None:
    """Orders of 0.2 and 0.4 of a point whose p is 0.5: the mixture is 0.3."""
    log_p = torch.tensor([[0.2], [0.4]], **f64).log()
    parts, is_heavy = split(torch.tensor([0.5], **f64).log(), log_p)
    area = 0.5 * math.log(0.08)
    tangent = 0.5 * (math.log(0.4) + 0.5 - 1 + math.log(0.2) + 2 - 1)
    plain = math.log(0.5) - area
    expected = [math.log(0.3) - area, tangent - area, plain + 0.3 / 0.5 - 1, plain]
    torch.testing.assert_close(parts[0], torch.tensor(expected, **f64))
    assert is_heavy.tolist() == [True]


def test_the_gap_is_the_mean_divergence_with_less_luck() -> None:
    """Two distributions of three points as orders: sums over the points are exact."""
    p = torch.tensor([0.5, 0.3, 0.2], **f64)
    along = torch.tensor([[0.4, 0.35, 0.25], [0.42, 0.36, 0.22]], **f64).log()
    parts, _ = split(p.log(), along)
    divergence = (p * (p.log() - along)).sum(dim=1).mean()
    torch.testing.assert_close(p @ parts[:, GAP], divergence)
    torch.testing.assert_close(p @ parts[:, PLAIN], divergence)
    variance = p @ (parts - p @ parts).square()
    assert variance[GAP] < 0.5 * variance[PLAIN]


# -- networks along orders ----------------------------------------------------------------------------


def test_the_language_is_read_along_each_order() -> None:
    learner = language()
    data = learner.draw(3, 2, generator(1))
    model = FromFunction(learner.log_values, learner.num_features)
    for order in data.order:
        found = learner.along(data.x, order)
        for row in range(3):
            ranks = order[row].flip(0).argsort()[None]  # its last place is shown first
            expected = orders.log_probability(model, data.x[row][None], ranks)[0, 0]
            torch.testing.assert_close(found[row].float(), expected.float())


def test_an_order_of_the_language_is_a_distribution() -> None:
    """The last two symbols take all values: what they have in common adds up."""
    learner = language()
    ends = torch.tensor(list(itertools.product(range(12), repeat=2)))
    x = torch.cat([torch.zeros(len(ends), 14, dtype=torch.int64), ends], dim=1)
    order = torch.arange(16).flip(0).expand(len(x), -1)  # the ends are shown last
    total = learner.along(x, order).logsumexp(dim=0)
    one = torch.zeros(1, 16, dtype=torch.int64)
    model = FromFunction(learner.log_values, learner.num_features)
    ranks = torch.arange(16)[None].clamp(max=14)
    before = orders.log_probability(model, one, ranks)[0, 0]
    last = model.log_conditional(one, torch.arange(16)[None] >= 14)[0, 0, 14:].sum()
    torch.testing.assert_close(total.float(), (before - last).float())


def test_the_tables_of_a_learner_have_its_prior() -> None:
    learner = OfTables("quadratic", 8, 12, 3)
    data = learner.draw(4, 2, generator(2))
    assert data.x.shape == (4, 2, 12) and data.order.shape == (2, 4, 12)
    expected = self_contradiction.log_evidence(data.x[:, 0], data.x[:, 1], 2)
    torch.testing.assert_close(data.exact, expected)


@pytest.mark.parametrize("learner", [language(), OfTables("linear", 8, 12, 3)])
def test_training_learns(learner: OfLanguage | OfTables) -> None:
    data = learner.draw(40, 2, generator(3))
    before = means_of(learner, data)["mean"][PLAIN]
    assert list(training(learner, 40, 0.01)) == list(range(1, 41))
    assert means_of(learner, data)["mean"][PLAIN] < 0.8 * before


# -- looks, errors, the verdict -----------------------------------------------------------------------


def test_a_look_is_judged_by_other_data_where_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the gap is below the limit, by the first data."""
    learner = language()

    def data(gap: float, seed: int) -> Data:
        drawn = learner.draw(5, 2, generator(seed))
        area = torch.stack([learner.along(drawn.x, order) for order in drawn.order]).mean(dim=0)
        return drawn._replace(exact=area + gap)

    monkeypatch.setattr(
        self_contradiction,
        "split",
        lambda exact, log_p: (
            torch.stack([exact - log_p.mean(dim=0)] * 4, dim=1),
            torch.zeros(len(exact)).bool(),
        ),
    )
    looked = one_look(learner, data(0.15, 4), data(0.5, 5), 0.16)
    torch.testing.assert_close(looked["first"], torch.full((4,), 0.15, **f64))
    torch.testing.assert_close(looked["judged"], torch.full((4,), 0.5, **f64))
    beyond = one_look(learner, data(0.17, 4), data(0.05, 5), 0.16)
    assert beyond["judged"].isnan().all()


def test_the_share_is_a_ratio_of_means_with_its_error_over_data() -> None:
    """As many samples scatter; of two networks pooled, half as much variance."""
    g = generator(6)
    root = torch.randn(4, 4, generator=g, **f64) * 0.1
    center = torch.tensor([0.6, 0.7, 1.0, 1.0], **f64)
    samples = center + torch.randn(2000, 100, 4, generator=g, **f64) @ root.T
    means = samples.mean(dim=1)
    for place in (LOW, HIGH):
        scatter = (means[:, place] / means[:, GAP]).std().item()
        one = samples[0]
        share, error = ratio_of_means(one.mean(dim=0), one.T.cov() / 100, place)
        assert share == pytest.approx(means[0, place] / means[0, GAP])
        assert error == pytest.approx(scatter, rel=0.25)
    both = torch.tensor([[1.0, 0, 2, 0], [3, 0, 4, 0]], **f64)
    mean, covariance = pooled(both, torch.eye(4, **f64).expand(2, 4, 4))
    assert mean.tolist() == [2, 0, 3, 0]
    torch.testing.assert_close(covariance, torch.eye(4, **f64) / 2)


def looks(shares: list[list[float]], error: float, above: float = 0.02) -> tuple:
    """Networks with a gap of one nat, and these lower bounds at each of their looks."""
    low = torch.tensor(shares, **f64)
    one = torch.ones_like(low).where(~low.isnan(), math.nan)
    means = torch.stack([low, low + above, one, one], dim=2)
    covariance = torch.zeros(*means.shape, 4, **f64)
    covariance[..., LOW, LOW] = covariance[..., HIGH, HIGH] = error**2
    return means, covariance


@pytest.mark.parametrize(
    ("shares", "error", "expected"),
    [
        ([[0.4, 0.6], [0.4, 0.6]], 0.001, -1),  # one look fails
        ([[0.6, 0.6], [0.7, 0.6]], 0.01, 1),
        ([[math.nan, 0.6], [math.nan, 0.6]], 0.01, 1),  # the first look does not count
        ([[0.6, 0.6], [0.7, 0.6]], 0.07, 0),  # 99 % of 0.6 reach below one half
        ([[0.49, 0.6], [0.7, 0.6]], 0.01, 0),  # one network is below one half
        ([[0.49, 0.49], [0.49, 0.49]], 0.001, 0),  # the upper bound is above one half
        ([[math.nan, math.nan]], 0.01, 0),  # nothing counts
    ],
)
def test_the_verdict(shares: list[list[float]], error: float, expected: int) -> None:
    assert verdict(*looks(shares, error)) == expected


def test_a_look_is_shared_by_the_networks_that_count() -> None:
    means, covariances = looks([[math.nan, 0.5], [0.8, 0.7]], 0.1)
    found = shares_of_looks(means, covariances)
    torch.testing.assert_close(found[:, LOW], torch.tensor([0.8, 0.6], **f64))
    torch.testing.assert_close(found[:, 1], torch.tensor([0.1, 0.1 / math.sqrt(2)], **f64))


def test_the_finding_is_the_lowest_look_that_counts() -> None:
    shares = torch.tensor([[math.nan] * 4, [0.7, 0.01, 0.8, 0.02], [0.6, 0.03, 0.9, 0.04]], **f64)
    arrays = {f"share/{family}": shares for family in FAMILIES[:2]}
    arrays |= {f"share/{FAMILIES[2]}": shares[:1]}
    assert findings(arrays) == {
        f"self-contradiction/{family}": Finding(0.6, 0.03) for family in FAMILIES[:2]
    }


def test_each_network_has_data_of_its_own() -> None:
    quick = self_contradiction.SelfContradiction.preset("quick")
    learner = quick.learner("linear", 8)
    first, judged = quick.data(learner, "linear", 8)
    assert (len(first.x), len(judged.x)) == (quick.num_first[1], quick.num_judged[1])
    assert not torch.equal(first.x[:6, 0], judged.x[:6, 0])  # the inputs are drawn first
    assert not torch.equal(first.x, quick.data(learner, "linear", 88)[0].x)


def test_the_quick_preset_has_the_shapes_that_the_docstring_says() -> None:
    outcome = experiment.run("self-contradiction", "quick", device="cpu")
    for family in FAMILIES:
        assert outcome.arrays[f"steps/{family}"].tolist() == [4, 8]
        assert outcome.arrays[f"share/{family}"].shape == (2, 4)
        assert outcome.arrays[f"verdict/{family}"] in (-1, 0, 1)
        for name in ("first", "judged"):
            assert outcome.arrays[f"{name}/{family}"].shape == (2, 2, 4)
            assert outcome.arrays[f"{name}_covariance/{family}"].shape == (2, 2, 4, 4)
            assert outcome.arrays[f"{name}_heavy/{family}"].shape == (2, 2)
        assert not outcome.arrays[f"judged/{family}"].isnan().any()
    assert set(outcome.findings) == {f"self-contradiction/{family}" for family in FAMILIES}


def test_the_limit_is_a_hundredth_of_a_nat_a_coordinate(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    monkeypatch.setattr(
        self_contradiction,
        "one_look",
        lambda learner, first, judged, limit: (
            limits.append(limit) or {"limit": torch.tensor(limit)}
        ),
    )
    quick = self_contradiction.SelfContradiction.preset("quick", small_gap=0.01)
    for family in FAMILIES:
        learner = quick.learner(family, 8)
        data = quick.data(learner, family, 8)
        quick.looked_at(learner, *data, "a network", RunContext())
    assert limits == pytest.approx([0.16, 0.16, 0.12, 0.12, 0.12, 0.12])
    assert self_contradiction.SelfContradiction.preset().small_gap == 0.01
