"""The metric for ``evaluate``, by a stand-in for its interface and by itself where it is there."""

from __future__ import annotations

import importlib.util
import math
import sys
from importlib.resources import files
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_bert import LINES, tiny, tokenizer

import mpt_score
from mpt_lml.results import Estimate

FOLDER = Path(str(files("mpt_score") / "masked_log_score"))
INSTALLED = importlib.util.find_spec("evaluate") is not None
needs_evaluate = pytest.mark.skipif(not INSTALLED, reason="needs evaluate: make peers")


class Metric:
    """What ``evaluate.Metric`` does around ``_compute``, without its files."""

    def __init__(self) -> None:
        self.info = self._info()

    def compute(self, *, predictions: list[str], **options: Any) -> dict[str, Any]:
        assert list(self.info.features) == ["predictions"]
        return self._compute(predictions=predictions, **options)


@pytest.fixture(params=["stand-in", pytest.param("evaluate", marks=needs_evaluate)])
def metric(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    if request.param == "evaluate":
        import evaluate

        return evaluate.load(str(FOLDER), cache_dir=str(tmp_path / "cache"))
    stand_in = ModuleType("evaluate")
    vars(stand_in).update(Metric=Metric, MetricInfo=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "evaluate", stand_in)
    place = FOLDER / "masked_log_score.py"
    spec = importlib.util.spec_from_file_location("masked_log_score", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MaskedLogScore()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    tiny().float().save_pretrained(tmp_path / "network")
    tokenizer().save_pretrained(tmp_path / "network")
    return str(tmp_path / "network")


def test_numbers_of_scores_that_are_written_down(
    metric: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two texts with 2 and 4 tokens."""
    scores = SimpleNamespace(
        log_score=torch.tensor([-4.0, -12.0]).double(),
        standard_error=torch.tensor([1.0, 3.0]).double(),
        num_tokens=torch.tensor([2, 4]),
        mean=lambda unit: {"byte": Estimate(1.5, 0.25)}[unit],
    )
    monkeypatch.setattr(mpt_score, "load", lambda *_, **options: SimpleNamespace(name="a model"))
    monkeypatch.setattr(mpt_score, "sentences", lambda *_, **options: scores)
    found = metric.compute(predictions=["the cat", "a dog sat."], model_id="folder")
    assert found == {
        "log_scores": [-4.0, -12.0],
        "log_scores_per_token": [-2.0, -3.0],
        "standard_errors_per_token": [0.5, 0.75],
        "num_tokens": [2, 4],
        "perplexities": pytest.approx([math.exp(2), math.exp(3)]),
        "mean_perplexity": pytest.approx((math.exp(2) + math.exp(3)) / 2),
        "mean_perplexity_error": pytest.approx((math.exp(3) - math.exp(2)) / 2),
        "bits_per_byte": 1.5,
        "bits_per_byte_error": 0.25,
        "model": "a model",
    }


def test_one_text_has_no_error_over_texts(metric: Any, folder: str) -> None:
    found = metric.compute(predictions=["the cat sat"], model_id=folder, device="cpu")
    assert found["standard_errors_per_token"] == [0.0]  # seven masks are all there are
    assert found["mean_perplexity_error"] is None and found["bits_per_byte_error"] is None


def test_a_loaded_model_is_taken_as_it_is(metric: Any, folder: str) -> None:
    """With its own bound on a row's length, which cuts the texts into windows."""
    scorer = mpt_score.load(folder, device="cpu", max_length=4)
    found = metric.compute(predictions=list(LINES), model_id=scorer)
    whole = metric.compute(predictions=list(LINES), model_id=folder, device="cpu")
    wanted = mpt_score.sentences(scorer, LINES).log_score
    torch.testing.assert_close(torch.tensor(found["log_scores"]).double(), wanted)
    assert found["log_scores"] != whole["log_scores"]
