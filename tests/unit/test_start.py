"""The commands start at once: names and help are read without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments import experiment, registry

HEAVY = ("torch", "numpy", "scipy", "transformers", "matplotlib")
ABSENT = "import sys; sys.modules.update(dict.fromkeys(('transformers', 'tokenizers')))"


def python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_names_complete_before_they_are_brought() -> None:
    done = python("import mpt_score, sys; print(*dir(mpt_score)); print('torch' in sys.modules)")
    names, has_torch = done.stdout.splitlines()
    assert {"load", "pairs", "sentences", "surprisals"} <= set(names.split())
    assert has_torch == "False"


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("experiments", ["list"]),
        ("experiments", ["run", "--help"]),
        ("mpt_score", ["--help"]),
        ("mpt_score", ["sentences", "--help"]),
        ("mpt_score", ["sentences", "--no-such-flag"]),
        ("mpt_score", ["sentences", "texts.txt", "--model", "small-bert", "--no-such-flag"]),
    ],
)
def test_names_and_help_bring_nothing_heavy(module: str, words: list[str]) -> None:
    program = f"""
import sys
from {module}.command import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("brought:", sorted(set({HEAVY}) & set(sys.modules)))
"""
    found = python(program, *words)
    assert found.returncode == 0, found.stderr
    assert found.stdout.endswith("brought: []\n")


def test_the_table_of_experiments_is_that_of_the_classes() -> None:
    for name, entry in registry.EXPERIMENTS.items():
        chosen = experiment.find(name)
        assert (name, entry.class_name) == (chosen.name, chosen.__name__)
        assert entry.title == (chosen.__doc__ or "").partition("\n")[0]
    named = {kind.name for kind in kinds(experiment.Experiment) if "name" in vars(kind)}
    assert named == set(registry.EXPERIMENTS)


def kinds(of: type) -> Iterator[type]:
    """Every kind of it that a module of the package defines."""
    for kind in of.__subclasses__():
        if kind.__module__.startswith("experiments."):
            yield kind
        yield from kinds(kind)


def test_the_command_says_in_one_sentence_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("the sea\n")
    program = f"{ABSENT}\nfrom mpt_score.command import main\nsys.exit(main(sys.argv[1:]))"
    found = python(program, "sentences", path, "--model", "small-bert")
    assert found.returncode == 2
    assert found.stderr.startswith("mpt-score: ") and found.stderr.count("\n") == 1
    assert "pip install 'mpt-lml[score]'" in found.stderr


def test_a_reader_who_has_had_enough_ends_a_list_in_silence() -> None:
    """As in ``python -m experiments list | head -n 1``: no traceback, and a status that says so."""
    reads, writes = os.pipe()
    os.close(reads)
    program = "from experiments.command import main; raise SystemExit(main(['list']))"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        stdout=writes,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writes)
    assert (ended.returncode, ended.stderr) == (1, "")
