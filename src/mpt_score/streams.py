"""One rule for random streams: which generator belongs to a text."""

from typing import Annotated

import torch

from mpt_lml.checks import Within

MOST_TEXTS = 1_000_003
"""Streams of one seed, a prime above a million: as many texts have streams of their own."""

StreamSeed = Annotated[int, Within(0, 9 * 10**12)]
"""A seed of streams: times :data:`MOST_TEXTS` it is still below 2⁶³, which torch's seeds are."""

TextNumber = Annotated[int, Within(0, 2**32)]


def stream(seed: int, number: int) -> torch.Generator:
    """The generator of text ``number`` under ``seed``.

    A text's draws follow from its own number, and so do not depend on what is scored beside it. The
    rule is part of the record: another one moves every draw.

    >>> first = torch.rand(1, generator=stream(4, 0))
    >>> bool(first == torch.rand(1, generator=stream(4, 1)))
    False
    """
    return torch.Generator().manual_seed(seed * MOST_TEXTS + number)
