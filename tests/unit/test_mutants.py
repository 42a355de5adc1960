"""The mutation run: what it changes, what it leaves, and that it tells killed from alive."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "mutants.py"
SOURCE = SCRIPT.parents[1] / "src"
spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
mutants = sys.modules["mutants"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutants)

TOY = '''"""A module with 1 docstring."""
import warnings

def clipped(value: float, top: float = 2.0) -> float:
    """0 is not mutated here."""
    if value < 0:
        raise ValueError(f"{value - 1} is below 0")
    return min(value, top)

def unseen(value: int) -> int:
    return value + 1
'''
TEST = """import pytest, toy
@pytest.fixture(scope="module")
def one():
    return toy.clipped(1.0)
def test_clipped(one):
    assert one == 1.0 and toy.clipped(0.0) == 0.0 and toy.clipped(3.0) == 2.0
def test_refusal():
    with pytest.raises(ValueError):
        toy.clipped(-1.0)
def test_runs_and_looks_at_nothing():
    toy.unseen(1)
"""


def made(code: str) -> list[tuple[str, str]]:
    """(before, after) of every mutant of ``code``."""
    found = []
    for _, statement, change in mutants.changes(tree := ast.parse(code)):
        before = mutants.text(statement)
        change.swap()
        ast.unparse(ast.fix_missing_locations(tree))
        found.append((before, ast.unparse(tree)))
        change.swap()
    assert ast.unparse(tree) == ast.unparse(ast.parse(code))  # every change is undone
    return found


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("a + b * c", {"a - b * c", "a + b / c", "pass"}),
        ("x = a < b", {"x = a <= b", "x = a >= b"}),
        ("x = a == b", {"x = a != b"}),
        ("x = not a and b", {"x = a and b", "x = not a or b"}),
        ("x = 3", {"x = 4", "x = 2"}),
        ("x = 0", {"x = 1"}),
        ("x = 1.5", {"x = 3.0", "x = -1.5"}),
        ("x = True", {"x = False"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = y.sum(dim=a)", {"x = y.sum()"}),
        ("x = y.clamp(min=a)", {"x = y.clamp(max=a)", "x = y.clamp()"}),
        ("x = torch.where(a, b, c)", {"x = torch.where(a, c, b)"}),
        ("x[i] = y", {"pass"}),
        ("x += y", {"x -= y", "pass"}),
        ("raise ValueError(f'{n - 1} of 2')", {"pass"}),
        ("def f(x: Float[Tensor, 'N 2']=n) -> int:\n    'Doc.'\n    return x", set()),
        ("def f() -> bool:\n    return x", {"def f() -> bool:\n    return not x"}),
        ("def f() -> float:\n    return x", {"def f() -> float:\n    return -x"}),
        ("def __repr__(self):\n    return 1 + 1", set()),
        ("if TYPE_CHECKING:\n    x = 1", set()),
        ("__all__ = ['a'] + 2", set()),
        ("import a.b", set()),
    ],
)
def test_what_is_changed_and_what_is_left(code: str, expected: set[str]) -> None:
    assert {after for _, after in made(code)} == expected


def test_killed_and_alive_are_told_apart(tmp_path: Path) -> None:
    """No bound on the clip would be noticed … by a test that looks at nothing."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "toy.py").write_text(TOY)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_toy.py").write_text(TEST)
    folders = {f"--{name}": tmp_path / name for name in ("source", "tests", "build")}
    folders["--source"] = tmp_path / "src"
    words = [str(word) for pair in folders.items() for word in pair]
    command = [sys.executable, str(SCRIPT), "--number", "100", *words]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert ended.returncode == 1, ended.stderr  # under 95 %
    results = json.loads((tmp_path / "build" / "results.json").read_text())
    alive = {(r["before"], r["after"]) for r in results if r["by"] is None}
    assert alive == {
        ("return value + 1", "return value - 1"),
        ("return value + 1", "return value + 2"),
        ("return value + 1", "return value + 0"),
    }
    killers = {r["after"]: r["by"].rpartition("::")[2] for r in results if r["by"]}
    assert killers["pass"] == "test_refusal"
    assert killers["return max(value, top)"] == "test_clipped"
    assert f"{len(results) - 3} of {len(results)} killed" in ended.stdout
    again = subprocess.run([*command, "--again"], capture_output=True, text=True, timeout=300)
    assert again.stdout.count("→") == 3
    (tmp_path / "tests" / "test_lost.py").write_text("import toys\n")
    lost = subprocess.run([*command, "--again"], capture_output=True, text=True, timeout=300)
    assert lost.returncode == 1 and "test_lost.py raised" in lost.stderr, lost.stderr
