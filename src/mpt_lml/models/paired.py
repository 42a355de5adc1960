"""Any network that fills in masks, as a model of conditionals (floor 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.models.base import ConditionalModel
from mpt_lml.shapes import require_count, require_mask


@final
class PairedConditionals(ConditionalModel):
    """The conditionals of a function that answers one mask a datum.

    Parameters
    ----------
    log_values : callable
        (x, mask), both (B, D) -> log q(x_j = v | x_R) for every value v, nats, (B, D, V). It must
        not read x where ``mask`` is True.
    num_features : int
        D.
    rows : int
        Pairs of a datum and a mask that are asked for at a time: what fits a cache.
    """

    def __init__(
        self, log_values: Callable[[Tensor, Tensor], Tensor], num_features: int, rows: int = 512
    ) -> None:
        require_count("num_features", num_features, 1)
        require_count("rows", rows, 1)
        self.log_values = log_values
        self.rows = rows
        self._num_features = num_features

    @property
    def num_features(self) -> int:
        """D."""
        return self._num_features

    def log_conditional(
        self, x: Int[Tensor, "N D"], mask: Bool[Tensor, "P D"]
    ) -> Float[Tensor, "P N D"]:
        """log q(x_j | x_R) of every mask and datum, nats, (P, N, D); 0 where ``mask`` is False."""
        require_mask(mask, self.num_features)
        if x.ndim != 2 or len(x) == 0 or x.shape[1] != self.num_features:
            raise ValueError(
                f"x must have shape (N, {self.num_features}) with N >= 1, got {tuple(x.shape)}."
            )
        pairs = zip(
            x.repeat(len(mask), 1).split(self.rows),
            mask.repeat_interleave(len(x), dim=0).split(self.rows),
            strict=True,
        )
        parts = [
            self.log_values(data, hidden).gather(2, data[..., None])[..., 0].masked_fill(~hidden, 0)
            for data, hidden in pairs
        ]
        return torch.cat(parts).view(len(mask), *x.shape)
