"""Texts that differ in k tokens: exact ratios, all orders, what cannot be compared."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable

import pytest
import torch
from families import FAMILIES
from models import generator, points, random_table
from tiny_bert import tiny, tokenizer

import mpt_score
from mpt_lml import HMM, ConditionalTable, masks
from mpt_lml.scores import over_orders
from mpt_score import tokens
from mpt_score.quantities import pair_scores
from mpt_score.rows.requests import masks_along_orders, stream

SUMS = 1e-12  # sums of a few hundred float64 numbers of size 10


def changed(x: torch.Tensor, counts: list[int], num_values: int, seed: int = 0) -> torch.Tensor:
    """``x`` with so many entries of each row replaced by others."""
    draws, y = generator(seed), x.clone()
    for row, count in zip(y, counts, strict=True):
        places = torch.randperm(len(row), generator=draws)[:count]
        row[places] = (row[places] + 1) % num_values
    return y


def inconsistent(num_features: int = 5) -> ConditionalTable:
    joint = random_table(*[2] * num_features, seed=3)
    return ConditionalTable.of(joint, noise=0.7, generator=generator(4))


def with_tail(model: ConditionalTable) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """log q of texts that begin with the coordinates of ``model``; what follows them says nothing."""

    def log_values(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        size = model.num_features
        values = torch.full((*ids.shape, 2), -math.log(2), dtype=torch.float64)
        values[:, :size] = model.log_values(ids[:, :size], mask[:, :size])
        return values

    return log_values


def over_every_order(model: ConditionalTable, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """log q(x_A | x_R) − log q(y_A | x_R) along each order of A, one conditional at a time."""
    places = (x != y).nonzero().flatten().tolist()
    totals = []
    for order in itertools.permutations(places):
        total = 0.0
        for step, place in enumerate(order):
            mask = torch.zeros(1, len(x), dtype=torch.bool)
            mask[0, list(order[step:])] = True
            one, other = (model.log_each(text[None], mask)[0, place] for text in (x, y))
            total += (one - other).item()
        totals.append(total)
    return torch.tensor(totals, dtype=torch.float64)


def ratios_along_drawn_orders(
    model: ConditionalTable, x: torch.Tensor, y: torch.Tensor, *, num_orders: int, seed: int
) -> torch.Tensor:
    """The same along the orders of a pair, which follow from both texts, whichever is the first."""
    places = (x != y).nonzero().flatten()
    key = f"{seed} pair {sorted([x.tolist(), y.tolist()])}"
    hidden = masks_along_orders(num_orders, len(places), [stream(key)]).hidden[0]
    every = list(itertools.permutations(places.tolist()))
    ratios = over_every_order(model, x, y)
    # The place that is hidden by the fewest masks of an order is shown first.
    shown = [places[of_order.sum(dim=0).argsort()] for of_order in hidden.split(len(places))]
    return torch.stack([ratios[every.index(tuple(order.tolist()))] for order in shown])


class TestExactConditionals:
    @pytest.mark.parametrize("num_orders", [32, 2], ids=["all orders", "drawn orders"])
    def test_every_order_gives_the_log_ratio(self, num_orders: int) -> None:
        language = HMM.cyclic()
        x = language.sample(40, generator=generator(1))
        y = changed(x, [n % 6 for n in range(40)], language.num_values)
        found = mpt_score.pairs(language.log_values, x, y, num_orders=num_orders)
        truth = language.log_marginal(x) - language.log_marginal(y)
        assert (found.log_ratio - truth).abs().max() < 1e-10
        assert found.inconsistency.nan_to_num().max() < 1e-10  # of two orders that are the same
        assert torch.equal(found.num_changed, torch.arange(40) % 6)

    def test_the_pseudo_difference_is_another_number(self) -> None:
        language = HMM.cyclic()
        x = language.sample(6, generator=generator(1))
        y = changed(x, [0, 1, 1, 2, 2, 3], language.num_values)
        found = mpt_score.pairs(language.log_values, x, y, pseudo=True)
        alone = torch.eye(16).bool()
        wanted = [language.log_conditional(each, alone).sum(dim=(0, 2)) for each in (x, y)]
        torch.testing.assert_close(
            found.pseudo_difference, wanted[0] - wanted[1], rtol=0, atol=1e-10
        )
        assert (found.pseudo_difference - found.log_ratio).abs()[1:].max() > 0.1
        assert found.pseudo_difference[0] == 0


class TestInconsistentConditionals:
    def test_mean_and_spread_are_those_of_all_orders_for_every_k_in_one_call(self) -> None:
        model = inconsistent()
        x = points(5, 2)[[3, 8, 17, 20, 30]]
        y = changed(x, [1, 2, 3, 4, 5], 2)
        found = mpt_score.pairs(model.log_values, x, y)
        for n in range(5):
            every = over_every_order(model, x[n], y[n])
            assert math.isclose(found.log_ratio[n], every.mean(), abs_tol=SUMS)
            assert math.isclose(found.inconsistency[n], every.std(correction=0), abs_tol=SUMS)
        assert found.inconsistency[2:].min() > 0.01
        assert found.standard_error.max() < SUMS

    def test_the_mean_is_a_weighted_sum_over_subsets(self) -> None:
        """(M − 1)! (k − M)! / k! for each set and member, as the docstring derives."""
        every = masks.subsets(4)
        values = torch.randn(15, 3, 4, generator=generator(2), dtype=torch.float64)
        size = every[1:].sum(dim=1)
        weight = 1 / (size * torch.tensor([math.comb(4, int(m)) for m in size])).double()
        by_hand = (weight[:, None, None] * values * every[1:, None]).sum(dim=(0, 2))
        torch.testing.assert_close(over_orders(values, every)[0], by_hand, rtol=0, atol=SUMS)

    def test_drawn_orders_are_common_to_both_texts_and_follow_from_them(self) -> None:
        model = inconsistent()
        x = points(5, 2)[[3, 8]]
        y = changed(x, [5, 4], 2)
        found = mpt_score.pairs(model.log_values, x, y, num_orders=3, seed=7)
        for n in range(2):  # 31 > 3 · 5, 15 > 3 · 4
            drawn = ratios_along_drawn_orders(model, x[n], y[n], num_orders=3, seed=7)
            assert math.isclose(found.log_ratio[n], drawn.mean(), abs_tol=SUMS)
            assert math.isclose(found.inconsistency[n], drawn.std(), abs_tol=SUMS)
            error = drawn.std() / math.sqrt(3)
            assert math.isclose(found.standard_error[n], error, abs_tol=SUMS)

    def test_neither_its_place_nor_other_pairs_change_what_a_pair_gets(self) -> None:
        model = inconsistent().log_values
        x = points(5, 2)[[3, 8, 20, 9]]
        y = changed(x, [5, 4, 5, 4], 2)
        found = mpt_score.pairs(model, x, y, num_orders=2)
        turned = mpt_score.pairs(model, x.flip(0), y.flip(0), num_orders=2)
        alone = mpt_score.pairs(model, x[2:3], y[2:3], num_orders=2)
        torch.testing.assert_close(turned.log_ratio.flip(0), found.log_ratio, rtol=0, atol=SUMS)
        assert math.isclose(alone.log_ratio[0], found.log_ratio[2], abs_tol=SUMS)
        other = mpt_score.pairs(model, x, y, num_orders=2, seed=1)
        assert (other.log_ratio - found.log_ratio).abs().max() > 0.01

    def test_drawn_orders_have_the_mean_of_all(self) -> None:
        """Of one pair with 400 tails that say nothing: each has orders of its own."""
        model = mpt_score.load(with_tail(inconsistent()))
        x = points(5, 2)[[9]]
        y = changed(x, [5], 2)
        tails = points(9, 2)[:400]
        pairs = [torch.cat([text.expand(400, -1), tails], dim=1) for text in (x, y)]
        exact = mpt_score.pairs(model, pairs[0][:1], pairs[1][:1]).log_ratio
        found = mpt_score.pairs(model, *pairs, num_orders=4)
        log_ratio = found.log_ratio
        assert abs(log_ratio.mean() - exact) < 5 * log_ratio.std() / math.sqrt(400)
        # The stated variances are unbiased; the spread of 400 of four is under a tenth of them.
        assert 0.85 < found.standard_error.square().mean().sqrt() / log_ratio.std() < 1.15

    def test_orders_that_happen_to_be_the_same_say_nothing_of_their_spread(self) -> None:
        """Of three tokens two orders are the same one time in six."""
        model = mpt_score.load(inconsistent().log_values)
        x = points(5, 2)[[9]]
        y = changed(x, [3], 2)
        same = []
        for seed in range(60):
            key = f"{seed} pair {sorted([x[0].tolist(), y[0].tolist()])}"
            first, second = masks_along_orders(2, 3, [stream(key)]).wanted[0].split(3)
            found = mpt_score.pairs(model, x, y, num_orders=2, seed=seed)
            same.append(torch.equal(first, second))
            assert found.standard_error.isnan().item() == same[-1]
            assert found.inconsistency.isnan().item() == same[-1]
            assert found.log_ratio.isfinite().all()
        assert any(same) and not all(same)


class TestPasses:
    @pytest.mark.parametrize(("num_orders", "most"), [(32, [0, 1, 3, 7]), (2, [0, 1, 3, 5])])
    def test_different_masks_are_counted(self, num_orders: int, most: list[int]) -> None:
        """Two orders of three tokens: the mask of all is the first of both."""
        language = HMM.cyclic(num_features=6)
        seen = []

        def conditionals(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            seen.extend(map(tuple, ids.masked_fill(mask, -1).tolist()))
            return language.log_values(ids, mask)

        x = language.sample(4, generator=generator(0))
        y = changed(x, [0, 1, 2, 3], 12)
        model = mpt_score.load(conditionals)
        mpt_score.pairs(model, x[:1], (x[:1] + 1) % 12)  # a function is tested at its first call
        seen.clear()
        found = mpt_score.pairs(model, x, y, num_orders=num_orders)
        for n in range(4):
            of_pair = [
                row
                for row in seen
                if any(
                    all(a in (-1, b) for a, b in zip(row, text, strict=True))
                    for text in (x[n].tolist(), y[n].tolist())
                )
            ]
            assert found.num_passes[n] == len(of_pair) == len(set(of_pair))
            assert found.num_passes[n] <= max(0, 2 * most[n] - 1)
        assert found.num_passes[:3].tolist() == [0, 1, 5]
        assert num_orders == 2 or found.num_passes[3] == 13


class TestNetwork:
    FIRST = ("the cat sat", "a dog sat.", "the dog sat the cat", "a cat.", "the cats sat")
    SECOND = ("a cat sat", "the cat sat.", "a cat sat a dog", "a cat.", "a dogs sat")

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_exchange_turns_the_sign_and_nothing_else(self, dtype: torch.dtype) -> None:
        network = tiny().to(dtype)
        for num_orders in (32, 2):
            one, other = (
                mpt_score.pairs(
                    network, *texts, tokenizer=tokenizer(), num_orders=num_orders, pseudo=True
                )
                for texts in ((self.FIRST, self.SECOND), (self.SECOND, self.FIRST))
            )
            assert torch.equal(one.log_ratio, -other.log_ratio)
            assert torch.equal(one.inconsistency, other.inconsistency)
            assert torch.equal(one.standard_error, other.standard_error)
            assert torch.equal(one.pseudo_difference, -other.pseudo_difference)
        assert one.num_changed.tolist() == [1, 2, 4, 0, 2]

    def test_batches_change_nothing(self) -> None:
        together = mpt_score.pairs(tiny(), self.FIRST, self.SECOND, tokenizer=tokenizer())
        few = mpt_score.load(tiny(), tokenizer(), max_tokens=1)
        for n, pair in enumerate(zip(self.FIRST, self.SECOND, strict=True)):
            alone = mpt_score.pairs(few, pair[:1], pair[1:])
            assert math.isclose(alone.log_ratio[0], together.log_ratio[n], abs_tol=1e-10)
            assert math.isclose(alone.inconsistency[0], together.inconsistency[n], abs_tol=1e-10)


@pytest.mark.bad_input
class TestSkipped:
    @pytest.mark.parametrize(
        ("first", "second", "message"),
        [
            ("the cat sat", "the cats sat", "pair 1 has texts of 3 and 4 tokens"),
            ("the cat sat", "the zebra sat", "pair 1 has a token that is unknown"),
            ("a zebra sat", "a lion sat", "pair 1 has a token that is unknown"),
            ("the cat " * 10, "the dog " * 10, "pair 1 has 22 tokens, the model has places for 16"),
        ],
        ids=["length", "unknown", "two unknown", "long"],
    )
    def test_they_are_named_and_listed(self, first: str, second: str, message: str) -> None:
        pair = (["a cat", first, "a cat"], ["a dog", second, "the cat"])
        with pytest.raises(ValueError, match=message + ".*skip=True"):
            mpt_score.pairs(tiny(), *pair, tokenizer=tokenizer())
        found = mpt_score.pairs(tiny(), *pair, tokenizer=tokenizer(), skip=True, pseudo=True)
        assert list(found.skipped) == [1]
        for values in (found.log_ratio, found.standard_error, found.pseudo_difference):
            assert values.isnan().tolist() == [False, True, False]
        assert found.num_passes.tolist() == [1, 0, 1]

    def test_a_text_that_cannot_be_read_costs_its_pair_alone(self) -> None:
        first = ["a cat", "", "a [MASK] sat", "a cat", "the cat sat"]
        second = ["a dog", "a cat", "a dog sat", " ", "the dog sat"]
        found = mpt_score.pairs(tiny(), first, second, tokenizer=tokenizer(), skip=True)
        assert sorted(found.skipped) == [1, 2, 3]
        assert found.skipped[1].startswith("the first text is empty and has no")
        assert found.skipped[2].startswith("the first text holds [MASK]")
        assert found.skipped[3].startswith("the second text is empty")
        kept = mpt_score.pairs(tiny(), first[::4], second[::4], tokenizer=tokenizer())
        assert torch.equal(found.log_ratio[[0, 4]], kept.log_ratio)
        assert found.log_ratio[1:4].isnan().all() and not found.num_passes[1:4].any()
        none = mpt_score.pairs(tiny(), [""], ["a"], tokenizer=tokenizer(), skip=True)
        assert list(none.skipped) == [0] and none.log_ratio.isnan().all()

    def test_an_answer_that_is_not_finite_costs_its_pair_alone(self) -> None:
        def conditionals(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            values = torch.full((*ids.shape, 4), 0.25, dtype=torch.float64).log()
            values[..., 3] = -math.inf
            return values - values.logsumexp(-1, keepdim=True)

        first, second = [[0, 1, 2], [0, 1, 2], [0, 0, 0]], [[0, 2, 2], [0, 3, 2], [0, 0, 1]]
        found = mpt_score.pairs(conditionals, first, second, skip=True, pseudo=True)
        assert list(found.skipped) == [1] and found.log_ratio.isnan().tolist() == [0, 1, 0]
        assert found.accuracy().num_pairs == 2
        with pytest.raises(ValueError, match="pair 1: "):
            mpt_score.pairs(conditionals, first, second)

    def test_nothing_comparable_is_no_failure(self) -> None:
        found = mpt_score.pairs(tiny(), ["cat"], ["cats"], tokenizer=tokenizer(), skip=True)
        assert found.log_ratio.isnan().all()

    @pytest.mark.parametrize("texts", [([2, 5, 6, 3], [2, 5, 3, 3]), ([2, 5, 3, 3], [2, 5, 6, 3])])
    def test_special_tokens_have_no_probability(self, texts: tuple[list[int], list[int]]) -> None:
        """In whichever of the two texts they stand."""
        with pytest.raises(ValueError, match="pair 0 differs in a special token"):
            mpt_score.pairs(tiny(), [texts[0]], [texts[1]], tokenizer=tokenizer())

    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="2 first texts came with 1 second"):
            mpt_score.pairs(tiny(), ["a", "a"], ["a"], tokenizer=tokenizer())
        with pytest.raises(
            ValueError, match="pair 1: the second text is empty and has no word"
        ) as refusal:
            mpt_score.pairs(tiny(), ["a", "a"], ["a", ""], tokenizer=tokenizer())
        assert refusal.value.number == 1
        with pytest.raises(ValueError, match="num_orders"):
            mpt_score.pairs(tiny(), ["a"], ["a"], tokenizer=tokenizer(), num_orders=1)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson (1927): the shares from which ``share`` is 1.96 standard errors away, of theirs."""
    z = statistics.NormalDist().inv_cdf(0.975)
    center = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    reach = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return center - reach, center + reach


class TestAccuracy:
    FIRST = ("the cat sat", "a cat", "a dog", "a", "the cat")
    SECOND = ("the dog sat", "a dog", "a cat", "a", "the cat sat")

    def scores(self) -> mpt_score.PairScores:
        model = mpt_score.load(tiny(), tokenizer())
        return mpt_score.pairs(model, self.FIRST, self.SECOND, pseudo=True, skip=True)

    def test_a_pair_that_was_skipped_is_none_of_them_and_a_tie_is_half(self) -> None:
        scores = self.scores()
        assert math.isnan(scores.log_ratio[4]) and scores.log_ratio[3] == 0
        hits = sum(difference > 0 for difference in scores.log_ratio[:4].tolist())
        found = scores.accuracy()
        assert found.value == (hits + 0.5) / 4 and found.num_pairs == 4
        assert found.low == pytest.approx(wilson(hits / 4, 4)[0])
        assert found.high == pytest.approx(wilson((hits + 1) / 4, 4)[1])

    def test_an_interval_holds_the_truth_as_often_as_it_says(self) -> None:
        """Over all outcomes of 40 pairs, each a hit with the same probability."""
        for truth in (0.5, 0.7, 0.9, 0.98):
            inside = 0.0
            for hits in range(41):
                interval = pair_scores.accuracy_of(hits, 0, 40)
                if interval.low <= truth <= interval.high:
                    inside += math.comb(40, hits) * truth**hits * (1 - truth) ** (40 - hits)
            assert 0.92 < inside < 0.99  # the normal interval at 0.98 has 0.55

    @pytest.mark.parametrize("hits", [0, 40])
    def test_where_all_agree_the_interval_has_a_width(self, hits: int) -> None:
        found = pair_scores.accuracy_of(hits, 0, 40)
        assert (found.low, found.high) == pytest.approx(wilson(hits / 40, 40), abs=1e-12)
        assert found.high - found.low > 0.08

    def test_rows_say_why_a_pair_was_skipped(self) -> None:
        *compared, skipped = self.scores().rows()
        assert [row["skipped"] for row in compared] == [None] * 4
        assert skipped["log_ratio"] is None and "has texts of" in skipped["skipped"]

    @pytest.mark.bad_input
    def test_no_accuracy_of_nothing(self) -> None:
        model = mpt_score.load(tiny(), tokenizer())
        scores = mpt_score.pairs(model, ["the cat"], ["the cat sat"], skip=True)
        with pytest.raises(ValueError, match="no pair was compared"):
            scores.accuracy()


class TestWindows:
    """Texts of 25 words, of which the network takes 14 between its two special tokens."""

    words = ("the cat sat a dog . " * 5).split()[:25]

    def text(self, *places: int) -> str:
        return " ".join("dog" if n in places else word for n, word in enumerate(self.words))

    @pytest.mark.parametrize(
        ("places", "start"),
        [((0,), 0), ((6,), 0), ((8,), 1), ((12,), 5), ((19,), 11), ((24,), 11), ((8, 21), 8)],
    )
    def test_a_long_text_is_scored_around_what_differs(
        self, places: tuple[int, ...], start: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        scorer = mpt_score.load(tiny(), tokenizer())
        whole = self.text(*places), self.text()
        cut = [" ".join(text.split()[start : start + 14]) for text in whole]
        wanted = mpt_score.pairs(scorer, cut[:1], cut[1:], pseudo=True)
        assert caplog.text == ""
        found = mpt_score.pairs(scorer, whole[:1], whole[1:], pseudo=True)
        for name in ("log_ratio", "pseudo_difference"):
            number, expected = getattr(found, name).item(), getattr(wanted, name).item()
            assert number == pytest.approx(expected, abs=1e-12)
        assert "1 of 1 pairs have more tokens than the 16 that the model takes" in caplog.text
        caplog.clear()
        mpt_score.pairs(scorer, [whole[0], "a cat", "a cat"], [whole[1], "a dog", "a cat"])
        assert "1 of 3 pairs have more tokens" in caplog.text

    def test_a_text_that_just_fits_is_shown_whole(self) -> None:
        scorer = mpt_score.load(tiny(), tokenizer())
        texts = [" ".join(text.split()[11:]) for text in (self.text(24), self.text())]
        found = mpt_score.pairs(scorer, texts[:1], texts[1:])
        ids = scorer.encode(texts).ids
        mask = torch.zeros_like(ids).bool()
        mask[:, 14] = True
        first, second = scorer.log_tokens(ids, mask)[:, 14].tolist()
        assert found.log_ratio.item() == pytest.approx(first - second, abs=1e-12)

    @pytest.mark.bad_input
    def test_what_differs_too_far_apart_is_refused(self) -> None:
        with pytest.raises(
            ValueError, match="pair 0 has 27 tokens, .* no window of as many has all"
        ):
            mpt_score.pairs(tiny(), [self.text(7, 21)], [self.text()], tokenizer=tokenizer())


def test_a_window_keeps_which_text_a_token_is_of() -> None:
    """Of eleven tokens seven are shown: the frame, and the second of two texts."""
    network = FAMILIES["BERT"].network()
    types = []
    network.register_forward_pre_hook(
        lambda _, __, inputs: types.extend(inputs["token_type_ids"].tolist()), with_kwargs=True
    )
    scorer = mpt_score.load(network, tokenizer(), max_length=7)
    x = tokens.encode(tokenizer(), ["the cat sat"], ["a dog sat the cat"])
    y = tokens.encode(tokenizer(), ["the cat sat"], ["a dog sat the dog"])
    mpt_score.pairs(scorer, x, y)
    assert types == [[0, 1, 1, 1, 1, 1, 1]]
