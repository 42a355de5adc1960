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


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The packages and the helpers of the unit tests with the example in its place."""
    for folder in ("src", "tests/unit"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for path in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / path, tmp_path / path)
    blocks = BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(blocks) == 4
    for added, name, code in blocks:
        before = (tmp_path / name).read_text(encoding="utf-8") if added else ""
        (tmp_path / name).write_text(before + code, encoding="utf-8")
    return tmp_path


def test_the_model_of_the_example_passes_its_tests(tree: Path) -> None:
    oracles = tree / "tests" / "unit" / "oracles.py"
    families = re.sub(
        r"^FAMILIES = \(.*?^\)$",
        'FAMILIES = ("oracles_independent",)',
        oracles.read_text(encoding="utf-8"),
        flags=re.M | re.S,
    )
    oracles.write_text(families, encoding="utf-8")
    env = os.environ | {"PYTHONPATH": str(tree / "src")}
    files = [f"tests/unit/test_{name}.py" for name in ("independent", "oracles")]
    options = ["-q", "-p", "no:cacheprovider", "-k", "independent or coin", "--doctest-modules"]
    module = "src/mpt_lml/models/independent.py"
    printed = run(sys.executable, "-m", "pytest", *options, *files, module, cwd=tree, env=env)
    assert re.search(r"^\d\d passed", printed, re.M), printed
