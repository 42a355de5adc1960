"""The API page, from the packages' own lists.

In `book/api.md`, ``% names`` becomes every name of every public module's ``__all__``.
"""

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx

import mpt_experiments
import mpt_lml
import mpt_score

PACKAGES = (mpt_lml, mpt_score, mpt_experiments)


def documented(owner: ModuleType) -> Iterator[str]:
    """A section for ``owner``, then one for each public module in it."""
    lines, inside = [f"## `{owner.__name__.removeprefix('mpt_lml.')}`", "", "```{eval-rst}"], []
    lines += [f".. automodule:: {owner.__name__}", "   :no-members:"]
    for name in getattr(owner, "__all__", ()):
        each = getattr(owner, name)
        if inspect.ismodule(each):
            inside.append(each)
        elif inspect.isclass(each):
            members = ["   :members:", "   :show-inheritance:"]
            lines += ["", f".. autoclass:: {each.__module__}.{name}", *members]
        else:
            function = inspect.isroutine(each)
            kind, home = ("function", each.__module__) if function else ("data", owner.__name__)
            lines += ["", f".. auto{kind}:: {home}.{name}"]
    yield "\n".join([*lines, "```"])
    for each in sorted(inside, key=lambda module: module.__name__):
        yield from documented(each)


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == "book/api":
        names = "\n\n".join(part for package in PACKAGES for part in documented(package))
        source[0] = source[0].replace("% names", names)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    return {"version": "3", "parallel_read_safe": True, "parallel_write_safe": True}
