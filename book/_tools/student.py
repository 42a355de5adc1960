"""A student edition of the notebooks: the exercises without their solutions, in _build/student.

    python book/_tools/student.py                every chapter
    python book/_tools/student.py 03 05          some

A solution's text goes; its cells become one that raises NotImplementedError. The badge goes, too: on
Colab it opens the notebook with the solutions.
"""

import argparse
import re
import sys
from pathlib import Path

import nbformat
from book_layout import ROOT, Book, BookError
from form import DETAILS, in_solution
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

EXERCISE = re.compile(r"#### Solution to (Exercise [\w.]+)")
BADGE = re.compile(r"\[!\[Open in Colab\].*\n\n")


def without_solutions(notebook: NotebookNode) -> NotebookNode:
    """The same notebook with one cell to fill in where a solution had cells."""
    cells: list[NotebookNode] = []
    to_do = ""  # the exercise whose cell to fill in comes next
    for cell in notebook.cells:
        if in_solution(cell):
            begins = EXERCISE.match(cell.source)
            if begins:
                to_do = begins[1]
            elif to_do and cell.cell_type == "code":
                cells.append(new_code_cell(f'raise NotImplementedError("{to_do}")'))
                to_do = ""
        elif cell.cell_type == "markdown":
            cell.source = BADGE.sub("", DETAILS.sub("", cell.source)).strip()
            if cell.source:
                cells.append(cell)
        else:
            cell.outputs = []
            cell.execution_count = None
            cells.append(cell)
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number:03d}"
    notebook.cells = cells
    notebook.metadata.pop("colab", None)
    return notebook


def main(argv: list[str] | None = None, out: Path = ROOT / "_build" / "student") -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", help="03-mask-rate-curve, or 03; all by default")
    options = parser.parse_args(argv)
    book = Book(ROOT)
    try:
        pages = [book.chapter(name) for name in options.chapters]
    except BookError as error:
        print(f"student: {error}", file=sys.stderr)
        return 1
    if not pages:
        pages = [page for page in book.chapters if not page.is_note]
    out.mkdir(parents=True, exist_ok=True)
    for page in pages:
        notebook = without_solutions(nbformat.read(page.notebook, as_version=4))
        nbformat.validate(notebook)
        (out / page.notebook.name).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    print(f"student: {len(pages)} notebooks in {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
