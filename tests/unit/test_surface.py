"""The public surface: documented, with examples that run, and all that chapters import.

`pytest -s tests/unit/test_surface.py` prints what is missing, name by name.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jupytext.myst import myst_to_notebook
from surface import PACKAGES, SURFACE

BOOK = Path(__file__).parents[2] / "book"
# Constants and type aliases have no docstring of their own.
DOCUMENTED = {
    name: each for name, each in SURFACE.items() if inspect.isclass(each) or inspect.isroutine(each)
}


def show(faults: list[str]) -> None:
    print(f"{len(faults)} of {len(SURFACE)} public names:", *faults, sep="\n  ")


def modules(owner: types.ModuleType | None = None) -> Iterator[types.ModuleType]:
    if owner is None:
        for package in PACKAGES:
            yield from modules(package)
        return
    yield owner
    for name in getattr(owner, "__all__", ()):
        if inspect.ismodule(getattr(owner, name)):
            yield from modules(getattr(owner, name))


def test_the_surface_is_declared() -> None:
    silent = [module.__name__ for module in modules() if not hasattr(module, "__all__")]
    show([f"{name} has no __all__" for name in silent])
    assert silent == []


def test_every_public_name_has_an_example() -> None:
    without = []
    for name, value in DOCUMENTED.items():
        is_error = inspect.isclass(value) and issubclass(value, BaseException)
        if not is_error and ">>> " not in (inspect.getdoc(value) or ""):
            without.append(name)
    assert without == []


# What an example may use without importing it.
GIVEN = {name: getattr(owner, name) for owner in PACKAGES for name in owner.__all__}
GIVEN |= {"torch": torch} | {owner.__name__: owner for owner in PACKAGES}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_examples_run(name: str) -> None:
    each = DOCUMENTED[name]
    module = importlib.import_module(each.__module__)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
    for test in doctest.DocTestFinder(recurse=True).find(
        each, name, module=module, globs=GIVEN | vars(module)
    ):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


# -- what chapters import -----------------------------------------------------------------------


def code_of(chapter: Path) -> str:
    notebook = myst_to_notebook(chapter.read_text(encoding="utf-8"))
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")


def back_doors(code: str) -> list[str]:
    """Imports of the package in ``code`` that are not of its public surface."""
    faults, lines = [], [line for line in code.splitlines() if not line.lstrip().startswith("%")]
    public = {module.__name__: set(getattr(module, "__all__", ())) for module in modules()}
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mpt_"):
            allowed = public.get(node.module, set())
            faults += [f"{node.module}: {a.name}" for a in node.names if a.name not in allowed]
        elif isinstance(node, ast.Import):
            faults += [a.name for a in node.names if re.match(r"mpt_\w+\.", a.name)]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in public:
            owner = ast.unparse(node.value)
            faults += [] if node.attr in public[owner] else [f"{owner}.{node.attr}"]
    return sorted(set(faults))


def test_chapters_import_the_public_surface_only() -> None:
    chapters = sorted(BOOK.glob("[0-9]*.md"))
    faults = [f"{path.stem}: {each}" for path in chapters for each in back_doors(code_of(path))]
    print(*faults, sep="\n")
    assert faults == []
