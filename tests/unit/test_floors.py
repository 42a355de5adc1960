"""Arrows point one way: experiments → score → lml, and so they do between rooms and modules."""

from __future__ import annotations

import ast
import functools
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A package may import those that stand after it.
PACKAGES = ("experiments", "mpt_score", "mpt_lml")


HOMES = {
    "experiments": ROOT / "experiments",
    "mpt_score": ROOT / "src" / "mpt_score",
    "mpt_lml": ROOT / "src" / "mpt_lml",
}


SOURCES = {
    ".".join(path.relative_to(home.parent).with_suffix("").parts): path.read_text("utf-8")
    for home in HOMES.values()
    for path in sorted(home.rglob("*.py"))
}


@functools.cache
def imported(source: str) -> list[str]:
    """Full names of what ``source`` imports from our packages, wherever it does so."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append("a relative import")
    return [name for name in names if name.split(".")[0] in (*PACKAGES, "a relative import")]


def upward(module: str, source: str) -> list[str]:
    """One sentence for every import in ``source`` that points against the order of the packages."""
    faults = []
    own = PACKAGES.index(module.split(".")[0])
    for name in imported(source):
        package = name.split(".")[0]
        if package not in PACKAGES:
            faults.append(f"{module} has {name}: write the full name")
        elif PACKAGES.index(package) < own:
            faults.append(f"{module} imports {name}: {PACKAGES[own]} may not import {package}")
    return faults


def target(name: str, modules: dict[str, str]) -> str:
    """The module that the import of ``name`` reads: itself, what defines it, or a package's door."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if module in modules:
            return module
        if f"{module}.__init__" in modules:
            return f"{module}.__init__"
    return name


def arrows(modules: dict[str, str]) -> dict[str, set[str]]:
    """For every module those of ``modules`` that it imports."""
    return {
        module: {target(name, modules) for name in imported(source)} - {module}
        for module, source in modules.items()
    }


def room_of(module: str) -> str:
    """A package's folder, or a module that stands in none."""
    return ".".join(module.split(".")[:2])


def between_rooms(modules: dict[str, str]) -> dict[str, set[str]]:
    rooms: dict[str, set[str]] = {}
    for module, targets in arrows(modules).items():
        room = rooms.setdefault(room_of(module), set())
        room |= {room_of(each) for each in targets} - {room_of(module)}
    return rooms


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules or rooms of a circle in ``graph``; none where all arrows point one way."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("module", SOURCES)
def test_packages_import_one_way(module: str) -> None:
    assert upward(module, SOURCES[module]) == []


def test_rooms_import_one_way() -> None:
    assert circle(between_rooms(SOURCES)) == []


def test_modules_import_one_way() -> None:
    assert circle(arrows(SOURCES)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mpt_lml.masks", "from mpt_score import MaskedLM"),
        ("mpt_lml.masks", "import experiments"),
        ("mpt_lml.curves", "def late():\n    from experiments.experiment import run"),
        ("mpt_score.scorer", "import experiments.ledger"),
        ("mpt_lml.gaussian", "from .numerics import cholesky"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert len(upward(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("mpt_lml.masks", "from mpt_lml import curves"),
        ("mpt_lml.gaussian", "from mpt_lml.models.ppca import PPCA"),
        ("mpt_lml.checks", "from mpt_lml.theory.rates import jackknife"),
        ("mpt_score.rows", "def late():\n    import mpt_score"),
        ("experiments.experiment", "from experiments.paper import convergence"),
    ],
)
def test_a_circle_of_rooms_is_seen(module: str, line: str) -> None:
    changed = SOURCES | {module: SOURCES[module] + "\n" + line}
    assert len(circle(between_rooms(changed))) > 1


def test_a_circle_of_modules_in_one_room_is_seen() -> None:
    name = "mpt_lml.models.base"
    changed = SOURCES | {name: SOURCES[name] + "\nfrom mpt_lml.models.ppca import PPCA"}
    assert len(circle(arrows(changed))) > 1
