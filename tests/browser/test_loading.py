"""What a page does while it loads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

pytestmark = pytest.mark.browser

CHAPTER = "book/06-convergence"
PHONE = {"width": 390, "height": 844}
BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"


@pytest.fixture
def page(browser) -> Iterator[Page]:
    context = browser.new_context(viewport=PHONE)
    yield context.new_page()
    context.close()


def test_a_dark_page_is_dark_before_its_scripts_run(page: Page, address: str) -> None:
    page.emulate_media(color_scheme="dark")
    page.route("**/*.js", lambda route: route.abort())
    page.goto(f"{address}/{CHAPTER}.html")
    dark = page.evaluate(BACKGROUND)
    page.emulate_media(color_scheme="light")
    page.reload()
    assert page.evaluate(BACKGROUND) != dark
