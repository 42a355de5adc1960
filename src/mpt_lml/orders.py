"""Orders in which the coordinates are shown, and what conditionals say along each.

Here an order is given by its *ranks* (S, D), the inverse of π: the step at which each coordinate is
shown, 0 first; those of equal rank are shown together. Without ties it is an order π and log p_π(x) =
Σ_j log q(x_j | coordinates shown before j). For conditionals of one joint every order gives log p(x). For
others the orders differ, and their mixture p_mix = E_π p_π is a distribution (Uria et al. 2014; Hoogeboom
et al. 2022). So is the order of each text that a rule chooses as it goes along, as long as the rule sees
only what has been shown (:func:`adaptive`).
"""

import itertools
import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml import masks
from mpt_lml.checks import Count, Data, checked, require_log_enumerable
from mpt_lml.models.base import ConditionalModel, require_values
from mpt_lml.numerics import chunks, double
from mpt_lml.scores import OverOrders, over_orders
from mpt_lml.verdicts import jackknife_error

__all__ = [
    "AdaptiveOrder",
    "MixtureBounds",
    "adaptive",
    "by_blocks",
    "confidence",
    "draw",
    "every",
    "exact",
    "left_to_right",
    "log_probability",
    "mixture_bounds",
]

MAX_WEIGHT_SHARE = 0.5
"""Share of the summed probability of all orders beyond which the weights are degenerate."""


def _count_from_zero(name: str, ranks: Tensor) -> None:
    if ranks.min() < 0:
        raise ValueError(f"{name} must count steps from 0, got {int(ranks.min())}.")


Ranks = Annotated[Int[Tensor, "S D"], _count_from_zero]
"""The step at which each coordinate is shown, from 0; those of equal rank are shown together."""


@checked
def every(num_features: Count) -> Int[Tensor, "S D"]:
    """All D! orders.

    Args:
        num_features: D.

    Returns:
        Ranks, (D!, D).

    Raises:
        ValueError: for D > 8.

    >>> every(3).tolist()
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
    """
    what = f"all orders of D = {num_features} coordinates"
    require_log_enumerable(what, math.lgamma(num_features + 1), "orders.exact or orders.draw")
    return torch.tensor(list(itertools.permutations(range(num_features))))


@checked
def draw(
    num_orders: Count, num_features: Count, *, generator: torch.Generator
) -> Int[Tensor, "S D"]:
    """S uniformly random orders.

    ``ranks * T // D`` shows the coordinates in T blocks of (nearly) equal size instead.

    Args:
        num_orders: S.
        num_features: D.
        generator: of the orders.

    Returns:
        Ranks, (S, D).

    >>> draw(2, 3, generator=torch.Generator().manual_seed(0)).sort(dim=1).values.tolist()
    [[0, 1, 2], [0, 1, 2]]
    """
    return masks.sample_ranks(num_orders, num_features, generator=generator)


@checked
def log_probability(model: ConditionalModel, x: Data, ranks: Ranks) -> Float[Tensor, "S N"]:
    """log p_π(x) of every order and every datum.

    Args:
        model: any conditionals. Equal masks of different orders are asked for once.
        x: data, (N, D).
        ranks: the orders, (S, D), such as :func:`draw` and :func:`every` make.

    Returns:
        Nats, (S, N).

    Raises:
        TypeError: for ranks that are not int64.
        ValueError: for ranks of another shape, or negative ones.

    >>> model, x = HMM.cyclic(num_features=3), torch.zeros(1, 3).long()
    >>> torch.allclose(log_probability(model, x, every(3)), model.log_marginal(x))
    True
    """
    ranks = _without_gaps(ranks)
    num_steps = int(ranks.max()) + 1
    parts = []
    for rows in chunks(len(ranks), 8 * 2 * num_steps * x.shape[0] * model.num_features):
        parts.append(_sum_along_orders(model, x, ranks[rows], num_steps))
    return torch.cat(parts)


def _sum_along_orders(
    model: ConditionalModel, x: Tensor, ranks: Int[Tensor, "S D"], num_steps: int
) -> Float[Tensor, "S N"]:
    """Sum the log-conditionals along orders that fit the memory together."""
    # One row for each order and each of its steps; equal masks, such as the first of all orders, are
    # asked for once.
    step = torch.arange(num_steps, device=ranks.device)[:, None]
    shown_now = (ranks[:, None] == step).flatten(0, 1)
    hidden_before = (ranks[:, None] >= step).flatten(0, 1)
    order = torch.arange(len(ranks), device=ranks.device).repeat_interleave(num_steps)
    is_used = shown_now.any(dim=1)  # an order with ties has fewer steps
    shown_now = shown_now[is_used]
    order = order[is_used]
    mask, mask_of_step = hidden_before[is_used].unique(dim=0, return_inverse=True)
    values = model.log_conditional(x, mask)[mask_of_step]
    # What is shown at another step counts 0, also where its log-probability is −inf.
    terms = values.where(shown_now[:, None], 0.0).sum(dim=-1)
    total = terms.new_zeros(len(ranks), x.shape[0])
    return total.index_add(0, order, terms)


def _without_gaps(ranks: Int[Tensor, "S D"]) -> Int[Tensor, "S D"]:
    """Renumber the steps of each order 0, 1, 2, ...: at most D of them."""
    step, coordinate = ranks.sort(dim=1)
    is_new = torch.nn.functional.pad(step.diff(dim=1) != 0, (1, 0))
    return torch.zeros_like(ranks).scatter(1, coordinate, is_new.cumsum(dim=1))


@checked
def exact(model: ConditionalModel, x: Data) -> OverOrders:
    """log p_π(x) over all D! orders π, from 2^D masks.

    Args:
        model: any conditionals.
        x: data, (N, D).

    Returns:
        ``mean``, ``variance``, ``log_mix``, ``lowest`` and ``highest``, (N,) each, nats (variance:
        nats²), in double precision. Where an order has probability 0, ``mean`` and ``lowest`` are
        −inf, and ``variance`` is NaN: there is none.

    Raises:
        ValueError: for D > 18.

    >>> model, x = HMM.cyclic(num_features=4), torch.zeros(1, 4).long()
    >>> torch.allclose(exact(model, x).log_mix, model.log_marginal(x))
    True
    """
    instead = "orders.draw and orders.log_probability"
    subset = masks.subsets(model.num_features, instead=instead).to(x.device)
    parts = []
    for rows in chunks(len(x), 8 * 4 * subset.numel()):
        values = _log_conditional_of_all(model, x[rows], subset[1:])
        parts.append(over_orders(values, subset))
    return OverOrders(*(torch.cat(statistic) for statistic in zip(*parts, strict=True)))


def _log_conditional_of_all(
    model: ConditionalModel, x: Tensor, mask: Bool[Tensor, "P D"]
) -> Float[Tensor, "P N D"]:
    """log p(x_j | x_R) in double precision; the model is asked for some masks at a time."""
    values = []
    for rows in chunks(len(mask), 8 * 4 * x.shape[0] * model.num_features):
        values.append(model.log_conditional(x, mask[rows]))
    return double(torch.cat(values))


class MixtureBounds(NamedTuple):
    """log p_mix(x) of N texts from both sides, each bound in expectation over the orders; nats.

    >>> mixture_bounds(torch.tensor([[0.2], [0.4]]).log()).midpoint.exp()
    tensor([0.3301], dtype=torch.float64)
    """

    lower: Float[Tensor, " N"]
    """log of the mean of p_π over the orders (Burda, Grosse & Salakhutdinov 2016, of latents)."""
    upper: Float[Tensor, " N"]
    lower_error: Float[Tensor, " N"]
    """Standard error over orders, by a jackknife."""
    upper_error: Float[Tensor, " N"]
    """Standard error of :attr:`upper`; NaN from two orders, as one alone has no upper bound."""
    largest_share: Float[Tensor, " N"]
    """Share of the most probable order in the summed probability of all: 1/S where all agree."""

    @property
    def midpoint(self) -> Float[Tensor, " N"]:
        """Half of the way from :attr:`lower` to :attr:`upper`: no bound, but off by O(1/S²) only."""
        return (self.lower + self.upper) / 2

    @property
    def is_heavy_tailed(self) -> Bool[Tensor, " N"]:
        """One order holds more than half of the probability.

        Orders that were not drawn may hold more still. ``upper`` is a bound in expectation, but this
        draw of it may lie below log p_mix, and its error is too small. Report ``lower`` only.
        """
        return self.largest_share > MAX_WEIGHT_SHARE


@checked
def mixture_bounds(log_probability: Float[Tensor, "S N"]) -> MixtureBounds:
    """Bounds on log p_mix(x) from below and from above, from S random orders of any text.

    From below: the log of the mean of p_π over the orders. From above: the logarithm lies below its
    tangent at any ψ > 0, log p_mix ≤ log ψ + p_mix / ψ − 1, and p_π of a random order has the mean
    p_mix. So where ψ does not depend on π, E[log ψ + p_π / ψ − 1] is an upper bound (Ivanov et al.
    2026). Here ψ is the mean of the other S − 1 orders; each order takes its turn as π, and the mean
    over the turns is the value. With v the variance of p_π / p_mix the expectations are off by −v/2S
    and v/2S to leading order (note B). Where orders differ by several nats p_π / ψ has a heavy
    tail, and ``is_heavy_tailed`` says so.

    Args:
        log_probability: log p_π(x) of S random orders, nats, (S, N), S at least 2.

    Returns:
        ``lower`` and ``upper`` with their errors over orders, and ``midpoint``, nats, (N,) each, in
        double precision. Two more values say how far one draw of them is to be trusted:
        ``largest_share``, that of one order in the summed probability, and ``is_heavy_tailed``, whether
        that is more than a half.

    Raises:
        ValueError: for a single order, and for an order of probability 0, which a softmax never gives.

    >>> bounds = mixture_bounds(torch.tensor([[0.2], [0.4]]).log())  # the mixture is 0.3
    >>> bounds.lower.exp(), bounds.upper.exp()
    (tensor([0.3000], dtype=torch.float64), tensor([0.3632], dtype=torch.float64))
    """
    # Orders of a long text differ by less than single precision can add to thousands of nats.
    log_probability = double(log_probability)
    count = len(log_probability)
    if count < 2:
        raise ValueError(
            f"log_probability must have a row for each of >= 2 orders, got {count}: a single order has "
            "no other that could bound it from above."
        )
    lower, upper = _bounds(log_probability)
    without_one = []
    for left_out in range(count):
        is_kept = torch.arange(count) != left_out
        without_one.append(torch.stack(_bounds(log_probability[is_kept])))
    lower_again, upper_again = torch.stack(without_one).unbind(dim=1)
    total = log_probability.logsumexp(dim=0)
    return MixtureBounds(
        lower=lower,
        upper=upper,
        lower_error=jackknife_error(lower_again),
        upper_error=jackknife_error(upper_again),
        largest_share=(log_probability.amax(dim=0) - total).exp(),
    )


def _bounds(
    log_probability: Float[Tensor, "S N"],
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """The bounds from below and from above; of a single order the second is NaN."""
    lower = log_probability.logsumexp(dim=0) - math.log(len(log_probability))
    if len(log_probability) == 1:
        return lower, torch.full_like(lower, math.nan)
    log_tangent = _log_mean_of_others(log_probability)
    values = log_tangent + (log_probability - log_tangent).exp() - 1.0
    return lower, values.mean(dim=0)


def _log_mean_of_others(log_probability: Float[Tensor, "S N"]) -> Float[Tensor, "S N"]:
    """log of the mean of p over all orders but one, for each of them, S at least 2.

    Sums of those before and those behind it: to subtract it from the sum of all would cancel.
    """
    nothing = torch.full_like(log_probability[:1], -math.inf)
    before = torch.cat([nothing, log_probability[:-1]]).logcumsumexp(dim=0)
    behind = torch.cat([nothing, log_probability.flip(0)[:-1]]).logcumsumexp(dim=0).flip(0)
    return torch.logaddexp(before, behind) - math.log(len(log_probability) - 1)


class AdaptiveOrder(NamedTuple):
    """The result of :func:`adaptive` for N texts.

    >>> coins = FromFunction(lambda x, mask: torch.zeros(*x.shape, 2).log_softmax(-1), 2)
    >>> adaptive(coins, torch.tensor([[1, 0]]), left_to_right).log_probability.exp()
    tensor([0.2500])
    """

    log_probability: Float[Tensor, " N"]
    """log p_π(x) along each text's own order, nats."""
    ranks: Int[Tensor, "N D"]
    """The step at which each coordinate was shown, from 0."""


Rule = Callable[[Tensor, Tensor], Tensor]
"""(mask (N, D) bool, log_values (N, D, V)) → (N, D), of which the largest hidden one is shown next."""


def confidence(
    mask: Bool[Tensor, "N D"], log_values: Float[Tensor, "N D V"]
) -> Float[Tensor, "N D"]:
    """A rule for :func:`adaptive`: the coordinate whose most probable value is most probable.

    Args:
        mask: boolean, (N, D); True means hidden.
        log_values: of every value of each hidden coordinate, nats, (N, D, V).

    Returns:
        (N, D), the larger the earlier.

    >>> log_values = torch.tensor([[[0.6, 0.4], [0.1, 0.9]]]).log()
    >>> confidence(torch.ones(1, 2).bool(), log_values).exp()
    tensor([[0.6000, 0.9000]])
    """
    return log_values.amax(dim=-1)


def left_to_right(
    mask: Bool[Tensor, "N D"], log_values: Float[Tensor, "N D V"]
) -> Float[Tensor, "N D"]:
    """A rule for :func:`adaptive`: the first coordinate that is hidden.

    Args:
        mask: boolean, (N, D); True means hidden.
        log_values: not looked at.

    Returns:
        (N, D), the larger the earlier.

    >>> left_to_right(torch.ones(1, 3).bool(), torch.zeros(1, 3, 2))
    tensor([[0., 0., 0.]])
    """
    # All are equal, and of equal ones the first is taken.
    return torch.zeros_like(log_values[..., 0])


@checked
def by_blocks(rule: Callable, block_size: Count) -> Rule:
    """A rule for :func:`adaptive`: blocks from left to right, and within each by another rule.

    Diffusion models call it semi-autoregressive.

    Args:
        rule: such as :func:`confidence`.
        block_size: coordinates of each block; the last one may have fewer.

    Returns:
        The rule.

    >>> log_values = torch.tensor([[[0.6, 0.4], [0.8, 0.2], [0.1, 0.9]]]).log()
    >>> by_blocks(confidence, 2)(torch.ones(1, 3).bool(), log_values).exp()
    tensor([[0.6000, 0.8000, 0.0000]])
    """

    def within_first_block(mask: Tensor, log_values: Tensor) -> Tensor:
        first_hidden = mask.int().argmax(dim=1)
        block = torch.arange(mask.shape[1], device=mask.device) // block_size
        is_in_block = block == first_hidden[:, None] // block_size
        return rule(mask, log_values).masked_fill(~is_in_block, -math.inf)

    return within_first_block


@checked
@torch.no_grad()
def adaptive(model: ConditionalModel, x: Data, rule: Callable) -> AdaptiveOrder:
    """log p_π(x) along an order that looks at what has been shown.

    Step by step the rule sees what the model says of every hidden coordinate and chooses the one to
    show next. It is not given what is hidden, so that to draw each value where the rule chooses it
    gives a distribution p_π, and this is its log-probability: the likelihood of a sampler that
    reveals one coordinate at a time (Turok, De Sa & Kuleshov 2026). One pass a step: D for all texts
    together, as far as memory holds their answers.

    Args:
        model: conditionals with ``log_values``; a function is made one by
            :class:`~mpt_lml.models.base.FromFunction`.
        x: data, (N, D).
        rule: :func:`confidence`, :func:`left_to_right`, what :func:`by_blocks` makes of them, or a
            function of your own. It takes ``mask`` (N, D), True where hidden, and ``log_values``
            (N, D, V), nats, 0 where nothing is hidden, and returns (N, D). Of the largest at hidden
            coordinates **the first is shown next**: ties are broken by position.

    Returns:
        ``log_probability``, nats, (N,), and ``ranks``, (N, D), each text's order.

    Raises:
        TypeError: for a model without ``log_values``, and a rule that returns no numbers.
        ValueError: for a rule that returns another shape or NaN.

    >>> model, x = HMM.cyclic(num_features=4), torch.zeros(1, 4).long()
    >>> found = adaptive(model, x, confidence)
    >>> torch.allclose(found.log_probability, model.log_marginal(x))
    True
    """
    num_values = model.num_values
    if num_values is None:
        everything = torch.ones_like(x[:1], dtype=torch.bool)
        num_values = model.log_values(x[:1], everything).shape[-1]
    # The answer, a copy of it without what is shown, and the rule's own.
    bytes_of_a_text = 3 * 8 * model.num_features * num_values
    parts = [_follow_rule(model, x[rows], rule) for rows in chunks(len(x), bytes_of_a_text)]
    return AdaptiveOrder(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _follow_rule(model: ConditionalModel, x: Tensor, rule: Callable) -> AdaptiveOrder:
    """Show the coordinates of texts that fit the memory together, as the rule chooses."""
    mask = torch.ones_like(x, dtype=torch.bool)
    ranks = torch.zeros_like(x)
    terms = []
    for step in range(model.num_features):
        log_values = model.log_values(x, mask)
        require_values(x, [log_values.shape[-1]] * model.num_features)
        log_of_x = log_values.gather(2, x[..., None])[..., 0]
        # What a model answers where nothing is hidden may depend on what is.
        log_values = log_values.masked_fill(~mask[..., None], 0.0)
        chosen = _largest_hidden(rule(mask.clone(), log_values), mask)[:, None]
        terms.append(log_of_x.gather(1, chosen)[:, 0])
        ranks.scatter_(1, chosen, step)
        mask.scatter_(1, chosen, False)
    log_probability = torch.stack(terms).sum(dim=0)
    if log_probability.isnan().any():
        raise ValueError("model must answer logarithms of probabilities, got NaN.")
    return AdaptiveOrder(log_probability, ranks)


def _largest_hidden(priority: Tensor, mask: Tensor) -> Int[Tensor, " N"]:
    """The first hidden coordinate of those with the largest priority, also where that is −inf."""
    _require_priority(priority, mask)
    priority = priority.to(mask.device)
    largest = priority.masked_fill(~mask, -math.inf).amax(dim=1, keepdim=True)
    return (mask & (priority == largest)).int().argmax(dim=1)


def _require_priority(priority: Any, mask: Tensor) -> None:
    """Check what a rule has answered."""
    if not isinstance(priority, Tensor) or not priority.is_floating_point():
        got = priority.dtype if isinstance(priority, Tensor) else type(priority).__name__
        raise TypeError(f"rule must return a floating-point tensor, got {got}.")
    if priority.shape != mask.shape:
        raise ValueError(
            "rule must return a number for each coordinate of each text, "
            f"{tuple(mask.shape)}, got {tuple(priority.shape)}."
        )
    if priority.isnan().to(mask.device)[mask].any():
        raise ValueError("rule must return numbers, got NaN at a hidden coordinate.")
