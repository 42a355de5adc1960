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
from mpt_lml.numerics import double, softplus
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
