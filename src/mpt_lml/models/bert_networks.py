"""Networks for :class:`~mpt_lml.models.masked_lm.MaskedLM`: built here, or loaded with care (floor 2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from mpt_lml.checkpoints import (
    CheckpointError,
    load_pretrained,
    pinned_revision,
)
from mpt_lml.files import book_file
from mpt_lml.shapes import require_count

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HUB_NAME = "google-bert/bert-base-uncased"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
Architecture = Literal["modern", "classic"]


def train_tokenizer(sentences: Sequence[str], vocab_size: int) -> PreTrainedTokenizerBase:
    """An uncased WordPiece vocabulary of at most ``vocab_size`` pieces, as BERT's tokenizer.

    The trainer of ``tokenizers`` numbers continuing characters (##a) as it meets them, in another
    order each time, and breaks ties of frequency by number. Here they are numbered beforehand, and
    the pieces are sorted, so that a text always gives the same vocabulary.
    """
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizer

    require_count("vocab_size", vocab_size, len(SPECIAL_TOKENS) + 1)
    trainer = BertWordPieceTokenizer(lowercase=True)
    normalize = trainer.normalizer.normalize_str
    characters = sorted({each for text in sentences for each in normalize(text)} - {" "})
    first = [*SPECIAL_TOKENS, *(f"##{each}" for each in characters)]
    trainer.train_from_iterator(
        sentences, vocab_size=vocab_size, special_tokens=first, show_progress=False
    )
    pieces = [*SPECIAL_TOKENS, *sorted(set(trainer.get_vocab()) - set(SPECIAL_TOKENS))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return BertTokenizer(vocab=vocabulary, do_lower_case=True)


def small_network(
    vocab_size: int,
    architecture: Architecture = "modern",
    *,
    width: int = 160,
    num_layers: int = 6,
    max_length: int = 64,
    seed: int,
) -> PreTrainedModel:
    """A small masked language model at random initialization, no dropout.

    ``modern`` is ModernBERT (rotary positions, normalization before each block, gated feed-forward
    layers, local and global attention in turn); ``classic`` is BERT (learned positions,
    normalization after each block) with about as many parameters. ``seed`` sets torch's global
    generator, which ``transformers`` draws from, for the time of the call only.
    """
    from transformers import BertConfig, BertForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

    if architecture not in ("modern", "classic"):
        raise ValueError(f"architecture must be 'modern' or 'classic', got {architecture!r}.")
    shared: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": num_layers,
        "num_attention_heads": width // 32,
        "max_position_embeddings": max_length,
        "pad_token_id": 0,
        "attn_implementation": "eager",  # at 64 tokens faster than the fused kernel on a CPU
    }
    if architecture == "classic":
        silence: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config: Any = BertConfig(
            intermediate_size=3 * width, type_vocab_size=1, **silence, **shared
        )
        build: Any = BertForMaskedLM
    else:
        shared["global_attn_every_n_layers"] = 2
        config = ModernBertConfig(
            intermediate_size=2 * width,
            local_attention=32,
            cls_token_id=2,
            sep_token_id=3,
            bos_token_id=None,
            eos_token_id=None,
            **shared,
        )
        build = ModernBertForMaskedLM
    return at_random(build, config, seed=seed)


def at_random(build: Any, config: Any, *, seed: int) -> PreTrainedModel:
    """``build(config)`` at ``transformers``' own initialization, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(config).eval()


def random_bert_base(vocab_size: int = 30522, *, seed: int) -> PreTrainedModel:
    """BERT-base (110M parameters) with the weights it starts from, before any training."""
    from transformers import BertConfig, BertForMaskedLM

    return at_random(BertForMaskedLM, BertConfig(vocab_size=vocab_size), seed=seed)


def random_twin(network: PreTrainedModel, *, seed: int) -> PreTrainedModel:
    """A network of the same configuration, untrained."""
    return at_random(type(network), network.config, seed=seed)


def load_tokenizer(source: str | Path, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder, of a ``vocab.txt``, or of a name on the hub.

    Raises
    ------
    CheckpointError
        When ``source`` holds no tokenizer, or the hub cannot be reached.
    """
    from transformers import AutoTokenizer, BertTokenizer

    path = Path(source)
    if path.is_file():
        pieces = path.read_text(encoding="utf-8").splitlines()
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        return BertTokenizer(vocab=vocabulary, do_lower_case=True)
    try:
        return AutoTokenizer.from_pretrained(source, revision=revision or pinned_revision(source))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{source} has no tokenizer that can be read: {_first_line(error)}. "
            "Name a folder made by tokenizer.save_pretrained(folder), or a vocab.txt."
        ) from error


def load_network(source: str | Path, *, revision: str | None = None) -> PreTrainedModel:
    """A masked language model from a ``save_pretrained`` folder or from the hub; safetensors only.

    Weights are float32, in whatever precision they were stored.

    :func:`~mpt_lml.checkpoints.resolved_revision` says which commit of the hub's repository it was.

    Raises
    ------
    CheckpointError
        When ``source`` is a folder without a checkpoint or with pickled weights only, when weights
        are missing (an encoder without its masked-LM head), or when the hub cannot be reached.
    ValueError
        When it is a model of a kind that has no masked-LM head, or a hub name without a revision.
    """
    from transformers import AutoModelForMaskedLM

    def require_head(config: Any) -> None:
        if type(config) not in AutoModelForMaskedLM._model_mapping:
            raise ValueError(
                f"{source} is a {config.model_type!r} model, which has no masked-LM head: it cannot "
                "say log p of a hidden token. Use a model of BERT's kind."
            )

    return load_pretrained(
        AutoModelForMaskedLM,
        source,
        require_head,
        revision=revision,
        what="a masked language model with its head",
        otherwise="the small BERT of the book needs no download.",
    )


def small_bert_folder() -> Path:
    """Where the book's own small BERT lies: in the repository, or inside the installed package."""
    return book_file("results/small_bert")


def load_small_bert() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The book's own small BERT (2.5M parameters, see its model card) and its tokenizer."""
    folder = small_bert_folder()
    return load_network(folder), load_tokenizer(folder)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
