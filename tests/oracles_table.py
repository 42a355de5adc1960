"""Every model with a closed form against 60 digits, the whole grid, as a table: ``make oracles``.

``python tests/oracles_table.py FAMILY ...`` takes some families only, such as oracles_hmm. It exits
with 1 where a number is further off than its precision allows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "helpers"))
import oracles


@dataclass
class Row:
    """What was seen of one family in one precision."""

    largest_size: int = 0
    points: int = 0
    refusals: int = 0
    failures: int = 0
    worst: float = 0.0  # nats a coordinate, inside the floors
    worst_at: str = "-"
    seconds: float = 0.0


def measured_row(rows: dict[tuple[str, str], Row], point: oracles.Point) -> None:
    """Add ``point`` to its row, and say so where it is wrong."""
    row = rows[point.family, str(point.dtype).removeprefix("torch.")]
    start = time.perf_counter()
    try:
        errors = oracles.errors(point)
    except ValueError as refusal:
        errors = {"refused": float("inf")}
        print(f"refused: {point}: {refusal}")
    row.seconds += time.perf_counter() - start
    row.points += 1
    row.largest_size = max(row.largest_size, point.num_features)
    if not errors:
        row.refusals += 1
        return
    wrong = {name: error for name, error in errors.items() if not error <= point.tolerance}
    for name, error in wrong.items():
        print(f"wrong: {point}: {name} by {error:.1e} nats a coordinate")
    row.failures += bool(wrong)
    if point.may_refuse:
        return
    name, error = max(errors.items(), key=lambda item: item[1])
    if error > row.worst:
        row.worst = error
        row.worst_at = f"{point.name}: {name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=oracles.FAMILIES, metavar="FAMILY")
    parser.add_argument("--sample", action="store_true", help="what the unit tests take")
    options = parser.parse_args()
    rows: dict[tuple[str, str], Row] = defaultdict(Row)
    for family in options.families:
        oracles.FAMILIES = (family,)
        start = time.process_time()
        for total, point in enumerate(oracles.points(full_grid=not options.sample), start=1):
            measured_row(rows, point)
            if total % 50 == 0:
                print(f"{family}: {total} points, {time.process_time() - start:.0f} s", flush=True)
    print("| family | precision | largest D | points | worst nats a coordinate | refused | wrong |")
    print("|--|--|--|--|--|--|--|")
    for (family, precision), row in rows.items():
        print(
            f"| {family} | {precision} | {row.largest_size} | {row.points} | {row.worst:.1e} "
            f"({row.worst_at}) | {row.refusals} | {row.failures} |"
        )
    seconds = sum(row.seconds for row in rows.values())
    print(f"{seconds:.0f} s")
    return int(any(row.failures for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
