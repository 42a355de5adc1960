"""Old addresses lead on: a page that moved, and anchors that moved to another page (book/moved.yml)."""

import html
import json
from pathlib import Path
from typing import Any

import yaml
from sphinx.application import Sphinx

MOVED = "book/moved.yml"
PAGE = """<!DOCTYPE html>
<html lang="en">
  <head>
    <meta charset="utf-8" />
    <meta name="viewport" content="width=device-width, initial-scale=1" />
    <title>Moved: {title}</title>
    <meta name="robots" content="noindex" />
    <link rel="canonical" href="{address}" />
    <noscript><meta http-equiv="refresh" content="0; url={address}" /></noscript>
    {script}
  </head>
  <body>
    <main>
      <h1>This page has moved</h1>
      <p>It is now <a href="{address}">{title}</a>.</p>
    </main>
  </body>
</html>
"""
SCRIPT = """<script>
      const moved = {anchors};
      const anchor = decodeURIComponent(location.hash.slice(1)).replace(/^equation-/, "");
      const place = moved[anchor]{otherwise};
      if (place) location.replace(place);
    </script>"""


def address(place: str) -> str:
    """``05-ppca#eq-05-model`` as a link: Sphinx writes anchors of equations as equation-name."""
    page, _, label = place.partition("#")
    anchor = f"equation-{label}" if label.startswith("eq-") else label.lower().replace("_", "-")
    return f"{page}.html" + (f"#{anchor}" if label else "")


def script(anchors: dict[str, str], otherwise: str = "") -> str:
    places = {label: address(place) for label, place in anchors.items()}
    fallback = f" || {json.dumps(otherwise)} + location.hash" if otherwise else ""
    return SCRIPT.format(anchors=json.dumps(places, sort_keys=True), otherwise=fallback)


def lead_on(app: Sphinx, exception: Exception | None) -> None:
    source = Path(app.srcdir, MOVED)
    if exception is not None or app.builder.format != "html" or not source.is_file():
        return
    moved = yaml.safe_load(source.read_text(encoding="utf-8"))
    for name, entry in moved.items():
        page = Path(app.outdir, "book", f"{name}.html")
        if page.is_file():  # only some of its anchors have gone
            text = page.read_text(encoding="utf-8")
            page.write_text(text.replace("</head>", f"{script(entry['anchors'])}\n</head>", 1))
            continue
        target = address(entry["to"])
        title = app.env.titles[f"book/{entry['to'].partition('#')[0]}"].astext()
        page.write_text(
            PAGE.format(
                title=html.escape(title),
                address=target,
                script=script(entry["anchors"], target),
            ),
            encoding="utf-8",
        )


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", lead_on, priority=870)  # before the pages get their policy
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
