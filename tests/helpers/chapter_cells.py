"""Cells of a chapter by themselves, in a book that may have recorded one run more."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from jupytext.myst import myst_to_notebook

from experiments.records import as_dict, write_json
from mpt_lml import recorded
from mpt_lml.files import book_file
from mpt_lml.recorded import Outcome

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from cells import run_code


def run_cells(chapter: str, *words: str, **names: Any) -> str:
    """Run a chapter's imports and its cells that hold one of the ``words``.

    Args:
        chapter: the name of its page.
        words: each stands in a cell that is to be run.
        names: what other cells would have defined.

    Returns:
        What they print.
    """
    return _run(chapter, words, names)


def defined_by(chapter: str, *words: str, **names: Any) -> dict[str, Any]:
    """What the same cells of :func:`run_cells` define, by name, beside ``names``."""
    _run(chapter, words, names)
    return names


def _run(chapter: str, words: tuple[str, ...], names: dict[str, Any]) -> str:
    notebook = myst_to_notebook(book_file(f"{chapter}.md").read_text(encoding="utf-8"))
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    chosen = []
    for cell in cells:
        if cell.startswith("# @title Imports") or any(word in cell for word in words):
            chosen.append(cell)
    dtype = torch.get_default_dtype()  # which some chapters set
    try:
        with plt.rc_context():
            return run_code("\n".join(chosen), names)
    finally:
        torch.set_default_dtype(dtype)


def record(name: str, outcome: Outcome, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the book have a record of a run beside those that it has."""
    results = folder / "book" / "results"
    shutil.copytree(book_file("results"), results)
    about = {"config": {}, "seconds": 1.0, "provenance": {}}
    write_json(results / f"{name}.json", about | as_dict(outcome))

    def in_that_book(file: str) -> Path:
        return results.parent / file

    monkeypatch.setattr(recorded, "book_file", in_that_book)
