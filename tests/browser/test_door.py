"""The landing page: its explorer waits hidden, a button invites, and it needs no JavaScript."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from chromium import SITE
from visits import Visit, barriers, close_all, hurry, shown

pytestmark = pytest.mark.browser

DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
HEIGHT = "() => document.querySelector('.explorer.door').getBoundingClientRect().height"


@pytest.fixture
def visit(browser, address: str):
    visits = []

    def opener(**settings):
        visits.append(Visit(browser, f"{address}/book/index.html", **settings))
        return visits[-1].page

    yield opener
    close_all(visits)


def numbers() -> dict:
    text = (SITE / "book" / "index.html").read_text(encoding="utf-8")
    return json.loads(re.search(r'class="order-explorer-data">(.*?)</script>', text, re.S)[1])


def total(data: dict, order: tuple[int, ...]) -> float:
    seen = itertools.accumulate((1 << j for j in order), initial=0)
    return sum(data["terms"][s][j] for s, j in zip(seen, order, strict=False))


def invite(page):
    return page.locator(".door .oe-invite")


def test_nothing_is_revealed_until_somebody_asks(visit) -> None:
    pages = [visit(viewport=each, reduced_motion="no-preference") for each in (DESKTOP, PHONE)]
    for page in pages:
        page.locator(".door[data-ready]").wait_for()
    before = [page.evaluate(HEIGHT) for page in pages]
    pages[0].wait_for_timeout(1500)  # for both
    for page, height in zip(pages, before, strict=True):
        reveal(page, height)


def reveal(page, height: float) -> None:
    """Ask for what is hidden, from a door of which nothing is revealed, as high as it shall stay."""
    hurry(page)
    assert page.locator(".door .oe-card[data-revealed=true]").count() == 0
    assert page.locator("script[src*=explorer]").count() == 2  # what all share, and its own
    data = numbers()
    order = tuple(range(len(data["names"])))
    assert invite(page).inner_text() == "Reveal one"
    invite(page).click()
    assert page.locator(".door .oe-card[data-revealed=true]").count() == 1
    assert shown(page, "running") == pytest.approx(data["terms"][0][0], abs=6e-4)
    assert invite(page).inner_text() == "Reveal the rest"
    invite(page).click()
    page.locator(".door .oe-to-come").last.wait_for(state="detached")
    assert shown(page, "running") == pytest.approx(total(data, order), abs=6e-4)
    assert shown(page, "total") == pytest.approx(sum(data["curve"]), abs=6e-4)
    assert page.evaluate(HEIGHT) == height  # the room was kept
    assert invite(page).inner_text() == "Another order"
    page.locator(".door").get_by_role("button", name="Reset").click()
    assert page.locator(".door .oe-card[data-revealed=true]").count() == 0
    assert invite(page).inner_text() == "Reveal one"


def test_the_rest_comes_in_the_order_of_the_sentence_and_then_another_one(visit) -> None:
    page = visit(viewport=DESKTOP, reduced_motion="reduce")
    page.locator(".door[data-ready]").wait_for()
    page.locator(".door .oe-card").nth(3).click()
    assert shown(page, "running") == pytest.approx(numbers()["terms"][0][3], abs=6e-4)
    invite(page).focus()
    page.keyboard.press("Enter")  # without motion all at once
    assert shown(page, "running") == pytest.approx(total(numbers(), (3, 0, 1, 2, 4)), abs=6e-4)
    page.keyboard.press("Enter")
    assert page.locator(".door .oe-card[data-revealed=true]").count() == 5
    tried = page.locator(".door .oe-tried tbody th").all_text_contents()
    assert len(tried) == len(set(tried)) == 2
    live = page.locator(".door .oe-live")
    assert live.get_attribute("aria-live") == "polite" and "2 of 120" in live.inner_text()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_the_ways_on_stand_above_the_fold_and_so_does_the_invitation(visit, viewport) -> None:
    page = visit(viewport=viewport)
    page.locator(".door[data-ready]").wait_for()
    for place in (".door-buttons", ".door .oe-invite"):
        box = page.locator(place).bounding_box()
        assert box["y"] + box["height"] <= viewport["height"]
    column = page.locator(".door").bounding_box()
    assert column["x"] + column["width"] > 0.94 * viewport["width"]


def test_the_first_tab_leads_past_the_side_bar(visit) -> None:
    page = visit(viewport=DESKTOP)
    page.locator(".door[data-ready]").wait_for()
    page.keyboard.press("Tab")
    link = page.locator(".skip-link a")
    assert link.evaluate("e => e === document.activeElement") and link.is_visible()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("() => !!document.activeElement.closest('main')")


def test_the_mean_of_all_orders_is_the_sum_of_the_scores() -> None:
    data = numbers()
    orders = list(itertools.permutations(range(len(data["names"]))))
    mean = sum(total(data, order) for order in orders) / len(orders)
    assert mean == pytest.approx(sum(data["curve"]), abs=1e-8)


def test_without_javascript_a_table_stands_there(visit) -> None:
    page = visit(viewport=DESKTOP, java_script_enabled=False)
    assert page.locator(".door table").is_visible()
    assert page.locator(".door-buttons a").count() == 3
    assert page.evaluate(HEIGHT) < 400  # the room for what moves is not kept


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_door_has_no_barrier(visit, scheme: str) -> None:
    page = visit(viewport=DESKTOP, color_scheme=scheme, reduced_motion="reduce")
    page.locator(".door[data-ready]").wait_for()
    assert barriers(page, "main") == []
