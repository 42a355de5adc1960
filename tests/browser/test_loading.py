"""What a page does while it loads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

pytestmark = pytest.mark.browser

CHAPTER = "book/06-convergence"
PHONE = {"width": 390, "height": 844}
UNSET = "() => document.querySelectorAll('main .math:not(:has(mjx-container))').length"
# Formulas are set in turns, with a pause before each. No pause ends here once MathJax is ready.
ENDLESS_PAUSES = """
  const wait = window.setTimeout.bind(window);
  window.setTimeout = (then, pause, ...given) =>
    pause === undefined && window.MathJax?.typeset ? 0 : wait(then, pause, ...given);
"""
BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"


@pytest.fixture
def page(browser) -> Iterator[Page]:
    context = browser.new_context(viewport=PHONE)
    yield context.new_page()
    context.close()


def test_every_formula_is_set_on_paper(page: Page, address: str) -> None:
    page.add_init_script(ENDLESS_PAUSES)
    page.goto(f"{address}/{CHAPTER}.html")
    page.wait_for_function("() => MathJax.typeset")
    assert page.evaluate(UNSET) > 0
    page.pdf()
    assert page.evaluate(UNSET) == 0


def test_a_dark_page_is_dark_before_its_scripts_run(page: Page, address: str) -> None:
    page.emulate_media(color_scheme="dark")
    page.route("**/*.js", lambda route: route.abort())
    page.goto(f"{address}/{CHAPTER}.html")
    dark = page.evaluate(BACKGROUND)
    page.emulate_media(color_scheme="light")
    page.reload()
    assert page.evaluate(BACKGROUND) != dark
