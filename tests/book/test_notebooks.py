"""Every chapter has an executed notebook that is what its source gives, and plain Markdown."""

from __future__ import annotations

import checks
import nbformat
import notebooks
import pytest
from book_layout import Book, Page
from jupyter_cache import get_cache
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from plain_markdown import Index

CHAPTERS = Book().chapters
chapters = pytest.mark.parametrize("page", CHAPTERS, ids=[page.name for page in CHAPTERS])


def stored(page: Page) -> nbformat.NotebookNode:
    return nbformat.read(page.notebook, as_version=4)


@chapters
def test_a_chapter_has_a_notebook_that_agrees_with_its_source(numbered: Index, page: Page) -> None:
    assert notebooks.differences(numbered, page) == []


@chapters
def test_every_code_cell_was_executed(page: Page) -> None:
    assert checks.never_executed(stored(page)) == []


@chapters
def test_no_myst_is_left(page: Page) -> None:
    assert checks.raw_myst(stored(page)) == []


@chapters
def test_nothing_of_the_machine_is_stored(page: Page) -> None:
    assert checks.machine_dependent(stored(page)) == []
    assert checks.outside_scripts(stored(page)) == []


@chapters
def test_the_first_code_cell_installs_the_package_where_it_is_missing(page: Page) -> None:
    code = [cell for cell in stored(page).cells if cell.cell_type == "code"]
    assert "colab" in code[0].metadata.tags
    assert "%pip install -q {source}" in code[0].source
    assert f'"{Book().package}"' in code[0].source


@chapters
def test_the_numbers_are_those_of_the_published_page(page: Page, site) -> None:
    html = site / f"{page.docname}.html"
    assert checks.numbers_in_notebook(stored(page)) == checks.numbers_in_page(html)


@chapters
def test_the_build_gave_the_outputs_that_are_stored(book: Book, page: Page, site) -> None:
    """The one execution of `make book` serves both; `make nbval` executes the notebooks again."""
    kept = get_cache(str(book.root / "_build" / ".jupyter_cache"))
    record = kept.get_cached_project_nb(str(page.path))
    assert record, "the chapter has changed since it was built: run make book"
    assert checks.other_outputs(stored(page), kept.get_cache_bundle(record.pk).nb) == []


@chapters
def test_links_to_the_published_book_are_answered(page: Page, site) -> None:
    assert checks.unpublished_links(stored(page), Book().site, site) == []


# -- the checkers, on what they should find ----------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "```{prf:theorem} Area\n:label: x\n```",
        "> ```{note}\n> hi\n> ```",
        ":::{tip}\nhi\n:::",
        "see {eq}`eq-one` and",
        "see {cite:t}`someone2020`",
        "(sec-one)=\n## One",
        "$$ x = 1 $$ (eq-one)",
        "$$\nx = 1\n$$ (eq-one)",
        "> :label: thm-one",
    ],
)
def test_left_over_myst_is_found(text: str) -> None:
    assert checks.raw_myst(new_notebook(cells=[new_markdown_cell(text)]))


@pytest.mark.parametrize(
    "text", ["`` {eq}`x` `` in code", "```python\nx = '{eq}`a`'\n```", "$f(x)$ (and so on)"]
)
def test_plain_markdown_is_not_called_myst(text: str) -> None:
    assert not checks.raw_myst(new_notebook(cells=[new_markdown_cell(text)]))


def test_a_cell_that_never_ran_is_found() -> None:
    ran, new = new_code_cell("1", execution_count=1), new_code_cell("2")
    assert checks.never_executed(new_notebook(cells=[ran])) == []
    assert len(checks.never_executed(new_notebook(cells=[ran, new]))) == 1


@pytest.mark.parametrize(
    "output",
    [
        new_output("stream", name="stdout", text="saved in /home/ann/book"),
        new_output("stream", name="stderr", text="a warning"),
        new_output("execute_result", {"text/plain": "<Line2D at 0x7f00aa11bb22>"}),
        new_output("error", ename="E", evalue="e", traceback=[]),
    ],
)
def test_traces_of_a_machine_are_found(output) -> None:
    cell = new_code_cell("x", outputs=[output], execution_count=1)
    assert checks.machine_dependent(new_notebook(cells=[cell]))


def test_a_script_from_elsewhere_is_found() -> None:
    html = '<script src="https://cdn.example/x.js"></script>'
    cell = new_code_cell("x", outputs=[new_output("display_data", {"text/html": html})])
    assert checks.outside_scripts(new_notebook(cells=[cell]))


def test_another_output_is_seen() -> None:
    def chapter(text: str, *more: str) -> nbformat.NotebookNode:
        picture = {"image/png": text, "text/plain": "<Figure>"}
        shown = [new_output("stream", text=text), new_output("display_data", data=picture)]
        shown.append(new_output("stream", name="stderr", text=text))
        cells = [new_code_cell("print(x)", outputs=shown), *map(new_code_cell, more)]
        return new_notebook(cells=cells)

    one, other = chapter("0.5 nats"), chapter("0.6 nats")
    assert checks.other_outputs(one, chapter("0.5 nats")) == []
    assert checks.other_outputs(one, other) == ["print(x)"]
    assert checks.other_outputs(one, chapter("0.5 nats", "y")) == ["the cells themselves differ"]
    one.cells[0].outputs.pop(0), other.cells[0].outputs.pop(0)  # pictures and stderr may differ
    assert checks.other_outputs(one, other) == []
