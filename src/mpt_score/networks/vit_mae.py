"""Masked autoencoders of images: ``transformers``' ViT-MAE as Gaussian log-densities.

The squared error of He et al. 2022 is a log-density only once a variance is chosen, here in the open.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import masks, scores
from mpt_lml.checks import Data, check, checked, require_dtype, require_number
from mpt_lml.masks import require_sizes
from mpt_lml.models.base import ConditionalModel, MaskOfEachDatum, require_pairs
from mpt_lml.numerics import log_normal, require_variance
from mpt_lml.results import MaskCurve
from mpt_score.networks.devices import require_one_device, to_device_of
from mpt_score.networks.hub import require_transformers

__all__ = ["IMAGENET", "ViTMAE"]

if TYPE_CHECKING:
    from transformers import ViTMAEForPreTraining

IMAGENET = {
    "pixel_mean": torch.tensor([0.485, 0.456, 0.406], device="cpu"),
    "pixel_scale": torch.tensor([0.229, 0.224, 0.225], device="cpu"),
}
"""The units of ``facebook/vit-mae-base``, of the three channels, from its preprocessor."""
_BATCH = 512
"""The most images that go through the network at a time."""


@final
class ViTMAE(ConditionalModel):
    """p(x_j | x_R) = Π_pixels N(pixel; prediction from the patches R, σ²) for every patch j.

    The coordinates are the D patches of an image of d pixels each (channels counted); densities are
    of pixels in [0, 1], in nats. ``x`` is (N, C, H, W) in every method. The network sees
    (x − pixel_mean)/pixel_scale in each channel. Images come from anywhere: they are brought to the
    network, and the answers to where the images are.

    Args:
        network: a ``ViTMAEForPreTraining`` of plain pixels (``norm_pix_loss=False``).
        variance: σ²: one number, one for each number M of masked patches (``variance[M - 1]``), or
            one for each of these and each pixel i of patch j (``variance[M - 1, j, i]``).
        pixel_mean: one number, or one a channel.
        pixel_scale: one number, or one a channel.

    Raises:
        TypeError: for another kind of network.
        ValueError: for one trained on normalized patches, or on several devices, and for σ² ≤ 0.

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
        self._pairs_at_once = _BATCH
        self.num_features = int(network.vit.embeddings.patch_embeddings.num_patches)
        self.variance = self._variance_table(variance)
        channels = self.image_shape[0]
        owners = f"{channels} channels"
        mean = self._one_or_one_each("pixel_mean", pixel_mean, owners, (channels,))
        scale = self._one_or_one_each("pixel_scale", pixel_scale, owners, (channels,))
        _require_positive("pixel_scale", scale)
        self.pixel_mean = mean.expand(channels)
        self.pixel_scale = scale.expand(channels)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        device: torch.device = self.network.device
        return device

    def _variance_table(self, variance: float | Tensor) -> Tensor:
        """σ² by mask size, patch and pixel, (D, D or 1, d or 1)."""
        count = self.num_features
        of_pixels = (count, count, self.pixels_per_patch)
        owners = f"{count} mask sizes, or of each size and pixel {of_pixels}"
        shapes = ((count,), (count, 1, 1), of_pixels)
        value = self._one_or_one_each("variance", variance, owners, *shapes)
        hint = "Estimate it from residuals: ViTMAE.fit_variance(network, x, generator=g)."
        _require_positive("variance", value, hint)
        if value.ndim == 3:
            return value
        return value.expand(count).view(-1, 1, 1)

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
        check(("x", x, Float[Tensor, "N C H W"]), C=channels, H=height, W=width)
        low, high = x.min().item(), x.max().item()
        if low < 0.0 or high > 1.0:
            raise ValueError(
                f"pixels must lie in [0, 1], got values from {low:.4g} to {high:.4g}. Divide bytes "
                "by 255; what the network subtracts and divides by is pixel_mean, pixel_scale."
            )

    def patches(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D d"]:
        """The images cut into patches.

        Args:
            x: images, (N, C, H, W).

        Returns:
            Rows of pixels with the channels innermost, (N, D, d).
        """
        self.require_data(x)
        return self.network.patchify(x)

    def images(self, patches: Float[Tensor, "N D d"]) -> Float[Tensor, "N C H W"]:
        """The inverse of :meth:`patches`."""
        shape = Float[Tensor, "N D d"]
        check(("patches", patches, shape), D=self.num_features, d=self.pixels_per_patch)
        return self.network.unpatchify(patches)

    @checked
    def predict(self, x: Data, mask: MaskOfEachDatum) -> Float[Tensor, "N D d"]:
        """The network's prediction of all patches when image n shows only those not in ``mask[n]``.

        The network runs in evaluation mode and in its own precision.

        Args:
            x: images, (N, C, H, W).
            mask: masked patches, one mask an image, (N, D), boolean.

        Returns:
            Pixels, (N, D, d).
        """
        require_pairs(x, mask)

        def predict_batch(x: Tensor, mask: Tensor) -> Tensor:
            return to_device_of(x, self._predict_on_device(x, mask))

        return self._in_batches(predict_batch, x, mask)

    @checked
    def loss(self, x: Data, mask: MaskOfEachDatum) -> Float[Tensor, ""]:
        """Mean squared error of hidden pixels in units of the network, which He et al. minimize.

        Equally many patches are hidden in every image. With a constant variance and sizes spread
        evenly over 1..D its gradient is, up to constants, an unbiased one of the area.

        Args:
            x: images, (N, C, H, W).
            mask: masked patches, one mask an image, (N, D), boolean.

        Raises:
            ValueError: where images have different numbers of masked patches.
        """
        require_pairs(x, mask)
        if len(mask.sum(dim=1).unique()) > 1:
            raise ValueError("mask must hide equally many patches in every image: split the batch.")
        inputs = self._inputs(self._moved(x))
        with _own_mask_ratio_afterwards(self.network):
            noise = masking_noise(self.network, mask.to(self.device))
            return to_device_of(x, self.network(inputs, noise=noise).loss)

    @checked
    def residuals(
        self, x: Data, *, generator: torch.Generator, sizes: Sequence[int] | None = None
    ) -> Iterator[tuple[Bool[Tensor, "N D"], Float[Tensor, "N D d"]]]:
        """Masks of one size after the other, and pixels minus predictions under them.

        Every image has a random mask of its own at every size: a network charges nothing for it,
        and a mean over images is then one over N masks.

        Args:
            x: images, (N, C, H, W).
            generator: of the masks.
            sizes: numbers of masked patches; 1..D where none are named.

        Yields:
            Masks (N, D), and residuals (N, D, d), which are 0 where not masked.
        """
        pairs = self._residuals_on_device(x, sizes, generator)
        return ((mask.to(x.device), to_device_of(x, residual)) for mask, residual in pairs)

    def _residuals_on_device(
        self, x: Tensor, sizes: Sequence[int] | None, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The pairs of :meth:`residuals` on the device of the network."""
        count = self.num_features
        if sizes is None:
            sizes = range(1, count + 1)
        else:
            sizes = require_sizes(sizes, count, increase=False)
        return self._residuals_of_sizes(self._moved(x), sizes, generator)

    def _residuals_of_sizes(
        self, x: Tensor, sizes: Sequence[int], generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        patches = self.network.patchify(x)
        for size in sizes:
            mask = masks.sample_masks(len(x), self.num_features, size, generator=generator)
            mask = mask.to(self.device)
            with torch.no_grad():
                prediction = self._in_batches(self._predict_on_device, x, mask)
                residual = (patches - prediction) * mask[:, :, None]
            yield mask, residual

    @checked
    def squared_error(
        self, x: Data, *, generator: torch.Generator, sizes: Sequence[int] | None = None
    ) -> Float[Tensor, "L N"]:
        """Mean squared residual of an image's masked pixels under the masks of :meth:`residuals`.

        Args:
            x: images, (N, C, H, W).
            generator: of the masks.
            sizes: numbers of masked patches, L of them; 1..D where none are named.
        """
        errors = []
        for mask, residual in self._residuals_on_device(x, sizes, generator):
            errors.append(scores.mask_score(residual.square().mean(dim=-1), mask))
        return to_device_of(x, torch.stack(errors))

    @checked
    def image_scores(
        self, x: Data, *, generator: torch.Generator, sizes: Sequence[int] | None = None
    ) -> Float[Tensor, "L N"]:
        """Score of each image under the masks of :meth:`residuals`: S(x; M) on average.

        Args:
            x: images, (N, C, H, W).
            generator: of the masks.
            sizes: numbers of masked patches, L of them; 1..D where none are named.

        Returns:
            Nats a patch, (L, N).
        """
        values = []
        for mask, residual in self._residuals_on_device(x, sizes, generator):
            values.append(scores.mask_score(self._density(mask, residual), mask))
        return to_device_of(x, torch.stack(values))

    def enlarged(self, x: Float[Tensor, "N c h w"]) -> Float[Tensor, "N C H W"]:
        """Images of another size as the network takes them: bilinear, one channel for all.

        It warns: enlarged pixels repeat each other, and so do their log-densities.

        Args:
            x: images, (N, 1 or C, any H, any W).

        Returns:
            Images of :attr:`image_shape`, their pixels in [0, 1]; ``x`` itself where it has this shape.

        Raises:
            ValueError: for another number of channels.
        """
        check(("x", x, Float[Tensor, "N C H W"]))  # of any size, but not of none
        if x.shape[1:] == self.image_shape:
            return x
        channels, height, width = self.image_shape
        if x.shape[1] not in (1, channels):
            raise ValueError(f"x must have 1 or {channels} channels, got {x.shape[1]}.")
        warnings.warn(
            f"images {tuple(x.shape[1:])} become {self.image_shape}: log-densities are of enlarged "
            "images, whose pixels repeat each other.",
            stacklevel=2,
        )
        large = torch.nn.functional.interpolate(x, size=(height, width), mode="bilinear")
        return large.expand(-1, channels, -1, -1).clamp(0.0, 1.0)

    @checked
    def fitted_curve(
        self,
        x: Data,
        test: Float[Tensor, "Q C H W"],
        *,
        generator: torch.Generator,
        sizes: Sequence[int],
    ) -> MaskCurve:
        """The curve on test images with the variance of each size that other images make most likely.

        The variance of size M is the mean squared residual on ``x``, as of :meth:`fit_variance`; that
        of the model itself does not count.

        Args:
            x: images behind the variances, (N, C, H, W).
            test: images that are scored, (Q, C, H, W).
            generator: of the masks of ``x``, then of those of ``test``.
            sizes: numbers of masked patches, L of them; they increase.

        Returns:
            The mean over the test images, nats a patch; no error, as every image has one mask a size.
        """
        sizes = require_sizes(sizes, self.num_features)
        errors = self.squared_error(x, generator=generator, sizes=sizes)
        variance = errors.mean(dim=1, keepdim=True).cpu().double()
        errors = self.squared_error(test, generator=generator, sizes=sizes).cpu().double()
        # With one variance the log-density of a patch depends on its residuals' mean square alone.
        score = (self.pixels_per_patch * log_normal(errors.sqrt(), variance)).mean(dim=1)
        score = to_device_of(test, score)
        no_error = torch.full_like(score, torch.nan)
        return MaskCurve(torch.tensor(sizes), score, no_error, self.num_features, num_masks=1)

    def with_variance(self, variance: float | Tensor) -> "ViTMAE":
        """The same network with another variance."""
        return ViTMAE(
            self.network, variance, pixel_mean=self.pixel_mean, pixel_scale=self.pixel_scale
        )

    @classmethod
    @checked
    def fit_variance(
        cls,
        network: Any,
        x: Float[Tensor, "N C H W"],
        *,
        generator: torch.Generator,
        per: Literal["all", "size"] = "all",
        **units: float | Tensor,
    ) -> "ViTMAE":
        """Maximum-likelihood variance from residuals on ``x``.

        With v_M the mean squared residual at size M (:meth:`squared_error`), the mean score is
        −(d/2)(log 2πσ² + v_M/σ²). Its maximizer is σ²_M = v_M. One number for all sizes maximizes the
        area, the sum over M = 1..D: it is the mean of the v_M.

        Args:
            network: as of the class.
            x: images, (N, C, H, W), pixels in [0, 1].
            generator: of the masks.
            per: "size" for a variance of each M, "all" for one.
            units: ``pixel_mean`` and ``pixel_scale``, as of the class.

        Returns:
            The model with this variance.
        """
        model = cls(network, 1.0, **units)
        errors = model.squared_error(x, generator=generator).mean(dim=1)
        return model.with_variance(errors if per == "size" else errors.mean())

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        patches = self.network.patchify(self._moved(x))
        mask = mask.to(self.device)
        return to_device_of(x, self._density(mask, patches - self._predict_on_device(x, mask)))

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        # One mask at a time: images are large.
        return torch.stack(
            [self._in_batches(self._log_each, x, row.expand(len(x), -1)) for row in mask]
        )

    def _density(self, mask: Tensor, residual: Tensor) -> Tensor:
        """log p(x_j | x_R) of every patch, (N, D), from the residuals of its pixels."""
        sizes = mask.sum(dim=1).to(self.variance.device)
        return log_normal(residual, self.variance[sizes - 1].to(residual)).sum(dim=-1)

    def _moved(self, x: Tensor) -> Tensor:
        """Images where the network is."""
        if self.device.type == "mps" and x.dtype == torch.float64:
            raise TypeError(
                f"x is float64, and the device {self.device} has no double precision. Give x.float(), or "
                "move the network to the CPU."
            )
        return x.to(self.device)

    def _predict_on_device(self, x: Tensor, mask: Tensor) -> Tensor:
        """Pixels of all patches, (B, D, d), where the network is and in the precision of the images."""
        x = self._moved(x)
        mask = mask.to(self.device)
        inputs = self._inputs(x)
        result = x.new_empty(len(x), self.num_features, self.pixels_per_patch)
        sizes = mask.sum(dim=1)
        was_training = self.network.training
        self.network.eval()
        try:
            with _own_mask_ratio_afterwards(self.network):
                # The network hides one share of its patches: images of equal mask sizes go together.
                for size in sizes.unique():
                    is_of_size = sizes == size
                    noise = masking_noise(self.network, mask[is_of_size])
                    output = self.network(inputs[is_of_size], noise=noise)
                    if not torch.equal(output.mask.bool(), mask[is_of_size]):
                        raise RuntimeError("transformers masked other patches than those asked for")
                    result[is_of_size] = output.logits.to(x.dtype)
        finally:
            self.network.train(was_training)
        pixels = self.network.config.patch_size**2  # channels are innermost in a patch
        return self.pixel_mean.repeat(pixels).to(x) + self.pixel_scale.repeat(pixels).to(x) * result

    def _inputs(self, x: Tensor) -> Tensor:
        mean = self.pixel_mean.to(x).view(-1, 1, 1)
        scale = self.pixel_scale.to(x).view(-1, 1, 1)
        return ((x - mean) / scale).to(self.network.decoder.mask_token.dtype)

    def _one_or_one_each(
        self, name: str, value: float | Tensor, owners: str, *shapes: tuple[int, ...]
    ) -> Tensor:
        """One number, or a tensor of one of the ``shapes``, one for each of its ``owners``."""
        if isinstance(value, Tensor):
            require_dtype(name, value)
            tensor = value.detach().cpu().double()  # Apple's GPUs have no double precision
        else:
            require_number(name, value, "[-inf,inf]~")
            tensor = torch.tensor(value, dtype=torch.float64, device="cpu")
        if tensor.shape not in ((), *shapes) or not tensor.isfinite().all():
            got = f"shape {tuple(tensor.shape)}" if tensor.ndim else value
            raise ValueError(f"{name} must be finite, one or one for each {owners}, got {got}.")
        return tensor


def _require_positive(name: str, value: Tensor, hint: str = "") -> None:
    """Check that numbers are above 0, and that their inverses are finite in single precision."""
    low = value.min().item()
    if low <= 0:
        raise ValueError(f"{name} must be > 0, got {low}. {hint}")
    for extreme in (low, value.max().item()):  # pixels may be of single precision
        require_variance(name, extreme, torch.float32)


def masking_noise(
    network: "ViTMAEForPreTraining", mask: Bool[Tensor, "N D"], size: int | None = None
) -> Tensor:
    """The ``noise`` with which ``network`` hides exactly ``mask``, equally many patches an image.

    It keeps the int(D (1 − ratio)) smallest entries; so its ratio is set, half a patch off. ``size`` is
    the number of hidden patches, where it is known: to ask a mask on a GPU is to wait for it.
    """
    count = mask.shape[1]
    if size is None:
        size = int(mask[0].sum())
    network.vit.embeddings.config.mask_ratio = (size - 0.5) / count
    return mask.float() + torch.arange(count, device=mask.device) / (2.0 * count)


@contextmanager
def _own_mask_ratio_afterwards(network: "ViTMAEForPreTraining") -> Iterator[None]:
    """Undo what :func:`masking_noise` sets while the block runs: a network is saved as it came."""
    config = network.vit.embeddings.config
    mask_ratio = config.mask_ratio
    try:
        yield
    finally:
        config.mask_ratio = mask_ratio


def _require_network(network: "ViTMAEForPreTraining") -> None:
    require_transformers()
    from transformers import ViTMAEForPreTraining

    if not isinstance(network, ViTMAEForPreTraining):
        raise TypeError(f"network must be a ViTMAEForPreTraining, got {type(network).__name__}.")
    for side in (network.config.image_size, network.config.patch_size):
        if not isinstance(side, int):
            raise ValueError(f"images and patches must be squares given by one number, got {side}.")
    require_one_device(network)
    if network.config.norm_pix_loss:
        raise ValueError(
            "with norm_pix_loss=True a network predicts patches less their own mean and scale, which "
            "are not functions of the visible patches: no density of pixels."
        )
