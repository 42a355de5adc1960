"""A user's function as a model of tokens: what it answers is checked, and tried at the start."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mpt_lml.models.trial import (
    require_no_leakage,
    require_normalized,
    validate_conditionals,
    with_hidden_replaced,
)
from mpt_score.batch_store import BatchStore, digest_of
from mpt_score.networks.kinds import require_ids

_log = logging.getLogger(__name__)

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
        self._longest_tried = 0  # tokens of a row
        self.store: BatchStore | None = None  # of a run that may be stopped
        self.count_passes: Callable[[int], object] | None = None  # of a run that shows its progress

    def log_tokens(self, ids: Tensor, mask: Tensor, **_: Any) -> Tensor:
        """log q of the masked tokens, nats, (B, L); 0 where not masked."""
        return self.log_tokens_of(ids, torch.arange(len(ids)), ids, mask)

    def log_tokens_of(self, tokens: Tensor, row: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """log q of the tokens of several rows at the masked places that they have in common.

        What :attr:`store` has about these rows is not asked again.

        Args:
            tokens: rows, (R, L).
            row: which of the B rows each of them is equal to but for what is masked, (R,).
            ids: the rows that go through the function, (B, L).
            mask: what is masked in them, (B, L).

        Returns:
            Nats, (R, L); 0 where not masked.
        """
        compute = partial(self._ask_tokens, tokens, row, ids, mask)
        if self.store is None:
            return compute()
        return self.store.answer(digest_of(tokens, row, ids, mask), compute)

    def _ask_tokens(self, tokens: Tensor, row: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        values = self._answer(ids, mask)
        if self.count_passes is not None:
            self.count_passes(len(ids))
        self._require_normalized(values, mask)
        masked = mask[row]
        wanted = tokens[masked]
        require_ids("ids", wanted[:, None], values.shape[-1])
        number = torch.zeros_like(ids).masked_scatter(mask, torch.arange(len(values)))
        place = number[row][masked]
        # Chosen where the function answered: of V numbers a token, one leaves the GPU.
        chosen = values[place.to(values.device), wanted.to(values.device)]
        result = torch.zeros(tokens.shape, dtype=torch.float64)
        return result.masked_scatter(masked, chosen.cpu().double())  # Apple's GPUs have no float64

    def try_once(self, ids: Tensor, mask: Tensor) -> None:
        """Try the function: at first by eleven calls of one or two rows, later by two for a longer row.

        So the longest text is tried, too. A function that is shown a mask token cannot see what is
        hidden, and is not asked again.

        Args:
            ids: Rows of one length, of which the one that hides most is tried, (B, L).
            mask: The mask of each row, (B, L).

        Raises:
            ValueError: As of ``mpt_lml.models.trial.validate_conditionals``: for logits, for answers that
                depend on what is hidden (such a function knows what it scores), on the other rows, or
                on what was asked before.
        """
        if not mask.any() or ids.shape[1] <= self._longest_tried:
            return
        if self.vocab_size is None:
            self.vocab_size = validate_conditionals("the function", self._log_values, ids, mask)
            self._warn(ids, mask)
        elif self.mask_token is None:
            self._require_no_leakage(ids, mask)
        self._longest_tried = ids.shape[1]

    def _require_no_leakage(self, ids: Tensor, mask: Tensor) -> None:
        """Check in one longer row that the answer does not depend on what is hidden."""
        assert self.vocab_size is not None
        most_hidden = int(mask.sum(dim=1).argmax())
        row = ids[most_hidden][None]
        row_mask = mask[most_hidden][None]
        other_row = with_hidden_replaced(row, row_mask, self.vocab_size)
        answers = [self._log_values(each, row_mask) for each in (row, other_row)]
        require_no_leakage(
            "the function",
            answers,
            f"It does so in rows of {ids.shape[1]} tokens, and not in those of {self._longest_tried}. "
            "Where mask is True show it a mask token or anything constant.",
        )

    def _warn(self, ids: Tensor, mask: Tensor) -> None:
        """Say what is likely not meant, of one row with one token hidden."""
        most_hidden = int(mask.sum(dim=1).argmax())
        row = ids[most_hidden]
        first = (mask & (mask.cumsum(dim=1) == 1))[most_hidden]
        values = self._answer_everywhere(row[None], first[None])[0]
        unit_roundoff = torch.finfo(values.dtype).eps / 2
        if unit_roundoff > 1e-4:
            _log.warning(
                "the function answers in %s, which rounds each log-probability by up to %.2g %%: "
                "return logits.float().log_softmax(dim=-1).",
                str(values.dtype).removeprefix("torch."),
                100.0 * unit_roundoff,
            )
        side = shifted_side(values.argmax(dim=-1).cpu(), row)
        if side is not None:
            _log.warning(
                "the function repeats tokens that it is shown, but at the place of the %s: is its "
                "answer shifted by one? The log-probabilities of a token belong at its own place.",
                side,
            )

    def _require_normalized(self, values: Tensor, mask: Tensor) -> None:
        """Check the first hidden place of each row; ``values`` has all of them, (M, V)."""
        is_first = (mask & (mask.cumsum(dim=1) == 1))[mask]
        few = values[is_first.to(values.device)].cpu()
        num_hidden = mask.sum(dim=1)
        num_hidden = num_hidden[num_hidden > 0]
        require_normalized("the function", few, num_hidden, num_features=mask.shape[1])

    def _log_values(self, ids: Tensor, mask: Tensor) -> Tensor:
        """log q of every value of the M masked tokens, (M, V), on the CPU."""
        return self._answer(ids, mask).cpu()

    def _answer(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The same where the function computed it."""
        values = self._answer_everywhere(ids, mask)
        return values[mask.to(values.device)]

    @torch.no_grad()
    def _answer_everywhere(self, ids: Tensor, mask: Tensor) -> Tensor:
        """What the function gives, (B, L, V)."""
        shown = ids if self.mask_token is None else ids.masked_fill(mask, self.mask_token)
        try:
            values = self.function(shown.clone(), mask.clone())  # which it may write into
        except Exception as error:
            error.add_note(hint_of(error, ids))
            raise
        _require_answer(values, ids)
        return values


def shifted_side(most_probable: Int[Tensor, " L"], ids: Int[Tensor, " L"]) -> str | None:
    """Where the tokens stand that a function repeats one place beside; None where it does not.

    A network sees what is shown, and repeats much of it: at its own place, but one that was causal
    before at the place ahead. Such an answer is normalized and blind to what is hidden, so that nothing
    else tells.

    Args:
        most_probable: the id to which the function gives the largest probability at each place, (L,).
        ids: the tokens, of which few are hidden, (L,).

    >>> ids = torch.tensor([5, 6, 7, 8, 9])
    >>> shifted_side(ids.roll(-1), ids), shifted_side(ids, ids)
    ('token before', None)
    """
    tells = ids[:-1] != ids[1:]
    at_first = most_probable[:-1]
    at_second = most_probable[1:]
    for side, is_repeated, is_own in (
        ("token before", at_first == ids[1:], at_first == ids[:-1]),
        ("token after", at_second == ids[:-1], at_second == ids[1:]),
    ):
        num_repeated = (is_repeated & tells).sum()
        # Three times as often as at its own place: a frequent word meets both equally often by chance.
        is_shifted = num_repeated >= 3 * (1 + (is_own & tells).sum())
        # At a third of the places: a few of many are chance, where there are few symbols.
        if is_shifted and 3 * num_repeated >= tells.sum():
            return side
    return None


def hint_of(error: BaseException, ids: Tensor) -> str:
    """What torch's own messages leave open where a function fails; "" where that is nothing.

    Args:
        error: of the function.
        ids: what it was asked of, (B, L).
    """
    if not isinstance(error, IndexError | RuntimeError):
        return ""
    shape = tuple(ids.shape)
    return (
        f"It was given two tensors on the CPU: ids {shape}, int64, of which the largest is "
        f"{int(ids.max())}, and the mask {shape}, bool. A function does not say its length: if rows "
        f"of {ids.shape[1]} tokens are too long for it, give max_length= (--max-length)."
    )


def _require_answer(values: Any, ids: Tensor) -> None:
    """Check that a function has answered a dense floating-point tensor (B, L, V)."""
    if not isinstance(values, Tensor):
        has_logits = isinstance(getattr(values, "logits", None), Tensor)
        hint = " Return its logits.float().log_softmax(dim=-1)." if has_logits else ""
        raise TypeError(
            "the function must return log-probabilities as a torch tensor (B, L, V), got "
            f"{type(values).__module__}.{type(values).__qualname__}.{hint}"
        )
    if values.ndim != 3 or values.shape[:2] != ids.shape:
        raise ValueError(
            f"the function must return log-probabilities (B, L, V) for ids (B, L) = "
            f"{tuple(ids.shape)}, got {tuple(values.shape)}: of every value, at every place, hidden or "
            "not."
        )
    if values.layout != torch.strided or values.is_meta:
        got = "a meta tensor" if values.is_meta else str(values.layout)
        raise TypeError(f"the function must return a dense floating-point tensor, got {got}.")
    if not values.is_floating_point():
        raise TypeError(
            "the function must return a dense floating-point tensor, of log-probabilities, got "
            f"{values.dtype}."
        )
