"""Three explorers in the pages of chapters 3, 15 and 16, and on a bare page of their own."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from pathlib import Path

import nbformat
import pytest
from visits import (
    COLOR_RULES,
    Visit,
    barriers,
    beside_the_window,
    change,
    close_all,
    number_in,
    shown,
)

pytestmark = pytest.mark.browser

BOOK = Path(__file__).resolve().parents[2] / "book"
STATIC = BOOK / "_static"
CHAPTERS = {"rate": "03-mask-rate-curve", "order": "04-orders"}
CHAPTERS["schedule"] = "14-masked-diffusion"
KINDS = list(CHAPTERS)
LARGEST = 40_000  # bytes of scripts and numbers of one explorer
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Explorer</title>
<meta name="viewport" content="width=device-width"><style>{css}
html[data-theme="dark"] body {{ background: #14181e; color: #e9edf2 }}</style></head>
<body><main><h1>Explorer</h1>{html}</main><script>{js}</script></body></html>"""


@functools.cache
def emitted(kind: str) -> str:
    """The HTML that the chapter's cell put out, from its committed notebook."""
    notebook = nbformat.read(BOOK / f"{CHAPTERS[kind]}.ipynb", as_version=4)
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    found = [o.data["text/html"] for o in outputs if "text/html" in o.get("data", {})]
    return next(html for html in found if f"{kind}-explorer" in html)


def numbers(kind: str) -> dict:
    return json.loads(re.search(r"<script[^>]*>(.*?)</script>", emitted(kind), re.S)[1])


def scripts(kind: str) -> str:
    return "".join(
        (STATIC / f"{name}.js").read_text() for name in ("explorers", f"{kind}-explorer")
    )


@pytest.fixture(params=["bare page", "built chapter"])
def visit(request, browser, tmp_path):
    visits = []

    def opener(kind: str, *, javascript: bool = True, html: str = "") -> object:
        if request.param == "built chapter":
            where = f"{request.getfixturevalue('short_address')}/book/{CHAPTERS[kind]}.html"
        else:
            css = (STATIC / "explorers.css").read_text()
            page = PAGE.format(css=css, html=html or emitted(kind), js=scripts(kind))
            (tmp_path / "page.html").write_text(page, encoding="utf-8")
            where = (tmp_path / "page.html").as_uri()
        settings = {"viewport": DESKTOP, "reduced_motion": "reduce", "has_touch": True}
        visits.append(Visit(browser, where, java_script_enabled=javascript, **settings))
        if javascript:
            if not html:
                visits[-1].page.locator(f".{kind}-explorer[data-ready=true]").wait_for()
        else:
            visits[-1].errors.clear()  # scripts that the page preloads are dropped by the browser
        return visits[-1].page

    yield opener
    close_all(visits)


def slide(page, label: str, value: float) -> None:
    page.get_by_label(label).evaluate(
        "(n, v) => { n.value = v; n.dispatchEvent(new Event('input', {bubbles: true}));"
        " n.dispatchEvent(new Event('change', {bubbles: true})) }",
        str(value),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_small(kind: str) -> None:
    assert len(scripts(kind).encode()) + len(emitted(kind).encode()) < LARGEST


def test_sliders_give_the_numbers_of_the_package(visit) -> None:
    page, noises = visit("rate"), [0.1, 0.2, 0.5, 1, 2, 5, 10]
    for K, D, s2, rate, area, one, crossover in numbers("rate")["checks"]:
        values = {"Coordinates D": D, "Latent dimensions K": K, "Masking rate": 100 * rate}
        for label, value in {**values, "Noise variance": noises.index(s2)}.items():
            slide(page, label, value)
        assert abs(shown(page, "area") - area) < 0.051
        assert abs(shown(page, "one") - one) < 0.051
        error = page.locator("[data-sum=error]").inner_text()
        assert abs(number_in(error) - abs(one - area)) < 0.051
        assert error.endswith("too high" if one > area else "too low")
        assert abs(shown(page, "crossover") - 100 * crossover) < 0.051


def test_a_rate_hides_whole_coordinates_rounded_down(visit) -> None:
    page = visit("rate")
    slide(page, "Coordinates D", 190)
    slide(page, "Masking rate", 15)  # 28.5 coordinates
    assert "With 28 of 190 coordinates" in page.locator(".rate-explorer .oe-live").inner_text()


def test_the_area_lies_between_the_stairs_and_the_axis_at_every_noise(visit) -> None:
    """A surprise below zero would turn the colored parts around."""
    page = visit("rate")
    slide(page, "Latent dimensions K", 1)
    slide(page, "Coordinates D", 400)
    for position in range(7):
        slide(page, "Noise variance", position)
        assert shown(page, "area") < 0
        axis = page.locator(".rate-explorer svg path.oe-below").get_attribute("d").split("L")
        floor = float(axis[0].removeprefix("M").split(" ")[1])
        assert min(page.evaluate(CLIMB)) > -floor


SIZES = """names => names.map(name => {
  const path = document.querySelector(`.rate-explorer svg .${name}`).getAttribute("d");
  const points = path.slice(1, -1).split("L").map(p => p.split(" ").map(Number));
  let twice = 0;
  points.forEach(([x, y], k) => {
    const [u, v] = points[(k + 1) % points.length];
    twice += x * v - u * y;
  });
  return Math.abs(twice) / 2;
})"""


def test_the_colored_parts_are_the_surprise_left_out_and_counted_too_much(visit) -> None:
    page = visit("rate")
    names = ["oe-below", "oe-too-high", "oe-too-low"]
    for rate in (2, 15, 60, 90):
        slide(page, "Masking rate", rate)
        area, left_out, too_much = page.evaluate(SIZES, names)  # in square pixels
        nats = -shown(page, "area") / area  # of a square pixel; all surprise is above zero here
        error = shown(page, "one") - shown(page, "area")  # of log p(x), which is minus surprise
        assert abs(nats * (left_out - too_much) - error) < 0.01 * -shown(page, "area")
        assert (left_out > too_much) == (error > 0)


CLIMB = """() => {
  const path = document.querySelector(".rate-explorer svg .oe-mean").getAttribute("d");
  return path.slice(1).split("L").map(point => -Number(point.split(" ")[1]));
}"""


def test_surprise_is_drawn_upward(visit) -> None:
    page = visit("rate")
    stairs = page.evaluate(CLIMB)
    assert stairs == sorted(stairs) and stairs[-1] > stairs[0] + 50  # pixels
    words = page.locator(".rate-explorer .oe-legend li").all_inner_texts()
    assert [("too high" in each, "too low" in each) for each in words] == [
        *[(False, False)] * 2,
        (True, False),
        (False, True),
    ]
    assert "left out" in words[2] and "too much" in words[3]


def test_the_totals_of_orders_differ_and_their_mean_is_the_area(visit) -> None:
    page, data = visit("order"), numbers("order")
    D, totals = len(data["names"]), []
    for order in itertools.permutations(range(D)):
        seen = [sum(1 << k for k in order[:t]) for t in range(D)]
        totals.append(sum(data["terms"][s][j] for s, j in zip(seen, order, strict=True)))
    assert max(totals) - min(totals) > 0.3
    assert abs(sum(totals) / math.factorial(D) - sum(data["curve"])) < 1e-6
    order = (0, 3, 1, 2)
    for k in order:
        page.locator(".oe-card").nth(k).click()
    wanted = totals[list(itertools.permutations(range(D))).index(order)]
    assert abs(shown(page, "running") - wanted) < 0.00051
    page.get_by_role("button", name="All 24 orders").click()
    text = page.locator(".order-explorer").inner_text().replace("−", "-")
    for value in (min(totals), max(totals), sum(data["curve"])):
        assert f"{value:.3f}" in text


def test_the_area_stays_while_the_sum_creeps_up(visit) -> None:
    page, data = visit("schedule"), numbers("schedule")
    area = -sum(data["curve"])
    for name, T, bound in data["checks"]:
        page.get_by_role("button", name=name, exact=True).click()
        slide(page, "Steps T", T)
        assert abs(shown(page, "sum") + bound) < 0.00051
        assert abs(shown(page, "area") - area) < 0.00101  # the loss is summed over 2000 short times
    slide(page, "Handle, rate", 0.9)
    assert abs(shown(page, "area") - area) < 0.00101 and shown(page, "sum") > area


def test_the_handle_can_be_dragged(visit) -> None:
    page = visit("schedule")
    handle = page.locator(".oe-handle")
    handle.scroll_into_view_if_needed()
    box, before = handle.bounding_box(), shown(page, "sum")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] - 60, box["y"] - 30)
    page.mouse.up()
    assert shown(page, "sum") != before
    assert "Your own schedule" in page.locator(".schedule-explorer .oe-live").inner_text()


@pytest.mark.parametrize(("kind", "label"), [("rate", "Masking rate"), ("schedule", "Steps T")])
def test_keyboard_alone(visit, kind: str, label: str) -> None:
    page = visit(kind)
    slider = page.get_by_label(label)
    slider.focus()
    before = slider.input_value()
    page.keyboard.press("ArrowRight")
    assert float(slider.input_value()) == float(before) + 1
    live = page.locator(f".{kind}-explorer .oe-live")
    assert live.get_attribute("aria-live") == "polite" and "nats" in live.inner_text()


def test_touch(visit) -> None:
    page = visit("order")
    page.locator(".oe-card").first.tap()
    assert page.locator(".oe-card[data-revealed=true]").count() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_no_serious_accessibility_fault_and_no_overflow(visit, kind: str) -> None:
    page = visit(kind)
    for viewport in (DESKTOP, PHONE):
        change(page, theme="light", viewport=viewport)
        assert barriers(page, f".{kind}-explorer") == []
        assert beside_the_window(page, f".{kind}-explorer") == 0
        change(page, theme="dark")
        assert barriers(page, f".{kind}-explorer", COLOR_RULES) == []


@pytest.mark.parametrize("kind", KINDS)
def test_without_javascript_and_on_paper_the_table_stays(visit, kind: str) -> None:
    page = visit(kind, javascript=False)
    fixed = page.locator(f".{kind}-explorer .explorer-static")
    assert fixed.is_visible() and fixed.locator("tr").count() >= 4
    page = visit(kind)
    assert page.locator(f".{kind}-explorer .explorer-static").is_hidden()
    change(page, media="print")
    assert page.locator(f".{kind}-explorer .explorer-static").is_visible()
    assert page.locator(f".{kind}-explorer .oe-title").is_hidden()


@pytest.mark.parametrize("kind", ["rate", "schedule"])
@pytest.mark.parametrize("visit", ["bare page"], indirect=True)
def test_wrong_numbers_are_not_shown(visit, kind: str) -> None:
    data = numbers(kind)
    data["checks"][0][-1] += 1e-3
    html = re.sub(
        r"(<script[^>]*>).*?(</script>)",
        lambda m: m[1] + json.dumps(data) + m[2],
        emitted(kind),
        flags=re.S,
    )
    page = visit(kind, html=html)
    assert page.locator(f".{kind}-explorer[data-ready]").count() == 0
    assert page.locator(".explorer-static").is_visible()
