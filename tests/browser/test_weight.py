"""What a first visit costs: bytes, requests, and how far the page shifts while it loads."""

from __future__ import annotations

import pytest
from chromium import SITE
from lxml import html
from visits import Visit

pytestmark = pytest.mark.browser

HEAVIEST = 850_000  # bytes, as a server sends them
MOST_REQUESTS = 30
LARGEST_SHIFT = 0.1  # cumulative layout shift; above it is what browsers call in need of work
WIDTHS = {"desk": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}
PAGES = ["book/index", "book/01-masked-pretraining", "book/03-mask-rate-curve"]
PAGES += ["book/11-known-language", "book/12-bert", "book/14-masked-diffusion"]
PAGES += ["book/cheat-sheet", "book/map", "search"]
COME_NEAR = "at => scrollTo(0, scrollY + at.getBoundingClientRect().top - innerHeight - 500)"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("docname", PAGES)
def test_a_first_visit_is_light_and_still(browser, address: str, docname: str, width: str) -> None:
    visit = Visit(browser, f"{address}/{docname}.html", viewport=WIDTHS[width], first=True)
    page = visit.settle()
    if page.locator(".network-explorer").count():  # its weights come when a reader comes near
        page.locator(".network-explorer").evaluate(COME_NEAR)
        page.locator(".network-explorer[data-ready=true]").wait_for()
    page.wait_for_timeout(500)
    weight, requests = visit.cost()
    assert weight < HEAVIEST
    assert requests <= MOST_REQUESTS, [request.url for request in visit.finished]
    assert page.evaluate("shifted") < LARGEST_SHIFT
    assert page.evaluate("document.documentElement.classList.contains('setting')") is False
    visit.close()


def test_an_explorer_s_script_is_on_its_pages_only(address: str) -> None:
    # The part that all share, and one script for each explorer of the page.
    numbers = {"book/cheat-sheet": 0, "book/04-orders": 2, "book/03-mask-rate-curve": 3}
    numbers |= {"book/08-curve-shape": 0, "book/11-known-language": 2}
    for docname, number in numbers.items():
        page = html.parse(SITE / f"{docname}.html").getroot()
        assert len(page.xpath("//script[contains(@src, 'explorer')]")) == number, docname
