"""Scores of images under a masked autoencoder: nats of pixels in [0, 1], for a stated variance."""

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import masks
from mpt_lml.files import digest
from mpt_lml.numerics import log_normal, require_variance
from mpt_lml.results import Estimate, as_rows
from mpt_lml.spec import require
from mpt_lml.verdicts import mean_and_error
from mpt_score import networks
from mpt_score.design import SEED
from mpt_score.keep import Part, Run, afresh, parts_of
from mpt_score.networks.hub import gpu
from mpt_score.networks.vit_mae import ViTMAE

PART_IMAGES = 256
"""Images of a part of a long run, which is kept."""


@dataclass(frozen=True, eq=False)
class ImageScores:
    """Scores of N images of D patches with d pixels each, channels counted; float64.

    ``log_score`` and ``standard_error`` (N,): E_σ log p_σ of an image's pixels in [0, 1], nats, and
    its error over masks, from ``num_replicates``. ``variance`` (N,): σ² of every pixel, on which
    the score depends. ``names``: the files.

    >>> scores = ImageScores(torch.tensor([-2.0]), torch.zeros(1), torch.ones(1), 2, 1, 3)
    >>> scores.per_patch, scores.bits_per_dimension.item()
    (tensor([-1.]), 1.442...)
    """

    log_score: Float[Tensor, " N"]
    standard_error: Float[Tensor, " N"]
    variance: Float[Tensor, " N"]
    num_patches: int
    pixels_per_patch: int
    num_replicates: int
    names: tuple[str, ...] = ()

    @property
    def per_patch(self) -> Float[Tensor, " N"]:
        """Nats a patch."""
        return self.log_score / self.num_patches

    @property
    def bits_per_dimension(self) -> Float[Tensor, " N"]:
        """−log₂ of the density, a pixel and channel in [0, 1]; 8 more in units of gray levels."""
        return -self.per_patch / (self.pixels_per_patch * math.log(2))

    def mean(self) -> Estimate:
        """Mean bits a dimension, with its error over images."""
        mean, error = mean_and_error(self.bits_per_dimension)
        return Estimate(mean.item(), error.item(), len(self.log_score), "bits a dimension")

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary an image, for a table."""
        names = ("log_score", "standard_error", "variance", "per_patch", "bits_per_dimension")
        files = {"image": self.names or range(len(self.log_score))}
        return as_rows(files | {name: getattr(self, name) for name in names})


def images(
    model: Any,
    images: str | Path | Float[Tensor, "N C H W"],
    *,
    revision: str | None = None,
    variance: float | None = None,
    num_masks: int = 16,
    num_replicates: int = 2,
    seed: int = 0,
    run: Run = afresh,
) -> ImageScores:
    """Log-density of every image under a ViT-MAE, by the area under its curve.

    ``model``: a folder, a hub name with ``revision``, a network (of pixels in its own units) or a
    :class:`~mpt_score.ViTMAE`; a folder's ``preprocessor_config.json`` says what pixels are centered
    and scaled by. ``images``: pixels in [0, 1], or a folder of pictures, which are resized to what
    the network takes: the density is of the resized ones. Each replicate draws ``num_masks`` exact
    sizes, stratified over 1..D. Without a ``variance`` the one of maximum likelihood is used, for
    each half of the images (even, odd) from the other half; a single image needs it given. That
    of a :class:`~mpt_score.ViTMAE` itself is not read.

    Raises as :class:`~mpt_score.ViTMAE`, and ``ValueError`` for a folder without pictures.

    >>> mae = networks.small_mae(8, 1, 2, width=16, seed=4)
    >>> images(mae, torch.zeros(3, 1, 8, 8), variance=0.1).per_patch.shape
    torch.Size([3])
    """
    require(locals(), "num_masks 1.., num_replicates 2.., variance? (0,inf), revision? str")
    require(locals(), "run Callable, " + SEED)
    mae = model if isinstance(model, ViTMAE) else load_mae(model, revision)
    x, names = _pixels(images, mae) if isinstance(images, str | Path) else (images, ())
    mae.require_data(x)
    if variance is not None:
        require_variance("variance", float(variance), torch.float64)
    if variance is None and len(x) < 2:
        raise ValueError("a single image has no others to fit the variance to: give variance=.")

    law, blocks = masks.UniformSize(), x.split(PART_IMAGES)

    def part(number: int) -> Part:
        generator = torch.Generator().manual_seed(1_000_003 * seed + number)
        sizes = law.stratified(num_masks, mae.num_features, generator=generator).tolist()
        some = blocks[number // num_replicates]
        error = mae.squared_error(some, generator=generator, sizes=sizes)
        return {"error": error.double().mean(dim=0)}

    # Mean squared residuals of hidden pixels, (R, N): a score is linear in them.
    shown = [digest("", {"x": some})[:12] for some in blocks for _ in range(num_replicates)]
    named = {f"images-{each}-{n:05d}": partial(part, n) for n, each in enumerate(shown)}
    found = [each["error"].cpu() for each in parts_of(run, "images", named, "error")]
    errors = torch.stack([torch.cat(found[r::num_replicates]) for r in range(num_replicates)])
    used = torch.full((len(x),), math.nan if variance is None else variance, dtype=torch.float64)
    if variance is None:
        used[::2], used[1::2] = errors[:, 1::2].mean(), errors[:, ::2].mean()
    pixels = mae.num_features * mae.pixels_per_patch
    score, spread = mean_and_error(pixels * log_normal(errors.sqrt(), used))
    counts = mae.num_features, mae.pixels_per_patch, num_replicates
    return ImageScores(score, spread, used, *counts, names)


def load_mae(model: Any, revision: str | None = None, device: str = "auto") -> ViTMAE:
    """A ViT-MAE in pixels of [0, 1], by what its folder says of them; any variance."""
    if not isinstance(model, str | Path):
        return ViTMAE(model, 1.0)
    network, said = networks.load_network(model, revision=revision), {}
    network.to(str(gpu() or "cpu") if device == "auto" else device)
    if (path := Path(model, "preprocessor_config.json")).is_file():
        said = json.loads(path.read_text(encoding="utf-8"))
    mean, scale = (
        torch.tensor(said.get(f"image_{k}", v)) for k, v in (("mean", 0.0), ("std", 1.0))
    )
    return ViTMAE(network, 1.0, pixel_mean=mean, pixel_scale=scale)


def _pixels(folder: str | Path, mae: ViTMAE) -> tuple[Tensor, tuple[str, ...]]:
    """The pictures of a folder, sorted by name, as the network takes them."""
    from PIL import Image, UnidentifiedImageError

    channels, height, width = mae.image_shape
    found: dict[str, Tensor] = {}
    require({"images": folder}, "images path")
    if not Path(folder).is_dir():
        raise ValueError(f"images: there is no folder {folder}.")
    for path in sorted(each for each in Path(folder).iterdir() if each.is_file()):
        try:
            with Image.open(path) as picture:
                plain = picture.convert("L" if channels == 1 else "RGB").resize((width, height))
        except UnidentifiedImageError:
            continue
        except OSError as error:
            raise ValueError(
                f"images: {path} cannot be read: {error}. Remove or replace it."
            ) from error
        pixels = torch.tensor(np.array(plain)).view(height, width, -1).movedim(-1, 0)
        found[path.name] = pixels.float() / 255
    if not found:
        raise ValueError(f"{folder} has no pictures that can be read.")
    return torch.stack(list(found.values())), tuple(found)
