"""What is refused of a function of data and masks; its users' tests have functions of their own."""

from __future__ import annotations

import math

import pytest
import torch

from mpt_lml.models import trial

pytestmark = pytest.mark.bad_input


def test_the_sum_that_is_farthest_from_one_is_named() -> None:
    values = torch.tensor([[0.5, 0.5], [0.5, 0.6], [0.1, 0.2], [math.nan, 1.0]]).log()
    said = r"f must .* where it hides 7 of 9 places they add up to 0\.3, not to 1: .*log_softmax"
    with pytest.raises(ValueError, match=said):
        trial.require_normalized("f", values, torch.tensor([5, 6, 7, 8]), 9)


def test_three_digits_are_enough() -> None:
    """Those of bfloat16; NaN is left to who uses the values."""
    values = torch.tensor([[0.5, 0.54], [math.nan, 0.5]]).log()
    trial.require_normalized("f", values, torch.tensor([1, 1]), 2)
    for other in (0.44, 0.56):
        values = torch.tensor([[0.5, other]]).log()
        with pytest.raises(ValueError, match=rf"add up to {0.5 + other}, not to 1"):
            trial.require_normalized("f", values, torch.tensor([1]), 2)


def test_probabilities_are_told_from_logits() -> None:
    values = torch.tensor([[0.5, 0.5], [0.2, 0.8]])
    with pytest.raises(ValueError, match=r"return values\.log\(\)"):
        trial.require_normalized("f", values, torch.tensor([1, 1]), 2)
    for logits in ([[0.1, 0.1], [0.5, 0.5]], [[2.0, -1.0], [0.5, 0.5]]):  # the second add up to 1
        with pytest.raises(ValueError, match="log_softmax"):
            trial.require_normalized("f", torch.tensor(logits), torch.tensor([1, 1]), 2)


def test_every_hidden_value_is_replaced_and_no_other() -> None:
    x = torch.tensor([[0, 2, 1], [2, 0, 2]])
    mask = torch.tensor([[True, True, False], [False, False, True]])
    other = trial.with_others_hidden(x, mask, 3)
    assert torch.equal(other != x, mask)
    assert ((other >= 0) & (other < 3)).all()


def test_any_of_the_answers_may_tell() -> None:
    same = torch.tensor([0.0, math.nan])
    trial.require_blind("f", [same, same + 1e-6, same], "Mend it.")
    with pytest.raises(ValueError, match="f changes its answer .*reads what it scores.* Mend it"):
        trial.require_blind("f", [same, same, same + 1e-3], "Mend it.")
