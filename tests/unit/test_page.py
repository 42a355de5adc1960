"""Numbers on a page: glue writes what myst-nb reads."""

from __future__ import annotations

import math

import pytest

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
