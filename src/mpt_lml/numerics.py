"""Small numerical pieces that everything else trusts (floor 0)."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

LOG_2PI = math.log(2.0 * math.pi)

WORKING_BYTES = 2**27
"""Bytes (128 MiB) that one batch of intermediate results may take before work is cut into chunks."""


def log_normal(residual: Tensor, variance: Tensor) -> Tensor:
    """Log-density of ``residual`` under N(0, ``variance``), elementwise, in nats."""
    return residual.square() * (-0.5 / variance) - 0.5 * (LOG_2PI + variance.log())


def softplus(values: Tensor) -> Tensor:
    """log(1 + exp(``values``)), elementwise, to the last digit of its precision.

    torch's own returns ``values`` above 20, which is 2e-9 short there: thousands of coordinates add
    up to an error that double precision sees.
    """
    threshold = 20.0 if values.dtype == torch.float32 else 40.0
    return torch.nn.functional.softplus(values, threshold=threshold)


def log_likelihood(x: Tensor, output: Tensor, noise_variance: float | None) -> Tensor:
    """log p(x_d | decoder output), elementwise, in nats: Bernoulli logits where there is no variance."""
    if noise_variance is None:
        return x * output - softplus(output)
    return log_normal(x - output, torch.tensor(noise_variance, dtype=x.dtype, device=x.device))


def chunks(total: int, bytes_per_item: int, budget: int = WORKING_BYTES) -> Iterator[slice]:
    """Slices that cover ``range(total)`` such that each holds at most ``budget`` bytes."""
    step = max(1, budget // max(1, bytes_per_item))
    for start in range(0, total, step):
        yield slice(start, min(total, start + step))
