from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import torch

from mpt_lml import files, page
from mpt_lml.results import Estimate


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
    origin = files.provenance("mpt-lml run table-1")
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
