"""Values whose tensors are on a second device: a GPU where there is one, an emulator of it elsewhere."""

from __future__ import annotations

import contextlib
import copy
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from other_device import OtherDevice
from torch import Tensor


@contextlib.contextmanager
def other_device() -> Iterator[None]:
    """DEVICE is there: the machine's own, or an emulated one."""
    if torch.cuda.is_available():
        yield
    else:
        with OtherDevice():
            yield


PACKAGES = ("mpt_lml", "mpt_score", "valid_calls", "valid_calls_networks")


def package_of(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def attributes(value: Any) -> dict[str, Any]:
    """Of an object. Around a network, ids of special tokens and the like stay on the CPU."""
    is_around_network = package_of(value) == "mpt_score"
    found = {}
    for name, attribute in vars(value).items():
        if not (is_around_network and isinstance(attribute, Tensor)):
            found[name] = attribute
    return found


def has_tensors(value: Any) -> bool:
    """Whether a move would copy a tensor; networks, which take longest to copy, are not copied."""
    count = _Count(torch.device("cpu"))
    count(value)
    return count.num_tensors > 0


class Move:
    """A copy of a value with all tensors in it on ``device``; of a generator with its own state.

    Where it is ``in_single`` precision, tensors in double are rounded.
    """

    def __init__(self, device: torch.device, in_single: bool = False) -> None:
        self.device = device
        self.in_single = in_single
        self.copies: dict[int, Any] = {}
        self.num_tensors = 0

    def __call__(self, value: Any) -> Any:
        if id(value) not in self.copies:
            self.copies[id(value)] = self._copy(value)
        return self.copies[id(value)]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            self.num_tensors += 1
            is_rounded = self.in_single and value.is_floating_point()
            copied = value.detach().float() if is_rounded else value.detach()
            return copied.to(self.device).requires_grad_(value.requires_grad)
        if isinstance(value, torch.device):
            return self.device
        if isinstance(value, torch.Generator):
            return value.clone_state()
        if isinstance(value, torch.nn.Module):
            return self._copy_of_network(value)
        if isinstance(value, dict):
            return {key: self(each) for key, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self(each) for each in value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self(each) for each in value))
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self(value.__self__))
        if isinstance(value, functools.partial):
            return functools.partial(self(value.func), *self(value.args), **self(value.keywords))
        if isinstance(value, types.FunctionType) and value.__closure__:
            return self._copy_of_closure(value)
        if package_of(value) in PACKAGES and hasattr(value, "__dict__"):
            return self._copy_of_object(value)
        return value

    def _copy_of_network(self, network: torch.nn.Module) -> torch.nn.Module:
        moved = copy.deepcopy(network)
        moved = (moved.float() if self.in_single else moved).to(self.device)
        for parameter, moved_parameter in zip(
            network.parameters(), moved.parameters(), strict=True
        ):
            self.copies[id(parameter)] = moved_parameter
            self.num_tensors += 1
        return moved

    def _copy_of_closure(self, function: types.FunctionType) -> types.FunctionType:
        assert function.__closure__ is not None
        cells = tuple(types.CellType(self(cell.cell_contents)) for cell in function.__closure__)
        code, module = function.__code__, function.__globals__
        moved = types.FunctionType(code, module, function.__name__, function.__defaults__, cells)
        moved.__kwdefaults__ = function.__kwdefaults__
        return moved

    def _copy_of_object(self, value: Any) -> Any:
        moved = copy.copy(value)
        self.copies[id(value)] = moved
        for name, attribute in attributes(value).items():
            object.__setattr__(moved, name, self(attribute))
        return moved


class _Count(Move):
    """A move that only counts the tensors of networks."""

    def _copy_of_network(self, network: torch.nn.Module) -> torch.nn.Module:
        self.num_tensors += len(list(network.parameters()))
        return network
