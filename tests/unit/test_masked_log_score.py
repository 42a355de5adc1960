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


def test_its_numbers_are_those_of_the_library(metric: Any, folder: str) -> None:
    found = metric.compute(predictions=list(LINES), model_id=folder, device="cpu")
    scores = mpt_score.sentences(mpt_score.load(folder, device="cpu"), LINES)
    per_token = scores.log_score / scores.num_tokens
    torch.testing.assert_close(torch.tensor(found["log_scores_per_token"]).double(), per_token)
    assert found["num_tokens"] == scores.num_tokens.tolist()
    perplexities = [math.exp(-value) for value in per_token.tolist()]
    assert found["perplexities"] == pytest.approx(perplexities)
    mean = math.fsum(perplexities) / len(LINES)
    assert found["mean_perplexity"] == pytest.approx(mean)
    squares = math.fsum((each - mean) ** 2 for each in perplexities)
    error = math.sqrt(squares / (len(LINES) - 1) / len(LINES))
    assert found["mean_perplexity_error"] == pytest.approx(error)
    assert found["bits_per_byte"] == pytest.approx(float(scores.mean("byte")))
    assert found["bits_per_byte_error"] == pytest.approx(scores.mean("byte").standard_error)
    assert found["model"] == folder


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
