"""A chapter on a phone: its key points are in sight at once, and what cells printed needs no push."""

from __future__ import annotations

import pytest
from book_layout import Book
from visits import Visit

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844}
CHAPTERS = [page.docname for page in Book().chapters if not page.is_note]
PUSHED = """() => [...document.querySelectorAll("article .cell_output pre")]
  .filter(printed => printed.checkVisibility() && printed.scrollWidth > printed.clientWidth + 1)
  .map(printed => printed.textContent.slice(0, 60))"""


@pytest.mark.parametrize("docname", CHAPTERS)
def test_the_first_screen_has_all_key_points(browser, address: str, docname: str) -> None:
    visit = Visit(browser, f"{address}/{docname}.html", viewport=PHONE)
    page = visit.settle()
    box = page.locator(".key-points").first.bounding_box()
    assert box["y"] + box["height"] <= PHONE["height"]
    assert page.evaluate(PUSHED) == []
    visit.close()
