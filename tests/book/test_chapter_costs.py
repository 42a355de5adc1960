"""What a chapter costs: in the build, and on a GPU as the record of `.ci/gpu` has it, or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chapter_costs
import lxml.html
import pytest
from book_layout import Book
from chapter_costs import read_record, seconds, sentences


def row(what: str, **values: Any) -> dict[str, Any]:
    of_all = {
        "step": "chapters",
        "what": what,
        "status": "passed",
        "seconds": 8.4,
        "note": "as stored",
    }
    return of_all | {"training": None} | values


ROWS = [
    row("01-masked-pretraining"),
    row("11-known-language", seconds=83.0, training=74.6),
    row("07-training", status="FAILED", note="cell 3: other numbers"),
    row("12-bert", status="not in full", note="80 of 6000 steps"),
    row("note-b-orders", status="not reached", seconds=None, note=""),
    row("11-known-language, cell 4", step="cells"),
]
MADE = {
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "date": "2026-12-01",
    "versions": {"torch": "2.9.1"},
    "hardware": {"gpu": "NVIDIA H200"},
    "rows": ROWS,
}


@pytest.fixture
def recorded(tmp_path: Path, book: Book):
    """Reads a record of this content, as one of this book."""
    (tmp_path / "_toc.yml").write_bytes((book.root / "_toc.yml").read_bytes())
    (tmp_path / "benchmarks").mkdir()

    def read(content: Any) -> dict[str, Any] | None:
        (tmp_path / chapter_costs.RECORD).write_text(json.dumps(content), encoding="utf-8")
        return read_record(Book(tmp_path))

    return read


def test_seconds_on_a_gpu_and_what_happened_instead(recorded) -> None:
    record = recorded(MADE)

    def on_gpu(name: str) -> str:
        return seconds({"runtime": 3.4}, record, name)["GPU,\u00a0s"]

    assert on_gpu("01-masked-pretraining") == "8"
    assert on_gpu("11-known-language") == "8 + 75"
    assert on_gpu("07-training") == "– failed: cell 3: other numbers"
    assert on_gpu("12-bert") == "– not in full: 80 of 6000 steps"
    assert on_gpu("note-b-orders") == "– not reached"
    assert on_gpu("02-chain-rule") == "–"  # of which the record has nothing
    for part in ("NVIDIA H200", "PyTorch 2.9.1", "2026-12-01", "`012345678`"):
        assert part in sentences(record)


def test_without_a_record_there_is_no_column_of_a_gpu() -> None:
    columns = seconds({"runtime": 3.4}, None, "01-masked-pretraining")
    assert columns == {"CPU,\u00a0s": "3"}
    assert sentences(None).startswith("No GPU has been timed yet.")


def test_the_page_has_these_columns(book: Book, site: Path) -> None:
    html = (site / "book" / "how-to-run.html").read_text(encoding="utf-8")
    page = lxml.html.document_fromstring(html)
    rows = page.xpath("//table[contains(@class, 'chapter-costs')]/tbody/tr")
    record = read_record(book)
    for chapter, found in zip(book.chapters, rows, strict=True):
        assert found.xpath(".//a/@href") == [f"{chapter.name}.html"]
        _, cpu, *gpu = (cell.text_content().strip() for cell in found.xpath("td"))
        assert cpu.isdigit()
        assert gpu == [*seconds(None, record, chapter.name).values()][1:]
    assert sentences(record).replace("`", "") in page.text_content()
