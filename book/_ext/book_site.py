"""The book's own Sphinx extension: its static files, and no request to another site.

* Citations are set as "Han (1978)" and "(Han, 1978)", with round brackets.
* The download button offers the notebook in plain Markdown that stands beside the chapter.
* sphinx_thebe, which jupyter-book always loads, would have every page ask a CDN for its scripts.
"""

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
STATIC = HERE.parent / "_static"
ROUND = BracketStyle(left="(", right=")", sep="; ", sep2="; ", last_sep="; ")


@dataclass
class RoundBrackets(AuthorYearReferenceStyle):
    bracket_parenthetical: BracketStyle = field(default_factory=lambda: ROUND)
    bracket_textual: BracketStyle = field(default_factory=lambda: ROUND)


def add_static_folders(app: Sphinx, config: Config) -> None:
    config.html_static_path += [str(STATIC), str(HERE / "static")]


def add_site_files(app: Sphinx) -> None:
    for path in [Path("site.css"), *sorted(STATIC.glob("*.css"))]:
        app.add_css_file(path.name)
    for path in sorted(STATIC.glob("*.js")):
        app.add_js_file(path.name, loading_method="defer")


def mend_page(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    files = {each: f"{each.filename} {each.attributes}" for each in context.get("script_files", ())}
    context["script_files"] = [each for each, said in files.items() if "thebe" not in said.lower()]
    # docutils calls the bibliography a list of things that are not list items.
    if "body" in context:
        item = '<div %sclass="citation'
        context["body"] = context["body"].replace(item % 'role="list" ', item % "")


def offer_plain_notebooks(app: Sphinx, exception: Exception | None) -> None:
    for notebook in Path(app.srcdir, "book").glob("*.ipynb"):
        offered = Path(app.outdir, "_sources", "book", notebook.name)
        if offered.is_file():
            shutil.copyfile(notebook, offered)


def setup(app: Sphinx) -> dict[str, Any]:
    register_plugin(
        "sphinxcontrib.bibtex.style.referencing", "author_year_round", RoundBrackets, force=True
    )
    app.connect("config-inited", add_static_folders)
    app.connect("builder-inited", add_site_files)
    app.connect("build-finished", offer_plain_notebooks)
    app.connect("html-page-context", mend_page, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
