"""First pass over all pages: what every label points to, with the number the HTML gives it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from book_layout import Book, BookError, Page
from jupytext.myst import myst_to_notebook
from myst_source import Block, split_blocks
from nbformat import NotebookNode

# Kinds that sphinx_proof numbers, each with a counter of its own in a chapter.
PROOF_KINDS = ("theorem", "lemma", "proposition", "corollary", "definition", "algorithm")
PROOF_KINDS += ("remark", "example")
ADMONITIONS = ("admonition", "note", "tip", "warning", "important")


@dataclass(frozen=True)
class Label:
    kind: str  # section, equation, figure, table, exercise, theorem, …
    page: Page
    number: str
    title: str = ""

    @property
    def word(self) -> str:
        return self.kind.title()


@dataclass
class PageNumbers:
    """Numbers of one page in the order in which its items stand there."""

    page: Page
    title: str = ""
    headings: list[str] = field(default_factory=list)
    items: list[str] = field(default_factory=list)  # one for each numbered item, without labels too


@dataclass
class Index:
    book: Book
    labels: dict[str, Label] = field(default_factory=dict)
    pages: dict[str, PageNumbers] = field(default_factory=dict)
    terms: dict[str, str] = field(default_factory=dict)  # glossary term -> docname

    def find(self, label: str, where: str) -> Label:
        if label not in self.labels:
            raise BookError(f"{where}: no label {label!r} in the book")
        return self.labels[label]


def read_source(page: Page) -> NotebookNode:
    return myst_to_notebook(page.path.read_text(encoding="utf-8"), add_source_map=True)


class Numberer:
    def __init__(self, index: Index, counters: defaultdict[tuple[int | None, str], int]):
        self.index = index
        self.counters = counters

    def page(self, page: Page) -> None:
        self.here = PageNumbers(page)
        self.index.pages[page.docname] = self.here
        self.sections = [0] * 6
        self.pending: list[str] = []
        for cell in read_source(page).cells:
            figure = cell.metadata.get("mystnb", {}).get("figure")
            if cell.cell_type == "markdown":
                self.blocks(split_blocks(cell.source))
            elif figure:
                self.item("figure", figure.get("name", ""), figure.get("caption", ""))

    def blocks(self, blocks: list[Block]) -> None:
        for block in blocks:
            if block.kind == "target":
                self.pending.append(block.name)
            elif block.kind == "heading":
                self.heading(block)
            elif block.kind == "math" and block.label:
                self.item("equation", block.label)
            elif block.kind == "directive":
                self.directive(block)
            if block.kind not in ("target", "heading") and block.text.strip():
                for name in self.pending:
                    self.add(name, Label("place", self.here.page, ""))
            if block.kind != "target" and block.text.strip():
                self.pending.clear()

    def heading(self, block: Block) -> None:
        number = ""
        if self.here.page.number is not None:
            self.sections[block.level - 1] += 1
            self.sections[block.level :] = [0] * (6 - block.level)
            parts = [self.here.page.number, *self.sections[1 : block.level]]
            number = ".".join(map(str, parts))
        self.here.title = self.here.title or block.body
        self.here.headings.append(number)
        for name in self.pending:
            self.add(name, Label("section", self.here.page, number, block.body))

    def directive(self, block: Block) -> None:
        kind = block.name.removeprefix("prf:")
        if kind in PROOF_KINDS or kind == "exercise":
            if "nonumber" not in block.options:
                self.item(kind, block.label, block.argument)
        elif kind == "math" and block.label:
            self.item("equation", block.label)
        elif kind == "figure":
            self.item("figure", block.label, block.body)
        elif kind == "list-table" and block.argument:
            self.item("table", block.label, block.argument)
        elif kind == "glossary":
            for line in block.body.split("\n"):
                if line.strip() and not line.startswith((" ", "\t")):
                    self.index.terms[line.strip().lower()] = self.here.page.docname
        if kind in (*PROOF_KINDS, *ADMONITIONS, "proof", "exercise", "solution"):
            self.blocks(split_blocks(block.body))

    def item(self, kind: str, label: str, title: str = "") -> None:
        chapter = self.here.page.number
        self.counters[chapter, kind] += 1
        count = self.counters[chapter, kind]
        number = f"{count}" if chapter is None else f"{chapter}.{count}"
        self.here.items.append(number)
        if label:
            self.add(label, Label(kind, self.here.page, number, " ".join(title.split())))

    def add(self, name: str, label: Label) -> None:
        other = self.index.labels.get(name)
        if other is not None:
            raise BookError(
                f"label {name!r} stands in {other.page.docname} and in {label.page.docname}"
            )
        self.index.labels[name] = label


def number_book(book: Book) -> Index:
    """Number every page of the table of contents that exists so far."""
    index = Index(book)
    numberer = Numberer(index, defaultdict(int))
    for page in book.pages:
        if page.path.is_file():
            try:
                numberer.page(page)
            except BookError as error:
                raise BookError(f"{page.docname}.md: {error}") from error
    return index
