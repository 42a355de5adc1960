"""The landing page: its explorer has a first sentence, and needs no JavaScript to say so."""

from __future__ import annotations

import pytest
from visits import Visit, barriers, close_all

pytestmark = pytest.mark.browser

DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
EXPLORER = ".sentence-explorer"


@pytest.fixture
def visit(browser, address: str):
    visits = []

    def opener(**settings):
        visits.append(Visit(browser, f"{address}/book/index.html", **settings))
        return visits[-1].page

    yield opener
    close_all(visits)


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_the_ways_on_stand_above_the_fold_and_so_does_the_field(visit, viewport) -> None:
    page = visit(viewport=viewport)
    page.locator(".sentence-explorer[data-ready]").wait_for()
    for place in (".door-buttons", f"{EXPLORER} textarea >> nth=0"):
        box = page.locator(place).bounding_box()
        assert box["y"] + box["height"] <= viewport["height"]
    column = page.locator(EXPLORER).bounding_box()
    assert column["x"] + column["width"] > 0.94 * viewport["width"]


def test_the_first_tab_leads_past_the_side_bar(visit) -> None:
    page = visit(viewport=DESKTOP)
    page.locator(".sentence-explorer[data-ready]").wait_for()
    page.keyboard.press("Tab")
    link = page.locator(".skip-link a")
    assert link.evaluate("e => e === document.activeElement") and link.is_visible()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("() => !!document.activeElement.closest('main')")


def test_without_javascript_a_table_stands_there(visit) -> None:
    page = visit(viewport=DESKTOP, java_script_enabled=False)
    assert page.locator(f"{EXPLORER} table").is_visible()
    assert page.locator(".door-buttons a").count() == 3
    # The room for what moves is not kept.
    assert page.locator(EXPLORER).bounding_box()["height"] < 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_door_has_no_barrier(visit, scheme: str) -> None:
    page = visit(viewport=DESKTOP, color_scheme=scheme, reduced_motion="reduce")
    page.locator(".sentence-explorer[data-ready]").wait_for()
    assert barriers(page, "main") == []
