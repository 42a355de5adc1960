"""One Chromium and one server for all browser tests; a visible reason where they cannot run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parents[1] / "book" / "_tools"))

import chromium  # noqa: E402


def refuse(reason: str, insist: bool) -> None:
    (pytest.fail if insist else pytest.skip)(reason)


@pytest.fixture(scope="session")
def browser() -> Iterator:
    if chromium.executable() is None:
        # In CI the script installs Chromium first: a missing one is then a fault, not a reason.
        refuse(
            "no Chromium in PATH (apt-get install chromium, or set MPT_LML_CHROMIUM)",
            os.environ.get("CI") == "true",
        )
    with chromium.browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def address(browser) -> Iterator[str]:
    if not (chromium.SITE / "index.html").is_file():
        refuse("no built book: run `make book`", bool(os.environ.get("MPT_LML_BOOK_BUILT")))
    with chromium.served(chromium.SITE) as where:
        yield where
