from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from models import generator, random_ppca
from moved import other_device
from other_device import DEVICE
from torch import Tensor

from mpt_lml import fit, masks, objectives
from mpt_lml.results import History

NOISE = torch.tensor(0.3, dtype=torch.float64)
MOMENT = objectives.second_moment(random_ppca(5, 2).sample(60, generator=generator(2)))
START = {"loadings": torch.randn(3, 5, 2, generator=generator(1), dtype=torch.float64)}


def objective(parameters: fit.Parameters, generators: Sequence[torch.Generator]) -> torch.Tensor:
    mask = masks.stratified_masks(5, 5, masks.UniformSize(), generator=generators)
    return objectives.sampled(parameters["loadings"], NOISE, MOMENT, mask)


def run(
    epochs: int = 30,
    *,
    start: torch.Tensor = START["loadings"],
    seeds: Sequence[int] = (4, 5, 6),
    **options: object,
) -> History:
    given = {
        "objective": lambda p, gs: objective({k: v.double() for k, v in p.items()}, gs).to(start),
        "learning_rate": 0.05,
        "generators": [generator(s) for s in seeds],
        "track": {"lml": lambda p: objectives.log_marginal(p["loadings"], NOISE, MOMENT)},
        "snapshots": (0, 10, epochs),
    }
    return fit.maximize({"loadings": start}, num_epochs=epochs, **{**given, **options})


def same(first: History, second: History) -> bool:
    return (
        all(
            torch.equal(first.values[k].nan_to_num(), second.values[k].nan_to_num())
            for k in first.values
        )
        and torch.equal(first.parameters["loadings"], second.parameters["loadings"])
        and first.snapshots.keys() == second.snapshots.keys()
        and all(
            torch.equal(kept["loadings"], second.snapshots[e]["loadings"])
            for e, kept in first.snapshots.items()
        )
    )


def test_training_raises_the_likelihood_and_records_every_epoch() -> None:
    history = run(200)
    assert history.values["lml"].shape == (201, 3)
    assert (history.values["lml"][-1] > history.values["lml"][0] + 1).all()
    assert history.values["objective"][-1].isnan().all()
    assert not history.values["objective"][:-1].isnan().any()
    assert torch.equal(history.snapshots[0]["loadings"], START["loadings"])
    assert torch.equal(history.snapshots[200]["loadings"], history.parameters["loadings"])


def test_adam_is_adam() -> None:
    """One run by hand with torch's optimizer and the same masks."""
    g = generator(4)
    loadings = START["loadings"][0].clone().requires_grad_()
    optimizer = torch.optim.Adam([loadings], lr=0.05)
    for _ in range(30):
        mask = masks.stratified_masks(5, 5, masks.UniformSize(), generator=g)
        optimizer.zero_grad()
        (-objectives.sampled(loadings, NOISE, MOMENT, mask)).backward()
        optimizer.step()
    torch.testing.assert_close(
        run().parameters["loadings"][0], loadings.detach(), atol=1e-9, rtol=0
    )


def test_a_diverged_run_names_the_epoch() -> None:
    calls = 0

    def breaking(parameters, generators):
        nonlocal calls
        calls += 1
        value = objective(parameters, generators)
        return value * torch.tensor([1.0, math.nan, 1.0]) if calls == 13 else value

    with pytest.raises(FloatingPointError, match="objective is nan at epoch 12 in run 1 of 3"):
        run(objective=breaking)


def test_a_gradient_that_is_not_finite_stops_the_training() -> None:
    def kinked(parameters, generators):
        loadings = parameters["loadings"]
        return (loadings - loadings.detach()).square().sum(dim=(1, 2)).sqrt()

    with pytest.raises(FloatingPointError, match="gradient of loadings is nan at epoch 0"):
        run(objective=kinked)


@pytest.mark.parametrize("name", ["my loadings", "a, b", "bool", "a?", "", "encoder.0"])
def test_a_parameter_may_have_any_name(name: str) -> None:
    def trained(name: str) -> torch.Tensor:
        history = fit.maximize(
            {name: torch.zeros(2)},
            lambda parameters, generators: -(parameters[name] - 1).square(),
            num_epochs=3,
            learning_rate=0.1,
            snapshots=(1,),
        )
        assert [*history.parameters] == [*history.snapshots[1]] == [name]
        return history.parameters[name]

    assert torch.equal(trained(name), trained("level"))


def test_one_number_a_run_is_a_parameter_too() -> None:
    target = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    history = fit.maximize(
        {"level": torch.zeros(3, dtype=torch.float64)},
        lambda parameters, generators: -(parameters["level"] - target).square(),
        num_epochs=400,
        learning_rate=0.05,
    )
    torch.testing.assert_close(history.parameters["level"], target, atol=1e-3, rtol=0)


@pytest.mark.bad_input
class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"epochs": 0}, ">= 1, got 0"),
            ({"epochs": -3}, ">= 1, got -3"),
            ({"learning_rate": 0.0}, "> 0, got 0.0"),
            ({"learning_rate": -0.1}, "> 0, got -0.1"),
            ({"learning_rate": math.nan}, "> 0, got nan"),
            ({"epochs": 5}, r"0\.\.5, got 10"),
        ],
    )
    def test_settings(self, options: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            run(**options)

    def test_what_would_answer_silently(self) -> None:
        with pytest.raises(ValueError, match="track must not name 'objective'"):
            run(track={"objective": len})

    def test_parameters_that_do_not_fit_each_other(self) -> None:
        shortly = {"num_epochs": 1, "learning_rate": 0.1}
        for parameters, error, message in (
            ({}, ValueError, "parameters must be at least one tensor"),
            ({"my w": torch.zeros(2).long()}, TypeError, "the parameter my w must .*int64"),
            (
                {"a": torch.zeros(2, 3), "b": torch.zeros(3)},
                ValueError,
                r"the parameter b must have shape \(2, ...\), got \(3,\)",
            ),
        ):
            with pytest.raises(error, match=message):
                fit.maximize(parameters, lambda p, _: None, **shortly)


def test_tracking_every_few_epochs_changes_nothing_but_the_rows_kept() -> None:
    every, few = run(epochs=31), run(epochs=31, track_every=10)
    assert torch.equal(every.parameters["loadings"], few.parameters["loadings"])
    kept = ~few.values["lml"].isnan().any(dim=1)
    assert kept.nonzero().flatten().tolist() == [0, 10, 20, 30, 31]
    assert torch.equal(few.values["lml"][kept], every.values["lml"][kept])
    assert torch.equal(few.values["objective"][:-1], every.values["objective"][:-1])


def noisy_parabola(epochs: int = 12, **options: object) -> History:
    """Two runs of a noisy parabola."""

    def objective(parameters: fit.Parameters, generators: list[torch.Generator]) -> Tensor:
        noise = torch.randn(2, generator=generators[0], dtype=torch.float64)
        return -(parameters["level"] - 1.0 - noise).square()

    start = {"level": torch.zeros(2, dtype=torch.float64)}
    settings = {"learning_rate": 0.1, "generators": [generator(3)], **options}
    return fit.maximize(start, objective, num_epochs=epochs, **settings)


def test_snapshots_end_with_the_last_epoch() -> None:
    assert set(noisy_parabola(snapshots=(0, 12)).snapshots) == {0, 12}
    with pytest.raises(ValueError, match=r"0\.\.12, got 13"):
        noisy_parabola(snapshots=(13,))


def test_a_history_counts_epochs_and_keeps_the_precision() -> None:
    history = noisy_parabola(epochs=3)
    assert history.values["objective"].shape == (4, 2)
    assert history.values["objective"].dtype == torch.float64
    assert history.values["objective"][-1].isnan().all()
    assert not history.values["objective"][:-1].isnan().any()


def test_a_gradient_that_is_no_number_is_of_the_run_that_is_named() -> None:
    """√0 has a value and no slope: in the last of three runs, with as many numbers or with two."""
    start = {"level": torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])}
    with pytest.raises(FloatingPointError, match="gradient of level is -?inf.* in run 2 of 3"):
        fit.maximize(
            start, lambda own, _: own["level"].sqrt().sum(1), num_epochs=1, learning_rate=0.1
        )


# -- BFGS: short steps, halved until the objective rises ------------------------------


def test_steps_of_bfgs_are_at_most_half_a_unit() -> None:
    seen = []

    def hill(at: Tensor) -> Tensor:
        seen.append(at.detach().clone())
        return -0.5 * (at - 3.0).square().sum(dim=1)

    top = fit.bfgs(torch.zeros(1, 2, dtype=torch.float64), hill)
    torch.testing.assert_close(top.parameters, torch.full((1, 2), 3.0).double(), atol=1e-6, rtol=0)
    moved = torch.stack(seen).diff(dim=0).norm(dim=-1)
    assert moved[:-2].max() <= 0.5 + 1e-12  # the last two look to either side of the top
    assert moved[0] == pytest.approx(0.5)  # the slope there is 3 √2


def test_a_step_that_overshoots_is_halved_until_it_rises() -> None:
    """Tops at ±0.01, far within half a unit: every point that is kept is higher than the last."""
    top = fit.bfgs(
        torch.tensor([[0.03], [-0.02]], dtype=torch.float64),
        lambda at: -(1e4 * at.square() - 1.0).square().sum(dim=1),
    )
    torch.testing.assert_close(
        top.parameters.abs(), torch.full((2, 1), 0.01).double(), atol=1e-8, rtol=0
    )


def test_a_step_of_less_than_half_a_unit_is_as_long_as_its_slope() -> None:
    seen = []

    def hill(at: Tensor) -> Tensor:
        seen.append(at.detach().clone())
        return -0.5 * at.square().sum(dim=1)

    fit.bfgs(torch.tensor([[0.3, 0.0]], dtype=torch.float64), hill)
    assert torch.equal(seen[1], torch.zeros(1, 2).double())  # and not as far beyond


def test_trials_are_halved_along_one_direction() -> None:
    seen = []

    def narrow(at: Tensor) -> Tensor:
        seen.append(at.item())
        return -(1e4 * at.square() - 1.0).square().sum(dim=1)

    fit.bfgs(torch.tensor([[0.03]], dtype=torch.float64), narrow, max_steps=1)
    moved = torch.tensor(seen[1:]) - seen[0]
    assert len(moved) > 2
    torch.testing.assert_close(moved[1:] / moved[:-1], torch.full((len(moved) - 1,), 0.5))


# -- BFGS: where there is no curvature, or no scale ---------------------------------------------------

PRECISIONS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def ramp(at: Tensor) -> Tensor:
    """Huber's function: straight up to 29, then a parabola with its top at 30."""
    distance = (at[:, 0] - 30.0).abs()
    return -torch.where(distance < 1.0, 0.5 * distance.square(), distance - 0.5)


def bend(at: Tensor) -> Tensor:
    """Straight on both sides, with slopes 0.99 and -0.01; its top is where σ(-w) is 0.01."""
    return torch.nn.functional.logsigmoid(at[:, 0]) - 0.01 * at[:, 0]


def valley(at: Tensor) -> Tensor:
    """Rosenbrock's function: its top is (1, 1), where the Hessian has the condition number 2,508."""
    first, second = at.unbind(dim=1)
    return -(1.0 - first).square() - 100.0 * (second - first.square()).square()


def waves(at: Tensor) -> Tensor:
    """Tops at all multiples of 2π, bottoms between them, where the curvature is positive."""
    return at.cos().sum(dim=1)


@PRECISIONS
def test_a_linear_objective_is_climbed_to_its_maximum(dtype: torch.dtype) -> None:
    top = fit.bfgs(torch.tensor([[0.0], [45.0]], dtype=dtype), ramp)
    assert top.converged.all()
    assert torch.equal(top.parameters, torch.full((2, 1), 30.0, dtype=dtype))
    assert torch.equal(top.value, torch.zeros(2, dtype=dtype))
    assert top.num_steps[0] >= 60  # of half a unit


@PRECISIONS
def test_an_objective_with_little_curvature_is_climbed_to_its_maximum(dtype: torch.dtype) -> None:
    top = fit.bfgs(torch.tensor([[-50.0], [50.0]], dtype=dtype), bend)
    assert top.converged.all()
    # Rounding of a value of 0.056 hides a parabola of curvature 0.01 · 0.99 that is a few ε flat.
    flat = (2.0 * 8.0 * torch.finfo(dtype).eps * 0.056 / 0.0099) ** 0.5
    wanted = torch.full((2, 1), math.log(99.0), dtype=dtype)
    torch.testing.assert_close(top.parameters, wanted, atol=flat, rtol=0)


@PRECISIONS
def test_a_start_at_the_bottom_of_a_basin_goes_to_its_top(dtype: torch.dtype) -> None:
    """Near π the slope is small and the curvature has the wrong sign."""
    start = torch.tensor([[3.1, 3.2], [3.1, 0.5], [-3.1, 3.1]], dtype=dtype)
    top = fit.bfgs(start, waves)
    assert top.converged.all()
    wanted = torch.tensor([[0.0, 2.0 * math.pi], [0.0, 0.0], [0.0, 0.0]], dtype=dtype)
    flat = (2.0 * 8.0 * torch.finfo(dtype).eps * 2.0) ** 0.5  # a value of 2, curvature 1
    torch.testing.assert_close(top.parameters, wanted, atol=flat, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (torch.float32, 1e-30),
        (torch.float32, 1e-8),
        (torch.float32, 1e30),
        (torch.float64, 1e-140),
        (torch.float64, 1e-8),
        (torch.float64, 1e140),
    ],
    ids=str,
)
def test_the_unit_of_the_objective_moves_no_top(dtype: torch.dtype, scale: float) -> None:
    """Slopes from the last that the precision has to the first whose squares it has not."""
    rounding = torch.finfo(dtype).eps
    straight = fit.bfgs(torch.zeros(1, 1, dtype=dtype), lambda at: scale * ramp(at))
    assert straight.converged.all() and straight.parameters.item() == 30.0
    start = torch.tensor([[-1.2, 1.0], [0.0, 0.0]], dtype=dtype)
    # It takes about 45 steps; without a memory of the curvature they would be hundreds.
    curved = fit.bfgs(start, lambda at: scale * valley(at), max_steps=100)
    assert curved.converged.all()
    # A rounding error of the point is magnified by the condition number.
    top = torch.ones(2, 2, dtype=dtype)
    torch.testing.assert_close(curved.parameters, top, atol=2508 * rounding, rtol=0)


# -- BFGS: whether it has arrived -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "objective"),
    [
        # Half a unit gains 10⁸ of 10¹⁶, which single precision does not see.
        ([[0.0]], lambda w: -(w - 1e8).square().sum(dim=1)),
        ([[0.0, 0.0]], lambda w: w[:, 0].square() - w[:, 1].square()),  # a saddle
        # Along the first coordinate it climbs to the ridge between two maxima, and never leaves it.
        ([[2.0, 0.0]], lambda w: -w[:, 0].square() - (w[:, 1].square() - 1).square()),
        ([[40.0]], lambda w: (-w.square()).exp().sum(dim=1)),  # a plateau, where this underflows
        ([[1.0]], lambda w: w.square().sum(dim=1) * 0.0),
        # It bends up by a thousandth of what it bends down: a ring of maxima would, with some gradient.
        ([[0.0, 0.0]], lambda w: 1e4 - w[:, 0].square() + 1e-3 * w[:, 1].square()),
    ],
    ids=[
        "far away",
        "saddle",
        "ridge between maxima",
        "plateau",
        "constant",
        "weak saddle",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_no_maximum_has_not_converged(
    start: list, objective: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    ends = fit.bfgs(torch.tensor(start, dtype=dtype), objective)
    is_maximum = torch.autograd.functional.hessian
    at = ends.parameters.double()
    gradient = torch.autograd.functional.jacobian(lambda w: objective(w).sum(), at)
    curvature = is_maximum(lambda w: objective(w).sum(), at).flatten(2)[0]
    # Where it has arrived after all, as in double precision, it may say so.
    arrived = gradient.abs().max() < 1e-3 and torch.linalg.eigvalsh(curvature).max() < 0
    assert ends.converged.item() == arrived


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ring_of_maxima_is_one(dtype: torch.dtype) -> None:
    """Along the ring nothing bends; across it everything does."""
    start = torch.tensor([[0.3, 0.1], [-2.0, 1.0]], dtype=dtype)
    ends = fit.bfgs(start, lambda w: -(w.square().sum(dim=1) - 1).square())
    assert ends.converged.all()
    torch.testing.assert_close(ends.parameters.norm(dim=1), torch.ones(2, dtype=dtype))


def test_a_plane_on_top_is_one_maximum() -> None:
    """Along it nothing bends and nothing is higher; its gradient is one number in all places."""

    def plane(at: Tensor) -> Tensor:
        return -(30.0 * (at.sum(dim=1) - 1.0)).square()

    ends = fit.bfgs(torch.tensor([[0.0, 0.0, 0.0], [0.3, 0.4, -0.2]], dtype=torch.float64), plane)
    assert ends.converged.all()
    torch.testing.assert_close(ends.parameters.sum(dim=1), torch.ones(2, dtype=torch.float64))


def test_a_run_without_steps_left_says_so() -> None:
    start = torch.tensor([[-1.2, 1.0], [1.0, 1.0]], dtype=torch.float64)
    short = fit.bfgs(start, valley, max_steps=3)
    assert short.converged.tolist() == [False, True]
    assert short.num_steps.tolist() == [3, 0]
    assert torch.equal(short.value, valley(short.parameters))
    assert short.value[0] > valley(start)[0]
    whole = fit.bfgs(start, valley)
    assert whole.converged.all()
    steps = int(whole.num_steps[0])
    again = fit.bfgs(start, valley, max_steps=steps)
    assert torch.equal(again.parameters, whole.parameters)
    assert not again.converged[0]  # nobody has looked whether there is more to gain
    assert fit.bfgs(start, valley, max_steps=steps + 1).converged.all()


@PRECISIONS
@pytest.mark.parametrize("beyond", [math.nan, math.inf, -math.inf])
def test_the_border_of_a_region_without_numbers_is_no_top(
    beyond: float, dtype: torch.dtype
) -> None:
    """The last point before it is returned, and not for a maximum."""

    def cut(at: Tensor) -> Tensor:
        return torch.where(at < 1.0, at, beyond)[:, 0]

    top = fit.bfgs(torch.tensor([[0.3]], dtype=dtype), cut)
    assert not top.converged.any()
    last_trial = 0.5**41  # half a unit, halved forty times
    assert 1.0 - last_trial - 4.0 * torch.finfo(dtype).eps < top.parameters.item() < 1.0


TOPS_OF_VALUE_ZERO: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "where a run starts": (lambda at: -(at - 0.5).square(), 0.5, 0.5),
    "that is no number of the precision": (
        lambda at: -(at.square() - 2.0).square(),
        2**0.5,
        2**0.5,
    ),
    "that rounding has flattened": (lambda at: 1.0 - at.cosh(), 1.0, 0.0),
}


@PRECISIONS
@pytest.mark.parametrize(
    ("hill", "start", "top"), TOPS_OF_VALUE_ZERO.values(), ids=TOPS_OF_VALUE_ZERO.keys()
)
def test_a_top_of_value_zero_is_one(
    hill: Callable[[Tensor], Tensor], start: float, top: float, dtype: torch.dtype
) -> None:
    """Where no share of the value says how little there is to gain, and maybe no slope how far to go."""

    def at_numbers(at: Tensor) -> Tensor:
        assert at.isfinite().all()
        return hill(at)[:, 0]

    found = fit.bfgs(torch.tensor([[start]], dtype=dtype), at_numbers)
    assert found.converged.all()
    assert abs(found.parameters.item() - top) <= torch.finfo(dtype).eps ** 0.5


@PRECISIONS
def test_where_rounding_hides_a_gain_no_trials_are_made(dtype: torch.dtype) -> None:
    """Every value is rounded two units lower than the last: at the top no trial can be as high."""
    calls = []

    def counted(at: Tensor) -> Tensor:
        calls.append(1)
        return waves(at) - 4.0 * torch.finfo(dtype).eps * len(calls)

    found = fit.bfgs(torch.tensor([[0.3, -0.2]], dtype=dtype), counted)
    assert found.converged.all()
    assert len(calls) <= 4 * (1 + int(found.num_steps))  # forty halvings would be more


def test_an_inverse_that_is_not_positive_shows_no_maximum() -> None:
    """Rounding may do that to the inverse of a very long valley: then the predicted gain is negative."""
    number = torch.ones(1, dtype=torch.float64)
    of_saddle = fit._QuasiNewton(
        run=torch.tensor([0]),
        point=number[None],
        value=number,
        gradient=number[None],
        inverse_hessian=-number[None, None],
    )
    assert not fit._is_stationary(of_saddle, number, 1e-16).any()


@pytest.mark.parametrize("device", [DEVICE, torch.device("cpu")], ids=str)
def test_an_objective_answers_on_any_device(device: torch.device) -> None:
    elsewhere = torch.device("cpu") if device == DEVICE else DEVICE
    with other_device():

        def objective(w: torch.Tensor) -> torch.Tensor:
            return -(w.to(elsewhere) - torch.ones(2, device=elsewhere)).square().sum(dim=1)

        start = torch.zeros(3, 2, device=device)
        found = fit.bfgs(start, objective).require_converged()
        assert found.parameters.device == found.value.device == device
        end = found.parameters.cpu()
    torch.testing.assert_close(end, torch.ones(3, 2))


def test_every_run_has_its_own_steps_and_its_own_end() -> None:
    start = torch.tensor([[0.0], [29.5], [30.0], [-400.0]], dtype=torch.float64)
    together = fit.bfgs(start, ramp, max_steps=200)
    assert together.converged.tolist() == [True, True, True, False]
    for run in range(len(start)):
        alone = fit.bfgs(start[[run]], ramp, max_steps=200)
        for name in ("parameters", "value", "converged", "num_steps"):
            assert torch.equal(getattr(together, name)[[run]], getattr(alone, name))


def test_a_maximum_at_zero_is_one_where_it_starts() -> None:
    """No length of the point says how far its differences of gradients have to reach."""
    found = fit.bfgs(torch.zeros(1, 2, dtype=torch.float64), lambda w: -w.square().sum(dim=1))
    assert found.converged.all() and found.num_steps.tolist() == [0]


def test_runs_that_end_after_different_steps_are_judged_together() -> None:
    sizes = []

    def bowl(w: torch.Tensor) -> torch.Tensor:
        sizes.append(len(w))
        return -(w - 1.0).square().sum(dim=1)

    start = torch.tensor([[1.0, 1.0], [1.5, 1.0], [9.0, 5.0]], dtype=torch.float64)
    top = fit.bfgs(start, bowl)
    assert len(set(top.num_steps.tolist())) > 1
    assert top.converged.all()
    # Two gradients for each of the two numbers of a point.
    assert sizes[-4:] == [3] * 4
