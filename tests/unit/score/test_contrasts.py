"""Differences of conditions: shared orders, errors that are honest, and items that miss a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pandas as pd
import pytest
import torch
from tiny_bert import tiny, tokenizer
from torch import Tensor

import mpt_score
from mpt_lml.masks import sample_ranks
from mpt_lml.verdicts import mean_and_error
from mpt_score.quantities.contrasts import Contrast, contrast_of
from mpt_score.rows.requests import quartets, stream

NUM_DRAWS = 400
S = 3
# Two items of two conditions, with six tokens each but for the last text, which has seven.
TEXTS = [[0, 1, 1, 0, 1, 0], [1, 1, 1, 0, 1, 0], [0, 0, 1, 0, 0, 1], [0, 1, 1, 0, 0, 1, 1]]
ITEMS = ["a", "a", "b", "b"]
WEIGHTS = [1.0, -0.75, -0.75, 1.0]


TEN = [0, 1, 1, 0, 1, 0, 0, 1, 0, 1]


def model(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Log-odds that depend on every shown token: conditionals of no joint."""
    places = torch.arange(ids.shape[1])
    shown = torch.where(mask, 0.0, 1.0 + ids)
    angle = (shown * torch.sin(1.0 + 3 * places)).sum(dim=1, keepdim=True)
    odds = 0.5 * places.sin() + 1.5 * torch.sin(3 * angle + 2 * places)
    log_odds = odds.double()
    return torch.nn.functional.logsigmoid(torch.stack([-log_odds, log_odds], dim=-1))


SCORER = mpt_score.load(model)


def masks_seen(texts: list[list[int]], **settings: Any) -> list[set[tuple[bool, ...]]]:
    """Of each text the masks that it was asked under."""
    masks: dict[tuple[int, ...], set[tuple[bool, ...]]] = {}
    ask = mpt_score.Scorer.ask

    def watched(
        scorer: mpt_score.Scorer,
        ids: Tensor,
        text: Tensor,
        mask: Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        for row, hidden in zip(ids[text].tolist(), mask.tolist(), strict=True):
            masks.setdefault(tuple(row), set()).add(tuple(hidden))
        return ask(scorer, ids, text, mask, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mpt_score.Scorer, "ask", watched)
        mpt_score.sentences(SCORER, texts, **settings)
    return [masks[tuple(text)] for text in texts]


class TestSharedOrders:
    def test_texts_of_one_item_and_length_see_the_same_masks(self) -> None:
        first, second, third, longer = masks_seen(TEXTS, items=ITEMS, num_orders=S)
        assert first == second and first != third
        assert {mask[:6] for mask in longer} != third
        alone = masks_seen(TEXTS, num_orders=S)
        assert alone[0] != alone[1]

    def test_they_follow_from_seed_and_item_not_from_neighbors(self) -> None:
        both = masks_seen(TEXTS, items=ITEMS, num_orders=S)
        assert masks_seen(TEXTS[1:2], items=["a"], num_orders=S) == both[1:2]
        assert masks_seen(TEXTS[1:2], items=["b"], num_orders=S) != both[1:2]
        assert masks_seen(TEXTS[1:2], items=["a"], num_orders=S, seed=1) != both[1:2]

    def test_an_item_may_be_a_number_or_as_a_file_has_it(self) -> None:
        first, second = masks_seen(TEXTS[:2], items=[1, "1"], num_orders=S)
        assert first == second

    def test_items_add_no_draw_where_none_are_named(self) -> None:
        named = mpt_score.sentences(SCORER, TEXTS, num_orders=S, items=range(4))
        plain = mpt_score.sentences(SCORER, TEXTS, num_orders=S)
        assert (named.log_score != plain.log_score).all()
        assert plain.items == () and plain.along_orders is None and plain.same_orders is None

    @pytest.mark.parametrize(
        ("cut", "longer"),
        [({"block_length": 5}, [*TEN, 1]), ({"max_length": 6}, [1, *TEN])],
        ids=["blocks", "windows"],
    )
    def test_texts_that_are_cut_otherwise_are_independent(
        self, cut: dict[str, int], longer: list[int]
    ) -> None:
        """Rows of 5 and 5 tokens beside 5, 5 and 1 or 6 and 5: one is the same, its orders are not.

        Over 200 items a correlation of 0 has a standard deviation of 1/√200."""
        settings = dict(cut)
        scorer = mpt_score.load(model, max_length=settings.pop("max_length", None))
        items = [number // 2 for number in range(400)]
        found = mpt_score.sentences(
            scorer, [TEN, longer] * 200, items=items, num_orders=2, **settings
        )
        assert found.same_orders is not None and found.same_orders.tolist() == list(range(400))
        correlation = found.log_score.view(200, 2).T.corrcoef()[0, 1]
        assert abs(correlation) < 5 / math.sqrt(200)

    def test_noise_that_conditions_have_in_common_cancels(self) -> None:
        """A model that does not look at the first token, and says ¼ of the value 0 of it and ¾ of 1."""

        def blind(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            seen = ids.clone()
            seen[:, 0] = 0
            answers = model(seen, mask)
            answers[:, 0] = torch.tensor([0.25, 0.75], dtype=torch.float64).log()
            return answers

        scorer = mpt_score.load(blind)
        texts = [[1, *TEN], [0, *TEN]]
        shared = mpt_score.sentences(scorer, texts, items=["a", "a"])
        torch.testing.assert_close(
            shared.along_orders[0] - shared.along_orders[1],
            torch.full((4,), math.log(3), dtype=torch.float64),
        )
        apart = mpt_score.sentences(scorer, texts, items=["a", "b"])
        assert apart.standard_error.min() > 0.1


def log_p_along(text: list[int], item: str) -> torch.Tensor:
    """log p of a text along each order that its item and length are given: a loop over its tokens."""
    source = stream(f"0 item {item} of [{len(text)}] tokens, row 0")
    ids = torch.tensor([text])
    totals = []
    for rank in sample_ranks(S, len(text), generator=source):
        total = 0.0
        for place in rank.argsort(descending=True).tolist():  # the highest is shown first
            answers = model(ids, rank[None] <= rank[place])
            total += answers[0, place, text[place]].item()
        totals.append(total)
    return torch.tensor(totals, dtype=torch.float64)


def literal_contrast(
    along: torch.Tensor, same: list[list[int]], weights: list[float]
) -> tuple[float, float]:
    """Value and error over orders of one item, from log p along each order of each text.

    Args:
        along: of each text and order.
        same: groups of texts that see the same orders.
        weights: of each text.
    """
    value = 0.0
    variance = 0.0
    num_orders = along.shape[1]
    for group in same:
        differences = [
            sum(weights[text] * along[text, order].item() for text in group)
            for order in range(num_orders)
        ]
        mean = sum(differences) / num_orders
        value += mean
        squares = sum((each - mean) ** 2 for each in differences)
        variance += squares / (num_orders - 1) / num_orders
    return value, math.sqrt(variance)


GROUPS = {"a": [[0, 1]], "b": [[2], [3]]}


def test_a_contrast_of_texts_is_the_literal_sum() -> None:
    found = mpt_score.sentences(SCORER, TEXTS, items=ITEMS, num_orders=S)
    along = torch.stack([log_p_along(*each) for each in zip(TEXTS, ITEMS, strict=True)])
    torch.testing.assert_close(found.log_score, along.mean(dim=1), rtol=0, atol=1e-10)
    contrast = found.contrast(WEIGHTS)
    assert contrast.items == ("a", "b") and contrast.unit == "nats"
    for item, name in enumerate(contrast.items):
        value, error = literal_contrast(along, GROUPS[name], WEIGHTS)
        assert contrast.value[item].item() == pytest.approx(value, abs=1e-10)
        assert contrast.order_error[item].item() == pytest.approx(error, abs=1e-10)
    # Of one group of orders all S − 1; of two, less than their sum (Satterthwaite).
    variances = [(WEIGHTS[text] ** 2 * along[text].var() / S).item() for text in (2, 3)]
    squares = sum(variance**2 for variance in variances)
    expected = [S - 1, sum(variances) ** 2 / squares * (S - 1)]
    assert contrast.degrees.tolist() == pytest.approx(expected)
    single = found.contrast([1, 0, 0, 0])
    assert single.items == ("a",)
    assert single.order_error.item() == pytest.approx(found.standard_error[0].item(), abs=1e-12)


def test_a_contrast_of_tokens_is_the_literal_sum() -> None:
    """The third token of each text, and in the last one the seventh, too."""
    found = mpt_score.surprisals(SCORER, TEXTS, items=ITEMS, num_orders=S)
    weights = [0.0] * 25
    for place, weight in zip((2, 8, 14, 20), WEIGHTS, strict=True):
        weights[place] = weight
    weights[20] = -2.0
    weights[24] = 3.0  # together 1, as the weight of the first text
    contrast = found.contrast(weights)
    assert contrast.unit == "bits"
    per_nat = -1 / math.log(2)
    along = per_nat * torch.stack([*(found.terms[place] for place in (2, 8, 14, 20))])
    along[3] = -2.0 * along[3] + 3.0 * per_nat * found.terms[24]
    for item, name in enumerate(contrast.items):
        value, error = literal_contrast(along, GROUPS[name], [*WEIGHTS[:3], 1.0])
        assert contrast.value[item].item() == pytest.approx(value, abs=1e-10)
        assert contrast.order_error[item].item() == pytest.approx(error, abs=1e-10)


class TestQuartets:
    def test_either_of_two_places_is_first_in_two_of_four(self) -> None:
        for ranks in quartets(sample_ranks(50, 7, generator=stream("a"))[None])[0]:
            is_first = ranks[:, :, None] > ranks[:, None]
            apart = ~torch.eye(7, dtype=torch.bool)
            assert (is_first.sum(dim=0)[apart] == 2).all()

    def test_a_place_is_once_in_each_quarter(self) -> None:
        ranks = quartets(sample_ranks(50, 8, generator=stream("a"))[None])[0]
        quarters = (ranks // 2).sort(dim=1).values
        assert torch.equal(quarters, torch.arange(4)[:, None].expand(50, 4, 8))

    @pytest.mark.parametrize("count", [4, 5])
    def test_each_order_of_four_is_uniform(self, count: int) -> None:
        """Of all orders each of the four makes all orders: the mean over them is unbiased."""
        every = list(permutations(range(count)))
        of_all = quartets(torch.tensor([every]))[0]
        for number in range(4):
            assert sorted(map(tuple, of_all[:, number].tolist())) == every
        assert of_all[:, 0].tolist() == [list(order) for order in every]

    def test_terms_are_means_over_four_orders(self) -> None:
        """The log-probability of each token in its turn, by a loop over the orders."""
        text = TEXTS[3]
        found = mpt_score.surprisals(SCORER, [text], items=["b"], num_orders=2)
        source = stream("0 item b of [7] tokens, row 0")
        for number, first in enumerate(sample_ranks(2, 7, generator=source)):
            turn = first.argsort(descending=True).tolist()
            terms = torch.zeros(7, dtype=torch.float64)
            # The rank of the last three is exchanged with that of the first four, 7 // 2 = 3.
            exchanged = [*turn[3:], *turn[:3]]
            for order in (turn, exchanged, turn[::-1], exchanged[::-1]):
                mask = torch.ones(1, 7, dtype=torch.bool)
                for place in order:
                    answers = model(torch.tensor([text]), mask)
                    terms[place] += answers[0, place, text[place]] / 4
                    mask[0, place] = False
            torch.testing.assert_close(found.terms[:, number], terms, rtol=0, atol=1e-6)
        assert found.degrees.tolist() == [1] * 7

    def test_one_window_of_which_masks_are_drawn_is_enough(self) -> None:
        """Every mask of the window of six tokens is tried, and not of that of seven."""
        scorer = mpt_score.load(model, max_length=7)
        found = mpt_score.surprisals(scorer, [[0, 1, 1, *TEN]], items=["a"], num_orders=3)
        assert sorted(found.standard_error.sign().tolist()) == [0] * 6 + [1] * 7
        assert found.degrees.tolist() == [2] * 13

    def test_quartets_that_are_the_same_twice_have_no_error(self) -> None:
        """The four orders of a quartet differ, but say nothing of the spread between quartets."""
        item = 0
        while True:
            first, second = sample_ranks(
                2, 6, generator=stream(f"0 item {item} of [6] tokens, row 0")
            )
            if torch.equal(first, second):
                break
            item += 1
        found = mpt_score.surprisals(SCORER, TEXTS[:1], items=[item], num_orders=2)
        assert torch.equal(found.terms[:, 0], found.terms[:, 1])
        assert found.degrees.tolist() == [0] * 6 and found.standard_error.isnan().all()

    def test_every_mask_is_tried_where_these_are_not_more(self) -> None:
        """63 masks of six tokens, 24 of each quartet."""
        found = mpt_score.surprisals(SCORER, TEXTS[:1], items=["a"], num_orders=3)
        assert found.degrees.isinf().all() and not found.standard_error.any()
        plain = mpt_score.surprisals(SCORER, TEXTS[:1], num_orders=11)
        torch.testing.assert_close(found.log_score, plain.log_score)
        fewer = mpt_score.surprisals(SCORER, TEXTS[:1], items=["a"], num_orders=2)
        assert (fewer.degrees == 1).all() and (fewer.standard_error > 0).all()


class TestInteractions:
    """Of eight tokens the first is a noun and the fifth a pronoun."""

    weights = (-1, 1, 1, -1)

    def texts(self) -> list[list[int]]:
        return [[noun, 1, 0, 1, pronoun, 1, 1, 0] for noun in (0, 1) for pronoun in (0, 1)]

    def contrast(
        self, answers: Callable[[Tensor, Tensor], Tensor], num_items: int, num_orders: int = 4
    ) -> Contrast:
        items = [number // 4 for number in range(4 * num_items)]
        found = mpt_score.surprisals(
            mpt_score.load(answers), self.texts() * num_items, items=items, num_orders=num_orders
        )
        is_pronoun = torch.arange(8) == 4
        weights = torch.tensor(self.weights * num_items)[:, None] * is_pronoun
        return found.contrast(weights.flatten())

    def test_half_of_the_orders_show_the_noun_before_the_pronoun(self) -> None:
        """Log-odds of the pronoun are ± 1 where the noun is shown: an interaction of 2 nats there.

        So it is 1 over all orders, and over each quartet. That leaves no spread to tell an error."""

        def agreement(ids: Tensor, mask: Tensor) -> Tensor:
            return pronouns(ids, torch.where(mask[:, 0], 0.0, 2.0 * ids[:, 0] - 1))

        contrast = self.contrast(agreement, 50)
        bits = torch.full((50,), 1 / math.log(2), dtype=torch.float64)
        torch.testing.assert_close(contrast.value, bits, rtol=0, atol=1e-5)
        assert contrast.order_error.isnan().all() and not contrast.degrees.any()

    def test_intervals_cover(self) -> None:
        """The agreement depends on what else is shown. Of 400 items, five standard deviations."""

        def agreement(ids: Tensor, mask: Tensor) -> Tensor:
            strength = (~mask[:, 1:]).float() @ torch.tensor([0.4, -0.3, 0.2, 0.0, 0.5, -0.6, 0.3])
            strength = (1 + strength.tanh()) * (2 * ids[:, 0] - 1)
            return pronouns(ids, strength.masked_fill(mask[:, 0], 0.0))

        truth = self.contrast(agreement, 1, num_orders=16)
        assert truth.order_error.item() == 0
        contrast = self.contrast(agreement, 400)
        assert contrast.order_error.isfinite().all()
        torch.testing.assert_close(contrast.degrees, torch.full_like(contrast.degrees, 3.0))
        low, high = contrast.interval().T
        share = ((low < truth.value) & (truth.value < high)).double().mean().item()
        assert share == pytest.approx(0.95, abs=5 * math.sqrt(0.95 * 0.05 / 400))
        off = contrast.value - truth.value
        for values in (off, contrast.order_error.square() - off.square()):
            mean, error = mean_and_error(values)
            assert mean.abs() < 5 * error


def pronouns(ids: Tensor, log_odds: Tensor) -> Tensor:
    """What is said of eight tokens of which the fifth has these log-odds, and others none."""
    odds = torch.zeros(ids.shape, dtype=torch.float64)
    odds[:, 4] = log_odds
    return torch.nn.functional.logsigmoid(torch.stack([-odds, odds], dim=-1))


def test_a_contrast_of_words_is_that_of_their_tokens() -> None:
    texts = ["the cats sat the dogs .", "a cats sat the dogs ."]
    found = mpt_score.surprisals(tiny(), texts, tokenizer=tokenizer(), items=[7, 7])
    of_words = found.by_word().contrast([0, 1, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0])
    of_tokens = found.contrast([0, 1, 1, *[0] * 5, 0, -1, -1, *[0] * 5])
    assert of_words.items == of_tokens.items == (7,)
    assert of_words.value.item() == pytest.approx(of_tokens.value.item(), abs=1e-12)
    assert of_words.order_error.item() == pytest.approx(of_tokens.order_error.item(), abs=1e-12)


def test_words_have_the_orders_of_their_text() -> None:
    """Every mask of two tokens is tried, and not of eight, six words, of which two have two tokens."""
    texts = ["the cats sat the dogs .", "the cat", "a cats sat the dogs ."]
    found = mpt_score.surprisals(tiny(), texts, tokenizer=tokenizer(), items=[7, 7, 7])
    words = found.by_word()
    assert words.degrees.tolist() == [3] * 6 + [math.inf] * 2 + [3] * 6
    assert words.same_orders is not None
    assert words.same_orders.tolist() == [0] * 6 + [1] * 2 + [0] * 6


@pytest.mark.parametrize("settings", [{}, {"max_length": 6}, {"block_length": 5}], ids=str)
def test_contrasts_are_unbiased_and_their_errors_honest(settings: dict[str, int]) -> None:
    """Of 400 draws: the mean within five errors of what all orders give, and so is the mean of
    order_error² less the squared distance from it. Windows have five or six tokens, blocks five, or
    one that is left."""
    settings = dict(settings)
    max_length = settings.pop("max_length", None)
    scorer = mpt_score.load(model, max_length=max_length, max_tokens=2**15)
    long = [text + text[:4] for text in TEXTS]
    exact = mpt_score.sentences(scorer, long, num_orders=210, items=ITEMS, **settings)
    assert not exact.standard_error.any()
    truth = exact.contrast(WEIGHTS).value
    # Items of other names have draws of their own: in one call these are so many pairs of items.
    items = [f"{number}{item}" for number in range(NUM_DRAWS) for item in ITEMS]
    found = mpt_score.sentences(scorer, long * NUM_DRAWS, items=items, num_orders=S, **settings)
    contrast = found.contrast(WEIGHTS * NUM_DRAWS)
    off = contrast.value.view(NUM_DRAWS, 2) - truth
    variance = contrast.order_error.view(NUM_DRAWS, 2).square()
    assert variance.isfinite().all()
    for values in (off, variance - off.square()):
        mean, error = mean_and_error(values)
        assert (mean.abs() < 5 * error).all()
    # The mean of the two items, whose orders are independent.
    means = [
        Contrast(("a", "b"), value, error, torch.ones(2), contrast.unit).mean_of_these()
        for value, error in zip(contrast.value.split(2), contrast.order_error.split(2), strict=True)
    ]
    stated = torch.tensor([each.standard_error for each in means])
    off_of_mean = torch.tensor([float(each) for each in means]) - truth.mean()
    mean, error = mean_and_error(stated.square() - off_of_mean.square())
    assert abs(mean) < 5 * error


def test_means_over_items() -> None:
    value = torch.tensor([1.0, 4.0, 1.0], dtype=torch.float64)
    error = torch.tensor([0.3, 0.0, 0.4], dtype=torch.float64)
    degrees = torch.tensor([3.0, math.inf, 3.0], dtype=torch.float64)
    contrast = Contrast((1, 2, 3), value, error, degrees, "bits")
    assert contrast.mean() == 2 and contrast.mean().standard_error == pytest.approx(1.0)
    assert contrast.mean().num_samples == 3 and contrast.mean().unit == "bits"
    assert contrast.mean_of_these() == 2 and contrast.mean_of_these().num_samples == 3
    assert contrast.mean_of_these().standard_error == pytest.approx(0.5 / 3)
    assert contrast.mean_of_these().unit == "bits"
    value[0] = error[0] = math.nan
    degrees[0] = 0
    assert contrast.mean() == 2.5 and contrast.mean().num_samples == 2
    assert contrast.mean().standard_error == pytest.approx(1.5)
    assert contrast.mean_of_these().standard_error == pytest.approx(0.2)
    one = Contrast((1,), value[1:2], error[1:2], degrees[1:2], "bits")
    assert math.isnan(one.mean().standard_error) and one.mean_of_these().standard_error == 0
    with pytest.raises(ValueError, match="no item has a value"):
        Contrast((1,), value[:1], error[:1], degrees[:1], "bits").mean()
    error[2] = math.nan
    assert contrast.mean_of_these() == 2.5
    assert math.isnan(contrast.mean_of_these().standard_error)


def test_rows_have_students_intervals() -> None:
    """Quantiles of a table: 12.706 for one degree of freedom, 3.182 for three, at 95 %."""
    contrast = Contrast(
        ("one", "three", "every", "none"),
        torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64),
        torch.tensor([0.1, 0.1, 0.0, math.nan], dtype=torch.float64),
        torch.tensor([1.0, 3.0, math.inf, 0.0], dtype=torch.float64),
        "bits",
    )
    one, three, every, none = contrast.rows()
    assert one["low"] == pytest.approx(1 - 1.2706, abs=1e-4)
    assert one["high"] == pytest.approx(1 + 1.2706, abs=1e-4)
    assert [three["low"], three["high"]] == pytest.approx([2 - 0.3182, 2 + 0.3182], abs=1e-4)
    assert three["degrees"] == 3 and three["order_error"] == pytest.approx(0.1)
    exact = {"value": 3.0, "order_error": 0.0, "degrees": None, "low": 3.0, "high": 3.0}
    assert every == {"item": "every", **exact, "unit": "bits"}
    not_known = {"value": 4.0, "order_error": None, "degrees": 0.0, "low": None, "high": None}
    assert none == {"item": "none", **not_known, "unit": "bits"}


def test_items_are_the_documents_unless_others_are_named() -> None:
    found = mpt_score.sentences(SCORER, TEXTS, items=ITEMS)
    assert found.documents.tolist() == [0, 0, 2, 2]
    # Two documents: residuals of their sums, each over two texts.
    sums = [found.log_score[:2].sum().item(), found.log_score[2:].sum().item()]
    assert found.mean().num_samples == 2
    assert found.mean().standard_error == pytest.approx(abs(sums[0] - sums[1]) / 4)
    other = mpt_score.sentences(SCORER, TEXTS, items=ITEMS, documents=["p", "q", "p", "q"])
    assert other.documents.tolist() == [0, 1, 0, 1] and other.items == tuple(ITEMS)
    assert [row["item"] for row in other.rows()] == ITEMS


class TestErrorsThatAreNotKnown:
    def test_a_single_order_has_none(self) -> None:
        found = mpt_score.sentences(SCORER, TEXTS, items=ITEMS, num_orders=1)
        assert found.contrast(WEIGHTS).order_error.isnan().all()
        assert found.contrast(WEIGHTS).value.isfinite().all()
        of_tokens = mpt_score.surprisals(SCORER, TEXTS[:2], items=ITEMS[:2], num_orders=1)
        assert of_tokens.contrast([1, *[0] * 5, -1, *[0] * 5]).order_error.isnan().all()

    def test_orders_with_the_same_difference_have_none(self) -> None:
        """Two orders of three tokens, of texts that differ in the first one.

        Its place among them is what their difference depends on, and the order of the others unless
        both come before it. Two orders give the same one time in 4 · 1/36 + 1/9 = 2/9. Of 300 items,
        ± 4 standard deviations."""
        items = [number // 2 for number in range(600)]
        found = mpt_score.sentences(SCORER, [[0, 1, 1], [1, 1, 1]] * 300, items=items, num_orders=2)
        assert found.along_orders is not None
        differences = found.along_orders[::2] - found.along_orders[1::2]
        is_same = (differences[:, 0] - differences[:, 1]).abs() < 1e-9
        contrast = found.contrast([1, -1] * 300)
        assert torch.equal(contrast.order_error.isnan(), is_same)
        assert torch.equal(contrast.degrees, (~is_same).double())
        assert contrast.value.isfinite().all()
        error = math.sqrt(2 / 9 * 7 / 9 / 300)
        assert is_same.double().mean() == pytest.approx(2 / 9, abs=4 * error)

    def test_one_text_without_a_spread_is_enough(self) -> None:
        """Of three tokens beside six, whose orders are hardly ever the same."""
        texts = [[0, 1, 1], TEXTS[0]] * 60
        items = [number // 2 for number in range(120)]
        found = mpt_score.sentences(SCORER, texts, items=items, num_orders=2)
        is_same = found.num_passes[::2] == 3
        assert is_same.any() and not found.standard_error[1::2].isnan().any()
        assert torch.equal(found.contrast([1, -1] * 60).order_error.isnan(), is_same)

    def test_one_window_without_a_spread_is_enough(self) -> None:
        """Of windows of three tokens each: two orders of one are the same, those of the other differ."""
        scorer = mpt_score.load(model, max_length=3)
        items = [number // 2 for number in range(120)]
        found = mpt_score.sentences(scorer, TEXTS[:2] * 60, items=items, num_orders=2)
        is_same = found.standard_error[::2].isnan()
        assert found.along_orders is not None
        differences = found.along_orders[::2] - found.along_orders[1::2]
        assert ((differences[:, 0] - differences[:, 1]).abs() > 1e-3)[is_same].any()
        assert found.contrast([1, -1] * 60).order_error[is_same].isnan().all()

    @pytest.mark.parametrize(
        ("second", "value"), [(TEXTS[1], -math.log(3)), ([1, 0, 1, 0, 1, 0], 0.0)]
    )
    def test_rounding_is_no_spread(self, second: list[int], value: float) -> None:
        """What is said of the second text depends by 1e-7 on what is shown."""

        def nearly_coin(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return coin(ids, mask) * (1 - 1e-7 * mask.sum(dim=1) * ids[:, 0])[:, None, None]

        texts = [TEXTS[0], second]
        found = mpt_score.sentences(mpt_score.load(nearly_coin), texts, items=["a", "a"])
        contrast = found.contrast([1, -1])
        assert contrast.value.item() == pytest.approx(value, abs=1e-4)
        assert contrast.order_error.isnan().all() and contrast.degrees.tolist() == [0]

    @pytest.mark.parametrize("num_orders", [1, 4])
    def test_all_orders_have_the_error_zero(self, num_orders: int) -> None:
        """Of texts of one token, and from left to right, there is only one order."""
        settings: dict[str, Any] = {"items": ["a", "a"], "num_orders": num_orders}
        left_to_right = mpt_score.sentences(SCORER, TEXTS[:2], block_length=1, **settings)
        assert left_to_right.contrast([1, -1]).order_error.tolist() == [0.0]
        assert left_to_right.contrast([1, -1]).degrees.tolist() == [math.inf]
        tokens = mpt_score.surprisals(SCORER, [[0], [1]], **settings)
        assert tokens.contrast([1, -1]).order_error.tolist() == [0.0]
        assert tokens.standard_error.tolist() == [0.0, 0.0]

    def test_exact_and_drawn_texts_of_one_item(self) -> None:
        """Two tokens are scored by all masks, six along orders: only these have an error."""
        found = mpt_score.sentences(SCORER, [[0, 1], TEXTS[0]], items=["a", "a"])
        contrast = found.contrast([1, -1])
        expected = (found.log_score[0] - found.log_score[1]).item()
        assert contrast.value.item() == pytest.approx(expected, abs=1e-12)
        error = found.standard_error[1].item()
        assert contrast.order_error.item() == pytest.approx(error, abs=1e-12)
        assert contrast.degrees.item() == pytest.approx(3)


def without_answers(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Has no probability for texts that begin with 1, 1, 1."""
    is_bad = (ids[:, :3] == 1).all(dim=1) & (ids.shape[1] == 6)
    return model(ids, mask).masked_fill(is_bad[:, None, None], math.nan)


@pytest.mark.bad_input
class TestSkippedTexts:
    """The second text of item "a" has no score."""

    @pytest.fixture
    def scorer(self) -> mpt_score.Scorer:
        """It has been tried on other texts: the first call of a function looks whether it leaks."""
        scorer = mpt_score.load(without_answers)
        mpt_score.sentences(scorer, TEXTS[2:])
        return scorer

    def test_the_contrast_of_its_item_is_not_known(self, scorer: mpt_score.Scorer) -> None:
        found = mpt_score.sentences(scorer, TEXTS, items=ITEMS, skip=True)
        assert list(found.skipped) == [1]
        contrast = found.contrast(WEIGHTS)
        whole = mpt_score.sentences(SCORER, TEXTS, items=ITEMS).contrast(WEIGHTS)
        assert contrast.value.isnan().tolist() == contrast.order_error.isnan().tolist()
        assert contrast.degrees.tolist() == [0, pytest.approx(whole.degrees[1].item())]
        assert contrast.value.isnan().tolist() == [True, False]
        assert contrast.value[1] == whole.value[1] == contrast.mean()
        assert contrast.order_error[1] == whole.order_error[1]
        assert found.contrast([1, 0, 1, 0]).value.isfinite().all()

    def test_where_every_item_misses_a_text_none_has_a_contrast(
        self, scorer: mpt_score.Scorer
    ) -> None:
        found = mpt_score.sentences(scorer, TEXTS[:2], items=ITEMS[:2], skip=True)
        contrast = found.contrast(WEIGHTS[:2])
        assert contrast.items == ("a",) and contrast.value.isnan().all()

    def test_nor_that_of_its_tokens(self, scorer: mpt_score.Scorer) -> None:
        """What is left of the item are the weights of one condition: no difference."""
        found = mpt_score.surprisals(scorer, TEXTS, items=ITEMS, skip=True)
        weights = [1.0, *[0.0] * 5, 1.0, *[0.0] * 5, -1.0, *[0.0] * 6]
        contrast = found.contrast(weights)
        assert contrast.items == ("a", "b")
        assert contrast.value.isnan().tolist() == [True, False]
        assert contrast.mean().num_samples == 1
        texts = [TEXTS[0], TEXTS[1], TEXTS[2], TEXTS[1]]
        found = mpt_score.surprisals(scorer, texts, items=ITEMS, skip=True)
        assert list(found.skipped) == [1, 3]
        assert found.contrast([1.0, *[0.0] * 5] * 2).value.isnan().all()


def test_an_unknown_token_has_no_contrast() -> None:
    texts = ["the zebra sat", "the cat sat", "a dog sat", "a cat sat"]
    found = mpt_score.surprisals(tiny(), texts, tokenizer=tokenizer(), items=["a", "a", "b", "b"])
    contrast = found.by_word().contrast([0, 1, 0, 0, -1, 0, 0, 1, 0, 0, -1, 0])
    assert contrast.value.isnan().tolist() == [True, False]
    others = found.by_word().contrast([0, 0, 1, 0, 0, -1, 0, 0, 1, 0, 0, -1])
    assert others.value.isfinite().all()


@pytest.mark.parametrize(
    "weights",
    [tuple(WEIGHTS), torch.tensor(WEIGHTS), pd.Series(WEIGHTS, index=[5, 6, 7, 8])],
    ids=["tuple", "tensor", "pandas"],
)
def test_weights_and_items_in_any_form(weights: Any) -> None:
    items = pd.Series(ITEMS, index=[5, 6, 7, 8])
    found = mpt_score.sentences(SCORER, TEXTS, items=items)
    expected = mpt_score.sentences(SCORER, TEXTS, items=ITEMS).contrast(WEIGHTS)
    assert torch.equal(found.contrast(weights).value, expected.value)


def test_regions_may_have_other_numbers_of_words() -> None:
    """Weights that are equal within a text add up to 0 text by text, others word by word."""
    found = mpt_score.surprisals(SCORER, TEXTS, items=ITEMS)
    text = found.text.tolist()
    place = [text[:number].count(one) for number, one in enumerate(text)]
    region = {0: 1, 1: 1, 2: 1, 3: 2}  # words from the first on, of each text
    of_text = [1.0, -1.0, 1.0, -1.0]
    in_region = [place[row] < region[one] for row, one in enumerate(text)]
    by_text = [of_text[one] * inside for one, inside in zip(text, in_region, strict=True)]
    by_word = [weight / region[one] for weight, one in zip(by_text, text, strict=True)]
    for weights in (by_text, by_word):
        expected = -(torch.tensor(weights, dtype=torch.float64) * found.log_score).double()
        totals = [
            sum(expected[row].item() for row in range(len(text)) if text[row] in pair)
            for pair in ((0, 1), (2, 3))
        ]
        contrast = found.contrast(weights)
        assert (contrast.value * math.log(2)).tolist() == pytest.approx(totals, abs=1e-10)


def test_an_unknown_word_in_one_condition_leaves_no_contrast() -> None:
    """Of whole sentences: what stands there counts in the others, and not in this one."""
    texts = ["the cat sat", "the dog sat", "the cat sat", "the zebra sat"]
    found = mpt_score.sentences(tiny(), texts, tokenizer=tokenizer(), items=ITEMS)
    contrast = found.contrast([1, -1, 1, -1])
    assert contrast.value.isnan().tolist() == [False, True]
    assert contrast.order_error.isnan().tolist() == [False, True]
    assert contrast.degrees.tolist() == [math.inf, 0]


def test_an_unknown_word_in_both_conditions_counts_in_neither() -> None:
    texts = ["the cat sat", "the dog sat", "the zebra sat", "a zebra sat"]
    found = mpt_score.sentences(tiny(), texts, tokenizer=tokenizer(), items=ITEMS)
    difference = found.log_score[2] - found.log_score[3]
    torch.testing.assert_close(found.contrast([1, -1, 1, -1]).value[1], difference)


def coin(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Says ¼ of the value 0 and ¾ of 1, whatever is shown."""
    return torch.tensor([0.25, 0.75], dtype=torch.float64).log().expand(*ids.shape, 2)


class TestDesigns:
    """Two nouns and two pronouns: an interaction, which coins do not have."""

    conditions = ([0, 1], [0, 0], [1, 1], [1, 0])
    interaction = (1, -1, -1, 1)
    scorer = mpt_score.load(coin)

    def contrast(
        self, texts: list[list[int]], items: list[str], weights: Sequence[float]
    ) -> Contrast:
        return mpt_score.sentences(self.scorer, texts, items=items).contrast(weights)

    def test_items_have_the_same_weights_in_any_order(self) -> None:
        contrast = self.contrast(
            [*self.conditions, *self.conditions[::-1]],
            ["a"] * 4 + ["b"] * 4,
            [*self.interaction, *self.interaction[::-1]],
        )
        torch.testing.assert_close(contrast.value, torch.zeros(2, dtype=torch.float64))

    @pytest.mark.bad_input
    def test_an_item_without_one_noun_is_refused(self) -> None:
        """Its simple effect, log 3, would be half of the mean interaction."""
        texts = [*self.conditions, *self.conditions[:2]]
        message = (
            r"weights of the texts of item 'b' must be -1, -1, 1, 1, as in other items, got -1, 1: add "
            "the text that is missing, take out the one that is there twice, or leave the item out"
        )
        with pytest.raises(ValueError, match=message):
            self.contrast(texts, ["a"] * 4 + ["b"] * 2, [*self.interaction, 1, -1])

    @pytest.mark.bad_input
    def test_an_item_that_stands_twice_is_refused(self) -> None:
        with pytest.raises(ValueError, match="of item 'b' must be -1, 1, .* got -1, -1, 1, 1:"):
            self.contrast([[0, 1], [0, 0]] * 4, ["a"] * 2 + ["b"] * 4 + ["c"] * 2, [1, -1] * 4)

    @pytest.mark.bad_input
    def test_the_item_that_differs_from_most_is_named(self) -> None:
        with pytest.raises(ValueError, match="of item 'a' must be -1, 1, .* got 1:"):
            self.contrast([[0, 1], [0, 0]] * 3, list("aabbcc"), [1, 0, 1, -1, 1, -1])

    @pytest.mark.bad_input
    @pytest.mark.parametrize("weight", [-1.001, -0.999, 1.0])
    @pytest.mark.parametrize("scale", [1.0, 1e-12])
    def test_a_weight_that_is_another_is_refused(self, weight: float, scale: float) -> None:
        weights = [scale, -scale, scale, scale * weight]
        with pytest.raises(ValueError, match=f"of item 'b' must be {-scale:g}, {scale:g}, as in"):
            self.contrast([[0, 1], [0, 0]] * 2, list("aabb"), weights)

    def test_weights_of_words_add_up_but_for_rounding(self) -> None:
        """A region of one word, and one of three in the second text of the other item."""
        texts = [[0], [1], [0], [1] * 3]
        found = mpt_score.surprisals(self.scorer, texts, items=["a", "a", "b", "b"])
        weights = [0.3, -0.3, 0.3, -0.1, -0.1, -0.1]
        assert math.fsum(weights[3:]) != -0.3
        assert found.contrast(weights).value.exp2().tolist() == pytest.approx([3**0.3] * 2)

    @pytest.mark.bad_input
    def test_words_of_two_texts_are_not_those_of_one(self) -> None:
        texts = [[0, 1], [1, 0], [0, 1]]
        found = mpt_score.surprisals(self.scorer, texts, items=["a", "a", "b"])
        with pytest.raises(ValueError, match="weights of the texts of item 'b'"):
            found.contrast([1, 0, -1, 0, 1, -1])


class TestRegions:
    """A word of each text has the text's weight."""

    texts = ("the cat sat a dog", "a cat sat the dog", "the dog sat a cat", "a dog sat the cat")
    weights = (1.0, -1.0, 1.0, -1.0)

    def found(self, **settings: Any) -> Any:
        texts = list(self.texts)
        scorer = mpt_score.load(tiny(), tokenizer())
        return mpt_score.surprisals(scorer, texts, items=["a", "a", "b", "b"], **settings).by_word()

    def test_it_is_asked_for_by_its_number_or_its_word(self) -> None:
        scores = self.found()
        numbers = [1, 1, 4, 4]
        by_hand = [
            self.weights[number] * (word == numbers[number])
            for number, word in zip(scores.text.tolist(), scores.word.tolist(), strict=True)
        ]
        wanted = scores.contrast(by_hand)
        for region in (numbers, pd.Series(numbers), ["cat"] * 4, [1, "cat", 4, "cat"]):
            contrast = scores.contrast(pd.Series(self.weights), region=region)
            assert torch.equal(contrast.value, wanted.value)

    def test_texts_that_were_skipped_are_counted(self) -> None:
        texts = ["the cat sat", "a cat sat", "???", "the dog sat", "a dog sat"]
        scores = mpt_score.surprisals(
            tiny(), texts, tokenizer=tokenizer(), items=list("aacbb"), skip=True
        ).by_word()
        region = ["cat", "cat", "nowhere", "dog", "dog"]
        contrast = scores.contrast([1, -1, 0, 1, -1], region=region)
        wanted = scores.contrast([0, 1, 0, 0, -1, 0] * 2)
        assert torch.equal(contrast.value, wanted.value)

    @pytest.mark.bad_input
    def test_what_is_no_region_is_named(self) -> None:
        scores = self.found()
        for region, message in (
            (["cat"] * 3, "region must be one for each of 4 texts, got 3"),
            (["cat", "he", 1, 1], "text 1 has no word 'he'; its words are 0 'a', 1 'cat', 2 'sat'"),
            ([1, 1, 1, 5], "text 3 has no word 5; its words are 0 'a', .*, 4 'cat'"),
        ):
            with pytest.raises(ValueError, match=message):
                scores.contrast(self.weights, region=region)
        with pytest.raises(ValueError, match="weights must be one for each of 4 texts, got 20"):
            scores.contrast([1.0] * 20, region=["cat"] * 4)
        texts = ["the cat sat the", "a cat sat a"]
        scores = mpt_score.surprisals(tiny(), texts, tokenizer=tokenizer(), items=[0, 0]).by_word()
        message = "text 0 has the word 'the' at 0 and 3, counted from 0. Give its number."
        with pytest.raises(ValueError, match=message):
            scores.contrast([1, -1], region=["the", "a"])


@pytest.mark.bad_input
def test_what_is_refused() -> None:
    found = mpt_score.sentences(SCORER, TEXTS, items=ITEMS)
    for weights, message in (
        ([1, -1], "weights must be 4 numbers, one a text or token, got 2"),
        ([0, 0, 0, 0], "weights must not all be 0"),
        ([1, math.nan, 0, 0], "weights must be a single number .* got nan"),
    ):
        with pytest.raises(ValueError, match=message):
            found.contrast(weights)
    with pytest.raises(ValueError, match="items were not named"):
        mpt_score.sentences(SCORER, TEXTS).contrast(WEIGHTS)
    alone = mpt_score.surprisals(SCORER, TEXTS, items=ITEMS, num_orders=0, pseudo=True)
    for scores in (mpt_score.surprisals(SCORER, TEXTS), alone):
        with pytest.raises(ValueError, match="a contrast takes items and orders"):
            scores.contrast([1.0] * 25)
    for items, kind, message in (
        (["a"], ValueError, "4 texts came with 1 items"),
        (["a"] * 5, ValueError, "4 texts came with 5 items"),
        (["a", None, "b", "b"], ValueError, "items: text 1 has no item .None."),
        (pd.Series([1.0, 1.0, math.nan, 2.0]), ValueError, "items: text 2 has no item .nan."),
        ([["a"]] * 4, TypeError, "items: that of text 0 must be a name or a number"),
        ("aabb", TypeError, "items must be a list or a column"),
    ):
        for function in (mpt_score.sentences, mpt_score.surprisals):
            with pytest.raises(kind, match=message):
                function(SCORER, TEXTS, items=items)
    for budget in ({"num_masks": 9}, {"target_error": 0.1}):
        with pytest.raises(ValueError, match="items are compared along orders"):
            mpt_score.sentences(SCORER, TEXTS, items=ITEMS, **budget)


def of_pairs(weights: list[float], terms: list[list[float]], degrees: list[float]) -> Contrast:
    """The contrast of items of two texts each, all of which share their orders."""
    items = [number // 2 for number in range(len(terms))]
    texts = torch.arange(len(terms))
    values = torch.tensor(terms, dtype=torch.float64)
    of_terms = torch.tensor(degrees, dtype=torch.float64)
    return contrast_of(weights, values, items, texts, 0 * texts, of_terms, "nats")


def test_a_term_whose_orders_are_one_leaves_the_error_of_its_item_open() -> None:
    found = of_pairs([1.0, -1.0], [[0.0, 1.0, 2.0, 4.0], [5.0] * 4], [3.0, 0.0])
    assert found.order_error.isnan().all()


def test_an_item_without_a_value_may_have_other_weights() -> None:
    terms = [[0.0, 1.0], [2.0, 4.0], [math.nan] * 2, [1.0, 2.0]]
    found = of_pairs([1.0, -1.0, 1.0, 1.0], terms, [1.0] * 4)
    assert found.value.isnan().tolist() == [False, True]
