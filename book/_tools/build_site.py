"""Build the HTML book, `_build/html`: every chapter executed, every warning an error.

The cache of executed chapters looks only at a notebook's cells. It is therefore emptied here
whenever something that a cell imports or reads has changed.
"""

import hashlib
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

from book_layout import ROOT, Book
from jupyter_cache import get_cache
from jupyter_cache.executors import load_executor
from jupyter_cache.executors.base import ExecutorRunResult
from jupyter_cache.executors.basic import ExecutionWorkerLocalMProc, ProcessData

CACHE, HOME_PAGE = Path("_build", ".jupyter_cache"), Path("_build", "html", "index.html")
# One thread, as for the stored notebooks: two that share their cores with another busy process
# wait for each other, and a chapter of a minute has been seen to take more than five.
KERNEL_SETTINGS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": ""}
# Figures are drawn as vectors here; the committed notebooks keep pictures, which all viewers show.
VECTORS = 'c = get_config()\nc.InlineBackend.figure_formats = ["svg"]\n'
OFFLINE = Path(__file__).with_name("offline")
READ_BY_CELLS = ("src", "constraints.txt", "book/results", "book/ledger.json")
READ = ("book", "src", "constraints.txt", "_config.yml", "_toc.yml", ".git/logs/HEAD")


def draw_vectors(root: Path) -> Path:
    """A folder of IPython settings for the kernels of this build."""
    profile = root / "_build" / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text(VECTORS)
    return profile.parent


def forget(root: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(root / "_build" / name, ignore_errors=True)


def fingerprint(root: Path, names: tuple[str, ...] = READ_BY_CELLS) -> str:
    """Hash of these files and folders: of all outside the chapters that their cells depend on."""
    digest = hashlib.sha256(sys.version.encode())
    for name in names:
        for file in sorted([root / name, *(root / name).rglob("*")]):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def refresh_cache(root: Path) -> bool:
    """Empty the cache of executed chapters if it is out of date; say whether it was."""
    stamp, now = root / CACHE / "fingerprint", fingerprint(root)
    if stamp.is_file() and stamp.read_text() == now:
        return False
    # Sphinx keeps its own pickle of each read page, outputs included.
    forget(root, CACHE.name, ".doctrees")
    stamp.parent.mkdir(parents=True)
    stamp.write_text(now)
    return True


def execute_ahead(root: Path) -> ExecutorRunResult:
    """Execute the chapters that are not in the cache, one on each core and without a network.

    jupyter-book would take one after the other. It executes what failed again and says where.
    """
    own = {"IPYTHONDIR": str(draw_vectors(root)), "PYTHONPATH": str(OFFLINE)}
    os.environ.update(KERNEL_SETTINGS | os.environ | own)  # for jupyter-book, too
    book, cache = Book(root), get_cache(str(root / CACHE))
    for page in book.chapters:
        cache.add_nb_to_project(str(page.path), read_data={"name": "myst_nb_md", "type": "plugin"})
    timeout = book.config["execute"]["timeout"]
    records = load_executor("local-parallel", cache).get_records()
    # The first chapters, which are the quickest, last; and one at a time: in chunks, as the executor's
    # own loop hands them out, a core waits for a minute.
    work = [ProcessData(each.pk, each.uri, cache, timeout, False) for each in records[::-1]]
    with multiprocessing.Pool() as pool:
        ended = pool.map(ExecutionWorkerLocalMProc(), work, chunksize=1)
    print(f"build: {len(ended)} chapters executed", flush=True)
    return ExecutorRunResult(*([uri for code, uri in ended if code == kind] for kind in range(3)))


def main(root: Path = ROOT) -> int:
    stamp, now = root / HOME_PAGE.with_name(".built-from"), fingerprint(root, READ)
    if stamp.is_file() and stamp.read_text() == now:
        print(f"build: nothing has changed; see {HOME_PAGE} (make clean builds it anew)")
        return 0
    if refresh_cache(root):
        print("build: package, pins or results changed, so every chapter is executed", flush=True)
    execute_ahead(root)
    # No page of an earlier build may stay, and the hover previews need every page written at once.
    forget(root, "html")
    command = [Path(sys.executable).with_name("jupyter-book"), "build", root, "-W", "-n"]
    status = subprocess.run([*command, "--keep-going"], cwd=root, check=False).returncode
    if status:
        # A page that was read is not read again, so a second try would pass without its warning.
        forget(root, ".doctrees")
    else:
        stamp.write_text(now)
    print(f"build: jupyter-book ended with status {status}; see {HOME_PAGE}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
