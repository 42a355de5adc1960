"""Which masks a sentence gets: exact sizes at some rates or in strata, each drawn on its own."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from mpt_lml.masks import from_ranks
from mpt_lml.spec import require
from mpt_score.tokens import Tokens

SEED = f"seed 0..{9 * 10**12}"  # a million draws each are below 2⁶³


@dataclass(frozen=True)
class Design:
    """Which masks each sentence gets, all drawn on their own.

    ``rates`` are in percent: M = ⌈rD/100⌉ of a sentence's D tokens. ``strata`` stand instead of them
    for an unbiased area: the sizes 1..D are cut into so many, and each mask takes a random size from
    its own. ``num_masks`` for each rate or stratum; a sentence's masks follow from ``seed`` and its
    number, not from batches.

    Raises ``ValueError`` for rates that do not increase within 1..100, and for counts below one.

    >>> Design(strata=4).columns
    (12.5, 37.5, 62.5, 87.5)
    """

    rates: tuple[int, ...] = tuple(range(1, 100))
    strata: int | None = None
    num_masks: int = 1
    seed: int = 4

    def __post_init__(self) -> None:
        require(vars(self), "num_masks 1.., strata? 1.., rates tuple, rates* 1..100, " + SEED)
        if not self.rates or list(self.rates) != sorted(set(self.rates)):
            raise ValueError(f"rates must increase, in percent, got {self.rates}.")

    @property
    def columns(self) -> tuple[float, ...]:
        """The rates, or the centers of the strata, in percent."""
        if self.strata is None:
            return tuple(float(rate) for rate in self.rates)
        return tuple(100.0 * (k + 0.5) / self.strata for k in range(self.strata))

    @property
    def has_area(self) -> bool:
        """Whether the mean over the columns is an area, and not, as at 15 % alone, a height.

        It is for strata, and for three or more rates a step apart, with half a step to a step left
        at either end, and as much.
        """
        if self.strata is not None or len(self.rates) < 3:
            return self.strata is not None
        first, second, last = self.rates[0], self.rates[1], self.rates[-1]
        step = second - first
        even = self.rates == tuple(range(first, last + 1, step))
        return even and step / 2 - 1 <= first <= step and abs(first + last - 100) <= 1

    def require_area(self) -> None:
        """Raise ``ValueError`` where the rates have no area."""
        if not self.has_area:
            raise ValueError(f"the mean over {self.rates} % is no area: take rates as 5, ..., 95.")

    def generator(self, sentence: int) -> torch.Generator:
        """The source of randomness of one sentence."""
        require(locals(), f"sentence 0..{2**32}")
        return torch.Generator().manual_seed(self.seed * 1_000_003 + sentence)

    def masks(self, row: Tokens, sentence: int) -> Bool[Tensor, "P L"]:
        """The masks of one sentence, for each repeat all columns, and last the one of everything."""
        require(locals(), "row Tokens")
        if len(row) != 1:
            raise ValueError(f"row must be one sentence, got {len(row)}.")
        generator = self.generator(sentence)
        count = self.num_masks * len(self.columns)
        ranks = row.rows(torch.zeros(count).long()).sample_ranks(generator=generator)
        if self.strata is None:
            sizes = -(-torch.tensor(self.rates) * row.num_features // 100)
        else:
            jitter = torch.rand(self.num_masks, self.strata, generator=generator)
            edges = torch.arange(self.strata + 1, dtype=torch.float64) / self.strata
            level = edges[:-1] + edges.diff() * jitter
            sizes = ((level * row.num_features).long() + 1).clamp(max=row.num_features)
        sizes = sizes.expand(self.num_masks, -1).flatten()
        return torch.cat([from_ranks(ranks, sizes), row.maskable])
