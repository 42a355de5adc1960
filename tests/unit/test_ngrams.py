"""Kneser–Ney n-grams: against counting by hand, and as distributions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from models import generator

from mpt_experiments.findings.siblings import KneserNey

TEXTS = [[0, 1, 2, 0, 1, 3], [1, 2, 0], [2, 2, 1, 0, 1], [3]]
START = 4  # one more than the words 0..3


def model(order: int) -> KneserNey:
    return KneserNey([torch.tensor(text) for text in TEXTS], 4, order)


def by_hand(history: tuple[int, ...], word: int, order: int) -> float:
    """Chen and Goodman's formula, from sets of n-grams."""
    texts = [(START,) * (order - 1) + tuple(text) for text in TEXTS]
    counts: dict[tuple[int, ...], int] = {}
    for text in texts:
        for end in range(order - 1, len(text)):
            gram = text[end - order + 1 : end + 1]
            counts[gram] = counts.get(gram, 0) + 1
    p = 0.25
    levels = [counts]
    for _ in range(order - 1):
        shorter: dict[tuple[int, ...], int] = {}
        for gram in levels[0]:
            shorter[gram[1:]] = shorter.get(gram[1:], 0) + 1
        levels.insert(0, shorter)
    for length, level in enumerate(levels, start=1):
        context = history[len(history) - length + 1 :]
        ones, twos = (list(level.values()).count(n) for n in (1, 2))
        discount = ones / (ones + 2 * twos)
        follow = {gram: n for gram, n in level.items() if gram[:-1] == context}
        if follow:
            kept = max(level.get((*context, word), 0) - discount, 0)
            p = (kept + discount * len(follow) * p) / sum(follow.values())
    return p


@pytest.mark.parametrize("order", [1, 2, 3])
def test_probabilities_are_those_counted_by_hand(order: int) -> None:
    rows = torch.randint(4, (20, 5), generator=generator(1))
    found = model(order).log_probability(rows)
    for row, values in zip(rows.tolist(), found.tolist(), strict=True):
        history = (START,) * (order - 1)
        for word, value in zip(row, values, strict=True):
            assert value == pytest.approx(math.log(by_hand(history, word, order)), abs=1e-12)
            history = (*history, word)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_all_texts_of_one_length_have_probability_one(order: int) -> None:
    rows = torch.tensor(list(itertools.product(range(4), repeat=4)))
    total = model(order).log_probability(rows).sum(dim=1).exp().sum()
    assert total.item() == pytest.approx(1, abs=1e-12)
