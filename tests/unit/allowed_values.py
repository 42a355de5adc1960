"""What an annotation allows: read here apart from the package's own reading, `mpt_lml/checks.py`."""

from __future__ import annotations

import collections.abc
import inspect
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union

import numpy as np
import torch
from jaxtyping import AbstractArray
from torch import Tensor

import mpt_lml
from mpt_lml.checks import Data, Interval, Within, each_masks_something
from mpt_lml.models.vae import LatentVariableModel

FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Others:
    """What the other arguments of a call say about one: letters' sizes, the model, the dtype."""

    sizes: Mapping[str, int]
    model: Any
    dtypes: frozenset[torch.dtype]
    valid: Any  # what the valid call passes


def allows(annotation: Any, value: Any, others: Others) -> bool:
    """Whether an argument with this annotation may have this value."""
    origin = typing.get_origin(annotation)
    parts = typing.get_args(annotation)
    if annotation == Data:
        return is_made_by(others.model, value, others)
    if origin is Annotated:
        # An interval says itself whether what is not finite is a number of it.
        is_interval = any(isinstance(remark, Interval) for remark in parts[1:])
        fits = is_number(value) if is_interval else allows(parts[0], value, others)
        return fits and all(remark_allows(remark, value) for remark in parts[1:])
    if origin in (Union, types.UnionType):
        return any(allows(part, value, others) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if annotation in (None, types.NoneType):
        return value is None
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return fits_axes(annotation, value, others)
    if annotation is Any:
        return True
    if annotation is int:
        return type(value) is int
    if annotation is float:
        return is_number(value) and math.isfinite(value)
    if collections.abc.Callable in (origin, annotation):
        return value is others.valid  # another one gives another answer
    kind = origin or annotation
    if not inspect.isclass(kind):
        return True
    if issubclass(kind, collections.abc.Iterable) and parts:
        return is_collection(kind, parts, value, others)
    return isinstance(value, kind)


def remark_allows(remark: Any, value: Any) -> bool:
    if isinstance(remark, Within):
        return remark.low <= value and (remark.high is None or value <= remark.high)
    if isinstance(remark, Interval):
        return is_in(remark.legal, value)
    if remark is each_masks_something:
        return bool(value.any(dim=-1).all())
    return True


def is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        is_real = not value.is_complex() and value.dtype != torch.bool
        return value.ndim == 0 and is_real
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)


def ends_of(interval: str) -> tuple[float, float]:
    low, high = interval.rstrip("~")[1:-1].split(",")
    return float(low), float(high)


def is_in(interval: str, value: Any) -> bool:
    """Whether ``value`` is in "(0,1]", or NaN where "(0,1]~" says so."""
    low, high = ends_of(interval)
    if math.isnan(value):
        return interval.endswith("~")
    if value == low:
        return interval[0] == "["
    if value == high:
        return interval.rstrip("~")[-1] == "]"
    return low < value < high


def is_collection(kind: type, parts: tuple[Any, ...], value: Any, others: Others) -> bool:
    if isinstance(value, str | bytes | Tensor | np.ndarray):
        return False
    if kind is tuple and len(parts) == 2 and parts[1] is Ellipsis:
        parts, kind = parts[:1], collections.abc.Sequence
    elif kind is tuple:
        return isinstance(value, tuple) and len(value) == len(parts)
    if not isinstance(value, kind):
        return False
    items = value
    if isinstance(value, collections.abc.Mapping):
        items = value.values()
    return all(allows(parts[-1], item, item_of(others)) for item in items)


def item_of(others: Others) -> Others:
    """What the other arguments say about an item of a collection."""
    items = others.valid
    if isinstance(items, collections.abc.Mapping):
        items = items.values()
    first = next(iter(items), None) if isinstance(items, collections.abc.Iterable) else None
    return replace(others, valid=first)


# -- tensors and their axes -------------------------------------------------------------------------


def axes_of(annotation: Any) -> tuple[list[str], bool, bool]:
    """The letters of a tensor, and whether axes of any number stand before or behind them."""
    axes = annotation.dim_str.replace("#", "").split()
    is_variadic = [axis == "..." or axis.startswith("*") for axis in axes]
    letters = [axis for axis, variadic in zip(axes, is_variadic, strict=True) if not variadic]
    return letters, is_variadic[:1] == [True], is_variadic[-1:] == [True]


def tensor_annotation(annotation: Any) -> Any:
    """The ``Float[Tensor, ...]`` in an annotation, if there is one."""
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return annotation
    for part in typing.get_args(annotation):
        if tensor_annotation(part) is not None:
            return tensor_annotation(part)
    return None


def bind(annotation: Any, shape: Iterable[int]) -> dict[str, int]:
    """The sizes of an annotation's letters in a tensor of this shape."""
    letters, leads, _ = axes_of(annotation)
    sizes = list(shape)
    if leads:
        sizes = sizes[len(sizes) - len(letters) :]
    return dict(zip(letters, sizes, strict=False))


def fits_axes(annotation: Any, value: Any, others: Others) -> bool:
    """Whether a tensor has the dtype and the axes; a letter of another argument has its size."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta:
        return False
    if not has_dtype(annotation, value, others):
        return False
    letters, leads, trails = axes_of(annotation)
    num_more = value.ndim - len(letters)
    if num_more < 0 or (num_more > 0 and not (leads or trails)):
        return False
    start = num_more if leads else 0
    sizes = dict(others.sizes)
    for letter, size in zip(letters, value.shape[start:], strict=False):
        wanted = int(letter) if letter.isdigit() else sizes.setdefault(letter, size)
        may_be_empty = len(letter) == 1 and letter.islower()
        if size != wanted or (size == 0 and not may_be_empty):
            return False
    return 0 not in value.shape[:start]


def has_dtype(annotation: Any, value: Tensor, others: Others) -> bool:
    if "float32" not in annotation.dtypes:
        return value.dtype == (torch.bool if "bool" in annotation.dtypes else torch.int64)
    return value.dtype in FLOATS and (not others.dtypes or value.dtype in others.dtypes)


def is_made_by(model: Any, x: Any, others: Others) -> bool:
    """Whether a model can have made the data ``x``: like valid data, but for how many."""
    valid = others.valid
    if not isinstance(x, Tensor) or x.layout != torch.strided or x.numel() == 0:
        return False
    if x.shape[1:] != valid.shape[1:] or x.is_floating_point() != valid.is_floating_point():
        return False
    if len(x) != others.sizes.get("B", others.sizes.get("N", len(x))):
        return False
    if x.is_floating_point():
        return x.dtype in FLOATS and is_made_of_numbers(model, x)
    if x.dtype != torch.int64:
        return False
    num_values = getattr(model, "num_values", None)
    if isinstance(model, mpt_lml.JointTable):
        num_values = torch.tensor(model.log_table.shape)
    if num_values is None:
        return True  # which values there are is known when a function has answered
    return bool(((x >= 0) & (x < num_values)).all())


def is_made_of_numbers(model: Any, x: Tensor) -> bool:
    if not x.isfinite().all():
        return False
    decoder = getattr(model, "model", model)
    is_bernoulli = isinstance(decoder, LatentVariableModel) and decoder.noise_variance is None
    return not is_bernoulli or bool(((x == 0) | (x == 1)).all())
