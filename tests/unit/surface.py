"""The public names of the package."""

from __future__ import annotations

import inspect
import types

import mpt_lml
from mpt_lml import experiments


def exported(owner: types.ModuleType) -> dict[str, object]:
    """The public names of a module, and those of the modules among them: `masks.FixedRate`."""
    found = {}
    for name in getattr(owner, "__all__", ()):
        each = getattr(owner, name)
        if inspect.ismodule(each):
            found |= {f"{name}.{inner}": value for inner, value in exported(each).items()}
        else:
            found[name] = each
    return found


SURFACE = exported(mpt_lml) | {f"experiments.{n}": e for n, e in exported(experiments).items()}
