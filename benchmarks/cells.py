"""Runs a notebook's code without Jupyter, and compares what it puts out with what is stored.

A kernel is not on every machine that has a GPU. Here a notebook is one module: cell after cell is
compiled and run in it, what is printed and displayed is recorded, and the time of each cell is taken.
Outputs are compared as the build of the book compares them: text by text, pictures and stderr left out.
"""

import ast
import contextlib
import io
import json
import linecache
import re
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch

Output = dict[str, str]

NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
# Cells with a pre-trained network say why they did not run it, which differs from machine to machine.
REASON = re.compile(r"not run here \([^)]*\)")


class CellRun(NamedTuple):
    """What came of one cell."""

    number: int  # among all cells of the notebook, from 0
    title: str
    seconds: float
    used_gpu: bool  # memory was allocated there
    fault: str  # empty where the outputs are the stored ones


class HTML:
    """Stands in for the class of IPython, whose name is in stored outputs."""

    def __init__(self, data: str) -> None:
        self.data = data

    def __repr__(self) -> str:
        return "<IPython.core.display.HTML object>"

    def _repr_html_(self) -> str:
        return self.data


class Recorder(io.TextIOBase):
    """Standard output, displays and figures of a cell, in the order in which they come."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []

    def write(self, text: str) -> int:
        if not self.outputs or "text" not in self.outputs[-1]:
            self.outputs.append({"text": ""})
        self.outputs[-1]["text"] += text
        return len(text)

    def display(self, *values: Any, raw: bool = False, metadata: Any = None) -> None:
        for value in values:
            self.outputs.append(value if raw else representations(value))

    def show(self) -> None:
        """In the place of ``plt.show``: figures are drawn, as a page needs them, and closed."""
        for number in plt.get_fignums():
            figure = plt.figure(number)
            figure.savefig(io.BytesIO(), bbox_inches="tight")
            self.display(figure)
        plt.close("all")


def representations(value: Any) -> Output:
    """Kinds of text that stand for a value, as a notebook stores them."""
    texts = {"text/plain": repr(value)}
    html = getattr(value, "_repr_html_", lambda: None)()
    if html is not None:
        texts["text/html"] = html
    return texts


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """What is printed, displayed and shown goes to the recorder."""
    recorder = Recorder()
    display = types.ModuleType("IPython.display")
    display.__dict__.update(HTML=HTML, display=recorder.display)
    ipython = types.ModuleType("IPython")
    # matplotlib asks for its version, and whether a session of it runs.
    ipython.__dict__.update(display=display, version_info=(9, 0), get_ipython=lambda: None)
    modules = {"IPython": ipython, "IPython.display": display}
    before = {name: sys.modules.get(name) for name in modules}
    plain_show = plt.show

    def show(*_: Any, **__: Any) -> None:  # a function: pyplot gives it a signature
        recorder.show()

    sys.modules.update(modules)
    plt.show = show
    try:
        with contextlib.redirect_stdout(recorder):
            yield recorder
    finally:
        plt.show = plain_show
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def run_source(source: str, name: str, module: types.ModuleType) -> Any:
    """Run a cell in its module; the value of its last line, if that is an expression."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = ast.parse(source, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, name, "exec"), module.__dict__)
    if last is None or source.rstrip().endswith(";"):
        return None
    return eval(compile(last, name, "eval"), module.__dict__)


def stored_outputs(cell: dict[str, Any]) -> list[Output]:
    """What a cell put out when the notebook was made, without stderr and pictures."""
    outputs: list[Output] = []
    for output in cell["outputs"]:
        if "data" in output:
            data = output["data"].items()
            outputs.append({kind: "".join(text) for kind, text in data if "image/" not in kind})
        elif output.get("name") == "stdout":
            outputs.append({"text": "".join(output["text"])})
    return outputs


def difference(now: list[Output], stored: list[Output]) -> str:
    """How outputs differ from those that are stored, in words; nothing where they do not."""
    texts = []
    for outputs in (now, stored):
        lines = [f"{kind}: {text}" for output in outputs for kind, text in sorted(output.items())]
        texts.append(REASON.sub("not run here", "\n".join(lines)))
    if texts[0] == texts[1]:
        return ""
    if NUMBER.sub("0", texts[0]) == NUMBER.sub("0", texts[1]):
        largest = 0.0
        for one, other in zip(*map(NUMBER.findall, texts), strict=True):
            value, wanted = (float(number.replace("−", "-")) for number in (one, other))
            scale = max(abs(value), abs(wanted))
            if scale > 0:
                largest = max(largest, abs(value - wanted) / scale)
        return f"its numbers differ by up to {largest:.1g} of their size"
    now_lines, stored_lines = (text.splitlines() for text in texts)
    for line, wanted_line in zip(now_lines, stored_lines, strict=False):
        if line != wanted_line:
            return f"it put out {line[:80]!r}, stored is {wanted_line[:80]!r}"
    return f"it put out {len(now_lines)} lines, stored are {len(stored_lines)}"


def num_allocations() -> int:
    """On the GPU so far; asking must not be the first thing that is done with it."""
    if not torch.cuda.is_initialized():
        return 0
    return torch.cuda.memory_stats().get("allocation.all.allocated", 0)


def run_notebook(path: Path) -> Iterator[CellRun]:
    """Run the cells of a notebook, in the folder where it is; the first that raises is the last.

    Meant for a process of its own: the module takes the place of ``__main__``.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    for number, cell in enumerate(notebook["cells"]):
        # The cell that installs the package on Colab computes nothing.
        if cell["cell_type"] != "code" or "colab" in cell["metadata"].get("tags", []):
            continue
        source = "".join(cell["source"])
        title = source.partition("\n")[0].removeprefix("# @title ")
        allocated = num_allocations()
        start = time.perf_counter()
        error = ""
        with recording() as recorder, contextlib.chdir(path.parent):
            try:
                value = run_source(source, f"<{path.stem}, cell {number}>", module)
                if value is not None:
                    recorder.display(value)
                recorder.show()
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
        yield CellRun(
            number=number,
            title=title,
            seconds=time.perf_counter() - start,
            used_gpu=num_allocations() > allocated,
            fault=error or difference(recorder.outputs, stored_outputs(cell)),
        )
        if error:
            return
