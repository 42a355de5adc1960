"""The public names of the packages."""

from __future__ import annotations

import inspect
import types

import mpt_lml
import mpt_score

PACKAGES = (mpt_lml, mpt_score)


def exported(owner: types.ModuleType) -> dict[str, object]:
    """The public names of a module, and those of the modules among them: `masks.FixedRate`."""
    names = {}
    for name in getattr(owner, "__all__", ()):
        each = getattr(owner, name)
        if inspect.ismodule(each):
            names |= {f"{name}.{inner}": value for inner, value in exported(each).items()}
        else:
            names[name] = each
    return names


SURFACE = exported(mpt_lml)
SURFACE |= {f"score.{name}": each for name, each in exported(mpt_score).items()}
