"""Networks for :class:`~mpt_lml.models.vit_mae.ViTMAE`: built here, or loaded with care (floor 2)."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.checkpoints import load_pretrained
from mpt_lml.shapes import require_count

if TYPE_CHECKING:
    from transformers import ViTMAEForPreTraining

HUB_NAME = "facebook/vit-mae-base"

# What facebook/vit-mae-base subtracts and divides by, from its preprocessor (ImageNet's channels).
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_SCALE = (0.229, 0.224, 0.225)


def small_network(
    image_size: int,
    num_channels: int,
    patch_size: int,
    *,
    width: int = 64,
    num_layers: int = 3,
    decoder_layers: int = 2,
    seed: int,
) -> ViTMAEForPreTraining:
    """A ViT-MAE at random initialization, encoder and decoder of the same ``width``, 4 heads.

    Weights have standard deviation 1/√width (what Xavier's rule gives a square matrix) instead of
    0.02, which is meant for width 768. The fixed positions are standard normal vectors instead of
    sines and cosines, which hardly differ between the few places of a small grid. ``seed`` sets
    torch's global generator, which ``transformers`` draws from, for the time of the call only.
    """
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    for name, value in (("image_size", image_size), ("patch_size", patch_size)):
        require_count(name, value, 1)
    if image_size % patch_size:
        raise ValueError(
            f"image_size {image_size} is not a multiple of patch_size {patch_size}: the patches "
            "would not cover the image."
        )
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = ViTMAEForPreTraining(config)
        network.vit.embeddings.position_embeddings.data.normal_()
        network.decoder.decoder_pos_embed.data.normal_()
    return network


def random_twin(network: ViTMAEForPreTraining, *, seed: int) -> ViTMAEForPreTraining:
    """A network of the same configuration at ``transformers``' own initialization, with positions."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return restore_positions(type(network)(network.config).eval())


def restore_positions(network: ViTMAEForPreTraining) -> ViTMAEForPreTraining:
    """Give an encoder and a decoder without positions their sine and cosine positions (in place).

    ``transformers`` 5 sets the fixed position embeddings of a new network to zero, and they are not
    trained: every hidden patch of an image would get the same prediction, before and after training.
    """
    positions = network.decoder.decoder_pos_embed
    if not positions.any():
        network.decoder.initialize_weights(positions.shape[1] - 1)
    embeddings = network.vit.embeddings
    if not embeddings.position_embeddings.any():
        other: Any = copy.deepcopy(embeddings)  # its weights are drawn anew, too
        other.patch_embeddings.projection._is_hf_initialized = False  # else it returns at once
        other.initialize_weights()
        embeddings.position_embeddings.data.copy_(other.position_embeddings)
    return network


def load_network(source: str | Path, *, revision: str | None = None) -> ViTMAEForPreTraining:
    """A ViT-MAE from a ``save_pretrained`` folder or from the hub; safetensors only.

    Weights are float32, in whatever precision they were stored.

    :func:`~mpt_lml.checkpoints.resolved_revision` says which commit of the hub's repository it was.

    Raises
    ------
    CheckpointError
        When ``source`` is a folder without a checkpoint or with pickled weights only, when its
        weights do not cover encoder and decoder, or when the hub cannot be reached.
    ValueError
        When it is a checkpoint of another kind of model, or a hub name without a revision.
    """
    from transformers import ViTMAEForPreTraining

    def require_kind(config: Any) -> None:
        if config.model_type != "vit_mae":
            raise ValueError(f"{source} is a {config.model_type!r} checkpoint, not a 'vit_mae'.")

    return load_pretrained(
        ViTMAEForPreTraining,
        source,
        require_kind,
        revision=revision,
        what="an encoder with its decoder",
        otherwise="small_network(...) needs no weights.",
    )


def as_inputs(
    x: Float[Tensor, "N C H W"], image_shape: tuple[int, int, int]
) -> Float[Tensor, "N c h w"]:
    """Images enlarged to what a network takes (bilinear), one channel repeated to three.

    An enlarged image is a function of fewer numbers than it has pixels: densities of it are not
    densities of the original, and a warning says so.
    """
    channels, height, width = image_shape
    if x.shape[1] not in (1, channels):
        raise ValueError(f"images have {x.shape[1]} channels, the network takes {channels}.")
    if tuple(x.shape[1:]) == image_shape:
        return x
    warnings.warn(
        f"images {tuple(x.shape[1:])} become {image_shape}: log-densities are of the enlarged "
        "images, whose pixels repeat each other, not of the originals.",
        stacklevel=2,
    )
    size = (height, width)
    larger = torch.nn.functional.interpolate(x, size, mode="bilinear", align_corners=False)
    return larger.expand(-1, channels, -1, -1).clamp(0.0, 1.0)
