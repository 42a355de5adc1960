"""An explicit joint probability table: the smallest model that knows everything (floor 2)."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.models.base import TractableModel
from mpt_lml.shapes import require_boolean_rows, require_count, require_generator, require_mask


@final
class JointTable(TractableModel):
    """A distribution over D discrete coordinates given as its full table.

    Parameters
    ----------
    probabilities : Tensor (V_1, ..., V_D)
        Positive entries that sum to 1; axis j has one entry per value of coordinate j.

    Raises
    ------
    ValueError
        For entries that are not positive and finite, or a sum that is not 1 within 1e-9.
    """

    def __init__(self, probabilities: Float[Tensor, "..."]) -> None:
        if probabilities.ndim == 0 or not probabilities.is_floating_point():
            raise TypeError(
                "probabilities must be a floating-point tensor with one axis a coordinate, got "
                f"{probabilities.dtype} of shape {tuple(probabilities.shape)}."
            )
        if not (torch.isfinite(probabilities) & (probabilities > 0)).all():
            raise ValueError(
                f"probabilities must be positive and finite, the smallest is {probabilities.min()}."
            )
        total = probabilities.sum().item()
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"probabilities must sum to 1, got {total}. Divide by their sum.")
        self.log_table = probabilities.to(torch.float64).log()

    @classmethod
    def random(cls, sizes: tuple[int, ...], *, generator: torch.Generator) -> JointTable:
        """A table drawn uniformly from the simplex; ``sizes`` = (V_1, ..., V_D)."""
        require_generator(generator)
        weights = torch.empty(*sizes, dtype=torch.float64).exponential_(generator=generator)
        return cls(weights / weights.sum())

    @property
    def num_features(self) -> int:
        """D."""
        return self.log_table.ndim

    def log_marginal(self, x: Int[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """log p(x), nats, shape (N,): a look-up."""
        self._require_values(x)
        return self.log_table[tuple(x.T)]

    def log_subset_marginal(
        self, x: Int[Tensor, "N D"], observed: Bool[Tensor, "P D"]
    ) -> Float[Tensor, "P N"]:
        """log p(x_R) for every row R of ``observed`` (True = in R), nats, (P, N)."""
        require_boolean_rows("observed", observed, self.num_features)
        return self._subset_table(x).T[_row_number(observed)]

    def log_conditional(
        self, x: Int[Tensor, "N D"], mask: Bool[Tensor, "P D"]
    ) -> Float[Tensor, "P N D"]:
        """log p(x_j | x_R) for every masked j, nats, (P, N, D); 0 where ``mask`` is False."""
        require_mask(mask, self.num_features)
        return _conditionals(self._subset_table(x), mask).transpose(0, 1)

    def mean_log_conditional(
        self, x: Int[Tensor, "N D"], mask: Bool[Tensor, "P D"]
    ) -> Float[Tensor, "P D"]:
        """:meth:`log_conditional` averaged over the data, (P, D)."""
        require_mask(mask, self.num_features)
        return _conditionals(self._subset_table(x).mean(dim=0), mask)

    def sample(self, n: int, *, generator: torch.Generator) -> Int[Tensor, "N D"]:
        """``n`` draws, shape (n, D) int64."""
        require_count("n", n, 1)
        require_generator(generator)
        weights = self.log_table.exp().flatten()
        cells = torch.multinomial(weights, n, replacement=True, generator=generator)
        return torch.stack(torch.unravel_index(cells, self.log_table.shape), dim=1)

    def _subset_table(self, x: Int[Tensor, "N D"]) -> Float[Tensor, "N subsets"]:
        """log p(x_R) for all 2^D sets R, (N, 2^D); bit j of the index says whether j is in R.

        One pass over the coordinates: each either sums its axis out or looks its value up, so every
        marginal is computed once from a larger one.
        """
        self._require_values(x)
        rows = torch.arange(len(x))
        table = self.log_table.view(1, 1, -1)  # (N or 1, subsets so far, coordinates to come)
        for values, size in zip(x.T, self.log_table.shape, strict=True):
            table = table.view(len(table), table.shape[1], size, -1)
            picked = table.expand(len(x), -1, -1, -1)[rows, :, values]
            table = torch.cat([table.logsumexp(dim=2).expand_as(picked), picked], dim=1)
        table = table.squeeze(2)
        table[:, 0] = 0.0  # the empty set has probability 1, to the last bit
        return table

    def _require_values(self, x: Tensor) -> None:
        if not isinstance(x, Tensor) or x.dtype != torch.int64:
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"x must be an int64 tensor of shape (N, D), got {got}.")
        if x.ndim != 2 or x.shape[0] == 0 or x.shape[1] != self.num_features:
            raise ValueError(
                f"x must have shape (N, {self.num_features}) with N >= 1, got {tuple(x.shape)}."
            )
        sizes = torch.tensor(self.log_table.shape)
        bad = ((x < 0) | (x >= sizes)).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            raise ValueError(
                f"x[{row}, {column}] is {x[row, column].item()}, but coordinate {column} takes "
                f"values 0..{sizes[column].item() - 1}."
            )


def _row_number(observed: Bool[Tensor, "P D"]) -> Int[Tensor, " P"]:
    return (observed.long() << torch.arange(observed.shape[1])).sum(dim=1)


def _conditionals(table: Tensor, mask: Bool[Tensor, "P D"]) -> Tensor:
    """log p(x_{R+j}) − log p(x_R) from a table over all subsets, (..., P, D)."""
    given = _row_number(~mask)
    larger = given[:, None] + (mask.long() << torch.arange(mask.shape[1]))
    return table[..., larger] - table[..., given][..., None]
