"""Masked autoencoders of images: ``transformers``' ViT-MAE as Gaussian log-densities (floor 2).

He et al. 2022 train a vision transformer to fill in hidden patches with a squared error. Paper,
Section 3.2 and Figure 6, reads its curve. A squared error is a log-density only once a variance is
chosen: log N(x; f, σ²) = −½ log 2πσ² − (x − f)²/2σ². Here it is chosen in the open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import masks
from mpt_lml.models.base import ConditionalModel
from mpt_lml.numerics import fast_linear, log_normal
from mpt_lml.shapes import require_count, require_finite, require_generator, require_mask

if TYPE_CHECKING:
    from transformers import ViTMAEForPreTraining

ROWS = 512
"""Images that go through the network in one batch."""


@final
class ViTMAE(ConditionalModel):
    """p(x_j | x_R) = Π_pixels N(pixel; prediction from the patches R, σ²) for every patch j.

    The coordinates are the D patches of an image; one patch holds d pixels (channels counted) and
    its log-density is the sum of theirs, in nats, under a density of pixels in [0, 1].

    Parameters
    ----------
    network : ViTMAEForPreTraining
        From ``transformers``, trained on plain pixels (``norm_pix_loss=False``).
    variance : float or Tensor () or (D,) or (D, D, d)
        σ², in squared units of pixels in [0, 1]: one number, one for each number of masked patches
        (``variance[M - 1]`` belongs to M), or one for each number and pixel
        (``variance[M - 1, j, i]``: pixel i of patch j). :meth:`fit_variance` estimates it.
    pixel_mean, pixel_scale : float or Tensor (C,)
        The network sees (x − mean)/scale in each channel and predicts in these units.

    Raises
    ------
    TypeError, ValueError
        For another kind of network, one trained on normalized patches, or σ² ≤ 0.
    """

    def __init__(
        self,
        network: ViTMAEForPreTraining,
        variance: float | Tensor,
        *,
        pixel_mean: float | Tensor = 0.0,
        pixel_scale: float | Tensor = 1.0,
    ) -> None:
        _require_network(network)
        self.network = network
        self.device = network.decoder.mask_token.device
        self.variance = self._variance(variance)
        self.pixel_mean = self._per_channel("pixel_mean", pixel_mean)
        self.pixel_scale = self._per_channel("pixel_scale", pixel_scale)
        if (self.pixel_scale <= 0).any():
            raise ValueError(f"pixel_scale must be > 0, got {pixel_scale}.")

    @property
    def num_features(self) -> int:
        """D, the number of patches."""
        return int(self.network.vit.embeddings.patch_embeddings.num_patches)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        side = _side(self.network.config.image_size)
        return (self.network.config.num_channels, side, side)

    @property
    def pixels_per_patch(self) -> int:
        """d, channels counted."""
        return _side(self.network.config.patch_size) ** 2 * self.network.config.num_channels

    def patches(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D d"]:
        """The images cut into patches, rows of pixels with the channels innermost."""
        return self.network.patchify(self._images(x))

    def images(self, patches: Float[Tensor, "N D d"]) -> Float[Tensor, "N C H W"]:
        """The inverse of :meth:`patches`."""
        return self.network.unpatchify(patches)

    def predict(
        self, x: Float[Tensor, "N C H W"], mask: Bool[Tensor, "N D"]
    ) -> Float[Tensor, "N D d"]:
        """What the network says of all patches when image n shows only those not in ``mask[n]``.

        In units of pixels. The network runs in evaluation mode, in its own precision, on images
        with equally many masked patches at a time.
        """
        x = self._images(x)
        require_mask(mask, self.num_features)
        if len(mask) != len(x):
            raise ValueError(
                f"predict takes one mask an image: {len(x)} images came with {len(mask)} masks. "
                "Use log_conditional for every mask on every image."
            )
        shape = (len(x), self.num_features, self.pixels_per_patch)
        result = torch.empty(shape, dtype=x.dtype, device=x.device)
        sizes = mask.sum(dim=1)
        for size in sizes.unique().tolist():
            for rows in (sizes == size).nonzero().flatten().split(ROWS):
                result[rows] = self._forward(x[rows], mask[rows].to(x.device), size)
        return result

    def log_density(
        self, x: Float[Tensor, "N C H W"], mask: Bool[Tensor, "N D"]
    ) -> Float[Tensor, "N D d"]:
        """log p(pixel | x_R) of every pixel, nats, one mask an image; 0 where not masked."""
        residual = self.patches(x) - self.predict(x, mask)
        mask = mask.to(residual.device)
        values = log_normal(residual, self.variance.to(residual)[mask.sum(dim=1) - 1])
        return values * mask[:, :, None]

    def log_each(
        self, x: Float[Tensor, "N C H W"], mask: Bool[Tensor, "N D"]
    ) -> Float[Tensor, "N D"]:
        """log p(x_j | x_R), one mask an image: :meth:`log_density` summed over a patch's pixels."""
        return self.log_density(x, mask).sum(dim=-1)

    def log_conditional(
        self, x: Float[Tensor, "N C H W"], mask: Bool[Tensor, "P D"]
    ) -> Float[Tensor, "P N D"]:
        """log p(x_j | x_R), nats, (P, N, D), every mask on every image; 0 where not masked."""
        x = self._images(x)
        require_mask(mask, self.num_features)
        return torch.stack([self.log_each(x, row.expand(len(x), -1)) for row in mask])

    def mean_log_conditional(
        self, x: Float[Tensor, "N C H W"], mask: Bool[Tensor, "P D"]
    ) -> Float[Tensor, "P D"]:
        """:meth:`log_conditional` averaged over the images, one mask at a time."""
        require_mask(mask, self.num_features)
        return torch.cat([self.log_conditional(x, row[None]).mean(dim=1) for row in mask])

    @torch.no_grad()
    def size_scores(
        self,
        x: Float[Tensor, "N C H W"],
        *,
        generator: torch.Generator,
        sizes: Sequence[int] | None = None,
    ) -> Float[Tensor, "L N"]:
        """Score of one random mask an image and size, nats a patch: unbiased for S(x; M).

        A network charges nothing for a mask of its own for every image, and the mean over images
        is then an average over N masks.
        """
        rows = []
        for size, mask in self._random_masks(x, sizes, generator):
            rows.append(self.log_each(x, mask).sum(dim=1) / size)
        return torch.stack(rows)

    @torch.no_grad()
    def squared_error(
        self,
        x: Float[Tensor, "N C H W"],
        *,
        generator: torch.Generator,
        sizes: Sequence[int] | None = None,
    ) -> Float[Tensor, "L N"]:
        """Mean squared residual of an image's masked pixels, one random mask an image and size."""
        rows = []
        for size, mask in self._random_masks(x, sizes, generator):
            rows.append(self._residual(x, mask).square().mean(dim=-1).sum(dim=1) / size)
        return torch.stack(rows)

    @torch.no_grad()
    def pixel_squared_error(
        self, x: Float[Tensor, "N C H W"], *, generator: torch.Generator
    ) -> Float[Tensor, "D D d"]:
        """Mean over the images of each masked pixel's squared residual, for every size."""
        rows = []
        for size, mask in self._random_masks(x, None, generator):
            count = mask.sum(dim=0)
            if (count == 0).any():
                raise ValueError(
                    f"{len(x)} images are too few for a variance of every pixel: with one mask of "
                    f"size {size} each, patch {int(count.argmin())} was never masked."
                )
            rows.append(self._residual(x, mask).square().sum(dim=0) / count[:, None])
        return torch.stack(rows)

    def with_variance(self, variance: float | Tensor) -> ViTMAE:
        """The same network with another variance."""
        return ViTMAE(
            self.network, variance, pixel_mean=self.pixel_mean, pixel_scale=self.pixel_scale
        )

    @classmethod
    def fit_variance(
        cls,
        network: ViTMAEForPreTraining,
        x: Float[Tensor, "N C H W"],
        *,
        generator: torch.Generator,
        per: Literal["all", "size", "pixel"] = "all",
        pixel_mean: float | Tensor = 0.0,
        pixel_scale: float | Tensor = 1.0,
    ) -> ViTMAE:
        """Maximum-likelihood variance from residuals on ``x``, one random mask an image and size.

        With v_M the mean squared residual at size M (:meth:`squared_error`), the mean score is
        −(d/2)(log 2πσ² + v_M/σ²). Its maximizer is σ²_M = v_M (``per="size"``). One number for
        all sizes maximizes the area, the sum over M = 1..D: it is the mean of the v_M
        (``per="all"``). ``per="pixel"`` takes every pixel's own mean at every size.
        """
        model = cls(network, 1.0, pixel_mean=pixel_mean, pixel_scale=pixel_scale)
        if per not in ("all", "size", "pixel"):
            raise ValueError(f"per must be 'all', 'size' or 'pixel', got {per!r}.")
        if per == "pixel":
            return model.with_variance(model.pixel_squared_error(x, generator=generator))
        errors = model.squared_error(x, generator=generator).mean(dim=1)
        return model.with_variance(errors if per == "size" else errors.mean())

    def _residual(self, x: Tensor, mask: Tensor) -> Tensor:
        """Pixel minus prediction, 0 where not masked, (N, D, d)."""
        return (self.patches(x) - self.predict(x, mask)) * mask[:, :, None]

    def _forward(self, x: Tensor, mask: Tensor, size: int) -> Tensor:
        """One batch in which every image has ``size`` masked patches."""
        scale = (slice(None), None, None)
        dtype = self.network.decoder.mask_token.dtype
        inputs = ((x - self.pixel_mean.to(x)[scale]) / self.pixel_scale.to(x)[scale]).to(dtype)
        with _masking(self.network, size, self.num_features), fast_linear(self.network):
            out = self.network(inputs, noise=mask_noise(mask))
        if not torch.equal(out.mask.bool(), mask):
            raise RuntimeError("transformers masked other patches than those asked for")
        area = _side(self.network.config.patch_size) ** 2  # channels are innermost in a patch
        mean, width = self.pixel_mean.repeat(area), self.pixel_scale.repeat(area)
        return mean.to(x) + width.to(x) * out.logits.to(x.dtype)

    def _random_masks(
        self, x: Tensor, sizes: Sequence[int] | None, generator: torch.Generator
    ) -> Iterator[tuple[int, Tensor]]:
        require_generator(generator)
        for size in range(1, self.num_features + 1) if sizes is None else sizes:
            require_count("mask size", int(size), 1, self.num_features)
            mask = masks.sample_masks(len(x), self.num_features, int(size), generator=generator)
            yield int(size), mask.to(self.device)

    def _images(self, x: Tensor) -> Tensor:
        expected = ", ".join(map(str, self.image_shape))
        if not isinstance(x, Tensor) or not x.is_floating_point():
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"x must be a floating-point tensor (N, {expected}), got {got}.")
        if x.ndim != 4 or tuple(x.shape[1:]) != self.image_shape or len(x) == 0:
            raise ValueError(
                f"this network takes images (N, {expected}), that is (N, channels, height, width), "
                f"got {tuple(x.shape)}."
            )
        require_finite("x", x)
        low, high = x.min().item(), x.max().item()
        if low < 0.0 or high > 1.0:
            raise ValueError(
                f"pixels must lie in [0, 1], got values from {low:.4g} to {high:.4g}. Divide bytes "
                "by 255; what the network subtracts and divides by is pixel_mean, pixel_scale."
            )
        return x.to(self.device)

    def _variance(self, variance: float | Tensor) -> Tensor:
        """(D, 1, 1) or (D, D, d)."""
        value = torch.as_tensor(variance, dtype=torch.float64, device=self.device).detach()
        count = self.num_features
        table = (count, count, self.pixels_per_patch)
        if value.shape not in ((), (count,), (count, 1, 1), table):
            raise ValueError(
                f"variance must be one number, one for each of the {count} mask sizes, or one for "
                f"each size and pixel {table}, got shape {tuple(value.shape)}."
            )
        if not torch.isfinite(value).all() or (value <= 0).any():
            shown = variance if value.ndim == 0 else f"a smallest one of {value.min().item():.4g}"
            raise ValueError(
                f"variance must be finite and > 0, got {shown}. Estimate it from residuals: "
                "ViTMAE.fit_variance(network, x, generator=g)."
            )
        return value if value.ndim == 3 else value.expand(count).view(-1, 1, 1)

    def _per_channel(self, name: str, value: float | Tensor) -> Tensor:
        channels = self.image_shape[0]
        tensor = torch.as_tensor(value, dtype=torch.float64, device=self.device)
        if tensor.shape not in ((), (channels,)) or not torch.isfinite(tensor).all():
            raise ValueError(
                f"{name} must be finite, one number or one for each of {channels} channels, "
                f"got {value}."
            )
        return tensor.expand(channels)


def mask_noise(mask: Bool[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """The ``noise`` that makes ViT-MAE mask exactly ``mask``: it keeps the smallest entries."""
    return mask.float() + torch.arange(mask.shape[1], device=mask.device) / (2.0 * mask.shape[1])


@contextmanager
def _masking(network: ViTMAEForPreTraining, size: int, num_patches: int) -> Iterator[None]:
    """Evaluation mode with ``size`` masked patches; both settings come back afterwards."""
    config = network.vit.embeddings.config
    before = (config.mask_ratio, network.training)
    try:
        set_masked_patches(network, size, num_patches)
        network.eval()
        yield
    finally:
        config.mask_ratio = before[0]
        network.train(before[1])


def set_masked_patches(network: ViTMAEForPreTraining, size: int, num_patches: int) -> None:
    """Make ``network`` mask ``size`` patches: it keeps int(D (1 − ratio)), so aim half a patch off."""
    network.vit.embeddings.config.mask_ratio = (size - 0.5) / num_patches


def _side(size: int | list[int] | tuple[int, int]) -> int:
    """The side of a square; ``transformers`` allows rectangles in places and not in others."""
    if not isinstance(size, int):
        raise ValueError(f"images and patches must be squares given by one number, got {size}.")
    return size


def _require_network(network: ViTMAEForPreTraining) -> None:
    from transformers import ViTMAEForPreTraining

    if not isinstance(network, ViTMAEForPreTraining):
        raise TypeError(
            "network must be a transformers ViTMAEForPreTraining (encoder and decoder), got "
            f"{type(network).__name__}."
        )
    if network.config.norm_pix_loss:
        raise ValueError(
            "this network was trained with norm_pix_loss=True: it predicts each patch after its "
            "own mean and standard deviation were removed. These two are not functions of the "
            "visible patches, so its output gives no density of pixels. Use a network trained "
            "with norm_pix_loss=False."
        )
