"""Discrete models given as full tables: a joint distribution, and conditionals that need not fit."""

import math
from collections.abc import Iterator
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml import masks, spec
from mpt_lml.models.base import ConditionalModel, TractableModel
from mpt_lml.numerics import chunks
from mpt_lml.spec import require, require_log_enumerable, require_values


@final
class JointTable(TractableModel):
    """A distribution over D discrete coordinates given as its full table.

    Axis j of ``probabilities`` (V_1, ..., V_D) has one entry per value of coordinate j; all are
    positive and sum to 1 within 1e-9, or in single precision as well as ``p / p.sum()`` does (5e-7
    times the root of the number of entries); otherwise ``ValueError`` is raised. Answers are in double
    precision.

    >>> table = JointTable(torch.tensor([[0.4, 0.1], [0.2, 0.3]]))
    >>> table.log_marginal(torch.tensor([[1, 0]])).exp()  # nats before exp
    tensor([0.2000], dtype=torch.float64)
    """

    def __init__(self, probabilities: Float[Tensor, "..."]) -> None:
        require(locals(), "probabilities V ...")
        if not probabilities.numel() or (probabilities <= 0).any():
            least = min(probabilities.flatten().tolist(), default=None)
            raise ValueError(f"probabilities must be positive, the smallest is {least}.")
        total = probabilities.double().sum().item()
        # A user who divides by a sum in single precision rounds it about √V of V times.
        rounding = 4 * torch.finfo(probabilities.dtype).eps * math.sqrt(probabilities.numel())
        if abs(total - 1.0) > max(1e-9, rounding):
            raise ValueError(f"probabilities must sum to 1, got {total}. Divide by their sum.")
        self.log_table, self.num_features = probabilities.double().log(), probabilities.ndim

    @classmethod
    def random(cls, sizes: tuple[int, ...], *, generator: torch.Generator) -> "JointTable":
        """A table drawn uniformly from the simplex; ``sizes`` = (V_1, ..., V_D).

        Raises ``ValueError`` for a table of more than 2^18 entries.
        """
        require(locals(), "sizes Sequence, generator")
        require({"sizes": sizes or [0]}, "sizes* 1..")
        what = f"the entries of a table of sizes {tuple(sizes)}"
        log_number = sum(map(math.log, sizes))
        require_log_enumerable(what, log_number, "a model that is no table, such as HMM")
        weights = torch.empty(*sizes, dtype=torch.float64).exponential_(generator=generator)
        return cls(weights / weights.sum())

    def require_data(self, x: Tensor) -> None:
        require_values(x, self.log_table.shape)

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        weights = self.log_table.exp().flatten()
        cells = torch.multinomial(weights, n, replacement=True, generator=generator)
        return torch.stack(torch.unravel_index(cells, self.log_table.shape), dim=1)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        rows = self._few_rows(x)
        return torch.cat(
            [self._subset_table(some).T[_row_number(observed)] for some in rows], dim=1
        )

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        rows = self._few_rows(x)
        values = torch.cat([_ratios(self._subset_table(some), mask) for some in rows])
        return values.transpose(0, 1)

    def _mean_log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        rows = list(self._few_rows(x))
        if len(rows) == 1:
            return _ratios(self._subset_table(x).mean(dim=0), mask)
        total = sum(self._subset_table(some).sum(dim=0) for some in rows)
        return _ratios(torch.as_tensor(total) / len(x), mask)

    def _few_rows(self, x: Tensor) -> Iterator[Tensor]:
        """``x`` in parts whose :meth:`_subset_table` fits the memory; one part as a rule."""
        # Coordinates of a single value cost no cells, but each of them doubles the subsets.
        what = f"the subsets of D = {self.num_features} coordinates"
        if 2**self.num_features > self.log_table.numel():
            instead = "a table without coordinates of a single value"
            require_log_enumerable(what, self.num_features * math.log(2.0), instead)
        largest = max(2**self.num_features, self.log_table.numel())
        return (x[some] for some in chunks(len(x), 8 * 3 * largest, 2**30))

    def _subset_table(self, x: Int[Tensor, "N D"]) -> Float[Tensor, "N subsets"]:
        """log p(x_R) for all 2^D sets R; bit j of the index says whether j is in R.

        One pass over the coordinates: each either sums its axis out or looks its value up, so every
        marginal is computed once from a larger one.
        """
        rows = torch.arange(len(x))
        table = self.log_table.view(1, 1, -1)  # (N or 1, subsets so far, coordinates to come)
        for values, size in zip(x.T, self.log_table.shape, strict=True):
            table = table.view(len(table), table.shape[1], size, -1)
            picked = table.expand(len(x), -1, -1, -1)[rows, :, values]
            table = torch.cat([table.logsumexp(dim=2).expand_as(picked), picked], dim=1)
        table = table.squeeze(2)
        table[:, 0] = 0.0  # the empty set has probability 1, to the last bit
        return table


def _row_number(rows: Tensor) -> Tensor:
    """Where :func:`mpt_lml.masks.subsets` has each row."""
    return (rows.long() << torch.arange(rows.shape[-1])).sum(dim=-1)


def _ratios(table: Tensor, mask: Tensor) -> Tensor:
    """log p(x_{R+j}) − log p(x_R) from a table over all subsets, (..., P, D)."""
    given = _row_number(~mask)
    larger = given[:, None] + (mask.long() << torch.arange(mask.shape[1]))
    return table[..., larger] - table[..., given][..., None]


@final
class ConditionalTable(ConditionalModel):
    """Any family q(x_j | x_R) of D coordinates with values 0..V−1: what a masked network may say.

    Every conditional is a distribution of its own. Nothing makes them fit together, so they have no
    joint, no marginals and no ``sample`` of their own.

    ``logits`` (2^D, V^D, D, V) are unnormalized and finite. The first axis is the mask, as
    :func:`mpt_lml.masks.subsets` numbers them; the second is x, its last coordinate fastest. An entry
    is read only where the masked coordinates of x are 0: what is not seen cannot matter.

    >>> table = ConditionalTable(torch.zeros(4, 9, 2, 3))  # two coordinates, three values
    >>> table.log_each(torch.tensor([[0, 2]]), torch.tensor([[True, False]])).exp()
    tensor([[0.3333, 1.0000]], dtype=torch.float64)
    """

    num_values: int

    def __init__(self, logits: Float[Tensor, "..."]) -> None:
        spec.require_dtype("logits", logits)
        num_features, num_values = logits.shape[2:] if logits.ndim == 4 else (1, 2)
        expected = (2**num_features, num_values**num_features, num_features, num_values)
        if logits.shape != expected:
            raise ValueError(
                "logits must have shape (2^D, V^D, D, V) in D coordinates with V values, such as "
                f"{expected}, got {tuple(logits.shape)}."
            )
        spec.require_finite("logits", logits)
        self.log_table = logits.double().log_softmax(dim=-1)
        self.num_features, self.num_values = num_features, num_values

    @classmethod
    def of(
        cls,
        model: TractableModel,
        num_values: int,
        *,
        noise: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> "ConditionalTable":
        """The conditionals of ``model``, each logit moved by ``noise`` times a standard normal.

        ``noise=0`` keeps them consistent; otherwise pass ``generator=``.
        """
        require(locals(), "model ConditionalModel, num_values 1.., noise [0,inf)")
        num_features, most = model.num_features, getattr(model, "num_values", None) or num_values
        require(locals(), f"num_values 1..{most}")
        what, fewer = f"the values of D = {num_features} coordinates", "fewer coordinates or values"
        require_log_enumerable(what, num_features * math.log(num_values), fewer)
        number = num_values**num_features
        entries = 2**num_features * number * num_features * num_values
        spec.require_memory(f"a table of {entries} conditional probabilities", 8 * entries, fewer)
        x = torch.cartesian_prod(*num_features * [torch.arange(num_values)]).view(number, -1)
        logits = torch.zeros(2**num_features, *x.shape, num_values, dtype=torch.float64)
        for row, mask in enumerate(masks.subsets(num_features)[1:], start=1):
            for value in range(num_values):
                filled = torch.where(mask, value, x)
                logits[row, :, :, value] = model.log_conditional(filled, mask[None])[0]
            total = logits[row][:, mask].logsumexp(dim=-1).exp().min().item()
            if not abs(total - 1.0) <= 1e-6:
                raise ValueError(f"num_values: values 0..{num_values - 1} have {total:.4g} of p.")
        if noise:
            spec.require_generator(generator)
            logits += noise * torch.randn(logits.shape, generator=generator, dtype=logits.dtype)
        return cls(logits)

    def require_data(self, x: Tensor) -> None:
        require_values(x, [self.num_values] * self.num_features)

    def _log_values(self, x: Tensor, mask: Tensor) -> Tensor:
        powers = self.num_values ** torch.arange(self.num_features - 1, -1, -1)
        point = (x.masked_fill(mask, 0) * powers).sum(dim=-1)
        return self.log_table[_row_number(mask), point]

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        return self._log_values(x, mask).gather(-1, x[..., None])[..., 0]
