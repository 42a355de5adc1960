"""Results as values: a number with its error, a curve, where it came from, and safe files (floor 0)."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Estimate(float):
    """A number that knows its error. It *is* a float: subtract it, format it, compare it.

    Attributes
    ----------
    value : float
        The estimate, the same number as the float itself.
    standard_error : float
        Standard error over the random choices of the estimator (masks, orders), with the data held
        fixed; 0 for an exact computation, NaN where a single sample gives none.
    num_samples : int
        How many independent replicates the error is computed from; 0 for an exact computation.
    unit : str
        ``"nats"`` unless said otherwise.
    """

    standard_error: float
    num_samples: int
    unit: str

    def __new__(
        cls, value: float, standard_error: float = 0.0, num_samples: int = 0, unit: str = "nats"
    ) -> Estimate:
        self = super().__new__(cls, value)
        fields = {"standard_error": float(standard_error), "num_samples": int(num_samples)}
        self.__dict__.update(fields, unit=unit)
        return self

    @property
    def value(self) -> float:
        """The estimate as a plain float."""
        return float(self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an Estimate is immutable; cannot set {name!r}")

    def __repr__(self) -> str:
        if self.num_samples == 0:
            return f"{self.value:.4f} {self.unit} (exact)"
        return f"{self.value:.4f} ± {self.standard_error:.4f} {self.unit}"

    def as_dict(self) -> dict[str, Any]:
        """Plain dictionary for JSON."""
        return {"value": self.value, **self.__dict__}


def trapezoid_weights(sizes: np.ndarray, num_features: int) -> np.ndarray:
    """Weights of S at ``sizes`` in Σ_M S(M), M = 1..D: straight lines between, constant outside."""
    every = np.arange(1, num_features + 1)
    return np.array([np.interp(every, sizes, row).sum() for row in np.eye(len(sizes))])


@dataclass(frozen=True)
class MaskCurve:
    """The mask-rate curve S(x; M) of a model, averaged over the data.

    Attributes
    ----------
    num_masked : Tensor (L,) int64
        Mask sizes M, increasing.
    score : Tensor (L,)
        S(x; M) in nats per masked coordinate, mean over the data; ``score[l]`` belongs to
        ``num_masked[l]``.
    standard_error : Tensor (L,)
        Over masks, data held fixed. 0 for an exact curve, NaN where one mask a size was drawn.
    num_features : int
        D.
    num_masks : int
        Masks a size; 0 when every mask was used.
    area_standard_error : float or None
        Error of :meth:`area` where sizes are not independent (nested masks); otherwise it follows
        from ``standard_error``.
    """

    num_masked: Tensor
    score: Tensor
    standard_error: Tensor
    num_features: int
    num_masks: int = 0
    area_standard_error: float | None = None

    def __post_init__(self) -> None:
        shapes = {tuple(t.shape) for t in (self.num_masked, self.score, self.standard_error)}
        if len(shapes) != 1 or self.num_masked.ndim != 1 or len(self.num_masked) == 0:
            raise ValueError(
                f"num_masked, score and standard_error must share one shape (L,), got {shapes}."
            )
        sizes = self.num_masked
        if sizes[0] < 1 or sizes[-1] > self.num_features or (sizes.diff() <= 0).any():
            raise ValueError(
                f"num_masked must increase within 1..{self.num_features}, got {sizes.tolist()}."
            )

    @property
    def mask_rate(self) -> Tensor:
        """M / D, shape (L,)."""
        return self.num_masked / self.num_features

    @property
    def area_rule(self) -> str:
        """``"exact sum"`` when every size 1..D is there, otherwise ``"trapezoid"``."""
        return "exact sum" if len(self.num_masked) == self.num_features else "trapezoid"

    def area_weights(self) -> Tensor:
        """Weights (L,) such that the area is ``weights @ score``.

        Between two neighboring sizes the curve is taken as a straight line, and outside the grid as
        constant; the sum then runs over all M = 1..D. With every size present all weights are 1.
        """
        weights = trapezoid_weights(self.num_masked.numpy(), self.num_features)
        return torch.tensor(weights, dtype=self.score.dtype)

    def area(self) -> Estimate:
        """Area under the curve, sum over M = 1..D of S(x; M): log p(x) by Proposition 1, in nats.

        ``area_rule`` says whether it is the exact sum over all sizes or a trapezoid on a grid of
        them. The standard error covers the masks, not the error of the trapezoid.
        """
        weights = self.area_weights()
        error = self.area_standard_error
        if error is None:
            error = (weights * self.standard_error).square().sum().sqrt().item()
        return Estimate((weights * self.score).sum().item(), error, self.num_masks)

    def partial_sums(self) -> Tensor:
        """Cumulative sums over sizes (D,): log p(x) − ℓ_{D−M}, the mean log-probability of a block.

        Raises ``ValueError`` on a grid with missing sizes.
        """
        if self.area_rule != "exact sum":
            raise ValueError(
                f"partial sums need every size 1..{self.num_features}; this curve has "
                f"{len(self.num_masked)} of them."
            )
        return self.score.cumsum(0)

    def save(self, path: str | Path) -> None:
        """Write to ``path`` (``.npz``, no pickles), atomically."""
        meta = {
            "num_features": self.num_features,
            "num_masks": self.num_masks,
            "area_standard_error": self.area_standard_error,
        }
        with replacing(Path(path)) as partial, partial.open("wb") as stream:
            np.savez(
                stream,
                num_masked=self.num_masked.numpy(),
                score=self.score.numpy(),
                standard_error=self.standard_error.numpy(),
                meta=np.array(json.dumps(meta)),
            )

    @classmethod
    def load(cls, path: str | Path) -> MaskCurve:
        """Read what :meth:`save` wrote."""
        with np.load(path, allow_pickle=False) as stored:
            fields = json.loads(str(stored["meta"]))
            for name in ("num_masked", "score", "standard_error"):
                fields[name] = torch.from_numpy(stored[name])
            return cls(**fields)


@dataclass(frozen=True)
class History:
    """What a training run leaves: tracked values of every epoch, parameters at chosen ones.

    Attributes
    ----------
    values : dict of Tensor (E + 1, B)
        One row an epoch, for B runs trained side by side. Row e belongs to the parameters after e
        updates: row 0 is the initialization.
    parameters : dict of Tensor (B, ...)
        After the last epoch.
    snapshots : dict of int to dict of Tensor
        Parameters after the epochs asked for.
    """

    values: dict[str, Tensor]
    parameters: dict[str, Tensor]
    snapshots: dict[int, dict[str, Tensor]]

    @property
    def num_epochs(self) -> int:
        """E."""
        return len(next(iter(self.values.values()))) - 1


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary sibling of ``path`` that replaces it when the block ends without an error."""
    require_writable(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o644)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def require_writable(folder: str | Path) -> Path:
    """Make ``folder`` if needed and prove that a file can be written there, before work starts."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise PermissionError(
            f"cannot write to the output folder {folder}: {error.strerror}. "
            "Name another one with --out DIR."
        ) from error


def write_json(path: str | Path, content: Any) -> None:
    """Write ``content`` as indented JSON to ``path``, atomically; NaN is refused."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    # A row of numbers stays on one line: a curve is not a thousand lines of a diff.
    text = re.sub(
        r"\[[\s\d.,eE+-]+\]", lambda row: "[" + " ".join(row[0][1:-1].split()) + "]", text
    )
    with replacing(Path(path)) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    """Commit of the checkout this package runs from, ``unknown`` when it was installed."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        source = subprocess.run(
            [*git, "status", "--porcelain", "--", "."], capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + ("+changes" if source.stdout.strip() else "")


def _versions() -> Iterator[tuple[str, str]]:
    """Versions of what a number can depend on, of those that are installed."""
    names = ("mpt-lml", "torch", "numpy", "scipy", "scikit-learn")
    for name in (*names, "transformers", "tokenizers", "datasets"):
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def provenance(command: str, device: str = "cpu") -> dict[str, Any]:
    """Where a recorded number came from: command, commit, date, versions and hardware.

    The commit ends in ``+changes`` where the package's sources differed from it.
    """
    hardware: dict[str, Any] = {"cpu": _cpu_name(), "threads": torch.get_num_threads()}
    if device == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name()
    return {
        "command": command,
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": dict(_versions()),
        "hardware": hardware,
    }


def glue(name: str, value: object) -> None:
    """Record ``value`` under ``name``, so that prose can show it with ``{glue:text}``.

    Writes the same output as ``myst_nb.glue`` without needing that package (on Colab, for example).
    A float that is not finite is refused: a number in prose has to be a number.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"glue({name!r}): {value} is not a number to print in prose")
    from IPython.display import display

    prefix = "application/papermill.record/"
    scrapbook = {"name": name, "mime_prefix": prefix}
    # repr, also of a string: myst-nb evaluates the text, and an unquoted "1.10" would become 1.1.
    display({f"{prefix}text/plain": repr(value)}, raw=True, metadata={"scrapbook": scrapbook})
