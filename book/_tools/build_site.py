"""Build the HTML book, `_build/html`: every chapter executed, every warning an error.

    python book/_tools/build_site.py            build (executed cells come from the cache)
    python book/_tools/build_site.py --fresh    forget the cache and the last build first

The cache of executed chapters looks only at a notebook's cells. It is therefore emptied here
whenever something that a cell imports or reads has changed: the package, the pinned versions,
the stored results.

jupyter-book would execute one chapter after the other. Chapters that are not in the cache are
therefore executed here first, a few at a time, each on one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from book_layout import Book
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from myst_nb.core.read import read_myst_markdown_notebook
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path("_build", ".jupyter_cache")
# One thread, as for the stored notebooks: two that share their cores with another busy process
# wait for each other, and a chapter of a minute has been seen to take more than five.
KERNEL_SETTINGS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": ""}
READ_BY_CELLS = ("src", "constraints.txt", "book/results", "book/ledger.json")


def files_under(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file


def fingerprint(root: Path) -> str:
    """Hash of everything outside the chapters that their cells depend on."""
    digest = hashlib.sha256(sys.version.encode())
    for name in READ_BY_CELLS:
        for file in files_under(root / name):
            digest.update(f"{file.relative_to(root)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def refresh_cache(root: Path) -> bool:
    """Empty the cache of executed chapters if it is out of date; say whether it was."""
    cache = root / CACHE
    stamp = cache / "fingerprint"
    now = fingerprint(root)
    if stamp.is_file() and stamp.read_text() == now:
        return False
    shutil.rmtree(cache, ignore_errors=True)
    # Sphinx keeps its own pickle of each read page, outputs included.
    shutil.rmtree(root / "_build" / ".doctrees", ignore_errors=True)
    cache.mkdir(parents=True)
    stamp.write_text(now)
    return True


def workers() -> int:
    """Chapters executed at a time: one for each core, four at most (each may need 1 GiB)."""
    with suppress(AttributeError):  # not on every system
        return min(4, len(os.sched_getaffinity(0)))
    return min(4, os.cpu_count() or 1)


def execute_ahead(root: Path) -> None:
    """Put the outputs of chapters that are not in the cache there.

    A chapter that fails is left to jupyter-book, which executes it again and reports the error.
    """
    book = Book(root)
    cache = get_cache(str(root / CACHE))
    missing: dict[Path, NotebookNode] = {}
    for path in (page.path for page in book.pages if page.number is not None):
        notebook = read_myst_markdown_notebook(path.read_text("utf8"), path=path)
        try:
            cache.match_cache_notebook(notebook)
        except KeyError:
            missing[path] = notebook
    with ThreadPoolExecutor(workers()) as pool:
        running = {
            pool.submit(
                single_nb_execution,
                notebook,
                cwd=str(path.parent),
                timeout=book.config["execute"]["timeout"],
                allow_errors=False,
                extra_arguments=["--log-level=ERROR"],
            ): path
            for path, notebook in missing.items()
        }
        for future in as_completed(running):
            path, result = running[future], future.result()
            if result.err is not None:
                print(f"build: {path.stem} failed, jupyter-book will say where", flush=True)
                continue
            took = {"execution_seconds": result.time}
            bundle = CacheBundleIn(result.nb, str(path), data=took)
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
            print(f"build: {path.stem} executed in {result.time:.0f} s", flush=True)


def jupyter_book(root: Path) -> int:
    program = Path(sys.executable).with_name("jupyter-book")
    command = [str(program), "build", str(root), "-W", "-n", "--keep-going"]
    return subprocess.run(command, cwd=root, check=False).returncode


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="forget what was built before")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder with _config.yml")
    options = parser.parse_args(argv)
    root = options.root.resolve()
    if options.fresh:
        shutil.rmtree(root / "_build", ignore_errors=True)
    if refresh_cache(root):
        print("build: package, pins or results changed, so every chapter is executed", flush=True)
    os.environ.update(KERNEL_SETTINGS | os.environ)
    execute_ahead(root)
    # No page of an earlier build may stay, and the hover previews need every page written at once.
    shutil.rmtree(root / "_build" / "html", ignore_errors=True)
    status = jupyter_book(root)
    if status:
        # A page that was read is not read again, so a second try would pass without its warning.
        shutil.rmtree(root / "_build" / ".doctrees", ignore_errors=True)
        print(f"build: jupyter-book ended with status {status}", file=sys.stderr)
        return status
    home = root / "_build" / "html" / "index.html"
    if not home.is_file():
        print(f"build: no home page at {home.relative_to(root)}", file=sys.stderr)
        return 1
    print(f"build: {home.relative_to(root)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
