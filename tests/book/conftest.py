"""The book's tools on the import path, and the built site."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_tools"))
sys.path.append(str(ROOT / "book" / "_ext"))
sys.path.insert(0, str(Path(__file__).parent))

from book_layout import Book  # noqa: E402
from plain_markdown import Index, number_book  # noqa: E402


@pytest.fixture(scope="session")
def book() -> Book:
    return Book(ROOT)


@pytest.fixture(scope="session")
def numbered(book: Book) -> Index:
    """The labels and numbers of all chapters: to read them takes ten times as long as to use them."""
    return number_book(book)


@pytest.fixture(scope="session")
def site() -> Path:
    """Folder of the built HTML. `make test` builds it first and then insists on it."""
    folder = ROOT / "_build" / "html"
    if not (folder / "index.html").is_file():
        if os.environ.get("MPT_LML_BOOK_BUILT"):
            pytest.fail("the book was built and there is no _build/html/index.html")
        pytest.skip("no built book: run `make book` first")
    return folder


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    """A small book that uses every directive and role the chapters may use."""
    shutil.copytree(Path(__file__).parent / "sample", tmp_path / "sample")
    shutil.copy(ROOT / "_config.yml", tmp_path / "sample")
    # Its first cell only asks whether there is a package; torch would take most of the time.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "sample" / "book"))
    (tmp_path / "sample" / "book" / "mpt_lml.py").touch()
    return Book(tmp_path / "sample")
