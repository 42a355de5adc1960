"""Arguments of a function checked against one line about them, and what that line does not say.

Axes: N data, D coordinates, K latent dimensions, P masks, M masked coordinates, L sizes on a curve. A
mask is boolean and **True means masked**; its complement is ``observed``.
"""

import functools
import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mpt_lml.checks import (  # noqa: F401
    MAX_ENUMERATED,
    MOST_BYTES,
    require_answer,
    require_binary,
    require_count,
    require_dtype,
    require_entries,
    require_enumerable,
    require_finite,
    require_generator,
    require_ids,
    require_log_enumerable,
    require_mask,
    require_memory,
    require_number,
    require_second_moment,
    require_seeds,
    require_sizes,
    require_slope,
    require_values,
)

_DTYPES = {"bool": torch.bool, "int": torch.int64}
_KINDS: dict[str, Any] = {"Callable": Callable, "Hashable": Hashable, "Mapping": Mapping}
_KINDS |= {"Sequence": Sequence, "Collection": Collection, "path": str | os.PathLike}
_KINDS["Generator"] = torch.Generator  # NumPy has one, too


def require(given: Mapping[str, Any], spec: str, *, finite: bool = True, **sizes: int) -> None:
    """Check arguments, the ``locals()`` of a function, against one line about them, such as

    "generator, n 1.., M 1..9, rate (0,1], error? [0,1)~, scheme one|all, f Callable, snapshots* 0..".

    ``?`` may be None, ``~`` NaN, ``*`` is several of a kind; another word is a class. Letters are
    axes of a tensor: "x N D, bool mask P D, int rank S D"; equal ones are equal ``sizes`` >= 1
    (small: >= 0), ``...`` any axes, broadcast where they come first; "x data" is what ``model`` can
    have made. Floating-point tensors share a dtype and are ``finite``, unless what is not passes on
    to a result that someone looks at.
    """
    seen: dict[str, Tensor] = {}
    lead: list[torch.Size] = []
    for name, optional, check, dtype, axes in _parsed(spec):
        value = given[name]
        if value is None and optional:
            continue
        if check is not None:
            check(name, value)
        elif axes == ["data"]:
            given["model"].require_data(value)
        else:
            require_dtype(name, value, dtype)
            lead.append(_fit(seen, name, value, axes, sizes))
            if finite and dtype is None:
                require_finite(name, value.detach())
    floats = {name: value.dtype for name, value in seen.items() if value.is_floating_point()}
    if len(set(floats.values())) > 1:
        raise TypeError(f"tensors must share one dtype, got {floats}: convert with .to(dtype).")
    try:
        if len({*lead, ()}) > 2:  # one shape needs no look
            torch.broadcast_shapes(*lead)
    except RuntimeError:
        raise ValueError(f"leading axes must be equal or 1, got {_shapes(seen)}.") from None


@functools.cache
def _parsed(spec: str) -> list[tuple[str, bool, Any, torch.dtype | None, list[str]]]:
    found = []
    for words in map(str.split, spec.split(", ")):
        dtype = _DTYPES[words.pop(0)] if words[0] in _DTYPES else None
        name, check, word = words[0], None, words[1] if len(words) == 2 else ""
        if name.rstrip("?") == "generator":
            check = partial(lambda _, value: require_generator(value))
        elif word[:1] in ("(", "["):
            check = partial(require_number, legal=word)
        elif ".." in word and word != "...":
            low, high = word.split("..")
            check = partial(require_count, low=int(low), high=int(high) if high else None)
        elif "|" in word:
            check = partial(_require_choice, choices=word.split("|"))
        elif word.isalpha() and len(word) > 1 and word != "data":
            check = partial(_require_kind, kind=word)
        check = partial(_each, check=check) if name[-1] == "*" else check
        found.append((name.rstrip("?*"), "?" in name, check, dtype, words[1:]))
    return found


def _shapes(tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(each.shape)}" for name, each in tensors.items())


def _fit(
    seen: dict[str, Tensor], name: str, value: Tensor, axes: list[str], sizes: dict[str, int]
) -> torch.Size:
    """Compare a shape with its axes, learn the ``sizes`` of new letters; return leading axes."""
    own, known, shape = [axis for axis in axes if axis != "..."], dict(sizes), value.shape
    more = len(shape) - len(own)
    start = max(more, 0) if axes[:1] == ["..."] else 0
    fits = more == 0 or (more > 0 and "..." in axes and 0 not in shape[:start])
    for axis, size in zip(own, shape[start:], strict=False):
        fits &= size == sizes.setdefault(axis, size) and (size > 0 or axis.islower())
    if not fits:
        wanted = ", ".join(str(known.get(axis, axis.upper())) for axis in axes)
        wanted += "," * (len(axes) == 1)
        beside = f" beside {_shapes(seen)}" if seen else ""
        hint = f" A single one is passed as {name}[None, :]." if more == -1 else ""
        raise ValueError(f"{name} must have shape ({wanted}), got {tuple(shape)}{beside}.{hint}")
    seen[name] = value
    return shape[:start]


def _each(name: str, values: Any, check: Any) -> None:
    _require_kind(name, values, "Collection")
    for value in values:
        check(f"each of {name}", value)


def _require_kind(name: str, value: object, kind: str) -> None:
    known: dict[str, Any] = {each.__name__: each for each in type(value).__mro__} | _KINDS
    odd = isinstance(value, str | bytes | Tensor) or getattr(value, "shape", None) == ()
    odd &= kind in ("bool", "Sequence", "Collection")  # NumPy has a bool, and arrays of no axis
    odd |= kind == "path" and isinstance(value, str) and not value
    if odd or kind not in known or not isinstance(value, known[kind]):
        raise TypeError(f"{name} must be of type {kind}, got {value!r}.")


def _require_choice(name: str, value: object, choices: list[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}.")
