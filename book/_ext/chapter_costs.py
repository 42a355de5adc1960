"""``{chapter-costs}``: the seconds of every chapter, in this build and on a GPU, as a table.

Those of the build are myst-nb's, which has them all once all pages have been read: so sentences and
table are made when the page is written. Those of a GPU are in ``benchmarks/gpu.json``, which
``.ci/gpu`` writes. The sentences above the table say of which card they are, or that there are none, and
then there is no column for them.
"""

import json
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from jsonschema import Draft202012Validator
from ledger import make_table
from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

sys.path.append(str(Path(__file__).resolve().parents[1] / "_tools"))
from book_layout import Book

RECORD = "benchmarks/gpu.json"
SCHEMA = {
    "type": "object",
    "required": ["hardware", "versions", "date", "commit", "rows"],
    "properties": {
        "hardware": {"type": "object", "required": ["gpu"]},
        "versions": {"type": "object", "required": ["torch"]},
        "commit": {"pattern": "^[0-9a-f]{40}$"},  # without changes
        "rows": {
            "items": {
                "type": "object",
                "required": ["step", "what", "status", "seconds", "training", "note"],
                "if": {
                    "properties": {"status": {"const": "passed"}, "step": {"const": "chapters"}}
                },
                "then": {"properties": {"seconds": {"type": "number"}}},
            }
        },
    },
}
COMMAND = f"bash .ci/gpu --json {RECORD}"
NOT_MEASURED = f"No GPU has been timed yet. On a machine with one, `{COMMAND}` adds its column."
MEASURED = (
    "GPU: {card}, PyTorch {torch}, {date}, commit `{commit}`. There `bash .ci/gpu` ran several chapters "
    "at a time, with PyTorch already imported. Only the cell “Train it yourself” used the GPU. Where it "
    "trained at its full settings, its seconds stand after a plus. Where its data were missing, it did "
    "not train in full."
)


def read_record(book: Book) -> dict[str, Any] | None:
    """What was measured on a GPU, or None; ``ExtensionError`` says what is wrong with it."""
    path = book.root / RECORD
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ExtensionError(f"{path}: is not JSON: {error}") from error
    for error in Draft202012Validator(SCHEMA).iter_errors(content):
        raise ExtensionError(f"{path}: {error.json_path}: {error.message:.200}")
    rows = {row["what"]: row for row in content["rows"] if row["step"] == "chapters"}
    unknown = rows.keys() - {page.name for page in book.chapters}
    if unknown:
        raise ExtensionError(f"{path}: no such chapters: {', '.join(sorted(unknown))}")
    return content | {"chapters": rows}


def sentences(record: dict[str, Any] | None) -> str:
    """What has to be known of the column of the GPU."""
    if record is None:
        return NOT_MEASURED
    return MEASURED.format(
        card=record["hardware"]["gpu"],
        torch=record["versions"]["torch"],
        date=record["date"],
        commit=record["commit"][:9],
    )


def on_cpu(executed: dict[str, Any] | None) -> str:
    if executed is None or executed["runtime"] is None:
        return "–"
    return f"{executed['runtime']:.0f}"


def on_gpu(record: dict[str, Any], name: str) -> str:
    """Seconds, those of a full training apart; for what has not passed, what happened."""
    row = record["chapters"].get(name)
    if not row:
        return "–"
    if row["status"] != "passed":
        note = f": {row['note']}" if row["note"] else ""
        return f"– {row['status'].lower()}{note}"
    if row["training"] is None:
        return f"{row['seconds']:.0f}"
    return f"{row['seconds'] - row['training']:.0f} + {row['training']:.0f}"


def seconds(
    executed: dict[str, Any] | None, record: dict[str, Any] | None, name: str
) -> dict[str, str]:
    """What a chapter's row says, by column."""
    columns = {"CPU,\u00a0s": on_cpu(executed)}
    if record is not None:
        columns["GPU,\u00a0s"] = on_gpu(record, name)
    return columns


class ChapterCosts(SphinxDirective):
    """The place of sentences and table."""

    def run(self) -> list[nodes.Node]:
        return [nodes.container(classes=[self.name])]


class FillChapterCosts(SphinxPostTransform):
    default_priority = 8  # as myst-nb's own table

    def run(self, **options: Any) -> None:
        record = self.app.gpu_record  # type: ignore[attr-defined]
        for place in list(self.document.findall(nodes.container)):
            if "chapter-costs" not in place["classes"]:
                continue
            says = nodes.paragraph()
            for number, piece in enumerate(sentences(record).split("`")):
                says += nodes.literal("", piece) if number % 2 else nodes.Text(piece)
            rows = []
            for page in Book(Path(self.app.srcdir)).chapters:
                executed = NbMetadataCollector.get_exec_data(self.env, page.docname)
                chapter = {"Chapter": self.link(page.docname, str(page.number))}
                rows.append(chapter | seconds(executed, record, page.name))
            place.replace_self([says, make_table(rows, "chapter-costs")])

    def link(self, docname: str, number: str) -> nodes.paragraph:
        address = self.app.builder.get_relative_uri(self.env.docname, docname)
        title = f"{number}. {self.env.titles[docname].astext()}"
        link = nodes.reference("", title, internal=True, refuri=address)
        return nodes.paragraph("", "", link)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("chapter-costs", ChapterCosts)
    app.add_post_transform(FillChapterCosts)
    # A broken record stops the build before the first page.
    read = lambda app: setattr(app, "gpu_record", read_record(Book(Path(app.srcdir))))  # noqa: E731
    app.connect("builder-inited", read)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
