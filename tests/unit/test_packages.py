"""What importing the packages and starting their commands brings, and what they work without."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpt_lml
from experiments import experiment, registry

HEAVY = ("torch", "numpy", "scipy", "transformers", "matplotlib")
ABSENT = ("transformers", "tokenizers", "datasets", "accelerate")
# Importing a None raises ImportError.
BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({ABSENT}))"
LEAN = """
import torch
import mpt_lml
from mpt_lml import PPCA, curves, data
import mpt_score
from mpt_score import networks
x = data.images("digits", "test").pixels
model = PPCA.fit_closed_form(x, 2)
curve = curves.sampled_curve(model, x, 2, generator=torch.Generator().manual_seed(0), sizes=[1, 64])
assert curve.score[0] > curve.score[1]
try:
    networks.load_small_bert()
except ImportError as error:
    print(error)
"""


def python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_ppca_needs_no_transformers_and_the_command_says_in_one_sentence_what_does(
    tmp_path: Path,
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("the sea\n")
    command = "from mpt_score.command import main\nsys.exit(main(sys.argv[1:]))"
    found = python(f"{BLOCKED}\n{LEAN}\n{command}", "sentences", path, "--model", "small-bert")
    assert found.returncode == 2, found.stderr[-2000:]
    assert found.stdout == (
        "this needs a network of transformers, which is not installed: pip install 'mpt-lml[score]'.\n"
    )
    assert found.stderr.startswith("mpt-score: ") and found.stderr.count("\n") == 1
    assert "pip install 'mpt-lml[score]'" in found.stderr


def test_scores_need_no_datasets_and_data_name_their_extra() -> None:
    program = """
import sys
sys.modules["datasets"] = None  # importing it raises ImportError
import mpt_score
from mpt_lml import data
print(mpt_score.pairs("small-bert", ["She was."], ["She were."]).num_passes.tolist())
try:
    data.images("mnist")
except data.DataNotFoundError as error:
    print(error)
"""
    found = python(program)
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.startswith("[1]\n") and "pip install 'mpt-lml[datasets]'" in found.stdout


def test_the_bridge_to_the_harness_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "mpt_score.lm_eval", raising=False)
    with pytest.raises(ImportError) as missing:
        importlib.import_module("mpt_score.lm_eval")
    assert str(missing.value) == (
        "this needs lm-evaluation-harness, which is not installed: pip install 'mpt-lml[eval]'."
    )


def test_figures_are_brought_when_used() -> None:
    program = "import sys, mpt_lml; heavy = {'matplotlib', 'transformers', 'sklearn'}"
    program += "; print(sorted(heavy & set(sys.modules)))"
    program += "; print(mpt_lml.plots.__name__)"
    found = python(program).stdout
    assert found == "[]\nmpt_lml.plots\n"


def turns(program: str, **own: str) -> int:
    """How often a waiting thread looks again before it sleeps: what libgomp says when loaded."""
    settings = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    rest = {name: value for name, value in os.environ.items() if name not in settings}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=rest | own | {"OMP_DISPLAY_ENV": "verbose"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stderr:  # it need not go on once that is said
            if said := re.search(r"GOMP_SPINCOUNT = '(\d+)'", line):
                process.kill()
                return int(said[1])
    assert process.returncode == 0
    pytest.skip("this torch brings another OpenMP library than GNU's")


@pytest.mark.parametrize(
    "program",
    ["import mpt_lml", "from mpt_score import tokens"],
)
def test_threads_that_wait_soon_sleep(program: str) -> None:
    assert turns(program) == 1000


@pytest.mark.parametrize("own", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "54321"}])
def test_a_setting_of_the_users_wins(own: dict[str, str]) -> None:
    assert turns("import mpt_lml", **own) > 50_000


def test_what_brings_matplotlib_comes_when_it_is_named() -> None:
    assert mpt_lml.__getattr__("plots").__name__ == "mpt_lml.plots"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        mpt_lml.__getattr__("nothing")


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
