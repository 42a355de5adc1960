"""A page of the built site in Chromium, with what it asked of other sites."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, ViewportSize

# Waits until nothing moves any more. The theme's side bar slides in and out for a quarter of a second
# when the width changes. On the way from a phone's width to a desk's it has a place in the layout
# again, far to the left, and pulls the article out of sight with it until it has arrived; colours
# fade after a change of scheme in the same way. The first frame starts the transitions, the second
# has them in the list. An animation without an end is not waited for.
STANDSTILL = """async seconds => {
  const frame = () => new Promise(requestAnimationFrame);
  const moving = () => document.getAnimations().filter(each =>
    each.playState === "running" && each.effect.getComputedTiming().endTime !== Infinity);
  const boxes = () => JSON.stringify([...document.querySelectorAll("main, article, .explorer")]
    .map(each => each.getBoundingClientRect()));
  const end = performance.now() + 1000 * seconds;
  await document.fonts.ready;
  await frame();
  await frame();
  for (let before = "", equal = 0; equal < 3; await frame()) {
    const now = boxes();
    equal = now === before && !moving().length ? equal + 1 : 0;
    before = now;
    if (performance.now() > end) {
      const names = moving().map(each => each.effect.target.className + " " + each.transitionProperty);
      throw new Error(`the page does not stand still after ${seconds} s: ${names.join(", ") || now}`);
    }
  }
}"""
# Run before anything else of a page: `shifted` is its cumulative layout shift so far.
MEASURE_SHIFTS = """() => {
  window.shifted = 0;
  new PerformanceObserver(list => {
    for (const shift of list.getEntries()) if (!shift.hadRecentInput) window.shifted += shift.value;
  }).observe({ type: "layout-shift", buffered: true });
}"""
# What a change of colours can break: the elements, their names and their boxes stay.
COLOR_RULES = ("color-contrast", "link-in-text-block")
HURRY = """() => {
  const wait = window.setTimeout.bind(window);
  window.setTimeout = (then, pause, ...given) => wait(then, pause / 20, ...given);
}"""
# A section far from the screen is laid out when a reader comes near: here, as if one had been everywhere.
LAY_OUT_ALL = """() => {
  const css = ".bd-article > section > section { content-visibility: visible !important }";
  document.head.append(Object.assign(document.createElement("style"), { textContent: css }));
}"""
THEME = "scheme => { document.documentElement.dataset.theme = scheme }"

AXE = Axe().axe_script
# The others would be found and left out: that a fault is a lesser one is known from its rule.
GRAVE_RULES = """() => axe.configure({ rules: axe._audit.rules
  .filter(rule => !["serious", "critical"].includes(rule.impact))
  .map(rule => ({ id: rule.id, enabled: false })) })"""
BARRIERS = """([within, options]) => axe.run(within, options).then(found => found.violations
  .filter(fault => ["serious", "critical"].includes(fault.impact))
  .map(fault => `${fault.id}: ${fault.nodes.slice(0, 3).map(n => n.html.slice(0, 120)).join(" | ")}`))"""


def load_axe(page: Page) -> None:
    if page.evaluate("() => !window.axe"):
        page.evaluate(AXE)
        page.evaluate(GRAVE_RULES)


def barriers(page: Page, within: str, rules: Sequence[str] = ()) -> list[str]:
    """Serious and critical faults that axe finds within an element, with the first three places.

    Args:
        page: The page in Chromium.
        within: Selector of the element.
        rules: The rules to try: all, if none is named.
    """
    load_axe(page)
    # It would fetch the style sheets again, for two rules: one that is off, one that is moderate.
    options: dict[str, object] = {"resultTypes": ["violations"], "preload": False}
    if rules:
        options["runOnly"] = list(rules)
    return page.evaluate(BARRIERS, [within, options])


def change(
    page: Page,
    *,
    viewport: ViewportSize | None = None,
    theme: str | None = None,
    media: str | None = None,
) -> None:
    """Change the window's size, the theme's colours or the medium, and wait for the new layout.

    Args:
        page: The page in Chromium.
        viewport: Width and height of the window, in CSS pixels.
        theme: "light" or "dark".
        media: "screen" or "print".
    """
    if viewport is not None:
        page.set_viewport_size(viewport)
    if theme is not None:
        page.evaluate(THEME, theme)
    if media is not None:
        page.emulate_media(media=media)
    stand_still(page)


def stand_still(page: Page, seconds: float = 60) -> None:
    """Wait until no animation runs and the boxes of three frames are equal.

    Raises:
        playwright.sync_api.Error: when something still moves after ``seconds``; it says what.
    """
    page.evaluate(STANDSTILL, seconds)


def hurry(page: Page) -> None:
    """Let what waits for a time, a step of a walk, come 20 times sooner."""
    page.evaluate(HURRY)


BESIDE = """element => {
  const box = element.getBoundingClientRect();
  return Math.max(0, -box.left) + Math.max(0, box.right - document.documentElement.clientWidth);
}"""


def beside_the_window(page: Page, selector: str) -> float:
    """How many pixels of an element's width lie left or right of the window."""
    return page.locator(selector).evaluate(BESIDE)


class Visit:
    """A page with what went wrong while it was shown; nothing of an earlier visit is on it.

    A closed visit's page is taken again: scripts that it has compiled once, MathJax most of all,
    stay compiled, which is half of the time that a chapter takes. A ``first`` visit has a page of its
    own, for which a browser has nothing kept.
    """

    idle: ClassVar[dict[tuple, list[Page]]] = {}

    def __init__(
        self,
        browser: Browser,
        address: str,
        *,
        viewport: ViewportSize,
        color_scheme: str = "light",
        reduced_motion: str = "no-preference",
        first: bool = False,
        **context: object,
    ) -> None:
        self.host = urlsplit(address).netloc
        self.is_first = first
        self.waiting = self.idle.setdefault((browser, self.host, *sorted(context.items())), [])
        is_taken_again = self.waiting and not first
        self.page = self.waiting.pop() if is_taken_again else self.fresh(browser, context)
        self.page.set_viewport_size(viewport)
        looks = {"color_scheme": color_scheme, "reduced_motion": reduced_motion}
        self.page.emulate_media(media="screen", **looks)
        self.outside: list[str] = []
        self.errors: list[str] = []
        self.finished: list[Request] = []  # what was loaded, without what stands in its address
        self.listeners = {
            "console": self.heard,
            "pageerror": lambda error: self.errors.append(str(error)),
            "request": self.asked,
            "requestfinished": self.loaded,
            "requestfailed": lambda request: self.errors.append(f"failed: {request.url}"),
        }
        for event, listener in self.listeners.items():
            self.page.on(event, listener)
        self.page.goto(address, wait_until="load")

    @staticmethod
    def fresh(browser: Browser, context: dict[str, object]) -> Page:
        page = browser.new_context(**context).new_page()
        page.set_default_timeout(120_000)  # beside busy processes; in quiet a page takes 2 s
        page.add_init_script("try { localStorage.clear(); sessionStorage.clear() } catch {}")
        page.add_init_script(f"({MEASURE_SHIFTS})()")
        return page

    def heard(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.location["url"].endswith("/favicon.ico"):
            self.errors.append(message.text)

    def asked(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.netloc != self.host and parts.scheme not in ("data", "blob"):
            self.outside.append(request.url)  # it fails: chromium.py knows no way out

    def loaded(self, request: Request) -> None:
        if not request.url.startswith("data:"):
            self.finished.append(request)

    def settle(self) -> Page:
        """Wait until every equation is typeset, lay out all of the page, and let it stand still."""
        self.page.wait_for_function(
            "() => !window.MathJax || (MathJax.startup && MathJax.startup.promise)"
        )
        self.page.evaluate("() => window.MathJax ? MathJax.startup.promise : null")
        self.page.evaluate(LAY_OUT_ALL)
        stand_still(self.page)
        return self.page

    def close(self) -> None:
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)
        if self.is_first:
            self.page.context.close()
            return
        self.page.goto("about:blank")
        self.waiting.append(self.page)


def close_all(visits: Sequence[Visit]) -> None:
    """Close every visit; none of them may have had an error or asked another site."""
    for visit in visits:
        visit.close()
    faults = [fault for visit in visits for fault in visit.errors + visit.outside]
    assert not faults, "\n".join(faults)


def number_in(text: str) -> float:
    """The first number of a text, whose minus may be a typographic one."""
    return float(re.search(r"[+−-]?[\d.]+", text)[0].replace("−", "-"))


def shown(page: Page, name: str) -> float:
    """The number that the page's first explorer shows under a name."""
    return number_in(page.locator(f"[data-sum={name}]").first.inner_text())
