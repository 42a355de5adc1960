"""How long a chapter takes to read: the count behind the minutes that are printed, and its paths."""

from __future__ import annotations

import pytest
import yaml
from book_layout import Book, Page
from form import ANY_HEADING, Form, code_form, form, sections, text_form
from nbformat.v4 import new_code_cell
from plain_markdown import Index

CHAPTERS = [pytest.param(page, id=page.name) for page in Book().chapters]


def test_words_are_counted_as_a_reader_would() -> None:
    text = "Two words, $a + b$ and [a link](https://example.org).\n\n$$\na = b\n$$\n\n| x | y |"
    counted = text_form(
        text + "\n\n<details>\n<summary><b>S</b></summary>\n\nfolded here\n</details>"
    )
    assert (counted.words, counted.solution_words) == (9, 3)
    assert (counted.formulas, counted.displays, counted.proofs) == (1, 1, 0)
    assert text_form("*Proof.* By hand.\n\n> *Proof.* Again.").proofs == 2
    folded = {"cellView": "form"}
    assert code_form(new_code_cell("a = 1\n\nb = 2")).code == 2
    solved = new_code_cell("a = 1", metadata={"tags": ["solution"]})
    assert code_form(solved).solution_code == 1
    for tag in ("check", "hide-input", "remove-input", "remove-cell"):
        counted = code_form(new_code_cell("a = 1", metadata=folded | {"tags": [tag]}))
        assert (counted.code, counted.folded_code, counted.solution_code) == (0, 1, 0)
    assert code_form(new_code_cell("%pip install x", metadata={"tags": ["colab"]})) == Form()


def test_a_time_is_a_range_that_a_student_keeps() -> None:
    chapter = Form(words=2600, formulas=150, displays=10, proofs=4, code=90)
    assert chapter.minutes == pytest.approx(13 + 10 + 2 + 10 + 7.5)
    assert chapter.time == "35 to 55 min"
    assert Form(words=400).time == "2 min"
    assert Form(words=700).time == "3 to 4 min"
    assert Form(words=200_000).time == "13 to 21 hours"
    assert Form().time == "1 min"


@pytest.mark.parametrize("page", CHAPTERS)
def test_sections_add_up_to_the_chapter(page: Page) -> None:
    parts = list(sections(page))
    assert parts[0][0] == str(page.number) and len(parts) > 4
    assert sum((part for _, part in parts), Form()) == form(page)


def test_the_one_hour_path_takes_an_hour(book: Book, numbered: Index) -> None:
    parts = {n: part for page in book.chapters for n, part in sections(page, ANY_HEADING)}
    paths = yaml.safe_load((book.root / "book" / "reading.yml").read_text())["paths"]
    whole = Form()
    for label in paths["hour"]:
        at = numbered.find(label)
        if at.page.number is None:
            whole += text_form(at.page.path.read_text(encoding="utf-8"))
        else:
            whole += parts[at.number]
    assert whole.minutes <= 60, whole.time
    assert {numbered.find(label).page.number for label in paths["hour"]} >= {"1", "2", "3"}
    for name, labels in paths.items():
        assert labels and len(set(labels)) == len(labels), name
