"""The ledger: what the paper prints, what this book finds, and the one rule that judges."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.records import write_json
from mpt_lml import verdicts
from mpt_lml.files import book_file, read_json
from mpt_lml.recorded import Finding

MEANINGS = {
    "holds as printed": "by the rule that stands with it",
    "misprint": "a slip of the pen, such as a digit, an index or a sign; put right, it holds",
    "holds after a repair": "not as printed, but with a condition, a reason or a setting changed, "
    "as the chapter proves or runs",
    "undecided": "it was run, and the error bars leave it open",
    "does not hold": "no repair that we know of makes it hold; the chapter shows where it fails",
    "illustration": "a theorem settles it; the run shows how large it is",
    "not reproducible": "settings or code are not published",
    "needs weights": "it needs a model that has to be downloaded first",
}
"""Verdicts as readers see them, and their meanings; the first five judge, from best to worst."""

JUDGED = tuple(MEANINGS)[:5]
"""Verdicts of :data:`MEANINGS` that a run and its rule decide."""

MISPRINTS = ("index", "sign", "table-1", "table-2")
"""The groups of entries whose repair is a slip of the pen."""

_WORDS = {
    "confirmed": "holds as printed",
    "corrected": "holds after a repair",
    "refuted": "does not hold",
}
_KNOWN = (None, "before", "partly", "after")  # when a rule was written, the worst last


def location() -> Path:
    """The ledger of this checkout."""
    return book_file("ledger.json")


def decide(
    rule: Mapping[str, Any],
    measured: float,
    standard_error: float | None = None,
    published: float | None = None,
) -> str:
    """The verdict of a rule on a measurement, the same for runs, terminal and pages.

    Every test but two looks at the 99 % interval of the measurement, as :mod:`mpt_lml.verdicts` does:

    * ``equivalent``: it has to lie within ``margin`` of ``target`` (else of ``published``, else of
      zero);
    * ``exceeds``, ``falls-below``: it has to lie on that side of ``bound``;
    * ``printed``: the number itself, whatever its error, within ``margin`` of the printed digits;
    * ``p-value``: a number below ``reject`` gives ``otherwise``, and no number confirms.

    Args:
        rule: An entry's rule: its ``test``, what belongs to it, and the verdict ``otherwise``.
            ``replicates`` are those behind the standard error, where it takes Student's t.
        measured: In the entry's unit.
        standard_error: Of it; ``None`` for an exact number.
        published: What the paper prints, if anything.

    Returns:
        "confirmed"; ``otherwise`` where the interval lies wholly elsewhere; "undecided" where it
        crosses.
    """
    test = rule["test"]
    if test == "p-value":
        return rule["otherwise"] if measured < rule["reject"] else "undecided"
    error = None if test == "printed" else standard_error
    sample = (measured, error, rule.get("replicates"))
    low, high = verdicts.interval(*sample)
    if test in ("equivalent", "printed"):
        target = _target(rule, published)
        margin = rule["margin"] * (1.0 + 1e-9)  # a difference of decimals is not exact in binary
        holds = verdicts.equivalent(*sample, margin=margin, at=target)
        fails = high < target - margin or low > target + margin
    elif test == "exceeds":
        holds = verdicts.exceeds(*sample, at=rule["bound"])
        fails = high <= rule["bound"]
    elif test == "falls-below":
        # On one side, and that is the lower one: ``verdicts`` has a word for the upper one only.
        holds = verdicts.apart(*sample, at=rule["bound"]) and measured < rule["bound"]
        fails = low >= rule["bound"]
    else:
        tests = "equivalent, printed, exceeds, falls-below, p-value"
        raise ValueError(f"a rule's test is {tests}: {test!r}.")
    if holds:
        return "confirmed"
    return rule["otherwise"] if fails else "undecided"


def shown(entry: Mapping[str, Any]) -> str:
    """The verdict of an entry of the paper as readers see it: one of :data:`MEANINGS`.

    >>> shown({"verdict": "corrected", "group": "index"})
    'misprint'
    >>> shown({"verdict": "corrected", "group": ""})
    'holds after a repair'
    """
    if entry["verdict"] == "corrected" and entry["group"] in MISPRINTS:
        return "misprint"
    verdict: str = entry["verdict"]
    return _WORDS.get(verdict, verdict.replace("-", " "))


def statements(entries: Iterable[Mapping[str, Any]]) -> list[tuple[str, str | None]]:
    """Entries of the paper with each group counted once.

    Args:
        entries: With their ``id``, ``verdict``, ``group`` and ``rule_known``.

    Returns:
        For each group, and for each entry of no group, what is shown of its worst verdict, and when
        the latest of its rules was written, in the order of their first entries.
    """
    members = defaultdict(list)
    for entry in entries:
        alone = "" if entry["group"] else entry["id"]
        members[entry["group"], alone].append(entry)
    severity = list(MEANINGS).index
    return [
        (
            max(map(shown, same), key=severity),
            max((e["rule_known"] for e in same), key=_KNOWN.index),
        )
        for same in members.values()
    ]


def _target(rule: Mapping[str, Any], published: float | None) -> float:
    """The middle of a rule of equivalence."""
    target: float = rule.get("target", published or 0.0)
    return target


def smallest_margin(
    rule: Mapping[str, Any],
    measured: float,
    standard_error: float | None = None,
    published: float | None = None,
) -> float | None:
    """The smallest margin with which a rule of equivalence would confirm; of other rules None.

    It is the distance of the far end of the 99 % interval from the target, in the measurement's unit.
    The arguments are those of :func:`decide`.

    >>> smallest_margin({"test": "equivalent", "margin": 22.5, "replicates": 5}, -2.9, 1.7)
    10.72697...
    """
    if rule["test"] != "equivalent":
        return None
    target = _target(rule, published)
    low, high = verdicts.interval(measured, standard_error, rule.get("replicates"))
    return max(abs(low - target), abs(high - target))


def in_words(rule: Mapping[str, Any] | None, published: float | None = None, unit: str = "") -> str:
    """``rule`` as a sentence for a reader; ``unit`` is that of the measurement."""
    if rule is None:
        return "No run decides this entry."
    if rule["test"] == "p-value":
        return f"Fails if p < {rule['reject']:g}; a test confirms nothing."
    if rule["test"] == "printed":
        return f"Holds within {rule['margin']:g} of the printed digits, fails outside."
    region = _region_in_words(rule, published, f" {unit}" if unit else "")
    student = f" (t, {rule['replicates']} replicates)" if "replicates" in rule else ""
    return f"Holds {region}, fails outside, by the 99 % interval{student}."


def _region_in_words(rule: Mapping[str, Any], published: float | None, unit: str) -> str:
    """Region in which the interval of a measurement has to lie, in words."""
    if rule["test"] != "equivalent":
        side = "above" if rule["test"] == "exceeds" else "below"
        return f"{side} {rule['bound']:g}{unit}"
    if "target" in rule:
        middle = f"{rule['target']:g}"
    else:
        middle = "zero" if published is None else "the published value"
    return f"within {rule['margin']:g}{unit} of {middle}"


def entries(path: Path) -> list[dict[str, Any]]:
    """Entries that a run can measure: the paper's, then this book's findings."""
    content = read_json(path)
    return [*content["paper"], *content["findings"]]


def published(names: Iterable[str]) -> list[float]:
    """Printed numbers of the paper for entries of these ``names``."""
    printed = _published()
    return [printed[name] for name in names]


def _published() -> dict[str, Any]:
    return {entry["id"]: entry["published"] for entry in read_json(location())["paper"]}


def cut_digits(findings: Mapping[str, Finding]) -> int:
    """Number of findings whose printed number is the measured one cut, and not rounded, to two digits.

    5e-6 is added: float32 data may differ in a last bit between processors, and one entry of Table 1,
    0.030001, is that close to its digit.
    """
    printed = _published()
    count = 0
    for name, finding in findings.items():
        if name not in printed:
            continue  # a run of other settings has numbers that the paper has not
        value = finding.measured
        digits = math.trunc(100.0 * (value + math.copysign(5e-6, value))) / 100.0
        if printed[name] == digits and digits != round(value, 2):
            count += 1
    return count


def record(findings: Mapping[str, Finding], path: Path) -> list[dict[str, Any]]:
    """Write findings and their verdicts into the ledger (atomically).

    Args:
        findings: By the id of their entry.
        path: The ledger.

    Returns:
        The changed entries.

    Raises:
        ValueError: For a finding that the ledger has no entry for.
    """
    content = read_json(path)
    by_id = {entry["id"]: entry for entry in [*content["paper"], *content["findings"]]}
    unknown = sorted(set(findings) - set(by_id))
    if unknown:
        raise ValueError(f"{path} has no entry for {', '.join(unknown)}.")
    for name, finding in findings.items():
        entry = by_id[name]
        entry["measured"] = _significant(finding.measured)
        entry["standard_error"] = _significant(finding.standard_error)
        if entry.get("rule") is not None:
            entry["verdict"] = decide(
                entry["rule"], entry["measured"], entry["standard_error"], entry["published"]
            )
    write_json(path, content)
    return [by_id[name] for name in findings]


def compare(name: str | None, path: Path) -> list[dict[str, Any]]:
    """The entries of the ledger at ``path`` that the experiment ``name`` measured (``None``: all).

    The command of an entry ends in the name, as in ``python -m experiments run table-1``.
    """
    if name is None:
        return entries(path)
    return [entry for entry in entries(path) if entry["command"].split()[-1] == name]


def _significant(value: float | None) -> float | None:
    """Six significant digits: what is reproducible across machines, and more than is printed."""
    return None if value is None else float(f"{value:.6g}")
