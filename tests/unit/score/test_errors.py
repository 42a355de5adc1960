"""A refused text, pair or prompt says which it is, in words and as a number."""

from __future__ import annotations

import pytest
import torch
from tiny_bert import tiny, tokenizer

import mpt_score
from mpt_score.errors import TextError
from mpt_score.tokens import require_texts

NETWORK = tiny()
SCORER = mpt_score.load(NETWORK, tokenizer())


def nan_in_the_third_row(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    values = torch.full((*ids.shape, 4), 0.25).log()
    values[ids[:, 0] == 3] = torch.nan
    return values


ONE_IN_THREE_FAILS = mpt_score.load(nan_in_the_third_row)
# Each is wrong in its third text, number 2, but for the pair, which is the second.
REFUSED = {
    "an unknown word": (lambda: SCORER.encode(["the cat", "a dog", "???"]), "text 2", 2),
    "an empty text": (lambda: SCORER.encode(["the cat", "a dog", " "]), "text 2", 2),
    "half a character": (lambda: require_texts("texts", ["a", "b", "\ud800"]), "text 2", 2),
    "special tokens only": (
        lambda: SCORER.encode([[5, 6], [6, 7], SCORER.tokenizer.all_special_ids[:1]]),
        "text 2",
        2,
    ),
    "a pair of other lengths": (
        lambda: mpt_score.pairs(SCORER, ["the cat", "the cat"], ["a cat", "the cat sat"]),
        "pair 1",
        1,
    ),
    "an option without a token": (
        lambda: mpt_score.answers(SCORER, ["the", "a", "the"], [[" cat"], [" cat"], [" ???"]]),
        "prompt 2: option 0",
        2,
    ),
    "an answer that is not a number": (
        lambda: mpt_score.curve(ONE_IN_THREE_FAILS, [[0, 1], [1, 2], [3, 1]]),
        "text 2",
        2,
    ),
}


@pytest.mark.parametrize(("call", "words", "number"), REFUSED.values(), ids=REFUSED.keys())
def test_the_number_is_that_of_the_text(call, words: str, number: int) -> None:
    with pytest.raises(TextError, match=words) as refused:
        call()
    assert refused.value.number == number
