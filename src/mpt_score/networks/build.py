"""Networks of ``transformers``, built here at random."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch

from mpt_lml.checks import Count, Index, Within, checked
from mpt_score.networks.hub import require_transformers
from mpt_score.networks.kinds import Network

Architecture = Literal["modern", "classic"]
FIXED_POSITIONS = ("vit.embeddings.position_embeddings", "decoder.decoder_pos_embed")
"""The positions of a ViT-MAE, which transformers 5 sets to zero in a new one: all patches look alike."""
MAE_HEADS = 4
WIDTH_OF_A_HEAD = 32


@checked
def at_random(build: Callable[[Any], Any], config: Any, *, seed: Index) -> Any:
    """``build(config)`` at ``transformers``' own initialization, in evaluation mode.

    Args:
        build: a class of ``transformers``, or a function that returns a network.
        config: its configuration.
        seed: of torch's global generator, which ``transformers`` draws from. It is set during the
            call only.

    Returns:
        The network.

    Raises:
        TypeError: where ``build`` returns something else.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> sizes = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 1}
    >>> at_random(BertForMaskedLM, BertConfig(num_hidden_layers=1, **sizes), seed=4).training
    False
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(config)
    if not isinstance(network, torch.nn.Module):
        raise TypeError(f"build(config) must return a network, got {type(network).__name__}.")
    return network.eval()


@checked
def random_twin(network: Network, *, seed: Index) -> Any:
    """A network of the same configuration, untrained, where ``network`` is.

    The fixed positions of a ViT-MAE are kept.

    Args:
        network: a network of ``transformers``.
        seed: as for :func:`at_random`.

    >>> random_twin(small_mae(8, 1, 2, width=16, seed=4), seed=5).config.hidden_size
    16
    """

    def build(config: Any) -> Any:
        twin = type(network)(config)
        if config.model_type == "vit_mae":
            for name in FIXED_POSITIONS:
                twin.get_parameter(name).data.copy_(network.get_parameter(name))
        return twin

    return at_random(build, network.config, seed=seed).to(network.device)


@checked
def small_masked_lm(
    vocab_size: Count,
    architecture: Architecture = "modern",
    *,
    width: Annotated[int, Within(WIDTH_OF_A_HEAD)] = 160,
    num_layers: Count = 6,
    max_length: Count = 64,
    seed: Index,
) -> Any:
    """A small masked language model at random initialization, no dropout.

    Args:
        vocab_size: V, the number of tokens.
        architecture: "modern" is ModernBERT, with local and global attention in turn; "classic" is
            BERT.
        width: units of a layer, one head for each 32.
        num_layers: of the encoder.
        max_length: the longest row, in tokens.
        seed: as for :func:`at_random`.

    Returns:
        The network.

    >>> small_masked_lm(100, width=32, num_layers=1, seed=0).config.vocab_size
    100
    """
    require_transformers()
    import transformers as hub

    shared: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": num_layers,
        "num_attention_heads": width // WIDTH_OF_A_HEAD,
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
    modern = hub.ModernBertConfig(bos_token_id=None, eos_token_id=None, **shared)
    return at_random(hub.ModernBertForMaskedLM, modern, seed=seed)


@checked
def small_mae(
    image_size: Count,
    num_channels: Count,
    patch_size: Count,
    *,
    width: Count = 64,
    num_layers: Count = 3,
    decoder_layers: Count = 2,
    seed: Index,
) -> Any:
    """A ViT-MAE at random initialization, encoder and decoder of the same ``width``, 4 heads.

    Weights have standard deviation 1/√width instead of 0.02, which is meant for width 768. The fixed
    positions are standard normal vectors: sines and cosines hardly differ on a small grid.

    Args:
        image_size: side of an image in pixels, a multiple of ``patch_size``.
        num_channels: C.
        patch_size: side of a patch in pixels.
        width: units of a layer, a multiple of the 4 heads.
        num_layers: of the encoder.
        decoder_layers: of the decoder.
        seed: as for :func:`at_random`.

    Returns:
        A ``ViTMAEForPreTraining`` of plain pixels.

    Raises:
        ValueError: for sides and widths that are not such multiples.

    >>> small_mae(8, 1, 2, width=16, seed=4).num_parameters(only_trainable=True)
    16916
    """
    require_transformers()
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    if image_size % patch_size or width % MAE_HEADS:
        message = f"image_size {image_size} is not a multiple of patch_size {patch_size}"
        raise ValueError(f"{message}, or width {width} not of {MAE_HEADS}, the number of heads.")
    config = ViTMAEConfig(
        image_size=image_size,
        num_channels=num_channels,
        patch_size=patch_size,
        hidden_size=width,
        num_hidden_layers=num_layers,
        num_attention_heads=MAE_HEADS,
        intermediate_size=4 * width,
        decoder_hidden_size=width,
        decoder_num_hidden_layers=decoder_layers,
        decoder_num_attention_heads=MAE_HEADS,
        decoder_intermediate_size=4 * width,
        initializer_range=width**-0.5,
        norm_pix_loss=False,
    )

    def build(config: ViTMAEConfig) -> ViTMAEForPreTraining:
        network = ViTMAEForPreTraining(config)
        for name in FIXED_POSITIONS:
            network.get_parameter(name).data.normal_()
        return network

    return at_random(build, config, seed=seed)
