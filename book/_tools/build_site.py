"""Build the HTML book, `_build/html`: every chapter executed, every warning an error.

    python book/_tools/build_site.py            build (executed cells come from the cache)
    python book/_tools/build_site.py --fresh    forget the cache and the last build first

The cache of executed chapters looks only at a notebook's cells. It is therefore emptied here
whenever something that a cell imports or reads has changed: the package, the pinned versions,
the stored results.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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
    cache = root / "_build" / ".jupyter_cache"
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


def jupyter_book(root: Path) -> int:
    program = Path(sys.executable).with_name("jupyter-book")
    # One thread, as for the stored notebooks: two that share their cores with another busy process
    # wait for each other, and a chapter of a minute has been seen to take more than five.
    env = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "", **os.environ}
    command = [str(program), "build", str(root), "-W", "-n", "--keep-going"]
    return subprocess.run(command, cwd=root, env=env, check=False).returncode


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
