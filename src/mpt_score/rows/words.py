"""Where the tokens of a text stand in it, and which of them are one word."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mpt_score.scorer import Scorer
from mpt_score.tokens import Tokens

NOT_KNOWN = -1
"""Where a token begins and ends in a text that is not known as a string."""


class Layout(NamedTuple):
    """The tokens of one text but for its frame, U of them, in their order."""

    pieces: list[str]
    word: Int[Tensor, " U"]
    start: Int[Tensor, " U"]
    end: Int[Tensor, " U"]
    is_scored: Bool[Tensor, " U"]


def layout_of(scorer: Scorer, string: str, row: Tokens, words: str) -> Layout:
    """Pieces, words and places of the tokens of a text, which is one row of ids."""
    ids = row.ids[0]
    is_inner = ~scorer.is_frame(ids) | row.maskable[0]
    inner = is_inner.nonzero().flatten().tolist()
    tokenizer = scorer.tokenizer
    if tokenizer is None:
        pieces = [str(token) for token in ids.tolist()]
    else:
        pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    spans = [(NOT_KNOWN, NOT_KNOWN)] * len(ids)
    labels: list[Any] = list(range(len(ids)))  # equal for neighbors in one word
    if string and getattr(tokenizer, "is_fast", False):
        encoding = tokenizer(string, return_offsets_mapping=True, verbose=False)
        spans = [_without_space(string, *span) for span in encoding["offset_mapping"]]
        labels = _words_between_spaces(string, spans)
        if words == "tokenizer":
            labels = encoding.word_ids(0)
    elif string:
        spans = _found_in_order(string, [pieces[place] for place in inner], inner, len(ids))
    of_words = groupby(inner, key=lambda place: labels[place])
    word = [number for number, (_, places) in enumerate(of_words) for _ in places]
    return Layout(
        pieces=[pieces[place] for place in inner],
        word=torch.tensor(word),
        start=torch.tensor([spans[place][0] for place in inner]),
        end=torch.tensor([spans[place][1] for place in inner]),
        is_scored=row.maskable[0][inner],
    )


def words_of(scorer: Scorer, string: str, row: Tokens) -> Int[Tensor, " L"]:
    """The word of each token of a row in its text, as the tokenizer cuts it; −1 for its frame.

    Args:
        scorer: has the tokenizer.
        string: the text; "" where token ids came, each of which is a word.
        row: the text as one row of L tokens.
    """
    ids = row.ids[0]
    is_inner = ~scorer.is_frame(ids) | row.maskable[0]
    word = torch.full((len(ids),), -1)
    word[is_inner] = layout_of(scorer, string, row, "tokenizer").word
    return word


def _without_space(string: str, start: int, end: int) -> tuple[int, int]:
    """A span without the white space around it, which tokenizers count to either neighbor, or not.

    One of white space only shrinks to its end: its token belongs to what follows.
    """
    spanned = string[start:end]
    start += len(spanned) - len(spanned.lstrip())
    return start, start + len(spanned.strip())


def _words_between_spaces(string: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each span the number of the stretch between white space that it begins in, from 1."""
    beginnings = [match.start() for match in re.finditer(r"\S+", string)]
    return [bisect_right(beginnings, start) for start, _ in spans]


def _found_in_order(
    string: str, pieces: Sequence[str], places: Sequence[int], length: int
) -> list[tuple[int, int]]:
    """Where each piece stands in a text, each looked for behind the one before."""
    spans = [(NOT_KNOWN, NOT_KNOWN)] * length
    position = 0
    for place, piece in zip(places, pieces, strict=True):
        start = string.find(piece, position)
        if start >= 0:
            position = start + len(piece)
            spans[place] = (start, position)
    return spans
