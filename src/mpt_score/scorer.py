"""The door of ``score``: what can say log q(x_j | x_R) of tokens, and texts as rows of tokens.

A masked language model of ``transformers`` comes by its folder, by its name or loaded; what needs
code of its own (LLaDA, MDLM and others) comes as a function.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.files import digest
from mpt_lml.models.base import require_log_probabilities
from mpt_lml.spec import require, require_ids
from mpt_score import networks
from mpt_score.errors import TextError
from mpt_score.keep import Run, keep_in
from mpt_score.networks.hub import gpu
from mpt_score.networks.masked_lm import PRECISIONS, MaskedLM, Precision
from mpt_score.tokens import Tokens, encode, require_texts

Texts = Sequence[str] | Sequence[Sequence[int]] | Sequence[Tensor] | Tensor | Tokens
BATCH_BYTES = 2**29
"""Logits and attention of the rows that go through a model together; one row may take more."""


class _Function:
    """A function (ids, mask) → log-probabilities (B, L, V), tested at its first answer."""

    def __init__(self, function: Any, mask_token: int | None) -> None:
        self.function, self.mask_token, self.vocab_size = function, mask_token, 0

    def log_tokens(self, ids: Tensor, mask: Tensor, **_: Any) -> Tensor:
        found, wanted = self._ask(ids, mask), ids[mask][:, None]
        require_ids("ids", wanted, found.shape[-1])
        return torch.zeros(ids.shape).double().masked_scatter(mask, found.gather(1, wanted))

    @torch.no_grad()
    def _ask(self, ids: Tensor, mask: Tensor) -> Tensor:
        shown = ids if self.mask_token is None else ids.masked_fill(mask, self.mask_token)
        found = self.function(shown, mask)
        if not isinstance(found, Tensor) or found.ndim != 3 or found.shape[:2] != ids.shape:
            got, wanted = tuple(getattr(found, "shape", ())) or found, tuple(ids.shape)
            said = f"log-probabilities (B, L, V) for ids (B, L) = {wanted}, got {got!r}"
            raise ValueError(f"the function must return {said}.")
        if found.layout != torch.strided or found.is_meta or not found.is_floating_point():
            got = "a meta tensor" if found.is_meta else f"{found.layout}, {found.dtype}"
            raise TypeError(f"the function must return a dense floating-point tensor, got {got}.")
        return found[mask.to(found.device)].double().cpu()

    def test(self, ids: Tensor, mask: Tensor) -> None:
        """Refuse logits, and answers that depend on what is hidden: those know what they score."""
        self.vocab_size = require_log_probabilities("the function", self._ask, ids, mask)


@dataclass(frozen=True)
class Scorer:
    """log q(x_j | x_R) of texts under a model that :func:`load` let in.

    ``source`` has ``log_tokens(ids, mask, types=, generator=)`` as :class:`~mpt_score.MaskedLM`. Without
    a ``tokenizer`` texts are lists of token ids. ``max_length`` are the tokens of the longest row,
    special ones counted; at most ``max_tokens`` go through the model at a time; a function's results
    are kept under what it is ``named``.

    >>> coin = load(lambda ids, mask: torch.zeros(ids.shape + (2,)).log_softmax(-1))
    >>> coin.log_tokens(torch.tensor([[0, 1]]), torch.tensor([[True, False]])).exp()
    tensor([[0.5000, 1.0000]], dtype=torch.float64)
    """

    source: Any
    tokenizer: Any = None
    max_length: int | None = None
    max_tokens: int | None = None
    named: str | None = None

    def __post_init__(self) -> None:
        if not callable(getattr(self.source, "log_tokens", None)):
            got = type(self.source).__name__
            raise TypeError(f"source must have log_tokens, got {got}: score.load makes a Scorer.")

    @property
    def network(self) -> Any:
        """The network behind :attr:`source`; ``None`` for a function."""
        return getattr(self.source, "network", None)

    @property
    def identity(self) -> dict[str, Any] | None:
        """What decides the numbers besides texts and settings; ``None`` for a nameless function."""
        own: dict[str, Any] = {"max_length": self.max_length}
        if self.tokenizer is not None:
            words = sorted(self.tokenizer.get_vocab().items())
            own["tokenizer"] = digest(f"{self.tokenizer.special_tokens_map} {words}", {})
        if self.network is None:
            return None if self.named is None else {"function": self.named, **own}
        own |= {"weights": networks.fingerprint(self.network), "device": self.network.device.type}
        return own | {"precision": self.source.precision}

    def keep(self, folder: str | Path, **settings: Any) -> Run:
        """For ``run=``: parts in ``folder``, each of its model, texts, versions and ``settings``.

        Raises ``ValueError`` for a nameless function and for a damaged file.
        """
        require(locals(), "folder path")
        if (own := self.identity) is None:
            raise ValueError("what is kept must say of which model: load(..., identity='NAME').")
        return keep_in(folder, {**own, **settings})

    def encode(self, texts: Texts) -> Tokens:
        """Texts, or lists of token ids with their special tokens, as rows of tokens.

        Raises ``ValueError`` for an empty text, one of unknown or special tokens only, and strings
        without a tokenizer. A text longer than :attr:`max_length` is encoded whole.
        """
        if isinstance(texts, Tokens):
            return texts
        require_texts(texts)
        if isinstance(texts[0], str):
            if self.tokenizer is None:
                raise ValueError("texts are strings: give a tokenizer=, or lists of token ids.")
            return encode(self.tokenizer, texts)  # type: ignore[arg-type]
        rows = [torch.as_tensor(each, dtype=torch.int64) for each in texts]
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        maskable = (torch.arange(ids.shape[1]) < lengths[:, None]) & ~self._is_special(ids)
        if len(bare := (~maskable.any(dim=1)).nonzero()):
            raise TextError(f"text {int(bare[0])} has nothing to mask.", int(bare[0]))
        return Tokens(ids, torch.zeros_like(ids), maskable, lengths)

    def is_frame(self, ids: Int[Tensor, "*B L"]) -> Bool[Tensor, "*B L"]:
        """Which tokens the tokenizer puts around a text: special ones, but for the unknown one."""
        require(locals(), "int ids ... L")
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        return self._is_special(ids) & (ids != (-1 if unknown is None else unknown))

    def _is_special(self, ids: Tensor) -> Tensor:
        own = torch.tensor(getattr(self.tokenizer, "all_special_ids", [])).long()
        return torch.isin(ids, getattr(self.source, "special_token_ids", own))

    def require_length(self, tokens: Tokens) -> None:
        """Raise ``ValueError`` for the first row that is longer than :attr:`max_length`."""
        require(locals(), "tokens Tokens")
        long = tokens.lengths > (self.max_length or tokens.lengths.max())
        if long.any():
            which = int(long.long().argmax())
            raise ValueError(
                f"text {which} has {int(tokens.lengths[which])} tokens, the model takes "
                f"{self.max_length}. Leave it out or split it; it is not cut."
            )

    def log_tokens(
        self,
        ids: Int[Tensor, "N L"],
        mask: Bool[Tensor, "N L"],
        types: Int[Tensor, "N L"] | None = None,
        *,
        numbers: Int[Tensor, " N"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "N L"]:
        """log q(x_j | x_R) of whole rows, each under its own mask, nats, float64; 0 if not masked.

        ``numbers`` are the rows' texts, for messages. Raises ``ValueError`` where an answer of the
        model is not finite.
        """
        require(locals(), "int ids N L, bool mask N L, int types? N L, int numbers? N, generator?")
        if isinstance(self.source, _Function) and not self.source.vocab_size:
            most = int(mask.sum(dim=1).argmax())
            self.source.test(ids[most : most + 1], mask[most : most + 1])
        parts, bounded = [], self.network is not None and self.max_tokens is not None
        with networks.fast_linear(self.network) if bounded else nullcontext():
            for rows in torch.arange(len(ids)).split(self._batches(mask)):
                more = {"types": None if types is None else types[rows], "generator": generator}
                parts.append(self.source.log_tokens(ids[rows], mask[rows], **more))
        found = torch.cat(parts)
        if not found.isfinite().all():
            row, place = (~found.isfinite()).nonzero()[0].tolist()
            which = row if numbers is None else int(numbers[row])
            raise TextError(
                f"the model says {found[row, place]} of token {place} of text {which}: no "
                "log-probability. Leave this text out, or try precision='float32'.",
                which,
            )
        return found

    def _batches(self, mask: Tensor) -> list[int]:
        """How many rows go together, one number a batch."""
        if self.max_tokens is None:
            return [len(mask)]
        length, config = mask.shape[1], getattr(self.network, "config", None)
        if config is None:  # log-probabilities of all places, and these in float64
            size = torch.full((len(mask),), 16.0 * length * self.source.vocab_size)
        else:  # logits of hidden places and their softmax; attention and its
            heads = getattr(config, "num_attention_heads", None) or 12
            size = 8.0 * config.vocab_size * mask.sum(dim=1) + 12.0 * heads * length**2
        size = (size / BATCH_BYTES).clamp(min=length / self.max_tokens, max=1.0)
        batch = (size.double().cumsum(0) - size / 2).floor()
        return batch.unique_consecutive(return_counts=True)[1].tolist()


def load(
    model: Any,
    tokenizer: Any = None,
    *,
    revision: str | None = None,
    device: str = "auto",
    precision: Precision = "float32",
    max_tokens: int = 8192,
    max_length: int | None = None,
    identity: str | None = None,
) -> Scorer:
    """A :class:`Scorer` of whatever can say log q(x_j | x_R).

    ``model`` is a folder made by ``save_pretrained``, a name on the hub with its ``revision``, a
    loaded network with its ``tokenizer``, a :class:`~mpt_score.MaskedLM` or a :class:`Scorer`, taken
    as they are, or a function (ids (B, L) int64, mask (B, L) bool, True = masked) →
    log-probabilities (B, L, V), nats. The function is shown the tokenizer's mask token where
    ``mask`` is True; without one it must not read ``ids`` there, which is tested once. ``identity``
    names it where results are kept.

    Raises ``OSError`` and ``ValueError`` as ``networks.load_network``, ``TypeError`` for
    anything else and for a network without a masked-LM head.

    >>> load(networks.small_bert_folder()).max_length
    64
    """
    if isinstance(model, Scorer):
        return model
    require(locals(), "max_tokens 1.., max_length? 1.., identity? str, device str, revision? str")
    require(locals(), "precision " + PRECISIONS)
    try:
        torch.empty(0, device="cpu" if device == "auto" else device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} cannot be used here: {error}") from error
    if isinstance(model, str | Path):
        tokenizer = model if tokenizer is None else tokenizer
        model = networks.load_network(model, revision=revision)
        device = str(gpu() or "cpu") if device == "auto" else device
    if isinstance(tokenizer, str | Path):
        tokenizer = networks.load_tokenizer(tokenizer, revision=revision)
    require(locals(), "tokenizer? PreTrainedTokenizerBase")
    bounded = None if isinstance(model, MaskedLM) else max_tokens
    if isinstance(model, torch.nn.Module) and hasattr(model, "config"):
        if tokenizer is None:
            raise ValueError(f"a loaded {type(model).__name__} needs its tokenizer=.")
        model = model if device == "auto" else model.to(device)
        model = MaskedLM.of(model, tokenizer, precision=precision, batch_tokens=max_tokens)
    if isinstance(model, MaskedLM):
        longest = model.max_length
        if max_length is not None and longest is not None and max_length > longest:
            raise ValueError(f"max_length {max_length} is more than the network's {longest}.")
        return Scorer(model, tokenizer, max_length or longest, bounded)
    if not callable(model):
        raise TypeError(
            "model must be a folder, a name on the hub, a network, a MaskedLM or a function (ids, "
            f"mask) -> log-probabilities, got {type(model).__name__}."
        )
    source = _Function(model, getattr(tokenizer, "mask_token_id", None))
    return Scorer(source, tokenizer, max_length, max_tokens, identity)
