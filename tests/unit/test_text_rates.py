"""Which masking rate, for the small BERT on text: the statistics on curves that are known."""

from __future__ import annotations

import pytest
import torch
from models import generator

from mpt_lml.experiments import text_rates
from mpt_lml.experiments.bert_curve import SentenceCurves

PERCENT = tuple(range(1, 100, 2))


def made_up(num_sentences: int, noise: float) -> SentenceCurves:
    """S(r) = −1 − 2r for every sentence, D = 20 or 40, with noise that no mask explains."""
    rate = torch.tensor(PERCENT, dtype=torch.float64) / 100
    normal = torch.randn(num_sentences, 1, len(PERCENT), generator=generator(1)).double()
    raw = -1 - 2 * rate + noise * normal
    size = torch.tensor([20, 40]).repeat(num_sentences // 2)
    weights = torch.full((len(PERCENT),), 1 / len(PERCENT), dtype=torch.float64)
    return SentenceCurves(
        tuple(map(float, PERCENT)), raw, torch.zeros_like(raw), raw[:, 0, -1], size, weights
    )


def test_a_straight_curve_crosses_at_one_half() -> None:
    found = text_rates.summary(made_up(100, 0.0), PERCENT, 10)
    assert found["crossover"].tolist() == pytest.approx([0.5, 0.0], abs=1e-9)
    # From 15 to 25 % the score falls by 0.2 a token, D is 30 on average.
    assert found["change"][0].item() == pytest.approx(-0.2 * 30, abs=1e-9)
    assert found["bias"][PERCENT.index(15), 0].item() == pytest.approx(2 * 0.35 * 30, abs=1e-9)
    assert found["num_features"].item() == 30


def test_errors_are_those_of_the_noise() -> None:
    """Change: the difference of two noises times D; its error over 400 sentences."""
    found = text_rates.summary(made_up(400, 0.5), PERCENT, 50)
    mean, error = found["change"].tolist()
    expected = 0.5 * 2**0.5 * ((20**2 + 40**2) / 2 + 0.2**2 * 10**2) ** 0.5 / 400**0.5
    assert error == pytest.approx(expected, rel=0.2)  # 400 draws: 4 % on a standard deviation
    assert abs(mean + 6) < 5 * error
    where, spread = found["crossover"].tolist()
    assert abs(where - 0.5) < 5 * spread < 0.2


def test_findings_are_those_of_the_first_set() -> None:
    config = text_rates.TextRates()
    arrays = {
        f"{key}/{name}": value + shift
        for name, shift in (("books", 0), ("wikitext-2", 1))
        for key, value in text_rates.summary(made_up(400, 0.1), PERCENT, 50).items()
    }
    found = text_rates._findings(config, arrays)
    assert found["crossover/small-bert"].measured == arrays["crossover/books"][0]
    assert found["25-against-15/small-bert"].standard_error == arrays["change/books"][1]
    assert abs(found["25-against-15/small-bert"].measured + 6) < 0.5
