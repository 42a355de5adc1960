"""Experiments as values: the fields are the settings, ``run`` measures, the ledger judges."""

import dataclasses
import difflib
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np
import torch
from torch import Tensor

from mpt_experiments.registry import catalogue
from mpt_lml import fit
from mpt_lml.files import book_file, load_tensors, read_json, save_tensors, surroundings
from mpt_lml.fit import Progress, silent
from mpt_lml.spec import require, require_seeds
from mpt_lml.verdicts import mean_and_error
from mpt_score.networks import fingerprint
from mpt_score.networks.hub import resolved_revision, why_not_here

Arrays = dict[str, Tensor]
_Value = TypeVar("_Value")


class UnknownExperimentError(ValueError):
    """No experiment of this name; the message suggests the nearest ones."""


@dataclass(frozen=True)
class Finding:
    """What a run measured for one entry of the ledger; the entry's rule makes the verdict of it."""

    measured: float
    standard_error: float | None = None

    @classmethod
    def over(cls, values: Tensor) -> "Finding":
        """Mean of independent ``values`` and its standard error, which a single one has not."""
        mean, error = mean_and_error(values)
        return cls(mean.item(), error.item() if len(values) > 1 else None)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run returns: findings for the ledger, arrays for figures, a checksum of its data.

    ``weights``: a network's name, commit on the hub and hash. A recorded one has the last three.

    >>> Outcome({"gap": Finding(0.5)}, {"gaps": torch.ones(3)}).as_dict()["arrays"]
    {'gaps': [1.0, 1.0, 1.0]}
    """

    findings: dict[str, Finding]
    arrays: Arrays = field(default_factory=dict)
    data_sha256: str | None = None
    weights: dict[str, str | None] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(vars(self), "findings dict, arrays dict, seconds? [0,inf), data_sha256? str")
        values = {"findings": self.findings.values(), "arrays": self.arrays.values()}
        require(values, "findings* Finding, arrays* Tensor")

    def as_dict(self) -> dict[str, Any]:
        """Plain lists and numbers for JSON, arrays rounded to 8 significant digits."""
        content = {
            "findings": {name: dataclasses.asdict(found) for name, found in self.findings.items()},
            "arrays": {name: _rounded(array.tolist()) for name, array in self.arrays.items()},
            "data_sha256": self.data_sha256,
        }
        return content if self.weights is None else content | {"weights": self.weights}


def weights_of(model: str | Path | None, network: Any) -> dict[str, str | None] | None:
    """For :class:`Outcome`: a loaded network's name, the commit behind it on the hub, its hash."""
    if model is None:
        return None
    revision = resolved_revision(model)
    return {"name": str(model), "revision": revision, "sha256": fingerprint(network)}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    return value


@dataclass(frozen=True)
class Bench:
    """Where a run takes place: its device, its progress bar, and a folder to go on from."""

    device: torch.device = torch.device("cpu")
    progress: Progress = silent
    folder: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def checkpoint(self, name: str, *, every: int = 100, **identity: Any) -> fit.Checkpoint | None:
        """Where :mod:`mpt_lml.fit` keeps the state of the training called ``name``, if anywhere."""
        if self.folder is None:
            return None
        path = Path(self.folder, f"{name}.safetensors")
        return fit.Checkpoint(path, self._identity(identity), every)

    def keep(self, name: str, work: Callable[[], Mapping[str, Tensor]], **same: Any) -> Arrays:
        """What an earlier run of these settings and this ``same`` kept, else ``work()``, now kept.

        Tensors come back on the CPU; ``CheckpointMismatchError`` where a file is of another.
        """
        if self.folder is None:
            return dict(work())
        path, identity = Path(self.folder, f"{name}.safetensors"), self._identity(same)
        if not path.exists():
            save_tensors(path, work(), identity)
        return load_tensors(path, identity)

    def stack(self, work: Callable[[Any], Arrays], items: Sequence[Any], label: str) -> Arrays:
        """The arrays of ``work(item)`` for each of the ``items``, which are the first axis."""
        rows = [work(item) for item in self.progress(items, label)]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    @staticmethod
    def checksum(tensors: Iterable[Tensor]) -> str:
        """SHA-256 of the bytes of ``tensors``, so that a stored result names its data."""
        parts = (each.cpu().contiguous().numpy().tobytes() for each in tensors)
        return hashlib.sha256(b"".join(parts)).hexdigest()

    def _identity(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.settings, **surroundings(self.device.type), **more}


def seeded(seed: int) -> torch.Generator:
    """A generator on the CPU that starts from ``seed``."""
    return torch.Generator().manual_seed(seed)


def setting(paper: _Value, *, quick: _Value) -> _Value:
    """A field with the paper's value as its default, and another in the quick preset."""
    return dataclasses.field(default=paper, metadata={"quick": quick})


_REGISTRY: dict[str, "type[Experiment]"] = {}


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Experiment(ABC):
    """Frozen settings of one thing that can be run; the defaults are the paper's.

    A subclass is known by its ``name``, without one it is shared by others; its docstring
    begins with its title. Unless ``resumable`` it keeps nothing, without ``gpu`` it always computes
    on the CPU.
    """

    name: ClassVar[str]
    cost: ClassVar[str]
    resumable: ClassVar[bool]
    gpu: ClassVar[bool]
    seeds: tuple[int, ...] = setting((4, 44, 444, 4444, 44444), quick=(4, 44))  # the paper's five

    def __init_subclass__(
        cls, *, name: str = "", cost: str = "", resumable: bool = False, gpu: bool = True
    ) -> None:
        dataclass(frozen=True)(cls)
        if not name:
            return
        cls.name, cls.cost, cls.resumable, cls.gpu = name, cost, resumable, gpu
        _REGISTRY[name] = cls

    @classmethod
    def preset(cls, preset: str = "paper", **settings: Any) -> "Experiment":
        """The settings of a preset, those given replaced; other names are refused."""
        require(locals(), "preset paper|quick")
        settings |= {k: require_seeds(v) for k, v in settings.items() if k == "seeds"}
        known = {each.name: each.metadata for each in dataclasses.fields(cls)}
        for unknown in [name for name in settings if name not in known]:
            others = [name for name in names() if unknown in find(name).__dataclass_fields__]
            hint = f" These have: {', '.join(others)}." if others else ""
            said = f"{cls.name} has no setting {unknown!r}; it has {', '.join(known)}.{hint}"
            raise ValueError(said)
        small = {name: each["quick"] for name, each in known.items() if "quick" in each}
        return cls(**{**(small if preset == "quick" else {}), **settings})

    def run(self, bench: Bench) -> Outcome:
        """Measure on ``bench``, where what is kept belongs to these settings."""
        settings = {"experiment": self.name, **dataclasses.asdict(self)}
        return self.measure(dataclasses.replace(bench, settings=settings))

    @abstractmethod
    def measure(self, bench: Bench) -> Outcome:
        """Findings and arrays; the docstring of each experiment names these."""


def names() -> list[str]:
    """Names of all experiments, sorted."""
    return sorted({*catalogue(), *_REGISTRY})


def find(name: str) -> type[Experiment]:
    """The experiment called ``name``; :class:`UnknownExperimentError` suggests near names."""
    require(locals(), "name str")
    if name in _REGISTRY:
        return _REGISTRY[name]
    if name in catalogue():  # its module is imported when it is first asked for
        entry = catalogue()[name]
        chosen: type[Experiment] = getattr(import_module(entry.module), entry.class_name)
        return chosen
    near = difflib.get_close_matches(name, names(), n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(names())}."
    raise UnknownExperimentError(f"unknown experiment {name!r}. {hint}")


def run(
    name: str,
    preset: str = "paper",
    *,
    device: str = "auto",
    progress: Progress = silent,
    checkpoints: Path | None = None,
    otherwise: str | None = None,
    **settings: Any,
) -> Outcome:
    """Run the experiment ``name`` and return its :class:`Outcome`; in nats unless it says otherwise.

    ``settings`` replace fields of the preset. Writes nothing but its state, into the folder
    ``checkpoints`` where one is given. Raises ``ValueError`` for an unknown name (the nearest is
    suggested), preset, setting or device. For a page, ``otherwise`` says what a run with a large
    network would do: from a folder it does so anywhere, from the hub on a GPU with a network only;
    elsewhere one line tells why not, and the outcome is empty.

    >>> run("table-1", "quick", num_data=20).arrays["estimates"].shape
    torch.Size([2, 2])
    """
    require(locals(), "progress Callable, checkpoints? path, otherwise? str")
    chosen = find(name).preset(preset, **settings)
    bench = bench_for(chosen, device, progress, checkpoints)
    if otherwise is None:
        return chosen.run(bench)
    model = dataclasses.asdict(chosen).get("model")
    reason: object = None if model is None or Path(model).exists() else why_not_here(model)
    try:
        if reason is None:
            return chosen.run(bench)
    except OSError as error:  # no weights, or no sentences or images
        reason = error
    print(f"not run here ({reason}): {otherwise}")
    return Outcome({})


def bench_for(
    chosen: Experiment,
    device: str = "auto",
    progress: Progress = silent,
    folder: Path | None = None,
) -> Bench:
    """A bench for ``chosen``; asking for a device or a folder it would not use is an error."""
    if folder is not None and not chosen.resumable:
        raise ValueError(
            f"{chosen.name} keeps no state to go on from ({chosen.cost}): leave the checkpoints out."
        )
    require(locals(), "device auto|cpu|cuda")
    if device == "cuda" and not chosen.gpu:
        raise ValueError(f"{chosen.name} computes on the CPU only. Leave the device out.")
    gpu = torch.cuda.is_available() and chosen.gpu and device != "cpu"
    if device == "cuda" and not gpu:
        raise ValueError("device 'cuda' was asked for, but torch sees no GPU. Use 'auto' or 'cpu'.")
    return Bench(torch.device("cuda" if gpu else "cpu"), progress, folder)


def load(name: str) -> Outcome:
    """The recorded run of ``name`` at the paper's settings: what ``mpt-lml run NAME`` stored.

    Raises :class:`UnknownExperimentError` for an unknown name and ``FileNotFoundError`` for one
    that is not recorded.

    >>> load("table-1").arrays["estimates"].shape
    torch.Size([3, 5])
    """
    path = book_file(f"results/{find(name).name}.json")
    if not path.is_file():
        raise FileNotFoundError(f"no run of {name} is recorded. Make one: mpt-lml run {name}")
    stored = read_json(path)
    arrays = {key: np.array(value) for key, value in stored["arrays"].items()}
    return Outcome(
        {key: Finding(**value) for key, value in stored["findings"].items()},
        {k: torch.tensor(a.astype(float) if a.dtype == object else a) for k, a in arrays.items()},
        *map(stored.get, ("data_sha256", "weights", "config", "seconds", "provenance")),
    )
