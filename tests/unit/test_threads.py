"""Idle threads sleep: beside busy processes a spinning one holds a core that another needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest


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
    ["import mpt_lml", "from mpt_score import tokens", "from mpt_experiments import bench"],
)
def test_threads_that_wait_soon_sleep(program: str) -> None:
    assert turns(program) == 1000


@pytest.mark.parametrize("own", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "54321"}])
def test_a_setting_of_the_users_wins(own: dict[str, str]) -> None:
    assert turns("import mpt_lml", **own) > 50_000


def test_it_is_too_late_once_torch_is_loaded() -> None:
    """The meta-test. The page How to run says it; a notebook's first cell imports the package."""
    assert turns("import torch, mpt_lml") > 50_000
