"""What a link shows on hover, cut out of two small pages."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from hover_cards import write_cards

PLACES = """
<section id="a-page"><span id="chapter-02"></span><h1>A page</h1><p>First.</p><p>Second.</p><p>Third.</p>
<section id="inside"><h2>Inside</h2><section><h3>Deeper</h3><p>Below.</p>
<ul><li>A list.</li></ul></section></section>
<div class="math notranslate" id="equation-one"><span class="eqno">(2.1)</span>\\(x\\)</div>
<div class="proof admonition" id="thm-one"><p>It is so.</p></div>
<dl><dt id="term-mask">mask<a class="headerlink" href="#term-mask">#</a></dt>
<dd><p>A set.</p><ul><li>aside</li></ul></dd></dl><span id="id1">words</span></section>"""
SHOWN = {
    "two.html": "<h1>A page</h1><p>First.</p><p>Second.</p>",
    "two.html#chapter-02": "<h1>A page</h1><p>First.</p><p>Second.</p>",
    "two.html#inside": "<h2>Inside</h2><h3>Deeper</h3><p>Below.</p>",
    "two.html#equation-one": '<div class="math notranslate" id="equation-one">\\(x\\)</div>',
    "two.html#thm-one": '<div class="proof admonition" id="thm-one"><p>It is so.</p></div>',
    "two.html#term-mask": '<dt id="term-mask">mask</dt><dd><p>A set.</p></dd>',
    "#here": "<h1>Links</h1>",
}
WITHOUT = ["two.html#id1", "two.html#nowhere", "three.html", "https://example.org/two.html"]


def test_a_link_shows_the_place_that_it_leads_to(tmp_path: Path) -> None:
    links = "".join(f'<a href="{address}">x</a>' for address in [*SHOWN, *WITHOUT])
    own = '<section id="own"><h2>Own<a class="headerlink" href="#own">#</a></h2></section>'
    (tmp_path / "book").mkdir()
    for name, body in {
        "one": f'<section id="here"><h1>Links</h1>{links}</section>{own}',
        "two": PLACES,
    }.items():
        page = (
            f'<html><head></head><body><article class="bd-article">{body}</article></body></html>'
        )
        (tmp_path / "book" / f"{name}.html").write_text(page)
    app = SimpleNamespace(
        builder=SimpleNamespace(format="html"),
        env=SimpleNamespace(found_docs={"book/one", "book/two"}),
        outdir=tmp_path,
        srcdir=tmp_path,
    )
    write_cards(app, None)
    (script,) = (tmp_path / "_static" / "cards" / "book").glob("one-*.js")
    assert f'src="../_static/cards/book/{script.name}"' in (tmp_path / "book/one.html").read_text()
    written = script.read_text().removeprefix("window.hoverCards=").removesuffix(";\n")
    assert json.loads(written)["cards"] == SHOWN
