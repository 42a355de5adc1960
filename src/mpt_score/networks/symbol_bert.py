"""A BERT in miniature for the symbols of a known language."""

import math
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError
from torch import Tensor

from mpt_lml.files import book_file
from mpt_lml.models.base import ConditionalModel
from mpt_lml.spec import require, require_values
from mpt_score.networks.hub import CheckpointError, require_transformers


@final
class SymbolBERT(ConditionalModel):
    """log q(x_j | x_R) of a two-layer BERT for sequences of D symbols; one more token is the mask.

    The classes of ``transformers``, four heads, no dropout, ready to be trained. Weights are drawn
    with standard deviation 1/√width, so that positions and symbols enter the first sum at the scale
    that the layers expect (BERT's 0.02 is made for a width of 768). The mask token keeps some of
    the probability, so that the conditionals of the symbols add up to slightly less than 1.

    >>> bert = SymbolBERT(12, 16, seed=4)
    >>> bert.log_values(torch.zeros(5, 16, dtype=torch.int64), torch.ones(5, 16) > 0).shape
    torch.Size([5, 16, 13])
    """

    def __init__(self, num_symbols: int, num_features: int, width: int = 64, *, seed: int) -> None:
        require_transformers()
        from transformers import BertConfig, BertForMaskedLM

        require(locals(), "num_symbols 2.., num_features 1.., width 4.., seed 0..")
        if width % 4:
            raise ValueError(f"width must be a multiple of 4, one part a head, got {width}.")
        config = BertConfig(
            vocab_size=num_symbols + 1,
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=4 * width,
            max_position_embeddings=num_features,
            type_vocab_size=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=1.0 / math.sqrt(width),
            pad_token_id=None,
        )
        config._attn_implementation = "eager"  # for 16 tokens faster than the fused kernel
        with torch.random.fork_rng(devices=[]):  # transformers draws from the global generator
            torch.manual_seed(seed)
            self.network = BertForMaskedLM(config)
        self.num_features, self.mask_token = num_features, num_symbols
        self._pairs_at_once = 1024

    @classmethod
    def load(cls, path: Path | None = None) -> "SymbolBERT":
        """The network of Chapter 10 that the book carries, or the one whose weights ``path`` holds.

        ``path`` is a safetensors file, such as ``known-language`` leaves one for each of its runs.
        """
        from safetensors.torch import load_file

        path = book_file("results/known_language.safetensors") if path is None else path
        if not isinstance(path, str | Path) or not Path(path).is_file():
            raise FileNotFoundError(f"path must be a file of safetensors, got {path!r}.")
        try:
            weights = load_file(path)
            num_tokens, width = weights["bert.embeddings.word_embeddings.weight"].shape
            num_features = len(weights["bert.embeddings.position_embeddings.weight"])
            model = cls(num_tokens - 1, num_features, width, seed=0)
            tied = model.network.load_state_dict(weights, strict=False).missing_keys
        except (SafetensorError, KeyError, RuntimeError) as error:
            raise CheckpointError(f"{path} is damaged, or of another network.") from error
        if any("decoder" not in each for each in tied):  # those are stored once
            raise CheckpointError(f"{path} is of another network: it lacks {tied[0]}.")
        model.network.requires_grad_(False)
        return model

    def require_data(self, x: Tensor) -> None:
        require_values(x, [self.mask_token + 1] * self.num_features)

    def _log_values(self, x: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.network(input_ids=x.masked_fill(mask, self.mask_token)).logits
        return logits.double().log_softmax(dim=2)

    @torch.no_grad()
    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        return self._log_values(x, mask).gather(2, x[..., None])[..., 0]
