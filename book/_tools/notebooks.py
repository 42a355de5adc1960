"""Generate the executed notebook beside each chapter: book/NN-name.md -> book/NN-name.ipynb.

    python book/_tools/notebooks.py                        every chapter of _toc.yml
    python book/_tools/notebooks.py 03-mask-rate-curve     one chapter (03 is enough)
    python book/_tools/notebooks.py --check                which notebooks are stale
    python book/_tools/notebooks.py --text                 the text anew, around the stored outputs

The cells are executed first; the text is then rewritten as plain Markdown, with the numbers that
the cells glued. Nothing of the machine is kept: no times, no paths, no messages on stderr.
"""

import argparse
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from book_layout import ROOT, Book, BookError, Page
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from plain_markdown import SOLUTION, Converter, Index, Piece, number_book

JOBS = 2  # chapters at the same time
KERNEL_SETTINGS = {
    "timeout": 300,
    "kernel_name": "python3",
    "record_timing": False,
    "extra_arguments": ["--IPKernelApp.log_level=40"],  # errors only
}
GLUE = "application/papermill.record/text/plain"
FOLDING_TAGS = {"hide-input", "hide-cell", "check"}  # a bar on the page that opens
REMOVING_TAGS = {"remove-input", "remove-cell"}  # not on the page; the notebook has them, folded
HIDING_TAGS = FOLDING_TAGS | REMOVING_TAGS
SOLUTION_TAG = "solution"
TITLE = "# @title "  # Colab shows the rest of the line, and folds the cell under it
HIDDEN = {"jupyter": {"source_hidden": True}, "cellView": "form"}
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
METADATA = {"kernelspec": KERNEL, "language_info": {"name": "python"}}

# Colab's own picture. Only the notebook has it: the pages ask no other site for anything.
BADGE = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({address})"

INSTALL = """\
# Colab: install the book's package where it is missing; torch, numpy and the rest stay as they are.
try:
    import mpt_lml  # noqa: F401
except ImportError:
    import os

    source = os.environ.get("MPT_LML_INSTALL", "{package}")
    %pip install -q {{source}}"""


def code_of(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def metadata(piece: Piece) -> dict:
    tags = list(piece.code.metadata.get("tags", [])) if piece.code else []
    folded = HIDDEN if not HIDING_TAGS.isdisjoint(tags) else {}
    if piece.in_solution:
        tags.append(SOLUTION_TAG)
    return ({"tags": tags} if tags else {}) | folded


def titled(source: str, tags: list[str], caption: str) -> str:
    """The source of a code cell; one that the page leaves out begins with a title to fold under."""
    if REMOVING_TAGS.isdisjoint(tags) or source.startswith(TITLE):
        return source
    figure = re.match(r"\*\*(Figure [\d.]+)\.\*\*", caption)
    title = f"Code of {figure[1]}" if figure else "Not on the page: set-up and numbers"
    return f"{TITLE}{title}\n{source}"


def build(index: Index, page: Page, glued: Callable[[str], str]) -> NotebookNode:
    """The notebook that `page` should have, without outputs."""
    converter = Converter(index, page, glued)
    cells = []
    has_code = False
    for piece in converter.cells():
        if piece.code is not None:
            if not has_code:
                cells.append(install_cell(index.book.package))
                has_code = True
            source = titled(piece.code.source, piece.code.metadata.get("tags", []), piece.text)
            cells.append(new_code_cell(source, metadata=metadata(piece)))
        if piece.text:
            in_solution = {"tags": [SOLUTION_TAG]} if piece.in_solution else {}
            cells.append(new_markdown_cell(piece.text, metadata=in_solution))
    references = converter.references()
    if references:
        cells.append(new_markdown_cell(references))
    cells[0].source = with_links(cells[0].source, index.book, page)
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number:03d}"
    return new_notebook(cells=cells, metadata=METADATA | fold_solutions(cells))


def fold_solutions(cells: list[NotebookNode]) -> dict:
    """Fold all that stands under the heading of a solution; returns what Colab wants to know of it."""
    folded = []
    for cell in cells:
        if cell.cell_type == "markdown" and cell.source.startswith(SOLUTION):
            # Jupyter's mark, that of its older extensions, and the name that Colab knows a cell by.
            cell.metadata["jp-MarkdownHeadingCollapsed"] = True
            cell.metadata["heading_collapsed"] = True
            cell.metadata["id"] = cell["id"]
            folded.append(cell["id"])
    return {"colab": {"collapsed_sections": folded}} if folded else {}


def with_links(source: str, book: Book, page: Page) -> str:
    """The first cell with links below its title: to Colab, and to the page that the notebook is."""
    title, _, rest = source.partition("\n")
    badge = BADGE.format(address=book.colab(page.docname))
    link = f"[published page]({book.url(page.docname)}) has hover previews and search"
    return f"{title}\n\n{badge}\n\n*This is a chapter of a book; its {link}.*\n{rest}"


def install_cell(package: str) -> NotebookNode:
    return new_code_cell(INSTALL.format(package=package), metadata=HIDDEN | {"tags": ["colab"]})


def clean_outputs(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Without stderr, with the pieces of one stream joined."""
    cleaned: list[NotebookNode] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if cleaned and output.output_type == cleaned[-1].output_type == "stream":
            cleaned[-1]["text"] += output.text
        else:
            cleaned.append(output)
    return cleaned


class Glued(dict[str, str]):
    def __missing__(self, name: str) -> str:
        raise BookError(f"{{glue:text}}`{name}`: no cell of this chapter glues it")


def glued_values(notebook: NotebookNode) -> Glued:
    values = Glued()
    outputs = [output for cell in code_of(notebook) for output in cell.outputs]
    for output in outputs:
        name = output.get("metadata", {}).get("scrapbook", {}).get("name")
        if name:
            text = "".join(output["data"][GLUE])
            is_quoted = text[:1] == text[-1:] in ("'", '"')  # the repr of a string
            values[name] = text[1:-1] if is_quoted else text
    return values


def write(index: Index, page: Page) -> str:
    """Execute a page's cells and write its notebook; returns a line that says so."""
    executed = build(index, page, str)
    folder = {"metadata": {"path": str(page.path.parent)}}
    NotebookClient(executed, resources=folder, **KERNEL_SETTINGS).execute()
    notebook = build(index, page, glued_values(executed).__getitem__)
    for cell, executed_cell in zip(code_of(notebook), code_of(executed), strict=True):
        cell["outputs"] = clean_outputs(executed_cell.outputs)
        cell["execution_count"] = executed_cell.execution_count
    nbformat.validate(notebook)
    page.notebook.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return f"{page.docname}.ipynb: {len(notebook.cells)} cells"


def rewrite(index: Index, page: Page) -> str:
    """Write the text of a page's notebook anew around the outputs that it has; returns a line."""
    if not page.notebook.is_file():
        raise BookError("has no notebook yet: execute the chapter")
    stored = nbformat.read(page.notebook, as_version=4)
    notebook = build(index, page, glued_values(stored).__getitem__)
    pairs = list(zip(code_of(notebook), code_of(stored), strict=False))
    # The cell that installs changes with a release, and computes nothing.
    computing = [(cell, old) for cell, old in pairs if "colab" not in cell.metadata.get("tags", [])]
    same_code = all(untitled(cell.source) == untitled(old.source) for cell, old in computing)
    if not same_code or len(code_of(notebook)) != len(code_of(stored)):
        raise BookError("has other code than its source: execute the chapter")
    for cell, old in pairs:
        cell["outputs"] = old.outputs
        cell["execution_count"] = old.execution_count
    nbformat.validate(notebook)
    page.notebook.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return f"{page.docname}.ipynb: {len(notebook.cells)} cells, outputs as they were"


def untitled(source: str) -> str:
    """The source of a cell without a title to fold under, which is no code."""
    first, _, rest = source.partition("\n")
    return rest if first.startswith(TITLE) else source


def differences(index: Index, page: Page) -> list[str]:
    """What makes the committed notebook other than what its source would give now."""
    if not page.notebook.is_file():
        return ["there is no notebook"]
    stored = nbformat.read(page.notebook, as_version=4)
    wanted = build(index, page, glued_values(stored).__getitem__)
    if len(stored.cells) != len(wanted.cells):
        return [f"{len(stored.cells)} cells where the source gives {len(wanted.cells)}"]
    faults = []
    for stored_cell, cell in zip(stored.cells, wanted.cells, strict=True):
        if any(stored_cell[key] != cell[key] for key in ("cell_type", "source", "metadata")):
            faults.append(f"cell {cell.id} differs: {cell.source.splitlines()[:1]}")
    for cell in code_of(stored):
        if not cell.execution_count:
            faults.append(f"{cell.id} was never executed")
    return faults


def check(index: Index, page: Page) -> str:
    faults = differences(index, page)
    if faults:
        raise BookError("\n    ".join(["is stale (run make notebooks)", *faults[:4]]))
    return f"{page.docname}.ipynb agrees with its source"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", help="03-mask-rate-curve, or 03; all by default")
    parser.add_argument("--check", action="store_true", help="only say what is stale")
    parser.add_argument(
        "--text", action="store_true", help="keep the outputs; only the text is new"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="folder with _config.yml")
    options = parser.parse_args(argv)
    book = Book(options.root.resolve())
    num_failed = 0
    try:
        pages = [book.chapter(name) for name in options.chapters] or book.chapters
        index = number_book(book)
    except (BookError, FileNotFoundError) as error:
        print(f"notebooks: {error}", file=sys.stderr)
        return 1
    with ThreadPoolExecutor(JOBS) as pool:
        work = check if options.check else rewrite if options.text else write
        runs = [pool.submit(work, index, page) for page in pages]
        for page, run in zip(pages, runs, strict=True):
            try:
                print(run.result(), flush=True)
            except (CellExecutionError, BookError) as error:
                num_failed += 1
                print(f"{page.docname}.ipynb {error}", file=sys.stderr, flush=True)
    return int(num_failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
