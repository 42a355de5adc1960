"""The public names of the packages."""

from __future__ import annotations

import importlib
import inspect
import re
import types
from collections.abc import Iterator

import mpt_lml
import mpt_score

PACKAGES = (mpt_lml, mpt_score)


def public_modules(package: types.ModuleType) -> Iterator[types.ModuleType]:
    """The modules that the package's docstring lists and that list names of their own."""
    for name in re.findall(r"^\* ``([\w.]+)``", package.__doc__ or "", flags=re.M):
        module = importlib.import_module(f"{package.__name__}.{name}")
        if hasattr(module, "__all__"):
            yield module


def exported(package: types.ModuleType, prefix: str = "") -> dict[str, object]:
    """The public names of a package, and those of its public modules: `masks.FixedRate`."""
    names = {prefix + name: getattr(package, name) for name in package.__all__}
    for module in public_modules(package):
        inside = module.__name__.removeprefix(f"{package.__name__}.")
        for name in module.__all__:
            value = getattr(module, name)
            if getattr(package, name, None) is not value:  # else it has a shorter name
                names[f"{prefix}{inside}.{name}"] = value
    return {name: value for name, value in names.items() if not inspect.ismodule(value)}


SURFACE = exported(mpt_lml) | exported(mpt_score, "score.")
