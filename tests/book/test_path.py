"""The one-hour path defines what it uses: labels, names in code, terms; the day passes every explorer."""

from __future__ import annotations

import ast
import builtins
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import nbformat
import pytest
import yaml
from book_layout import Book, Page
from jupytext.myst import myst_to_notebook
from plain_markdown import Index

HEADING = re.compile(r"^#{1,3} ", re.M)
TARGET = re.compile(r"^\(([\w-]+)\)=$", re.M)
# Followed, these lead to what the text rests on; {ref} leads to what one may look up besides.
NEEDED = re.compile(r"\{(?:prf:ref|eq|numref)\}`(?:[^`<]*<)?([\w-]+)>?`")
DEFINED = re.compile(r"^:label: ([\w-]+)$|^\$\$ \(([\w-]+)\)$|^\s*name: ([\w-]+)$", re.M)
UNSEEN = {"remove-cell", "remove-input", "hide-cell", "hide-input", "check", "colab"}
# Words that a student of the first year of graduate studies may not know, or not in this sense.
TERMS = (
    "coordinates",
    "log marginal likelihood",
    "evidence",
    "mask-rate curve",
    "area",
    "mixture",
    "entropy",
    "mutual information",
    "crossover rate",
    "block",
    "pseudo-log-likelihood",
    "trigram",
    "jackknife",
    "recorded",
    "spread",
    "twin",
    "control variate",
)


@dataclass
class Part:
    """What stands between two headings of a chapter, solutions and all."""

    page: Page
    labels: list[str]
    text: str = ""
    cells: list[str] = field(default_factory=list)  # visible code


def parts(page: Page) -> Iterator[Part]:
    """The parts of a page, captions with the text."""
    part = Part(page, [])
    source = myst_to_notebook(page.path.read_text(encoding="utf-8"))
    for cell in source.cells:
        if cell.cell_type == "code":
            figure = cell.metadata.get("mystnb", {}).get("figure", {})
            if figure:
                part.text += f"\n name: {figure['name']}\n{figure['caption']}\n"
            if UNSEEN.isdisjoint(cell.metadata.get("tags", [])):
                part.cells.append(cell.source)
            continue
        pieces = HEADING.split(cell.source)
        part.text += pieces[0]
        for before, piece in itertools.pairwise(pieces):
            labels = TARGET.findall("\n".join(before.rstrip().splitlines()[-3:]))
            yield part
            part = Part(page, labels, piece)
    yield part


@pytest.fixture(scope="module")
def way(book: Book, numbered: Index) -> list[Part]:
    labels = yaml.safe_load((book.root / "book" / "reading.yml").read_text())["paths"]["hour"]
    pages = list(dict.fromkeys(numbered.find(label).page for label in labels))
    found = {label: part for page in pages for part in parts(page) for label in part.labels}
    last = numbered.find(labels[-1]).page  # the closing page, whole
    whole = Part(last, [labels[-1]], last.path.read_text(encoding="utf-8"))
    return [*(found[label] for label in labels[:-1]), whole]


def bound(tree: ast.AST) -> set[str]:
    """Every name that a cell gives a meaning to, inside functions and comprehensions, too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(name.asname or name.name).split(".")[0] for name in node.names}
    return found


def imported(page: Page) -> set[str]:
    cells = nbformat.read(page.notebook, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code" and "%pip" not in cell.source]
    statements = [node for text in code for node in ast.parse(text).body]
    kinds = (ast.Import, ast.ImportFrom)
    return set().union(*(bound(node) for node in statements if isinstance(node, kinds)))


def strangers(way: list[Part]) -> list[str]:
    """Names in visible code that no visible cell before it on the path has bound."""
    known, found = set(dir(builtins)), []
    for part in way:
        known |= imported(part.page) if part.cells else set()
        for cell in part.cells:
            tree = ast.parse(cell)
            known |= bound(tree)
            used = {
                node.id
                for node in ast.walk(tree)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            }
            found += [f"{part.labels[0]}: {name}" for name in sorted(used - known)]
    return found


def undefined(way: list[Part]) -> list[str]:
    """Statements, equations and figures that the path rests on and does not pass before."""
    known: set[str] = set()
    found = []
    for part in way:
        known |= {name for names in DEFINED.findall(part.text) for name in names if name}
        found += [
            f"{part.labels[0]}: {name}" for name in NEEDED.findall(part.text) if name not in known
        ]
    return found


def unexplained(way: list[Part]) -> list[str]:
    """Terms whose first paragraph on the path does not set them in italics or bold, as a definition."""
    text = "\n".join(part.text.partition("\n")[2] for part in way)  # a heading may use it before
    text = re.sub(r"\{[\w:]+\}`[^`]*`|^:.*$|^(?:#|\().*$", " ", text, flags=re.M)
    found = []
    for term in TERMS:
        place = re.search(rf"(?<![\w-]){term}\b", text, re.I)
        if place:
            start, end = text.rfind("\n\n", 0, place.start()), text.find("\n\n", place.end())
            paragraph = text[max(start, 0) : end]
            if not re.search(rf"\*[^*\n]*\b{term}\b[^*\n]*\*", paragraph, re.I):
                found.append(f"{term}: {' '.join(paragraph.split())[:90]}")
    return found


def test_the_path_passes_what_its_statements_rest_on(way: list[Part]) -> None:
    assert undefined(way) == []


def test_the_path_passes_where_its_variables_are_made(way: list[Part]) -> None:
    assert strangers(way) == []


def test_the_path_explains_its_terms_where_they_first_stand(way: list[Part]) -> None:
    assert unexplained(way) == []


def test_what_a_path_leaves_out_is_seen(way: list[Part]) -> None:
    shorter = [part for part in way if "sec-02-telescoping" not in part.labels]
    assert any("lem-02-telescoping" in fault for fault in undefined(shorter))
    shorter = [part for part in way if "sec-03-han" not in part.labels]
    assert any(fault.endswith(": expected") for fault in strangers(shorter))
    shorter = [part for part in way if "sec-03-curve" not in part.labels]
    assert any(fault.startswith("area") for fault in unexplained(shorter))


def test_the_day_passes_every_kind_of_explorer(book: Book, numbered: Index) -> None:
    day = yaml.safe_load((book.root / "book" / "reading.yml").read_text())["paths"]["day"]
    chapters = {numbered.find(label).page for label in day if numbered.find(label).is_chapter}
    kinds: set[str] = set()
    passed: set[str] = set()
    for page in book.chapters:
        label = ""
        for cell in nbformat.read(page.notebook, as_version=4).cells:
            if cell.cell_type == "markdown":
                headings = re.findall(r"^##+ (\d+(?:\.\d+)*)\. ", cell.source, re.M)
                label = headings[-1] if headings else label
            shown = "".join(str(each.get("data", "")) for each in cell.get("outputs", []))
            for kind in re.findall(r'class="explorer ([\w-]+)"', shown.replace('\\"', '"')):
                kinds.add(kind)
                numbers = {numbered.find(name).number for name in day} - {""}
                if page in chapters or any(label.startswith(number) for number in numbers):
                    passed.add(kind)
    assert kinds >= {"order-explorer", "rate-explorer", "schedule-explorer"}
    assert kinds == passed
