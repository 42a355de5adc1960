"""A row of tokens with the places that are scored, and what its random orders follow from."""

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Row(NamedTuple):
    """L tokens that go through the network together, of which k places are scored."""

    ids: Int[Tensor, " L"]
    types: Int[Tensor, " L"]
    places: Int[Tensor, " k"]
    hidden: Bool[Tensor, " L"]  # further places, which every mask hides
    text: int  # its number, for messages
    key: str  # what its random orders follow from


@dataclass(frozen=True, eq=False)
class Rows:
    """B rows of L tokens with k places each.

    Args:
        ids: token ids, (B, L).
        types: of the tokens, (B, L).
        places: the places that are scored, (B, k).
        hidden: further places, which every mask hides, (B, L).
        text: the number of each row's text, for messages, (B,).
        keys: what the random orders of each row follow from.
    """

    ids: Int[Tensor, "B L"]
    types: Int[Tensor, "B L"]
    places: Int[Tensor, "B k"]
    hidden: Bool[Tensor, "B L"]
    text: Int[Tensor, " B"]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Rows":
        """Rows of one length and as many places each."""
        return cls(
            ids=torch.stack([row.ids for row in rows]),
            types=torch.stack([row.types for row in rows]),
            places=torch.stack([row.places for row in rows]),
            hidden=torch.stack([row.hidden for row in rows]),
            text=torch.tensor([row.text for row in rows]),
            keys=tuple(row.key for row in rows),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_places(self) -> int:
        """k."""
        return self.places.shape[1]

    def generators(self) -> list[torch.Generator]:
        """Of each row the source of its random orders."""
        return [stream(key) for key in self.keys]


def stream(key: str) -> torch.Generator:
    """The source of random numbers that belongs to a key: of a seed, and of what is scored.

    >>> first = torch.rand(1, generator=stream("0 [2, 5, 3]"))
    >>> bool(first == torch.rand(1, generator=stream("0 [2, 6, 3]")))
    False
    """
    digest = hashlib.sha256(key.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


def seed_key(seed: int, ids: Int[Tensor, " L"]) -> str:
    """What the random orders of a row follow from where items were not named.

    Args:
        seed: of the call, and of the block.
        ids: of the row, (L,).
    """
    return f"{seed} {ids.tolist()}"


def seed_key_of_item(seed: int, item: Hashable, sizes: Sequence[int]) -> str:
    """What the random orders of a text follow from where items were named.

    Texts of one item see the same orders in all of their rows, or in none: a sum over rows is then
    known along each order, or independent of that of another text.

    Args:
        seed: of the call.
        item: of the text.
        sizes: tokens to score in each of its rows, which are its windows, or blocks of these.
    """
    return f"{seed} item {item} of {list(sizes)} tokens"


def first_equal(labels: Sequence[Hashable]) -> list[int]:
    """For each label the place of the first one that is equal."""
    first: dict[Hashable, int] = {}
    for place, label in enumerate(labels):
        first.setdefault(label, place)
    return [first[label] for label in labels]
