"""Kinds of arguments: what is legal, what is tried instead, and who refused it."""

from __future__ import annotations

import itertools
import linecache
import math
import random
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mpt_lml

Wrong = Callable[[random.Random], list[Any]]
Legal = Callable[[Any], bool]
SOURCES = str(Path(mpt_lml.__file__).parents[1])  # of all three packages


class RefusedError(ValueError):
    """A command ended with a message and status 2."""


class Odd:
    """An object that is nothing an argument could be."""

    def __repr__(self) -> str:
        return "an odd object"


def common(draw: random.Random) -> list[Any]:
    """What is tried for every argument."""
    some = round(draw.uniform(0.01, 5.0), 3)
    flat = [None, True, False, some, -some, -draw.randint(1, 9), 0, math.nan, math.inf, -math.inf]
    flat += ["one", "", b"two", 1j, Odd(), Odd, np.float64(some), np.int64(2), np.ones(3), range(0)]
    flat += [[], (), {}, [some], [[True]], {"a": 1}, {1, 2}, Path("nowhere")]
    return [*flat, torch.tensor(some), torch.tensor(2), torch.ones(2, 3), torch.ones(0), torch.Size]


@dataclass(frozen=True)
class Kind:
    """One argument: a legal value (made anew for each call), the rule for others, more to try."""

    value: Callable[[], Any]
    legal: Legal
    wrong: Wrong = lambda draw: []
    passes_on: bool = False  # NaN in, NaN out: it is seen in the result

    odd: Wrong = common

    def tried(self, draw: random.Random) -> list[Any]:
        return [*self.odd(draw), *self.wrong(draw)]

    def but(self, **changes: Any) -> Kind:
        return replace(self, **changes)


def integer(value: Any) -> bool:
    return type(value) is int


def count(value: int, low: int = 1, high: int | None = None) -> Kind:
    top = [] if high is None else [high + 1, 10 * high + 7]
    return Kind(
        lambda: value,
        lambda v: integer(v) and low <= v and (high is None or v <= high),
        lambda draw: [low - 1, low - draw.randint(1, 99), value + 0.5, float(value), *top],
    )


def real(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim == 0 and not value.is_complex() and value.dtype != torch.bool
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)


def number(value: float, low: float = -math.inf, high: float = math.inf, ends: str = "()") -> Kind:
    """A number between ``low`` and ``high``; ``ends`` says which of them are legal."""

    def legal(v: Any) -> bool:
        if not real(v) or not math.isfinite(v):
            return False
        above = v > low or ("[" in ends and v == low)
        return above and (v < high or ("]" in ends and v == high))

    def wrong(draw: random.Random) -> list[Any]:
        out = [low - draw.uniform(0.01, 9.0), high + draw.uniform(0.01, 9.0)]
        return [*(v for v in (*out, low, high) if math.isfinite(v)), str(value)]

    return Kind(lambda: value, legal, wrong)


def seed() -> Kind:
    return count(4, 0, 2**63 - 1)


def choice(value: str, *others: str) -> Kind:
    legal = {value, *others}
    return Kind(
        lambda: value,
        lambda v: isinstance(v, str) and v in legal,
        lambda draw: [value.upper(), value + " ", [value], "".join(draw.sample(value, len(value)))],
    )


def flag(value: bool = False) -> Kind:
    return Kind(lambda: value, lambda v: isinstance(v, bool), lambda draw: ["no", 1, 0])


def text(value: str = "name") -> Kind:
    return Kind(lambda: value, lambda v: isinstance(v, str))


def generator() -> Kind:
    return Kind(
        lambda: torch.Generator().manual_seed(0),
        lambda v: isinstance(v, torch.Generator),
        lambda draw: [draw.randint(0, 99), random.Random(0), np.random.default_rng(0), [None]],
    )


def optional(kind: Kind) -> Kind:
    """``kind`` or None."""
    return kind.but(legal=lambda v: v is None or kind.legal(v))


def instance(make: Callable[[], Any], *types: Any, wrong: Iterable[Any] = ()) -> Kind:
    return Kind(make, lambda v: isinstance(v, types), lambda draw: list(wrong))


def function(value: Callable[..., Any], *wrong: Callable[..., Any]) -> Kind:
    """A callable; ``wrong`` are callables with results that are not legal."""
    return Kind(
        lambda: value,
        lambda v: callable(v) and v is value,
        lambda draw: [lambda *a, **k: None, lambda *a, **k: "word", *wrong] if wrong else [],
        odd=lambda draw: [each for each in common(draw) if not callable(each)],
    )


def several(values: list[Any], of: Kind, *, also: Legal = lambda v: True, least: int = 1) -> Kind:
    """A list or tuple of at least ``least`` values of a kind."""

    def wrong(draw: random.Random) -> list[Any]:
        put = [[*values[:-1], each] for each in of.tried(draw)]
        return [*put, *values[:1], str(values), values[::-1]]

    def legal(v: Any) -> bool:
        if isinstance(v, Tensor | np.ndarray) and v.ndim == 1:
            v = v.tolist()
        if not isinstance(v, list | tuple | range):
            return False
        return len(v) >= least and all(map(of.legal, v)) and also(v)

    return Kind(lambda: values, legal, wrong)


# -- tensors --------------------------------------------------------------------------------------


def tensor(
    value: Tensor,
    free: str = "",
    *,
    also: Legal = lambda v: True,
    lead: bool = False,
    nan: bool = False,
    bare: bool = False,
) -> Kind:
    """A tensor of the dtype and axes of ``value``; axes in ``free`` may be shorter, down to 1.

    ``lead``: axes may stand in front; ``nan``: what is not finite is passed on; ``bare``: axes may
    be empty; ``also``: what else is asked of it.
    """
    fixed = [axis for axis in range(value.ndim) if str(axis) not in free]

    def legal(v: Any) -> bool:
        if not isinstance(v, Tensor) or v.layout != torch.strided:
            return False
        if v.dtype != value.dtype and {v.dtype, value.dtype} != {torch.float32, torch.float64}:
            return False
        if v.ndim < value.ndim or (v.ndim > value.ndim and not lead):
            return False
        tail = v.shape[v.ndim - value.ndim :]
        if any(tail[axis] != value.shape[axis] for axis in fixed) or (not v.numel() and not bare):
            return False
        return (nan or bool(v.isfinite().all())) and also(v)

    def wrong(draw: random.Random) -> list[Any]:
        return [*_other_types(value), *_other_shapes(value), *_other_entries(value, draw)]

    return Kind(lambda: value.clone(), legal, wrong, passes_on=nan)


def _other_types(value: Tensor) -> list[Any]:
    every = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)
    every += (torch.int64, torch.int32, torch.uint8, torch.bool)
    kinds = [value.detach().to(dtype) for dtype in every if dtype != value.dtype]
    return [*kinds, value.tolist(), value.detach().numpy(), value.to_sparse()][
        : None if value.ndim else -1
    ]


def _other_shapes(value: Tensor) -> list[Tensor]:
    found = [value[None], value[..., None], value.flatten(), value.flatten()[0]]
    for axis in range(value.ndim):
        size = value.shape[axis]
        found += [value.select(axis, 0), value.narrow(axis, 0, 0), torch.cat([value] * 2, axis)]
        found += [value.narrow(axis, 0, size - 1)] if size > 1 else []
        found += [value.narrow(axis, 0, 1)] if size > 2 else []
    return [*found, value.transpose(0, -1)] if value.ndim > 1 else found


def _other_entries(value: Tensor, draw: random.Random) -> list[Tensor]:
    if value.dtype == torch.bool:
        return [torch.zeros_like(value), torch.ones_like(value), ~value]
    bad = [-1, -draw.randint(2, 99), 10**6]
    if value.is_floating_point():
        bad += [
            math.nan,
            math.inf,
            -math.inf,
            -1e-3,
            draw.uniform(-9, -1),
            draw.uniform(2, 9),
            1e30,
        ]
    found = [-value, 0 * value, 1000 * value, 1e-30 * value if value.is_floating_point() else value]
    for each in bad:
        other = value.clone(memory_format=torch.contiguous_format)
        if value.numel():
            other.view(-1)[draw.randrange(value.numel())] = each
        found.append(other)
    return found


# -- the judge --------------------------------------------------------------------------------------


def refused(error: BaseException, names: Iterable[str], value: Any) -> bool:
    """Is it an error of ours, raised at a line that says so, which names argument or value?

    Where arguments do not fit each other, each of ``names`` will do.
    """
    if isinstance(error, RefusedError):
        return True
    if isinstance(error, ImportError) or not isinstance(
        error, TypeError | ValueError | OSError | FloatingPointError
    ):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    assert last is not None
    place = last.tb_frame.f_code.co_filename
    line = linecache.getline(place, last.tb_lineno).strip()
    own = place.startswith(SOURCES) and line.startswith("raise")
    return own and any(names_it(str(error), name, value) for name in names)


def names_it(message: str, name: str, value: Any) -> bool:
    words = [name.removesuffix("s"), name.replace("_", " "), repr(value)[:20], type(value).__name__]
    if isinstance(value, Tensor):
        words += [str(tuple(value.shape)), str(value.dtype)]
    if isinstance(value, dict):
        words += map(str, value)
    if isinstance(value, str | Path):
        words += [str(value)] if str(value) else []
    return any(word in message for word in words)


def unseen(value: Any, result: Any) -> bool:
    """Is there a NaN in ``value`` and none in ``result``? (What is infinite may have a limit.)"""
    return holds_nan(value) and not holds_nan(result)


def holds_nan(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool(value.isnan().any())
    if isinstance(value, float):
        return math.isnan(value) or math.isnan(getattr(value, "standard_error", 0.0))
    if isinstance(value, tuple | list):
        return any(map(holds_nan, value))
    return holds_nan(list(vars(value).values())) if hasattr(value, "__dict__") else False


@dataclass(frozen=True)
class Case:
    """A callable and a legal value for each of its arguments."""

    call: Callable[..., Any]
    kinds: dict[str, Kind]

    def judge(self, name: str | None = None, value: Any = None) -> str | None:
        """What is wrong with the answer to ``value`` for the argument ``name``, if anything."""
        arguments = {key: kind.value() for key, kind in self.kinds.items()}
        if name is not None:
            arguments[name] = value
        positional = [arguments.pop(key) for key in list(arguments) if key.startswith("_")]
        legal = name is None or self.kinds[name].legal(value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = self.call(*positional, **arguments)
                if hasattr(result, "__next__"):
                    result = list(itertools.islice(result, 3))
            except Exception as error:
                if name is not None and refused(error, self.kinds, value):
                    return None
                said = (str(error).splitlines() or [""])[0][:100]
                return f"raw {type(error).__name__}: {said}"
        if not legal:
            return "silent"
        if name is not None and self.kinds[name].passes_on and unseen(value, result):
            return "silent: NaN in, a number out"
        return None


def case(call: Callable[..., Any], /, **kinds: Kind) -> Case:
    return Case(call, kinds)
