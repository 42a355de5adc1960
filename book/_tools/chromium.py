"""The system's Chromium, driven by playwright, with every request to another site refused."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Route, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def executable() -> str | None:
    """MPT_LML_CHROMIUM, or a Chromium found in PATH."""
    named = os.environ.get("MPT_LML_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Address at which `folder` is served while the block runs."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable(), args=ARGUMENTS)
        try:
            yield opened
        finally:
            opened.close()


class Visit:
    """A page opened in a context of its own, with what went wrong while it was shown."""

    def __init__(self, browser: Browser, address: str, **context: object) -> None:
        self.context = browser.new_context(**context)
        self.page: Page = self.context.new_page()
        self.host = urlsplit(address).netloc
        self.outside: list[str] = []
        self.errors: list[str] = []
        self.context.route("**/*", self.only_this_site)
        self.page.on("console", self.heard)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("requestfailed", lambda request: self.errors.append(f"failed: {request.url}"))
        self.page.goto(address, wait_until="load")

    def heard(self, message) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def only_this_site(self, route: Route) -> None:
        parts = urlsplit(route.request.url)
        if parts.netloc == self.host or parts.scheme in ("data", "blob"):
            route.continue_()
        else:
            self.outside.append(route.request.url)
            route.abort()

    def settle(self) -> Page:
        """Wait until every equation is typeset and the page stands still."""
        self.page.wait_for_function(
            "() => !window.MathJax || (MathJax.startup && MathJax.startup.promise)"
        )
        self.page.evaluate("() => window.MathJax ? MathJax.startup.promise : null")
        self.page.wait_for_timeout(150)
        return self.page

    def close(self) -> None:
        self.context.close()
