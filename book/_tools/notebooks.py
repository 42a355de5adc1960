"""Generate the executed notebook beside each chapter: book/NN-name.md -> book/NN-name.ipynb.

    python book/_tools/notebooks.py                        every chapter of _toc.yml
    python book/_tools/notebooks.py 03-mask-rate-curve     one chapter (03 is enough)
    python book/_tools/notebooks.py 03 --times             … and what each cell took
    python book/_tools/notebooks.py --check                which notebooks are stale

The cells are executed first; the text is then rewritten as plain Markdown, with the numbers that
the cells glued. Nothing of the machine is kept: no times, no paths, no messages on stderr.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
from book_layout import Book, BookError, Page
from citations import Citations
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from numbering import Index, number_book, read_source
from plain_markdown import Converter

TIMEOUT = 300
GLUE = "application/papermill.record/text/plain"
HIDDEN = {"jupyter": {"source_hidden": True}, "cellView": "form"}

INSTALL = """\
# Colab: install the book's package where it is missing; torch, numpy and the rest stay as they are.
try:
    import mpt_lml  # noqa: F401
except ImportError:
    import os

    source = os.environ.get("MPT_LML_INSTALL", "git+{repository}")
    %pip install -q {{source}}"""


# -- building, without executing ---------------------------------------------------------------


def code_metadata(cell: NotebookNode, in_solution: bool) -> dict[str, Any]:
    tags = [tag for tag in cell.metadata.get("tags", []) if isinstance(tag, str)]
    hidden = in_solution or any(tag in ("hide-input", "hide-cell") for tag in tags)
    return ({"tags": tags} if tags else {}) | (HIDDEN if hidden else {})


def build(index: Index, page: Page, citations: Citations, glued: Callable[[str], str]):
    """The notebook that `page` should have, without outputs, and each code cell's place in it."""
    converter = Converter(index, page, citations, glued)
    cells: list[NotebookNode] = []

    def markdown(text: str) -> None:
        if text:
            cells.append(new_markdown_cell(text))
            if converter.attachments:
                cells[-1]["attachments"] = dict(converter.attachments)
                converter.attachments.clear()

    source = read_source(page)
    for position, cell in enumerate(source.cells):
        try:
            if cell.cell_type == "code":
                if not any(made.cell_type == "code" for made in cells):
                    install = INSTALL.format(repository=index.book.repository)
                    cells.append(new_code_cell(install, metadata={"tags": ["colab"]} | HIDDEN))
                metadata = code_metadata(cell, bool(converter.solution))
                cells.append(new_code_cell(cell.source, metadata=metadata))
                figure = cell.metadata.get("mystnb", {}).get("figure")
                markdown(converter.caption(figure.get("caption", "")) if figure else "")
            elif cell.cell_type == "markdown":
                text = converter.cell(cell.source)
                markdown(with_page_link(text, index.book.url(page.docname)) if not cells else text)
        except BookError as error:
            line = source.metadata["source_map"][position] + 1
            raise BookError(f"{page.docname}.md, cell from line {line}: {error}") from error
    if converter.solution:
        raise BookError(f"{page.docname}.md: a solution-start without its solution-end")
    markdown(converter.references())
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number:03d}"
    return new_notebook(cells=cells, metadata=NOTEBOOK_METADATA)


NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def with_page_link(text: str, url: str) -> str:
    title, _, rest = text.partition("\n")
    note = (
        f"*This is a chapter of a book; its [published page]({url}) has hover previews and search.*"
    )
    return f"{title}\n\n{note}\n{rest}"


# -- executing ---------------------------------------------------------------------------------


def clean_output(output: NotebookNode) -> NotebookNode:
    output.pop("execution_count", None)
    if output.output_type == "execute_result":
        output["execution_count"] = None
    return output


def clean_outputs(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Without stderr, with the pieces of one stream joined."""
    kept: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream":
            if output.name == "stderr":
                continue
            if kept and kept[-1].output_type == "stream":
                kept[-1]["text"] += output.text
                continue
        kept.append(clean_output(output))
    return kept


def execute(notebook: NotebookNode, folder: Path) -> list[float]:
    """Run all code cells in place; seconds for each."""
    client = NotebookClient(
        notebook, timeout=TIMEOUT, kernel_name="python3", record_timing=False,
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--IPKernelApp.log_level=40"],
    )  # fmt: skip
    seconds: list[float] = []
    with client.setup_kernel():
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            start = time.perf_counter()
            client.execute_cell(cell, number)
            seconds.append(time.perf_counter() - start)
    for count, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        cell["outputs"] = clean_outputs(cell.outputs)
        cell["execution_count"] = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output["execution_count"] = count
        cell.metadata.pop("execution", None)
    return seconds


def glued_values(notebook: NotebookNode) -> dict[str, str]:
    values: dict[str, str] = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            if name and GLUE in output.get("data", {}):
                text = "".join(output["data"][GLUE])
                values[name] = text[1:-1] if text[:1] == text[-1:] in ("'", '"') else text
    return values


def lookup(values: dict[str, str]) -> Callable[[str], str]:
    def value(name: str) -> str:
        if name not in values:
            raise BookError(f"{{glue:text}}`{name}`: no cell of this chapter glues it")
        return values[name]

    return value


def merge(text: NotebookNode, executed: NotebookNode) -> NotebookNode:
    """`text` with the outputs of `executed`, cell by cell."""
    done = [cell for cell in executed.cells if cell.cell_type == "code"]
    for cell, source in zip((c for c in text.cells if c.cell_type == "code"), done, strict=True):
        cell["outputs"] = source.outputs
        cell["execution_count"] = source.execution_count
    return text


def make(index: Index, page: Page, citations: Citations) -> tuple[NotebookNode, list[float]]:
    executed = build(index, page, citations, lambda name: name)
    seconds = execute(executed, page.path.parent)
    values = glued_values(executed)
    return merge(build(index, page, citations, lookup(values)), executed), seconds


# -- checking ----------------------------------------------------------------------------------


def differences(index: Index, page: Page, citations: Citations) -> list[str]:
    """What makes the committed notebook other than what its source would give now."""
    if not page.notebook.is_file():
        return ["there is no notebook"]
    stored = nbformat.read(page.notebook, as_version=4)
    try:
        wanted = build(index, page, citations, lookup(glued_values(stored)))
    except BookError as error:
        return [str(error)]
    found = [
        f"cell {number} differs: {want.source.splitlines()[:1]}"
        for number, (have, want) in enumerate(zip(stored.cells, wanted.cells, strict=False))
        if (have.cell_type, have.source, have.metadata)
        != (want.cell_type, want.source, want.metadata)
    ]
    if len(stored.cells) != len(wanted.cells):
        found.append(f"{len(stored.cells)} cells where the source gives {len(wanted.cells)}")
    found += [
        f"cell {number} was never executed"
        for number, cell in enumerate(stored.cells)
        if cell.cell_type == "code" and not cell.execution_count
    ]
    return found


def check(index: Index, pages: list[Page], citations: Citations) -> int:
    stale = 0
    for page in pages:
        found = differences(index, page, citations)
        stale += bool(found)
        if found:
            print(f"{page.docname}.ipynb is stale: {found[0]}", *found[1:4], sep="\n    ")
    if stale:
        print("run: make notebooks   (or make notebooks CHAPTERS=03-mask-rate-curve)")
    else:
        print(f"{len(pages)} notebooks agree with their sources")
    return int(stale > 0)


# -- command -----------------------------------------------------------------------------------


def write(index: Index, page: Page, citations: Citations, times: bool) -> str:
    notebook, seconds = make(index, page, citations)
    nbformat.validate(notebook)
    page.notebook.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    report = f"{page.docname}.ipynb: {len(seconds)} cells in {sum(seconds):.1f} s"
    if times:
        code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        slow = sorted(zip(seconds, code, strict=True), reverse=True)[:8]
        report += "".join(f"\n  {s:6.2f} s  {text.splitlines()[0][:70]}" for s, text in slow)
    return report


def generate(index: Index, pages: list[Page], citations: Citations, jobs: int, times: bool) -> int:
    failed = 0
    with ThreadPoolExecutor(jobs) as pool:
        runs = [(page, pool.submit(write, index, page, citations, times)) for page in pages]
        for page, run in runs:
            try:
                print(run.result(), flush=True)
            except (CellExecutionError, BookError) as error:
                failed += 1
                print(f"{page.docname}.md failed\n{error}", file=sys.stderr, flush=True)
    return int(failed > 0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chapters", nargs="*", help="03-mask-rate-curve, or 03; all by default")
    parser.add_argument("--check", action="store_true", help="only say what is stale")
    parser.add_argument("--times", action="store_true", help="the slowest cells of each chapter")
    parser.add_argument("--jobs", type=int, default=2, help="chapters at the same time")
    parser.add_argument("--root", type=Path, default=Book().root, help="folder with _config.yml")
    options = parser.parse_args(argv)
    book = Book(options.root.resolve())
    try:
        pages = [book.chapter(name) for name in options.chapters] or book.chapters
        missing = [page.docname for page in pages if not page.path.is_file()]
        if missing:
            raise BookError(f"in _toc.yml but not on disk: {', '.join(missing)}")
        index, citations = number_book(book), Citations(book.bib_files)
        if options.check:
            return check(index, pages, citations)
        return generate(index, pages, citations, options.jobs, options.times)
    except BookError as error:
        print(f"notebooks: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
