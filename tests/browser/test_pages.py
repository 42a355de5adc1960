"""The built book as a reader sees it: typeset, offline, searchable, usable on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from book_layout import Book
from chromium import SITE, served
from first_visits import PAGES as FIRST_VISITS
from first_visits import costs
from playwright.sync_api import Error
from visits import Visit, barriers, beside_the_window, change, load_axe, stand_still

pytestmark = pytest.mark.browser

BOOK = Book()
PAGES = [page.docname for page in BOOK.pages]
CHAPTERS = [page.docname for page in BOOK.chapters]
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
A4 = {"width": 794 - 2 * 53, "height": 1123}  # pixels of the paper without its margins
PRINTED = ["book/07-training", "book/13-images", "book/how-to-run"]
TABLES = ["book/scoring-guide", "book/cheat-sheet", "book/map-2-ppca"]

UNTYPESET = """() => [...document.querySelectorAll('article .math')]
  .filter(e => !e.querySelector('mjx-container') || e.querySelector('mjx-merror'))
  .map(e => e.textContent.slice(0, 60))"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
TOO_WIDE = """() => [...document.querySelectorAll('article *')]
  .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .slice(0, 5).map(e => e.tagName + '.' + e.className)"""
# Formulas in the text that are wider than their box, where the rest cannot be scrolled to.
CUT = """() => [...document.querySelectorAll('article span.math')]
  .filter(e => getComputedStyle(e).overflowX === 'hidden' && e.firstElementChild
    && e.querySelector('mjx-math, i').getBoundingClientRect().width > e.clientWidth + 2)
  .map(e => e.textContent.slice(0, 60))"""
# Figures of which not one image (of those for a light and for a dark page) and the caption are shown.
NOT_SHOWN = """() => [...document.querySelectorAll('article figure:has(img)')]
  .filter(each => each.checkVisibility())
  .filter(each => [...each.querySelectorAll('img')].filter(e => e.checkVisibility()).length !== 1
    || !each.querySelector('figcaption')?.checkVisibility())
  .map(each => each.id || each.outerHTML.slice(0, 80))"""
# The keyboard comes into what scrolls, some time after the window has changed; not into a closed fold.
REACHED = """() => [...document.querySelectorAll('.pst-scrollable-table-container, article pre')]
  .filter(e => e.checkVisibility())
  .every(e => e.scrollWidth <= e.clientWidth || e.tabIndex === 0)"""
KEY_POINTS = """() => [...document.querySelectorAll('.key-points')]
  .slice(0, 1).map(e => e.getBoundingClientRect().bottom + scrollY)"""
PUSHED = """() => [...document.querySelectorAll("article pre")]
  .filter(printed => printed.checkVisibility() && printed.scrollWidth > printed.clientWidth + 1)
  .map(printed => printed.textContent.slice(0, 60))"""
CUT_CODE = """() => [...document.querySelectorAll('article pre')]
  .filter(code => code.checkVisibility() && code.scrollWidth > code.clientWidth + 1)
  .map(code => code.textContent.slice(0, 60))"""
# Full stops and the like that begin a line because the formula before them ended the last one.
ORPHANS = """() => [...document.querySelectorAll('article span.math')].filter(formula => {
  const next = formula.nextSibling;
  if (!next || next.nodeType !== 3 || !/^[.,;:!?)]/.test(next.data)) return false;
  const range = document.createRange();
  range.setStart(next, 0);
  range.setEnd(next, 1);
  return range.getBoundingClientRect().left < formula.getBoundingClientRect().left;
}).map(formula => formula.nextSibling.data.slice(0, 20))"""
# Cells that have less than 0.9 of their table's width, which is a card's line on a phone, a table
# that has less than 0.9 of the article's, and boxes that scroll.
NARROW = """() => {
  const tables = [...document.querySelectorAll('article :is(table.cheat-sheet, table.ledger)')];
  const wide = e => e.getBoundingClientRect().width;
  const boxes = [...document.querySelectorAll('article .pst-scrollable-table-container')];
  const cells = tables.flatMap(table => [...table.querySelectorAll('td')]
    .filter(cell => cell.checkVisibility()).map(cell => [cell, wide(cell) / wide(table)]));
  if (cells.length <= 10) return ['too few cells'];
  if (wide(tables[0]) < 0.9 * document.querySelector('article').clientWidth) return ['a table'];
  return [...cells.filter(([, share]) => share < 0.9).map(([cell]) => cell),
    ...boxes.filter(box => box.scrollWidth > box.clientWidth + 1)]
    .map(e => e.textContent.slice(0, 60));
}"""
COLUMNS = """() => [2, 3].map(n => document.querySelector(`.questions tbody td:nth-child(${n}) p`))
  .map(e => e && getComputedStyle(e, '::before').content)"""
RANKS = """() => ['h1', 'h2', 'h3'].map(level => document.querySelector(`article ${level}`))
  .filter(Boolean).map(getComputedStyle).map(style => [parseFloat(style.fontSize), +style.fontWeight])"""
ICONS = """() => [...document.querySelectorAll('i[class*=fa-]')]
  .filter(icon => icon.checkVisibility({ visibilityProperty: true }))"""
NO_GLYPH = f"""() => ({ICONS})()
  .filter(icon => icon.getBoundingClientRect().width <= 5
    || ['none', 'normal'].includes(getComputedStyle(icon, '::before').content))
  .map(icon => icon.className)"""
# A network explorer waits until a reader comes near, and is seen to come in its own tests.
EXPLORERS = ".explorer:not(.network-explorer)"
# A page's policy, the scripts in attributes, which it would block, and links that hand on the window.
POLICY = (
    """() => document.querySelector('meta[http-equiv="Content-Security-Policy"]')?.content ?? ''"""
)
HANDLERS = """() => [...document.querySelectorAll('*')]
  .flatMap(e => [...e.attributes]).filter(each => /^on/.test(each.name)).map(each => each.name)"""
OPENERS = """() => [...document.querySelectorAll('a[target=_blank]')]
  .filter(e => !e.relList.contains('noopener')).map(e => e.href)"""
BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"


# Marks, of all text that looks alike (colour, weight, size, all backgrounds under it), the first in
# plain sight: measuring the contrast of every word took axe most of its time. Most of the elements,
# words of code, names of arguments and what is inside a formula, are then mere text.
LOOKS_ONCE = """() => {
  const looks = new Set(), grounds = new Map([[null, ""]]);
  const visible = e => e.checkVisibility({ visibilityProperty: true });
  const ground = at => {
    if (!grounds.has(at)) {
      const { backgroundColor, backgroundImage, opacity } = getComputedStyle(at);
      const own = opacity !== "1" || backgroundImage !== "none" || !backgroundColor.endsWith(", 0)");
      const drawn = own ? [backgroundColor, backgroundImage, opacity].join() : "";
      grounds.set(at, drawn + ground(at.parentElement));
    }
    return grounds.get(at);
  };
  for (const told of document.querySelectorAll("main *")) {
    const own = [...told.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !visible(told)) continue;
    const box = told.closest("pre, .pst-scrollable-table-container");
    const inSight =
      !box || told.getBoundingClientRect().right <= box.getBoundingClientRect().right;
    const look = [inSight, told.tagName === "A" && getComputedStyle(told.parentElement).color];
    const { color, fontSize, fontWeight, textShadow, textDecorationLine } = getComputedStyle(told);
    look.push(color, fontSize, fontWeight, textShadow, textDecorationLine, ground(told));
    if (!looks.has(look.join())) told.dataset.look = looks.size;
    looks.add(look.join());
  }
  for (const drawn of document.querySelectorAll("main mjx-math")) drawn.replaceWith(drawn.textContent);
  // No rule but that of contrast selects these: they have no name, no role, no focus, no box.
  const mere = /^(class|data-mjx-.*|mathvariant|stretchy|scriptlevel|displaystyle|width)$/;
  const words = "main :is(p, span, em, strong, code, math *):not([id], [data-look])";
  [...document.querySelectorAll(words)]
    .filter(e => [...e.attributes].every(each => mere.test(each.name)))
    .filter(e => visible(e) === visible(e.parentElement))
    .filter(e => getComputedStyle(e).overflow === "visible")
    .reverse()
    .forEach(e => e.children.length || !e.textContent || e.replaceWith(e.textContent));
  // Of those that differ in words and addresses only, one is left: they say the same to every rule.
  const alike = "main :is(span.math > mjx-container, .copybtn, .headerlink, .toc-entry > a)";
  const kinds = new Set();
  [...document.querySelectorAll(alike)].filter(each => {
    const around = each.parentElement.closest("a, button, [role], [tabindex], td, p, li, main");
    const kind = [around.tagName, visible(each), each.outerHTML.replace(/>[^<]*\\S[^<]*</g, ">words<")
      .replace(/ (href|title|ctxtmenu_counter|data-clipboard-target)="[^"]+"/g, " $1")].join();
    return kinds.size === kinds.add(kind).size;
  }).forEach(each => each.replaceWith(each.textContent));
  axe.configure({ rules: [{ id: "color-contrast", selector: "[data-look]" }] });
  return looks.size;
}"""


def brightness(page) -> int:
    """Of the background: 0 is black, 765 is white."""
    return sum(int(part) for part in page.evaluate(BACKGROUND)[4:-1].split(",")[:3])


def serious(page) -> list[str]:
    """Serious and critical faults that axe finds in the book's own part of the page."""
    load_axe(page)
    page.evaluate(LOOKS_ONCE)
    return barriers(page, "main")


def on_a_phone(visit: Visit, docname: str) -> dict[str, object]:
    """What is wrong with a page as it is loaded on a phone."""
    page = visit.settle()
    for explorer in page.locator(EXPLORERS).all():
        explorer.and_(page.locator("[data-ready=true]")).wait_for(timeout=30_000)
    overflow = page.evaluate(OVERFLOW)
    faults = {
        "asked of other sites": visit.outside,
        "errors": visit.errors,  # what the policy blocks is one, too
        "no policy": "default-src 'none'" not in page.evaluate(POLICY),
        "scripts in attributes": page.evaluate(HANDLERS),
        "links that hand on the window": page.evaluate(OPENERS),
        "not typeset": page.evaluate(UNTYPESET),
        "wider than the window": page.evaluate(TOO_WIDE) if overflow > 1 else [],
        "cut formulas": page.evaluate(CUT),
        "figures that are not shown once": page.evaluate(NOT_SHOWN),
        "no light background": brightness(page) <= 600,
        "full stops alone on a phone": page.evaluate(ORPHANS),
    }
    if docname in CHAPTERS and not docname.startswith("book/note-"):
        (bottom,) = page.evaluate(KEY_POINTS)
        faults["key points below the first screen"] = bottom > PHONE["height"]
        faults["lines of code that need a push"] = page.evaluate(PUSHED)
    if docname in TABLES:
        faults["tables that leave width unused"] = page.evaluate(NARROW)
    if docname == "book/how-should-i-mask":
        faults["names of columns"] = page.evaluate(COLUMNS) != ["none", '"Why: "']
    return faults


def at_a_desk(page) -> dict[str, object]:
    """What is wrong with a page as wide as a desk; of the page is left what axe needs."""
    ranks = page.evaluate(RANKS)
    sizes, weights = zip(*ranks, strict=True)
    return {
        "a heading that is not above the next": sorted(set(sizes), reverse=True) != list(sizes)
        or sorted(weights, reverse=True) != list(weights),
        "icons without a glyph": page.evaluate(NO_GLYPH),
        "no icons": page.evaluate(f"({ICONS})().length") < 5,
        "full stops alone at a desk": page.evaluate(ORPHANS),
        "barriers": serious(page),
    }


@pytest.mark.parametrize("docname", PAGES)
def test_a_page_is_typeset_offline_fits_a_phone_and_has_no_barrier(
    browser, address: str, docname: str
) -> None:
    """One visit, since loading and typesetting take longest: a phone, paper, then as wide as a desk."""
    is_first = docname in FIRST_VISITS
    visit = Visit(browser, f"{address}/{docname}.html", viewport=PHONE, first=is_first)
    page = visit.page
    faults = on_a_phone(visit, docname)
    if is_first:
        faults |= costs(visit)
    if docname in PRINTED:
        change(page, viewport=A4, media="print")
        faults["code cut on paper"] = page.evaluate(CUT_CODE)
        change(page, media="screen")
    change(page, viewport=DESKTOP)
    page.wait_for_function(REACHED)
    faults |= at_a_desk(page)
    visit.close()
    told = [f"{what}: {found}" for what, found in faults.items() if found]
    assert not told, "\n".join(told)


EXPLORED = "book/03-mask-rate-curve"


@pytest.mark.parametrize("docname", ["book/index", EXPLORED, "book/map", "book/api-mpt-lml"])
def test_a_page_works_from_a_folder(browser, address: str, docname: str) -> None:
    """Opened as a file: typeset, with its explorer, and its policy blocks nothing."""
    visit = Visit(browser, f"{(SITE / docname).as_uri()}.html", viewport=DESKTOP)
    page = visit.settle()
    assert visit.errors == []
    assert page.evaluate(UNTYPESET) == []
    if docname == EXPLORED:
        assert page.locator(".explorer svg, .explorer input, .explorer button").count() > 0
    visit.close()


@pytest.fixture(scope="module")
def first_chapter(browser, address: str) -> Iterator[Visit]:
    """A visit in the dark that its tests share, one after the other."""
    where = f"{address}/{CHAPTERS[0]}.html"
    visit = Visit(browser, where, color_scheme="dark", viewport=DESKTOP)
    visit.settle()
    yield visit
    visit.close()


@pytest.mark.xdist_group("first chapter")
def test_the_buttons_of_the_theme_work(first_chapter: Visit) -> None:
    page = first_chapter.page
    page.evaluate("() => { window.pressed = []; window.print = () => pressed.push('print') }")
    page.evaluate("() => { window.toggleFullScreen = () => pressed.push('full screen') }")
    for name in ("print", "full-screen"):
        page.evaluate("name => document.querySelector(`[data-press=${name}]`).click()", name)
    assert page.evaluate("pressed") == ["print", "full screen"]
    assert first_chapter.errors == []


@pytest.mark.xdist_group("first chapter")
def test_a_folded_solution_opens(first_chapter: Visit) -> None:
    page = first_chapter.page
    solution = page.query_selector("div.solution.dropdown")
    assert solution is not None, "no folded solution"
    button = solution.query_selector("button.toggle-button, summary")
    assert button is not None
    content = solution.query_selector("section")
    hidden = content.bounding_box() is None or not content.is_visible()
    button.click()
    stand_still(page)
    assert hidden
    assert content.is_visible()
    assert first_chapter.errors == []


@pytest.mark.xdist_group("first chapter")
@pytest.mark.parametrize(
    "script",
    [
        "document.head.append(Object.assign(document.createElement('script'), {text: 'ran = 1'}))",
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"\" onerror=\"ran = 1\">')",
        "document.body.append(Object.assign(new Image(), {src: 'https://other.example/x.png'}))",
    ],
    ids=["inline script", "attribute", "another site"],
)
def test_the_policy_blocks_what_was_not_built(first_chapter: Visit, script: str) -> None:
    page = first_chapter.page
    with page.expect_console_message(lambda said: "Content Security Policy" in said.text):
        page.evaluate(f"() => {{ {script} }}")
    assert page.evaluate("typeof ran") == "undefined"
    first_chapter.errors.clear()


@pytest.mark.xdist_group("first chapter")
def test_dark_mode_is_dark_and_readable(first_chapter: Visit) -> None:
    """The last test of this visit: of the page is left what axe needs."""
    page = first_chapter.page
    assert brightness(page) < 200
    assert page.evaluate(NOT_SHOWN) == []
    assert serious(page) == []


def test_a_link_to_an_equation_shows_a_preview(browser, address: str) -> None:
    linked = re.compile(r'class="reference internal" href="[^"]*#equation-')
    docname = next(d for d in CHAPTERS if linked.search((SITE / f"{d}.html").read_text("utf-8")))
    visit = Visit(browser, f"{address}/{docname}.html", viewport=DESKTOP)
    page = visit.settle()
    link = page.query_selector("article a.reference[href*='#equation-']")
    link.scroll_into_view_if_needed()
    stand_still(page)
    link.hover()
    page.wait_for_selector(".hover-preview mjx-container")
    assert visit.errors == []
    visit.close()


# -- the checks, on a page that is broken ------------------------------------------------------

BROKEN = """<!doctype html><html lang="en"><head><title>x</title></head><body><main><article>
<script src="https://cdn.example/x.js"></script><script>
localStorage.visits = 1 + +(localStorage.visits || 0); throw new Error("boom")</script>
<span class="math">\\(x\\)</span><img src="/here.png">
<style>.k { color: #ddd }</style><pre hidden><span class="k">if</span></pre>
<pre><span class="k"> </span><span class="k">if</span> <span class="k">else</span></pre>
<span class="math" style="display: inline-block; overflow: hidden; width: 9px"><i>cut</i></span>
<style>.none { display: none } .box { display: inline-block; overflow: auto; width: 9px }</style>
<math><mi role="nothing">x</mi></math> <a href="#here"><em class="none">gone</em></a>
<code class="box">scrolls</code> <strong class="box"><span>too</span>_far</strong>
<div style="width: 900px">wide</div></article></main></body></html>"""


def test_a_broken_page_is_seen_to_be_broken(browser, tmp_path: Path) -> None:
    (tmp_path / "broken.html").write_text(BROKEN)
    with served(tmp_path) as where:
        Visit(browser, f"{where}/broken.html", viewport=PHONE).close()
        visit = Visit(browser, f"{where}/broken.html", viewport=PHONE)  # on the page of the first
        page = visit.settle()
        assert page.evaluate("localStorage.visits") == "1"
        assert visit.outside == ["https://cdn.example/x.js"]
        assert any("boom" in error for error in visit.errors)
        assert any("here.png" in error or "404" in error for error in visit.errors)
        assert page.evaluate(UNTYPESET) == ["\\(x\\)", "cut"]
        assert page.evaluate(OVERFLOW) > 100
        assert page.evaluate(CUT) == ["cut"]
        faults = serious(page)
        seen = {"image-alt", "aria-roles", "link-name", "scrollable-region-focusable"}
        assert seen <= {fault.split(":")[0] for fault in faults}
        assert any("scrolls" in fault and "_far" in fault for fault in faults)
        assert [fault for fault in faults if fault.startswith("color-contrast") and ">if<" in fault]
        # of two words that look alike in sight one is measured
        assert page.locator("pre [data-look]").all_inner_texts() == ["if"]
        visit.close()


# A side bar as the theme's: out of the way on a phone, and back in the layout, sliding, on a desk.
SLIDING = """<!doctype html><html lang="en"><head><title>x</title><style>
body { display: flex; margin: 0 } main { flex: 1; min-width: 0 }
nav { width: 256px; transition: margin-left 250ms }
@media (max-width: 700px) { nav { position: fixed; margin-left: -900px } }
@keyframes turning { to { rotate: 1turn } } i { animation: turning 1s infinite }
</style></head><body><nav>aside</nav><main><i>*</i><p>text</p></main></body></html>"""


def test_a_side_bar_that_slides_is_waited_for(browser, tmp_path: Path) -> None:
    (tmp_path / "sliding.html").write_text(SLIDING)
    visit = Visit(browser, (tmp_path / "sliding.html").as_uri(), viewport=PHONE)
    page = visit.page
    for _ in range(3):
        change(page, viewport=PHONE)
        change(page, viewport=DESKTOP)
        assert beside_the_window(page, "main") == 0
    visit.close()


def test_an_element_that_stays_beside_the_window_is_seen(browser, tmp_path: Path) -> None:
    shifted = SLIDING.replace("min-width: 0", "position: relative; left: -300px")
    (tmp_path / "shifted.html").write_text(shifted)
    visit = Visit(browser, (tmp_path / "shifted.html").as_uri(), viewport=PHONE)
    change(visit.page, viewport=DESKTOP)
    assert beside_the_window(visit.page, "main") == 44  # 300 less the 256 of the side bar
    change(visit.page, viewport=PHONE)
    assert beside_the_window(visit.page, "main") == 300
    visit.close()


def test_a_page_that_never_stands_still_is_named(browser, tmp_path: Path) -> None:
    (tmp_path / "restless.html").write_text(SLIDING)
    visit = Visit(browser, (tmp_path / "restless.html").as_uri(), viewport=DESKTOP)
    page = visit.page
    page.evaluate("() => setInterval(() => document.querySelector('main').prepend('.\\n'), 5)")
    page.add_style_tag(content="main { white-space: pre }")
    with pytest.raises(Error, match=r"does not stand still after 0\.5 s"):
        stand_still(page, seconds=0.5)
    visit.close()
