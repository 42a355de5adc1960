"""Sphinx directives that turn ``book/ledger.json`` and ``book/results/*.json`` into tables.

``{ledger}``             the paper's entries, those of one ``:chapter:`` or ``:shown:`` verdict
``{ledger-findings}``    what this book states beyond the paper
``{ledger-read}``        claims of the paper that no run can judge
``{ledger-summary}``     how many of the paper's statements have which verdict, and rules of what date
``{stored-results}``     the full-scale runs the book carries: how to repeat them, where they came from
``{meaning}`VERDICT` ``     what a verdict means
``{measured}`ID` ``         a measured value in a sentence, ± its standard error; ``ID %`` in percent
``{recorded}`RUN ID` ``   the same of a finding of a run whose code left: from its record, not the ledger
``{build-environment}``  versions and hardware this build ran on

The form of the ledger is ``ledger_schema.json`` beside this file. A verdict that
is not what the package's rule makes of the measurement stops the build.
"""

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from docutils import nodes
from jsonschema import Draft202012Validator
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from experiments import ledger as rules
from experiments.ledger import (
    MEANINGS,
    decide,
    in_words,
    shown,
    smallest_margin,
    statements,
)
from experiments.provenance import provenance
from mpt_lml import verdicts
from mpt_lml.files import versions

sys.path.append(str(Path(__file__).resolve().parents[1] / "_tools"))

from memory import Memory

LEDGER, RESULTS = "book/ledger.json", "book/results"
SCHEMA_FILE = Path(__file__).with_name("ledger_schema.json")
SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
RULE_KNOWN = {
    "before": "Rule written before the number was known.",
    "partly": "Rule written before the number was known, but after a related one.",
    "after": "Rule written after the number, or its outcome, was known.",
}
# Entries that count once, and what they have in common.
GROUPS = {
    "table-1": "Table 1",
    "table-2": "Table 2",
    "index": "one index",
    "sign": "one formula",
    "flat": "one curve",
    "still": "one sentence",
    "withdrawn": "withdrawn",
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
    every = {entry.id: entry for entry in (*ledger.paper, *ledger.findings)}
    for entry in ledger.paper:
        entry.shown = shown(vars(entry))
    for entry in (entry for entry in ledger.paper if entry.rule is not None):
        entry.rejected = rejected(entry, every, f"{path}: entry {entry.id!r}")
    judged = (each for each in ledger.paper if each.rule and each.measured is not None)
    for entry in judged:
        says = decide(entry.rule, entry.measured, entry.standard_error, entry.published)
        if entry.verdict != says:
            problem = f"verdict is {entry.verdict!r}, and its rule says {says!r}"
            raise ExtensionError(f"{path}: entry {entry.id!r}: {problem}")
    return ledger


def rejected(
    entry: SimpleNamespace, every: dict[str, SimpleNamespace], where: str
) -> SimpleNamespace:
    """The outcome that the rule of ``entry`` rejects; an error if the rule does not reject it."""
    named = entry.would_reject.get("entry")
    if named is not None and (named not in every or every[named].measured is None):
        raise ExtensionError(f"{where}: would_reject names {named!r}, which is not measured")
    if named is None:
        value, error, unit = entry.would_reject["value"], None, entry.unit
    else:
        other = every[named]
        value, error, unit = other.measured, other.standard_error, other.unit
    says = decide(entry.rule, value, error, entry.published)
    if says != entry.rule["otherwise"]:
        raise ExtensionError(f"{where}: would_reject is {value:g}, of which the rule says {says!r}")
    return SimpleNamespace(measured=value, standard_error=error, unit=unit)


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


def describe_rule(entry: SimpleNamespace) -> list[str]:
    """The rule of an entry of the paper, how tight it is, what it rejects, and when it was written."""
    if entry.rule is None:
        return []
    said = [in_words(entry.rule, entry.published, entry.unit)]
    if entry.measured is not None:
        numbers = entry.measured, entry.standard_error, entry.published
        least = smallest_margin(entry.rule, *numbers)
        if least is not None:
            said.append(
                f"The smallest margin with which it would hold: {format_number(least, '.3g')}."
            )
    rejected = format_measured(entry.rejected)
    said.append(f"It rejects {entry.would_reject['outcome']}: {rejected}.")
    said.append(RULE_KNOWN[entry.rule_known])
    return said


def paragraph(child: nodes.Node | str, *classes: str) -> nodes.paragraph:
    text = nodes.Text(child) if isinstance(child, str) else child
    return nodes.paragraph("", "", text, classes=list(classes))


def literal(text: str) -> nodes.paragraph:
    return paragraph(nodes.literal("", text))


def words(text: str, command: str, *notes: str) -> list[nodes.Node]:
    """What is said, then in smaller letters what is to be said of it, then the command."""
    small = [paragraph(note, "ledger-note") for note in notes if note]
    return [paragraph(text), *small, literal(command)]


def badge(word: str) -> nodes.paragraph:
    name = f"verdict-{nodes.make_id(word)}"
    return paragraph(nodes.inline(word, word, classes=["verdict", name]))


def make_row(cells: dict[str, Any], name: str = "") -> nodes.row:
    """Cells by heading; ``name`` is what a link to this row ends with."""
    row = nodes.row(ids=[f"ledger-{name.replace('/', '-')}"] if name else [])
    for heading, cell in cells.items():
        entry = nodes.entry(classes=[f"col-{nodes.make_id(heading)}"])
        entry += paragraph(cell) if isinstance(cell, str) else cell
        row += entry
    return row


def make_table(rows: list[dict[str, Any]], *classes: str) -> nodes.table:
    """A table of rows, each with its cells by heading, and with an ``id`` if a link may end there."""
    made = [make_row(cells, cells.pop("id", "")) for cells in rows]
    group = nodes.tgroup("", cols=len(rows[0]))
    group += [nodes.colspec("", colwidth=1) for _ in rows[0]]
    group += [nodes.thead("", make_row({key: key for key in rows[0]}))]
    group += [nodes.tbody("", *made)]
    return nodes.table("", group, classes=[*classes, "colwidths-auto"])


class Table(SphinxDirective):
    """A table whose rows are dictionaries of cells by heading; ``id`` is an anchor, no cell."""

    def run(self) -> list[nodes.Node]:
        rows = list(self.rows())
        if not rows:
            return [paragraph("None so far.")]
        return [make_table(rows, "ledger", self.name)]

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
    option_spec: ClassVar[dict[str, Any]] = {
        "chapter": str,
        "shown": str,
    }

    def rows(self) -> Iterator[dict[str, Any]]:
        entries = self.ledger().paper
        for option, wanted in self.options.items():
            entries = [each for each in entries if getattr(each, option) == wanted]
        if not entries:
            raise self.error(f"no entry of the ledger has {self.options}")
        printed = any(entry.published is not None for entry in entries)
        for entry in entries:
            scripts = f"Scripts: {entry.scripts}" if entry.scripts else ""
            rule = " ".join(describe_rule(entry))
            yield {
                "id": entry.id,
                "In the paper": entry.place,
                "Verdict": badge(entry.shown),
                "What it says": words(entry.says, entry.command, scripts, rule, entry.note),
                **({"Published": format_number(entry.published, ".6g")} if printed else {}),
                "Measured": format_measured(entry),
                **({} if "chapter" in self.options else {"Chapter": self.link(entry.chapter)}),
            }


class LedgerFindings(Table):
    option_spec: ClassVar[dict[str, Any]] = {"chapter": str.split}  # all, where it is missing

    def rows(self) -> Iterator[dict[str, Any]]:
        wanted = self.options.get("chapter")
        for entry in self.ledger().findings:
            if wanted is not None and entry.chapter not in wanted:
                continue
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
        paper = self.ledger().paper
        counted = statements(map(vars, paper))
        for word, meaning in MEANINGS.items():
            found = [entry for entry in paper if entry.shown == word]
            times = Counter(known for each, known in counted if each == word)
            same = Counter(entry.group for entry in found)
            once = [f"{what}: {same[group]}" for group, what in GROUPS.items() if same[group]]
            yield {
                "Verdict": badge(word),
                "Meaning": meaning,
                "Statements": str(times.total()),
                "Entries": f"{len(found)} ({', '.join(once)})" if once else str(len(found)),
                **{f"Rule {known}": str(times[known]) for known in RULE_KNOWN},
            }


class StoredResults(Table):
    def rows(self) -> Iterator[dict[str, Any]]:
        for path in sorted(Path(self.env.srcdir, RESULTS).glob("*.json")):
            self.env.note_dependency(path.relative_to(self.env.srcdir).as_posix())
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                yield self.origin(path.stem, content["provenance"] | content)
            except (ValueError, KeyError, TypeError) as error:
                raise ExtensionError(f"{path}: not a recorded run ({error!r})") from error

    def origin(self, name: str, run: dict[str, Any]) -> dict[str, Any]:
        other = sorted(run["versions"].items() - versions().items())
        commit = literal(run["commit"].partition("+")[0][:9])
        history = ", ".join(run.get("history", []))
        return {
            "Command": literal(run.get("rerun", f"python -m experiments run {name}")),
            "Time": f"{run['seconds'] / 60:.1f} min" if "seconds" in run else "–",
            "Versions": ", ".join(map(" ".join, other)) or "as above",
            "Hardware": ", ".join(f"{what}: {each}" for what, each in run["hardware"].items()),
            "Commit": [commit, paragraph(history, "ledger-note")] if history else commit,
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


def recorded(name, rawtext, text, lineno, inliner, options=None, content=None):  # type: ignore[no-untyped-def]
    """The role of that name: a finding of a record, which no entry of the ledger has to repeat."""
    run, _, wanted = text.partition(" ")
    record = f"{RESULTS}/{run}.json"
    env = inliner.document.settings.env
    env.note_dependency(record)
    try:
        stored = json.loads(Path(env.srcdir, record).read_text(encoding="utf-8"))
        finding = stored["findings"][wanted]
    except (OSError, KeyError) as error:
        raise ExtensionError(f"{{recorded}}: no finding {wanted!r} in {record}") from error
    return [nodes.Text(format_measured(SimpleNamespace(**finding, unit="")))], []


def meaning(name, rawtext, text, lineno, inliner, options=None, content=None):  # type: ignore[no-untyped-def]
    """The role of that name: what a verdict means, in the words of the tally."""
    if text not in MEANINGS:
        raise ExtensionError(f"{{meaning}}: a verdict is {', '.join(MEANINGS)}: {text!r}")
    return [nodes.Text(MEANINGS[text])], []


def read(app: Sphinx) -> None:
    """Before the first page, which a broken ledger stops."""
    path = Path(app.srcdir, LEDGER)
    made_of = (path, SCHEMA_FILE, Path(rules.__file__), Path(verdicts.__file__))
    with Memory(Path(app.srcdir), "ledger") as memory:
        text = b"".join(file.read_bytes() for file in made_of)
        app.ledger = memory.of(text, partial(read_ledger, path))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("ledger", LedgerTable)
    app.add_directive("ledger-findings", LedgerFindings)
    app.add_directive("ledger-read", LedgerRead)
    app.add_directive("ledger-summary", LedgerSummary)
    app.add_directive("stored-results", StoredResults)
    app.add_directive("build-environment", BuildEnvironment)
    app.add_role("measured", measured)
    app.add_role("recorded", recorded)
    app.add_role("meaning", meaning)
    app.connect("builder-inited", read)
    return {"version": "3", "parallel_read_safe": True, "parallel_write_safe": True}
