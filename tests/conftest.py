"""Shared by all tests: which of them need data that is not in the repository."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest

# As the package sets it: before torch, which tests may import first.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
pytest.register_assert_rewrite("cases")

with_shapes = jaxtyping.jaxtyped


def jaxtyped(*, typechecker: Callable) -> Callable:
    """What the shape-checked run wraps a function in: without shapes, the check of types alone.

    To keep account of no shapes took a third of that run. Hints that are strings may need names that
    are missing at run time, which the account takes for anything.
    """

    def wrapped(each: Any) -> Any:
        hints = each.__annotations__.values() if inspect.isfunction(each) else ["a class"]
        shaped = any(isinstance(hint, str) or "[Tensor" in str(hint) for hint in hints)
        return with_shapes(each, typechecker=typechecker) if shaped else typechecker(each)

    return wrapped


jaxtyping.jaxtyped = jaxtyped


# They count lines, start processes or compute in 60 digits: no call that others do not make.
UNSHAPED = ("benchmarks", "oracles", "floors", "packages", "shape_checks")


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple]:
    """The quick run of an experiment and the folder with its state, if any, made once and only read.

    Tests of one name are one worker's: ``pytest.mark.xdist_group(name)``.
    """
    import mpt_experiments
    from mpt_experiments import experiment

    @functools.cache
    def done(name: str) -> tuple:
        folder = tmp_path_factory.mktemp(name) if experiment.find(name).resumable else None
        return mpt_experiments.run(name, "quick", device="cpu", checkpoints=folder), folder

    return done


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
