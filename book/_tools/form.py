"""How long a chapter is, counted in its notebook: words, formulas, lines of code, minutes.

    python book/_tools/form.py            the table of all chapters

A formula counts as one word; folded solutions are counted apart; the list of references, which
is made by the generator, and the cell that installs the package on Colab are not counted.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from statistics import median

import nbformat
from book_layout import Book, Page
from nbformat import NotebookNode

WORDS_A_MINUTE = 200
FORMULAS_A_MINUTE = 6
LINES_A_MINUTE = 20
FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$", re.S)
DETAILS = re.compile(r"<details>.*?</details>", re.S)
HEADING = re.compile(r"^(##?) (\d+(?:\.\d+)*)\. ", re.M)


@dataclass
class Form:
    """Counts of a stretch of a chapter."""

    words: int = 0
    solution_words: int = 0
    formulas: int = 0  # displayed ones
    code: int = 0  # lines that are not blank, outside folded solutions
    solution_code: int = 0
    functions: int = 0
    cells: list[int] = field(default_factory=list)  # lines of each counted cell

    def __add__(self, other: "Form") -> "Form":
        return Form(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def minutes(self) -> int:
        reading = self.words / WORDS_A_MINUTE + self.formulas / FORMULAS_A_MINUTE
        return round(reading + self.code / LINES_A_MINUTE)


def text_form(text: str) -> Form:
    folded = " ".join(DETAILS.findall(text))
    shown = DETAILS.sub(" ", text)
    return Form(words(shown), words(folded), len(re.findall(r"\$\$.+?\$\$", shown, re.S)))


def words(text: str) -> int:
    text = re.sub(
        r"<[^>]+>|\]\([^)]*\)|^\s*\|[-:| ]+\|\s*$", " ", FORMULA.sub(" F ", text), flags=re.M
    )
    return sum(any(letter.isalnum() for letter in word) for word in re.split(r"[\s|—]+", text))


def in_solution(cell: NotebookNode) -> bool:
    """Whether a code cell belongs to a folded solution: folded, and by no tag of its own."""
    tags = {"colab", "hide-input", "hide-cell", "check"}
    return "cellView" in cell.metadata and tags.isdisjoint(cell.metadata.get("tags", []))


def code_form(cell: NotebookNode) -> Form:
    if "colab" in cell.metadata.get("tags", []):
        return Form()
    lines = sum(bool(line.strip()) for line in cell.source.splitlines())
    if in_solution(cell):
        return Form(solution_code=lines)
    functions = sum(isinstance(node, ast.FunctionDef) for node in ast.walk(ast.parse(cell.source)))
    return Form(code=lines, functions=functions, cells=[lines])


def sections(page: Page) -> Iterator[tuple[str, Form]]:
    """Number of each section ("3" for what stands before the first) and its form, in order."""
    number = str(page.number)
    section = Form()
    for cell in nbformat.read(page.notebook, as_version=4).cells:
        if cell.cell_type == "code":
            section += code_form(cell)
        elif not cell.source.startswith("**References**"):
            pieces = HEADING.split(cell.source.replace("*This is a chapter of a book; its ", "", 1))
            section += text_form(pieces[0])
            # The pattern splits into what stands before a heading, its level, its number, and so on.
            for next_number, text in zip(pieces[2::3], pieces[3::3], strict=True):
                if next_number != number:
                    yield number, section
                    number = next_number
                    section = Form()
                section += text_form(text)
    yield number, section


def form(page: Page) -> Form:
    return sum((part for _, part in sections(page)), Form())


def table(pages: Iterable[Page]) -> str:
    rows = [
        "chapter                        words  solutions  code  median cell  functions  minutes"
    ]
    total = Form()
    for page in pages:
        chapter = form(page)
        total += chapter
        rows.append(
            f"{page.name:30} {chapter.words:5} {chapter.solution_words:10} {chapter.code:5} "
            f"{median(chapter.cells):12g} {chapter.functions:10} {chapter.minutes:8}"
        )
    rows.append(f"{'all':30} {total.words:5} {total.solution_words:10} {total.code:5}")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table(page for page in Book().chapters if page.notebook.is_file()))
