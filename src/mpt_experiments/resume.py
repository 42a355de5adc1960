"""State in files: a run that was stopped goes on from what it has kept, and from nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mpt_lml.checks import Count, checked
from mpt_lml.files import as_plain, load_tensors, require_target, save_tensors, versions


@checked
@dataclass(frozen=True)
class FileCheckpoint:
    """The state of one training in a file, for :mod:`mpt_lml.fit`.

    It is a safetensors file, replaced in one piece, so that a process that is killed at any moment
    leaves a whole one. It belongs to ``settings``, to what the training says of itself (start, seeds,
    learning rate, precision, device) and to the versions of the libraries: a file of others is
    refused, the first difference named. What the training cannot see, such as the data, belongs into
    the settings.

    Args:
        path: of the file.
        settings: numbers, texts, paths, tensors, and lists and dictionaries of these.
        every: steps from one save to the next.

    Raises:
        TypeError: for settings that cannot be compared when the program runs again.

    >>> FileCheckpoint(Path("run.safetensors"), {"law": "uniform"}).every
    100
    """

    path: Path
    settings: Mapping[Any, Any]
    every: Count = 100

    def __post_init__(self) -> None:
        as_plain("settings", self.settings)

    def __str__(self) -> str:
        return str(self.path)

    def load(self, identity: Mapping[str, Any]) -> dict[str, Tensor] | None:
        """What :meth:`save` wrote for this ``identity``; None where there is no file.

        Raises:
            CheckpointMismatchError: for a file that is damaged or of something else.
            OSError: where no file can be written, before any work.
        """
        require_target(self.path)
        if not self.path.exists():
            return None
        if not self.path.is_file():
            raise ValueError(
                f"the checkpoint {self.path} must be a file that can be read again, and is a device "
                "or a pipe: name another one."
            )
        return load_tensors(self.path, self._whole_identity(identity))

    def save(self, state: Mapping[str, Tensor], identity: Mapping[str, Any]) -> None:
        save_tensors(self.path, state, self._whole_identity(identity))

    def _whole_identity(self, identity: Mapping[str, Any]) -> dict[Any, Any]:
        """The training's identity with the machine's and the user's settings.

        A setting of the user's that is named as one of the others stands beside it.
        """
        whole: dict[Any, Any] = {**surroundings(identity["device"]), **identity}
        beside = {}
        for name, value in self.settings.items():
            beside[f"settings[{name!r}]" if name in whole else name] = value
        return beside | whole


def surroundings(device: str) -> dict[str, Any]:
    """What decides a number besides its settings: device, precision and versions.

    >>> surroundings("cpu")["device"]
    'cpu'
    """
    precision = f"{torch.get_default_dtype()}, {torch.get_float32_matmul_precision()}"
    of_libraries = {f"version of {name}": version for name, version in versions().items()}
    return {"device": device, "precision": precision, **of_libraries}
