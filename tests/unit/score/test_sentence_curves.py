"""Curves over sentences of several lengths: designs, areas, control variates, resuming."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from models import generator
from tiny_bert import CLS, MASK, tiny, tokenizer

import mpt_score
from mpt_lml import curves, masks
from mpt_lml.verdicts import mean_and_error
from mpt_score import Design, MaskedLM, SentenceCurves, tokens
from mpt_score.networks import at_random
from mpt_score.quantities import sentence_curves

SENTENCES = ["the cat sat", "a dog", "the dogs sat.", "a cat sat the", "cats.", "dog the cat a dog"]


def model(kind: str = "classic") -> MaskedLM:
    return MaskedLM(tiny(kind), MASK, special_token_ids=(0, 1, 2, 3), max_tokens=200)


def encoded() -> tokens.Tokens:
    return tokens.encode(tokenizer(), SENTENCES)


def exact_area(row: tokens.Tokens) -> float:
    """Σ_M S(M) of one sentence, from all masks of the package's own curve."""
    size = int(row.num_features[0])
    one = MaskedLM(tiny(), MASK, size, prefix=(CLS,), suffix=(3,), special_token_ids=(0, 1, 2, 3))
    return float(curves.exact_curve(one, row.ids[:, 1 : 1 + size]).area())


class TestDesign:
    def test_masks_have_the_sizes_of_their_rates(self) -> None:
        row = encoded().rows(torch.tensor([5]))
        found = Design(rates=(0.01, 0.2, 0.21, 0.5, 1.0), num_masks=2).masks(row, 5)
        assert found.sum(dim=1).tolist() == [1, 1, 2, 3, 5] * 2 + [5]
        assert not (found & ~row.maskable).any()
        assert not torch.equal(found[:5], found[5:10])

    def test_a_product_that_is_whole_but_for_rounding_is_that_size(self) -> None:
        ids = torch.zeros(1, 100, dtype=torch.int64)
        row = tokens.Tokens(ids, ids, ids == 0, torch.tensor([100]))
        assert 0.07 * 100 > 7
        assert Design(rates=(0.07,)).masks(row, 0).sum(dim=1).tolist() == [7, 100]

    def test_strata_share_the_sizes_evenly(self) -> None:
        row = encoded().rows(torch.tensor([3]))  # D = 4: two sizes a stratum
        sizes = Design(strata=2, num_masks=500).masks(row, 3)[:-1].sum(dim=1).view(500, 2)
        assert sizes[:, 0].unique().tolist() == [1, 2]
        assert sizes[:, 1].unique().tolist() == [3, 4]
        share = (sizes[:, 0] == 1).double().mean()  # 500 fair coins: s.e. 0.022
        assert abs(share - 0.5) < 0.1

    def test_every_mask_of_a_size_is_as_likely(self) -> None:
        row = encoded().rows(torch.tensor([0]))
        found = Design(rates=(0.5,), num_masks=3000).masks(row, 0)[:-1, 1:4]
        counts = torch.stack([(found == each).all(dim=1).sum() for each in masks.all_masks(3, 2)])
        assert counts.sum() == 3000
        assert (counts - 1000).abs().max() < 5 * math.sqrt(3000 * 2 / 9)

    def test_a_sentences_masks_do_not_depend_on_its_neighbors(self) -> None:
        together = encoded()
        alone = tokens.encode(tokenizer(), SENTENCES[1:2])
        design = Design(rates=(0.1, 0.9))
        found = design.masks(together.rows(torch.tensor([1])), 1)
        assert torch.equal(found, design.masks(alone, 1))

    def test_columns(self) -> None:
        assert Design(rates=(0.15, 0.85)).columns == (0.15, 0.85)
        assert Design(strata=4).columns == (0.125, 0.375, 0.625, 0.875)

    @pytest.mark.bad_input
    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="rates must increase"):
            Design(rates=(0.2, 0.1))
        with pytest.raises(ValueError, match="rates must increase"):
            Design(rates=())
        with pytest.raises(ValueError, match="num_masks"):
            Design(num_masks=0)
        with pytest.raises(ValueError, match="strata"):
            Design(strata=0)
        with pytest.raises(ValueError, match=r"each of rates must be .* in \(0, 1\], got 0"):
            Design(rates=(0.0, 0.5))


def test_scores_are_those_of_the_masks_one_by_one() -> None:
    of_one_length = ["a cat sat", "the dog sat", "the cat sat"]
    text = tokens.encode(tokenizer(), [*SENTENCES, *of_one_length])
    design = Design(rates=(0.3, 0.6), num_masks=2)
    found = mpt_score.curve(model(), text, design)
    for n in range(len(text)):
        row = text.rows(torch.tensor([n]))
        hidden = design.masks(row, n)
        values = model().log_tokens(row.ids.expand(len(hidden), -1), hidden)
        by_mask = values.sum(dim=1) / hidden.sum(dim=1)
        # Other batches add up in another order: some units of float64.
        torch.testing.assert_close(found.raw[n].flatten(), by_mask[:-1], rtol=0, atol=1e-10)
        assert math.isclose(found.hidden[n], by_mask[-1], abs_tol=1e-10)
        base = values[-1]
        control = (base * hidden[:-1]).sum(dim=1) / hidden[:-1].sum(dim=1) - by_mask[-1]
        torch.testing.assert_close(found.control[n].flatten(), control, rtol=0, atol=1e-10)


def test_strata_estimate_the_exact_area_without_bias() -> None:
    text = encoded()
    found = mpt_score.curve(model(), text, Design(strata=2, num_masks=600))
    for n in range(len(text)):
        wanted = exact_area(text.rows(torch.tensor([n]))) / int(text.num_features[n])
        for values in (found.raw[n], found.values[n]):
            each = values.mean(dim=1)  # the two strata of one repeat
            error = each.std() / math.sqrt(len(each))
            assert abs(each.mean() - wanted) < 5 * error + 1e-9
    per_sentence = found.area("sentence")
    exact = [exact_area(text.rows(torch.tensor([n]))) for n in range(len(text))]
    errors_over_masks = mean_and_error(found.raw.mean(dim=2), dim=1)[1]
    spread = errors_over_masks.norm() / len(text) * max(text.num_features.tolist())
    assert abs(per_sentence - sum(exact) / len(exact)) < 5 * spread


def test_all_rates_give_the_curve_of_the_sizes() -> None:
    text = tokens.encode(tokenizer(), ["the cat sat the"] * 4)  # D = 4 = 25 % a step
    found = mpt_score.curve(model(), text, Design(rates=(0.25, 0.5, 0.75, 1.0), num_masks=400))
    one = MaskedLM(tiny(), MASK, 4, prefix=(CLS,), suffix=(3,), special_token_ids=(0, 1, 2, 3))
    exact = curves.exact_curve(one, text.ids[:1, 1:5]).score
    error = found.raw.flatten(0, 1).std(dim=0) / math.sqrt(1600)
    assert ((found.raw.mean(dim=(0, 1)) - exact).abs() < 5 * error + 1e-10).all()
    assert math.isclose(found.raw[:, :, -1].std().item(), 0.0, abs_tol=1e-10)
    assert math.isclose(found.hidden[0], exact[-1], abs_tol=1e-10)


def test_areas_in_their_three_units() -> None:
    raw = torch.tensor([[[-1.0, -3.0]], [[-2.0, -6.0]]], dtype=torch.float64)
    sizes = torch.tensor([10, 20])
    zero = torch.zeros_like(raw)
    found = SentenceCurves(Design(strata=2), raw, zero, raw[:, 0, 1], sizes)
    assert found.by_sentence.tolist() == [[-1.0, -3.0], [-2.0, -6.0]]
    assert found.area() == -3.0  # −2 and −4
    assert found.area("sentence") == -50.0  # −20 and −80
    assert math.isclose(found.area("paper"), -3.0 * 512 * 0.99)
    assert math.isclose(found.area().standard_error, 1.0)
    assert found.score.tolist() == [-1.5, -4.5]
    height = dataclasses.replace(found, design=Design(rates=(0.15, 0.85)))
    with pytest.raises(
        ValueError, match=r"the mean over the rates \(0\.15, 0\.85\) is no area: take"
    ):
        height.area()


@pytest.mark.parametrize(
    ("percents", "covers"),
    [
        *[(range(*each), True) for each in ((1, 100), (1, 101), (1, 100, 2), (5, 96, 10))],
        *[(range(*each), True) for each in ((10, 91, 20), (10, 91, 10), (25, 76, 25))],
        *[(each, False) for each in ((15,), (15, 85), (25, 75), (1, 2, 3, 50, 99), (40, 50, 60))],
        ((10, 30, 50, 60, 90), False),  # their steps are 20 on average
        *[(range(*each), False) for each in ((1, 51), (50, 100), (1, 100, 49), (10, 91, 40))],
        (range(2, 99, 8), False),  # less than half a step is left at either end,
    ],
)
def test_an_area_needs_rates_all_over_the_range(percents: range, covers: bool) -> None:
    rates = tuple(percent / 100 for percent in percents)
    assert Design(rates=rates).has_area == covers
    assert Design(rates=rates, strata=8).has_area


@pytest.mark.parametrize(
    ("sentences", "repeats", "used"),
    [
        (11, 1, False),
        (12, 1, True),
        (9, 2, False),
        (10, 2, True),
        (4, 4, True),
        (3, 8, True),
        (1, 9, False),
    ],
)
def test_few_scores_are_left_raw(sentences: int, repeats: int, used: bool) -> None:
    """A line through two points can have any slope: four sentences once gave -347 nats a token."""
    g = generator()
    control, raw = torch.randn(2, sentences, repeats, 3, generator=g, dtype=torch.float64)
    sizes = torch.full((sentences,), 10)
    found = SentenceCurves(Design((0.1, 0.5, 0.9)), raw, control, raw[:, 0, 0], sizes)
    assert torch.equal(found.values, raw) != used


def test_control_variates_help_and_keep_the_mean() -> None:
    g = generator()
    control = torch.randn(400, 2, 3, generator=g, dtype=torch.float64)
    noise = 0.1 * torch.randn(400, 2, 3, generator=g, dtype=torch.float64)
    raw = -5.0 + torch.tensor([0.9, 0.5, 0.0]) * control + noise
    sizes = torch.full((400,), 10)
    found = SentenceCurves(Design((0.1, 0.5, 0.9)), raw, control, raw[:, 0, 0], sizes)
    assert (found.score + 5).abs().max() < 5 * 0.1 / math.sqrt(800)
    assert found.values.mean(dim=2).std() < 0.3 * found.raw.mean(dim=2).std()
    # The factor for one half of the sentences does not see their scores.
    other = raw.clone()
    other[0, 0] += 100
    moved = dataclasses.replace(found, raw=other)
    torch.testing.assert_close(moved.values[2::2], found.values[2::2], rtol=0, atol=1e-12)
    assert (moved.values[1::2] - found.values[1::2]).abs().max() > 1e-3


def test_chunks_are_on_their_own() -> None:
    """One that is computed again, or before another, says the same: a stopped run can go on."""
    design, text = Design(rates=(0.2, 0.8)), encoded()

    def chunk(numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        network = MaskedLM(tiny(), MASK, special_token_ids=(0, 1, 2, 3))
        scorer = mpt_score.load(network, tokenizer())
        return sentence_curves.score_chunk(scorer, text, numbers, design)

    chunks = sentence_curves.chunks_by_length(text, 2)
    assert sorted(torch.cat(chunks).tolist()) == list(range(len(text)))
    forwards = [chunk(numbers) for numbers in chunks]
    backwards = [chunk(numbers) for numbers in reversed(chunks)][::-1]
    first = sentence_curves.curves_of_chunks(design, text, chunks, forwards)
    second = sentence_curves.curves_of_chunks(design, text, chunks, backwards)
    for name in ("raw", "control", "hidden"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    # Nothing is drawn but masks, which follow from numbers.
    whole = mpt_score.curve(model(), text, design)
    torch.testing.assert_close(whole.raw, first.raw, rtol=0, atol=1e-10)


def test_spread_between_initializations() -> None:
    """The initialization gives every logit the variance (width)·(range)², tokens on their own.

    A mean over four different tokens therefore has a quarter of it. Four times the same token has
    up to all of it, as far as the hidden places look alike to the network.
    """
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=400,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        initializer_range=0.06,
    )
    ids = torch.tensor([[CLS, *[7] * 4, 3], [CLS, 7, 8, 9, 10, 3]])
    hidden = torch.tensor([[False, True, True, True, True, False]] * 2)
    found = []
    for seed in range(150):
        network = at_random(BertForMaskedLM, config, seed=seed)
        one = MaskedLM(network, MASK, special_token_ids=(CLS, 3))
        found.append(one.log_tokens(ids, hidden).sum(dim=1) / 4)
    same, different = torch.stack(found).var(dim=0).tolist()
    logit = 64 * 0.06**2
    # A variance from 150 normal draws has a relative standard error of √(2/149) = 0.12.
    assert different == pytest.approx(logit / 4, rel=4 * 0.12)
    assert 1.5 * logit / 4 < same < logit * (1 + 4 * 0.12)


def straight() -> SentenceCurves:
    """S(r) = −1 − 2r for D = 10 and −2 − 4r for D = 30, r at 5, 15, ..., 95 %."""
    design = Design(rates=tuple(p / 100 for p in range(5, 100, 10)))
    rate = torch.tensor(design.columns, dtype=torch.float64)
    raw = torch.stack([-1 - 2 * rate, -2 - 4 * rate])[:, None]
    return SentenceCurves(design, raw, 0 * raw, raw[:, 0, -1], torch.tensor([10, 30]))


def test_what_a_fixed_rate_says_too_much() -> None:
    found = straight().bias_at((0.15, 0.4, 0.5))
    for rate, bias in found.items():
        # D·S − area is 2D (½ − r) and 4D (½ − r): 20 and 120 times ½ − r, mean 70, error 50.
        assert bias == pytest.approx(70 * (0.5 - rate), abs=1e-9)
        assert bias.standard_error == pytest.approx(50 * abs(0.5 - rate), abs=1e-9)
    assert straight().mean_rate() == pytest.approx(0.5, abs=1e-9)
    for wrong in (0.04, 0.96):
        with pytest.raises(ValueError, match=rf"{wrong} is outside the design's 0\.05\.\.0\.95"):
            straight().bias_at((wrong,))
    heights = dataclasses.replace(
        straight(), design=Design(rates=tuple(p / 100 for p in range(1, 11)))
    )
    for unearned in (heights.bias_at, heights.mean_rate):
        with pytest.raises(ValueError, match="is no area"):
            unearned()


def test_of_many_texts_the_jackknife_leaves_out_a_tenth_at_a_time() -> None:
    design = straight().design
    rate = torch.tensor(design.columns, dtype=torch.float64)
    power = 1 + torch.rand(25, 1, 1, generator=generator(), dtype=torch.float64)

    def found(chosen: torch.Tensor) -> SentenceCurves:
        raw = -(rate ** power[chosen])
        return SentenceCurves(design, raw, 0 * raw, raw[:, 0, -1], torch.full((len(raw),), 10))

    texts = torch.arange(25)
    whole = found(texts).mean_rate()
    without = [found(texts[texts % 10 != group]).mean_rate() for group in range(10)]
    squares = torch.tensor(without, dtype=torch.float64).var(correction=0).item() * 10
    assert whole.num_samples == 10
    assert whole.standard_error == pytest.approx(math.sqrt(0.9 * squares), rel=1e-6) != 0


def test_a_text_may_fill_all_places() -> None:
    scorer = mpt_score.load(tiny(), tokenizer(), max_length=5)
    assert mpt_score.curve(scorer, ["the cat sat"]).score.isfinite().all()
    with pytest.raises(ValueError, match="has 6 tokens, the model takes 5"):
        mpt_score.curve(scorer, ["the cat sat a"])


def test_a_table_of_the_curve() -> None:
    rows = straight().rows()
    assert len(rows) == 10 and rows[0]["rate"] == 0.05 and rows[0]["score"] == pytest.approx(-1.65)
    assert rows[0]["standard_error"] == pytest.approx(0.55)


@pytest.mark.bad_input
def test_one_text_has_no_jackknife() -> None:
    found = straight()
    one = dataclasses.replace(
        found,
        raw=found.raw[:1],
        control=found.control[:1],
        hidden=found.hidden[:1],
        num_features=found.num_features[:1],
    )
    with pytest.raises(ValueError, match="texts behind a jackknife"):
        one.mean_rate()
    with pytest.raises(ValueError, match="num_features must"):
        dataclasses.replace(found, num_features=torch.tensor([10, 0]))


@pytest.mark.bad_input
def test_a_text_that_is_too_long_is_named_before_any_work() -> None:
    texts = ["a dog", "the cat " * 8]
    with pytest.raises(ValueError, match="text 1 has 18 tokens, the model takes 16"):
        mpt_score.curve(tiny(), texts, Design((0.5,)), tokenizer=tokenizer())


def test_sizes_at_rates() -> None:
    maskable = torch.arange(20) < torch.tensor([20, 7])[:, None]
    rows = tokens.Tokens(maskable.long(), maskable.long(), maskable, maskable.sum(dim=1))
    design = mpt_score.Design(tuple(p / 100 for p in range(1, 101)))
    one, two = (design.masks(rows.rows(torch.tensor([n])), n)[:-1].sum(dim=1) for n in (0, 1))
    assert one.bincount().tolist() == [0] + [5] * 20  # each size has the same share
    assert two[[0, 13, 14, 28, 99]].tolist() == [1, 1, 2, 3, 7]


def test_sizes_of_strata_are_drawn_on_their_own() -> None:
    maskable = torch.ones(1, 200, dtype=torch.bool)
    row = tokens.Tokens(maskable.long(), maskable.long(), maskable, torch.tensor([200]))
    design = mpt_score.Design(strata=2)
    sizes = torch.stack([design.masks(row, n)[:2].sum(dim=1) for n in range(200)])
    low, high = sizes.unbind(dim=1)
    assert (low <= 100).all() and (high > 100).all()
    correlation = torch.corrcoef(sizes.T.double())[0, 1].item()
    assert abs(correlation) <= 5 / 200**0.5


def test_texts_of_neighboring_seeds_have_streams_of_their_own() -> None:
    """Of a million texts the last of one seed and the first of the next are neighbors."""
    numbers = (0, 1, 2, 1_000_002)
    drawn = []
    for seed in range(4):
        for number in numbers:
            generator = Design(seed=seed).generator(number)
            drawn.append(torch.rand((), generator=generator, dtype=torch.float64).item())
    assert len(set(drawn)) == 4 * len(numbers)


def test_a_slope_is_within_texts_where_several_masks_allow_it() -> None:
    control = torch.tensor([[[0.0], [1.0]], [[10.0], [11.0]]])
    score = torch.tensor([[[0.0], [1.0]], [[-10.0], [-9.0]]])  # it rises in each text
    assert sentence_curves._slope(control, score).tolist() == [1.0]
