"""Some k places A of a row given the rest: log q(x_A | x_R) along the orders of A."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml import masks
from mpt_lml.scores import over_orders
from mpt_score.estimate import over_steps
from mpt_score.keep import Part, Run, named, parts_of
from mpt_score.scorer import Scorer
from mpt_score.tokens import Tokens

PART_TOKENS = 2**18
"""Tokens that go through the model for a part of a long run, which is kept."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """All k! orders where these take fewer masks than S = ``num_orders`` drawn ones.

    With ``num_orders`` 0 there is no order: each place hides alone, as in a pseudo-likelihood.
    """

    scorer: Scorer
    num_orders: int
    seed: int

    def num_masks(self, count: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
        """Masks of k = ``count`` places: all 2^k − 1, or k along each order."""
        drawn = max(1, self.num_orders) * count
        return drawn if not self.num_orders else drawn.minimum(2 ** count.clamp(max=62) - 1)

    def hidden(self, count: int, number: int) -> Bool[Tensor, "P k"]:
        """The masks of the block with this ``number``: along an order of all sizes 1..k."""
        if self.num_orders == 0:
            return torch.eye(count).bool()
        if 2**count - 1 <= self.num_orders * count:
            return masks.subsets(count)[1:]
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        ranks = masks.sample_ranks(self.num_orders, count, generator=generator)
        return masks.nested_masks(ranks).flatten(0, 1)

    def __call__(
        self,
        texts: Sequence[Tokens],
        places: Bool[Tensor, "N L"],
        numbers: Int[Tensor, " N"],
        run: Run,
    ) -> tuple[Float[Tensor, "N S"], Float[Tensor, " N"]]:
        """S values of log q whose mean is that over orders, and the standard deviation over orders.

        Of two ``texts``, which are then rows of one length, the difference along common orders. Rows
        go in an order that does not depend on how they came; 0 where there is no place.
        """
        count, lengths = places.sum(dim=1), texts[0].lengths
        keys = [lengths.tolist(), count.tolist(), numbers.tolist(), texts[0].ids.tolist()]
        every = sorted(zip(*keys, range(len(count)), strict=True))
        order = torch.tensor([row for _, k, *_, row in every if k], dtype=torch.int64)
        cost = (len(texts) * self.num_masks(count) * lengths)[order]
        spent = (cost.cumsum(0) - cost) // PART_TOKENS
        kinds = torch.stack([lengths[order], count[order], spent], dim=1)
        parts = order.split(kinds.unique_consecutive(dim=0, return_counts=True)[1].tolist())
        totals = torch.zeros(len(count), max(1, self.num_orders), dtype=torch.float64)
        spread = torch.zeros(len(count), dtype=torch.float64)
        name = "orders" if self.num_orders else "pseudo"
        at, own = {"places": places, "numbers": numbers}, (self.num_orders, self.seed)
        works = (partial(self._part, texts, places, numbers, rows) for rows in parts)
        work = named(name, own, texts, works, **at)
        answers = parts_of(run, name, work, "totals", "spread")
        for rows, found in zip(parts, answers, strict=True):
            totals[rows], spread[rows] = found["totals"], found["spread"]
        return totals, spread

    def _part(
        self, texts: Sequence[Tokens], places: Tensor, numbers: Tensor, rows: Int[Tensor, " B"]
    ) -> Part:
        """Each text in a call of its own: exchanging two then turns signs and nothing else."""
        texts, numbers = [text.rows(rows) for text in texts], numbers[rows]
        at = places[rows].nonzero()[:, 1].view(len(rows), -1)
        count = at.shape[1]
        hidden = torch.stack([self.hidden(count, number) for number in numbers.tolist()])
        where = at[:, None].expand_as(hidden)
        mask = torch.zeros(*hidden.shape[:2], texts[0].ids.shape[1], dtype=torch.bool)
        mask.scatter_(2, where, hidden)
        each = torch.arange(len(mask)).repeat_interleave(mask.shape[1])
        ask = partial(self.scorer.log_tokens, mask=mask.flatten(0, 1), numbers=numbers[each])
        found = [ask(text.ids[each], types=text.types[each]) for text in texts]
        values = (found[0] - found[1] if len(found) == 2 else found[0]).view(mask.shape)
        totals, spread = self._totals(values.gather(2, where), hidden)
        return {"totals": totals, "spread": spread}

    def _totals(self, values: Float[Tensor, "B P k"], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """When a set of M places hides, a random order is there and shows j next with probability
        (M − 1)! (k − M)! / k!: all sets have all orders, and the S values are the same."""
        count = values.shape[2]
        if self.num_orders == 0:
            return values.sum(dim=(1, 2))[:, None], values.new_zeros(len(values))
        if hidden.shape[1] == 2**count - 1:
            mean, variance, *_ = over_orders(values.transpose(0, 1), masks.subsets(count))
            return mean[:, None].repeat(1, self.num_orders), variance.sqrt()
        totals = over_steps(values, hidden)
        return totals, totals.std(dim=1)
