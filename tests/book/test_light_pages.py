"""The written pages' style sheet, of a theme whose icon fonts cannot be cut."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from light_pages import WEBFONTS, lighten

FONT = "fa-solid-900.woff2"
RULE = '.fa-anchor:before{content:"\\f13d"}'  # an icon that no page has
PAGE = '<html><head><link rel="stylesheet" href="_static/theme.css"/></head><body></body></html>'


def test_a_theme_without_truetype_fonts_keeps_its_icons(tmp_path: Path) -> None:
    (tmp_path / WEBFONTS).mkdir(parents=True)
    (tmp_path / WEBFONTS / FONT).write_bytes(b"a font")
    face = f'@font-face{{font-family:"Font Awesome";src:url(vendor/fontawesome/webfonts/{FONT})}}'
    (tmp_path / "_static" / "theme.css").write_text(f"{face}\n{RULE}")
    (tmp_path / "page.html").write_text(PAGE)
    html = SimpleNamespace(format="html")
    lighten(SimpleNamespace(builder=html, srcdir=tmp_path, outdir=tmp_path), None)
    assert (tmp_path / WEBFONTS / FONT).is_file()
    (sheet,) = (tmp_path / "_static").glob("book-*.css")
    assert face in sheet.read_text() and RULE in sheet.read_text()
    assert f"_static/{sheet.name}" in (tmp_path / "page.html").read_text()
