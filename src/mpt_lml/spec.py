"""Arguments of a function checked against one line about them, and what that line does not say.

Axes: N data, D coordinates, K latent dimensions, P masks, M masked coordinates, L sizes on a curve. A
mask is boolean and **True means masked**; its complement is ``observed``.
"""

import functools
import math
import os
import sys
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor

_DTYPES = {"bool": torch.bool, "int": torch.int64}
_KINDS: dict[str, Any] = {"Callable": Callable, "Hashable": Hashable, "Mapping": Mapping}
_KINDS |= {"Sequence": Sequence, "Collection": Collection, "path": str | os.PathLike}
_KINDS["Generator"] = torch.Generator  # NumPy has one, too


def require(given: Mapping[str, Any], spec: str, *, finite: bool = True, **sizes: int) -> None:
    """Check arguments, the ``locals()`` of a function, against one line about them, such as

    "generator, n 1.., M 1..9, rate (0,1], error? [0,1)~, scheme one|all, f Callable, snapshots* 0..".

    ``?`` may be None, ``~`` NaN, ``*`` is several of a kind; another word is a class. Letters are
    axes of a tensor: "x N D, bool mask P D, int reveal S D"; equal ones are equal ``sizes`` >= 1
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


def require_answer(name: str, value: Any, shape: Sequence[int], *, slope: bool = True) -> None:
    """Check what a function has answered: a tensor of this shape that can be differentiated."""
    require_dtype(name, value)
    if value.shape != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(value.shape)}.")
    if slope and not value.requires_grad:
        raise ValueError(f"{name} must depend on its argument, got a constant {value}.")


def require_slope(name: str, slope: Tensor | None) -> None:
    """Check what ``torch.autograd.grad`` has found with ``allow_unused``: a derivative."""
    if slope is None:
        raise ValueError(f"{name} must depend on its argument, and does on other tensors only.")


def require_dtype(
    name: str, value: object, dtype: torch.dtype | None = None, *, hint: str = ""
) -> None:
    """Check that ``value`` is a dense tensor of this dtype, by default float32 or float64."""
    got = type(value).__name__
    if isinstance(value, Tensor) and torch._C._functorch.is_batchedtensor(value):
        raise TypeError(
            f"{name} is inside torch.vmap, which hides the numbers that are checked here. Leave vmap "
            "out and give the batch as a leading axis, where a shape in the documentation has one."
        )
    if isinstance(value, Tensor) and (value.is_meta or value.is_nested):
        odd = "meta tensor, which has no numbers" if value.is_meta else "nested tensor"
        raise TypeError(f"{name} must be a dense tensor with numbers, got a {odd}.")
    if isinstance(value, Tensor):
        got = str(value.dtype) if value.layout == torch.strided else str(value.layout)
    if got not in map(str, (torch.float32, torch.float64) if dtype is None else (dtype,)):
        kind = dtype or "floating-point (float32 or float64)"
        if dtype == torch.bool:
            hint = f" Convert with {name}.bool(); in a mask True = masked."
        raise TypeError(f"{name} must be a {kind} tensor, got {got}.{hint}")


def require_entries(name: str, value: Tensor, bad: Tensor, legal: str, remedy: str) -> None:
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name} must be {legal}, but {name}{list(where)} is {value[where].item():.4g} "
            f"({int(bad.sum())} such entries). {remedy}"
        )


def require_finite(name: str, value: Tensor) -> None:
    require_entries(name, value, ~value.isfinite(), "finite", "Remove or impute them first.")


def require_second_moment(name: str, moment: Tensor) -> None:
    """Check that ``moment`` (..., D, D) can be the mean of x xᵀ: symmetric, no negative eigenvalue.

    Both hold up to a millionth of the trace, so that moments rounded to single precision pass.
    """
    moment = moment.detach()
    require_finite(name, moment)
    trace = moment.diagonal(dim1=-2, dim2=-1).sum(dim=-1)[..., None, None]
    wanted = f"{name} must be a second moment XᵀX/N, symmetric without negative eigenvalues"
    skew = (moment - moment.mT).abs()
    if (skew > 1e-6 * trace.abs()).any():
        raise ValueError(
            f"{wanted}, but {name} and its transpose differ by {skew.max():.4g}. "
            "objectives.second_moment(x) makes one."
        )
    identity = torch.eye(moment.shape[-1]).to(moment)
    least_pivot = torch.finfo(moment.dtype).tiny  # where all data are 0
    shifted = moment + (1e-6 * trace + least_pivot) * identity
    if torch.linalg.cholesky_ex(shifted).info.any():  # far cheaper than eigenvalues, if D is large
        raise ValueError(
            f"{wanted}, but {name} has the eigenvalue {torch.linalg.eigvalsh(moment).min():.4g}. "
            "objectives.second_moment(x) makes one."
        )


def require_binary(x: Tensor) -> None:
    remedy = (
        "Binarize with (pixels >= 0.5).to(pixels), or use a Gaussian likelihood (a noise_variance)."
    )
    if (x * (x - 1)).any():  # faster than two comparisons: this runs at every training step
        require_entries("x", x, (x != 0) & (x != 1), "0 or 1 for a Bernoulli likelihood", remedy)


def require_ids(
    name: str, ids: Tensor, count: int, hint: str = "It comes from another tokenizer."
) -> None:
    require_entries(name, ids, (ids < 0) | (ids >= count), f"0..{count - 1}", hint)


def require_number(name: str, value: Any, legal: str = "(0,inf)", *, hint: str = "") -> None:
    """Check that ``value`` is a single number, no bool, in "(0,inf)", "[0,1)~" (or NaN), ..."""
    low, high = map(float, legal.rstrip("~")[1:-1].split(","))
    if isinstance(value, Tensor) and (value.is_meta or value.is_nested):
        raise TypeError(f"{name} must be a single number, got a meta or nested tensor.{hint}")
    if type(value) is int and abs(value) > sys.float_info.max:
        raise ValueError(f"{name} must be a number that a float holds, below 1.8e308.{hint}")
    number = value.item() if isinstance(value, Tensor) and value.ndim == 0 else value
    one = isinstance(number, int | float | Real) and not isinstance(number, bool | Fraction)
    ends = [low] * ("[" in legal) + [high] * ("]" in legal)
    nan = "~" in legal and one and number != number
    if not one or not (low < number < high or number in ends or nan):
        kind = "number in " + legal.rstrip("~").replace(",", ", ")
        kind = "finite number > 0" if legal == "(0,inf)" else kind
        error = ValueError if one or isinstance(value, Tensor) else TypeError
        raise error(f"{name} must be a single {kind}, got {value!r}.{hint}")


def require_mask(mask: Tensor) -> None:
    """Check that each row of ``mask`` (..., D) hides something."""
    empty = (~mask.any(dim=-1)).nonzero()
    if len(empty):
        place = empty[0].tolist() or ""  # a single mask has no row number
        raise ValueError(f"mask{place} masks nothing: one True at least is needed.")


def require_count(name: str, value: int, low: int, high: int | None = None) -> None:
    legal = f"{low}..{high}" if high is not None else f">= {low}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer ({legal}), got {value!r}.")
    if not low <= value <= (2**63 - 1 if high is None else high):
        raise ValueError(f"{name} must be in {legal}, got {value}.")


MAX_ENUMERATED = 2**18
"""Most masks, subsets, points or orders that are visited one by one."""


def require_enumerable(what: str, number: int, instead: str) -> None:
    """Refuse to visit ``number`` of ``what`` where that would never end; say what to do instead."""
    require_log_enumerable(what, math.log(number), instead)


def require_log_enumerable(what: str, log_number: float, instead: str) -> None:
    """The same from the number's logarithm, where the number itself may have millions of digits."""
    if log_number <= math.log(MAX_ENUMERATED) + 1e-6:  # less than one more would add
        return
    if log_number < 700.0:  # what a float holds
        number = f"{math.exp(log_number):.3e}"
    else:
        number = f"about 10^{log_number / math.log(10.0):.0f}"
    raise ValueError(
        f"{what} are {number}, more than the {MAX_ENUMERATED} that are enumerated: use {instead}."
    )


MOST_BYTES = 2**38
"""256 GiB: no single tensor of this package's users is larger."""


def require_memory(what: str, bytes_needed: int, instead: str) -> None:
    """Refuse ``what`` no machine has the memory for, before torch's allocator does; say what to do."""
    if bytes_needed > MOST_BYTES:
        gigabytes = bytes_needed // 2**30
        raise ValueError(f"{what} would take {gigabytes} GiB of memory: use {instead}.")


def require_generator(generator: torch.Generator | None) -> None:
    """Check that randomness was passed in, not left to a global state."""
    if not isinstance(generator, torch.Generator):
        hint = "Pass for example generator=torch.Generator().manual_seed(0)."
        raise TypeError(f"generator must be a torch.Generator, got {generator!r}. {hint}")


def require_sizes(sizes: Any, num_features: int, *, increase: bool = True) -> list[int]:
    """``sizes`` as a list, checked: mask sizes within 1..``num_features`` that ``increase``."""
    sizes = sizes.tolist() if hasattr(sizes, "tolist") else sizes
    _require_kind("sizes", sizes, "Sequence")
    for size in sizes:
        require_count("a mask size in sizes", size, 1, num_features)
    if not sizes or (increase and list(sizes) != sorted(set(sizes))):
        raise ValueError(f"sizes must be at least one mask size, and increase, got {sizes!r}.")
    return list(sizes)


def require_values(x: Tensor, sizes: Sequence[int]) -> None:
    """Check that ``x`` is (N, D) int64 and coordinate j one of 0..V_j − 1, V_j = ``sizes[j]``."""
    require(locals(), "int x N D", D=len(sizes))
    bad = (x < 0) | (x >= torch.tensor(sizes, device=x.device))
    if bad.any():
        column = int(bad.nonzero()[0, 1])
        legal = f"0..{sizes[column] - 1} in column {column}"
        require_entries("x", x, bad, legal, "Values are counted from 0.")


def require_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    _require_kind("seeds", seeds, "Sequence")
    for seed in seeds:
        require_count("a seed", seed, 0, 2**63 - 1)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ, got {tuple(seeds)}: one twice is no replicate.")
    return tuple(seeds)


def require_reveal(reveal: Tensor, num_features: int) -> None:
    """Check that ``reveal`` (S, D) counts the steps at which coordinates are shown from 0."""
    require({"reveal": reveal}, "int reveal S D", D=num_features)
    if reveal.min() < 0:
        raise ValueError(f"reveal must count steps from 0, got {int(reveal.min())}.")
