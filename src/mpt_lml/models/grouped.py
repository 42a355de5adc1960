"""Another model's coordinates taken in groups, such as the pixels of a patch (floor 2)."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.models.base import ConditionalModel, TractableModel
from mpt_lml.shapes import require_mask


@final
class Grouped(ConditionalModel):
    """Σ_{i in group j} log p(x_i | x_R) for every group j: hidden together, scored one by one.

    This is how a masked autoencoder treats the pixels of a patch. If the members of a group depend
    on each other given x_R, the area under the curve is smaller than log p(x) on average, by their
    total correlations (as in the paper's Equation 1); groups of one give back the model.

    Parameters
    ----------
    model : ConditionalModel
        With d coordinates.
    group : Tensor (d,) int64
        The group 0..D−1 of each coordinate, every one used.
    jointly : bool
        Score each group by its joint density log p(x_{R ∪ j}) − log p(x_R) instead, which takes a
        model with marginals. Then a group is a coordinate like any other.
    """

    def __init__(
        self, model: ConditionalModel, group: Int[Tensor, " d"], *, jointly: bool = False
    ) -> None:
        if jointly and not isinstance(model, TractableModel):
            raise TypeError(f"jointly=True needs marginals, which {type(model).__name__} lacks.")
        if group.shape != (model.num_features,):
            raise ValueError(
                f"group must name a group for each of {model.num_features} coordinates, got shape "
                f"{tuple(group.shape)}."
            )
        present = group.unique()
        if not torch.equal(present, torch.arange(len(present), device=group.device)):
            raise ValueError(
                f"groups must be numbered 0, 1, ... without a gap, got {present.tolist()}."
            )
        self.model = model
        self.group = group
        self.jointly = jointly
        self._count = len(present)

    @property
    def num_features(self) -> int:
        """D, the number of groups."""
        return self._count

    def log_conditional(self, x: Tensor, mask: Bool[Tensor, "P D"]) -> Float[Tensor, "P N D"]:
        """The score of each masked group, nats, (P, N, D); 0 where not masked."""
        if self.jointly:
            return torch.stack([self._joint(x, row) for row in mask])
        return self._sum(self.model.log_conditional(x, self._members(mask)))

    def mean_log_conditional(self, x: Tensor, mask: Bool[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """:meth:`log_conditional` averaged over the data, (P, D)."""
        if self.jointly:
            return self.log_conditional(x, mask).mean(dim=1)
        return self._sum(self.model.mean_log_conditional(x, self._members(mask)))

    def _joint(self, x: Tensor, mask: Bool[Tensor, " D"]) -> Float[Tensor, "N D"]:
        """log p(x_{R ∪ j}) − log p(x_R) for every j in one ``mask``."""
        assert isinstance(self.model, TractableModel)
        hidden = mask.nonzero().flatten()
        seen = ~self._members(mask[None])
        more = seen | (self.group == hidden[:, None])
        values = self.model.log_subset_marginal(x, torch.cat([seen, more]))
        result = values.new_zeros(values.shape[1], self.num_features)
        result[:, hidden] = (values[1:] - values[0]).T
        return result

    def _members(self, mask: Tensor) -> Tensor:
        require_mask(mask, self.num_features)
        return mask[:, self.group.to(mask.device)]

    def _sum(self, values: Tensor) -> Tensor:
        empty = values.new_zeros(*values.shape[:-1], self.num_features)
        return empty.index_add(-1, self.group.to(values.device), values)


def patch_groups(height: int, width: int, patch: int) -> Int[Tensor, " d"]:
    """The patch of every pixel of an image stored row by row, patches counted row by row, (H·W,)."""
    if height % patch or width % patch:
        raise ValueError(f"patches of side {patch} do not cover an image of {height} by {width}.")
    rows = torch.arange(height)[:, None] // patch
    columns = torch.arange(width)[None, :] // patch
    return (rows * (width // patch) + columns).flatten()
