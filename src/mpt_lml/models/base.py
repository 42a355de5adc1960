"""The interface of models: given the observed coordinates of x, log p(x_j | x_R) of each masked one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import Count, Data, check, checked, require_entries
from mpt_lml.masks import each_masks_something
from mpt_lml.models.trial import validate_conditionals
from mpt_lml.numerics import chunks, num_at_once

__all__ = ["ConditionalModel", "FromFunction", "Grouped", "TractableModel"]

LogValues = Callable[[Tensor, Tensor], Tensor]
# Made once: to write an annotation takes as long as to check a small tensor.
_DATA = Float[Tensor, "N D"]
_INTEGER_DATA = Int[Tensor, "N D"]

MaskOfEachDatum = Annotated[Bool[Tensor, "B D"], each_masks_something]
Masks = Annotated[Bool[Tensor, "P D"], each_masks_something]

# Memory for one coordinate of one pair of a datum and a mask: conditionals take four arrays of doubles. A
# model that needs more sets ``_pairs_at_once``.
_BYTES_OF_A_COORDINATE = 4 * 8
# Memory for one coordinate of the marginal of a subset: two arrays of doubles.
_BYTES_OF_A_MARGINAL_COORDINATE = 2 * 8
# Pairs of a datum and a mask in one call of a user's function, which fit a cache.
_PAIRS_OF_A_FUNCTION = 512


class ConditionalModel(ABC):
    """Given the observed coordinates of x, what is log p(x_j | x_R) for each masked one?

    The four public methods check their arguments, and cut the pairs of a datum and a mask into
    batches. All but ``log_values`` put zeros where nothing is masked. A subclass writes
    mathematics only: ``_log_each`` (one mask a datum), or ``_log_conditional`` (every mask with every
    datum) where that is cheaper than its pairs. Their arguments have been checked, x by
    ``require_data``. Their values where nothing is masked are ignored. A model with tensors names
    their device by ``data_device``, so that data on another one are refused.

    ``_log_each`` is called with batches of pairs that fit the memory. ``_log_conditional`` is called
    with all pairs of a call, and has to cut them into batches itself; only means over data come with
    as many masks at a time as fit.

    >>> model = FromFunction(lambda x, mask: torch.zeros(*x.shape, 4).log_softmax(-1), 3)
    >>> x, mask = torch.zeros(5, 3).long(), torch.ones(2, 3).bool()
    >>> model.log_conditional(x, mask).shape, model.log_each(x[:2], mask).shape
    (torch.Size([2, 5, 3]), torch.Size([2, 3]))
    """

    num_features: int
    """D, the number of coordinates."""

    num_values: int | None = None
    """V, where every coordinate takes one of the values 0..V−1."""

    @property
    def data_device(self) -> torch.device | None:
        """The device of the model's tensors, on which data have to be; None for any device."""
        return None

    # Most pairs of a datum and a mask in one call of _log_each or _log_values. None: as many as fit
    # WORKING_BYTES with four arrays of D each; a model with a latent axis besides sets it.
    _pairs_at_once: int | None = None

    @checked
    def log_each(self, x: Data, mask: MaskOfEachDatum) -> Float[Tensor, "B D"]:
        """log p(x_j | x_R) of every datum under its own mask.

        Args:
            x: data, (B, D).
            mask: one mask a datum, (B, D), boolean; True means masked.

        Returns:
            Nats, (B, D); 0 where not masked.

        Raises:
            TypeError: for a mask that is not boolean, or data of another type than the model's.
            ValueError: for data that the model cannot have made, a mask that hides nothing, or
                another number of masks than of data.
        """
        # By hand: ``Data`` has no letters, so that @checked cannot compare B of x and of mask.
        require_pairs(x, mask)
        return self._in_batches(self._log_each, x, mask).where(mask, 0.0)

    @checked
    def log_values(self, x: Data, mask: MaskOfEachDatum) -> Float[Tensor, "B D V"]:
        """log p(x_j = v | x_R) of every value v, one mask a datum.

        Args:
            x: data, (B, D), legal everywhere. The values at masked coordinates do not change the
                answer.
            mask: one mask a datum, (B, D), boolean; True means masked.

        Returns:
            Nats, (B, D, V); what stands where nothing is masked is not defined.

        Raises:
            TypeError: where coordinates are not discrete, and as :meth:`log_each`.
            ValueError: as :meth:`log_each`.
        """
        require_pairs(x, mask)
        return self._in_batches(self._log_values, x, mask)

    @checked
    def log_conditional(self, x: Data, mask: Masks) -> Float[Tensor, "P N D"]:
        """:meth:`log_each` of every mask with every datum.

        Args:
            x: data, (N, D).
            mask: masks, (P, D), boolean; True means masked.

        Returns:
            Nats, (P, N, D); 0 where not masked.
        """
        return self._masked_log_conditional(x, mask)

    @checked
    def mean_log_conditional(self, x: Data, mask: Masks) -> Float[Tensor, "P D"]:
        """:meth:`log_conditional` averaged over the data, in bounded memory.

        Args:
            x: data, (N, D).
            mask: masks, (P, D), boolean; True means masked.

        Returns:
            Nats, (P, D); 0 where not masked.
        """
        return self._mean_log_conditional(x, mask).where(mask, 0.0)

    def require_data(self, x: Tensor) -> None:
        """Check that the model can have made the data ``x``: (N, D), finite."""
        check(("x", x, _DATA), D=self.num_features)

    # -- for subclasses: arguments are checked before they come here --------------------------------

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, D) and mask (B, D) -> (B, D)."""
        # Each of the two is made from the other: without one of them they would call on for ever.
        if type(self)._log_conditional is ConditionalModel._log_conditional:
            raise TypeError(f"{type(self).__name__} must override _log_each or _log_conditional.")
        pairs = zip(x.split(1), mask.split(1), strict=True)
        return torch.cat([self._log_conditional(*pair)[0] for pair in pairs])

    def _log_values(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, D) and mask (B, D) -> (B, D, V)."""
        if self.num_values is None:
            raise TypeError(f"{type(self).__name__} has no list of values a coordinate can take.")
        # A conditional does not see what is masked: every masked coordinate is set to v at once.
        log_probabilities = []
        for v in range(self.num_values):
            values = self._log_each(x.masked_fill(mask, v), mask)
            log_probabilities.append(values.where(mask, 0.0))
        return torch.stack(log_probabilities, dim=-1)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (N, D) and mask (P, D) -> (P, N, D)."""
        return self._every_pair(self._log_each, x, mask)

    def _masked_log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        """``_log_conditional``, and 0 where not masked; overridden by models that write both at once."""
        return self._log_conditional(x, mask).where(mask[:, None], 0.0)

    def _mean_log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (N, D) and mask (P, D) -> (P, D)."""
        means = []
        for rows in chunks(len(mask), _BYTES_OF_A_COORDINATE * len(x) * self.num_features):
            values = self._masked_log_conditional(x, mask[rows])
            means.append(values.mean(dim=1))
        return torch.cat(means)

    def _every_pair(self, function: LogValues, x: Tensor, mask: Tensor) -> Tensor:
        """``function``, which takes one mask a datum, of every mask with every datum: (P, N, ...)."""
        # Pair p N + n is mask p with datum n.
        other_axes = [1] * (x.ndim - 1)
        data_of_pairs = x.repeat(len(mask), *other_axes)
        masks_of_pairs = mask.repeat_interleave(len(x), dim=0)
        values = self._in_batches(function, data_of_pairs, masks_of_pairs)
        return values.unflatten(0, (len(mask), len(x)))

    def _in_batches(self, function: LogValues, x: Tensor, mask: Tensor) -> Tensor:
        most = self._pairs_at_once or num_at_once(_BYTES_OF_A_COORDINATE * self.num_features)
        if x.shape[0] <= most:
            return function(x, mask)
        batches = chunks(len(x), 1, most)  # a budget in pairs, not in bytes
        return torch.cat([function(x[rows], mask[rows]) for rows in batches])


def require_pairs(x: Tensor, mask: Tensor) -> None:
    """Check that there is one mask for each datum."""
    if mask.shape[0] != x.shape[0]:
        rows = f"{len(x)} and {len(mask)}: for every pair use log_conditional"
        raise ValueError(f"x and mask must have the same number of rows, got {rows}.")


def require_values(x: Tensor, sizes: Sequence[int]) -> None:
    """Check that ``x`` is (N, D) int64 and coordinate j one of 0..V_j − 1, V_j = ``sizes[j]``."""
    check(("x", x, _INTEGER_DATA), D=len(sizes))
    least, largest = x.aminmax()
    if least >= 0 and largest < min(sizes):
        return
    bad = (x < 0) | (x >= torch.tensor(sizes, device=x.device))
    if bad.any():
        column = int(bad.nonzero()[0, 1])
        legal = f"0..{sizes[column] - 1} in column {column}"
        require_entries("x", x, bad, legal, "Values are counted from 0.")


class TractableModel(ConditionalModel):
    """A model whose joint and marginal probabilities are known exactly.

    Results have the precision of the model's numbers.

    A subclass writes ``_log_subset_marginal`` and ``_sample``, and one of the two methods that
    :class:`ConditionalModel` asks for: conditionals are not derived from marginals, whose differences
    lose digits (see :func:`mpt_lml.curves.subset_curve`).

    >>> model = JointTable(torch.tensor([[0.4, 0.1], [0.2, 0.3]]))
    >>> isinstance(model, TractableModel)
    True
    >>> model.log_subset_marginal(torch.tensor([[1, 0]]), torch.tensor([[True, False]])).exp()
    tensor([[0.5000]], dtype=torch.float64)
    """

    @checked
    def log_marginal(self, x: Data) -> Float[Tensor, " N"]:
        """log p(x), exact.

        Args:
            x: data, (N, D).

        Returns:
            Nats, (N,).

        Raises:
            ValueError: for data that the model cannot have made.
        """
        everything = torch.ones(1, self.num_features, dtype=torch.bool)
        return self._log_subset_marginal(x, everything.to(x.device))[0]

    @checked
    def log_subset_marginal(self, x: Data, observed: Bool[Tensor, "P D"]) -> Float[Tensor, "P N"]:
        """log p(x_R) for every row R of ``observed``.

        Args:
            x: data, (N, D).
            observed: subsets, (P, D), boolean; True means in R.

        Returns:
            Nats, (P, N); 0 for the empty subset.
        """
        values = []
        bytes_of_a_subset = _BYTES_OF_A_MARGINAL_COORDINATE * len(x) * self.num_features
        for rows in chunks(len(observed), bytes_of_a_subset):
            values.append(self._log_subset_marginal(x, observed[rows]))
        is_nonempty = observed.any(dim=1, keepdim=True)
        return torch.cat(values).where(is_nonempty, 0.0)

    @checked
    def mean_log_subset_marginal(
        self, x: Data, observed: Bool[Tensor, "P D"]
    ) -> Float[Tensor, " P"]:
        """:meth:`log_subset_marginal` averaged over the data.

        Args:
            x: data, (N, D).
            observed: subsets, (P, D), boolean; True means in R.

        Returns:
            Nats, (P,); 0 for the empty subset.
        """
        return self._mean_log_subset_marginal(x, observed)

    @checked
    def sample(self, n: Count, *, generator: torch.Generator) -> Tensor:
        """Draw from p(x).

        Args:
            n: number of draws.
            generator: source of randomness, on the CPU.

        Returns:
            Data, (n, D), where the model is.
        """
        return self._sample(n, generator)

    @abstractmethod
    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        """-> (n, D)."""

    @abstractmethod
    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        """x (N, D) and observed (P, D) -> (P, N); values for an empty subset are ignored."""

    def _mean_log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        """x (N, D) and observed (P, D) -> (P,)."""
        return self.log_subset_marginal(x, observed).mean(dim=1)


@final
class FromFunction(ConditionalModel):
    """Conditionals of a function that takes one mask a datum, such as a network.

    At its first answer the function is tested once, on the datum of which most is hidden: under its
    mask, and with a half, a quarter and one of its hidden coordinates hidden. Probabilities have to
    sum to 1, and may change neither when what is hidden is replaced nor when another row is asked
    together with it (``mpt_lml.models.trial``).

    Args:
        log_values: takes (x, mask), both (B, D), and returns log q(x_j = v | x_R) for every value v,
            nats, (B, D, V); it must not read x where ``mask`` is True.
        num_features: D.

    Raises:
        ValueError: (when it is used) for logits, for probabilities, and for answers that change when
            what is hidden is replaced, or that depend on the other rows.

    >>> coins = FromFunction(lambda x, mask: torch.zeros(*x.shape, 2).log_softmax(-1), 3)
    >>> coins.log_each(torch.zeros(1, 3).long(), torch.tensor([[True, False, False]])).exp()
    tensor([[0.5000, 1.0000, 1.0000]])
    """

    @checked
    def __init__(self, log_values: LogValues, num_features: Count) -> None:
        self.function = log_values
        self.num_features = num_features
        self._pairs_at_once = _PAIRS_OF_A_FUNCTION
        self._is_tested = False

    def require_data(self, x: Tensor) -> None:
        check(("x", x, _INTEGER_DATA), D=self.num_features)

    def _log_values(self, x: Tensor, mask: Tensor) -> Tensor:
        values = self._answer(x, mask)
        if not self._is_tested:
            validate_conditionals("log_values", self._answer_hidden, x, mask)
            self._is_tested = True
        return values

    def _answer(self, x: Tensor, mask: Tensor) -> Tensor:
        values = self.function(x, mask)
        check(
            ("x", x, Int[Tensor, "B D"]),
            ("log_values()", values, Float[Tensor, "B D V"]),
            finite=False,
        )
        return values.to(x.device)

    @torch.no_grad()
    def _answer_hidden(self, x: Tensor, mask: Tensor) -> Tensor:
        return self._answer(x, mask)[mask]

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        values = self._log_values(x, mask)
        require_values(x, [values.shape[2]] * self.num_features)
        log_probability = values.gather(2, x[..., None])[..., 0]
        if log_probability.isnan().any():
            raise ValueError("log_values must return logarithms of probabilities, got NaN.")
        return log_probability


@final
class Grouped(ConditionalModel):
    """Σ_{i in group j} log p(x_i | x_R) for every group j: hidden together, scored one by one.

    If the members of a group depend on each other given x_R, the area under the curve is smaller
    than log p(x) on average, by their total correlations (as in the paper's Equation 1).

    Args:
        model: with d coordinates.
        group: the group 0..D−1 of each of them, (d,).
        jointly: score a group by its joint density log p(x_{R ∪ j}) − log p(x_R) instead, which takes
            a model with marginals.

    >>> coins = FromFunction(lambda x, mask: torch.zeros(*x.shape, 2).log_softmax(-1), 4)
    >>> pairs = Grouped(coins, torch.tensor([0, 0, 1, 1]))
    >>> pairs.log_each(torch.zeros(1, 4).long(), torch.tensor([[True, False]])).exp()
    tensor([[0.2500, 1.0000]])
    """

    @checked
    def __init__(
        self, model: ConditionalModel, group: Int[Tensor, " d"], *, jointly: bool = False
    ) -> None:
        if jointly:
            check(("model", model, TractableModel))
        check(("group", group, Int[Tensor, " d"]), d=model.num_features)
        present = group.unique().tolist()
        if present != list(range(len(present))):
            raise ValueError(f"group must be numbered 0, 1, ... without a gap, got {present}.")
        self.model = model
        self.group = group
        self.jointly = jointly
        self.num_features = len(present)

    @property
    def data_device(self) -> torch.device | None:
        return self.model.data_device

    @staticmethod
    @checked
    def patches(height: Count, width: Count, patch: Count) -> Int[Tensor, " d"]:
        """The ``group`` that makes each square patch of an image one: row by row, (H·W,)."""
        if height % patch or width % patch:
            raise ValueError(f"patches of side {patch} do not cover an image {height} by {width}.")
        patch_row = torch.arange(height)[:, None] // patch
        patch_column = torch.arange(width) // patch
        return (patch_row * (width // patch) + patch_column).flatten()

    def require_data(self, x: Tensor) -> None:
        self.model.require_data(x)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.jointly:
            return torch.stack([self._log_joint_of_groups(x, row) for row in mask])
        return self._sum_of_members(self.model.log_conditional(x, self._members(mask)))

    def _mean_log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.jointly:
            return super()._mean_log_conditional(x, mask)
        return self._sum_of_members(self.model.mean_log_conditional(x, self._members(mask)))

    def _log_joint_of_groups(self, x: Tensor, mask: Tensor) -> Tensor:
        """log p(x_{R ∪ j}) − log p(x_R) for every group j in one ``mask``, (N, D)."""
        assert isinstance(self.model, TractableModel)
        hidden_groups = mask.nonzero().flatten()
        observed = ~self._members(mask[None])
        group = self.group.to(mask.device)
        observed_and_group = observed | (group == hidden_groups[:, None])
        subsets = torch.cat([observed, observed_and_group])
        values = self.model.log_subset_marginal(x, subsets)
        result = values.new_zeros(values.shape[1], self.num_features)
        result[:, hidden_groups] = (values[1:] - values[0]).T
        return result

    def _members(self, mask: Tensor) -> Tensor:
        """Expand masks of groups to masks of the model's coordinates."""
        return mask[:, self.group.to(mask.device)]

    def _sum_of_members(self, values: Tensor) -> Tensor:
        sums = values.new_zeros(*values.shape[:-1], self.num_features)
        return sums.index_add(-1, self.group.to(values.device), values)
