"""The page "Score your own text": its examples run as they are pasted, and its tables are true.

What needs an installation or a hub is left out: the blocks of lm-evaluation-harness and of
``evaluate``. The equals of minicons are compared with literal sums, as minicons and the network's
library cannot be installed together.
"""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import mpt_score
from mpt_score import networks
from mpt_score.command import main

PAGE = (Path(__file__).parents[3] / "book" / "scoring-guide.md").read_text(encoding="utf-8")
# The command only writes its arguments, so that it need not load torch again for every call.
HERE = f"""
mpt-score() {{ {sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@"; }}
"""


class Block(NamedTuple):
    language: str
    code: str
    output: str  # that the page shows below it; "" where it shows none


def blocks(first: str, last: str) -> list[Block]:
    """The code of the page between two of its headings, in its order."""
    text = PAGE[PAGE.index(f"\n## {first}\n") : PAGE.index(f"\n## {last}\n")]
    found: list[Block] = []
    for language, content in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if language == "text":
            found[-1] = found[-1]._replace(output=content)
        else:
            found.append(Block(language, content, ""))
    return found


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_model", None)


def paste(code: str) -> None:
    """Run code of a shell, whose ``mpt-score`` is this process's."""
    done = subprocess.run(["bash", "-euc", HERE + code], capture_output=True, text=True, check=True)
    for call in done.stdout.splitlines():
        assert main(json.loads(call)) == 0


def columns(path: Path) -> set[str]:
    with path.open(encoding="utf-8") as stream:
        return set(next(csv.reader(stream)))


def documented(kind: str) -> set[str]:
    """The columns that the page lists under one of its headings; what an option adds is behind them."""
    columns = PAGE[PAGE.index("\n## The columns\n") :]
    columns = columns[columns.index(f"\n### {kind}\n") :].partition("\n\n")[2].partition("\n\n")[0]
    first = re.findall(r"^\* (.*?):", columns, re.MULTILINE)
    return {name for cell in first for name in re.findall(r"`(\w+)`", cell)}


def test_the_examples_run_as_they_are_pasted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    scope: dict[str, Any] = {}
    for block in blocks("Get the number", "The columns"):
        capsys.readouterr()
        if block.language == "bash":
            paste(block.code)
        elif block.code.startswith("# my_model.py"):
            (folder / "my_model.py").write_text(block.code, encoding="utf-8")
        else:
            exec(block.code, scope)
        if block.output:
            # Two places are shown, and of other kernels the last of them may be another one.
            said = numbers(capsys.readouterr().out)
            assert said == pytest.approx(numbers(block.output), abs=0.011)

    for name, kind in (("scores", "sentences"), ("pairs", "pairs"), ("answers", "answers")):
        of_kind = documented("All records") | documented(kind.capitalize())
        assert of_kind == columns(folder / f"{name}.csv")
    assert {"item", "condition"} < columns(folder / "conditions.csv")
    with (folder / "own.csv").open(encoding="utf-8") as stream:
        of_function = [float(row["log_score"]) for row in csv.DictReader(stream)]
    with (folder / "scores.csv").open(encoding="utf-8") as stream:
        of_network = [float(row["log_score"]) for row in csv.DictReader(stream)]
    assert of_function == pytest.approx(of_network, rel=1e-5)
    assert scope["mean"] == 0 and scope["error"] == 0  # the same model twice
    # The command and Python make the same contrast of whole texts; names of a file's items are text.
    table = scope["table"]
    items = table["item"].astype(str)
    again = mpt_score.sentences(scope["model"], table.text, items=items)
    from_python = again.contrast(table.condition.map(scope["weight_of"]))
    assert scope["effect"].tolist() == pytest.approx(from_python.value.tolist(), rel=1e-6)


PROMPTS = ["The old man was", "She looked"]
OPTIONS = ["unaccountably asleep.", "tired."]


def literal_terms(text: str, start: int, *, within_word: bool) -> list[float]:
    """log q of each token that begins at ``start`` or later, one pass of the network each."""
    network, tokenizer = networks.load_small_bert()
    encoding = tokenizer(text, return_offsets_mapping=True)
    ids = torch.tensor(encoding["input_ids"])
    word = encoding.word_ids(0)
    terms = []
    for place, (begin, _) in enumerate(encoding["offset_mapping"]):
        if word[place] is None or begin < start:
            continue
        shown = ids.clone()
        for other in range(place, len(ids)):
            if other == place or (within_word and word[other] == word[place]):
                shown[other] = tokenizer.mask_token_id
        with torch.no_grad():
            log_q = network(shown[None]).logits[0, place].log_softmax(dim=-1)
        terms.append(log_q[ids[place]].item())
    return terms


def equals_of_minicons() -> list[tuple[str, str]]:
    """The rows of the page's table: what minicons is asked, and the expression here."""
    table = PAGE[PAGE.index("| minicons | here |") :].partition("\n\n")[0]
    rows = [line.split(" | ") for line in table.splitlines()[3:]]
    return [(minicons.strip("| "), here.strip("| `")) for minicons, here in rows]


@pytest.mark.parametrize(("minicons", "here"), equals_of_minicons())
def test_equals_of_minicons_are_literal_sums(minicons: str, here: str) -> None:
    texts = [f"{prompt} {option}" for prompt, option in zip(PROMPTS, OPTIONS, strict=True)]
    model = mpt_score.load(*networks.load_small_bert())
    known = {"mpt_score": mpt_score, "model": model, "prompts": PROMPTS, "options": OPTIONS}
    value = eval(here, known | {"texts": texts})

    starts = [0, 0]
    if "prompts" in here:
        starts = [len(prompt) for prompt in PROMPTS]
    terms = [
        literal_terms(text, start, within_word="within_word" in minicons)
        for text, start in zip(texts, starts, strict=True)
    ]
    is_sum = "token_score" not in minicons
    expected = [math.fsum(row) for row in terms] if is_sum else [*terms[0], *terms[1]]
    assert value.flatten().tolist() == pytest.approx(expected, abs=1e-4)


def test_calls_of_the_page_are_there() -> None:
    names = re.findall(r"mpt_score\.(\w+)\(", PAGE)
    assert names and all(hasattr(mpt_score, name) for name in names)
