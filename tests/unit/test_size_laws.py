"""Passes to a fixed KL: the referee's number against a sum over everything, and the rest around it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from models import generator, random_hmm

from mpt_experiments.experiment import RunContext
from mpt_experiments.findings.size_laws import (
    RECIPES,
    LawsOfSizes,
    Referee,
    passes_to,
)
from mpt_lml import masks
from mpt_score import SymbolBERT

pytest.importorskip("transformers")
SOURCE = random_hmm(2, 3, 4, seed=8)


def test_the_referee_estimates_the_divergence_over_orders() -> None:
    """Against Σ_M E KL summed over all strings and all masks, which is E_σ KL(p ‖ p_σ)."""
    network = SymbolBERT(3, 4, 16, seed=1)
    x = torch.tensor(list(itertools.product(range(3), repeat=4)))
    weight = SOURCE.log_marginal(x).exp()
    exact = 0.0
    for mask in masks.subsets(4)[1:]:
        size = int(mask.sum())
        rows = mask.expand(len(x), -1)
        difference = SOURCE.log_each(x, rows) - network.log_each(x, rows)
        exact += (weight @ difference.sum(dim=1)).item() / size / math.comb(4, size)
    referee = Referee(SOURCE, 4000, generator=generator(5))
    assert referee.gap(network).item() == pytest.approx(exact, rel=0.05)
    assert referee.gap(SOURCE).item() == pytest.approx(0.0, abs=1e-12)


def test_passes_are_read_off_straight_lines_of_the_logarithm() -> None:
    halving = 8.0 * 0.5 ** torch.arange(6).double()
    assert passes_to(halving, 100, 1.0).item() == pytest.approx(300.0)
    assert passes_to(halving, 100, 3.0).item() == pytest.approx(100 * math.log2(8 / 3))
    assert passes_to(halving, 100, 0.1).item() == math.inf
    assert passes_to(torch.tensor([2.0, 3.0]), 10, 5.0).item() == 0.0


def test_a_run_that_was_stopped_has_the_same_gaps(tmp_path) -> None:
    settings = LawsOfSizes.preset("quick")
    whole = settings.run(RunContext())
    context = RunContext(folder=tmp_path)
    settings.run(context)
    (tmp_path / "bell-4.safetensors").unlink()
    again = settings.run(context)
    for name in RECIPES:
        gap = whole.arrays[f"gap/{name}"]
        assert gap.shape == (2, 5)
        assert torch.equal(gap, again.arrays[f"gap/{name}"])
    # All recipes of a seed begin with the same weights.
    assert torch.equal(whole.arrays["gap/uniform"][:, 0], whole.arrays["gap/middle"][:, 0])


def test_findings_are_ratios_to_uniform_sizes() -> None:
    arrays = {f"passes/{name}": torch.tensor([200.0, 400.0]) for name in RECIPES}
    arrays["passes/root"] = torch.tensor([100.0, 200.0])
    arrays["passes/middle"] = torch.tensor([100.0, math.inf])
    findings = LawsOfSizes().findings(arrays)
    assert findings["laws-of-sizes/root"].measured == pytest.approx(-math.log(2))
    assert "laws-of-sizes/middle" not in findings
    assert findings["laws-of-sizes/bell"].measured == 0.0
