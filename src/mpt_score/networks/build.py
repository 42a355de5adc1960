"""Networks of ``transformers``, built here at random."""

from typing import TYPE_CHECKING, Any, Literal

import torch

from mpt_lml.spec import require
from mpt_score.networks.hub import require_transformers

if TYPE_CHECKING:
    from transformers import ViTMAEForPreTraining

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
        network = build(config)
    if not isinstance(network, torch.nn.Module):
        raise TypeError(f"build(config) must return a network, got {type(network).__name__}.")
    return network.eval()


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
    require_transformers()
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
    require_transformers()
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
