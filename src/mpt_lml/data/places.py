"""Where data are looked for: the folder that ``MPT_LML_DATA`` names, then the hub."""

import hashlib
import os
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from mpt_lml.data.remote import DATA_SECONDS, Watch, answers_about_data, in_time, offline

DATA_VARIABLE = "MPT_LML_DATA"
PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
Split = Literal["train", "test"]


class DataNotFoundError(FileNotFoundError):
    """Data asked for by name are not on this machine; the message names the ways to get them."""


class CorruptDataError(ValueError):
    """A data file is not the published one."""


def local(place: str) -> Path | None:
    """``place`` inside the local folder, where there is one that has it."""
    root = os.environ.get(DATA_VARIABLE)
    if not root:
        return None
    if not Path(root).is_dir():
        raise DataNotFoundError(
            f"{DATA_VARIABLE} names {root!r}, which is not a folder. Correct it or unset it."
        )
    path = Path(root) / place
    return path if path.exists() else None


def checked(path: Path, expected: str, how: str = "fetch it again", content: bytes = b"") -> bytes:
    """The bytes of a file, or the ``content`` taken from it, if the checksum is the published one."""
    content, algorithm = content or path.read_bytes(), "md5" if len(expected) == 32 else "sha256"
    found = hashlib.new(algorithm, content).hexdigest()
    if found != expected:
        raise CorruptDataError(
            f"{path} is not the published file: its {algorithm.upper()} is {found}, expected "
            f"{expected} ({len(content)} bytes read). It may be truncated; {how}."
        )
    return content


def from_hub(missing: DataNotFoundError, *names: str, split: str) -> Any:
    """The rows of a data set of the hub; without ``datasets`` or a network, ``missing`` is raised."""
    try:
        if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
            raise ConnectionError("HF_HUB_OFFLINE is set")
        from datasets import load_dataset

        with nullcontext() if answers_about_data(names[0]) else offline():
            return in_time(lambda: load_dataset(*names, split=split), Watch(DATA_SECONDS))
    except (ImportError, OSError) as error:
        raise missing from error


def not_found(name: str, files: str, hub: str, default: str) -> DataNotFoundError:
    """What to do without ``name``; ``hub`` is its name there, or a sentence without one."""
    if "/" in hub and " " not in hub:
        hub = f"with a network: pip install 'mpt-lml[score]', which loads {hub} from the hub"
        hub += " (and unset HF_HUB_OFFLINE)"
    return DataNotFoundError(
        f"{name} is not on this machine. Three ways to get it:\n"
        f"  1. put the published {files} in a folder and name the folder: "
        f"export {DATA_VARIABLE}=/path/to/folder;\n"
        f"  2. {hub};\n"
        f"  3. use the default that is always there: {default}."
    )
