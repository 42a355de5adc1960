"""Features that are known: probes, curves and baselines against sums, and the rules by hand."""

from __future__ import annotations

import itertools

import pytest
import torch
from models import generator
from scipy import stats

from mpt_experiments import language_trainings
from mpt_experiments.experiment import RunContext
from mpt_experiments.findings import known_features
from mpt_experiments.findings.known_features import (
    KnownFeatures,
    Questions,
    Sizes,
    Split,
    baselines,
    divergence,
    fitted_probe,
    left_by_probe,
)
from mpt_experiments.law_correlation import of_laws
from mpt_score import SymbolBERT

pytest.importorskip("transformers")
QUICK = KnownFeatures.preset("quick")


def test_a_probe_finds_the_linear_map_that_is_there() -> None:
    at = generator(1)
    features = torch.randn(600, 5, generator=at, dtype=torch.float64)
    weight = torch.randn(5, 3, generator=at, dtype=torch.float64)
    log_target = (features @ weight).log_softmax(dim=1)
    rows = Split.of(features, 400), Split.of(log_target, 400)
    assert left_by_probe(*rows) < 1e-3  # the ridge's
    other = Split.of(features[:, :2], 400)
    assert left_by_probe(other, rows[1]) > 0.1


def test_a_probe_is_the_best_linear_map_by_another_optimizer() -> None:
    at = generator(2)
    features = torch.randn(80, 3, generator=at, dtype=torch.float64)
    log_target = torch.randn(80, 4, generator=at, dtype=torch.float64).log_softmax(dim=1)
    standardized = (features - features.mean(dim=0)) / features.std(dim=0)
    weight = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias], lr=0.03)
    for _ in range(1500):
        optimizer.zero_grad()
        answer = (standardized @ weight + bias).log_softmax(dim=1)
        penalty = 0.5 * known_features.RIDGE * weight.square().sum()
        (divergence(log_target, answer) + penalty).backward()
        optimizer.step()
    best = (standardized @ weight + bias).log_softmax(dim=1).detach()
    found = fitted_probe(features, log_target)(features)
    torch.testing.assert_close(found, best, atol=0.01, rtol=0)


def test_what_the_target_excludes_costs_nothing() -> None:
    target = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.25, 0.25]], dtype=torch.float64)
    answer = torch.tensor([[0.2, 0.2, 0.6], [0.4, 0.3, 0.3]], dtype=torch.float64)
    expected = stats.entropy(target.numpy(), answer.numpy(), axis=1).mean()
    assert divergence(target.log(), answer.log()).item() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["near", "grammar"])
def test_the_curve_sums_to_the_gap(name: str) -> None:
    """Of every string and order of a short language, against what random ones estimate."""
    source = language_trainings.SOURCES[name](3)
    questions = Questions(source, Sizes(6, 6, 300, 4), generator=generator(5))
    network = SymbolBERT(source.num_values, 3, 8, "modern", seed=1)
    values = range(source.num_values)
    x = torch.tensor(list(itertools.product(values, repeat=3)))
    probability = source.log_marginal(x).exp()
    expected = []
    for size in (1, 2, 3):
        of_masks = []
        for hidden in itertools.combinations(range(3), size):
            mask = torch.zeros_like(x, dtype=torch.bool)
            mask[:, hidden] = True
            lacking = source.log_each(x, mask) - network.log_each(x, mask).double()
            of_masks.append(probability @ lacking.sum(dim=1) / size)
        expected.append(torch.stack(of_masks).mean())
    found = questions.curve(network)
    torch.testing.assert_close(found, torch.stack(expected).to(found), atol=0.06, rtol=0.1)


def test_targets_are_the_posteriors_of_what_is_seen() -> None:
    source = language_trainings.near(4)
    asked = Questions(source, Sizes(6, 5, 4, 2), generator=generator(4))
    row = 4 * 2 + 3  # the third sequence with its last symbol hidden
    assert asked.place[row] == 3
    assert asked.one_hidden[row].tolist() == [False, False, False, True]
    seen = ~asked.one_hidden[row : row + 1]
    around = source.log_posterior(asked.rows[row : row + 1], seen)[0, 3]
    torch.testing.assert_close(asked.log_posterior_around[row], around)
    # Bayes' rule: the posterior given everything is that given the others, times the emission.
    joint = around + source.emission[:, asked.symbol[row]].log()
    torch.testing.assert_close(asked.log_posterior_of_rows[row], joint.log_softmax(dim=0))


def test_who_sees_more_leaves_less() -> None:
    x = language_trainings.far(8).sample(40, generator=generator(6))
    left = baselines(language_trainings.far(8), x)
    assert left["nothing"] > left["symbol"] > left["neighbors"] > left["three"] > 0
    short = language_trainings.far(4)  # three places away is everywhere
    assert baselines(short, x[:, :4])["three"].abs() < 1e-12


def test_a_run_goes_on_from_what_it_kept(tmp_path) -> None:
    first = QUICK.run(RunContext(folder=tmp_path))
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert len(kept) == len(QUICK.laws) * (1 + len(QUICK.seeds))
    again = QUICK.run(RunContext(folder=tmp_path))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    for name, array in first.arrays.items():
        torch.testing.assert_close(array, again.arrays[name], rtol=0, atol=0, equal_nan=True)
    laws = len(QUICK.laws)
    assert first.arrays["shown"].shape == (1, 1, laws, 2, len(known_features.LAYERS))
    of_laws_again = of_laws(-first.arrays["gap"][0, 0], -first.arrays["shown"][0, 0, ..., -1])
    assert first.arrays["laws/shown"][0, 0].tolist() == pytest.approx(list(of_laws_again))


def test_only_converged_laws_are_taken() -> None:
    gap = torch.tensor([1.0, 1.2, 1.4, 1.6, 1.8, 9.0])[:, None].double()
    quality = torch.tensor([3.0, 1.0, 2.0, 2.5, 1.5, -40.0])[:, None].double()
    found = known_features._over_converged(gap, quality)
    expected = of_laws(-gap[:5], quality[:5])
    assert found.tolist() == pytest.approx([5, expected.correlation, expected.low, expected.high])
    assert known_features._over_converged(gap[2:], quality[2:])[0] == 3


def hand_made() -> dict[str, torch.Tensor]:
    """Arrays of one language and width under which every prediction comes true."""
    laws = len(QUICK.laws)
    shown = torch.ones(1, 1, laws, 2, 3)
    shown[..., 1] = 0.5
    return {
        "shown": shown,
        "hidden": torch.full((1, 1, laws, 2, 3), 0.2),
        "composed": torch.full((1, 1, laws, 2), 0.1),
        "random-hidden": torch.full((1, 1, 2, 3), 0.3),
        "laws/hidden": torch.tensor([[[0.9] + [0.0] * 7]]),
        "sizes/hidden": torch.tensor([[[0.95, 0.1, 0.1, 0.1]]]),
        "converged/shown": torch.tensor([[[6, 0.2, -0.5, 0.7]]]),
    }


BROKEN = {
    "hidden": ("laws/hidden", lambda values: values[..., 0].fill_(0.7)),
    "inner": ("shown", lambda values: values[..., 1].fill_(2.0)),
    "small": ("sizes/hidden", lambda values: values[..., 0].fill_(0.8)),
    "composed": ("composed", lambda values: values.fill_(2.0)),
    "random": ("hidden", lambda values: values[:, :, 1].fill_(0.4)),
    "converged": ("converged/shown", lambda values: values[..., 2].fill_(0.1)),
}


@pytest.mark.parametrize("prediction", known_features.PREDICTIONS)
def test_each_prediction_can_fail(prediction: str) -> None:
    assert QUICK.judged(hand_made())[:, 0, 0].tolist() == [1] * 6
    arrays = hand_made()
    name, change = BROKEN[prediction]
    change(arrays[name])
    judged = QUICK.judged(arrays)[:, 0, 0]
    failed = [
        each for each, value in zip(known_features.PREDICTIONS, judged, strict=True) if not value
    ]
    assert failed == [prediction]


def test_too_few_converged_laws_decide_nothing() -> None:
    arrays = hand_made()
    arrays["converged/shown"][..., 0] = 5
    judged = QUICK.judged(arrays)[:, 0, 0]
    assert judged.isnan().tolist() == [False] * 5 + [True]
