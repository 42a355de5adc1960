"""Gradient training of several runs side by side, resumable to the last bit (wing).

The runs are a batch axis: every parameter has a leading axis of length B, the objective returns one
value a run, and Adam works entry by entry, so the runs never see each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpt_lml.results import History, replacing, require_writable
from mpt_lml.shapes import require_count

Parameters = Mapping[str, Tensor]
Objective = Callable[[Parameters, Sequence[torch.Generator]], Tensor]
Tracked = Callable[[Parameters], Tensor]


class DivergedError(RuntimeError):
    """The objective is no longer finite.

    Attributes
    ----------
    epoch : int
        The first epoch whose objective is not finite (counted from 0).
    history : History
        Everything up to the last good state, whose parameters are ``history.parameters``.
    """

    def __init__(self, message: str, epoch: int, history: History) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.history = history


class CheckpointMismatchError(ValueError):
    """A checkpoint on disk belongs to another configuration."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run is kept so that it can go on, and what it has to match.

    Attributes
    ----------
    path : Path
        An ``.npz`` file (no pickles), written atomically.
    settings : dict
        Plain values; a file with other settings is refused, with the first difference named.
    every : int
        Epochs between two writes. It is also written when the run is interrupted.
    """

    path: Path
    settings: Mapping[str, Any]
    every: int = 100

    def __post_init__(self) -> None:
        require_count("every", self.every, 1)


def _all(items: Iterable[int], description: str) -> Iterable[int]:
    return items


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
    progress: Callable[[Iterable[int], str], Iterable[int]] = _all,
) -> History:
    """Maximize ``objective`` with Adam, one step an epoch.

    Parameters
    ----------
    parameters : dict of Tensor (B, ...)
        Where to start; not changed.
    objective : callable
        ``objective(parameters, generators) -> (B,)``, in nats. Its randomness comes from
        ``generators``, whose states are part of the checkpoint.
    num_epochs, learning_rate
        Both positive.
    track : dict of callables, optional
        ``name: f(parameters) -> (B,)``, evaluated before the first epoch and after those below.
    track_every : int
        Epochs between two evaluations of what is tracked; the last epoch is always evaluated, and
        rows in between are NaN.
    snapshots : sequence of int
        Epochs after which the parameters are kept (0 is the initialization).
    checkpoint : Checkpoint, optional
        Where to store the state; an existing file is continued, bit for bit as if the run had never
        stopped (same machine, same versions, same number of threads).

    Returns
    -------
    History
        ``values["objective"]`` and everything tracked; the objective's last row is NaN, since no
        step follows it.

    Raises
    ------
    ValueError
        For an epoch count or learning rate that is not positive, or a snapshot outside 0..E.
    CheckpointMismatchError
        When the file belongs to another configuration.
    DivergedError
        When the objective is not finite any more; it names the epoch and keeps the last good state.
    """
    require_count("num_epochs", num_epochs, 1)
    if not learning_rate > 0:
        raise ValueError(f"learning_rate must be > 0, got {learning_rate}.")
    require_count("track_every", track_every, 1)
    for epoch in snapshots:
        require_count("snapshot epoch", epoch, 0, num_epochs)
    tracked = {*range(0, num_epochs, track_every), num_epochs} if track else set()
    run = _Run(
        parameters, objective, learning_rate, generators, track or {}, tracked, set(snapshots)
    )
    run.start(num_epochs, checkpoint)
    try:
        for epoch in progress(range(run.done, num_epochs), "epoch"):
            run.step(epoch)
            if checkpoint is not None and run.done % checkpoint.every == 0:
                run.save(checkpoint)
    finally:
        if checkpoint is not None and run.consistent:
            run.save(checkpoint)
    return run.history()


class _Run:
    """The moving state of :func:`maximize`."""

    def __init__(
        self,
        parameters: Parameters,
        objective: Objective,
        learning_rate: float,
        generators: Sequence[torch.Generator],
        track: Mapping[str, Tracked],
        tracked: set[int],
        snapshots: set[int],
    ) -> None:
        self.parameters = {
            name: value.detach().clone().requires_grad_() for name, value in parameters.items()
        }
        self.optimizer = torch.optim.Adam(list(self.parameters.values()), lr=learning_rate)
        self.objective, self.generators, self.track = objective, generators, track
        self.tracked, self.wanted = tracked, snapshots
        self.kept: dict[int, dict[str, Tensor]] = {}
        self.values: dict[str, Tensor] = {}
        self.done = 0
        self.consistent = True

    def start(self, num_epochs: int, checkpoint: Checkpoint | None) -> None:
        """Make room for the values, then continue from disk or record the initialization."""
        batch = len(next(iter(self.parameters.values())))
        dtype = next(iter(self.parameters.values())).dtype
        for name in ("objective", *self.track):
            self.values[name] = torch.full((num_epochs + 1, batch), torch.nan, dtype=dtype)
        if checkpoint is not None:
            require_writable(checkpoint.path.parent)
            if checkpoint.path.exists():
                self.load(checkpoint)
                return
        self.record()

    def step(self, epoch: int) -> None:
        """One update of all runs."""
        states = [generator.get_state() for generator in self.generators]
        try:
            value = self.objective(self.parameters, self.generators)
            self._require_finite("objective", value, epoch)
            self.optimizer.zero_grad()
            (-value.sum()).backward()
            for name, parameter in self.parameters.items():
                gradient = parameter.grad
                assert gradient is not None
                self._require_finite(
                    f"gradient of {name}", gradient.reshape(len(gradient), -1).sum(dim=1), epoch
                )
        except BaseException:
            # Nothing was updated: with the generators put back, this is the state before the epoch.
            for generator, state in zip(self.generators, states, strict=True):
                generator.set_state(state)
            raise
        self.consistent = False
        self.values["objective"][epoch] = value.detach()
        self.optimizer.step()
        self.done = epoch + 1
        self.record()
        self.consistent = True

    def _require_finite(self, what: str, value: Tensor, epoch: int) -> None:
        bad = (~torch.isfinite(value)).nonzero().flatten().tolist()
        if bad:
            message = (
                f"the {what} is {value[bad[0]].item()} at epoch {epoch} in run {bad[0]} of "
                f"{len(value)}; training stopped with the state before that epoch. A smaller "
                "learning rate may help."
            )
            raise DivergedError(message, epoch, self.history())

    def record(self) -> None:
        """Values and snapshots of the present parameters."""
        if self.done in self.tracked:
            with torch.no_grad():
                for name, function in self.track.items():
                    self.values[name][self.done] = function(self.parameters)
        if self.done in self.wanted:
            self.kept[self.done] = self.copy()

    def copy(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.parameters.items()}

    def history(self) -> History:
        """What there is so far."""
        values = {name: rows[: self.done + 1].clone() for name, rows in self.values.items()}
        return History(values, self.copy(), dict(self.kept))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write everything that the next epoch depends on."""
        arrays = {"done": np.array(self.done), "settings": np.array(_text(checkpoint.settings))}
        for name, value in self.parameters.items():
            arrays[f"parameter/{name}"] = value.detach().cpu().numpy()
            for key, moment in self.optimizer.state.get(value, {}).items():
                arrays[f"adam/{name}/{key}"] = moment.cpu().numpy()
        for name, rows in self.values.items():
            arrays[f"values/{name}"] = rows[: self.done + 1].numpy()
        for epoch, kept in self.kept.items():
            for name, value in kept.items():
                arrays[f"snapshot/{epoch}/{name}"] = value.cpu().numpy()
        for index, generator in enumerate(self.generators):
            arrays[f"generator/{index}"] = generator.get_state().numpy()
        with replacing(checkpoint.path) as partial, partial.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]

    def load(self, checkpoint: Checkpoint) -> None:
        """Continue from the file, after checking that it belongs to this configuration."""
        with np.load(checkpoint.path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        _require_same(json.loads(str(arrays["settings"])), checkpoint)
        self.done = int(arrays["done"])
        if self.done >= len(self.values["objective"]):
            raise CheckpointMismatchError(
                f"{checkpoint.path} is already at epoch {self.done}, beyond the "
                f"{len(self.values['objective']) - 1} asked for. Name another file."
            )
        for name, value in self.parameters.items():
            value.data = torch.from_numpy(arrays[f"parameter/{name}"]).to(value.device)
            prefix = f"adam/{name}/"
            self.optimizer.state[value] = {
                key.removeprefix(prefix): _beside(value, key, array)
                for key, array in arrays.items()
                if key.startswith(prefix)
            }
        for name, rows in self.values.items():
            rows[: self.done + 1] = torch.from_numpy(arrays[f"values/{name}"])
        for key, array in arrays.items():
            if key.startswith("snapshot/"):
                _, epoch, name = key.split("/", 2)
                self.kept.setdefault(int(epoch), {})[name] = torch.from_numpy(array)
        for index, generator in enumerate(self.generators):
            generator.set_state(torch.from_numpy(arrays[f"generator/{index}"]))


def _beside(value: Tensor, key: str, array: np.ndarray) -> Tensor:
    """Adam's moments live where the parameter does, its step count on the CPU."""
    moment = torch.from_numpy(array)
    return moment if key.endswith("/step") else moment.to(value.device)


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(dict(settings), sort_keys=True)


def _require_same(stored: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    wanted = json.loads(_text(checkpoint.settings))
    for name in sorted({*stored, *wanted}):
        if stored.get(name) != wanted.get(name):
            raise CheckpointMismatchError(
                f"{checkpoint.path} belongs to another configuration: its {name} is "
                f"{stored.get(name)!r}, wanted {wanted.get(name)!r}. Remove the file or name "
                "another one."
            )
