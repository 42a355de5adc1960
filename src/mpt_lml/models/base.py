"""What a model has to answer: given the observed coordinates of x, log p(x_j | x_R)?"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.numerics import WORKING_BYTES, chunks, full_precision
from mpt_lml.spec import require, require_mask, require_memory, require_values

_Function = Callable[[Tensor, Tensor], Tensor]


class ConditionalModel(ABC):
    """Given the observed coordinates of x, what is log p(x_j | x_R) for each masked one?

    A subclass writes ``_log_each``, or ``_log_conditional`` where a batch of masks is cheaper than its
    pairs, for checked arguments; what they say of coordinates that are not masked is not read.

    >>> model = FromFunction(lambda x, mask: torch.zeros(*x.shape, 4).log_softmax(-1), 3)
    >>> x, mask = torch.zeros(5, 3).long(), torch.ones(2, 3).bool()
    >>> model.log_conditional(x, mask).shape, model.log_each(x[:2], mask).shape
    (torch.Size([2, 5, 3]), torch.Size([2, 3]))
    """

    num_features: int  # D

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is something the model can have made: (N, D), finite."""
        require(locals(), "x N D", D=self.num_features)

    def log_each(self, x: Tensor, mask: Bool[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """log p(x_j | x_R) of every datum under its own mask, nats, (B, D); 0 where not masked.

        Raises ``TypeError`` or ``ValueError`` for an impossible ``x`` or a mask not boolean (B, D).
        """
        self._require(x, mask, pairs=True)
        with self._precision():
            return _keep(self._in_batches(self._log_each, x, mask), mask)

    def log_values(self, x: Tensor, mask: Bool[Tensor, "B D"]) -> Float[Tensor, "B D V"]:
        """log p(x_j = v | x_R) of every value v, one mask a datum, nats, (B, D, V).

        What ``x`` holds at masked coordinates is not read. Raises as :meth:`log_each`, and
        ``TypeError`` where coordinates are not discrete.
        """
        self._require(x, mask, pairs=True)
        with self._precision():
            return self._log_values(x, mask)

    def log_conditional(self, x: Tensor, mask: Bool[Tensor, "P D"]) -> Float[Tensor, "P N D"]:
        """:meth:`log_each` of every mask with every datum, nats, (P, N, D)."""
        self._require(x, mask)
        with self._precision():
            return _keep(self._log_conditional(x, mask), mask[:, None])

    def mean_log_conditional(self, x: Tensor, mask: Bool[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """:meth:`log_conditional` averaged over the data, nats, (P, D), in bounded memory."""
        self._require(x, mask)
        with self._precision():
            return _keep(self._mean_log_conditional(x, mask), mask)

    num_values: int | None = None  # V, where every coordinate takes the values 0..V−1
    _pairs_at_once: int | None = None  # for _log_each, where memory is not the limit

    def _precision(self) -> AbstractContextManager[None]:
        """A network runs in the precision that its user has chosen by ``torch.autocast``."""
        return nullcontext()

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        pairs = zip(x.split(1), mask.split(1), strict=True)
        return torch.cat([self._log_conditional(*pair)[0] for pair in pairs])

    def _log_values(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.num_values is None:
            raise TypeError(f"{type(self).__name__} has no list of values a coordinate can take.")
        # A conditional does not see what is masked: every masked coordinate is set to v at once.
        every = [self.log_each(x.masked_fill(mask, v), mask) for v in range(self.num_values)]
        return torch.stack(every, dim=-1)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        return self._every_pair(self._log_each, x, mask)

    def _mean_log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        rows = chunks(len(mask), 32 * len(x) * self.num_features)
        return torch.cat([self.log_conditional(x, mask[some]).mean(dim=1) for some in rows])

    def _every_pair(self, function: _Function, x: Tensor, mask: Tensor) -> Tensor:
        repeated = x.repeat(len(mask), *[1] * (x.ndim - 1))
        values = self._in_batches(function, repeated, mask.repeat_interleave(len(x), dim=0))
        return values.unflatten(0, (len(mask), len(x)))

    def _in_batches(self, function: _Function, x: Tensor, mask: Tensor) -> Tensor:
        rows = chunks(len(x), 1, self._pairs_at_once or WORKING_BYTES // (32 * self.num_features))
        return torch.cat([function(x[some], mask[some]) for some in rows])

    def _require(self, x: Tensor, mask: Tensor, *, pairs: bool = False) -> None:
        self.require_data(x)
        require(locals(), "bool mask P D", D=self.num_features)
        require_mask(mask)
        if pairs and len(mask) != len(x):
            rows = f"{len(x)} and {len(mask)}: for every pair use log_conditional"
            raise ValueError(f"x and mask must have the same number of rows, got {rows}.")


def _keep(values: Tensor, mask: Tensor) -> Tensor:
    return values.where(mask.to(values.device), 0.0)


class TractableModel(ConditionalModel):
    """A model whose joint and marginal probabilities are known exactly.

    They are computed in the precision of its numbers, under ``torch.autocast``, too.
    """

    def _precision(self) -> AbstractContextManager[None]:
        return full_precision()

    def log_marginal(self, x: Tensor) -> Float[Tensor, " N"]:
        """log p(x), exact, nats, (N,). Raises for an ``x`` that the model cannot have made."""
        everything = torch.ones(1, self.num_features, dtype=torch.bool)
        self.require_data(x)
        return self.log_subset_marginal(x, everything.to(x.device))[0]

    def log_subset_marginal(self, x: Tensor, observed: Bool[Tensor, "P D"]) -> Float[Tensor, "P N"]:
        """log p(x_R) for every row R of ``observed`` (True = in R), nats, (P, N); 0 for none."""
        self.require_data(x)
        require(locals(), "bool observed P D", D=self.num_features)
        rows = chunks(len(observed), 16 * len(x) * self.num_features)
        with self._precision():
            values = torch.cat([self._log_subset_marginal(x, observed[some]) for some in rows])
        return _keep(values, observed.any(dim=1, keepdim=True))

    def mean_log_subset_marginal(
        self, x: Tensor, observed: Bool[Tensor, "P D"]
    ) -> Float[Tensor, " P"]:
        """:meth:`log_subset_marginal` averaged over the data, nats, (P,)."""
        self.require_data(x)
        require(locals(), "bool observed P D", D=self.num_features)
        with self._precision():
            return self._mean_log_subset_marginal(x, observed)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws from p(x), (n, D)."""
        require(locals(), "n 1.., generator")
        require_memory(f"n = {n} draws", 8 * n * self.num_features, "a smaller n")
        with self._precision():
            return self._sample(n, generator)

    @abstractmethod
    def _sample(self, n: int, generator: torch.Generator) -> Tensor: ...

    @abstractmethod
    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor: ...

    def _mean_log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return self.log_subset_marginal(x, observed).mean(dim=1)


def require_log_probabilities(name: str, function: _Function, x: Tensor, mask: Tensor) -> int:
    """Test the answers of ``function``, which is called ``name`` in messages; return V.

    ``function`` takes integers ``x`` and ``mask``, both (B, D), and gives log q(x_j = v | x_R) of the
    hidden coordinates only, nats, (M, V). NaN is let through: who uses it can say where it is.

    Raises ``ValueError`` where the probabilities of all values do not add up to 1, and where the
    answer changes with what is hidden: it knows what it scores.
    """
    values = function(x, mask).double()
    log_total = values.logsumexp(dim=-1)
    if (log_total.abs() > 0.05).any():  # bfloat16 has three digits
        worst = log_total[log_total.abs().argmax()].exp()
        sums_of_values = values.sum(dim=-1)
        are_probabilities = (values >= 0).all() and (sums_of_values - 1.0).abs().max() <= 0.05
        remedy = "values.log()" if are_probabilities else "logits.log_softmax(dim=-1)"
        raise ValueError(
            f"{name} must return logarithms of probabilities, but these probabilities add up to "
            f"{worst:.4g}, not to 1: return {remedy}."
        )
    num_values = values.shape[-1]
    others = torch.where(mask, (x + 1) % num_values, x)
    if not torch.allclose(
        function(others, mask).double(), values, rtol=0, atol=1e-4, equal_nan=True
    ):
        raise ValueError(
            f"{name} changes its answer when what is hidden is replaced: it reads what it scores (or "
            "is random: call eval()). Where mask is True, show it a mask token or anything constant."
        )
    return num_values


@final
class FromFunction(ConditionalModel):
    """The conditionals of a function that answers one mask a datum, such as a network.

    ``log_values`` takes (x, mask), both (B, D), and returns log q(x_j = v | x_R) for every value v,
    nats, (B, D, V); it must not read x where ``mask`` is True. Both are tested once, at its first
    answer, for the datum of which most is hidden. ``rows`` pairs of a datum and a mask are asked for
    at a time: what fits a cache.

    Raises ``ValueError`` for logits, for probabilities, and for answers that change when what is
    hidden is replaced.

    >>> coins = FromFunction(lambda x, mask: torch.zeros(*x.shape, 2).log_softmax(-1), 3)
    >>> coins.log_each(torch.zeros(1, 3).long(), torch.tensor([[True, False, False]])).exp()
    tensor([[0.5000, 1.0000, 1.0000]])
    """

    def __init__(self, log_values: _Function, num_features: int, rows: int = 512) -> None:
        require(locals(), "log_values Callable, num_features 1.., rows 1..")
        self.function = log_values
        self.num_features, self._pairs_at_once = num_features, rows
        self._is_tested = False

    def require_data(self, x: Tensor) -> None:
        require(locals(), "int x N D", D=self.num_features)

    def _log_values(self, x: Tensor, mask: Tensor) -> Tensor:
        values = self._answer(x, mask)
        if not self._is_tested:
            most = int(mask.sum(dim=1).argmax())
            one = slice(most, most + 1)
            require_log_probabilities("log_values", self._answer_hidden, x[one], mask[one])
            self._is_tested = True
        return values

    def _answer(self, x: Tensor, mask: Tensor) -> Tensor:
        values = self.function(x, mask)
        require({"x": x, "log_values()": values}, "int x B D, log_values() B D V", finite=False)
        return values

    @torch.no_grad()
    def _answer_hidden(self, x: Tensor, mask: Tensor) -> Tensor:
        return self._answer(x, mask)[mask]

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        values = self._log_values(x, mask)
        require_values(x, [values.shape[2]] * self.num_features)
        values = values.gather(2, x[..., None])[..., 0]
        if values.isnan().any():
            raise ValueError("log_values must return logarithms of probabilities, got NaN.")
        return values


@final
class Grouped(ConditionalModel):
    """Σ_{i in group j} log p(x_i | x_R) for every group j: hidden together, scored one by one.

    If the members of a group depend on each other given x_R, the area under the curve is smaller
    than log p(x) on average, by their total correlations (as in the paper's Equation 1).

    ``group`` (d,) names the group 0..D−1 of each of the model's d coordinates. ``jointly`` scores a
    group by its joint density log p(x_{R ∪ j}) − log p(x_R), which takes a model with marginals.

    >>> coins = FromFunction(lambda x, mask: torch.zeros(*x.shape, 2).log_softmax(-1), 4)
    >>> pairs = Grouped(coins, torch.tensor([0, 0, 1, 1]))
    >>> pairs.log_each(torch.zeros(1, 4).long(), torch.tensor([[True, False]])).exp()
    tensor([[0.2500, 1.0000]])
    """

    def __init__(
        self, model: ConditionalModel, group: Int[Tensor, " d"], *, jointly: bool = False
    ) -> None:
        kind = "TractableModel" if jointly is True else "ConditionalModel"  # needs marginals
        require(locals(), f"jointly bool, model {kind}")
        require(locals(), "int group d", d=model.num_features)
        if (present := group.unique().tolist()) != list(range(len(present))):
            raise ValueError(f"group must be numbered 0, 1, ... without a gap, got {present}.")
        self.model, self.group, self.jointly = model, group, jointly
        self.num_features = len(present)

    @staticmethod
    def patches(height: int, width: int, patch: int) -> Int[Tensor, " d"]:
        """The ``group`` that makes each square patch of an image one: row by row, (H·W,)."""
        require(locals(), "height 1.., width 1.., patch 1..")
        if height % patch or width % patch:
            raise ValueError(f"patches of side {patch} do not cover an image {height} by {width}.")
        require_memory(
            f"an image of {height} by {width} pixels", 8 * height * width, "a smaller one"
        )
        rows = torch.arange(height)[:, None] // patch
        return (rows * (width // patch) + torch.arange(width) // patch).flatten()

    def require_data(self, x: Tensor) -> None:
        self.model.require_data(x)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.jointly:
            return torch.stack([self._joint(x, row) for row in mask])
        return self._sum(self.model.log_conditional(x, self._members(mask)))

    def _mean_log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.jointly:
            return self._log_conditional(x, mask).mean(dim=1)
        return self._sum(self.model.mean_log_conditional(x, self._members(mask)))

    def _joint(self, x: Tensor, mask: Tensor) -> Tensor:
        """log p(x_{R ∪ j}) − log p(x_R) for every j in one ``mask``, (N, D)."""
        assert isinstance(self.model, TractableModel)
        hidden = mask.nonzero().flatten()
        seen = ~self._members(mask[None])
        more = seen | (self.group == hidden[:, None])
        values = self.model.log_subset_marginal(x, torch.cat([seen, more]))
        result = values.new_zeros(values.shape[1], self.num_features)
        result[:, hidden] = (values[1:] - values[0]).T
        return result

    def _members(self, mask: Tensor) -> Tensor:
        return mask[:, self.group.to(mask.device)]

    def _sum(self, values: Tensor) -> Tensor:
        empty = values.new_zeros(*values.shape[:-1], self.num_features)
        return empty.index_add(-1, self.group.to(values.device), values)
