"""Texts as rows: read, cut into windows and blocks, and given what their orders follow from."""

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from mpt_score.errors import TextError
from mpt_score.rows.parts import Later, split_into_blocks, split_into_windows
from mpt_score.rows.row import Row, seed_key, seed_key_of_item
from mpt_score.scorer import Scorer
from mpt_score.tokens import Tokens

TEXTS_AT_A_TIME = 512
"""That are tokenized, and padded to the longest of them, together."""
SEEDS_APART = 2**32
"""Between the seeds of two blocks of a row: their draws are independent."""


class Read(NamedTuple):
    """Texts as tokens, without those that cannot be read."""

    numbers: list[int]  # of the texts that can
    tokens: Tokens | None  # of these; None where there are none
    faults: dict[int, str]  # why the others cannot


def read(scorer: Scorer, texts: Any, *, skip: bool) -> Read:
    """Encode texts, all together if that goes, else one by one to find those that cannot be read.

    Args:
        scorer: encodes them.
        texts: as of :meth:`Scorer.encode`.
        skip: whether a text that cannot be read is left out.

    Raises:
        TextError: for the first such text, without ``skip``.
    """
    try:
        return Read(list(range(len(texts))), scorer._encode(texts), {})
    except TextError:
        if not skip:
            raise
    faults = {}
    for number, text in enumerate(texts):
        try:
            scorer._encode([text])
        except TextError as error:
            faults[number] = error.reason
    numbers = [number for number in range(len(texts)) if number not in faults]
    tokens = scorer._encode([texts[number] for number in numbers]) if numbers else None
    return Read(numbers, tokens, faults)


def num_unknown(scorer: Scorer, tokens: Tokens) -> Int[Tensor, " N"]:
    """How many tokens of each text stand for any word."""
    if scorer.unknown_id is None:
        return torch.zeros(len(tokens), dtype=torch.int64)
    is_token = torch.arange(tokens.ids.shape[1]) < tokens.lengths[:, None]
    return (is_token & (tokens.ids == scorer.unknown_id)).sum(dim=1)


def read_in_parts(
    scorer: Scorer, texts: Any, faults: dict[int, str], *, skip: bool
) -> Iterator[tuple[list[int], Tokens]]:
    """Numbers and tokens of some texts at a time, by length, so that a long one pads none but its like.

    Args:
        scorer: encodes them.
        texts: as of :meth:`Scorer.encode`.
        faults: takes the reason of each text that cannot be read, by its number.
        skip: whether such a text is left out.
    """
    if isinstance(texts, Tokens):
        order = texts.lengths.argsort(stable=True)
        for rows in order.split(TEXTS_AT_A_TIME):
            yield rows.tolist(), texts.rows(rows)
        return
    order_of_texts = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    for start in range(0, len(order_of_texts), TEXTS_AT_A_TIME):
        numbers = order_of_texts[start : start + TEXTS_AT_A_TIME]
        try:
            part = read(scorer, [texts[number] for number in numbers], skip=skip)
        except TextError as error:
            number = numbers[error.number]  # and not its place among some texts by length
            raise TextError(f"text {number}: {error.reason}", number, error.reason) from error
        faults.update({numbers[place]: reason for place, reason in part.faults.items()})
        if part.tokens is not None:
            yield [numbers[place] for place in part.numbers], part.tokens


def windows_of(scorer: Scorer, row: Tokens) -> list[Tokens]:
    """A text as rows that the model takes whole: itself, or windows of it."""
    if scorer.max_length is None or row.ids.shape[1] <= scorer.max_length:
        return [row]
    return split_into_windows(row, scorer.max_length, scorer.is_frame(row.ids[0]))


class TextRows(NamedTuple):
    """A text as rows, which are its windows or the blocks of these."""

    rows: list[Row]
    sizes: list[int]  # of each row, the tokens to score in its window
    num_windows: int
    key: str  # equal for texts that see the same orders; "" where items were not named


def rows_of_text(
    scorer: Scorer,
    text: Tokens,
    number: int,
    seed: int,
    item: Hashable | None = None,
    *,
    block_length: int | None = None,
    later: Later = "hidden",
) -> TextRows:
    """A text as the rows in which it is scored.

    Args:
        scorer: says how long a row may be.
        text: one row of tokens, of any length.
        number: of the text, for messages.
        seed: of the call.
        item: of the text, where items were named.
        block_length: tokens of a block; None for one block.
        later: what a block sees of later ones.
    """
    windows = windows_of(scorer, text)
    rows = []
    sizes = []
    for window in windows:
        for block_number, block in enumerate(split_into_blocks(window, block_length, later)):
            ids = window.ids[0, : block.width]
            types = window.types[0, : block.width]
            key = seed_key(seed + block_number * SEEDS_APART, ids)
            rows.append(Row(ids, types, block.places, block.hidden, number, key))
            sizes.append(int(window.num_features))
    if item is None:
        return TextRows(rows, sizes, len(windows), "")
    key_of_item = seed_key_of_item(seed, item, [len(row.places) for row in rows])
    rows = [row._replace(key=f"{key_of_item}, row {place}") for place, row in enumerate(rows)]
    return TextRows(rows, sizes, len(windows), key_of_item)
