"""The old form of an experiment: a function and a configuration with two presets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpt_lml.experiments.base import (  # noqa: F401
    _REGISTRY,
    Bench,
    Experiment,
    Finding,
    Outcome,
    Progress,
    UnknownExperimentError,
    checksum,
    find,
    load,
    names,
    run,
    silent,
    weights_of,
)


@dataclasses.dataclass(frozen=True)
class Config(Experiment):
    """Settings of an experiment in the old form."""

    @classmethod
    def paper(cls) -> Any:
        return cls()

    @classmethod
    def preset(cls, preset: str = "paper", **settings: Any) -> Any:
        cls._require_known(preset, settings)
        config = cls.paper() if preset == "paper" else cls.quick()  # type: ignore[attr-defined]
        return dataclasses.replace(config, **settings)

    def run(self, bench: Bench) -> Outcome:
        raise NotImplementedError


def experiment(
    name: str,
    *,
    title: str,
    cost: str,
    config: Any,
    resumable: bool = False,
    gpu: bool = True,
) -> Callable[[Any], Any]:
    """Register a function ``(config, *, device, progress[, checkpoints]) -> Outcome``."""

    def register(function: Any) -> Any:
        def go(self: Any, bench: Bench) -> Outcome:
            folder: dict[str, Path | None] = {"checkpoints": bench.folder} if resumable else {}
            return function(self, device=bench.device, progress=bench.progress, **folder)

        about = {"name": name, "title": title, "cost": cost, "resumable": resumable, "gpu": gpu}
        _REGISTRY[name] = type(config.__name__, (config,), {**about, "run": go})
        return function

    return register
