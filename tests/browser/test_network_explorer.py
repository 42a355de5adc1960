"""The network explorer of chapter 11: its network, its recursion, and what a reader does with them."""

from __future__ import annotations

import functools
import json
import math
import re
import shutil
from pathlib import Path

import nbformat
import network_weights
import pytest
import torch
from chromium import ROOT, SITE
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

from mpt_lml import HMM, masks, orders
from mpt_score.networks.symbol_bert import SymbolBERT

pytestmark = pytest.mark.browser

BOOK = ROOT / "book"
CHAPTER = "11-known-language"
WEIGHTS = "known-language-weights.js"
LETTERS = "abcdefghijkl"
EXPLORER = ".network-explorer"
LARGEST = 60_000  # bytes of scripts and numbers, without the weights
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1440, "height": 900}
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Explorer</title>
<meta name="viewport" content="width=device-width"><style>{css}
html[data-theme="dark"] body {{ background: #14181e; color: #e9edf2 }}</style></head>
<body><main><h1>Explorer</h1>{html}</main>
<script defer src="explorers.js"></script><script defer src="network-explorer.js"></script>
</body></html>"""


@functools.cache
def weights_script() -> str:
    """What the build writes, from the extension that writes it."""
    return network_weights.known_language()


@functools.cache
def emitted() -> str:
    """The HTML that the chapter's cell put out, from its committed notebook."""
    notebook = nbformat.read(BOOK / f"{CHAPTER}.ipynb", as_version=4)
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    found = [o.data["text/html"] for o in outputs if "text/html" in o.get("data", {})]
    return next(html for html in found if "network-explorer" in html)


def numbers() -> dict:
    return json.loads(re.search(r"<script[^>]*>(.*?)</script>", emitted(), re.S)[1])


@pytest.fixture(scope="session")
def network() -> SymbolBERT:
    """The book's network with its weights in half precision, computing in double."""
    model = SymbolBERT.load()
    model.network.double()
    for weight in model.network.parameters():
        weight.data = weight.half().double()
    return model


@pytest.fixture(scope="session")
def source() -> HMM:
    return HMM.cyclic()


@pytest.fixture(params=["bare page", "built chapter"])
def visit(request, browser, tmp_path):
    visits = []

    def opener(*, javascript=True, html="", weights=None, motion="reduce", loud=True) -> object:
        if request.param == "built chapter":
            where = f"{request.getfixturevalue('short_address')}/book/{CHAPTER}.html"
        else:
            css = (BOOK / "_static" / "explorers.css").read_text(encoding="utf-8")
            text = PAGE.format(css=css, html=html or emitted())
            (tmp_path / "page.html").write_text(text, encoding="utf-8")
            for name in ("explorers.js", "network-explorer.js"):
                shutil.copy(BOOK / "_static" / name, tmp_path)
            if weights != "":
                (tmp_path / WEIGHTS).write_text(weights or weights_script(), encoding="utf-8")
            where = (tmp_path / "page.html").as_uri()
        settings = {"viewport": DESKTOP, "reduced_motion": motion, "has_touch": True}
        visits.append(Visit(browser, where, java_script_enabled=javascript, **settings))
        page = visits[-1].page
        if javascript:
            page.locator(EXPLORER).scroll_into_view_if_needed()
            page.locator(f"{EXPLORER}[data-ready=true], {EXPLORER}[data-stopped]").wait_for()
        if not (javascript and loud):
            visits[-1].errors.clear()  # what was meant to be missing, and scripts that are off
        return page

    yield opener
    close_all(visits)


def press(page, name: str) -> None:
    page.locator(EXPLORER).get_by_role("button", name=name, exact=True).click()


def cells(page, table: str) -> list[list[str]]:
    body = page.locator(EXPLORER).get_by_role("region", name=table).locator("tbody")
    return body.evaluate("b => [...b.rows].map(row => [...row.cells].map(c => c.textContent))")


def spelled(word: str) -> torch.Tensor:
    return torch.tensor([[LETTERS.index(letter) for letter in word]])


def card(page, strip: int, position: int):
    """Button of a position, 0 first, of those to hide (0) or to reveal (1)."""
    return page.locator(f"{EXPLORER} .oe-symbols").nth(strip).locator("button").nth(position)


ANSWERS = """([texts, masks, tables]) => {
  const kit = explorers.network, made = kit.Network(kit.decoded(knownLanguageWeights));
  const source = kit.Source(tables);
  return texts.map((x, n) => {
    const hidden = masks[n].map(Boolean), wanted = [...x.keys()].filter(j => hidden[j]);
    return [made(x, hidden, wanted).map(row => [...row]), source.answers(x, hidden),
      source.logProbability(x)];
  });
}"""


def test_network_and_recursion_are_those_of_the_package(visit, network, source) -> None:
    g = torch.Generator().manual_seed(1)
    from_source = source.sample(150, generator=g)
    anything = torch.randint(12, (50, 16), generator=g)  # texts that the network has not seen
    x = torch.cat([from_source, anything])
    mask = masks.sample_masks(200, 16, masks.UniformSize(), generator=g)
    page = visit()
    found = page.evaluate(ANSWERS, [x.tolist(), mask.int().tolist(), numbers()["source"]])
    log_q = network.log_values(x, mask)
    each = [source.log_each(x.masked_fill(mask, v), mask) for v in range(12)]
    log_p, log_x = torch.stack(each, dim=2), source.log_marginal(x)
    for n, (by_network, by_source, total) in enumerate(found):
        hidden = mask[n]
        off = torch.tensor(by_network, dtype=torch.float64) - log_q[n, hidden]
        assert off.shape[1] == 13 and off.abs().max() < 1e-9
        rows = [row for row in by_source if row is not None]
        assert (torch.tensor(rows, dtype=torch.float64) - log_p[n, hidden]).abs().max() < 1e-11
        assert abs(total - log_x[n]) < 1e-11


def test_the_normal_distribution_function(visit) -> None:
    points = torch.linspace(-12, 12, 2401, dtype=torch.float64)
    found = visit().evaluate("points => points.map(matrices().gelu)", points.tolist())
    exact = torch.nn.functional.gelu(points)
    assert (torch.tensor(found, dtype=torch.float64) - exact).abs().max() < 1e-14


def test_what_is_hidden_is_asked_of_both(visit, network, source) -> None:
    page, data = visit(), numbers()
    text = data["texts"][1]
    x = spelled(text)
    press(page, "Text 2")
    press(page, "Show all")
    assert page.locator(f"{EXPLORER} .oe-guess").count() == 0
    for hidden in ([7], [7, 3], [7, 3, 15], [7, 3, 15, 4]):
        card(page, 0, hidden[-1]).click()
        mask = torch.zeros(1, 16, dtype=torch.bool)
        mask[0, hidden] = True
        log_q, log_p = network.log_values(x, mask)[0], source.log_each(x, mask)[0]
        rows = cells(page, "What the network and the source say of each hidden symbol")
        assert [row[0] for row in rows] == [f"{j + 1}: {text[j]}" for j in sorted(hidden)]
        for row, j in zip(rows, sorted(hidden), strict=True):
            assert abs(number_in(row[1]) - log_q[j, x[0, j]]) < 0.00051
            assert abs(number_in(row[2]) - log_p[j]) < 0.00051
            best = log_q[j, :12].argmax().item()
            assert row[4] == f"{LETTERS[best]} ({log_q[j, best].exp():.3f})"
        assert page.locator(f"{EXPLORER} .oe-guess").count() == len(hidden)
        live = page.locator(f"{EXPLORER} .oe-live").inner_text()
        assert f"{log_q[hidden[-1], x[0, hidden[-1]]]:.3f}".replace("-", "−") in live
    card(page, 0, 7).click()  # and visible again
    assert card(page, 0, 7).inner_text().endswith(text[7])
    assert card(page, 0, 7).get_attribute("aria-pressed") == "false"


def surest_first(network: SymbolBERT, x: torch.Tensor) -> list[int]:
    order, mask = [], torch.ones(1, 16, dtype=torch.bool)
    while mask.any():
        heights = network.log_values(x, mask)[0, :, :12].amax(dim=1)
        order.append(heights.where(mask[0], -math.inf).argmax().item())
        mask[0, order[-1]] = False
    return order


def test_orders_add_up_as_in_the_package(visit, network, source) -> None:
    page, data = visit(), numbers()
    x = spelled(data["texts"][0])
    truth = source.log_marginal(x).item()
    for name in ("Left to right", "Most certain first", "Random", "20 random orders"):
        press(page, name)
    live = page.locator(f"{EXPLORER} .oe-live")
    page.wait_for_function("() => document.querySelectorAll('.oe-tried tbody tr').length === 23")
    page.get_by_text("21 random orders drawn").wait_for()
    rows = cells(page, "Orders tried")
    taken = [[int(each) - 1 for each in row[4].split()] for row in rows]
    ranks = torch.tensor(taken).argsort(dim=1)
    totals = orders.log_probability(network, x, ranks)[:, 0]
    for row, total in zip(rows, totals.tolist(), strict=True):
        assert abs(number_in(row[1]) - total) < 0.00051
        assert abs(number_in(row[2]) - truth) < 0.00051
        assert abs(number_in(row[3]) - (total - truth)) < 0.00051
    order_of = {row[0]: order for row, order in zip(rows, taken, strict=True)}
    assert order_of["Left to right"] == list(range(16))
    assert order_of["Most certain first"] == surest_first(network, x)
    drawn = totals[[row[0] == "Random" for row in rows]]
    assert len(drawn) == 21 and len({tuple(order) for order in taken}) == 23
    assert abs(shown(page, "truth") - truth) < 0.00051
    assert abs(shown(page, "area") - drawn.mean()) < 0.00051
    assert abs(shown(page, "mixture") - (drawn.logsumexp(0) - math.log(21))) < 0.00051
    assert abs(shown(page, "spread") - drawn.std()) < 0.00051
    verdict = page.locator(f"{EXPLORER} .oe-verdict").inner_text()
    for value in (totals.min(), totals.max(), truth):
        assert f"{value:.3f}".replace("-", "−") in verdict
    assert "area" in live.inner_text()


def test_an_order_of_one_s_own(visit, network, source) -> None:
    page, data = visit(), numbers()
    press(page, "Text 3")
    x = spelled(data["texts"][2])
    order = torch.randperm(16, generator=torch.Generator().manual_seed(5)).tolist()
    for j in order[:9]:
        card(page, 1, j).click()
    card(page, 1, order[0]).press("Enter")  # does nothing more
    assert "already revealed" in page.locator(f"{EXPLORER} .oe-live").inner_text()
    for j in order[9:]:
        card(page, 1, j).click()
    mask = masks.nested_masks(torch.tensor(order)).flip(0)  # what is hidden at each step
    turn = torch.arange(16), torch.tensor(order)
    log_q = network.log_each(x.expand(16, 16), mask)[turn]
    log_p = source.log_each(x.expand(16, 16), mask)[turn]
    rows = cells(page, "This order, step by step")
    columns = zip(log_q, log_p, log_q.cumsum(0), log_p.cumsum(0), strict=True)
    for t, (row, values) in enumerate(zip(rows, columns, strict=True)):
        assert row[0] == f"{t + 1}: {order[t] + 1}" and row[1] == data["texts"][2][order[t]]
        for text, value in zip(row[2:], values, strict=True):
            assert abs(number_in(text) - value) < 0.00051
    assert abs(shown(page, "running") - log_q.sum()) < 0.00051
    assert page.locator("[data-sum=area]").inner_text() == "none yet"  # it was not drawn
    assert [row[0] for row in cells(page, "Orders tried")] == ["My own"]


def test_numbers_have_three_decimals(visit) -> None:
    page = visit()
    press(page, "20 random orders")
    page.get_by_text("20 random orders drawn").wait_for()
    text = page.locator(EXPLORER).evaluate(
        """root => [...root.querySelectorAll('dd, td, .oe-live, .oe-verdict, .oe-count-note')]
          .map(node => node.textContent).join(' ')"""
    )
    decimals = re.findall(r"\d\.(\d+)", text)
    assert len(decimals) > 50 and {len(each) for each in decimals} == {3}


def test_another_text_is_the_source_s(visit, network, source) -> None:
    page = visit()
    press(page, "Random")
    for _ in range(3):
        press(page, "Another text")
        word = re.search(r"source: ([a-l]{16})\.", page.locator(".oe-live").inner_text())[1]
        truth = source.log_marginal(spelled(word)).item()
        assert abs(shown(page, "truth") - truth) < 0.00051
        assert page.locator(".oe-tried tbody tr").count() == 0  # orders of another text
    states = "() => { const s = explorers.network.Source(%s); return Array.from({length: 4000}, "
    drawn = page.evaluate((states + "() => s.sample(16)) }") % json.dumps(numbers()["source"]))
    mean, error = (
        f(source.log_marginal(torch.tensor(drawn))).item() for f in (torch.mean, torch.std)
    )
    true = source.log_marginal(source.sample(4000, generator=torch.Generator().manual_seed(2)))
    assert abs(mean - true.mean()) < 5 * error * math.sqrt(2 / 4000)


def test_keyboard_alone(visit) -> None:
    page = visit()
    press(page, "Show all")
    card(page, 0, 0).focus()
    for key in ("Enter", "Tab", "Space"):
        page.keyboard.press(key)
    assert page.locator(f"{EXPLORER} .oe-symbol[aria-pressed=true]").count() == 2
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    live = page.locator(f"{EXPLORER} .oe-live")
    assert live.get_attribute("aria-live") == "polite" and "source log p" in live.inner_text()
    card(page, 1, 0).focus()
    for _ in range(16):
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
    assert page.locator(".oe-tried tbody tr").count() == 1
    page.locator(EXPLORER).get_by_role("button", name="Left to right").press("Enter")
    assert page.locator(".oe-tried tbody tr").count() == 2


PRESS_AT_ONCE = """(root, names) => names.forEach(name =>
  [...root.querySelectorAll("button")].find(each => each.textContent === name).click())"""


def test_it_walks_where_motion_is_welcome(visit) -> None:
    page = visit(motion="no-preference")
    hurry(page)
    press(page, "Left to right")
    page.locator(".oe-tried tbody tr").wait_for()
    # In the middle of it: both at once, since a walk in a hurry may end before the second press.
    page.locator(EXPLORER).evaluate(PRESS_AT_ONCE, ["Most certain first", "My own order"])
    page.wait_for_timeout(500)  # more than the 16 steps would take
    assert page.locator(f"{EXPLORER} .oe-symbol[aria-disabled=true]").count() == 0


def test_touch(visit) -> None:
    page = visit()
    change(page, viewport=PHONE)
    before = page.locator(f"{EXPLORER} .oe-symbol[aria-pressed=true]").count()
    card(page, 0, 0).tap()
    assert page.locator(f"{EXPLORER} .oe-symbol[aria-pressed=true]").count() == before + 1
    boxes = page.locator(f"{EXPLORER} button").evaluate_all(
        "all => all.map(b => b.getBoundingClientRect()).map(box => [box.width, box.height])"
    )
    assert min(high for _, high in boxes) >= 44
    assert min(wide for wide, _ in boxes) >= 36  # 16 symbols are two rows of eight


def test_no_serious_accessibility_fault_and_no_overflow(visit) -> None:
    page = visit()
    press(page, "Left to right")
    press(page, "20 random orders")
    page.get_by_text("20 random orders drawn").wait_for()
    for viewport in (DESKTOP, PHONE):
        change(page, theme="light", viewport=viewport)
        assert barriers(page, EXPLORER) == []
        assert beside_the_window(page, EXPLORER) == 0
        assert page.locator(EXPLORER).evaluate("n => n.scrollWidth - n.clientWidth") <= 0
        text = f"{EXPLORER} svg text"
        sizes = page.locator(text).evaluate_all(
            """all => all.map(t => parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a)"""
        )
        assert min(sizes) >= 9
        change(page, theme="dark")
        assert barriers(page, EXPLORER, COLOR_RULES) == []


def test_a_screen_reader_is_told_what_a_card_is(visit) -> None:
    page, text = visit(), numbers()["texts"][0]
    press(page, "Show all")
    assert card(page, 0, 4).get_attribute("aria-label") == f"Position 5: {text[4]}"
    card(page, 0, 4).click()
    assert card(page, 0, 4).get_attribute("aria-label") == "Position 5: ? (hidden)"
    for svg in page.locator(f"{EXPLORER} svg").all():
        assert svg.get_attribute("role") == "img" and len(svg.get_attribute("aria-label")) > 20


def test_without_javascript_and_on_paper_the_table_stays(visit) -> None:
    page = visit(javascript=False)
    fixed = page.locator(f"{EXPLORER} .explorer-static")
    assert fixed.is_visible() and fixed.locator("tr").count() == 5
    assert len(re.findall(r"-\d\d\.\d{3}", fixed.text_content())) == 20
    page = visit()
    assert page.locator(f"{EXPLORER} .explorer-static").is_hidden()
    change(page, media="print")
    assert page.locator(f"{EXPLORER} .explorer-static").is_visible()
    assert page.locator(f"{EXPLORER} .oe-title").is_hidden()


def stopped(page) -> str:
    assert page.locator(f"{EXPLORER}[data-ready]").count() == 0
    assert page.locator(f"{EXPLORER} .oe-symbol").count() == 0
    assert page.locator(f"{EXPLORER} .explorer-static").is_visible()
    return page.locator(f"{EXPLORER} .oe-stopped").inner_text()


def with_numbers(data: dict) -> str:
    return re.sub(
        r"(<script[^>]*>).*?(</script>)",
        lambda m: m[1] + json.dumps(data) + m[2],
        emitted(),
        count=1,
        flags=re.S,
    )


@pytest.mark.parametrize("visit", ["bare page"], indirect=True)
class TestStops:
    @pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.77, 0.95])
    def test_falsified_weights(self, visit, share: float) -> None:
        script = weights_script()
        start = script.index('"half": "') + len('"half": "')
        at = start + int(share * (len(script) - start))
        other = "A" if script[at] != "A" else "Q"
        assert "answers" in stopped(visit(weights=script[:at] + other + script[at + 1 :]))

    def test_weights_cut_short(self, visit) -> None:
        script = weights_script()
        assert "answers" in stopped(visit(weights=script[:-4007] + '"};'))

    def test_a_falsified_source(self, visit) -> None:
        data = numbers()
        data["source"]["transition"][2][3] += 1e-6
        assert "answers" in stopped(visit(html=with_numbers(data)))

    def test_answers_of_another_network(self, visit) -> None:
        data = numbers()
        data["checks"][-1]["q"][-1] += 1e-6
        assert "answers" in stopped(visit(html=with_numbers(data)))

    def test_no_weights(self, visit) -> None:
        assert "could not be loaded" in stopped(visit(weights="", loud=False))


def test_what_the_page_compares_is_the_package_s(network, source) -> None:
    data = numbers()
    assert data["tolerance"] <= 1e-8 and len(data["checks"]) >= 6
    for row in data["checks"]:
        x, mask = spelled(row["x"]), torch.tensor([[each == "1" for each in row["hidden"]]])
        for key, model in (("q", network), ("p", source)):
            stored = torch.tensor(row[key], dtype=torch.float64)
            assert (stored - model.log_each(x, mask)[mask]).abs().max() < 1e-9


def test_it_is_small() -> None:
    scripts = ("explorers.js", "network-explorer.js")
    size = sum(len((BOOK / "_static" / name).read_bytes()) for name in scripts)
    assert size + len(emitted().encode()) < LARGEST


def test_it_works_from_a_folder(browser, address: str) -> None:
    assert (SITE / "_static" / WEIGHTS).read_text(encoding="utf-8") == weights_script()
    visit = Visit(browser, Path(SITE, "book", f"{CHAPTER}.html").as_uri(), viewport=DESKTOP)
    visit.page.locator(EXPLORER).scroll_into_view_if_needed()
    visit.page.locator(f"{EXPLORER}[data-ready=true]").wait_for()
    visit.close()
