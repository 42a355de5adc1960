"""The book stays readable: budgets of words, code and minutes, one name for one function.

`pytest -s tests/book/test_form.py` prints the table.
"""

from __future__ import annotations

import ast
from collections import Counter
from statistics import median

import nbformat
import pytest
import yaml
from book_layout import Book, Page
from form import Form, code_form, form, sections, table, text_form
from nbformat.v4 import new_code_cell
from plain_markdown import number_book

WORDS, CODE, FUNCTIONS, MINUTES, CELL = 3500, 260, 3, 45, 8
ALL_WORDS, HOUR_WORDS, CLOSING_WORDS = 58_000, 9000, 120
CHAPTERS = [pytest.param(page, id=page.name) for page in Book().chapters]


def over(here: Form) -> dict[str, float]:
    """What of a chapter's form is over its budget."""
    found = {
        "words": (here.words, WORDS),
        "lines of code": (here.code, CODE),
        "functions": (here.functions, FUNCTIONS),
        "minutes": (here.minutes, MINUTES),
        "lines of the median cell": (median(here.cells), CELL),
    }
    return {name: count for name, (count, most) in found.items() if count > most}


@pytest.mark.parametrize("page", CHAPTERS)
def test_a_chapter_keeps_its_budget(page: Page) -> None:
    assert over(form(page)) == {}


def test_the_book_keeps_its_budget(book: Book) -> None:
    print(table(book.chapters))
    whole = sum((form(page) for page in book.chapters), Form())
    assert whole.words + whole.solution_words <= ALL_WORDS


def test_a_word_or_a_line_too_many_is_seen() -> None:
    full = Form(words=WORDS, code=CODE, functions=FUNCTIONS, cells=[CELL])
    assert over(full) == {}
    assert over(full + Form(words=1)) == {"words": WORDS + 1}
    assert over(full + Form(code=1, functions=1)) == {"lines of code": 261, "functions": 4}
    assert over(full + Form(formulas=240)) == {"minutes": 70}


def test_no_function_is_defined_in_two_chapters(book: Book) -> None:
    places = Counter()
    for page in book.chapters:
        cells = nbformat.read(page.notebook, as_version=4).cells
        code = [cell.source for cell in cells if cell.cell_type == "code"]
        trees = [ast.parse(text) for text in code if "%pip" not in text]
        nodes = [node for tree in trees for node in ast.walk(tree)]
        places.update({node.name for node in nodes if isinstance(node, ast.FunctionDef)})
    assert [name for name, times in places.items() if times > 1] == []


def test_words_are_counted_as_a_reader_would() -> None:
    text = "Two words, $a + b$ and [a link](https://example.org).\n\n$$\na = b\n$$\n\n| x | y |"
    counted = text_form(
        text + "\n\n<details>\n<summary><b>S</b></summary>\n\nfolded here\n</details>"
    )
    assert (counted.words, counted.solution_words, counted.formulas) == (9, 3, 1)
    folded = {"cellView": "form"}
    assert code_form(new_code_cell("a = 1\n\nb = 2")).code == 2
    assert code_form(new_code_cell("a = 1", metadata=folded)).solution_code == 1
    assert code_form(new_code_cell("a = 1", metadata=folded | {"tags": ["check"]})).code == 1
    assert code_form(new_code_cell("%pip install x", metadata={"tags": ["colab"]})) == Form()


@pytest.mark.parametrize("page", CHAPTERS)
def test_sections_add_up_to_the_chapter(page: Page) -> None:
    parts = list(sections(page))
    assert parts[0][0] == str(page.number) and len(parts) > 4
    assert sum((part for _, part in parts), Form()) == form(page)


def test_the_one_hour_path_takes_an_hour(book: Book) -> None:
    index = number_book(book)
    parts = {number: part for page in book.chapters for number, part in sections(page)}
    paths = yaml.safe_load((book.root / "book" / "reading.yml").read_text())["paths"]
    way = [parts[index.find(label).number] for label in paths["hour"]]
    whole = sum(way, Form())
    assert whole.words <= HOUR_WORDS and whole.minutes <= 62
    assert {index.find(label).page.number for label in paths["hour"]} >= {1, 2, 3, 11}
    for name, labels in paths.items():
        assert labels and len(set(labels)) == len(labels), name


@pytest.mark.parametrize("page", CHAPTERS)
def test_a_chapter_closes_once(page: Page) -> None:
    """One closing box of at most 120 words, key points once, checks that say what they catch."""
    source = page.path.read_text(encoding="utf-8")
    boxes = source.split(":class: closing")[1:]
    assert len(boxes) == 1 and source.count(":class: key-points") == 1
    assert text_form(boxes[0].partition("\n```")[0]).words <= CLOSING_WORDS
    for cell in nbformat.read(page.notebook, as_version=4).cells:
        if "check" in cell.metadata.get("tags", []):
            assert cell.source.startswith("# @title Check: "), cell.source.splitlines()[0]
