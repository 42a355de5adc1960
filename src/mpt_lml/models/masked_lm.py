"""Masked language models of ``transformers`` as conditionals (floor 2).

Paper, Section 3.2: the curve of a masked language model is the mean log-probability of hidden
tokens, by how many are hidden. The conditionals of a network need not come from one joint
distribution; the area is then a mean over orders of log p_σ (Chapter 14), not a log p.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from mpt_lml.models.base import ConditionalModel
from mpt_lml.shapes import require_count, require_generator, require_mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Replacement = Literal["mask", "bert"]


@final
class MaskedLM(ConditionalModel):
    """log q(x_j | x_R) of a masked language model for every hidden token j.

    A datum is a row of D word pieces between ``prefix`` and ``suffix`` ([CLS] and [SEP]), which
    are shown to the network and never masked. :meth:`log_each` takes whole rows, of any length
    and with their special tokens, and one mask a row.

    Parameters
    ----------
    network : PreTrainedModel
        From ``transformers``, with a masked-LM head.
    mask_token_id : int
    num_features : int
        D of :meth:`log_conditional`.
    prefix, suffix : sequence of int
        Token ids around every datum; none for a language without special tokens.
    special_token_ids : sequence of int
        Tokens that no mask may hide.
    replacement : "mask" or "bert"
        What the network sees at a hidden place: the mask token, or as in BERT's training the mask
        token in 80 %, a random token in 10 % and the token itself in 10 % of the places. The
        second is not a conditional: some of what is scored has been seen.
    half_precision : bool, optional
        Products in bfloat16. By default on a GPU only.
    batch_tokens : int
        Tokens that go through the network at a time.

    Raises
    ------
    TypeError
        When the network has no masked-LM head.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        mask_token_id: int,
        num_features: int = 1,
        *,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        special_token_ids: Sequence[int] = (),
        replacement: Replacement = "mask",
        half_precision: bool | None = None,
        batch_tokens: int = 2048,
    ) -> None:
        require_masked_lm(network)
        require_count("num_features", num_features, 1)
        require_count("mask_token_id", mask_token_id, 0, network.config.vocab_size - 1)
        if replacement not in ("mask", "bert"):
            raise ValueError(f"replacement must be 'mask' or 'bert', got {replacement!r}.")
        self.network = network
        self.mask_token_id = mask_token_id
        self.replacement = replacement
        self.batch_tokens = batch_tokens
        self.device = network.device
        self.half_precision = (
            self.device.type == "cuda" if half_precision is None else half_precision
        )
        self.special_token_ids = torch.tensor(sorted({mask_token_id, *special_token_ids}))
        self._frame = (torch.tensor(list(prefix)).long(), torch.tensor(list(suffix)).long())
        self._num_features = num_features

    @classmethod
    def of(
        cls,
        network: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        num_features: int = 1,
        **options: Any,
    ) -> MaskedLM:
        """``network`` with the mask token, special tokens and frame of its ``tokenizer``.

        ``options`` are the keywords of the class.

        Raises
        ------
        ValueError
            When the tokenizer has no mask token.
        """
        if tokenizer.mask_token_id is None:
            raise ValueError(
                f"this {type(tokenizer).__name__} has no mask token: it belongs to a model that "
                "does not fill in masks. Use the tokenizer of a masked language model, such as "
                "BERT's."
            )
        first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
        return cls(
            network,
            tokenizer.mask_token_id,
            num_features,
            prefix=() if first is None else (first,),
            suffix=() if last is None else (last,),
            special_token_ids=tokenizer.all_special_ids,
            **options,
        )

    @property
    def num_features(self) -> int:
        """D."""
        return self._num_features

    @property
    def max_length(self) -> int | None:
        """Tokens of the longest row the network has positions for."""
        return getattr(self.network.config, "max_position_embeddings", None)

    @torch.no_grad()
    def log_each(
        self,
        ids: Int[Tensor, "N L"],
        mask: Bool[Tensor, "N L"],
        *,
        types: Int[Tensor, "N L"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "N L"]:
        """log q(x_j | x_R) of row n under its own mask, nats, float64; 0 where not masked.

        Rows are as long as each other and complete, special tokens included. ``generator`` draws
        the replacements of ``replacement="bert"`` and is not used otherwise.
        """
        self._require_rows(ids, mask)
        shown = self._shown(ids, mask, generator)
        result = torch.zeros(ids.shape, dtype=torch.float64)
        with evaluating(self.network), self._precision():
            for rows in torch.arange(len(ids)).split(max(1, self.batch_tokens // ids.shape[1])):
                result[rows] = self._scores(ids, shown, mask, types, rows)
        return result

    def log_conditional(
        self, x: Int[Tensor, "N D"], mask: Bool[Tensor, "P D"]
    ) -> Float[Tensor, "P N D"]:
        """log q(x_j | x_R), nats, (P, N, D), every mask on every datum; 0 where not masked."""
        require_mask(mask, self.num_features)
        if self.replacement != "mask":
            raise ValueError(
                "log_conditional hides with the mask token only: with replacement='bert' a scored "
                "token may have been seen. Use log_each(..., generator=g)."
            )
        self.require_data(x)
        rows, hidden = x.repeat(len(mask), 1), mask.repeat_interleave(len(x), dim=0)
        return self.paired(rows, hidden).view(len(mask), *x.shape)

    def paired(self, x: Int[Tensor, "N D"], mask: Bool[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """:meth:`log_each` of data without their frame, (N, D)."""
        self.require_data(x)
        before, after = (part.expand(len(x), -1) for part in self._frame)
        ids = torch.cat([before, x, after], dim=1)
        ends = (before.shape[1], after.shape[1])
        values = self.log_each(ids, functional.pad(mask, ends))
        return values[:, ends[0] : ids.shape[1] - ends[1]]

    def _shown(self, ids: Tensor, mask: Tensor, generator: torch.Generator | None) -> Tensor:
        """What the network sees instead of ``ids``."""
        shown = ids.masked_fill(mask, self.mask_token_id)
        if self.replacement == "mask":
            return shown
        require_generator(generator)
        assert generator is not None
        chance = torch.rand(ids.shape, generator=generator, dtype=torch.float64)
        size = self.network.config.vocab_size
        others = torch.randint(size, ids.shape, generator=generator)
        shown = shown.where(~(mask & (chance < 0.2)), others)
        return shown.where(~(mask & (chance < 0.1)), ids)

    def _scores(
        self, ids: Tensor, shown: Tensor, mask: Tensor, types: Tensor | None, rows: Tensor
    ) -> Float[Tensor, "B L"]:
        inputs = {} if types is None else {"token_type_ids": types[rows].to(self.device)}
        where = mask[rows].to(self.device)
        logits = masked_logits(self.network, shown[rows].to(self.device), where, **inputs)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        loss = functional.cross_entropy(
            logits, ids[rows][mask[rows]].to(self.device), reduction="none"
        )
        values = torch.zeros(where.shape, dtype=torch.float64)
        values[mask[rows]] = -loss.double().cpu()
        return values

    def _precision(self) -> Any:
        if not self.half_precision:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def require_data(self, x: Tensor) -> None:
        if x.ndim != 2 or len(x) == 0 or x.shape[1] != self.num_features:
            raise ValueError(
                f"x must have shape (N, {self.num_features}) with N >= 1, got {tuple(x.shape)}."
            )

    def _require_rows(self, ids: Tensor, mask: Tensor) -> None:
        if ids.ndim != 2 or ids.shape != mask.shape or mask.dtype != torch.bool:
            raise ValueError(
                "ids and mask must have the same shape (N, L), and mask must be boolean with True "
                f"for masked; got {tuple(ids.shape)} and {tuple(mask.shape)} {mask.dtype}."
            )
        if self.max_length is not None and ids.shape[1] > self.max_length:
            raise ValueError(
                f"rows of {ids.shape[1]} tokens are longer than the model's {self.max_length} "
                "positions. Leave them out or split them; they are not cut."
            )
        hidden = ids[mask]
        special = torch.isin(hidden, self.special_token_ids)
        if special.any():
            raise ValueError(
                f"token {int(hidden[special][0])} is special and may not be masked: it is part of "
                "every sentence, and scoring it would be scoring the tokenizer."
            )


def masked_logits(
    network: PreTrainedModel, ids: Int[Tensor, "N L"], where: Bool[Tensor, "N L"], **inputs: Any
) -> Float[Tensor, "M V"]:
    """Logits of the tokens at ``where`` only, in row-major order.

    The vocabulary head is most of a small network's arithmetic; it is applied to the gathered
    positions for networks of BERT's and ModernBERT's form, to everything for others. After the
    last attention positions no longer meet, so its feed-forward block too is spent on ``where``.
    """
    parts: Any = network  # what it is made of depends on its class
    kind = type(network).__name__
    if kind == "BertForMaskedLM" and not network.config.chunk_size_feed_forward:
        with _bert_ending_at(parts.bert.encoder.layer[-1], where):
            return parts.cls(parts.bert(input_ids=ids, **inputs).last_hidden_state)
    if kind == "ModernBertForMaskedLM":
        with _modern_ending_at(parts.model.layers[-1], where):
            hidden = parts.model(input_ids=ids).last_hidden_state  # it has no token types
        return parts.decoder(parts.head(hidden[where]))
    return parts(input_ids=ids, **inputs).logits[where]


@contextmanager
def _bert_ending_at(layer: Any, where: Tensor) -> Iterator[None]:
    """The layer's output is that of ``where`` only, (M, W): what follows attention sees no more."""

    def gather(_: Any, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(each[where] for each in values)  # attention's output and the residual

    handle = layer.attention.output.register_forward_pre_hook(gather)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _modern_ending_at(layer: Any, where: Tensor) -> Iterator[None]:
    """The layer's feed-forward block adds to ``where`` only; the shape stays, as its sum needs it."""

    def scatter(_: Any, __: Any, value: Tensor) -> Tensor:
        everywhere = value.new_zeros(*where.shape, value.shape[-1])
        everywhere[where] = value
        return everywhere

    handles = [
        layer.mlp_norm.register_forward_pre_hook(lambda _, values: (values[0][where],)),
        layer.mlp.register_forward_hook(scatter),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def require_masked_lm(network: PreTrainedModel) -> None:
    """Refuse what ``transformers`` does not list among its masked language models."""
    from transformers import AutoModelForMaskedLM

    known: set[Any] = set(AutoModelForMaskedLM._model_mapping.values())
    if type(network) not in known:
        raise TypeError(
            f"network must be a transformers model with a masked-LM head, such as BertForMaskedLM, "
            f"got {type(network).__name__}. An encoder alone cannot say log p of a hidden token."
        )


@contextmanager
def evaluating(network: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode; the mode comes back afterwards."""
    before = network.training
    try:
        network.eval()
        yield
    finally:
        network.train(before)
