"""Sphinx directives that turn ``book/ledger.json`` and ``book/results/*.json`` into pages.

``{ledger}``             the paper's entries; options ``:kind:``, ``:chapter:``, ``:verdict:``,
                         ``:columns:``, ``:anchors:``
``{ledger-findings}``    what this book states beyond the paper; option ``:anchors:``
``{ledger-read}``        claims of the paper that no run can judge
``{ledger-summary}``     how many of the paper's entries have which verdict
``{stored-results}``     the full-scale runs the book carries, with where they came from
``{build-environment}``  versions and hardware this build ran on
``{chapter-costs}``      what executing each chapter took, in this build or the cached one

The form of the ledger is ``ledger_schema.json`` beside this file. ``measured``, ``standard_error``
and ``verdict`` are written by the runs; a verdict that is not what the package's rule makes of the
measurement stops the build.
"""

from __future__ import annotations

import json
import math
import platform
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jsonschema
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from mpt_lml.experiments import ledger as rules

KINDS = ("equation", "figure", "table", "claim")
VERDICTS = {
    "confirmed": "holds as printed, by the rule beside it",
    "corrected": "holds after a repair, which the chapter proves and runs",
    "refuted": "does not hold; the chapter shows where",
    "undecided": "was run, and the error bars leave it open",
    "not-reproducible": "settings or code are not published",
    "needs-weights": "needs a model that has to be downloaded first",
}
WITHOUT_A_RULE = ("needs-weights", "not-reproducible")
HEADINGS = {
    "id": "Entry",
    "kind": "Kind",
    "place": "In the paper",
    "says": "What it says",
    "chapter": "Chapter",
    "command": "Command",
    "published": "Published",
    "measured": "Measured",
    "verdict": "Verdict",
    "note": "Note",
}
DEFAULT_COLUMNS = ("place", "verdict", "says", "published", "measured", "chapter")
SCHEMA = json.loads(Path(__file__).with_name("ledger_schema.json").read_text(encoding="utf-8"))


class LedgerError(ValueError):
    """The ledger is malformed; the message names the file and the entry."""


class Entry(SimpleNamespace):
    """One entry, finding or reading, with the keys of the schema as attributes."""


@dataclass(frozen=True)
class Ledger:
    """What the paper says and how it fared, what this book finds, what can only be read."""

    paper: tuple[Entry, ...]
    findings: tuple[Entry, ...]
    read: tuple[Entry, ...]

    def chapters(self) -> set[str]:
        return {entry.chapter for entry in (*self.paper, *self.findings)}

    def claims(self) -> set[str]:
        """Ids of the paper's formulas and claims that have an entry or a line."""
        return {claim for entry in (*self.paper, *self.read) for claim in entry.claims}


# ---------------------------------------------------------------------------------- reading


def read_ledger(path: Path) -> Ledger:
    """The checked content of ``path``; :class:`LedgerError` if anything about it is wrong."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_not_finite)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise LedgerError(f"{path}: is not JSON: {error}") from error
    for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(content):
        raise LedgerError(f"{path}: {_where(content, error.absolute_path)}: {error.message}")
    parts = {part: tuple(Entry(**each) for each in content[part]) for part in content}
    ledger = Ledger(**parts)
    seen: set[str] = set()
    for entry in (*ledger.paper, *ledger.findings):
        if entry.id in seen:
            raise LedgerError(f"{path}: entry {entry.id!r}: the id stands twice")
        seen.add(entry.id)
    for entry in ledger.paper:
        if problem := wrong_verdict(entry):
            raise LedgerError(f"{path}: entry {entry.id!r}: {problem}")
    return ledger


def _not_finite(name: str) -> float:
    raise ValueError(f"{name} is no number of a ledger")


def _where(content: Any, steps: Any) -> str:
    """The entry a fault lies in, by its id where it has one."""
    steps = list(steps)
    entry = content
    for step in steps[:2]:
        entry = entry[step]
    name = entry.get("id") if isinstance(entry, dict) else None
    key = ".".join(str(step) for step in steps[2:] if name) or "/".join(map(str, steps))
    return f"entry {name!r}: {key}" if name else key or "the ledger"


def wrong_verdict(entry: Entry) -> str | None:
    """What is wrong with the verdict of ``entry``, if anything is."""
    if entry.verdict in WITHOUT_A_RULE:
        return None if entry.measured is None else "was measured, so its rule has to decide"
    if entry.rule is None:
        return f"verdict is {entry.verdict!r} without a rule"
    if entry.measured is None:
        return f"verdict is {entry.verdict!r} but measured is null; a run has to write it"
    expected = rules.decide(entry.rule, entry.measured, entry.standard_error, entry.published)
    if entry.verdict != expected:
        return f"verdict is {entry.verdict!r}, and its rule says {expected!r}"
    return None


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
    """Digits after the point in the printed value; ``None`` without one, or for a huge one."""
    published = getattr(entry, "published", None)
    if published is None or abs(published) >= 1e6:
        return None
    return len(repr(float(published)).partition(".")[2])


def format_measured(entry: Entry) -> str:
    """Measured value ± standard error, one digit beyond the printed value or two of the error."""
    decimals = printed_decimals(entry)
    digits = None if decimals is None else decimals + 1
    error = entry.standard_error
    unit = f" {entry.unit}" if entry.unit and entry.measured is not None else ""
    if entry.measured is None or not error:
        return format_number(entry.measured, digits) + unit
    if digits is None:
        digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{format_number(entry.measured, digits)} ± {error:.{digits}f}{unit}"


def format_published(entry: Entry) -> str:
    return format_number(entry.published, printed_decimals(entry))


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
    """``{ledger}``: one row for each of the paper's entries."""

    option_spec: ClassVar[dict[str, Any]] = {
        "kind": names_from(KINDS),
        "verdict": names_from(tuple(VERDICTS)),
        "chapter": docnames,
        "columns": names_from(tuple(HEADINGS)),
        "anchors": directives.flag,
    }
    WIDTHS: ClassVar[dict[str, int]] = {"says": 40, "note": 34, "command": 14, "chapter": 14}

    def run(self) -> list[nodes.Node]:
        ledger = self.ledger()
        chapters = self.options.get("chapter", ())
        if unknown := sorted(set(chapters) - ledger.chapters()):
            raise self.error(f"no ledger entry belongs to {', '.join(unknown)}")
        kinds, verdicts = self.options.get("kind", ()), self.options.get("verdict", ())
        chosen = [
            entry
            for entry in ledger.paper
            if (not kinds or entry.kind in kinds)
            and (not verdicts or entry.verdict in verdicts)
            and (not chapters or entry.chapter in chapters)
        ]
        if not chosen:
            return [paragraph("No entry of the ledger is of this kind at present.")]
        columns = self.options.get("columns") or DEFAULT_COLUMNS
        if all(entry.published is None for entry in chosen):
            columns = tuple(column for column in columns if column != "published")
        rows = [self.row(entry, columns) for entry in chosen]
        widths = [self.WIDTHS.get(column, 12) for column in columns]
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
        if column == "says":
            return self.says(entry, columns)
        if column == "chapter":
            return self.link(entry.chapter)
        if column == "verdict":
            return badge(entry.verdict)
        if column in ("command", "id"):
            return nodes.literal("", getattr(entry, column))
        numbers = {"published": format_published, "measured": format_measured}
        return numbers[column](entry) if column in numbers else str(getattr(entry, column))

    def says(self, entry: Entry, columns: tuple[str, ...]) -> list[nodes.paragraph]:
        """The paper's words; below them what the scripts do, the rule, the note, the command."""
        lines = [paragraph(entry.says)]
        small = [f"Scripts: {entry.scripts}" if entry.scripts else ""]
        small += [rules.in_words(entry.rule, entry.published, entry.unit) if entry.rule else ""]
        small += [entry.note if "note" not in columns else ""]
        lines += [nodes.paragraph("", text, classes=["ledger-note"]) for text in small if text]
        if "command" not in columns:
            lines.append(paragraph(nodes.literal("", entry.command)))
        return lines


class LedgerFindings(LedgerDirective):
    """``{ledger-findings}``: what this book states beyond the paper."""

    option_spec: ClassVar[dict[str, Any]] = {"anchors": directives.flag}

    def run(self) -> list[nodes.Node]:
        rows = []
        for entry in self.ledger().findings:
            lines = [paragraph(entry.statement)]
            if entry.note:
                lines.append(nodes.paragraph("", entry.note, classes=["ledger-note"]))
            lines.append(paragraph(nodes.literal("", entry.command)))
            row = make_row(lines, format_measured(entry), self.link(entry.chapter))
            if "anchors" in self.options:
                row["ids"].append("ledger-" + entry.id.replace("/", "-"))
            rows.append(row)
        headings = ["What this book finds", "Measured", "Chapter"]
        return [make_table(headings, rows, [60, 22, 18], ["ledger-entries"])]


class LedgerRead(LedgerDirective):
    """``{ledger-read}``: claims that no run can judge, and what a reading says of them."""

    def run(self) -> list[nodes.Node]:
        rows = [make_row(e.place, e.says, e.answer) for e in self.ledger().read]
        headings = ["In the paper", "What it says", "What can be said of it"]
        return [make_table(headings, rows, [16, 38, 46], ["ledger-entries"])]


class LedgerSummary(LedgerDirective):
    """``{ledger-summary}``: verdicts counted by kind."""

    def run(self) -> list[nodes.Node]:
        entries = self.ledger().paper
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
    app.add_directive("ledger-findings", LedgerFindings)
    app.add_directive("ledger-read", LedgerRead)
    app.add_directive("ledger-summary", LedgerSummary)
    app.add_directive("stored-results", StoredResults)
    app.add_directive("build-environment", BuildEnvironment)
    app.add_directive("chapter-costs", ChapterCosts)
    app.add_node(chapter_costs)
    app.add_post_transform(FillChapterCosts)
    app.connect("env-updated", pages_with_costs)
    app.connect("builder-inited", check_at_start)
    return {"version": "2", "parallel_read_safe": True, "parallel_write_safe": True}
