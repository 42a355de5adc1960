"""Every cell of the chapters beside an emulated GPU: none stops where tensors of two devices meet.

Once a week. What the cells print is compared elsewhere, as are those that choose a GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from chapter_cells import run_cells
from other_device import OtherDevice
from test_devices_of_experiments import once_a_week

from mpt_lml.files import book_file

CHAPTERS = sorted(path.stem for path in book_file("").glob("[0-9][0-9]-*.md"))


@once_a_week
@pytest.mark.filterwarnings("ignore")  # as in a notebook they stop nothing
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_no_cell_stops(chapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with OtherDevice():
        run_cells(chapter, "")  # which is in every cell
