"""The API page, from the package's own lists.

In `book/api.md`, ``% floors`` becomes the table of the test that keeps the floors, and ``% names``
every name of every public module's ``__all__``.
"""

import inspect
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx

import mpt_lml
from mpt_lml import experiments

TEST = Path(__file__).resolve().parents[2] / "tests" / "unit" / "test_floors.py"


def floors() -> str:
    test = runpy.run_path(str(TEST))
    rows = {"beside": sorted(test["WINGS"])}
    for room, floor in test["FLOORS"].items():
        rows.setdefault(str(floor), []).append(room)
    lines = [f"| {at} | {', '.join(f'`{r}`' for r in rows[at])} |" for at in sorted(rows)[::-1]]
    return "\n".join(["| floor | modules |", "|:--|:--|", *lines])


def documented(owner: ModuleType, heading: str) -> Iterator[str]:
    """A section for ``owner``, then one for each public module in it."""
    lines, inside = [f"## {heading}", "", "```{eval-rst}"], [experiments] * (owner is mpt_lml)
    if owner is not mpt_lml:
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
        yield from documented(each, f"`{each.__name__.removeprefix('mpt_lml.')}`")


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == "book/api":
        names = "\n\n".join(documented(mpt_lml, "Models and values"))
        source[0] = source[0].replace("% floors", floors()).replace("% names", names)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    return {"version": "2", "parallel_read_safe": True, "parallel_write_safe": True}
