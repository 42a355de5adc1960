"""Which masks a text gets: exact sizes at some rates or in strata, each drawn on its own."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mpt_lml.checks import Count, Rate, Within, checked
from mpt_lml.masks import from_ranks
from mpt_score.tokens import Tokens

PERCENTS = tuple(percent / 100 for percent in range(1, 100))
"""The rates 1, 2, ..., 99 % of the paper's Section 3.2."""
_ROUNDING = 1e-9  # 0.07 * 100 is 7.000000000000001 in floating point and has to give 7
_MOST_TEXTS = 1_000_003
"""Generators of one seed, a prime above a million: as many texts have one of their own."""
StreamSeed = Annotated[int, Within(0, 9 * 10**12)]
"""Times :data:`_MOST_TEXTS` it is still below 2⁶³, which torch's seeds are."""
TextNumber = Annotated[int, Within(0, 2**32)]


@checked
@dataclass(frozen=True)
class Design:
    """Which masks each text gets, all drawn on their own.

    A text's masks follow from ``seed`` and its number, not from batches.

    Args:
        rates: M = ⌈rate · D⌉ of a text's D tokens.
        strata: stands instead of them for an unbiased area: the sizes 1..D are cut into so many, and
            each mask takes a random size from its own.
        num_masks: for each rate or stratum.
        seed: of the masks.

    Raises:
        ValueError: for rates that do not increase within (0, 1], and for counts below one.

    >>> Design(strata=4).columns
    (0.125, 0.375, 0.625, 0.875)
    """

    rates: tuple[Rate, ...] = PERCENTS
    strata: Count | None = None
    num_masks: Count = 1
    seed: StreamSeed = 4

    def __post_init__(self) -> None:
        if not isinstance(self.rates, tuple):
            raise TypeError(f"rates must be of type tuple, got {self.rates!r}.")
        if not self.rates or list(self.rates) != sorted(set(self.rates)):
            raise ValueError(f"rates must increase, as (0.15, 0.5), got {self.rates}.")

    @property
    def columns(self) -> tuple[float, ...]:
        """The rates, or the centers of the strata, R of them."""
        if self.strata is None:
            return self.rates
        return tuple((k + 0.5) / self.strata for k in range(self.strata))

    @property
    def has_area(self) -> bool:
        """Whether the mean over the columns is an area, and not, as at 15 % alone, a height.

        It is for strata, and for three or more rates a step apart, with half a step to a step left
        at either end, and as much: both up to a hundredth.
        """
        if self.strata is not None:
            return True
        if len(self.rates) < 3:
            return False
        rates = torch.tensor(self.rates, dtype=torch.float64)
        steps = rates.diff()
        step = steps.mean().item()
        is_even = bool((steps - step).abs().max() < _ROUNDING)
        low = self.rates[0]
        high = 1.0 - self.rates[-1]
        begins_well = step / 2 - 0.01 - _ROUNDING <= low <= step + _ROUNDING
        ends_as_it_begins = abs(low - high) <= 0.01 + _ROUNDING
        return is_even and begins_well and ends_as_it_begins

    def require_area(self) -> None:
        """Raise ``ValueError`` where the rates have no area."""
        if not self.has_area:
            raise ValueError(
                f"the mean over the rates {self.rates} is no area: take rates as 0.05, 0.15, ..., "
                "0.95, or strata."
            )

    @checked
    def generator(self, number: TextNumber) -> torch.Generator:
        """The source of randomness of one text's masks.

        Args:
            number: of the text, from 0.
        """
        # By number, and not by tokens as elsewhere: the recorded curves rest on these draws.
        return torch.Generator().manual_seed(self.seed * _MOST_TEXTS + number)

    @checked
    def masks(self, row: Tokens, number: TextNumber) -> Bool[Tensor, "P L"]:
        """The masks of one text, for each repeat all columns, and last the one of everything.

        Args:
            row: its tokens, one row of L.
            number: of the text, from 0.

        Returns:
            Masks (P, L), P = ``num_masks`` · R + 1; True means masked.
        """
        if len(row) != 1:
            raise ValueError(f"row must be one text, got {len(row)}.")
        generator = self.generator(number)
        num_features = int(row.num_features)
        repeated = torch.zeros(self.num_masks * len(self.columns), dtype=torch.int64)
        ranks = row.rows(repeated).sample_ranks(generator=generator)
        if self.strata is None:
            sizes = self._sizes_of_rates(num_features)
        else:
            sizes = self._sizes_in_strata(num_features, self.strata, generator)
        sizes = sizes.expand(self.num_masks, -1).flatten()
        return torch.cat([from_ranks(ranks, sizes), row.maskable])

    def _sizes_of_rates(self, num_features: int) -> Int[Tensor, " R"]:
        rates = torch.tensor(self.rates, dtype=torch.float64)
        return (rates * num_features - _ROUNDING).ceil().long()

    def _sizes_in_strata(
        self, num_features: int, num_strata: int, generator: torch.Generator
    ) -> Int[Tensor, "K R"]:
        """A random size of each stratum, for each repeat."""
        jitter = torch.rand(self.num_masks, num_strata, generator=generator)
        edges = torch.arange(num_strata + 1, dtype=torch.float64) / num_strata
        level = edges[:-1] + edges.diff() * jitter
        return ((level * num_features).long() + 1).clamp(max=num_features)
