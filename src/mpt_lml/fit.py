"""Gradient training that goes on to the last bit: runs side by side, and networks.

In :func:`maximize` the runs are a batch axis: Adam works entry by entry, so they never meet. How the
state of a training is kept until it goes on is its caller's affair: :class:`Checkpoint` says what
that needs.
"""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mpt_lml.checks import (
    Count,
    Positive,
    check,
    checked,
    require_answer,
    require_count,
    require_finite,
    require_memory,
    require_slope,
)
from mpt_lml.files import CheckpointMismatchError, digest
from mpt_lml.numerics import differentiable
from mpt_lml.results import History

__all__ = ["Checkpoint", "bfgs", "descend", "maximize"]

Parameters = Mapping[str, Tensor]
Objective = Callable[[Parameters, Sequence[torch.Generator]], Tensor]
Tracked = Callable[[Parameters], Tensor]
Progress = Callable[[Iterable[Any], str], Iterable[Any]]
Schedule = torch.optim.lr_scheduler.LRScheduler


def silent(items: Iterable[Any], description: str) -> Iterable[Any]:
    """Progress that shows nothing."""
    return items


@runtime_checkable
class Checkpoint(Protocol):
    """A way to keep the state of a training, so that a stopped one can go on.

    A state is a dictionary of tensors. What it belongs to is its *identity*: learning rate, shapes,
    precision and whatever else the training knows of itself, as numbers and texts. The data it does
    not know: they are for the one who keeps. ``str()`` of a checkpoint names it in messages.

    >>> class InMemory:
    ...     every = 100
    ...     state = None
    ...
    ...     def load(self, identity):
    ...         return self.state
    ...
    ...     def save(self, state, identity):
    ...         self.state = {name: tensor.clone() for name, tensor in state.items()}
    >>> isinstance(InMemory(), Checkpoint)
    True
    """

    @property
    def every(self) -> int:
        """Steps from one save to the next. A training saves at its end, too, and at an error."""

    def load(self, identity: Mapping[str, Any]) -> dict[str, Tensor] | None:
        """The state that was saved last, or None where none was.

        Raises:
            CheckpointMismatchError: for a state of another identity.
        """

    def save(self, state: Mapping[str, Tensor], identity: Mapping[str, Any]) -> None:
        """Replace what was saved before, whole or not at all. The next step changes the tensors."""


# -- runs side by side ----------------------------------------------------------------------------


@checked
@differentiable()
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
    checkpoint: Checkpoint | None = None,
    progress: Progress = silent,
) -> History:
    """Maximize ``objective`` with Adam (Kingma & Ba 2015), one step an epoch, for B runs side by side.

    With a ``checkpoint`` a state that it has is continued bit for bit (same machine, versions,
    threads), if it is of the same start, generators, learning rate and precision; with more
    ``num_epochs`` it goes on from its end. The parameters and generators given are those at which the
    run began, or those at which the state is now.

    Args:
        parameters: where to start; tensors (B, ...) of one dtype by name. They are copied.
        objective: ``f(parameters, generators) -> (B,)``, in nats as a rule; its randomness comes from
            the generators alone.
        num_epochs: steps of Adam.
        learning_rate: of Adam.
        generators: what ``objective`` draws from; their states are part of the checkpoint.
        track: other functions ``f(parameters) -> (B,)`` by name, evaluated without derivatives before
            the first epoch, after every ``track_every`` epochs and after the last.
        track_every: epochs from one evaluation to the next; rows in between are NaN.
        snapshots: numbers of epochs after which the parameters are copied (0: the start).
        checkpoint: where the state is kept, if anywhere.
        progress: shows the epochs as they pass.

    Returns:
        A :class:`~mpt_lml.results.History` with ``values["objective"]`` (num_epochs + 1, B), whose last
        row is NaN, and everything tracked.

    Raises:
        CheckpointMismatchError: for a state of another training.
        FloatingPointError: where objective or gradient is not finite any more; a checkpoint then has
            the state before.

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
    state = _State(current, [adam], [], generators, records)

    def compute_gradient(epoch: int) -> None:
        value = objective(current, generators)
        require_answer("objective(parameters)", value, (num_runs,))
        _require_finite_runs("objective", value, epoch)
        adam.zero_grad()
        (-value.sum()).backward()
        _require_slopes_of_runs(current, epoch)
        records["objective"][epoch] = value.detach()

    def observe(epoch: int) -> None:
        if epoch % track_every == 0 or epoch == num_epochs:
            for name, function in tracked.items():
                value = function(current)
                require_answer(f"track[{name!r}]", value, (num_runs,), slope=False)
                records[name][epoch] = value
        if epoch in snapshots:
            for name, value in current.items():
                state.snapshots[f"{epoch}/{name}"] = value.clone()

    store = _Store(state, checkpoint, {"learning_rate": learning_rate})
    store.load(num_epochs, snapshots)
    _take_steps(state, num_epochs, compute_gradient, observe, store, progress, "epoch")
    return History(
        dict(records),
        {name: value.detach() for name, value in current.items()},
        {
            epoch: {name: state.snapshots[f"{epoch}/{name}"] for name in current}
            for epoch in snapshots
        },
    )


def _require_parameters(parameters: Parameters) -> None:
    """Check that parameters are tensors (B, ...) of one dtype, whatever texts name them."""
    if not parameters:
        raise ValueError("parameters must be at least one tensor, by name, got none.")
    first = None
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TypeError(f"parameters must be named by texts, got the name {name!r}.")
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
    """Of each name (num_epochs + 1, B), NaN, in the precision of the parameters."""
    first = next(iter(current.values()))
    shape = (num_epochs + 1, len(first))
    bytes_needed = 8 * len(names) * shape[0] * shape[1]
    require_memory(f"records of {num_epochs} epochs", bytes_needed, "fewer num_epochs")
    return {name: torch.full(shape, torch.nan, dtype=first.dtype) for name in names}


def _require_slopes_of_runs(parameters: Parameters, epoch: int) -> None:
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
            "training stopped with the state before that epoch. A smaller learning rate may help."
        )


# -- functions without randomness -------------------------------------------------------------------

_LONGEST_STEP = 0.5
_SUFFICIENT_INCREASE = 1e-4  # of what the slope promises: Armijo's condition
_MOST_HALVINGS = 40
_SMALL_SLOPE = 1e-6


class _Ascents(NamedTuple):
    """Runs that have not arrived, b of B, each at a point of n numbers."""

    run: Int[Tensor, " b"]  # which of the B
    point: Float[Tensor, "b n"]
    value: Float[Tensor, " b"]
    slope: Float[Tensor, "b n"]
    inverse: Float[Tensor, "b n n"] | None  # of minus the Hessian, as far as it is known

    def where(self, chosen: Bool[Tensor, " b"]) -> "_Ascents":
        inverse = None if self.inverse is None else self.inverse[chosen]
        return _Ascents(
            self.run[chosen], self.point[chosen], self.value[chosen], self.slope[chosen], inverse
        )


@checked
@differentiable()
def bfgs(
    start: Float[Tensor, "B N ..."],
    objective: Callable[[Tensor], Tensor],
    *,
    max_steps: Count = 1000,
) -> Tensor:
    """A local maximum of ``objective`` near every start, by BFGS (Nocedal & Wright 2006, alg. 6.1).

    All runs take their steps side by side. A step is at most half a unit long and is halved until the
    objective rises. The bound keeps a run in the basin of its start, and out of regions where a model
    has no number in double precision: line searches that first try a long step, as those of
    ``scipy.optimize`` do, leave both. A run ends where every derivative is below 1e-6, or where
    rounding leaves nothing to gain.

    Args:
        start: where to start, (B, ...).
        objective: ``f((b, ...)) -> (b,)`` without randomness, in any unit, for every b up to B.
        max_steps: most steps of a run.

    Returns:
        The maxima, (B, ...).

    Raises:
        ValueError: for values of another shape, or that are not finite at the start.

    >>> bfgs(torch.zeros(3, 2), lambda w: -(w - 1.0).square().sum(dim=1)).tolist()[0]
    [1.0, 1.0]
    """

    def evaluate(flat: Tensor) -> tuple[Tensor, Tensor]:
        point = flat.detach().requires_grad_()
        value = objective(point.unflatten(1, start.shape[1:]))
        require_answer("objective(start)", value, point.shape[:1])
        (slope,) = torch.autograd.grad(value.sum(), point, allow_unused=True)
        require_slope("objective(start)", slope)
        return value.detach(), slope

    first = start.detach().flatten(1)
    value, slope = evaluate(first)
    require_finite("objective(start)", value)
    ends = first.clone()
    ascents = _Ascents(torch.arange(len(first)).to(first.device), first, value, slope, None)
    for _ in range(max_steps):
        after = _line_search(ascents, evaluate)
        better = after.value > ascents.value
        ends[ascents.run[better]] = after.point[better]
        goes_on = better & (after.slope.abs().amax(dim=1) > _SMALL_SLOPE)
        if not goes_on.any():
            break
        ascents = after.where(goes_on)
    return ends.unflatten(1, start.shape[1:])


def _line_search(
    ascents: _Ascents, evaluate: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> _Ascents:
    """One step of every run, halved where it does not rise enough, and the curvature it has met."""
    _, point, value, slope, inverse = ascents
    direction = slope if inverse is None else (inverse @ slope[..., None])[..., 0]
    step = direction * (_LONGEST_STEP / direction.norm(dim=1, keepdim=True)).clamp(max=1.0)
    gain = _SUFFICIENT_INCREASE * (step * slope).sum(dim=1)
    new_value, new_slope = evaluate(point + step)
    for _ in range(_MOST_HALVINGS):
        short = ~(new_value >= value + gain)  # NaN is short, too
        if not short.any():
            break
        step[short] = step[short] / 2
        gain[short] = gain[short] / 2
        new_value[short], new_slope[short] = evaluate((point + step)[short])
    new = point + step
    new_inverse = _updated_inverse(inverse, new - point, slope - new_slope)
    return _Ascents(ascents.run, new, new_value, new_slope, new_inverse)


def _updated_inverse(
    inverse: Float[Tensor, "b n n"] | None, moved: Float[Tensor, "b n"], bent: Float[Tensor, "b n"]
) -> Float[Tensor, "b n n"]:
    """The inverse of minus the Hessian after a step ``moved`` that changed the slope by −``bent``.

    Nocedal & Wright 2006, (6.17), and (6.20) for the first. A step along which the objective does not
    bend down teaches nothing: the inverse would not stay positive.
    """
    product = (moved * bent).sum(dim=1)[:, None, None]
    usable = product > 1e-14
    product = product.where(usable, 1.0)
    identity = torch.eye(moved.shape[1], dtype=moved.dtype, device=moved.device)
    if inverse is None:
        inverse = identity * product / bent.square().sum(dim=1).clamp(min=1e-300)[:, None, None]
    left = identity - moved[:, :, None] * bent[:, None, :] / product
    updated = left @ inverse @ left.mT + moved[:, :, None] * moved[:, None, :] / product
    return torch.where(usable, updated, inverse)


# -- networks -------------------------------------------------------------------------------------


@checked
@differentiable()
def descend(
    network: nn.Module,
    loss: Callable[[int], Tensor],
    schedules: Sequence[Schedule],
    *,
    num_steps: Count,
    generators: Sequence[torch.Generator] = (),
    max_norm: Positive | None = None,
    watch: Callable[[], Tensor] | None = None,
    watched: Collection[int] = (),
    checkpoint: Checkpoint | None = None,
    progress: Progress = silent,
    label: str = "step",
) -> tuple[Tensor, list[Tensor]]:
    """Minimize ``loss`` over the weights of ``network``, in place.

    Args:
        network: whose weights are trained.
        loss: ``f(step) -> ()``, in any unit; its randomness comes from ``generators`` alone.
        schedules: learning rates; each brings its optimizer, whose weights are of the network.
        num_steps: steps of every optimizer.
        generators: what ``loss`` draws from; their states are part of the checkpoint.
        max_norm: to which gradients are cut, if at all.
        watch: ``f() -> tensor``, called without derivatives after the ``watched`` numbers of steps.
        watched: numbers of steps (0: before the first).
        checkpoint: where the state is kept, if anywhere. It is continued as in :func:`maximize` if
            optimizers and schedules have the same settings and are new. (A function in a schedule is
            not compared.)
        progress: shows the steps as they pass.
        label: what it calls them.

    Returns:
        The losses (num_steps,), and what ``watch()`` gave, by number of steps.

    Raises:
        CheckpointMismatchError: for a state of another training.
        FloatingPointError: where loss or gradient is not finite any more; a checkpoint then has the
            state before.

    >>> network = nn.Linear(2, 1)
    >>> cycle = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD(network.parameters(), lr=0.1))
    >>> descend(network, lambda step: network.weight.square().sum(), [cycle], num_steps=9)[0].shape
    torch.Size([9])
    """
    _require_steps("watched", watched, num_steps)
    if watched and watch is None:
        raise ValueError(f"watched = {watched} needs a function watch().")
    _require_weights_of(network, schedules)
    require_memory(f"losses of {num_steps} steps", 8 * num_steps, "fewer num_steps")
    trained = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    losses = torch.full((num_steps,), torch.nan)
    optimizers = [schedule.optimizer for schedule in schedules]
    whole = network.state_dict(keep_vars=True)  # with buffers, which a step may change
    state = _State(whole, optimizers, schedules, generators, {"loss": losses})

    def compute_gradient(step: int) -> None:
        value = loss(step)
        require_answer("loss(step)", value, ())
        _require_finite_runs("loss", value.detach()[None], step)
        network.zero_grad()
        value.backward()
        _require_gradients(trained, step)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(trained.values(), max_norm)
        losses[step] = value.detach()

    def observe(step: int) -> None:
        if watch is not None and step in watched:
            value = watch()
            if not isinstance(value, Tensor):
                raise TypeError(f"watch() must return a tensor, got {value!r}.")
            state.snapshots[f"{step}"] = value

    settings = _settings_of(optimizers, schedules) | {"max_norm": max_norm}
    store = _Store(state, checkpoint, settings)
    store.load(num_steps, watched)
    _take_steps(state, num_steps, compute_gradient, observe, store, progress, label)
    return losses, [state.snapshots[f"{step}"] for step in sorted(watched)]


def _require_weights_of(network: nn.Module, schedules: Sequence[Schedule]) -> None:
    """Check that the optimizers move nothing but weights of ``network``, which a state holds."""
    if not schedules:
        raise ValueError("schedules must be at least one, with its optimizer, got none.")
    of_network = {id(weight) for weight in network.parameters()}
    for number, schedule in enumerate(schedules):
        moved = [weight for group in schedule.optimizer.param_groups for weight in group["params"]]
        foreign = [weight for weight in moved if id(weight) not in of_network]
        if foreign:
            raise ValueError(
                f"schedules[{number}] must be of an optimizer of network.parameters(), but "
                f"{len(foreign)} of its {len(moved)} weights are not of this network."
            )


def _require_gradients(weights: Mapping[str, Tensor], step: int) -> None:
    """Check after a backward pass that the loss has reached the weights, with finite gradients."""
    gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
    if not gradients:
        raise ValueError("loss(step) must depend on weights of network that require a gradient.")
    for name, gradient in gradients.items():
        if not gradient.isfinite().all():
            one = gradient[~gradient.isfinite()][:1]
            _require_finite_runs(f"gradient of {name}", one, step)


def _settings_of(
    optimizers: Sequence[torch.optim.Optimizer], schedules: Sequence[Schedule]
) -> dict[str, Any]:
    """All settings of new optimizers and schedules, one an entry, so that a message can name it."""
    settings: dict[str, Any] = {}
    for number, optimizer in enumerate(optimizers):
        for place, group in enumerate(optimizer.state_dict()["param_groups"]):
            title = f"{type(optimizer).__name__} {number}, group {place}"
            for name, value in group.items():
                settings[f"{title}: {name}"] = value
    for number, schedule in enumerate(schedules):
        title = f"{type(schedule).__name__} {number}"
        for name, value in schedule.state_dict().items():
            settings[f"{title}: {name}"] = value
    return settings


# -- steps, and the state between two of them -------------------------------------------------------


@dataclass
class _State:
    """Everything that the next step depends on, and what the steps so far have left."""

    parameters: Mapping[str, Tensor]
    optimizers: Sequence[torch.optim.Optimizer]
    schedules: Sequence[Schedule]
    generators: Sequence[torch.Generator]
    records: Mapping[str, Tensor]  # a row a step
    snapshots: dict[str, Tensor] = field(default_factory=dict)  # "step" or "step/name"
    num_taken: int = 0
    last_observed: int = -1  # the last number of steps after which the training was observed

    def as_tensors(self) -> dict[str, Tensor]:
        tensors = {"counts": torch.tensor([self.num_taken, self.last_observed])}
        for name, value in self.parameters.items():
            tensors[f"parameter/{name}"] = value
        for number, optimizer in enumerate(self.optimizers):
            for place, moments in optimizer.state_dict()["state"].items():
                for key, value in moments.items():
                    tensors[f"moment/{number}/{place}/{key}"] = value
        for number, generator in enumerate(self.generators):
            tensors[f"generator/{number}"] = generator.get_state()
        for name, rows in self.records.items():
            tensors[f"record/{name}"] = rows[: self.num_taken + 1]
        for name, value in self.snapshots.items():
            tensors[f"snapshot/{name}"] = value
        return tensors

    def restore(self, stored: Mapping[str, Tensor]) -> None:
        """Go where :meth:`as_tensors` was called."""
        self.num_taken, self.last_observed = stored["counts"].tolist()
        for name, value in self.parameters.items():
            value.data.copy_(stored[f"parameter/{name}"])
        for number, optimizer in enumerate(self.optimizers):
            self._restore_moments(optimizer, f"moment/{number}/", stored)
        for number, generator in enumerate(self.generators):
            generator.set_state(stored[f"generator/{number}"])
        for name, rows in self.records.items():
            earlier = stored[f"record/{name}"]
            rows[: len(earlier)] = earlier
        for name, value in stored.items():
            kind, _, rest = name.partition("/")
            if kind == "snapshot":
                self.snapshots[rest] = value
        # A schedule follows from the number of steps alone. It warns that no optimizer has stepped.
        with warnings.catch_warnings(action="ignore"):
            for schedule in self.schedules:
                for _ in range(self.num_taken):
                    schedule.step()

    @staticmethod
    def _restore_moments(
        optimizer: torch.optim.Optimizer, prefix: str, stored: Mapping[str, Tensor]
    ) -> None:
        whole = optimizer.state_dict()
        for name, value in stored.items():
            if name.startswith(prefix):
                place, key = name.removeprefix(prefix).split("/")
                whole["state"].setdefault(int(place), {})[key] = value
        optimizer.load_state_dict(whole)

    @torch.no_grad()
    def observe(self, observe: Callable[[int], None]) -> None:
        """Call ``observe`` once after each number of steps, also where a run was stopped in between."""
        if self.last_observed < self.num_taken:
            observe(self.num_taken)
            self.last_observed = self.num_taken


def _take_steps(
    state: _State,
    num_steps: int,
    compute_gradient: Callable[[int], None],
    observe: Callable[[int], None],
    store: "_Store",
    progress: Progress,
    label: str,
) -> None:
    """All steps from where the state is; it is stored on the way and at any end."""
    # While the optimizers step, the state is neither that before nor that after: it is not stored.
    is_between_steps = True
    try:
        state.observe(observe)
        for _ in progress(range(state.num_taken, num_steps), label):
            if state.num_taken == num_steps:
                break
            with _put_back_on_error(state.generators):
                compute_gradient(state.num_taken)
            is_between_steps = False
            for optimizer in state.optimizers:
                optimizer.step()
            for schedule in state.schedules:
                schedule.step()
            state.num_taken += 1
            is_between_steps = True
            state.observe(observe)
            store.save_when_due()
    finally:
        if is_between_steps:
            store.save()
    if state.num_taken < num_steps:
        raise ValueError(
            f"progress must pass on every {label} that it is given, but it ended after "
            f"{state.num_taken} of {num_steps}."
        )


@contextmanager
def _put_back_on_error(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Where nothing is updated yet, a step that failed never began: what it drew is drawn again."""
    before = [generator.get_state() for generator in generators]
    try:
        yield
    except BaseException:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
        raise


class _Store:
    """A state and its checkpoint: what the state belongs to, and how the run began."""

    def __init__(
        self, state: _State, checkpoint: Checkpoint | None, settings: Mapping[str, Any]
    ) -> None:
        self.state = state
        self.checkpoint = checkpoint
        self.identity: dict[str, Any] = {}
        self.beginning: dict[str, Tensor] = {}
        if checkpoint is not None:
            self.identity = self._identity(settings)
            self.beginning = self._beginning()

    def _identity(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        parameters = self.state.parameters
        return {
            **settings,
            "device": next(iter(parameters.values())).device.type,
            "streams": len(self.state.generators),
            "rows": [*self.state.records],
            "shapes": {name: value.shape for name, value in parameters.items()},
            "dtypes": {name: value.dtype for name, value in parameters.items()},
        }

    def _beginning(self) -> dict[str, Tensor]:
        """Hashes of parameters and generators, as they are now, as tensors."""
        states = {f"{i}": each.get_state() for i, each in enumerate(self.state.generators)}
        hashes = {}
        for name, tensors in (("parameters", self.state.parameters), ("generators", states)):
            content = bytes.fromhex(digest("", tensors))
            hashes[f"beginning/{name}"] = torch.tensor(list(content), dtype=torch.uint8)
        return hashes

    def save(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.save(self.state.as_tensors() | self.beginning, self.identity)

    def save_when_due(self) -> None:
        if self.checkpoint is not None and self.state.num_taken % self.checkpoint.every == 0:
            self.save()

    def load(self, num_steps: int, snapshots: Collection[int]) -> None:
        """Go on from the state that the checkpoint has, if any and if it is one of this training."""
        if self.checkpoint is None:
            return
        stored = self.checkpoint.load(self.identity)
        if stored is None:
            return
        self._require_beginning(stored)
        num_taken, last_observed = stored["counts"].tolist()
        if num_taken > num_steps:
            raise CheckpointMismatchError(
                f"{self.checkpoint} is already at epoch {num_taken}, beyond the {num_steps} asked for. "
                "Name another file."
            )
        has = {name.split("/")[1] for name in stored if name.startswith("snapshot/")}
        missing = [step for step in snapshots if step <= last_observed and f"{step}" not in has]
        if missing:
            raise CheckpointMismatchError(
                f"{self.checkpoint} is at epoch {num_taken} and has kept nothing of epoch "
                f"{min(missing)}, which was not asked for then. Leave it out, remove the file or name "
                "another one."
            )
        self.state.restore(stored)

    def _require_beginning(self, stored: Mapping[str, Tensor]) -> None:
        """Refuse other parameters and generators than at the begin of the run, or where it is now.

        The latter are those of somebody who goes on in the same program.
        """
        now = self.state.as_tensors()
        for name, remedy, prefix in (
            ("parameters", "Start with those", "parameter/"),
            ("generators", "Seed them as then", "generator/"),
        ):
            began_so = torch.equal(self.beginning[f"beginning/{name}"], stored[f"beginning/{name}"])
            is_so = all(
                torch.equal(value.detach().cpu(), stored[key])
                for key, value in now.items()
                if key.startswith(prefix)
            )
            if not began_so and not is_so:
                raise CheckpointMismatchError(
                    f"{self.checkpoint} belongs to a run that began with other {name}: those given "
                    "are neither those at its beginning nor those it has now. "
                    f"{remedy}, remove the file or name another one."
                )
        self.beginning = {name: stored[name] for name in self.beginning}
