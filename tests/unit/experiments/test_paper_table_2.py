"""The authors' stored curves of BERT-base: what is in the file, and what is read off a curve."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest
import torch
from models import generator
from tiny_bert import tokenizer

from experiments import experiment, ledger
from experiments.paper import table_2
from experiments.paper.table_2 import SETS, shape
from mpt_lml import data
from mpt_lml.files import read_json
from mpt_score import tokens

ROOT = Path(__file__).parents[3]


def test_the_file_is_the_one_with_the_stated_origin() -> None:
    found = data.published_curves()
    assert list(found) == [f"{kind}/{name}" for kind in ("random", "pretrained") for name in SETS]
    assert all(each.shape == (99,) and torch.isfinite(each).all() for each in found.values())
    assert found["random/ax"][0].item() == -10.349201202392578  # the file's own digits, float32
    assert found["pretrained/mrpc"][0].item() == -2.857248306274414
    readme = (ROOT / "book/results/published_curves/README.md").read_text(encoding="utf-8")
    assert "0b2dd6d7b61eb3907724f5c8f45eb31be532a1e4" in readme and "MIT" in readme


@pytest.mark.bad_input
def test_a_file_that_was_changed_is_refused(tmp_path: Path, monkeypatch) -> None:
    content = (ROOT / "book/results/published_curves/bert_base.csv").read_text()
    path = tmp_path / "bert_base.csv"
    monkeypatch.setattr("mpt_lml.data.paper.book_file", lambda _: path)
    path.write_text(content.replace("\n", "\r\n"))
    assert len(data.published_curves()) == 10
    for changed in ("", content[: len(content) // 2], content.replace("-5", "-4")):
        path.write_text(changed)
        with pytest.raises(data.CorruptDataError, match=r"bert_base.csv is not the published file"):
            data.published_curves()


def test_the_file_travels_with_the_package() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    taken = wheel["targets"]["wheel"]["force-include"]
    assert taken["book/results"] == "mpt_lml/book/results"


def test_table_2_prints_the_stored_areas_cut_in_four_of_five_cases_that_can_tell() -> None:
    cut_printed, rounded_printed = [], []
    outcome = experiment.run("published-curves")
    for kind in ("random", "pretrained"):
        for name in SETS[:4]:  # SST-2 is in the files and not in the table
            key, (value,) = f"{kind}/{name}", ledger.published([f"table-2/{kind}-{name}"])
            printed = f"{value:.2f}"
            by_hand = 512 * 0.01 * sum(data.published_curves()[key].tolist())
            assert outcome.arrays[f"area/{key}"].item() == pytest.approx(by_hand, rel=1e-12)
            cut, rounded = f"{math.trunc(100 * by_hand) / 100:.2f}", f"{by_hand:.2f}"
            assert printed in (cut, rounded), key
            if cut != rounded:
                (cut_printed if printed == cut else rounded_printed).append(key)
    assert rounded_printed == ["random/ax"] and len(cut_printed) == 4
    assert outcome.findings["table-2-cut-digits"].measured == 4


def test_shapes_on_curves_that_are_known() -> None:
    rate = torch.arange(1, 100, dtype=torch.float64)
    line, level = -1.0 - 0.05 * rate, torch.full_like(rate, -10.0)
    found = shape(line, level)
    assert found["tail"].item() == pytest.approx(14 / 98)
    assert found["crossover"].item() == pytest.approx(50.0)
    assert found["bias"][0].item() == pytest.approx(506.88 * 0.05 * 35)
    assert found["flatness"] == 0.0
    assert shape(10 * line, line)["flatness"].item() == pytest.approx(0.1)
    kink = torch.where(rate <= 85, -1.0, -1.0 - (rate - 85))  # level, then falls: all tail
    assert shape(kink, level)["tail"].item() == pytest.approx(1.0)
    late = shape(-1.0 - math.exp(-8.0) * torch.exp(rate / 10), level)
    assert late["tail"] > 0.29 and late["crossover"] > 60


def test_findings_are_the_least_favorable_of_the_four_printed_sets() -> None:
    outcome = experiment.run("published-curves")
    arrays, found = outcome.arrays, outcome.findings
    four = ("ax", "cola", "qnli", "mrpc")
    assert found["fig-5-right-tail"].measured == min(arrays[f"tail/{name}"] for name in four)
    assert found["fig-5-right-flat"].measured == max(arrays[f"flatness/{name}"] for name in four)
    assert found["crossover/bert-base"].measured == pytest.approx(
        sum(arrays[f"crossover/{name}"].item() for name in SETS) / 500
    )
    stored = read_json(ROOT / "book" / "results" / "published-curves.json")
    assert stored["data_sha256"] == outcome.data_sha256


def test_repetition_of_tokens() -> None:
    text = tokens.encode(tokenizer(), ["the the", "a dog"])
    assert math.isclose(table_2.repetition(text), 0.5**2 + 0.25**2 + 0.25**2)


def drawn(own: int, sets: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One network a set, twelve on all sets with a correlation of 0.7, sentences of error 0.5."""
    g = generator(own)
    kind = {"generator": g, "dtype": torch.float64}
    spread = torch.tensor([1.0, 2.0, 3.0, 4.0])[:sets, None].double()
    common = torch.randn(1, 12, **kind)
    areas = spread * (math.sqrt(0.7) * common + math.sqrt(0.3) * torch.randn(sets, 12, **kind))
    error = 0.5 * spread[:, 0]
    published = spread[:, 0] * torch.randn(sets, **kind) + error * torch.randn(sets, **kind)
    return published, areas, error


def test_the_joint_p_is_a_p_value() -> None:
    """Where nothing is wrong it is uniform: below 0.1 in a tenth of cases, 0.25 in a quarter."""
    found = torch.tensor([table_2.joint_p(*drawn(k), num_draws=2000)[0] for k in range(400)])
    for level in (0.1, 0.25, 0.5):
        share, error = (found < level).double().mean().item(), math.sqrt(level * (1 - level) / 400)
        assert abs(share - level) < 4 * error, level
    published, areas, error = drawn(1)
    assert table_2.joint_p(areas.mean(dim=1), areas, error)[0] == 1.0
    assert table_2.joint_p(published + 40, areas, error)[0] < 0.001


def test_the_recorded_row_has_a_joint_p_of_one_to_two_percent() -> None:
    stored = read_json(Path(__file__).parents[3] / "book" / "results" / "table-2.json")
    arrays = {name: torch.tensor(value).double() for name, value in stored["arrays"].items()}
    found = table_2.Table2().findings(arrays)
    assert 0.01 < found["table-2/random"].measured < 0.02
    for name, rel in (("table-2/random", 0.1), ("random-bert-flat", 1e-3)):
        recorded = stored["findings"][name]["measured"]
        assert found[name].measured == pytest.approx(recorded, rel=rel)
