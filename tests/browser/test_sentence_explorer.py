"""The sentence explorer: the small BERT inside the page beside the package's, and what readers do."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import shutil
from urllib.parse import quote

import network_weights
import pytest
import torch
import typed
from chromium import ROOT, SITE
from plain_markdown import sentence_explorer
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

from mpt_lml import curves, orders
from mpt_score import MaskedLM, networks, tokens

pytestmark = pytest.mark.browser

BOOK = ROOT / "book"
EXPLORER = ".sentence-explorer"
SCRIPT = "small-bert.js"
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
PAGES = ["index", "04-orders", "12-bert"]
TWELVE = "She was alone in the house when the rain began."  # its number of pieces
EVERYTHING = os.environ.get("MPT_LML_AGAIN") == "all"
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Explorer</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'self' file:;
style-src 'unsafe-inline'; img-src file:; worker-src blob:">
<meta name="viewport" content="width=device-width"><style>{css}
html[data-theme="dark"] body {{ background: #14181e; color: #e9edf2 }}</style></head>
<body><main><h1>Explorer</h1>{html}</main>
<script defer src="explorers.js"></script><script defer src="sentence-explorer.js"></script>
</body></html>"""


@functools.cache
def small_bert_script() -> str:
    """What the build writes, from the extension that writes it."""
    return network_weights.small_bert()


@functools.cache
def emitted() -> str:
    return sentence_explorer(BOOK / "12-bert.ipynb")


def numbers() -> dict:
    return json.loads(re.search(r"<script[^>]*>(.*?)</script>", emitted(), re.S)[1])


@pytest.fixture(scope="session")
def small_bert():
    return networks.load_small_bert()


@pytest.fixture(scope="session")
def texts(small_bert) -> list[str]:
    return typed.sentences(small_bert[1])


@pytest.fixture
def visit(browser, tmp_path):
    """The explorer alone, opened as a file."""
    visits = []

    def opener(link="", *, script="", loud=True, **settings):
        css = (BOOK / "_static" / "explorers.css").read_text(encoding="utf-8")
        (tmp_path / "page.html").write_text(PAGE.format(css=css, html=emitted()), encoding="utf-8")
        for name in ("explorers.js", "sentence-explorer.js"):
            shutil.copy(BOOK / "_static" / name, tmp_path)
        if script is not None:
            (tmp_path / SCRIPT).write_text(script or small_bert_script(), encoding="utf-8")
        where = (tmp_path / "page.html").as_uri() + link
        settings = {"viewport": DESKTOP, "reduced_motion": "reduce", "has_touch": True} | settings
        visits.append(Visit(browser, where, **settings))
        page = visits[-1].page
        if settings.get("java_script_enabled", True):
            page.locator(f"{EXPLORER}[data-ready=true]").wait_for()
        if not loud:
            page.quiet = visits[-1].errors
        return page

    yield opener
    close_all(visits)


def field(page, number: int = 0):
    return page.locator(f"{EXPLORER} textarea").nth(number)


def done(page) -> None:
    page.locator(f"{EXPLORER}[data-state=done]").wait_for()


def type_in(page, text: str, number: int = 0) -> None:
    field(page, number).fill(text)


def press(page, name: str) -> None:
    page.locator(EXPLORER).get_by_role("button", name=name, exact=True).click()


def alone(page, sentence: int = 0) -> list[list[str]]:
    """Of each piece its letters and its number."""
    return (
        page.locator(f"{EXPLORER} ol.oe-tokens")
        .nth(sentence)
        .locator("li")
        .evaluate_all("all => all.map(li => [...li.children].slice(1).map(e => e.textContent))")
    )


def ready(page) -> None:
    """Have tokenizer and network on the page, too."""
    page.add_script_tag(url=SCRIPT)


def longest_error(page) -> float:
    return number_in(page.locator("[data-sum=score]").inner_text().partition("±")[2])


PIECES = """texts => {
  const cut = smallBert.Tokenizer(smallBert.packed.vocabulary);
  return texts.map(text => cut(text).map(each => [each.id, [...text.slice(0, each.end)].length]));
}"""
ANSWERS = """questions => {
  window.asked = window.asked || smallBert.Network(matrices(), smallBert.packed);
  return questions.map(([row, place, id]) => asked(row, [place], [id])[0]);
}"""


def test_the_tokenizer_cuts_as_the_package_s(visit, small_bert, texts) -> None:
    """200 sentences: the pieces, and where in the text each ends."""
    page = visit()
    ready(page)
    assert len(set(texts)) == 200
    for text, found in zip(texts, page.evaluate(PIECES, texts), strict=True):
        wanted = small_bert[1](text, add_special_tokens=False, return_offsets_mapping=True)
        ends = [end for _, end in wanted["offset_mapping"]]
        assert found == [[*each] for each in zip(wanted["input_ids"], ends, strict=True)], text


def along_an_order(small_bert, text: str, seed: int):
    """Rows that are shown, the piece that each step reveals, and the package's log q of it."""
    network, tokenizer = small_bert
    ids = torch.tensor(tokenizer(text)["input_ids"])
    known = (ids[1:-1] != tokenizer.unk_token_id).nonzero().flatten() + 1
    order = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))]
    mask = torch.zeros(len(order), len(ids), dtype=torch.bool)
    for step in range(len(order)):
        mask[step, order[step:]] = True
    log_q = MaskedLM.of(network, tokenizer).log_tokens(ids.expand(len(order), -1), mask)
    shown_rows = ids.expand(len(order), -1).masked_fill(mask, tokenizer.mask_token_id)
    questions = zip(shown_rows.tolist(), order.tolist(), ids[order].tolist(), strict=True)
    return list(questions), log_q[torch.arange(len(order)), order]


def test_eight_bits_change_little(visit, small_bert, texts) -> None:
    """A few sentences; all of them once a week."""
    page = visit()
    ready(page)
    scorable = [text for text in texts if 0 < len(known_pieces(small_bert, text)) <= 60]
    chosen = scorable if EVERYTHING else scorable[3::32]
    shares, largest = [], 0.0
    for seed, text in enumerate(chosen):
        questions, log_q = along_an_order(small_bert, text, seed)
        found = torch.tensor(page.evaluate(ANSWERS, questions), dtype=torch.float64)
        off = found - log_q
        largest = max(largest, off.abs().max().item())
        share = (off.sum() / log_q.sum()).abs().item()
        if len(questions) > 2:
            shares.append(share)
        else:  # of one piece or two a share says little; one decimal is shown
            assert abs(off.sum()) < 0.1, text
    mean = sum(shares) / len(shares)
    print(
        f"{len(chosen)} sentences: areas {mean:.3%} in the mean, {max(shares):.3%} at worst;",
        end="",
    )
    print(f" a conditional {largest:.3f} nats at worst")
    assert mean <= 0.001 and max(shares) <= 0.003 and largest <= 0.15


def known_pieces(small_bert, text: str) -> list[int]:
    tokenizer = small_bert[1]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return [each for each in ids if each != tokenizer.unk_token_id]


def test_the_first_sentence_needs_no_network(visit, small_bert) -> None:
    page = visit(script=None)  # there is none
    done(page)
    text = numbers()["text"]
    rows = tokens.encode(small_bert[1], [text])
    D = int(rows.num_features[0])
    model = MaskedLM.of(*small_bert, D)
    exact = curves.exact_curve(model, rows.ids[:, 1:-1])
    assert shown(page, "score") == pytest.approx(float(exact.area()), abs=0.06)
    bits = -float(exact.area()) / math.log(2) / len(text)
    assert shown(page, "bits") == pytest.approx(bits, abs=0.006)
    assert shown(page, "perplexity") == round(math.exp(-float(exact.area()) / D))
    over = orders.exact(model, rows.ids[:, 1:-1])
    spread = page.get_by_text("the totals run from").inner_text().replace("−", "-")
    wanted = (over.lowest, over.highest, over.variance.sqrt())
    assert "all 120 orders" in spread
    for found, value in zip(re.findall(r"-?\d+\.\d", spread), wanted, strict=True):
        assert float(found) == pytest.approx(value.item(), abs=0.06)
    values = [number_in(value) for _, value in alone(page)]
    log_q = model.log_each(rows.ids[:, 1:-1].expand(D, D), torch.eye(D, dtype=torch.bool))
    assert values == pytest.approx((-log_q.diagonal()).tolist(), abs=0.006)


def test_a_short_sentence_is_scored_by_every_mask(visit, small_bert) -> None:
    page = visit()
    type_in(page, "He was alone.")
    page.get_by_text("he", exact=True).wait_for()
    done(page)
    rows = tokens.encode(small_bert[1], ["He was alone."])
    assert int(page.locator(EXPLORER).get_attribute("data-passes")) == 2**4 - 1
    exact = curves.exact_curve(MaskedLM.of(*small_bert, 4), rows.ids[:, 1:-1])
    assert shown(page, "score") == pytest.approx(float(exact.area()), abs=0.08)
    assert page.locator("[data-sum=orders]").inner_text() == "all 24"
    assert "±" not in page.locator("[data-sum=score]").inner_text()


WATCH = """() => {
  const orders = document.querySelector("[data-sum=orders]"), root = orders.closest(".explorer");
  window.seen = {};
  new MutationObserver(() => { seen[orders.textContent] = Number(root.dataset.passes); })
    .observe(orders, { childList: true });
}"""


def test_equal_rows_are_asked_once_and_it_stops_when_the_error_is_small(visit, small_bert) -> None:
    page = visit()
    page.evaluate(WATCH)
    type_in(page, TWELVE)
    page.locator("[data-state=working]").wait_for()
    done(page)
    D = len(known_pieces(small_bert, TWELVE))
    seen = page.evaluate("seen")
    # Each piece alone is the last step of every order, and everything hidden is the first.
    for n in range(4, 8):
        assert D + 1 + (n - 1) * (D - 2) < seen[str(n)] <= D + 1 + n * (D - 2)
    assert longest_error(page) <= 0.5 and shown(page, "orders") >= 8
    ranks = orders.draw(64, D, generator=torch.Generator().manual_seed(3))
    rows = tokens.encode(small_bert[1], [TWELVE])
    along = orders.log_probability(MaskedLM.of(*small_bert, D), rows.ids[:, 1:-1], ranks)[:, 0]
    error = math.hypot(along.std() / 8, longest_error(page))
    assert abs(shown(page, "score") - along.mean()) < 5 * error + 0.1


def test_the_same_orders_for_two_sentences(visit, small_bert) -> None:
    page, pair = visit(), [TWELVE, TWELVE.replace("was", "were")]
    press(page, "Compare with a second sentence")
    type_in(page, pair[0])
    type_in(page, pair[1], 1)
    page.get_by_text("were", exact=True).wait_for()
    done(page)
    said = page.locator(f"{EXPLORER} .oe-difference").inner_text()
    gap, error = (float(each) for each in re.search(r"([\d.]+) ± ([\d.]+)", said).groups())
    rows = tokens.encode(small_bert[1], pair)
    D = int(rows.num_features[0])
    ranks = orders.draw(64, D, generator=torch.Generator().manual_seed(4))
    model = MaskedLM.of(*small_bert, D)
    along = orders.log_probability(model, rows.ids[:, 1:-1], ranks)
    wanted = along[:, 1] - along[:, 0]
    assert ("lower" in said) == bool(wanted.mean() < 0)
    assert abs(gap - wanted.mean().abs()) < 5 * math.hypot(error, wanted.std() / 8) + 0.1
    # Orders of their own would make an error of both.
    apart = along.var(dim=0).sum().sqrt() / math.sqrt(int(shown(page, "orders")))
    assert error < 0.7 * apart


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "nothing to score yet"),
        (" \n\t\u200b ", "nothing to score yet"),
        ("one " * 63, "has 63 pieces, and the network reads at most 62"),
        ("😀 שלום", "knows none of these signs"),
        ("I [MASK] you", "[MASK] is a sign of the network's own"),
    ],
)
def test_what_cannot_be_scored_gets_a_sentence_and_no_number(visit, text: str, why: str) -> None:
    page = visit()
    type_in(page, "He was alone.")
    page.get_by_text("he", exact=True).wait_for()
    type_in(page, text)
    stopped = page.locator(f"{EXPLORER} .oe-stopped")
    stopped.wait_for()
    assert why in stopped.inner_text() and stopped.get_attribute("role") == "status"
    assert page.locator(f"{EXPLORER} dl").first.is_hidden()
    type_in(page, "He was alone.")
    stopped.wait_for(state="hidden")
    done(page)
    assert "NaN" not in page.locator(EXPLORER).inner_text()


def test_unknown_signs_and_line_breaks_are_spoken_of(visit, small_bert) -> None:
    page = visit()
    type_in(page, "He was\nalone 😀.")
    live = page.locator(f"{EXPLORER} .oe-live")
    page.get_by_text("does not know 1 piece, and does not score it. Line breaks").wait_for()
    done(page)
    assert ["unknown", "–"] in alone(page)
    bits = number_in(page.locator("[data-sum=bits]").inner_text())
    scored = len(b"He was\nalone.")  # without the unknown sign and the space before it
    assert bits == pytest.approx(-shown(page, "score") / math.log(2) / scored, abs=0.02)
    assert "NaN" not in live.inner_text()


def test_what_is_typed_is_text(visit) -> None:
    page = visit()
    type_in(page, "<img src=x onerror=alert(1)> <b>bold</b>")
    page.get_by_text("bold", exact=True).first.wait_for()
    assert page.locator(f"{EXPLORER} :is(img, b, script:not([type]))").count() == 0


def test_a_link_carries_the_sentences(visit) -> None:
    pair = ["She sat down & wept; 50 % + #1?", "He sat down."]
    page = visit("#" + "&".join(f"s={quote(text, safe='')}" for text in pair))
    assert [field(page, number).input_value() for number in (0, 1)] == pair
    page.get_by_text("he", exact=True).wait_for()
    type_in(page, "Another one, 1 + 1 & more", 1)
    page.get_by_role("link", name="Link to this sentence").click()
    type_in(page, "something else")
    page.go_back()
    page.go_forward()
    assert [field(page, number).input_value() for number in (0, 1)] == [
        pair[0],
        "Another one, 1 + 1 & more",
    ]


def total_along(order: list[int]) -> float:
    answers, sight, total = numbers()["answers"], 0, 0.0
    for j in order:
        total += answers[sight][j]
        sight |= 1 << j
    return total


def test_pieces_are_revealed_in_any_order_by_keyboard(visit) -> None:
    page = visit(script=None)
    cards = page.locator(f"{EXPLORER} button.oe-token")
    for step, j in enumerate((3, 0, 4, 1, 2), start=1):
        cards.nth(j).focus()
        page.keyboard.press("Enter")
        page.locator(f"{EXPLORER} button.oe-token[data-revealed=true]").nth(step - 1).wait_for()
        assert page.evaluate(
            "j => document.activeElement === document.querySelectorAll('button.oe-token')[j]", j
        )
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    first = total_along([3, 0, 4, 1, 2])
    assert shown(page, "running") == pytest.approx(first, abs=0.006)
    assert "All are revealed" in page.locator(f"{EXPLORER} .oe-live").inner_text()
    cards.nth(3).press("Enter")  # revealed already: nothing more
    assert shown(page, "running") == pytest.approx(first, abs=0.006)
    press(page, "Another order")
    for _ in range(4):
        press(page, "Reveal one")
    second = total_along([0, 1, 2, 3, 4])
    assert shown(page, "running") == pytest.approx(second, abs=0.006)
    found = page.locator("[data-sum=range]").inner_text().replace("−", "-").split(" to ")
    assert sorted(map(float, found)) == pytest.approx(sorted([first, second]), abs=0.006)
    press(page, "Hide all")
    press(page, "Reveal the rest at random")
    page.locator(f"{EXPLORER} button.oe-token[data-revealed=true]").nth(4).wait_for()


def test_no_serious_accessibility_fault_and_no_overflow(visit) -> None:
    page = visit("#s=She%20was%20late.&s=She%20were%20late%20%F0%9F%98%80.")
    page.get_by_text("were", exact=True).wait_for()
    done(page)
    press(page, "Reveal one")
    for viewport in (DESKTOP, PHONE):
        change(page, theme="light", viewport=viewport)
        assert barriers(page, EXPLORER) == []
        assert beside_the_window(page, EXPLORER) == 0
        assert page.locator(EXPLORER).evaluate("n => n.scrollWidth - n.clientWidth") <= 0
        change(page, theme="dark")
        assert barriers(page, EXPLORER, COLOR_RULES) == []
    boxes = page.locator(f"{EXPLORER} button").evaluate_all(
        "all => all.map(b => b.getBoundingClientRect().height)"
    )
    assert min(boxes) >= 44
    for svg in page.locator(f"{EXPLORER} svg").all():
        assert "surprise" in svg.get_attribute("aria-label")


def test_without_javascript_and_on_paper_the_table_stays(visit) -> None:
    page = visit(java_script_enabled=False, loud=False)
    fixed = page.locator(f"{EXPLORER} .explorer-static")
    assert fixed.is_visible() and fixed.locator("tr").count() == 4
    page.quiet.clear()
    page = visit()
    assert page.locator(f"{EXPLORER} .explorer-static").is_hidden()
    change(page, media="print")
    assert page.locator(f"{EXPLORER} .explorer-static").is_visible()
    assert page.locator(f"{EXPLORER} .oe-title").is_hidden()


@pytest.mark.parametrize(
    "falsified",
    [
        lambda script: script.replace('"half": "', '"half": "f39/'),
        lambda script: script.replace('"int8": "', '"int8": "AAAA'),
        lambda script: script[:-400_007] + '"} };',
        lambda script: script.replace("WIDTH = 160", "WIDTH = 161"),
    ],
    ids=["scales", "moved", "cut short", "another network"],
)
def test_falsified_weights_are_seen(visit, falsified) -> None:
    page = visit(script=falsified(small_bert_script()), loud=False)
    type_in(page, "He was alone.")
    stopped = page.locator(f"{EXPLORER} .oe-stopped")
    stopped.wait_for()
    assert "could not be started" in stopped.inner_text()
    page.quiet.clear()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_site_runs_it_from_a_folder_and_asks_nobody(browser, address, name) -> None:
    where = (SITE / "book" / f"{name}.html").as_uri()
    visit = Visit(browser, where, viewport=DESKTOP, reduced_motion="reduce")
    page, asked = visit.page, []
    page.on("request", lambda request: asked.append(request.url))
    page.locator(f"{EXPLORER}[data-ready=true]").wait_for()
    visit.settle()  # formulas further down may ask for another font
    assert page.locator(f"script[src*='{SCRIPT}']").count() == 0  # until somebody types
    assert not [each for each in asked if SCRIPT in each]
    asked.clear()
    type_in(page, "He was alone.")
    page.get_by_text("he", exact=True).wait_for()
    done(page)
    beside = [each for each in asked if SCRIPT not in each and not each.startswith("blob:")]
    assert beside == [] and "%20" not in "".join(asked)
    assert page.locator("[data-sum=orders]").inner_text() == "all 24"
    close_all([visit])


def test_only_its_pages_allow_a_worker(address: str) -> None:
    allow = set()
    for path in (SITE / "book").glob("*.html"):
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', path.read_text("utf-8"))[
            1
        ]
        assert "worker-src blob:;" in f"{policy};" or "worker-src" not in policy
        if "worker-src" in policy:
            allow.add(path.stem)
    assert allow == set(PAGES)
