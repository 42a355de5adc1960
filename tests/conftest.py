"""Shared by all tests: whose warnings are errors, what needs data, and quick runs made once."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from collections.abc import Callable, Iterator
from pathlib import Path

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


NEEDS_DATA = "needs data files: set MPT_LML_DATA to their folder"


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
    if os.environ.get("MPT_LML_DATA"):
        return
    skip = pytest.mark.skip(reason=NEEDS_DATA)
    for item in items:
        if item.get_closest_marker("data"):
            item.add_marker(skip)
