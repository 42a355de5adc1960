"""One rule judges a finding: what it decides, says and writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import ledger
from experiments.records import write_json
from mpt_lml.files import read_json
from mpt_lml.recorded import Finding

NEAR = {"test": "equivalent", "margin": 1.0, "otherwise": "refuted"}


DIGITS = {"test": "printed", "margin": 0.005, "otherwise": "corrected"}


MORE = {"test": "exceeds", "bound": 0.0, "otherwise": "refuted"}


LESS = {"test": "falls-below", "bound": 0.05, "otherwise": "corrected"}


JOINT = {"test": "p-value", "reject": 0.001, "otherwise": "refuted"}


@pytest.mark.parametrize(
    ("rule", "measured", "error", "published", "verdict"),
    [
        (NEAR, 0.3, 0.1, None, "confirmed"),
        (NEAR, 0.3, 1.0, None, "undecided"),  # noise cannot confirm that two things are alike
        (NEAR, 0.9, 0.1, None, "undecided"),
        (NEAR, 3.0, 0.1, None, "refuted"),
        (NEAR, -3.0, 0.1, None, "refuted"),
        (NEAR, 3.0, 1.0, None, "undecided"),
        (NEAR | {"target": 3.0}, 3.0, 0.1, None, "confirmed"),
        (NEAR | {"target": 3.0}, 3.0, 0.1, -60.34, "confirmed"),
        (NEAR, -60.0, 0.1, -60.34, "confirmed"),
        (NEAR, 0.3, 0.2, None, "confirmed"),
        (NEAR | {"replicates": 5}, 0.3, 0.2, None, "undecided"),  # 4.6, not 2.6, errors of 0.2
        (DIGITS, 0.1162, 0.04, 0.12, "confirmed"),
        (DIGITS, 0.1299, 0.04, 0.12, "corrected"),
        (DIGITS, -60.345, None, -60.34, "confirmed"),
        (MORE, 1.0, 0.1, None, "confirmed"),
        (MORE, 0.1, 0.1, None, "undecided"),
        (MORE, -1.0, 0.1, None, "refuted"),
        (MORE, 0.0, None, None, "refuted"),
        (LESS, 0.008, None, None, "confirmed"),
        (LESS, 0.2, 0.01, None, "corrected"),
        (LESS, 0.05, 0.01, None, "undecided"),
        (LESS, 0.05, None, None, "corrected"),
        (JOINT, 0.9, None, None, "undecided"),
        (JOINT, 1e-4, None, None, "refuted"),
    ],
)
def test_verdicts(
    rule: dict, measured: float, error: float | None, published: float | None, verdict: str
) -> None:
    assert ledger.decide(rule, measured, error, published) == verdict


def test_an_unknown_test_is_an_error() -> None:
    with pytest.raises(ValueError, match="test is equivalent, printed, exceeds, falls-below"):
        ledger.decide({"test": "near", "otherwise": "refuted"}, 0.0)


@pytest.mark.parametrize(
    ("rule", "published", "words"),
    [
        (None, None, "No run decides this entry."),
        (
            NEAR | {"replicates": 5},
            None,
            "Holds within 1 nats of zero, fails outside, by the 99 % interval (t, 5",
        ),
        (NEAR, 2.0, "within 1 nats of the published value"),
        (DIGITS, 2.0, "Holds within 0.005 of the printed digits, fails outside."),
        (MORE, None, "Holds above 0 nats, fails outside"),
        (JOINT, None, "Fails if p < 0.001; a test confirms nothing."),
    ],
)
def test_a_rule_reads_as_a_sentence(rule: dict | None, published: float | None, words: str) -> None:
    assert words in ledger.in_words(rule, published, "nats")


@pytest.mark.parametrize(
    ("verdict", "group", "word"),
    [
        ("confirmed", "", "holds as printed"),
        ("confirmed", "table-1", "holds as printed"),
        ("corrected", "table-1", "misprint"),
        ("corrected", "table-2", "misprint"),
        ("corrected", "index", "misprint"),
        ("corrected", "sign", "misprint"),
        ("corrected", "withdrawn", "holds after a repair"),
        ("corrected", "", "holds after a repair"),
        ("refuted", "flat", "does not hold"),
        ("refuted", "index", "does not hold"),
        ("undecided", "", "undecided"),
        ("not-reproducible", "", "not reproducible"),
        ("needs-weights", "", "needs weights"),
    ],
)
def test_what_readers_see_of_a_verdict(verdict: str, group: str, word: str) -> None:
    assert ledger.shown({"verdict": verdict, "group": group}) == word
    assert word in ledger.MEANINGS


def test_a_group_is_one_statement_with_its_worst_verdict_and_latest_rule() -> None:
    columns = ("id", "verdict", "group", "rule_known")
    rows = [
        ("digit", "confirmed", "table-1", "before"),
        ("alone", "confirmed", "", "partly"),
        ("cut-digit", "corrected", "table-1", "after"),
        ("another", "confirmed", "", "after"),
        ("curve", "refuted", "flat", "after"),
        ("caption", "undecided", "flat", "partly"),
        ("again", "confirmed", "still", "partly"),
        ("and-again", "confirmed", "still", "before"),
        ("theorem", "illustration", "", None),
    ]
    assert ledger.statements(dict(zip(columns, row, strict=True)) for row in rows) == [
        ("misprint", "after"),
        ("holds as printed", "partly"),
        ("holds as printed", "after"),
        ("does not hold", "after"),
        ("holds as printed", "partly"),
        ("illustration", None),
    ]


def test_recording_writes_findings_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    blank = {"measured": None, "standard_error": None, "published": None, "verdict": "undecided"}
    entries = [{"id": name, "rule": NEAR} | blank for name in ("a", "b")]
    finding = {"id": "c", "measured": None, "standard_error": None}
    write_json(path, {"paper": entries, "findings": [finding], "read": []})
    ledger.record({"a": Finding(0.123456789, 0.01), "c": Finding(2.0)}, path)
    content = read_json(path)
    first, second = content["paper"]
    assert (first["measured"], first["standard_error"]) == (0.123457, 0.01)
    assert first["verdict"] == "confirmed"
    assert second == entries[1]
    assert content["findings"] == [finding | {"measured": 2.0}]
    with pytest.raises(ValueError, match="no entry for d"):
        ledger.record({"d": Finding(1.0)}, path)


def test_the_smallest_margin_is_where_a_rule_begins_to_confirm() -> None:
    for measured, error, target in ((-2.9, 1.7, 0.0), (0.4465, 0.005, 0.5), (3.0, None, 3.5)):
        rule = {"test": "equivalent", "target": target, "replicates": 5, "otherwise": "refuted"}
        least = ledger.smallest_margin(rule, measured, error)
        assert least is not None
        for margin, confirms in ((1.001 * least, True), (0.999 * least, False)):
            verdict = ledger.decide(rule | {"margin": margin}, measured, error)
            assert (verdict == "confirmed") == confirms
    assert ledger.smallest_margin(NEAR, -60.3, None, -60.34) == pytest.approx(0.04)
    assert ledger.smallest_margin(MORE, 1.0, 0.1) is None


@pytest.mark.parametrize(
    ("name", "measured", "is_cut"),
    [
        ("table-1/p100-sd", 0.034, 0),  # printed as 0.03 either way
        ("table-1/p100-sd", 0.039, 1),
        ("table-1/p100-sd", 0.039998, 0),  # a last bit may make it 0.04
        ("table-1/true", -60.349, 1),  # printed as -60.34
        ("table-1/true", -60.349998, 0),
    ],
)
def test_digits_are_cut_where_rounding_gives_others(
    name: str, measured: float, is_cut: int
) -> None:
    assert ledger.cut_digits({name: Finding(measured), "no-entry": Finding(measured)}) == is_cut
