"""A user's function as a model of tokens: what it answers is checked, and tried at the start."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpt_lml.checks import require_ids
from mpt_lml.models.base import require_log_probabilities

MOST_OFF = 0.05
"""Of the logarithm of a sum of probabilities that is 1: bfloat16 has three digits."""

LogTokenValues = Callable[[Tensor, Tensor], Tensor]
"""(ids (B, L) int64, mask (B, L) bool) → log-probabilities (B, L, V), nats."""


class TokenFunction:
    """log q(x_j | x_R) by a function of token ids and masks.

    Args:
        function: (ids (B, L) int64, mask (B, L) bool, True = masked) → log-probabilities (B, L, V),
            nats.
        mask_token: what ``function`` is shown at masked places. Where it is None it is shown the token
            itself there, and must not read it.
    """

    def __init__(self, function: LogTokenValues, mask_token: int | None) -> None:
        self.function = function
        self.mask_token = mask_token
        self.vocab_size: int | None = None  # not known before the first answer

    def log_tokens(self, ids: Tensor, mask: Tensor, **_: Any) -> Tensor:
        """log q of the masked tokens, nats, (B, L); 0 where not masked."""
        values = self._answer(ids, mask)
        _require_sums(values, mask)
        wanted = ids[mask][:, None]
        require_ids("ids", wanted, values.shape[-1])
        # Chosen where the function answered: of V numbers a token, one leaves the GPU.
        chosen = values.gather(1, wanted.to(values.device))
        result = torch.zeros(ids.shape, dtype=torch.float64)
        return result.masked_scatter(mask, chosen.cpu().double())  # Apple's GPUs have no float64

    def try_once(self, ids: Tensor, mask: Tensor) -> None:
        """Try the function on one row, the first time that it is asked.

        Raises:
            ValueError: for logits, and for answers that depend on what is hidden: such a function
                knows what it scores.
        """
        if self.vocab_size is not None:
            return
        self.vocab_size = require_log_probabilities("the function", self._log_values, ids, mask)

    def _log_values(self, ids: Tensor, mask: Tensor) -> Tensor:
        """log q of every value of the M masked tokens, (M, V), float64, on the CPU."""
        return self._answer(ids, mask).cpu().double()

    @torch.no_grad()
    def _answer(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The same as the function gave it."""
        shown = ids if self.mask_token is None else ids.masked_fill(mask, self.mask_token)
        try:
            values = self.function(shown.clone(), mask.clone())  # which it may write into
        except Exception as error:
            error.add_note(hint_of(error, ids))
            raise
        _require_answer(values, ids)
        return values[mask.to(values.device)]


def hint_of(error: Exception, ids: Tensor) -> str:
    """What torch's own messages leave open where a function fails; "" where that is nothing.

    Args:
        error: of the function.
        ids: what it was asked of, (B, L).
    """
    if not isinstance(error, IndexError | RuntimeError):
        return ""
    shape = tuple(ids.shape)
    return (
        f"It was given two tensors on the CPU: ids {shape}, int64, and the mask {shape}, bool. A "
        f"function does not say its length: if rows of {ids.shape[1]} tokens are too long for it, "
        "give max_length= (--max-length)."
    )


def _first_of_each_row(mask: Tensor) -> Tensor:
    """Of each row's hidden places the first one, (B, L)."""
    return mask & (mask.cumsum(dim=1) == 1)


def _require_sums(values: Tensor, mask: Tensor) -> None:
    """Check that probabilities add up to 1 at one hidden place of each row.

    Args:
        values: of the M hidden tokens, (M, V), nats, of any precision. NaN is let through: who uses it
            can say where.
        mask: (B, L).

    Raises:
        ValueError: with the sum, and how much was hidden.
    """
    is_first = _first_of_each_row(mask)[mask]
    few = values[is_first.to(values.device)].cpu().double()
    log_total = few.logsumexp(dim=-1)
    is_off = log_total.abs() > MOST_OFF
    if is_off.any():
        worst = int(is_off.long().argmax())
        num_hidden = mask.sum(dim=1)
        count = int(num_hidden[num_hidden > 0][worst])
        raise ValueError(
            "the function must return logarithms of probabilities, but where it hides "
            f"{count} of {mask.shape[1]} tokens they add up to {log_total[worst].exp():.4g}, not to 1: "
            "return logits.log_softmax(dim=-1)."
        )


def _require_answer(values: Any, ids: Tensor) -> None:
    """Check that a function has answered a dense floating-point tensor (B, L, V)."""
    if not isinstance(values, Tensor):
        raise TypeError(
            "the function must return log-probabilities as a torch tensor (B, L, V), got "
            f"{type(values).__module__}.{type(values).__qualname__}."
        )
    if values.ndim != 3 or values.shape[:2] != ids.shape:
        raise ValueError(
            f"the function must return log-probabilities (B, L, V) for ids (B, L) = "
            f"{tuple(ids.shape)}, got {tuple(values.shape)}."
        )
    if values.layout != torch.strided or values.is_meta or not values.is_floating_point():
        got = "a meta tensor" if values.is_meta else f"{values.layout}, {values.dtype}"
        raise TypeError(f"the function must return a dense floating-point tensor, got {got}.")
