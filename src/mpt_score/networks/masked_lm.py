"""Masked language models of ``transformers`` as conditionals (paper, Section 3.2).

The conditionals of a network need not come from one joint distribution; the area is then a mean over
orders of log p_σ (Chapter 15), not a log p.
"""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from mpt_lml.models.base import ConditionalModel
from mpt_lml.spec import require, require_generator, require_ids
from mpt_score.networks.hub import require_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS = "float32|bfloat16|float16"


@final
class MaskedLM(ConditionalModel):
    """log q(x_j | x_R) of a masked language model for every hidden token j, nats, float64.

    A datum is a row of D word pieces between ``prefix`` and ``suffix`` ([CLS] and [SEP]), which
    are shown to the network and never masked, nor are other ``special_token_ids``.
    :meth:`log_tokens` takes whole rows, of any length and with their special tokens.

    ``replacement``: at a hidden place the network sees the mask token, or with "bert" as in its
    training the mask token in 80 %, a random token in 10 % and the token itself in 10 % of the places,
    which is not a conditional: some of what is scored has been seen. ``precision`` is that of the
    products, by default "bfloat16" on a GPU; ``batch_tokens`` go through the network at a time;
    ``max_length`` are the tokens of the longest row that it has positions for. Raises ``TypeError``
    for a network without a masked-LM head, and warns of an ESM's changing scale.

    >>> from mpt_score.networks import load_small_bert
    >>> model = MaskedLM.of(*load_small_bert(), num_features=2)
    >>> model.log_each(torch.tensor([[300, 400]]), torch.tensor([[True, False]])).shape
    torch.Size([1, 2])
    """

    def __init__(
        self,
        network: "PreTrainedModel",
        mask_token_id: int,
        num_features: int = 1,
        *,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        special_token_ids: Sequence[int] = (),
        replacement: Literal["mask", "bert"] = "mask",
        precision: Precision | None = None,
        batch_tokens: int = 2048,
    ) -> None:
        _require_masked_lm(network)
        require(locals(), "num_features 1.., replacement mask|bert, precision? " + PRECISIONS)
        require(locals(), "prefix Sequence, suffix Sequence, batch_tokens 1..")
        for name in ("mask_token_id", "prefix*", "suffix*", "special_token_ids*"):
            require(locals(), f"{name} 0..{network.config.vocab_size - 1}")
        self.network, self.device = network, network.device
        self.max_length = _longest_row(network)
        self.mask_token_id, self.replacement = mask_token_id, replacement
        self.precision = precision or ("bfloat16" if self.device.type == "cuda" else "float32")
        self.batch_tokens = batch_tokens
        self.special_token_ids = torch.tensor(sorted({mask_token_id, *special_token_ids}))
        self._frame = (torch.tensor(list(prefix)).long(), torch.tensor(list(suffix)).long())
        self.num_features = num_features
        takes_types = "token_type_ids" in signature(network.forward).parameters
        self._takes_types = takes_types and getattr(network.config, "type_vocab_size", 0) > 1
        self._pairs_at_once = batch_tokens // (len(prefix) + num_features + len(suffix)) or 1

    @classmethod
    def of(
        cls,
        network: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        num_features: int = 1,
        **options: Any,
    ) -> "MaskedLM":
        """``network`` with the mask token, special tokens and frame of its ``tokenizer``.

        ``options`` are the keywords of the class. Raises ``ValueError`` for a tokenizer without a
        mask token, or of another network.
        """
        require(locals(), "network PreTrainedModel, tokenizer PreTrainedTokenizerBase")
        if tokenizer.mask_token_id is None:
            kind = type(tokenizer).__name__
            raise ValueError(f"this {kind} has no mask token. Use the tokenizer of a masked model.")
        most = max(tokenizer.get_vocab().values())
        known = getattr(network.config, "vocab_size", 0)
        if most >= known:
            raise ValueError(
                f"the tokenizer has ids up to {most}, the network {known} "
                "tokens: they do not belong together. Name the tokenizer saved with the network."
            )
        last = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
        ends = {"prefix": tokenizer.cls_token_id, "suffix": last}
        frame = {name: () if token is None else (token,) for name, token in ends.items()}
        unknown = set(options) - set(signature(cls).parameters)
        if unknown:
            raise TypeError(
                f"MaskedLM has no option {', '.join(sorted(unknown))}. See its keywords."
            )
        options = {**frame, "special_token_ids": tokenizer.all_special_ids, **options}
        return cls(network, tokenizer.mask_token_id, num_features, **options)

    def require_data(self, x: Tensor) -> None:
        require(locals(), "int x N D", D=self.num_features)
        require_ids("x", x, self.network.config.vocab_size)

    @torch.no_grad()
    def log_tokens(
        self,
        ids: Int[Tensor, "N L"],
        mask: Bool[Tensor, "N L"],
        *,
        types: Int[Tensor, "N L"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "N L"]:
        """log q(x_j | x_R) of whole rows, each under its own mask, nats; 0 where not masked.

        Rows are as long as each other, special tokens included. ``generator`` draws the
        replacements of ``replacement="bert"`` and is not used otherwise. Raises ``ValueError`` for
        rows that are too long or hold ids the network has not, and for masks that hide a special
        token. ``types`` are for networks that tell sentences apart.
        """
        require(locals(), "int ids N L, bool mask N L, int types? N L, generator?")
        self._require_rows(ids, mask, types)
        shown = self._shown(ids, mask, generator)
        result = torch.zeros(ids.shape, dtype=torch.float64)
        half = torch.float16 if self.precision == "float16" else torch.bfloat16
        training = self.network.training
        self.network.eval()
        try:
            for rows in torch.arange(len(ids)).split(max(1, self.batch_tokens // ids.shape[1])):
                pair = {}
                if types is not None and self._takes_types:
                    pair = {"token_type_ids": types[rows].to(self.device)}
                where = mask[rows].to(self.device)
                with torch.autocast(self.device.type, half, enabled=self.precision != "float32"):
                    logits = masked_logits(self.network, shown[rows].to(self.device), where, **pair)
                    wanted = ids[rows][mask[rows]].to(self.device)
                    logits = logits if logits.dtype == torch.float64 else logits.float()
                    loss = functional.cross_entropy(logits, wanted, reduction="none")
                values = torch.zeros(where.shape, dtype=torch.float64)
                values[mask[rows]] = -loss.double().cpu()
                result[rows] = values
        finally:
            self.network.train(training)
        return result

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.replacement != "mask":
            raise ValueError("conditionals hide with the mask token only: see log_tokens.")
        before, after = (part.expand(len(x), -1) for part in self._frame)
        start = before.shape[1]
        rows = functional.pad(mask, (start, after.shape[1]))
        values = self.log_tokens(torch.cat([before, x, after], dim=1), rows)
        return values[:, start : start + self.num_features]

    def _shown(self, ids: Tensor, mask: Tensor, generator: torch.Generator | None) -> Tensor:
        shown = ids.masked_fill(mask, self.mask_token_id)
        if self.replacement == "mask":
            return shown
        require_generator(generator)
        chance = torch.rand(ids.shape, generator=generator, dtype=torch.float64)
        others = torch.randint(self.network.config.vocab_size, ids.shape, generator=generator)
        shown = shown.where(~(mask & (chance < 0.2)), others)
        return shown.where(~(mask & (chance < 0.1)), ids)

    def _require_rows(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> None:
        if self.max_length is not None and ids.shape[1] > self.max_length:
            long = f"rows of {ids.shape[1]} tokens are longer than the model's {self.max_length}"
            raise ValueError(f"{long} positions. Leave them out or split them; they are not cut.")
        require_ids("ids", ids, self.network.config.vocab_size)
        if types is not None and self._takes_types:
            require_ids("types", types, self.network.config.type_vocab_size)
        special = ids[mask & torch.isin(ids, self.special_token_ids)]
        if len(special):
            raise ValueError(f"token {int(special[0])} is special and may not be masked.")


def masked_logits(
    network: Any, ids: Int[Tensor, "N L"], where: Bool[Tensor, "N L"], **inputs: Any
) -> Float[Tensor, "M V"]:
    """Logits of the tokens at ``where`` only, in row-major order.

    The vocabulary head is most of a small network's arithmetic; its last layer is applied to the
    gathered positions. After the last attention positions no longer meet, so in networks of
    BERT's and ModernBERT's form the feed-forward block too is spent on ``where``.
    """

    def gather(_: Any, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(each[where] for each in values)

    def scatter(_: Any, __: Any, value: Tensor) -> Tensor:
        everywhere = value.new_zeros(*where.shape, value.shape[-1])  # the sum with the residual
        everywhere[where] = value  # needs the shape
        return everywhere

    kind = type(network).__name__
    if kind == "BertForMaskedLM" and not network.config.chunk_size_feed_forward:
        after_attention = network.bert.encoder.layer[-1].attention.output
        with after_attention.register_forward_pre_hook(gather):
            return network.cls(network.bert(input_ids=ids, **inputs).last_hidden_state)
    if kind == "ModernBertForMaskedLM":
        last = network.model.layers[-1]
        norm = last.mlp_norm.register_forward_pre_hook(gather)
        with norm, last.mlp.register_forward_hook(scatter):
            hidden = network.model(input_ids=ids).last_hidden_state  # it has no token types
        return network.decoder(network.head(hidden[where]))
    head = network.get_output_embeddings()
    with nullcontext() if head is None else head.register_forward_pre_hook(gather):
        logits = network(input_ids=ids, **inputs).logits
    return logits if logits.ndim == 2 else logits[where]  # a few have no last layer of that name


def _longest_row(network: Any) -> int | None:
    """RoBERTa's kind counts positions from behind the padding's: 514 of them are 512 tokens."""
    for name, each in network.named_modules():
        if name.endswith(".position_embeddings") and getattr(each, "padding_idx", None) is not None:
            return each.num_embeddings - each.padding_idx - 1
    return getattr(network.config, "max_position_embeddings", None)


def _require_masked_lm(network: Any) -> None:
    """Refuse what ``transformers`` does not list among its masked language models."""
    require_transformers()
    from transformers import AutoModelForMaskedLM

    known: set[Any] = set(AutoModelForMaskedLM._model_mapping.values())
    if type(network) not in known or getattr(network.config, "is_decoder", False):
        raise TypeError(
            f"network must be a transformers model with a masked-LM head, such as BertForMaskedLM, "
            f"got {type(network).__name__}. An encoder alone cannot say log p of a hidden token, a "
            "causal model (or config.is_decoder) not given what stands on both sides."
        )
    if getattr(network.config, "token_dropout", False):
        warnings.warn(
            "this ESM multiplies what it sees by 0.88 / (1 - hidden share): by 8.8 where 90 % are "
            'hidden, by 1 in training: constant_scale, in the book\'s "Any model", takes that out.',
            stacklevel=3,
        )
