"""The book's own Sphinx extension: its static files, and no request to another site.

* `book/_static/*.css` and `*.js` are put on every page, in alphabetical order.
* `book/_ext/static` holds the hover previews' script.
* Citations are set as "Han (1978)" and "(Han, 1978)", with round brackets.
* The notebook that the download button offers is the one in plain Markdown that stands beside the
  chapter, not the theme's own copy, which shows raw directives.
* sphinx_thebe, which jupyter-book always loads, writes the address of a CDN into every page; this
  book runs on Colab or on a reader's machine, so its scripts are taken out again.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinxcontrib.bibtex.plugin import register_plugin
from sphinxcontrib.bibtex.style.referencing import BracketStyle
from sphinxcontrib.bibtex.style.referencing.author_year import AuthorYearReferenceStyle

HERE = Path(__file__).resolve().parent
FOLDERS = (HERE.parent / "_static", HERE / "static")


def round_brackets() -> BracketStyle:
    return BracketStyle(left="(", right=")", sep="; ", sep2="; ", last_sep="; ")


@dataclass
class RoundBrackets(AuthorYearReferenceStyle):
    bracket_parenthetical: BracketStyle = field(default_factory=round_brackets)
    bracket_textual: BracketStyle = field(default_factory=round_brackets)


def add_static_folders(app: Sphinx, config: Config) -> None:
    folders = [str(folder) for folder in FOLDERS if folder.is_dir()]
    config.html_static_path = [*config.html_static_path, *folders]


def add_site_files(app: Sphinx) -> None:
    app.add_css_file("site.css")
    for path in sorted(FOLDERS[0].glob("*.css")):
        app.add_css_file(path.name)
    for path in sorted(FOLDERS[0].glob("*.js")):
        app.add_js_file(path.name, loading_method="defer")


def drop_thebe(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    def is_thebe(script: object) -> bool:
        name = str(getattr(script, "filename", None) or script)
        body = getattr(script, "attributes", {}).get("body") or ""
        return "thebe" in name or "THEBE_JS_URL" in body

    context["script_files"] = [s for s in context.get("script_files", ()) if not is_thebe(s)]


def mend_roles(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """docutils calls the bibliography a list of things that are not list items."""
    if "body" in context:
        context["body"] = context["body"].replace(
            '<div role="list" class="citation-list">', '<div class="citation-list">'
        )


def offer_plain_notebooks(app: Sphinx, exception: Exception | None) -> None:
    sources = Path(app.outdir) / "_sources"
    for docname in app.env.found_docs if exception is None else ():
        notebook = Path(app.srcdir) / f"{docname}.ipynb"
        offered = sources / f"{docname}.ipynb"
        if notebook.is_file() and offered.is_file():
            shutil.copyfile(notebook, offered)


def setup(app: Sphinx) -> dict[str, Any]:
    register_plugin(
        "sphinxcontrib.bibtex.style.referencing", "author_year_round", RoundBrackets, force=True
    )
    app.connect("config-inited", add_static_folders)
    app.connect("builder-inited", add_site_files)
    app.connect("build-finished", offer_plain_notebooks)
    app.connect("html-page-context", mend_roles)
    app.connect("html-page-context", drop_thebe, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
