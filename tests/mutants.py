"""Which small fault in the package would its tests not see? Mutation testing with cosmic-ray.

`make mutants` draws a sample of all faults that cosmic-ray.toml allows, puts one after the other into
a copy of the last commit, and runs the tests of the module that is broken: the file of its name, or
where there is none those that import it. Those that live are printed as a diff.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "_build" / "mutants"
SESSION = "mutants.sqlite"
# Modules whose tests stand, all or some, in files of other names.
ELSEWHERE = {
    "area": ("estimators",),
    "checks": ("checks", "bad_input", "masks"),
    "design": ("sentence_curves",),
    "estimate": ("sentence_scores",),
    "files": ("files", "fit"),
    "image_sets": ("data",),
    "paper": ("data",),
    "reading": ("reading", "sentence_scores", "pair_scores"),
    "remote": ("hub",),
    "scores": ("masks", "curves", "orders"),
    "words": ("token_scores", "answer_scores"),
}


def tests_of(module: Path, tests: Path) -> list[Path]:
    """The files of tests of ``module``; where none has its name, those that import it."""
    name = module.parent.name if module.stem == "__init__" else module.stem
    names = {f"test_{each}.py" for each in ELSEWHERE.get(name, (name,))}
    there = [path for path in sorted(tests.rglob("test_*.py")) if path.name in names]
    if there:
        return there
    imported = re.compile(rf"^\s*(?:from|import)\b.*\b{name}\b", re.MULTILINE)
    return [path for path in sorted(tests.rglob("test_*.py")) if imported.search(path.read_text())]


def run_tests_of_change() -> int:
    """In the copy: the tests of what differs from its commit, to the first that fails."""
    command = ["git", "diff", "--name-only", "--", "src"]
    changed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    files = {path for name in changed for path in tests_of(Path(name), Path("tests/unit"))}
    if not files:
        return 0  # no test would see it
    options = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not slow")
    return subprocess.run([sys.executable, "-m", "pytest", *options, *sorted(files)]).returncode


def keep_sample(number: int, seed: int) -> None:
    """Leave ``number`` of the session's faults; run by the Python that has cosmic-ray."""
    from cosmic_ray.work_db import WorkDB, use_db

    with use_db(SESSION, WorkDB.Mode.open) as session:
        faults = sorted(session.pending_work_items, key=lambda fault: str(fault.mutations))
        session.clear()  # skipped ones, too: a rate would count them as seen
        session.add_work_items(random.Random(seed).sample(faults, min(number, len(faults))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", nargs="?", default="all", choices=("all", "test", "sample"))
    parser.add_argument("--number", type=int, default=60, help="faults")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--most", type=float, default=25.0, help="percent that may live")
    options = parser.parse_args()
    if options.step == "test":
        return run_tests_of_change()
    if options.step == "sample":
        keep_sample(options.number, options.seed)
        return 0

    tools, copy = BUILD / "tools", BUILD / "copy"
    paths = [str(Path(sys.executable).parent), str(tools / "bin"), os.environ["PATH"]]
    sources = os.pathsep.join([str(copy / "src"), str(copy)])
    environment = os.environ | {"PYTHONPATH": sources, "PATH": os.pathsep.join(paths)}

    def run(*command: str | Path, inside: Path = copy) -> int:
        return subprocess.run([*map(str, command)], cwd=inside, env=environment).returncode

    if not (tools / "bin" / "cosmic-ray").exists():  # an environment of its own: it pins much
        run(sys.executable, "-m", "venv", tools, inside=ROOT)
        pins = ROOT / ".ci" / "pins" / "cosmic-ray.txt"
        run(tools / "bin" / "pip", "install", "-q", "--require-hashes", "-r", pins, inside=ROOT)
    run("rm", "-rf", copy, inside=ROOT)
    run("git", "clone", "-q", ROOT, copy, inside=ROOT)
    sample = ("--number", str(options.number), "--seed", str(options.seed))
    for command in (
        ("cosmic-ray", "init", "cosmic-ray.toml", SESSION),
        ("cr-filter-operators", SESSION, "cosmic-ray.toml"),
        (tools / "bin" / "python", "tests/mutants.py", "sample", *sample),
        ("cosmic-ray", "exec", "cosmic-ray.toml", SESSION),
    ):
        if status := run(*command):
            return status
    run("cr-report", "--surviving-only", "--show-diff", SESSION)
    return run("cr-rate", "--fail-over", str(options.most), SESSION)


if __name__ == "__main__":
    sys.exit(main())
