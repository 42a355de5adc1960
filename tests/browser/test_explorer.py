"""The order explorer in a real browser: in a harness of its own, and in the built chapter."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from chromium import SITE
from visits import (
    COLOR_RULES,
    Visit,
    barriers,
    beside_the_window,
    change,
    close_all,
    hurry,
    number_in,
    shown,
)

pytestmark = pytest.mark.browser

STATIC = Path(__file__).resolve().parents[2] / "book" / "_static"
CHAPTER = "book/03-mask-rate-curve.html"
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


def example() -> dict:
    """A 2 x 2 x 2 x 2 table and one of its cells, worked out here with sums over the table only."""
    table = np.random.default_rng(3).dirichlet(np.full(16, 0.7)).reshape(2, 2, 2, 2)
    point, D = (1, 0, 1, 1), 4

    def log_p(kept):
        summed = table.sum(axis=tuple(j for j in range(D) if j not in kept))
        return float(np.log(summed[tuple(point[j] for j in sorted(kept))]))

    terms = []
    for s in range(2**D):
        kept = {j for j in range(D) if s >> j & 1}
        terms.append(
            [None if j in kept else round(log_p(kept | {j}) - log_p(kept), 12) for j in range(D)]
        )
    ell = [
        np.mean([log_p(set(R)) for R in itertools.combinations(range(D), r)]) for r in range(D + 1)
    ]
    return {
        "names": ["clouds", "rain", "wet street", "umbrella"],
        "values": ["yes", "no", "yes", "yes"],
        "terms": terms,
        "log_p": round(ell[D], 12),
        "curve": [round(ell[D - M + 1] - ell[D - M], 12) for M in range(1, D + 1)],
    }


HARNESS = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<title>Order explorer</title><meta name="viewport" content="width=device-width, initial-scale=1">
<style>{css} html[data-theme="dark"] body {{ background: #14181e; color: #e9edf2 }}</style></head>
<body><main><h1>Order explorer</h1><div class="explorer order-explorer">
<script type="application/json" class="order-explorer-data">{data}</script>
<div class="explorer-static"><p>A table for readers without JavaScript.</p></div>
</div></main><script>{js}</script></body></html>"""


@pytest.fixture(scope="module", params=["harness", "built chapter"])
def place(request, tmp_path_factory):
    """(address, the numbers as they stand in the page's source)."""
    if request.param == "built chapter":
        site = request.getfixturevalue(
            "short_address"
        )  # skips, or fails in CI, where nothing is built
        source = (SITE / CHAPTER).read_text(encoding="utf-8")
        found = re.findall(r'class="order-explorer-data">(.*?)</script>', source, re.S)
        assert len(found) == 1, f"expected one order explorer on the page, found {len(found)}"
        return f"{site}/{CHAPTER}", json.loads(found[0])
    data = example()
    page = tmp_path_factory.mktemp("explorer") / "harness.html"
    css = (STATIC / "explorers.css").read_text(encoding="utf-8")
    js = "".join((STATIC / f"{name}.js").read_text() for name in ("explorers", "order-explorer"))
    page.write_text(HARNESS.format(css=css, js=js, data=json.dumps(data)), encoding="utf-8")
    return page.as_uri(), data


@pytest.fixture
def visit(browser, place):
    """Open the explorer; afterwards fail on console errors and requests to other sites."""
    visits = []

    def opener(motion="reduce", javascript=True):
        context = {"viewport": DESKTOP, "reduced_motion": motion, "java_script_enabled": javascript}
        visits.append(Visit(browser, place[0], **context))
        page = visits[-1].page
        if not javascript:
            visits[-1].errors.clear()  # scripts that the page preloads are dropped by the browser
        else:
            page.locator(".order-explorer[data-ready=true]").wait_for()
        return page

    yield opener
    close_all(visits)


def press(page, name: str):
    page.locator(".oe-actions").get_by_role("button", name=name).click()


ALL_ORDERS = """orders => {
  const root = document.querySelector(".order-explorer");
  const shown = name => root.querySelector(`[data-sum=${name}]`).textContent;
  const buttons = [...root.querySelectorAll(".oe-actions button")];
  const reset = buttons.find(button => button.textContent === "Reset");
  return orders.map(order => {
    reset.click();
    return order.map(j => {
      root.querySelectorAll(".oe-card")[j].click();
      return ["term", "running", "remaining"].map(shown);
    });
  });
}"""


def test_every_order_gives_the_emitted_total(visit, place):
    data, page = place[1], visit()
    orders = list(itertools.permutations(range(len(data["names"]))))
    totals = []
    for order, steps in zip(orders, page.evaluate(ALL_ORDERS, orders), strict=True):
        revealed = 0
        for j, step in zip(order, steps, strict=True):
            term, running, remaining = map(number_in, step)
            assert abs(term - data["terms"][revealed][j]) <= 0.0005 + 1e-9  # three decimals
            assert abs(running + remaining - data["log_p"]) <= 0.001 + 1e-9
            revealed |= 1 << j
        totals.append(running)
    assert len(set(totals)) == 1  # as displayed
    assert abs(totals[0] - data["log_p"]) <= 0.0005 + 1e-9
    rows = page.locator(".oe-tried tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    )
    cells = [[number_in(cell) for cell in row] for row in rows]
    assert len(cells) == len(totals) == 24
    assert {row[0] for row in cells} == {totals[0]}
    assert len({tuple(row[1:]) for row in cells}) > 12  # the terms do differ between orders


def test_mean_over_all_orders_is_the_mask_rate_curve(visit, place):
    data, page = place[1], visit()
    press(page, "All 24 orders")
    assert page.locator(".oe-all svg .oe-one").count() == 24
    # Surprise upward: M = 1 is on the left, and the M with the lowest score is the highest.
    dots = page.locator(".oe-all svg .oe-mean-dot").evaluate_all(
        "all => all.map(dot => [Number(dot.getAttribute('cx')), Number(dot.getAttribute('cy'))])"
    )
    heights = [-y for _, y in sorted(dots)]
    surprise = [-score for score in data["curve"]]
    np.testing.assert_array_equal(np.argsort(heights), np.argsort(surprise))
    mean, curve = (
        [
            number_in(c)
            for c in page.locator(".oe-all tbody tr").nth(k).locator("td").all_inner_texts()
        ]
        for k in (0, 1)
    )
    # both are shown with three decimals, so they may differ by one unit of the last place
    np.testing.assert_allclose(mean, curve, atol=1.1e-3, rtol=0)
    np.testing.assert_allclose(curve, [*data["curve"], data["log_p"]], atol=0.51e-3, rtol=0)
    said = page.locator(".oe-range").inner_text()
    low, high = map(number_in, re.findall(r"\u2212\d+\.\d{3}\b", said))
    assert low == high and abs(low - data["log_p"]) <= 0.0005 + 1e-9
    assert int(re.search(r"equal to (\d+) decimals", said)[1]) >= 10


def test_keyboard_alone(visit, place):
    data, page = place[1], visit()
    page.locator(".oe-card").first.focus()
    for key in ("Enter", "Space", "Enter", "Space"):
        page.keyboard.press(key)
        page.keyboard.press("Tab")
    assert page.locator(".oe-card[data-revealed=true]").count() == 4
    assert abs(shown(page, "running") - data["log_p"]) <= 0.0005 + 1e-9
    live = page.locator(".order-explorer .oe-live")
    assert live.get_attribute("aria-live") == "polite" and "1 of 24 orders" in live.inner_text()
    page.keyboard.press("Enter")  # the focus has come to Undo
    assert page.locator(".oe-card[data-revealed=true]").count() == 3
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Reset
    assert page.locator(".oe-card[data-revealed=true]").count() == 0 and shown(page, "running") == 0
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_a_revealed_coordinate_is_not_counted_twice(visit, place):
    page = visit()
    card = page.locator(".oe-card").nth(2)
    card.click()
    before = shown(page, "running")
    card.press("Enter")  # still in reach of the keyboard, but it does nothing more
    assert shown(page, "running") == before and card.get_attribute("aria-disabled") == "true"
    assert "already revealed" in page.locator(".order-explorer .oe-live").inner_text()


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_random_order_finishes(visit, place, motion):
    page = visit(motion=motion)
    hurry(page)
    press(page, "Random order")
    if motion == "reduce":  # no animation: complete at once
        assert page.locator(".oe-tried tbody tr").count() == 1
        transition = page.locator(".oe-bar").first.evaluate(
            "n => getComputedStyle(n).transitionDuration"
        )
        assert transition == "0s"
    page.locator(".oe-tried tbody tr").wait_for()
    assert abs(shown(page, "running") - place[1]["log_p"]) <= 0.0005 + 1e-9


def test_no_serious_accessibility_fault_and_no_overflow(visit):
    page = visit()
    for j in (3, 0, 1, 2):
        page.locator(".oe-card").nth(j).click()
    press(page, "Reset")
    page.locator(".oe-card").nth(1).click()
    press(page, "All 24 orders")
    for viewport in (DESKTOP, PHONE):
        change(page, theme="light", viewport=viewport)
        assert barriers(page, ".order-explorer") == []
        assert beside_the_window(page, ".order-explorer") == 0
        inner = page.locator(".order-explorer").evaluate("n => n.scrollWidth - n.clientWidth")
        assert inner <= 0, f"content is {inner} px wider than the explorer"
        for number in page.locator(
            ".order-explorer .oe-sums dd"
        ).all():  # no sum is broken over two lines
            assert number.bounding_box()["height"] < 40
        change(page, theme="dark")
        assert barriers(page, ".order-explorer", COLOR_RULES) == []


def test_without_javascript_a_table_stays(visit):
    page = visit(javascript=False)
    fallback = page.locator(".order-explorer .explorer-static")
    assert fallback.is_visible() and len(fallback.text_content()) > 20
    assert page.locator(".oe-card").count() == 0
