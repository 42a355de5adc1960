"""Second pass: a chapter's MyST text as plain Markdown that any notebook viewer shows.

Directives, roles, labels and numbered equations become what a reader would see on the published
page: "**Theorem 2.1 (Area).** …", "(2.5)", "Moreno-Muñoz et al. (2023)".
"""

from __future__ import annotations

import base64
import mimetypes
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from book_layout import BookError, Page
from citations import Citations
from markdown_it.token import Token
from myst_source import Block, parser, replace_inline, split_blocks, with_title
from numbering import ADMONITIONS, PROOF_KINDS, Index

CONTINUED = ", continued"


def tex_on_one_line(tex: str) -> str:
    return " ".join(re.sub(r"(?<!\\)%.*", "", line).strip() for line in tex.split("\n")).strip()


def quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.strip("\n").split("\n"))


def details(summary: str, text: str) -> str:
    return f"<details>\n<summary><b>{summary}</b></summary>\n\n{text.strip()}\n\n</details>"


def table_rows(body: str) -> list[list[str]]:
    """Cells of a list-table: a bullet list of bullet lists."""
    lines = body.split("\n")
    rows: list[list[str]] = []
    starts: list[tuple[int, Token]] = []
    for token in parser().parse(body):
        if token.type != "list_item_open" or token.map is None:
            continue
        if token.level == 1:
            rows.append([])
        elif token.level == 3:
            starts.append((len(rows) - 1, token))
    for row, token in starts:
        assert token.map is not None
        text = " ".join(line.strip() for line in lines[token.map[0] : token.map[1]]).strip()
        rows[row].append(re.sub(r"^(?:[*+-]\s+)?[*+-](?:\s+|$)", "", text))
    return rows


class Converter:
    """Converts the text cells of one chapter, in order."""

    def __init__(
        self, index: Index, page: Page, citations: Citations, glued: Callable[[str], str]
    ) -> None:
        self.index, self.page, self.citations, self.glued = index, page, citations, glued
        numbers = index.pages[page.docname]
        self.headings = iter(numbers.headings)
        self.items = iter(numbers.items)
        self.solution = ""  # label of the exercise whose solution we are in
        self.solution_started = False
        self.attachments: dict[str, dict[str, str]] = {}
        self.cited: list[str] = []

    # -- cells ---------------------------------------------------------------------------------

    def cell(self, source: str) -> str:
        """One Markdown cell; a solution's prose in it is folded away."""
        parts: list[str] = []
        folded: list[str] = []

        def flush() -> None:
            text = "\n".join(folded).strip()
            folded.clear()
            if text:
                suffix = CONTINUED if self.solution_started else ""
                parts.append("\n" + details(f"Solution to {self.solution}{suffix}", text) + "\n")
            elif self.solution and not self.solution_started:
                parts.append(f"\n**Solution to {self.solution}**: the cell below.\n")
            self.solution_started = True

        for block in split_blocks(source):
            if block.kind == "directive" and block.name == "solution-start":
                target = self.index.find(block.argument, self.page.name)
                self.solution, self.solution_started = f"{target.word} {target.number}", False
            elif block.kind == "directive" and block.name == "solution-end":
                if not self.solution_started or "".join(folded).strip():
                    flush()
                self.solution = ""
            else:
                (folded if self.solution else parts).append(self.block(block, nested=False))
        if self.solution and (not self.solution_started or "".join(folded).strip()):
            flush()
        return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip()

    def caption(self, text: str) -> str:
        return f"**Figure {next(self.items)}.** {self.inline(text.strip())}".replace("\n", " ")

    def references(self) -> str:
        lines = [f"* {self.citations.reference(key)}" for key in sorted(set(self.cited))]
        return "**References**\n\n" + "\n".join(lines) if lines else ""

    # -- blocks --------------------------------------------------------------------------------

    def text(self, source: str, nested: bool = True) -> str:
        parts = [self.block(block, nested) for block in split_blocks(source)]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip("\n")

    def block(self, block: Block, nested: bool) -> str:
        if block.kind == "text":
            return self.inline(block.text)
        if block.kind == "heading":
            number = next(self.headings)
            title = self.inline(block.body)
            return "#" * block.level + (f" {number}. {title}" if number else f" {title}")
        if block.kind == "target":
            return ""
        if block.kind == "math":
            made = self.equation(block, nested or bool(block.prefix))
        elif block.kind == "directive":
            made = self.directive(block, nested or bool(block.prefix))
        else:
            return block.text
        indent = " " * len(block.prefix)
        return block.prefix + f"\n{indent}".join(made.split("\n")) if block.prefix else made

    def equation(self, block: Block, one_line: bool) -> str:
        tex = block.body.strip()
        if "\\\\" in tex and "\\begin{" not in tex:
            tex = f"\\begin{{split}}\n{tex}\n\\end{{split}}"
        if block.label:
            tex += f"\n\\tag{{{next(self.items)}}}"
        return f"$$ {tex_on_one_line(tex)} $$" if one_line else f"$$\n{tex}\n$$"

    def directive(self, block: Block, nested: bool) -> str:
        kind = block.name.removeprefix("prf:")
        if kind in PROOF_KINDS or kind == "exercise":
            number = "" if "nonumber" in block.options else f" {next(self.items)}"
            title = f" ({self.inline(block.argument)})" if block.argument else ""
            return self.quoted(f"**{kind.title()}{number}{title}.**", block.body)
        if kind == "proof":
            title = f" {self.inline(block.argument)}" if block.argument else ""
            return f"*Proof{title}.* " + self.text(block.body)
        if kind == "solution":
            target = self.index.find(block.argument, self.page.name)
            return details(f"Solution to {target.word} {target.number}", self.text(block.body))
        if kind == "math":
            return self.equation(block, nested)
        if kind in ADMONITIONS:
            title = self.inline(block.argument) if kind == "admonition" else kind.title()
            return self.quoted(f"**{title}**", block.body, apart=True)
        simple = {"list-table": self.table, "figure": self.figure, "raw": self.raw}
        if kind in simple:
            return simple[kind](block)
        if kind in ("code-block", "code"):
            return f"```{block.argument}\n{block.body}\n```"
        raise BookError(f"line {block.line + 1} of a cell: {{{block.name}}} has no plain form")

    def quoted(self, lead: str, body: str, apart: bool = False) -> str:
        text = self.text(body)
        starts_with_text = re.match(r"[^\s*+\-|>#$`\d]|\*\*?\w|\$[^$]", text)
        return quote(f"{lead} {text}" if starts_with_text and not apart else f"{lead}\n\n{text}")

    def table(self, block: Block) -> str:
        rows = [
            [
                self.inline(cell).replace("|", "\\|")
                if "|" in cell and "$" not in cell
                else self.inline(cell)
                for cell in row
            ]
            for row in table_rows(block.body)
        ]
        rows = [
            [re.sub(r"(?<!\\)\|", r"\\vert ", cell) if "$" in cell else cell for cell in row]
            for row in rows
        ]
        if not int(block.options.get("header-rows", 0) or 0):
            rows.insert(0, [""] * len(rows[0]))
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines.insert(1, "|" + " --- |" * len(rows[0]))
        if block.argument:
            lines = [f"**Table {next(self.items)}.** {self.inline(block.argument)}", "", *lines]
        return "\n".join(lines)

    def figure(self, block: Block) -> str:
        path = self.page.path.parent / block.argument
        if not path.is_file():
            raise BookError(f"figure {block.argument!r} is not there")
        mime = mimetypes.guess_type(path.name)[0] or "image/png"
        self.attachments[path.name] = {mime: base64.b64encode(path.read_bytes()).decode()}
        image = f"![{block.options.get('alt', '')}](attachment:{path.name})"
        return f"{image}\n\n{self.caption(block.body)}" if block.body.strip() else image

    def raw(self, block: Block) -> str:
        url = self.index.book.url(self.page.docname)
        return f"*This part is interactive on the [published page]({url}).*"

    # -- roles ---------------------------------------------------------------------------------

    def inline(self, text: str) -> str:
        made = replace_inline(text, self.role, self.link)
        if re.search(r"\$\$[^$]*\$\$\s*\([\w-]+\)", made):
            raise BookError(f"a labelled equation needs an empty line before it: {text[:60]!r}")
        return made

    def role(self, name: str, content: str) -> str:
        title, target = with_title(content)
        if name == "glue:text":
            return self.glued(content)
        if name in ("cite:t", "cite:p", "cite"):
            keys = [key.strip() for key in content.split(",")]
            self.cited += keys
            cite = self.citations.textual if name == "cite:t" else self.citations.parenthetical
            return cite(keys)
        if name == "term":
            docname = self.index.terms.get(target.lower())
            if docname is None:
                raise BookError(f"no glossary term {target!r}")
            anchor = "term-" + re.sub(r"\s+", "-", target)
            return f"[{title or target}]({self.index.book.url(docname, anchor)})"
        if name == "doc":
            return self.doc(title, target)
        if name in ("eq", "ref", "numref", "prf:ref"):
            return self.reference(name, title, target)
        raise BookError(f"role {{{name}}} has no plain form")

    def reference(self, name: str, title: str, target: str) -> str:
        label = self.index.find(target, self.page.name)
        numbered = f"{label.word} {label.number}"
        if label.kind == "equation":
            shown = f"({label.number})"
        elif name == "numref":
            shown = title.replace("%s", label.number).replace("{number}", label.number) or numbered
        elif title:
            shown = title
        elif label.kind in ("section", "figure", "table", "place"):
            shown = self.inline(label.title)
        else:
            shown = numbered
        if not shown:
            raise BookError(f"{{ref}}`{target}` points to no title: write a text for it")
        if label.page is self.page or label.page == self.page:
            return shown
        anchor = (
            ""
            if label.kind == "section" and label.title == self.index.pages[label.page.docname].title
            else self.anchor(target, label.kind)
        )
        return f"[{shown}]({self.index.book.url(label.page.docname, anchor)})"

    @staticmethod
    def anchor(label: str, kind: str) -> str:
        # Sphinx writes equation anchors as equation-name; docutils lowercases the others.
        return f"equation-{label}" if kind == "equation" else label.lower().replace("_", "-")

    def doc(self, title: str, target: str) -> str:
        here = posixpath.dirname(self.page.docname)
        path = target.lstrip("/") if target.startswith("/") else posixpath.join(here, target)
        docname = posixpath.normpath(path).removesuffix(".md")
        if docname not in self.index.pages:
            raise BookError(f"{{doc}}`{target}`: no such page")
        shown = title or self.index.pages[docname].title
        return f"[{self.inline(shown)}]({self.index.book.url(docname)})"

    def link(self, target: str) -> str:
        if re.match(r"[a-z]+:", target):
            return target
        path, _, anchor = target.partition("#")
        if path.endswith((".md", ".ipynb")):
            here = posixpath.dirname(self.page.docname)
            docname = posixpath.normpath(
                posixpath.join(here, Path(path).with_suffix("").as_posix())
            )
            return self.index.book.url(docname, anchor)
        if not path and anchor in self.index.labels:
            label = self.index.labels[anchor]
            return self.index.book.url(label.page.docname, self.anchor(anchor, label.kind))
        return self.index.book.url(self.page.docname, anchor) if not path else target
