"""Small masked autoencoders of images, from nothing: those of Figure 6."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.optim import AdamW, Muon
from torch.optim.lr_scheduler import OneCycleLR

from experiments.seeds import require_seeds
from mpt_lml import masks
from mpt_lml.checks import Count, Index, Positive, Rate, checked
from mpt_lml.fit import Progress, silent
from mpt_lml.numerics import double
from mpt_score.networks.build import small_mae
from mpt_score.networks.devices import require_device
from mpt_score.networks.vit_mae import ViTMAE, masking_noise

__all__ = ["FULL", "SmallMAESettings", "TrainedMAE", "new_mae", "train_small_mae"]

_STEPS_OF_A_BLOCK = 100  # whose rows and masks are drawn, and moved, together
_LARGEST_NORM = 1.0  # of the gradient

_log = logging.getLogger(__name__)


@checked
@dataclass(frozen=True)
class SmallMAESettings:
    """How a small masked autoencoder is trained, and where its curve is read.

    Args:
        images: the data, by their name in ``data.images``.
        patch_size: side of a patch in pixels.
        num_steps: of the optimizers.
        seeds: of the networks; of the first weights, and of sizes, rows and masks.
        rates: masking rates of the curve.
        width: of the hidden states, in encoder and decoder.
        num_layers: of the encoder; the decoder has one.
        batch_size: images a step.
        learning_rate: the largest of AdamW's one cycle.
        matrix_rate: of Muon, which the matrices inside the layers follow where it is given.
        num_train: training images.
        num_variance: training images whose residuals give the variance.
        num_test: images that are scored.

    >>> SmallMAESettings().sizes(49)[:3]
    [2, 5, 7]
    """

    images: str = "fashion_mnist"
    patch_size: Count = 4
    num_steps: Count = 1200
    seeds: tuple[Index, ...] = (4, 44, 444)
    rates: tuple[Rate, ...] = tuple(k / 20 for k in range(1, 20))
    width: Count = 64
    num_layers: Count = 2
    batch_size: Count = 32
    learning_rate: Positive = 4e-3
    matrix_rate: float | None = 0.03
    num_train: Count = 8000
    num_variance: Count = 300
    num_test: Count = 500

    def __post_init__(self) -> None:
        require_seeds(self.seeds)

    @checked
    def sizes(self, num_patches: Count) -> list[int]:
        """The numbers of hidden patches nearest to the rates, each once."""
        return sizes_of(self.rates, num_patches)


def sizes_of(rates: Sequence[float], num_patches: int) -> list[int]:
    """The numbers of hidden patches nearest to masking rates, each once; they increase."""
    return sorted({min(num_patches, max(1, round(rate * num_patches))) for rate in rates})


FULL = (
    SmallMAESettings(),
    SmallMAESettings(images="cifar100", num_steps=600),
    SmallMAESettings(images="tiny_imagenet", patch_size=8, num_steps=500),
)
"""The nine networks of the record ``figure-6``: three sets of images, three seeds."""


class TrainedMAE(NamedTuple):
    """A masked autoencoder as a model, and how its training went.

    ``losses`` has the mean squared error of every step that was taken, in the network's units;
    ``num_steps`` is less than was asked for where the training was interrupted.

    >>> TrainedMAE(None, torch.zeros(3), num_steps=3).num_steps
    3
    """

    model: Any
    losses: Float[Tensor, " T"]
    num_steps: int


@checked
def train_small_mae(
    settings: SmallMAESettings,
    x: Float[Tensor, "N C H W"],
    *,
    seed: Index,
    device: torch.device | str | None = None,
    progress: Progress = silent,
) -> TrainedMAE:
    """Train one masked autoencoder from nothing, with masks of every size equally often.

    Sizes, rows and masks are drawn on the CPU, so that they are the same on every device, and moved
    there in blocks. On a GPU the images lie there. An interrupt ends the training, and what was trained
    until then is returned.

    Args:
        settings: one of :data:`FULL`, or others.
        x: training images, their pixels in [0, 1].
        seed: of the first weights, and of sizes, rows and masks.
        device: where it computes; None is where ``x`` is.
        progress: shows the steps as they pass.

    Returns:
        A :class:`TrainedMAE`; its network is on ``device``, in evaluation mode, its variance is 1.

    Raises:
        FloatingPointError: where the loss is not finite any more.
        ValueError: for a device that is not here.

    >>> short = SmallMAESettings(patch_size=2, num_steps=2, batch_size=2, width=8)
    >>> train_small_mae(short, torch.rand(3, 1, 8, 8), seed=4).losses.shape
    torch.Size([2])
    """
    if isinstance(device, str):
        require_device(device)
    place = x.device if device is None else device
    model = new_mae(settings, x, seed=seed)
    model.network.to(place)
    generator = torch.Generator().manual_seed(seed)
    losses = train(model, x, settings, generator, progress=progress, interruptible=True)
    return TrainedMAE(model, losses.to(place), len(losses))


@checked
def new_mae(settings: SmallMAESettings, x: Float[Tensor, "N C H W"], *, seed: Index) -> ViTMAE:
    """A masked autoencoder of random weights, in the units of some images.

    Args:
        settings: of its architecture.
        x: images, whose mean and standard deviation in each channel the network takes out.
        seed: of the weights.

    Returns:
        The model, with the variance 1, where ``x`` is.

    >>> new_mae(SmallMAESettings(patch_size=2), torch.rand(3, 1, 8, 8), seed=4).num_features
    16
    """
    channels = double(x).movedim(1, 0).flatten(1)
    network = small_network(settings, x, seed).to(x.device)
    units = {"pixel_mean": channels.mean(dim=1), "pixel_scale": channels.std(dim=1)}
    return ViTMAE(network, 1.0, **units)


def small_network(settings: SmallMAESettings, x: Tensor, seed: int) -> Any:
    """The network alone, for images like ``x``."""
    return small_mae(
        x.shape[-1],
        x.shape[1],
        settings.patch_size,
        seed=seed,
        width=settings.width,
        num_layers=settings.num_layers,
        decoder_layers=1,
    )


def train(
    model: ViTMAE,
    x: Float[Tensor, "N C H W"],
    settings: SmallMAESettings,
    generator: torch.Generator,
    *,
    progress: Progress = silent,
    interruptible: bool = False,
) -> Float[Tensor, " T"]:
    """Fit the network of ``model`` to ``x`` by the squared error, in place; the losses of all steps.

    It computes where the network is. The experiment of Figure 6 passes here, too.
    """
    network = model.network
    device = model.device
    images = x.to(device)
    mean = model.pixel_mean.to(images).view(-1, 1, 1)
    scale = model.pixel_scale.to(images).view(-1, 1, 1)
    weights = [weight for weight in network.parameters() if weight.requires_grad]

    schedules = optimizers(network, settings)
    draws = _Draws(settings, len(x), model.num_features, generator, device)
    losses = torch.full((settings.num_steps,), torch.nan, device=device)
    num_taken = 0
    network.train()
    try:
        for step in progress(range(settings.num_steps), "step"):
            rows, mask, size = draws.of_step(step)
            inputs = ((images[rows] - mean) / scale).to(network.decoder.mask_token.dtype)
            network.zero_grad()
            loss = network(inputs, noise=masking_noise(network, mask, size)).loss
            loss.backward()
            losses[step] = loss.detach()
            nn.utils.clip_grad_norm_(weights, _LARGEST_NORM)
            for schedule in schedules:
                schedule.optimizer.step()
            for schedule in schedules:
                schedule.step()
            num_taken = step + 1
            if num_taken % _STEPS_OF_A_BLOCK == 0:
                _require_finite(losses, num_taken)
    except KeyboardInterrupt:
        if not interruptible:
            raise
        _log.warning("interrupted after %d of %d steps.", num_taken, settings.num_steps)
    _require_finite(losses, num_taken)
    network.eval()
    return losses[:num_taken].cpu()


def _require_finite(losses: Tensor, num_taken: int) -> None:
    """The one place where a program waits for the card."""
    if not losses[:num_taken].isfinite().all():
        first = int((~losses[:num_taken].isfinite()).nonzero()[0])
        raise FloatingPointError(f"the loss is not finite in step {first + 1}.")


def optimizers(network: nn.Module, settings: SmallMAESettings) -> list[OneCycleLR]:
    """One cycle of AdamW, and of Muon for the matrices inside the layers."""
    cycle = partial(OneCycleLR, total_steps=settings.num_steps, pct_start=0.1)
    matrices = []
    others = []
    for name, weight in network.named_parameters():
        if not weight.requires_grad:
            continue
        is_inner_matrix = weight.ndim == 2 and "layer" in name
        if settings.matrix_rate is not None and is_inner_matrix:
            matrices.append(weight)
        else:
            others.append(weight)
    fused = True if others[0].is_cuda else None
    rate = settings.learning_rate
    adam = AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.01, fused=fused)
    schedules = [cycle(adam, rate)]
    if settings.matrix_rate is not None:
        muon = Muon(matrices, lr=settings.matrix_rate, weight_decay=0.01)
        schedules.append(cycle(muon, settings.matrix_rate, cycle_momentum=False))
    return schedules


class _Draws:
    """Rows and masks of every step, each size once in D steps; drawn in blocks, and moved together."""

    def __init__(
        self,
        settings: SmallMAESettings,
        num_data: int,
        num_features: int,
        generator: torch.Generator,
        device: torch.device,
    ) -> None:
        self.settings = settings
        self.num_data = num_data
        self.num_features = num_features
        self.generator = generator
        self.device = device
        self.next_sizes: list[int] = []
        self.sizes: list[int] = []
        self.rows: Int[Tensor, "T B"]
        self.mask: Bool[Tensor, "T B D"]

    def of_step(self, step: int) -> tuple[Tensor, Tensor, int]:
        """Rows (B,), masks (B, D) and their size; the steps are asked for in order."""
        place = step % _STEPS_OF_A_BLOCK
        if place == 0:
            self.draw(min(_STEPS_OF_A_BLOCK, self.settings.num_steps - step))
        return self.rows[place], self.mask[place], self.sizes[place]

    def draw(self, num_steps: int) -> None:
        # In this order: it is part of the record.
        self.sizes = []
        rows = []
        drawn_masks = []
        batch = self.settings.batch_size
        for _ in range(num_steps):
            if not self.next_sizes:
                order = torch.randperm(self.num_features, generator=self.generator) + 1
                self.next_sizes.extend(order.tolist())
            rows.append(torch.randint(self.num_data, (batch,), generator=self.generator))
            size = self.next_sizes.pop()
            self.sizes.append(size)
            drawn_masks.append(
                masks.sample_masks(batch, self.num_features, size, generator=self.generator)
            )
        self.rows = torch.stack(rows).to(self.device)
        self.mask = torch.stack(drawn_masks).to(self.device)
