"""Numbers on a page: glue writes what myst-nb reads."""

from __future__ import annotations

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
