"""The system's Chromium, driven by playwright, and a server for the built site."""

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
ARGUMENTS += " --disable-background-networking --disable-component-update"
ARGUMENTS += " --proxy-server=127.0.0.1:9"  # nobody is there: only this machine is reached


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
        opened = playwright.chromium.launch(executable_path=executable(), args=ARGUMENTS.split())
        try:
            yield opened
        finally:
            opened.close()
