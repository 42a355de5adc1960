"""Shared by all tests: which of them need data that is not in the repository."""

from __future__ import annotations

import os

import pytest

# As the package sets it: before torch, which tests may import first.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
pytest.register_assert_rewrite("cases")


# They count lines, start processes or compute in 60 digits: no call that others do not make.
UNSHAPED = ("benchmarks", "budgets", "edge", "floors", "lean", "shape_checks", "threads")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem.removeprefix("test_") in UNSHAPED:
            item.add_marker("unshaped")
    if os.environ.get("MPT_LML_DATA"):
        return
    skip = pytest.mark.skip(reason="needs data files: set MPT_LML_DATA to their folder")
    for item in items:
        if item.get_closest_marker("data"):
            item.add_marker(skip)
