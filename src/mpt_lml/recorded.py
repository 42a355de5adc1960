"""The recorded runs behind the book: what was measured once, by a command that measures it again."""

import difflib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpt_lml.checks import NonNegative, checked
from mpt_lml.files import book_file, read_json

__all__ = ["Finding", "Outcome", "load", "names"]


@checked
@dataclass(frozen=True)
class Finding:
    """Measured value of one entry of the ledger, in the entry's unit.

    Args:
        measured: the number.
        standard_error: of it; None for an exact number, and where a single value has none.

    >>> load("table-1").findings["table-1/p1-mean"].standard_error is None
    False
    """

    measured: float
    standard_error: NonNegative | None = None


@checked
@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of a run: findings for the ledger, arrays for figures, a checksum of its data.

    Args:
        findings: by the names that they have in the ledger.
        arrays: by name; the docstring of the experiment says what they are, and their units.
        data_sha256: checksum of the data.
        weights: a network's name, its commit on the hub and its hash.
        settings: of a recorded run.
        seconds: that a recorded run took.
        provenance: of a recorded run: command, commit, machine, versions.

    >>> Outcome({"gap": Finding(0.5)}, {"gaps": torch.ones(3)}).arrays["gaps"].shape
    torch.Size([3])
    """

    findings: dict[str, Finding]
    arrays: dict[str, Tensor] = field(default_factory=dict)
    data_sha256: str | None = None
    weights: dict[str, str | None] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: NonNegative | None = None
    provenance: dict[str, Any] = field(default_factory=dict)


@checked
def load(name: str) -> Outcome:
    """A recorded run: its settings, arrays, findings, seconds and provenance.

    Args:
        name: of the run, as the ledger's commands have it; :func:`names` lists them.

    Returns:
        Its :class:`Outcome`, in the units that the experiment states, NaN where a number is missing.

    Raises:
        FileNotFoundError: where no run of this name is recorded; the message suggests near names.

    >>> load("table-1").arrays["estimates"].shape
    torch.Size([3, 5])
    """
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=3, cutoff=0.4)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(names())}."
        raise FileNotFoundError(f"no run of {name!r} is recorded. {hint}")
    stored = read_json(book_file(f"results/{name}.json"))
    return Outcome(
        {key: Finding(**value) for key, value in stored["findings"].items()},
        {key: _as_tensor(value) for key, value in stored["arrays"].items()},
        data_sha256=stored.get("data_sha256"),
        weights=stored.get("weights"),
        settings=stored.get("config", {}),
        seconds=stored.get("seconds"),
        provenance=stored.get("provenance", {}),
    )


def names() -> list[str]:
    """Names of all recorded runs, sorted: also of experiments whose code left the repository.

    >>> "table-1" in names()
    True
    """
    return sorted(path.stem for path in book_file("results").glob("*.json"))


def _as_tensor(rows: Any) -> Tensor:
    """Tensor of a stored array, in which None stands for NaN: JSON has no NaN."""
    array = np.array(rows)
    return torch.tensor(array.astype(float) if array.dtype == object else array)
