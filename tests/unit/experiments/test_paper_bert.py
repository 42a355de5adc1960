"""Curves of BERTs as experiments: any network on any sentences, which rate is right."""

from __future__ import annotations

import dataclasses
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
import torch
from models import generator
from tiny_bert import tiny, tokenizer
from transformers import BertForMaskedLM

from experiments import command, experiment
from experiments.experiment import RunContext
from experiments.paper import bert
from experiments.records import CheckpointMismatchError
from mpt_lml.data import published_curves
from mpt_lml.files import read_json
from mpt_lml.recorded import Finding
from mpt_score import Design, MaskedLM, SentenceCurves, networks, texts
from mpt_score.networks.hub import BERT_BASE, BERT_BASE_COMMIT

LINES = ["the cat sat", "a dog", "the dogs sat.", "a cat sat the", "cats.", "the cat a dog sat"]


@dataclass(frozen=True)
class Place:
    """A small checkpoint, a file of sentences, and folders for the state and the result."""

    folder: Path

    @property
    def network(self) -> Path:
        return self.folder / "network"

    @property
    def lines(self) -> Path:
        return self.folder / "lines.txt"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def call(self, name: str = "bert-curve", **changes: object) -> list[str]:
        """The command, with settings in place of the usual ones."""
        rates = "10,30,50,70,90"
        usual = {"model": self.network, "rates": rates, "data_sets": self.lines}
        words = ["run", name, "--out", str(self.folder / "out"), "--checkpoints", str(self.state)]
        for setting, value in (usual | changes).items():
            words += ["--set", f"{setting}={value}"]
        return words

    def run(self, **changes: object) -> dict:
        """What the command writes."""
        assert command.main(self.call(**changes)) == 0
        (path,) = (self.folder / "out").iterdir()
        content = read_json(path)
        path.unlink()
        return content


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    tiny().float().save_pretrained(made.network)
    tokenizer().save_pretrained(made.network)
    made.lines.write_text("\n".join([*LINES * 6, "", "  "]) + "\n", encoding="utf-8")
    return made


def test_it_writes_the_curve_with_its_settings(place: Place) -> None:
    found = place.run()
    assert found["config"]["rates"] == [10, 30, 50, 70, 90]
    # A sentence of one word piece has no curve: "cats." is two, so that all 36 stay.
    assert found["arrays"][f"num_features/{place.lines}"] == pytest.approx(22 / 6)
    score = found["arrays"][f"curve/trained/{place.lines}"]
    (per_token, _), _, (paper, _) = found["arrays"][f"area/trained/{place.lines}"]
    assert per_token == pytest.approx(sum(score) / 5)
    assert paper == pytest.approx(506.88 * per_token)
    assert found["weights"] == {"name": str(place.network), "revision": None, "sha256": mock.ANY}


def test_fifteen_percent_is_a_score_and_no_area(place: Place) -> None:
    arrays = place.run(rates=15)["arrays"]
    assert not any(name.startswith(("area", "mean_rate")) for name in arrays)
    assert len(arrays[f"curve/trained/{place.lines}"]) == 1


def test_it_goes_on_where_it_was_stopped(place: Place, monkeypatch, capsys) -> None:
    wanted = place.run()
    rates = (10, 30, 50, 70, 90)
    data_sets = (str(place.lines),)
    model = str(place.network)
    kept_nothing = experiment.run("bert-curve", model=model, rates=rates, data_sets=data_sets)
    for name, values in kept_nothing.arrays.items():
        stored = torch.tensor(wanted["arrays"][name], dtype=torch.float64)
        torch.testing.assert_close(values.double(), stored, rtol=1e-7, atol=0)  # eight digits
    shutil.rmtree(place.state)
    straight, count = MaskedLM.ask, 0

    def stops(*args: object, **options: object) -> object:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return straight(*args, **options)

    monkeypatch.setattr(MaskedLM, "ask", stops)
    assert command.main(place.call()) == 130
    assert f"the same command goes on from {place.state}" in capsys.readouterr().err
    assert list(place.state.rglob("part-*.safetensors"))
    assert not list((place.folder / "out").iterdir())
    monkeypatch.setattr(MaskedLM, "ask", straight)
    assert place.run()["arrays"] == wanted["arrays"]
    # Weights saved in place are other weights, and other sentences are other sentences.
    place.lines.write_text(place.lines.read_text() + "a dog sat\n")
    assert command.main(place.call()) == 2
    place.lines.write_text("\n".join(LINES * 6))
    tiny("modern").float().save_pretrained(place.network)
    assert command.main(place.call()) == 2
    assert capsys.readouterr().err.count("belongs to another configuration: its ") == 2


def test_long_sentences_are_left_out(place: Place, capsys) -> None:
    wanted = place.run()["arrays"]
    shutil.rmtree(place.state)
    place.lines.write_text(place.lines.read_text() + "the cat " * 10 + "\n")
    assert place.run()["arrays"].keys() == wanted.keys()
    shutil.rmtree(place.state)
    place.lines.write_text("the cat " * 10 + "\n")
    assert command.main(place.call()) == 2
    assert f"all 1 sentences of {place.lines} are longer than 16 tokens" in capsys.readouterr().err


def test_a_pinned_revision_is_recorded(place: Place, tmp_path: Path, monkeypatch) -> None:
    """A hub's cache as it lies on disk, so that a name is resolved without a network."""
    pinned = BERT_BASE_COMMIT
    home = tmp_path / "hub" / "models--google-bert--bert-base-uncased"
    shutil.copytree(place.network, home / "snapshots" / pinned)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert place.run(model=BERT_BASE)["weights"]["revision"] == pinned
    network = networks.load_network(BERT_BASE, revision=pinned)
    assert isinstance(network, BertForMaskedLM)


def test_the_books_own_network_needs_no_network(monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = experiment.run("bert-curve", "quick", rates=(15, 85)).arrays
    # Four sentences: the trained network is two nats a token better, not by chance.
    assert found["curve/trained/written"].mean() > found["curve/random/written"].mean() + 2


def test_the_published_network_is_the_default() -> None:
    found = bert.PreTrained()
    assert found.model == BERT_BASE and len(found.rates) == 99


@pytest.mark.bad_input
class TestRefusals:
    def refused(self, call: list[str], capsys) -> str:
        assert command.main(call) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        return message

    @pytest.mark.parametrize("written", ["0,99", "5,101", "50,10", "15%"])
    def test_rates_that_are_none(self, place: Place, written: str, capsys) -> None:
        assert "rate" in self.refused(place.call(rates=written), capsys)

    def test_table_2_without_an_area(self, place: Place, capsys) -> None:
        message = self.refused(place.call("table-2-pretrained", rates=15), capsys)
        assert "the mean over the rates (0.15,) is no area" in message

    def test_text_that_is_not_there(self, place: Place, capsys) -> None:
        place.lines.write_text("\n \n")
        assert "is empty: it has no line of text" in self.refused(place.call(), capsys)
        message = self.refused(place.call(data_sets="nowhere.txt"), capsys)
        assert "unknown sentences 'nowhere.txt'; there are written, glue/ax" in message
        place.lines.write_bytes(b"\xff\xfe\x00a")
        assert "is not UTF-8 text" in self.refused(place.call(), capsys)

    def test_a_folder_that_is_no_checkpoint(self, place: Place, tmp_path, capsys) -> None:
        (tmp_path / "empty").mkdir()
        message = self.refused(place.call(model=tmp_path / "empty"), capsys)
        assert "no config.json" in message

    def test_pickles(self, place: Place, capsys) -> None:
        (place.network / "model.safetensors").unlink()
        torch.save(tiny().state_dict(), place.network / "pytorch_model.bin")
        message = self.refused(place.call(), capsys)
        assert "no *.safetensors (it holds config.json, pytorch_model.bin" in message

    def test_no_network_is_one_line(self, place: Place, monkeypatch, capsys) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        message = self.refused(place.call(model=BERT_BASE), capsys)
        assert "Are there a network" in message and "made by save_pretrained" in message

    def test_a_name_without_a_revision(self, place: Place, capsys) -> None:
        message = self.refused(place.call(model="someone/bert"), capsys)
        assert "No folder is called that" in message


def made_up(num_sentences: int, noise: float) -> SentenceCurves:
    """S(r) = −1 − 2r for every sentence, D = 20 or 40, with noise that no mask explains."""
    design = bert.design_at(bert.TextRates().rates, 4)
    rate = torch.tensor(design.columns, dtype=torch.float64)
    normal = torch.randn(num_sentences, 1, len(rate), generator=generator(1)).double()
    raw = -1 - 2 * rate + noise * normal
    size = torch.tensor([20, 40]).repeat(num_sentences // 2)
    return SentenceCurves(design, raw, torch.zeros_like(raw), raw[:, 0, -1], size)


class TestTextRates:
    def test_a_straight_curve_crosses_at_one_half(self) -> None:
        settings = bert.TextRates(num_groups=10)
        found = settings.summary(made_up(100, 0.0))
        assert found["crossover"].tolist() == pytest.approx([0.5, 0.0], abs=1e-9)
        # From 15 to 25 % the score falls by 0.2 a token, D is 30 on average.
        assert found["change"][0].item() == pytest.approx(-0.2 * 30, abs=1e-9)
        low = settings.rates.index(15)
        assert found["bias"][low, 0].item() == pytest.approx(2 * 0.35 * 30, abs=1e-9)
        assert found["num_features"].item() == 30

    def test_errors_are_those_of_the_noise(self) -> None:
        """Change: the difference of two noises times D; its error over 400 sentences."""
        found = bert.TextRates().summary(made_up(400, 0.5))
        mean, error = found["change"].tolist()
        expected = 0.5 * 2**0.5 * ((20**2 + 40**2) / 2 + 0.2**2 * 10**2) ** 0.5 / 400**0.5
        assert error == pytest.approx(expected, rel=0.2)  # 400 draws: 4 % on a standard deviation
        assert abs(mean + 6) < 5 * error
        where, spread = found["crossover"].tolist()
        assert abs(where - 0.5) < 5 * spread < 0.2

    def test_findings_are_those_of_the_first_set(self, tmp_path: Path) -> None:
        first = tmp_path / "first.txt"
        first.write_text("\n".join(texts.sentences("written").first[:6]))
        quick = {"data_sets": (str(first), "written"), "num_groups": 2}
        found = experiment.run("text-rates", "quick", **quick)
        where, change = (found.arrays[f"{key}/{first}"] for key in ("crossover", "change"))
        assert found.findings["crossover/small-bert"].measured == where[0]
        assert found.findings["25-against-15/small-bert"].standard_error == change[1]


def test_the_rate_of_the_mean_height_has_an_error() -> None:
    g = generator()
    slope = 1 + 0.2 * torch.randn(400, 1, 1, generator=g, dtype=torch.float64)
    level = 0.5 * torch.randn(400, 1, 1, generator=g, dtype=torch.float64)
    design = Design((0.1, 0.3, 0.5, 0.7, 0.9))
    raw = level - 2.0 * slope * torch.tensor(design.columns, dtype=torch.float64)
    sizes = torch.full((400,), 10)
    found = SentenceCurves(design, raw, torch.zeros_like(raw), raw[:, 0, 0], sizes)
    value, error = found.mean_rate(), found.mean_rate().standard_error
    # Straight lines have their mean height in the middle, whatever their slopes and levels.
    assert math.isclose(value, 0.5, abs_tol=1e-8) and error < 1e-8
    noisy = dataclasses.replace(found, raw=raw + 0.3 * torch.randn(raw.shape, generator=g))
    value, error = noisy.mean_rate(), noisy.mean_rate().standard_error
    # Error of the mean at 50 %, 0.3 / 20 · √(1 − 1/5), over a slope of 2: 0.0067.
    assert 0.0025 < error < 0.014 and abs(value - 0.5) < 4 * error


def test_a_fall_has_the_errors_of_both_ends() -> None:
    """Two sentences, three and four nats from the mean curve at its ends."""
    raw = torch.tensor([[[2.0, -9.0, 1.0]], [[-4.0, -9.0, -7.0]]])
    curves = SentenceCurves(
        Design((0.25, 0.5, 0.75)), raw, 0 * raw, raw[:, 0, 2], torch.tensor([4, 4])
    )
    assert bert._fall(curves) == Finding(-1.0 + 3.0, 5.0)


def test_a_rerun_is_compared_in_shape_with_the_stored_curves() -> None:
    stored = {name: published_curves()[f"pretrained/{name[5:]}"] for name in bert.PRINTED}
    same = {name: 3.0 * curve - 1.0 for name, curve in stored.items()}
    assert bert.farthest_from_published(same).measured < 1e-12
    fall = stored["glue/cola"][0] - stored["glue/cola"][-1]
    bent = {**stored, "glue/cola": stored["glue/cola"].clone()}
    bent["glue/cola"][40] += 0.3 * fall
    assert abs(bert.farthest_from_published(bent).measured - 0.3) < 1e-12


def test_what_was_kept_of_other_weights_is_refused(tmp_path: Path) -> None:
    settings = bert.TextRates(data_sets=("written",), num_sentences=4)
    context, design = RunContext(folder=tmp_path), Design(rates=(0.5,))
    network, reader = networks.load_small_bert()
    settings.curves(context, network, reader, design)
    other = networks.random_twin(network, seed=1)
    with pytest.raises(CheckpointMismatchError, match="its weights is"):
        settings.curves(context, other, reader, design)
