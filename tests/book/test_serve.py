"""What `make serve` does: a build for each change, in a process that has imported what builds import."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from unittest import mock

import build_site
import pytest
import serve

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),  # it has threads
]


class Waits(Exception):
    """Instead of waiting."""


def test_a_source_that_changed_is_seen_once(tmp_path: Path) -> None:
    page = tmp_path / "book" / "01-one.md"
    page.parent.mkdir()
    changes = serve.changes(tmp_path)
    next(changes)  # the first build
    for change in (lambda: page.write_text("one"), lambda: os.utime(page, ns=(1, 1)), page.unlink):
        change()
        next(changes)
    with mock.patch("time.sleep", side_effect=[None, Waits]), pytest.raises(Waits):
        next(changes)


def test_a_build_starts_with_the_imports_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "_build").mkdir()
    sys.modules.pop("colorsys", None)

    def main(root: Path, sphinx: object, kernels: object) -> int:
        (root / "had").write_text(str("colorsys" in sys.modules))
        for name in ("sphinx", "colorsys"):
            importlib.import_module(name)
        return 0

    with mock.patch.object(build_site, "main", main):
        for had in ("False", "True"):
            serve.build(tmp_path, None)
            assert (tmp_path / "had").read_text() == had
