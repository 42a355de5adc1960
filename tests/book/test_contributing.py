"""The worked example of CONTRIBUTING.md runs as it is written there."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from book_layout import ROOT
from checks import run

BLOCK = re.compile(r"^```python\n# (in )?(\S+\.py)\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r'^\.venv/bin/python -m pytest tests/unit -k "(.*)"$', re.M)
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The packages and the helpers of the unit tests with the example in its place."""
    for folder in ("src", "tests/unit"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for path in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / path, tmp_path / path)
    blocks = BLOCK.findall(CONTRIBUTING)
    assert len(blocks) == 8
    for is_added, name, code in blocks:
        if is_added:
            before = (tmp_path / name).read_text(encoding="utf-8")
            code = with_lines_added(before, code)
        (tmp_path / name).write_text(code, encoding="utf-8")
    return tmp_path


def with_lines_added(text: str, block: str) -> str:
    """``text`` with the lines of ``block`` below the first of them, which it has."""
    anchor = block.splitlines(keepends=True)[0]
    assert f"\n{text}".count(f"\n{anchor}") == 1, f"{anchor!r} is to be there once"
    return f"\n{text}".replace(f"\n{anchor}", f"\n{block}")[1:]


def test_the_model_of_the_example_passes_its_tests(tree: Path) -> None:
    (chosen,) = COMMAND.findall(CONTRIBUTING)
    env = os.environ | {"PYTHONPATH": str(tree / "src")}
    names = ("independent", "oracles", "surface", "valid_calls")
    files = [f"tests/unit/test_{name}.py" for name in names]
    # All examples of the surface run in the tests of the packages: here only that of the new name does.
    chosen = chosen.replace("surface or ", "")
    options = ["-p", "no:cacheprovider", "-v", "-k", chosen]
    printed = run(sys.executable, "-m", "pytest", *options, *files, cwd=tree, env=env)
    passed = re.findall(r"^tests/unit/(test_\w+\.py::\S+)(?: .*)? PASSED", printed, re.M)
    # Of every step one test that asks for the whole of it.
    for test in (
        "test_independent.py::TestIndependentBernoulli::test_proposition_1[four]",
        "test_oracles.py::test_every_number_is_right_to_its_precision[IndependentBernoulli:",
        "test_surface.py::test_the_examples_run[IndependentBernoulli]",
        "test_valid_calls.py::test_every_public_name_has_a_valid_call_or_a_reason",
        "test_valid_calls.py::test_the_methods_of_every_public_model_are_called",
        "test_valid_calls.py::test_a_wrong_type_or_shape_is_refused_by_its_name"
        "[models.independent.IndependentBernoulli]",
    ):
        assert test in passed, printed
