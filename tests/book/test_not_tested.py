"""`make test` ends with what it could not test, each reason once, from runs in several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from not_tested import APART, sentences  # noqa: E402

SKIPPING = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_skipped(number):
    pytest.skip("needs a camel: buy one")

def test_run():
    pass

@pytest.mark.data
def test_data():
    pass
"""
UNREAD = 'import pytest\npytest.importorskip("no_such_module", reason="needs a camel: buy one")\n'


def lines_of_a_run(folder: Path, *options: str) -> list[str]:
    path = folder / "not-tested"
    own = os.environ | {"PYTHONPATH": str(TESTS), "MPT_LML_NOT_TESTED": str(path)}
    own.pop("MPT_LML_DATA", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conftest"]
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = data: needs data\n")
    done = subprocess.run(
        [*command, *options], cwd=folder, env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return path.read_text().splitlines()


def test_reasons_of_two_runs_are_told_once(tmp_path: Path) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    (tmp_path / "test_unread.py").write_text(UNREAD)
    lines_of_a_run(tmp_path, "-n", "2")
    lines = lines_of_a_run(tmp_path)
    assert [json.loads(line)[1:] for line in lines] == [[3, ["test_unread.py"]], [1, []]] * 2
    assert sentences(lines) == "\n".join(
        [
            "Not tested on this machine:",
            "  * 6 tests and all of test_unread.py: needs a camel: buy one.",
            "  * 2 tests: needs data files: set MPT_LML_DATA to their folder.",
            APART,
        ]
    )


def test_notebooks_that_were_not_executed_again_are_told() -> None:
    names = ["note-a-one-rate.ipynb", "08-curve-shape.ipynb", "06-convergence.ipynb"]
    assert "turn: 06, 08, A (make nbval)." in sentences([], names)
    assert "nbval" not in sentences([])


def test_where_nothing_is_missing_it_says_so() -> None:
    assert sentences([]).startswith("Every test could run on this machine.\n")
    assert "  * 1 test: no camel." in sentences(['["no camel", 1, []]'])
    assert "  * all of a.py, b.py: no camel." in sentences(['["no camel", 0, ["b.py", "a.py"]]'])
