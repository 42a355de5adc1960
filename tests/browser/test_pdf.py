"""The book as one PDF, by `make pdf`: all is in it, and its outline is the table of contents."""

from __future__ import annotations

import re
import sys
import time
import unicodedata
from functools import partial
from pathlib import Path

import pikepdf
import pypdfium2
import pytest
from book_layout import Book
from chromium import SITE
from pdf import entries, main, printed_pages
from plain_markdown import Index, number_book

pytestmark = pytest.mark.slow  # a minute to print: not a part of `make site`
LARGEST = 25 * 2**20
STATEMENTS = ("theorem", "lemma", "proposition", "corollary", "definition", "algorithm", "exercise")


@pytest.fixture(scope="module")
def index() -> Index:
    return number_book(Book())


@pytest.fixture(scope="module")
def printed() -> Path:
    if not (SITE / "book.pdf").is_file():
        pytest.skip("no printed book: run `make pdf`, which runs these tests, too")
    return SITE / "book.pdf"


@pytest.fixture(scope="module")
def text(printed: Path) -> str:
    with pypdfium2.PdfDocument(printed) as whole:
        raw = " ".join(page.get_textpage().get_text_bounded() for page in whole)
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", raw))  # ligatures apart


def test_a_print_that_never_ends_is_tried_once_more(capfd) -> None:
    assert main(partial(time.sleep, 60), seconds=0.5) == 1
    assert capfd.readouterr().err.count("nothing came for 0.5 s") == 2
    assert main(partial(sys.exit, 3)) == 3


def test_it_fits_into_a_mail(printed: Path) -> None:
    assert printed.stat().st_size <= LARGEST


def test_every_statement_figure_and_equation_is_there(text: str, index: Index) -> None:
    labels = [label for label in index.labels.values() if label.page.number is not None]
    wanted = {
        f"{label.kind.title()} {label.number}" for label in labels if label.kind in STATEMENTS
    }
    wanted |= {f"Figure {label.number}" for label in labels if label.kind == "figure"}
    wanted |= {f"({label.number})" for label in labels if label.kind == "equation"}
    assert len(wanted) > 200
    as_text = {unicodedata.normalize("NFKC", each) for each in wanted}
    assert sorted(each for each in as_text if each not in text) == []
    assert f"Theorem {len(index.book.chapters) + 1}.1" not in text


def test_it_begins_with_a_title_page(printed: Path, index: Index) -> None:
    with pypdfium2.PdfDocument(printed) as whole:
        first, second = (whole[k].get_textpage().get_text_bounded() for k in (0, 1))
    for line in (index.book.config["title"], index.book.config["author"], index.book.repository):
        assert line in " ".join(first.split())
    assert len(first) < 600
    assert index.book.config["title"] in " ".join(second.split())


def test_the_home_page_links_to_it_where_it_stands(printed: Path) -> None:
    home = (SITE / "book" / "index.html").read_text(encoding="utf-8")
    assert 'href="../book.pdf"' in home
    assert "/book.pdf" not in home.replace('href="../book.pdf"', "")


def test_the_outline_is_the_table_of_contents(printed: Path, index: Index) -> None:
    with pikepdf.open(printed) as whole:
        outline = whole.Root.Outlines
        found = [
            (each.Parent.objgen == outline.objgen, str(each.Title)) for each in entries(outline)
        ]
    top = [title for is_top, title in found if is_top]
    assert len(top) == len(printed_pages(index.book))
    chapters = [title for title in top if re.match(r"\d+½?\. ", title)]
    wanted = [page.number for page in index.book.chapters if not page.is_note]
    assert [title.split(".")[0] for title in chapters] == wanted
    sections = {title.split(" ")[0].rstrip(".") for _, title in found}
    wanted = {
        label.number for label in index.labels.values() if label.kind == "section" and label.number
    }
    assert sorted(wanted - sections) == []


def test_links_stay_in_the_book_or_say_where_they_lead(printed: Path) -> None:
    inside = 0
    with pikepdf.open(printed) as whole:
        for link in (each for page in whole.pages for each in page.get("/Annots", [])):
            action = link.get("/A", {})
            inside += "/Dest" in link or "/D" in action
            assert not str(action.get("/URI", "")).startswith(("http://127.", "file:"))
    assert inside > 500


def test_solutions_stand_at_the_ends_of_the_chapters(text: str) -> None:
    assert text.count("Solution to Exercise 1.1") == 1
    assert text.index("Solution to Exercise 1.1") > text.index("Exercise 1.4")
