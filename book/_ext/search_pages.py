"""The book's search: what its page looks up (``search-data.js``), read from the written pages.

Sphinx's own search looks for parts of words, shows TeX in its excerpts, needs a server for them, and
ranks all pages alike. This one reads sections: heading, text without formulas and code, and what the
page is about (the descriptions of ``book/reading.yml``). ``static/search.js`` ranks them.
"""

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

from lxml import html
from sphinx.application import Sphinx

sys.path.append(str(Path(__file__).resolve().parents[1] / "_tools"))

from memory import Memory

# What a reader does not look for, or what stands elsewhere in full.
LEFT_OUT = ("script", "style", "svg", "math", "button", "nav", "pre", "colgroup")
CLASSES_LEFT_OUT = {
    "headerlink",
    "cell_input",
    "cell_output",
    "toctree-wrapper",
    "reading-path",
    "onwards",
    "minutes",
    "explorer",
    "eqno",
    "viewcode-link",
    "glossary",  # its entries are sections of their own
}
# Simple enough for a sentence: a letter or a number, one of them equal to another.
READABLE = re.compile(r"\\\(\s*([A-Za-z]|\d+|[A-Za-z] = [A-Za-z]|[A-Za-z] = \d+)\s*\\\)")


def formula(tex: str) -> str:
    simple = READABLE.fullmatch(tex.strip())
    return simple[1] if simple else "…"


def text_of(element: html.HtmlElement, skip_sections: bool) -> str:
    """The words of an element, without what is left out."""
    parts: list[str] = []

    def walk(node: html.HtmlElement) -> None:
        if not isinstance(node.tag, str) or node.tag in LEFT_OUT:
            return
        classes = set((node.get("class") or "").split())
        if CLASSES_LEFT_OUT & classes:
            return
        if "math" in classes:
            parts.append(formula(node.text_content()))
            return
        if skip_sections and node.tag == "section" and node is not element:
            return
        is_block = node.tag in ("p", "li", "td", "th", "dt", "dd", "div", "figcaption", "h2", "h3")
        parts.append(" " if is_block else "")
        parts.append(node.text or "")
        for child in node:
            walk(child)
            parts.append(child.tail or "")
        parts.append(" " if is_block else "")

    walk(element)
    return re.sub(r"\s+", " ", "".join(parts)).strip()


def heading_of(section: html.HtmlElement) -> tuple[str, html.HtmlElement | None]:
    """Its heading, and the element in which that stands, if it is the section's own."""
    box = section.getparent()
    if "admonition" in (box.get("class") or "").split():  # a statement or an exercise has a title
        return text_of(box[0], skip_sections=False), None
    for child in section:
        if child.tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            return text_of(child, skip_sections=False), child
    return "", None


def sections_of(page: html.HtmlElement) -> list[list[str]]:
    """[anchor, heading, text] of each section, in order; an entry of a glossary is a section."""
    found = []
    for section in page.xpath("//article//section[@id]"):
        heading, element = heading_of(section)
        if element is not None:
            tail = element.tail
            section.remove(element)
            section.text = f"{section.text or ''} {tail or ''}"
        box = section.getparent()
        anchor = box.get("id") if element is None and box.get("id") else section.get("id")
        found.append([anchor, heading, text_of(section, skip_sections=True)])
        if element is not None:
            section.insert(0, element)
            element.tail = ""
    for entry in page.xpath("//article//dl[contains(@class, 'glossary')]/dd"):
        terms = [entry.getprevious()]
        while (above := terms[0].getprevious()) is not None and above.tag == "dt":
            terms.insert(0, above)
        names = ", ".join(text_of(each, skip_sections=False) for each in terms)
        found.append([terms[0].get("id"), names, text_of(entry, skip_sections=False)])
    return found


def page_data(text: bytes, name: str, description: str) -> dict[str, Any]:
    parser = html.HTMLParser(encoding="utf-8")
    page = html.document_fromstring(text, parser=parser)
    sections = sections_of(page)
    title = sections[0][1] if sections else ""
    # Names of the package, that somebody looks for who knows them.
    names = [each.get("id") for each in page.xpath("//article//dt[@id]")]
    return {
        "title": title,
        "address": f"{name}.html",
        "about": description,
        "sections": sections,
        "names": [each for each in names if each and "." in each],
    }


def write_data(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    says = app.config.reading["descriptions"]
    pages = []
    with Memory(Path(app.srcdir), "search") as memory:
        for name in sorted(app.env.found_docs):
            text = (out / f"{name}.html").read_bytes()
            description = says.get(name.removeprefix("book/"), "")
            data = partial(page_data, text, name, description)
            pages.append(memory.of(f"{name}\n{description}\n".encode() + text, data))
    data = json.dumps(pages, ensure_ascii=False, separators=(",", ":"))
    (out / "_static" / "search-data.js").write_text(f"window.searchPages={data};\n", "utf-8")
    for name in ("searchtools.js", "language_data.js"):
        (out / "_static" / name).unlink(missing_ok=True)
    page = out / "search.html"
    scripts = "".join(
        f'<script defer src="_static/{name}"></script>\n'
        for name in ("search-data.js", "search.js")
    )
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</head>", f"{scripts}</head>", 1), "utf-8")


def leave_words(app: Sphinx) -> None:
    """Have no index of Sphinx's own search, for which it would stem every word of every page."""
    app.builder.load_indexer = lambda docnames: None
    app.builder.index_page = lambda *page: None
    app.builder.dump_search_index = lambda: None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", leave_words)
    app.connect("build-finished", write_data, priority=870)  # after light_pages, before the policy
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
