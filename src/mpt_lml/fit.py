"""Gradient training of runs side by side.

In :func:`maximize` the runs are a batch axis: Adam works entry by entry, so they never meet. It takes as
many steps as it is told, because an objective with new masks in every step never comes to rest.
:func:`bfgs` is for functions without randomness, and says whether it has arrived.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import (
    Count,
    Positive,
    check,
    checked,
    require_answer,
    require_count,
    require_finite,
    require_gradient,
)
from mpt_lml.numerics import double
from mpt_lml.results import History, Maxima

__all__ = ["bfgs", "maximize"]

Parameters = Mapping[str, Tensor]
Objective = Callable[[Parameters, Sequence[torch.Generator]], Tensor]
Tracked = Callable[[Parameters], Tensor]
Progress = Callable[[Iterable[Any], str], Iterable[Any]]


def silent(items: Iterable[Any], description: str) -> Iterable[Any]:
    """Progress that shows nothing."""
    return items


# -- runs side by side ----------------------------------------------------------------------------


@checked
def maximize(
    parameters: Parameters,
    objective: Objective,
    *,
    num_epochs: Count,
    learning_rate: Positive,
    generators: Sequence[torch.Generator] = (),
    track: Mapping[str, Tracked] | None = None,
    track_every: Count = 1,
    snapshots: Collection[int] = (),
    progress: Progress = silent,
) -> History:
    """Maximize ``objective`` with Adam (Kingma & Ba 2015), one step an epoch, for B runs side by side.

    It takes ``num_epochs`` steps and does not ask whether they were enough: look at what was tracked.

    Args:
        parameters: where to start; tensors (B, ...) of one dtype by name. They are copied.
        objective: ``f(parameters, generators) -> (B,)``, in nats as a rule; its randomness comes from
            the generators alone.
        num_epochs: steps of Adam.
        learning_rate: of Adam.
        generators: what ``objective`` draws from.
        track: other functions ``f(parameters) -> (B,)`` by name, evaluated without derivatives before
            the first epoch, after every ``track_every`` epochs and after the last.
        track_every: epochs from one evaluation to the next; rows in between are NaN.
        snapshots: numbers of epochs after which the parameters are copied (0: the start).
        progress: shows the epochs as they pass.

    Returns:
        A :class:`~mpt_lml.results.History` with ``values["objective"]`` (num_epochs + 1, B), whose last
        row is NaN, and everything tracked.

    Raises:
        FloatingPointError: where objective or gradient is not finite any more.

    >>> def objective(parameters, generators):
    ...     return -(parameters["level"] - 1).square()
    >>> history = maximize({"level": torch.zeros(2)}, objective, num_epochs=50, learning_rate=0.1)
    >>> history.values["objective"].shape
    torch.Size([51, 2])
    """
    tracked = {} if track is None else track
    if "objective" in tracked:
        raise ValueError("track must not name 'objective', which is recorded anyway: rename it.")
    _require_parameters(parameters)
    _require_steps("snapshots", snapshots, num_epochs)
    current = {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}
    records = _empty_records(["objective", *tracked], num_epochs, current)
    num_runs = records["objective"].shape[1]
    adam = torch.optim.Adam(list(current.values()), lr=learning_rate)
    kept: dict[int, dict[str, Tensor]] = {}

    def take_step(epoch: int) -> None:
        value = objective(current, generators)
        require_answer("objective(parameters)", value, (num_runs,))
        _require_finite_runs("objective", value, epoch)
        adam.zero_grad()
        (-value.sum()).backward()
        _require_gradients_of_runs(current, epoch)
        records["objective"][epoch] = value.detach()
        adam.step()

    def track_all(epoch: int) -> None:
        for name, function in tracked.items():
            value = function(current)
            require_answer(f"track[{name!r}]", value, (num_runs,), gradient=False)
            records[name][epoch] = value

    def observe(epoch: int) -> None:
        if epoch % track_every == 0 or epoch == num_epochs:
            track_all(epoch)
        if epoch in snapshots:
            kept[epoch] = {name: value.clone() for name, value in current.items()}

    with torch.no_grad():
        observe(0)
    for epoch in progress(range(num_epochs), "epoch"):
        take_step(epoch)
        with torch.no_grad():
            observe(epoch + 1)
    return History(records, {name: value.detach() for name, value in current.items()}, kept)


def _require_parameters(parameters: Parameters) -> None:
    """Check that parameters are tensors (B, ...) of one dtype."""
    if not parameters:
        raise ValueError("parameters must be at least one tensor, by name, got none.")
    first = None
    for name, value in parameters.items():
        argument = (f"the parameter {name}", value, Float[Tensor, "B ..."])
        if first is None:
            first = argument
            check(argument, finite=False)
        else:
            check(first, argument, finite=False)


def _require_steps(name: str, steps: Collection[int], last: int) -> None:
    for step in steps:
        require_count(f"each of {name}", step, 0, last)


def _empty_records(names: Sequence[str], num_epochs: int, current: Parameters) -> dict[str, Tensor]:
    """A record of NaN for each name, (num_epochs + 1, B), in the precision of the parameters."""
    first = next(iter(current.values()))
    shape = (num_epochs + 1, len(first))
    return {name: torch.full(shape, torch.nan).to(first) for name in names}


def _require_gradients_of_runs(parameters: Parameters, epoch: int) -> None:
    """Check after a backward pass that every parameter (B, ...) has a finite gradient."""
    for name, parameter in parameters.items():
        if parameter.grad is None:
            raise ValueError(f"the objective does not depend on the parameter {name!r}.")
        sums = parameter.grad.reshape(len(parameter), -1).sum(dim=1)
        _require_finite_runs(f"gradient of {name}", sums, epoch)


def _require_finite_runs(what: str, value: Float[Tensor, " B"], epoch: int) -> None:
    failed = (~torch.isfinite(value)).nonzero().flatten().tolist()
    if failed:
        run = failed[0]
        raise FloatingPointError(
            f"the {what} is {value[run].item()} at epoch {epoch} in run {run} of {len(value)}; "
            "training stopped before that step. A smaller learning rate may help."
        )


# -- functions without randomness -------------------------------------------------------------------

_LONGEST_STEP = 0.5  # in the unit of the parameters: see bfgs
_SUFFICIENT_INCREASE = 1e-4  # share of the predicted gain: Armijo's condition
_MOST_HALVINGS = 40  # 2^−40 of a step is no step
_SMALLEST_RING = 0.01  # the radius of a ring of maxima that is one to bfgs, in the same unit


class _QuasiNewton(NamedTuple):
    """The state of the runs that still rise, b of B, each at a point of n numbers.

    Points and values have the precision of the objective, the rest is in double precision: squares
    and products of gradients leave the range of a float32 long before the gradients do.
    """

    run: Int[Tensor, " b"]  # which of the B
    point: Float[Tensor, "b n"]
    value: Float[Tensor, " b"]
    gradient: Float[Tensor, "b n"]
    inverse_hessian: Float[Tensor, "b n n"]  # estimated; of minus the Hessian

    def where(self, chosen: Bool[Tensor, " b"]) -> "_QuasiNewton":
        return _QuasiNewton(*(value[chosen] for value in self))

    def newton_step(self) -> Float[Tensor, "b n"]:
        """The step to the maximum of the estimated quadratic, (b, n)."""
        return (self.inverse_hessian @ self.gradient[..., None])[..., 0]

    def step(self) -> Float[Tensor, "b n"]:
        """The quasi-Newton step, cut to the longest that is allowed, (b, n)."""
        whole = self.newton_step()
        return whole * (_LONGEST_STEP / whole.norm(dim=1, keepdim=True)).clamp(max=1.0)


@checked
def bfgs(
    start: Float[Tensor, "B N ..."],
    objective: Callable[[Tensor], Tensor],
    *,
    max_steps: Count = 1000,
) -> Maxima:
    """A local maximum of ``objective`` near every start, by BFGS (Nocedal & Wright 2006, alg. 6.1).

    All runs take their steps side by side. A step is at most half a unit long and is halved until the
    objective rises. The bound keeps a run in the basin of its start, and out of regions where a model
    has no number in double precision: line searches that first try a long step, as those of
    ``scipy.optimize`` do, leave both. A run ends where rounding leaves nothing to gain, whatever the
    scale of the objective.

    Args:
        start: where to start, (B, ...).
        objective: ``f((b, ...)) -> (b,)`` without randomness, in any unit, for every b up to B.
        max_steps: most steps of a run.

    Returns:
        Where each run is, the value there, whether that is a maximum, and after how many steps:
        :class:`~mpt_lml.results.Maxima`. A run has not converged where it has taken ``max_steps``;
        where it could not go on although the gradient predicts a gain, at a kink, at the border of a
        region without numbers, or because rounding hides what a step of half a unit gains; and where
        the objective does not bend down, at a saddle or on a plateau.

    Raises:
        ValueError: for values of another shape, or that are not finite at the start.

    >>> top = bfgs(torch.zeros(3, 2), lambda w: -(w - 1.0).square().sum(dim=1))
    >>> top.parameters[0], bool(top.converged.all())
    (tensor([1., 1.]), True)
    """

    def evaluate(flat: Tensor) -> tuple[Tensor, Tensor]:
        point = flat.detach().requires_grad_()
        value = objective(point.unflatten(1, start.shape[1:]))
        require_answer("objective(start)", value, point.shape[:1])
        (gradient,) = torch.autograd.grad(value.sum(), point, allow_unused=True)
        require_gradient("objective(start)", gradient)
        # The gradient of a sum is one number in many places, which cannot be written to one by one.
        return value.detach().to(point.device), double(gradient).contiguous()

    first = start.detach().flatten(1)
    first_value, gradient = evaluate(first)
    require_finite("objective(start)", first_value)
    rounding = max(torch.finfo(kind.dtype).eps for kind in (first, first_value))
    run = torch.arange(len(first), device=first.device)
    ends = first.clone()
    values = first_value.clone()
    converged = torch.zeros_like(run, dtype=torch.bool)
    num_steps = torch.zeros_like(run)
    inverse_hessian = _first_inverse_hessian(first, gradient, rounding)
    state = _QuasiNewton(run, first, first_value, gradient, inverse_hessian)
    ended_at = []  # the runs that each step ends
    for number in range(max_steps):
        is_first = number == 0
        after = _line_search(state, evaluate, rounding, is_first)
        rises = (after.value > state.value) & after.value.isfinite()
        ended = state.where(~rises)
        if is_first:
            ended = _with_curvature(ended, evaluate, rounding)
        ended_at.append(ended)
        state = after.where(rises)
        ends[state.run] = state.point
        values[state.run] = state.value
        num_steps[state.run] += 1
        if not rises.any():
            break
    ended = _QuasiNewton(*(torch.cat(parts) for parts in zip(*ended_at, strict=True)))
    gained = ended.value - first_value[ended.run]
    is_stationary = _is_stationary(ended, gained, rounding)
    converged[ended.run] = is_stationary & _has_negative_curvature(ended, evaluate, rounding)
    return Maxima(ends.unflatten(1, start.shape[1:]), values, converged, num_steps)


def _first_inverse_hessian(
    point: Float[Tensor, "b n"], gradient: Float[Tensor, "b n"], rounding: float
) -> Float[Tensor, "b n n"]:
    """The identity, scaled where a step along the gradient would be too short for the rounding."""
    length = gradient.norm(dim=1)
    shortest = rounding**0.5 * (1.0 + double(point).norm(dim=1))
    scale = torch.where(length > 0, shortest / length, 1.0).clamp(min=1.0)
    return torch.eye(point.shape[1]).to(gradient) * scale[:, None, None]


def _line_search(
    state: _QuasiNewton,
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    rounding: float,
    is_first: bool,
) -> _QuasiNewton:
    """One step of every run, halved until Armijo's condition holds, and the updated curvature."""
    run, point, value, gradient, _ = state
    step = state.step()
    predicted_gain = (step * gradient).sum(dim=1)
    new = (point + step).to(point)
    new_value, new_gradient = evaluate(new)
    for _ in range(_MOST_HALVINGS):
        enough = value + (_SUFFICIENT_INCREASE * predicted_gain).to(value)
        # A predicted gain below the value's rounding is not halved further: nothing could show it.
        falls_short = ~((new_value >= enough) & new_value.isfinite())  # NaN does, too
        again = falls_short & (predicted_gain > rounding * value.abs())
        if not again.any():
            break
        step[again] = step[again] / 2
        predicted_gain[again] = predicted_gain[again] / 2
        new[again] = (point[again] + step[again]).to(point)
        new_value[again], new_gradient[again] = evaluate(new[again])
    inverse_hessian = _updated_inverse_hessian(
        state, double(new - point), new_gradient, rounding, is_first
    )
    return _QuasiNewton(run, new, new_value, new_gradient, inverse_hessian)


def _updated_inverse_hessian(
    state: _QuasiNewton,
    step: Float[Tensor, "b n"],
    new_gradient: Float[Tensor, "b n"],
    rounding: float,
    is_first: bool,
) -> Float[Tensor, "b n n"]:
    """The inverse of minus the Hessian after a step to a point with ``new_gradient``.

    Nocedal & Wright 2006, (6.17), and (6.20) for the first. Where the curvature condition fails (the
    objective does not bend down along the step), the update is skipped, as it would not stay positive
    definite. If that is the first step, the next is the longest that is allowed. The condition is on the
    cosine of the angle between the step and the change of the gradient, so that no scale matters. On a
    parabola it is at least 2 √κ / (κ + 1) for the condition number κ of the Hessian (Kantorovich's
    inequality), and κ = 1 / ε is as much as numbers with a rounding error of ε can show.
    """
    gradient_change = state.gradient - new_gradient
    product = (step * gradient_change).sum(dim=1)
    is_usable = product > rounding**0.5 * step.norm(dim=1) * gradient_change.norm(dim=1)
    product = product.where(is_usable, 1.0)
    identity = torch.eye(step.shape[1]).to(step)
    inverse_hessian = state.inverse_hessian
    if is_first:
        longest = _LONGEST_STEP / new_gradient.norm(dim=1)
        scale = torch.where(is_usable, product / gradient_change.square().sum(dim=1), longest)
        inverse_hessian = identity * scale[:, None, None]
    product = product[:, None, None]
    left = identity - step[:, :, None] * gradient_change[:, None, :] / product
    updated = left @ inverse_hessian @ left.mT + step[:, :, None] * step[:, None, :] / product
    return torch.where(is_usable[:, None, None], updated, inverse_hessian)


def _with_curvature(
    state: _QuasiNewton, evaluate: Callable[[Tensor], tuple[Tensor, Tensor]], rounding: float
) -> _QuasiNewton:
    """Runs that end where they start, with the curvature along one trial step."""
    if not len(state.run):
        return state
    new = (state.point + state.step()).to(state.point)
    _, new_gradient = evaluate(new)
    step = double(new - state.point)
    inverse_hessian = _updated_inverse_hessian(state, step, new_gradient, rounding, is_first=True)
    return state._replace(inverse_hessian=inverse_hessian)


def _is_stationary(
    state: _QuasiNewton, gained: Float[Tensor, " b"], rounding: float
) -> Bool[Tensor, " b"]:
    """Runs are at a stationary point, as far as the precision can tell.

    They are where the gradient is zero; where it predicts no gain above √ε of the value and of what was
    gained so far; and where the quasi-Newton step changes no number of the point by more than √ε of it.
    """
    is_level = (state.gradient == 0.0).all(dim=1)
    step = state.newton_step()
    predicted_gain = (step * state.gradient).sum(dim=1)
    gains_little = predicted_gain <= rounding**0.5 * (state.value.abs() + gained)
    moves_little = (step.abs() <= rounding**0.5 * state.point.abs()).all(dim=1)
    return is_level | ((predicted_gain >= 0) & (gains_little | moves_little))


def _has_negative_curvature(
    state: _QuasiNewton, evaluate: Callable[[Tensor], tuple[Tensor, Tensor]], rounding: float
) -> Bool[Tensor, " b"]:
    """The Hessian has a negative eigenvalue and no positive one, as far as differences show.

    Its columns are central differences of the gradient, whose error is least for steps of ∛ε.
    """
    point = state.point
    if not len(point):
        return torch.zeros(0, dtype=torch.bool, device=point.device)
    columns = []
    noise = torch.zeros(len(point)).to(double(point))
    for place in range(point.shape[1]):
        reach = rounding ** (1 / 3) * (1.0 + point[:, place].abs())
        ahead = point.clone()
        ahead[:, place] += reach
        behind = point.clone()
        behind[:, place] -= reach
        distance = double(ahead - behind)[:, place, None]
        gradient_ahead = evaluate(ahead)[1]
        gradient_behind = evaluate(behind)[1]
        columns.append((gradient_ahead - gradient_behind) / distance)
        largest = torch.maximum(gradient_ahead.abs(), gradient_behind.abs()).amax(dim=1)
        noise = torch.maximum(noise, rounding * largest / distance[:, 0])
    hessian = torch.stack(columns, dim=2)
    is_number = hessian.isfinite().all(dim=(1, 2))
    hessian = hessian.where(is_number[:, None, None], 0.0)
    eigenvalues = torch.linalg.eigvalsh((hessian + hessian.mT) / 2)
    largest = eigenvalues.abs().amax(dim=1)
    visible = torch.maximum(rounding**0.5 * largest, point.shape[1] * noise)
    # Along a ring of maxima the objective bends up by what is left of the gradient, over the radius.
    of_ring = state.gradient.norm(dim=1) / _SMALLEST_RING
    of_ring = torch.minimum(of_ring, rounding**0.25 * largest)
    is_level = eigenvalues[:, -1] <= torch.maximum(of_ring, visible)
    return is_level & (eigenvalues[:, 0] < -visible)
