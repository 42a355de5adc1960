"""The ledger of the paper's claims: complete, well-formed, and shown as it stands."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import subprocess
import sys
from collections import defaultdict
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
from sphinx.cmd.build import build_main
from sphinx.errors import ExtensionError

from mpt_lml.files import versions

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
ENTRIES = {entry.id: entry for entry in COMMITTED.paper}

# The formulas, claims and figures of the paper, by the ids of its list of claims.
CLAIMS = {f"F{n}" for n in range(1, 14)} | {f"C{n}" for n in range(1, 28)}
REQUIRED = {
    *(f"fig-1-{panel}" for panel in ("left", "center", "right")),
    *(f"fig-2-{panel}" for panel in ("left", "center", "right")),
    *("fig-3-upper", "fig-3-lower"),
    *(f"fig-4-{panel}" for panel in ("left", "center", "right")),
    *("fig-5-left", "fig-5-right", "fig-6"),
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
    "table-2/rerun-pretrained-ax": -1715.75,
    "table-2/rerun-pretrained-cola": -1657.68,
    "table-2/rerun-pretrained-qnli": -1770.28,
    "table-2/rerun-pretrained-mrpc": -1773.45,
}


def _entry(**changes):
    entry = {
        "id": "eq-1",
        "kind": "equation",
        "claims": ["F1"],
        "place": "Eq. 1",
        "says": "One thing equals another.",
        "scripts": "",
        "rule": {"test": "equivalent", "margin": 1e-10, "otherwise": "refuted"},
        "rule_known": "after",
        "would_reject": {"outcome": "a table with a slip", "value": 0.5},
        "chapter": "book/01-first",
        "command": "python -m experiments run identity",
        "published": None,
        "measured": 1e-12,
        "standard_error": None,
        "unit": "nats",
        "verdict": "confirmed",
        "group": "",
        "note": "",
    }
    return {**entry, **changes}


def _finding(**changes):
    finding = {
        "id": "rate",
        "statement": "The error falls like one over the root.",
        "chapter": "book/01-first",
        "command": "python -m experiments run identity",
        "measured": -0.5,
        "standard_error": 0.01,
        "unit": "",
        "note": "",
    }
    return {**finding, **changes}


def _commit_and_experiment(command: str) -> tuple[str, str]:
    """What the command of an archived run checks out, and what it runs."""
    program = r"git checkout (\w+) && make env && \.venv/bin/mpt-lml run ([a-z0-9-]+)"
    commit, name = re.fullmatch(program, command).groups()
    return commit, name


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def history() -> set[str]:
    """The commits that led here, where git has them all."""
    try:
        if _git("rev-parse", "--is-shallow-repository").strip() == "true":
            pytest.skip("the clone is shallow: git fetch --unshallow")
        return set(_git("rev-list", "HEAD").split())
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no history: clone the repository with git")


@pytest.fixture(scope="module")
def records() -> dict[str, dict]:
    """The recorded runs by the names of their experiments."""
    paths = sorted((BOOK / "results").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


READING = {"claims": ["C1"], "place": "abstract", "says": "It explains.", "answer": "It may."}


def _write(folder: Path, entries: list[dict], findings: tuple[dict, ...] = ()) -> Path:
    path = folder / "ledger.json"
    content = {"paper": entries, "findings": [_finding(), *findings], "read": [READING]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


# ------------------------------------------------------------------------ the committed ledger


def test_every_claim_of_the_paper_has_an_entry_or_a_line():
    assert {
        claim for each in (*COMMITTED.paper, *COMMITTED.read) for claim in each.claims
    } == CLAIMS
    assert REQUIRED - ENTRIES.keys() == set()


def test_published_is_what_the_paper_prints_and_nothing_else():
    assert {e.id: e.published for e in COMMITTED.paper if e.published is not None} == PRINTED


def test_the_printed_digits_of_the_tables_are_the_margin():
    for name in (name for name in PRINTED if name.startswith("table-") and "rerun" not in name):
        rule = ENTRIES[name].rule
        assert (rule["test"], rule["margin"]) == ("printed", 0.005), name


def test_no_two_entries_share_a_measurement():
    """With its error: a mean rank correlation of four laws and five seeds is a multiple of 0.04.

    Two errors of rounding, which are small multiples of 2⁻⁵², may be the same by chance.
    """
    measured = [
        ((e.measured, e.standard_error), e.id)
        for e in (*COMMITTED.paper, *COMMITTED.findings)
        if e.measured is not None and abs(e.measured) > 1e-9
    ]
    numbers = [number for number, _ in measured]
    assert [(n, name) for n, name in measured if numbers.count(n) > 1] == []


def test_every_finding_has_its_number():
    assert [entry.id for entry in COMMITTED.findings if entry.measured is None] == []


def test_chapters_exist():
    for chapter in {entry.chapter for entry in (*COMMITTED.paper, *COMMITTED.findings)}:
        assert (ROOT / f"{chapter}.md").is_file(), chapter


def test_commands_name_experiments_that_exist():
    from experiments import experiment

    for entry in (*COMMITTED.paper, *COMMITTED.findings):
        name = entry.command.removeprefix("python -m experiments run ")
        assert name in experiment.names(), entry.id


def test_the_record_of_an_experiment_that_left_says_how_to_run_it(records):
    from experiments import experiment

    archived = {name: record["rerun"] for name, record in records.items() if "rerun" in record}
    assert {name for name in records if name not in experiment.names()} == archived.keys()
    for name, command in archived.items():
        _, named = _commit_and_experiment(command)
        assert named == name


def test_a_commit_that_a_record_names_is_of_this_history_and_has_the_experiment(history, records):
    of_commit = defaultdict(set)
    for record in records.values():
        if "rerun" in record:
            commit, name = _commit_and_experiment(record["rerun"])
            of_commit[commit].add(name)
    assert of_commit
    for commit, names in of_commit.items():
        assert any(each.startswith(commit) for each in history), commit
        sources = _git("grep", "-hE", r"name=\"[a-z0-9-]+\"", commit, "--", "src")
        assert names - set(re.findall(r'name="([a-z0-9-]+)"', sources)) == set()


def test_every_recorded_run_names_a_clean_tree_a_date_and_what_it_depended_on(records):
    for name, record in records.items():
        origin = record["provenance"]
        assert re.fullmatch("[0-9a-f]{40}", origin["commit"]), (name, origin["commit"])
        if "undated" in record.get("history", []):
            continue  # recorded before a run noted its date and so many versions
        assert re.fullmatch(r"2\d{3}-\d\d-\d\d", origin["date"]), name
        assert {"torch", "numpy", "transformers", "tokenizers"} <= origin["versions"].keys()


def test_every_recorded_run_names_a_commit_of_this_history(records, history):
    for name, record in records.items():
        assert record["provenance"]["commit"] in history, name


def test_records_are_written_as_the_runs_write_them(records, tmp_path):
    from experiments.records import write_json

    for name, record in records.items():
        write_json(tmp_path / "again.json", record)
        stored = (BOOK / "results" / f"{name}.json").read_bytes()
        assert stored == (tmp_path / "again.json").read_bytes(), name


def test_the_file_is_written_as_the_runs_write_it(tmp_path):
    from experiments.records import write_json

    write_json(tmp_path / "again.json", json.loads(LEDGER.read_text(encoding="utf-8")))
    assert LEDGER.read_bytes() == (tmp_path / "again.json").read_bytes()


# ------------------------------------------------------------------------------ broken ledgers

PRINTS = {"test": "printed", "margin": 0.005, "otherwise": "corrected"}
WIDE = {"test": "equivalent", "margin": 0.5, "otherwise": "refuted"}
WAITS = {"outcome": "the other number", "value": 0.5}
BROKEN = {
    "an unknown verdict": ({"verdict": "probably"}, "'probably' is not one of"),
    "an unknown kind": ({"kind": "rumor"}, "'rumor' is not one of"),
    "a number typed as text": ({"published": "-60.34"}, "'-60.34' is not of type"),
    "a truth value for a number": ({"measured": True}, "True is not of type"),
    "a negative error": ({"standard_error": -0.1}, "-0.1 is less than the minimum"),
    "a margin of nothing": ({"rule": PRINTS | {"margin": 0}}, "is not valid under any"),
    "an unknown test": ({"rule": {"test": "feel", "otherwise": "refuted"}}, "is not valid under"),
    "a verdict without a run": ({"measured": None}, "None is not of type 'number'"),
    "a verdict without a rule": ({"rule": None}, "None is not of type 'object'"),
    "a measured entry that waits for weights": (
        {"verdict": "needs-weights"},
        "1e-12 is not of type 'null'",
    ),
    "a confirmed miss": (
        {"rule": PRINTS, "published": -60.34, "measured": -60.4},
        "its rule says 'corrected'",
    ),
    "a confirmed large error": ({"measured": 1e-3}, "its rule says 'refuted'"),
    "a noisy run that confirms": ({"standard_error": 1.0}, "its rule says 'undecided'"),
    "an illustration by a rule": ({"verdict": "illustration"}, "is not of type 'null'"),
    "a rule of an unknown day": ({"rule_known": "perhaps"}, "'perhaps' is not one of"),
    "a rule of no day": ({"rule_known": None}, "None is not of type 'string'"),
    "a rule that need not reject": ({"would_reject": None}, "None is not of type 'object'"),
    "a rule that confirms what it should reject": (
        {"would_reject": {"outcome": "rounding", "value": 1e-13}},
        "would_reject is 1e-13, of which the rule says 'confirmed'",
    ),
    "a rule that leaves open what it should reject": (
        {"would_reject": {"outcome": "another entry", "entry": "rate"}, "rule": WIDE},
        "would_reject is -0.5, of which the rule says 'undecided'",
    ),
    "a rejected outcome that nobody measured": (
        {"would_reject": {"outcome": "another entry", "entry": "eq-99"}},
        "would_reject names 'eq-99', which is not measured",
    ),
    "a group that nobody knows": ({"group": "typos"}, "'typos' is not one of"),
    "an empty statement": ({"says": " "}, "does not match"),
    "a chapter that is no docname": ({"chapter": "05"}, "'05' does not match"),
    "a command that is none": ({"command": "make it so"}, "'make it so' does not match"),
    "a command of an archived run": (
        {"command": "git checkout 0123456 && make env && .venv/bin/mpt-lml run identity"},
        "mpt-lml run identity' does not match",
    ),
    "an id that is no id": ({"id": "Eq. 1"}, "'Eq. 1' does not match"),
    "a claim that is none": ({"claims": ["X1"]}, "'X1' does not match"),
    "a key that nobody knows": ({"measured_by": 1.0}, "'measured_by' was unexpected"),
}


@pytest.mark.parametrize("changes, message", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_entry_is_refused_by_name(tmp_path, changes, message):
    path = _write(tmp_path, [_entry(id="eq-0"), _entry(**changes)])
    with pytest.raises(ExtensionError, match=re.escape(message)) as caught:
        ledger.read_ledger(path)
    assert str(path) in str(caught.value)
    assert repr(changes.get("id", "eq-1")) in str(caught.value)


def test_an_outcome_that_waits_for_its_run_rejects_nothing(tmp_path):
    named = {"would_reject": {"outcome": "a run to come", "entry": "later"}}
    path = _write(tmp_path, [_entry(**named)], (_finding(id="later", measured=None),))
    with pytest.raises(ExtensionError, match="would_reject names 'later', which is not measured"):
        ledger.read_ledger(path)


def test_a_number_that_is_none_is_refused(tmp_path):
    with pytest.raises(ExtensionError, match="not JSON compliant"):
        ledger.read_ledger(_write(tmp_path, [_entry(measured=float("nan"))]))


def test_a_missing_key_is_refused(tmp_path):
    entry = _entry()
    del entry["unit"]
    with pytest.raises(ExtensionError, match="'eq-1': .*'unit' is a required property"):
        ledger.read_ledger(_write(tmp_path, [entry]))


def test_an_id_that_stands_twice_is_refused(tmp_path):
    with pytest.raises(ExtensionError, match="'eq-1': the id stands twice"):
        ledger.read_ledger(_write(tmp_path, [_entry(), _entry()]))
    with pytest.raises(ExtensionError, match="'eq-1': the id stands twice"):
        ledger.read_ledger(_write(tmp_path, [_entry()], (_finding(id="eq-1"),)))


def test_a_file_that_is_not_json_is_refused(tmp_path):
    path = tmp_path / "ledger.json"
    path.write_text("[{", encoding="utf-8")
    with pytest.raises(ExtensionError, match="is not JSON"):
        ledger.read_ledger(path)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ExtensionError, match="is not of type 'object'"):
        ledger.read_ledger(path)


def test_a_stored_verdict_that_its_rule_does_not_make_is_seen(tmp_path):
    content = json.loads(LEDGER.read_text(encoding="utf-8"))
    other = {"confirmed": "refuted", "corrected": "confirmed", "refuted": "corrected"}
    decided = [e for e in content["paper"] if e["verdict"] in other]
    for name in [e["id"] for e in decided][::5]:
        broken = deepcopy(content)
        entry = next(e for e in broken["paper"] if e["id"] == name)
        entry["verdict"] = other[entry["verdict"]]
        path = tmp_path / "ledger.json"
        path.write_text(json.dumps(broken), encoding="utf-8")
        with pytest.raises(ExtensionError, match=re.escape(repr(name))):
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
        ".. ledger::\n\n.. ledger-summary::\n\n.. ledger-findings::\n\n"
        ".. ledger-read::\n\n.. stored-results::\n"
    )

    def build() -> SimpleNamespace:
        """As ``python -m sphinx`` does, without starting and importing torch each time."""
        out, said = tmp_path / "_build", io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(said):
            code = build_main(["-q", "-W", "-n", str(tmp_path), str(out)])
        return SimpleNamespace(returncode=code, stderr=said.getvalue())

    return tmp_path, build


def _text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_the_table_shows_numbers_verdicts_and_links(small_site):
    folder, build = small_site
    printed = {"published": -60.34, "rule": PRINTS, "kind": "table"}
    entry = _entry(id="table-1/true", measured=-60.3372, standard_error=0.0012, **printed)
    _write(folder / "book", [entry])
    result = build()
    assert result.returncode == 0, result.stderr
    html = (folder / "_build" / "book" / "map.html").read_text(encoding="utf-8")
    text = _text(html)
    assert "−60.34" in text
    assert "−60.3372 ± 0.0012 nats" in text
    assert "Holds within 0.005 of the printed digits, fails outside." in text
    assert "It rejects a table with a slip: 0.5 nats. Rule written after the number" in text
    assert (
        "The error falls like one over the root. python -m experiments run identity −0.500 ± 0.010"
        in text
    )
    assert "abstract It explains. It may." in text
    assert 'class="verdict verdict-holds-as-printed"' in html
    assert 'id="ledger-table-1-true"' in html
    table = html[html.index("<table") : html.index("ledger-summary")]
    assert 'href="01-first.html"' in table
    _write(folder / "book", [entry, _entry(chapter="book/12-nowhere")])
    assert "12-nowhere" in build().stderr


def test_the_page_says_how_tight_a_rule_is_and_counts_what_is_one_thing(small_site):
    folder, build = small_site
    rule = {"test": "equivalent", "margin": 30, "replicates": 5, "otherwise": "refuted"}
    similar = {"measured": -2.93046, "standard_error": 1.71929, "rule": rule}
    fashion = {"would_reject": {"outcome": "other images", "entry": "rate"}}
    rule = {"test": "equivalent", "margin": 0.1, "otherwise": "corrected"}
    slip = {"measured": 0.5, "rule": rule, "verdict": "corrected"}
    nothing = {"rule": None, "rule_known": None, "would_reject": None}
    entries = [
        _entry(id="similar", **similar, **fashion, rule_known="partly"),
        _entry(id="slip", **slip, group="index", rule_known="before"),
        _entry(id="slip-again", **slip, group="index", rule_known="before"),
        _entry(id="theorem", verdict="illustration", **nothing),
    ]
    finding = _finding(id="other", measured=1.0)
    path = _write(folder / "book", entries, (finding,))
    content = json.loads(path.read_text(encoding="utf-8"))
    content["findings"][0] |= {"measured": -87.0, "standard_error": 8.6}
    path.write_text(json.dumps(content), encoding="utf-8")
    result = build()
    assert result.returncode == 0, result.stderr
    text = _text((folder / "_build" / "book" / "map.html").read_text(encoding="utf-8"))
    # By Student's t with four degrees of freedom: 2.93046 + 4.60409 · 1.71929.
    assert "The smallest margin with which it would hold: 10.8." in text
    assert "It rejects other images: −87.0 ± 8.6. Rule written before the number was" in text
    meanings, groups = ledger.MEANINGS, ledger.GROUPS
    assert f"holds as printed {meanings['holds as printed']} 1 1 0 1 0" in text
    assert f"misprint {meanings['misprint']} 1 2 ({groups['index']}: 2) 1 0 0" in text
    assert f"illustration {meanings['illustration']} 1 1 0 0 0" in text


def test_a_number_for_a_reader():
    numbers = {
        -0.25: "−0.25",
        0.00123: "0.00123",
        -0.00025: "−2.5 × 10⁻⁴",
        1e-12: "10⁻¹²",
        3.25e7: "3.25 × 10⁷",
        None: "–",
    }
    assert {number: ledger.format_number(number) for number in numbers} == numbers


def test_numbers_in_sentences(small_site):
    folder, build = small_site
    conf = folder / "conf.py"
    conf.write_text(conf.read_text().replace("['ledger']", "['ledger', 'front_door']"))
    waits = {"measured": None, "verdict": "needs-weights", "would_reject": WAITS}
    finding = _finding(id="later", measured=None)
    entries = [_entry(), _entry(id="eq-2"), _entry(id="eq-3", **waits)]
    _write(folder / "book", entries, (finding,))
    roles = ("measured:`rate", "measured:`rate %", "about:`rate", "about:`rate %", "judged:`run")
    says = ", ".join(f":{role}`" for role in (*roles, "judged:`holds as printed"))
    page = folder / "book" / "map.rst"
    page.write_text(f"Map\n===\n\n.. toctree::\n\n   01-first\n\nHere {says}.\n")
    result = build()
    assert result.returncode == 0, result.stderr
    text = _text((folder / "_build" / "book" / "map.html").read_text(encoding="utf-8"))
    # Of −0.5 ± 0.01.
    assert "Here −0.500 ± 0.010, −50.0 ± 1.0 %, −0.50, −50 %, 2, 2." in text


def test_a_table_of_one_verdict_leaves_the_others_out(small_site):
    folder, build = small_site
    rule = {"test": "equivalent", "margin": 0.1, "otherwise": "corrected"}
    wrong = {"measured": 0.5, "rule": rule, "verdict": "corrected"}
    _write(
        folder / "book",
        [_entry(), _entry(id="slip", **wrong, group="index"), _entry(id="repair", **wrong)],
    )
    page = folder / "book" / "map.rst"
    for word, shown in (("misprint", "slip"), ("holds after a repair", "repair")):
        table = f".. ledger::\n   :shown: {word}\n"
        page.write_text(f"Map\n===\n\n.. toctree::\n\n   01-first\n\n{table}")
        assert build().returncode == 0
        html = (folder / "_build" / "book" / "map.html").read_text(encoding="utf-8")
        assert re.findall('id="ledger-([a-z-]+)"', html) == [shown]


def test_a_page_says_what_a_verdict_means(small_site):
    folder, build = small_site
    _write(folder / "book", [_entry()])
    page = folder / "book" / "map.rst"
    page.write_text("Map\n===\n\n.. toctree::\n\n   01-first\n\nIt is :meaning:`misprint`.\n")
    assert build().returncode == 0
    text = _text((folder / "_build" / "book" / "map.html").read_text(encoding="utf-8"))
    assert f"It is {ledger.MEANINGS['misprint']}." in text
    page.write_text(page.read_text().replace("`misprint`", "`corrected`"))
    assert "a verdict is holds as printed, misprint" in build().stderr


def test_the_page_follows_the_file_and_a_broken_file_stops_the_build(small_site):
    folder, build = small_site
    _write(folder / "book", [_entry()])
    assert build().returncode == 0
    page = folder / "_build" / "book" / "map.html"
    assert "Two things are equal" not in page.read_text(encoding="utf-8")

    _write(folder / "book", [_entry(says="Two things are equal.")])
    assert build().returncode == 0
    assert "Two things are equal" in page.read_text(encoding="utf-8")

    path = _write(folder / "book", [_entry(verdict="certain")])
    result = build()
    assert result.returncode != 0
    assert path.name in result.stderr
    assert "'eq-1'" in result.stderr


def test_a_finding_of_an_archived_run_is_printed_from_its_record(small_site):
    folder, build = small_site
    _write(folder / "book", [_entry()])
    results = folder / "book" / "results"
    results.mkdir()
    finding = {"measured": -87.04, "standard_error": 8.61}
    record = json.dumps({"findings": {"images/other": finding}})
    (results / "old-run.json").write_text(record, encoding="utf-8")
    page = folder / "book" / "map.rst"
    for name, is_there in (("images/other", True), ("images/none", False)):
        page.write_text(
            f"Map\n===\n\n.. toctree::\n\n   01-first\n\nIt is :recorded:`old-run {name}`.\n"
        )
        result = build()
        assert (result.returncode == 0) == is_there, result.stderr
        if is_there:
            text = _text((folder / "_build" / "book" / "map.html").read_text(encoding="utf-8"))
            assert "It is −87.0 ± 8.6." in text
        else:
            assert "no finding 'images/none' in book/results/old-run.json" in result.stderr


def test_a_recorded_run_is_listed_with_where_it_came_from(small_site):
    folder, build = small_site
    _write(folder / "book", [_entry()])
    (folder / "book" / "results").mkdir()
    origin = {
        "command": "python -m experiments run table-1",
        "commit": "0123456789abcdef+changes",
        "versions": {"torch": "2.0.0", "numpy": versions()["numpy"]},
        "hardware": {"cpu": "A processor", "threads": 2},
    }
    record = folder / "book" / "results" / "table-1.json"
    record.write_text(json.dumps({"provenance": origin}), encoding="utf-8")
    result = build()
    assert result.returncode == 0, result.stderr
    text = _text((folder / "_build" / "book" / "map.html").read_text(encoding="utf-8"))
    for piece in ("run table-1", "torch 2.0.0", "A processor, threads: 2", "012345678"):
        assert piece in text
    assert "numpy" not in text  # the same as here
    assert "begun earlier" not in text

    again = "git checkout 0123456 && make env && .venv/bin/mpt-lml run table-1"
    history = {"history": ["begun earlier", "pruned"]}
    later = {"provenance": origin, "rerun": again, "seconds": 90.0} | history
    record.write_text(json.dumps(later), encoding="utf-8")
    result = build()
    assert result.returncode == 0, result.stderr
    text = _text((folder / "_build" / "book" / "map.html").read_text(encoding="utf-8"))
    assert again.replace("&", "&amp;") in text
    assert "012345678 begun earlier, pruned" in text and " 1.5 min " in text

    record.write_text("{}", encoding="utf-8")
    result = build()
    assert result.returncode != 0
    assert "table-1.json" in result.stderr


# -------------------------------------------------------------------------------- the sources


LINK = re.compile(r"^ *(?:doi|url|eprint) *= *\{\S+\}", re.M)


def without_link(bibliography: str) -> list[str]:
    """The keys of entries that a reader cannot follow: without DOI, address or preprint."""
    entries = re.findall(r"^@\w+\{([^,]+),(.*?)^\}", bibliography, re.M | re.S)
    return [key for key, fields in entries if not LINK.search(fields)]


def test_every_entry_of_the_bibliography_has_a_link():
    assert without_link((BOOK / "references.bib").read_text("utf-8")) == []


def test_an_entry_without_a_link_is_found():
    entry = "@book{nobody2026,\n  title = {Nothing},\n  year = {2026},\n}\n"
    assert without_link(entry) == ["nobody2026"]
    assert without_link(entry.replace("  year", "  doi = {},\n  year")) == ["nobody2026"]
    assert without_link(entry.replace("  year", "  doi = {10.1/2},\n  year")) == []


def test_every_citation_has_an_entry_in_the_bibliography():
    keys = set(re.findall(r"^@\w+\{([^,]+),", (BOOK / "references.bib").read_text("utf-8"), re.M))
    assert "morenomunoz2023masked" in keys
    for page in sorted(BOOK.glob("*.md")):
        cited = re.findall(r"\{cite:[pt]\}`([^`]+)`", page.read_text(encoding="utf-8"))
        missing = {key.strip() for group in cited for key in group.split(",")} - keys
        assert not missing, f"{page.name} cites {sorted(missing)}"
