"""Where a number came from: processor, commit, and no path."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from experiments import provenance


def test_the_processor_is_named_as_the_system_names_it(monkeypatch) -> None:
    content = "processor\t: 0\nmodel name\t: Some: Thing 9\nmodel name\t: Other\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: content)
    assert provenance._cpu_name() == "Some: Thing 9"


def test_outside_a_repository_the_commit_is_unknown(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.provenance("none")["commit"] == "unknown"


def test_provenance_names_no_path(tmp_path: Path) -> None:
    origin = provenance.provenance("python -m experiments run table-1")
    assert origin["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert len(origin["commit"].split("+")[0]) in (7, 40)
    assert str(Path.home()) not in json.dumps(origin)
