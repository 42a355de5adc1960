"""Blocks of a long chain: against sums over all strings, long chains and closed forms."""

from __future__ import annotations

import contextlib
import itertools
import math

import pytest
import torch
from models import generator
from torch import Tensor

from mpt_lml import masks
from mpt_lml.theory.chains import ChainBlocks, markov_blocks, rate_efficiency, rate_noise

f64 = {"dtype": torch.float64}


def coin(correlation: float) -> tuple[Tensor, Tensor]:
    """A chain of two states whose symbols at distance g have the correlation λ^g, and ∂/∂λ."""
    kept = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], **f64) / 2
    return 0.5 + correlation * kept, kept


def three_states() -> tuple[Tensor, Tensor]:
    g = generator(3)
    transition = torch.randn(3, 3, generator=g, **f64).softmax(dim=1)
    direction = torch.randn(3, 3, generator=g, **f64)
    slope = transition * (direction - (transition * direction).sum(dim=1, keepdim=True))
    return transition, slope


def log_joint(transition: Tensor, strings: Tensor) -> Tensor:
    """log p of each string given its first symbol."""
    return transition.log()[strings[:, :-1], strings[:, 1:]].sum(dim=1)


def derivative(function, transition: Tensor, slope: Tensor) -> Tensor:
    step = 1e-5
    return (function(transition + step * slope) - function(transition - step * slope)) / (2 * step)


def scores_by_enumeration(transition: Tensor, slope: Tensor, hidden: list[int], length: int):
    """∂ log p(x_j | visible) of every string for every hidden j, and the strings' probabilities."""
    num_states = len(transition)
    strings = torch.tensor(list(itertools.product(range(num_states), repeat=length)))
    stationary = torch.linalg.matrix_power(transition, 200)[0]
    weight = stationary[strings[:, 0]] * log_joint(transition, strings).exp()
    visible = [j for j in range(length) if j not in hidden]
    columns = []
    for j in hidden:

        def log_conditional(table: Tensor, j: int = j) -> Tensor:
            probability = log_joint(table, strings).exp()
            of_visible = torch.zeros(num_states ** len(visible), **f64)
            of_both = torch.zeros(num_states ** (len(visible) + 1), **f64)
            key = torch.zeros(len(strings), dtype=torch.long)
            for i in visible:
                key = num_states * key + strings[:, i]
            both = num_states * key + strings[:, j]
            of_visible.index_add_(0, key, probability)
            of_both.index_add_(0, both, probability)
            return of_both[both].log() - of_visible[key].log()

        columns.append(derivative(log_conditional, transition, slope))
    return torch.stack(columns, dim=1), weight


@pytest.mark.parametrize("chain", [coin(0.7), three_states()], ids=["coin", "three states"])
def test_a_block_is_the_sum_over_all_its_strings(chain: tuple[Tensor, Tensor]) -> None:
    blocks = markov_blocks(*chain, 4)
    for k in (1, 2, 4):
        scores, weight = scores_by_enumeration(*chain, list(range(1, k + 1)), k + 2)
        assert (weight @ scores).abs().max().item() < 1e-8
        of_each = (weight @ scores.square()).sum().item()
        joint = (weight @ scores.sum(dim=1).square()).item()
        assert blocks.sensitivity[k - 1].item() == pytest.approx(of_each, rel=1e-6)
        assert blocks.variability[k - 1].item() == pytest.approx(joint, rel=1e-6)


def test_two_blocks_are_uncorrelated() -> None:
    """A block of one and a block of two, one visible place between: the variances add up."""
    transition, slope = three_states()
    scores, weight = scores_by_enumeration(transition, slope, [1, 3, 4], 6)
    blocks = markov_blocks(transition, slope, 2)
    joint = (weight @ scores.sum(dim=1).square()).item()
    assert joint == pytest.approx(blocks.variability.sum().item(), rel=1e-6)


def test_information_is_that_of_one_step() -> None:
    assert markov_blocks(*coin(0.6), 1).information == pytest.approx(1 / (1 - 0.36), rel=1e-12)


def test_a_sticky_coin_is_a_brownian_bridge() -> None:
    """λ → 1: H_k → k(k+1)(k+2)/6 and J_k → k(k+1)²(k+2)/12 (theorem of chapter 22)."""
    k = torch.arange(1, 7, **f64)
    blocks = markov_blocks(*coin(1 - 1e-5), 6)
    sensitivity = k * (k + 1) * (k + 2) / 6
    variability = k * (k + 1) ** 2 * (k + 2) / 12
    torch.testing.assert_close(blocks.sensitivity, sensitivity, rtol=1e-3, atol=0)
    torch.testing.assert_close(blocks.variability, variability, rtol=1e-3, atol=0)


def test_the_efficiency_of_a_rate_is_that_of_a_long_chain() -> None:
    """H and J of random masks of 400 places, by the blocks that they leave."""
    blocks = markov_blocks(*coin(0.5), 60)
    length, rate = 400, 0.6
    sensitivity = torch.zeros(300, **f64)
    variability = torch.zeros(300, **f64)
    for row, mask in enumerate(masks.sample_masks(300, length, 240, generator=generator(5))):
        visible = (~mask).nonzero()[:, 0]
        inner = visible.diff() - 1
        inner = inner[inner > 0]
        sensitivity[row] = blocks.sensitivity[inner - 1].sum()
        variability[row] = blocks.variability[inner - 1].sum()
    measured = sensitivity.mean() ** 2 / (variability.mean() * length * blocks.information)
    predicted = rate_efficiency(blocks, torch.tensor([rate], **f64))[0]
    # The two ends are left out, which is one block in a hundred; the rest is noise of 300 masks.
    assert measured.item() == pytest.approx(predicted.item(), rel=0.03)


def test_uniform_rates_pay_without_bound_and_squared_rates_do_not() -> None:
    """Weak dependence has j = 2 (1 − ρ)/ρ. With ρ = u², dρ = 2u du and 1/f = 2u."""
    blocks = ChainBlocks(torch.full((2000,), 2.0, **f64), torch.full((2000,), 2.0, **f64), 1.0)

    def midpoints(count: int) -> Tensor:
        return 0.99 * (torch.arange(count, **f64) + 0.5) / count

    u = midpoints(1000)
    cost_of_root = 0.99 * (rate_noise(blocks, u.square()) * (2 * u).square()).mean()
    assert cost_of_root.item() == pytest.approx(8 * (0.99 - 0.99**3 / 3), rel=1e-5)
    # Twice as near to zero, the integral over uniform rates has 2 ln 2 more.
    coarse = 0.99 * rate_noise(blocks, midpoints(1000)).mean()
    fine = 0.99 * rate_noise(blocks, midpoints(2000)).mean()
    assert (fine - coarse).item() == pytest.approx(2 * math.log(2), rel=1e-5)


@pytest.mark.bad_input
def test_a_table_that_is_no_chain_is_refused() -> None:
    transition, slope = coin(0.5)
    with pytest.raises(ValueError, match=r"each row of transition must sum to 1"):
        markov_blocks(0.9 * transition, slope, 2)
    with pytest.raises(ValueError, match=r"each row of slope must sum to 0"):
        markov_blocks(transition, slope + 0.1, 2)
    with pytest.raises(ValueError, match=r"hidden_share must be between 0 and 1.* is 1"):
        rate_efficiency(markov_blocks(transition, slope, 2), torch.tensor([1.0]))


@pytest.mark.parametrize("correlation", [0.5, 0.98])
def test_blocks_that_are_left_out_hardly_count_or_the_share_is_refused(correlation: float) -> None:
    """Of a coin that is rarely turned a block's noise grows like k⁴."""
    share = torch.arange(1, 100, **f64) / 100
    few = markov_blocks(*coin(correlation), 100)
    many = markov_blocks(*coin(correlation), 3000)
    num_accepted = 0
    for one in share.split(1):
        expected = rate_efficiency(many, one).item()
        with contextlib.suppress(ValueError):
            assert rate_efficiency(few, one).item() == pytest.approx(expected, rel=4e-3)
            num_accepted += 1
    assert 80 < num_accepted < 97
    with pytest.raises(ValueError, match=r"more than K = 100 places add nothing, but .* is 0.98"):
        rate_noise(few, torch.tensor([0.5, 0.98], **f64))
