"""What `make env` does where packages, a network or a Python are missing, with stand-ins for Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from book_layout import ROOT

NEEDED = ("Makefile", "constraints.txt", "pyproject.toml", ".ci/pins/pip.txt")
NEEDED += ("book/_tools/has_packages.py",)
# Answers questions by the real Python, makes environments with a copy of itself, and never reaches an
# index of packages.
STAND_IN = f"""#!/bin/sh
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip") echo "pip cannot reach the index" >&2; exit 1 ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
TOO_OLD = "#!/bin/sh\nexit 1\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what an installation reads."""
    folder = tmp_path / "clone"
    for name in NEEDED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def make_env(clone: Path, python: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`make env`, where python3.11 and python3 are the program ``python``."""
    folder = clone.parent / "bin"
    for name in ("python3.11", "python3"):
        program(folder / name, python)
    return subprocess.run(
        ["make", "env"],
        cwd=clone,
        env={"PATH": f"{folder}:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def conda_environment(folder: Path, *, made_for_the_book: bool) -> Path:
    program(folder / "bin" / "python", STAND_IN)
    packages = folder / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    if made_for_the_book:
        (packages / "mpt_lml-1.0.dist-info").mkdir()
    return folder


def test_an_environment_of_conda_is_taken_as_it_is(clone: Path, tmp_path: Path) -> None:
    conda = conda_environment(tmp_path / "conda", made_for_the_book=True)
    done = make_env(clone, STAND_IN, CONDA_PREFIX=str(conda))
    assert done.returncode == 0, done.stderr
    assert (conda / ".installed").exists()
    assert not (clone / ".venv").exists()


def test_what_an_environment_of_conda_lacks_is_named(clone: Path, tmp_path: Path) -> None:
    conda = conda_environment(tmp_path / "conda", made_for_the_book=True)
    project = clone / "pyproject.toml"
    lines = project.read_text(encoding="utf-8")
    assert '"numpy>=2.0"' in lines
    project.write_text(lines.replace('"numpy>=2.0"', '"numpy>=99", "unheard-of"'), encoding="utf-8")
    done = make_env(clone, STAND_IN, CONDA_PREFIX=str(conda))
    assert done.returncode == 2
    assert f"{sys.prefix} lacks numpy>=99, unheard-of." in done.stderr
    assert "conda env update -f environment.yml" in done.stderr
    assert not (conda / ".installed").exists()


def test_without_a_network_it_says_that_this_step_needs_one(clone: Path, tmp_path: Path) -> None:
    """Under an environment of conda that is for other things."""
    conda = conda_environment(tmp_path / "conda", made_for_the_book=False)
    done = make_env(clone, STAND_IN, CONDA_PREFIX=str(conda))
    assert done.returncode == 2
    assert done.stdout.startswith("Installing the pinned packages into .venv: ")
    assert "needs a network" in done.stderr
    assert "HTTPS_PROXY" in done.stderr
    assert "PIP_INDEX_URL" in done.stderr
    assert not (clone / ".venv" / ".installed").exists()


def test_an_old_python_is_refused(clone: Path) -> None:
    done = make_env(clone, TOO_OLD)
    assert done.returncode == 2
    assert "Python 3.11 or newer is needed and none was found" in done.stderr
