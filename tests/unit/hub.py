"""A hub on 127.0.0.1: what `huggingface_hub` asks of the real one to fetch files of one commit."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BEFORE: dict[str, Callable[[str], None]] = {}
"""What happens before a file of that name is handed out."""


def _handler(name: str, revision: str, folder: Path, asked: list[str]) -> type:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self, *, body: bool) -> None:
            asked.append(f"{self.command} {self.path}")
            BEFORE.get(self.path.rpartition("/")[2], lambda _: None)(self.path)
            prefix = f"/{name}/resolve/{revision}/"
            path = folder / self.path.removeprefix(prefix).partition("?")[0]
            if self.path.partition("?")[0] == f"/api/models/{name}/tree/{revision}":
                files = [each for each in folder.iterdir() if each.is_file()]
                self.listing(
                    [{"type": "file", "path": p.name, "size": p.stat().st_size} for p in files]
                )
                return
            if not self.path.startswith(prefix) or not path.is_file():
                self.send_response(404)
                known = self.path.startswith((prefix, f"/api/models/{name}/tree/{revision}/"))
                missing = "EntryNotFound" if known else "RepoNotFound"
                self.send_header("X-Error-Code", missing)
                self.send_header("X-Repo-Commit", revision)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content = path.read_bytes()
            self.send_response(200)
            self.send_header("X-Repo-Commit", revision)
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def listing(self, files: list[dict[str, object]]) -> None:
            content = json.dumps([each | {"oid": "0" * 40} for each in files]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

    return Handler


@contextmanager
def local_hub(name: str, revision: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve ``folder`` as commit ``revision`` of ``name``; yields the address and what was asked."""
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(name, revision, folder, asked))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
