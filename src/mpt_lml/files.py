"""Safe files: written whole or not at all, and read back only as what they were written for."""

import dataclasses
import errno
import functools
import hashlib
import inspect
import json
import math
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

# What the system says of a disk that is full, or gives way. It does not say which file was written.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class CheckpointMismatchError(ValueError):
    """A file on disk is damaged, or of other settings, weights, data, device or versions."""


def book_file(name: str) -> Path:
    """A file of ``book/`` that the package needs: in the checkout, else the copy it carries."""
    package = Path(__file__).resolve().parent
    in_checkout = package.parents[1] / "book"
    carried = package / "book"
    folder = in_checkout if (in_checkout / "results").is_dir() else carried
    return folder / name


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
            "Name another one (of a command: with --out)."
        ) from error


def require_target(path: Path) -> None:
    """Check, before work starts, that a file can be written as ``path``."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file in it.")
    require_writable(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary sibling of ``path`` that replaces it when the block ends without an error.

    A device, a pipe or a link is none to be replaced: it is written in place.

    Raises:
        OSError: where it cannot be written, as on a full disk; it names the file.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with _named(path):
            yield path
        return
    require_writable(path.parent)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # The system takes the user's umask from the mode: to ask for the umask would mean to change it.
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    mode = partial.stat().st_mode & 0o777
    try:
        with _named(path):
            yield partial
            partial.chmod(mode)  # safetensors puts a file of its own in the place
            _sync(partial)
            partial.replace(path)
        with suppress(OSError):  # some systems cannot open a folder
            _sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of the disk inside name ``path``, as other errors of files do."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _DISK_ERRORS:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    except SafetensorError as error:  # what safetensors makes of them
        raise OSError(f"cannot write {path}: {error}") from error


def _sync(path: Path) -> None:
    """Wait until what was written is on the disk, so that it outlives a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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


def read_json(path: str | Path) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


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
    """What :func:`save_tensors` wrote for this very ``identity``.

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
    """What ``compute()`` gives, on the CPU: read from ``path``, or computed now and written there.

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
        return _plain_mapping(name, value)
    if isinstance(value, list | tuple):
        return [as_plain(f"{name}[{place}]", item) for place, item in enumerate(value)]
    if isinstance(value, set | frozenset):  # its own order is another one each time a program runs
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
    """As :mod:`json` does: true, null, 1, 0.5."""
    return json.dumps(key) if isinstance(key, bool | int | float | None) else str(key)


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a text and of ``tensors``: names, types, shapes and bytes."""
    sha256 = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        sha256.update(f"\0{name} {value.dtype} {tuple(value.shape)}\0".encode())
        sha256.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def surroundings(device: str) -> dict[str, str]:
    """What decides a number besides its settings: device, precision and versions.

    >>> surroundings("cpu")["device"]
    'cpu'
    """
    precision = f"{torch.get_default_dtype()}, {torch.get_float32_matmul_precision()}"
    of_libraries = {f"version of {name}": version for name, version in versions().items()}
    return {"device": device, "precision": precision, **of_libraries}


@functools.cache
def versions() -> dict[str, str]:
    """Versions of what a number can depend on, of those that are installed."""
    names = ("mpt-lml", "torch", "numpy", "scipy", "scikit-learn", "transformers", "tokenizers")
    installed = {}
    for name in (*names, "datasets"):
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed
