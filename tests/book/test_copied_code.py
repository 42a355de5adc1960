"""What a reader copies from a chapter's page, cell by cell, runs in an empty namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import checks
import pytest
from book_layout import ROOT, Book, Page

CHAPTERS = Book().chapters
TURNS = 11  # two of 22 chapters and notes at a time


def is_in_turn(page: Page) -> bool:
    """Each commit runs two of them; MPT_LML_AGAIN=all, once a week, runs all."""
    if os.environ.get("MPT_LML_AGAIN") == "all":
        return True
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    num_commits = int(counted.stdout or 1)
    return CHAPTERS.index(page) % TURNS == num_commits % TURNS


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.name)
def test_copied_code_runs(page: Page, site: Path, tmp_path: Path) -> None:
    if not is_in_turn(page):
        pytest.skip("runs with another commit, and once a week (MPT_LML_AGAIN=all)")
    html = checks.page(site / f"{page.docname}.html")
    cells = html.xpath("//div[contains(@class, 'cell_input')]//pre")
    code = "\n\n".join(cell.text_content() for cell in cells)
    assert "import torch" in code
    environment = os.environ | {"MPLBACKEND": "Agg", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("MPT_LML_DATA", None)
    ran = subprocess.run(
        [sys.executable, "-"],
        input=code,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
