"""The training of the book's own masked language model: a run that was stopped is the same run."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from mpt_lml.experiments import small_bert
from mpt_lml.experiments.small_bert import SmallBert
from mpt_lml.files import read_json
from mpt_lml.models import networks


def stopping(after: int):
    """A progress bar under which the loop is interrupted before step ``after``."""

    def progress(steps: Iterable[int], _: str) -> Iterator[int]:
        for step in steps:
            if step == after:
                raise KeyboardInterrupt
            yield step

    return progress


def run(path: Path | None, progress=lambda steps, _: steps) -> tuple[torch.Tensor, list]:
    config = SmallBert.quick()
    tokenizer, batches, held_out = small_bert._prepare(config, None)
    training = small_bert.Training(config, "modern", "mixture", 5, 5, len(tokenizer))
    watched = small_bert.train(
        training, batches, held_out, tokenizer, every=2, path=path, progress=progress
    )
    return watched, [each.detach().clone() for each in training.network.parameters()]


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_run_that_goes_on_is_the_run_that_never_stopped(after: int, tmp_path: Path) -> None:
    whole, weights = run(None)
    assert whole[:, 0].tolist() == [0, 2, 4, 5]
    path = tmp_path / "full.pt"
    with pytest.raises(KeyboardInterrupt):
        run(path, stopping(after))
    resumed, others = run(path)
    assert torch.equal(resumed, whole)
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
    again, _ = run(path)  # nothing is left to do
    assert torch.equal(again, whole)


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
    assert "6,000 steps" in card and SmallBert.paper().num_steps == 6000


@pytest.mark.data
def test_the_weights_have_the_recorded_scores(tmp_path: Path) -> None:
    """The committed files are those of the run: vocabulary, weights and held-out rows agree."""
    shutil.copytree(RESULTS / "small_bert", tmp_path / "vocabulary")
    tokenizer, _, held_out = small_bert._prepare(SmallBert.paper(), tmp_path)
    network, _ = networks.load_small_bert()
    found = small_bert.watch(network, held_out, tokenizer.mask_token_id)
    # Weights are stored with 11 bits: relative errors of 5e-4 in each of some layers' many terms.
    assert found == pytest.approx(recorded_scores()["after"], abs=5e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_trains_the_same_network_up_to_rounding() -> None:
    runs = [
        small_bert.small_bert(SmallBert.quick(), device=torch.device(kind)).arrays["watched/full"]
        for kind in ("cpu", "cuda")
    ]
    # Four steps in bfloat16, 8 bits: rounding moves a score of 5 nats by some hundredths.
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0.1)
