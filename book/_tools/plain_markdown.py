"""A chapter's MyST text as plain Markdown that any notebook viewer shows.

Directives, roles, labels and numbered equations become what a reader would see on the published
page: "**Theorem 2.1 (Area).** …", "(2.5)", "Moreno-Muñoz et al. (2023)". Every page is converted
once to learn what its labels stand for, with the number the HTML gives it; then the wanted ones.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from book_layout import Book, BookError, Page
from jupytext.myst import myst_to_notebook
from myst_source import Block, replace_roles, split_blocks
from nbformat import NotebookNode
from pybtex.database import Entry, Person, parse_file
from pybtex.richtext import Text

# Kinds that sphinx_proof and sphinx_exercise number, each with a counter of its own in a chapter.
NUMBERED = ("theorem", "lemma", "proposition", "corollary", "definition", "algorithm")
NUMBERED += ("remark", "example", "exercise")
ADMONITIONS = ("admonition", "note", "tip", "warning", "important")
VENUES = ("journal", "booktitle", "publisher", "howpublished", "school")


@dataclass(frozen=True)
class Label:
    kind: str  # section, equation, figure, exercise, theorem, …
    page: Page
    number: str
    title: str

    def __str__(self) -> str:
        return f"{self.kind.title()} {self.number}"


@dataclass
class Index:
    """What every label of the book stands for, and every key of its bibliography."""

    book: Book
    cited: dict[str, Entry]
    labels: dict[str, Label] = field(default_factory=dict)
    complete: bool = False

    def find(self, label: str) -> Label:
        if label not in self.labels:
            raise BookError(f"no label {label!r} in the book")
        return self.labels[label]


def number_book(book: Book) -> Index:
    """The labels of every page of the table of contents that exists so far."""
    bibliography = parse_file(str(book.root / book.config["bibtex_bibfiles"][0]))
    index = Index(book, bibliography.entries)
    for page in book.pages:
        if page.path.is_file():
            list(Converter(index, page, str).cells())
    index.complete = True
    return index


def names(person: Person, *parts: str) -> str:
    """The last name of a person, or its ``first`` and ``middle`` ones and the last."""
    words = [word for part in (*parts, "prelast", "last") for word in person.get_part(part)]
    return str(Text.from_latex(" ".join(words)))


def cite(role: str, entries: list[Entry]) -> str:
    """Moreno-Muñoz et al. (2023), or with `cite:p` (Han, 1978; Tipping and Bishop, 1999)."""
    cited = []
    for entry in entries:
        last = [names(person) for person in entry.persons["author"]]
        shown = f"{last[0]} et al." if len(last) > 2 else " and ".join(last)
        cited.append((shown, entry.fields["year"]))
    if role == "cite:t":
        return ", ".join(f"{shown} ({year})" for shown, year in cited)
    return "(" + "; ".join(sorted(f"{shown}, {year}" for shown, year in cited)) + ")"


def reference(entry: Entry) -> str:
    fields = {name: str(Text.from_latex(text)) for name, text in entry.fields.items()}
    authors = ", ".join(names(each, "first", "middle") for each in entry.persons["author"])
    ending = next((f" {fields[name]}." for name in VENUES if name in fields), "")
    return f"* {authors} ({fields['year']}). *{fields['title']}*.{ending}"


class Converter:
    """Converts the text cells of one chapter, in order."""

    def __init__(self, index: Index, page: Page, glued: Callable[[str], str]) -> None:
        self.index, self.page, self.glued = index, page, glued
        self.counts: Counter[str] = Counter()
        self.sections = [page.number]
        self.pending: list[str] = []  # targets of the next heading
        self.solution = ""  # the exercise whose solution we are in
        self.solution_started = False
        self.cited: set[str] = set()

    def cells(self) -> Iterator[tuple[NotebookNode, str, bool]]:
        """Each cell with its Markdown, or the caption below it, and whether it is in a solution."""
        source = myst_to_notebook(self.page.path.read_text(encoding="utf-8"), add_source_map=True)
        for cell, line in zip(source.cells, source.metadata["source_map"], strict=True):
            try:
                code = cell.cell_type == "code"
                text = self.caption(cell) if code else self.cell(cell.source)
                yield cell, text, bool(self.solution)
            except BookError as error:
                where = f"{self.page.docname}.md, cell from line {line + 1}"
                raise BookError(f"{where}: {error}") from error
        if self.solution:
            raise BookError(f"{self.page.docname}.md: a solution-start without its solution-end")

    def cell(self, source: str) -> str:
        """One Markdown cell; a solution's prose in it is folded away."""
        parts: list[str] = []
        folded: list[str] = []

        def fold() -> None:
            text, again = "\n".join(folded).strip(), ", continued" * self.solution_started
            folded.clear()
            if text:
                head = f"<details>\n<summary><b>Solution to {self.solution}{again}</b></summary>"
                parts.append(f"\n{head}\n\n{text}\n\n</details>\n")
            elif not self.solution_started:
                parts.append(f"\n**Solution to {self.solution}**: the cell below.\n")
            self.solution_started = True

        for block in split_blocks(source):
            if block.kind == "solution-start":
                self.solution = str(self.index.find(block.argument))
                self.solution_started = False
            elif block.kind == "solution-end":
                fold()
                self.solution = ""
            else:
                (folded if self.solution else parts).append(self.block(block))
        if self.solution:
            fold()
        return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip()

    def caption(self, cell: NotebookNode) -> str:
        if (figure := cell.metadata.get("mystnb", {}).get("figure")) is None:
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
        self.learn(label, Label(kind, self.page, number, title))
        return number

    def learn(self, name: str, label: Label) -> None:
        if name in self.index.labels and not self.index.complete:
            places = f"{self.index.labels[name].page.docname} and in {self.page.docname}"
            raise BookError(f"label {name!r} stands in {places}")
        if name:
            self.index.labels[name] = label

    def block(self, block: Block, nested: bool = False) -> str:
        kind = block.kind
        if kind in ("text", "verbatim"):
            return self.inline(block.body) if kind == "text" else block.body
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
            return self.quoted(f"**{kind.title()} {number}{title}.**", block.body)
        if kind == "proof":
            return "*Proof.* " + self.nested(block.body)
        if kind in ADMONITIONS:
            return self.quoted(f"**{self.inline(block.argument) or kind.title()}**\n", block.body)
        if self.page.number is not None:
            raise BookError(f"{{{kind}}} has no plain form")
        # Front matter may hold any directive; its glossary is learned.
        for term in re.findall(r"^\S.*$", block.body, re.M) if kind == "glossary" else ():
            self.learn(f"term {term.lower()}", Label("term", self.page, "", term))
        return ""

    def heading(self, title: str, level: int) -> str:
        number = ""
        if self.page.number is not None:
            self.sections = [*self.sections, *[0] * level][:level]
            self.sections[-1] += level > 1
            number = ".".join(map(str, self.sections))
        for label in self.pending:
            kind = "section" if level > 1 else "page"
            self.learn(label, Label(kind, self.page, number, title))
        self.pending.clear()
        return f"{'#' * level} {number}{'. ' if number else ''}{self.inline(title)}"

    def equation(self, block: Block, nested: bool) -> str:
        tex = block.body
        if "\\\\" in tex and "\\begin{" not in tex:
            tex = f"\\begin{{split}}\n{tex}\n\\end{{split}}"
        if block.label:
            tex += f"\n\\tag{{{self.number('equation', block.label)}}}"
        return f"$$ {' '.join(map(str.strip, tex.splitlines()))} $$" if nested else f"$$\n{tex}\n$$"

    def nested(self, body: str) -> str:
        parts = [self.block(block, nested=True) for block in split_blocks(body)]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip("\n")

    def quoted(self, lead: str, body: str) -> str:
        text = self.nested(body)
        runs_on = re.match(r"[^\s*+\-|>#$`\d]|\*\*?\w|\$[^$]", text) and not lead.endswith("\n")
        text = f"{lead} {text}" if runs_on else f"{lead.strip()}\n\n{text}"
        return "\n".join(f"> {line}".rstrip() for line in text.strip("\n").split("\n"))

    def inline(self, text: str) -> str:
        return replace_roles(text, self.role) if self.index.complete else text

    def role(self, name: str, title: str, target: str) -> str:
        if name == "glue:text":
            return self.glued(target)
        if name in ("cite:t", "cite:p"):
            keys = re.split(r"\s*,\s*", target)
            if unknown := set(keys) - self.index.cited.keys():
                raise BookError(f"no citation key {min(unknown)!r} in the .bib file")
            self.cited.update(keys)
            return cite(name, [self.index.cited[key] for key in keys])
        if name == "term":
            label = self.index.find(f"term {target.lower()}")
            return self.link(label, title or target, "term-" + re.sub(r"\s+", "-", target))
        if name not in ("eq", "ref", "numref", "prf:ref"):
            raise BookError(f"role {{{name}}} has no plain form")
        label = self.index.find(target)
        # Sphinx writes equation anchors as equation-name; docutils lowercases the others.
        if label.kind == "equation":
            return self.link(label, f"({label.number})", f"equation-{target}")
        shown = title.replace("%s", label.number) or str(label)
        if label.kind in ("section", "page", "figure") and name == "ref" and not title:
            shown = self.inline(label.title)
        anchor = "" if label.kind == "page" else target.lower().replace("_", "-")
        return self.link(label, shown, anchor)

    def link(self, label: Label, shown: str, anchor: str) -> str:
        if label.page == self.page:
            return shown
        return f"[{shown}]({self.index.book.url(label.page.docname, anchor)})"
