"""Runs the code of pages and notebooks without Jupyter, which machines with a GPU need not have."""

import contextlib
import io
import itertools
import json
import re
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib.pyplot as plt

NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
# Cells with a pre-trained network say why they did not run it, which differs from machine to machine.
AGREES = re.compile(
    r"Compared with the record: .*\nLargest difference .*: agrees with the record\.\n"
)
COMPARED = re.compile(r"Largest difference .* allowed\)")
# Cells that choose the settings of a training, and train. What the settings of a record are called.
TRAINS = re.compile(r"^settings = (replace\(|FULL\b)", re.MULTILINE)
FULL = "FULL"
NUMBERS_OF_STEPS = ("num_steps", "num_epochs", "steps")
REASON = re.compile(r"not run here \([^)]*\)")
# Those that train ask for data on a GPU only, and say how to get what is missing, line by line.
NO_DATA = re.compile(r"(?:No MNIST here|The (?:books|images) are not here).*\n(?:  \d\. .*\n)*")
# The kinds of output that are compared, besides what is printed.
GLUED = "application/papermill.record/text/plain"
HTML = "text/html"


@dataclass(frozen=True)
class CellRun:
    """What came of one cell."""

    number: int  # among all cells of the notebook, from 0
    title: str
    seconds: float
    fault: str  # empty where the outputs are the stored ones
    num_steps: int = 0  # of the training, in a cell that trains at settings which it chooses
    num_full_steps: int = 0  # that the record's training has
    compared: str = ""  # how far a training is from its record, if it says so


def run_code(source: str, names: dict[str, Any]) -> str:
    """Run code that may define and use ``names``; what it prints. Its figures are closed, not shown."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), mock.patch("matplotlib.pyplot.show"):
        exec(source, names)
    plt.close("all")
    return printed.getvalue()


def run_notebook(path: Path) -> Iterator[CellRun]:
    """Run the cells of a notebook; the first that raises is the last.

    Meant for a process of its own, which takes a stand-in for ``IPython.display``.
    """
    sys.modules["IPython.display"] = printing_display()
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for number, cell in enumerate(notebook["cells"]):
        # The cell that installs the package on Colab computes nothing.
        if cell["cell_type"] != "code" or "colab" in cell["metadata"].get("tags", []):
            continue
        source = "".join(cell["source"])
        title = source.partition("\n")[0].removeprefix("# @title ")
        start = time.perf_counter()
        printed = ""
        raised = None
        try:
            printed = run_code(source, names)
            fault = difference(printed, stored_text(cell))
        except Exception as error:
            raised = error
            fault = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - start
        num_steps, num_full_steps = 0, 0
        if raised is None and TRAINS.search(source):
            num_steps = number_of_steps(names["settings"])
            num_full_steps = number_of_steps(names[FULL])
        compared = "; ".join(COMPARED.findall(printed))
        yield CellRun(number, title, seconds, fault, num_steps, num_full_steps, compared)
        if raised is not None:
            return


def printing_display() -> types.ModuleType:
    """What the chapters use of ``IPython.display``: numbers for the prose, and HTML, are printed."""

    def display(data: dict[str, str], **_: Any) -> None:
        print(data)

    def html(data: str) -> None:
        display({HTML: data})

    module = types.ModuleType("IPython.display")
    module.__dict__.update(display=display, HTML=html)
    return module


def stored_text(cell: dict[str, Any]) -> str:
    """What a cell put out when the notebook was made, as it is printed here; no stderr, no pictures."""
    text = ""
    for output in cell["outputs"]:
        if output.get("name") == "stdout":
            text += "".join(output["text"])
        for kind in (GLUED, HTML):
            if kind in output.get("data", {}):
                text += str({kind: "".join(output["data"][kind])}) + "\n"
    return text


def number_of_steps(settings: Any) -> int:
    """How many steps a training takes, by whatever name its settings call them."""
    (name,) = (each for each in NUMBERS_OF_STEPS if hasattr(settings, each))
    return getattr(settings, name)


def difference(printed: str, stored: str) -> str:
    """How what is printed differs from what is stored, in words; nothing where it does not."""
    # A training is at other settings on a GPU; it is no difference where it agrees with its record.
    printed = NO_DATA.sub("", AGREES.sub("", REASON.sub("not run here", printed)))
    stored = AGREES.sub("", REASON.sub("not run here", stored))
    if printed == stored:
        return ""
    if NUMBER.sub("0", printed) == NUMBER.sub("0", stored):
        largest = 0.0
        for pair in zip(NUMBER.findall(printed), NUMBER.findall(stored), strict=True):
            value, wanted = (float(number.replace("−", "-")) for number in pair)
            if value != wanted:
                largest = max(largest, abs(value - wanted) / max(abs(value), abs(wanted)))
        return f"its numbers differ by up to {largest:.1g} of their size"
    lines = itertools.zip_longest(printed.split("\n"), stored.split("\n"), fillvalue="")
    line, wanted_line = next(pair for pair in lines if pair[0] != pair[1])
    return f"it put out {line[:80]!r}, stored is {wanted_line[:80]!r}"
