"""A user's function as a model of tokens: what it answers is checked, and tried at the start."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpt_lml.checks import require_ids
from mpt_lml.models.trial import require_normalized, try_log_values

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
        self._require_normalized(values, mask)
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
        self.vocab_size = try_log_values("the function", self._log_values, ids, mask)

    def _require_normalized(self, values: Tensor, mask: Tensor) -> None:
        """Check the first hidden place of each row; ``values`` has all of them, (M, V)."""
        is_first = (mask & (mask.cumsum(dim=1) == 1))[mask]
        few = values[is_first.to(values.device)].cpu().double()
        num_hidden = mask.sum(dim=1)
        num_hidden = num_hidden[num_hidden > 0]
        require_normalized("the function", few, num_hidden, num_features=mask.shape[1])

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
