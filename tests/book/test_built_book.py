"""The built pages: everything resolves, nothing comes from another site, search works."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import checks
import pytest
from book_layout import Book
from build_site import READ, execute_ahead, fingerprint, main, refresh_cache
from plain_markdown import Index

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
    index = checks.search_index(site)
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
    index = {"docnames": ["a", "b"], "terms": {"theorem": 1}, "titleterms": {}}
    assert checks.found_by_search(index, "theorems") == {"b"}
    assert checks.found_by_search(index, "lemma") == set()


def test_a_wrong_number_is_seen(tmp_path: Path) -> None:
    from nbformat.v4 import new_markdown_cell, new_notebook

    html = tmp_path / "page.html"
    html.write_text('<p class="admonition-title"><span>Theorem 1.1 </span> (Area)</p>')
    right = new_notebook(cells=[new_markdown_cell("> **Theorem 1.1 (Area).** x")])
    wrong = new_notebook(cells=[new_markdown_cell("> **Theorem 1.2 (Area).** x")])
    assert checks.numbers_in_page(html) == checks.numbers_in_notebook(right)
    assert checks.numbers_in_page(html) != checks.numbers_in_notebook(wrong)


def test_a_change_of_the_package_empties_the_cache(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    module = tmp_path / "src" / "module.py"
    module.write_text("x = 1\n")
    before = fingerprint(tmp_path)
    assert refresh_cache(tmp_path)
    (tmp_path / "_build" / ".jupyter_cache" / "entry").write_text("outputs")
    assert not refresh_cache(tmp_path)
    module.write_text("x = 2\n")
    assert fingerprint(tmp_path) != before
    assert refresh_cache(tmp_path)
    assert not (tmp_path / "_build" / ".jupyter_cache" / "entry").exists()


CHAPTER = """---
file_format: mystnb
kernelspec: {{name: python3, display_name: Python 3}}
---
# A chapter

```{{code-cell}} ipython3
{code}
```
"""


def book_of(folder: Path, **chapters: str) -> Path:
    """A book whose chapters have one cell each."""
    (folder / "_config.yml").write_text("execute: {timeout: 60}\n")
    names = "\n".join(f"      - file: book/{name}" for name in chapters)
    (folder / "_toc.yml").write_text(
        f"format: jb-book\nroot: index\nparts:\n  - numbered: true\n    chapters:\n{names}\n"
    )
    (folder / "book").mkdir()
    for name, code in chapters.items():
        (folder / "book" / f"{name}.md").write_text(CHAPTER.format(code=code))
    return folder


def said(folder: Path) -> list[str]:
    """What the executed cells have printed."""
    from jupyter_cache import get_cache

    cache = get_cache(str(folder / "_build" / ".jupyter_cache"))
    kept = (cache.get_cache_bundle(each.pk).nb.cells for each in cache.list_cache_records())
    return sorted(cells[-1].outputs[0].text for cells in kept)


def test_pages_of_today_are_not_built_again(tmp_path: Path, capsys) -> None:
    (tmp_path / "_build" / "html").mkdir(parents=True)
    (tmp_path / "_config.yml").write_text("title: One\n")
    (tmp_path / "_build" / "html" / ".built-from").write_text(fingerprint(tmp_path, READ))
    assert main(tmp_path) == 0
    assert "nothing has changed" in capsys.readouterr().out
    (tmp_path / "_config.yml").write_text("title: Two\n")
    with pytest.raises(FileNotFoundError, match="_toc.yml"):  # it sets out to build
        main(tmp_path)


@mock.patch.dict(os.environ)
def test_chapters_are_executed_ahead_once(tmp_path: Path) -> None:
    names = ("01-good", "02-bad", "03-good")
    codes = {name: f"print('{name}'.upper())" for name in names} | {"02-bad": "1 / 0"}
    done = execute_ahead(book_of(tmp_path, **codes))
    assert sorted(Path(uri).stem for uri in done.succeeded) == ["01-good", "03-good"]
    assert [Path(uri).stem for uri in done.excepted] == ["02-bad"]
    assert said(tmp_path) == ["01-GOOD\n", "03-GOOD\n"]
    done = execute_ahead(tmp_path)
    assert (done.succeeded, len(done.excepted)) == ([], 1)


CALL = """import socket
try:
    {call}
except OSError as error:
    print(error)"""
CHILD = """import subprocess, sys
call = "import socket; socket.create_connection(('192.0.2.1', 80), 1)"
print(subprocess.run([sys.executable, "-c", call], capture_output=True, text=True).stderr)"""
HOME = """import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(server.getsockname()):
        print("at home")"""


@mock.patch.dict(os.environ)
def test_chapters_are_executed_without_a_network(tmp_path: Path) -> None:
    """Addresses that are nobody's (RFC 5737), so that nothing is sent where a call gets through."""
    calls = {
        "a-name": "socket.getaddrinfo('example.invalid', 80)",
        "b-number": "socket.create_connection(('192.0.2.1', 80), 1)",
        "c-datagram": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('192.0.2.2', 80))",
        "d-page": "__import__('urllib.request').request.urlopen('http://192.0.2.3', timeout=1)",
    }
    codes = {name: CALL.format(call=call) for name, call in calls.items()}
    root = book_of(tmp_path, **codes, **{"e-child": CHILD, "f-here": HOME})
    for _ in range(2):  # as in a build: a kernel that did not start is given a second try
        execute_ahead(root)
    home, *refused = sorted(said(tmp_path), key=lambda text: text != "at home\n")
    assert home == "at home\n" and len(refused) == 5
    assert all("make book executes without a network" in text for text in refused)
    for name in ("example.invalid", "192.0.2.1", "192.0.2.2", "192.0.2.3"):
        assert any(f"and {name} was asked for" in text for text in refused)
