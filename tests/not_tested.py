"""What the tests left out on this machine, in words: the last thing that `make test` prints.

.venv/bin/python tests/not_tested.py _build/not-tested.jsonl [notebooks that were executed again]

tests/conftest.py writes the file, one line for each reason and run: the reason, how many tests it
kept from running, and the files of which nothing could be read.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
APART = """\
Not part of `make test`: the book as a PDF (make pdf), a chapter as Colab runs it (make colab), the
package as it is published (make release) and its numbers beside those of other programs (make peers)."""


def sentences(lines: Iterable[str], not_executed: Iterable[str] = ()) -> str:
    """The last words of `make test`.

    Args:
        lines: Those of the file.
        not_executed: Names of the notebooks that were not executed a second time.
    """
    counts: Counter[str] = Counter()
    files: dict[str, set[str]] = {}
    for line in lines:
        reason, number, names = json.loads(line)
        counts[reason] += number
        files.setdefault(reason, set()).update(names)
    text = ["Every test could run on this machine."]
    if counts:
        text = ["Not tested on this machine:"]
        text += [
            f"  * {number_of_tests(counts[key], files[key])}: {key}." for key in sorted(counts)
        ]
    pages = sorted(name.removeprefix("note-").partition("-")[0].upper() for name in not_executed)
    if pages:
        text.append(
            f"Not executed a second time, as it was not their turn: {', '.join(pages)} (make nbval)."
        )
    return "\n".join([*text, APART])


def number_of_tests(count: int, files: set[str]) -> str:
    parts = []
    if count:
        parts.append("1 test" if count == 1 else f"{count} tests")
    if files:
        parts.append("all of " + ", ".join(sorted(files)))
    return " and ".join(parts)


def main(argv: list[str]) -> None:
    path, *executed = map(Path, argv)
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    notebooks = {notebook.name for notebook in ROOT.glob("book/*.ipynb")}
    print(sentences(lines, notebooks - {notebook.name for notebook in executed}))


if __name__ == "__main__":
    main(sys.argv[1:])
