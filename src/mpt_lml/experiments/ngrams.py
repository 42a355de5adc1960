"""N-gram models: proper likelihoods to set beside a masked network's area."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

Table = tuple[Tensor, Tensor]


class KneserNey:
    """Interpolated n-grams with one discount an order (Kneser and Ney 1995; Chen and Goodman 1999).

    A word's count in a context of n − 1 words less d, plus what the discounts have saved times its
    probability in the context of n − 2; below the longest n, counts are numbers of different words
    in front. d = n₁/(n₁ + 2n₂) from how many counts are one and two; the shortest context mixes
    with the uniform distribution. Each text begins with n − 1 start symbols and has no end: the
    probabilities of all texts of D words add up to one for each D, as a masked model's do.

    >>> model = KneserNey([torch.tensor([0, 1, 0, 1, 0])], 2, order=2)
    >>> rows = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> model.log_probability(rows).sum(dim=1).exp().sum()
    tensor(1..., dtype=torch.float64)
    """

    def __init__(self, texts: Sequence[Int[Tensor, " _"]], vocab_size: int, order: int = 3) -> None:
        self.vocab_size, self.order = vocab_size, order
        self.levels: list[tuple[Table, Table, Table, float]] = []
        base = vocab_size + 1  # the last symbol is the start
        keys = torch.cat([self._keys(text[None])[0, :, -1] for text in texts])
        for length in range(order, 0, -1):
            grams, counts = keys.unique(return_counts=True)
            contexts, where = (grams // base).unique(return_inverse=True)
            totals = torch.zeros_like(contexts).index_add(0, where, counts)
            types = where.bincount()
            one, two = ((counts == n).sum().item() for n in (1, 2))
            discount = one / (one + 2 * two) if one else 0.0
            self.levels.insert(
                0, ((grams, counts), (contexts, totals), (contexts, types), discount)
            )
            keys = grams % base ** (length - 1)  # each gram counts once for what it ends with

    def log_probability(self, rows: Int[Tensor, "N L"]) -> Float[Tensor, "N L"]:
        """log p of each word given those before it, nats."""
        found = torch.full(rows.shape, 1.0 / self.vocab_size, dtype=torch.float64)
        for keys, (grams, totals, types, discount) in zip(
            self._keys(rows).unbind(-1), self.levels, strict=True
        ):
            context = keys // (self.vocab_size + 1)
            total = _look_up(totals, context)
            kept = (_look_up(grams, keys) - discount).clamp_min(0)
            mixed = (kept + discount * _look_up(types, context) * found) / total
            found = torch.where(total > 0, mixed, found)
        return found.log()

    def _keys(self, rows: Int[Tensor, "N L"]) -> Int[Tensor, "N L n"]:
        """The 1- to n-gram that ends at each word, as one number."""
        base, padded = self.vocab_size + 1, rows.new_full((len(rows), self.order - 1), 0)
        padded = torch.cat([padded + self.vocab_size, rows], dim=1)
        words = padded.unfold(1, self.order, 1).flip(-1)  # the last first
        return (words * base ** torch.arange(self.order)).cumsum(dim=-1)


def _look_up(table: Table, keys: Tensor) -> Tensor:
    """Values of a sorted table, float64; 0 for a key that is not there."""
    known, values = table
    at = torch.searchsorted(known, keys.contiguous()).clamp(max=len(known) - 1)
    return torch.where(known[at] == keys, values[at], 0).double()
