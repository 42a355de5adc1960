"""Precision: devices without double precision, the last digits."""

from __future__ import annotations

import math

import pytest
import torch
from models import generator
from other_device import MPS, OtherDevice

from mpt_lml import (
    numerics,
)
from mpt_lml.numerics import LOG_ZERO, double, log_or_zero, log_sum, softplus
from mpt_lml.theory import rates


def test_the_sentence_names_the_device_and_the_remedy() -> None:
    with OtherDevice(MPS) as other:
        values = torch.ones(2).to(other.device)
        with pytest.raises(TypeError, match=r"the device mps:0 has no double precision.*\.cpu\(\)"):
            double(values)


def test_a_crossover_needs_no_double_precision() -> None:
    score = torch.tensor([0.0, -1.0, -5.0])
    with OtherDevice(MPS) as other:
        there = rates.crossover(score.to(other.device)).item()
    assert there == rates.crossover(score).item()


@pytest.mark.parametrize(("total", "size", "budget"), [(5, 1, 2), (5, 3, 2), (0, 1, 9), (7, 2, 9)])
def test_chunks_cover_all_within_the_budget(total: int, size: int, budget: int) -> None:
    slices = list(numerics.chunks(total, size, budget))
    assert [i for some in slices for i in range(total)[some]] == list(range(total))
    sizes = [some.stop - some.start for some in slices]
    assert all(one == max(1, budget // size) for one in sizes[:-1])
    assert all(one * size <= max(budget, size) for one in sizes)


def test_a_softplus_keeps_its_last_digit() -> None:
    logits = torch.linspace(-45, 45, 91, dtype=torch.float64)
    exact = [math.log1p(math.exp(-abs(logit))) + max(logit, 0.0) for logit in logits.tolist()]
    torch.testing.assert_close(
        softplus(logits), torch.tensor(exact, dtype=torch.float64), atol=1e-14, rtol=0
    )


def test_a_sum_of_logarithms_is_relative_to_its_largest_term() -> None:
    log_3 = math.log(3.0)
    far = 1e6  # exp of it overflows, and of its negative underflows
    columns = [[log_3, 0.0, LOG_ZERO], [far, far, far - 1e3], [-far, -far + log_3, 2 * LOG_ZERO]]
    terms = torch.tensor(columns, dtype=torch.float64)
    expected = [math.log(4.0), far + math.log(2.0), -far + math.log(4.0)]
    torch.testing.assert_close(log_sum(terms, 1), terms.new_tensor(expected), atol=1e-9, rtol=0)
    torch.testing.assert_close(log_sum(terms.T[:, None], 0)[0], log_sum(terms, 1), atol=0, rtol=0)
    assert log_sum(terms[:, :1], 1).equal(terms[:, 0])


def test_the_logarithm_of_0_is_a_number_without_a_slope() -> None:
    values = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64, requires_grad=True)
    logarithms = log_or_zero(values)
    torch.testing.assert_close(logarithms.exp(), values, atol=0, rtol=1e-15)
    (slopes,) = torch.autograd.grad(logarithms.sum(), values)
    assert slopes.tolist() == [0.0, 2.0, 1.0]


def test_gamma_draws_come_from_the_generator_and_move_it_alone() -> None:
    """The numbers are those of torch 2's CPU generator: other ones would move recorded draws."""
    source = generator(0)
    global_state = torch.get_rng_state()
    draws = numerics.standard_gamma(torch.tensor([0.5, 2.0, 30.0]).double(), generator=source)
    expected = [0.0007893582063475732, 0.6315406048880828, 30.548819220207278]
    assert draws.tolist() == pytest.approx(expected, rel=1e-14)
    following = torch.rand(1, generator=source, dtype=torch.float64).item()
    assert following == pytest.approx(0.5813409198075745, rel=1e-14)
    assert torch.equal(torch.get_rng_state(), global_state)
