"""What a first visit costs: bytes, requests, and how far the page shifts while it loads."""

from __future__ import annotations

import gzip

import pytest
from chromium import SITE
from lxml import html
from visits import MEASURE_SHIFTS

pytestmark = pytest.mark.browser

HEAVIEST = 850_000  # bytes, as a server sends them
MOST_REQUESTS = 30
LARGEST_SHIFT = 0.1  # cumulative layout shift; above it is what browsers call in need of work
PACKED = ("woff", "woff2", "png", "jpg")  # these are compressed already
WIDTHS = {"desk": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}
PAGES = ["book/index", "book/01-masked-pretraining", "book/03-mask-rate-curve"]
PAGES += ["book/11-known-language", "book/12-bert", "book/14-masked-diffusion"]
PAGES += ["book/cheat-sheet", "book/map", "search"]
COME_NEAR = "at => scrollTo(0, scrollY + at.getBoundingClientRect().top - innerHeight - 500)"
SET = "() => !window.MathJax || (MathJax.startup && MathJax.startup.promise)"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("docname", PAGES)
def test_a_first_visit_is_light_and_still(browser, address: str, docname: str, width: str) -> None:
    context = browser.new_context(viewport=WIDTHS[width])  # with nothing kept of earlier visits
    page = context.new_page()
    page.add_init_script(f"({MEASURE_SHIFTS})()")
    requests = []
    page.on("requestfinished", lambda request: requests.append(request))
    page.goto(f"{address}/{docname}.html", wait_until="load")
    page.wait_for_function(SET)
    page.evaluate("() => window.MathJax ? MathJax.startup.promise : null")
    if page.locator(".network-explorer").count():  # its weights come when a reader comes near
        page.locator(".network-explorer").evaluate(COME_NEAR)
        page.locator(".network-explorer[data-ready=true]").wait_for()
    page.wait_for_timeout(500)
    asked = [each for each in requests if not each.url.startswith("data:")]
    weight = 0
    for request in asked:
        body = request.response().body()
        ending = request.url.partition("?")[0].rpartition(".")[2]
        weight += len(body) if ending in PACKED else len(gzip.compress(body, 6))
    assert weight < HEAVIEST
    assert len(asked) <= MOST_REQUESTS, [request.url for request in asked]
    assert page.evaluate("shifted") < LARGEST_SHIFT
    assert page.evaluate("document.documentElement.classList.contains('setting')") is False
    context.close()


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
