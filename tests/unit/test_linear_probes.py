"""Probes of frozen features along training, of images and of texts: what is found."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from models import generator
from scipy import stats

import mpt_experiments
from mpt_experiments.experiment import Finding, RunContext
from mpt_experiments.findings import linear_probes
from mpt_experiments.findings.linear_probes import Probes
from mpt_experiments.findings.small_bert import FIXED, training_masks
from mpt_experiments.paper import vit_mae
from mpt_lml import masks
from mpt_lml.data import DataNotFoundError
from mpt_lml.files import CheckpointMismatchError
from mpt_score import networks, texts, tokens

pytest.importorskip("transformers")
QUICK = Probes.preset("quick")


@pytest.fixture
def outcome(quick) -> tuple:
    return quick("probes")


@pytest.mark.xdist_group("probes")
def test_findings_follow_from_the_arrays(outcome: tuple) -> None:
    found, _ = outcome
    sets = ("digits", "vae")
    keys = {f"probe-{part}/{name}" for part in ("laws", "rate", "along") for name in sets}
    assert set(found.findings) == keys
    for name in sets:
        rows = found.arrays[f"found/{name}"]
        assert rows.shape == (4, 2, {"digits": 3, "vae": 2}[name], 6)
        assert (rows[1:, :, 0] == rows[:1, :, 0]).all()  # no law has acted before the first step
        assert (rows[..., 1] > 0).all() and ((rows[..., 5] > 0) & (rows[..., 5] <= 1)).all()
        end = rows[:, :, -1]
        ranks = [stats.spearmanr(end[:, s, 0], end[:, s, 5]).statistic for s in range(2)]
        laws = found.findings[f"probe-laws/{name}"]
        assert isinstance(laws, Finding)
        assert laws.measured == pytest.approx(np.mean(ranks))
        error = np.std(ranks, ddof=1) / math.sqrt(2)
        assert laws.standard_error == pytest.approx(error, abs=1e-12)
        assert abs(found.findings[f"probe-along/{name}"].measured) <= 1.0
        assert abs(found.findings[f"probe-rate/{name}"].measured) <= 2.0
    assert found.arrays["supervised/digits"].shape == (2,)
    assert 0.8 < found.arrays["pixels/digits"] < 1.0


@pytest.mark.xdist_group("probes")
def test_what_is_finished_is_not_done_again(outcome: tuple, monkeypatch, tmp_path: Path) -> None:
    found, folder = outcome[0], shutil.copytree(outcome[1], tmp_path, dirs_exist_ok=True)
    kept = {path.stem for path in folder.glob("*.safetensors")}
    laws = {f"digits-law-{k}-{n}" for k in range(4) for n in range(2)}
    assert kept == laws | {"digits-labels-0", "digits-labels-1"} | {f"vae-{k}" for k in range(4)}

    def again(*args: object, **options: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(vit_mae, "train", again)
    same = QUICK.run(RunContext(folder=folder))
    assert all(torch.equal(found.arrays[key], same.arrays[key]) for key in found.arrays)
    with pytest.raises(CheckpointMismatchError, match="its samples is 3, wanted 9"):
        dataclasses.replace(QUICK, samples=9).run(RunContext(folder=folder))
    (folder / "digits-law-2-1.safetensors").unlink()
    with pytest.raises(AssertionError, match="trained again"):
        QUICK.run(RunContext(folder=folder))


@pytest.fixture(scope="module")
def network():
    return networks.small_masked_lm(50, width=32, num_layers=2, seed=1)


def padded_rows() -> torch.Tensor:
    """Three sentences, one with an unknown word."""
    ids = torch.zeros(3, 60, dtype=torch.long)
    for n, length in enumerate((6, 50, 20)):  # longer than the reach of local attention, too
        ids[n, :length] = torch.randint(5, 50, (length,), generator=generator(n))
        ids[n, [0, length - 1]] = torch.tensor([2, 3])
    ids[1, 4] = 1
    return ids


def test_features_are_the_mean_over_the_pieces_of_a_sentence_alone(network) -> None:
    ids = padded_rows()
    with torch.no_grad():
        found = linear_probes.text_features(network, ids)
        for own, row in zip(found, ids, strict=True):
            layer = network.model(input_ids=row[None, row > 0]).last_hidden_state[0]
            by_hand = layer[row[row > 0] > 4].mean(dim=0)
            torch.testing.assert_close(own, by_hand, atol=1e-6, rtol=0)


def test_areas_by_hand(network) -> None:
    """From the definition, hidden piece by hidden piece, with the masks that the generator gives."""
    rows, g = torch.randint(5, 50, (16, 42), generator=generator(3)), generator(0)
    sizes = masks.UniformSize().stratified(16, 40, generator=g)
    ranks = masks.sample_ranks(16, 40, generator=g)
    with torch.no_grad():
        area, error, *shares = linear_probes.text_areas(network, rows, 4).tolist()
        for size, found in ((sizes[:, None], area), *zip((6, 20, 30), shares, strict=True)):
            hidden = torch.nn.functional.pad(ranks < size, (1, 1))
            logits = network(input_ids=rows.where(~hidden, 4)).logits
            each = logits.log_softmax(dim=2).gather(2, rows[..., None])[..., 0]
            score = (each * hidden).sum(dim=1) / hidden.sum(dim=1)
            assert found == pytest.approx(score.mean().item(), abs=1e-5)
            if found == area:
                groups = score.view(2, 8).mean(dim=0)
                assert error == pytest.approx(groups.std().item() / math.sqrt(8), abs=1e-5)


@pytest.mark.parametrize("law", FIXED)
def test_a_law_of_one_size_hides_its_share(law: str) -> None:
    mask = training_masks(law, 8, 62, generator=generator(0))
    assert (mask.sum(dim=1) == {"fifteen": 9, "fifty": 31, "seventy-five": 46}[law]).all()


def test_each_row_is_tested_once() -> None:
    sentences, classes = texts.labeled("written")
    assert all(
        ("the" in s.lower().split()) == bool(c) for s, c in zip(sentences, classes, strict=True)
    )
    folds = linear_probes.labeled_text("written", tokens.train_tokenizer(sentences, 200))
    assert (torch.stack([of.is_test for of in folds]).sum(dim=0) == 1).all()
    assert folds[0].label.sum() == sum(classes) and len(folds[0].label) == len(sentences)
    assert ((folds[0].x > 0).sum(dim=1).diff() >= 0).all()


def test_the_test_split_is_what_is_tested(monkeypatch) -> None:
    """Where there is a training split, the probe is fitted to its rows and to no others."""
    splits = {
        "train": (("the cat sat on a dog", "a cat sat", "a dog"), (0, 0, 1)),
        "test": (("the old dog sat", "an old cat"), (1, 0)),
    }
    monkeypatch.setattr(texts, "labeled_splits", lambda name: tuple(splits))
    monkeypatch.setattr(texts, "labeled", lambda name, split: splits[split])
    tokenizer = tokens.train_tokenizer([*splits["train"][0], *splits["test"][0]], 100)
    (of,) = linear_probes.labeled_text("two splits", tokenizer)
    for is_test, split in ((True, "test"), (False, "train")):
        chosen = of.is_test == is_test
        read = [tokenizer.decode(row, skip_special_tokens=True) for row in of.x[chosen]]
        found = dict(zip(read, of.label[chosen].tolist(), strict=True))
        assert found == dict(zip(*splits[split], strict=True))


def test_classes_that_are_not_there(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ValueError, match="no classes of 'glue/sst-2', train; there are written, "):
        texts.labeled("glue/sst-2", "train")
    monkeypatch.setenv("MPT_LML_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataNotFoundError, match="CoLA/train.tsv"):
        texts.labeled("glue/cola", "train")


def test_classes_from_the_hub(tmp_path: Path, monkeypatch) -> None:
    rows = {"sentence": ["a fine film "] * 872, "label": [0, 1] * 436}
    monkeypatch.setenv("MPT_LML_DATA", str(tmp_path))
    monkeypatch.setattr(texts, "from_hub", lambda *names, split: rows)
    assert texts.labeled("glue/sst-2")[1] == (0, 1) * 436


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "split", "file", "column", "counts"),
    [
        ("glue/cola", "train", "CoLA/train.tsv", 1, [2528, 6023]),
        ("glue/cola", "test", "CoLA/dev.tsv", 1, [322, 721]),
        ("glue/sst-2", "test", "SST-2/dev.tsv", 1, [428, 444]),
    ],
)
def test_classes_are_those_of_the_file(name, split, file, column, counts) -> None:
    sentences, classes = texts.labeled(name, split)
    assert np.bincount(classes).tolist() == counts
    lines = Path(os.environ["MPT_LML_DATA"], "glue", file).read_text(encoding="utf-8-sig")
    cells = [line.split("\t") for line in lines.splitlines()][-len(classes) :]
    assert [int(row[column]) for row in cells] == list(classes)
    assert [row[0 if "sst" in name else 3].strip() for row in cells] == list(sentences)


@pytest.mark.data
def test_cola_is_tested_on_its_own_test_sentences() -> None:
    sentences = [
        each for split in ("train", "test") for each in texts.labeled("glue/cola", split)[0]
    ]
    (of,) = linear_probes.labeled_text("glue/cola", tokens.train_tokenizer(sentences, 2000))
    assert of.is_test.sum() == 1043 and of.label[of.is_test].sum() == 721


@pytest.mark.xdist_group("text-probes")
def test_what_is_found(quick) -> None:
    found, _ = quick("text-probes")
    rows = found.arrays["found/cola"]
    assert rows.shape == (4, 2, 3, 6)  # laws, seeds, steps 0, 2 and 4
    assert (rows[1:, :, 0] == rows[:1, :, 0]).all()  # no law has acted before the first step
    assert (rows[:, :, 1:, 0] != rows[:, :, :-1, 0]).all()
    assert len(rows[:, 0, -1, 0].unique()) == 4  # four laws, four networks
    end = rows[:, :, -1]
    ranks = [stats.spearmanr(end[:, s, 0], end[:, s, 5]).statistic for s in range(2)]
    assert found.findings["probe-laws/cola"].measured == pytest.approx(np.nan_to_num(ranks).mean())
    assert set(found.findings) == {f"probe-{part}/cola" for part in ("laws", "rate", "along")}
    for name in ("supervised", "pieces"):
        values = found.arrays[f"{name}/cola"]
        assert ((values > 0.5) & (values <= 1)).all()


def test_each_set_has_accuracies_of_its_own(monkeypatch) -> None:
    read = linear_probes.labeled_text

    def other_classes(name: str, tokenizer: object) -> list:
        every = read("written", tokenizer)
        if name == "written":
            return every
        return [of._replace(label=(of.x > 0).sum(dim=1) % 2) for of in every]

    monkeypatch.setattr(linear_probes, "labeled_text", other_classes)
    few = {"seeds": (4,), "num_steps": 2, "sets": ("written", "odd")}
    found = mpt_experiments.run("text-probes", "quick", **few).arrays
    one, other = found["found/cola"], found["found/odd"]
    assert torch.equal(one[..., :5], other[..., :5]) and not torch.equal(one, other)
