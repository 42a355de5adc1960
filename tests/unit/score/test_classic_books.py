"""The 23 books, brought file by file from where they are published; here from a stand-in."""

from __future__ import annotations

import csv
import hashlib
import io
from pathlib import Path
from urllib.error import URLError
from urllib.parse import unquote

import pytest

from mpt_lml.data import CorruptDataError, DataNotFoundError
from mpt_lml.data.sources import DATA_VARIABLE
from mpt_score import classic_books, texts

FILES = {
    "A. Writer/One Book.md": "\ufeff# One Book\nA. Writer\n1850\n\n---\n\n## Chapter 1\n\nIt rained.\n\n",
    "B. Writer/Another.md": "Another\n-----\r\nI will begin the story of my adventures in June.\n",
}
CORPUS = b"Chapter 1\n\nIt rained.\n\nI will begin the story of my adventures in June.\n\n"


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two small books as they are published; the names of the files that were asked for."""
    asked: list[str] = []
    rows = []
    for name, text in FILES.items():
        content = text.encode()
        author, title = name.removesuffix(".md").split("/")
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        rows.append({"title": title, "author": author, "git blob": blob})

    def opened(address: str, timeout: float) -> io.BytesIO:
        assert address.startswith(classic_books._ADDRESS) and timeout > 0
        asked.append(unquote(address.removeprefix(classic_books._ADDRESS)))
        return io.BytesIO(FILES[asked[-1]].encode())

    table = tmp_path / "books.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    monkeypatch.setattr(classic_books, "book_file", lambda name: table)
    monkeypatch.setattr(classic_books, "urlopen", opened)
    monkeypatch.setitem(texts._BOOKS, "sha256", hashlib.sha256(CORPUS).hexdigest())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    return asked


def test_heads_and_marks_go_and_books_are_brought_once(published: list[str]) -> None:
    path = texts.fetch_books()
    assert path.read_bytes() == CORPUS and published == list(FILES)
    assert texts.fetch_books() == path and len(published) == 2
    assert texts.sentences("books", "train").first == ("Chapter 1", "It rained.")
    assert texts.sentences("books").first[0].endswith("adventures in June.")


def test_a_local_folder_is_not_fetched(published: list[str], tmp_path: Path, monkeypatch) -> None:
    local = tmp_path / "text" / "classic_books" / "corpus.txt"
    local.parent.mkdir(parents=True)
    local.write_text("A book.")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert texts.fetch_books() == local and published == []


@pytest.mark.bad_input
def test_another_file_is_refused(published: list[str], monkeypatch) -> None:
    monkeypatch.setattr(
        classic_books, "urlopen", lambda address, timeout: io.BytesIO(b"T\n---\nText")
    )
    with pytest.raises(CorruptDataError, match="One Book.md is not the published file"):
        texts.fetch_books()
    assert not classic_books.brought_file().exists()


@pytest.mark.bad_input
def test_without_a_network_it_says_what_to_do(published: list[str], monkeypatch) -> None:
    def refused(address: str, timeout: float) -> io.BytesIO:
        raise URLError("no route to host")

    monkeypatch.setattr(classic_books, "urlopen", refused)
    with pytest.raises(DataNotFoundError, match="no route.*folder that MPT_LML_DATA names"):
        texts.fetch_books()


@pytest.mark.bad_input
def test_a_damaged_copy_is_refused(published: list[str]) -> None:
    texts.fetch_books().write_text("half a book")
    with pytest.raises(CorruptDataError, match="delete it and call fetch_books"):
        texts.sentences("books")
