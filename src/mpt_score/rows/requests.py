"""Rows of tokens, which of their places are hidden, and of which of these log q is wanted."""

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mpt_lml.masks import sample_ranks, subsets

MOST_TOKENS_EXACT = 16
"""The largest D of which all 2^D − 1 masks may be asked for."""
ORDERS_OF_QUARTET = 4
"""The number of orders that :func:`quartets` makes of one."""


class Row(NamedTuple):
    """L tokens that go through the model together, of which k places are scored."""

    ids: Int[Tensor, " L"]
    types: Int[Tensor, " L"]
    places: Int[Tensor, " k"]
    hidden: Bool[Tensor, " L"]  # further places, which every mask hides
    text: int  # its number, for messages
    key: str  # what its random orders follow from


@dataclass(frozen=True, eq=False)
class Rows:
    """B rows of L tokens with k places each, in the columns of :class:`Row`."""

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


def first_equal(labels: Sequence[Hashable]) -> list[int]:
    """For each label the place of the first one that is equal."""
    first: dict[Hashable, int] = {}
    for place, label in enumerate(labels):
        first.setdefault(label, place)
    return [first[label] for label in labels]


class Request(NamedTuple):
    """What is asked of each of B rows, of which k places are scored."""

    hidden: Bool[Tensor, "B P k"]
    wanted: Bool[Tensor, "B P k"]  # of the hidden places, those whose log q is read

    @classmethod
    def joined(cls, requests: Sequence["Request"]) -> "Request":
        """The masks of several requests about the same rows, one request behind the other."""
        hidden = torch.cat([request.hidden for request in requests], dim=1)
        wanted = torch.cat([request.wanted for request in requests], dim=1)
        return cls(hidden, wanted)

    def first(self, num_masks: int) -> "Request":
        """The first masks of each row."""
        return Request(self.hidden[:, :num_masks], self.wanted[:, :num_masks])


def pays_every_mask(num_masks: int, count: int) -> bool:
    """Whether all 2^D − 1 masks of D = ``count`` tokens are at most ``num_masks``."""
    return count <= MOST_TOKENS_EXACT and 2**count - 1 <= num_masks


def every_mask(rows: Rows) -> Request:
    """All 2^D − 1 sets of hidden tokens, and what they say of each of these."""
    hidden = subsets(rows.num_places)[1:].expand(len(rows), -1, -1)
    return Request(hidden, hidden)


def each_alone(rows: Rows) -> Request:
    """Each of the k places hidden alone, as for a pseudo-log-likelihood."""
    single = torch.eye(rows.num_places, dtype=torch.bool).expand(len(rows), -1, -1)
    return Request(single, single)


def masks_along_orders(
    num_orders: int, count: int, generators: list[torch.Generator], *, in_quartets: bool = False
) -> Request:
    """Along each random order its D masks, of sizes 1..D, (B, S D, D); wanted is what is shown next.

    In :func:`quartets` the masks of three more orders follow those of each, (B, 4 S D, D).
    """
    drawn = [sample_ranks(num_orders, count, generator=generator) for generator in generators]
    ranks = torch.stack(drawn)
    if in_quartets:
        ranks = quartets(ranks).flatten(1, 2)
    ranks = ranks[:, :, None]
    size = torch.arange(1, count + 1)[:, None]
    return Request((ranks < size).flatten(1, 2), (ranks == size - 1).flatten(1, 2))


def quartets(ranks: Int[Tensor, "B S D"]) -> Int[Tensor, "B S 4 D"]:
    """Each order with its halves exchanged as well, and both reversed.

    Each of the four is uniform if the first one is, so that a mean over quartets is unbiased for that
    over all orders. Either of two places is shown before the other in two of the four. So what depends
    on it, as the interaction of two words does, is in every quartet, and not by luck. And one place is
    shown once in each quarter of the order, as near as D allows: contexts of all sizes are there.

    Args:
        ranks: the place of each token in each order, counted from its end, from 0.
    """
    count = ranks.shape[-1]
    exchanged = (ranks + count // 2) % count
    both = torch.stack([ranks, exchanged], dim=2)
    return torch.cat([both, count - 1 - both], dim=2)


def orders_of_places(rows: Rows, num_orders: int, *, in_quartets: bool = False) -> Request:
    """All masks of k places where these are not more than along S orders, else those of S orders.

    With ``in_quartets`` each of the S is the first of four orders.
    """
    if takes_every_order(rows, num_orders, in_quartets=in_quartets):
        return every_mask(rows)
    generators = rows.generators()
    return masks_along_orders(num_orders, rows.num_places, generators, in_quartets=in_quartets)


def takes_every_order(rows: Rows, num_orders: int, *, in_quartets: bool = False) -> bool:
    """Whether :func:`orders_of_places` has all k! orders."""
    if in_quartets:
        num_orders *= ORDERS_OF_QUARTET
    return pays_every_mask(num_orders * rows.num_places, rows.num_places)


def num_masks_of_orders(num_orders: int, count: int) -> int:
    """How many masks :func:`orders_of_places` has of k = ``count`` places."""
    num_masks = num_orders * count
    return 2**count - 1 if pays_every_mask(num_masks, count) else num_masks


def masks_in_strata(
    repeats: int, num_strata: int, count: int, generators: list[torch.Generator]
) -> Bool[Tensor, "B P D"]:
    """For each repeat one mask a stratum; the strata cut the sizes 1..D − 1."""
    masks = []
    for generator in generators:
        jitter = torch.rand(repeats, num_strata, generator=generator, dtype=torch.float64)
        level = (torch.arange(num_strata) + jitter) / num_strata
        sizes = ((level * (count - 1)).long() + 1).clamp(max=count - 1)
        ranks = sample_ranks(repeats * num_strata, count, generator=generator)
        masks.append(ranks < sizes.flatten()[:, None])
    return torch.stack(masks)


def orders_differ(hidden: Bool[Tensor, "B P D"]) -> Bool[Tensor, " B"]:
    """Whether a row has two orders that are not the same: else nothing is known of their spread.

    Of three tokens, two orders are the same one time in six.

    Args:
        hidden: of each order its masks of sizes 1..D, P = S D.
    """
    of_orders = hidden.unflatten(1, (-1, hidden.shape[2]))
    return (of_orders != of_orders[:, :1]).flatten(1).any(dim=1)
