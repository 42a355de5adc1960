"""What a page does while it loads, and what of it waits until a reader comes near."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page
from visits import stand_still

pytestmark = pytest.mark.browser

CHAPTER = "book/06-convergence"
PHONE = {"width": 390, "height": 844}
UNSET = "() => document.querySelectorAll('main .math:not(:has(mjx-container))').length"
ALL_SET = "() => MathJax.startup.promise"
# Formulas are set in turns, with a pause before each. No pause ends here once MathJax is ready.
ENDLESS_PAUSES = """
  const wait = window.setTimeout.bind(window);
  window.setTimeout = (then, pause, ...given) =>
    pause === undefined && window.MathJax?.typeset ? 0 : wait(then, pause, ...given);
"""
# Elements that a script measured while the browser had not laid them out.
NOTE_MEASURED = """
  window.measuredAfar = [];
  for (const name of ["scrollWidth", "scrollHeight", "clientWidth", "clientHeight"]) {
    const { get } = Object.getOwnPropertyDescriptor(Element.prototype, name);
    Object.defineProperty(Element.prototype, name, { get() {
      if (!this.checkVisibility({ contentVisibilityAuto: true })) measuredAfar.push(this.outerHTML);
      return get.call(this);
    } });
  }
"""
TOP = "name => document.getElementById(name).getBoundingClientRect().top"
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


@pytest.mark.parametrize("is_from_outside", [True, False], ids=["from outside", "from its top"])
@pytest.mark.parametrize("name", ["exercises", "three-questions"])
def test_a_link_shows_what_it_names(
    page: Page, address: str, name: str, is_from_outside: bool
) -> None:
    """What stands above it is laid out after the jump, and then has another height."""
    page.goto(f"{address}/{CHAPTER}.html#{name if is_from_outside else ''}")
    page.evaluate(ALL_SET)
    page.evaluate("name => { location.hash = name }", name)
    stand_still(page)
    assert 0 <= page.evaluate(TOP, name) < PHONE["height"] / 4


def test_nothing_is_measured_far_from_the_screen(page: Page, address: str) -> None:
    """Else all of the page is laid out, at once, while a reader waits."""
    page.add_init_script(NOTE_MEASURED)
    page.goto(f"{address}/{CHAPTER}.html")
    page.evaluate(ALL_SET)
    page.wait_for_timeout(1000)  # the theme's script measures 0.3 s after a change
    assert page.evaluate("measuredAfar") == []


def test_a_dark_page_is_dark_before_its_scripts_run(page: Page, address: str) -> None:
    page.emulate_media(color_scheme="dark")
    page.route("**/*.js", lambda route: route.abort())
    page.goto(f"{address}/{CHAPTER}.html")
    dark = page.evaluate(BACKGROUND)
    page.emulate_media(color_scheme="light")
    page.reload()
    assert page.evaluate(BACKGROUND) != dark
