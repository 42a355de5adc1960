"""Small numerical pieces that everything else trusts (floor 0)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LOG_2PI = math.log(2.0 * math.pi)

WORKING_BYTES = 2**27
"""Bytes (128 MiB) that one batch of intermediate results may take before work is cut into chunks."""


class NotPositiveDefiniteError(ValueError):
    """A matrix that has to be positive definite is not."""


def cholesky(matrix: Tensor, name: str = "matrix") -> Tensor:
    """Lower Cholesky factor of ``matrix`` (..., n, n).

    Where rounding alone makes the factorization fail, the diagonal is raised by at most
    ``1e-6`` of its mean and a warning states by how much. Anything worse raises
    :class:`NotPositiveDefiniteError`.
    """
    factor, info = torch.linalg.cholesky_ex(matrix)
    if not info.any():
        return factor
    scale = matrix.diagonal(dim1=-2, dim2=-1).mean().abs().item()
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for relative in (1e-12, 1e-9, 1e-6):
        factor, info = torch.linalg.cholesky_ex(matrix + relative * scale * identity)
        if not info.any():
            warnings.warn(
                f"{name} is not numerically positive definite; added {relative * scale:.1e} "
                "to its diagonal.",
                RuntimeWarning,
                stacklevel=2,
            )
            return factor
    smallest = torch.linalg.eigvalsh(matrix).min().item()
    raise NotPositiveDefiniteError(
        f"{name} must be positive definite, but its smallest eigenvalue is {smallest:.3e}."
    )


def log_normal(residual: Tensor, variance: Tensor) -> Tensor:
    """Log-density of ``residual`` under N(0, ``variance``), elementwise, in nats."""
    return -0.5 * (LOG_2PI + variance.log() + residual.square() / variance)


def chunks(total: int, bytes_per_item: int, budget: int = WORKING_BYTES) -> Iterator[slice]:
    """Slices that cover ``range(total)`` such that each holds at most ``budget`` bytes."""
    step = max(1, budget // max(1, bytes_per_item))
    for start in range(0, total, step):
        yield slice(start, min(total, start + step))


def mean_and_error(samples: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Mean along ``dim`` and its standard error (NaN from a single sample)."""
    count = samples.shape[dim]
    if count == 1:
        mean = samples.mean(dim)
        return mean, torch.full_like(mean, math.nan)
    return samples.mean(dim), samples.std(dim) / math.sqrt(count)


@contextmanager
def fast_linear(network: nn.Module) -> Iterator[None]:
    """Float32 linear layers of ``network`` on a CPU through oneDNN, while nothing is differentiated.

    PyTorch has two libraries for these products and asks MKL, which does not use the widest
    registers of every maker's processors; where it does not, oneDNN takes less than half the time.
    The arithmetic is float32 in both. Layers of another type, precision or device stay as they
    are, and so does everything where PyTorch comes without oneDNN.
    """
    # The operation that torch.compile puts in the place of a linear layer; it has no other name.
    product = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    usable = product is not None and torch.backends.mkldnn.is_available()
    changed: list[nn.Linear] = []
    if usable and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu"):
        changed = list(_plain_layers(network))
    for layer in changed:
        vars(layer)["forward"] = partial(_linear, layer, product)
    try:
        yield
    finally:
        for layer in changed:
            del vars(layer)["forward"]


def _plain_layers(network: nn.Module) -> Iterator[nn.Linear]:
    for layer in network.modules():
        if type(layer) is not nn.Linear or "forward" in vars(layer):
            continue  # a layer that others have changed keeps what they put there
        if layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu":
            yield layer


def _linear(layer: nn.Linear, product: Any, x: Tensor) -> Tensor:
    if x.dtype != torch.float32 or x.numel() == 0:
        return functional.linear(x, layer.weight, layer.bias)
    return product(x, layer.weight, layer.bias, "none", [], "")
