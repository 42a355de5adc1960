"""Small masked autoencoders of images, from nothing: those of Figure 6."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.optim import AdamW, Muon
from torch.optim.lr_scheduler import OneCycleLR

from mpt_lml import masks
from mpt_lml.checks import Count, Positive, checked
from mpt_lml.fit import Progress, silent
from mpt_score.networks.build import small_mae
from mpt_score.networks.vit_mae import ViTMAE, masking_noise

_STEPS_OF_A_BLOCK = 100  # whose rows and masks are drawn, and moved, together
_LARGEST_NORM = 1.0  # of the gradient


@checked
@dataclass(frozen=True)
class SmallMAESettings:
    """Settings of the training of a small masked autoencoder.

    Args:
        patch_size: side of a patch in pixels.
        num_steps: of the optimizers.
        width: units of a layer, in encoder and decoder.
        num_layers: of the encoder; the decoder has one.
        batch_size: images a step.
        learning_rate: the largest of AdamW's one cycle.
        matrix_rate: of Muon, which the matrices inside the layers follow where it is given.
    """

    patch_size: Count = 4
    num_steps: Count = 1200
    width: Count = 64
    num_layers: Count = 2
    batch_size: Count = 32
    learning_rate: Positive = 4e-3
    matrix_rate: float | None = 0.03


def sizes_of(rates: Sequence[float], num_patches: int) -> list[int]:
    """The numbers of hidden patches nearest to masking rates, each once; they increase."""
    return sorted({min(num_patches, max(1, round(rate * num_patches))) for rate in rates})


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
) -> Float[Tensor, " T"]:
    """Fit the network of ``model`` to ``x`` by the squared error, with masks of every size equally often.

    It computes where the network is. Sizes, rows and masks are drawn on the CPU, so that they are the
    same on every device, and moved there in blocks.

    Args:
        model: its network is trained in place, and left in evaluation mode.
        x: training images, their pixels in [0, 1].
        settings: of the optimizers and batches.
        generator: of sizes, rows and masks.
        progress: shows the steps as they pass.

    Returns:
        The mean squared error of every step, in the network's units, on the CPU.

    Raises:
        FloatingPointError: where the loss is not finite any more.
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
    network.train()
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
        if (step + 1) % _STEPS_OF_A_BLOCK == 0:
            _require_finite(losses[: step + 1])
    _require_finite(losses)
    network.eval()
    return losses.cpu()


def _require_finite(losses: Float[Tensor, " T"]) -> None:
    """Refuse losses that are not finite; the one place where a program waits for the card."""
    if not losses.isfinite().all():
        first = int((~losses.isfinite()).nonzero()[0])
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
