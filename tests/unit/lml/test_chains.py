"""Blocks of a long chain: against sums over all strings, long chains and closed forms."""

from __future__ import annotations

import contextlib
import itertools
import math

import mpmath
import pytest
import torch
from models import generator
from torch import Tensor

from mpt_lml import masks
from mpt_lml.theory.chains import (
    MAX_ROUNDING,
    ChainBlocks,
    markov_blocks,
    rate_efficiency,
    rate_noise,
)

f64 = {"dtype": torch.float64}


def coin(correlation: float) -> tuple[Tensor, Tensor]:
    """A chain of two states whose symbols at distance g have the correlation λ^g, and ∂/∂λ."""
    kept = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], **f64) / 2
    return 0.5 + correlation * kept, kept


def three_states() -> tuple[Tensor, Tensor]:
    g = generator(3)
    transition = torch.randn(3, 3, generator=g, **f64).softmax(dim=1)
    direction = torch.randn(3, 3, generator=g, **f64)
    derivative = transition * (direction - (transition * direction).sum(dim=1, keepdim=True))
    return transition, derivative


def log_joint(transition: Tensor, strings: Tensor) -> Tensor:
    """log p of each string given its first symbol."""
    return transition.log()[strings[:, :-1], strings[:, 1:]].sum(dim=1)


def difference_quotient(function, transition: Tensor, derivative: Tensor) -> Tensor:
    step = 1e-5
    return (function(transition + step * derivative) - function(transition - step * derivative)) / (
        2 * step
    )


def scores_by_enumeration(transition: Tensor, derivative: Tensor, hidden: list[int], length: int):
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

        columns.append(difference_quotient(log_conditional, transition, derivative))
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
    transition, derivative = three_states()
    scores, weight = scores_by_enumeration(transition, derivative, [1, 3, 4], 6)
    blocks = markov_blocks(transition, derivative, 2)
    joint = (weight @ scores.sum(dim=1).square()).item()
    assert joint == pytest.approx(blocks.variability.sum().item(), rel=1e-6)


def test_information_is_that_of_one_step() -> None:
    assert markov_blocks(*coin(0.6), 1).information == pytest.approx(1 / (1 - 0.36), rel=1e-12)


def test_a_sticky_coin_is_a_brownian_bridge() -> None:
    """λ → 1: H_k → k(k+1)(k+2)/6 and J_k → k(k+1)²(k+2)/12 (theorem of note A)."""
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


def two_pairs(leaving: float) -> Tensor:
    """Two pairs of states, and a way from one to the other that is taken with probability ``leaving``."""
    moves = torch.tensor(
        [
            [0.0, 0.5, leaving, 2 * leaving],
            [0.3, 0.0, 3 * leaving, leaving],
            [5 * leaving, leaving, 0.0, 0.125],
            [leaving, 0.5 * leaving, 0.25, 0.0],
        ],
        **f64,
    )
    return moves + torch.diag(1 - moves.sum(dim=1))


def birth_and_death(ratio: float) -> Tensor:
    """Three states in a row, each more probable than the one before by 1/``ratio``."""
    moves = torch.full((3, 3), 1e-30, **f64)
    moves += torch.diag(torch.full((2,), 0.25, **f64), 1)
    moves += torch.diag(torch.full((2,), 0.25 * ratio, **f64), -1)
    moves.fill_diagonal_(0.0)
    return moves + torch.diag(1 - moves.sum(dim=1))


def never_turned(small: float) -> Tensor:
    """A coin that is turned with probability ``small``."""
    return torch.tensor([[1 - small, small], [small, 1 - small]], **f64)


def stationary_law(transition: Tensor) -> list[float]:
    """In 60 digits, from the steps to other states: that a state is kept follows."""
    num_states = len(transition)
    with mpmath.workdps(60):
        flow = mpmath.matrix(transition.T.tolist())
        for state in range(num_states):
            flow[state, state] = 0
            flow[state, state] = -mpmath.fsum(flow[:, state])
        flow[0, :] = mpmath.ones(1, num_states)
        return [float(share) for share in mpmath.lu_solve(flow, [1] + (num_states - 1) * [0])]


def by_paths(
    transition: Tensor, derivative: Tensor, law: list[float], length: int
) -> tuple[float, float]:
    """H_k and J_k from all paths between all ends, in 500 digits: scores as differences of means."""
    num_states = len(transition)
    with mpmath.workdps(500):
        table = [[mpmath.mpf(entry) for entry in row] for row in transition.tolist()]
        change = [[mpmath.mpf(entry) for entry in row] for row in derivative.tolist()]
        sensitivity = variability = mpmath.mpf(0)
        for start, end in itertools.product(range(num_states), repeat=2):
            paths = []
            for middle in itertools.product(range(num_states), repeat=length):
                steps = list(itertools.pairwise((start, *middle, end)))
                chance = mpmath.fprod(table[a][b] for a, b in steps)
                derivative_of_log = mpmath.fsum(change[a][b] / table[a][b] for a, b in steps)
                paths.append((middle, chance, chance * derivative_of_log))
            total = mpmath.fsum(chance for _, chance, _ in paths)
            mean = mpmath.fsum(moved for *_, moved in paths) / total
            score = {}  # ∂ log p(x_j | start, end)
            for place, symbol in itertools.product(range(length), range(num_states)):
                through = [path for path in paths if path[0][place] == symbol]
                reached = mpmath.fsum(chance for _, chance, _ in through)
                score[place, symbol] = mpmath.fsum(moved for *_, moved in through) / reached - mean
            for middle, chance, _ in paths:
                scores = [score[place, symbol] for place, symbol in enumerate(middle)]
                often = mpmath.mpf(law[start]) * chance
                sensitivity += often * mpmath.fsum(value**2 for value in scores)
                variability += often * mpmath.fsum(scores) ** 2
        return float(sensitivity), float(variability)


class TestNearlyReducible:
    """Chains that hardly ever leave a set of their states, or hardly ever enter one."""

    @pytest.mark.parametrize("small", [0.1, 1e-3, 1e-5, 1e-7])
    @pytest.mark.parametrize("chain", [two_pairs, lambda small: birth_and_death(small**0.5)])
    @pytest.mark.parametrize("is_within", [True, False], ids=["within a pair", "between the pairs"])
    def test_blocks(self, chain, small: float, is_within: bool) -> None:
        transition = chain(0.5 * small)
        derivative = torch.zeros_like(transition)
        row = 0 if is_within else 1
        derivative[row, row : row + 2] = torch.tensor([-1.0, 1.0], **f64)
        law = stationary_law(transition)
        blocks = markov_blocks(transition, derivative, 3)
        information = law[row] * (derivative[row].square() / transition[row]).sum().item()
        assert blocks.information == pytest.approx(information, rel=MAX_ROUNDING)
        for length in (1, 2, 3):
            expected = by_paths(transition, derivative, law, length)
            found = blocks.sensitivity[length - 1].item(), blocks.variability[length - 1].item()
            assert found == pytest.approx(expected, rel=2 * MAX_ROUNDING)

    @pytest.mark.bad_input
    @pytest.mark.parametrize("small", [1e-10, 1e-15, 1e-20, 1e-100, 1e-300])
    @pytest.mark.parametrize("chain", [two_pairs, birth_and_death, never_turned])
    def test_what_would_be_rounding_is_refused(self, chain, small: float) -> None:
        transition = chain(small)
        with pytest.raises(ValueError, match="must not have states that are next to never visited"):
            markov_blocks(transition, torch.zeros_like(transition), 2)

    @pytest.mark.bad_input
    def test_sets_that_are_never_left_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"transition must be positive, .*\[0, 2\] is 0"):
            markov_blocks(two_pairs(0.0), torch.zeros(4, 4, **f64), 3)


@pytest.mark.parametrize("unit", [1e-120, 1e-6, 1e9])
def test_the_unit_of_the_parameter_is_free(unit: float) -> None:
    transition, derivative = three_states()
    share = torch.tensor([0.2, 0.5], **f64)
    expected = markov_blocks(transition, derivative, 60)
    blocks = markov_blocks(transition, unit * derivative, 60)
    square = unit**2
    assert blocks.information == pytest.approx(square * expected.information, rel=1e-9)
    torch.testing.assert_close(blocks.sensitivity, square * expected.sensitivity, rtol=1e-9, atol=0)
    for of_rate in (rate_efficiency, rate_noise):
        torch.testing.assert_close(of_rate(blocks, share), of_rate(expected, share))


def test_single_precision_is_computed_in_double() -> None:
    """Of a table that is exact in single precision: sums over a hundred places do not round."""
    transition, derivative = (table.float() for table in coin(31 / 32))
    blocks = markov_blocks(transition, derivative, 100)
    exact = markov_blocks(*coin(31 / 32), 100)
    assert blocks.sensitivity.dtype == torch.float32
    torch.testing.assert_close(blocks.variability, exact.variability.float(), rtol=2e-7, atol=0)


@pytest.mark.bad_input
def test_a_table_that_is_no_chain_is_refused() -> None:
    transition, derivative = coin(0.5)
    with pytest.raises(ValueError, match=r"transition must sum to 1 in every row"):
        markov_blocks(0.9 * transition, derivative, 2)
    with pytest.raises(ValueError, match=r"transition must sum to 1 in every row"):
        markov_blocks(transition + 1e-9, derivative, 2)  # a row has two entries
    with pytest.raises(ValueError, match=r"derivative must sum to 0 in every row"):
        markov_blocks(transition, derivative + 0.1, 2)
    with pytest.raises(ValueError, match=r"hidden_share must be between 0 and 1.* is 1"):
        rate_efficiency(markov_blocks(transition, derivative, 2), torch.tensor([1.0]))
    table = torch.tensor([[0.9, 0.1], [0.3, 0.7]]).double()
    with pytest.raises(
        ValueError, match=r"off by .*rounded to single precision: make them with dtype"
    ):
        markov_blocks(table, derivative, 2)
    # As small as the steps of a chain that is hardly ever turned, and no derivative all the same.
    with pytest.raises(ValueError, match=r"derivative must sum to 0 in every row"):
        markov_blocks(transition, torch.full((2, 2), 1e-12, **f64), 2)


class TestBlocksByHand:
    def test_noise_needs_no_sensitivity(self) -> None:
        """Nor one of every block: where long ones are alike, J alone may be continued."""
        blocks = markov_blocks(*coin(0.5), 40)
        share = torch.tensor([0.9], **f64)
        with pytest.raises(ValueError, match="more than K = 40 places"):
            rate_noise(blocks, share)
        # The ends of a block of 40 have forgotten each other: each place more adds as much.
        step = blocks.variability[-1] - blocks.variability[-2]
        longer = blocks.variability[-1] + step * torch.arange(1, 200, **f64)
        continued = blocks._replace(variability=torch.cat([blocks.variability, longer]))
        expected = rate_noise(markov_blocks(*coin(0.5), 239), share)
        torch.testing.assert_close(rate_noise(continued, share), expected, rtol=1e-9, atol=0)

    @pytest.mark.bad_input
    @pytest.mark.parametrize("of_rate", [rate_efficiency, rate_noise])
    def test_what_are_no_means_of_squares_is_refused(self, of_rate) -> None:
        blocks = markov_blocks(*coin(0.5), 9)
        share = torch.tensor([0.1], **f64)
        for information in (0.0, -1.0, math.nan):
            with pytest.raises(
                ValueError, match=r"blocks\.information must be a single .* > 0, got"
            ):
                of_rate(blocks._replace(information=information), share)
        negative = blocks._replace(variability=-blocks.variability)
        with pytest.raises(
            ValueError, match=r"blocks\.variability must be not negative, but .*\[0\]"
        ):
            of_rate(negative, share)
        with pytest.raises(ValueError, match=r"blocks\.variability must not be 0 everywhere"):
            of_rate(blocks._replace(variability=torch.zeros(9, **f64)), share)
        with pytest.raises(TypeError, match=r"blocks\.variability must be a floating-point"):
            of_rate(blocks._replace(variability=[1.0, 2.0]), share)

    @pytest.mark.bad_input
    def test_an_efficiency_has_both_of_every_block(self) -> None:
        blocks = ChainBlocks(torch.ones(2), torch.ones(3), 1.0)
        with pytest.raises(ValueError, match=r"variability must have shape \(2,\), got \(3,\)"):
            rate_efficiency(blocks, torch.tensor([0.1]))

    @pytest.mark.bad_input
    def test_shares_of_nothing_are_refused(self) -> None:
        transition, derivative = coin(0.5)
        of_no_parameter = markov_blocks(transition, 0.0 * derivative, 9)
        with pytest.raises(ValueError, match=r"A share of no information"):
            rate_efficiency(of_no_parameter, torch.tensor([0.1], **f64))


def test_longer_blocks_have_more_noise_than_the_last_one_that_is_known() -> None:
    """Up to k⁴ times as much: with four of them, blocks that are left out are judged by that growth."""
    share = torch.arange(1, 100, **f64) / 1000
    expected = rate_noise(markov_blocks(*coin(0.98), 60), share)
    few = markov_blocks(*coin(0.98), 4)
    num_accepted = 0
    for one, noise in zip(share.split(1), expected, strict=True):
        with contextlib.suppress(ValueError):
            assert rate_noise(few, one).item() == pytest.approx(noise.item(), rel=1.1e-3)
            num_accepted += 1
    assert 50 < num_accepted < 99


@pytest.mark.parametrize("correlation", [0.5, 0.98])
def test_blocks_that_are_left_out_hardly_count_or_the_share_is_refused(correlation: float) -> None:
    """Of a coin that is rarely turned a block's noise grows like k⁴."""
    share = torch.arange(1, 98, **f64) / 100
    few = markov_blocks(*coin(correlation), 100)
    many = markov_blocks(*coin(correlation), 700)  # 0.97⁷⁰⁰ 700⁴ is nothing beside Σ_k 0.97ᵏ k⁴
    num_accepted = 0
    for one in share.split(1):
        expected = rate_efficiency(many, one).item()
        with contextlib.suppress(ValueError):
            assert rate_efficiency(few, one).item() == pytest.approx(expected, rel=4e-3)
            num_accepted += 1
    assert 80 < num_accepted < 97
    with pytest.raises(ValueError, match=r"more than K = 100 places add nothing, but .* is 0.98"):
        rate_noise(few, torch.tensor([0.5, 0.98], **f64))


NEARLY_PERIODIC = {
    "two states": (
        [[0.000218, 0.999782], [0.999599, 0.000401]],
        [[0.0854, -0.0854], [0.4342, -0.4342]],
    ),
    "three states": (
        [[0.0177, 0.9804, 0.0019], [0.0004, 0.0003, 0.9993], [0.8020, 0.0004, 0.1976]],
        [[-0.0161, 0.0165, -0.0004], [0.0, -0.0001, 0.0001], [0.1248, -0.0005, -0.1243]],
    ),
    "three states, and short blocks that say little": (
        [[0.00076, 0.9977, 0.00154], [0.00039, 0.00001, 0.9996], [0.92047, 0.07944, 0.00009]],
        [[-0.00291, -0.01267, 0.01558], [0.01358, 0.00007, -0.01365], [-1.0, 0.99733, 0.00267]],
    ),
}


@pytest.mark.parametrize("of_rate", [rate_efficiency, rate_noise])
@pytest.mark.parametrize("name", NEARLY_PERIODIC)
def test_a_nearly_periodic_chain_is_not_continued_by_its_last_block(name: str, of_rate) -> None:
    """Where every second or third length has most of the noise, the next may have more than the last."""
    transition, derivative = (torch.tensor(table, **f64) for table in NEARLY_PERIODIC[name])
    blocks = markov_blocks(transition, derivative, 60)
    share = torch.arange(1, 51, **f64) / 100
    expected = of_rate(blocks, share).tolist()
    num_accepted = 0
    for num_blocks in range(1, 13):
        few = ChainBlocks(
            sensitivity=blocks.sensitivity[:num_blocks],
            variability=blocks.variability[:num_blocks],
            information=blocks.information,
        )
        for one, exact in zip(share.split(1), expected, strict=True):
            with contextlib.suppress(ValueError):
                assert of_rate(few, one).item() == pytest.approx(exact, rel=1e-3)
                num_accepted += 1
    assert num_accepted > 160  # of 600
