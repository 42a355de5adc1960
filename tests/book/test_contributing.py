"""The model by example of CONTRIBUTING.md, and its oracle in tests/README.md, run as they are written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from book_layout import ROOT
from checks import run

PAGES = ("CONTRIBUTING.md", "tests/README.md")
TEXT = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
BLOCK = re.compile(r"^```python\n# (in )?(\S+\.py)\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^\.venv/bin/python -m pytest (.*independent.*)$", re.M)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The packages and the helpers of the unit tests with the example in its place."""
    for folder in ("src", "tests/unit"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for path in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / path, tmp_path / path)
    blocks = BLOCK.findall(TEXT)
    assert len(blocks) == TEXT.count("```python\n"), "a block begins with the name of its file"
    for is_added, name, code in blocks:
        if is_added:
            code = with_lines_added((tmp_path / name).read_text(encoding="utf-8"), code)
        (tmp_path / name).write_text(code, encoding="utf-8")
    return tmp_path


def with_lines_added(text: str, block: str) -> str:
    """``text`` with the lines of each group of ``block`` below the group's first, which it has."""
    text = f"\n{text}"
    for group in block.strip("\n").split("\n\n"):
        anchor = group.splitlines()[0]
        assert text.count(f"\n{anchor}\n") == 1, f"{anchor!r} is to be there once"
        text = text.replace(f"\n{anchor}\n", f"\n{group}\n")
    return text[1:]


def test_the_model_of_the_example_passes_its_tests(tree: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(tree / "src")}
    model, oracle = COMMAND.findall(TEXT)
    # All examples and all calls run in the tests of the packages: here only those of the new name do.
    model += " -k 'independent or every_public'"
    printed = ""
    for command in (model, oracle):
        options = ["-p", "no:cacheprovider", "-v"]
        printed += run(
            sys.executable, "-m", "pytest", *options, *shlex.split(command), cwd=tree, env=env
        )
    passed = re.findall(r"^tests/unit/(test_\w+\.py::\S+)(?: .*)? PASSED", printed, re.M)
    # Of every step one test that asks for the whole of it.
    for test in (
        "test_independent.py::TestIndependentBernoulli::test_proposition_1[four",
        "test_independent.py::test_the_curve_is_flat",
        "test_surface.py::test_the_examples_run[models.independent.IndependentBernoulli]",
        "test_valid_calls.py::test_every_public_name_has_a_valid_call_or_a_reason",
        "test_valid_calls.py::test_the_methods_of_every_public_model_are_called",
        "test_valid_calls.py::test_a_wrong_type_or_shape_is_refused_by_its_name"
        "[models.independent.IndependentBernoulli]",
        "test_oracles.py::test_every_number_is_right_to_its_precision[IndependentBernoulli:",
    ):
        assert test in passed, printed
