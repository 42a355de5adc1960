"""Tiny checkpoints of every family of masked language models, saved with their tokenizers.

The weights are random and large, so that tokens, places and neighbours all matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from models import generator
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from mpt_score import networks

LETTERS = tuple("abcdefghijklmno")
BERTS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTAS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
MPNETS = ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
ESMS = ("<cls>", "<pad>", "<eos>", "<unk>", "<mask>")
NAMES = frozenset(dir(transformers))  # those of modules that are not imported yet, too
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


@dataclass(frozen=True)
class Family:
    """Names of its configuration and network, its special tokens, and its longest row."""

    kind: str
    longest: int
    special: tuple[str, ...] = BERTS
    sizes: dict[str, Any] = field(default_factory=lambda: SMALL)
    head: str = "ForMaskedLM"
    has_limit: bool = True  # of positions; without one `longest` is how long its rows are here

    @property
    def network_class(self) -> Any:
        """Asking for it imports its module."""
        return getattr(transformers, f"{self.kind}{self.head}")

    @property
    def is_known(self) -> bool:
        """Whether this version of ``transformers`` has a network of that name."""
        return f"{self.kind}{self.head}" in NAMES

    def config(self) -> Any:
        pad, mask = (self.special.index(each) for each in (self.pad, self.mask))
        ids = {"vocab_size": len(self.pieces), "pad_token_id": pad, "mask_token_id": mask}
        # Not asked for by name: generation's beginnings and ends are of no use here.
        ids |= {"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
        return getattr(transformers, f"{self.kind}Config")(**self.sizes, **ids)

    @property
    def pieces(self) -> tuple[str, ...]:
        return self.special + LETTERS

    @property
    def pad(self) -> str:
        return next(each for each in self.special if "pad" in each.lower())

    @property
    def mask(self) -> str:
        return self.special[4]

    def network(self, seed: int = 1) -> Any:
        network = networks.at_random(self.network_class, self.config(), seed=seed)
        draws = generator(seed)
        with torch.no_grad():
            for each in network.parameters():
                each.add_(0.3 * torch.randn(each.shape, generator=draws))
        return network

    def of_length(self, longest: int, **sizes: Any) -> Family:
        """The same with other positions. The special ones in front of RoBERTa's stay."""
        num_special = self.sizes["max_position_embeddings"] - self.longest
        sizes = self.sizes | {"max_position_embeddings": longest + num_special} | sizes
        return replace(self, longest=longest, sizes=sizes)

    def tokenizer(self, folder: Path) -> Any:
        if self.kind == "Esm":
            (folder / "pieces.txt").write_text("\n".join(self.pieces), encoding="utf-8")
            return transformers.EsmTokenizer(str(folder / "pieces.txt"))
        first, last = ("[CLS]", "[SEP]") if self.special == BERTS else ("<s>", "</s>")
        words = {piece: number for number, piece in enumerate(self.pieces)}
        unknown = next(each for each in self.special if "unk" in each.lower())
        inner = Tokenizer(WordLevel(words, unknown))
        inner.pre_tokenizer = Whitespace()
        inner.post_processor = TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B:1 {last}:1",
            special_tokens=[(each, words[each]) for each in (first, last)],
        )
        roles = {"cls_token": first, "sep_token": last, "unk_token": unknown}
        roles |= {"pad_token": self.pad, "mask_token": self.mask}
        return PreTrainedTokenizerFast(tokenizer_object=inner, **roles)

    def save(self, folder: Path, **changes: Any) -> Path:
        network = self.network()
        for name, value in changes.items():
            setattr(network.config, name, value)
        network.save_pretrained(folder)
        self.tokenizer(folder).save_pretrained(folder)
        return folder


def plain(**more: Any) -> dict[str, Any]:
    return SMALL | {"max_position_embeddings": 12} | more


DISTIL = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 12}
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4}
FAMILIES = {
    "BERT": Family("Bert", 12, sizes=plain()),
    "RoBERTa": Family("Roberta", 10, ROBERTAS, plain(type_vocab_size=1)),
    "XLM-R": Family("XLMRoberta", 10, ROBERTAS, plain(type_vocab_size=1)),
    "I-BERT": Family("IBert", 10, ROBERTAS, plain(type_vocab_size=1)),
    "DistilBERT": Family("DistilBert", 12, sizes=DISTIL),
    "ELECTRA": Family("Electra", 12, sizes=plain(embedding_size=8)),
    "ALBERT": Family("Albert", 12, sizes=plain(embedding_size=8)),
    "DeBERTa-v2": Family(
        "DebertaV2", 12, sizes=plain(position_biased_input=False, type_vocab_size=0, **RELATIVE)
    ),
    "MPNet": Family("MPNet", 10, MPNETS, plain()),
    "ModernBERT": Family("ModernBert", 12, sizes=plain(local_attention=4)),
    "ESM-2": Family("Esm", 12, ESMS, plain(position_embedding_type="rotary", token_dropout=True)),
    "ESM-1b": Family("Esm", 10, ESMS, plain(token_dropout=True, emb_layer_norm_before=True)),
}

# The other families that `transformers` lists among its masked language models, but for those of
# pictures (ModernVBERT, UltraVBERT) and Reformer, whose usual attention groups tokens by random hashes.
POSITIONS = 24
TWO_STACKS = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": POSITIONS,
}
XLMS = {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "max_position_embeddings": POSITIONS}
FUNNEL = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "num_decoder_layers": 1}
GROUPS = ("q_groups", "k_groups", "v_groups", "intermediate_groups", "output_groups")
LATENTS = {
    "num_latents": 4,
    "d_latents": 16,
    "d_model": 16,
    "num_blocks": 1,
    "num_self_attends_per_block": 1,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 2,
    "max_position_embeddings": POSITIONS,
}
PRONOUNCED = {
    "pronunciation_vocab_size": 5,
    "pronunciation_embed_dim": 4,
    "shape_vocab_size": 5,
    "shape_embed_dim": 4,
}


def longer(**more: Any) -> dict[str, Any]:
    return SMALL | {"max_position_embeddings": POSITIONS} | more


def like_bert(kind: str, **more: Any) -> Family:
    return Family(kind, POSITIONS, sizes=longer(**more))


def like_roberta(kind: str, **more: Any) -> Family:
    """Positions are counted from behind the padding's, whose number is 1: the first two are not used."""
    return Family(kind, POSITIONS - 2, ROBERTAS, longer(**more))


def two_stacks(kind: str) -> Family:
    return Family(kind, POSITIONS, ROBERTAS, TWO_STACKS, head="ForConditionalGeneration")


MORE_FAMILIES = {
    "BART": two_stacks("Bart"),
    "BigBird": like_bert("BigBird", attention_type="original_full"),
    "CamemBERT": like_roberta("Camembert", type_vocab_size=1),
    "ConvBERT": like_bert("ConvBert", embedding_size=16, head_ratio=1, conv_kernel_size=3),
    "Data2VecText": like_roberta("Data2VecText", type_vocab_size=1),
    "DeBERTa": like_bert("Deberta", type_vocab_size=0, **RELATIVE),
    "ERNIE": like_bert("Ernie"),
    "ESM C": like_bert("Esmc"),
    "EuroBERT": like_bert("EuroBert", num_key_value_heads=2),
    "FlauBERT": Family("Flaubert", POSITIONS, BERTS, XLMS, head="WithLMHeadModel"),
    "FNet": like_bert("FNet"),
    "Funnel": Family("Funnel", POSITIONS, BERTS, FUNNEL | {"block_sizes": [1, 1]}, has_limit=False),
    "GTE": like_bert("Gte"),
    "Jina embeddings 3": like_bert("JinaEmbeddingsV3"),
    "LayoutLM": like_bert("LayoutLM", max_2d_position_embeddings=8),
    "Longformer": like_roberta("Longformer", type_vocab_size=1, attention_window=[4, 4]),
    "LUKE": like_roberta("Luke", entity_vocab_size=5, entity_emb_size=8),
    "mBART": two_stacks("MBart"),
    "Megatron-BERT": like_bert("MegatronBert"),
    "MobileBERT": like_bert(
        "MobileBert", embedding_size=8, intra_bottleneck_size=8, num_feedforward_networks=1
    ),
    "MRA": like_bert("Mra"),
    "MVP": two_stacks("Mvp"),
    "NeoMME": like_bert("NeoMME", num_key_value_heads=2),
    "Nomic BERT": like_bert("NomicBert"),
    "Nyströmformer": like_bert("Nystromformer"),
    "Perceiver": Family("Perceiver", POSITIONS, BERTS, LATENTS),
    "RemBERT": like_bert("RemBert", input_embedding_size=16, output_embedding_size=16),
    "RoBERTa-PreLayerNorm": like_roberta("RobertaPreLayerNorm", type_vocab_size=1),
    "RoCBert": like_bert("RoCBert", **PRONOUNCED),
    "RoFormer": like_bert("RoFormer"),
    "SqueezeBERT": like_bert("SqueezeBert", embedding_size=16, **dict.fromkeys(GROUPS, 2)),
    "TAPAS": like_bert("Tapas"),
    "UltraBERT": like_bert("Ultrabert"),
    "XLM": Family("XLM", POSITIONS, BERTS, XLMS, head="WithLMHeadModel"),
    "XLM-R-XL": like_roberta("XLMRobertaXL", type_vocab_size=1),
    "X-MOD": like_roberta("Xmod", type_vocab_size=1, languages=["en_XX"], default_language="en_XX"),
    "YOSO": like_bert("Yoso"),
}
