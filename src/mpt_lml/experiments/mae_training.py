"""Training of small masked autoencoders by the squared error of hidden pixels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import masks
from mpt_lml.experiments.registry import Progress, silent
from mpt_lml.models.vit_mae import mask_noise, set_masked_patches

if TYPE_CHECKING:
    from transformers import ViTMAEForPreTraining


def channel_moments(x: Float[Tensor, "N C H W"]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, (C,) both: what the network is fed with."""
    flat = x.double().movedim(1, 0).flatten(1)
    return flat.mean(dim=1), flat.std(dim=1)


def train(
    network: ViTMAEForPreTraining,
    x: Float[Tensor, "N C H W"],
    *,
    num_steps: int,
    batch_size: int,
    learning_rate: float,
    generator: torch.Generator,
    pixel_mean: Tensor,
    pixel_scale: Tensor,
    sizes: Sequence[int] | None = None,
    matrix_rate: float | None = None,
    progress: Progress = silent,
) -> Float[Tensor, " E"]:
    """Fit ``network`` to ``x`` (in place) by the squared error of masked pixels; its loss a step.

    The number of masked patches is spread evenly over ``sizes`` (all of 1..D by default): every
    len(sizes) steps visit each once, in random order, with a mask of its own for every image. With
    a constant variance this is, up to constants, an unbiased gradient of the area.
    With ``matrix_rate``, the matrices inside the layers follow Muon (torch 2.9) at that rate.
    """
    count = network.vit.embeddings.patch_embeddings.num_patches
    grid = list(range(1, count + 1)) if sizes is None else list(sizes)
    scale = pixel_scale.view(-1, 1, 1)
    like = network.decoder.mask_token  # its precision and device are the network's
    inputs = ((x - pixel_mean.view(-1, 1, 1).to(x)) / scale.to(x)).to(like)
    weights = [each for each in network.parameters() if each.requires_grad]
    schedules = _schedules(network, learning_rate, matrix_rate, num_steps)
    network.train()
    losses = []
    upcoming: list[int] = []
    for _ in progress(range(num_steps), "training step"):
        upcoming = upcoming or [grid[k] for k in torch.randperm(len(grid), generator=generator)]
        size = upcoming.pop()
        rows = torch.randint(len(x), (batch_size,), generator=generator)
        mask = masks.sample_masks(batch_size, count, size, generator=generator).to(like.device)
        set_masked_patches(network, size, count)
        loss = network(inputs[rows.to(like.device)], noise=mask_noise(mask)).loss
        network.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        for schedule in schedules:
            schedule.optimizer.step()
            schedule.step()
        losses.append(loss.detach().cpu())
    network.eval()
    return torch.stack(losses)


def _schedules(
    network: ViTMAEForPreTraining, rate: float, matrix_rate: float | None, num_steps: int
) -> list[torch.optim.lr_scheduler.OneCycleLR]:
    """AdamW for all weights, or for those that Muon does not take: each with its learning rate."""
    cycle = partial(torch.optim.lr_scheduler.OneCycleLR, total_steps=num_steps, pct_start=0.1)
    named = [(name, each) for name, each in network.named_parameters() if each.requires_grad]
    inner = [each for name, each in named if each.ndim == 2 and "layer" in name]
    taken = set() if matrix_rate is None else {id(each) for each in inner}
    rest = [each for _, each in named if id(each) not in taken]
    adam = torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    if matrix_rate is None:
        return [cycle(adam, rate)]
    muon = torch.optim.Muon(inner, lr=matrix_rate, weight_decay=0.01)
    return [cycle(adam, rate), cycle(muon, matrix_rate, cycle_momentum=False)]
