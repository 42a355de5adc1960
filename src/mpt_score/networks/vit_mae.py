"""Masked autoencoders of images: ``transformers``' ViT-MAE as Gaussian log-densities.

The squared error of He et al. 2022 is a log-density only once a variance is chosen, here in the open.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import masks, scores
from mpt_lml.checks import Data, checked
from mpt_lml.models.base import ConditionalModel, MaskOfEachDatum, require_pairs
from mpt_lml.numerics import log_normal, require_variance
from mpt_lml.spec import require, require_dtype, require_number, require_sizes
from mpt_score.networks.hub import require_transformers

if TYPE_CHECKING:
    from transformers import ViTMAEForPreTraining


@final
class ViTMAE(ConditionalModel):
    """p(x_j | x_R) = Π_pixels N(pixel; prediction from the patches R, σ²) for every patch j.

    The coordinates are the D patches of an image of d pixels each (channels counted); densities are
    of pixels in [0, 1], in nats. ``x`` is (N, C, H, W) in every method. ``variance`` is σ²: one number,
    one for each number M of masked patches (``variance[M - 1]``), or one for each of these and each
    pixel i of patch j (``variance[M - 1, j, i]``). The network, of plain pixels
    (``norm_pix_loss=False``), sees (x − pixel_mean)/pixel_scale in each channel.

    Raises ``TypeError`` for another kind of network, ``ValueError`` for one trained on normalized
    patches and for σ² ≤ 0.

    >>> from mpt_score.networks import small_mae
    >>> model = ViTMAE(small_mae(8, 1, 2, width=16, seed=4), 0.1)
    >>> model.log_conditional(torch.zeros(3, 1, 8, 8), torch.ones(5, 16).bool()).shape
    torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        network: "ViTMAEForPreTraining",
        variance: float | Tensor,
        *,
        pixel_mean: float | Tensor = 0.0,
        pixel_scale: float | Tensor = 1.0,
    ) -> None:
        _require_network(network)
        self.network: Any = network
        self._pairs_at_once = 512
        self.num_features = int(network.vit.embeddings.patch_embeddings.num_patches)
        self.device = network.decoder.mask_token.device
        count, table = self.num_features, (self.num_features,) * 2 + (self.pixels_per_patch,)
        sizes = f"{count} mask sizes, or of each size and pixel {table}"
        value = self._real("variance", variance, sizes, (count,), (count, 1, 1), table)
        self.variance = value if value.ndim == 3 else value.expand(count).view(-1, 1, 1)
        channels = self.image_shape[0]
        self.pixel_mean, self.pixel_scale = (
            self._real(name, each, f"{channels} channels", (channels,)).expand(channels)
            for name, each in (("pixel_mean", pixel_mean), ("pixel_scale", pixel_scale))
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        config = self.network.config
        return (config.num_channels, config.image_size, config.image_size)

    @property
    def pixels_per_patch(self) -> int:
        """d, channels counted."""
        return self.network.config.patch_size**2 * self.network.config.num_channels

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` holds images of this shape with pixels in [0, 1]."""
        channels, height, width = self.image_shape
        require({"x": x}, "x N C H W", C=channels, H=height, W=width)
        low, high = x.min().item(), x.max().item()
        if low < 0.0 or high > 1.0:
            raise ValueError(
                f"pixels must lie in [0, 1], got values from {low:.4g} to {high:.4g}. Divide bytes "
                "by 255; what the network subtracts and divides by is pixel_mean, pixel_scale."
            )

    def patches(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D d"]:
        """The images cut into patches, rows of pixels with the channels innermost."""
        self.require_data(x)
        return self.network.patchify(x.to(self.device))

    def images(self, patches: Float[Tensor, "N D d"]) -> Float[Tensor, "N C H W"]:
        """The inverse of :meth:`patches`."""
        require(locals(), "patches N D d", D=self.num_features, d=self.pixels_per_patch)
        return self.network.unpatchify(patches)

    @checked
    def predict(self, x: Data, mask: MaskOfEachDatum) -> Float[Tensor, "N D d"]:
        """What the network says of all patches when image n shows only those not in ``mask[n]``.

        In units of pixels. The network runs in evaluation mode and in its own precision.
        """
        require_pairs(x, mask)
        return self._in_batches(self._predict, x, mask)

    @checked
    def loss(self, x: Data, mask: MaskOfEachDatum) -> Float[Tensor, ""]:
        """Mean squared error of hidden pixels in units of the network, which He et al. minimize.

        Equally many patches are hidden in every image. With a constant variance and sizes spread
        evenly over 1..D its gradient is, up to constants, an unbiased one of the area.
        """
        require_pairs(x, mask)
        if len(mask.sum(dim=1).unique()) > 1:
            raise ValueError("mask must hide equally many patches in every image: split the batch.")
        noise = _masking_noise(self.network, mask.to(self.device))
        return self.network(self._inputs(x.to(self.device)), noise=noise).loss

    def residuals(
        self, x: Tensor, *, generator: torch.Generator, sizes: Sequence[int] | None = None
    ) -> Iterator[tuple[Bool[Tensor, "N D"], Float[Tensor, "N D d"]]]:
        """Masks of one size, 1..D unless ``sizes`` are named, and pixels minus predictions under them.

        Every image has a random mask of its own at every size: a network charges nothing for it,
        and a mean over images is then one over N masks. Residuals are 0 where not masked.
        """
        patches, count = self.patches(x), self.num_features
        every = range(1, count + 1)
        for size in every if sizes is None else require_sizes(sizes, count, increase=False):
            mask = masks.sample_masks(len(x), count, size, generator=generator)
            mask = mask.to(self.device)
            with torch.no_grad():
                residual = (patches - self.predict(x, mask)) * mask[:, :, None]
            yield mask, residual

    def squared_error(
        self, x: Tensor, *, generator: torch.Generator, sizes: Sequence[int] | None = None
    ) -> Float[Tensor, "L N"]:
        """Mean squared residual of an image's masked pixels under the masks of :meth:`residuals`."""
        found = self.residuals(x, generator=generator, sizes=sizes)
        return torch.stack([scores.mask_score(r.square().mean(-1), mask) for mask, r in found])

    def image_scores(
        self, x: Tensor, *, generator: torch.Generator, sizes: Sequence[int] | None = None
    ) -> Float[Tensor, "L N"]:
        """Score of each image under the masks of :meth:`residuals`, nats a patch: S(x; M) on average."""
        found = self.residuals(x, generator=generator, sizes=sizes)
        return torch.stack([scores.mask_score(self._density(mask, r), mask) for mask, r in found])

    def with_variance(self, variance: float | Tensor) -> "ViTMAE":
        """The same network with another variance."""
        return ViTMAE(
            self.network, variance, pixel_mean=self.pixel_mean, pixel_scale=self.pixel_scale
        )

    @classmethod
    def fit_variance(
        cls,
        network: "ViTMAEForPreTraining",
        x: Float[Tensor, "N C H W"],
        *,
        generator: torch.Generator,
        per: Literal["all", "size"] = "all",
        **units: float | Tensor,
    ) -> "ViTMAE":
        """Maximum-likelihood variance from residuals on ``x``; ``units`` as in the class.

        With v_M the mean squared residual at size M (:meth:`squared_error`), the mean score is
        −(d/2)(log 2πσ² + v_M/σ²). Its maximizer is σ²_M = v_M (``per="size"``). One number for
        all sizes maximizes the area, the sum over M = 1..D: it is the mean of the v_M.
        """
        require(locals(), "per all|size, generator")
        model = cls(network, 1.0, **units)
        errors = model.squared_error(x, generator=generator).mean(dim=1)
        return model.with_variance(errors if per == "size" else errors.mean())

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        mask = mask.to(self.device)
        return self._density(mask, self.patches(x) - self._predict(x, mask))

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        # One mask at a time: images are large.
        return torch.stack([self.log_each(x, row.expand(len(x), -1)) for row in mask])

    def _density(self, mask: Tensor, residual: Tensor) -> Tensor:
        """log p(x_j | x_R) of every patch, (N, D), from the residuals of its pixels."""
        return log_normal(residual, self.variance.to(residual)[mask.sum(dim=1) - 1]).sum(dim=-1)

    def _predict(self, x: Tensor, mask: Tensor) -> Tensor:
        x, mask = x.to(self.device), mask.to(self.device)
        inputs = self._inputs(x)
        result = x.new_empty(len(x), self.num_features, self.pixels_per_patch)
        sizes, config = mask.sum(dim=1), self.network.vit.embeddings.config
        before = (config.mask_ratio, self.network.training)
        self.network.eval()
        try:
            for size in sizes.unique():
                rows = sizes == size
                out = self.network(inputs[rows], noise=_masking_noise(self.network, mask[rows]))
                if not torch.equal(out.mask.bool(), mask[rows]):
                    raise RuntimeError("transformers masked other patches than those asked for")
                result[rows] = out.logits.to(x.dtype)
        finally:
            config.mask_ratio = before[0]
            self.network.train(before[1])
        area = self.network.config.patch_size**2  # channels are innermost in a patch
        return self.pixel_mean.repeat(area).to(x) + self.pixel_scale.repeat(area).to(x) * result

    def _inputs(self, x: Tensor) -> Tensor:
        mean, width = (each.to(x).view(-1, 1, 1) for each in (self.pixel_mean, self.pixel_scale))
        return ((x - mean) / width).to(self.network.decoder.mask_token.dtype)

    def _real(
        self, name: str, value: float | Tensor, each: str, *shapes: tuple[int, ...]
    ) -> Tensor:
        """One number, or a tensor of one of the ``shapes``, with one for ``each``."""
        if isinstance(value, Tensor):
            require_dtype(name, value)
        else:
            require_number(name, value, "[-inf,inf]~")
        found = torch.as_tensor(value, dtype=torch.float64, device=self.device).detach()
        if found.shape not in ((), *shapes) or not found.isfinite().all():
            got = f"shape {tuple(found.shape)}" if found.ndim else value
            raise ValueError(f"{name} must be finite, one or one for each {each}, got {got}.")
        if name != "pixel_mean" and found.min() <= 0:
            hint = "Estimate it from residuals: ViTMAE.fit_variance(network, x, generator=g)."
            hint *= name == "variance"
            raise ValueError(f"{name} must be > 0, got {found.min().item()}. {hint}")
        if name != "pixel_mean":  # pixels may be of single precision
            for extreme in (found.min().item(), found.max().item()):
                require_variance(name, extreme, torch.float32)
        return found


def _masking_noise(network: "ViTMAEForPreTraining", mask: Bool[Tensor, "N D"]) -> Tensor:
    """The ``noise`` with which ``network`` hides exactly ``mask``, equally many patches a row.

    It keeps the int(D (1 − ratio)) smallest entries; the ratio is set half a patch off.
    """
    count = mask.shape[1]
    network.vit.embeddings.config.mask_ratio = (int(mask[0].sum()) - 0.5) / count
    return mask.float() + torch.arange(count, device=mask.device) / (2.0 * count)


def _require_network(network: "ViTMAEForPreTraining") -> None:
    require_transformers()
    from transformers import ViTMAEForPreTraining

    if not isinstance(network, ViTMAEForPreTraining):
        raise TypeError(f"network must be a ViTMAEForPreTraining, got {type(network).__name__}.")
    for side in (network.config.image_size, network.config.patch_size):
        if not isinstance(side, int):
            raise ValueError(f"images and patches must be squares given by one number, got {side}.")
    if network.config.norm_pix_loss:
        raise ValueError(
            "with norm_pix_loss=True a network predicts patches less their own mean and scale, which "
            "are not functions of the visible patches: no density of pixels."
        )
