"""A BERT in miniature for the symbols of a known language."""

import math
from pathlib import Path
from typing import Annotated, Any, final

import torch
from safetensors import SafetensorError
from torch import Tensor

from mpt_lml.checks import Count, FilePath, Index, Within, checked
from mpt_lml.files import book_file
from mpt_lml.models.base import ConditionalModel, require_values
from mpt_score.errors import is_out_of_memory
from mpt_score.networks.devices import require_device, to_device_of
from mpt_score.networks.hub import CheckpointError, require_transformers

__all__ = ["SymbolBERT"]

_NUM_HEADS = 4
_ATTENTION: dict[str, Any] = {"attn_implementation": "eager"}
"""For 16 tokens faster than the fused kernel."""


PAIRS_AT_ONCE = 1024
"""Rows in one call of the network."""

PAIRS_AT_ONCE_ON_A_CARD = 16_384
"""The same on a GPU, where a call of 1024 rows is over before the next is launched."""


@final
class SymbolBERT(ConditionalModel):
    """log q(x_j | x_R) of a two-layer BERT for sequences of D symbols; one more token is the mask.

    The classes of ``transformers``, four heads, no dropout, ready to be trained. Weights are drawn
    with standard deviation 1/√width, so that positions and symbols enter the first sum at the scale
    that the layers expect (BERT's 0.02 is made for a width of 768). The mask token keeps some of
    the probability, so that the conditionals of the symbols add up to slightly less than 1.
    ``bert.to(device)`` moves it; data come from anywhere, and answers are where the data are.

    Args:
        num_symbols: the symbols are 0..num_symbols − 1.
        num_features: D.
        width: units of a layer, a multiple of the four heads.
        seed: of the initial weights.

    >>> bert = SymbolBERT(12, 16, seed=4)
    >>> bert.log_values(torch.zeros(5, 16, dtype=torch.int64), torch.ones(5, 16) > 0).shape
    torch.Size([5, 16, 13])
    """

    @checked
    def __init__(
        self,
        num_symbols: Annotated[int, Within(2)],
        num_features: Count,
        width: Annotated[int, Within(_NUM_HEADS)] = 64,
        *,
        seed: Index,
    ) -> None:
        require_transformers()
        if width % _NUM_HEADS:
            raise ValueError(f"width must be a multiple of 4, one part a head, got {width}.")
        with torch.random.fork_rng(devices=[]):  # transformers draws from the global generator
            torch.manual_seed(seed)
            self.network = _bert(num_symbols + 1, num_features, width)
        self.num_features = num_features
        self.mask_token = num_symbols
        self._pairs_at_once = PAIRS_AT_ONCE

    @classmethod
    @checked
    def load(cls, path: FilePath | None = None) -> "SymbolBERT":
        """The network of Chapter 11 that the book carries, or the one whose weights ``path`` holds.

        Args:
            path: a safetensors file, such as ``known-language`` leaves one for each of its runs.

        Raises:
            FileNotFoundError: where there is none.
            CheckpointError: for one that is damaged or of another network.
            MemoryError: where there is too little memory.
        """
        from safetensors.torch import load_file

        if path is None:
            path = book_file("results/known_language.safetensors")
        if not Path(path).is_file():
            raise FileNotFoundError(f"path must be a file of safetensors, got {path!r}.")
        try:
            weights = load_file(path)
            num_tokens, width = weights["bert.embeddings.word_embeddings.weight"].shape
            num_features = len(weights["bert.embeddings.position_embeddings.weight"])
            model = cls(num_tokens - 1, num_features, width, seed=0)
            missing = model.network.load_state_dict(weights, strict=False).missing_keys
        except (SafetensorError, KeyError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise MemoryError(f"{path} needs more memory than there is.") from error
            raise CheckpointError(f"{path} is damaged, or of another network.") from error
        # The decoder's weights are those of the embedding, and stored once.
        if any("decoder" not in name for name in missing):
            raise CheckpointError(f"{path} is of another network: it lacks {missing[0]}.")
        model.network.requires_grad_(False)
        return model

    @checked
    def to(self, device: torch.device | str) -> "SymbolBERT":
        """Move the network, and let it answer as many rows at once as suits the device.

        Args:
            device: "cpu", "cuda", or what else torch has.

        Returns:
            The model itself.

        Raises:
            ValueError: for a device that is not here.

        >>> SymbolBERT(12, 16, 8, seed=4).to("cpu").device
        device(type='cpu')
        """
        if isinstance(device, str):
            require_device(device)
        self.network.to(device)
        is_card = self.device.type not in ("cpu", "meta")
        self._pairs_at_once = PAIRS_AT_ONCE_ON_A_CARD if is_card else PAIRS_AT_ONCE
        return self

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        device: torch.device = self.network.device
        return device

    def require_data(self, x: Tensor) -> None:
        require_values(x, [self.mask_token + 1] * self.num_features)

    def _log_values(self, x: Tensor, mask: Tensor) -> Tensor:
        shown = x.masked_fill(mask.to(x.device), self.mask_token)
        logits = to_device_of(x, self.network(input_ids=shown.to(self.device)).logits)
        if x.device.type != "mps":  # Apple's GPUs have no double precision
            logits = logits.double()
        return logits.log_softmax(dim=2)

    @torch.no_grad()
    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        return self._log_values(x, mask).gather(2, x[..., None])[..., 0]


def _bert(num_tokens: int, num_features: int, width: int) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=num_tokens,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=_NUM_HEADS,
        intermediate_size=4 * width,
        max_position_embeddings=num_features,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=1.0 / math.sqrt(width),
        pad_token_id=None,
        **_ATTENTION,
    )
    return BertForMaskedLM(config)
