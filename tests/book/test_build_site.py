"""What `make book` does: what it executes again and what it leaves, offline, each chapter once."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest
from book_layout import Book
from build_site import Executor, execute_ahead, fingerprint, main, refresh_cache, set_up_kernels
from jupyter_cache import get_cache
from jupyter_cache.cache.main import CacheBundleIn
from nbformat.v4 import new_code_cell, new_notebook
from warm_kernels import Template, warm

CHAPTER = """---
file_format: mystnb
kernelspec: {{name: python3, display_name: Python 3}}
---
# A chapter

```{{code-cell}} ipython3
{code}
```
"""


def book_of(folder: Path, **chapters: str) -> Path:
    """A book whose chapters have one cell each."""
    (folder / "_config.yml").write_text("execute: {timeout: 60}\n")
    names = "\n".join(f"      - file: book/{name}.md" for name in chapters)
    (folder / "_toc.yml").write_text(
        f"format: jb-book\nroot: index\nparts:\n  - numbered: true\n    chapters:\n{names}\n"
    )
    (folder / "book").mkdir(exist_ok=True)
    for name, code in chapters.items():
        (folder / "book" / f"{name}.md").write_text(CHAPTER.format(code=code))
    return folder


def said(folder: Path) -> list[str]:
    """What the executed cells have printed."""
    cache = get_cache(str(folder / "_build" / ".jupyter_cache"))
    kept = (cache.get_cache_bundle(each.pk).nb.cells for each in cache.list_cache_records())
    return sorted(cells[-1].outputs[0].text for cells in kept)


def test_pages_of_today_are_not_built_again(tmp_path: Path, capsys) -> None:
    (tmp_path / "_build" / "html").mkdir(parents=True)
    (tmp_path / "_config.yml").write_text("title: One\n")
    (tmp_path / "_build" / "html" / ".built-from").write_text(fingerprint(tmp_path))
    assert main(tmp_path) == 0
    assert "nothing has changed" in capsys.readouterr().out
    (tmp_path / "_config.yml").write_text("title: Two\n")
    with pytest.raises(FileNotFoundError, match="_toc.yml"):  # it sets out to build
        main(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "src/mpt_lml/verdicts.py",
        "experiments/ledger.py",
        "benchmarks/gpu.json",
        "book/ledger.json",
        "_toc.yml",
    ],
)
def test_what_a_page_is_made_of_is_looked_at(tmp_path: Path, name: str) -> None:
    before = fingerprint(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("changed")
    assert fingerprint(tmp_path) != before


@mock.patch.dict(os.environ)
def test_chapters_are_executed_ahead_once(tmp_path: Path) -> None:
    names = ("01-good", "02-bad", "03-good")
    codes = {name: f"print('{name}'.upper())" for name in names} | {"02-bad": "1 / 0"}
    root = book_of(tmp_path, **codes)
    set_up_kernels(root)
    executor = Executor()
    done = execute_ahead(root, executor)
    assert sorted(Path(uri).stem for uri in done.succeeded) == ["01-good", "03-good"]
    assert [Path(uri).stem for uri in done.excepted] == ["02-bad"]
    assert said(root) == ["01-GOOD\n", "03-GOOD\n"]
    assert executor.seconds.keys() == {f"{name}, cell 1" for name in names}
    done = execute_ahead(root, executor)
    assert (done.succeeded, len(done.excepted)) == ([], 1)
    (tmp_path / "book" / "02-bad.md").unlink()  # what has another name now is not looked for
    book_of(root, **{"01-good": codes["01-good"], "04-new": "print('new')"})
    execute_ahead(root, executor)
    assert "new\n" in said(tmp_path)
    book_of(root, **{"01-good": "print('other')"})
    done = execute_ahead(root, executor)
    assert [Path(uri).stem for uri in done.succeeded] == ["01-good"]


@mock.patch.dict(os.environ)
def test_a_chapter_that_left_the_cache_is_executed_ahead(tmp_path: Path) -> None:
    root = book_of(tmp_path, one="from mpt_lml import masks")
    change(tmp_path, "src/mpt_lml/__init__.py", "")
    change(tmp_path, "src/mpt_lml/masks.py", "x = 1")
    set_up_kernels(root)
    refresh_cache(root)
    assert len(execute_ahead(root, Executor()).succeeded) == 1
    refresh_cache(root)
    assert execute_ahead(root, Executor()).succeeded == []
    change(tmp_path, "src/mpt_lml/masks.py", "x = 2")
    refresh_cache(root)
    assert len(execute_ahead(root, Executor()).succeeded) == 1


PAGE = "src/mpt_lml/page.py"


def change(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def out_of_date(root: Path) -> set[str]:
    """The chapters that have to be executed, which they seem to be afterwards."""
    refresh_cache(root)
    cache = get_cache(str(root / "_build" / ".jupyter_cache"))
    kept = {Path(record.uri).stem for record in cache.list_cache_records()}
    waiting = {page.name: page for page in Book(root).chapters if page.name not in kept}
    for page in waiting.values():
        notebook = new_notebook(cells=[new_code_cell(page.name, execution_count=1)])
        cache.cache_notebook_bundle(CacheBundleIn(notebook, str(page.path)), check_validity=False)
    return set(waiting)


def test_a_chapter_is_executed_again_when_something_that_it_imports_changed(tmp_path: Path) -> None:
    book_of(
        tmp_path, one="from mpt_lml import masks", two="from mpt_lml.page import glue", three="1"
    )
    change(tmp_path, "constraints.txt", "torch==1")
    change(tmp_path, "src/mpt_lml/__init__.py", "")
    change(tmp_path, "src/mpt_lml/masks.py", "")
    change(tmp_path, PAGE, "def glue(): ...")
    assert out_of_date(tmp_path) == {"one", "two", "three"}
    assert out_of_date(tmp_path) == set()
    change(tmp_path, PAGE, "def glue(): return 1")
    assert out_of_date(tmp_path) == {"two"}
    change(tmp_path, "src/mpt_lml/masks.py", "from mpt_lml import page")
    assert out_of_date(tmp_path) == {"one"}
    change(tmp_path, PAGE, "glue = print")
    assert refresh_cache(tmp_path) == {"one": [PAGE], "two": [PAGE]}
    assert out_of_date(tmp_path) == {"one", "two"}
    change(tmp_path, "constraints.txt", "torch==2")
    assert out_of_date(tmp_path) == {"one", "two", "three"}
    (tmp_path / "_build" / ".jupyter_cache" / "sources.json").unlink()  # of an unknown tree
    assert out_of_date(tmp_path) == {"one", "two", "three"}


def test_a_page_with_old_outputs_is_read_again(tmp_path: Path) -> None:
    book_of(tmp_path, one="from mpt_lml import masks", two="1")
    change(tmp_path, "src/mpt_lml/__init__.py", "")
    change(tmp_path, "src/mpt_lml/masks.py", "x = 1")
    change(tmp_path, "index.md", "# The book")
    refresh_cache(tmp_path)
    doctrees = tmp_path / "_build" / ".doctrees"
    for name in ("book/one", "book/two", "index"):
        change(doctrees, f"{name}.doctree", "outputs")
    refresh_cache(tmp_path)
    assert len(list(doctrees.rglob("*.doctree"))) == 3
    change(tmp_path, "src/mpt_lml/masks.py", "x = 2")
    refresh_cache(tmp_path)
    # The home page may show the package's names: it is read again, too.
    assert [path.stem for path in doctrees.rglob("*.doctree")] == ["two"]


CALL = """import socket
try:
    {call}
except OSError as error:
    print(error)"""
CHILD = """import subprocess, sys
call = "import socket; socket.create_connection(('192.0.2.1', 80), 1)"
print(subprocess.run([sys.executable, "-c", call], capture_output=True, text=True).stderr)"""
HOME = """import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(server.getsockname()):
        print("at home")"""

APART = """import os, sys
had = [name in sys.modules for name in ("torch", "mpt_lml")]
print(*had, "mine" in globals(), os.path.basename(os.getcwd()))
mine = 1"""


@mock.patch.dict(os.environ)
def test_chapters_are_executed_without_a_network(tmp_path: Path) -> None:
    """Addresses that are nobody's (RFC 5737), so that nothing is sent where a call gets through."""
    calls = {
        "a-name": "socket.getaddrinfo('example.invalid', 80)",
        "b-number": "socket.create_connection(('192.0.2.1', 80), 1)",
        "c-datagram": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('192.0.2.2', 80))",
        "d-page": "__import__('urllib.request').request.urlopen('http://192.0.2.3', timeout=1)",
    }
    codes = {name: CALL.format(call=call) for name, call in calls.items()}
    codes |= {"e-child": CHILD, "f-here": HOME, "g-own": APART, "h-own": f"{APART}  # too"}
    root = book_of(tmp_path, **codes)
    set_up_kernels(root)
    kept = Template() if sys.platform == "linux" else None  # as in make serve
    with kept or nullcontext():
        with warm(kept):
            execute_ahead(root, Executor())
        assert kept is None or kept.process.poll() is None
    refused = [text for text in said(root) if "make book executes without a network" in text]
    others = [text for text in said(root) if text not in refused]
    assert len(refused) == 5
    # A chapter that starts warm has nothing of another one, and imports this book's packages anew.
    is_warm = sys.platform == "linux"
    assert others == [f"{is_warm} False False book\n"] * 2 + ["at home\n"]
    for name in ("example.invalid", "192.0.2.1", "192.0.2.2", "192.0.2.3"):
        assert any(f"and {name} was asked for" in text for text in refused)
