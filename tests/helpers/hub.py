"""A hub on 127.0.0.1: what `huggingface_hub` asks of the real one to fetch files of a commit."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple


class Model(NamedTuple):
    """A name on the hub."""

    name: str
    revision: str  # where its branch "main" is; every other one is unknown
    folder: Path

    def commit_in(self, address: str) -> str:
        """The address with the commit instead of the branch."""
        return address.replace("/main", f"/{self.revision}")

    @property
    def files(self) -> list[str]:
        """Their paths in the folder."""
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [path.relative_to(self.folder).as_posix() for path in paths]

    @property
    def prefix(self) -> str:
        """Of the addresses of its files."""
        return f"/{self.name}/resolve/{self.revision}/"


def _handler(model: Model, asked: list[str]) -> type:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self, *, body: bool) -> None:
            asked.append(f"{self.command} {self.path}")
            address = model.commit_in(self.path.partition("?")[0])
            if address == f"/api/models/{model.name}/revision/{model.revision}":
                self.information()
            elif address == f"/api/models/{model.name}/tree/{model.revision}":
                self.listing()
            elif address.startswith(model.prefix):
                self.file(model.folder / address.removeprefix(model.prefix), body=body)
            else:
                self.missing("RepoNotFound")

        def file(self, path: Path, *, body: bool) -> None:
            if not path.is_file():
                self.missing("EntryNotFound")
                return
            content = path.read_bytes()
            self.send_response(200)
            self.send_header("X-Repo-Commit", model.revision)
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def missing(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", model.revision)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def information(self) -> None:
            files = [{"rfilename": path} for path in model.files]
            self.json({"id": model.name, "sha": model.revision, "siblings": files})

        def listing(self) -> None:
            sizes = {path: (model.folder / path).stat().st_size for path in model.files}
            entries = [
                {"type": "file", "path": path, "size": size, "oid": ""}
                for path, size in sizes.items()
            ]
            self.json(entries)

        def json(self, answer: object) -> None:
            content = json.dumps(answer).encode()
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
    handler = _handler(Model(name, revision, folder), asked)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True  # an answer that nobody waits for any more holds up no test
    server.block_on_close = False
    server.handle_error = lambda *_: None  # who has given up hangs up
    # Who stops it waits for the end of a poll, which takes half a second unless told otherwise.
    poll = {"poll_interval": 0.01}
    thread = threading.Thread(target=server.serve_forever, kwargs=poll, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
