"""The book's own Sphinx extension: its static files, and no request to another site.

* Citations are set as "Han (1978)" and "(Han, 1978)", with round brackets.
* The download button offers the notebook in plain Markdown that stands beside the chapter.
* sphinx_thebe, which jupyter-book always loads, would have every page ask a CDN for its scripts.
* A fold says its title once, and an address without a page has a page, ``404.html``.
* Each page has a Content-Security-Policy: it runs the scripts it was built with, and no others.
"""

import base64
import functools
import gc
import hashlib
import html
import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pybtex import plugin
from pybtex.database import BibliographyData, Entry
from pybtex.style import FormattedEntry
from pybtex.style.formatting import BaseStyle
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx_proof.domain import ProofDomain
from sphinxcontrib.bibtex.plugin import register_plugin
from sphinxcontrib.bibtex.style.referencing import BracketStyle
from sphinxcontrib.bibtex.style.referencing.author_year import AuthorYearReferenceStyle

sys.path.append(str(Path(__file__).resolve().parents[1] / "_tools"))

from memory import Memory

HERE = Path(__file__).resolve().parent
STATIC = HERE.parent / "_static"
ROUND = BracketStyle(left="(", right=")", sep="; ", sep2="; ", last_sep="; ")

# What a page may do. Pages are read over http and from a folder: there, some browsers do not count
# files as 'self', hence file:, which means nothing over http. MathJax and the figures write styles.
POLICY = {
    "default-src": "'none'",
    "script-src": "'self' file:",  # and the hashes of the page's own inline scripts
    "style-src": "'self' file: 'unsafe-inline'",
    "img-src": "'self' file: data:",
    "font-src": "'self' file: data:",
    "connect-src": "'self' file:",
    "form-action": "'self' file:",  # the search
    "base-uri": "'none'",
}
INLINE_SCRIPT = re.compile(r"<script\b(?![^>]*\bsrc=)([^>]*)>(.*?)</script>", re.S | re.I)
SENTENCE_EXPLORER = re.compile(r'class="[^"]*\bsentence-explorer\b')
# A fold's summary: its title twice, for open and closed, in paragraphs, which HTML forbids there, and a
# name that hides the title from who hears the page.
SUMMARY = re.compile(
    r'<summary aria-label="Toggle hidden content">\s*<p class="collapsed admonition-title">(.*?)</p>'
    r'\s*<p class="expanded admonition-title">\1</p>\s*</summary>'
)
CHARSET = re.compile(r'<meta charset="[^"]*" */?>')
# The theme's two buttons that carry their script in an attribute, which no policy lets through.
PRESSED = {
    'onclick="toggleFullScreen()"': 'data-press="full-screen"',
    'onclick="window.print()"': 'data-press="print"',
}


# Extensions that do not say whether pages may be read at the same time. They keep nothing of a page.
SILENT = ("sphinx_jupyterbook_latex", "sphinx-mathjax-offline", "sphinx_multitoc_numbering")


@dataclass
class RoundBrackets(AuthorYearReferenceStyle):
    bracket_parenthetical: BracketStyle = field(default_factory=lambda: ROUND)
    bracket_textual: BracketStyle = field(default_factory=lambda: ROUND)


def use_all_cores(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Read and write several pages at a time, which jupyter-book has no option for."""
    app.parallel = (os.cpu_count() or 1) + 1  # one process hands out the pages to write
    for name in SILENT:
        if name in app.extensions:
            app.extensions[name].parallel_read_safe = True
    # This domain has no data to merge; the list of statements is the extension's, which merges it.
    ProofDomain.merge_domaindata = lambda *arguments: None


def remember_references(app: Sphinx) -> None:
    """Set an entry of the bibliography once, for the page, for what links show, and for later builds."""
    memory = app.references = Memory(Path(app.srcdir), "references").__enter__()
    set_anew = BaseStyle.format_entry

    def format_entry(
        style: BaseStyle, label: str, entry: Entry, bib_data: BibliographyData | None = None
    ) -> FormattedEntry:
        compute = functools.partial(set_anew, style, label, entry, bib_data)
        return memory.of(f"{type(style)}{label}{entry!r}".encode(), compute)

    BaseStyle.format_entry = format_entry


def keep_references(app: Sphinx, exception: Exception | None) -> None:
    app.references.__exit__()


def add_static_folders(app: Sphinx, config: Config) -> None:
    config.html_static_path += [str(STATIC), str(HERE / "static")]


def load_mathjax_in_parts(app: Sphinx, config: Config) -> None:
    """Take MathJax's file that loads what ``mathjax3_config`` names, not that which has all."""
    config.mathjax_path = "mathjax/startup.js"


def add_site_files(app: Sphinx) -> None:
    for path in [Path("site.css"), *sorted(STATIC.glob("*.css"))]:
        app.add_css_file(path.name)
    for path in [
        Path("page-buttons.js"),
        Path("scroll-by-keyboard.js"),
        Path("typeset.js"),
        Path("verdict-filter.js"),
        *sorted(STATIC.glob("*.js")),
    ]:
        app.add_js_file(path.name, loading_method="defer")


def mend_page(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    files = {each: f"{each.filename} {each.attributes}" for each in context.get("script_files", ())}
    context["script_files"] = [each for each, said in files.items() if "thebe" not in said.lower()]
    # docutils calls the bibliography a list of things that are not list items.
    if "body" in context:
        item = '<div %sclass="citation'
        body = context["body"].replace(item % 'role="list" ', item % "")
        context["body"] = SUMMARY.sub(
            r'<summary><span class="admonition-title">\1</span></summary>', body
        )


NOT_FOUND = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>No page here</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1.1rem/1.6 system-ui, sans-serif; margin: 12vh auto; max-width: 34rem; padding: 0 1rem; }}
</style>
</head>
<body>
<h1>This page is hidden.</h1>
<p>There is no page at this address, and nothing can guess it from the rest.</p>
<ul>
<li><a href="{site}/index.html">{title}</a>, the front door</li>
<li><a href="{site}/book/start-here.html">Start here</a>, with all ways through the book</li>
<li><a href="{site}/search.html">Search</a></li>
</ul>
</body>
</html>
"""


def write_not_found(app: Sphinx, exception: Exception | None) -> None:
    """What a server shows for an address without a page. It may stand in any folder: whole addresses."""
    if exception is None and app.builder.format == "html":
        site = app.config.ogp_site_url.rstrip("/")
        page = NOT_FOUND.format(site=site, title=html.escape(app.config.html_title))
        Path(app.outdir, "404.html").write_text(page, encoding="utf-8")


def offer_plain_notebooks(app: Sphinx, exception: Exception | None) -> None:
    for notebook in Path(app.srcdir, "book").glob("*.ipynb"):
        offered = Path(app.outdir, "_sources", "book", notebook.name)
        if offered.is_file():
            shutil.copyfile(notebook, offered)


def is_run(attributes: str) -> bool:
    """Would a browser run an inline script with these attributes, or is it data?"""
    kind = re.search(r'\btype="([^"]*)"', attributes)
    return kind is None or kind[1] in ("", "module", "text/javascript", "application/javascript")


def policy(page: str) -> str:
    """The Content-Security-Policy of a page that runs what is on it."""
    hashes = set()
    for attributes, script in INLINE_SCRIPT.findall(page):
        if is_run(attributes):
            digest = hashlib.sha256(script.encode()).digest()
            hashes.add(f"'sha256-{base64.b64encode(digest).decode()}'")
    allowed = POLICY | {"script-src": " ".join([POLICY["script-src"], *sorted(hashes)])}
    if SENTENCE_EXPLORER.search(page):  # its network computes in a worker, made from a text
        allowed["worker-src"] = "blob:"
    return "; ".join(f"{name} {places}" for name, places in allowed.items())


def close_to_others(page: str) -> str:
    """The page with its policy, before any script; a window that it opens knows nothing of it."""
    for script, name in PRESSED.items():
        page = page.replace(script, name)
    page = re.sub(r'<a\b[^>]*\btarget="_blank"[^>]*>', without_opener, page)
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy(page)}" />'
    return CHARSET.sub(lambda charset: f"{charset[0]}\n    {meta}", page, count=1)


def without_opener(link: re.Match[str]) -> str:
    relation = re.search(r'\brel="([^"]*)"', link[0])
    if relation is None:
        return link[0].replace("<a", '<a rel="noopener"', 1)
    if "noopener" in relation[1].split():
        return link[0]
    return link[0].replace(relation[0], f'rel="{relation[1]} noopener"')


def close_pages(app: Sphinx, exception: Exception | None) -> None:
    for place in Path(app.outdir).rglob("*.html"):
        text = place.read_text(encoding="utf-8")
        if "_static" not in place.parts and "Content-Security-Policy" not in text:
            place.write_text(close_to_others(text), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    register_plugin(
        "sphinxcontrib.bibtex.style.referencing", "author_year_round", RoundBrackets, force=True
    )
    # The trees of all pages fit into memory, and to look for garbage in them takes a third of the time.
    gc.disable()
    # At every citation pybtex would look through all packages that are installed.
    plugin.find_plugin = functools.cache(plugin.find_plugin)
    app.connect("env-before-read-docs", use_all_cores)
    app.connect("config-inited", add_static_folders)
    app.connect("config-inited", load_mathjax_in_parts)
    app.connect("builder-inited", add_site_files)
    app.connect("builder-inited", remember_references)
    app.connect("build-finished", offer_plain_notebooks)
    app.connect("build-finished", keep_references)
    app.connect("build-finished", write_not_found)
    app.connect("build-finished", close_pages, priority=900)  # nothing is written after it
    app.connect("html-page-context", mend_page, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
