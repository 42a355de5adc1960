"""What a run from the command line stores, and that only the paper's settings reach the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpt_experiments import command, provenance


def test_a_run_with_other_settings_is_not_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its preset is: nothing goes to the ledger and the results of the checkout."""

    def fail() -> None:
        raise AssertionError("the checkout was asked for")

    monkeypatch.setattr(provenance, "checkout", fail)
    monkeypatch.chdir(tmp_path)
    call = ["run", "figure-1-left", "--seeds", "1,2", "--num-masks", "2"]
    assert command.main(call) == 0
    assert (tmp_path / "mpt-lml-results" / "figure-1-left.json").is_file()
