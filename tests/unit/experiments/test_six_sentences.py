"""Six sentences while a network learns: what is recorded of each look."""

from __future__ import annotations

import functools

import pytest
import torch

from experiments.experiment import RunContext
from experiments.six_sentences import RIVALS, SENTENCES, SixSentences, pieces_of
from mpt_lml.recorded import Outcome
from mpt_score import networks


@functools.cache
def quick() -> Outcome:
    return SixSentences.preset("quick").run(RunContext())


def test_the_looks_are_before_steps_after_the_last_and_at_the_carried_network() -> None:
    assert quick().arrays["step"].tolist() == [0, 1, 2, 6000]
    every = [value for name, value in quick().arrays.items() if name.startswith("alone/")]
    assert len(every) == 6
    for prices in every:
        assert len(prices.unique(dim=0)) == 4  # each step moves every sentence


def test_a_piece_alone_and_its_rival_are_those_of_the_carried_network() -> None:
    """Literally, from the logits of one row with one mask token."""
    network, tokenizer = networks.load_small_bert()
    for number, (sentence, rival) in enumerate(zip(SENTENCES, RIVALS, strict=True)):
        ids, others = tokenizer([sentence, rival], return_tensors="pt")["input_ids"]
        for j in range(1, len(ids) - 1):
            shown = ids.clone()
            shown[j] = tokenizer.mask_token_id
            with torch.no_grad():
                log_q = network(input_ids=shown[None]).logits[0, j].log_softmax(dim=0)
            alone = quick().arrays[f"alone/{number}"][-1, j - 1]
            torch.testing.assert_close(alone, log_q[ids[j]], rtol=0, atol=1e-4)
            if ids[j] != others[j]:
                rival_price = quick().arrays[f"rival/{number}"][-1]
                torch.testing.assert_close(rival_price, log_q[others[j]], rtol=0, atol=1e-4)


def test_a_rival_differs_in_one_piece() -> None:
    _, tokenizer = networks.load_small_bert()
    for sentence, rival in zip(SENTENCES, RIVALS, strict=True):
        assert (pieces_of(sentence, tokenizer) != pieces_of(rival, tokenizer)).sum() == 1


def test_the_answers_have_the_curve_of_the_first_sentence() -> None:
    answers = quick().arrays["answers"]
    hidden = answers.isnan().logical_not()
    assert hidden[0].all() and hidden[5].tolist() == [False, True, False, True, True]
    score = answers.nanmean(dim=1)
    sizes = hidden.sum(dim=1)
    curve = torch.stack([score[sizes == M].mean() for M in range(1, 6)])
    torch.testing.assert_close(curve, quick().arrays["curve/0"][-1], rtol=0, atol=1e-4)


def test_an_interrupted_training_is_no_record() -> None:
    def stopping(steps, _):
        yield next(iter(steps))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SixSentences.preset("quick").run(RunContext(progress=stopping))
