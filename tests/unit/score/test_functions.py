"""A function of token ids and masks as a model: what it answers is checked."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import mpt_score
from mpt_score import networks
from mpt_score.functions import TokenFunction, shifted_side

IDS = torch.tensor([[0, 1, 2, 0], [1, 1, 2, 2], [2, 0, 1, 1]])
MASK = torch.tensor([[0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]).bool()


def even(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(*ids.shape, 3).log_softmax(dim=-1)


def test_a_token_has_the_probability_that_the_function_gives_its_id() -> None:
    p = torch.tensor([0.5, 0.3, 0.2])
    model = TokenFunction(lambda ids, mask: p.log().expand(*ids.shape, 3), mask_token=None)
    expected = torch.where(MASK, p[IDS], 1.0)
    torch.testing.assert_close(model.log_tokens(IDS, MASK).exp().float(), expected)


@pytest.mark.bad_input
@pytest.mark.parametrize(("shift", "total"), [(-1.0, "0.3679"), (1.0, "2.718")])
@pytest.mark.parametrize("num_hidden", [1, 2])
def test_probabilities_that_are_too_few_or_too_many(
    shift: float, total: str, num_hidden: int
) -> None:
    """In one of the rows; what it hides is said, although a row above hides nothing."""

    def shifted(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        is_wrong = mask.sum(dim=1) == num_hidden
        return even(ids, mask) + shift * is_wrong[:, None, None]

    said = rf"where it hides {num_hidden} of 4 places they add up to {total}, not to 1"
    with pytest.raises(ValueError, match=said):
        TokenFunction(shifted, mask_token=None).log_tokens(IDS, MASK)


@pytest.mark.bad_input
def test_a_softmax_over_rows_is_found_where_a_value_has_no_probability() -> None:
    """Its answer for that value is nan, and so is each sum."""

    def over_rows(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.tensor([0.0, 1.0, -math.inf]).expand(*ids.shape, 3).log_softmax(dim=0)

    with pytest.raises(ValueError, match="hides 2 of 4 places it answers nan of value 2"):
        TokenFunction(over_rows, mask_token=None).try_once(IDS, MASK)


def test_a_function_is_shown_the_mask_token_where_it_may_not_look() -> None:
    seen = []

    def watched(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen.append(ids.clone())
        ids.zero_()  # it may write into what it is given
        return even(ids, mask)

    ids = IDS.clone()
    for mask_token in (None, 9):
        TokenFunction(watched, mask_token).log_tokens(ids, MASK)
    assert torch.equal(seen[0], IDS)
    assert torch.equal(seen[1], IDS.masked_fill(MASK, 9))
    assert torch.equal(ids, IDS)


@pytest.mark.bad_input
def test_an_id_behind_the_vocabulary_can_be_told_from_a_row_that_is_too_long() -> None:
    table = torch.zeros(2, 3).log_softmax(dim=-1)
    with pytest.raises(IndexError) as caught:
        TokenFunction(lambda ids, mask: table[ids], mask_token=None).log_tokens(IDS, MASK)
    (note,) = caught.value.__notes__
    assert "ids (3, 4), int64, of which the largest is 2" in note
    assert "rows of 4 tokens are too long" in note


@pytest.mark.bad_input
def test_it_is_tried_where_little_is_hidden_too() -> None:
    def peeks(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        few = mask.sum(dim=1, keepdim=True) == 1
        seen = torch.nn.functional.one_hot(ids, 3) * few[..., None]
        return seen.float().log_softmax(dim=-1)

    with pytest.raises(ValueError, match="it reads what it scores"):
        TokenFunction(peeks, mask_token=None).try_once(IDS, torch.ones(3, 4).bool())
    model = TokenFunction(even, mask_token=None)
    model.try_once(IDS, torch.zeros(3, 4).bool())
    assert model.vocab_size is None  # nothing is hidden: it can be tried when something is
    model.try_once(IDS, MASK)
    assert model.vocab_size == 3


@pytest.mark.bad_input
def test_the_longest_text_is_tried_too() -> None:
    """A function that reads what is hidden where more than twelve tokens are asked about."""

    def peeks(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen = torch.nn.functional.one_hot(ids, 3) * (ids.shape[1] > 12)
        return seen.float().log_softmax(dim=-1)

    texts = [[0, 1, 2] * number for number in (2, 4, 5)]
    assert mpt_score.sentences(peeks, texts[:2]).num_tokens.tolist() == [6, 12]
    said = "it reads what it scores, .* in rows of 15 tokens, and not in those of 12"
    with pytest.raises(ValueError, match=said):
        mpt_score.sentences(peeks, texts)
    rows_asked: list[tuple[int, int]] = []

    def watched(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows_asked.append(tuple(ids.shape))
        return even(ids, mask)

    for mask_token, num_calls in ((None, 2), (0, 0)):
        model = TokenFunction(watched, mask_token)
        model.try_once(IDS, MASK)
        rows_asked.clear()
        model.try_once(IDS.repeat(1, 3), MASK.repeat(1, 3))
        assert rows_asked == [(1, 12)] * num_calls
        model.try_once(IDS.repeat(1, 2), MASK.repeat(1, 2))
        assert len(rows_asked) == num_calls


@pytest.mark.parametrize("is_cast", [True, False])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_an_honest_network_passes(
    precision: torch.dtype, is_cast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    network, tokenizer = networks.load_small_bert()
    network = copy.deepcopy(network).to(precision)

    def log_probabilities(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        logits = network(input_ids=ids.masked_fill(mask, tokenizer.mask_token_id)).logits
        return (logits.float() if is_cast else logits).log_softmax(dim=-1)

    ids = tokenizer(["The old man saw the dog near the river."], return_tensors="pt")["input_ids"]
    inner = torch.arange(ids.shape[1])
    mask = ((inner > 0) & (inner < ids.shape[1] - 1))[None]
    model = TokenFunction(log_probabilities, mask_token=None)
    model.try_once(ids, mask)
    assert model.log_tokens(ids, mask).isfinite().all()
    is_half = precision == torch.bfloat16 and not is_cast
    assert ("answers in bfloat16" in caplog.text) == is_half


def test_an_answer_that_is_shifted_by_one_is_asked_about(caplog: pytest.LogCaptureFixture) -> None:
    """It repeats half of what it is shown."""
    ids = torch.arange(12)[None]
    is_repeated = (ids % 2 == 0)[..., None]

    def repeats(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shown = torch.nn.functional.one_hot(ids.masked_fill(mask, 12), 14)
        return torch.where(is_repeated, 9 * shown, 9 * (torch.arange(14) == 13)).float()

    for shift, said in ((0, None), (-1, "token before"), (1, "token after")):
        caplog.clear()

        def shifted(ids: torch.Tensor, mask: torch.Tensor, shift: int = shift) -> torch.Tensor:
            return repeats(ids, mask).roll(shift, dims=1).log_softmax(dim=-1)

        TokenFunction(shifted, mask_token=None).try_once(ids, ids > 5)
        assert ("shifted by one" in caplog.text) == (said is not None)
        assert said is None or f"at the place of the {said}" in caplog.text


def test_words_that_are_frequent_are_no_shift() -> None:
    """A function that always says the most frequent token meets the next one as often as its own."""
    ids = torch.tensor([0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7])
    assert shifted_side(torch.zeros_like(ids), ids) is None


def test_a_run_of_one_token_does_not_tell_its_own_place_from_the_next() -> None:
    """Five equal tokens, then four others, of which three are repeated at the place before."""
    ids = torch.tensor([5, 5, 5, 5, 5, 6, 7, 8, 9])
    most_probable = ids.roll(-1)
    assert shifted_side(most_probable, ids) == "token before"
    most_probable[:4] = 0
    assert shifted_side(most_probable, ids) == "token before"
    assert shifted_side(ids.where(ids == 5, 0), ids) is None


def test_a_few_tokens_of_many_that_agree_by_chance_are_no_shift() -> None:
    ids = torch.arange(16)
    most_probable = torch.full((16,), 20)
    most_probable[:4] = ids[1:5]
    assert shifted_side(most_probable, ids) is None
    most_probable[:5] = ids[1:6]
    assert shifted_side(most_probable, ids) == "token before"
