"""The ledger of the paper's claims: complete, well-formed, and shown as it stands."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
LEDGER = BOOK / "ledger.json"


def _load_extension():
    spec = importlib.util.spec_from_file_location("book_ledger", BOOK / "_ext" / "ledger.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ledger = _load_extension()
COMMITTED = ledger.read_ledger(LEDGER)
ENTRIES = {entry.id: entry for entry in COMMITTED.entries}

# What the paper prints with a number, a label or a panel of its own.
REQUIRED = {
    *("eq-1", "eq-2", "eq-3", "eq-4", "prop-1", "prop-1-middle", "eq-6", "eq-7"),
    *("eq-a1", "eq-a2", "eq-a3", "count-512-76"),
    *(f"fig-1-{panel}" for panel in ("left", "center", "right")),
    *(f"fig-2-{panel}" for panel in ("left", "center", "right")),
    *("fig-3-upper", "fig-3-lower"),
    *(f"fig-4-{panel}" for panel in ("left", "center", "right")),
    *("fig-5-left", "fig-5-right", "fig-6"),
    "table-1/true",
    *(f"table-1/p{masks}-{what}" for masks in (1, 10, 100) for what in ("mean", "sd")),
    *(
        f"table-2/{weights}-{text}"
        for weights in ("random", "pretrained")
        for text in ("ax", "cola", "qnli", "mrpc")
    ),
    *("claim-convergence-rate", "claim-bias-constant", "claim-25-against-15"),
}
PRINTED = {
    "count-512-76": 1.21e92,
    "table-1/true": -60.34,
    "table-1/p1-mean": -60.44,
    "table-1/p1-sd": 0.47,
    "table-1/p10-mean": -60.22,
    "table-1/p10-sd": 0.12,
    "table-1/p100-mean": -60.34,
    "table-1/p100-sd": 0.03,
    "table-2/random-ax": -5245.31,
    "table-2/random-cola": -5283.52,
    "table-2/random-qnli": -5343.98,
    "table-2/random-mrpc": -5362.21,
    "table-2/pretrained-ax": -1715.75,
    "table-2/pretrained-cola": -1657.68,
    "table-2/pretrained-qnli": -1770.28,
    "table-2/pretrained-mrpc": -1773.45,
}


def _entry(**changes):
    entry = {
        "id": "eq-1",
        "kind": "equation",
        "paper": "Eq. 1",
        "statement": "One thing equals another.",
        "chapter": "book/01-first",
        "command": "mpt-lml run identity",
        "published": None,
        "measured": None,
        "standard_error": None,
        "tolerance": None,
        "verdict": "open",
        "note": "",
    }
    return {**entry, **changes}


def _write(folder: Path, entries: list[dict]) -> Path:
    path = folder / "ledger.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path


# ------------------------------------------------------------------------ the committed ledger


def test_every_numbered_thing_of_the_paper_has_an_entry():
    assert REQUIRED - ENTRIES.keys() == set()


def test_the_published_numbers_are_the_paper_s():
    assert {name: ENTRIES[name].published for name in PRINTED} == PRINTED


def test_the_printed_digits_of_table_1_are_the_tolerance():
    for name in (name for name in ENTRIES if name.startswith("table-1/")):
        assert ENTRIES[name].tolerance == 0.005, name


def test_ids_are_unique():
    assert len(ENTRIES) == len(COMMITTED.entries)


def test_a_verdict_stands_on_a_measurement():
    decided = [e for e in COMMITTED.entries if e.verdict not in ("open", "needs-weights")]
    assert [e.id for e in decided if e.measured is None] == []


def test_chapters_exist():
    for chapter in COMMITTED.chapters():
        assert (ROOT / f"{chapter}.md").is_file(), chapter


def test_commands_name_experiments_that_exist():
    from mpt_lml import experiments

    for entry in COMMITTED.entries:
        assert entry.command.split()[2] in experiments.names(), entry.id


def test_the_file_is_written_as_the_runs_write_it():
    text = LEDGER.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"


# ------------------------------------------------------------------------------ broken ledgers

BROKEN = {
    "an unknown verdict": ({"verdict": "probably"}, "verdict must be one of"),
    "an unknown kind": ({"kind": "rumor"}, "kind must be one of"),
    "a number typed as text": ({"published": "-60.34"}, "published must be a number"),
    "a truth value for a number": ({"measured": True}, "measured must be a number"),
    "not a number": ({"measured": float("nan")}, "measured must be finite"),
    "a negative error": ({"standard_error": -0.1}, "standard_error must be >= 0"),
    "no tolerance at all": ({"tolerance": 0}, "tolerance must be > 0"),
    "a verdict without a run": ({"verdict": "confirmed"}, "measured is null"),
    "a confirmed miss": (
        {"verdict": "confirmed", "published": -60.34, "measured": -60.4, "tolerance": 0.005},
        "more than the tolerance 0.005",
    ),
    "a confirmed large error": (
        {"verdict": "confirmed", "measured": 1e-3, "tolerance": 1e-10},
        "more than the tolerance",
    ),
    "an empty statement": ({"statement": " "}, "statement must be a text"),
    "a chapter that is no docname": ({"chapter": "05"}, "chapter must be"),
    "a command that is none": ({"command": "make it so"}, "command must be"),
    "an id that is no id": ({"id": "Eq. 1"}, "id must be"),
    "a key that nobody knows": ({"measured_by": 1.0}, "unknown keys measured_by"),
}


@pytest.mark.parametrize("changes, message", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_entry_is_refused_by_name(tmp_path, changes, message):
    path = _write(tmp_path, [_entry(id="eq-0"), _entry(**changes)])
    with pytest.raises(ledger.LedgerError, match=re.escape(message)) as caught:
        ledger.read_ledger(path)
    assert str(path) in str(caught.value)
    assert repr(changes.get("id", "eq-1")) in str(caught.value)


def test_a_missing_key_is_refused(tmp_path):
    entry = _entry()
    del entry["tolerance"]
    with pytest.raises(ledger.LedgerError, match="'eq-1': lacks tolerance"):
        ledger.read_ledger(_write(tmp_path, [entry]))


def test_an_id_that_stands_twice_is_refused(tmp_path):
    with pytest.raises(ledger.LedgerError, match="'eq-1': the id stands twice"):
        ledger.read_ledger(_write(tmp_path, [_entry(), _entry()]))


def test_a_file_that_is_not_json_is_refused(tmp_path):
    path = tmp_path / "ledger.json"
    path.write_text("[{", encoding="utf-8")
    with pytest.raises(ledger.LedgerError, match="is not JSON"):
        ledger.read_ledger(path)


@pytest.mark.parametrize("name", sorted(ENTRIES)[::7])
def test_the_committed_ledger_breaks_when_it_is_broken(tmp_path, name):
    content = json.loads(LEDGER.read_text(encoding="utf-8"))
    broken = deepcopy(content)
    next(e for e in broken if e["id"] == name)["verdict"] = "fine"
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(broken), encoding="utf-8")
    with pytest.raises(ledger.LedgerError, match=re.escape(repr(name))):
        ledger.read_ledger(path)


# ---------------------------------------------------------------------------------- the page


@pytest.fixture
def small_site(tmp_path):
    """A two-page Sphinx project with the extension, and a function that builds it."""
    (tmp_path / "book").mkdir()
    (tmp_path / "conf.py").write_text(
        f"import sys; sys.path.insert(0, {str(BOOK / '_ext')!r})\n"
        "extensions = ['ledger']\nroot_doc = 'book/map'\nhtml_theme = 'basic'\nnitpicky = True\n"
    )
    (tmp_path / "book" / "01-first.rst").write_text("The first chapter\n=================\n")
    (tmp_path / "book" / "map.rst").write_text(
        "Map\n===\n\n.. toctree::\n\n   01-first\n\n"
        ".. ledger::\n   :anchors:\n\n.. ledger-summary::\n\n.. stored-results::\n"
    )

    def build() -> subprocess.CompletedProcess:
        out = tmp_path / "_build"
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "-n", str(tmp_path), str(out)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return tmp_path, build


def _text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_the_table_shows_numbers_verdicts_and_links(small_site):
    folder, build = small_site
    printed = {"published": -60.34, "tolerance": 0.005, "verdict": "confirmed", "kind": "table"}
    entry = _entry(id="table-1/true", measured=-60.3372, standard_error=0.0012, **printed)
    _write(folder / "book", [entry])
    result = build()
    assert result.returncode == 0, result.stderr
    html = (folder / "_build" / "book" / "map.html").read_text(encoding="utf-8")
    text = _text(html)
    assert "−60.34" in text
    assert "−60.337 ± 0.001" in text
    assert 'class="verdict verdict-confirmed"' in html
    assert 'id="ledger-table-1-true"' in html
    table = html[html.index("ledger-entries") : html.index("ledger-summary")]
    assert 'href="01-first.html"' in table
    _write(folder / "book", [entry, _entry(chapter="book/12-nowhere")])
    assert "12-nowhere" in build().stderr


def test_the_page_follows_the_file_and_a_broken_file_stops_the_build(small_site):
    folder, build = small_site
    _write(folder / "book", [_entry()])
    assert build().returncode == 0
    page = folder / "_build" / "book" / "map.html"
    assert "Two things are equal" not in page.read_text(encoding="utf-8")

    _write(folder / "book", [_entry(statement="Two things are equal.")])
    assert build().returncode == 0
    assert "Two things are equal" in page.read_text(encoding="utf-8")

    path = _write(folder / "book", [_entry(verdict="certain")])
    result = build()
    assert result.returncode != 0
    assert path.name in result.stderr
    assert "'eq-1'" in result.stderr


def test_a_recorded_run_is_listed_with_where_it_came_from(small_site):
    folder, build = small_site
    _write(folder / "book", [_entry()])
    (folder / "book" / "results").mkdir()
    origin = {
        "command": "mpt-lml run table-1",
        "commit": "0123456789abcdef+changes",
        "versions": {"torch": "2.13.0"},
        "hardware": {"cpu": "A processor", "threads": 2},
    }
    record = folder / "book" / "results" / "table-1.json"
    record.write_text(json.dumps({"provenance": origin}), encoding="utf-8")
    result = build()
    assert result.returncode == 0, result.stderr
    text = _text((folder / "_build" / "book" / "map.html").read_text(encoding="utf-8"))
    for piece in ("table-1.json", "torch 2.13.0", "A processor, 2 threads", "012345678"):
        assert piece in text

    record.write_text("{}", encoding="utf-8")
    result = build()
    assert result.returncode != 0
    assert "table-1.json" in result.stderr


# -------------------------------------------------------------------------------- the sources


def test_every_citation_has_an_entry_in_the_bibliography():
    keys = set(re.findall(r"^@\w+\{([^,]+),", (BOOK / "references.bib").read_text("utf-8"), re.M))
    assert "morenomunoz2023masked" in keys
    for page in sorted(BOOK.glob("*.md")):
        cited = re.findall(r"\{cite:[pt]\}`([^`]+)`", page.read_text(encoding="utf-8"))
        missing = {key.strip() for group in cited for key in group.split(",")} - keys
        assert not missing, f"{page.name} cites {sorted(missing)}"
