"""The training of the book's own masked language model, and what was recorded of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from experiments import small_bert
from experiments.experiment import RunContext
from experiments.small_bert import SPECIAL_TOKENS, SmallBert, train_tokenizer
from mpt_lml.files import CheckpointMismatchError, read_json
from mpt_score import networks, texts


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


RESULTS = Path(__file__).parents[2] / "book" / "results"


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
    held_out = SmallBert().held_out(tokenizer)
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


def test_every_row_weighs_alike_however_much_of_it_is_hidden() -> None:
    network = networks.small_masked_lm(20, width=32, num_layers=1, seed=1)
    rows = torch.randint(5, 20, (3, 8), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(6) < torch.tensor([[1], [3], [6]])
    with torch.no_grad():
        together = small_bert.mean_score(network, rows, mask, 4)
        alone = [
            small_bert.mean_score(network, rows[k : k + 1], mask[k : k + 1], 4) for k in range(3)
        ]
    torch.testing.assert_close(together, torch.stack(alone).mean())


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
