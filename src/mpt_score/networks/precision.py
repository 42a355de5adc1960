"""The precision that a network computes in: its weights are cast once, before anything is scored."""

import copy
import logging
from typing import Any, Literal

import torch

from mpt_score.networks.kinds import Network

Precision = Literal["float32", "bfloat16", "float16"]

_log = logging.getLogger(__name__)

# The one has float32 written into its attention, the other's Fourier transform has no half precision.
_IN_FLOAT32 = ("MraForMaskedLM", "FNetForMaskedLM")


def fast_precision(device: torch.device) -> Precision:
    """What a device multiplies fast.

    CUDA's cards have bfloat16 from compute capability 8 on (A100, H100); those before, such as the T4
    of capability 7.5, imitate it slowly, and have float16.
    """
    if device.type != "cuda":
        return "float32"
    major, _ = torch.cuda.get_device_capability(device)
    return "bfloat16" if major >= 8 else "float16"


def precision_of(network: Network, wanted: Precision | None) -> Precision:
    """What ``network`` computes in where ``wanted`` is asked for; None is the fast one of its device.

    A network whose weights came in another precision than float32 keeps it unless one is named.
    "float32" is also the name of what is more precise.
    """
    dtype = network.dtype
    if wanted is None and dtype in (torch.bfloat16, torch.float16):
        return "bfloat16" if dtype == torch.bfloat16 else "float16"
    if wanted is None and dtype == torch.float64:
        return "float32"
    precision = wanted or fast_precision(network.device)
    kind = type(network).__name__
    if precision != "float32" and kind in _IN_FLOAT32:
        _log.warning("%s computes in float32: it has no %s.", kind, precision)
        return "float32"
    return precision


def in_precision(network: Network, precision: Precision) -> Any:
    """``network`` itself where its weights have that precision, else a copy with such weights."""
    return network if _has(network, precision) else cast(copy.deepcopy(network), precision)


def cast(network: Network, precision: Precision) -> Any:
    """Give a network's weights a precision, in place.

    Buffers stay as they are: they are constants such as the frequencies of rotary positions. In
    bfloat16 there is no position 257.
    """
    if not _has(network, precision):
        dtype = getattr(torch, precision)
        for parameter in network.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
    return network


def _has(network: Network, precision: Precision) -> bool:
    if precision == "float32" and network.dtype == torch.float64:
        return True
    return network.dtype == getattr(torch, precision)
