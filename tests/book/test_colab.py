"""A notebook as Colab runs it: alone in an empty folder, in an environment without the package.

The environment has what Colab brings (torch, numpy, matplotlib, transformers, an IPython kernel)
and nothing else. The notebook's own first cell has to install the package, here from the wheel that
a release of this checkout would be, and must leave the versions of everything that was there alone.

One chapter by default; MPT_LML_COLAB="all", or names: MPT_LML_COLAB="01-masked-pretraining 05".
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from book_layout import Book
from checks import run

pytestmark = pytest.mark.slow

BROUGHT = ["torch", "numpy", "matplotlib", "transformers", "ipykernel"]
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
assert all(cell.execution_count for cell in cells)
print(len(cells), "cells ran")
"""


def chosen() -> list[str]:
    named = os.environ.get("MPT_LML_COLAB", "").split()
    pages = Book().chapters
    if named == ["all"]:
        return [page.name for page in pages]
    return [Book().chapter(name).name for name in named] or [pages[0].name]


def versions(python: Path) -> dict[str, str]:
    listed = run(python, "-m", "pip", "freeze", cwd=python.parent)
    return dict(line.split("==") for line in listed.splitlines() if "==" in line)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, book: Book) -> Path:
    """A new virtual environment with what Colab brings."""
    folder = tmp_path_factory.mktemp("colab") / "venv"
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    pins = book.root / "constraints.txt"
    pip = [python, "-m", "pip", "install", "-q", "--no-compile", "-c", pins]
    run(*pip, *BROUGHT, "nbclient", cwd=folder)
    return python


def clean_environment(python: Path) -> dict[str, str]:
    """Nothing of this process that could let the package in by a back door."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "JUPYTER_PATH", "MPT_LML_DATA")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "2",
        "PIP_NO_COMPILE": "0",  # in pip's words: compile nothing
    }


@pytest.fixture
def without_package(python: Path, tmp_path: Path) -> Path:
    run(python, "-m", "pip", "uninstall", "-q", "-y", "mpt-lml", cwd=tmp_path)
    env = clean_environment(python)
    missing = subprocess.run([str(python), "-c", "import mpt_lml"], cwd=tmp_path, env=env,
                             capture_output=True, check=False)  # fmt: skip
    assert missing.returncode != 0, "the package is there before the notebook installed it"
    return python


@pytest.fixture(scope="module")
def wheel(book: Book, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", book.root, "-w", folder, cwd=folder
    )
    (found,) = folder.glob("mpt_lml-*.whl")
    return found


@pytest.mark.parametrize("name", chosen())
def test_a_chapter_runs_on_its_own(
    without_package: Path, tmp_path: Path, book: Book, wheel: Path, name: str
) -> None:
    python, page = without_package, book.chapter(name)
    before = versions(python)
    shutil.copy(page.notebook, tmp_path)
    env = clean_environment(python) | {"MPT_LML_INSTALL": str(wheel)}
    assert "cells ran" in run(python, "-c", RUN, page.notebook.name, cwd=tmp_path, env=env)
    after = versions(python)
    assert {package: after.get(package) for package in before} == before


def test_without_a_source_the_notebook_fails(
    without_package: Path, tmp_path: Path, book: Book
) -> None:
    """So that the test above cannot pass because the package was there all along."""
    page = book.chapter(chosen()[0])
    shutil.copy(page.notebook, tmp_path)
    env = clean_environment(without_package) | {"MPT_LML_INSTALL": str(tmp_path / "nothing")}
    done = subprocess.run(
        [str(without_package), "-c", RUN, page.notebook.name],
        cwd=tmp_path, env=env, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "mpt_lml" in done.stderr
