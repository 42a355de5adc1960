"""A chapter's MyST text as plain Markdown that any notebook viewer shows.

Directives, roles, labels and numbered equations become what a reader would see on the published
page: "**Theorem 2.1 (Area).** …", "(2.5)", "Moreno-Muñoz et al. (2023)". Every page is converted
once to learn what its labels stand for, with the number the HTML gives it; then the wanted ones.

Sphinx knows the same numbers, but only after a build, and the build itself asks this module (for the
minutes of sections); its Markdown builders write every paragraph anew and know neither theorems nor
solutions. Here the text passes through as its author wrote it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import nbformat
from book_layout import Book, BookError, Page
from jupytext.myst import myst_to_notebook
from memory import Memory
from myst_source import Block, replace_roles, split_blocks
from nbformat import NotebookNode
from pybtex.database import Entry, Person, parse_file
from pybtex.richtext import Text

# Kinds that sphinx_proof and sphinx_exercise number, each with a counter of its own in a chapter.
NUMBERED = (
    "theorem",
    "lemma",
    "proposition",
    "corollary",
    "definition",
    "algorithm",
    "remark",
    "example",
    "exercise",
)
ADMONITIONS = ("admonition", "note", "tip", "warning", "important")
# A letter, a word in emphasis, or a formula in the line; not a list, a table, a quotation or a fence.
BEGINS_A_SENTENCE = re.compile(r"[^\s*+\-|>#$`\d]|\*\*?\w|\$[^$]")
SOLUTION = "#### Solution to "
VENUES = ("journal", "booktitle", "publisher", "howpublished", "school")


@dataclass(frozen=True)
class Label:
    kind: str  # section, equation, figure, exercise, theorem, …
    page: Page
    number: str
    title: str

    @property
    def is_chapter(self) -> bool:
        return self.kind == "page" and bool(self.number)

    def __str__(self) -> str:
        return self.page.title if self.is_chapter else f"{self.kind.title()} {self.number}"


@dataclass
class Index:
    """What every label of the book stands for, and every key of its bibliography."""

    book: Book
    labels: dict[str, Label] = field(default_factory=dict)
    complete: bool = False

    @cached_property
    def cited(self) -> dict[str, Entry]:
        """The entries of the bibliography, by key."""
        return parse_file(str(self.book.root / self.book.config["bibtex_bibfiles"][0])).entries

    def learn(self, name: str, label: Label) -> None:
        if name in self.labels and not self.complete:
            places = f"{self.labels[name].page.docname} and in {label.page.docname}"
            raise BookError(f"label {name!r} stands in {places}")
        if name:
            self.labels[name] = label

    def find(self, label: str) -> Label:
        if label not in self.labels:
            raise BookError(f"no label {label!r} in the book")
        return self.labels[label]


def number_book(book: Book) -> Index:
    """The labels of every page of the table of contents that exists so far."""
    index = Index(book)
    with Memory(book.root, "labels") as memory:
        for page in book.pages:
            if page.path.is_file():
                text = f"{page}\n".encode() + page.path.read_bytes()
                for name, label in memory.of(text, partial(labels_of, page, book)).items():
                    index.learn(name, label)
    index.complete = True
    return index


def labels_of(page: Page, book: Book) -> dict[str, Label]:
    """The labels that stand in one page."""
    index = Index(book)
    list(Converter(index, page, str).cells())
    return index.labels


def plain_title(title: str) -> str:
    """A title as a browser shows it on hover: without marks of emphasis, code or formulas."""
    return re.sub(r"[*`$\\]", "", title).replace('"', "'")


def sentence_explorer(notebook: Path, fixed: bool = False) -> str:
    """The sentence explorer that a cell put out; ``fixed``, what it says without JavaScript."""
    cells = nbformat.read(notebook, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    texts = [output.get("data", {}).get("text/html", "") for output in outputs]
    found = [text for text in texts if 'class="explorer sentence-explorer"' in text]
    if len(found) != 1:
        raise BookError(f"{notebook}: {len(found)} sentence explorers, and one is wanted")
    static = re.search(r'<div class="explorer-static">(.*?</div>)', found[0], re.S)
    return f"<div>{static[1]}" if fixed else found[0]


def without_gaps(text: str) -> str:
    """At most one empty line at a time."""
    return re.sub(r"\n{3,}", "\n\n", text)


def names(person: Person, *parts: str) -> str:
    """The last name of a person, or its ``first`` and ``middle`` ones and the last."""
    words = [word for part in (*parts, "prelast", "last") for word in person.get_part(part)]
    return str(Text.from_latex(" ".join(words)))


def cite(role: str, entries: list[Entry]) -> str:
    """Moreno-Muñoz et al. (2023), or with `cite:p` (Han, 1978; Tipping and Bishop, 1999)."""
    cited = []
    for entry in entries:
        last_names = [names(person) for person in entry.persons["author"]]
        authors = f"{last_names[0]} et al." if len(last_names) > 2 else " and ".join(last_names)
        cited.append((authors, entry.fields["year"]))
    if role == "cite:t":
        return ", ".join(f"{authors} ({year})" for authors, year in cited)
    return "(" + "; ".join(sorted(f"{authors}, {year}" for authors, year in cited)) + ")"


def reference(entry: Entry) -> str:
    fields = {name: str(Text.from_latex(text)) for name, text in entry.fields.items()}
    authors = ", ".join(names(person, "first", "middle") for person in entry.persons["author"])
    line = f"* {authors} ({fields['year']}). *{fields['title']}*."
    venue = next((fields[name] for name in VENUES if name in fields), None)
    return line if venue is None else f"{line} {venue}."


@dataclass(frozen=True)
class Piece:
    """A cell of the notebook: ``code`` and the caption below it, or text alone."""

    code: NotebookNode | None
    text: str
    in_solution: bool


class Converter:
    """Converts the text cells of one chapter, in order."""

    def __init__(self, index: Index, page: Page, glued: Callable[[str], str]) -> None:
        self.index = index
        self.page = page
        self.glued = glued
        self.counts: Counter[str] = Counter()
        self.section_numbers = [page.number]
        self.pending: list[str] = []  # targets of the next heading
        self.solution = ""  # the exercise whose solution we are in
        self.cited: set[str] = set()

    def cells(self) -> Iterator[Piece]:
        """Every cell with its Markdown; text becomes several where a solution begins or ends."""
        source = myst_to_notebook(self.page.path.read_text(encoding="utf-8"), add_source_map=True)
        for cell, line in zip(source.cells, source.metadata["source_map"], strict=True):
            try:
                if cell.cell_type == "code":
                    pieces = [Piece(cell, self.caption(cell), bool(self.solution))]
                else:
                    pieces = list(self.text_pieces(cell.source))
            except BookError as error:
                where = f"{self.page.docname}.md, cell from line {line + 1}"
                raise BookError(f"{where}: {error}") from error
            yield from pieces
        if self.solution:
            raise BookError(f"{self.page.docname}.md: a solution-start without its solution-end")

    def text_pieces(self, source: str) -> Iterator[Piece]:
        """A solution begins with a heading, under which a notebook folds its text, code and output."""
        parts: list[str] = []

        def piece() -> Piece:
            text = without_gaps("\n".join(parts)).strip()
            parts.clear()
            return Piece(None, text, bool(self.solution))

        for block in split_blocks(source):
            if block.kind == "solution-start":
                yield piece()
                self.solution = str(self.index.find(block.argument))
                parts.append(f"{SOLUTION}{self.solution}\n")
            elif block.kind == "solution-end":
                yield piece()
                self.solution = ""
            else:
                parts.append(self.block(block))
        yield piece()

    def caption(self, cell: NotebookNode) -> str:
        figure = cell.metadata.get("mystnb", {}).get("figure")
        if figure is None:
            return ""
        text = " ".join(figure.get("caption", "").split())
        number = self.number("figure", figure.get("name", ""), text)
        return f"**Figure {number}.** {self.inline(text)}"

    def references(self) -> str:
        lines = [reference(self.index.cited[key]) for key in sorted(self.cited)]
        return "\n".join(["**References**\n", *lines]) if lines else ""

    def number(self, kind: str, label: str, title: str = "") -> str:
        self.counts[kind] += 1
        number = f"{self.page.number}.{self.counts[kind]}"
        self.index.learn(label, Label(kind, self.page, number, title))
        return number

    def block(self, block: Block, nested: bool = False) -> str:
        kind = block.kind
        if kind == "text":
            return self.inline(block.body)
        if kind == "verbatim":
            return block.body
        if kind == "target":
            self.pending.append(block.label)
            return ""
        if kind == "heading":
            return self.heading(block.body, int(block.argument))
        if kind == "math":
            return self.equation(block, nested)
        if kind in NUMBERED:
            title = f" ({self.inline(block.argument)})" if block.argument else ""
            number = self.number(kind, block.label, block.argument)
            if kind == "exercise":  # a heading, which ends the fold of the solution before
                return f"#### Exercise {number}{title}\n\n{self.nested(block.body)}"
            return self.quoted(f"**{kind.title()} {number}{title}.**", block.body)
        if kind == "proof":
            return "*Proof.* " + self.nested(block.body)
        if kind in ADMONITIONS and "dropdown" in block.classes:
            title = f"<summary><b>{self.inline(block.argument) or kind.title()}</b></summary>"
            return f"\n<details>\n{title}\n\n{self.nested(block.body)}\n\n</details>\n"
        if kind in ADMONITIONS:
            return self.quoted(f"**{self.inline(block.argument) or kind.title()}**\n", block.body)
        if kind == "explorer" and not self.index.complete:  # it has no label
            return ""
        if kind == "explorer" and self.page.number is not None:
            return sentence_explorer(
                self.page.path.with_name(f"{block.argument}.ipynb"), fixed=True
            )
        if kind == "list-table" and self.page.number is not None:
            return self.pipe_table(block.body)
        if self.page.number is not None:
            raise BookError(f"{{{kind}}} has no plain form")
        # Front matter may hold any directive: it is not printed, but its glossary is learned.
        if kind == "glossary":
            for term in re.findall(r"^\S.*$", block.body, re.M):
                self.index.learn(f"term {term.lower()}", Label("term", self.page, "", term))
        return ""

    def pipe_table(self, body: str) -> str:
        """A list of rows, each a list of cells, as a table; its first row is the head."""
        rows: list[list[str]] = []
        for line in body.splitlines():
            begins = re.match(r"(\* - |  - )(.*)", line)
            if begins is None:
                rows[-1][-1] += f" {line.strip()}"
            elif begins[1] == "  - ":
                rows[-1].append(begins[2])
            else:
                rows.append([begins[2]])
        lines = [
            "| " + " | ".join(self.inline(cell.strip()) for cell in row) + " |" for row in rows
        ]
        rule = "|" + " :-- |" * len(rows[0])
        return "\n".join(["", lines[0], rule, *lines[1:], ""])

    def heading(self, title: str, level: int) -> str:
        number = "" if self.page.number is None else self.next_section(level)
        kind = "page" if level == 1 else "section"
        for label in self.pending:
            self.index.learn(label, Label(kind, self.page, number, title))
        self.pending.clear()
        numbered = f"{number}. " if number else ""
        return f"{'#' * level} {numbered}{self.inline(title)}"

    def next_section(self, level: int) -> str:
        """ "3" for the chapter's title, then "3.1", "3.2" at level 2, "3.2.1" at level 3."""
        numbers = self.section_numbers[:level]
        numbers += [0] * (level - len(numbers))
        if level > 1:
            numbers[-1] += 1
        self.section_numbers = numbers
        return ".".join(map(str, numbers))

    def equation(self, block: Block, nested: bool) -> str:
        tex = block.body
        if "\\\\" in tex and "\\begin{" not in tex:
            tex = f"\\begin{{split}}\n{tex}\n\\end{{split}}"
        if block.label:
            tex += f"\n\\tag{{{self.number('equation', block.label)}}}"
        if nested:  # in a quotation each line of the formula would begin with >
            return f"$$ {' '.join(line.strip() for line in tex.splitlines())} $$"
        return f"$$\n{tex}\n$$"

    def nested(self, body: str) -> str:
        parts = [self.block(block, nested=True) for block in split_blocks(body)]
        return without_gaps("\n".join(parts)).strip("\n")

    def quoted(self, lead: str, body: str) -> str:
        """A quotation that begins with ``lead``: on a line of its own before a list or a formula."""
        text = self.nested(body)
        if BEGINS_A_SENTENCE.match(text) and not lead.endswith("\n"):
            text = f"{lead} {text}"
        else:
            text = f"{lead.strip()}\n\n{text}"
        return "\n".join(f"> {line}".rstrip() for line in text.strip("\n").split("\n"))

    def inline(self, text: str) -> str:
        return replace_roles(text, self.role) if self.index.complete else text

    def role(self, name: str, title: str, target: str) -> str:
        if name == "glue:text":
            return self.glued(target)
        if name in ("cite:t", "cite:p"):
            return self.citation(name, re.split(r"\s*,\s*", target))
        if name == "term":
            label = self.index.find(f"term {target.lower()}")
            return self.link(label, title or target, "term-" + re.sub(r"\s+", "-", target))
        if name not in ("eq", "ref", "numref", "prf:ref"):
            raise BookError(f"role {{{name}}} has no plain form")
        return self.cross_reference(name, title, target)

    def citation(self, role: str, keys: list[str]) -> str:
        unknown = set(keys) - self.index.cited.keys()
        if unknown:
            raise BookError(f"no citation key {min(unknown)!r} in the .bib file")
        self.cited.update(keys)
        return cite(role, [self.index.cited[key] for key in keys])

    def cross_reference(self, role: str, title: str, target: str) -> str:
        label = self.index.find(target)
        # Sphinx writes equation anchors as equation-name; docutils lowercases the others.
        if label.kind == "equation":
            return self.link(label, f"({label.number})", f"equation-{target}")
        if title:
            text = title.replace("%s", label.number)
        elif role == "ref" and label.is_chapter:
            hover = plain_title(label.title)
            return self.link(label, str(label), "", hover)
        elif role == "ref" and label.kind == "section" and label.number:
            return self.link(label, str(label), target, plain_title(label.title))
        elif role == "ref" and label.kind in ("section", "page", "figure"):
            text = self.inline(label.title)
        else:
            text = str(label)
        anchor = "" if label.kind == "page" else target.lower().replace("_", "-")
        return self.link(label, text, anchor)

    def link(self, label: Label, text: str, anchor: str, hover: str = "") -> str:
        """``text``, with the address on the published site if it is another page's."""
        if label.page == self.page:
            return text
        address = self.index.book.url(label.page.docname, anchor)
        return f'[{text}]({address} "{hover}")' if hover else f"[{text}]({address})"
