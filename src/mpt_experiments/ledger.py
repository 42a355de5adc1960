"""The ledger: what the paper prints, what this book finds, and the one rule that judges."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mpt_experiments.experiment import Finding
from mpt_lml.files import book_file, read_json, write_json
from mpt_lml.verdicts import interval


def location() -> Path:
    """The ledger of the checkout, else the copy that the installed package carries."""
    return book_file("ledger.json")


def decide(
    rule: Mapping[str, Any],
    measured: float,
    standard_error: float | None = None,
    published: float | None = None,
) -> str:
    """The verdict of ``rule`` on a measurement, the same for runs, terminal and pages.

    ``within``: the 99 % interval has to lie within ``margin`` of ``target`` (else of ``published``,
    else of zero). ``above`` and ``below``: on that side of ``bound``. An interval that lies wholly
    elsewhere gives the rule's ``otherwise``, one that crosses leaves the entry *undecided*.
    ``printed``: the number itself, whatever its error, within ``margin`` of the printed digits.
    ``p-value``: a number below ``reject`` gives ``otherwise``, and no number confirms.
    """
    test = rule["test"]
    if test == "p-value":
        return rule["otherwise"] if measured < rule["reject"] else "undecided"
    error = None if test == "printed" else standard_error
    low, high = interval(measured, error, rule.get("replicates"))
    if test in ("within", "printed"):
        target = rule.get("target", published or 0.0)
        reach = rule["margin"] * (1.0 + 1e-9)  # a difference of decimals is not exact in binary
        first, last = target - reach, target + reach
        inside, outside = first <= low and high <= last, high < first or low > last
    elif test == "above":
        inside, outside = low > rule["bound"], high <= rule["bound"]
    elif test == "below":
        inside, outside = high < rule["bound"], low >= rule["bound"]
    else:
        raise ValueError(f"a rule's test is within, printed, above, below, p-value: {test!r}.")
    return "confirmed" if inside else rule["otherwise"] if outside else "undecided"


def smallest_margin(
    rule: Mapping[str, Any],
    measured: float,
    standard_error: float | None = None,
    published: float | None = None,
) -> float | None:
    """The smallest margin with which a rule of equivalence would confirm; of other rules None.

    It is the distance of the far end of the 99 % interval from the target, in the measurement's unit.

    >>> smallest_margin({"test": "within", "margin": 22.5, "replicates": 5}, -2.9, 1.7)
    10.72697...
    """
    if rule["test"] != "within":
        return None
    target = rule.get("target", published or 0.0)
    low, high = interval(measured, standard_error, rule.get("replicates"))
    return max(abs(low - target), abs(high - target))


def in_words(rule: Mapping[str, Any] | None, published: float | None = None, unit: str = "") -> str:
    """``rule`` as a sentence for a reader."""
    if rule is None:
        return "No run decides this entry."
    otherwise, unit = rule["otherwise"], f" {unit}" if unit else ""
    if rule["test"] == "p-value":
        return f"{otherwise.capitalize()} if p < {rule['reject']:g}; a test confirms nothing."
    if rule["test"] == "printed":
        return f"Confirmed within {rule['margin']:g} of the printed digits, {otherwise} outside."
    if rule["test"] == "within":
        around = "the published value" if published is not None else "zero"
        around = f"{rule['target']:g}" if "target" in rule else around
        region = f"within {rule['margin']:g}{unit} of {around}"
    else:
        region = f"{rule['test']} {rule['bound']:g}{unit}"
    seeds = f" (t, {rule['replicates']} replicates)" if "replicates" in rule else ""
    return f"Confirmed {region}, {otherwise} outside, by the 99 % interval{seeds}."


def entries(path: Path) -> list[dict[str, Any]]:
    """What a run can measure: the paper's entries, then this book's findings."""
    content = read_json(path)
    return [*content["paper"], *content["findings"]]


def published(names: Iterable[str]) -> list[float]:
    """What the paper prints for entries of these ``names``."""
    printed = _published()
    return [printed[name] for name in names]


def _published() -> dict[str, Any]:
    return {entry["id"]: entry["published"] for entry in read_json(location())["paper"]}


def cut_digits(findings: Mapping[str, Finding]) -> int:
    """How many of the printed numbers are the measured ones cut, and not rounded, to two digits.

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
    """Write ``findings`` into the ledger at ``path`` (atomically) and return the changed entries.

    Raises ``ValueError`` for a finding that the ledger has no entry for.
    """
    content = read_json(path)
    found = {entry["id"]: entry for entry in [*content["paper"], *content["findings"]]}
    unknown = sorted(set(findings) - set(found))
    if unknown:
        raise ValueError(f"{path} has no entry for {', '.join(unknown)}.")
    for name, each in findings.items():
        entry = found[name]
        entry["measured"] = _significant(each.measured)
        entry["standard_error"] = _significant(each.standard_error)
        if entry.get("rule") is not None:
            numbers = (entry["measured"], entry["standard_error"], entry["published"])
            entry["verdict"] = decide(entry["rule"], *numbers)
    write_json(path, content)
    return [found[name] for name in findings]


def compare(command: str | None, path: Path) -> list[dict[str, Any]]:
    """The ledger's entries that ``command`` writes (``None``: all of them)."""
    wanted = None if command is None else command.split()
    return [e for e in entries(path) if wanted in (None, e["command"].split())]


def _significant(value: float | None) -> float | None:
    """Six significant digits: what is reproducible across machines, and more than is printed."""
    return None if value is None else float(f"{value:.6g}")
