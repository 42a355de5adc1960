"""A device without double precision, as Apple's GPUs are, on a machine that has none."""

from __future__ import annotations

from typing import Any

import torch
from other_device import OtherDevice
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class WithoutDouble(TorchDispatchMode):
    """Inside ``other``: what is of double precision there is refused.

    with OtherDevice() as other, WithoutDouble(other):
        network.to(other.device)
    """

    def __init__(self, other: OtherDevice) -> None:
        super().__init__()
        self.other = other

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        value = function(*args, **(kwargs or {}))
        for each in tree_flatten((args, kwargs, value))[0]:
            if (
                isinstance(each, Tensor)
                and each.dtype == torch.float64
                and self.other.is_there(each)
            ):
                raise TypeError(f"{function}: this device has no double precision")
        return value
