"""Numbers on a page: glue writes what myst-nb reads."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from mpt_lml import page


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


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["", " "])
def test_a_value_that_no_prose_can_call(name: str) -> None:
    with pytest.raises(ValueError, match="glue takes a name that prose can call, got"):
        page.glue(name, 1)


@pytest.mark.bad_input
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_to_print(value: float) -> None:
    with pytest.raises(ValueError, match="is not a number to print in prose"):
        page.glue("01-gap", value)


@pytest.mark.parametrize(
    ("tolerance", "verdict"), [(0.1, "DOES NOT AGREE with"), (0.25, "agrees with")]
)
def test_the_largest_difference_decides(
    tolerance: float, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of four numbers lies 0.2 below its record; the mean difference is 0.05."""
    measured = torch.tensor([1.0, 2.0, 3.0, 4.0])
    recorded = torch.tensor([1.0, 2.0, 3.2, 4.0])
    page.compare_with_record("four numbers", measured, recorded, tolerance=tolerance)
    assert capsys.readouterr().out == (
        "Compared with the record: four numbers.\n"
        f"Largest difference 0.2 nats ({tolerance} allowed): {verdict} the record.\n"
    )


@pytest.mark.parametrize("make", [list, lambda numbers: torch.tensor(numbers, dtype=torch.float64)])
def test_a_difference_below_single_precision_is_seen(
    make: Callable[[list[float]], object], capsys: pytest.CaptureFixture[str]
) -> None:
    measured = make([1.0 + 1e-9])
    page.compare_with_record("a number", measured, [1.0], tolerance=1e-10)
    assert "0.0000000010 nats (1e-10 allowed): DOES NOT AGREE with" in capsys.readouterr().out


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("measured", "recorded", "tolerance", "says"),
    [
        ([1.0], [1.0, 2.0], 0.1, "same numbers"),
        ([math.nan], [1.0], 0.1, "finite"),
        ([], [], 0.1, "at least one"),
        ([1.0], [1.0], 0.0, "tolerance"),
    ],
)
def test_what_cannot_be_compared_is_refused(measured, recorded, tolerance, says) -> None:
    with pytest.raises(ValueError, match=says):
        page.compare_with_record("a number", measured, recorded, tolerance=tolerance)


@pytest.mark.bad_input
@pytest.mark.parametrize("value", [None, "abc", {}, ["1.0"], [[1.0], [1.0, 2.0]]], ids=repr)
def test_what_is_no_number_is_not_compared(value: object) -> None:
    for name, both in (("measured", (value, [1.0])), ("recorded", ([1.0], value))):
        with pytest.raises(TypeError, match=f"^{name} must be numbers, or a tensor of them, got"):
            page.compare_with_record("a number", *both, tolerance=0.1)


@pytest.mark.bad_input
def test_a_row_that_does_not_fit_its_head_is_refused() -> None:
    with pytest.raises(ValueError, match="3 entries, and the head 2"):
        page.table(["size", "score"], [["1", "0.5", "0.1"]])
