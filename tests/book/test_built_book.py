"""The built pages: everything resolves, nothing comes from another site, search works."""

from __future__ import annotations

import json
import re
from pathlib import Path

import checks
import lxml.html
import pytest
from book_layout import Book
from plain_markdown import Index
from search_pages import sections_of

ONE_READING = pytest.mark.xdist_group("pages")  # each page is read once, by one worker


def test_the_home_page_is_there(site: Path) -> None:
    assert (site / "index.html").is_file()
    assert checks.page(site / "book" / "index.html").xpath("//h1")
    assert checks.broken_links(site / "index.html") == []


def test_every_page_of_the_contents_was_built(site: Path, book: Book) -> None:
    assert [p.docname for p in book.pages if not (site / f"{p.docname}.html").is_file()] == []


@ONE_READING
def test_links_anchors_and_pictures_resolve(site: Path) -> None:
    assert [fault for page in checks.book_pages(site) for fault in checks.broken_links(page)] == []


@ONE_READING
def test_nothing_is_loaded_from_another_site(site: Path) -> None:
    pages = checks.book_pages(site)
    assert [fault for page in pages for fault in checks.outside_loads(page)] == []
    assert checks.outside_loads_in_css(site) == []


@ONE_READING
def test_no_myst_is_left_on_a_page(site: Path) -> None:
    left = {page.name: checks.raw_roles(page) for page in checks.book_pages(site)}
    assert {name: found for name, found in left.items() if found} == {}


def test_search_finds_the_theorems(site: Path, numbered: Index) -> None:
    index = checks.search_data(site)
    theorems = [
        label for label in numbered.labels.values()
        if label.kind in ("theorem", "proposition", "lemma") and label.title
    ]  # fmt: skip
    assert theorems, "no theorem with a title in the book"
    for label in theorems:
        words = [word for word in label.title.split() if word.isalpha() and len(word) > 4]
        for word in words[:1]:
            assert label.page.docname in checks.found_by_search(index, word), (word, label.title)


def test_every_chapter_opens_its_notebook_on_colab(site: Path, book: Book) -> None:
    where = f"github/{'/'.join(book.repository.split('/')[-2:])}/blob/"
    for page in book.chapters:
        links = checks.colab_links(site / f"{page.docname}.html")
        assert links, f"no Colab link on {page.docname}"
        for link in links:
            path = link.split(where)[1].split("/", 1)[1]
            assert (book.root / path).is_file(), link
            assert path == f"{page.docname}.ipynb"


# -- the checkers, on what they should find ----------------------------------------------------

BROKEN = """<html><head><link rel="stylesheet" href="https://fonts.example/a.css">
<script src="//cdn.example/x.js"></script><link rel="canonical" href="https://example.org/"></head>
<body><a href="nowhere.html">a</a><a href="#nothing">b</a><a href="#here" id="here">c</a>
<a href="https://example.org/">outside link</a><img src="gone.png">
<p style="background: url(https://example.org/p.png)">see {prf:ref}`thm` and <code>{eq}</code></p>
</body></html>"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.html"
    path.write_text(BROKEN)
    (tmp_path / "a.css").write_text("@import url('https://fonts.example/b.css'); a {color: red}")
    return path


def test_broken_links_are_found(broken: Path) -> None:
    assert [fault.split(": ")[1] for fault in checks.broken_links(broken)] == [
        "nowhere.html",
        "#nothing",
        "gone.png",
    ]


def test_loads_from_elsewhere_are_found(broken: Path) -> None:
    assert len(checks.outside_loads(broken)) == 3
    assert len(checks.outside_loads_in_css(broken.parent)) == 1


def test_left_over_roles_are_found(broken: Path) -> None:
    assert checks.raw_roles(broken) == ["{prf:ref}"]


def test_search_that_does_not_know_a_word_finds_nothing() -> None:
    pages = [
        {"address": "a.html", "sections": [["x", "Rain", "It rains."]]},
        {"address": "b.html", "sections": [["x", "Training", "No theorem."]]},
    ]
    assert checks.found_by_search(pages, "theorem") == {"b"}
    assert checks.found_by_search(pages, "rain") == {"a"}
    assert checks.found_by_search(pages, "lemma") == set()


def test_the_search_reads_neither_formulas_nor_code(site: Path) -> None:
    pages = checks.search_data(site)
    texts = [f"{head} {text}" for page in pages for _, head, text in page["sections"]]
    assert [
        text[:80] for text in texts if re.search(r"\\[(\[]|\\(?:log|frac|sum|mid)\b", text)
    ] == []
    assert not any("fig, ax = plt" in text for text in texts)


def test_the_search_reads_a_subsection_once() -> None:
    page = lxml.html.document_fromstring(
        '<article><section id="a"><h1>Masks</h1><p>Hide.</p>'
        '<section id="b"><h2>Sizes</h2><p>Count.</p></section></section></article>'
    )
    assert sections_of(page) == [["a", "Masks", "Hide."], ["b", "Sizes", "Count."]]


def test_a_wrong_number_is_seen(tmp_path: Path) -> None:
    from nbformat.v4 import new_markdown_cell, new_notebook

    html = tmp_path / "page.html"
    html.write_text('<p class="admonition-title"><span>Theorem 1.1 </span> (Area)</p>')
    right = new_notebook(cells=[new_markdown_cell("> **Theorem 1.1 (Area).** x")])
    wrong = new_notebook(cells=[new_markdown_cell("> **Theorem 1.2 (Area).** x")])
    assert checks.numbers_in_page(html) == checks.numbers_in_notebook(right)
    assert checks.numbers_in_page(html) != checks.numbers_in_notebook(wrong)


def test_next_leads_from_the_home_page_to_the_first_chapter(book: Book, site: Path) -> None:
    way = [book.pages[0].docname]
    while way[-1] != book.chapters[0].docname:
        html = checks.page(site / f"{way[-1]}.html")
        (following,) = html.xpath(f"//a[{checks.of_class('right-next')}]/@href")
        way.append(f"book/{following.removesuffix('.html')}")
    assert way[1:-1] == ["book/start-here", "book/how-to-run"]


def test_the_side_bar_folds_what_is_behind_the_chapters(book: Book, site: Path) -> None:
    parts = f"//details[{checks.of_class('sidebar-part')}]"
    note = next(page for page in book.chapters if page.is_note)
    for page, is_open in ((book.chapters[0], False), (note, True)):
        html = checks.page(site / f"{page.docname}.html")
        assert [
            " ".join(each.text_content().split()) for each in html.xpath(f"{parts}/summary")
        ] == [
            "Research notes",
            "Reference",
        ]
        assert [("open" in each.attrib) for each in html.xpath(parts)] == [is_open, False]


def test_every_entry_of_the_ledger_is_on_one_page_of_the_map(book: Book, site: Path) -> None:
    entries = json.loads((book.root / "book" / "ledger.json").read_text(encoding="utf-8"))
    wanted = [f"ledger-{each['id'].replace('/', '-')}" for each in entries["paper"]]
    wanted += [f"ledger-{each['id'].replace('/', '-')}" for each in entries["findings"]]
    shown = [
        str(name)
        for page in book.pages
        if page.name.startswith("map-")
        for name in checks.page(site / f"{page.docname}.html").xpath("//tr/@id")
        if name.startswith("ledger-")
    ]
    assert sorted(shown) == sorted(wanted)
