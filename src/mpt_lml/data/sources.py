"""Sources of data: the folder that ``MPT_LML_DATA`` names, then the hub."""

import hashlib
import os
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from mpt_lml.data.remote import answers_about_data, offline

DATA_VARIABLE = "MPT_LML_DATA"
PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
Split = Literal["train", "test"]


class DataNotFoundError(FileNotFoundError):
    """Data asked for by name are not on this machine; the message names the ways to get them."""


class CorruptDataError(ValueError):
    """A data file is not the published one."""


def local_path(name: str) -> Path | None:
    """The file or folder ``name`` inside the local folder, where there is one that has it."""
    root = os.environ.get(DATA_VARIABLE)
    if not root:
        return None
    if not Path(root).is_dir():
        raise DataNotFoundError(
            f"{DATA_VARIABLE} names {root!r}, which is not a folder. Correct it or unset it."
        )
    path = Path(root) / name
    return path if path.exists() else None


def verified(
    path: Path, checksum: str, remedy: str = "fetch it again", content: bytes | None = None
) -> bytes:
    """The bytes of a file, or the ``content`` taken from it, if their checksum is the published one.

    It is an MD5 or a SHA-256, which their lengths tell apart.
    """
    if content is None:
        content = path.read_bytes()
    algorithm = "md5" if len(checksum) == 32 else "sha256"
    actual = hashlib.new(algorithm, content).hexdigest()
    if actual != checksum:
        raise CorruptDataError(
            f"{path} is not the published file: its {algorithm.upper()} is {actual}, expected "
            f"{checksum} ({len(content)} bytes read). It may be truncated; {remedy}."
        )
    return content


def from_hub(missing: DataNotFoundError, *names: str, split: str) -> Any:
    """The rows of a data set of the hub; without ``datasets`` or a network, ``missing`` is raised."""
    try:
        if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
            raise ConnectionError("HF_HUB_OFFLINE is set")
        from datasets import load_dataset

        with nullcontext() if answers_about_data(names[0]) else offline():
            return load_dataset(*names, split=split)
    except (ImportError, OSError) as error:
        raise missing from error


def not_found(name: str, files: str, hub: str, default: str) -> DataNotFoundError:
    """Error that says how to get ``name``; ``hub`` is its name on the hub, or a sentence instead."""
    if "/" in hub and " " not in hub:
        hub = (
            f"with a network: pip install 'mpt-lml[datasets]', which loads {hub} from the hub "
            "(and unset HF_HUB_OFFLINE)"
        )
    return DataNotFoundError(
        f"{name} is not on this machine. Three ways to get it:\n"
        f"  1. put the published {files} in a folder and name the folder: "
        f"export {DATA_VARIABLE}=/path/to/folder;\n"
        f"  2. {hub};\n"
        f"  3. use the default that is always there: {default}."
    )
