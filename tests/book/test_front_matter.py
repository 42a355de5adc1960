"""Front matter says what is so: quoted messages are the package's, the cover is its script's."""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from api_docs import public_modules

import mpt_lml
import mpt_score
from mpt_lml import PPCA, curves, data, drawings, plots
from mpt_lml.data import sources
from mpt_score import networks

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"


def _model(num_features: int = 10) -> PPCA:
    g = torch.Generator().manual_seed(0)
    return PPCA(torch.randn(num_features, 2, generator=g, dtype=torch.float64), 0.2)


def _data(num_features: int = 10) -> torch.Tensor:
    return _model(num_features).sample(3, generator=torch.Generator().manual_seed(1))


def _long_sentence():
    return mpt_score.curve(networks.small_bert_folder(), ["the"] * 3 + ["the " * 78])


MISTAKES = [
    lambda: _model().log_conditional(_data(), torch.ones(1, 10, dtype=torch.int64)),
    lambda: _model().log_conditional(_data(), torch.ones(10, dtype=torch.bool)),
    lambda: _model().log_marginal(_data().float()),
    lambda: curves.exact_curve(_model(50), _data(50)),
    lambda: data.images("mnist"),
    _long_sentence,
]


def _quoted_messages() -> list[str]:
    text = (BOOK / "how-to-run.md").read_text(encoding="utf-8")
    section = text[text.index("## When something goes wrong") :]
    return re.findall(r"^`(.+)`\n: ", section, re.M)


def test_the_messages_quoted_are_those_the_package_raises(monkeypatch):
    monkeypatch.delenv(sources.DATA_VARIABLE, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    raised = []
    for mistake in MISTAKES:
        with pytest.raises((TypeError, ValueError, FileNotFoundError)) as caught:
            mistake()
        raised.append(str(caught.value))
    # Those with an ellipsis need a broken file or folder and are tested with the package.
    quoted = [message for message in _quoted_messages() if "…" not in message]
    assert len(quoted) == len(MISTAKES)
    for message in quoted:
        assert any(text.startswith(message) for text in raised), message


def test_the_examples_of_how_to_run_run() -> None:
    text = (BOOK / "how-to-run.md").read_text(encoding="utf-8")
    scope: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        exec(code, scope)
    assert scope["run"].seconds > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # matplotlib's, of tensors
@pytest.mark.parametrize("name", ["cover", "bert-base"])
def test_a_picture_of_its_own_is_what_its_script_draws(tmp_path, monkeypatch, name: str):
    target = tmp_path / f"{name}.svg"
    kind = ["bert"] if name == "bert-base" else []
    monkeypatch.setattr(sys, "argv", ["cover.py", *kind, str(target)])
    with mpl.rc_context():
        runpy.run_path(str(BOOK / "_tools" / "cover.py"), run_name="__main__")
    plt.close("all")
    # Other versions of matplotlib write other bytes; the points of the curve are the same.
    assert _points(target) == pytest.approx(_points(BOOK / "_static" / f"{name}.svg"), abs=0.5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # matplotlib's, of tensors
def test_the_picture_of_the_epilogue_is_what_its_script_draws(tmp_path, monkeypatch):
    """The same arrows, and for those who do not see it the same words."""
    target = tmp_path / "links.svg"
    monkeypatch.setattr(sys, "argv", ["cover.py", "links", str(target)])
    drawn: list[str] = []
    write = drawings.write
    monkeypatch.setattr(
        drawings, "write", lambda words, **options: (drawn.append(words), write(words, **options))
    )
    with mpl.rc_context():
        runpy.run_path(str(BOOK / "_tools" / "cover.py"), run_name="__main__")
    plt.close("all")
    stored = (BOOK / "_static" / "links.svg").read_text(encoding="utf-8")
    for color in ("#009e73", "#d55e00", "#bbbbbb"):  # proved, seen once, hoped
        assert target.read_text(encoding="utf-8").count(color) == stored.count(color) > 0
    said = (BOOK / "epilogue.md").read_text(encoding="utf-8").lower()
    assert len(drawn) == 13  # five stations, and two lines at each of four links
    for words in drawn:
        assert words.rstrip(":").lower() in said, words


def _points(path: Path) -> list[float]:
    """Coordinates of the curve, the only open line of PPCA's blue or BERT-base's pink, and of marks."""
    text = path.read_text(encoding="utf-8")
    model = "bert-base" if path.stem == "bert-base" else "ppca"
    color = plots.COLORS[model].lower()
    (line,) = re.findall(rf'<path d="([^"]+)"[^>]*style="fill: none; stroke: {color}', text)
    marks = re.findall(r'<use xlink:href="#m\w+" x="([\d.]+)" y="([\d.]+)"', text)
    return [float(number) for number in [*re.findall(r"-?\d+\.?\d*", line), *chain(*marks)]]


@pytest.mark.parametrize("package", [mpt_lml, mpt_score])
def test_a_package_page_shows_every_public_class_and_function(site: Path, package) -> None:
    name = package.__name__
    html = (site / "book" / f"api-{name.replace('_', '-')}.html").read_text(encoding="utf-8")
    owners = list(public_modules(package))
    shown = [getattr(owner, name) for owner in owners for name in owner.__all__]
    shown = [each for each in shown if inspect.isclass(each) or inspect.isroutine(each)]
    assert shown
    for each in shown:
        assert f'id="{each.__module__}.{each.__qualname__}"' in html, each


def test_the_status_page_has_a_time_for_every_chapter(site: Path, book):
    html = (site / "book" / "status.html").read_text(encoding="utf-8")
    for page in book.chapters:
        name = page.docname.rpartition("/")[2]
        row = rf'href="{name}.html"[^\n]+</td>\n<td><p>[-\d: ]+</p></td>\n<td><p>\w+</p></td>\n'
        assert re.search(rf"{row}<td><p>\d+\.\d+</p></td>\n<td><p>✅", html), name
