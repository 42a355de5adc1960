"""Print the built book as one PDF, `_build/html/book.pdf`, with links and an outline.

    python book/_tools/pdf.py        (after make book; make pdf does both)

Chromium shows the articles of all pages in one document, so that links between chapters work,
and makes the outline from the headings. The reference of the package is left out: a hundred pages
that `help` shows as well.
"""

import io
import multiprocessing
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pikepdf
from book_layout import ROOT, Book, Page
from chromium import SITE, browser, executable, served
from playwright.sync_api import Browser

HERE = Path(__file__).parent
SECONDS = 600  # it takes a minute; two of some forty never ended, with all of Chromium asleep
FOOTER = (
    '<p style="width:100%;text-align:center;font-size:8px"><span class="pageNumber"></span></p>'
)


def entries(above: pikepdf.Object) -> Iterator[pikepdf.Object]:
    entry = above.get("/First")
    while entry is not None:
        yield from (entry, *entries(entry))
        entry = entry.get("/Next")


def printed_pages(book: Book) -> list[Page]:
    return [page for page in book.pages if not page.docname.startswith("book/api")]


def title_page(book: Book) -> list[tuple[str, str]]:
    """Its lines, each with the class that says how it is set."""
    changelog = (book.root / "CHANGELOG.md").read_text(encoding="utf-8")
    version = re.search(r"^## (\S+)", changelog, re.M)
    return [
        ("title", book.config["title"]),
        ("subtitle", "Masked pre-training and the marginal likelihood, by hand and in code"),
        ("authors", f"By {book.config['author']}"),
        ("about", f"Version {version[1]}, {book.config['copyright']}" if version else ""),
        ("about", f"To read on a screen, and to run: {book.site}"),
        ("about", f"Sources, licence and who did what: {book.repository}"),
    ]


def link_printed(book: Book) -> None:
    """The home page links to the PDF beside it, which works without a network, too."""
    page = SITE / f"{book.pages[0].docname}.html"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace(f'href="{book.site}/book.pdf"', 'href="../book.pdf"'), "utf-8")


def print_book(book: Book, opened: Browser, where: str, out: Path) -> int:
    """Write ``out`` from the site at ``where`` and return its number of pages."""
    page = opened.new_page(color_scheme="light")
    page.set_default_timeout(0)
    page.goto(f"{where}/{book.pages[0].docname}.html", wait_until="load")
    files = [f"{Path(printed.docname).name}.html" for printed in printed_pages(book)]
    given = {"pages": files, "front": title_page(book)}
    joined = page.evaluate((HERE / "print.js").read_text(), given)
    if joined["broken"] or joined["nowhere"]:
        faults = joined["broken"] + joined["nowhere"]
        raise SystemExit(f"pdf: images or links lead nowhere: {faults}")
    page.add_style_tag(path=HERE / "print.css")
    printed_bytes = page.pdf(
        prefer_css_page_size=True,
        print_background=True,
        outline=True,
        tagged=True,
        display_header_footer=True,
        header_template="<i></i>",
        footer_template=FOOTER,
    )
    page.close()
    with pikepdf.open(io.BytesIO(printed_bytes)) as whole:
        # Chromium says a heading twice whose number stands in an element of its own.
        for entry, title in zip(entries(whole.Root.Outlines), joined["headings"], strict=True):
            entry.Title = pikepdf.String(title)
        whole.docinfo["/Title"] = book.config["title"]
        whole.docinfo["/Author"] = book.config["author"]
        whole.save(out, object_stream_mode=pikepdf.ObjectStreamMode.generate)  # half the size
        return len(whole.pages)


def print_site() -> None:
    book = Book(ROOT)
    out = SITE / "book.pdf"
    for page in book.pages:
        if not (SITE / f"{page.docname}.html").is_file():
            raise SystemExit(f"pdf: {page.docname}.html is not built: run make book")
    if executable() is None:
        raise SystemExit("pdf: no Chromium in PATH: install one, or set MPT_LML_CHROMIUM")
    with served(SITE) as where, browser() as opened:
        pages = print_book(book, opened, where, out)
    link_printed(book)
    print(f"pdf: {pages} pages, {out.stat().st_size / 2**20:.1f} MiB, {out.relative_to(ROOT)}")


def main(work: Callable[[], None] = print_site, seconds: float = SECONDS) -> int:
    for _ in range(2):
        printing = multiprocessing.get_context("spawn").Process(target=work)
        printing.start()
        printing.join(seconds)
        if printing.exitcode is not None:
            return printing.exitcode
        printing.kill()
        print(f"pdf: nothing came for {seconds:g} s", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
