"""A hidden Markov model: a language whose every conditional is known exactly."""

from typing import Annotated, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import (
    Count,
    Data,
    Interval,
    Within,
    checked,
    require_row_sums,
)
from mpt_lml.models.base import TractableModel, require_pairs, require_values
from mpt_lml.numerics import CACHE_BYTES, double, draw_uniform, num_at_once, pick

__all__ = ["HMM"]

_SMALLEST_MOVE = 1e-280
"""Least transition for which terms that underflow (1e-308) are below the last digit of a sum."""


@final
class HMM(TractableModel):
    """Sequences of D symbols, each emitted by a latent state that moves as a Markov chain.

    p(x) = Σ_z initial[z_1] emission[z_1, x_1] Π_{j>1} transition[z_{j−1}, z_j] emission[z_j, x_j]

    The forward-backward algorithm (Rabiner 1989, Section III) keeps p(x_R before j, z_j) and
    p(x_R after j | z_j) of every state as logarithms. However improbable a state has become, its
    probability does not underflow: later symbols may make it the most probable one.

    Tables in single precision give answers in single precision, computed in double, since rounding
    adds up over long sequences. Transitions below 1e-280, such as 0, cost several times as much.

    Args:
        initial: of the first state, (Q,). Of a table with a 0 there are no derivatives: they are NaN.
        transition: of state r after state q, (Q, Q). Zeros as in ``initial``.
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
        self._pairs_at_once = num_at_once(bytes_of_a_sequence, CACHE_BYTES // 2)
        # As one of Python's numbers: in single precision 1e-280 is 0.
        self._moves_anywhere = transition.min().item() >= _SMALLEST_MOVE

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
        """The book's language: states on a circle, each of which prefers a few symbols.

        A state is followed by its successor (.7), by itself (.2) or by the one after the successor
        (.05); the last .05 is spread evenly. The first state is uniform, the chain's stationary law.

        Args:
            num_states: Q.
            num_symbols: V, a multiple of Q.
            num_features: D, the length of a sequence.
            preferred: share of a state's emissions that its preferred symbols have.

        Returns:
            The model, in double precision.

        Raises:
            ValueError: for V that is no multiple of Q.
        """
        if num_symbols % num_states:
            raise ValueError(f"num_symbols must be a multiple of {num_states}, got {num_symbols}.")
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

    @property
    def data_device(self) -> torch.device | None:
        return self.emission.device

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
        return self._in_batches(self._log_states, x, ~observed)

    def _log_states(self, x: Tensor, mask: Tensor) -> Tensor:
        log_evidence = self._log_evidence(self._log_emitted(x), mask)
        log_states = (self._around(log_evidence) + log_evidence).log_softmax(dim=1)
        return log_states.permute(2, 0, 1).contiguous().to(self.emission)

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        shape = (2, self.num_features, n)
        uniform = draw_uniform(shape, generator=generator, like=self.initial)
        symbols = []
        weights = self.initial.expand(n, -1)
        for pick_state, pick_symbol in zip(*uniform, strict=True):
            state = pick(weights, pick_state)
            symbols.append(pick(self.emission[state], pick_symbol))
            weights = self.transition[state]
        return torch.stack(symbols, dim=1)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return self._every_pair(self._log_observed, x, ~observed)

    def _log_observed(self, x: Tensor, mask: Tensor) -> Float[Tensor, " B"]:
        """log p(x_R) of every pair."""
        log_evidence = self._log_evidence(self._log_emitted(x), mask)
        before, scales = self._forward(log_evidence)
        log_probability = (before[-1] + log_evidence[-1]).logsumexp(dim=0)
        log_probability = log_probability + torch.stack(scales).sum(dim=0)
        return log_probability.to(self.emission)

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        log_emitted = self._log_emitted(x)
        log_states = self._around(self._log_evidence(log_emitted, mask)).log_softmax(dim=1)
        # p(x_j | x_R) = Σ_q p(z_j = q | x_R) emission[q, x_j] of a masked j, which is not in R.
        log_each = (log_states + log_emitted).logsumexp(dim=1)
        return log_each.T.contiguous().to(self.emission)

    def _log_emitted(self, x: Int[Tensor, "B D"]) -> Float[Tensor, "D Q B"]:
        """log p(x_j | z_j) of every place j."""
        shape = (self.num_features, self.num_states, len(x))
        log_emission = double(self.emission).log().expand(*shape[:2], -1)
        return log_emission.gather(2, x.T[:, None].expand(shape))

    def _log_evidence(
        self, log_emitted: Float[Tensor, "D Q B"], mask: Bool[Tensor, "B D"]
    ) -> Float[Tensor, "D Q B"]:
        """log p(x_j | z_j) where x_j is observed, and log 1 where it is masked: any symbol is emitted."""
        # As a product: torch.where takes twice as long. All logarithms are finite.
        is_observed = (~mask).T.contiguous()[:, None]
        return log_emitted * is_observed.to(log_emitted)

    def _forward(
        self, log_evidence: Float[Tensor, "D Q B"]
    ) -> tuple[list[Float[Tensor, "Q B"]], list[Float[Tensor, " B"]]]:
        """log p(x_R before j, z_j) of every place j, less the scales of 1, ..., j, and these scales."""
        message = double(self.initial).log()[:, None].expand_as(log_evidence[0])
        messages = [message]
        scales = [torch.zeros_like(log_evidence[0, 0])]
        arriving = double(self.transition).T.contiguous()
        for evidence in log_evidence[:-1].unbind():
            message, scale = self._step(message + evidence, arriving)
            messages.append(message)
            scales.append(scale)
        return messages, scales

    def _around(self, log_evidence: Float[Tensor, "D Q B"]) -> Float[Tensor, "D Q B"]:
        """log p(x_R but for x_j, z_j) of every place j, less a number for each place and sequence."""
        before, _ = self._forward(log_evidence)
        after = torch.zeros_like(log_evidence[0])  # log p(x_R after j | z_j), less its scales
        around = [before[-1] + after]
        leaving = double(self.transition)
        steps_back = zip(reversed(before[:-1]), reversed(log_evidence[1:].unbind()), strict=True)
        for message, evidence in steps_back:
            after, _ = self._step(after + evidence, leaving)
            around.append(message + after)
        return torch.stack(around[::-1])

    def _step(
        self, message: Float[Tensor, "Q B"], moves: Float[Tensor, "R Q"]
    ) -> tuple[Float[Tensor, "R B"], Float[Tensor, " B"]]:
        """log Σ_q ``moves``[r, q] exp(message_q) of every state r, less a scale, and the scale.

        The scale is the largest message. Relative to it messages stay near 0 and keep their digits;
        without it they would grow with the length of the sequence.
        """
        scale = message.detach().amax(dim=0)
        relative = message - scale
        if self._moves_anywhere:
            return (moves @ relative.exp_()).log(), scale
        # Some state may be reached only from states that have become too improbable for exp: here
        # each sum is taken relative to its largest term.
        return (moves.log()[:, :, None] + relative).logsumexp(dim=1), scale


def _require_table(name: str, table: Tensor) -> None:
    """Check that the rows of ``table`` (..., V) are probabilities."""
    if (table < 0).any():
        raise ValueError(f"{name} must be finite and not negative, got {table.min().item()}.")
    require_row_sums(name, table, 1.0, 1e-9 if table.dtype == torch.float64 else 1e-5)
