"""Shared by all tests: whose warnings are errors, which shapes are checked, what is not tested, and
quick runs made once."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import inspect
import json
import os
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import jaxtyping
import pytest

# As the package sets it: before torch, which tests may import first.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
pytest.register_assert_rewrite("cases")

# -- warnings: all are errors (pyproject.toml). Under other versions than the pinned ones a package may
# call what another one has deprecated, which is not ours to mend: such a warning is shown, no more.

ROOT = Path(__file__).parents[1]
OURS = ("mpt_lml", "mpt_score", "experiments", *(path.stem for path in ROOT.glob("tests/**/*.py")))
OF_OTHERS = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")


def pytest_configure(config: pytest.Config) -> None:
    if has_pinned_versions():
        # Here others' are errors, too: half of torch's name torch, whoever called it.
        return
    rules = [f"default::{category}" for category in OF_OTHERS]
    rules += [f"error::{category}:({'|'.join(OURS)})(\\.|$)" for category in OF_OTHERS]
    # Behind the first, "error", and before the exceptions: the last that fits decides.
    config.getini("filterwarnings")[1:1] = rules


def has_pinned_versions() -> bool:
    """Whether what is installed of constraints.txt has the versions there, whatever it was built for."""
    constraints = ROOT / "constraints.txt"
    if not constraints.exists():  # tests that were copied out of the repository
        return False
    for line in constraints.read_text(encoding="utf-8").splitlines():
        name, _, pinned = line.partition("==")
        if not pinned or name.startswith("#"):
            continue
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed.partition("+")[0] != pinned:
            return False
    return True


# -- shapes: with `--jaxtyping-packages`, as in `make unit`, every call is compared with its signature

# They count lines, start processes or compute in 60 digits: no call that others do not make.
UNSHAPED = ("benchmarks", "oracles", "floors", "packages", "shape_checks")
# These tests see the packages' own errors for wrong calls, or measure: shapes are not checked.
PLAIN = ("bad_input", "slow", "unshaped")


class Shapes:
    """Whether the signatures count at the moment."""

    checked = True
    # Classes whose fields are checked: the class, its own __init__, the one that checks.
    classes: ClassVar[list[tuple[type, Callable, Callable]]] = []

    @classmethod
    def switch(cls, checked: bool) -> None:
        if checked == cls.checked:
            return
        cls.checked = checked
        for target, plain_init, checked_init in cls.classes:
            target.__init__ = checked_init if checked else plain_init


NUMBERS = frozenset({bool, int, float, type(None)})
FEW = 9


def kind_of(value: Any) -> Any:
    """What a comparison with a signature can see of a value: values of a kind are compared alike.

    No axis in a signature is computed from a number ("{num}"), so that of numbers it sees the type.
    """
    if type(value) in NUMBERS:
        return type(value)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):  # a tensor or an array
        return type(value), getattr(value, "dtype", None), shape
    if isinstance(value, str | type):
        return value  # a Literal or a type[...] may name it
    if isinstance(value, set | frozenset | tuple | list | dict) and len(value) > FEW:
        return object()  # a kind of its own: to compare it each time takes less than to look at all
    if isinstance(value, set | frozenset | tuple | list):
        return type(value), *map(kind_of, value)
    if isinstance(value, dict):
        return type(value), *((kind_of(key), kind_of(each)) for key, each in value.items())
    return type(value)


class Signature:
    """Compares a function's calls with its signature: each kind of arguments and of answer once."""

    def __init__(self, function: Callable, comparing: Callable[[Callable], Callable]) -> None:
        self.compared_answers: dict[Any, set[Any]] = {}
        self.function = function

        def run(*args: Any, **kwargs: Any) -> Any:
            return self.function(*args, **kwargs)

        # The names in its annotations are those of the function's module.
        run = types.FunctionType(run.__code__, function.__globals__, closure=run.__closure__)
        self.comparing = comparing(functools.update_wrapper(run, function))

    def call(self, function: Callable, /, *args: Any, **kwargs: Any) -> Any:
        given = (kind_of(args), kind_of(kwargs))
        answers = self.compared_answers.get(given)
        if answers is None:
            self.function = function  # or another closure of the same code
            answer = self.comparing(*args, **kwargs)
            self.compared_answers.setdefault(given, set()).add(kind_of(answer))
            return answer
        answer = function(*args, **kwargs)
        kind = kind_of(answer)
        if kind not in answers:
            self.function = lambda *_, **__: answer
            self.comparing(*args, **kwargs)
            answers.add(kind)
        return answer


jaxtyped_of_the_library = jaxtyping.jaxtyped
# By its code, which all closures of a function within a function share.
signatures: dict[types.CodeType, Signature] = {}


def checked(function: Callable, typechecker: Callable) -> Callable:
    """The function with its comparisons; without shapes a check of types, which is cheaper."""
    comparing = typechecker
    if has_shapes(function):
        comparing = functools.partial(jaxtyped_of_the_library, typechecker=typechecker)
    elif "<locals>" not in function.__qualname__:
        return typechecker(function)
    code = function.__code__
    if code not in signatures:
        signatures[code] = Signature(function, comparing)
    return functools.partial(signatures[code].call, function)


def has_shapes(function: Callable) -> bool:
    try:
        hints = typing.get_type_hints(function)
    except NameError:  # of what is imported for the type checker alone: taken for anything
        return True
    return any("jaxtyping." in repr(hint) for hint in hints.values())


def jaxtyped(*, typechecker: Callable) -> Callable:
    """What the shape-checked run wraps a function in: its check is made when it is first called."""

    def wrapped(target: Any) -> Any:
        if inspect.isclass(target):  # of which the fields of a dataclass are checked
            plain_init = target.__init__
            checked_class = jaxtyped_of_the_library(target, typechecker=typechecker)
            checked_init = checked_class.__init__
            if checked_init is not plain_init:
                # No wrapper here: who makes an object is read from the frame that calls its __init__.
                Shapes.classes.append((checked_class, plain_init, checked_init))
                if not Shapes.checked:
                    checked_class.__init__ = plain_init
            return checked_class
        if all(hint is Any for hint in target.__annotations__.values()):
            return target  # nothing to check
        check = None

        @functools.wraps(target)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal check
            if not Shapes.checked:
                return target(*args, **kwargs)
            if check is None:
                check = checked(target, typechecker)
            return check(*args, **kwargs)

        return call

    return wrapped


jaxtyping.jaxtyped = jaxtyped


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    Shapes.switch(not any(item.get_closest_marker(name) for name in PLAIN))
    return (yield)


# -- garbage: what is imported stays to the end, and to look through it again and again takes seconds


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Nothing imported here is looked through for garbage, now or in a test or at the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # What is frozen no longer counts as old, so that all of the rest would be searched often.
        gc.set_threshold(10_000, 10, 50)
        gc.enable()


# -- what was not tested: told once, at the end of `make test`, by tests/not_tested.py

NEEDS_DATA = "needs data files: set MPT_LML_DATA to their folder"
skipped_tests: Counter[str] = Counter()
skipped_files: dict[str, set[str]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        skipped_tests[reason_of(report.longrepr)] += 1


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that asks for what is missing when it is read: its tests are not counted."""
    if report.skipped and isinstance(report.longrepr, tuple):
        skipped_files.setdefault(reason_of(report.longrepr), set()).add(report.nodeid)


def reason_of(place_and_message: tuple) -> str:
    return place_and_message[2].removeprefix("Skipped: ")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Add the reasons to the file that is named. A worker does not: the main process hears of all."""
    path = os.environ.get("MPT_LML_NOT_TESTED")
    if path is None or hasattr(session.config, "workerinput"):
        return
    with Path(path).open("a", encoding="utf-8") as file:
        for reason in sorted({*skipped_tests, *skipped_files}):
            row = [reason, skipped_tests[reason], sorted(skipped_files.get(reason, ()))]
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


# -- quick runs


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple]:
    """The quick run of an experiment and the folder with its state, if any, made once and only read.

    Tests of one name are one worker's: ``pytest.mark.xdist_group(name)``.
    """
    from experiments import experiment

    @functools.cache
    def done(name: str) -> tuple:
        folder = tmp_path_factory.mktemp(name) if experiment.find(name).resumable else None
        return experiment.run(name, "quick", device="cpu", checkpoints=folder), folder

    return done


@pytest.fixture
def house_style() -> Iterator[None]:
    """Figures in the style of the book, for one test."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    from mpt_lml import plots

    with mpl.rc_context():
        plots.use_style()
        yield
    plt.close("all")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem.removeprefix("test_") in UNSHAPED:
            item.add_marker("unshaped")
    if os.environ.get("MPT_LML_DATA"):
        return
    skip = pytest.mark.skip(reason=NEEDS_DATA)
    for item in items:
        if item.get_closest_marker("data"):
            item.add_marker(skip)
