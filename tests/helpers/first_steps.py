"""The first step of an optimizer, by its formula."""

import torch
from torch import Tensor

START_OF_ONE_CYCLE = 1 / 25
"""Learning rate of OneCycleLR's first step, as a share of its largest."""


def clipped_to(norm: float, gradients: list[Tensor]) -> list[Tensor]:
    """Gradients, scaled down together where their norm is larger."""
    total = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    return [gradient * (norm / total).clamp(max=1.0) for gradient in gradients]


def after_adamw(weight: Tensor, gradient: Tensor, rate: float, decay: float = 0.01) -> Tensor:
    """After one step both moments are those of this gradient, and their bias is corrected."""
    return weight * (1 - rate * decay) - rate * gradient / (gradient.abs() + 1e-8)


def after_adam(weight: Tensor, gradient: Tensor, rate: float) -> Tensor:
    """The same without decay, of a maximized objective's gradient."""
    return weight + rate * gradient / (gradient.abs() + 1e-8)
