"""Without transformers, datasets and accelerate the package is imported and PPCA works."""

from __future__ import annotations

import subprocess
import sys

import pytest

ABSENT = ("transformers", "tokenizers", "datasets", "accelerate")
# Importing a None raises ImportError.
BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({ABSENT}))"
LEAN = """
import torch
import mpt_lml
from mpt_lml import PPCA, curves, data
import mpt_experiments
import mpt_score
from mpt_score import networks
x = data.images("digits", "test").pixels
model = PPCA.fit_closed_form(x, 2)
curve = curves.sampled_curve(model, x, 2, generator=torch.Generator().manual_seed(0), sizes=[1, 64])
assert curve.score[0] > curve.score[1]
assert mpt_experiments.run("patches").findings["patches-jointly"].measured < 1e-10
try:
    networks.load_small_bert()
except ImportError as error:
    print(error)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{BLOCKED}\n{program}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_ppca_needs_no_transformers() -> None:
    found = run(LEAN)
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout == (
        "this needs a network of transformers, which is not installed: pip install 'mpt-lml[score]'.\n"
    )


@pytest.mark.parametrize("name", ABSENT)
def test_they_are_absent_there(name: str) -> None:
    """The meta-test: where the package is imported so, an import of them does fail."""
    found = run(f"import {name}")
    assert found.returncode == 1 and f"import of {name} halted" in found.stderr


def test_figures_and_symbols_are_brought_when_used() -> None:
    program = "import sys, mpt_lml; heavy = {'matplotlib', 'sympy', 'transformers', 'sklearn'}"
    program += "; print(sorted(heavy & set(sys.modules)))"
    program += "; print(mpt_lml.plots.__name__, mpt_lml.symbolic.__name__)"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found == "[]\nmpt_lml.plots mpt_lml.symbolic\n"
