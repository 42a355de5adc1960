"""The training of the book's own masked language model: a run that was stopped is the same run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from mpt_lml.experiments import small_bert


def stopping(after: int):
    """A progress bar under which the loop is interrupted before step ``after``."""

    def progress(steps: Iterable[int], _: str) -> Iterator[int]:
        for step in steps:
            if step == after:
                raise KeyboardInterrupt
            yield step

    return progress


def run(path: Path | None, progress=lambda steps, _: steps) -> tuple[torch.Tensor, list]:
    config = small_bert.SmallBert.quick()
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
