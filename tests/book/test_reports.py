"""Letters to the sources of Note E: their examples print what they say, links lead to them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"
REPORTS = BOOK / "reports"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\nprints\n\n```text\n(.*?)```", re.S)
LINK = re.compile(r"/blob/main/book/reports/([\w-]+\.md)\)")
LETTERS = sorted(path.name for path in REPORTS.glob("*.md") if path.name != "README.md")


def run(source: str) -> str:
    """What a reader sees who copies the example into a file of its own."""
    command = [sys.executable, "-c", source]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("letter", LETTERS)
def test_the_examples_of_a_letter_print_what_it_says(letter: str) -> None:
    examples = EXAMPLE.findall((REPORTS / letter).read_text(encoding="utf-8"))
    assert examples
    for source, printed in examples:
        assert run(source) == printed


def test_the_chapter_and_the_list_lead_to_every_letter() -> None:
    chapter = (BOOK / "note-e-likelihoods-in-the-wild.md").read_text(encoding="utf-8")
    assert sorted(LINK.findall(chapter)) == LETTERS
    overview = (REPORTS / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\(([\w-]+\.md)\)", overview) == LETTERS
