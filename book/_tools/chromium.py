"""The system's Chromium, driven by playwright, and a server for the built site."""

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
ARGUMENTS += " --disable-component-update --proxy-server=127.0.0.1:9"  # nobody is there: no way out


def executable() -> str | None:
    """MPT_LML_CHROMIUM, or a Chromium found in PATH."""
    named = os.environ.get("MPT_LML_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Address at which `folder` is served while the block runs."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright  # installed where there is a Chromium

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable(), args=ARGUMENTS.split())
        with started as opened:
            yield opened
