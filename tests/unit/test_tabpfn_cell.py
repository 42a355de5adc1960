"""Chapter 15's last cell with TabPFN: a stand-in of its signature, whose right answer is known."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from chapter_cells import defined_by

from mpt_lml import PPCA, gaussian

NOISE = 1.0


class Bars:
    """The criterion: minus the log-density of a histogram, (asked,) from logits (asked, bars)."""

    borders = torch.linspace(-60.0, 60.0, 60_001, dtype=torch.float64)

    def __call__(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        bar = torch.searchsorted(self.borders, y.to(self.borders)) - 1
        log_mass = logits.log_softmax(dim=1).gather(1, bar[:, None])[:, 0]
        return (self.borders[1] - self.borders[0]).log() - log_mass


class TabPFNRegressor:
    """``fit`` and ``predict`` as in tabpfn 9.2.0; a line with normal coefficients and known noise."""

    def __init__(self, *, random_state: int = 0) -> None:
        self.random_state = random_state

    def fit(self, X: np.ndarray, y: np.ndarray) -> TabPFNRegressor:
        assert isinstance(X, np.ndarray) and X.ndim == 2 and y.shape == (len(X),)
        assert len(X) >= 2 and len(set(y.tolist())) >= 2  # else the real one has no answer
        self.shown = torch.from_numpy(X).double(), torch.from_numpy(y).double()
        return self

    def predict(
        self, X: np.ndarray, *, output_type: str = "mean", quantiles: list[float] | None = None
    ) -> dict[str, object]:
        assert output_type == "full" and X.ndim == 2 and len(X) == 1
        inputs = torch.cat([self.shown[0], torch.from_numpy(X).double()])
        mask = torch.arange(len(inputs)) == len(inputs) - 1
        values = torch.cat([self.shown[1], torch.zeros(1).double()])[None]
        line = line_at(inputs)
        mean, variance = gaussian.condition_dense(values, line.mean, line.covariance, mask)
        middles = (Bars.borders[1:] + Bars.borders[:-1]) / 2
        logits = -0.5 * (middles - mean[0]).square() / variance[0, 0]
        return {"criterion": Bars(), "logits": logits[None], "mean": mean[0].numpy()}


def line_at(inputs: torch.Tensor) -> PPCA:
    return PPCA(torch.cat([inputs**0, inputs], dim=1), NOISE)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("tabpfn")
    module.TabPFNRegressor = TabPFNRegressor
    monkeypatch.setitem(sys.modules, "tabpfn", module)


def test_all_orders_add_up_to_the_log_probability_given_two_rows(installed: None) -> None:
    names = defined_by("15-whole-tables", "regressor_class", "def check_table")
    inputs, outputs = names["own_x"].double(), names["own_y"].double()[None]
    line = line_at(inputs)
    first_two = torch.arange(len(inputs))[None] < 2
    given = line.log_subset_marginal(outputs, first_two)
    expected = (line.log_marginal(outputs) - given).item()
    assert names["own_totals"].shape == (8,)
    # Bars have a width of 0.002, and outputs one of 7 digits.
    assert (names["own_totals"] - expected).abs().max() < 0.01
    assert names["own_mixture"] == pytest.approx(expected, abs=0.01)
