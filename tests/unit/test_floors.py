"""Dependencies point down: a module imports only from floors below its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "mpt_lml"
FLOORS = {
    "checkpoints": 0,
    "spec": 0,
    "numerics": 0,
    "results": 0,
    "files": 0,
    "verdicts": 0,
    "gaussian": 1,
    "masks": 1,
    "grids": 1,
    "scores": 1,
    "models": 2,
    "curves": 3,
    "objectives": 3,
    "estimators": 4,
    "orders": 4,
    "score": 4,
    "theory": 4,
    "commands": 5,
    "probes": 5,
    "harness": 5,
    "experiments": 6,
}
WINGS = {"bfgs", "data", "fit", "networks", "page", "plots", "symbolic"}
# Scores of texts take their tokens and the networks that are loaded by name, and r* of a curve.
LEANS = {("score", "data"), ("score", "networks"), ("score", "theory"), ("commands", "networks")}
# Probes train small networks and read the classes of images.
LEANS |= {("probes", "fit"), ("probes", "data")}
# The checks at the door are under everything.
LEANS |= {(room, "spec") for room in ("results", "verdicts", "files")}
# Rooms of several modules: all of them may import these, which import none of the others.
BASES = {
    "data": "mpt_lml.data.places",
    "models": ("mpt_lml.models.base", "mpt_lml.models.vae"),
    "score": tuple(f"mpt_lml.score.{name}" for name in ("door", "design", "estimate", "blocks")),
    "estimators": "mpt_lml.estimators.latent",
    "commands": ("mpt_lml.commands.lines", "mpt_lml.commands.team"),
}


def imported(source: str) -> list[str]:
    """Full names of what ``source`` imports from the package."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append("a relative import")
    return [name for name in names if name.startswith(("mpt_lml", "a relative"))]


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else name


def forbidden(module: str, source: str, *, door: bool = False) -> list[str]:
    """One sentence for every import in ``source`` that crosses a floor; ``module`` is its room.

    A room's ``__init__`` is its ``door``: it may name what stands inside.
    """
    faults = []
    for name in imported(source):
        other = room(name)
        if other not in FLOORS and other not in WINGS:
            faults.append(f"{module} imports {name}, which stands on no floor")
        elif module == other and (door or name.startswith(BASES.get(module, "nothing"))):
            continue
        elif module in WINGS and FLOORS.get(other, 1) != 0:
            faults.append(f"the wing {module} imports {name}; wings rest on floor 0 only")
        elif module in FLOORS and not _allowed(module, other):
            faults.append(
                f"{module} (floor {FLOORS[module]}) imports {name} "
                f"(floor {FLOORS.get(other, 'wing')})"
            )
    return faults


def _allowed(module: str, other: str) -> bool:
    if module == "experiments":
        return True  # may import anything public
    return (module, other) in LEANS or (other in FLOORS and FLOORS[other] < FLOORS[module])


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    module = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert module in FLOORS or module in WINGS, f"{module} has no floor; give it one here"
    source = path.read_text(encoding="utf-8")
    assert forbidden(module, source, door=path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("masks", "from mpt_lml import curves"),
        ("masks", "from mpt_lml.scores import mask_score"),
        ("curves", "import mpt_lml.estimators"),
        ("models", "from mpt_lml.models.ppca import PPCA"),
        ("data", "from mpt_lml.masks import subsets"),
        ("data", "from mpt_lml.data.image_sets import images"),
        ("curves", "from mpt_lml import plots"),
        ("gaussian", "from .numerics import cholesky"),
        ("curves", "def late():\n    from mpt_lml.experiments import run"),
        ("scores", "from mpt_lml.helpers import anything"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert len(forbidden(module, source)) == 1


def test_a_door_opens_its_own_room_only() -> None:
    source = "from mpt_lml.objectives import ppca"
    assert len(forbidden("objectives", source)) == 1
    assert forbidden("objectives", source, door=True) == []
    assert len(forbidden("objectives", "from mpt_lml import estimators", door=True)) == 1


def test_an_allowed_import_is_not() -> None:
    source = (
        "from mpt_lml import masks\nfrom mpt_lml.models.base import ConditionalModel\nimport torch"
    )
    assert forbidden("curves", source) == []


def test_tests_import_helpers_and_no_tests() -> None:
    paths = Path(__file__).parents[1].rglob("*.py")
    lines = [(path.name, line) for path in paths for line in path.read_text().splitlines()]
    assert [(name, line) for name, line in lines if line.startswith("from test_")] == []
