"""The cheat-sheet on paper, the filter of the map, and the name of a chapter in a link to it."""

from __future__ import annotations

import io

import pypdfium2
import pytest
from chromium import SITE
from lxml import html
from visits import Visit

pytestmark = pytest.mark.browser

DESKTOP = {"width": 1440, "height": 900}


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


def test_the_map_is_filtered_by_verdict(browser, address: str) -> None:
    visit = Visit(browser, f"{address}/book/map-2-ppca.html", viewport=DESKTOP)
    page = visit.settle()
    rows = page.locator("table.ledger:not(.ledger-summary) tbody tr:has(td.col-verdict .verdict)")
    everything = rows.count()
    buttons = page.locator(".verdict-filter button")
    numbers = [int(text.split()[-1]) for text in buttons.all_inner_texts()]
    assert numbers[0] == everything == sum(numbers[1:])
    failed = page.locator("[data-verdict='does not hold']")
    failed.focus()
    page.keyboard.press("Enter")
    shown = [row for row in rows.all() if row.is_visible()]
    assert len(shown) == int(failed.inner_text().split()[-1])
    assert all("does not hold" in row.inner_text() for row in shown)
    assert failed.get_attribute("aria-pressed") == "true"
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


def test_a_chapter_is_named_by_its_number(address: str) -> None:
    page = html.parse(SITE / "book" / "07-training.html").getroot()
    links = page.xpath("//article//p/a[contains(string(), 'Chapter 3')]")
    assert links[0].text_content() == "Chapter 3"
    assert links[0].get("title") == "The mask-rate curve"
