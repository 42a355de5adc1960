"""Gradient training that goes on to the last bit: runs side by side, and networks.

In :func:`maximize` the runs are a batch axis: Adam works entry by entry, so they never meet.
"""

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpt_lml.files import (
    Checkpoint,
    CheckpointMismatchError,
    digest,
    load_tensors,
    require_target,
    save_tensors,
    surroundings,
)
from mpt_lml.numerics import differentiable
from mpt_lml.results import History
from mpt_lml.spec import require, require_answer, require_memory

__all__ = ["Checkpoint", "descend", "maximize"]

Parameters = Mapping[str, Tensor]
Objective = Callable[[Parameters, Sequence[torch.Generator]], Tensor]
Tracked = Callable[[Parameters], Tensor]
Progress = Callable[[Iterable[Any], str], Iterable[Any]]
Schedule = torch.optim.lr_scheduler.LRScheduler
_RUN = "generators Sequence, generators* Generator, checkpoint? Checkpoint, progress Callable"


def silent(items: Iterable[Any], description: str) -> Iterable[Any]:
    """Progress that shows nothing."""
    return items


@differentiable()
def maximize(
    parameters: Parameters,
    objective: Objective,
    *,
    num_epochs: int,
    learning_rate: float,
    generators: Sequence[torch.Generator] = (),
    track: Mapping[str, Tracked] | None = None,
    track_every: int = 1,
    snapshots: Sequence[int] = (),
    checkpoint: Checkpoint | None = None,
    progress: Progress = silent,
) -> History:
    """Maximize ``objective`` with Adam, one step an epoch, for B runs side by side.

    ``objective(parameters, generators)`` gives (B,) nats from parameters (B, ...); its randomness
    comes from ``generators`` alone. What ``track`` names, ``f(parameters) -> (B,)``, is evaluated
    before the first epoch, after every ``track_every`` and after the last; rows in between are NaN.
    ``snapshots`` are epochs after which the parameters are kept (0: the start).

    With a ``checkpoint`` an existing file is continued bit for bit (same machine, versions, threads),
    if it is of the same settings, start, generators, learning rate, precision and device; with more
    ``num_epochs`` it goes on from its end. The parameters and generators given are those at which the
    run began, or those at which the file is now.

    Returns a :class:`~mpt_lml.results.History` with ``values["objective"]`` (its last row is NaN) and
    everything tracked. Raises ``ValueError`` for counts or rates that are not positive,
    ``CheckpointMismatchError`` for a file of another configuration and ``FloatingPointError`` where
    objective or gradient is not finite any more; a checkpoint then has the state before.

    >>> def objective(parameters, generators):
    ...     return -(parameters["level"] - 1).square()
    >>> history = maximize({"level": torch.zeros(2)}, objective, num_epochs=50, learning_rate=0.1)
    >>> history.values["objective"].shape
    torch.Size([51, 2])
    """
    require(locals(), "parameters Mapping, objective Callable, num_epochs 1.., track? Mapping")
    require(locals(), f"learning_rate (0,inf), track_every 1.., snapshots* 0..{num_epochs}, {_RUN}")
    require({"track": (track or {}).values()}, "track* Callable")
    if "objective" in (track or {}):
        raise ValueError("track must not name 'objective', which is recorded anyway: rename it.")
    _require_parameters(parameters)
    own = {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}
    first, track = next(iter(own.values())), track or {}
    records = 8 * (num_epochs + 1) * len(first) * (1 + len(track))
    require_memory(f"records of {num_epochs} epochs", records, "fewer num_epochs")
    empty = torch.full((num_epochs + 1, len(first)), torch.nan, dtype=first.dtype)
    values = {name: empty.clone() for name in ("objective", *track)}
    adam = torch.optim.Adam(list(own.values()), lr=learning_rate)
    state = _State(own, [adam], generators, values, checkpoint, {"learning_rate": learning_rate})

    def ascend(epoch: int) -> None:
        value = objective(own, generators)
        require_answer("objective(parameters)", value, first.shape[:1])
        _require_finite("objective", value, epoch)
        adam.zero_grad()
        (-value.sum()).backward()
        for name, parameter in own.items():
            if parameter.grad is None:
                raise ValueError(f"the objective does not depend on the parameter {name!r}.")
            slope = parameter.grad.reshape(len(value), -1).sum(dim=1)
            _require_finite(f"gradient of {name}", slope, epoch)
        values["objective"][epoch] = value.detach()

    def look(epoch: int) -> None:
        if epoch % track_every == 0 or epoch == num_epochs:
            for name, function in track.items():
                value = function(own)
                require_answer(f"track[{name!r}]", value, first.shape[:1], slope=False)
                values[name][epoch] = value
        if epoch in snapshots:
            state.kept |= {f"{epoch}/{name}": value.clone() for name, value in own.items()}

    state.run(num_epochs, ascend, look, progress, "epoch", kept_after=snapshots)
    return History(
        values,
        {name: value.detach() for name, value in own.items()},
        {epoch: {name: state.kept[f"{epoch}/{name}"] for name in own} for epoch in snapshots},
    )


@differentiable()
def descend(
    network: nn.Module,
    loss: Callable[[int], Tensor],
    schedules: Sequence[Schedule],
    *,
    num_steps: int,
    generators: Sequence[torch.Generator] = (),
    max_norm: float | None = None,
    watch: Callable[[], Tensor] | None = None,
    watched: Collection[int] = (),
    checkpoint: Checkpoint | None = None,
    progress: Progress = silent,
    label: str = "step",
) -> tuple[Tensor, list[Tensor]]:
    """Minimize ``loss`` over the weights of ``network``, in place.

    Each of ``schedules`` brings its optimizer; gradients are cut to ``max_norm`` where it is given.
    ``loss(step)`` draws from ``generators`` alone, whose states are part of the checkpoint; a file
    is continued as in :func:`maximize`, with the same errors, if optimizers and schedules have the
    same settings and are new. (A function in a schedule is not compared.)

    Returns the losses (num_steps,), in the unit of ``loss``, and what ``watch()`` gave after the
    ``watched`` numbers of steps.

    >>> network = nn.Linear(2, 1)
    >>> cycle = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD(network.parameters(), lr=0.1))
    >>> descend(network, lambda step: network.weight.square().sum(), [cycle], num_steps=9)[0].shape
    torch.Size([9])
    """
    require(locals(), f"network Module, loss Callable, num_steps 1.., label str, {_RUN}")
    require(locals(), f"max_norm? (0,inf), watch? Callable, watched* 0..{num_steps}")
    require(locals(), "schedules Sequence")
    require({"schedules": schedules or [None]}, "schedules* LRScheduler")
    if watched and watch is None:
        raise ValueError(f"watched = {watched} needs a function watch().")
    weights = {name: each for name, each in network.named_parameters() if each.requires_grad}
    _require_own_weights(schedules, network)
    require_memory(f"losses of {num_steps} steps", 8 * num_steps, "fewer num_steps")
    losses = torch.full((num_steps,), torch.nan)
    own = network.state_dict(keep_vars=True)
    optimizers = [schedule.optimizer for schedule in schedules]
    more = _settings_of(optimizers, schedules) | {"max_norm": max_norm}
    state = _State(own, optimizers, generators, {"loss": losses}, checkpoint, more)

    def gradient(step: int) -> None:
        value = loss(step)
        require_answer("loss(step)", value, ())
        _require_finite("loss", value.detach()[None], step)
        network.zero_grad()
        value.backward()
        _require_gradients(weights, step)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(weights.values(), max_norm)
        losses[step] = value.detach()

    def look(step: int) -> None:
        if watch is not None and step in watched:
            value = watch()
            if not isinstance(value, Tensor):
                raise TypeError(f"watch() must return a tensor, got {value!r}.")
            state.kept[f"{step}"] = value

    state.run(num_steps, gradient, look, progress, label, schedules, watched)
    return losses, [state.kept[f"{step}"] for step in sorted(watched)]


def _require_parameters(parameters: Parameters) -> None:
    """Check that parameters are tensors (B, ...) of one dtype, whatever texts name them."""
    if not parameters:
        raise ValueError("parameters must be at least one tensor, by name, got none.")
    first = next(iter(parameters.values()))
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TypeError(f"parameters must be named by texts, got the name {name!r}.")
        try:
            require({"first": first, "value": value}, "first B ..., value B ...", finite=False)
        except (TypeError, ValueError) as error:
            said = re.sub("^(value|first)", f"the parameter {name}".replace("\\", "/"), str(error))
            raise type(error)(said) from None


def _require_own_weights(schedules: Sequence[Schedule], network: nn.Module) -> None:
    """Check that the optimizers move nothing but weights of ``network``, which a file holds."""
    own = {id(weight) for weight in network.parameters()}
    for number, schedule in enumerate(schedules):
        moved = [each for group in schedule.optimizer.param_groups for each in group["params"]]
        foreign = [each for each in moved if id(each) not in own]
        if foreign:
            raise ValueError(
                f"schedules[{number}] must be of an optimizer of network.parameters(), but "
                f"{len(foreign)} of its {len(moved)} weights are not of this network."
            )


def _require_gradients(weights: Mapping[str, Tensor], step: int) -> None:
    """Check after a backward pass that the loss has reached the weights, with finite gradients."""
    slopes = {name: each.grad for name, each in weights.items() if each.grad is not None}
    if not slopes:
        raise ValueError("loss(step) must depend on weights of network that require a gradient.")
    for name, slope in slopes.items():
        if not slope.isfinite().all():
            bad = slope[~slope.isfinite()][:1]
            _require_finite(f"gradient of {name}", bad, step)


def _require_finite(what: str, value: Tensor, epoch: int) -> None:
    bad = (~torch.isfinite(value)).nonzero().flatten().tolist()
    if bad:
        message = (
            f"the {what} is {value[bad[0]].item()} at epoch {epoch} in run {bad[0]} of {len(value)}; "
            "training stopped with the state before that epoch. A smaller learning rate may help."
        )
        raise FloatingPointError(message)


def _settings_of(
    optimizers: Sequence[torch.optim.Optimizer], schedules: Sequence[Schedule]
) -> dict[str, Any]:
    """All settings of new optimizers and schedules, one an entry, so that a message can name it."""
    settings: dict[str, Any] = {}
    for number, optimizer in enumerate(optimizers):
        for place, group in enumerate(optimizer.state_dict()["param_groups"]):
            title = f"{type(optimizer).__name__} {number}, group {place}"
            settings |= {f"{title}: {name}": value for name, value in group.items()}
    for number, schedule in enumerate(schedules):
        title = f"{type(schedule).__name__} {number}"
        settings |= {f"{title}: {name}": value for name, value in schedule.state_dict().items()}
    return settings


@dataclass
class _State:
    """Everything that the next step depends on, and what the steps so far have left."""

    parameters: Mapping[str, Tensor]
    optimizers: Sequence[torch.optim.Optimizer]
    generators: Sequence[torch.Generator]
    rows: dict[str, Tensor]
    checkpoint: Checkpoint | None
    settings: Mapping[Any, Any]  # of the training; those of the checkpoint are its user's
    first: dict[str, Tensor] = field(default_factory=dict)  # hashes of what the run began with
    kept: dict[str, Tensor] = field(default_factory=dict)
    done: int = 0
    seen: int = -1  # the last number of steps after which ``look`` has looked

    def run(
        self,
        num_steps: int,
        gradient: Callable[[int], None],
        look: Callable[[int], None],
        progress: Progress,
        label: str,
        schedules: Sequence[Schedule] = (),
        kept_after: Collection[int] = (),
    ) -> None:
        """All steps from where the state is; it is stored on the way and at any end."""
        self.load(num_steps, schedules, kept_after)
        movers: list[Any] = [*self.optimizers, *schedules]
        whole = True
        try:
            self.see(look)
            for _ in progress(range(self.done, num_steps), label):
                if self.done == num_steps:
                    break
                # Nothing is updated yet: with the generators put back, a failed step never began.
                before = [generator.get_state() for generator in self.generators]
                try:
                    gradient(self.done)
                except BaseException:
                    for generator, state in zip(self.generators, before, strict=True):
                        generator.set_state(state)
                    raise
                whole = False
                for mover in movers:
                    mover.step()
                self.done += 1
                whole = True
                self.see(look)
                if self.checkpoint is not None and self.done % self.checkpoint.every == 0:
                    self.save()
        finally:
            if whole:
                self.save()
        if self.done < num_steps:
            raise ValueError(
                f"progress must pass on every {label} that it is given, but it ended after "
                f"{self.done} of {num_steps}."
            )

    @torch.no_grad()
    def see(self, look: Callable[[int], None]) -> None:
        if self.seen < self.done:
            look(self.done)
            self.seen = self.done

    def save(self) -> None:
        if self.checkpoint is None:
            return
        tensors = {"counts": torch.tensor([self.done, self.seen]), **self.first}
        for o, optimizer in enumerate(self.optimizers):
            for p, memory in optimizer.state_dict()["state"].items():
                tensors |= {f"moment/{o}/{p}/{key}": value for key, value in memory.items()}
        tensors |= {f"parameter/{name}": value for name, value in self.parameters.items()}
        tensors |= {f"rows/{name}": rows[: self.done + 1] for name, rows in self.rows.items()}
        tensors |= {f"kept/{name}": value for name, value in self.kept.items()}
        tensors |= {f"generator/{g}": each.get_state() for g, each in enumerate(self.generators)}
        save_tensors(self.checkpoint.path, tensors, self.checkpoint.settings)

    def load(
        self, num_steps: int, schedules: Sequence[Schedule], kept_after: Collection[int]
    ) -> None:
        if self.checkpoint is None:
            return
        path = self.checkpoint.path
        self.checkpoint = replace(self.checkpoint, settings=self.identity(self.checkpoint.settings))
        self.first = self.hashes()
        require_target(path)
        if not path.exists():
            return
        if not path.is_file():
            raise ValueError(
                f"the checkpoint {path} must be a file that can be read again, and is a device or a "
                "pipe: name another one."
            )
        stored = load_tensors(path, self.checkpoint.settings)
        self.require_beginning(stored, path)
        self.done, self.seen = stored["counts"].tolist()
        if self.done > num_steps:
            already = f"{path} is already at epoch {self.done}, beyond the {num_steps} asked for"
            raise CheckpointMismatchError(f"{already}. Name another file.")
        for name, value in self.parameters.items():
            value.data.copy_(stored[f"parameter/{name}"])
        for o, optimizer in enumerate(self.optimizers):
            moments = optimizer.state_dict()
            for name in [name for name in stored if name.startswith(f"moment/{o}/")]:
                _, _, p, key = name.split("/")
                moments["state"].setdefault(int(p), {})[key] = stored[name]
            optimizer.load_state_dict(moments)
        for name, rows in self.rows.items():
            earlier = stored[f"rows/{name}"]
            rows[: len(earlier)] = earlier
        self.kept |= {name[5:]: value for name, value in stored.items() if name[:5] == "kept/"}
        passed = [step for step in kept_after if step <= self.seen]
        missing = set(map(str, passed)) - {name.partition("/")[0] for name in self.kept}
        if missing:
            raise CheckpointMismatchError(
                f"{path} is at epoch {self.done} and has kept nothing of epoch {min(missing, key=int)}, "
                "which was not asked for then. Leave it out, remove the file or name another one."
            )
        for g, generator in enumerate(self.generators):
            generator.set_state(stored[f"generator/{g}"])
        with warnings.catch_warnings(action="ignore"):  # they follow from the number of steps alone
            for schedule in schedules:
                for _ in range(self.done):
                    schedule.step()

    def identity(self, settings: Mapping[Any, Any]) -> dict[Any, Any]:
        """What a file has to be of, but for what the run began with.

        A setting of the user's that is named as one of ours stands beside it.
        """
        device = next(iter(self.parameters.values())).device.type
        own = {
            **surroundings(device),
            **self.settings,
            "streams": len(self.generators),
            "rows": [*self.rows],
            "shapes": {name: value.shape for name, value in self.parameters.items()},
            "dtypes": {name: value.dtype for name, value in self.parameters.items()},
        }
        users = {f"settings[{k!r}]" if k in own else k: value for k, value in settings.items()}
        return users | own

    def hashes(self) -> dict[str, Tensor]:
        """Hashes of the parameters and of the generators' states, as they are now."""
        streams = {f"{g}": each.get_state() for g, each in enumerate(self.generators)}
        both = {"first/parameters": self.parameters, "first/generators": streams}
        return {
            name: torch.tensor(list(bytes.fromhex(digest("", tensors))), dtype=torch.uint8)
            for name, tensors in both.items()
        }

    def require_beginning(self, stored: Mapping[str, Tensor], path: Path) -> None:
        """Refuse other parameters and generators than at the begin of the run, or where it is now.

        The latter are those of somebody who goes on in the same program.
        """
        now = {f"parameter/{name}": value for name, value in self.parameters.items()}
        states = {f"generator/{g}": each.get_state() for g, each in enumerate(self.generators)}
        for name, remedy, tensors in (
            ("first/parameters", "Start with those", now),
            ("first/generators", "Seed them as then", states),
        ):
            began_so = torch.equal(self.first[name], stored[name])
            is_so = all(
                torch.equal(each.detach().cpu(), stored[key]) for key, each in tensors.items()
            )
            if not began_so and not is_so:
                raise CheckpointMismatchError(
                    f"{path} belongs to a run that began with other {name.partition('/')[2]}: those "
                    "given are neither those at its beginning nor those it has now. "
                    f"{remedy}, remove the file or name another one."
                )
        self.first = {name: stored[name] for name in self.first}
