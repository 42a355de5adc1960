"""Conditionals that need not come from one joint distribution, as an explicit table (floor 2)."""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.models.base import ConditionalModel, TractableModel
from mpt_lml.shapes import require_count, require_finite, require_generator, require_mask

MAX_POINTS = 4096
"""Most points V^D that a table may have."""


@final
class ConditionalTable(ConditionalModel):
    """Any family q(x_j | x_R) of D coordinates with values 0..V−1: what a masked network may say.

    Every conditional is a distribution of its own. Nothing makes them fit together, so they have no
    joint, no marginals and no ``sample`` of their own.

    Parameters
    ----------
    logits : Tensor (2^D, V^D, D, V)
        Unnormalized log-probabilities. The first axis is the mask, numbered as the rows of
        :func:`mpt_lml.masks.subsets`; the second is x, numbered as a mixed-radix number with the
        last coordinate fastest. An entry is read only where the masked coordinates of x are 0, so
        that a conditional cannot depend on what it does not see.

    Raises
    ------
    TypeError, ValueError
        For anything but a finite floating-point tensor of such a shape.
    """

    def __init__(self, logits: Float[Tensor, "..."]) -> None:
        if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.ndim != 4:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise TypeError(
                f"logits must be a floating-point tensor of shape (2^D, V^D, D, V), got {got}."
            )
        num_features, num_values = logits.shape[2:]
        _require_small(num_features, num_values)
        expected = (2**num_features, num_values**num_features)
        if tuple(logits.shape[:2]) != expected:
            raise ValueError(
                f"logits for D = {num_features} coordinates with V = {num_values} values must have "
                f"shape {(*expected, num_features, num_values)}, got {tuple(logits.shape)}."
            )
        require_finite("logits", logits)
        self.log_table = logits.to(torch.float64).log_softmax(dim=-1)

    @classmethod
    def of(
        cls,
        model: TractableModel,
        num_values: int,
        *,
        noise: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> ConditionalTable:
        """The conditionals of ``model``, each logit moved by ``noise`` times a standard normal.

        ``noise=0`` keeps them consistent; otherwise pass ``generator=``.
        """
        num_features = model.num_features
        _require_small(num_features, num_values)
        if not (math.isfinite(noise) and noise >= 0.0):
            raise ValueError(f"noise must be finite and not negative, got {noise}.")
        x = points(num_features, num_values)
        logits = torch.zeros(2**num_features, len(x), num_features, num_values, dtype=torch.float64)
        bits = 1 << torch.arange(num_features)
        for row in range(1, 2**num_features):
            mask = (row & bits) > 0
            for value in range(num_values):
                filled = torch.where(mask, value, x)
                logits[row, :, :, value] = model.log_conditional(filled, mask[None])[0]
        if noise:
            require_generator(generator)
            logits += noise * torch.randn(logits.shape, generator=generator, dtype=logits.dtype)
        return cls(logits)

    @property
    def num_features(self) -> int:
        """D."""
        return self.log_table.shape[2]

    @property
    def num_values(self) -> int:
        """V."""
        return self.log_table.shape[3]

    def log_conditional(
        self, x: Int[Tensor, "N D"], mask: Bool[Tensor, "P D"]
    ) -> Float[Tensor, "P N D"]:
        """log q(x_j | x_R) for every masked j, nats, (P, N, D); 0 where ``mask`` is False."""
        self._require_values(x)
        require_mask(mask, self.num_features)
        values = self._look_up(x[None], mask[:, None])
        picked = values.gather(-1, x.expand(len(mask), -1, -1)[..., None])[..., 0]
        return picked.masked_fill(~mask[:, None], 0.0)

    def log_values(
        self, x: Int[Tensor, "N D"], mask: Bool[Tensor, "N D"]
    ) -> Float[Tensor, "N D V"]:
        """log q(x_j = v | x_R) for every value v, one mask a datum, nats, (N, D, V).

        What stands in ``x`` at masked coordinates is not read. Meaningless where ``mask`` is False.
        """
        self._require_values(x)
        require_mask(mask, self.num_features)
        if len(mask) != len(x):
            raise ValueError(f"mask must have one row a datum, {len(x)} rows, got {len(mask)}.")
        return self._look_up(x, mask)

    def _look_up(self, x: Tensor, mask: Tensor) -> Tensor:
        exponent = torch.arange(self.num_features - 1, -1, -1)
        point = (x.masked_fill(mask, 0) * self.num_values**exponent).sum(dim=-1)
        row = (mask.long() << torch.arange(self.num_features)).sum(dim=-1)
        return self.log_table[row, point]

    def _require_values(self, x: Tensor) -> None:
        if not isinstance(x, Tensor) or x.dtype != torch.int64:
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"x must be an int64 tensor of shape (N, D), got {got}.")
        if x.ndim != 2 or x.shape[0] == 0 or x.shape[1] != self.num_features:
            raise ValueError(
                f"x must have shape (N, {self.num_features}) with N >= 1, got {tuple(x.shape)}."
            )
        if x.min() < 0 or x.max() >= self.num_values:
            raise ValueError(
                f"x must take values 0..{self.num_values - 1}, got {x.min()}..{x.max()}."
            )


def points(num_features: int, num_values: int) -> Int[Tensor, "N D"]:
    """All V^D points, (V^D, D) int64, the last coordinate fastest."""
    _require_small(num_features, num_values)
    axes = [torch.arange(num_values)] * num_features
    return torch.cartesian_prod(*axes).view(-1, num_features)


def _require_small(num_features: int, num_values: int) -> None:
    require_count("num_features", num_features, 1)
    require_count("num_values", num_values, 1)
    if num_values**num_features > MAX_POINTS:
        raise ValueError(
            f"D = {num_features} coordinates with V = {num_values} values have "
            f"{float(num_values) ** num_features:.3g} points, more than the {MAX_POINTS} that are "
            "tabulated. Take fewer of either."
        )
