"""Curves over sentences of several lengths: designs, areas, control variates, resuming."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from models import generator
from tiny_bert import CLS, MASK, tiny, tokenizer

from mpt_lml import MaskedLM, curves, data, masks
from mpt_lml.experiments import bert, bert_curve, random_bert
from mpt_lml.experiments.bert_curve import Design, SentenceCurves
from mpt_lml.files import read_json
from mpt_lml.models.bert_networks import at_random

SENTENCES = ["the cat sat", "a dog", "the dogs sat.", "a cat sat the", "cats.", "dog the cat a dog"]


EVEN = torch.full((3,), 1 / 3, dtype=torch.float64)


def model(kind: str = "classic") -> MaskedLM:
    return MaskedLM(tiny(kind), MASK, special_token_ids=(0, 1, 2, 3), batch_tokens=200)


def encoded() -> data.Tokens:
    return data.encode(tokenizer(), SENTENCES)


def exact_area(row: data.Tokens) -> float:
    """Σ_M S(M) of one sentence, from all masks of the package's own curve."""
    size = int(row.num_features[0])
    one = MaskedLM(tiny(), MASK, size, prefix=(CLS,), suffix=(3,), special_token_ids=(0, 1, 2, 3))
    return float(curves.exact_curve(one, row.ids[:, 1 : 1 + size]).area())


class TestDesign:
    def test_masks_have_the_sizes_of_their_rates(self) -> None:
        row = encoded().rows(torch.tensor([5]))
        found = Design(rates=(1, 20, 21, 50, 100), num_masks=2).masks(row, 5)
        assert found.sum(dim=1).tolist() == [1, 1, 2, 3, 5] * 2 + [5]
        assert not (found & ~row.maskable).any()
        assert not torch.equal(found[:5], found[5:10])

    def test_strata_share_the_sizes_evenly(self) -> None:
        row = encoded().rows(torch.tensor([3]))  # D = 4: two sizes a stratum
        sizes = Design(strata=2, num_masks=500).masks(row, 3)[:-1].sum(dim=1).view(500, 2)
        assert sizes[:, 0].unique().tolist() == [1, 2]
        assert sizes[:, 1].unique().tolist() == [3, 4]
        share = (sizes[:, 0] == 1).double().mean()  # 500 fair coins: s.e. 0.022
        assert abs(share - 0.5) < 0.1

    def test_every_mask_of_a_size_is_as_likely(self) -> None:
        row = encoded().rows(torch.tensor([0]))
        found = Design(rates=(50,), num_masks=3000).masks(row, 0)[:-1, 1:4]
        counts = torch.stack([(found == each).all(dim=1).sum() for each in masks.all_masks(3, 2)])
        assert counts.sum() == 3000
        assert (counts - 1000).abs().max() < 5 * math.sqrt(3000 * 2 / 9)

    def test_a_sentences_masks_do_not_depend_on_its_neighbors(self) -> None:
        together = encoded()
        alone = data.encode(tokenizer(), SENTENCES[1:2])
        design = Design(rates=(10, 90))
        found = design.masks(together.rows(torch.tensor([1])), 1)
        assert torch.equal(found, design.masks(alone, 1))

    def test_columns(self) -> None:
        assert Design(rates=(15, 85)).columns == (15.0, 85.0)
        assert Design(strata=4).columns == (12.5, 37.5, 62.5, 87.5)
        assert Design(strata=2, power=2.0).columns == (12.5, 62.5)
        assert Design(strata=2, power=2.0).weights.tolist() == [0.25, 0.75]
        assert Design(rates=(15, 85)).weights.tolist() == [0.5, 0.5]

    @pytest.mark.bad_input
    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="rates must increase"):
            Design(rates=(20, 10))
        with pytest.raises(ValueError, match="rates must increase"):
            Design(rates=())
        with pytest.raises(ValueError, match="num_masks"):
            Design(num_masks=0)
        with pytest.raises(ValueError, match="strata"):
            Design(strata=0)
        with pytest.raises(ValueError, match="power must be positive, got 0"):
            Design(strata=2, power=0.0)
        with pytest.raises(ValueError, match="rate in percent"):
            Design(rates=(0, 50)).masks(encoded().rows(torch.tensor([0])), 0)


def test_scores_are_those_of_the_masks_one_by_one() -> None:
    text, design = encoded(), Design(rates=(30, 60), num_masks=2)
    found = bert_curve.curves(model(), text, design, part_size=2)
    assert found is not None
    for n in range(len(text)):
        row = text.rows(torch.tensor([n]))
        hidden = design.masks(row, n)
        values = model().log_each(row.ids.expand(len(hidden), -1), hidden)
        by_mask = values.sum(dim=1) / hidden.sum(dim=1)
        # Other batches add up in another order: some units of float64.
        torch.testing.assert_close(found.raw[n].flatten(), by_mask[:-1], rtol=0, atol=1e-10)
        assert math.isclose(found.hidden[n], by_mask[-1], abs_tol=1e-10)
        base = values[-1]
        control = (base * hidden[:-1]).sum(dim=1) / hidden[:-1].sum(dim=1) - by_mask[-1]
        torch.testing.assert_close(found.control[n].flatten(), control, rtol=0, atol=1e-10)


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_strata_estimate_the_exact_area_without_bias(power: float) -> None:
    text = encoded()
    found = bert_curve.curves(model(), text, Design(strata=2, power=power, num_masks=600))
    assert found is not None
    for n in range(len(text)):
        wanted = exact_area(text.rows(torch.tensor([n]))) / int(text.num_features[n])
        for values in (found.raw[n], found.values[n]):
            each = (values * found.weights).sum(dim=1)  # the two strata of one repeat
            error = each.std() / math.sqrt(len(each))
            assert abs(each.mean() - wanted) < 5 * error + 1e-9
    per_sentence = found.area_per_sentence()
    exact = [exact_area(text.rows(torch.tensor([n]))) for n in range(len(text))]
    spread = found.mask_error(control=False) * max(text.num_features.tolist())
    assert abs(per_sentence.value - sum(exact) / len(exact)) < 5 * spread


def test_all_rates_give_the_curve_of_the_sizes() -> None:
    text = data.encode(tokenizer(), ["the cat sat the"] * 4)  # D = 4 = 25 % a step
    found = bert_curve.curves(model(), text, Design(rates=(25, 50, 75, 100), num_masks=400))
    assert found is not None
    one = MaskedLM(tiny(), MASK, 4, prefix=(CLS,), suffix=(3,), special_token_ids=(0, 1, 2, 3))
    exact = curves.exact_curve(one, text.ids[:1, 1:5]).score
    error = found.raw.flatten(0, 1).std(dim=0) / math.sqrt(1600)
    assert ((found.raw.mean(dim=(0, 1)) - exact).abs() < 5 * error + 1e-10).all()
    assert math.isclose(found.raw[:, :, -1].std().item(), 0.0, abs_tol=1e-10)
    assert math.isclose(found.hidden[0], exact[-1], abs_tol=1e-10)


def test_areas_in_their_three_units() -> None:
    raw = torch.tensor([[[-1.0, -3.0]], [[-2.0, -6.0]]], dtype=torch.float64)
    sizes = torch.tensor([10, 20])
    shares = torch.tensor([0.25, 0.75], dtype=torch.float64)
    zero = torch.zeros_like(raw)
    found = SentenceCurves((12.5, 62.5), raw, zero, raw[:, 0, 1], sizes, shares)
    assert found.each_area.tolist() == [-2.5, -5.0]
    assert found.area_per_token().value == -3.75
    assert found.area_per_sentence().value == -62.5  # −25 and −100
    assert math.isclose(found.paper_area().value, -3.75 * 512 * 0.99)
    assert math.isclose(found.area_per_token().standard_error, 1.25)
    assert found.score.tolist() == [-1.5, -4.5]


def test_errors_over_masks() -> None:
    raw = torch.tensor([[[-1.0], [-3.0]], [[-2.0], [-2.0]]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    sizes = torch.tensor([30, 10])
    found = SentenceCurves((50.0,), raw, torch.zeros_like(raw), raw[:, 0, 0], sizes, one)
    # The first sentence has variance 2 over masks, its mean of two masks 1; the second has none.
    assert math.isclose(found.mask_error(), 0.5)
    assert math.isclose(found.mask_error(sentences="by length"), 0.75)
    with pytest.raises(ValueError, match="masks for each rate"):
        dataclasses.replace(found, raw=raw[:, :1], control=found.control[:, :1]).mask_error()


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
    found = SentenceCurves((10.0, 50.0, 90.0), raw, control, raw[:, 0, 0], sizes, EVEN)
    assert torch.equal(found.values, raw) != used


def test_control_variates_help_and_keep_the_mean() -> None:
    g = generator()
    control = torch.randn(400, 2, 3, generator=g, dtype=torch.float64)
    noise = 0.1 * torch.randn(400, 2, 3, generator=g, dtype=torch.float64)
    raw = -5.0 + torch.tensor([0.9, 0.5, 0.0]) * control + noise
    sizes = torch.full((400,), 10)
    found = SentenceCurves((10.0, 50.0, 90.0), raw, control, raw[:, 0, 0], sizes, EVEN)
    assert (found.score + 5).abs().max() < 5 * 0.1 / math.sqrt(800)
    assert found.mask_error() < 0.3 * found.mask_error(control=False)
    # The factor for one half of the sentences does not see their scores.
    other = raw.clone()
    other[0, 0] += 100
    moved = dataclasses.replace(found, raw=other)
    torch.testing.assert_close(moved.values[2::2], found.values[2::2], rtol=0, atol=1e-12)
    assert (moved.values[1::2] - found.values[1::2]).abs().max() > 1e-3


class TestResuming:
    def test_parts_are_kept_and_not_computed_again(self, tmp_path: Path) -> None:
        design = Design(rates=(20, 80))
        whole = bert_curve.curves(model(), encoded(), design, folder=tmp_path, part_size=2)
        files = sorted(tmp_path.glob("part-*.safetensors"))
        assert len(files) == 3

        def fails(*args: object, **options: object) -> None:
            raise AssertionError("computed again")

        broken = model()
        broken.log_each = fails  # type: ignore[method-assign, assignment]
        again = bert_curve.curves(broken, encoded(), design, folder=tmp_path, part_size=2)
        assert whole is not None and again is not None
        assert torch.equal(whole.raw, again.raw) and torch.equal(whole.control, again.control)
        files[1].unlink()
        with pytest.raises(AssertionError, match="computed again"):
            bert_curve.curves(broken, encoded(), design, folder=tmp_path, part_size=2)
        resumed = bert_curve.curves(model(), encoded(), design, folder=tmp_path, part_size=2)
        assert resumed is not None and torch.equal(whole.raw, resumed.raw)

    @pytest.mark.parametrize("replacement", ["mask", "bert"])
    def test_processes_share_the_parts(self, tmp_path: Path, replacement: str) -> None:
        def fresh() -> MaskedLM:
            return MaskedLM(tiny(), MASK, special_token_ids=(0, 1, 2, 3), replacement=replacement)

        options = {"part_size": 2}
        whole = bert_curve.curves(fresh(), encoded(), Design(rates=(50,)), **options)
        options |= {"folder": tmp_path}
        first = bert_curve.curves(
            fresh(), encoded(), Design(rates=(50,)), process=(0, 2), **options
        )
        assert first is None  # the other's parts are not there
        second = bert_curve.curves(
            fresh(), encoded(), Design(rates=(50,)), process=(1, 2), **options
        )
        assert whole is not None and second is not None
        torch.testing.assert_close(whole.raw, second.raw, rtol=0, atol=1e-12)


def test_chance() -> None:
    assert math.isclose(bert_curve.chance(30522, 100), -512 * math.log(30522))
    assert f"{bert_curve.chance(30522):.1f}" == "-5234.1"


def test_the_rate_of_the_mean_height() -> None:
    curve = torch.tensor([-1.0, -2.0, -4.0])
    assert math.isclose(bert.mean_rate((10, 50, 90), curve, -3.0), 70.0)
    with pytest.raises(ValueError, match="does not cross"):
        bert.mean_rate((10, 50, 90), curve, -5.0)


def test_the_rate_of_the_mean_height_has_an_error() -> None:
    g = generator()
    slope = 1 + 0.2 * torch.randn(400, 1, 1, generator=g, dtype=torch.float64)
    level = 0.5 * torch.randn(400, 1, 1, generator=g, dtype=torch.float64)
    rates = torch.tensor([10.0, 30.0, 50.0, 70.0, 90.0], dtype=torch.float64)
    raw = level - 0.02 * slope * rates
    sizes = torch.full((400,), 10)
    even = torch.full((5,), 0.2, dtype=torch.float64)
    zero = torch.zeros_like(raw)
    found = SentenceCurves(tuple(rates.tolist()), raw, zero, raw[:, 0, 0], sizes, even)
    value, error = bert.rate_of_mean(found)
    # Straight lines have their mean height in the middle, whatever their slopes and levels.
    assert math.isclose(value, 50.0, abs_tol=1e-9) and error < 1e-9
    noisy = dataclasses.replace(found, raw=raw + 0.3 * torch.randn(raw.shape, generator=g))
    value, error = bert.rate_of_mean(noisy)
    # Error of the mean at 50 %, 0.3 / 20 · √(1 − 1/5), over a slope of 0.02: 0.67 points.
    assert 0.25 < error < 1.4 and abs(value - 50) < 4 * error


def test_repetition_of_tokens() -> None:
    text = data.encode(tokenizer(), ["the the", "a dog"])
    assert math.isclose(random_bert.repetition(text), 0.5**2 + 0.25**2 + 0.25**2)


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
        found.append(one.log_each(ids, hidden).sum(dim=1) / 4)
    same, different = torch.stack(found).var(dim=0).tolist()
    logit = 64 * 0.06**2
    # A variance from 150 normal draws has a relative standard error of √(2/149) = 0.12.
    assert different == pytest.approx(logit / 4, rel=4 * 0.12)
    assert 1.5 * logit / 4 < same < logit * (1 + 4 * 0.12)


def drawn(own: int, sets: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One network a set, twelve on all sets with a correlation of 0.7, sentences of error 0.5."""
    g = generator(own)
    kind = {"generator": g, "dtype": torch.float64}
    spread = torch.tensor([1.0, 2.0, 3.0, 4.0])[:sets, None].double()
    common = torch.randn(1, 12, **kind)
    areas = spread * (math.sqrt(0.7) * common + math.sqrt(0.3) * torch.randn(sets, 12, **kind))
    error = 0.5 * spread[:, 0]
    published = spread[:, 0] * torch.randn(sets, **kind) + error * torch.randn(sets, **kind)
    return published, areas, error


def test_the_joint_p_is_a_p_value() -> None:
    """Where nothing is wrong it is uniform: below 0.1 in a tenth of cases, 0.25 in a quarter."""
    found = torch.tensor([random_bert.joint_p(*drawn(k), num_draws=2000)[0] for k in range(400)])
    for level in (0.1, 0.25, 0.5):
        share, error = (found < level).double().mean().item(), math.sqrt(level * (1 - level) / 400)
        assert abs(share - level) < 4 * error, level
    published, areas, error = drawn(1)
    assert random_bert.joint_p(areas.mean(dim=1), areas, error)[0] == 1.0
    assert random_bert.joint_p(published + 40, areas, error)[0] < 0.001


def test_the_recorded_row_has_a_joint_p_of_one_to_two_percent() -> None:
    stored = read_json(Path(__file__).parents[2] / "book" / "results" / "table-2.json")
    arrays = {name: torch.tensor(value).double() for name, value in stored["arrays"].items()}
    found = random_bert._table_findings(random_bert.Table2.paper(), arrays)["table-2/random"]
    assert 0.01 < found.measured < 0.02
    assert found.measured == pytest.approx(
        stored["findings"]["table-2/random"]["measured"], rel=0.1
    )
