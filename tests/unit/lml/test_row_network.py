"""The network that guesses hidden rows of a table, and the tables that it is for."""

from __future__ import annotations

import math

import pytest
import torch
from models import generator
from torch import Tensor

from mpt_lml import PPCA, curves, orders
from mpt_lml.models.row_network import (
    NOISE_VARIANCE,
    NUM_HEADS,
    PRIORS,
    RowConditional,
    RowNetwork,
    draw_tables,
)


def network() -> RowNetwork:
    return RowNetwork(8, seed=0).requires_grad_(False)


def constant(mean: float, log_variance: float) -> RowNetwork:
    """A network that says the same of every row."""
    same = network()
    same.leave.weight.zero_()
    same.leave.bias.copy_(torch.tensor([mean, log_variance]))
    return same


@pytest.mark.parametrize("prior", PRIORS)
def test_tables_have_the_covariance_of_their_prior(prior: str) -> None:
    """Whitened by the exact model of each table's inputs, outputs have the unit matrix."""
    x, y = draw_tables(prior, 4000, 5, generator=generator(1))
    assert x.abs().max() < 2
    assert x.var().item() == pytest.approx(4 / 3, rel=0.03)
    powers = torch.stack([x**k for k in range(PRIORS[prior] + 1)], dim=2)
    covariance = powers @ powers.mT + NOISE_VARIANCE * torch.eye(5)
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariance), y[..., None], upper=False
    )[..., 0]
    # The standard error of a square is √(2/4000) = 0.022.
    torch.testing.assert_close(white.mT @ white / 4000, torch.eye(5), atol=0.1, rtol=0)


def by_hand(net: RowNetwork, x: list[float], y: list[float], hidden: list[bool]) -> Tensor:
    """Mean and log-variance of every row, one row and one head at a time."""
    tokens = torch.tensor(
        [[a, 0.0 if h else b, float(h)] for a, b, h in zip(x, y, hidden, strict=True)]
    )
    state = net.enter(tokens)
    for layer in net.layers:
        three = layer.query_key_value(layer.norm_1(state))
        query, key, value = three.chunk(3, dim=1)
        width = query.shape[1] // NUM_HEADS
        answers = torch.zeros_like(query)
        for head in range(NUM_HEADS):
            part = slice(head * width, (head + 1) * width)
            for j in range(len(x)):
                read = [i for i in range(len(x)) if i == j or not hidden[i]]
                agreement = key[read, part] @ query[j, part] / math.sqrt(width)
                answers[j, part] = agreement.softmax(dim=0) @ value[read, part]
        state = state + layer.out(answers)
        state = state + layer.think(layer.norm_2(state))
    return net.leave(net.norm(state))


def test_a_row_reads_the_shown_rows_and_itself() -> None:
    net, x, y = network(), [0.5, -1.0, 2.0], [1.0, 3.0, -2.0]
    for hidden in ([True, True, True], [False, True, True], [True, False, False]):
        answer = net(torch.tensor([x]), torch.tensor([y]), torch.tensor([hidden]))
        expected = by_hand(net, x, y, hidden)
        torch.testing.assert_close(torch.stack(answer, dim=2)[0], expected)


def test_the_density_is_the_normal_one() -> None:
    """Sums along one order, literally, with a network that says N(1, 4) of every row."""
    y = torch.tensor([[1.0, 3.0, -1.0]])
    model = RowConditional(constant(1.0, math.log(4.0)), torch.tensor([0.1, 0.2, 0.3]))
    normal = -0.5 * math.log(2 * math.pi * 4)
    each = model.log_each(y, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(each, torch.tensor([[normal, normal - 0.5, 0.0]]))
    along = orders.log_probability(model, y, torch.tensor([[2, 0, 1]]))
    assert along.item() == pytest.approx(3 * normal - 0.5 - 0.5, abs=1e-5)
    assert curves.exact_curve(model, y).area() == pytest.approx(3 * normal - 1.0, abs=1e-5)


def test_fewer_rows_are_rows_that_nobody_asks_for() -> None:
    net = network()
    x, y = draw_tables("linear", 4, 5, generator=generator(2))
    mask = torch.tensor([[False, False, True, True, True]]).expand(4, -1)
    whole = net.log_each(x, y, mask)
    part = net.log_each(x[:, :3], y[:, :3], mask[:, :3])
    torch.testing.assert_close(part, whole[:, :3])
    assert (whole[:, :2] == 0).all()
    assert (whole[:, 2:] != 0).all()


def test_the_order_of_the_rows_does_not_matter() -> None:
    net = network()
    x, y = draw_tables("quadratic", 4, 6, generator=generator(3))
    mask = torch.rand(4, 6, generator=generator(4)) < 0.5
    other = torch.tensor([3, 0, 5, 1, 2, 4])
    shuffled = net.log_each(x[:, other], y[:, other], mask[:, other])
    torch.testing.assert_close(shuffled, net.log_each(x, y, mask)[:, other])


def test_a_table_in_double_precision_is_answered_in_it() -> None:
    x, y = draw_tables("linear", 1, generator=generator(5))
    model = RowConditional(network(), x[0].double())
    mask = torch.ones(1, 12, dtype=torch.bool)
    answer = model.log_each(y.double(), mask)
    assert answer.dtype == torch.float64
    in_single = RowConditional(network(), x[0]).log_each(y, mask)
    torch.testing.assert_close(answer.float(), in_single)


def test_one_row_and_equal_inputs_are_tables_too() -> None:
    """Nothing about a column of inputs has to vary: the exact model does not mind either."""
    one = RowConditional(network(), torch.tensor([0.5]))
    y = torch.tensor([[1.0]])
    every = torch.ones(1, 1, dtype=torch.bool)
    assert curves.exact_curve(one, y).area() == pytest.approx(one.log_each(y, every).item())
    inputs = torch.full((12,), 0.5)
    same = RowConditional(network(), inputs)
    y = PPCA(torch.linalg.vander(inputs, N=2), NOISE_VARIANCE).sample(1, generator=generator(6))
    along = orders.log_probability(same, y, orders.draw(3, 12, generator=generator(7)))
    assert along.isfinite().all()


@pytest.mark.parametrize("prior", PRIORS)
def test_the_carried_network_integrates_over_its_prior(prior: str) -> None:
    """Along one order, in the mean over 200 tables: near its own evidence, and no other prior's."""
    network = RowNetwork.load(prior)
    x, y = draw_tables(prior, 200, generator=generator(9))
    totals = torch.zeros(200)
    exact = torch.zeros(200)
    for last in range(12):
        mask = torch.arange(12).expand(200, -1) >= last
        totals += network.log_each(x, y, mask)[:, last]
    for row in range(200):
        powers = torch.linalg.vander(x[row], N=PRIORS[prior] + 1)
        exact[row] = PPCA(powers, NOISE_VARIANCE).log_marginal(y[row][None])[0]
    assert (totals - exact).mean().abs() < 0.3
    assert not any(weight.requires_grad for weight in network.parameters())


@pytest.mark.bad_input
def test_bad_tables_are_refused_in_a_sentence() -> None:
    net = network()
    x, y = draw_tables("linear", 2, generator=generator(8))
    mask = torch.ones(2, 12, dtype=torch.bool)
    missing = y.clone()
    missing[1, 3] = math.nan
    with pytest.raises(ValueError, match=r"^y must be finite, but y\[1, 3\] is nan"):
        net.log_each(x, missing, mask)
    with pytest.raises(ValueError, match=r"^x must be finite, but x\[1, 3\] is nan"):
        RowConditional(net, x[0]).log_each(missing, mask)
    with pytest.raises(ValueError, match="^a table must have 12 rows at most.* got 13"):
        net.log_each(torch.zeros(1, 13), torch.zeros(1, 13), torch.ones(1, 13).bool())
    with pytest.raises(ValueError, match="^a table must have 12 rows at most.* got 13"):
        RowConditional(net, torch.zeros(13))
    with pytest.raises(
        ValueError, match="^width must be a multiple of 2, one part for each head, got 49"
    ):
        RowNetwork(49, seed=0)
