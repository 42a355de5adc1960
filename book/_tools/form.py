"""How long a chapter is, counted in its notebook: words, formulas, lines of code, minutes.

    python book/_tools/form.py            the table of all chapters

The minutes are a student's, who stops at a formula, redoes a proof and reads the code that the page
shows. Folded solutions and answers are counted apart, and so is code that the page folds or leaves
out; the list of references, which is made by the generator, and the cell that installs the package
on Colab are not counted.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from statistics import median

import nbformat
from book_layout import Book, Page
from nbformat import NotebookNode
from notebooks import SOLUTION_TAG

SECONDS_A_WORD = 60 / 200
SECONDS_A_FORMULA = 4  # in a line
SECONDS_A_DISPLAY = 12
SECONDS_A_PROOF = 150  # besides its words and formulas
SECONDS_A_LINE = 5  # of code that the page shows
QUICK, SLOW = 0.8, 1.25  # of the minutes: readers differ
FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$", re.S)
PROOF = re.compile(r"^(?:> ?)?\*Proof\.\*", re.M)
DETAILS = re.compile(r"<details>.*?</details>", re.S)
NUMBER = r"((?:\d+½?|[A-Z])(?:\.\d+)*)\. "
HEADING = re.compile(rf"^##? {NUMBER}", re.M)
ANY_HEADING = re.compile(rf"^#{{1,3}} {NUMBER}", re.M)


@dataclass
class Form:
    """Counts of a stretch of a chapter."""

    words: int = 0  # a formula in a line is one
    solution_words: int = 0
    formulas: int = 0  # in a line
    displays: int = 0
    proofs: int = 0
    code: int = 0  # lines that are not blank and that the page shows
    folded_code: int = 0
    solution_code: int = 0
    functions: int = 0
    cells: list[int] = field(default_factory=list)  # lines of each counted cell

    def __add__(self, other: "Form") -> "Form":
        return Form(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def minutes(self) -> float:
        text = self.words * SECONDS_A_WORD + self.proofs * SECONDS_A_PROOF
        formulas = self.formulas * SECONDS_A_FORMULA + self.displays * SECONDS_A_DISPLAY
        return (text + formulas + self.code * SECONDS_A_LINE) / 60

    @property
    def time(self) -> str:
        """As a range: "2 to 3 min", in steps of five from ten minutes on, "12 to 18 hours"."""
        if self.minutes > 150:
            unit, size, step = "hours", 60, 1
        else:
            unit, size, step = "min", 1, 5 if self.minutes >= 10 else 1
        ends = (share * self.minutes / size / step for share in (QUICK, SLOW))
        low, high = (max(1, round(end)) * step for end in ends)
        return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def text_form(text: str) -> Form:
    folded = " ".join(DETAILS.findall(text))
    shown = DETAILS.sub(" ", text)
    found = FORMULA.findall(shown)
    displays = sum(formula.startswith("$$") for formula in found)
    proofs = len(PROOF.findall(shown))
    return Form(words(shown), words(folded), len(found) - displays, displays, proofs)


def words(text: str) -> int:
    text = re.sub(
        r"<[^>]+>|\]\([^)]*\)|^\s*\|[-:| ]+\|\s*$", " ", FORMULA.sub(" F ", text), flags=re.M
    )
    return sum(any(letter.isalnum() for letter in word) for word in re.split(r"[\s|—]+", text))


def in_solution(cell: NotebookNode) -> bool:
    """Whether a cell, of text or of code, belongs to a folded solution."""
    return SOLUTION_TAG in cell.metadata.get("tags", [])


def code_form(cell: NotebookNode) -> Form:
    if "colab" in cell.metadata.get("tags", []):
        return Form()
    lines = sum(bool(line.strip()) for line in cell.source.splitlines())
    if in_solution(cell):
        return Form(solution_code=lines)
    functions = sum(isinstance(node, ast.FunctionDef) for node in ast.walk(ast.parse(cell.source)))
    if "cellView" in cell.metadata:
        return Form(folded_code=lines, functions=functions)
    return Form(code=lines, functions=functions, cells=[lines])


def sections(page: Page, heading: re.Pattern[str] = HEADING) -> Iterator[tuple[str, Form]]:
    """Number of each section ("3" for what stands before the first) and its form, in order.

    With ``ANY_HEADING`` a section ends where its first subsection begins, which is told apart.
    """
    number = str(page.number)
    section = Form()
    for cell in nbformat.read(page.notebook, as_version=4).cells:
        if cell.cell_type == "code":
            section += code_form(cell)
        elif in_solution(cell):
            section += Form(solution_words=words(cell.source))
        elif not cell.source.startswith("**References**"):
            pieces = heading.split(cell.source.replace("*This is a chapter of a book; its ", "", 1))
            section += text_form(pieces[0])
            # The pattern splits into what stands before a heading, its number, and so on.
            for next_number, text in zip(pieces[1::2], pieces[2::2], strict=True):
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
        "chapter                        words  solutions  proofs  code  folded  median cell  minutes"
    ]
    total = Form()
    for page in pages:
        chapter = form(page)
        total += chapter
        rows.append(
            f"{page.name:30} {chapter.words:5} {chapter.solution_words:10} {chapter.proofs:7} "
            f"{chapter.code:5} {chapter.folded_code:7} {median(chapter.cells or [0]):12g}  {chapter.time}"
        )
    rows.append(
        f"{'all':30} {total.words:5} {total.solution_words:10} {total.proofs:7} {total.code:5} "
        f"{total.folded_code:7} {'':12}  {total.time}"
    )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table(page for page in Book().chapters if page.notebook.is_file()))
