"""The checks at the door. A mask is boolean and **True means masked**; its complement is ``observed``.

Axes: N data, D coordinates, K latent dimensions, P masks, M masked coordinates, L sizes on a curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

_FLOATS = (torch.float32, torch.float64)


def require_answer(name: str, value: Any, shape: Sequence[int], *, slope: bool = True) -> None:
    """Check what a function has answered: a tensor of this shape that can be differentiated."""
    require_dtype(name, value)
    if value.shape != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(value.shape)}.")
    if slope and not value.requires_grad:
        raise ValueError(f"{name} must depend on its argument, got a constant {value}.")


def require_dtype(
    name: str, value: object, dtype: torch.dtype | None = None, *, hint: str = ""
) -> None:
    """Check that ``value`` is a dense tensor of this dtype, by default float32 or float64."""
    got = type(value).__name__
    if isinstance(value, Tensor):
        got = str(value.dtype) if value.layout == torch.strided else str(value.layout)
    if got not in map(str, _FLOATS if dtype is None else (dtype,)):
        kind = dtype or "floating-point (float32 or float64)"
        hint = (
            f" Convert with {name}.bool(); in a mask True = masked."
            if dtype == torch.bool
            else hint
        )
        raise TypeError(f"{name} must be a {kind} tensor, got {got}.{hint}")


def require_entries(name: str, value: Tensor, bad: Tensor, legal: str, remedy: str) -> None:
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name} must be {legal}, but {name}{list(where)} is {value[where].item():.4g} "
            f"({int(bad.sum())} such entries). {remedy}"
        )


def require_finite(name: str, value: Tensor) -> None:
    """Refuse NaN and infinity, naming the first such entry of ``value``."""
    require_entries(name, value, ~value.isfinite(), "finite", "Remove or impute them first.")


def require_binary(x: Tensor) -> None:
    """Check that ``x`` holds zeros and ones only, as a Bernoulli likelihood needs."""
    remedy = "Binarize with (pixels >= 0.5).to(pixels), or use a Gaussian likelihood."
    require_entries("x", x, (x != 0) & (x != 1), "0 or 1 for a Bernoulli likelihood", remedy)


def require_ids(
    name: str, ids: Tensor, count: int, hint: str = "It comes from another tokenizer."
) -> None:
    """Check that ``ids`` are 0..``count`` − 1."""
    require_entries(name, ids, (ids < 0) | (ids >= count), f"0..{count - 1}", hint)


def require_number(name: str, value: Any, legal: str = "(0,inf)", *, hint: str = "") -> None:
    """Check that ``value`` is a single number, no bool, in "(0,inf)", "[0,1)~" (or NaN), ..."""
    low, high = map(float, legal.rstrip("~")[1:-1].split(","))
    number = value.item() if isinstance(value, Tensor) and value.ndim == 0 else value
    one = isinstance(number, int | float | Real) and not isinstance(number, bool)
    ends = [low] * ("[" in legal) + [high] * ("]" in legal)
    if not one or not (
        low < number < high or number in ends or (number != number and "~" in legal)
    ):
        kind = (
            "finite number > 0"
            if legal == "(0,inf)"
            else f"number in {legal.rstrip('~')}".replace(",", ", ")
        )
        error = ValueError if one or isinstance(value, Tensor) else TypeError
        raise error(f"{name} must be a single {kind}, got {value!r}.{hint}")


def require_mask(mask: Tensor) -> None:
    """Check that no row of the boolean ``mask`` (P, D) is empty."""
    empty = (~mask.any(dim=1)).nonzero().flatten()
    if len(empty):
        raise ValueError(
            f"mask[{int(empty[0])}] masks nothing ({len(empty)} such rows): there is no coordinate "
            "to score. Every mask needs at least one True."
        )


def require_count(name: str, value: int, low: int, high: int | None = None) -> None:
    """Check that ``value`` is an integer in ``low..high``."""
    legal = f"{low}..{high}" if high is not None else f">= {low}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer ({legal}), got {value!r}.")
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name} must be in {legal}, got {value}.")


MAX_ENUMERATED = 2**18
"""Most masks, subsets, points or orders that are visited one by one."""


def require_enumerable(what: str, number: int, instead: str) -> None:
    """Refuse to visit ``number`` of ``what`` where that would never end; say what to do instead."""
    if number > MAX_ENUMERATED:
        raise ValueError(
            f"{what} are {number:.3e}, more than the {MAX_ENUMERATED} that are enumerated. "
            f"Use {instead} instead."
        )


def require_generator(generator: torch.Generator | None) -> None:
    """Check that randomness was passed in, not left to a global state."""
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {generator!r}. Pass for example "
            "generator=torch.Generator().manual_seed(0)."
        )
