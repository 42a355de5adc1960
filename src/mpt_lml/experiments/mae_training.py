"""Training of small masked autoencoders by the squared error of hidden pixels."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import AdamW, Muon
from torch.optim.lr_scheduler import OneCycleLR

from mpt_lml import fit, masks
from mpt_lml.models.vit_mae import ViTMAE


def train(
    model: ViTMAE,
    x: Float[Tensor, "N C H W"],
    num_steps: int,
    generator: torch.Generator,
    *,
    batch_size: int,
    learning_rate: float,
    matrix_rate: float | None = None,
    law: masks.SizeLaw | None = None,
    **options: Any,
) -> list[Tensor]:
    """Fit the network of ``model`` to ``x`` (in place) by :meth:`ViTMAE.loss`.

    Every D steps visit each number of masked patches once, in random order, with a mask of its own
    for every image, or D sizes of a ``law``. With ``matrix_rate``, the matrices inside the layers
    follow Muon at that rate. ``options`` are those of :func:`mpt_lml.fit.descend`; returned is what
    ``watch`` has seen.
    """
    count = model.num_features
    sizes: list[int] = []

    def loss(step: int) -> Tensor:
        if not sizes:
            deck = torch.randperm(count, generator=generator) + 1
            if law is not None:
                deck = law.stratified(count, count, generator=generator)[deck - 1]
            sizes.extend(deck.tolist())
        rows = torch.randint(len(x), (batch_size,), generator=generator)
        mask = masks.sample_masks(batch_size, count, sizes.pop(), generator=generator)
        return model.loss(x[rows], mask)

    cycle = partial(OneCycleLR, total_steps=num_steps, pct_start=0.1)
    rest = {name: w for name, w in model.network.named_parameters() if w.requires_grad}
    inner = [name for name, w in rest.items() if matrix_rate and w.ndim == 2 and "layer" in name]
    matrices = [rest.pop(name) for name in inner]
    adam = AdamW(rest.values(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedules = [cycle(adam, learning_rate)]
    if matrix_rate is not None:
        muon = Muon(matrices, lr=matrix_rate, weight_decay=0.01)
        schedules.append(cycle(muon, matrix_rate, cycle_momentum=False))
    model.network.train()
    options = {"num_steps": num_steps, "max_norm": 1.0} | options
    _, watched = fit.descend(model.network, loss, schedules, **options)
    model.network.eval()
    return watched
