"""``mpt-lml bert-curve``: what it writes, going on after a stop, two processes, refusals."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_bert import tiny, tokenizer
from transformers import BertForMaskedLM

from mpt_lml import MaskedLM, checkpoints
from mpt_lml.experiments import bert, bert_command, cli
from mpt_lml.files import read_json
from mpt_lml.models import bert_networks

LINES = ["the cat sat", "a dog", "the dogs sat.", "a cat sat the", "cats.", "the cat a dog sat"]


@pytest.fixture
def call(tmp_path: Path) -> list[str]:
    """A small checkpoint, a file of sentences and an output folder, as arguments."""
    tiny().float().save_pretrained(tmp_path / "network")
    tokenizer().save_pretrained(tmp_path / "network")
    path = tmp_path / "lines.txt"
    path.write_text("\n".join([*LINES * 6, "", "  "]) + "\n", encoding="utf-8")
    where = [
        "--model",
        str(tmp_path / "network"),
        "--data",
        str(path),
        "--out",
        str(tmp_path / "o"),
    ]
    return ["bert-curve", *where, "--rates", "10:90:20", "--masks", "2"]


def result(call: list[str]) -> dict:
    (path,) = Path(call[call.index("--out") + 1]).glob("bert-curve-*.json")
    return read_json(path)


def test_rates() -> None:
    assert bert_command.rates("1:99") == tuple(range(1, 100))
    assert bert_command.rates("5:95:10") == (5, 15, 25, 35, 45, 55, 65, 75, 85, 95)
    assert bert_command.rates("85,15") == (15, 85)


@pytest.mark.bad_input
@pytest.mark.parametrize("written", ["", "0:99", "5:101", "99:1", "a", "1:2:3:4", "15%", "-5"])
def test_rates_that_are_none(written: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="names no rates in 1..100 percent; write"):
        bert_command.rates(written)


def test_it_writes_the_curve_with_its_settings(call: list[str], capsys) -> None:
    assert cli.main(call) == 0
    found = result(call)
    assert found["rates"] == [10, 30, 50, 70, 90]
    assert found["num_sentences"] == 36 and found["masks"] == 2
    assert len(found["score"]) == len(found["standard_error"]) == 5
    per_token = sum(found["score"]) / 5
    assert found["areas"]["per_token"]["value"] == pytest.approx(per_token)
    assert found["area_rule"] == "mean over 5 rates, 20 % apart"
    assert "paper_512" not in found["areas"] and found["chance_paper_512"] is None
    assert found["provenance"]["command"] == "mpt-lml bert-curve"
    assert found["revision"] is None  # a folder has none
    printed = capsys.readouterr().out
    assert "36 sentences of 3.7 tokens" in printed and "areas by" in printed
    assert "512 tokens" not in printed
    assert not list(Path(call[6]).glob("parts-*"))  # nothing is left to go on from


@pytest.mark.parametrize(
    ("written", "covers"),
    [
        *[(each, True) for each in ("1:99", "1:100", "1:99:2", "5:95:10", "10:90:20", "10:90:10")],
        *[(each, False) for each in ("15", "15,85", "1:50", "50:99", "1:99:49", "1,2,3,50,99")],
    ],
)
def test_an_area_needs_rates_all_over_the_range(written: str, covers: bool) -> None:
    assert (bert_command.area_rule(bert_command.rates(written), None) is not None) == covers
    assert bert_command.area_rule(bert_command.rates(written), 8) == "random sizes in 8 strata"


def test_fifteen_percent_is_a_score_and_no_area(call: list[str], capsys) -> None:
    assert cli.main([*call, "--rates", "15"]) == 0
    found, printed = result(call), capsys.readouterr().out
    assert found["areas"] == {} and found["area_rule"] is None
    assert f"score at 15 %: {found['score'][0]:.4f} ± " in printed
    assert "area per" not in printed and "512 tokens" not in printed


def test_all_rates_have_the_unit_of_the_paper(call: list[str], capsys) -> None:
    assert cli.main([*call, "--rates", "1:99", "--masks", "1", "--limit", "6"]) == 0
    found, printed = result(call), capsys.readouterr().out
    assert found["areas"]["paper_512"]["value"] == pytest.approx(512 * 0.01 * sum(found["score"]))
    assert "512 tokens, 99 rates" in printed and "(chance -" in printed


def test_it_goes_on_where_it_was_stopped(call: list[str], monkeypatch, capsys) -> None:
    assert cli.main(call) == 0
    wanted = result(call)
    shutil.rmtree(call[6])
    straight, count = MaskedLM.log_each, 0

    def stops(*args: object, **options: object) -> torch.Tensor:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return straight(*args, **options)

    monkeypatch.setattr(MaskedLM, "log_each", stops)
    assert cli.main(call) == 130
    assert f"the same command goes on from {call[6]}" in capsys.readouterr().err
    kept = list(Path(call[6]).glob("parts-*/*.safetensors"))
    assert kept and not list(Path(call[6]).glob("*.json"))
    monkeypatch.setattr(MaskedLM, "log_each", straight)
    assert cli.main(call) == 0
    assert result(call)["score"] == wanted["score"]
    assert result(call)["areas"] == wanted["areas"]


def test_other_settings_do_not_meet_in_one_folder(call: list[str]) -> None:
    options = cli.parser().parse_args(call)
    network, reader = bert_command.load(call[2], None, 4)
    text, _ = bert_command._tokens(options, reader, network)
    other = cli.parser().parse_args([*call, "--seed", "5"])
    assert bert_command._key(options, text) == bert_command._key(options, text)
    assert bert_command._key(options, text) != bert_command._key(other, text)
    fewer = text.rows(torch.arange(3))
    assert bert_command._key(options, text) != bert_command._key(options, fewer)
    before = bert_command._key(options, text)
    tiny("modern").float().save_pretrained(call[2])  # a training that saves in place
    assert bert_command._key(options, text) != before


@pytest.mark.slow
def test_two_processes_give_the_same_curve(call: list[str]) -> None:
    assert cli.main(call) == 0
    alone = result(call)
    shutil.rmtree(call[6])
    # What "accelerate launch" starts for several GPUs, on a CPU; accelerate finds the processes.
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, "-m", "mpt_lml.experiments.cli", *call, "--device", "cpu"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("wrote ") == 1
    both = result(call)
    assert both["processes"] == 2 and alone["processes"] == 1
    for name in ("score", "standard_error"):
        assert both[name] == pytest.approx(alone[name], rel=0, abs=1e-6)


def test_long_sentences_can_be_left_out(call: list[str], capsys) -> None:
    path = Path(call[4])
    path.write_text(path.read_text() + "the cat " * 10 + "\n")
    assert cli.main([*call, "--skip-long"]) == 0
    assert result(call)["left_out_as_too_long"] == 1
    assert "(1 longer ones left out)" in capsys.readouterr().out


def test_strata_for_the_area_alone(call: list[str]) -> None:
    """Both estimate the same area; strata without the rounding of rates to sizes."""
    settings = ["--rates", "1:100", "--masks", "8"]
    assert cli.main([*call, *settings]) == 0
    rates = result(call)["areas"]["per_sentence"]
    assert cli.main([*call, *settings, "--strata", "4", "--masks", "60"]) == 0
    strata = result(call)
    assert len(strata["score"]) == 4
    # Sentences are the same, so the error over masks counts: nats a token, times some four tokens.
    assert abs(strata["areas"]["per_sentence"]["value"] - rates["value"]) < (
        5 * 6 * strata["mask_error_per_token"] + 0.05
    )


def test_replacement_as_in_berts_training(call: list[str]) -> None:
    assert cli.main([*call, "--replacement", "bert"]) == 0
    assert result(call)["replacement"] == "bert"


def test_a_pinned_revision_is_recorded(call: list[str], tmp_path: Path, monkeypatch) -> None:
    """A hub's cache as it lies on disk, so that a name is resolved without a network."""
    pinned = checkpoints.PINNED[bert_networks.HUB_NAME]
    home = tmp_path / "hub" / "models--google-bert--bert-base-uncased"
    shutil.copytree(call[2], home / "snapshots" / pinned)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert cli.main([*call, "--model", bert_networks.HUB_NAME]) == 0
    assert result(call)["revision"] == pinned
    network = bert_networks.load_network(bert_networks.HUB_NAME)
    assert isinstance(network, BertForMaskedLM)


def test_the_books_own_network_needs_no_network(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    call = ["bert-curve", "--rates", "15,85", "--limit", "4", "--out", str(tmp_path)]
    scores = {}
    for name in ("small", "small-random"):
        assert cli.main([*call, "--model", name]) == 0
        found = read_json(tmp_path / f"bert-curve-{name}-written.json")
        assert found["num_sentences"] == 4
        scores[name] = sum(found["score"]) / 2
    # Four sentences: the trained network is two nats a token better, not by chance.
    assert scores["small"] > scores["small-random"] + 2


def test_published_random_network_takes_the_same_path() -> None:
    """BERT-base by its own class and names, in small: what the download would be."""
    found = bert.PreTrained.paper()
    assert found.model == bert_networks.HUB_NAME and len(found.rates) == 99


@pytest.mark.bad_input
class TestRefusals:
    def refused(self, call: list[str], capsys) -> str:
        assert cli.main(call) == 2
        return capsys.readouterr().err

    def test_long_sentence_is_named(self, call: list[str], capsys) -> None:
        path = Path(call[4])
        path.write_text("a dog\n" + "the cat " * 10 + "\n")
        message = self.refused(call, capsys)
        assert "sentence 1 has 22 tokens, the model has positions for 16: 'the cat" in message
        path.write_text("the cat " * 10 + "\n")
        assert "all 1 sentences are longer than 16" in self.refused([*call, "--skip-long"], capsys)

    def test_text_that_is_not_there(self, call: list[str], capsys) -> None:
        Path(call[4]).write_text("\n \n")
        assert "is empty: there is nothing to score" in self.refused(call, capsys)
        message = self.refused([*call, "--data", "nowhere.txt"], capsys)
        assert "--data nowhere.txt: neither a text file nor one of written, glue/ax" in message
        Path(call[4]).write_bytes(b"\xff\xfe\x00a")
        assert "is not UTF-8 text" in self.refused(call, capsys)

    def test_a_folder_that_is_no_checkpoint(self, call: list[str], tmp_path, capsys) -> None:
        (tmp_path / "empty").mkdir()
        message = self.refused([*call, "--model", str(tmp_path / "empty")], capsys)
        assert "no config.json" in message

    def test_pickles(self, call: list[str], capsys) -> None:
        folder = Path(call[2])
        (folder / "model.safetensors").unlink()
        torch.save(tiny().state_dict(), folder / "pytorch_model.bin")
        assert "only pickled weights" in self.refused(call, capsys)

    def test_no_network_is_one_line(self, call: list[str], monkeypatch, capsys) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        message = self.refused([*call, "--model", bert_networks.HUB_NAME], capsys)
        assert "there is no network" in message and "needs no download" in message
        assert message.count("\n") == 1

    def test_a_name_without_a_revision(self, call: list[str], capsys) -> None:
        assert "Pin the revision" in self.refused([*call, "--model", "someone/bert"], capsys)

    @pytest.mark.parametrize("option", ["--limit", "--masks", "--strata", "--batch-tokens"])
    def test_counts_below_one(self, call: list[str], option: str, capsys) -> None:
        with pytest.raises(SystemExit):
            cli.main([*call, option, "0"])
        assert "'0' is not a whole number of at least 1" in capsys.readouterr().err

    def test_unwritable_output_before_any_work(self, call: list[str], tmp_path, capsys) -> None:
        (tmp_path / "file").touch()
        assert "file" in self.refused([*call, "--out", str(tmp_path / "file" / "x")], capsys)


def test_the_json_is_plain(call: list[str]) -> None:
    assert cli.main([*call, "--limit", "1", "--masks", "1"]) == 0
    found = result(call)
    assert found["standard_error"] == [None] * 5  # one sentence has no spread
    json.dumps(found, allow_nan=False)
