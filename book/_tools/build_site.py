"""Build the HTML book, `_build/html`: every chapter executed, every warning an error.

The cache of executed chapters looks only at a notebook's cells. A chapter is therefore taken out of
it here when something has changed that its cells import or read (`chapter_sources.py`).
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from book_layout import ROOT, Book
from chapter_sources import ChapterSources, changes, code_of
from jupyter_cache import get_cache
from jupyter_cache.base import ProjectNb
from jupyter_cache.executors import load_executor
from jupyter_cache.executors.base import ExecutorRunResult
from jupyter_cache.executors.basic import ExecutionWorkerLocalMProc, ProcessData
from jupyter_cache.executors.utils import ExecutionResult, single_nb_execution
from memory import Memory
from nbformat import NotebookNode
from warm_kernels import warm

CACHE = Path("_build", ".jupyter_cache")
EXECUTED = CACHE / "executed.json"
HOME_PAGE = Path("_build", "html", "index.html")
PHASES = Path("_build", "phases")  # and their seconds, which the Makefile adds to and prints
# One thread, as for the stored notebooks: two that share their cores with another busy process
# wait for each other, and a chapter of a minute has been seen to take more than five.
KERNEL_SETTINGS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": ""}
# Figures are drawn as vectors here; the committed notebooks keep pictures, which all viewers show.
VECTORS = """\
c = get_config()
c.InlineBackend.figure_formats = ["svg"]
c.IPKernelApp.log_level = 40  # errors only
"""
# Pages as Sphinx wrote them (kept_pages.py); what all of them are made of, beside their sources.
WRITTEN = Path("_build", "written")
MAKES_ALL_PAGES = ("book/_ext", "constraints.txt", "_config.yml", "_toc.yml")
OFFLINE = Path(__file__).with_name("offline")
# What the pages are made of: as long as none of it changes, nothing is built again.
READ = (
    "book",
    "src",
    "experiments",
    "benchmarks/gpu.json",
    "constraints.txt",
    "_config.yml",
    "_toc.yml",
    ".git/logs/HEAD",
)


def set_up_kernels(root: Path) -> None:
    """Set the variables with which kernels start, jupyter-book's as well."""
    profile = root / "_build" / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text(VECTORS)
    paths = {"IPYTHONDIR": str(profile.parent), "PYTHONPATH": str(OFFLINE)}
    os.environ.update(KERNEL_SETTINGS | os.environ | paths)


def forget(root: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(root / "_build" / name, ignore_errors=True)


def fingerprint(
    root: Path, names: Sequence[str] = READ, without: Collection[Path] = frozenset()
) -> str:
    """Hash of all files that the pages are made of, or of those of some folders."""
    digest = hashlib.sha256(sys.version.encode())
    for name in names:
        for file in sorted([root / name, *(root / name).rglob("*")]):
            if file.is_file() and "__pycache__" not in file.parts and file not in without:
                digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def sources_of_pages(root: Path) -> dict[str, dict[str, str]]:
    """What each page depends on, with hashes (``chapter_sources.py``)."""
    sources = ChapterSources(root)
    pages = [page for page in Book(root).pages if page.path.is_file()]
    texts = {path for page in pages for path in (page.path, page.notebook)}
    files = fingerprint(root, ("book", "src", "constraints.txt"), without=texts).encode()
    hashes = {}
    with Memory(root, "code") as codes, Memory(root, "sources") as memory:
        for page in pages:
            code = codes.of(page.path.read_bytes(), partial(code_of, page)) if page.number else ""
            key = files + f"{page}\n{code}".encode()
            hashes[page.docname] = memory.of(key, partial(sources.hashes, page))
    return hashes


def refresh_cache(root: Path) -> dict[str, list[str]]:
    """Take the chapters that are out of date out of the cache.

    Returns:
        Their names, each with the files that have changed since it was executed.
    """
    book = Book(root)
    stamp = root / CACHE / "sources.json"
    now = sources_of_pages(root)
    if not stamp.is_file():  # nothing is known of what may be there
        forget(root, CACHE.name, ".doctrees")
        stamp.parent.mkdir(parents=True)
    before = json.loads(stamp.read_text()) if stamp.is_file() else {}
    stale = {}
    for page in book.pages:
        changed = changes(before.get(page.docname, {}), now.get(page.docname, {}))
        if changed:
            stale[page.name] = changed
            # Sphinx keeps its own pickle of each page that was read, outputs included.
            (root / "_build" / ".doctrees" / f"{page.docname}.doctree").unlink(missing_ok=True)
    cache = get_cache(str(root / CACHE))
    for record in cache.list_cache_records():
        if Path(record.uri).stem in stale:
            cache.remove_cache(record.pk)
    executed = {name: text for name, text in read_executed(root).items() if name not in stale}
    (root / EXECUTED).write_text(json.dumps(executed))
    stamp.write_text(json.dumps(now, indent=1))
    chapters = {page.name for page in book.chapters}
    return {name: changed for name, changed in stale.items() if before and name in chapters}


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_executed(root: Path) -> dict[str, str]:
    """The chapters that are in the cache, each with a hash of its text."""
    path = root / EXECUTED
    return json.loads(path.read_text()) if path.is_file() else {}


@contextmanager
def phase(root: Path, name: str) -> Iterator[None]:
    """Add the seconds of the block to the phases of the command."""
    started = time.monotonic()
    yield
    with (root / PHASES).open("a", encoding="utf-8") as file:
        file.write(f"{name}\t{time.monotonic() - started:.0f}\n")


class Executor(ExecutionWorkerLocalMProc):
    """Executes a chapter beside its source, and notes the seconds of each cell."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}  # "06-convergence, cell 15", as nbval counts

    def execute(self, project_nb: ProjectNb, data: ProcessData) -> ExecutionResult:
        chapter = Path(project_nb.uri)
        cells = project_nb.nb.cells
        code = [number for number, cell in enumerate(cells) if cell.cell_type == "code"]
        started: dict[int, float] = {}

        def start(cell: NotebookNode, cell_index: int) -> None:
            started[cell_index] = time.monotonic()

        def end(cell: NotebookNode, cell_index: int, execute_reply: object) -> None:
            # The notebook has one more before the first: it installs the package on Colab.
            name = f"{chapter.stem}, cell {code.index(cell_index) + 1}"
            self.seconds[name] = time.monotonic() - started[cell_index]

        return single_nb_execution(
            project_nb.nb,
            cwd=str(chapter.parent),
            timeout=data.timeout,
            allow_errors=data.allow_errors,
            on_cell_execute=start,
            on_cell_executed=end,
        )


def execute_ahead(
    root: Path,
    executor: Executor,
    kernels: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> ExecutorRunResult:
    """Execute the chapters that are not in the cache, one on each core and without a network.

    jupyter-book would take one after the other. It executes what failed again and says where.

    Args:
        root: The folder of the book.
        executor: What executes one chapter.
        kernels: While it is open they are executed, if there are any.
    """
    book = Book(root)
    cache = get_cache(str(root / CACHE))
    for record in cache.list_project_records():
        if not Path(record.uri).is_file():  # a chapter that got another name
            cache.remove_nb_from_project(record.pk)
    texts = {page.name: digest_of(page.path) for page in book.chapters}
    executed = read_executed(root)
    asked = [page for page in book.chapters if executed.get(page.name) != texts[page.name]]
    for page in asked:
        cache.add_nb_to_project(str(page.path), read_data={"name": "myst_nb_md", "type": "plugin"})
    timeout = book.config["execute"]["timeout"]
    pending = load_executor("local-parallel", cache)
    records = pending.get_records([str(page.path) for page in asked])
    # The first chapters, which are the quickest, last: no core waits long for another at the end.
    records.reverse()
    work = [ProcessData(record.pk, record.uri, cache, timeout, False) for record in records]
    results = []
    if work:
        with kernels(), ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(executor, work))
    print(f"build: {len(results)} chapters executed", flush=True)
    # The worker says 0 for a chapter that ran, 1 for one whose cell failed, 2 for one not begun.
    addresses: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for code, address in results:
        addresses[code].append(address)
    for address in addresses[1] + addresses[2]:
        texts.pop(Path(address).stem)
    (root / EXECUTED).write_text(json.dumps(texts))
    return ExecutorRunResult(addresses[0], addresses[1], addresses[2])


def lay_out_written_pages(root: Path) -> None:
    """Begin with the pages that Sphinx wrote last; with none where all of them may change."""
    forget(root, "html")
    stamp = root / "_build" / ".made-by"
    now = fingerprint(root, MAKES_ALL_PAGES)
    if stamp.is_file() and stamp.read_text() == now and (root / WRITTEN).is_dir():
        (root / WRITTEN).rename(root / HOME_PAGE.parent)
        return
    forget(root, WRITTEN.name, ".doctrees")
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text(now)


def call(command: list[str]) -> int:
    return subprocess.run(command, check=False).returncode


def main(
    root: Path = ROOT,
    sphinx: Callable[[list[str]], int] = call,
    kernels: Callable[[], AbstractContextManager[None]] = warm,
) -> int:
    stamp = root / HOME_PAGE.with_name(".built-from")
    now = fingerprint(root)
    if stamp.is_file() and stamp.read_text() == now:
        print(f"build: nothing has changed; see {HOME_PAGE} (make clean builds it anew)")
        return 0
    set_up_kernels(root)
    executor = Executor()
    with phase(root, "chapters"):
        for chapter, changed in refresh_cache(root).items():
            more = ", …" if len(changed) > 3 else ""
            print(f"build: {chapter} is out of date: {', '.join(changed[:3])}{more}", flush=True)
        execute_ahead(root, executor, kernels)
    lay_out_written_pages(root)
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(root)]
    with phase(root, "Sphinx"):
        status = sphinx([*command, "-W", "-n", "--keep-going"])
    if status:
        # A page that was read is not read again, so a second try would pass without its warning.
        forget(root, ".doctrees")
    else:
        stamp.write_text(now)
    print(f"build: jupyter-book ended with status {status}; see {HOME_PAGE}")
    dearest = sorted(executor.seconds.items(), key=lambda item: item[1], reverse=True)[:3]
    if dearest:
        cells = "; ".join(f"{name}, {seconds:.1f} s" for name, seconds in dearest)
        print(f"build: the cells that took longest: {cells}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
