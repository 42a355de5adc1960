"""The training of the book's own masked language model, and what was recorded of it."""

from __future__ import annotations

import functools
import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from chapter_cells import defined_by
from first_steps import START_OF_ONE_CYCLE, after_adamw, clipped_to
from other_device import OtherDevice

from experiments.experiment import RunContext
from experiments.records import CheckpointMismatchError
from experiments.small_bert import SmallBert
from experiments.trainings import small_bert
from experiments.trainings.small_bert import (
    SPECIAL_TOKENS,
    SmallBertSettings,
    TrainingText,
    train_tokenizer,
)
from mpt_lml.files import read_json
from mpt_lml.recorded import Finding
from mpt_score import networks, texts

TINY = SmallBertSettings(
    source="written",
    vocab_size=200,
    width=32,
    num_layers=2,
    num_steps=100,
    batch_tokens=256,
    num_held_out=8,
    watch_every=25,
    half_precision=False,
)
FEW = replace(TINY, num_steps=8, watch_every=3)


def watched_from_nothing(settings: SmallBertSettings, device: str = "cpu") -> torch.Tensor:
    """The looks at held-out text of a training from nothing."""
    text = TrainingText.read(settings)
    network = small_bert.new_network(text, settings)
    return small_bert.train(network, text, settings, device=device)


def stopping(after: int):
    """A progress bar under which the loop is interrupted before step ``after``."""

    def progress(steps: Iterable[int], _: str) -> Iterator[int]:
        for step in steps:
            if step == after:
                raise KeyboardInterrupt
            yield step

    return progress


def run(folder: Path, progress=lambda steps, _: steps) -> tuple[torch.Tensor, bytes]:
    """What was watched, and the weights that are left."""
    settings = SmallBert.preset("quick", num_steps=5)
    outcome = settings.run(RunContext(progress=progress, folder=folder))
    return outcome.arrays["watched/full"], (folder / "model" / "model.safetensors").read_bytes()


def test_a_training_is_kept_when_it_is_finished(tmp_path: Path) -> None:
    """With its weights, so that the network can be written again."""
    whole, weights = run(tmp_path / "whole")
    assert whole[:, 0].tolist() == [0, 2, 4, 5]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", stopping(4))
    assert not list((tmp_path / "parts").rglob("*"))
    begun_anew, others = run(tmp_path / "parts")
    assert torch.equal(begun_anew, whole) and weights == others
    shutil.rmtree(tmp_path / "parts" / "model")
    again, others = run(tmp_path / "parts", stopping(0))  # nothing is left to train
    assert torch.equal(again, whole) and weights == others


def test_state_of_other_settings_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(CheckpointMismatchError, match="its batch_tokens is 256, wanted 128"):
        SmallBert.preset("quick", num_steps=5, batch_tokens=128).run(RunContext(folder=tmp_path))


def test_the_gain_is_the_smallest_and_a_unigram_knows_the_frequencies(monkeypatch) -> None:
    """Of four pieces of training text, two held-out rows between their ends, and three rates."""
    text = object.__new__(TrainingText)
    text.tokenizer = range(8)
    text.stream = torch.tensor([5, 5, 5, 7])
    text.held_out = torch.tensor([[2, 5, 5, 3], [2, 7, 6, 3]])
    watched = torch.tensor([[0.0, -9.0, -8.0, -7.0], [4.0, -2.0, -6.0, -3.0]])
    monkeypatch.setattr(TrainingText, "read", lambda settings: text)
    monkeypatch.setattr(SmallBert, "train", lambda *_: watched)
    outcome = SmallBert.preset("quick").run(RunContext())
    assert outcome.findings["small-bert-gain"] == Finding(2.0)  # of 7, 2 and 4
    # One more of each of eight pieces, 0 to 7: the piece 5 has 4 of 12, 6 has 1, 7 has 2.
    expected = (2 * math.log(4 / 12) + math.log(2 / 12) + math.log(1 / 12)) / 4
    assert outcome.arrays["unigram"].item() == pytest.approx(expected)


RESULTS = Path(__file__).parents[3] / "book" / "results"


def recorded_scores() -> dict[str, list[float]]:
    """What the recorded run says: step, and scores at 15, 50 and 98 %."""
    watched = read_json(RESULTS / "small-bert.json")["arrays"]["watched/full"]
    return {"before": watched[0][1:], "after": watched[-1][1:]}


def test_the_model_card_prints_the_recorded_scores() -> None:
    card = (RESULTS / "small_bert" / "README.md").read_text(encoding="utf-8").replace("−", "-")
    before, after = recorded_scores()["before"], recorded_scores()["after"]
    low, half, high = (f"{each:.2f}" for each in after)
    assert f"{low} at 15 %, {half} at 50 %, {high} at 98 %" in card
    assert "before training " + ", ".join(f"{each:.2f}" for each in before) in card
    assert "6,000 steps" in card and SmallBert().num_steps == 6000


@pytest.mark.data
def test_the_weights_have_the_recorded_scores() -> None:
    """The committed files are those of the run: vocabulary, weights and held-out rows agree."""
    network, tokenizer = networks.load_small_bert()
    held_out = small_bert.held_out_rows(SmallBert().training, tokenizer)
    found = small_bert.watch(network, held_out, tokenizer.mask_token_id).tolist()
    # Weights are stored with 11 bits: relative errors of 5e-4 in each of some layers' many terms.
    assert found == pytest.approx(recorded_scores()["after"], abs=5e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
def test_a_gpu_trains_the_same_network_up_to_rounding() -> None:
    runs = [
        SmallBert.preset("quick").run(RunContext(torch.device(kind))).arrays["watched/full"]
        for kind in ("cpu", "cuda")
    ]
    # Four steps in bfloat16, 8 bits: rounding moves a score of 5 nats by some hundredths.
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0.1)


def test_the_recorded_run_was_watched_every_250_steps() -> None:
    recorded = read_json(RESULTS / "small-bert.json")
    assert [step for step, *_ in recorded["arrays"]["watched/full"]] == list(range(0, 6001, 250))


def test_tiny_learns_which_pieces_are_frequent() -> None:
    watched = watched_from_nothing(TINY)
    assert (watched[-1, 1:] > watched[0, 1:] + 0.3).all()


def test_the_training_is_watched_after_its_last_step() -> None:
    assert watched_from_nothing(FEW)[:, 0].tolist() == [0, 3, 6, 8]


def test_a_score_that_is_not_finite_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_bert, "_LEARNING_RATE", 1e20)
    with pytest.raises(FloatingPointError, match="after 3 steps"):
        watched_from_nothing(FEW)


@pytest.mark.bad_input
def test_a_width_is_a_multiple_of_that_of_a_head() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        SmallBertSettings(width=33)


def test_another_device_trains_the_same_network(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = watched_from_nothing(FEW)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (8, 0))
    with OtherDevice():
        watched = watched_from_nothing(FEW, "cuda")
    torch.testing.assert_close(watched, expected, rtol=0, atol=1e-4)


def three_rows() -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A network, rows of six pieces between their ends, and masks of one, three and all of them."""
    network = networks.small_masked_lm(20, width=32, num_layers=1, seed=1)
    rows = torch.randint(5, 20, (3, 8), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(6) < torch.tensor([[1], [3], [6]])
    return network, rows, mask


def literal_score(network: Any, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over rows of the mean over their hidden pieces of log p, row by row."""
    scores = []
    for row, hidden in zip(rows, mask, strict=True):
        places = 1 + hidden.nonzero()[:, 0]  # behind [CLS]
        shown = row.clone()
        shown[places] = 4
        log_p = network(input_ids=shown[None]).logits[0].log_softmax(dim=1)
        scores.append(log_p[places, row[places]].mean())
    return torch.stack(scores).mean()


def test_the_score_is_the_literal_one() -> None:
    network, rows, mask = three_rows()
    with torch.no_grad():
        expected = literal_score(network, rows, mask)
        torch.testing.assert_close(small_bert.mean_score(network, rows, mask, 4), expected)


def test_a_step_is_one_of_adamw_on_minus_the_score(monkeypatch: pytest.MonkeyPatch) -> None:
    network, rows, mask = three_rows()
    before = [weight.detach().clone() for weight in network.parameters()]
    (-literal_score(network, rows, mask)).backward()
    gradients = clipped_to(1.0, [weight.grad for weight in network.parameters()])
    rate = 3e-3 * START_OF_ONE_CYCLE

    text = object.__new__(small_bert.TrainingText)  # of which a step asks no more than this
    text.mask_token = 4
    text.held_out = rows
    monkeypatch.setattr(small_bert, "_draw", lambda text, steps, *_: [(rows, mask)] * len(steps))
    with pytest.raises(KeyboardInterrupt):
        small_bert.train(network, text, replace(FEW, num_steps=100), progress=stopping(1))
    for weight, old, gradient in zip(network.parameters(), before, gradients, strict=True):
        expected = after_adamw(old, gradient, rate)
        is_clear = gradient.abs() > 1e-6  # elsewhere rounding decides how far a step goes
        torch.testing.assert_close(weight[is_clear], expected[is_clear], rtol=0, atol=1e-6)


def test_half_of_the_masks_are_small_and_sizes_are_spread_evenly() -> None:
    mask = small_bert.training_masks(40, 20, generator=torch.Generator().manual_seed(3))
    low, whole = mask.sum(dim=1).split(20)
    counts = low.bincount(minlength=7)  # 20 rows over the sizes up to 30 % of 20
    assert low.max() == 6 and set(counts[1:].tolist()) == {3, 4}
    assert whole.sort().values.tolist() == list(range(1, 21))


def test_a_vocabulary_has_no_capitals() -> None:
    tokenizer = train_tokenizer(["Sun SUN sun", "A sun"], 40)
    pieces = set(tokenizer.get_vocab()) - set(SPECIAL_TOKENS)
    assert "sun" in pieces and pieces == {each.lower() for each in pieces}


def test_six_pieces_are_a_vocabulary() -> None:
    assert "a" in train_tokenizer(["a a"], 6).get_vocab()


def test_trained_vocabulary_covers_its_text() -> None:
    sentences = list(texts.sentences().first)
    found = train_tokenizer(sentences, 120)
    assert 100 < len(found) <= 120
    assert found.convert_tokens_to_ids("[MASK]") == 4
    assert all(found.unk_token_id not in row for row in found(sentences)["input_ids"])


def test_vocabularies_do_not_depend_on_the_run() -> None:
    """The trainer numbers equally frequent pieces as it likes; the pieces are the same."""
    once, again = (train_tokenizer(texts.sentences().first, 150) for _ in range(2))
    assert once.get_vocab() == again.get_vocab()
    pieces = sorted(once.get_vocab(), key=once.get_vocab().get)
    assert pieces[:5] == list(SPECIAL_TOKENS)
    assert pieces[5:] == sorted(pieces[5:])


# -- the same training on a page -----------------------------------------------------------------------


@functools.cache
def page() -> dict[str, Any]:
    """What chapter 12 defines for its training; its own is run at the page's tiny settings."""
    cells = ("networks.load_small_bert()", "class Settings", "FULL = Settings")
    return defined_by("12-bert", *cells)


def test_the_settings_of_the_page_are_those_of_the_record() -> None:
    full, record = page()["FULL"], SmallBert().training
    names = {"steps": "num_steps"}
    names |= {name: name for name in ("source", "width", "num_layers", "batch_tokens", "seed")}
    for of_the_page, of_the_record in names.items():
        assert getattr(full, of_the_page) == getattr(record, of_the_record)
    assert full.learning_rate == small_bert._LEARNING_RATE
    assert len(page()["tokenizer"]) <= record.vocab_size
    expected = networks.small_masked_lm(6000, seed=4, width=32, num_layers=2)
    assert type(page()["yours"]) is type(expected)


def test_a_step_of_the_page_has_the_objective_of_the_experiment() -> None:
    """At its rows and masks, of windows and of whole sentences."""
    names = page()
    network = names["yours"]
    text = names["Text"](texts.sentences("written").first)
    for step in (0, 1):
        g = torch.Generator().manual_seed(step)
        ids = text.draw(step, 256, g)
        assert (ids[:, 0] == names["tokenizer"].cls_token_id).all()
        assert (ids[:, -1] == names["tokenizer"].sep_token_id).all()
        hidden = names["draw_hidden"](ids, g)
        assert not hidden[:, [0, -1]].any() and hidden.any(dim=1).all()
        assert hidden[::2].sum(dim=1).max() <= 1 + 0.3 * (ids.shape[1] - 2)
        mask_token = names["tokenizer"].mask_token_id
        expected = small_bert.mean_score(network, ids, hidden[:, 1:-1], mask_token)
        found = names["score_of_rows"](network, ids, hidden)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_the_rows_of_the_page_are_those_of_the_experiment() -> None:
    names = page()
    sentences = texts.sentences("written").first
    text = names["Text"](sentences)
    expected = small_bert.TrainingText(sentences, names["tokenizer"], 256)
    windows = text.draw(0, 256, torch.Generator().manual_seed(3))
    torch.testing.assert_close(
        windows, expected.draw(0, generator=torch.Generator().manual_seed(3))
    )
    assert text.draw(1, 256, torch.Generator().manual_seed(3)).shape[1] < 64


class OneTokenAWord:
    """A tokenizer of as many tokens as a text has words."""

    mask_token_id, cls_token_id, sep_token_id = 1, 2, 3

    def __call__(self, text: list[str], **options: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [[4] * len(sentence.split()) for sentence in text]}


def test_a_window_may_end_with_the_text() -> None:
    """Windows of 62 tokens start with a sentence: of three of 31, the first and the second."""
    text = small_bert.TrainingText(["a " * 31] * 3, OneTokenAWord(), 256)
    assert text.starts.tolist() == [0, 31]
