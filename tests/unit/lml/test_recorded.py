"""What the book's runs recorded, and how it is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments import records
from experiments.records import as_dict
from mpt_lml import recorded
from mpt_lml.files import book_file, read_json
from mpt_lml.recorded import Finding, Outcome


@pytest.mark.parametrize("name", recorded.names())
def test_a_recorded_run_comes_back_as_it_was(name: str) -> None:
    stored = read_json(book_file(f"results/{name}.json"))
    loaded = recorded.load(name)
    again = as_dict(loaded)
    assert again["arrays"] == stored["arrays"]
    assert again["findings"] == stored["findings"]
    assert (loaded.data_sha256, loaded.weights) == (stored["data_sha256"], stored.get("weights"))
    assert (loaded.settings, loaded.seconds) == (stored["config"], stored["seconds"])
    assert loaded.provenance == stored["provenance"]


def test_what_json_cannot_say_comes_back_as_nan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = Outcome({"gap": Finding(1.0)}, {"gaps": torch.tensor([[1.0, torch.nan]])})
    (tmp_path / "results").mkdir()
    records.write_json(tmp_path / "results" / "a-run.json", as_dict(outcome))
    monkeypatch.setattr(recorded, "book_file", lambda name: tmp_path / name)
    assert recorded.names() == ["a-run"]
    gaps = recorded.load("a-run").arrays["gaps"]
    assert gaps[0, 0] == 1.0 and gaps[0, 1].isnan()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "hint"),
    [("tabel-1", "Did you mean table-1"), ("../ledger", ""), ("zzz", "There are: antibody-chain")],
)
def test_a_run_that_is_not_recorded_is_refused(name: str, hint: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"no run of '{name}' is recorded. {hint}"):
        recorded.load(name)
