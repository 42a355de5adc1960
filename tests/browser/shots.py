"""Pictures of built pages, at desktop and phone width, light and dark.

.venv/bin/python tests/browser/shots.py 03-mask-rate-curve index --out shots
.venv/bin/python tests/browser/shots.py 04-ppca --only desktop-light --anchor sec-closed-form
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "book" / "_tools"))

from chromium import SITE, browser, executable, served
from visits import Visit

WIDTHS = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
SCHEMES = ("light", "dark")
TALLEST = 16_000  # a picture taller than this is cut: no viewer opens it


def shoot(pages: list[str], out: Path, only: str, anchor: str) -> list[Path]:
    made = []
    out.mkdir(parents=True, exist_ok=True)
    with served(SITE) as where, browser() as opened:
        for name in pages:
            docname = name if "/" in name else f"book/{name}"
            docname = docname.removesuffix(".html").removesuffix(".md")
            for device, viewport in WIDTHS.items():
                for scheme in SCHEMES:
                    if only not in f"{device}-{scheme}":
                        continue
                    address = f"{where}/{docname}.html" + (f"#{anchor}" if anchor else "")
                    visit = Visit(opened, address, viewport=viewport, color_scheme=scheme)
                    page = visit.settle()
                    path = out / f"{docname.rsplit('/', 1)[-1]}-{device}-{scheme}.png"
                    height = page.evaluate("() => document.documentElement.scrollHeight")
                    whole = not anchor and height <= TALLEST
                    page.screenshot(path=path, full_page=whole)
                    faults = [*visit.outside, *visit.errors]
                    print(path, *(f"\n   fault: {fault}" for fault in faults))
                    made.append(path)
                    visit.close()
    return made


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="+", help="03-mask-rate-curve, or book/index")
    parser.add_argument("--out", type=Path, default=Path("_build/shots"))
    parser.add_argument("--only", default="", help="desktop, phone-dark, light, …")
    parser.add_argument("--anchor", default="", help="show this place only, one screen high")
    options = parser.parse_args()
    if executable() is None:
        print("shots: no Chromium in PATH", file=sys.stderr)
        return 1
    shoot(options.pages, options.out, options.only, options.anchor)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
