"""What a link inside the book shows on hover: the place that it leads to, cut out of the written pages.

The cards of a page are a script, ``_static/cards/PAGE-….js``, whose name changes with them: HTML by
the address of the links. ``static/hover-previews.js`` shows it.

* A figure, a table, a paragraph, a statement or an exercise is shown whole, an equation without its
  number.
* A page or a section is its heading and the paragraphs after it; a section that begins with another
  one shows that heading, too, and a chapter the first of its key points.
* A term of the glossary, or a name of a package, comes with the paragraphs that explain it.
"""

import hashlib
import json
import posixpath
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lxml import html
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

sys.path.append(str(Path(__file__).resolve().parents[1] / "_tools"))

from memory import Memory

WHOLE = {"figure", "table", "img", "p", "aside"}
WHOLE_CLASSES = {"admonition", "literal-block-wrapper"}
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
MOST_PARAGRAPHS = 6  # of an explanation
# Links without a card: a heading's own address, a tile, a badge.
BARE = {"headerlink", "sd-stretched-link", "sd-rounded-pill"}


def classes(element: html.HtmlElement) -> set[str]:
    return set((element.get("class") or "").split())


def source(element: html.HtmlElement) -> str:
    return html.tostring(element, encoding="unicode", with_tail=False)


def without(element: html.HtmlElement, name: str) -> html.HtmlElement:
    """A copy that lacks the parts of a class."""
    copy = deepcopy(element)
    for part in copy.find_class(name):
        part.drop_tree()
    return copy


def opening(heading: html.HtmlElement) -> str:
    """A heading and what follows: one or two paragraphs, or a section with a heading of its own.

    Of a chapter it is the first of the key points.
    """
    shown = source(heading)
    for sibling in heading.itersiblings("section", "p", "div"):
        found = classes(sibling)
        if "key-points" in found:
            return shown + source(next(sibling.iter("li"))[0])
        if sibling.tag == "div" or "minutes" in found:
            continue
        if sibling.tag == "section":
            inner = next(sibling.iter(*HEADINGS), None)
            return shown if inner is None else shown + opening(inner)
        after = sibling.getnext()
        second = source(after) if after is not None and after.tag == "p" else ""
        return shown + source(sibling) + second
    return shown


def explanation(term: html.HtmlElement) -> str:
    shown = source(without(term, "headerlink"))
    below = term.getnext()
    if below is None or below.tag != "dd":
        return shown
    paragraphs = [source(each) for each in below.iterchildren("p")]
    return f"{shown}<dd>{''.join(paragraphs[:MOST_PARAGRAPHS])}</dd>"


def card(element: html.HtmlElement) -> str | None:
    """The HTML that shows an element, if it is one of those that are shown."""
    if element.tag == "section":
        heading = next(element.iter(*HEADINGS), None)
        return None if heading is None else opening(heading)
    if element.tag == "dt":
        return explanation(element)
    if element.tag == "div" and "math" in classes(element):
        return source(without(element, "eqno"))
    if element.tag in WHOLE or (element.tag == "div" and WHOLE_CLASSES & classes(element)):
        return source(element)
    return None


def places(article: html.HtmlElement) -> Iterator[tuple[str, html.HtmlElement]]:
    """What a link can lead to, by anchor; the page itself has none."""
    yield "", article.find("section")
    for element in article.iterfind(".//*[@id]"):
        # A further name of a section is an empty span in it.
        is_name = element.tag == "span" and not len(element) and not element.text
        yield element.get("id"), element.getparent() if is_name else element


class Page(NamedTuple):
    """What cards are made of."""

    addresses: list[str]  # of the links that may have a card
    cards: dict[str, str]  # by anchor


def read(text: bytes) -> Page:
    page = html.document_fromstring(text, parser=html.HTMLParser(encoding="utf-8"))
    (article,) = page.find_class("bd-article")
    links = [link for link in article.iterfind(".//a[@href]") if not BARE & classes(link)]
    cards = {anchor: card(element) for anchor, element in places(article)}
    return Page(
        [link.get("href") for link in links],
        {anchor: shown for anchor, shown in cards.items() if shown is not None},
    )


def cards_of(name: str, pages: dict[str, Page]) -> dict[str, str]:
    """The cards of a page's links, by address."""
    cards = {}
    for address in pages[name].addresses:
        page, _, anchor = address.partition("#")
        # All pages stand in one folder, so that addresses inside a card hold on any of them.
        beside = posixpath.join(posixpath.dirname(name), page.removesuffix(".html"))
        target = pages.get(beside if page else name)
        if target is not None and anchor in target.cards:
            cards[address] = target.cards[anchor]
    return cards


def write_cards(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    pages = {}
    with Memory(Path(app.srcdir), "cards") as memory:
        for name in sorted(app.env.found_docs):
            text = Path(app.outdir, f"{name}.html").read_bytes()
            pages[name] = memory.of(text, partial(read, text))
    for name in pages:
        cards = {"bare": sorted(BARE), "cards": cards_of(name, pages)}
        content = json.dumps(cards, ensure_ascii=False, separators=(",", ":"))
        digest = hashlib.sha256(content.encode()).hexdigest()[:12]
        place = f"_static/cards/{name}-{digest}.js"
        script = Path(app.outdir, place)
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f"window.hoverCards={content};\n", encoding="utf-8")
        page = Path(app.outdir, f"{name}.html")
        address = posixpath.relpath(place, posixpath.dirname(name))
        tag = f'<script defer src="{address}"></script>\n  </head>'
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace("</head>", tag, 1), encoding="utf-8")


def set_formulas_everywhere(app: Sphinx, env: BuildEnvironment) -> None:
    """Have MathJax on every page: a card may have a formula where the page has none."""
    has_formulas = env.get_domain("math").data["has_equations"]
    has_formulas.update(dict.fromkeys(env.found_docs, True))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_js_file("hover-previews.js", loading_method="defer")
    app.connect("env-updated", set_formulas_everywhere)
    app.connect("build-finished", write_cards, priority=840)  # before light_pages
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
