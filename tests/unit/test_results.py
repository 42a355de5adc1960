from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path

import pytest
import torch

from mpt_experiments import provenance
from mpt_lml import files, page
from mpt_lml.results import Estimate, MaskCurve


def test_an_estimate_is_a_number_with_an_error() -> None:
    estimate = Estimate(-60.3, 0.02, 100)
    assert estimate - 1.0 == pytest.approx(-61.3)
    assert f"{estimate:.1f}" == "-60.3"
    assert repr(estimate) == "-60.3000 ± 0.0200 nats"
    assert repr(Estimate(-1.5)) == "-1.5000 nats (exact)"
    assert repr(Estimate(-1.5, math.nan, 1)) == "-1.5000 nats (no error from one sample)"
    assert (estimate.value, estimate.standard_error, estimate.num_samples) == (-60.3, 0.02, 100)
    assert type(estimate.value) is float
    assert (torch.ones(2) - estimate).tolist() == pytest.approx([61.3, 61.3])


def test_curves_can_be_compared() -> None:
    """What holds tensors is equal to itself only: tensors have no single answer."""
    sizes = torch.arange(1, 4)
    one, other = (MaskCurve(sizes, -1.0 * sizes, 0.1 * sizes, 3) for _ in range(2))
    assert one == one and one != other
    assert len({one, other}) == 2


def test_rows_of_numbers_stay_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    content = {"rows": [[1.5, -2e-7], [None, 3.0]], "names": ["a", "[1, 2]"], "none": []}
    files.write_json(path, content)
    assert files.read_json(path) == content
    assert "[1.5, -2e-07]" in path.read_text()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, {"a": math.nan})
    with pytest.raises(KeyboardInterrupt), files.replacing(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert files.read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_an_unwritable_folder_is_named_before_the_work(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(PermissionError, match="cannot write to the output folder"):
        files.require_writable(file / "folder")
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(PermissionError, match="--out"):
            files.require_writable(tmp_path)


def test_provenance_names_no_path(tmp_path: Path) -> None:
    origin = provenance.provenance("mpt-lml run table-1")
    assert origin["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert len(origin["commit"].split("+")[0]) in (7, 40)
    assert str(Path.home()) not in json.dumps(origin)


def test_glue_writes_the_output_that_myst_nb_reads() -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    InteractiveShell.instance()
    try:
        with capture_output() as captured:
            page.glue("01-gap", "0.110")
    finally:
        InteractiveShell.clear_instance()
    (output,) = captured.outputs
    assert output.metadata["scrapbook"] == {
        "name": "01-gap",
        "mime_prefix": "application/papermill.record/",
    }
    assert output.data == {"application/papermill.record/text/plain": "'0.110'"}


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_file_has_the_mode_of_its_user(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        files.write_json(tmp_path / "result.json", {"a": 1})
        files.save_tensors(tmp_path / "state", {"a": torch.ones(2)}, {})
    finally:
        os.umask(before)
    for name in ("result.json", "state"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch) -> None:
    """And its name is there before anybody is told: a loss of power leaves the old or the new."""
    path, done = tmp_path / "result.json", []
    sync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        done.append(("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file", path.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", lambda *a: (done.append("renamed"), replace(*a))[1])
    files.write_json(path, {"a": 1})
    assert done == [("file", False), "renamed", ("folder", True)]
