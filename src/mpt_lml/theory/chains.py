"""Masked training on an endless stationary Markov chain: information by blocks between visible places.

Hide a share ρ of a long chain at random. The hidden places fall into blocks, each between two visible
ones, and a block of k comes up (1 − ρ)² ρᵏ times per place. Given what is visible, blocks are
independent, and each score has mean zero. So the information H and the noise J of masked scores are
sums over blocks (note A).

Axes: Q states, K block lengths, S shares that are hidden.
"""

from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.checks import (
    Count,
    Interval,
    check,
    checked,
    require_entries,
    require_row_sums,
)
from mpt_lml.numerics import double

__all__ = ["ChainBlocks", "markov_blocks", "rate_efficiency", "rate_noise"]

MAX_TAIL_SHARE = 1e-3
"""Largest share of a sum over blocks in those longer than the longest known one."""

MAX_ROUNDING = 1e-6
"""Largest share of a stationary probability that may be rounding."""

_SLACK = 1e-9  # of sums that are 1 or 0 in exact arithmetic


class ChainBlocks(NamedTuple):
    """Sensitivity and variability of the scores of hidden blocks of k = 1, ..., K places, nats.

    :func:`markov_blocks` makes one of a chain of few states; those of another chain are given by hand.

    >>> blocks = ChainBlocks(torch.ones(3), torch.full((3,), 2.0), 0.5)
    >>> blocks.information
    0.5
    """

    sensitivity: Float[Tensor, " K"]
    """H_k: the sum over its places of E (∂ log p(x_j | both ends))²."""
    variability: Float[Tensor, " K"]
    """J_k: the variance of the sum of these derivatives."""
    information: float
    """Fisher information of the chain, per place."""

    @property
    def data_device(self) -> torch.device:
        """The device of these numbers."""
        return self.sensitivity.device


@checked
def markov_blocks(
    transition: Float[Tensor, "Q Q"],
    derivative: Float[Tensor, "Q Q"],
    num_blocks: Count,
) -> ChainBlocks:
    """H_k and J_k of a stationary chain of Q states with one parameter, exact.

    With T the transitions, n = k + 1 and ends a and b,
    p(x_j | a, b) = T^j[a, x] T^(n−j)[x, b] / Tⁿ[a, b].

    Args:
        transition: T, rows that sum to 1, every entry positive, (Q, Q).
        derivative: ∂T/∂θ, rows that sum to 0, (Q, Q).
        num_blocks: K, the longest block.

    Returns:
        Sums for k = 1, ..., K, and the information per place, in the precision of ``transition``.

    Raises:
        ValueError: for entries that are not positive, rows that do not sum to 1, or to 0 (1e-9 in
            double precision, of ``derivative`` relative to its largest entry; 1e-6 in single), and for a
            chain with states so rarely visited, or so rarely left (both below some 1e-9), that its
            stationary law would be rounding.

    >>> coin = torch.tensor([[0.75, 0.25], [0.25, 0.75]]).double()
    >>> turn = torch.tensor([[0.5, -0.5], [-0.5, 0.5]]).double()
    >>> markov_blocks(coin, turn, 2).sensitivity
    tensor([1.6000, 3.6571], dtype=torch.float64)
    """
    require_entries(
        "transition", transition, transition <= 0, "positive", "No step may be impossible."
    )
    tolerance = max(_SLACK, 10 * torch.finfo(transition.dtype).eps)
    require_row_sums("transition", transition, 1.0, tolerance)
    # A derivative is as large as its parameter's unit says.
    largest = derivative.abs().max().item()
    require_row_sums("derivative", derivative, 0.0, tolerance, unit=largest)
    num_states = len(transition)
    dtype = transition.dtype
    transition = double(transition)
    derivative = double(derivative)
    power, relative = _powers(transition, derivative, num_blocks + 1)
    stationary = _stationary(transition)
    sensitivity = torch.zeros(num_blocks).to(transition)
    covariance = torch.zeros(num_blocks).to(transition)
    # E of what the places before j say, given x_j, both ends and k; all blocks of k ≥ j at once.
    # Axes: block length k, left end a, symbol x at place j, right end b.
    earlier = torch.zeros(num_blocks, num_states, num_states, num_states).to(transition)
    for place in range(1, num_blocks + 1):
        length = torch.arange(place, num_blocks + 1)
        to_end = length + 1 - place
        reached = (stationary[:, None] * power[place])[:, :, None]
        ends = power[to_end][:, None]
        score = relative[place][:, :, None] + relative[to_end][:, None]
        score = score - relative[length + 1][:, :, None]
        sensitivity[place - 1 :] += (reached * ends * score.square()).sum(dim=(1, 2, 3))
        covariance[place - 1 :] += (earlier * ends * score).sum(dim=(1, 2, 3))
        earlier = torch.einsum("kaxb,xy->kayb", earlier + reached * score, transition)[1:]
    information = (stationary[:, None] * derivative * (derivative / transition)).sum()
    return ChainBlocks(
        sensitivity=sensitivity.to(dtype),
        variability=(sensitivity + 2.0 * covariance).to(dtype),
        information=information.item(),
    )


def _powers(transition: Tensor, derivative: Tensor, highest: int) -> tuple[Tensor, Tensor]:
    """Tⁿ and ∂ log Tⁿ[a, b] for n = 0, 1, ..., (n, Q, Q) each; the second is 0 for n = 0."""
    powers = [torch.eye(len(transition)).to(transition)]
    changes = [torch.zeros_like(transition)]  # of the powers, by the product rule
    for _ in range(highest):
        changes.append(changes[-1] @ transition + powers[-1] @ derivative)
        powers.append(powers[-1] @ transition)
    power = torch.stack(powers)
    relative = torch.stack(changes)
    relative[1:] /= power[1:]
    return power, relative


def _stationary(transition: Float[Tensor, "Q Q"]) -> Float[Tensor, " Q"]:
    """The law π with π T = π, by a linear system: π (I − T + 1) = 1, with 1 for ones everywhere."""
    ones = torch.ones_like(transition)
    system = torch.eye(len(ones)).to(ones) - transition + ones
    law = torch.linalg.solve_ex(system.T, ones[0]).result
    rounding = torch.finfo(law.dtype).eps * torch.linalg.cond(system)
    if not rounding < MAX_ROUNDING * law.min():  # infinite where the system is singular
        raise ValueError(
            "transition must not have states that are next to never visited, nor sets of states that "
            f"are next to never left, but its smallest entry is {transition.min().item():.3g}: the "
            "stationary law would be rounding. Look at each set as a chain of its own."
        )
    return law


def _per_place(
    of_block: Float[Tensor, " K"], information: float, hidden_share: Tensor
) -> Float[Tensor, " S"]:
    """Σ_k (1 − ρ)² ρᵏ times what a block of k has, if the blocks beyond K add next to nothing.

    These are estimated by a geometric series. A block has at most k² (k + 1) times the information, but
    in a chain that nearly repeats itself most of the noise is in every second or third length, so that
    the next may have several times what the last has. So the series begins with the last, or with the
    information where that is more, and grows in each place as k³ does in two.
    """
    num_blocks = len(of_block)
    length = torch.arange(1, num_blocks + 1).to(hidden_share)
    often = (1.0 - hidden_share[:, None]).square() * hidden_share[:, None] ** length
    total = (often * of_block.to(often)).sum(dim=1)
    last = max(of_block[-1].item(), information)
    ratio = hidden_share * ((num_blocks + 2) / num_blocks) ** 3
    left_out = often[:, -1] * last * ratio / (1.0 - ratio)
    is_wrong = (ratio >= 1.0) | (left_out > MAX_TAIL_SHARE * total)
    legal = f"so small that blocks of more than K = {num_blocks} places add nothing"
    hint = "Ask markov_blocks for longer ones (num_blocks), or leave these shares out."
    require_entries("hidden_share", hidden_share, is_wrong, legal, hint)
    return total


@checked
def rate_efficiency(blocks: ChainBlocks, hidden_share: Float[Tensor, " S"]) -> Float[Tensor, " S"]:
    """Efficiency of one random mask per datum of each rate, relative to maximum likelihood.

    (Σ_k (1 − ρ)² ρᵏ H_k)² / (i Σ_k (1 − ρ)² ρᵏ J_k), with i the information per place: what a long
    chain tends to.

    Args:
        blocks: such as :func:`markov_blocks` gives.
        hidden_share: ρ, between 0 and 1, neither included, (S,).

    Returns:
        A share, (S,).

    Raises:
        ValueError: for a share that is not between 0 and 1, or so large that blocks longer than the
            last of ``blocks`` would add more than a thousandth, and for ``blocks`` that are no means of
            squares or tell nothing.

    >>> blocks = ChainBlocks(torch.full((200,), 2.0), torch.full((200,), 2.0), 1.0)
    >>> rate_efficiency(blocks, torch.tensor([0.25, 0.5]))  # 2 ρ (1 − ρ)
    tensor([0.3750, 0.5000])
    """
    _require_shares(hidden_share)
    _require_blocks(blocks, "sensitivity", "variability")
    sensitivity = _per_place(blocks.sensitivity, blocks.information, hidden_share)
    variability = _per_place(blocks.variability, blocks.information, hidden_share)
    return sensitivity / variability * (sensitivity / blocks.information)


@checked
def rate_noise(blocks: ChainBlocks, hidden_share: Float[Tensor, " S"]) -> Float[Tensor, " S"]:
    """j(ρ): the noise of ∇ D·S at a rate, in units of the information, per place.

    With weights that keep log p(x), a law of rates of density f has 1/eff₁ = ∫ j(ρ)/f(ρ) dρ.

    Args:
        blocks: such as :func:`markov_blocks` gives.
        hidden_share: ρ, between 0 and 1, neither included, (S,).

    Returns:
        (S,); near ρ = 0 it grows like J_1/(i ρ).

    Raises:
        ValueError: for a share that is not between 0 and 1, or so large that blocks longer than the
            last of ``blocks`` would add more than a thousandth, and for ``blocks`` that are no means of
            squares or tell nothing.

    >>> blocks = ChainBlocks(torch.full((200,), 2.0), torch.full((200,), 2.0), 1.0)
    >>> rate_noise(blocks, torch.tensor([0.5])).round(decimals=3)  # 2 (1 − ρ)/ρ
    tensor([2.])
    """
    _require_shares(hidden_share)
    _require_blocks(blocks, "variability")
    variability = _per_place(blocks.variability, blocks.information, hidden_share)
    return variability / (hidden_share.square() * blocks.information)


def _require_shares(hidden_share: Tensor) -> None:
    is_wrong = (hidden_share <= 0) | (hidden_share >= 1)
    legal = "between 0 and 1, neither included"
    require_entries(
        "hidden_share", hidden_share, is_wrong, legal, "A rate is a share, not a percentage."
    )


_Information = Annotated[
    float,
    Interval(
        "(0,inf)",
        "A share of no information is not defined: is the derivative of the transitions 0?",
    ),
]


def _require_blocks(blocks: ChainBlocks, *names: str) -> None:
    """Check what is read of blocks that may have been made by hand: means of squares."""
    check(*((f"blocks.{name}", getattr(blocks, name), Float[Tensor, " K"]) for name in names))
    check(("blocks.information", blocks.information, _Information))
    for name in names:
        values = getattr(blocks, name)
        slack = _SLACK * values.abs().max()  # J_k is a sum of terms of either sign
        remedy = "It is a mean of squares."
        require_entries(f"blocks.{name}", values, values < -slack, "not negative", remedy)
    if not blocks.variability.any():
        raise ValueError("blocks.variability must not be 0 everywhere: such blocks say nothing.")
