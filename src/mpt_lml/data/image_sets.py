"""Images: what is always there, what a local folder has, what a hub has."""

import gzip
import io
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.checks import Count, checked
from mpt_lml.data.sources import (
    PUBLISHED,
    CorruptDataError,
    DataNotFoundError,
    Split,
    from_hub,
    local_path,
    not_found,
    verified,
)

_SETS = PUBLISHED["images"]


@checked
@dataclass(frozen=True, eq=False)
class Images:
    """Images as rows: pixels in [0, 1], float64, and float32 for the color sets.

    Args:
        pixels: (N, D); the three channels of a pixel lie next to each other.
        shape: (H, W), or (H, W, 3) of the color sets.

    >>> images("digits").pixels.shape
    torch.Size([1198, 64])
    """

    pixels: Float[Tensor, "N D"]
    shape: tuple[Count, ...]

    @property
    def grid(self) -> Float[Tensor, "N C H W"]:
        """The images as networks take them: channels, rows, columns."""
        height, width, *channels = self.shape
        return self.pixels.view(-1, height, width, *(channels or [1])).movedim(-1, 1)


@checked
def images(name: str = "digits", split: Split = "train") -> Images:
    """Images by name: ``digits`` (always there), or a set from the local folder or the hub.

    Of ``cifar100`` and ``tiny_imagenet`` only the test and validation images are read, 10,000 each.

    Args:
        name: ``digits``, ``mnist``, ``fashion_mnist``, ``cifar100`` or ``tiny_imagenet``.
        split: ``train`` or ``test``; of the color sets every fifth image is held out for the latter.

    Returns:
        :class:`Images`, pixels (N, D) in [0, 1].

    Raises:
        ValueError: for an unknown name or split.
        DataNotFoundError: where a set is not on this machine; it lists the three ways to get it.
        CorruptDataError: for a file that is truncated or fails its checksum.

    >>> images("digits", "test").grid.shape
    torch.Size([599, 1, 8, 8])
    """
    if name == "digits":
        return Images(_digits(split) / 16.0, (8, 8))
    if name not in _SETS:
        names = ", ".join(["digits", *_SETS])
        raise ValueError(f"unknown image data {name!r}; there are {names}.")
    is_color = "side" in _SETS[name]
    folder = local_path(name)
    if folder is None:
        array = _from_hub(name, split)
    elif is_color:
        array = _read_color(folder)
    else:
        array = _read_idx(folder, split)
    pixels = torch.tensor(array).flatten(1)
    if is_color:
        pixels = pixels[_is_in_split(len(pixels), 5, split)].float()
    else:
        pixels = pixels.double()
    return Images(pixels.div_(255.0), tuple(map(int, array.shape[1:])))


def _digits(split: Split) -> Float[Tensor, "N 64"]:
    """Pixels from 0 to 16, read from scikit-learn's file: importing the library would take a second."""
    (folder,) = find_spec("sklearn").submodule_search_locations  # type: ignore[union-attr, misc]
    rows = torch.tensor(np.loadtxt(Path(folder, "datasets/data/digits.csv.gz"), delimiter=","))
    pixels = rows[:, :64]  # behind them stands the class
    return pixels[_is_in_split(len(rows), 3, split)]


def _is_in_split(count: int, step: int, split: Split) -> Bool[Tensor, " N"]:
    """Membership of each row in ``split``: every ``step``-th row belongs to the test split."""
    is_test = torch.arange(count) % step == step - 1
    return is_test if split == "test" else ~is_test


def _read_idx(folder: Path, split: Split) -> np.ndarray:
    """Pixels (N, H, W) of one IDX file as published, checked against its MD5."""
    path = folder / _SETS[folder.name][split]["file"]
    if not path.is_file():
        raise DataNotFoundError(
            f"{path.name} is missing in {folder}: it needs the IDX files as published."
        )
    raw = gzip.decompress(verified(path, _SETS[folder.name][split]["md5"]))
    axes = raw[3]  # IDX: two zero bytes, the type, the number of axes, then their lengths
    shape = np.frombuffer(raw, dtype=">i4", count=axes, offset=4)
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


def _read_color(folder: Path) -> np.ndarray:
    """Pixels (N, H, W, 3) of a color set's file, its form checked."""
    about = _SETS[folder.name]
    path = folder / about["file"]
    if not path.is_file():
        raise DataNotFoundError(f"{path.name} is missing in {folder}.")
    try:
        pixels = _read_npz(path) if path.suffix == ".npz" else _read_tar(path)
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        # Without numpy's words, which advise to unpickle what is no array.
        message = f"{path} cannot be read. It may be truncated; fetch it again."
        raise CorruptDataError(message) from error
    expected = (about["num_images"], about["side"], about["side"], 3)
    if pixels.dtype != np.uint8 or pixels.shape != expected:
        raise CorruptDataError(
            f"{path} holds {pixels.dtype} images of shape {pixels.shape}, expected bytes of shape "
            f"{expected}."
        )
    return pixels


def _read_npz(path: Path) -> np.ndarray:
    """The array ``images`` of a file, in one fixed random order: a file may be sorted by class."""
    # Opened here: of a broken file, np.load leaves its own stream open.
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        pixels = stored["images"]
    return pixels[np.random.RandomState(0).permutation(len(pixels))]  # its stream is frozen


def _read_tar(path: Path) -> np.ndarray:
    """JPEGs ``val_0.JPEG``, ``val_1.JPEG``, ... in the order of their numbers."""
    from PIL import Image

    pictures = {}
    with tarfile.open(path) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is not None:
                number = int(Path(member.name).stem.partition("_")[2])
                pictures[number] = np.asarray(Image.open(io.BytesIO(stream.read())).convert("RGB"))
    return np.stack([pictures[number] for number in sorted(pictures)])


def _from_hub(name: str, split: Split) -> np.ndarray:
    about = _SETS[name]
    files = f"{name}/{about.get('file', '*.gz')}"
    missing = not_found(name, files, about["hub"], "images('digits')")
    rows = from_hub(missing, about["hub"], split=about.get("split", split))
    mode = "RGB" if "side" in about else "L"
    return np.stack([np.asarray(picture.convert(mode)) for picture in rows[about["column"]]])
