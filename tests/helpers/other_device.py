"""A second device on a machine that has none: tensors are tagged, and what a GPU refuses is refused.

    with OtherDevice() as other:
        network.to(other.device)

Numbers are computed on the CPU. A tag belongs to a storage, so that views and parameters keep it.
``Tensor.device`` is "cuda:0" for what is tagged, and ``device=`` of that kind makes a tagged tensor.
Where tensors of two devices meet in an operation, and where a tagged one becomes a NumPy array, an
error is raised as a GPU would. ``waits`` counts the operations for which a program waits for the card:
those whose answer, or its shape, depends on numbers that are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

ATEN = torch.ops.aten
DEVICE = torch.device("cuda", 0)
MPS = torch.device("mps", 0)  # without double precision
GET_DEVICE = Tensor.device.__get__  # type: ignore[attr-defined]
COPIES = (ATEN.copy_.default, ATEN._to_copy.default)
WAITS = (
    ATEN._local_scalar_dense.default,
    ATEN.equal.default,
    ATEN.masked_select.default,
    ATEN.nonzero.default,
    ATEN._unique2.default,
)
# What says something of a tensor that is the same on every device, and makes none.
DESCRIPTIONS = frozenset(
    {
        Tensor.shape.__get__,  # type: ignore[attr-defined]
        Tensor.dtype.__get__,  # type: ignore[attr-defined]
        Tensor.ndim.__get__,  # type: ignore[attr-defined]
        Tensor.layout.__get__,  # type: ignore[attr-defined]
        Tensor.requires_grad.__get__,  # type: ignore[attr-defined]
        Tensor.dim,
        Tensor.size,
        Tensor.numel,
        Tensor.is_floating_point,
    }
)
# Those of PyTorch's functions that ask for a device in other ways than device=.
MOVES = (Tensor.to, Tensor.pin_memory)
# A CPU's index of a tensor of a GPU is moved along, for which it waits.
INDEXING = (ATEN.index.Tensor, ATEN.index_put_.default, ATEN._index_put_impl_.default)
# A number of the CPU, without axes, may meet tensors of a GPU, but not in these.
WITHOUT_NUMBERS = (
    ATEN.cat.default,
    ATEN.stack.default,
    ATEN.mm.default,
    ATEN.bmm.default,
    ATEN.mv.default,
    ATEN.dot.default,
    ATEN.addmm.default,
    ATEN.gather.default,
    ATEN.scatter.src,
    ATEN.index_add.default,
    ATEN.index_select.default,
    ATEN.equal.default,
)


class OtherDevice(TorchFunctionMode):
    """A context in which there is a device.

    Args:
        device: "cuda:0", or "mps:0", which is refused double precision.
    """

    def __init__(self, device: torch.device = DEVICE) -> None:
        super().__init__()
        self.device = device
        self.waits: Counter[str] = Counter()
        self._tags: dict[int, StorageWeakRef] = {}
        # Of each of PyTorch's functions that is running: is one of its tensors there?
        self._running: list[bool] = []
        self._operations = _Operations(self)

    def __enter__(self) -> Self:
        self._operations.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._operations.__exit__(*error)

    def is_there(self, value: Tensor) -> bool:
        storage = _storage(value)
        if storage is None:
            return False
        reference = self._tags.get(storage._cdata)
        return reference is not None and not reference.expired()

    def tag(self, value: Any, is_there: bool = True) -> Any:
        for tensor in _tensors(value):
            storage = _storage(tensor)
            if storage is None:
                continue
            if is_there:
                if self.device.type == "mps" and tensor.dtype == torch.float64:
                    raise TypeError(
                        "Cannot convert a tensor to float64, which the device does not have"
                    )
                self._tags[storage._cdata] = StorageWeakRef(storage)
            else:
                self._tags.pop(storage._cdata, None)
        return value

    def __torch_function__(
        self, function: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function in DESCRIPTIONS:
            return function(*args, **kwargs)
        if not self._tags and "device" not in kwargs and function not in MOVES:
            return function(*args, **kwargs)  # nothing is there: nothing can meet
        if function == GET_DEVICE:
            return self.device if self.is_there(args[0]) else function(*args)
        if function == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return self.device.type == "cuda" and self.is_there(args[0])
        if function is Tensor.pin_memory:
            return args[0]
        is_forced = kwargs.get("force", False)
        if (
            function in (Tensor.numpy, Tensor.__array__)
            and self.is_there(args[0])
            and not is_forced
        ):
            raise TypeError("a GPU's tensor is no NumPy array")
        if function is Tensor.cpu:
            if not self.is_there(args[0]):
                return args[0]
            self.waits["cpu"] += 1
            return _Transfer.apply(args[0], self, False)
        if function is Tensor.to or (function is torch.as_tensor and isinstance(args[0], Tensor)):
            return self._moved(args, kwargs)
        if function is Tensor.__deepcopy__ and self.is_there(args[0]):
            with torch.no_grad():
                return self.tag(function(*args))
        wanted = kwargs.pop("device", None)
        becomes_there = wanted is not None and torch.device(wanted).type == self.device.type
        has_there = any(self.is_there(each) for each in _tensors((args, kwargs)))
        if kwargs.get("generator") is not None and (has_there or becomes_there):
            raise RuntimeError("a CPU's generator draws nothing for a GPU's tensor")
        self._running.append(has_there)
        try:
            if wanted is None or becomes_there:
                value = function(*args, **kwargs)
            else:
                value = function(*args, device=wanted, **kwargs)
        finally:
            self._running.pop()
        return self.tag(value) if becomes_there else value

    def is_made_there(self) -> bool:
        """Of a tensor that one of PyTorch's functions makes on its way, as a GPU's function would."""
        return bool(self._running) and self._running[-1]

    def _moved(self, args: Any, kwargs: dict[str, Any]) -> Tensor:
        value, *others = args
        wanted = kwargs.get("device")
        dtype = kwargs.get("dtype")
        for other in others:
            if isinstance(other, str | torch.device):
                wanted = other
            elif isinstance(other, torch.dtype):
                dtype = other
            elif isinstance(other, Tensor):
                wanted = self.device if self.is_there(other) else "cpu"
                dtype = other.dtype
        was_there = self.is_there(value)
        is_there = was_there if wanted is None else torch.device(wanted).type == self.device.type
        if was_there and not is_there:
            self.waits["to"] += 1
        moved = value if dtype is None else Tensor.to(value, dtype)
        if is_there == was_there:
            return moved
        return _Transfer.apply(moved, self, is_there)


class _Transfer(torch.autograd.Function):
    """A copy on the other device, whose derivative comes back to this one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, other: OtherDevice, is_there: bool) -> Tensor:
        return other.tag(value.clone(), is_there)

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Tensor) -> None:
        _, context.other, context.is_there = inputs

    @staticmethod
    def backward(context: Any, slope: Tensor) -> Any:
        return _Transfer.apply(slope, context.other, not context.is_there), None, None


def _storage(value: Tensor) -> torch.UntypedStorage | None:
    while torch._C._functorch.is_functorch_wrapped_tensor(value):  # as inside torch.vmap
        value = torch._C._functorch.get_unwrapped(value)
    return value.untyped_storage() if value.layout is torch.strided else None


def _tensors(values: Any) -> list[Tensor]:
    """In a function's arguments or its answer: torch's own walk over them takes several times longer."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    return [tensor for each in values for tensor in _tensors(each)]


class _Operations(TorchDispatchMode):
    """Every operation of PyTorch, those of its own functions too: do two devices meet in it?"""

    def __init__(self, outer: OtherDevice) -> None:
        super().__init__()
        self.outer = outer

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.outer._tags:
            return function(*args, **kwargs)
        tensors = _tensors((args, kwargs))
        there = [each for each in tensors if self.outer.is_there(each)]
        here = [each for each in tensors if not self.outer.is_there(each)]
        if function in COPIES:
            value = function(*args, **kwargs)
            return self.outer.tag(value) if self.outer.is_there(args[0]) else value
        if function in INDEXING and there:
            indices = _tensors(args[1])
            if any(each.dtype == torch.bool for each in indices):
                self.outer.waits[f"{function} by a mask"] += 1
            if self.outer.is_there(args[0]):
                here = [each for each in here if all(each is not index for index in indices)]
        if there and function in WAITS:
            self.outer.waits[str(function)] += 1
        if function not in WITHOUT_NUMBERS:
            here = [each for each in here if each.ndim > 0]
        if there and here:
            raise RuntimeError(f"{function}: expected all tensors to be on the same device")
        value = function(*args, **kwargs)
        is_new = not tensors or function is ATEN.lift_fresh.default
        is_there = bool(there) or (is_new and self.outer.is_made_there())
        return self.outer.tag(value) if is_there else value
