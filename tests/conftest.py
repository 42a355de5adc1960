"""Shared by all tests: which of them need data that is not in the repository."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable

import pytest

# As the package sets it: before torch, which tests may import first.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
pytest.register_assert_rewrite("cases")


# They count lines, start processes or compute in 60 digits: no call that others do not make.
UNSHAPED = ("benchmarks", "budgets", "edge", "floors", "lean", "shape_checks", "threads")


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple]:
    """The quick run of an experiment and the folder with its state, if any, made once and only read.

    Tests of one name are one worker's: ``pytest.mark.xdist_group(name)``.
    """
    from mpt_lml import experiments
    from mpt_lml.experiments import base

    @functools.cache
    def done(name: str) -> tuple:
        folder = tmp_path_factory.mktemp(name) if base.find(name).resumable else None
        return experiments.run(name, "quick", device="cpu", checkpoints=folder), folder

    return done


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Doors take whatever comes, check it themselves, and have no shapes of their own: their hundred
    # thousands of calls in the shape-checked run need not be wrapped.
    for _, each in inspect.getmembers(sys.modules.get("mpt_lml.spec"), inspect.isfunction):
        each.__no_type_check__ = True
    for item in items:
        if item.path.stem.removeprefix("test_") in UNSHAPED:
            item.add_marker("unshaped")
    if os.environ.get("MPT_LML_DATA"):
        return
    skip = pytest.mark.skip(reason="needs data files: set MPT_LML_DATA to their folder")
    for item in items:
        if item.get_closest_marker("data"):
            item.add_marker(skip)
