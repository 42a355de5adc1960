"""What a first visit costs: bytes, requests, and how far the page shifts while it loads."""

from __future__ import annotations

import pytest
from chromium import SITE
from first_visits import PAGES, costs
from lxml import html
from visits import Visit

pytestmark = pytest.mark.browser

DESK = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
# On a phone the other pages are visited for the first time in test_pages.py.
VISITS = [pytest.param(docname, DESK, id=f"{docname} at a desk") for docname in PAGES]
VISITS.append(pytest.param("search", PHONE, id="search on a phone"))


@pytest.mark.parametrize(("docname", "viewport"), VISITS)
def test_a_first_visit_is_light_and_still(
    browser, address: str, docname: str, viewport: dict[str, int]
) -> None:
    visit = Visit(browser, f"{address}/{docname}.html", viewport=viewport, first=True)
    faults = {what: found for what, found in costs(visit).items() if found}
    visit.close()
    assert faults == {}


def test_an_explorer_s_script_is_on_its_pages_only(address: str) -> None:
    # The part that all share, and one script for each explorer of the page.
    numbers = {
        "book/cheat-sheet": 0,
        "book/04-orders": 3,
        "book/index": 2,
        "book/note-b-orders": 0,
        "book/03-mask-rate-curve": 3,
    }
    numbers |= {"book/08-curve-shape": 0, "book/11-known-language": 2}
    for docname, number in numbers.items():
        page = html.parse(SITE / f"{docname}.html").getroot()
        assert len(page.xpath("//script[contains(@src, 'explorer')]")) == number, docname
