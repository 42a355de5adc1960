"""Without transformers, datasets and accelerate the package is imported and PPCA works."""

from __future__ import annotations

import subprocess
import sys

import pytest

ABSENT = ("transformers", "tokenizers", "datasets", "accelerate")
LEAN = f"""
import sys
sys.modules.update(dict.fromkeys({ABSENT}))  # importing a None raises ImportError
import torch
import mpt_lml
from mpt_lml import PPCA, curves, data, experiments, networks, sentence_curves
x = data.images("digits", "test").pixels
model = PPCA.fit_closed_form(x, 2)
curve = curves.sampled_curve(model, x, 2, generator=torch.Generator().manual_seed(0), sizes=[1, 64])
assert curve.score[0] > curve.score[1]
assert experiments.run("patches").findings["patches-jointly"].measured < 1e-10
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


def test_ppca_needs_no_transformers() -> None:
    found = run(LEAN)
    assert found.returncode == 0, found.stderr[-2000:]


@pytest.mark.parametrize("late", ["import transformers", "networks.load_small_bert()"])
def test_what_needs_them_says_so(late: str) -> None:
    """The meta-test: in this process an import of them does fail."""
    found = run(f"{LEAN}\n{late}")
    assert found.returncode == 1
    assert "ModuleNotFoundError: import of transformers halted" in found.stderr
