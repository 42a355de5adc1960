"""Networks of ``transformers``: built here at random, or loaded with care."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from mpt_lml.checkpoints import TOKENIZER_FILES, WEIGHT_FILES, CheckpointError, loading
from mpt_lml.files import book_file, digest
from mpt_lml.spec import require

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ViTMAEForPreTraining

__all__ = [
    "at_random",
    "load_network",
    "load_small_bert",
    "load_tokenizer",
    "random_twin",
    "small_mae",
]

Architecture = Literal["modern", "classic", "decoder"]
# The positions of a ViT-MAE, which transformers 5 sets to zero in a new one: all patches look alike.
FIXED = ("vit.embeddings.position_embeddings", "decoder.decoder_pos_embed")


def at_random(build: Any, config: Any, *, seed: int) -> Any:
    """``build(config)`` at ``transformers``' own initialization, in evaluation mode.

    ``seed`` sets torch's global generator, which ``transformers`` draws from, during the call only.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> sizes = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 1}
    >>> at_random(BertForMaskedLM, BertConfig(num_hidden_layers=1, **sizes), seed=4).training
    False
    """
    require(locals(), "build Callable, seed 0..")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(config).eval()


def fingerprint(network: Any) -> str:
    """SHA-256 of a network's weights and of the configuration that says what they compute."""
    config = json.loads(network.config.to_json_string())
    return digest(json.dumps(config | {"transformers_version": None}), network.state_dict())


def random_twin(network: Any, *, seed: int) -> Any:
    """A network of the same configuration, untrained; the fixed positions of a ViT-MAE are kept.

    >>> random_twin(small_mae(8, 1, 2, width=16, seed=4), seed=5).config.hidden_size
    16
    """
    require(locals(), "network PreTrainedModel")

    def build(config: Any) -> Any:
        twin = type(network)(config)
        for name in FIXED if config.model_type == "vit_mae" else ():
            twin.get_parameter(name).data.copy_(network.get_parameter(name))
        return twin

    return at_random(build, network.config, seed=seed)


def small_masked_lm(
    vocab_size: int,
    architecture: Architecture = "modern",
    *,
    width: int = 160,
    num_layers: int = 6,
    max_length: int = 64,
    seed: int,
) -> Any:
    """A small masked language model at random initialization, no dropout.

    ``modern`` is ModernBERT, with local and global attention in turn; ``classic`` is BERT;
    ``decoder`` has the same weights as ``modern`` and sees what stands to the left only.
    """
    import transformers as hub

    require(locals(), "architecture modern|classic|decoder")
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
        shared |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = hub.BertConfig(intermediate_size=3 * width, type_vocab_size=1, **shared)
        return at_random(hub.BertForMaskedLM, config, seed=seed)
    shared |= {"cls_token_id": 2, "sep_token_id": 3, "intermediate_size": 2 * width}
    shared |= {"local_attention": 32, "global_attn_every_n_layers": 2}
    if architecture == "decoder":
        causal = hub.ModernBertDecoderConfig(bos_token_id=2, eos_token_id=3, **shared)
        return at_random(hub.ModernBertDecoderForCausalLM, causal, seed=seed)
    modern = hub.ModernBertConfig(bos_token_id=None, eos_token_id=None, **shared)
    return at_random(hub.ModernBertForMaskedLM, modern, seed=seed)


def small_mae(
    image_size: int,
    num_channels: int,
    patch_size: int,
    *,
    width: int = 64,
    num_layers: int = 3,
    decoder_layers: int = 2,
    seed: int,
) -> "ViTMAEForPreTraining":
    """A ViT-MAE at random initialization, encoder and decoder of the same ``width``, 4 heads.

    Weights have standard deviation 1/√width instead of 0.02, which is meant for width 768. The fixed
    positions are standard normal vectors: sines and cosines hardly differ on a small grid.

    >>> small_mae(8, 1, 2, width=16, seed=4).num_parameters(only_trainable=True)
    16916
    """
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    require(locals(), "image_size 1.., num_channels 1.., patch_size 1.., width 1..")
    require(locals(), "num_layers 1.., decoder_layers 1..")
    if image_size % patch_size or width % 4:
        message = f"image_size {image_size} is not a multiple of patch_size {patch_size}"
        raise ValueError(f"{message}, or width {width} not of 4, the number of heads.")
    config = ViTMAEConfig(
        image_size=image_size,
        num_channels=num_channels,
        patch_size=patch_size,
        hidden_size=width,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        intermediate_size=4 * width,
        decoder_hidden_size=width,
        decoder_num_hidden_layers=decoder_layers,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=4 * width,
        initializer_range=width**-0.5,
        norm_pix_loss=False,
    )

    def build(config: ViTMAEConfig) -> ViTMAEForPreTraining:
        network = ViTMAEForPreTraining(config)
        for name in FIXED:
            network.get_parameter(name).data.normal_()
        return network

    return at_random(build, config, seed=seed)


def load_small_bert() -> "tuple[Any, PreTrainedTokenizerBase]":
    """The book's own small BERT (2.5M parameters, see its model card) and its tokenizer.

    >>> len(load_small_bert()[1])
    6000
    """
    return load_network(small_bert_folder()), load_tokenizer(small_bert_folder())


def small_bert_folder() -> Path:
    """Where the book's own small BERT lies."""
    return book_file("results/small_bert")


def load_tokenizer(source: str | Path, *, revision: str | None = None) -> "PreTrainedTokenizerBase":
    """The tokenizer of a folder, of a ``vocab.txt``, or of a name on the hub.

    Raises ``CheckpointError`` when there is none, ``ValueError`` for a hub name without a revision.

    >>> load_tokenizer(small_bert_folder()).mask_token_id
    4
    """
    from transformers import AutoTokenizer, BertTokenizer

    require(locals(), "source path, revision? str")
    if Path(source).is_file():
        pieces = Path(source).read_text(encoding="utf-8", errors="replace").splitlines()
        if lost := {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} - set(pieces):
            raise CheckpointError(f"{source} is no vocabulary of BERT: no line is {min(lost)}.")
        return BertTokenizer(vocab={piece: n for n, piece in enumerate(pieces)}, do_lower_case=True)
    needed = "tokenizer*|vocab*|*.model"
    with loading(source, revision, needed, fetched=TOKENIZER_FILES) as how:
        return AutoTokenizer.from_pretrained(source, **how)


def load_network(source: str | Path, *, revision: str | None = None) -> Any:
    """A masked language model or a ViT-MAE from a ``save_pretrained`` folder or from the hub.

    Safetensors only, as float32. A name on the hub means the commit that the book pins, unless
    ``revision`` names another. Raises ``CheckpointError`` for a folder without a checkpoint, with
    pickled or damaged weights or code of its own, for missing weights (an encoder alone), and where
    the hub cannot be reached, ``ValueError`` for another kind of model or a name without a revision.

    >>> load_network(small_bert_folder()).config.hidden_size
    160
    """
    from transformers import AutoConfig, AutoModelForMaskedLM, ViTMAEForPreTraining

    require(locals(), "source path, revision? str")
    needed = ("config.json", "*.safetensors")
    with loading(source, revision, *needed, fetched="config.json") as how:
        config = AutoConfig.from_pretrained(source, **how)
    is_mae = config.model_type == "vit_mae"
    if not is_mae and type(config) not in AutoModelForMaskedLM._model_mapping:
        kind = f"a {config.model_type!r} model, which has no masked-LM head and is no ViT-MAE"
        raise ValueError(f"{source} is {kind}: use a model of BERT's kind.")
    loader: Any = ViTMAEForPreTraining if is_mae else AutoModelForMaskedLM
    with loading(source, revision, fetched=WEIGHT_FILES) as how:
        how |= {"config": config, "dtype": torch.float32, "use_safetensors": True}
        network, report = loader.from_pretrained(source, output_loading_info=True, **how)
    if missing := sorted(report["missing_keys"]):
        raise CheckpointError(
            f"{source} lacks {len(missing)} of the weights of {type(network).__name__}, such as "
            f"{missing[0]}; they would be random. It may be an encoder alone."
        )
    if bad := [name for name, each in network.named_parameters() if not each.isfinite().all()]:
        raise CheckpointError(f"{source} is damaged: {bad[0]} is not finite. Fetch it again.")
    return network.eval()


@contextmanager
def fast_linear(network: nn.Module) -> Iterator[None]:
    """Float32 linear layers of ``network`` on a CPU through oneDNN, where nothing is differentiated.

    PyTorch asks MKL, which does not use the widest registers of every maker's processors; there oneDNN
    takes less than half the time. Layers of another type, precision or device stay as they are.
    """
    # The operation that torch.compile puts in the place of a linear layer; it has no other name.
    product = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    changed = []
    for layer in network.modules() if product and torch.backends.mkldnn.is_available() else ():
        # A layer that others have changed keeps what they put there.
        if type(layer) is nn.Linear and "forward" not in vars(layer):
            vars(layer)["forward"] = partial(_linear, layer, product)
            changed.append(layer)
    try:
        yield
    finally:
        for layer in changed:
            del vars(layer)["forward"]


def _linear(layer: nn.Linear, product: Any, x: Tensor) -> Tensor:
    plain = x.dtype == layer.weight.dtype == torch.float32 and x.device.type == "cpu"
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not plain or x.numel() == 0:
        return functional.linear(x, layer.weight, layer.bias)
    return product(x, layer.weight, layer.bias, "none", [], "")
