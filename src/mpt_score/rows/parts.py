"""Parts of a text: windows of one that is too long, and blocks from left to right (note C).

A block diffusion model (Arriola et al. 2025) writes a text block by block, and the tokens of a block in
random order. A block b then has a score of its own given those before it, the area

    A_b = E_σ Σ_{j in b} log q(x_j | earlier blocks, the tokens of b that σ shows before j),

and the log-score of the text is Σ_b A_b. Blocks of one token are read from left to right. A single
block of all tokens is the whole text, in random order.
"""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mpt_score.tokens import Tokens

Later = Literal["hidden", "absent"]
"""Whether later blocks stand as mask tokens, or are cut off with all that is behind a block."""


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
    to a network to which later blocks are hidden; they are cut off where later blocks are absent.

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


def split_into_windows(row: Tokens, max_length: int, is_frame: Bool[Tensor, " L"]) -> list[Tokens]:
    """A text that is longer than a model takes, cut into nearly equal windows.

    Args:
        row: the text, one row.
        max_length: most tokens of a window, its frame counted.
        is_frame: which of its tokens the tokenizer put around the text, (L,). Those at its ends frame
            each window.

    Returns:
        The windows, each one row; those without a token to mask are left out.
    """
    length = row.ids.shape[1]
    num_front = num_leading(is_frame)
    num_back = num_leading(is_frame.flip(0))
    front = torch.arange(num_front)
    body = torch.arange(num_front, length - num_back)
    back = torch.arange(length - num_back, length)
    room = max(1, max_length - num_front - num_back)
    windows = []
    for part in body.tensor_split(math.ceil(len(body) / room)):
        places = torch.cat([front, part, back])
        maskable = row.maskable[:, places]
        if maskable.any():
            ids = row.ids[:, places]
            types = row.types[:, places]
            lengths = torch.tensor([len(places)])
            windows.append(Tokens._unchecked(ids, types, maskable, lengths))
    return windows
