"""Texts scored block by block, against every order of every block."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models import generator
from tiny_bert import CLS, LINES, SEP, tiny, tokenizer

import mpt_score
from mpt_lml import HMM
from mpt_score import tokens
from mpt_score.rows.reading import block_sizes, num_unknown, windows_of

COUNT = 7
NUM_VALUES = 3
TEXT = [2, 0, 1, 1, 2, 0, 2]


class Network:
    """Random answers for every set of visible tokens, every place and every length: of no joint."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []  # that it was asked for; −1 where hidden

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shown = ids.masked_fill(mask, -1).tolist()
        self.rows += [tuple(row) for row in shown]
        return torch.stack([self.answer(row) for row in shown])

    @classmethod
    def answer(cls, row: list[int]) -> torch.Tensor:
        return cls._answer(tuple(row))

    @staticmethod
    @functools.cache
    def _answer(row: tuple[int, ...]) -> torch.Tensor:
        seed = int("1" + "".join(str(value + 1) for value in row)) % (2**61 - 1)
        logits = torch.randn(len(row), NUM_VALUES, generator=generator(seed), dtype=torch.float64)
        return logits.log_softmax(dim=-1)


def every_total(block_length: int, later: str, text: list[int] = TEXT) -> torch.Tensor:
    """log p along every order of every block, by the definition: one token after the other."""
    totals = [0.0]
    for start in range(0, len(text), block_length):
        block = range(start, min(start + block_length, len(text)))
        of_block = []
        for order in itertools.permutations(block):
            row = [*text[:start], *[-1] * (len(text) - start)]
            if later == "absent":
                row = row[: block.stop]
            log_p = 0.0
            for place in order:
                log_p += Network.answer(row)[place, text[place]].item()
                row[place] = text[place]
            of_block.append(log_p)
        totals = [total + log_p for total in totals for log_p in of_block]
    return torch.tensor(totals, dtype=torch.float64)


@pytest.mark.parametrize("later", ["hidden", "absent"])
@pytest.mark.parametrize("block_length", [1, 2, 3, 4])
def test_the_score_is_the_mean_over_every_order_of_every_block(
    block_length: int, later: str
) -> None:
    network = Network()
    found = mpt_score.sentences(
        network, [TEXT], num_orders=8, block_length=block_length, later=later
    )
    totals = every_total(block_length, later)
    assert found.log_score.item() == pytest.approx(totals.mean().item(), abs=1e-10)
    spread = totals.std(correction=0).item()
    assert found.inconsistency.item() == pytest.approx(spread, abs=1e-10)
    assert found.standard_error.item() == 0.0
    num_subsets = sum(2**size - 1 for size in block_sizes(COUNT, block_length))
    assert found.num_passes.item() == num_subsets
    assert found.num_tokens.item() == COUNT
    assert found.num_windows.item() == 1


def test_hidden_and_absent_are_two_questions() -> None:
    assert abs(every_total(3, "hidden").mean() - every_total(3, "absent").mean()) > 0.1


def shown_to_network(text: list[int], **settings: Any) -> list[tuple[int, ...]]:
    """What a network is shown for a text; what the function is tried with at first is left out."""
    network = Network()
    scorer = mpt_score.load(network)
    mpt_score.sentences(scorer, [text], num_masks=1)
    network.rows.clear()
    mpt_score.sentences(scorer, [text], **settings)
    return network.rows


def test_what_a_network_is_shown() -> None:
    for row in shown_to_network(TEXT, num_orders=8, block_length=3):
        first_hidden = row.index(-1)
        end = (first_hidden // 3 + 1) * 3
        assert len(row) == COUNT and set(row[end:]) <= {-1}
    absent = shown_to_network(TEXT, num_orders=8, block_length=3, later="absent")
    assert {len(row) for row in absent} == {3, 6, 7}
    for row in absent:
        start = (len(row) - 1) // 3 * 3
        assert -1 not in row[:start]


@pytest.mark.parametrize("budget", [{"num_orders": 5}, {"num_masks": 9}, {"num_masks": 1}])
@pytest.mark.parametrize("block_length", [COUNT, COUNT + 1, 100])
def test_one_block_is_the_whole_text(budget: dict[str, int], block_length: int) -> None:
    whole = mpt_score.sentences(Network(), [TEXT, TEXT[:3]], **budget)
    block = mpt_score.sentences(Network(), [TEXT, TEXT[:3]], block_length=block_length, **budget)
    for name, value in vars(whole).items():
        torch.testing.assert_close(getattr(block, name), value, rtol=0, atol=0, equal_nan=True)


def test_blocks_of_one_token_are_left_to_right() -> None:
    network = Network()
    found = mpt_score.sentences(network, [TEXT], block_length=1, later="absent")
    by_hand = sum(
        Network.answer([*TEXT[:place], -1])[place, TEXT[place]].item() for place in range(COUNT)
    )
    assert found.log_score.item() == pytest.approx(by_hand, abs=1e-10)
    assert found.num_passes.item() == COUNT
    assert found.inconsistency.item() == 0.0


@pytest.mark.parametrize("block_length", [1, 2, 4, 6])
def test_blocks_of_a_joint_distribution_add_up_to_its_logarithm(block_length: int) -> None:
    source = HMM.cyclic(num_features=6)
    x = source.sample(4, generator=generator(3))
    found = mpt_score.sentences(source.log_values, x, block_length=block_length)
    torch.testing.assert_close(found.log_score, source.log_marginal(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("budget", [{"num_orders": 3}, {"num_masks": 5}])
def test_drawn_masks_are_unbiased_and_their_errors_are_honest(budget: dict[str, int]) -> None:
    """Over 100 seeds. Blocks with the same draws would vary by more or less than their errors say."""
    text = [*TEXT, 1, 0, 2, 2, 1]
    area = every_total(4, "hidden", text).mean().item()
    found = [
        mpt_score.sentences(Network(), [text], block_length=4, seed=seed, **budget)
        for seed in range(100)
    ]
    values = torch.cat([each.log_score for each in found])
    assert abs(values.mean() - area) < 4 * values.std() / 100**0.5
    stated = torch.cat([each.standard_error for each in found]).square().nanmean()
    # A variance of 100 numbers has a relative error of about √(2/100) = 0.14, if they are normal.
    assert stated / values.var() == pytest.approx(1.0, abs=0.4)


def test_blocks_of_equal_tokens_have_draws_of_their_own() -> None:
    shown = shown_to_network([1] * 16, num_orders=1, block_length=8)
    of_first = {row[:8] for row in shown if -1 in row[:8]}
    of_second = {row[8:] for row in shown if -1 not in row[:8]}
    assert len(of_first) == len(of_second) == 8
    assert of_first != of_second


def test_a_target_error_is_of_the_whole_text() -> None:
    text = [*TEXT, 1, 0, 2, 2, 1]
    settings = {"num_orders": 2, "block_length": 4, "target_error": 0.03}
    found = mpt_score.sentences(Network(), [text], **settings)
    # Were each of the three blocks asked for its own target, the error would be 0.03 · 12 / √3.
    assert 0.7 * 0.03 * 12 < found.standard_error.item() <= 0.03 * 12
    assert found.num_passes.item() > mpt_score.passes(Network(), [text], num_orders=2).item()


@pytest.mark.parametrize("budget", [{}, {"num_orders": 2}, {"num_masks": 5}])
@pytest.mark.parametrize("block_length", [1, 3, 5, 50])
def test_passes_are_told_beforehand(budget: dict[str, int], block_length: int) -> None:
    told = mpt_score.passes(Network(), [TEXT, TEXT * 3], block_length=block_length, **budget)
    found = mpt_score.sentences(Network(), [TEXT, TEXT * 3], block_length=block_length, **budget)
    assert (found.num_passes <= told).all()
    assert (found.num_passes >= 0.7 * told).all()


def test_an_answer_in_blocks_given_its_prompt() -> None:
    """Rows that say which tokens are scored: the blocks begin with the first of them."""
    ids = torch.tensor([TEXT])
    is_answer = torch.arange(COUNT)[None] >= 2
    row = tokens.Tokens(ids, 0 * ids, is_answer, torch.tensor([COUNT]))
    found = mpt_score.sentences(Network(), row, num_orders=8, block_length=3, later="absent")
    total = 0.0
    for block in ((2, 3, 4), (5, 6)):
        of_orders = []
        for order in itertools.permutations(block):
            shown = [*TEXT[: block[0]], *[-1] * len(block)]
            log_p = 0.0
            for place in order:
                log_p += Network.answer(shown)[place, TEXT[place]].item()
                shown[place] = TEXT[place]
            of_orders.append(log_p)
        total += sum(of_orders) / len(of_orders)
    assert found.log_score.item() == pytest.approx(total, abs=1e-10)


def test_frames_behind_a_text_are_shown_or_cut_off() -> None:
    """A [SEP] tells how long a text is: with later blocks hidden it is shown, absent it is not."""
    asked: list[list[int]] = []

    def network(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        asked.extend(ids.tolist())
        return torch.zeros(*ids.shape, len(tokenizer())).log_softmax(dim=-1)

    mpt_score.sentences(network, LINES[:1], tokenizer=tokenizer(), block_length=2)
    assert {(row[0], row[-1]) for row in asked} == {(CLS, SEP)}
    asked.clear()
    mpt_score.sentences(network, LINES[:1], tokenizer=tokenizer(), block_length=2, later="absent")
    assert {row[0] for row in asked} == {CLS}
    assert SEP not in {value for row in asked for value in row}


def test_windows_of_a_pair_keep_which_text_a_token_is_of() -> None:
    pair = tokens.encode(tokenizer(), ["the cat sat the dog sat"], ["a cat sat"])
    scorer = mpt_score.load(Network(), tokenizer(), max_length=COUNT)
    windows = windows_of(scorer, pair)
    assert len(windows) > 1
    assert torch.equal(torch.cat([each.types[0, 1:-1] for each in windows]), pair.types[0, 1:-1])
    assert all(each.types[0, [0, -1]].tolist() == [0, 1] for each in windows)


def test_windows_are_cut_into_blocks_of_their_own() -> None:
    text = TEXT * 3  # of 21 tokens, in windows of 7
    scorer = mpt_score.load(Network(), max_length=COUNT)
    found = mpt_score.sentences(scorer, [text], num_orders=8, block_length=4)
    one = mpt_score.sentences(scorer, [TEXT], num_orders=8, block_length=4)
    assert found.num_windows.item() == 3
    assert found.log_score.item() == pytest.approx(3 * one.log_score.item(), abs=1e-10)
    price, price_of_one = mpt_score.passes(scorer, [text, TEXT], num_orders=8, block_length=4)
    assert price == 3 * price_of_one


def test_a_window_without_a_known_token_is_left_out() -> None:
    scorer = mpt_score.load(tiny(), tokenizer(), max_length=5)
    text = "zebra zebra zebra the cat sat"
    (window,) = windows_of(scorer, scorer.encode([text]))
    assert window.ids.tolist() == [[CLS, 5, 6, 7, SEP]]
    found = mpt_score.sentences(scorer, [text])
    assert found.num_windows.tolist() == [1] and found.num_unknown.tolist() == [3]


def test_blocks_are_no_windows() -> None:
    for items in (None, ["a", "a", "b"]):
        found = mpt_score.sentences(
            mpt_score.load(Network(), max_length=COUNT),
            [TEXT, TEXT, TEXT * 2],
            items=items,
            block_length=2,
        )
        assert found.num_windows.tolist() == [1, 1, 2]


@pytest.mark.parametrize(("front", "back"), [([CLS], []), ([], [SEP]), ([CLS], [SEP])])
def test_windows_have_what_frames_the_text(front: list[int], back: list[int]) -> None:
    inner = [5, 6, 7, 8, 9] * 3
    scorer = mpt_score.load(tiny(), tokenizer(), max_length=9)
    windows = windows_of(scorer, scorer.encode([[*front, *inner, *back]]))
    length = 5 if front and back else 8
    texts = [inner[start : start + length] for start in range(0, len(inner), length)]
    assert [window.ids[0].tolist() for window in windows] == [
        [*front, *text, *back] for text in texts
    ]


def test_a_network_of_transformers_takes_rows_of_either_kind() -> None:
    for later in ("hidden", "absent"):
        found = mpt_score.sentences(
            tiny(), LINES[:2], tokenizer=tokenizer(), block_length=2, later=later
        )
        assert found.log_score.isfinite().all()
        assert (found.standard_error == 0).all()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_length": 0}, "block_length must be"),
        ({"block_length": 2, "later": "cut"}, "later must be"),
        ({"later": "absent"}, "later must be 'hidden' without blocks, got 'absent'"),
        ({"block_length": 2, "pseudo": True}, "block_length must be None for a pseudo-log"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mpt_score.sentences(Network(), [TEXT], **settings)


@pytest.mark.bad_input
def test_a_text_that_cannot_be_read_is_named_by_its_place_among_all() -> None:
    rows = mpt_score.sentences(Network(), [TEXT, []], skip=True).rows()
    assert [row["skipped"] is None for row in rows] == [True, False]


def test_padding_is_no_unknown_token() -> None:
    ids = torch.tensor([[2, 1, 3], [2, 3, 1]])
    two = tokens.Tokens(ids, 0 * ids, ids == 2, torch.tensor([3, 2]))
    assert num_unknown(SimpleNamespace(unknown_id=1), two).tolist() == [1, 0]
