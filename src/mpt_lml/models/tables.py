"""Discrete models given as full tables: a joint distribution, and conditionals that need not fit."""

import math
from collections.abc import Iterator, Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml import masks
from mpt_lml.checks import (
    Count,
    NonNegative,
    checked,
    require_generator,
    require_log_enumerable,
    rounded_to_single,
)
from mpt_lml.models.base import ConditionalModel, TractableModel, require_values
from mpt_lml.numerics import WORKING_BYTES, chunks, double, draw_categories, draw_normal

__all__ = ["ConditionalTable", "JointTable"]


@final
class JointTable(TractableModel):
    """A distribution over D discrete coordinates given as its full table.

    Answers are in double precision.

    Args:
        probabilities: (V_1, ..., V_D): axis j has one entry for each value of coordinate j. All are
            positive and sum to 1 within 1e-9, or in single precision as well as ``p / p.sum()`` does
            (5e-7 times the root of the number of entries).

    Raises:
        TypeError: for a tensor that is not floating point.
        ValueError: for entries that are not positive, or do not sum to 1, and for D > 18.

    >>> table = JointTable(torch.tensor([[0.4, 0.1], [0.2, 0.3]]))
    >>> table.log_marginal(torch.tensor([[1, 0]])).exp()  # nats before exp
    tensor([0.2000], dtype=torch.float64)
    """

    @checked
    def __init__(self, probabilities: Float[Tensor, "V ..."]) -> None:
        if not probabilities.numel() or (probabilities <= 0).any():
            least = min(probabilities.flatten().tolist(), default=None)
            raise ValueError(f"probabilities must be positive, the smallest is {least}.")
        total = double(probabilities).sum().item()
        # Each of V entries was rounded once, up or down: their sum is off by about √V roundings, as a
        # random walk is. Four times that is more than chance makes.
        rounding = 4 * torch.finfo(probabilities.dtype).eps * math.sqrt(probabilities.numel())
        error = abs(total - 1.0)
        if error > max(1e-9, rounding):
            hint = rounded_to_single(probabilities.dtype, error)
            raise ValueError(
                f"probabilities must sum to 1, got {total}. Divide by their sum.{hint}"
            )
        num_features = probabilities.ndim
        require_log_enumerable(
            f"the subsets of D = {num_features} coordinates",
            num_features * math.log(2.0),
            "a model that is no table, such as HMM",
        )
        self.log_table = double(probabilities).log()
        self.num_features = num_features
        if len(set(probabilities.shape)) == 1:
            self.num_values = probabilities.shape[0]

    @classmethod
    @checked
    def random(cls, sizes: Sequence[Count], *, generator: torch.Generator) -> "JointTable":
        """A table drawn uniformly from the simplex.

        Args:
            sizes: (V_1, ..., V_D), how many values each coordinate has.
            generator: source of the draws.

        Returns:
            The model.

        Raises:
            ValueError: for a table of more than 2^18 entries.
        """
        if not sizes:
            raise ValueError(f"sizes must be of one coordinate at least, got {sizes!r}.")
        log_number = sum(map(math.log, sizes))
        require_log_enumerable(
            f"the entries of a table of sizes {tuple(sizes)}",
            log_number,
            "a model that is no table, such as HMM",
        )
        weights = torch.empty(*sizes, dtype=torch.float64).exponential_(generator=generator)
        return cls(weights / weights.sum())

    @property
    def data_device(self) -> torch.device | None:
        return self.log_table.device

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is (N, D), int64, and has the values of the table."""
        require_values(x, self.log_table.shape)

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        weights = self.log_table.exp().flatten()
        cells = draw_categories(weights, n, generator=generator)
        return torch.stack(torch.unravel_index(cells, self.log_table.shape), dim=1)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        values = []
        for rows in self._parts(x):
            values.append(self._subset_table(x[rows]).T[masks.row_of(observed)])
        return torch.cat(values, dim=1)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        values = [_ratios(self._subset_table(x[rows]), mask) for rows in self._parts(x)]
        return torch.cat(values).transpose(0, 1)

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        values = []
        for rows in self._parts(x):
            table = self._subset_table(x[rows])
            observed, observed_and_one = _rows_of_ratios(mask[rows])
            values.append(table.gather(1, observed_and_one) - table.gather(1, observed[:, None]))
        return torch.cat(values)

    # A table serves all sets at once. So means are taken of tables, where the base class would cut the
    # sets to bound the memory, and have the table made again for each part of them.
    def _mean_log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return self._mean_subset_table(x)[masks.row_of(observed)]

    def _mean_log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        return _ratios(self._mean_subset_table(x), mask)

    def _mean_subset_table(self, x: Tensor) -> Float[Tensor, " subsets"]:
        parts = list(self._parts(x))
        if len(parts) == 1:
            return self._subset_table(x).mean(dim=0)
        total = sum(self._subset_table(x[rows]).sum(dim=0) for rows in parts)
        return torch.as_tensor(total) / len(x)

    def _parts(self, x: Tensor) -> Iterator[slice]:
        """Rows of ``x`` whose :meth:`_subset_table` fits the memory; one part as a rule."""
        largest = max(2**self.num_features, self.log_table.numel())
        # It is made by sums and look-ups: about three arrays of its size are alive at once.
        return chunks(len(x), 3 * 8 * largest, 8 * WORKING_BYTES)

    def _subset_table(self, x: Int[Tensor, "N D"]) -> Float[Tensor, "N subsets"]:
        """log p(x_R) for all 2^D sets R, in the order of :func:`mpt_lml.masks.subsets`.

        One pass over the coordinates: each either sums its axis out or looks its value up, so every
        marginal is computed once from a larger one.
        """
        rows = torch.arange(len(x), device=x.device)
        table = self.log_table.view(1, 1, -1)  # (N or 1, subsets so far, coordinates to come)
        for values, size in zip(x.T, self.log_table.shape, strict=True):
            table = table.view(len(table), table.shape[1], size, -1)
            observed = table.expand(len(x), -1, -1, -1)[rows, :, values]
            summed_out = table.logsumexp(dim=2).expand_as(observed)
            # In the second half of the subsets j is observed: coordinate j is bit j of their numbers.
            table = torch.cat([summed_out, observed], dim=1)
        table = table.squeeze(2)
        table[:, 0] = 0.0  # the empty set has probability 1, to the last bit
        return table


def _ratios(table: Tensor, mask: Tensor) -> Tensor:
    """log p(x_{R ∪ j}) − log p(x_R) from a table over all subsets, (..., P, D)."""
    observed, observed_and_one = _rows_of_ratios(mask)
    return table[..., observed_and_one] - table[..., observed][..., None]


def _rows_of_ratios(mask: Bool[Tensor, "P D"]) -> tuple[Int[Tensor, " P"], Int[Tensor, "P D"]]:
    """Where R stands in a table over all subsets, and where R ∪ j stands for every j."""
    observed = masks.row_of(~mask)
    # With a masked j in R, too: its bit is added. An observed one is there: the ratio is 1.
    bit = torch.arange(mask.shape[1], device=mask.device)
    return observed, observed[:, None] + (mask.long() << bit)


@final
class ConditionalTable(ConditionalModel):
    """Any family q(x_j | x_R) of D coordinates with values 0..V−1: what a masked network may say.

    Every conditional is a separate distribution. Nothing makes them fit together, so they have no
    joint, no marginals and no ``sample``.

    Args:
        logits: unnormalized and finite, (2^D, V^D, D, V). The first axis is the mask, as
            :func:`mpt_lml.masks.subsets` numbers them; the second is x, its last coordinate fastest.
            An entry is read only where the masked coordinates of x are 0: what is not observed cannot
            matter.

    Raises:
        TypeError: for a tensor that is not floating point.
        ValueError: for another shape, or logits that are not finite.

    >>> table = ConditionalTable(torch.zeros(4, 9, 2, 3))  # two coordinates, three values
    >>> table.log_each(torch.tensor([[0, 2]]), torch.tensor([[True, False]])).exp()
    tensor([[0.3333, 1.0000]], dtype=torch.float64)
    """

    num_values: int

    @checked
    def __init__(self, logits: Float[Tensor, "..."]) -> None:
        if logits.ndim == 4:
            num_features, num_values = logits.shape[2:]
        else:
            num_features, num_values = 1, 2  # for the example in the message
        expected = (2**num_features, num_values**num_features, num_features, num_values)
        if logits.shape != expected:
            raise ValueError(
                "logits must have shape (2^D, V^D, D, V) in D coordinates with V values, such as "
                f"{expected}, got {tuple(logits.shape)}."
            )
        self.log_table = double(logits).log_softmax(dim=-1)
        self.num_features = num_features
        self.num_values = num_values

    @classmethod
    @checked
    def of(
        cls,
        model: ConditionalModel,
        *,
        noise: NonNegative = 0.0,
        generator: torch.Generator | None = None,
    ) -> "ConditionalTable":
        """The conditionals of a model, each logit moved by ``noise`` times a standard normal.

        Args:
            model: of D coordinates that take the values 0..V−1, with V as its ``num_values``.
            noise: standard deviation of what is added to each logit; 0 keeps them consistent.
            generator: source of the noise, where there is some.

        Returns:
            The table.

        Raises:
            TypeError: for a model that has no ``num_values``.
            ValueError: for more points x than are enumerated.
        """
        num_features = model.num_features
        num_values = model.num_values
        if num_values is None:
            raise TypeError(
                "model must have the same values 0..V−1 in every coordinate (num_values), got "
                f"{type(model).__name__} without."
            )
        require_log_enumerable(
            f"the values of D = {num_features} coordinates",
            num_features * math.log(num_values),
            "fewer coordinates or values",
        )
        num_points = num_values**num_features
        values = torch.arange(num_values, device=model.data_device)
        x = torch.cartesian_prod(*num_features * [values]).view(num_points, -1)
        shape = (2**num_features, *x.shape, num_values)
        logits = double(torch.zeros(shape, device=x.device))
        for row, mask in enumerate(masks.subsets(num_features)[1:].to(x.device), start=1):
            logits[row] = model.log_values(x, mask.expand(num_points, -1))
        if noise:
            draws = require_generator(generator)
            logits += noise * draw_normal(logits.shape, generator=draws, like=logits)
        return cls(logits)

    @property
    def data_device(self) -> torch.device | None:
        return self.log_table.device

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is (N, D), int64, with values in 0..V−1."""
        require_values(x, [self.num_values] * self.num_features)

    def _log_values(self, x: Tensor, mask: Tensor) -> Tensor:
        powers = self.num_values ** torch.arange(self.num_features - 1, -1, -1, device=x.device)
        point = (x.masked_fill(mask, 0) * powers).sum(dim=-1)
        return self.log_table[masks.row_of(mask), point]

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        return self._log_values(x, mask).gather(-1, x[..., None])[..., 0]
