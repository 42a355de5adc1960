"""Some k places A of a row given the rest: log q(x_A | x_R), averaged over the orders of A."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from mpt_lml import masks
from mpt_lml.data import Tokens
from mpt_lml.score.door import Keep, Part, Progress, Scorer
from mpt_lml.scores import over_orders

PART_TOKENS = 2**18
"""Tokens that go through the model for a part of a long run, which is kept."""


@dataclass(frozen=True)
class Blocks:
    """All k! orders where these take fewer masks than the S that are drawn otherwise."""

    scorer: Scorer
    num_orders: int
    seed: int

    def num_masks(self, count: int) -> int:
        """Masks of k = ``count`` places: all 2^k − 1, or k along each order."""
        return min(2**count - 1, self.num_orders * count)

    def hidden(self, count: int, number: int) -> Bool[Tensor, "P k"]:
        """The masks of the block with this ``number``: along an order of all sizes 1..k."""
        if self.num_masks(count) == 2**count - 1:
            return masks.subsets(count)[1:]
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        ranks = masks.sample_ranks(self.num_orders, count, generator=generator)
        return masks.nested_masks(ranks).flatten(0, 1)

    def terms(
        self, rows: Tokens, places: Int[Tensor, "B k"], numbers: Int[Tensor, " B"]
    ) -> Float[Tensor, "B P k"]:
        """log q(x_j | x_R), nats: for each set of hidden places, or along each order."""
        count = places.shape[1]
        hidden = torch.stack([self.hidden(count, n) for n in numbers.tolist()])
        where = places[:, None].expand_as(hidden)
        mask = torch.zeros(*hidden.shape[:2], rows.ids.shape[1], dtype=torch.bool)
        mask.scatter_(2, where, hidden)
        each = torch.arange(len(mask)).repeat_interleave(mask.shape[1])
        wanted = (rows.ids[each], mask.flatten(0, 1), rows.types[each])
        found = self.scorer.log_tokens(*wanted, numbers=numbers[each])
        values = found.view(mask.shape).gather(2, where)
        if hidden.shape[1] == 2**count - 1:
            return values
        steps = hidden.unflatten(1, (-1, count))
        shown_next = steps & ~pad(steps[:, :, :-1], (0, 0, 1, 0))
        return (values.view(steps.shape) * shown_next).sum(dim=2)

    def totals(
        self, terms: Float[Tensor, "B P k"]
    ) -> tuple[Float[Tensor, "B S"], Float[Tensor, " B"]]:
        """S values of Σ_j log q whose mean is that over orders, and the standard deviation.

        When a set of M places hides, a random order is there and shows j next with probability
        (M − 1)! (k − M)! / k!: all sets have all orders, and the S values are the same.
        """
        count = terms.shape[2]
        if terms.shape[1] == 2**count - 1:
            mean, variance, *_ = over_orders(terms.transpose(0, 1), masks.subsets(count))
            return mean[:, None].repeat(1, self.num_orders), variance.sqrt()
        totals = terms.sum(dim=2)
        return totals, totals.std(dim=1)


def in_parts(
    work: Callable[[Tensor], Part],
    rows: Int[Tensor, " N"],
    kinds: Int[Tensor, "N C"],
    cost: Int[Tensor, " N"],
    keep: Keep,
    progress: Progress,
) -> dict[str, Tensor]:
    """What ``work`` says of ``rows``; neighbors of one kind go together, up to a cost in tokens."""
    runs = torch.cat([kinds, (cost.cumsum(0) - cost)[:, None] // PART_TOKENS], dim=1)
    sizes = runs.unique_consecutive(dim=0, return_counts=True)[1].tolist()
    parts = [
        keep(f"part-{index:05d}", partial(work, chosen))
        for index, chosen in progress(list(enumerate(rows.split(sizes))), "parts")
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in (parts or [{}])[0]}
