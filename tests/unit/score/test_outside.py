"""Models from a user's own module, by a stand-in of LLaDA's kind in a temporary folder."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_bert import tokenizer

import mpt_score
from mpt_score.command import main
from mpt_score.outside import is_outside_name, outside_model

LLADA = '''
"""A bidirectional network whose answer holds logits at each token's own place."""

import torch
from types import SimpleNamespace

MASK_ID = 4  # 126336 in the published one


class Llada(torch.nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randn(12, 12, generator=generator, dtype=torch.float64)

    def forward(self, ids):
        mixed = self.table[ids].mean(dim=1, keepdim=True)
        return SimpleNamespace(logits=self.table[ids] + torch.tanh(mixed))


network = Llada()


def log_probabilities(ids, mask):
    logits = network(ids.masked_fill(mask, MASK_ID)).logits
    return logits.log_softmax(dim=-1)


def build(which="base"):
    return log_probabilities


def scorer():
    import mpt_score
    return mpt_score.load(log_probabilities, TOKENIZER)


def reads_what_it_scores(ids, mask):
    return network(ids).logits.log_softmax(dim=-1)


def logits(ids, mask):
    return network(ids.masked_fill(mask, MASK_ID)).logits


def with_tokenizer():
    return log_probabilities, TOKENIZER


def three(ids, mask, time):
    return None


def broken():
    return undefined_name


def fails_when_asked(ids, mask):
    return network(ids).scores


def of_three_places(ids, mask):
    places = torch.arange(ids.shape[1])
    return log_probabilities(ids, mask) + torch.zeros(3)[places][:, None]


nothing = 3


def of_nothing():
    return None
'''
TEXTS = ["the cat sat", "a dog sat the cat."]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with ``my_llada.py`` and a tokenizer in it."""
    code = f"{LLADA}\nTOKENIZER = {str(tmp_path / 'words')!r}\n"
    (tmp_path / "my_llada.py").write_text(code)
    (tmp_path / "my_fault.py").write_text("import torch\n1 / 0\n")
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text("\nimport my_missing_library\n")
    (tmp_path / "my_package" / "models.py").write_text("def build(): return None\n")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    tokenizer().save_pretrained(tmp_path / "words")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    yield tmp_path
    for name in ("my_llada", "my_layers", "my_fault", "my_package"):
        sys.modules.pop(name, None)


def literal(text: str) -> float:
    """The mean of log p_π over all orders, one pass for each step of each."""
    from my_llada import log_probabilities

    (ids,) = tokenizer()([text], return_tensors="pt")["input_ids"]
    places = range(1, len(ids) - 1)  # between [CLS] and [SEP]
    totals = []
    for order in itertools.permutations(places):
        hidden = torch.isin(torch.arange(len(ids)), torch.tensor(places))
        total = 0.0
        for place in order:
            total += log_probabilities(ids[None], hidden[None])[0, place, ids[place]].item()
            hidden[place] = False
        totals.append(total)
    return math.fsum(totals) / len(totals)


@pytest.mark.parametrize("name", ["log_probabilities", "build", "with_tokenizer", "scorer"])
def test_scores_of_a_function_and_of_a_factory(folder: Path, name: str) -> None:
    words = "words" if name in ("log_probabilities", "build") else None
    scores = mpt_score.sentences(f"my_llada:{name}", TEXTS[:1], tokenizer=words)
    assert scores.log_score.item() == pytest.approx(literal(TEXTS[0]), abs=1e-10)


def test_the_command_takes_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert named('identity = "first"', folder)
    command = ["sentences", "texts.txt", "--model", "my_llada:build", "--tokenizer", "words"]
    assert main([*command, "--max-length", "9", "--max-tokens", "27", "--out", "out.jsonl"]) == 0
    row = json.loads((folder / "out.jsonl").read_text().splitlines()[0])
    assert row["log_score"] == pytest.approx(literal(TEXTS[0]), abs=1e-10)
    assert row["model"] == "my_llada:build"
    run = json.loads((folder / "out.jsonl.state").read_text())["run"]
    assert run["function"].startswith("my_llada:build, ") and run["max_length"] == 9


def named(code: str, folder: Path) -> str | None:
    """The identity of ``my_llada:build`` when ``code`` stands at the end of its module."""
    path = folder / "my_llada.py"
    path.write_text(f"{LLADA}\n{code}\n")
    os.utime(path, (0, path.stat().st_mtime + len(code)))  # Python compares times by seconds
    for name in ("my_llada", "my_layers"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return outside_model("my_llada:build").identity


def test_an_identity_is_named_and_goes_with_the_source(folder: Path) -> None:
    """By the function that answers, by the factory or by the module; by none, there is none."""
    assert named("", folder) is None
    assert mpt_score.load("my_llada:build", "words").identity is None
    assert named("identity = 3", folder) is None
    texts = ['identity = "first"', 'identity = "second"', 'identity = "second"  # and a change']
    identities = [named(text, folder) for text in texts]
    assert len(set(identities)) == 3 and None not in identities
    assert named(texts[0], folder) == identities[0]
    for owner in ("build", "log_probabilities"):
        identity = named(f'identity = "module"\n{owner}.identity = "its own"', folder)
        assert identity is not None and identity.startswith("my_llada:build, its own, ")
    scorer = mpt_score.load("my_llada:build", "words")
    assert scorer.identity is not None and scorer.identity["function"] == identity


LAZY = """
def build():
    return imports_when_called

def imports_when_called(ids, mask):
    assert ids.shape == mask.shape and ids.ndim == 2
    import my_layers
    return log_probabilities(ids, mask)
"""


@pytest.mark.parametrize("imports", ["import my_layers", LAZY], ids=["at once", "when called"])
@pytest.mark.parametrize(("place", "is_users"), [(".", True), ("site-packages", False)])
def test_modules_beside_it_are_part_of_the_source_and_installed_ones_are_not(
    folder: Path, place: str, is_users: bool, imports: str
) -> None:
    code = f'import sys\nsys.path.insert(0, "{place}")\n{imports}\nidentity = "first"'
    (folder / place).mkdir(exist_ok=True)
    identities = []
    for width in (8, 16, 8):
        (folder / place / "my_layers.py").write_text(f"WIDTH = {width}\n")
        identities.append(named(code, folder))
    assert identities[0] == identities[2]
    assert (identities[0] != identities[1]) == is_users


def test_the_order_in_which_modules_were_loaded_is_no_part_of_the_source(folder: Path) -> None:
    (folder / "my_layers.py").write_text("WIDTH = 8\n")
    identity = named('import my_layers\nidentity = "first"', folder)
    sys.modules["my_layers"] = sys.modules.pop("my_layers")  # behind the one that imports it
    assert outside_model("my_llada:build").identity == identity


def test_a_function_that_fails_is_made_and_says_so_when_it_is_asked_of_texts(folder: Path) -> None:
    assert named('identity = "first"\nbuild = fails_when_asked', folder) is not None


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_lama:build", "there is no module my_lama, neither in .* nor installed"),
        ("my_lama.sub.models:build", "there is no module my_lama.sub.models"),
        ("my_llada.sub:build", "there is no module my_llada.sub"),
        ("my_llada:bild", r"my_llada has no bild \(its functions: broken, build, fails"),
        ("my_llada:three", r"must be a function \(ids, mask\).* it needs \(ids, mask, time\)"),
        ("my_llada:nothing", r"must be a function \(ids, mask\).*got int"),
        ("my_llada:of_nothing", r"must be a function \(ids, mask\).*got NoneType"),
        ("my_llada:broken", r"NameError in .*my_llada.py, line \d+: name 'undefined_name'"),
        (
            "my_package.models:build",
            r"ModuleNotFoundError in .*__init__.py, line 2: No module named 'my_missing_library'",
        ),
        ("my_fault.models:build", r"ZeroDivisionError in .*my_fault.py, line 2: division by zero"),
        ("my_fault:build", r"ZeroDivisionError in .*my_fault.py, line 2: division by zero"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_place(
    folder: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        outside_model(name)
    assert main(["sentences", "texts.txt", "--model", name, "--tokenizer", "words"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and said.startswith("mpt-score: ")


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["reads_what_it_scores", "logits"])
def test_a_function_that_answers_something_else_is_refused(folder: Path, name: str) -> None:
    pieces: Any = tokenizer()
    pieces.mask_token = None  # LLaDA's tokenizer has none: the function sees what it hides
    with pytest.raises(ValueError, match="the function"):
        mpt_score.sentences(f"my_llada:{name}", TEXTS, tokenizer=pieces)


@pytest.mark.bad_input
def test_a_function_that_fails_says_where(folder: Path, capsys) -> None:
    name = "my_llada:fails_when_asked"
    assert main(["sentences", "texts.txt", "--model", name, "--tokenizer", "words"]) == 2
    said = capsys.readouterr().err
    assert f"{name}, asked of (1, 5) ids: AttributeError in" in said and "my_llada.py, line" in said


@pytest.mark.bad_input
def test_a_row_that_is_too_long_for_a_function(folder: Path, capsys) -> None:
    name = "my_llada:of_three_places"
    assert main(["sentences", "texts.txt", "--model", name, "--tokenizer", "words"]) == 2
    said = capsys.readouterr().err
    assert "rows of 5 tokens are too long for it, give max_length= (--max-length)" in said
    assert "mask (1, 5), bool" in said


@pytest.mark.bad_input
def test_strings_need_a_tokenizer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sentences", "texts.txt", "--model", "my_llada:build"]) == 2
    assert "give a tokenizer (--tokenizer" in capsys.readouterr().err


def test_names_of_this_form() -> None:
    assert is_outside_name("a.b:c")
    for name in (
        "google-bert/bert-base-uncased",
        "a:b:c",
        "C:\\models",
        "a/b:c",
        "a:",
        Path("a:b"),
    ):
        assert not is_outside_name(name)
