"""Sphinx directives that turn ``book/ledger.json`` and ``book/results/*.json`` into tables.

``{ledger}``             the paper's entries, those of one ``:chapter:`` or ``:verdict:``
``{ledger-findings}``    what this book states beyond the paper
``{ledger-read}``        claims of the paper that no run can judge
``{ledger-summary}``     how many of the paper's entries have which verdict
``{stored-results}``     the full-scale runs the book carries, with where they came from
``{measured}`ID` ``         a measured value in a sentence, ± its standard error; ``ID %`` in percent
``{build-environment}``  versions and hardware this build ran on

The form of the ledger is ``ledger_schema.json`` beside this file. A verdict that
is not what the package's rule makes of the measurement stops the build.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from docutils import nodes
from jsonschema import Draft202012Validator
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from mpt_lml.experiments import ledger as rules
from mpt_lml.files import provenance, versions

LEDGER, RESULTS = "book/ledger.json", "book/results"
SCHEMA = json.loads(Path(__file__).with_name("ledger_schema.json").read_text(encoding="utf-8"))
KINDS = ("equation", "figure", "table", "claim")
VERDICTS = {
    "confirmed": "holds as printed, by the rule beside it",
    "corrected": "holds after a repair, which the chapter proves and runs",
    "refuted": "does not hold; the chapter shows where",
    "undecided": "was run, and the error bars leave it open",
    "not-reproducible": "settings or code are not published",
    "needs-weights": "needs a model that has to be downloaded first",
}


def read_ledger(path: Path) -> SimpleNamespace:
    """``paper``, ``findings`` and ``read``; ``ExtensionError`` names the file and the entry."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(content, allow_nan=False)
    except (OSError, ValueError) as error:
        raise ExtensionError(f"{path}: is not JSON: {error}") from error
    for error in Draft202012Validator(SCHEMA).iter_errors(content):
        entry = content
        for step in list(error.absolute_path)[:2]:
            entry = entry[step]
        where = entry.get("id", "no id") if isinstance(entry, dict) else error.json_path
        raise ExtensionError(f"{path}: entry {where!r}: {error.json_path}: {error.message}")
    named = {part: [SimpleNamespace(**each) for each in content[part]] for part in content}
    ledger = SimpleNamespace(**named)
    for name, times in Counter(e.id for e in (*ledger.paper, *ledger.findings)).items():
        if times > 1:
            raise ExtensionError(f"{path}: entry {name!r}: the id stands twice")
    for entry in (entry for entry in ledger.paper if entry.measured is not None):
        says = rules.decide(entry.rule, entry.measured, entry.standard_error, entry.published)
        if entry.verdict != says:
            problem = f"verdict is {entry.verdict!r}, and its rule says {says!r}"
            raise ExtensionError(f"{path}: entry {entry.id!r}: {problem}")
    return ledger


def format_number(value: float | None, digits: str = ".4g") -> str:
    """``value`` for a reader: true minus, powers of ten outside 0.001 .. 10⁶, "–" for none."""
    if value is None:
        return "–"
    if value and not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        mantissa = mantissa.rstrip("0").rstrip(".").replace("-", "−")
        return f"10{power}" if mantissa == "1" else f"{mantissa} × 10{power}"
    return f"{value:{digits}}".replace("-", "−")


def format_measured(entry: SimpleNamespace) -> str:
    """Measured value ± standard error, to two digits of the error; without one as printed."""
    unit = f" {entry.unit}" if entry.unit and entry.measured is not None else ""
    if not (error := entry.standard_error):
        printed = getattr(entry, "published", None) is not None
        return format_number(entry.measured, ".6g" if printed else ".4g") + unit
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{format_number(entry.measured, f'.{digits}f')} ± {error:.{digits}f}{unit}"


def paragraph(child: nodes.Node | str, *classes: str) -> nodes.paragraph:
    text = nodes.Text(child) if isinstance(child, str) else child
    return nodes.paragraph("", "", text, classes=list(classes))


def literal(text: str) -> nodes.paragraph:
    return paragraph(nodes.literal("", text))


def words(text: str, command: str, *notes: str) -> list[nodes.Node]:
    """What is said, then in smaller letters what is to be said of it, then the command."""
    small = [paragraph(note, "ledger-note") for note in notes if note]
    return [paragraph(text), *small, literal(command)]


def badge(verdict: str) -> nodes.paragraph:
    label = verdict.replace("-", " ")
    return paragraph(nodes.inline(label, label, classes=["verdict", f"verdict-{verdict}"]))


def make_row(cells: dict[str, Any], name: str = "") -> nodes.row:
    """Cells by heading; ``name`` is what a link to this row ends with."""
    row = nodes.row(ids=[f"ledger-{name.replace('/', '-')}"] if name else [])
    for heading, cell in cells.items():
        entry = nodes.entry(classes=[f"col-{nodes.make_id(heading)}"])
        entry += paragraph(cell) if isinstance(cell, str) else cell
        row += entry
    return row


class Table(SphinxDirective):
    """A table whose rows are dictionaries of cells by heading; ``id`` is an anchor, no cell."""

    def run(self) -> list[nodes.Node]:
        rows = list(self.rows())
        if not rows:
            return [paragraph("None so far.")]
        made = [make_row(cells, cells.pop("id", "")) for cells in rows]
        group = nodes.tgroup("", cols=len(rows[0]))
        group += [nodes.colspec("", colwidth=1) for _ in rows[0]]
        group += [nodes.thead("", make_row({key: key for key in rows[0]}))]
        group += [nodes.tbody("", *made)]
        return [nodes.table("", group, classes=["ledger", self.name, "colwidths-auto"])]

    def ledger(self) -> SimpleNamespace:
        self.env.note_dependency(LEDGER)
        return self.env.app.ledger  # type: ignore[attr-defined, no-any-return]

    def link(self, docname: str) -> nodes.paragraph:
        """A link to a chapter; one that does not exist is a warning of the build."""
        text = nodes.inline("", docname, classes=["doc"])
        where = {"refdoc": self.env.docname, "refdomain": "std", "reftype": "doc"}
        where |= {"reftarget": f"/{docname}", "refexplicit": False, "refwarn": True}
        return paragraph(addnodes.pending_xref("", text, **where))


class LedgerTable(Table):
    option_spec: ClassVar[dict[str, Any]] = {"chapter": str.split, "verdict": str.split}

    def rows(self) -> Iterator[dict[str, Any]]:
        entries = self.ledger().paper
        for option, wanted in self.options.items():
            entries = [entry for entry in entries if getattr(entry, option) in wanted]
        if not entries:
            raise self.error(f"no entry of the ledger has {self.options}")
        printed = any(entry.published is not None for entry in entries)
        for entry in entries:
            scripts = f"Scripts: {entry.scripts}" if entry.scripts else ""
            rule = rules.in_words(entry.rule, entry.published, entry.unit) if entry.rule else ""
            yield {
                "id": entry.id,
                "In the paper": entry.place,
                "Verdict": badge(entry.verdict),
                "What it says": words(entry.says, entry.command, scripts, rule, entry.note),
                **({"Published": format_number(entry.published, ".6g")} if printed else {}),
                "Measured": format_measured(entry),
                **({} if "chapter" in self.options else {"Chapter": self.link(entry.chapter)}),
            }


class LedgerFindings(Table):
    def rows(self) -> Iterator[dict[str, Any]]:
        for entry in self.ledger().findings:
            yield {
                "id": entry.id,
                "What this book finds": words(entry.statement, entry.command, entry.note),
                "Measured": format_measured(entry),
                "Chapter": self.link(entry.chapter),
            }


class LedgerRead(Table):
    def rows(self) -> Iterator[dict[str, Any]]:
        for entry in self.ledger().read:
            said = {"In the paper": entry.place, "What it says": entry.says}
            yield {**said, "What can be said of it": entry.answer}


class LedgerSummary(Table):
    def rows(self) -> Iterator[dict[str, Any]]:
        for verdict, meaning in VERDICTS.items():
            kinds = [entry.kind for entry in self.ledger().paper if entry.verdict == verdict]
            counts = {f"{kind.capitalize()}s": str(kinds.count(kind)) for kind in KINDS}
            named = {"Verdict": badge(verdict), "Meaning": meaning}
            yield {**named, **counts, "All": str(len(kinds))}


class StoredResults(Table):
    def rows(self) -> Iterator[dict[str, Any]]:
        for path in sorted(Path(self.env.srcdir, RESULTS).glob("*.json")):
            self.env.note_dependency(path.relative_to(self.env.srcdir).as_posix())
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                yield self.origin(content["provenance"] | content)
            except (ValueError, KeyError, TypeError) as error:
                raise ExtensionError(f"{path}: not a recorded run ({error!r})") from error

    def origin(self, run: dict[str, Any]) -> dict[str, Any]:
        other = sorted(run["versions"].items() - versions().items())
        return {
            "Command": literal(run["command"]),
            "Time": f"{run['seconds'] / 60:.1f} min" if "seconds" in run else "–",
            "Versions": ", ".join(map(" ".join, other)) or "as above",
            "Hardware": ", ".join(f"{what}: {each}" for what, each in run["hardware"].items()),
            "Commit": literal(run["commit"].partition("+")[0][:9]),
        }


class BuildEnvironment(Table):
    def rows(self) -> Iterator[dict[str, Any]]:
        origin = provenance("make book")
        found = {"python": origin["python"], **origin["versions"]}
        found["processor"] = f"{origin['hardware']['cpu']}, {os.cpu_count()} cores seen"
        for what, version in found.items():
            yield {"What": what, "Version": version}


def measured(name, rawtext, text, lineno, inliner, options=None, content=None):  # type: ignore[no-untyped-def]
    """The role of that name: the measured value of an entry, without its unit."""
    wanted, _, percent = text.partition(" ")
    env = inliner.document.settings.env
    env.note_dependency(LEDGER)
    ledger = env.app.ledger
    for entry in (*ledger.paper, *ledger.findings):
        if entry.id == wanted and entry.measured is not None:
            scale = 100 if percent else 1
            error = entry.standard_error and scale * entry.standard_error
            values = {"measured": scale * entry.measured, "standard_error": error, "unit": percent}
            return [nodes.Text(format_measured(SimpleNamespace(**values)))], []
    raise ExtensionError(f"{{measured}}: no measured entry {wanted!r} in {LEDGER}")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("ledger", LedgerTable)
    app.add_directive("ledger-findings", LedgerFindings)
    app.add_directive("ledger-read", LedgerRead)
    app.add_directive("ledger-summary", LedgerSummary)
    app.add_directive("stored-results", StoredResults)
    app.add_directive("build-environment", BuildEnvironment)
    app.add_role("measured", measured)
    # A broken ledger stops the build before the first page; one that is not is read this once.
    read = lambda app: setattr(app, "ledger", read_ledger(Path(app.srcdir, LEDGER)))  # noqa: E731
    app.connect("builder-inited", read)
    return {"version": "3", "parallel_read_safe": True, "parallel_write_safe": True}
