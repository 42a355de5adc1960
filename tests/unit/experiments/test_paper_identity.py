"""The printed identities, and the closed forms of their misprints."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from experiments.paper import identity
from mpt_lml import PPCA

ROOT = Path(__file__).parents[3]


@pytest.mark.xdist_group("identity")
def test_identities_hold_and_misprints_have_their_closed_forms(quick) -> None:
    found = quick("identity")[0].findings
    for name in ("eq-2", "eq-3", "eq-4-set", "prop-1", "eq-6", "claim-latent-variable"):
        assert found[name].measured <= 1e-10, name
    for name in ("claim-transpose", "bias-truncated-sum"):
        assert found[name].measured <= 1e-10, name
    information = math.log(25 / 12)  # of clouds and rain
    assert found["eq-4"].measured == pytest.approx(2 * information, abs=1e-12)
    assert found["prop-1-middle"].measured == pytest.approx(information / 2, abs=1e-12)
    assert found["eq-a3-line"].measured == pytest.approx(math.log(16 / 15), abs=1e-12)
    assert found["eq-4-reason"].measured == 0.0  # at D = 1, and at D = 2 with t = 2
    assert found["eq-b"].measured == 8.0  # of nine sizes; only |M| = |R| conforms
    assert found["eq-a3"].measured < -0.1  # S(x; 4) - S(x; 1) on chapter 3's rainy day
    assert found["claim-bias-unmasked"].measured > 1.0
    assert found["eq-7"].measured > 5 * found["eq-7"].standard_error > 0.0


def test_printed_formulas_where_nothing_can_hide_their_slips() -> None:
    coins = torch.full((2, 2, 2), 0.125, dtype=torch.float64)
    x, log_2 = (0, 0, 0), math.log(2)
    cell = identity.Cell(coins, x)
    differences = [cell.equation_four(t) for t in (1, 2, 3)]
    # Every conditional is log 1/2: only the multiplicity 2, 1, 2 is seen.
    assert differences == pytest.approx([-3 * log_2, 0.0, -3 * log_2], abs=1e-12)
    assert cell.middle_expression() == pytest.approx(0.0, abs=1e-12)
    assert cell.mislabeled_size(1) == pytest.approx(0.0, abs=1e-12)


def test_eq_7_loses_what_two_variances_differ_by() -> None:
    generator = torch.Generator().manual_seed(7)
    model = PPCA(torch.tensor([[1.0], [1.0]], dtype=torch.float64), 1.0)
    # Both masked: nothing is reduced, both signs agree. One masked: 2 - 1/2 against 2 + 1/2.
    assert identity.sign_loss(model, 10, generator).abs().max() < 1e-12
    wide = PPCA(torch.ones(3, 1, dtype=torch.float64), 1.0)
    loss = identity.sign_loss(wide, 40_000, generator)
    v, plus = 2 - 0.5, 2 + 0.5
    expected = 0.5 * (math.log(plus / v) + v / plus - 1)
    assert abs(loss.mean() - expected) < 5 * loss.std() / 200
