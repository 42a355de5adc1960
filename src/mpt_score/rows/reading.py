"""Texts as rows: read, cut into windows and blocks, and given what their orders follow from (note C).

A text that is too long for a model is scored in windows. A block diffusion model (Arriola et al. 2025)
writes a text block by block, and the tokens of a block in random order. A block b then has a score of its
own given those before it, the area

    A_b = E_σ Σ_{j in b} log q(x_j | earlier blocks, the tokens of b that σ shows before j),

and the log-score of the text is Σ_b A_b. Blocks of one token are read from left to right. A single
block of all tokens is the whole text, in random order.
"""

import math
from collections.abc import Hashable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mpt_score.errors import TextError
from mpt_score.rows.requests import Row
from mpt_score.scorer import Scorer
from mpt_score.tokens import Tokens

CHUNK_SIZE = 512
"""The most texts that are tokenized, and padded to the longest of them, together."""
SEEDS_APART = 2**32
"""The difference between the seeds of two blocks of a row, whose draws are then independent."""

Later = Literal["hidden", "absent"]
"""Whether later blocks stand as mask tokens, or are cut off with all that is behind a block."""


class Read(NamedTuple):
    """Texts as tokens, without those that cannot be read."""

    numbers: list[int]  # of the texts that can
    tokens: Tokens | None  # of these; None where there are none
    faults: dict[int, str]  # why the others cannot

    @property
    def rows(self) -> dict[int, Tokens]:
        """Each text that can be read as one row, by its number."""
        if self.tokens is None:
            return {}
        return {number: self.tokens.row(place) for place, number in enumerate(self.numbers)}


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
        return Read(list(range(len(texts))), scorer.encode(texts), {})
    except TextError:
        if not skip:
            raise
    faults = {}
    for number, text in enumerate(texts):
        try:
            scorer.encode([text])
        except TextError as error:
            faults[number] = error.reason
    numbers = [number for number in range(len(texts)) if number not in faults]
    tokens = scorer.encode([texts[number] for number in numbers]) if numbers else None
    return Read(numbers, tokens, faults)


def num_unknown(scorer: Scorer, tokens: Tokens) -> Int[Tensor, " N"]:
    """How many tokens of each text stand for any word."""
    if scorer.unknown_id is None:
        return torch.zeros(len(tokens), dtype=torch.int64)
    is_token = torch.arange(tokens.ids.shape[1]) < tokens.lengths[:, None]
    return (is_token & (tokens.ids == scorer.unknown_id)).sum(dim=1)


def read_in_chunks(
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
        for rows in order.split(CHUNK_SIZE):
            yield rows.tolist(), texts.rows(rows)
        return
    order_of_texts = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    for start in range(0, len(order_of_texts), CHUNK_SIZE):
        numbers = order_of_texts[start : start + CHUNK_SIZE]
        try:
            chunk = read(scorer, [texts[number] for number in numbers], skip=skip)
        except TextError as error:
            number = numbers[error.number]  # and not its place among some texts by length
            raise TextError.of("text", number, error.reason) from error
        faults.update({numbers[place]: reason for place, reason in chunk.faults.items()})
        if chunk.tokens is not None:
            yield [numbers[place] for place in chunk.numbers], chunk.tokens


def windows_of(scorer: Scorer, row: Tokens) -> list[Tokens]:
    """A text as rows that the model takes whole: itself, or nearly equal windows of it.

    The tokens that the tokenizer put around the text frame each window. Windows without a token to mask
    are left out.
    """
    length = row.ids.shape[1]
    if scorer.max_length is None or length <= scorer.max_length:
        return [row]
    is_frame = scorer.is_frame(row.ids[0])
    num_front = num_leading(is_frame)
    num_back = num_leading(is_frame.flip(0))
    front = torch.arange(num_front)
    body = torch.arange(num_front, length - num_back)
    back = torch.arange(length - num_back, length)
    room = max(1, scorer.max_length - num_front - num_back)
    windows = []
    for inner in body.tensor_split(math.ceil(len(body) / room)):
        places = torch.cat([front, inner, back])
        maskable = row.maskable[:, places]
        if maskable.any():
            ids = row.ids[:, places]
            types = row.types[:, places]
            lengths = torch.tensor([len(places)])
            windows.append(Tokens._unchecked(ids, types, maskable, lengths))
    return windows


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
            key = f"{seed + block_number * SEEDS_APART} {ids.tolist()}"
            rows.append(Row(ids, types, block.places, block.hidden, number, key))
            sizes.append(int(window.num_features))
    if item is None:
        return TextRows(rows, sizes, len(windows), "")
    # Texts of one item see the same orders in all of their rows, or in none: a sum over rows is then
    # known along each order, or independent of that of another text.
    key_of_item = f"{seed} item {item} of {[len(row.places) for row in rows]} tokens"
    rows = [row._replace(key=f"{key_of_item}, row {place}") for place, row in enumerate(rows)]
    return TextRows(rows, sizes, len(windows), key_of_item)


class TextBlock(NamedTuple):
    """Some consecutive tokens of a row of which the model sees the first ``width``."""

    places: Int[Tensor, " k"]
    hidden: Bool[Tensor, " width"]  # later tokens, which each of the block's masks hides
    width: int


def block_sizes(count: int, block_length: int | None) -> list[int]:
    """Tokens of each block of a row with so many to score; the last block has what is left.

    Args:
        count: D.
        block_length: tokens of a block; None for one block of all.

    >>> block_sizes(10, 4), block_sizes(10, 64)
    ([4, 4, 2], [10])
    """
    if block_length is None:
        return [count]
    num_blocks = math.ceil(count / block_length)
    return [min(block_length, count - number * block_length) for number in range(num_blocks)]


def split_into_blocks(row: Tokens, block_length: int | None, later: Later) -> list[TextBlock]:
    """A row as blocks of consecutive tokens, from left to right.

    Tokens that are not scored stay where they are. Those behind the scored ones, as a [SEP], are shown
    to a model to which later blocks are hidden; they are cut off where later blocks are absent.

    Args:
        row: one row of L tokens, D of them maskable.
        block_length: maskable tokens of a block; None for one block of all.
        later: what a block sees of the blocks behind it: their places, hidden, or nothing.
    """
    maskable = row.maskable[0]
    places = maskable.nonzero().flatten()
    if block_length is None:
        return [TextBlock(places, torch.zeros_like(maskable), len(maskable))]
    blocks = []
    for places_of_block in places.split(block_sizes(len(places), block_length)):
        end = int(places_of_block[-1]) + 1
        is_later = maskable.clone()
        is_later[:end] = False
        width = end if later == "absent" else len(maskable)
        blocks.append(TextBlock(places_of_block, is_later[:width], width))
    return blocks


def num_leading(is_so: Bool[Tensor, " L"]) -> int:
    """How many are so before the first that is not."""
    return int(is_so.long().cumprod(dim=0).sum())
