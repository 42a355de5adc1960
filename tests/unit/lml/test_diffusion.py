from __future__ import annotations

import math

import pytest
import torch
from models import generator, points, random_ppca, random_table
from moved import other_device
from other_device import DEVICE

from mpt_lml import FromFunction, curves, masks, orders
from mpt_lml.models.base import ConditionalModel
from mpt_lml.models.tables import ConditionalTable
from mpt_lml.theory import diffusion

f64 = {"dtype": torch.float64}


def linear(time: torch.Tensor) -> torch.Tensor:
    return time


def cosine(time: torch.Tensor) -> torch.Tensor:
    return (0.5 * torch.pi * time).sin()


SMOOTH = [linear, torch.square, lambda time: time**4, cosine]
SCHEDULES = [*SMOOTH, lambda time: time**3.5]


def inconsistent(num_features: int = 4, num_values: int = 3, noise: float = 0.7):
    joint = random_table(*[num_values] * num_features)
    return ConditionalTable.of(joint, noise=noise, generator=generator(1))


def curve_of(model: ConditionalTable, x: torch.Tensor) -> torch.Tensor:
    return curves.exact_curve(model, x).score


def masked_sum(model: ConditionalTable, x: torch.Tensor, p: float) -> float:
    """E Σ_{j masked} log q(x_j | x_R) over Bernoulli(p) masks, mask by mask."""
    mask = masks.subsets(model.num_features)[1:]
    size = mask.sum(dim=1).double()
    weight = p**size * (1.0 - p) ** (model.num_features - size)
    return (weight * model.log_conditional(x, mask).mean(dim=1).sum(dim=1)).sum().item()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_speed_is_the_slope(schedule) -> None:
    time = torch.linspace(0.05, 0.95, 7, **f64)
    slope = (schedule(time + 1e-6) - schedule(time - 1e-6)) / 2e-6
    torch.testing.assert_close(
        diffusion.schedule_derivative(schedule, time), slope, rtol=1e-8, atol=0
    )


class TestBernstein:
    def test_is_the_mean_over_bernoulli_masks(self) -> None:
        model, x = inconsistent(), points(4, 3)[:1]
        rate = torch.tensor([0.07, 0.15, 0.5, 0.98], **f64)
        found = diffusion.bernstein(curve_of(model, x), rate)
        for p, value in zip(rate.tolist(), found.tolist(), strict=True):
            assert abs(value - masked_sum(model, x, p) / (4 * p)) < 1e-12

    def test_ends_and_lines(self) -> None:
        score = torch.tensor([-0.3, -0.5, -1.7, -2.0, -0.1], **f64)
        ends = diffusion.bernstein(score, torch.tensor([0.0, 1.0], **f64))
        assert torch.equal(ends, score[[0, -1]])
        rate = torch.linspace(0.0, 1.0, 9, **f64)
        line = diffusion.bernstein(torch.linspace(-1.0, 3.0, 40, **f64), rate)
        torch.testing.assert_close(line, -1.0 + 4.0 * rate, rtol=0, atol=1e-12)

    def test_batches(self) -> None:
        score = torch.randn(2, 3, 5, generator=generator(2), **f64)
        rate = torch.tensor([0.2, 0.9], **f64)
        found = diffusion.bernstein(score, rate)
        assert found.shape == (2, 3, 2)
        assert torch.equal(found[1, 2], diffusion.bernstein(score[1, 2], rate))


class TestNelbo:
    @pytest.mark.parametrize("schedule", SCHEDULES)
    def test_is_minus_the_area_for_every_schedule(self, schedule) -> None:
        model, x = inconsistent(), points(4, 3)[17:18]
        score = curve_of(model, x)
        # p = t^3.5 is not smooth at 0, so Gauss-Legendre is not exact for it: 1e-8, not 1e-13.
        assert abs(diffusion.nelbo(score, schedule) + score.sum()) < 1e-8

    def test_directly_from_the_masks(self) -> None:
        model, x = inconsistent(), points(4, 3)[17:18]
        total, count = 0.0, 400
        for i in range(count):  # midpoint rule in time with the cosine schedule
            time = (i + 0.5) / count
            p = math.cos(0.5 * math.pi * (1.0 - time))
            speed = 0.5 * math.pi * math.sin(0.5 * math.pi * (1.0 - time))
            total -= speed / p * masked_sum(model, x, p) / count
        assert abs(total + curve_of(model, x).sum().item()) < 1e-4

    @pytest.mark.parametrize("schedule", SMOOTH)
    @pytest.mark.parametrize("num_features", [1, 65, 300, 600])
    def test_long_curves(self, schedule, num_features: int) -> None:
        """Rough ones, up and down from size to size."""
        score = torch.randn(num_features, generator=generator(3), **f64)
        found = diffusion.nelbo(score, schedule)
        # Rounding: D levels of de Casteljau's algorithm, some ε each, of D numbers of size 1.
        assert abs(found + score.sum()) < 1e-15 * max(num_features, 10) ** 2

    def test_a_schedule_that_begins_above_zero_leaves_that_out(self) -> None:
        score = -torch.rand(16, generator=generator(3), **f64)
        found = diffusion.nelbo(score, lambda time: 5e-4 + (1.0 - 5e-4) * time)
        left_out = 5e-4 * 16 * diffusion.bernstein(score, torch.tensor([2.5e-4], **f64))[0]
        assert abs(found - left_out + score.sum()) < 1e-7  # the midpoint of a short interval

    def test_a_schedule_that_ends_below_one_leaves_that_out(self) -> None:
        """Of a level curve it leaves out as much of the area as it leaves out of the way."""
        found = diffusion.nelbo(-torch.ones(3, dtype=torch.float64), lambda time: 0.9995 * time)
        assert found.item() == pytest.approx(0.9995 * 3, rel=1e-9)

    def test_a_schedule_may_have_tensors_on_the_device_of_the_curve(self) -> None:
        curve = torch.tensor([-1.0, -2.0], **f64)
        with other_device():
            ends = torch.tensor([[0.0], [1.0]], **f64).to(DEVICE)
            bound = diffusion.nelbo(curve.to(DEVICE), lambda time: torch.lerp(*ends, time))
            assert abs(bound.item() - 3.0) < 1e-12

    @pytest.mark.bad_input
    def test_a_schedule_too_steep_for_its_nodes_is_refused(self) -> None:
        score = -torch.rand(16, generator=generator(3), **f64)
        with pytest.raises(
            ValueError, match=r"misses −Σ_M S\(M\) by 0\.\d+ nats\. Give a smoother one"
        ):
            diffusion.nelbo(score, torch.sqrt)


class TestSteps:
    @pytest.mark.parametrize("schedule", SMOOTH)
    @pytest.mark.parametrize("num_steps", [1, 2, 3])
    def test_elbo_is_the_mean_over_orders(self, schedule, num_steps: int) -> None:
        """Every assignment of the coordinates to steps, weighted by the products of p_i − p_{i−1}."""
        model, x = inconsistent(), points(4, 3)[30:31]
        level = schedule(torch.arange(num_steps + 1, **f64) / num_steps)
        ranks = points(4, num_steps)
        weight = level.diff().flip(0)[ranks].prod(dim=1)
        assert abs(weight.sum() - 1.0) < 1e-12
        expected = (weight @ orders.log_probability(model, x, ranks)[:, 0]).item()
        found = diffusion.step_elbo(curve_of(model, x), schedule, num_steps)
        assert abs(found.item() - expected) < 1e-12

    def test_elbo_converges_at_first_order(self) -> None:
        score = curve_of(inconsistent(), points(4, 3)[30:31])
        gap = [
            4 * (score.mean() - diffusion.step_elbo(score, linear, t) / 4).item()
            for t in (200, 400)
        ]
        predicted = 4 * (score[0] - score[-1]).item() / 2
        assert gap[0] * 200 == pytest.approx(predicted, rel=0.02)
        assert gap[0] / gap[1] == pytest.approx(2.0, rel=0.02)


class TestSample:
    @pytest.mark.parametrize("num_steps", [1, 2, 3])
    def test_follows_the_mixture_over_orders(self, num_steps: int) -> None:
        model, count = inconsistent(3, 2, noise=1.5), 60_000
        ranks = orders.draw(count, 3, generator=generator(6)) * num_steps // 3
        x, said = diffusion.sample(model, ranks, generator=generator(7))
        observed = torch.bincount((x * torch.tensor([4, 2, 1])).sum(dim=1), minlength=8) / count
        for row in range(50):  # what each draw says of itself
            own = orders.log_probability(model, x[row][None], ranks[row][None])
            assert abs(own.item() - said[row].item()) < 1e-12
        kinds = orders.every(3) * num_steps // 3
        expected = orders.log_probability(model, points(3, 2), kinds).exp().mean(dim=0)
        error = (expected * (1 - expected) / count).sqrt()
        assert ((observed - expected).abs() < 5 * error).all()

    def test_of_a_joint_with_gaps_in_the_steps(self) -> None:
        joint = random_table(2, 2, 2, seed=3)
        model, count = ConditionalTable.of(joint), 60_000
        ranks = 3 * orders.draw(count, 3, generator=generator(8))
        x, said = diffusion.sample(model, ranks, generator=generator(9))
        observed = torch.bincount((x * torch.tensor([4, 2, 1])).sum(dim=1), minlength=8) / count
        torch.testing.assert_close(said, joint.log_marginal(x), rtol=0, atol=1e-12)
        expected = joint.log_table.exp().flatten()
        error = (expected * (1 - expected) / count).sqrt()
        assert ((observed - expected).abs() < 5 * error).all()

    def test_all_values_from_one_at_a_time(self) -> None:
        model, x = inconsistent(), points(4, 3)
        mask = masks.sample_masks(len(x), 4, masks.UniformSize(), generator=generator(10))

        found = ConditionalModel._log_values(model, x, mask)
        expected = model.log_values(x, mask)
        torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=0)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: diffusion.sample(random_table(2, 3), orders.every(2), generator=generator()),
            TypeError,
            "JointTable has no list of values",
        ),
        (
            lambda: diffusion.bernstein(torch.zeros(3), torch.tensor([1.1])),
            ValueError,
            "vector of probabilities",
        ),
        (
            lambda: diffusion.step_elbo(torch.zeros(3), cosine, 0),
            ValueError,
            "num_steps must be >= 1, got 0",
        ),
        (
            lambda: diffusion.step_elbo(torch.zeros(3), lambda t: t + 0.5 * (6.2832 * t).sin(), 4),
            ValueError,
            r"schedule must increase with time, but it falls by 0\.25 after time 0\.",
        ),
        *(
            (
                lambda schedule=schedule: diffusion.step_elbo(torch.zeros(3), schedule, 4),
                ValueError,
                "schedule must lead from 0 at 0 to 1 at 1",
            )
            for schedule in (lambda t: 0.5 * t, lambda t: 0.5 + 0.5 * t)
        ),
        (
            lambda: diffusion.schedule_derivative(lambda t: t.detach(), torch.tensor([0.5])),
            ValueError,
            r"schedule\(time\) must depend on its argument",
        ),
        (
            lambda: diffusion.sample(
                FromFunction(lambda x, mask: torch.full((*x.shape, 3), math.nan), 2),
                orders.every(2),
                generator=generator(),
            ),
            ValueError,
            r"model\.log_values must answer log-probabilities.* at step 0 of ranks",
        ),
        (
            lambda: diffusion.sample(inconsistent(), orders.every(4), generator=None),
            TypeError,
            "generator must be a torch.Generator",
        ),
    ],
)
def test_refuses(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_gaussian_has_the_same_bound() -> None:
    model = random_ppca(6, 2)
    x = model.sample(3, generator=generator(1))
    score = curves.exact_curve(model, x).score
    exact = model.log_marginal(x).mean()
    assert abs(diffusion.nelbo(score, cosine) + exact) < 1e-9


def test_curves_side_by_side_are_bounded_one_by_one() -> None:
    score = -torch.rand(3, 5, generator=generator(), dtype=torch.float64)
    for bound in (
        lambda s: diffusion.nelbo(s, torch.square),
        lambda s: diffusion.step_elbo(s, torch.square, 4),
    ):
        alone = torch.stack([bound(row) for row in score])
        torch.testing.assert_close(bound(score), alone, atol=1e-12, rtol=0)
    torch.testing.assert_close(
        diffusion.nelbo(score, torch.square), -score.sum(dim=1), atol=1e-9, rtol=0
    )
