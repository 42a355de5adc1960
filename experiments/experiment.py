"""Experiments as values: the fields are the settings, ``run`` measures, the ledger judges."""

import dataclasses
import difflib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import torch
from torch import Tensor

from experiments.records import computed_once, environment
from experiments.registry import EXPERIMENTS
from experiments.seeds import require_seeds
from mpt_lml import recorded
from mpt_lml.checks import FilePath, checked
from mpt_lml.files import book_file, read_json
from mpt_lml.fit import Progress, silent
from mpt_lml.recorded import Outcome
from mpt_score.networks import fingerprint
from mpt_score.networks.hub import (
    BERT_BASE,
    BERT_BASE_COMMIT,
    VIT_MAE_BASE,
    VIT_MAE_BASE_COMMIT,
    resolved_revision,
)

Arrays = dict[str, Tensor]
Preset = Literal["paper", "quick"]
Device = Literal["auto", "cpu", "cuda"]
_Value = TypeVar("_Value")


class UnknownExperimentError(ValueError):
    """Error for an unknown name of an experiment; the message names a near one, or where its code is."""


# -- where a run takes place ------------------------------------------------------------------------


def revision_of(model: str | Path) -> str | None:
    """The commit of a name on the hub that a run loads: the book's, where it has one."""
    commits = {BERT_BASE: BERT_BASE_COMMIT, VIT_MAE_BASE: VIT_MAE_BASE_COMMIT}
    return commits.get(str(model))


def weights_of(model: str | Path | None, network: Any) -> dict[str, str | None] | None:
    """Weights of an :class:`Outcome`: a loaded network's name, its commit on the hub and its hash."""
    if model is None:
        return None
    revision = resolved_revision(model, revision_of(model))
    return {"name": str(model), "revision": revision, "sha256": fingerprint(network)}


@dataclass(frozen=True)
class RunContext:
    """Context of a run: its device, its progress bar, and a folder to go on from."""

    device: torch.device = torch.device("cpu")
    progress: Progress = silent
    folder: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def computed_once(
        self, name: str, compute: Callable[[], Mapping[str, Tensor]], **inputs: Any
    ) -> Arrays:
        """Result ``name`` of these settings and ``inputs``, of an earlier run or computed now.

        Its tensors are on the device of the run, stored or not; ``CheckpointMismatchError`` where a file
        is of other settings, inputs, versions, or of another device.
        """
        if self.folder is None:
            computed = compute()
        else:
            identity = {**self.settings, **environment(self.device.type), **inputs}
            path = Path(self.folder, f"{name}.safetensors")
            computed = computed_once(path, compute, identity)
        return {key: value.to(self.device) for key, value in computed.items()}

    def stack(self, work: Callable[[Any], Arrays], items: Sequence[Any], label: str) -> Arrays:
        """The arrays of ``work(item)``, on the CPU; the ``items`` are their first axis."""
        return stacked([work(item) for item in self.progress(items, label)])

    @staticmethod
    def checksum(tensors: Iterable[Tensor]) -> str:
        """SHA-256 of the bytes of ``tensors``, so that a stored result names its data."""
        parts = (tensor.cpu().contiguous().numpy().tobytes() for tensor in tensors)
        return hashlib.sha256(b"".join(parts)).hexdigest()


def on_cpu(arrays: Mapping[str, Tensor]) -> Arrays:
    """Results as they are judged and written, wherever they were computed."""
    return {name: value.cpu() for name, value in arrays.items()}


def stacked(rows: Sequence[Mapping[str, Tensor]]) -> Arrays:
    """The arrays of several ``rows``, which become the first axis, on the CPU."""
    return on_cpu({name: torch.stack([row[name] for row in rows]) for name in rows[0]})


def seeded(seed: int) -> torch.Generator:
    """A generator on the CPU that starts from ``seed``."""
    return torch.Generator().manual_seed(seed)


# -- experiments --------------------------------------------------------------------------------------


def setting(paper: _Value, *, quick: _Value) -> _Value:
    """A field with the paper's value as its default, and another in the quick preset."""
    return dataclasses.field(default=paper, metadata={"quick": quick})


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Experiment(ABC):
    """Frozen settings of one thing that can be run; the defaults are the paper's.

    A subclass with a ``name`` is in :data:`experiments.registry.EXPERIMENTS`, with its title and
    its cost; one without is shared by others. Unless ``resumable`` it keeps nothing, without ``gpu``
    it always computes on the CPU.
    """

    name: ClassVar[str]
    resumable: ClassVar[bool]
    gpu: ClassVar[bool]
    seeds: tuple[int, ...] = setting((4, 44, 444, 4444, 44444), quick=(4, 44))  # the paper's five

    def __init_subclass__(
        cls, *, name: str = "", resumable: bool = False, gpu: bool = True
    ) -> None:
        checked(dataclass(frozen=True)(cls))  # both change the class itself and return it
        if name:
            cls.name = name
            cls.resumable = resumable
            cls.gpu = gpu

    @classmethod
    @checked
    def preset(cls, preset: Preset = "paper", **settings: Any) -> "Experiment":
        """The settings of a preset, those given replaced; other names are refused."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in settings.items():
            if name not in fields:
                others = [other for other in names() if name in find(other).__dataclass_fields__]
                hint = f" These have: {', '.join(others)}." if others else ""
                raise ValueError(
                    f"{cls.name} has no setting {name!r}; it has {', '.join(fields)}.{hint}"
                )
            # One value, or JSON's list, where a setting is a tuple.
            if isinstance(fields[name].default, tuple) and not isinstance(value, tuple):
                settings[name] = tuple(value) if isinstance(value, list) else (value,)
        if "seeds" in settings:
            settings["seeds"] = require_seeds(settings["seeds"])
        if preset == "quick":
            for name, field in fields.items():
                if "quick" in field.metadata:
                    settings.setdefault(name, field.metadata["quick"])
        return cls(**settings)

    def run(self, context: RunContext) -> Outcome:
        """Measure in ``context``, whose stored parts belong to these settings."""
        settings = {"experiment": self.name, **dataclasses.asdict(self)}
        return self.measure(dataclasses.replace(context, settings=settings))

    @abstractmethod
    def measure(self, context: RunContext) -> Outcome:
        """Findings and arrays, on the CPU; the docstring of each experiment names these."""


def names() -> list[str]:
    """Names of all experiments, sorted."""
    return sorted(EXPERIMENTS)


def require_known(name: str) -> str:
    """Return ``name`` if an experiment or a record has it, and refuse it otherwise.

    Raises:
        UnknownExperimentError: for another one; the message suggests near names.
    """
    known = sorted({*names(), *recorded.names()})
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(known)}."
    raise UnknownExperimentError(f"unknown experiment {name!r}. {hint}")


@checked
def find(name: str) -> type[Experiment]:
    """The experiment called ``name``. Its module is imported when it is first asked for.

    Raises:
        UnknownExperimentError: for an unknown name, and for one that is only recorded; the message
            says how the code of that one can be had.
    """
    if name not in EXPERIMENTS:
        raise UnknownExperimentError(_where_the_code_is(require_known(name)))
    entry = EXPERIMENTS[name]
    chosen: type[Experiment] = getattr(import_module(entry.module), entry.class_name)
    return chosen


def _where_the_code_is(name: str) -> str:
    """A sentence about an experiment of which the package has the record only."""
    sentence = f"the code of {name!r} left; its record stays: mpt_lml.load({name!r})."
    rerun = read_json(book_file(f"results/{name}.json")).get("rerun")
    if rerun is not None:
        sentence += f" To run it again, in a checkout: {rerun}"
    return sentence


@checked
def run(
    name: str,
    preset: Preset = "paper",
    *,
    device: Device = "auto",
    checkpoints: FilePath | None = None,
    **settings: Any,
) -> Outcome:
    """Run an experiment by its name, for a test or a session. It writes nothing but its state.

    The command line goes by :func:`experiments.recording.run_and_store`, which stores the findings.

    Args:
        name: of the experiment; ``python -m experiments list`` has them all.
        preset: "paper", or "quick": small settings that take seconds.
        device: "auto" is the GPU where there is one and the experiment uses it.
        checkpoints: folder for the state of a run that can go on; None keeps none.
        **settings: replace those of the preset.

    Returns:
        Its :class:`Outcome`, in nats unless the experiment says otherwise.

    Raises:
        ValueError: for an unknown name (the nearest is suggested), preset, setting or device.

    >>> run("table-1", "quick", num_data=20).arrays["estimates"].shape
    torch.Size([2, 2])
    """
    chosen = find(name).preset(preset, **settings)
    folder = None if checkpoints is None else Path(checkpoints)
    return chosen.run(context_for(chosen, device, silent, folder))


@checked
def context_for(
    chosen: Experiment,
    device: Device = "auto",
    progress: Progress = silent,
    folder: Path | None = None,
) -> RunContext:
    """Context in which to run ``chosen``; a device or a folder that it would not use is an error."""
    if folder is not None and not chosen.resumable:
        raise ValueError(f"{chosen.name} keeps no state to go on from: leave the checkpoints out.")
    if device == "cuda" and not chosen.gpu:
        raise ValueError(f"{chosen.name} computes on the CPU only. Leave the device out.")
    gpu = torch.cuda.is_available() and chosen.gpu and device != "cpu"
    if device == "cuda" and not gpu:
        raise ValueError("device 'cuda' was asked for, but torch sees no GPU. Use 'auto' or 'cpu'.")
    return RunContext(torch.device("cuda" if gpu else "cpu"), progress, folder)
