"""Show the book at http://localhost:8000, and build it again whenever one of its sources changes.

    python book/_tools/serve.py        (make serve)

Most of what a changed word would cost is imports. So each build is a fork of this process, which
imports what the last build did, and kernels are forks of one process that stays.
"""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import build_site
from book_layout import ROOT
from memory import tools
from warm_kernels import Template, warm

ADDRESS = "127.0.0.1"
PORT = 8000
PAUSE = 0.4  # seconds between two looks at the sources


# What a writer changes is imported by each build anew.
OWN = {"mpt_lml", "mpt_score", "experiments"} | {
    file.stem for file in Path(__file__).resolve().parents[1].glob("_*/*.py")
}


def sphinx_here(command: list[str]) -> int:
    """Call jupyter-book in this process; returns its exit status."""
    from jupyter_book.cli.main import main as jupyter_book

    try:
        jupyter_book(command[1:], standalone_mode=False)
    except Exception as error:  # a build that failed has said why
        print(error, file=sys.stderr)
        return 1
    return 0


def times(root: Path) -> dict[Path, int]:
    """When each file that the pages are made of was changed, in nanoseconds."""
    files = (file for name in build_site.READ for file in [root / name, *(root / name).rglob("*")])
    changed = {}
    for file in files:
        with suppress(FileNotFoundError):  # an editor's, which was there for a moment
            if file.is_file() and "__pycache__" not in file.parts:
                changed[file] = file.stat().st_mtime_ns
    return changed


def build(root: Path, template: Template | None) -> None:
    """Build in a fork of this process, after importing what an earlier build has imported."""
    imported = root / "_build" / "imported"
    for name in imported.read_text().split() if imported.is_file() else ():
        with suppress(Exception):
            importlib.import_module(name)
    child = os.fork()
    if child == 0:
        status = build_site.main(root, sphinx_here, partial(warm, template))
        if "sphinx" in sys.modules:  # something was built
            others = (name for name in sys.modules if name.partition(".")[0] not in OWN)
            imported.write_text("\n".join(others))
        os._exit(status)
    os.waitpid(child, 0)


def changes(root: Path) -> Iterator[None]:
    """Yield at first, and each time that a source has changed."""
    seen = None
    while True:
        now = times(root)
        if now != seen:
            seen = now
            yield
        time.sleep(PAUSE)


def main(root: Path = ROOT) -> None:
    server = [sys.executable, "-m", "http.server", str(PORT), "--bind", ADDRESS, "--directory"]
    made_by = tools()
    pages = root / build_site.HOME_PAGE.parent
    build_site.set_up_kernels(root)
    with (
        Template() if sys.platform == "linux" else nullcontext() as template,
        subprocess.Popen([*server, str(pages)], stderr=subprocess.DEVNULL) as shown,
    ):
        try:
            for _ in changes(root):
                if tools() != made_by:
                    break
                build(root, template)
                print(f"The book is at http://localhost:{PORT}. Ctrl-C ends this.", flush=True)
        except KeyboardInterrupt:
            return
        finally:
            shown.terminate()
    os.execv(sys.executable, [sys.executable, *sys.argv])  # with the tools as they are now


if __name__ == "__main__":
    main()
