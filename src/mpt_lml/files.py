"""Safe files: written whole or not at all, and read back only as what they were written for."""

import dataclasses
import functools
import hashlib
import inspect
import json
import math
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mpt_lml.spec import require

PACKAGE = Path(__file__).resolve().parent


class CheckpointMismatchError(ValueError):
    """A file on disk is damaged, or of other settings, weights, data, device or versions."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run is kept so that it can go on, and what it has to match.

    ``path`` is a safetensors file, written atomically every so many steps and when the run is
    interrupted; one with other ``settings`` is refused, the first difference named. So is one of
    another start, other seeds, learning rate, precision, device or versions, which the training adds
    to them; what it cannot see, such as the data, belongs into the settings.

    Settings are numbers, texts, paths, tensors, and lists and dictionaries of these. Raises
    ``TypeError`` for what cannot be compared when the program runs again.

    >>> Checkpoint(Path("run.safetensors"), {"law": "uniform"}).every
    100
    """

    path: Path
    settings: Mapping[Any, Any]
    every: int = 100

    def __post_init__(self) -> None:
        require(vars(self), "path Path, settings Mapping, every 1..")
        plain("settings", self.settings)


def book_file(name: str) -> Path:
    """A file of ``book/`` that the package needs: in the checkout, else the copy it carries."""
    in_checkout = PACKAGE.parents[1] / "book"
    carried = PACKAGE / "book"
    folder = in_checkout if (in_checkout / "ledger.json").is_file() else carried
    return folder / name


def require_writable(folder: str | Path) -> Path:
    """Make ``folder`` if needed and prove that a file can be written there, before work starts."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        said = f"cannot write to the output folder {folder}: {error.strerror}"
        hint = "Name another one (of a command: with --out)."
        raise PermissionError(f"{said}. {hint}") from error


def require_target(path: Path) -> None:
    """Check, before work starts, that a file can be written as ``path``."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file in it.")
    require_writable(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary sibling of ``path`` that replaces it when the block ends without an error.

    A device, a pipe or a link is none to be replaced: it is written in place.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        yield path
        return
    require_writable(path.parent)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # The system takes the user's umask from the mode: to ask for the umask would mean to change it.
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    mode = partial.stat().st_mode & 0o777
    try:
        yield partial
        partial.chmod(mode)  # safetensors puts a file of its own in the place
        _sync(partial)
        partial.replace(path)
        with suppress(OSError):  # some systems cannot open a folder
            _sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Wait until what was written is on the disk, so that it outlives a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    return json.loads(Path(path).read_text(encoding="utf-8"))


def save_tensors(path: Path, tensors: Mapping[str, Tensor], identity: Mapping[Any, Any]) -> None:
    """Write ``tensors`` (safetensors) with what they belong to and a checksum of both."""
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    said = _as_json(identity)
    with replacing(path) as partial:
        # One entry: several are written in another order each time.
        save_file(own, partial, metadata={"mpt-lml": f"{digest(said, own)} {said}"})


def load_tensors(path: Path, identity: Mapping[Any, Any]) -> dict[str, Tensor]:
    """What :func:`save_tensors` wrote for this very ``identity``.

    Raises :class:`CheckpointMismatchError` with the first difference where the file is of another,
    and where it is not whole: truncated, changed, or written by another program or version.
    """
    sha256, said, tensors = "", "", dict[str, Tensor]()
    with suppress(SafetensorError), safe_open(path, framework="pt") as stored:
        sha256, _, said = (stored.metadata() or {}).get("mpt-lml", "").partition(" ")
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    if digest(said, tensors) != sha256:
        raise CheckpointMismatchError(
            f"{path} is damaged, or not of this version of mpt-lml: its checksum is not that of its "
            "content. Remove it; what it held is computed again."
        )
    kept, wanted = json.loads(said), json.loads(_as_json(identity))
    for name in sorted(kept | wanted, key=lambda n: (len(str(wanted.get(n))) == 64, n)):
        have, want = (each.get(name, "absent") for each in (kept, wanted))
        if have != want:
            raise CheckpointMismatchError(
                f"{path} belongs to another configuration: its {name} is {have!r}, wanted {want!r}. "
                "Remove the file or name another one."
            )
    return tensors


def _as_json(identity: Mapping[Any, Any]) -> str:
    return json.dumps(plain("identity", identity), sort_keys=True)


def plain(name: str, value: Any) -> Any:
    """``value`` as what JSON can say, the same whenever a program runs.

    NaN becomes a text, because it differs from itself. Tensors and arrays become their type, shape and
    hash, because their own text leaves out the middle. Raises ``TypeError`` for objects that are told
    apart by their address only, and ``ValueError`` for keys that are equal as texts.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    if isinstance(value, Mapping):
        items = {_as_key(key): plain(f"{name}[{key!r}]", each) for key, each in value.items()}
        if len(items) < len(value):
            raise ValueError(f"{name} has keys that are equal as texts, got {list(value)}.")
        return items
    if isinstance(value, list | tuple):
        return [plain(f"{name}[{place}]", each) for place, each in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted((plain(name, each) for each in value), key=json.dumps)
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = torch.from_numpy(value)
    if isinstance(value, Tensor):
        shape = tuple(value.shape)
        return f"{value.dtype} tensor of shape {shape} with SHA-256 {digest('', {'': value})}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return {"type": type(value).__qualname__, **plain(name, fields)}
    if isinstance(value, type) or inspect.isroutine(value):
        if "<" in value.__qualname__:  # <lambda>, <locals>: several have the same name
            raise TypeError(
                f"{name} must be told apart by a name, got {value.__qualname__}: define it at the top of "
                "a module, or give its parameters as numbers and texts."
            )
        return f"{value.__module__}.{value.__qualname__}"
    if re.search(r" at 0x[0-9a-fA-F]+", text := str(value)):
        raise TypeError(
            f"{name} must be a number, a text, a path, a tensor, or a list or dictionary of these, got "
            f"{text}, whose address will be another one when the program runs again."
        )
    return text


def _as_key(key: Any) -> str:
    """As :mod:`json` does: true, null, 1, 0.5."""
    return json.dumps(key) if isinstance(key, bool | int | float | None) else str(key)


def surroundings(device: str) -> dict[str, Any]:
    """What decides a number besides its settings, for an identity: device, precision and versions."""
    precision = f"{torch.get_default_dtype()}, {torch.get_float32_matmul_precision()}"
    own = {f"version of {name}": version for name, version in versions().items()}
    return {"device": device, "precision": precision, **own}


def digest(said: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a text and of ``tensors``: names, types, shapes and bytes."""
    found = hashlib.sha256(said.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        found.update(f"\0{name} {value.dtype} {tuple(value.shape)}\0".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


@functools.cache
def versions() -> dict[str, str]:
    """Versions of what a number can depend on, of those that are installed."""
    names, found = ("mpt-lml", "torch", "numpy", "scipy", "scikit-learn"), {}
    for name in (*names, "transformers", "tokenizers", "datasets"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
