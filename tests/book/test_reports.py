"""Letters to the sources of Note E: their examples print what they say, links lead to them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

BOOK = Path(__file__).resolve().parents[2] / "book"
REPORTS = BOOK / "reports"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\nprints\n\n```text\n(.*?)```", re.S)
LINK = re.compile(r"/blob/main/book/reports/([\w-]+\.md)\)")
LETTERS = sorted(path.name for path in REPORTS.glob("*.md") if path.name != "README.md")


# What readers see who copy each example into a file of its own. They run one after the other in one
# new interpreter, which imports torch once.
RUNNER = """
import contextlib, io, json, sys
printed = []
for letter, source in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(source, letter, "exec"), {"__name__": "__main__"})
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


def run(examples: list[tuple[str, str]]) -> list[str]:
    """What each example prints; one that fails is told with its letter."""
    command, given = [sys.executable, "-c", RUNNER], json.dumps(examples)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_examples_of_the_letters_print_what_they_say() -> None:
    examples = []
    for letter in LETTERS:
        found = EXAMPLE.findall((REPORTS / letter).read_text(encoding="utf-8"))
        assert found, letter
        examples += [(letter, source, printed) for source, printed in found]
    outputs = run([(letter, source) for letter, source, _ in examples])
    for (letter, _, printed), output in zip(examples, outputs, strict=True):
        assert output == printed, letter


def test_the_chapter_and_the_list_lead_to_every_letter() -> None:
    chapter = (BOOK / "note-e-likelihoods-in-the-wild.md").read_text(encoding="utf-8")
    assert sorted(LINK.findall(chapter)) == LETTERS
    overview = (REPORTS / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\(([\w-]+\.md)\)", overview) == LETTERS
