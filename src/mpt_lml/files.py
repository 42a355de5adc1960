"""Files that are written whole or not at all, files of the book, and what numbers depend on."""

import errno
import functools
import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

# What the system says of a disk that is full, or gives way. It does not say which file was written.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


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
    """Context in which errors of the disk name ``path``, as other errors of files do."""
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


def read_json(path: str | Path) -> Any:
    """Content of a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a text and of ``tensors``: names, types, shapes and bytes."""
    sha256 = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        sha256.update(f"\0{name} {value.dtype} {tuple(value.shape)}\0".encode())
        sha256.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


@functools.cache
def versions() -> dict[str, str]:
    """Versions of what a number can depend on, of those that are installed."""
    names = ("mpt-lml", "torch", "numpy", "scipy", "scikit-learn", "transformers", "tokenizers")
    installed = {}
    for name in (*names, "datasets"):
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed
