"""A hidden Markov model: a language whose every conditional is known exactly."""

import math
from typing import Annotated, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import (
    Count,
    Data,
    Interval,
    Within,
    checked,
    require_memory,
    require_values,
    rounded_to_single,
)
from mpt_lml.models.base import TractableModel, require_pairs
from mpt_lml.numerics import double, pick

__all__ = ["HMM"]

CACHE_BYTES = 2**21
"""2 MiB, a core's cache: the messages of one batch of sequences stay in it."""

_SMALLEST_FACTOR = 1e-80
"""Where every transition and emission is at least this, no product of scaled messages underflows."""

_EXPONENT_OF_ZERO = -1e12  # far below that of any message, and its sums are still whole numbers
_SMALLEST_EXPONENT = -1000.0  # of a mantissa that is scaled: 2^1000 is still a float


@final
class HMM(TractableModel):
    """Sequences of D symbols, each emitted by a hidden state that moves as a Markov chain.

    p(x) = Σ_z initial[z_1] emission[z_1, x_1] Π_{j>1} transition[z_{j−1}, z_j] emission[z_j, x_j]

    Tables in single precision give answers in single precision, computed in double, since rounding
    adds up over long sequences. Transitions or emissions below 1e-80, such as 0, cost several times
    as much.

    Args:
        initial: of the first state, (Q,); may have zeros.
        transition: of state r after state q, (Q, Q); may have zeros.
        emission: of symbol v in state q, (Q, V); positive, so that every sequence has a finite
            log-probability, and no conditional is asked of an event that cannot happen.
        num_features: D.

    Raises:
        TypeError: for tables that are not floating point.
        ValueError: for tables that do not fit, or do not sum to 1 in each row (1e-9 in double
            precision, 1e-5 in single).

    >>> language = HMM.cyclic(num_features=4)
    >>> x = language.sample(5, generator=torch.Generator().manual_seed(0))
    >>> language.log_conditional(x, torch.tensor([[True, True, False, False]])).shape
    torch.Size([1, 5, 4])
    """

    num_values: int

    @checked
    def __init__(
        self,
        initial: Float[Tensor, " Q"],
        transition: Float[Tensor, "Q Q"],
        emission: Float[Tensor, "Q V"],
        num_features: Count,
    ) -> None:
        _require_table("initial", initial)
        _require_table("transition", transition)
        _require_table("emission", emission)
        if not (emission > 0).all():
            state, symbol = (emission <= 0).nonzero()[0].tolist()
            raise ValueError(f"emission must be positive, but emission[{state}, {symbol}] is 0.")
        self.initial = initial
        self.transition = transition
        self.emission = emission
        self.num_features = num_features
        self.num_states, self.num_values = emission.shape
        bytes_of_a_sequence = 8 * num_features * self.num_states
        self._pairs_at_once = max(1, CACHE_BYTES // bytes_of_a_sequence)

    @classmethod
    @checked
    def cyclic(
        cls,
        num_states: Annotated[int, Within(3)] = 6,
        num_symbols: Annotated[int, Within(3)] = 12,
        num_features: Count = 16,
        *,
        preferred: Annotated[float, Interval("(0,1)")] = 0.95,
    ) -> "HMM":
        """The book's language: states on a circle, each with its own few symbols.

        A state is followed by its successor (.7), by itself (.2) or by the one after the successor
        (.05); the last .05 is spread evenly. The first state is uniform, the chain's stationary law.

        Args:
            num_states: Q.
            num_symbols: V, a multiple of Q.
            num_features: D, the length of a sequence.
            preferred: share of a state's emissions that its own symbols have.

        Returns:
            The model, in double precision.

        Raises:
            ValueError: for V that is no multiple of Q, and tables that no memory holds.
        """
        num_entries = num_states * (num_states + num_symbols)
        what = f"tables of {num_entries} probabilities"
        require_memory(what, 8 * num_entries, "fewer states or symbols")
        if num_symbols % num_states:
            raise ValueError(f"num_symbols must be a multiple of {num_states}, got {num_symbols}.")
        preferred = float(preferred)  # in single precision 1 - preferred makes rows miss a sum of 1
        circle = torch.eye(num_states, dtype=torch.float64)
        move = 0.2 * circle + 0.7 * circle.roll(1, dims=1) + 0.05 * circle.roll(2, dims=1)
        num_preferred = num_symbols // num_states
        num_others = num_symbols - num_preferred
        is_preferred = circle.repeat_interleave(num_preferred, dim=1)
        emission = (
            is_preferred * preferred / num_preferred
            + (1 - is_preferred) * (1 - preferred) / num_others
        )
        initial = torch.full_like(circle[0], 1.0 / num_states)
        return cls(initial, move + 0.05 / num_states, emission, num_features)

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is (N, D), int64, with symbols in 0..V−1."""
        require_values(x, [self.num_values] * self.num_features)

    @checked
    def log_posterior(self, x: Data, observed: Bool[Tensor, "N D"]) -> Float[Tensor, "N D Q"]:
        """log p(z_j | x_R) of the state behind every symbol, hidden or not, one set R a sequence.

        It is all that the visible symbols tell about place j: p(x_j | x_R) of a hidden symbol is
        Σ_q p(z_j = q | x_R) emission[q, x_j].

        Args:
            x: sequences, (N, D), int64. What stands where ``observed`` is False is not read.
            observed: the set R of each sequence, (N, D), boolean; True means in R.

        Returns:
            Nats, (N, D, Q); −inf for a state that cannot be.

        Raises:
            TypeError: for sets that are not boolean, or symbols that are not int64.
            ValueError: for a symbol outside 0..V−1, or another number of sets than of sequences.

        >>> language = HMM.cyclic(num_features=4)
        >>> x = torch.zeros(1, 4, dtype=torch.int64)
        >>> language.log_posterior(x, torch.tensor([[True, False, False, True]])).argmax(dim=2)
        tensor([[0, 1, 5, 0]])
        """
        require_pairs(x, observed)
        with self._precision():
            return self._in_batches(self._log_states, x, ~observed)

    def _log_states(self, x: Tensor, mask: Tensor) -> Tensor:
        factors = self._factors(x, mask)
        forward, _ = self._forward_extended(factors)
        weights = forward.times(_Extended.of(factors)).times(self._backward_extended(factors))
        total = weights.sum(dim=2)
        each = _Extended(total.mantissa[..., None], total.exponent[..., None])
        return weights.log_ratio(each).transpose(0, 1).to(self.emission)

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        shape = (2, self.num_features, n)
        uniform = torch.rand(shape, generator=generator, dtype=self.initial.dtype)
        symbols = []
        weights = self.initial.expand(n, -1)
        for pick_state, pick_symbol in zip(*uniform.to(self.initial.device), strict=True):
            state = pick(weights, pick_state)
            symbols.append(pick(self.emission[state], pick_symbol))
            weights = self.transition[state]
        return torch.stack(symbols, dim=1)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return self._every_pair(self._log_observed, x, ~observed)

    def _log_observed(
        self, x: Int[Tensor, "B D"], mask: Bool[Tensor, "B D"]
    ) -> Float[Tensor, " B"]:
        """log p(x_R) of every pair."""
        factors = self._factors(x, mask)
        if self._keeps_every_state():
            log_probability = self._forward(factors)[1]
        else:
            log_probability = self._forward_extended(factors)[1]
        return log_probability.to(self.emission)

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        factors = self._factors(x, mask)
        # p(x_j | z_j), of which ``factors`` has only what is observed.
        emission = double(self.emission).T[x.T]
        # With z_j's own factor left out: p(x_j | x_R) for a masked j, since x_j is not in R.
        if self._keeps_every_state():
            before, _ = self._forward(factors)
            log_conditional = self._log_emitted(before, factors, emission)
        else:
            forward, _ = self._forward_extended(factors)
            weights = forward.times(self._backward_extended(factors))
            emitted = weights.times(_Extended.of(emission)).sum(dim=2)
            log_conditional = emitted.log_ratio(weights.sum(dim=2))
        return log_conditional.T.to(self.emission)

    def _factors(self, x: Int[Tensor, "B D"], mask: Bool[Tensor, "B D"]) -> Tensor:
        """p(x_j | z_j) where x_j is observed and 1 where it is masked, (D, B, Q), float64."""
        # A masked coordinate is one more symbol, which every state emits with "probability" 1.
        symbols = torch.where(mask, self.num_values, x).T.contiguous()
        ones = torch.ones(1, self.num_states, dtype=torch.float64, device=x.device)
        return torch.cat([double(self.emission).T, ones])[symbols]

    def _keeps_every_state(self) -> bool:
        """Whether messages that sum to 1 keep all that they know of every state.

        After a step no state has less than the smallest transition, whatever was observed before, so
        that the products below stay above the cube of ``_SMALLEST_FACTOR``. A zero lets a state sink
        step by step, until it underflows; yet what comes later may speak for no other.
        """
        smallest = min(self.transition.min().item(), self.emission.min().item())
        return smallest >= _SMALLEST_FACTOR  # as Python's numbers: in single precision that is 0

    def _forward(self, factors: Tensor) -> tuple[list[Tensor], Tensor]:
        """p(z_j | x_R before j), (B, Q), of every j, and log p(x_R), (B,)."""
        beliefs = []
        totals = []
        belief = double(self.initial).expand(factors.shape[1:])
        transition = double(self.transition)
        for factor in factors:
            beliefs.append(belief)
            joint = belief * factor
            total = joint.sum(dim=1)
            totals.append(total)
            belief = (joint / total[:, None]) @ transition
        return beliefs, torch.stack(totals).log().sum(dim=0)

    def _log_emitted(self, before: list[Tensor], factors: Tensor, emission: Tensor) -> Tensor:
        """log p(x_j | x_R), (D, B), from p(z_j | x_R before j) and p(x_j | z_j).

        What comes after, p(x_R after j | z_j), is scaled to sum to 1 over z_j and needed only once:
        step by step, what is small enough stays in a cache.
        """
        ratios = []
        message = torch.ones_like(factors[0])
        transition_back = double(self.transition).T.contiguous()
        steps_back = zip(
            reversed(before), reversed(factors.unbind()), reversed(emission.unbind()), strict=True
        )
        for belief, factor, emitted in steps_back:
            scaled = message / message.sum(dim=1, keepdim=True)
            states = belief * scaled
            ratios.append((states * emitted).sum(dim=1) / states.sum(dim=1))
            message = (scaled * factor) @ transition_back
        return torch.stack(ratios[::-1]).log()

    def _forward_extended(self, factors: Tensor) -> tuple["_Extended", Tensor]:
        """p(x_R before j, z_j), (D, B, Q), and log p(x_R), (B,)."""
        messages: list[_Extended] = []
        message = _Extended.of(double(self.initial).expand(factors.shape[1:]))
        transition = _Extended.of(double(self.transition))
        for factor in _Extended.of(factors).unbind():
            messages.append(message)
            joint = message.times(factor)
            from_every_state = joint.unsqueeze(2).times(transition)  # (B, Q, Q)
            message = from_every_state.sum(dim=1)
        return _Extended.stack(messages), joint.sum(dim=1).log()

    def _backward_extended(self, factors: Tensor) -> "_Extended":
        """p(x_R after j | z_j), (D, B, Q)."""
        messages: list[_Extended] = []
        message = _Extended.of(torch.ones_like(factors[0]))
        transition = _Extended.of(double(self.transition))
        for factor in _Extended.of(factors.flip(0)).unbind():
            messages.append(message)
            joint = message.times(factor)
            to_every_state = joint.unsqueeze(1).times(transition)
            message = to_every_state.sum(dim=2)
        return _Extended.stack(messages[::-1])


class _Extended(NamedTuple):
    """Numbers >= 0, each mantissa · 2^exponent, of which no product underflows.

    Log-probabilities would do, but they lose digits: with log p = −10^6 they know a ratio of two
    numbers to 1e-10 only, and each step of a chain rounds once more.
    """

    mantissa: Tensor
    exponent: Tensor  # whole numbers

    @classmethod
    def of(cls, values: Tensor) -> "_Extended":
        """The same numbers with mantissas in [1/2, 1), smaller ones for numbers below 2^−1000."""
        exponent = values.detach().frexp().exponent.to(values).clamp(min=_SMALLEST_EXPONENT)
        mantissa = values * (-exponent).exp2()
        return cls(mantissa, exponent.masked_fill(values == 0, _EXPONENT_OF_ZERO))

    @classmethod
    def stack(cls, numbers: list["_Extended"]) -> "_Extended":
        mantissas = torch.stack([number.mantissa for number in numbers])
        exponents = torch.stack([number.exponent for number in numbers])
        return cls(mantissas, exponents)

    def unbind(self) -> list["_Extended"]:
        pairs = zip(self.mantissa, self.exponent, strict=True)
        return [_Extended(mantissa, exponent) for mantissa, exponent in pairs]

    def unsqueeze(self, dim: int) -> "_Extended":
        return _Extended(self.mantissa.unsqueeze(dim), self.exponent.unsqueeze(dim))

    def times(self, other: "_Extended") -> "_Extended":
        return _Extended(self.mantissa * other.mantissa, self.exponent + other.exponent)

    def sum(self, dim: int) -> "_Extended":
        """Relative to the largest exponent: what underflows there is below the last digit."""
        largest = self.exponent.amax(dim=dim, keepdim=True)
        relative = self.mantissa * (self.exponent - largest).exp2()
        total = _Extended.of(relative.sum(dim=dim))
        exponent = (total.exponent + largest.squeeze(dim)).clamp(min=_EXPONENT_OF_ZERO)
        return _Extended(total.mantissa, exponent)

    def log(self) -> Tensor:
        return self.mantissa.log() + math.log(2.0) * self.exponent

    def log_ratio(self, other: "_Extended") -> Tensor:
        """log of ``self`` / ``other``, with the exponents subtracted before they are rounded."""
        ratio = (self.mantissa / other.mantissa).log()
        return ratio + math.log(2.0) * (self.exponent - other.exponent)


def _require_table(name: str, table: Tensor) -> None:
    """Check that the rows of ``table`` (..., V) are probabilities."""
    if (table < 0).any():
        raise ValueError(f"{name} must be finite and not negative, got {table.min().item()}.")
    worst = (table.sum(dim=-1) - 1.0).abs().max().item()
    tolerance = 1e-9 if table.dtype == torch.float64 else 1e-5
    if worst > tolerance:
        hint = rounded_to_single(table.dtype, worst)
        raise ValueError(
            f"{name} must sum to 1 in every row, one is off by {worst:.2g}. Divide each by its sum."
            f"{hint}"
        )
