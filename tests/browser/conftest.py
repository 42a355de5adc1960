"""One Chromium and one server for all browser tests; a visible reason where they cannot run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lxml import html

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parents[1] / "book" / "_tools"))
sys.path.append(str(HERE.parents[1] / "book" / "_ext"))

import chromium  # noqa: E402

NO_CHROMIUM = "no Chromium in PATH (apt-get install chromium, or set MPT_LML_CHROMIUM)"


def pytest_pycollect_makemodule() -> None:
    """Read no test where there is no Chromium: what drives one is not installed there."""
    # In CI the script installs Chromium first: a missing one is then a fault, not a reason.
    if chromium.executable() is None and os.environ.get("CI") != "true":
        pytest.skip(NO_CHROMIUM, allow_module_level=True)


def refuse(reason: str, insist: bool) -> None:
    (pytest.fail if insist else pytest.skip)(reason)


@pytest.fixture(scope="session")
def browser() -> Iterator:
    if chromium.executable() is None:
        pytest.fail(NO_CHROMIUM)
    with chromium.browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def address(browser) -> Iterator[str]:
    if not (chromium.SITE / "index.html").is_file():
        refuse("no built book: run `make book`", bool(os.environ.get("MPT_LML_BOOK_BUILT")))
    with chromium.served(chromium.SITE) as where:
        yield where


EXPLORERS = ".//div[contains(concat(' ', @class, ' '), ' explorer ')]"
HEADINGS = ("h1", "h2", "h3")


def cut_down(article: html.HtmlElement) -> None:
    """Leave of an article its sections, their headings and its explorers."""
    explorers = article.xpath(EXPLORERS)
    around = {at for each in explorers for at in each.iterancestors()} | {*article.iter("section")}
    for at in around:
        for beside in set(at) - around - set(explorers):
            if beside.tag not in HEADINGS:
                at.remove(beside)


@pytest.fixture(scope="session")
def short_address(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The built site with its chapters cut down to their explorers.

    What an explorer meets there, theme, scripts and policy, is as in the book, but for the text around
    it, which takes seconds to typeset at each visit. That the two get on is seen in test_pages.py.
    """
    folder = tmp_path_factory.mktemp("short")
    for each in chromium.SITE.iterdir():
        if each.name != "book":
            (folder / each.name).symlink_to(each)
    (folder / "book").mkdir()
    for path in (chromium.SITE / "book").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        if 'class="explorer ' not in text:
            continue
        before, start, rest = text.partition("<article")
        inside, end, after = rest.rpartition("</article>")
        article = html.fragment_fromstring(start + inside + end)
        cut_down(article)
        short = before + html.tostring(article, encoding="unicode") + after
        (folder / "book" / path.name).write_text(short, encoding="utf-8")
    with chromium.served(folder) as where:
        yield where
