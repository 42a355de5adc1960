"""What is refused of a function of data and masks; its users' tests have functions of their own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from models import generator

from mpt_lml.models import trial

pytestmark = pytest.mark.bad_input


def test_the_sum_that_is_farthest_from_one_is_named() -> None:
    values = torch.tensor([[0.5, 0.5], [0.5, 0.6], [0.1, 0.2], [math.nan, math.nan]]).log()
    said = r"f must .* where it hides 7 of 9 places they add up to 0\.3, not to 1: .*log_softmax"
    with pytest.raises(ValueError, match=said):
        trial.require_normalized("f", values, torch.tensor([5, 6, 7, 8]), 9)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_a_sum_is_off_by_what_its_precision_rounds(precision: torch.dtype) -> None:
    """Of V equal probabilities each logarithm rounds alike: nothing cancels, and u log V is reached."""
    unit_roundoff = torch.finfo(precision).eps / 2
    shares = []
    for num_values in range(2, 400):
        values = torch.full((1, num_values), -math.log(num_values), dtype=torch.float64)
        rounded = values.to(precision)
        trial.require_normalized("f", rounded, torch.tensor([1]), 1)
        off = rounded.double().logsumexp(dim=1).abs().item()
        shares.append(off / (unit_roundoff * math.log(num_values)))
    assert 0.9 < max(shares) <= 1.0


@pytest.mark.parametrize("num_values", [2, 100, 30522])
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16, torch.float32])
def test_a_sum_that_is_farther_off_is_refused(precision: torch.dtype, num_values: int) -> None:
    most = trial.normalization_tolerance(precision, num_values)
    rounds = torch.finfo(precision).eps * math.log(num_values)  # the answers are rounded, too
    values = torch.full((1, num_values), -math.log(num_values), dtype=torch.float64)
    too_large = (values + 1.1 * (most + rounds)).to(precision)
    name = str(precision).removeprefix("torch.")
    with pytest.raises(ValueError, match=rf"not to 1: .*\(in {name} the sum may be off by"):
        trial.require_normalized("f", too_large, torch.tensor([1]), 1)
    assert most < 0.05
    if precision == torch.float32:
        trial.require_normalized("f", (values + 0.9e-3).float(), torch.tensor([1]), 1)


def test_the_precision_counts_in_which_the_answer_came() -> None:
    """A log-softmax in bfloat16 that is cast to float32 after it has lost what the cast shows."""
    logits = torch.randn(5, 30522, generator=generator(1)).bfloat16()
    count = torch.ones(5).long()
    trial.require_normalized("f", logits.log_softmax(dim=1), count, 1)
    trial.require_normalized("f", logits.float().log_softmax(dim=1), count, 1)
    with pytest.raises(ValueError, match=r"return logits\.float\(\)\.log_softmax"):
        trial.require_normalized("f", logits.log_softmax(dim=1).float(), count, 1)


def test_nan_is_left_to_who_uses_the_values() -> None:
    values = torch.tensor([[0.5, 0.5], [math.nan, math.nan]]).log()
    trial.require_normalized("f", values, torch.tensor([1, 1]), 2)


def test_nan_of_one_value_does_not_hide_the_others_sum() -> None:
    values = torch.tensor([[0.5, 0.5, 0.0], [math.nan] * 3, [1.0, 1.0, math.nan]]).log()
    said = "where it hides 7 of 9 places it answers nan of value 2"
    with pytest.raises(ValueError, match=said):
        trial.require_normalized("f", values, torch.tensor([5, 6, 7]), 9)


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
    other = trial.with_hidden_replaced(x, mask, 3)
    assert torch.equal(other != x, mask)
    assert ((other >= 0) & (other < 3)).all()


def test_any_of_the_answers_may_tell() -> None:
    same = torch.tensor([0.0, math.nan])
    trial.require_no_leakage("f", [same, same + 1e-6, same], "Mend it.")
    with pytest.raises(ValueError, match="f changes its answer .*reads what it scores.* Mend it"):
        trial.require_no_leakage("f", [same, same, same + 1e-3], "Mend it.")


X = torch.randint(7, (1, 12), generator=generator(4))
MASK = torch.arange(12)[None] > 0  # eleven of twelve
TABLE = torch.randn(8, 7, generator=generator(5), dtype=torch.float64)


def logits_of(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    shown = x.masked_fill(mask, 7)
    return TABLE[shown].mean(dim=1, keepdim=True) + TABLE[shown.roll(1, dims=1)]


def tried(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], x=X, mask=MASK) -> int:
    """Try the function that adds ``change`` of x and mask to its logits."""

    def log_values(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (logits_of(x, mask) + change(x, mask)).log_softmax(dim=-1)[mask]

    return trial.validate_conditionals("f", log_values, x, mask)


@pytest.mark.parametrize(("least", "most"), [(0.8, 1.0), (0.4, 0.6), (0.2, 0.3), (0.0, 0.1)])
def test_each_of_four_rates_is_tried(least: float, most: float) -> None:
    """Eleven, six, three and one of twelve are hidden."""

    def peeks(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rate = mask.double().mean(dim=1)
        is_between = (least <= rate) & (rate <= most)
        return 0.01 * torch.nn.functional.one_hot(x, 7) * is_between[:, None, None]

    with pytest.raises(ValueError, match="it reads what it scores"):
        tried(peeks)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, mask: 0.1 * logits_of(x, mask).mean(dim=0),
        lambda x, mask: logits_of(x, mask)[:1] - logits_of(x, mask),
        lambda x, mask: logits_of(x, mask)[-1:] - logits_of(x, mask),
        lambda x, mask: logits_of(x, mask) * (len(x) - 1),
        lambda x, mask: torch.tensor(math.nan if len(x) > 1 else 0.0),
    ],
    ids=["a mean over rows", "the first row's", "the last row's", "the number of rows", "nan"],
)
@pytest.mark.parametrize("num_hidden", [11, 1])
def test_an_answer_that_depends_on_the_other_rows(change: Callable, num_hidden: int) -> None:
    """With one place hidden there is only another datum to be asked with it."""
    x = torch.randint(7, (2, 12), generator=generator(7))
    mask = (torch.arange(12) >= 12 - num_hidden).expand(2, 12)
    assert tried(lambda x, mask: torch.zeros(()), x, mask) == 7
    with pytest.raises(ValueError, match="f answers otherwise of a row when another row is asked"):
        tried(change, x, mask)


def test_what_half_precision_rounds_between_batches_is_no_dependence() -> None:
    """A stand-in for its kernels: another rounding, by hundredths, for another number of rows."""
    noise = torch.randn(3, 12, 7, generator=generator(6), dtype=torch.float64)

    def rounds(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return 0.03 * noise[len(x)]

    assert tried(rounds) == 7
    with pytest.raises(ValueError, match="answers otherwise of a row"):
        tried(lambda x, mask: 10.0 * rounds(x, mask))
    with pytest.raises(ValueError, match="answers otherwise of a row"):
        tried(lambda x, mask: rounds(x, mask) + logits_of(x, mask).mean(dim=0))


def test_nan_in_whatever_company_is_left_to_who_uses_it() -> None:
    assert tried(lambda x, mask: torch.tensor(math.nan)) == 7


def test_an_answer_that_depends_on_what_was_asked_before() -> None:
    calls = itertools.count(1)
    with pytest.raises(ValueError, match="f answers otherwise when it is asked the same again"):
        tried(lambda x, mask: 0.01 * next(calls) * logits_of(x, mask))


def test_a_value_of_probability_zero_hides_no_dependence() -> None:
    never_three = torch.zeros(7, dtype=torch.float64).masked_fill(torch.arange(7) == 3, -math.inf)
    assert tried(lambda x, mask: never_three) == 7
    with pytest.raises(ValueError, match="answers otherwise of a row"):
        tried(lambda x, mask: never_three + logits_of(x, mask).mean(dim=0))
