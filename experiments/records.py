"""Records on the disk: results as JSON, and finished parts of runs with the settings they belong to."""

import dataclasses
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mpt_lml.files import digest, replacing, require_writable, versions
from mpt_lml.recorded import Finding, Outcome
from mpt_lml.verdicts import mean_and_error


class CheckpointMismatchError(ValueError):
    """A file on disk is damaged, or of other settings, weights, data, device or versions."""


def require_target(path: Path) -> None:
    """Check, before work starts, that a file can be written as ``path``."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file in it.")
    require_writable(path.parent)


# -- results ----------------------------------------------------------------------------------------


def finding_over(values: Float[Tensor, " N"]) -> Finding:
    """Mean of independent ``values`` and its standard error, which a single one has not.

    >>> finding_over(torch.tensor([1.0, 3.0]))
    Finding(measured=2.0, standard_error=1.0)
    """
    mean, error = mean_and_error(values)
    return Finding(mean.item(), error.item() if len(values) > 1 else None)


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """Plain lists and numbers for JSON, arrays rounded to 8 significant digits.

    What is not finite becomes None, since JSON has no word for it; ``recorded.load`` makes NaN of it.

    >>> as_dict(Outcome({"gap": Finding(0.5)}, {"gaps": torch.ones(3)}))["arrays"]
    {'gaps': [1.0, 1.0, 1.0]}
    """
    content = {
        "findings": {
            name: dataclasses.asdict(finding) for name, finding in outcome.findings.items()
        },
        "arrays": {name: _rounded(array.tolist()) for name, array in outcome.arrays.items()},
        "data_sha256": outcome.data_sha256,
    }
    if outcome.weights is not None:
        content["weights"] = outcome.weights
    return content


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    return value


def write_json(path: str | Path, content: Any) -> None:
    """Write ``content`` as indented JSON to ``path``, atomically; NaN is refused.

    Raises:
        OSError: where it cannot be written; it names the file.
        ValueError: for NaN or infinity.
    """
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    # A row of numbers stays on one line: a curve is not a thousand lines of a diff.
    text = re.sub(
        r"\[[\s\d.,eE+-]+\]", lambda row: "[" + " ".join(row[0][1:-1].split()) + "]", text
    )
    with replacing(Path(path)) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


# -- finished parts ---------------------------------------------------------------------------------


def save_tensors(path: Path, tensors: Mapping[str, Tensor], identity: Mapping[Any, Any]) -> None:
    """Write ``tensors`` (safetensors) with what they belong to and a checksum of both.

    Raises:
        OSError: where they cannot be written; it names the file.
    """
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    identity_text = _as_json(identity)
    with replacing(path) as partial:
        # One entry: several are written in another order each time.
        entry = f"{digest(identity_text, copies)} {identity_text}"
        save_file(copies, partial, metadata={"mpt-lml": entry})


def load_tensors(path: Path, identity: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Tensors that :func:`save_tensors` wrote for this very ``identity``.

    Raises:
        CheckpointMismatchError: with the first difference where the file is of another, and where it
            is not whole: truncated, changed, or written by another program or version.
    """
    sha256 = ""
    identity_text = ""
    tensors: dict[str, Tensor] = {}
    with suppress(SafetensorError), safe_open(path, framework="pt") as stored:
        entry = (stored.metadata() or {}).get("mpt-lml", "")
        sha256, _, identity_text = entry.partition(" ")
        for name in stored.keys():  # noqa: SIM118
            tensors[name] = stored.get_tensor(name)
    if digest(identity_text, tensors) != sha256:
        raise CheckpointMismatchError(
            f"{path} is damaged, or not of this version of mpt-lml: its checksum is not that of its "
            "content. Remove it; what it held is computed again."
        )
    _require_same_identity(path, json.loads(identity_text), json.loads(_as_json(identity)))
    return tensors


def computed_once(
    path: Path, compute: Callable[[], Mapping[str, Tensor]], identity: Mapping[Any, Any]
) -> dict[str, Tensor]:
    """Result of ``compute()``, on the CPU: read from ``path``, or computed now and written there.

    Raises:
        CheckpointMismatchError: where the file is of another ``identity``, or damaged.
    """
    if not path.exists():
        save_tensors(path, compute(), identity)
    return load_tensors(path, identity)


def _require_same_identity(
    path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
    """Refuse the first difference, one that a reader understands before a hash."""

    def is_hash_then_name(name: str) -> tuple[bool, str]:
        return len(str(wanted.get(name))) == 64, name

    for name in sorted({*stored, *wanted}, key=is_hash_then_name):
        have = stored.get(name, "absent")
        want = wanted.get(name, "absent")
        if have != want:
            raise CheckpointMismatchError(
                f"{path} belongs to another configuration: its {name} is {have!r}, wanted {want!r}. "
                "Remove the file or name another one."
            )


def _as_json(identity: Mapping[Any, Any]) -> str:
    return json.dumps(as_plain("identity", identity), sort_keys=True)


def as_plain(name: str, value: Any) -> Any:
    """Convert ``value`` to types of JSON, the same whenever a program runs.

    NaN becomes a text, because it differs from itself. Tensors and arrays become their type, shape and
    hash, because their own text leaves out the middle. Raises ``TypeError`` for objects that are told
    apart by their address only, and ``ValueError`` for keys that are equal as texts.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    if isinstance(value, Mapping):
        return _plain_mapping(name, value)
    if isinstance(value, list | tuple):
        return [as_plain(f"{name}[{place}]", item) for place, item in enumerate(value)]
    if isinstance(value, set | frozenset):  # its order is another one each time a program runs
        return sorted((as_plain(name, item) for item in value), key=json.dumps)
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = torch.from_numpy(value)
    if isinstance(value, Tensor):
        shape = tuple(value.shape)
        return f"{value.dtype} tensor of shape {shape} with SHA-256 {digest('', {'': value})}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return {"type": type(value).__qualname__, **_plain_mapping(name, fields)}
    if isinstance(value, type) or inspect.isroutine(value):
        if "<" in value.__qualname__:  # <lambda>, <locals>: several have the same name
            raise TypeError(
                f"{name} must be told apart by a name, got {value.__qualname__}: define it at the top of "
                "a module, or give its parameters as numbers and texts."
            )
        return f"{value.__module__}.{value.__qualname__}"
    text = str(value)
    if re.search(r" at 0x[0-9a-fA-F]+", text):
        raise TypeError(
            f"{name} must be a number, a text, a path, a tensor, or a list or dictionary of these, got "
            f"{text}, whose address will be another one when the program runs again."
        )
    return text


def _plain_mapping(name: str, value: Mapping[Any, Any]) -> dict[str, Any]:
    items = {_as_key(key): as_plain(f"{name}[{key!r}]", item) for key, item in value.items()}
    if len(items) < len(value):
        raise ValueError(f"{name} has keys that are equal as texts, got {list(value)}.")
    return items


def _as_key(key: Any) -> str:
    """Key as :mod:`json` writes it: true, null, 1, 0.5."""
    return json.dumps(key) if isinstance(key, bool | int | float | None) else str(key)


def environment(device: str) -> dict[str, str]:
    """Environment of a run that can change its numbers: device, precision and versions.

    >>> environment("cpu")["device"]
    'cpu'
    """
    precision = f"{torch.get_default_dtype()}, {torch.get_float32_matmul_precision()}"
    of_libraries = {f"version of {name}": version for name, version in versions().items()}
    return {"device": device, "precision": precision, **of_libraries}
