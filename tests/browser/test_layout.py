"""How pages are laid out: used width on a phone, what is printed, ranks of headings, filters."""

from __future__ import annotations

import io

import pypdfium2
import pytest
from book_layout import Book
from visits import Visit, change

pytestmark = pytest.mark.browser

CHAPTERS = [page.docname for page in Book().chapters]
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
A4 = {"width": 794 - 2 * 53, "height": 1123}  # pixels of the paper without its margins

# The share of its table's width that each cell has which is a card's line on a phone.
SHARES = """() => [...document.querySelectorAll('article table.cheat-sheet, article table.ledger')]
  .flatMap(table => [...table.querySelectorAll('td')]
    .filter(cell => cell.checkVisibility())
    .map(cell => cell.getBoundingClientRect().width / table.getBoundingClientRect().width))"""
USED = """() => { const table = document.querySelector('article table.cheat-sheet, article table.ledger');
  return table.getBoundingClientRect().width / document.querySelector('article').clientWidth }"""
SCROLLS = """() => [...document.querySelectorAll('article .pst-scrollable-table-container')]
  .filter(box => box.scrollWidth > box.clientWidth + 1).length"""
CUT = """() => [...document.querySelectorAll('article pre')]
  .filter(code => code.checkVisibility() && code.scrollWidth > code.clientWidth + 1)
  .map(code => code.textContent.slice(0, 60))"""
# Full stops and the like that begin a line because the formula before them ended the last one.
ORPHANS = """() => [...document.querySelectorAll('article span.math')].filter(formula => {
  const next = formula.nextSibling;
  if (!next || next.nodeType !== 3 || !/^[.,;:!?)]/.test(next.data)) return false;
  const range = document.createRange();
  range.setStart(next, 0);
  range.setEnd(next, 1);
  return range.getBoundingClientRect().left < formula.getBoundingClientRect().left;
}).map(formula => formula.nextSibling.data.slice(0, 20))"""


@pytest.mark.parametrize("docname", ["book/scoring-guide", "book/cheat-sheet", "book/map-2-ppca"])
def test_tables_use_the_width_of_a_phone(browser, address: str, docname: str) -> None:
    visit = Visit(browser, f"{address}/{docname}.html", viewport=PHONE)
    page = visit.settle()
    shares = page.evaluate(SHARES)
    assert len(shares) > 10 and min(shares) >= 0.9
    assert page.evaluate(USED) >= 0.9
    assert page.evaluate(SCROLLS) == 0
    visit.close()


def test_a_phone_names_the_columns_of_answers_by_what_they_are(browser, address: str) -> None:
    labels = """() => [2, 3].map(n => getComputedStyle(
      document.querySelector(`table.questions tbody td:nth-child(${n}) p`), '::before').content)"""
    visit = Visit(browser, f"{address}/book/note-a-one-rate.html", viewport=PHONE)
    assert visit.settle().evaluate(labels) == ["none", '"Why: "']
    visit.close()


@pytest.mark.parametrize("docname", ["book/07-training", "book/13-images", "book/how-to-run"])
def test_printing_cuts_no_code(browser, address: str, docname: str) -> None:
    visit = Visit(browser, f"{address}/{docname}.html", viewport=A4)
    page = visit.settle()
    change(page, media="print")
    assert page.evaluate(CUT) == []
    visit.close()


def test_the_cheat_sheet_prints_on_one_page(browser, address: str) -> None:
    visit = Visit(browser, f"{address}/book/cheat-sheet.html", viewport=DESKTOP)
    page = visit.settle()
    page.emulate_media(media="print")
    for paper in ("A4", "Letter"):
        with pypdfium2.PdfDocument(io.BytesIO(page.pdf(format=paper))) as printed:
            assert len(printed) == 1, paper
            text = printed[0].get_textpage().get_text_bounded()
        assert "Cheat-sheet" in text and "orders.log_probability" in text
    visit.close()


@pytest.mark.parametrize("docname", ["book/map", "book/07-training"])
def test_a_heading_outweighs_those_below_it(browser, address: str, docname: str) -> None:
    visit = Visit(browser, f"{address}/{docname}.html", viewport=DESKTOP)
    page = visit.settle()
    sizes, weights = [], []
    for level in ("h1", "h2", "h3"):
        style = f"article {level}"
        sizes.append(
            page.locator(style).first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
        )
        weights.append(page.locator(style).first.evaluate("e => +getComputedStyle(e).fontWeight"))
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3
    assert weights == sorted(weights, reverse=True)
    visit.close()


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desk"])
@pytest.mark.parametrize("docname", [CHAPTERS[2], CHAPTERS[10]])
def test_no_full_stop_stands_alone(browser, address: str, docname: str, viewport: dict) -> None:
    visit = Visit(browser, f"{address}/{docname}.html", viewport=viewport)
    assert visit.settle().evaluate(ORPHANS) == []
    visit.close()


def test_the_map_is_filtered_by_verdict(browser, address: str) -> None:
    visit = Visit(browser, f"{address}/book/map-2-ppca.html", viewport=DESKTOP)
    page = visit.settle()
    rows = page.locator("table.ledger:not(.ledger-summary) tbody tr:has(td.col-verdict .verdict)")
    everything = rows.count()
    buttons = page.locator(".verdict-filter button")
    numbers = [int(text.split()[-1]) for text in buttons.all_inner_texts()]
    assert numbers[0] == everything == sum(numbers[1:])
    refuted = page.locator("[data-verdict=refuted]")
    refuted.focus()
    page.keyboard.press("Enter")
    shown = [row for row in rows.all() if row.is_visible()]
    assert len(shown) == int(refuted.inner_text().split()[-1])
    assert all("refuted" in row.inner_text() for row in shown)
    assert refuted.get_attribute("aria-pressed") == "true"
    hidden = rows.nth(0).get_attribute("id")
    page.evaluate("name => { location.hash = name }", hidden)
    page.wait_for_function("name => document.getElementById(name).checkVisibility()", arg=hidden)
    visit.close()


def test_the_whole_map_is_there_without_javascript(browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/book/map-2-ppca.html")
    rows = page.locator("table.ledger td.col-verdict .verdict")
    assert rows.count() > 20 and page.locator(".verdict-filter").count() == 0
    assert all(page.locator("table.ledger tbody tr").nth(k).is_visible() for k in (0, 10, 20))
    context.close()


def test_a_chapter_is_named_by_its_number(browser, address: str) -> None:
    visit = Visit(browser, f"{address}/book/07-training.html", viewport=DESKTOP)
    page = visit.settle()
    link = page.locator("article p > a", has_text="Chapter 3").first
    assert link.inner_text() == "Chapter 3"
    assert link.get_attribute("title") == "The mask-rate curve"
    visit.close()
