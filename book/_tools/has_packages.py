"""Names the packages of pyproject.toml that the book needs and that this Python lacks."""

import importlib.metadata
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
EXTRAS = ("book", "score")


def requirements(project: dict, *extras: str) -> Iterator[Requirement]:
    """The project's requirements with these extras, and with the extras that they name in turn."""
    optional = project["optional-dependencies"]
    listed = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    for requirement in map(Requirement, listed):
        if requirement.name == project["name"]:
            yield from map(
                Requirement, (line for extra in requirement.extras for line in optional[extra])
            )
        else:
            yield requirement


def is_installed(requirement: Requirement) -> bool:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)


def main() -> int:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    missing = [str(each) for each in requirements(project, *EXTRAS) if not is_installed(each)]
    if not missing:
        return 0
    print(
        f"make: the conda environment {sys.prefix} lacks {', '.join(missing)}. Bring it up to date by "
        "`conda env update -f environment.yml`, or leave it (`conda deactivate`) for a .venv.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
