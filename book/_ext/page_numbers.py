"""Numbers of pages as `_toc.yml` has them: chapters 1, 2, 2½, …, notes A, B, …, others none.

Sphinx counts every page of a numbered part. Numbers of sections, figures, theorems and equations are
made of the page's, and follow.
"""

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector

sys.path.append(str(Path(__file__).resolve().parents[1] / "_tools"))
from book_layout import Book


def renumber(env: BuildEnvironment, docname: str, number: str | None) -> None:
    """Put ``number`` in the place of the page's own in all that was numbered, or take all away."""

    def mended(numbers: Any) -> Any:
        return type(numbers)([number, *numbers[1:]]) if number is not None and numbers else None

    sections = env.toc_secnumbers[docname]
    env.toc_secnumbers[docname] = {
        anchor: mended(numbers) or () for anchor, numbers in sections.items()
    }
    if number is None:
        del env.toc_secnumbers[docname]
    places = [env.titles[docname], *env.tocs[docname].findall(nodes.reference)]
    for place in places:
        if place.get("secnumber"):
            place["secnumber"] = mended(place["secnumber"])


def patch(app: Sphinx, config: Config) -> None:
    """After all extensions are there: two of jupyter-book's have methods of their own in this place.

    One numbers across parts, which is what we need below; the other has styles, of which our pages
    need none.
    """
    numbers = {page.docname: page.number for page in Book(Path(app.srcdir)).pages}
    assign = TocTreeCollector.assign_section_numbers

    def assign_section_numbers(self: TocTreeCollector, env: BuildEnvironment) -> list[str]:
        before = env.toc_secnumbers
        assign(self, env)
        for docname in list(env.toc_secnumbers):
            renumber(env, docname, numbers.get(docname))
        now = env.toc_secnumbers
        return [docname for docname in now if now[docname] != before.get(docname)]

    for collector in (TocTreeCollector, *TocTreeCollector.__subclasses__()):
        collector.assign_section_numbers = assign_section_numbers


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", patch)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
