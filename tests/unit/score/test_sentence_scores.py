"""Scores of texts: exact areas, honest errors, windows, units, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from families import FAMILIES
from models import generator
from tiny_bert import CLS, LINES, SEP, tiny, tokenizer
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

import mpt_score
from mpt_lml import HMM, curves, masks, orders
from mpt_lml.models.base import FromFunction
from mpt_lml.verdicts import mean_and_error
from mpt_score import MaskedLM
from mpt_score.networks import masked_lm
from mpt_score.quantities import estimate
from mpt_score.rows.reading import windows_of

COUNT = 8
TEXT = [0, 1, 1, 0, 1, 0, 0, 1]
# Masks are drawn for each text by itself: in one call these are 256 independent draws.
EVERY_TEXT = [list(text) for text in itertools.product([0, 1], repeat=COUNT)]


@functools.cache
def table(seed: int = 1) -> torch.Tensor:
    """Log-odds of 1 at each place for every set of hidden places: conditionals of no joint."""
    own = 2 * torch.randn(COUNT, generator=generator(seed), dtype=torch.float64)
    return own + 0.7 * torch.randn(2**COUNT, COUNT, generator=generator(seed + 1)).double()


def by_table(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    odds = table()[(mask * 2 ** torch.arange(COUNT)).sum(dim=1)]
    return torch.nn.functional.logsigmoid(torch.stack([-odds, odds], dim=-1))


def by_size(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Says log q = −M of the values 0 and 1 when M are hidden."""
    log_q = -mask.sum(dim=1).double()
    other = (-2 * log_q.exp()).log1p()  # of the value 2
    return torch.stack([log_q, log_q, other], dim=-1)[:, None].expand(-1, ids.shape[1], -1)


def exact_area() -> float:
    model = FromFunction(by_table, COUNT)
    return float(curves.exact_curve(model, torch.tensor([TEXT])).area())


@functools.cache
def over_orders() -> orders.OverOrders:
    """Of every text, over all orders: its mean is the exact area."""
    return orders.exact(FromFunction(by_table, COUNT), torch.tensor(EVERY_TEXT))


def two_draws_of_every_text(**budget: int) -> list[mpt_score.SentenceScores]:
    scorer = mpt_score.load(by_table)
    return [mpt_score.sentences(scorer, EVERY_TEXT, seed=seed, **budget) for seed in (0, 1)]


def test_bytes_of_token_ids_can_be_given() -> None:
    """Two values of probability 1/2 each are one bit; of 8 of them a text of 4 bytes has 2 a byte."""
    scores = mpt_score.sentences(lambda ids, mask: by_table(ids, mask) * 0 - math.log(2), [TEXT])
    with pytest.raises(ValueError, match=r"dataclasses.replace.scores, num_bytes=torch.tensor"):
        scores.mean("byte")
    known = dataclasses.replace(scores, num_bytes=torch.tensor([4]))
    assert float(known.mean("byte")) == pytest.approx(2.0)
    assert known.bits_per("byte").item() == pytest.approx(2.0)


def test_a_joint_distribution_is_scored_exactly_by_all_masks() -> None:
    model = HMM.cyclic(num_features=5)
    x = model.sample(4, generator=generator(1))
    found = mpt_score.sentences(model.log_values, x, num_masks=31, pseudo=True)
    torch.testing.assert_close(found.log_score, model.log_marginal(x), rtol=0, atol=1e-10)
    assert not found.standard_error.any() and found.degrees.isinf().all()
    assert found.num_windows.tolist() == [1] * 4
    assert found.inconsistency.max() < 1e-10
    assert found.num_passes.tolist() == [31] * 4  # single tokens are among them
    single = torch.eye(5, dtype=torch.bool)
    pseudo = model.log_conditional(x, single).sum(dim=(0, 2))
    torch.testing.assert_close(found.pseudo_log_likelihood, pseudo, rtol=0, atol=1e-10)


def test_inconsistency_is_the_spread_over_orders() -> None:
    exact = orders.exact(FromFunction(by_table, COUNT), torch.tensor([TEXT]))
    every = mpt_score.sentences(by_table, [TEXT], num_masks=255)
    assert every.log_score[0] == pytest.approx(exact.mean[0].item(), abs=1e-10)
    spread = exact.variance[0].sqrt().item()
    assert every.inconsistency[0] == pytest.approx(spread, abs=1e-10)
    assert every.inconsistency_interval()[0].tolist() == pytest.approx([spread] * 2, abs=1e-10)
    # As many orders take all masks, too, unless there are fewer of them than masks.
    assert mpt_score.sentences(by_table, [TEXT], num_orders=32).num_passes.tolist() == [255]
    none = mpt_score.sentences(by_table, [TEXT], num_masks=16)
    assert none.inconsistency.isnan().all() and none.pseudo_log_likelihood.isnan().all()
    assert none.inconsistency_degrees.tolist() == [0.0]
    assert none.inconsistency_interval().isnan().all()


class TestMixtureOfOrders:
    """Bounds on log p_mix from the orders of the score, at no further pass."""

    def test_every_mask_gives_the_mixture(self) -> None:
        exact = orders.exact(FromFunction(by_table, COUNT), torch.tensor([TEXT])).log_mix.item()
        found = mpt_score.sentences(by_table, [TEXT], num_masks=255)
        bounds = [found.mixture_lower[0], found.mixture_upper[0]]
        assert bounds == pytest.approx([exact] * 2, abs=1e-10)
        assert found.mixture_lower_error[0] == found.mixture_upper_error[0] == 0
        assert not found.is_heavy_tailed[0]

    def test_bounds_are_those_of_the_orders(self) -> None:
        found = mpt_score.sentences(by_table, [TEXT], num_orders=5)
        along = mpt_score.surprisals(by_table, [TEXT], num_orders=5).terms.sum(dim=0)
        bounds = orders.mixture_bounds(along[:, None])
        for name in ("lower", "upper", "lower_error", "upper_error"):
            value = getattr(found, f"mixture_{name}").item()
            assert value == pytest.approx(getattr(bounds, name).item(), abs=1e-10)
        assert torch.equal(found.is_heavy_tailed, bounds.is_heavy_tailed)
        assert found.mixture_lower > found.log_score  # Jensen
        four = mpt_score.sentences(by_table, [TEXT])
        assert four.num_passes[0] <= 1 + 4 * (COUNT - 1)

    def test_a_bound_whose_square_is_no_float_has_an_infinite_error(self) -> None:
        """Orders that differ by 500 nats and more: the bound from above is 1e200, its variance 1e400."""

        def sure(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (800.0 * by_table(ids, mask)).log_softmax(dim=-1)

        along = mpt_score.surprisals(sure, [TEXT], num_orders=5).terms.sum(dim=0)
        error = orders.mixture_bounds(along[:, None]).upper_error.item()
        assert 1e160 < error < math.inf
        found = mpt_score.sentences(sure, [TEXT], num_orders=5)
        assert found.mixture_upper_error.item() == math.inf
        assert found.is_heavy_tailed.all() and found.mixture_lower_error.isfinite().all()

    def test_bounds_enclose_the_mixture_on_average(self) -> None:
        """Of 256 texts: each bound's expectation is on its side, and so is their mean."""
        exact = over_orders().log_mix
        found = mpt_score.sentences(by_table, EVERY_TEXT, num_orders=8)
        below, above = exact - found.mixture_lower, found.mixture_upper - exact
        assert below.mean() > 0 and above.mean() > 0
        assert (found.mixture_upper > found.mixture_lower).all()

    def test_windows_of_a_text_add_up(self) -> None:
        def coin(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return by_table(ids, mask)

        scorer = mpt_score.load(coin, max_length=COUNT)
        long = TEXT + TEXT[::-1]
        found = mpt_score.sentences(scorer, [long])
        assert found.num_windows[0] == 2
        parts = mpt_score.sentences(scorer, [TEXT, TEXT[::-1]])
        for name in ("mixture_lower", "mixture_upper"):
            expected = getattr(parts, name).sum().item()
            assert getattr(found, name).item() == pytest.approx(expected, abs=1e-10)
        error = parts.mixture_upper_error.square().sum().sqrt().item()
        assert found.mixture_upper_error.item() == pytest.approx(error, abs=1e-10)

    def test_means_and_rows(self) -> None:
        texts = [TEXT, TEXT[::-1], [1] * COUNT]
        found = mpt_score.sentences(by_table, texts)
        for name in ("mixture_lower", "mixture_upper"):
            values = getattr(found, name)
            assert [row[name] for row in found.rows()] == values.tolist()
        assert [row["is_heavy_tailed"] for row in found.rows()] == found.is_heavy_tailed.tolist()

    @pytest.mark.bad_input
    @pytest.mark.parametrize("budget", [{"num_orders": 1}, {"num_masks": 16}])
    def test_one_order_or_single_masks_have_no_bounds(self, budget: dict[str, int]) -> None:
        found = mpt_score.sentences(by_table, [TEXT], **budget)
        assert found.mixture_lower.isnan().all() and found.mixture_upper.isnan().all()
        names = found.rows()[0].keys()
        assert not {"mixture_lower", "mixture_upper", "is_heavy_tailed"} & names
        assert not {"inconsistency", "inconsistency_degrees", "inconsistency_low"} & names
        has_error = "num_masks" in budget
        assert ({"standard_error", "degrees", "low"} & names != set()) == has_error
        assert ({"standard_error", "degrees", "low"} <= names) == has_error


def test_four_orders_know_the_inconsistency_to_a_factor() -> None:
    """512 scores: 95 % ± 4 · 1 % (binomial), and 1 % for totals that are not normal."""
    spread = over_orders().variance.sqrt()
    rounds = two_draws_of_every_text()
    off = torch.cat([each.inconsistency.square() - spread.square() for each in rounds])
    assert abs(off.mean()) < 5 * off.std() / math.sqrt(512)
    low, high = torch.stack([each.inconsistency_interval() for each in rounds]).unbind(-1)
    assert ((low <= spread) & (spread <= high)).double().mean() == pytest.approx(0.95, abs=0.05)
    # The quantiles of χ² with three degrees of freedom, 0.2158 and 9.3484, as tables have them.
    ratio = rounds[0].inconsistency_interval()[0] / rounds[0].inconsistency[0]
    assert ratio.tolist() == pytest.approx([(3 / 9.3484) ** 0.5, (3 / 0.2158) ** 0.5], rel=1e-4)


def test_four_orders_unless_asked_otherwise() -> None:
    four = mpt_score.sentences(by_table, [TEXT])
    assert four.degrees.tolist() == four.inconsistency_degrees.tolist() == pytest.approx([3])
    assert four.standard_error[0] == pytest.approx(four.inconsistency[0].item() / 2)
    assert four.num_passes[0] <= mpt_score.passes(by_table, [TEXT])[0] == 1 + 4 * (COUNT - 1)
    single = mpt_score.sentences(by_table, [TEXT], pseudo=True)
    assert single.log_score == four.log_score
    assert single.num_passes[0] <= four.num_passes[0] + COUNT - 1
    three = mpt_score.sentences(by_table, [TEXT], num_orders=3)
    assert three.degrees.tolist() == pytest.approx([2])
    one = mpt_score.sentences(by_table, [TEXT], num_orders=1)
    assert one.standard_error.isnan().all() and one.degrees.tolist() == [0]
    assert one.num_passes.tolist() == [COUNT] and one.interval().isnan().all()
    assert "standard_error" not in one.rows()[0] and "degrees" not in one.rows()[0]


def test_a_number_of_masks_is_spent_on_whole_orders_where_four_fit() -> None:
    masks_ = mpt_score.sentences(by_table, [TEXT], num_masks=4 * COUNT + 3)
    assert masks_.log_score == mpt_score.sentences(by_table, [TEXT]).log_score
    fewer = mpt_score.sentences(by_table, [TEXT], num_masks=4 * COUNT - 1)
    assert fewer.inconsistency.isnan() and abs(fewer.degrees[0] - 3) > 1e-6
    assert fewer.num_passes[0] <= 4 * COUNT - 1


@pytest.mark.parametrize("pseudo", [False, True])
@pytest.mark.parametrize(
    "budget",
    [
        {},
        {"num_orders": 1},
        {"num_orders": 9},
        {"num_masks": 1},
        {"num_masks": 2},
        {"num_masks": 20},
        {"num_masks": 40},
        {"num_masks": 300},
    ],
    ids=str,
)
def test_the_price_is_told_before(budget: dict[str, int], pseudo: bool) -> None:
    """Less is paid where masks happen to be the same, as they do in short texts."""
    lengths = [1, 2, 4, COUNT]
    texts = [list(text) for n in lengths for text in itertools.product([0, 1], repeat=n)][:60]

    def any_length(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        width = COUNT - ids.shape[1]
        hidden = torch.nn.functional.pad(mask, (0, width))
        return by_table(hidden, hidden)[:, : ids.shape[1]]

    scorer = mpt_score.load(any_length)
    price = mpt_score.passes(scorer, texts, pseudo=pseudo, **budget)
    paid = mpt_score.sentences(scorer, texts, pseudo=pseudo, **budget)
    assert (paid.num_passes <= price).all()
    assert (price[:2] <= 1 + pseudo).all() and (price[2:6] <= 3 + pseudo).all()


@pytest.mark.parametrize(
    "budget",
    [{}, {"num_orders": 1}, {"num_masks": 1}, {"num_masks": 2}, {"num_masks": 33}],
    ids=str,
)
@pytest.mark.parametrize("pseudo", [False, True])
def test_the_price_of_a_long_text_is_what_is_paid(budget: dict[str, int], pseudo: bool) -> None:
    """Masks of 200 tokens hardly ever happen to be the same."""
    own = torch.randn(200, 3, generator=generator(3), dtype=torch.float64).log_softmax(dim=1)
    text = torch.randint(3, (1, 200), generator=generator(4))

    def independent(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return own.expand(len(ids), -1, -1)

    price = mpt_score.passes(independent, text, pseudo=pseudo, **budget)
    paid = [
        int(mpt_score.sentences(independent, text, pseudo=pseudo, seed=seed, **budget).num_passes)
        for seed in range(3)
    ]
    assert max(paid) == price.item()


def test_one_stratum_has_a_masks_degrees() -> None:
    # In one stratum the error is that of a mean of R numbers: R − 1 degrees, V²/(R − 1) = V²/4.
    values = torch.randn(3, 5, COUNT, generator=generator(), dtype=torch.float64)
    ranks = torch.rand(3, 5, COUNT, generator=generator(1)).argsort(dim=2)
    hidden = ranks < torch.arange(2, 7)[:, None]
    areas = estimate.areas_by_strata(values, hidden, values[:, 0], 1)
    torch.testing.assert_close(areas.squared_variance_per_degree, areas.variance**2 / 4)


def test_a_mask_lies_in_each_stratum_of_sizes_twice() -> None:
    """Nine tokens, nine masks: one of everything, and two in each pair of the sizes 1..8."""
    sizes: list[int] = []

    def watched(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        sizes.extend(mask.sum(dim=1).tolist())
        return torch.full((*ids.shape, 2), 0.5, dtype=torch.float64).log()

    scorer = mpt_score.load(watched)
    mpt_score.sentences(scorer, [[0] * 9], num_masks=1)
    seen: set[int] = set()
    for seed in range(20):
        sizes.clear()
        found = mpt_score.sentences(scorer, [[0] * 9], num_masks=9, seed=seed)
        strata = [(size - 1) // 2 for size in sizes]
        assert all(strata.count(stratum) <= 2 for stratum in range(4))
        assert len(sizes) == found.num_passes.item() and sizes.count(9) == 1
        if len(sizes) == 9:  # no two masks were the same
            assert sorted(strata) == [0, 0, 1, 1, 2, 2, 3, 3, 4]
        seen |= set(sizes)
    # Each size is drawn with probability 1 − 1/4^20 at least.
    assert seen == set(range(1, 10))


@pytest.mark.parametrize("budget", [{"num_masks": 13}, {}], ids=["strata", "four orders"])
def test_estimates_are_unbiased_and_their_errors_honest(budget: dict[str, int]) -> None:
    """512 draws: bias within five errors; the mean variance within five of its errors of the true one;

    95 % intervals cover 95 % ± 4 · 0.97 % (binomial) and 1 % for values that are not normal."""
    exact = over_orders().mean
    rounds = two_draws_of_every_text(**budget)
    off = torch.cat([each.log_score - exact for each in rounds])
    variance = torch.cat([each.standard_error for each in rounds]).square()
    assert abs(off.mean()) < 5 * off.std() / math.sqrt(512)
    beyond = variance - off.square()
    assert abs(beyond.mean()) < 5 * beyond.std() / math.sqrt(512)
    low, high = torch.stack([each.interval() for each in rounds]).unbind(-1)
    assert ((low <= exact) & (exact <= high)).double().mean() == pytest.approx(0.95, abs=0.049)


@pytest.mark.parametrize("num_masks", [1, 2, 4])
def test_a_few_masks_are_unbiased(num_masks: int) -> None:
    """Against the sum over all masks, over 512 draws; from three masks on with an honest error.

    95 % intervals cover 95 % ± 4 · 0.97 % (binomial), and 1 % for values that are not normal."""
    exact = over_orders().mean
    rounds = two_draws_of_every_text(num_masks=num_masks)
    off = torch.cat([each.log_score - exact for each in rounds])
    assert abs(off.mean()) < 5 * off.std() / math.sqrt(512)
    assert max(int(each.num_passes.max()) for each in rounds) == num_masks
    variance = torch.cat([each.standard_error for each in rounds]).square()
    if num_masks < 3:
        assert variance.isnan().all()
        return
    is_known = ~variance.isnan()  # it is not where all masks are the same; their spread is then 0
    assert is_known.double().mean() > 0.98
    beyond = variance.nan_to_num() - off.square()
    assert abs(beyond.mean()) < 5 * beyond.std() / math.sqrt(512)
    degrees = torch.cat([each.degrees for each in rounds])
    torch.testing.assert_close(degrees, torch.full_like(degrees, num_masks - 2))
    low, high = torch.stack([each.interval() for each in rounds]).unbind(-1)
    covered = ((low <= exact) & (exact <= high)).flatten()[is_known]
    assert covered.double().mean() == pytest.approx(0.95, abs=0.049)


def log_q_of_five(mask: torch.Tensor) -> torch.Tensor:
    hidden = torch.nn.functional.pad(mask, (0, COUNT - 5))
    log_q = by_table(hidden, hidden)[:, :5]
    wanted = torch.tensor(TEXT[:5]).expand(len(mask), -1)
    return log_q.gather(2, wanted[..., None])[..., 0] * mask


def area_of_five() -> float:
    """The sum over sizes of the mean score over masks, by hand."""
    mask = masks.subsets(5)[1:]
    size = mask.sum(dim=1)
    score = log_q_of_five(mask).sum(dim=1) / size
    return float(sum(score[size == each].mean() for each in range(1, 6)))


@pytest.mark.parametrize("repeats", [1, 2])
def test_masks_of_one_stratum_are_unbiased_and_so_is_their_variance(repeats: int) -> None:
    """Exactly, over all 30 or 30 · 30 draws of masks of five tokens, each a row of the batch.

    One mask has no error, and neither have two that are the same."""
    inner = masks.subsets(5)[1:-1]
    draws = torch.tensor(list(itertools.product(range(30), repeat=repeats)))
    of_size = torch.tensor([math.comb(5, size) for size in inner.sum(dim=1).tolist()])
    probability = (1 / (4 * of_size.double()))[draws].prod(dim=1)
    assert probability.sum().item() == pytest.approx(1, abs=1e-12)
    alone = log_q_of_five(torch.ones(1, 5, dtype=torch.bool)).expand(len(draws), -1)
    areas = estimate.areas_by_strata(log_q_of_five(inner)[draws], inner[draws], alone, 1)
    exact = area_of_five()
    assert (probability @ areas.value).item() == pytest.approx(exact, abs=1e-12)
    is_same = (draws == draws[:, :1]).all(dim=1)
    assert torch.equal(areas.variance.isnan(), is_same)
    if repeats == 1:
        return
    true = probability @ (areas.value - exact).square()
    stated = probability @ areas.variance.nan_to_num()
    assert stated.item() == pytest.approx(true.item(), rel=1e-12)
    # Student's quantile with one degree is tan(0.475 π) = 12.7.
    reach = math.tan(0.475 * math.pi) * areas.variance.sqrt()
    is_inside = (areas.value - exact).abs() <= reach
    # The intervals are for normal values; of 30 masks they cover 0.93 to 0.97.
    assert probability[is_inside].sum() / probability[~is_same].sum() > 0.93


def test_two_orders_that_are_the_same_have_no_error() -> None:
    """Of three tokens two random orders are the same one time in six: 300 texts, ± 4 · 2.2 %."""
    texts = [list(text) for text in itertools.product(range(12), repeat=3)][:300]
    found = mpt_score.sentences(HMM.cyclic(num_features=3).log_values, texts, num_orders=2)
    is_same = found.num_passes == 3
    assert torch.equal(found.standard_error.isnan(), is_same)
    assert torch.equal(found.inconsistency.isnan(), is_same)
    assert is_same.double().mean() == pytest.approx(1 / 6, abs=0.09)


def test_masks_that_are_the_same_are_followed_by_others() -> None:
    """A target for the error is met also where the first draws do not know it."""
    texts = [list(text) for text in itertools.product(range(12), repeat=3)][:60]
    model = HMM.cyclic(num_features=3).log_values
    found = mpt_score.sentences(model, texts, num_masks=3, target_error=0.5)
    assert (found.standard_error <= 1.5).all()


def test_orders_that_are_the_same_are_followed_by_others() -> None:
    """Two tokens: eight orders are the same for one text in 128, and more are drawn then."""
    model = HMM.cyclic(num_features=2)
    texts = torch.tensor(list(itertools.product(range(12), repeat=2)))
    exact = model.log_marginal(texts)
    scorer = mpt_score.load(model.log_values)
    for seed in range(2):
        found = mpt_score.sentences(scorer, texts, num_orders=1, target_error=0.5, seed=seed)
        assert (found.standard_error <= 1.0).all()
        torch.testing.assert_close(found.log_score, exact, rtol=0, atol=1e-10)


def test_a_mean_over_texts_is_honest_with_one_mask_a_text() -> None:
    """32 texts, one mask each: the error of their mean, over 20 seeds, is that which is stated."""
    scorer = mpt_score.load(by_table)
    texts = EVERY_TEXT[::8]
    exact = mpt_score.sentences(scorer, texts, num_masks=255).mean()
    rounds = [mpt_score.sentences(scorer, texts, num_masks=1, seed=n).mean() for n in range(20)]
    off = torch.tensor([each - exact for each in rounds])
    stated = torch.tensor([each.standard_error for each in rounds])
    # The texts are fixed here: what varies is within the stated error, and masks are most of it.
    # 20 seeds tell a standard deviation to 16 %.
    assert abs(off.mean()) < 5 * off.std() / math.sqrt(20)
    assert 0.5 * stated.mean() < off.std() < 1.5 * stated.mean()
    assert exact.standard_error < stated.min()


@pytest.mark.parametrize("num_masks", [2, 3, 33])
def test_the_control_variate_takes_variance_away(num_masks: int) -> None:
    """Tokens that do not depend on each other are scored without any error."""
    own = torch.randn(40, 6, generator=generator(3), dtype=torch.float64).log_softmax(dim=1)
    text = torch.randint(6, (1, 40), generator=generator(4))
    found = mpt_score.sentences(
        lambda ids, _: own.expand(len(ids), -1, -1), text, num_masks=num_masks
    )
    assert found.log_score[0] == pytest.approx(own.gather(1, text.T).sum().item(), abs=1e-9)
    assert found.standard_error[0] < 1e-9 or num_masks == 2


def test_a_single_mask_has_any_size() -> None:
    """The scores are −8 M, M = 1..8, equally often."""
    scorer = mpt_score.load(by_size)
    rounds = [mpt_score.sentences(scorer, EVERY_TEXT, num_masks=1, seed=seed) for seed in (0, 1)]
    size = torch.cat([each.log_score for each in rounds]) / -COUNT
    torch.testing.assert_close(size, size.round(), rtol=0, atol=1e-9)
    counts = size.round().long().bincount(minlength=COUNT + 1)
    assert counts[0] == 0 and len(counts) == COUNT + 1
    # 64 each are expected, with a standard deviation of √(512 · 1/8 · 7/8) = 7.5.
    assert (counts[1:] - 64).abs().max() < 5 * 7.5


def test_a_score_depends_on_its_text_and_the_seed_only() -> None:
    texts = [TEXT, TEXT[::-1], [1] * COUNT, TEXT]
    whole = mpt_score.sentences(by_table, texts, num_masks=20)
    turned = mpt_score.sentences(by_table, texts[::-1], num_masks=20)
    alone = mpt_score.sentences(by_table, texts[1:2], num_masks=20)
    assert torch.equal(whole.log_score, turned.log_score.flip(0))
    assert whole.log_score[1] == alone.log_score[0] and whole.log_score[0] == whole.log_score[3]
    other = mpt_score.sentences(by_table, texts, num_masks=20, seed=1)
    assert (other.log_score != whole.log_score).all()


def test_a_network_is_scored_as_by_its_own_curve() -> None:
    texts = ["the cat sat", "a dog", "the dogs sat."]
    found = mpt_score.sentences(tiny(), texts, tokenizer=tokenizer(), num_masks=31)
    assert found.num_tokens.tolist() == [3, 2, 5] and not found.standard_error.any()
    for n, text in enumerate(texts):
        ids = mpt_score.load(tiny(), tokenizer()).encode([text]).ids[:, 1:-1]
        one = MaskedLM.of(tiny(), tokenizer(), ids.shape[1])
        exact = float(curves.exact_curve(one, ids).area())
        # float64 in batches of other sizes
        assert found.log_score[n] == pytest.approx(exact, abs=1e-9)
    assert found.num_bytes.tolist() == [11, 5, 13]


def test_long_texts_go_in_windows_that_are_counted() -> None:
    words = ("the cat sat a dog . " * 5).split()[:28]  # two windows of 14 between [CLS] and [SEP]
    scorer = mpt_score.load(tiny(), tokenizer(), max_length=16)
    settings = {"pseudo": True}
    found = mpt_score.sentences(scorer, [" ".join(words)], **settings)
    halves = mpt_score.sentences(scorer, [" ".join(words[:14]), " ".join(words[14:])], **settings)
    assert found.num_windows.tolist() == [2] and halves.num_windows.tolist() == [1, 1]
    for name in ("log_score", "pseudo_log_likelihood", "num_passes", "num_tokens"):
        total = getattr(halves, name).double().sum()
        assert getattr(found, name)[0] == pytest.approx(total.item(), abs=1e-9)
    assert mpt_score.passes(scorer, [" ".join(words)], pseudo=True)[0] >= found.num_passes[0]
    squares = halves.standard_error.pow(4)
    degrees = 3 * halves.standard_error.square().sum().square() / squares.sum()  # Satterthwaite
    assert found.degrees[0] == pytest.approx(degrees.item())
    assert found.inconsistency_degrees[0] == pytest.approx(degrees.item())
    for name in ("standard_error", "inconsistency"):
        total = getattr(halves, name).square().sum().sqrt()
        assert getattr(found, name)[0] == pytest.approx(total.item(), abs=1e-9)
    rows = scorer.encode([" ".join(words[:15])])
    parts = windows_of(dataclasses.replace(scorer, max_length=16), rows)
    assert [each.ids.shape[1] for each in parts] == [10, 9]  # nearly equal, none of one token
    assert all(each.ids[0, 0] == CLS and each.ids[0, -1] == SEP for each in parts)


def test_masks_are_added_until_the_error_is_small_enough() -> None:
    few = mpt_score.sentences(by_table, [TEXT], num_masks=9)
    target = 0.4 * few.standard_error[0].item() / COUNT
    more = mpt_score.sentences(by_table, [TEXT], num_masks=9, target_error=target)
    assert more.standard_error[0] / COUNT <= target
    assert few.num_passes[0] < more.num_passes[0] < 1 + 8 * estimate.MOST_ROUNDS
    assert abs(more.log_score[0] - exact_area()) < 5 * target * COUNT
    along = mpt_score.sentences(by_table, [TEXT], target_error=target / 2)
    assert along.standard_error[0] / COUNT <= target / 2
    assert 7 < along.degrees[0] < 40  # some times those of the first eight orders, and not all 255
    assert abs(along.log_score[0] - exact_area()) < 5 * target / 2 * COUNT
    end = mpt_score.sentences(by_table, [TEXT], num_masks=9, target_error=1e-9)
    assert end.num_passes[0] <= 1 + 8 + 254  # of 512 masks, in two rounds, that are not the same
    long = mpt_score.sentences(by_size, [[0] * 40], num_masks=9, target_error=1e-9)
    # Some masks of 1 or 39 tokens are the same, about 13 of each being drawn.
    assert 0.95 * 8 * estimate.MOST_ROUNDS < long.num_passes[0] <= 1 + 8 * estimate.MOST_ROUNDS
    eight = mpt_score.sentences(by_table, [TEXT], num_orders=estimate.FEWEST_ORDERS_TO_STOP)
    of_512_orders = eight.standard_error[0].item() / 8 / COUNT  # twice as many as there may be
    for target in (of_512_orders, 1e-9, 1e-160, 1e-300):
        every = mpt_score.sentences(by_table, [TEXT], target_error=target)
        assert every.degrees[0] == pytest.approx(4 * estimate.MOST_ROUNDS - 1)
    fewest = mpt_score.sentences(by_table, [TEXT], target_error=1e300)
    assert fewest.degrees[0] == pytest.approx(estimate.FEWEST_ORDERS_TO_STOP - 1)


def test_every_mask_meets_any_target_error() -> None:
    """255 masks of eight tokens are fewer than those along 32 orders."""
    found = mpt_score.sentences(by_table, [TEXT], num_orders=32, target_error=1e-300)
    assert found.num_passes.tolist() == [255] and found.standard_error.tolist() == [0]
    assert found.log_score[0] == pytest.approx(exact_area())


def test_passes_of_all_rounds_are_counted() -> None:
    asked = []

    def watched(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        asked.append(len(ids))
        return by_table(ids, mask)

    scorer = mpt_score.load(watched)
    mpt_score.sentences(scorer, [TEXT])  # which tries the function
    asked.clear()
    found = mpt_score.sentences(scorer, [TEXT], num_masks=9, target_error=0.01)
    assert found.num_passes.tolist() == [sum(asked)] and len(asked) > 1


def test_so_many_orders_are_added_as_the_error_says_are_missing() -> None:
    eight = mpt_score.sentences(by_table, EVERY_TEXT[:12], num_orders=8)
    found = []
    for text, error in zip(EVERY_TEXT[:12], eight.standard_error.tolist(), strict=True):
        # Of twelve orders with the variance of the first eight it is just reached.
        target = error * math.sqrt(8 / 11.9) / COUNT
        more = mpt_score.sentences(by_table, [text], target_error=target)
        found.append(1 + round(more.degrees.item()))
    assert min(found) == 12


def test_a_slope_is_the_mean_of_its_posterior() -> None:
    """Bayes' rule for the slope of a line through 0: a normal prior, and noise as around the slope 1."""
    control, noise = torch.randn(2, 3, 4, generator=generator(6), dtype=torch.float64)
    score_ = 0.2 * control + 0.3 * noise
    sizes = torch.full((3, 4), 5.0, dtype=torch.float64)
    found = estimate.slopes_of_others(score_[None], control[None], sizes[None])
    for repeat, others in enumerate(([1, 2], [0, 2], [0, 1])):
        x = control[others].flatten()
        y = score_[others].flatten()
        x, y = x - x.mean(), y - y.mean()
        noise_variance = (y - x).square().mean()
        precision_of_data = x.square().sum() / noise_variance
        precision_of_prior = 1 / 0.5**2
        slope_of_data = (x * y).sum() / x.square().sum()
        mean = precision_of_data * slope_of_data + precision_of_prior * 1.0
        mean /= precision_of_data + precision_of_prior
        assert found[0, repeat].item() == pytest.approx(mean.item(), abs=1e-9)


def test_a_slope_comes_from_the_other_repeats_and_is_near_one_where_they_say_little() -> None:
    g = generator(5)
    control, noise = torch.randn(2, 3, 40, generator=g, dtype=torch.float64)
    sizes = torch.arange(1.0, 41.0, dtype=torch.float64).expand(3, -1)
    score_ = 0.4 * control + 0.01 * noise - 0.1 * sizes

    def slopes(*of_a_row: torch.Tensor) -> torch.Tensor:
        return estimate.slopes_of_others(*(values[None] for values in of_a_row))[0]

    found = slopes(score_, control, sizes)
    # 80 points of noise 0.01 around a slope of 0.4: error 0.001, and the prior's pull of 4 · 0.36/80.
    assert (found - 0.4).abs().max() < 0.02
    other = score_.clone()
    other[0] += control[0]
    moved = slopes(other, control, sizes)
    assert moved[0] == found[0] and (moved[1:] > found[1:] + 0.1).all()
    little = slopes(noise[:, :3], 1e-3 * control[:, :3], sizes[:, :3])
    assert (little - 1).abs().max() < 0.05


@pytest.mark.parametrize("num_strata", [1, 2])
def test_two_other_masks_say_nothing_of_a_slope(num_strata: int) -> None:
    """A line in the size goes through two points: the slope is the prior's, and no rounding of zeros."""
    repeats = 1 + 2 // num_strata
    g = generator(3)
    shape = (50, repeats, num_strata)
    score_ = -5 * torch.rand(shape, generator=g, dtype=torch.float64)
    control = torch.randn(shape, generator=g, dtype=torch.float64)
    sizes = torch.rand(50, 20, generator=g).argsort(dim=1)[:, : repeats * num_strata].view(shape)
    slopes = estimate.slopes_of_others(score_, control, sizes.double())
    # Rounding leaves 1e-15 of what was there, and its square is a millionth of the prior's 1e-24.
    torch.testing.assert_close(slopes, torch.ones_like(slopes), rtol=0, atol=1e-5)


def test_texts_have_masks_of_their_own_and_rounds_are_few() -> None:
    seen: list[torch.Tensor] = []

    def watched(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen.append(mask)
        return by_table(ids, mask)

    settings = {"num_masks": 9}
    scorer = mpt_score.load(watched)
    mpt_score.sentences(scorer, [TEXT], **settings)  # the first time a function is tried
    seen.clear()
    for text in (TEXT, TEXT[::-1]):
        mpt_score.sentences(scorer, [text], **settings)
    assert not torch.equal(*seen)
    seen.clear()
    mpt_score.sentences(scorer, [TEXT], target_error=0.02, **settings)
    assert len(seen) <= 6 and sum(map(len, seen)) > 100


def made_up() -> mpt_score.SentenceScores:
    value = torch.tensor([-4.0, -6.0, -2.0], dtype=torch.float64)
    size, zero = torch.tensor([2, 4, 2]), torch.zeros(3, dtype=torch.float64)
    counts = {"num_tokens": size, "num_unknown": 0 * size}
    counts |= {
        "num_bytes": 0 * size,
        "num_windows": size,
        "num_passes": size,
        "documents": torch.tensor([0, 0, 2]),
    }
    rest = {"standard_error": zero, "degrees": zero + math.inf, "inconsistency": zero / 0}
    rest |= {"inconsistency_degrees": zero, "is_heavy_tailed": zero > 0}
    bounds = ("mixture_lower", "mixture_lower_error", "mixture_upper", "mixture_upper_error")
    rest |= dict.fromkeys(bounds, zero / 0)
    return mpt_score.SentenceScores(
        **counts, **rest, log_score=value, pseudo_log_likelihood=zero / 0
    )


def test_errors_over_sentences_and_over_documents() -> None:
    found = made_up()
    every = dataclasses.replace(found, documents=torch.arange(3))
    alone = every.mean()
    assert alone == -4 and alone.standard_error == pytest.approx(2 / math.sqrt(3))
    # Residuals 0, −2 | 2 of two documents: √(2/1 · (4 + 4))/3.
    assert found.mean().standard_error == pytest.approx(4 / 3) and found.mean().num_samples == 2
    tokens = every.mean("token")
    assert tokens == pytest.approx(12 / 8 / math.log(2)) and tokens.unit == "bits a token"
    # −y in nats: 4, 6, 2 for 2, 4, 2 tokens at 1.5 each: residuals 1, 0, −1; √(3/2 · 2)/8.
    assert tokens.standard_error == pytest.approx(math.sqrt(3) / 8 / math.log(2))
    one = dataclasses.replace(found, documents=torch.zeros(3).long())
    assert math.isnan(one.mean().standard_error)
    rows = found.rows()
    assert "inconsistency" not in rows[0] and "bits_per_byte" not in rows[0]
    assert [row["documents"] for row in rows] == [0, 0, 2] and "documents" not in every.rows()[0]
    assert rows[1]["bits_per_token"] == pytest.approx(1.5 / math.log(2))
    json.dumps(rows, allow_nan=False)  # JSON has no infinity
    assert rows[0]["degrees"] is None and "inconsistency_low" not in rows[0]


def test_rows_have_intervals() -> None:
    found = mpt_score.sentences(by_table, [TEXT, TEXT[::-1]])
    row = found.rows()[1]
    assert [row["low"], row["high"]] == pytest.approx(found.interval()[1].tolist())
    ends = found.inconsistency_interval()[1].tolist()
    assert [row["inconsistency_low"], row["inconsistency_high"]] == pytest.approx(ends)
    assert row["low"] < row["log_score"] < row["high"]


def test_bytes_are_those_of_utf_8() -> None:
    found = mpt_score.sentences(tiny(), ["the cat", "thé cat"], tokenizer=tokenizer())
    assert found.num_unknown.tolist() == [0, 0] and found.num_bytes.tolist() == [7, 8]


def test_unknown_tokens_do_not_improve_bits_a_byte(tmp_path: Path) -> None:
    """By a tokenizer that says where its tokens stand, and by one that does not."""
    texts = ["the cat", "the cat zebra", "北京 the cat", "zebra thé cat"]
    found = mpt_score.sentences(tiny(), texts, tokenizer=tokenizer())
    assert found.num_unknown.tolist() == [0, 1, 2, 1]
    num_bytes = [7, 7, 8, 9]  # with the space in front of a known token; é has two
    assert found.num_bytes.tolist() == num_bytes
    bits = -found.log_score / math.log(2) / torch.tensor(num_bytes)
    torch.testing.assert_close(found.bits_per("byte"), bits)

    family = FAMILIES["ESM-2"]
    slow = family.tokenizer(tmp_path)
    texts = ["a b c", "a ? c", "b c"]
    with pytest.warns(UserWarning, match="multiplies what it sees"):
        found = mpt_score.sentences(family.network(), texts, tokenizer=slow)
    assert found.num_unknown.tolist() == [0, 1, 0] and found.num_bytes.tolist() == [5, 0, 3]
    assert found.bits_per("byte").isnan().tolist() == [False, True, False]
    mean = found.mean("byte")
    assert mean == pytest.approx(-found.log_score[[0, 2]].sum().item() / math.log(2) / 8)
    assert mean.num_samples == 2 and found.mean("token").num_samples == 3
    assert [row["bits_per_byte"] is None for row in found.rows()] == [False, True, False]


def test_a_text_that_comes_twice_is_one_document_by_its_name() -> None:
    texts = ["the cat sat", "a dog", "a cat sat"]
    once = mpt_score.sentences(tiny(), texts, tokenizer=tokenizer()).mean()
    twice = mpt_score.sentences(tiny(), texts * 2, tokenizer=tokenizer()).mean()
    named = mpt_score.sentences(tiny(), texts * 2, tokenizer=tokenizer(), documents=texts * 2)
    assert twice == pytest.approx(once) and named.mean() == pytest.approx(once)
    assert named.mean().standard_error == pytest.approx(once.standard_error)
    # As if there were six texts: the sum of squares doubles, and N (N − 1) is 30 in place of 6.
    as_if_more = math.sqrt(2 * 6 / 30) * once.standard_error
    assert twice.standard_error == pytest.approx(as_if_more)


@pytest.mark.parametrize(
    "documents",
    [
        ["b", "a", "b"],
        np.array(["b", "a", "b"]),
        np.array([7, 5, 7]),
        torch.tensor([7, 5, 7]),
        pd.Series(["b", "a", "b"], index=[4, 5, 6]),
        pd.Categorical(["b", "a", "b"]),
    ],
    ids=["list", "NumPy", "numbers", "tensor", "pandas", "categories"],
)
def test_documents_are_named(documents: Any) -> None:
    found = mpt_score.sentences(by_table, [TEXT] * 3, documents=documents)
    assert found.documents.tolist() == [0, 1, 0]


@pytest.mark.bad_input
def test_refusals() -> None:
    network, words = tiny(), tokenizer()
    with pytest.raises(ValueError, match="text 2 is empty and has no word to score"):
        mpt_score.sentences(network, ["the cat", "a dog sat", " "], tokenizer=words)
    with pytest.raises(ValueError, match="text 1 has no word pieces: 'zebra'"):
        mpt_score.sentences(network, ["the cat sat the", "zebra"], tokenizer=words)
    for texts, said in (([], "at least one text"), ("the cat", "at least one text, got 'the cat'")):
        with pytest.raises(ValueError, match=said):
            mpt_score.sentences(network, texts, tokenizer=words)
    with pytest.raises(ValueError, match="2 texts came with 1 documents"):
        mpt_score.sentences(by_table, [TEXT, TEXT], documents=["a"])
    with pytest.raises(ValueError, match="documents: text 1 has no document"):
        mpt_score.sentences(by_table, [TEXT, TEXT], documents=pd.Series([1.0, math.nan]))
    with pytest.raises(ValueError, match="have no bytes"):
        made_up().bits_per("byte")
    with pytest.raises(ValueError, match="num_orders = 4 and num_masks = 9 are two budgets"):
        mpt_score.sentences(by_table, [TEXT], num_masks=9, num_orders=4)
    with pytest.raises(ValueError, match="two budgets"):
        mpt_score.passes(by_table, [TEXT], num_masks=9, num_orders=4)
    with pytest.raises(ValueError, match="num_masks must be >= 3 with a target_error, got 2"):
        mpt_score.sentences(by_table, [TEXT], num_masks=2, target_error=0.1)
    with pytest.raises(ValueError, match="it reads what it scores"):
        mpt_score.sentences(lambda i, _: (2.0 * torch.eye(2)[i]).log_softmax(-1), [TEXT])


@pytest.mark.bad_input
def test_an_answer_that_is_no_number_names_its_text() -> None:
    network = tiny()
    network.bert.embeddings.word_embeddings.register_forward_hook(
        lambda _, ids, out: out.masked_fill(ids[0][..., None] == 10, math.nan)
    )
    with pytest.raises(ValueError, match="text 1: the model says nan of token 2"):
        mpt_score.sentences(network, ["the cat sat", "a dog"], tokenizer=tokenizer())


class Memory(TorchDispatchMode):
    """The most bytes that all tensors have at a time that are made in this context."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        value = function(*args, **(kwargs or {}))
        for each in tree_leaves(value):
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        for key, (reference, _) in list(self._alive.items()):
            if reference.expired():
                del self._alive[key]
        self.most = max(self.most, sum(size for _, size in self._alive.values()))
        return value


def test_long_rows_take_the_memory_that_is_meant_for_them(monkeypatch) -> None:
    """A sixteenth of it here: eight rows of 1000 tokens have three times as many bytes of logits,

    and the attention of one of them, were it written out, 96 MB."""
    monkeypatch.setattr(masked_lm, "WORKING_BYTES", 2**25)
    sizes = {"hidden_size": 48, "num_attention_heads": 12, "intermediate_size": 48}
    sizes |= {"max_position_embeddings": 1024, "num_hidden_layers": 1}
    network = BertForMaskedLM(BertConfig(vocab_size=3000, **sizes)).eval()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(2995))]
    reader = BertTokenizer(vocab={word: n for n, word in enumerate(words)})
    texts = torch.randint(5, 3000, (1, 1000), generator=generator())
    with Memory() as memory:
        found = mpt_score.sentences(network, texts, tokenizer=reader, num_masks=9)
    assert found.num_passes.tolist() == [9]
    assert memory.most < 2 * masked_lm.WORKING_BYTES


@pytest.mark.slow
def test_intervals_cover_the_truth_of_two_thousand_sequences() -> None:
    """The rule, written before the run: 95 % intervals of 32 masks in strata cover 93 to 97 %."""
    source = HMM.cyclic()
    x = source.sample(2000, generator=torch.Generator().manual_seed(2018))
    log_p = source.log_marginal(x)
    scorer = mpt_score.load(source.log_values, max_tokens=2**16)
    found = mpt_score.sentences(scorer, x, num_masks=33)
    low, high = found.interval().T
    assert 0.93 < ((low < log_p) & (log_p < high)).double().mean() < 0.97
    mean, error = mean_and_error(found.log_score - log_p)
    assert abs(mean) < 4 * error


# A logit of size 10 has 1e-6 in float32; a line sums at most nine.
AGREE = 1e-5


def test_pseudo_log_likelihoods_are_those_of_minicons(tmp_path: Path) -> None:
    scorer = pytest.importorskip("minicons.scorer", reason="needs minicons: make peers")
    tiny().float().save_pretrained(tmp_path)
    words = tokenizer()
    words.save_pretrained(tmp_path)
    theirs = scorer.MaskedLMScorer(str(tmp_path), "cpu")
    encoded = words(list(LINES), padding=True)
    batch = theirs.get_masked_tensors(encoded)
    wanted = torch.tensor([sum(each) for each in theirs.compute_stats(batch)])
    said = mpt_score.sentences(str(tmp_path), LINES, pseudo=True).pseudo_log_likelihood
    assert (said - wanted).abs().max() < AGREE
    others = [line.replace("the", "a", 1) for line in LINES]
    found = mpt_score.pairs(str(tmp_path), LINES, others, pseudo=True)
    batch = theirs.get_masked_tensors(words(others, padding=True))
    second = torch.tensor([sum(each) for each in theirs.compute_stats(batch)])
    assert (found.pseudo_difference - (wanted - second)).abs().max() < AGREE
    assert found.pseudo_difference.abs().max() > 0.1
