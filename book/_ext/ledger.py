"""Sphinx directives that turn ``book/ledger.json`` and ``book/results/*.json`` into pages.

``{ledger}``             a table of entries; options ``:kind:``, ``:chapter:``, ``:verdict:``,
                         ``:columns:``, ``:anchors:``
``{ledger-summary}``     how many entries have which verdict
``{stored-results}``     the full-scale runs the book carries, with where they came from
``{build-environment}``  versions and hardware this build ran on
``{chapter-costs}``      what executing each chapter took, in this build or the cached one

The ledger is a list of entries. ``measured``, ``standard_error`` and ``verdict`` are written by the
runs. Where nothing was published but a tolerance stands, ``measured`` is an error that has to stay
below it.
"""

from __future__ import annotations

import json
import math
import platform
import re
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

KINDS = ("equation", "figure", "table", "claim")
VERDICTS = {
    "confirmed": "holds as printed",
    "corrected": "holds after a repair, which the chapter proves and runs",
    "refuted": "does not hold; the chapter shows where",
    "needs-weights": "needs a model that has to be downloaded first",
    "open": "not run yet",
}
NEED_A_NUMBER = ("confirmed", "corrected", "refuted")
HEADINGS = {
    "id": "Entry",
    "kind": "Kind",
    "paper": "In the paper",
    "statement": "What it says",
    "chapter": "Chapter",
    "command": "Command",
    "published": "Published",
    "measured": "Measured",
    "tolerance": "Tolerance",
    "verdict": "Verdict",
    "note": "Note",
}
DEFAULT_COLUMNS = (
    "paper",
    "statement",
    "published",
    "measured",
    "tolerance",
    "verdict",
    "chapter",
)
ID_PATTERN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(/[a-z0-9]+(-[a-z0-9]+)*)?")
CHAPTER_PATTERN = re.compile(r"book/\d\d-[a-z0-9-]+")
COMMAND_PATTERN = re.compile(r"mpt-lml run [a-z0-9][a-z0-9-]*( .+)?")


class LedgerError(ValueError):
    """The ledger is malformed; the message names the file and the entry."""


@dataclass(frozen=True)
class Entry:
    """One row: what the paper says, what we measured, what we make of it."""

    id: str
    kind: str
    paper: str
    statement: str
    chapter: str
    command: str
    published: float | None
    measured: float | None
    standard_error: float | None
    tolerance: float | None
    verdict: str
    note: str


@dataclass(frozen=True)
class Ledger:
    """All entries."""

    entries: tuple[Entry, ...]

    def chapters(self) -> set[str]:
        return {entry.chapter for entry in self.entries}


# ---------------------------------------------------------------------------------- reading


def read_ledger(path: Path) -> Ledger:
    """The checked content of ``path``; :class:`LedgerError` if anything about it is wrong."""
    content = _read_json(path)
    if not isinstance(content, list):
        raise LedgerError(f"{path}: must be a list of entries")
    entries = tuple(_entry(raw, f"{path}: entry {n}") for n, raw in enumerate(content))
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise LedgerError(f"{path}: entry {entry.id!r}: the id stands twice")
        seen.add(entry.id)
    return Ledger(entries)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from error
    except json.JSONDecodeError as error:
        raise LedgerError(f"{path}: is not JSON: {error}") from error


def _entry(raw: Any, where: str) -> Entry:
    if not isinstance(raw, dict):
        raise LedgerError(f"{where}: must be an object, got {raw!r}")
    if isinstance(raw.get("id"), str):
        where = f"{where.rpartition(' ')[0]} {raw['id']!r}"
    names = {field.name for field in fields(Entry)}
    if missing := sorted(names - raw.keys()):
        raise LedgerError(f"{where}: lacks {', '.join(missing)}")
    if unknown := sorted(raw.keys() - names):
        raise LedgerError(f"{where}: has unknown keys {', '.join(unknown)}")
    entry = Entry(**raw)
    _check_text(entry, where)
    _check_numbers(entry, where)
    _check_verdict(entry, where)
    return entry


def _check_text(entry: Entry, where: str) -> None:
    for name in ("id", "kind", "paper", "statement", "chapter", "command", "verdict", "note"):
        value = getattr(entry, name)
        if not isinstance(value, str) or (name != "note" and not value.strip()):
            raise LedgerError(f"{where}: {name} must be a text, got {value!r}")
    for name, pattern, form in (
        ("id", ID_PATTERN, "like 'eq-1' or 'table-1/true'"),
        ("chapter", CHAPTER_PATTERN, "a docname like 'book/05-convergence'"),
        ("command", COMMAND_PATTERN, "like 'mpt-lml run table-1'"),
    ):
        value = getattr(entry, name)
        if not pattern.fullmatch(value):
            raise LedgerError(f"{where}: {name} must be {form}, got {value!r}")
    for name, legal in (("kind", KINDS), ("verdict", tuple(VERDICTS))):
        value = getattr(entry, name)
        if value not in legal:
            raise LedgerError(f"{where}: {name} must be one of {', '.join(legal)}; got {value!r}")


def _check_numbers(entry: Entry, where: str) -> None:
    for name in ("published", "measured", "standard_error", "tolerance"):
        value = getattr(entry, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise LedgerError(f"{where}: {name} must be a number or null, got {value!r}")
        if not math.isfinite(value):
            raise LedgerError(f"{where}: {name} must be finite, got {value!r}")
    if entry.standard_error is not None and entry.standard_error < 0:
        raise LedgerError(f"{where}: standard_error must be >= 0, got {entry.standard_error!r}")
    if entry.tolerance is not None and entry.tolerance <= 0:
        raise LedgerError(f"{where}: tolerance must be > 0, got {entry.tolerance!r}")


def _check_verdict(entry: Entry, where: str) -> None:
    if entry.measured is None:
        if entry.verdict in NEED_A_NUMBER:
            raise LedgerError(
                f"{where}: verdict is {entry.verdict!r} but measured is null; a run has to write it"
            )
        return
    if entry.verdict != "confirmed" or entry.tolerance is None:
        return
    gap = abs(entry.measured - (entry.published or 0.0))
    if gap > entry.tolerance * (1 + 1e-9):
        expected = "0 (an error)" if entry.published is None else f"{entry.published}"
        raise LedgerError(
            f"{where}: verdict is 'confirmed' but measured {entry.measured} is {gap:.3g} away "
            f"from {expected}, more than the tolerance {entry.tolerance}"
        )


# -------------------------------------------------------------------------------- formatting


def format_number(value: float | None, decimals: int | None = None) -> str:
    """``value`` for a reader: true minus, powers of ten outside 0.001 .. 10⁶, "–" for none."""
    if value is None:
        return "–"
    if value and not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        mantissa = mantissa.rstrip("0").rstrip(".").replace("-", "−")
        return f"10{power}" if mantissa == "1" else f"{mantissa} × 10{power}"
    text = f"{value:.{decimals}f}" if decimals is not None else f"{value:.4g}"
    return text.replace("-", "−")


def printed_decimals(entry: Entry) -> int | None:
    """Digits after the point in the printed value: a tolerance of half a unit gives them away."""
    if entry.published is None or entry.tolerance is None or abs(entry.published) >= 1e6:
        return None
    return max(0, round(-math.log10(2 * entry.tolerance)))


def format_measured(entry: Entry) -> str:
    """Measured value ± standard error: one digit beyond the printed value, or two of the error."""
    decimals = printed_decimals(entry)
    digits = None if decimals is None else decimals + 1
    error = entry.standard_error
    if entry.measured is None or not error:
        return format_number(entry.measured, digits)
    if digits is None:
        digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{format_number(entry.measured, digits)} ± {error:.{digits}f}"


def format_published(entry: Entry) -> str:
    decimals = printed_decimals(entry)
    if decimals is None and entry.published is not None and abs(entry.published) < 1e6:
        return repr(entry.published).replace("-", "−")
    return format_number(entry.published, decimals)


# ------------------------------------------------------------------------------ making tables


def paragraph(*children: nodes.Node | str) -> nodes.paragraph:
    return nodes.paragraph("", "", *(nodes.Text(c) if isinstance(c, str) else c for c in children))


def badge(verdict: str) -> nodes.inline:
    label = verdict.replace("-", " ")
    return nodes.inline(label, label, classes=["verdict", f"verdict-{verdict}"])


def make_table(
    headings: list[str], rows: list[nodes.row], widths: list[int], classes: list[str]
) -> nodes.table:
    group = nodes.tgroup("", cols=len(headings))
    group += [nodes.colspec("", colwidth=width) for width in widths]
    header = nodes.row("", *(nodes.entry("", paragraph(text)) for text in headings))
    group += nodes.thead("", header)
    group += nodes.tbody("", *rows)
    return nodes.table("", group, classes=["ledger", *classes])


def make_row(*cells: nodes.Node | str | list[nodes.paragraph]) -> nodes.row:
    wrapped = (cell if isinstance(cell, list) else [paragraph(cell)] for cell in cells)
    return nodes.row("", *(nodes.entry("", *cell) for cell in wrapped))


class LedgerDirective(SphinxDirective):
    """What the directives share: the ledger, and a rebuild when its file changes."""

    def ledger(self) -> Ledger:
        name = self.config.ledger_file
        self.env.note_dependency(name)
        # A chapter that is renamed changes the links; a missing file would make the page outdated
        # in every build.
        if Path(self.env.srcdir, "_toc.yml").is_file():
            self.env.note_dependency("_toc.yml")
        try:
            return read_ledger(Path(self.env.srcdir, name))
        except LedgerError as error:
            raise ExtensionError(str(error)) from error

    def link(self, docname: str) -> nodes.Node:
        """A link to a chapter; one that does not exist is a warning of the build."""
        options = {"refdoc": self.env.docname, "refdomain": "std", "reftype": "doc"}
        reference = addnodes.pending_xref(
            "", reftarget=f"/{docname}", refexplicit=False, refwarn=True, **options
        )
        reference += nodes.inline("", docname, classes=["doc"])
        return reference


def names_from(legal: tuple[str, ...]) -> Any:
    def convert(argument: str) -> tuple[str, ...]:
        names = tuple(name for name in re.split(r"[\s,]+", argument or "") if name)
        for name in names:
            if name not in legal:
                raise ValueError(f"{name!r} is not one of {', '.join(legal)}")
        return names

    return convert


def docnames(argument: str) -> tuple[str, ...]:
    return tuple(name for name in re.split(r"[\s,]+", argument or "") if name)


class LedgerTable(LedgerDirective):
    """``{ledger}``: one row an entry."""

    option_spec: ClassVar[dict[str, Any]] = {
        "kind": names_from(KINDS),
        "verdict": names_from(tuple(VERDICTS)),
        "chapter": docnames,
        "columns": names_from(tuple(HEADINGS)),
        "anchors": directives.flag,
    }
    WIDTHS: ClassVar[dict[str, int]] = {"statement": 34, "note": 34, "command": 14, "chapter": 14}

    def run(self) -> list[nodes.Node]:
        ledger = self.ledger()
        chapters = self.options.get("chapter", ())
        if unknown := sorted(set(chapters) - ledger.chapters()):
            raise self.error(f"no ledger entry belongs to {', '.join(unknown)}")
        kinds, verdicts = self.options.get("kind", ()), self.options.get("verdict", ())
        chosen = [
            entry
            for entry in ledger.entries
            if (not kinds or entry.kind in kinds)
            and (not verdicts or entry.verdict in verdicts)
            and (not chapters or entry.chapter in chapters)
        ]
        if not chosen:
            return [paragraph("No entry of the ledger is of this kind at present.")]
        columns = self.options.get("columns") or DEFAULT_COLUMNS
        rows = [self.row(entry, columns) for entry in chosen]
        widths = [self.WIDTHS.get(column, 10) for column in columns]
        return [make_table([HEADINGS[c] for c in columns], rows, widths, ["ledger-entries"])]

    def row(self, entry: Entry, columns: tuple[str, ...]) -> nodes.row:
        row = make_row(*(self.cell(entry, column, columns) for column in columns))
        for cell, column in zip(row.children, columns, strict=True):
            cell["classes"].append(f"col-{column}")
        if "anchors" in self.options:
            row["ids"].append("ledger-" + entry.id.replace("/", "-"))
        return row

    def cell(
        self, entry: Entry, column: str, columns: tuple[str, ...]
    ) -> nodes.Node | str | list[nodes.paragraph]:
        if column == "statement":
            return self.statement(entry, columns)
        if column == "chapter":
            return self.link(entry.chapter)
        if column == "verdict":
            return badge(entry.verdict)
        if column in ("command", "id"):
            return nodes.literal("", getattr(entry, column))
        numbers = {
            "published": format_published,
            "measured": format_measured,
            "tolerance": lambda entry: format_number(entry.tolerance),
        }
        return numbers[column](entry) if column in numbers else str(getattr(entry, column))

    def statement(self, entry: Entry, columns: tuple[str, ...]) -> list[nodes.paragraph]:
        """What the paper says; below it the note and the command if they have no own column."""
        lines = [paragraph(entry.statement)]
        if entry.note and "note" not in columns:
            lines.append(nodes.paragraph("", entry.note, classes=["ledger-note"]))
        if "command" not in columns:
            lines.append(paragraph(nodes.literal("", entry.command)))
        return lines


class LedgerSummary(LedgerDirective):
    """``{ledger-summary}``: verdicts counted by kind."""

    def run(self) -> list[nodes.Node]:
        entries = self.ledger().entries
        rows = []
        for verdict, meaning in VERDICTS.items():
            of = [entry.kind for entry in entries if entry.verdict == verdict]
            counts = [str(of.count(kind)) for kind in KINDS]
            rows.append(make_row(badge(verdict), meaning, *counts, str(len(of))))
        headings = ["Verdict", "Meaning", *(f"{kind.capitalize()}s" for kind in KINDS), "All"]
        return [make_table(headings, rows, [14, 36, 10, 10, 10, 10, 10], ["ledger-summary"])]


class StoredResults(LedgerDirective):
    """``{stored-results}``: one row for each recorded run the book carries."""

    def run(self) -> list[nodes.Node]:
        folder = Path(self.env.srcdir, self.config.ledger_results)
        rows = []
        for path in sorted(folder.glob("*.json")):
            self.env.note_dependency(path.relative_to(self.env.srcdir).as_posix())
            rows.append(self.row(path))
        if not rows:
            return [paragraph("This build carries no recorded run.")]
        headings = ["File", "Command", "Time", "Versions", "Hardware", "Commit"]
        return [make_table(headings, rows, [18, 22, 10, 20, 20, 10], ["stored-results"])]

    def row(self, path: Path) -> nodes.row:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            origin = content["provenance"]
            command, commit = origin["command"], origin["commit"]
            hardware, versions = origin["hardware"], origin["versions"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ExtensionError(f"{path}: not a recorded run ({error!r})") from error
        seconds = content.get("seconds", origin.get("seconds"))
        return make_row(
            nodes.literal("", path.name),
            nodes.literal("", command),
            "–" if seconds is None else f"{seconds:.3g} s",
            ", ".join(f"{name} {version}" for name, version in versions.items()),
            describe_hardware(hardware),
            nodes.literal("", commit.partition("+")[0][:9]),
        )


def describe_hardware(hardware: dict[str, Any]) -> str:
    words = [hardware[key] for key in ("gpu", "cpu") if hardware.get(key)]
    if threads := hardware.get("threads"):
        words.append(f"{threads} thread{'s' if threads > 1 else ''}")
    return ", ".join(words)


class BuildEnvironment(SphinxDirective):
    """``{build-environment}``: versions and processor of the machine that built these pages."""

    PACKAGES = ("mpt-lml", "torch", "numpy", "scikit-learn", "sympy", "matplotlib", "jupyter-book")

    def run(self) -> list[nodes.Node]:
        rows = [make_row("Python", platform.python_version())]
        for name in (*self.PACKAGES, "sphinx"):
            try:
                rows.append(make_row(name, metadata.version(name)))
            except metadata.PackageNotFoundError:
                continue
        rows.append(make_row("Processor", processor()))
        return [make_table(["What", "Version"], rows, [30, 70], ["build-environment"])]


class chapter_costs(nodes.General, nodes.Element):
    """Placeholder: the times are known once every page has been read."""


class ChapterCosts(SphinxDirective):
    """``{chapter-costs}``: one row for each chapter with cells."""

    def run(self) -> list[nodes.Node]:
        self.env.metadata[self.env.docname]["shows_chapter_costs"] = True
        return [chapter_costs()]


class FillChapterCosts(SphinxPostTransform):
    default_priority = 5

    def run(self, **kwargs: Any) -> None:
        for placeholder in list(self.document.findall(chapter_costs)):
            placeholder.replace_self(self.table())

    def table(self) -> nodes.Node:
        times = execution_times(self.env)
        if not times:
            return paragraph("No chapter of this build has cells.")
        rows = [self.row(docname, seconds) for docname, seconds in sorted(times.items())]
        rows.append(make_row("All chapters", f"{sum(times.values()):.0f} s"))
        return make_table(["Chapter", "Execution"], rows, [70, 30], ["chapter-costs"])

    def row(self, docname: str, seconds: float) -> nodes.row:
        title = self.env.titles[docname].astext()
        uri = self.app.builder.get_relative_uri(self.env.docname, docname)
        link = nodes.reference("", title, internal=True, refuri=uri)
        return make_row(link, f"{seconds:.1f} s")


def execution_times(env: Any) -> dict[str, float]:
    """Seconds of execution by docname, as myst-nb recorded them."""
    recorded = {
        name: data.get("exec_data") for name, data in getattr(env, "nb_metadata", {}).items()
    }
    return {
        name: data["runtime"]
        for name, data in recorded.items()
        if data and data.get("runtime") is not None and name in env.found_docs
    }


def pages_with_costs(app: Sphinx, env: Any) -> list[str]:
    """Pages that show times are written again in every build that read a page."""
    return [name for name, data in env.metadata.items() if data.get("shows_chapter_costs")]


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if not names:
        return platform.processor() or platform.machine()
    return f"{names[0]}, {len(names)} cores seen"


def check_at_start(app: Sphinx) -> None:
    """A broken ledger stops the build before the first page, with the file and the entry named."""
    try:
        read_ledger(Path(app.srcdir, app.config.ledger_file))
    except LedgerError as error:
        raise ExtensionError(str(error)) from error


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("ledger_file", "book/ledger.json", "env")
    app.add_config_value("ledger_results", "book/results", "env")
    app.add_directive("ledger", LedgerTable)
    app.add_directive("ledger-summary", LedgerSummary)
    app.add_directive("stored-results", StoredResults)
    app.add_directive("build-environment", BuildEnvironment)
    app.add_directive("chapter-costs", ChapterCosts)
    app.add_node(chapter_costs)
    app.add_post_transform(FillChapterCosts)
    app.connect("env-updated", pages_with_costs)
    app.connect("builder-inited", check_at_start)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
