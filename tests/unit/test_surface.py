"""The public surface: documented, with examples that run, and all that chapters import."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from jupytext.myst import myst_to_notebook
from surface import PACKAGES, SURFACE, public_modules

BOOK = Path(__file__).parents[2] / "book"
# Constants and type aliases have no docstring of their own.
DOCUMENTED = {
    name: each for name, each in SURFACE.items() if inspect.isclass(each) or inspect.isroutine(each)
}


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
    public = {package.__name__: set(package.__all__) for package in PACKAGES}
    for package in PACKAGES:
        for module in public_modules(package):
            public[module.__name__] = set(module.__all__)
            folder, _, name = module.__name__.rpartition(".")
            public.setdefault(folder, set()).add(name)
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
