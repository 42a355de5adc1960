"""What importing the packages brings, what they work without, and how their threads wait."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import mpt_lml

ABSENT = ("transformers", "tokenizers", "datasets", "accelerate")
# Importing a None raises ImportError.
BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({ABSENT}))"
LEAN = """
import torch
import mpt_lml
from mpt_lml import PPCA, curves, data
import mpt_score
from mpt_score import networks
x = data.images("digits", "test").pixels
model = PPCA.fit_closed_form(x, 2)
curve = curves.sampled_curve(model, x, 2, generator=torch.Generator().manual_seed(0), sizes=[1, 64])
assert curve.score[0] > curve.score[1]
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


def test_figures_and_symbols_are_brought_when_used() -> None:
    program = "import sys, mpt_lml; heavy = {'matplotlib', 'sympy', 'transformers', 'sklearn'}"
    program += "; print(sorted(heavy & set(sys.modules)))"
    program += "; print(mpt_lml.plots.__name__, mpt_lml.symbolic.__name__)"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found == "[]\nmpt_lml.plots mpt_lml.symbolic\n"


def turns(program: str, **own: str) -> int:
    """How often a waiting thread looks again before it sleeps: what libgomp says when loaded."""
    settings = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    rest = {name: value for name, value in os.environ.items() if name not in settings}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=rest | own | {"OMP_DISPLAY_ENV": "verbose"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stderr:  # it need not go on once that is said
            if said := re.search(r"GOMP_SPINCOUNT = '(\d+)'", line):
                process.kill()
                return int(said[1])
    assert process.returncode == 0
    pytest.skip("this torch brings another OpenMP library than GNU's")


@pytest.mark.parametrize(
    "program",
    ["import mpt_lml", "from mpt_score import tokens"],
)
def test_threads_that_wait_soon_sleep(program: str) -> None:
    assert turns(program) == 1000


@pytest.mark.parametrize("own", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "54321"}])
def test_a_setting_of_the_users_wins(own: dict[str, str]) -> None:
    assert turns("import mpt_lml", **own) > 50_000


def test_what_brings_matplotlib_comes_when_it_is_named() -> None:
    assert mpt_lml.__getattr__("plots").__name__ == "mpt_lml.plots"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        mpt_lml.__getattr__("nothing")
