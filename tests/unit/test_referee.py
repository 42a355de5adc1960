"""The referee: its numbers against sums over every string, and its two rules."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from models import generator

from mpt_experiments import language_trainings
from mpt_experiments.experiment import RunContext
from mpt_experiments.findings import referee
from mpt_experiments.findings.referee import Questions, Referee, nearer, numbers
from mpt_experiments.language_trainings import Training
from mpt_lml import orders

pytest.importorskip("transformers")
QUICK = Referee.preset("quick")


def every_string(training: Training) -> torch.Tensor:
    num_values = training.language().num_values
    return torch.tensor(list(itertools.product(range(num_values), repeat=training.num_features)))


def test_a_gap_is_a_divergence() -> None:
    """E_p[log p − log p_π] by every string, against the mean over the sequences of a test."""
    training = Training("near", 3, "uniform", 8, (1,), 4, 8, 3e-3, True)
    weights = training.train(RunContext())["4"]
    network = training.network_after(weights[0])
    x = every_string(training)
    source = training.language()
    log_probability = source.log_marginal(x)
    draw = generator(2)
    sequences = source.sample(600, generator=draw)
    truth = source.log_marginal(sequences)
    values = numbers(Questions(sequences, 16, generator=draw).answers(network))
    for name, rule in referee.RULES.items():
        along = orders.adaptive(network, x, rule).log_probability.double()
        # The mask token keeps a little probability, so these may add up to less than 1.
        assert along.exp().sum() < 1 + 1e-6
        divergence = (log_probability.exp() * (log_probability - along)).sum().item()
        gaps = truth - values[name]
        assert abs(gaps.mean().item() - divergence) < 4 * gaps.std().item() / math.sqrt(600)
    exact = orders.exact(network, x)
    area_gap = (log_probability.exp() * (log_probability - exact.mean)).sum().item()
    gaps = truth - values["area"]
    assert abs(gaps.mean().item() - area_gap) < 4 * gaps.std().item() / math.sqrt(600)


def test_the_source_itself_has_no_gap() -> None:
    source = language_trainings.near(5)
    draw = generator(1)
    sequences = source.sample(7, generator=draw)
    truth = source.log_marginal(sequences)
    values = numbers(Questions(sequences, 16, generator=draw).answers(source))
    for name in referee.DISTRIBUTIONS:
        torch.testing.assert_close(values[name], truth, atol=1e-9, rtol=0)
    assert (values["mixture-16-above"] - truth).abs().max() < 1e-9
    assert (values["pseudo"] != truth).all()


def test_a_run_goes_on_from_what_it_kept(tmp_path) -> None:
    first = QUICK.run(RunContext(folder=tmp_path))
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert len(kept) == len(referee.LAWS) * (1 + len(QUICK.seeds))
    again = QUICK.run(RunContext(folder=tmp_path))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    for name, array in first.arrays.items():
        assert torch.equal(array, again.arrays[name]), name
    shape = (len(QUICK.sources), len(referee.LAWS), len(QUICK.seeds))
    for name in referee.NUMBERS:
        assert first.arrays[f"gap/{name}"].shape == shape


def test_the_rule_asks_for_every_source() -> None:
    near = torch.tensor([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9]])
    far = near + torch.tensor([0.5, 0.6, 0.4])
    assert nearer(near, far)
    assert not nearer(far, near)
    far[1] = near[1] + torch.tensor([0.5, -0.6, 0.4])  # of both signs on the second source
    assert not nearer(near, far)
    # A number that overshoots is as far as it overshoots.
    assert nearer(torch.full((1, 3), 0.1), torch.tensor([[-0.5, -0.6, -0.7]]))


def test_agreement_of_rankings() -> None:
    values = torch.arange(5.0)
    assert referee.agreement(values, values**3) == pytest.approx(1)
    assert referee.agreement(values, -values) == pytest.approx(-1)
