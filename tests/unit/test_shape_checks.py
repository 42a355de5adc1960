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

CHECKED = ["--jaxtyping-packages=mpt_lml,beartype.beartype"]
WRONG = """
import pytest, torch
from mpt_lml import numerics
from mpt_lml.objectives import bounds

def call(size):
    return bounds.mean_elbo(torch.zeros(3), torch.zeros(3, 2), torch.ones(3, size))

def test_right():
    assert call(2).shape == ()

def test_wrong():  # broadcasting would let it pass
    with pytest.raises(Exception, match="Type-check error"):
        call(1)

def test_types():  # of a function that has no shapes
    with pytest.raises(Exception, match="violates type hint"):
        numerics.softplus(1.0)
"""


def test_a_wrong_shape_is_caught_by_the_checked_run_only(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKED]
    command += ["-p", "jaxtyping._pytest_plugin", "-p", "conftest", "test_wrong.py"]
    path = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    own = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    own |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others take a second to import
    found = subprocess.run(
        command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False
    )
    assert "3 passed" in found.stdout, found.stdout + found.stderr
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
                try:
                    eval(said, function.__globals__) if isinstance(said, str) else said
                except NameError as error:
                    unresolved.append(
                        f"{function.__module__}.{function.__qualname__} {name}: {error}"
                    )
    assert seen > 100
    assert unresolved == []
