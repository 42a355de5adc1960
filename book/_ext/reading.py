"""How long reading takes, ways through the book, and cells that fold under their title.

``{reading-path} NAME``  the sections of a path of ``book/reading.yml``, or all ``chapters``, with
their minutes and the sum

Every chapter says its minutes below its title. On the one-hour path a section ends where its first
subsection begins, unless that is on the path, too: there stands a link to what comes next. Minutes are
computed from the chapter's notebook (``book/_tools/form.py``).
"""

import html
import sys
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

sys.path.append(str(Path(__file__).resolve().parents[1] / "_tools"))
from book_layout import Book, Page
from form import ANY_HEADING, Form, sections, text_form
from memory import Memory
from plain_markdown import number_book, plain_title

READING = "book/reading.yml"
HOUR = "hour"
TITLE = "# @title "


def forms_of(page: Page) -> tuple[list[tuple[str, Form]], dict[str, Form]]:
    """The forms of a chapter's sections, with their subsections and without."""
    return list(sections(page)), dict(sections(page, ANY_HEADING))


def measure(app: Sphinx) -> None:
    """Before the first page: every chapter's form, every path as (label, form)."""
    book = Book(Path(app.srcdir))
    index = number_book(book)
    parts, alone = {}, {}
    with Memory(book.root, "forms") as memory:
        for page in book.chapters:
            text = f"{page}\n".encode() + page.notebook.read_bytes()
            parts[page.docname], own = memory.of(text, partial(forms_of, page))
            alone |= own
    forms = {docname: sum((part for _, part in each), Form()) for docname, each in parts.items()}
    whole = alone | {number: part for each in parts.values() for number, part in each}

    def measured(label: str, parts: dict[str, Form]) -> tuple[str, Form]:
        at = index.find(label)
        if at.page.number is None:
            return label, text_form(at.page.path.read_text(encoding="utf-8"))
        return label, forms[at.page.docname] if at.kind == "page" else parts[at.number]

    content = yaml.safe_load((book.root / READING).read_text(encoding="utf-8"))
    label_of = {label.page: name for name, label in index.labels.items() if label.is_chapter}
    content["paths"]["chapters"] = [label_of[page] for page in book.chapters if not page.is_note]
    app.config.ogp_site_url = f"{book.site}/"
    app.config.reading = {
        "descriptions": content["descriptions"],
        "forms": forms,
        "chapters": {
            name: (label.page.docname, label.page.title, plain_title(label.title))
            for name, label in index.labels.items()
            if label.is_chapter
        },
        "sections": {
            name: (label.page.docname, str(label), plain_title(label.title))
            for name, label in index.labels.items()
            if label.kind == "section" and label.number
        },
        "paths": {
            name: [measured(label, alone if name == HOUR else whole) for label in way]
            for name, way in content["paths"].items()
        },
    }


def link(label: str, docname: str) -> addnodes.pending_xref:
    """A link that prints the title of a section, or of a chapter."""
    where = {"refdoc": docname, "refdomain": "std", "reftype": "ref", "reftarget": label}
    text = nodes.inline("", label, classes=["std", "std-ref"])
    return addnodes.pending_xref("", text, refexplicit=False, refwarn=True, titled=True, **where)


def paragraph(*children: nodes.Node | str, classes: tuple[str, ...] = ()) -> nodes.paragraph:
    inside = [nodes.Text(child) if isinstance(child, str) else child for child in children]
    return nodes.paragraph("", "", *inside, classes=list(classes))


class ReadingPath(SphinxDirective):
    """A numbered list of the path's sections."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(READING)
        for docname in self.config.reading["forms"]:
            self.env.note_dependency(f"{docname}.ipynb")  # of which the minutes are
        way = self.config.reading["paths"][self.arguments[0]]
        steps = nodes.enumerated_list(enumtype="arabic", classes=["reading-path"], suffix=".")
        for label, part in way:
            minutes = f" ({part.time})".replace(" ", "\u00a0").replace("\u00a0", " ", 1)
            steps += nodes.list_item("", paragraph(link(label, self.env.docname), minutes))
        whole = sum((part for _, part in way), Form())
        return [steps, paragraph(f"Together {whole.time}, {whole.words:,} words.")]


def mend_chapter(app: Sphinx, doctree: nodes.document) -> None:
    docname, reading = app.env.docname, app.config.reading
    if docname not in reading["forms"]:
        return
    app.env.note_dependency(f"{docname}.ipynb")
    app.env.note_dependency(READING)
    title = next(iter(doctree.findall(nodes.title)))
    says = paragraph(f"{reading['forms'][docname].time} to read", classes=("minutes",))
    title.parent.insert(title.parent.index(title) + 1, says)
    way = [label for label, _ in reading["paths"][HOUR]]
    for section in doctree.findall(nodes.section):
        for label in set(section["names"]) & set(way[:-1]):
            onwards = [
                "The one-hour path goes on with ",
                link(way[way.index(label) + 1], docname),
                ".",
            ]
            inside = [each for each in section.children if isinstance(each, nodes.section)]
            place = section.index(inside[0]) if inside else len(section)
            section.insert(place, paragraph(*onwards, classes=("onwards",)))


class NumberedPlaces(SphinxPostTransform):
    """``{ref}`chapter-06` `` in a sentence prints "Chapter 6", a note "Note A", a section "Section 6.5".

    The title is on hover. A section of a page without a number prints its title.
    """

    default_priority = 5  # before Sphinx resolves references, with the title of what they name

    def run(self, **options: Any) -> None:
        chapters, sections = self.config.reading["chapters"], self.config.reading["sections"]
        for link in list(self.document.findall(addnodes.pending_xref)):
            plain = link.get("reftype") == "ref" and not link["refexplicit"]
            if not plain or link.get("titled"):
                continue
            target = link.get("reftarget")
            place = chapters.get(target) or sections.get(target)
            if place is None:
                continue
            docname, number, title = place
            address = self.app.builder.get_relative_uri(link["refdoc"], docname)
            if target not in chapters:
                address += f"#{target}"
            text = nodes.inline("", number, classes=["std", "std-ref"])
            hover = {"reftitle": title}
            link.replace_self(nodes.reference("", "", text, internal=True, refuri=address, **hover))


def describe(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Our own description of the page, for link previews and search engines."""
    says = app.config.reading["descriptions"].get(page.removeprefix("book/"))
    if doctree and says:
        context["meta"] = (context.get("meta") or {}) | {"og:description": says}
        context["metatags"] += f'<meta name="description" content="{html.escape(says)}" />\n'


def link_pdf(app: Sphinx, docname: str, source: list[str]) -> None:
    """On the home page ``% pdf`` is the published PDF; `make pdf` prints the same one."""
    if docname == "book/index":
        source[0] = source[0].replace("% pdf", f"[book.pdf]({app.config.ogp_site_url}book.pdf)")


def title_folds(app: Sphinx, doctree: nodes.document) -> None:
    """A cell that folds does so under its first line, ``# @title ...``, which is left out.

    Cells with the tag ``check`` fold with their output, as those with ``hide-cell``.
    """
    for cell in doctree.findall(nodes.container):
        is_check = "tag_check" in cell["classes"]
        if is_check:
            cell["hide_mode"] = "all"
        if not cell.get("hide_mode"):
            continue
        code = next(iter(cell.findall(nodes.literal_block)))
        first, _, rest = code.rawsource.partition("\n")
        title = "Check" if is_check else "Code of this figure"
        if first.startswith(TITLE):
            title = first.removeprefix(TITLE)
            code.rawsource = rest
            code.children = [nodes.Text(rest)]
        cell["prompt_show"] = title
        cell["prompt_hide"] = title


def gather_checks(app: Sphinx, doctree: nodes.document) -> None:
    """The checks at the end of a page fold together, under their number."""
    for section in doctree.findall(nodes.section):
        checks = [each for each in section.children if "tag_check" in each.get("classes", [])]
        if len(checks) < 2:
            continue
        opens = f'<details class="checks"><summary>{len(checks)} tests</summary>'
        section.insert(section.index(checks[0]), nodes.raw("", opens, format="html"))
        section.insert(section.index(checks[-1]) + 1, nodes.raw("", "</details>", format="html"))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("reading", {}, "", dict)
    app.add_directive("reading-path", ReadingPath)
    app.add_post_transform(NumberedPlaces)
    app.connect("builder-inited", measure)
    app.connect("source-read", link_pdf)
    app.connect("html-page-context", describe, priority=400)
    app.connect("doctree-read", title_folds)
    app.connect("doctree-read", gather_checks)
    app.connect("doctree-read", mend_chapter)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
