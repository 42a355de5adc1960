"""Experiments as values: a name, settings, a function, findings."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from mpt_lml.checkpoints import resolved_revision

Item = TypeVar("Item")


class UnknownExperimentError(ValueError):
    """No experiment of this name; the message suggests the nearest ones."""


@runtime_checkable
class Progress(Protocol):
    """Something like ``tqdm``: passes items through and shows how far it is."""

    def __call__(self, items: Iterable[Item], description: str) -> Iterable[Item]: ...


def silent(items: Iterable[Item], description: str) -> Iterable[Item]:
    """Progress that shows nothing."""
    return items


@dataclass(frozen=True)
class Config(ABC):
    """Settings of an experiment with two presets; subclasses are frozen dataclasses."""

    seeds: tuple[int, ...] = (4, 44, 444, 4444, 44444)  # the paper's five

    @classmethod
    @abstractmethod
    def paper(cls) -> Config:
        """As published."""

    @classmethod
    @abstractmethod
    def quick(cls) -> Config:
        """Small enough for a test; its findings are not the paper's."""


@dataclass(frozen=True)
class Finding:
    """What a run measured for one entry of the ledger; the entry's rule makes the verdict of it."""

    measured: float
    standard_error: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What a run returns: findings for the ledger, arrays for figures, a checksum of its data.

    ``weights`` names the loaded network and the commit of the hub that it came from.
    """

    findings: dict[str, Finding]
    arrays: dict[str, Tensor] = field(default_factory=dict)
    data_sha256: str | None = None
    weights: dict[str, str | None] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain lists and numbers for JSON, arrays rounded to 8 significant digits."""
        content = {
            "findings": {name: dataclasses.asdict(found) for name, found in self.findings.items()},
            "arrays": {name: _rounded(array.tolist()) for name, array in self.arrays.items()},
            "data_sha256": self.data_sha256,
        }
        return content if self.weights is None else content | {"weights": self.weights}


def weights_of(model: str | None) -> dict[str, str | None] | None:
    """For :class:`Outcome`: a loaded network's name, and the commit behind it on the hub."""
    return None if model is None else {"name": model, "revision": resolved_revision(model)}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    return value


@dataclass(frozen=True)
class Experiment:
    """One thing of the paper that can be run.

    ``cost`` says in words what the ``paper`` preset takes on two cores. A ``resumable`` function
    also takes ``checkpoints``, a folder to keep its state in and to go on from (``None``: none).
    One without ``gpu`` always computes on the CPU.
    """

    name: str
    title: str
    cost: str
    config: type[Config]
    function: Callable[..., Outcome]
    resumable: bool = False
    gpu: bool = True


_REGISTRY: dict[str, Experiment] = {}


def experiment(
    name: str,
    *,
    title: str,
    cost: str,
    config: type[Config],
    resumable: bool = False,
    gpu: bool = True,
) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:
    """Register a function ``(config, *, device, progress[, checkpoints]) -> Outcome``."""

    def register(function: Callable[..., Outcome]) -> Callable[..., Outcome]:
        _REGISTRY[name] = Experiment(name, title, cost, config, function, resumable, gpu)
        return function

    return register


def names() -> list[str]:
    """Names of all experiments, sorted."""
    return sorted(_REGISTRY)


def find(name: str) -> Experiment:
    """The experiment called ``name``; :class:`UnknownExperimentError` suggests near names."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    near = difflib.get_close_matches(name, _REGISTRY, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(names())}."
    raise UnknownExperimentError(f"unknown experiment {name!r}. {hint}")


def make_config(
    found: Experiment, preset: str, seeds: tuple[int, ...] | None, model: str | None = None
) -> Config:
    """Settings of ``preset``, with its seeds and the network it loads replaced where given."""
    if preset not in ("paper", "quick"):
        raise ValueError(f"preset must be 'paper' or 'quick', got {preset!r}.")
    config = found.config.paper() if preset == "paper" else found.config.quick()
    if model is not None and not _loads_network(found):
        others = ", ".join(name for name in names() if _loads_network(find(name)))
        raise ValueError(
            f"{found.name} loads no network, so {model!r} has no place in it. These do: {others}."
        )
    changes: dict[str, Any] = {"seeds": seeds, "model": model}
    return dataclasses.replace(
        config, **{name: value for name, value in changes.items() if value is not None}
    )


def _loads_network(found: Experiment) -> bool:
    return any(each.name == "model" for each in dataclasses.fields(found.config))


def run(
    name: str,
    preset: str = "paper",
    *,
    seeds: tuple[int, ...] | None = None,
    model: str | None = None,
    device: str = "auto",
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """Run an experiment by name and return its :class:`Outcome`.

    ``model``, a hub name or a folder, takes the place of the network that the experiment loads.
    Writes nothing, except its state into the folder ``checkpoints`` where one is given.
    """
    found = find(name)
    config = make_config(found, preset, seeds, model)
    options: dict[str, Any] = {"device": device_of(found, device), "progress": progress}
    if found.resumable:
        options["checkpoints"] = checkpoints
    elif checkpoints is not None:
        raise ValueError(
            f"{name} keeps no state to go on from ({found.cost}): leave the checkpoints out."
        )
    return found.function(config, **options)


def resolve_device(device: str) -> torch.device:
    """``auto`` is a GPU where there is one; asking for ``cuda`` without one is an error."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu' or 'cuda', got {device!r}.")
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ValueError("device 'cuda' was asked for, but torch sees no GPU. Use 'auto' or 'cpu'.")
    return torch.device("cuda" if device != "cpu" and available else "cpu")


def device_of(found: Experiment, device: str) -> torch.device:
    """The device a run computes on; asking for a GPU that it would not use is an error."""
    if found.gpu:
        return resolve_device(device)
    if device == "cuda":
        raise ValueError(f"{found.name} computes on the CPU only. Leave the device out.")
    return resolve_device("cpu" if device == "auto" else device)


def checksum(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of the bytes of ``tensors``, so that a stored result names its data."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
