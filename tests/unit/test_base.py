"""Coordinates in groups: sums of the model's conditionals, and what scoring one by one costs."""

from __future__ import annotations

import math

import pytest
import torch
from models import generator, random_ppca, random_table

from mpt_lml import curves, masks
from mpt_lml.models.base import Grouped

MODEL = random_ppca(6, 2)
GROUP = torch.tensor([0, 1, 0, 2, 2, 1])
X = MODEL.sample(4, generator=generator())


def test_groups_of_one_are_the_model() -> None:
    single, mask = Grouped(MODEL, torch.arange(6)), masks.subsets(6)[1:]
    assert torch.equal(single.log_conditional(X, mask), MODEL.log_conditional(X, mask))


def test_groups_are_sums() -> None:
    mask = masks.subsets(3)[1:]
    values = Grouped(MODEL, GROUP).log_conditional(X, mask)
    for p, row in enumerate(mask):
        inner = MODEL.log_conditional(X, row[GROUP][None])[0]
        for j in range(3):
            expected = inner[:, j == GROUP].sum(dim=1) if row[j] else torch.zeros(4).double()
            torch.testing.assert_close(values[p, :, j], expected)
    mean = Grouped(MODEL, GROUP).mean_log_conditional(X, mask)
    torch.testing.assert_close(mean, values.mean(dim=1))


def test_the_loss_is_total_correlation() -> None:
    """Exactly, on a table: E log p(x) − area = mean over masks and groups of the group's TC ≥ 0."""
    table = random_table(2, 2, 2, 2)
    every = torch.cartesian_prod(*[torch.arange(2)] * 4)
    p = table.log_marginal(every).exp()
    grouped, group = Grouped(table, torch.tensor([0, 0, 1, 1])), torch.tensor([0, 0, 1, 1])
    mask = masks.subsets(2)[1:]
    one_by_one = (grouped.log_conditional(every, mask) * p[:, None]).sum(dim=1)
    gap = 0.0
    for row, values in zip(mask, one_by_one, strict=True):
        seen = ~row[group][None]
        for j in row.nonzero().flatten():
            both = table.log_subset_marginal(every, seen | (group == j)[None])[0]
            joint = ((both - table.log_subset_marginal(every, seen)[0]) * p).sum()
            correlation = (joint - values[j]).item()
            assert correlation > 0
            gap += correlation / row.sum().item() / math.comb(2, int(row.sum()))
    area = sum(
        (values.sum() / row.sum()).item() / math.comb(2, int(row.sum()))
        for row, values in zip(mask, one_by_one, strict=True)
    )
    assert area == pytest.approx((p * p.log()).sum().item() - gap, abs=1e-12)


def test_a_group_with_its_joint_density_is_a_coordinate() -> None:
    """Proposition 1 holds, and the joint density is at least what single members add up to."""
    jointly = Grouped(MODEL, GROUP, jointly=True)
    curve = curves.exact_curve(jointly, X)
    assert curve.area() == pytest.approx(MODEL.log_marginal(X).mean().item(), abs=1e-10)
    single, mask = torch.arange(6), masks.subsets(6)[1:]
    values = Grouped(MODEL, single, jointly=True).log_conditional(X, mask)
    torch.testing.assert_close(values, MODEL.log_conditional(X, mask))


def test_patches_go_row_by_row_in_an_image_that_is_not_square() -> None:
    rows = [[0, 0, 1, 1, 2, 2]] * 2 + [[3, 3, 4, 4, 5, 5]] * 2
    assert Grouped.patches(4, 6, 2).view(4, 6).tolist() == rows
    assert Grouped.patches(6, 4, 2).view(6, 4)[:, 0].tolist() == [0, 0, 2, 2, 4, 4]


def test_patches_of_an_image() -> None:
    assert Grouped.patches(4, 4, 2).view(4, 4).tolist() == [[0, 0, 1, 1]] * 2 + [[2, 2, 3, 3]] * 2
    assert Grouped.patches(2, 6, 2).tolist() == [0, 0, 1, 1, 2, 2] * 2


def test_a_curve_of_groups() -> None:
    curve = curves.exact_curve(Grouped(MODEL, GROUP), X)
    assert curve.num_features == 3
    assert curve.area() < MODEL.log_marginal(X).mean()


@pytest.mark.bad_input
def test_joint_densities_take_marginals() -> None:
    with pytest.raises(TypeError, match="model must be of type TractableModel"):
        Grouped(Grouped(MODEL, GROUP), torch.arange(3), jointly=True)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Grouped(MODEL, torch.arange(5)), r"shape \(6,\), got \(5,\)"),
        (lambda: Grouped(MODEL, torch.tensor([0, 0, 2, 2, 3, 3])), r"without a gap.*\[0, 2, 3\]"),
        (lambda: Grouped(MODEL, GROUP).log_conditional(X, masks.all_masks(6, 1)), r"\(P, 3\)"),
        (lambda: Grouped.patches(8, 8, 3), "side 3 do not cover an image 8 by 8"),
    ],
)
def test_refused_with_a_reason(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()
