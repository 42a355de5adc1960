"""The paper-to-book ledger: where it lies, how runs write to it, how measured meets published."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from mpt_lml.experiments.registry import Finding
from mpt_lml.results import read_json, write_json


def checkout() -> Path | None:
    """Root of the repository this package runs from, ``None`` when it was installed elsewhere."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "book" / "ledger.json").is_file() else None


def location() -> Path:
    """The ledger of the checkout, else the copy that the installed package carries."""
    root = checkout()
    if root is not None:
        return root / "book" / "ledger.json"
    return Path(str(resources.files("mpt_lml") / "ledger.json"))


def decide(entry: Mapping[str, Any], found: Finding) -> str:
    """The verdict on ``entry``: the run's own, or ``measured`` against ``published``.

    Without a published number, ``measured`` is an error that has to stay within ``tolerance``. A
    published number whose digits are those of ``measured`` cut instead of rounded is *corrected*.
    """
    if found.verdict is not None:
        return found.verdict
    tolerance = entry["tolerance"]
    if tolerance is None:
        raise ValueError(
            f"ledger entry {entry['id']!r} has no tolerance and its run no verdict: "
            "nothing decides it."
        )
    published = entry["published"] or 0.0
    if abs(found.measured - published) <= tolerance:
        return "confirmed"
    unit = 2.0 * tolerance  # tolerance is half a unit of the last printed digit
    cut = math.trunc(found.measured / unit) * unit
    if entry["published"] is not None and abs(cut - published) < 1e-9 * max(1.0, abs(published)):
        return "corrected"
    return "refuted"


def record(findings: Mapping[str, Finding], path: Path) -> list[dict[str, Any]]:
    """Write ``findings`` into the ledger at ``path`` (atomically) and return the changed entries.

    Raises ``ValueError`` for a finding that the ledger has no entry for.
    """
    content = read_json(path)
    entries = {entry["id"]: entry for entry in content}
    unknown = sorted(set(findings) - set(entries))
    if unknown:
        raise ValueError(f"{path} has no entry for {', '.join(unknown)}.")
    for name, found in findings.items():
        entries[name].update(
            measured=_significant(found.measured),
            standard_error=_significant(found.standard_error),
            verdict=decide(entries[name], found),
        )
    write_json(path, content)
    return [entries[name] for name in findings]


def compare(command: str, path: Path) -> list[dict[str, Any]]:
    """The ledger's entries that ``command`` writes."""
    return [e for e in read_json(path) if e["command"].split() == command.split()]


def _significant(value: float | None) -> float | None:
    """Six significant digits: what is reproducible across machines, and more than is printed."""
    return None if value is None else float(f"{value:.6g}")
