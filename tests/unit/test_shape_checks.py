"""The shape-checked run (`make unit`) does catch a wrong shape."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import pkgutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import torch

import experiments
import mpt_lml
import mpt_score
from mpt_lml.objectives import bounds

CHECKED = ["--jaxtyping-packages=mpt_lml,columns,beartype.beartype"]
# Functions of a module of its own, whose answers can be wrong.
COLUMNS = """
from __future__ import annotations
from typing import Literal
from jaxtyping import Float
from torch import Tensor

def first(x: Float[Tensor, "N D"], count: int | None) -> Float[Tensor, "N D"]:
    return x[:, :count]

def first_within(x: Float[Tensor, "N D"], count: int | None) -> Tensor:
    def inside(x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        return x[:, :count]
    return inside(x)

def end(x: Float[Tensor, "N D"], which: Literal["left", "right"]) -> Tensor:
    return x[:, 0]

def total(x: Float[Tensor, "N D"], others: list[Float[Tensor, "N D"]]) -> Float[Tensor, "N D"]:
    if x.shape[1] > 1:
        total(x[:, 1:], [other[:, 1:] for other in others])
    return sum(others, x)
"""
WRONG = """
import columns
import pytest, torch
from mpt_lml import numerics
from mpt_lml.objectives import bounds

def call(size):
    return bounds.mean_elbo(torch.zeros(3), torch.zeros(3, 2), torch.ones(3, size))

def test_right():
    assert call(2).shape == ()

def test_wrong():  # broadcasting would let it pass
    for _ in range(2):
        assert call(2).shape == ()
        with pytest.raises(Exception, match="Type-check error"):
            call(1)

@pytest.mark.parametrize("function", [columns.first, columns.first_within])
def test_another_answer_to_arguments_of_the_same_shapes(function):
    x = torch.zeros(2, 3)
    for _ in range(2):
        assert function(x, 3).shape == (2, 3)
        assert function(x, None).shape == (2, 3)
        with pytest.raises(Exception, match="whilst checking the return value"):
            function(x, 2)

def test_another_word():
    assert columns.end(torch.zeros(2, 3), "left").shape == (2,)
    with pytest.raises(Exception, match="Type-check error"):
        columns.end(torch.zeros(2, 3), "middle")

def test_an_item_of_another_shape_or_precision():
    x = torch.zeros(2, 3)
    assert columns.total(x, [x, x]).shape == (2, 3)
    for other in (x[:, :1], x.bool()):
        with pytest.raises(Exception, match="Type-check error"):
            columns.total(x, [other, other])

def test_types():  # of a function that has no shapes
    with pytest.raises(Exception, match="violates type hint"):
        numerics.softplus(1.0)
"""


def test_a_wrong_shape_is_caught_by_the_checked_run_only(tmp_path: Path) -> None:
    (tmp_path / "columns.py").write_text(COLUMNS)
    (tmp_path / "test_wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKED]
    command += ["-p", "jaxtyping._pytest_plugin", "-p", "conftest", "test_wrong.py"]
    path = [str(Path(__file__).parents[1]), str(tmp_path), os.environ.get("PYTHONPATH", "")]
    own = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    own |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others take a second to import
    found = subprocess.run(
        command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False
    )
    assert "7 passed" in found.stdout, found.stdout + found.stderr
    # This test itself is one of those that leave shapes unchecked.
    assert bounds.mean_elbo(torch.zeros(3), torch.zeros(3, 2), torch.ones(3, 1)) == 0


def functions() -> Iterator[types.FunctionType]:
    packages = (mpt_lml, mpt_score, experiments)
    walks = (pkgutil.walk_packages(each.__path__, f"{each.__name__}.") for each in packages)
    for info in itertools.chain.from_iterable(walks):
        if info.name == "mpt_score.lm_eval":
            continue  # needs lm-eval, and has no shapes
        module = importlib.import_module(info.name)
        for each in vars(module).values():
            if getattr(each, "__module__", "") == info.name:
                inside = vars(each).values() if inspect.isclass(each) else [each]
                yield from (inspect.unwrap(f) for f in inside if inspect.isfunction(f))


def test_every_shape_can_be_resolved() -> None:
    """Where a name is missing at run time, the checked run takes the annotation for anything."""
    seen, unresolved = 0, []
    for function in functions():
        for name, said in function.__annotations__.items():
            if "Tensor[" in str(said) or "[Tensor" in str(said):
                seen += 1
                assert "{" not in str(said), "what is remembered of a call are shapes, not numbers"
                try:
                    eval(said, function.__globals__) if isinstance(said, str) else said
                except NameError as error:
                    unresolved.append(
                        f"{function.__module__}.{function.__qualname__} {name}: {error}"
                    )
    assert seen > 100
    assert unresolved == []
