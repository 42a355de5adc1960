"""The networks beside the small BERT: what the causal one sees, and what is read off each."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from models import generator

import mpt_experiments
from mpt_experiments.findings.siblings import KneserNey, Siblings, log_probability
from mpt_experiments.findings.small_bert import next_scores, training_masks
from mpt_score import networks, tokens


@pytest.fixture(scope="module")
def causal():
    """Three layers, so that local and global attention have their turn."""
    return networks.small_masked_lm(50, "decoder", width=32, num_layers=3, seed=2).double()


def test_the_causal_network_has_the_weights_of_the_masked_one(causal) -> None:
    masked = networks.small_masked_lm(50, "modern", width=32, num_layers=3, seed=2)
    assert masked.num_parameters() == causal.num_parameters()


def test_each_piece_is_scored_given_those_before_it_and_no_others(causal) -> None:
    rows = torch.randint(5, 50, (4, 12), generator=generator(0))
    with torch.no_grad():
        found = next_scores(causal, rows)
        for j in (0, 4, 9):  # by hand, from the row cut before the piece
            log_p = causal(input_ids=rows[:, : j + 1]).logits[:, -1].log_softmax(dim=1)
            by_hand = log_p.gather(1, rows[:, j + 1 : j + 2])[:, 0]
            torch.testing.assert_close(found[:, j].double(), by_hand, atol=1e-5, rtol=0)
        other = rows.clone()
        other[:, 7] = 49 - other[:, 7]  # piece 6, counted from 0
        change = (next_scores(causal, other) - found).abs().amax(dim=0)
    assert (change[:6] == 0).all() and change[6] > 1e-3 and (change[7:] > 0).all()


def test_a_sentence_leaves_out_what_is_not_scored_and_what_pads_it(causal) -> None:
    lengths = torch.tensor([6, 9, 6])
    ids = torch.randint(5, 50, (3, 9), generator=generator(1))
    places = torch.arange(9)
    maskable = (places > 0) & (places < lengths[:, None] - 1)
    maskable[0, 2] = False  # an unknown word, shown
    found = log_probability(causal, tokens.Tokens(ids, ids * 0, maskable, lengths))
    with torch.no_grad():
        for n, length in enumerate(lengths.tolist()):
            values = next_scores(causal, ids[n : n + 1, :length])[0].double()
            keep = [j for j in range(length - 2) if (n, j) != (0, 1)]
            assert found[n].item() == pytest.approx(values[keep].sum().item(), abs=1e-5)


def test_fifteen_percent_is_one_size() -> None:
    mask = training_masks("fifteen", 200, 62, generator=generator(3))
    assert (mask.sum(dim=1) == 9).all()  # 9.3
    assert (training_masks("fifteen", 5, 4, generator=generator(3)).sum(dim=1) == 1).all()
    share = mask.double().mean(dim=0)  # each place alike: 4.5 standard errors of 200 masks
    assert (share - 9 / 62).abs().max() < 4.5 * (9 / 62 * 53 / 62 / 200) ** 0.5


def test_what_is_read_off_each_on_the_same_sentences() -> None:
    found = mpt_experiments.run("siblings", "quick", num_orders=8)
    arrays, text = found.arrays, "written"
    assert "area/small-bert/written" not in arrays  # the book's own has other word pieces
    count = arrays["tokens/written"].double()
    assert all(f"log_p/{n}-gram/{text}" in arrays for n in (1, 2, 3))
    for name in ("fifteen/4", "mixture/4", "mixture/5"):
        area, mixture, spread = (
            arrays[f"{k}/{name}/{text}"] for k in ("area", "mixture", "spread")
        )
        # Two estimates of one area, 32 masks and 8 orders; mixing adds half a variance over orders.
        error = torch.hypot(arrays[f"error/{name}/{text}"], spread / 8**0.5)
        assert ((mixture - area).abs() < 5 * error + spread.square()).all() and (spread > 0).all()
        assert (5 * error + spread.square() < math.log(8)).all()  # a sum in place of a mean
        mean = ((area - arrays[f"log_p/next/4/{text}"]) / count.mean()).mean()
        key = f"siblings-{name.replace('/', '-')}"
        assert found.findings[key].measured == pytest.approx(mean.item(), abs=1e-6)
        assert not torch.equal(arrays[f"pseudo/{name}/{text}"], area)


def test_the_book_s_own_network_is_set_beside_trigrams_of_its_pieces() -> None:
    """With the arrays at hand: the findings are means of differences, per token of the first set."""
    values = {"area/small-bert": [-6.0, -9.0], "pseudo/small-bert": [-2.0, -4.0]}
    values |= {"log_p/3-gram": [-7.0, -9.0], "log_p/next/4": [0.0, 0.0], "tokens": [2, 4]}
    values |= {f"area/{name}": [-3.0, -3.0] for name in ("fifteen/4", "mixture/4", "mixture/5")}
    arrays = {f"{key}/books": torch.tensor(value) for key, value in values.items()}
    found = Siblings().findings(arrays)
    assert found["ngrams-area"].measured == pytest.approx(0.5 / 3)
    assert found["ngrams-pseudo"].measured == pytest.approx(5 / 3)
    assert found["ngrams-pseudo"].standard_error == pytest.approx(0)
    assert found["siblings-fifteen-4"].measured == pytest.approx(-1)


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
