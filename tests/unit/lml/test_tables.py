"""Tables: a joint distribution, and conditionals that need not fit."""

from __future__ import annotations

import math

import pytest
import torch
from cases import TractableModelCase
from models import generator, points, random_hmm, random_table

from mpt_lml import ConditionalTable, JointTable, exact_curve, masks
from mpt_lml.models import tables

EXACT = 1e-12  # sums of at most 120 × 5 logarithms of size 10


def inconsistent(num_features: int = 4, num_values: int = 3, noise: float = 0.7, seed: int = 0):
    joint = random_table(*[num_values] * num_features, seed=seed)
    return ConditionalTable.of(joint, noise=noise, generator=generator(seed + 1))


class TestConditionalTable:
    def test_noise_is_the_standard_deviation_of_a_logit(self) -> None:
        """Within a row of V logits their common level is lost; V − 1 contrasts are left."""
        joint, noise = random_table(3, 3, 3, seed=2), 0.3
        plain = ConditionalTable.of(joint)
        noisy = ConditionalTable.of(joint, noise=noise, generator=generator(3))
        moved = noisy.log_table - plain.log_table
        moved = moved - moved.mean(dim=-1, keepdim=True)
        degrees = 2 * moved[..., 0].numel()
        chi_square = (moved / noise).square().sum().item()
        assert abs(chi_square - degrees) <= 5 * math.sqrt(2 * degrees)

    def test_without_noise_it_is_the_joint(self) -> None:
        joint = random_table(3, 3, 3, seed=2)
        model, x = ConditionalTable.of(joint), points(3, 3)
        mask = masks.subsets(3)[1:]
        values = model.log_conditional(x, mask)
        torch.testing.assert_close(values, joint.log_conditional(x, mask), rtol=0, atol=EXACT)

    def test_every_conditional_is_a_distribution_of_what_it_sees(self) -> None:
        model = inconsistent()
        x = points(4, 3)
        for row in masks.subsets(4)[1:]:
            mask = row.expand(len(x), -1)
            values = model.log_values(x, mask)[:, row]
            torch.testing.assert_close(
                values.exp().sum(dim=-1), torch.ones_like(values[..., 0]), rtol=0, atol=EXACT
            )
            changed = torch.where(row, (x + 1) % 3, x)
            assert torch.equal(model.log_values(changed, mask)[:, row], values)

    def test_the_two_questions_have_one_answer(self) -> None:
        model, x = inconsistent(), points(4, 3)[::7]
        mask = masks.subsets(4)[1:]
        values = model.log_conditional(x, mask)
        for p, row in enumerate(mask):
            all_values = model.log_values(x, row.expand(len(x), -1))
            own = all_values.gather(-1, x[..., None])[..., 0] * row
            assert torch.equal(own, values[p])

    @pytest.mark.bad_input
    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (lambda: ConditionalTable(torch.zeros(4, 9, 2)), ValueError, r"\(2\^D, V\^D, D, V\)"),
            (lambda: ConditionalTable(torch.zeros(4, 9, 2, 2)), ValueError, r"\(4, 4, 2, 2\)"),
            (
                lambda: ConditionalTable(torch.full((2, 2, 1, 2), math.inf)),
                ValueError,
                "logits must be finite",
            ),
            (
                lambda: ConditionalTable.of(random_hmm(2, 3, 20)),
                ValueError,
                "the values of D = 20.*more than",
            ),
            (
                lambda: ConditionalTable.of(random_table(2, 3)),
                TypeError,
                r"the same values 0\.\.V−1 in every coordinate \(num_values\), got JointTable without",
            ),
            (
                lambda: ConditionalTable.of(random_table(2, 2), noise=-1.0),
                ValueError,
                r"noise must be a single number in \[0, inf\), got -1.0",
            ),
            (
                lambda: ConditionalTable.of(random_table(2, 2), noise=1.0),
                TypeError,
                "generator must be a torch.Generator",
            ),
            (
                lambda: inconsistent().log_values(points(4, 3)[:2], masks.all_masks(4, 2)[:1]),
                ValueError,
                "same number of rows, got 2 and 1",
            ),
            (
                lambda: inconsistent().log_conditional(
                    torch.full((1, 4), 3), masks.all_masks(4, 2)
                ),
                ValueError,
                r"0\.\.2 in column 0, but x\[0, 0\] is 3",
            ),
        ],
    )
    def test_refuses(self, call, error, message) -> None:
        with pytest.raises(error, match=message):
            call()


TABLES = {
    "D=1": random_table(4),
    "binary": random_table(2, 2, 2, 2, 2, seed=1),
    "mixed": random_table(3, 2, 4, 1, 2, seed=2),
}


@pytest.mark.parametrize("model", TABLES.values(), ids=TABLES.keys())
class TestJointTable(TractableModelCase):
    def test_marginals_by_brute_force(self, model: JointTable) -> None:
        x, table = self.data(model), model.log_table.exp()
        for row in masks.subsets(model.num_features):
            kept = [j for j in range(model.num_features) if row[j]]
            summed = [j for j in range(model.num_features) if not row[j]]
            marginal = table.sum(dim=summed) if summed else table
            expected = marginal[tuple(x[:, kept].T)].log() if kept else torch.zeros(len(x)).double()
            value = model.log_subset_marginal(x, row[None])[0]
            torch.testing.assert_close(value, expected, atol=EXACT, rtol=0)

    def test_conditionals_sum_to_one(self, model: JointTable) -> None:
        last = model.num_features - 1
        values = torch.arange(model.log_table.shape[last])
        x = self.data(model, 1).repeat(len(values), 1)
        x[:, last] = values
        mask = torch.zeros(1, model.num_features, dtype=torch.bool)
        mask[0, last] = True
        assert abs(model.log_conditional(x, mask)[0, :, last].exp().sum().item() - 1) <= EXACT

    def test_data_in_parts_are_answered_as_a_whole(self, model: JointTable, monkeypatch) -> None:
        x, mask = self.data(model, 5), self.every_mask(model)

        def answers() -> list[torch.Tensor]:
            return [
                model.log_conditional(x, mask),
                model.log_subset_marginal(x, ~mask),
                model.mean_log_conditional(x, mask),
                model.mean_log_subset_marginal(x, ~mask),
                model.log_each(x, mask[torch.arange(len(x)) % len(mask)]),
            ]

        whole = answers()
        bytes_of_a_datum = 3 * 8 * max(2**model.num_features, model.log_table.numel())
        for most in (1, 2):  # of the five data: the last part has one only
            monkeypatch.setattr(tables, "WORKING_BYTES", most * bytes_of_a_datum // 8)
            for value, expected in zip(answers(), whole, strict=True):
                torch.testing.assert_close(value, expected, atol=EXACT, rtol=0)

    def test_every_value_of_a_hidden_coordinate(self, model: JointTable) -> None:
        x, mask = self.data(model), self.every_mask(model)
        x = x.repeat(len(mask), 1)
        mask = mask.repeat_interleave(len(x) // len(mask), dim=0)
        if len(set(model.log_table.shape)) > 1:
            with pytest.raises(TypeError, match="JointTable has no list of values"):
                model.log_values(x, mask)
            return
        values = model.log_values(x, mask)
        assert values.shape == (*x.shape, model.log_table.shape[0])
        totals = values.logsumexp(dim=-1)[mask]
        torch.testing.assert_close(totals, torch.zeros_like(totals), atol=EXACT, rtol=0)
        of_x = values.gather(-1, x[..., None])[..., 0]
        torch.testing.assert_close(of_x[mask], model.log_each(x, mask)[mask], atol=EXACT, rtol=0)

    def test_sampler_follows_the_table(self, model: JointTable) -> None:
        count = 40_000
        x = model.sample(count, generator=generator(5))
        index = torch.zeros(count, dtype=torch.int64)
        for values, size in zip(x.T, model.log_table.shape, strict=True):
            index = index * size + values
        expected = model.log_table.exp().flatten()
        observed = torch.bincount(index, minlength=len(expected)) / count
        error = (expected * (1 - expected) / count).sqrt()
        assert ((observed - expected).abs() <= 5 * error).all()


def test_with_two_of_three_hidden_three_coins_score_as_high_as_a_parity() -> None:
    """A size sees marginals of D − M + 1 coordinates, and those of pairs are the same here."""
    x = points(3, 2)
    sign = 1.0 - 2.0 * (x.sum(dim=1) % 2).double()  # 1 where the sum is even
    p = (1 + 0.8 * sign) / 8
    expected = {}
    for name, cells in (("parity", p), ("coins", torch.full((8,), 0.125, dtype=torch.float64))):
        model = JointTable(cells.view(2, 2, 2))
        scores = torch.stack([exact_curve(model, datum[None]).score for datum in x])
        expected[name] = (p @ scores).tolist()
    coin = -math.log(2)
    one_hidden = 0.9 * math.log(0.9) + 0.1 * math.log(0.1)
    assert expected["parity"] == pytest.approx([one_hidden, coin, coin], abs=EXACT)
    assert expected["coins"] == pytest.approx([coin, coin, coin], abs=EXACT)


def test_a_random_table_is_uniform_on_the_simplex() -> None:
    """Exponential weights e_i over their sum: Σ p_i² is Σ e_i²/(Σ e_i)², about 2/V for V cells.

    By the delta method V Σ p_i² has the variance Var(e² − 4 e)/V = (20 + 16 − 32)/V.
    """
    table = JointTable.random((2,) * 12, generator=generator(4))
    p = table.log_table.exp()
    num_cells = p.numel()
    assert abs(num_cells * p.square().sum().item() - 2.0) <= 5 * math.sqrt(4 / num_cells)


@pytest.mark.bad_input
@pytest.mark.parametrize(("dtype", "slip"), [(torch.float64, 1e-8), (torch.float32, 1e-5)])
def test_a_sum_that_is_off_by_more_than_rounding(dtype: torch.dtype, slip: float) -> None:
    cells = torch.full((2, 2), 0.25, dtype=dtype)
    model = JointTable(cells)
    assert model.log_marginal(torch.zeros(1, 2).long()).exp().item() == 0.25
    with pytest.raises(ValueError, match="must sum to 1"):
        JointTable(cells * (1 + slip))


@pytest.mark.bad_input
def test_a_random_table_that_fills_the_memory() -> None:
    with pytest.raises(
        ValueError, match=r"of sizes \(100, .* are 1\.000e\+16, more than the 262144"
    ):
        JointTable.random((100,) * 8, generator=generator())


@pytest.mark.bad_input
def test_a_value_that_another_column_could_have() -> None:
    model = JointTable.random((2, 3), generator=generator())
    model.log_marginal(torch.tensor([[1, 2]]))
    with pytest.raises(ValueError, match=r"x must be 0\.\.1 in column 0, but x\[0, 0\] is 2"):
        model.log_marginal(torch.tensor([[2, 2]]))


def test_a_sum_that_is_off_by_rounding_is_not_in_the_curve() -> None:
    """The area is log p(x) of the table, whose entries add up to 1 + 8e-10: no set is all of it."""
    model = JointTable(torch.tensor([[0.1, 0.2], [0.3, 0.4 + 8e-10]], dtype=torch.float64))
    x = torch.tensor([[0, 1], [1, 1]])
    assert exact_curve(model, x).area() == pytest.approx(model.log_marginal(x).mean(), abs=1e-14)
