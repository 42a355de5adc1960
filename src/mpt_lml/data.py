"""Data: what is always there, what a local folder has, what a hub has (wing).

==================  ====================  ====================================  ===================
name                always there          folder named by ``MPT_LML_DATA``      hub
==================  ====================  ====================================  ===================
``digits``          with scikit-learn     --                                    --
``mnist``           --                    ``mnist/*.gz`` (IDX, MD5-checked)     ``ylecun/mnist``
``fashion_mnist``   --                    ``fashion_mnist/*.gz`` (the same)     Fashion-MNIST
``cifar100``        --                    ``cifar100/test.npz``                 CIFAR-100
``tiny_imagenet``   --                    ``tiny_imagenet/val.tar``             Tiny-ImageNet
==================  ====================  ====================================  ===================

Of the two color sets only CIFAR-100's test images and Tiny-ImageNet's validation images are read,
10,000 each; this book holds every fifth of them out (``split="test"``, 2,000) and trains on the rest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.shapes import require_count, require_generator

DATA_VARIABLE = "MPT_LML_DATA"

Split = Literal["train", "test"]

IDX_FILES = {
    ("train", "images"): "train-images-idx3-ubyte.gz",
    ("train", "labels"): "train-labels-idx1-ubyte.gz",
    ("test", "images"): "t10k-images-idx3-ubyte.gz",
    ("test", "labels"): "t10k-labels-idx1-ubyte.gz",
}
HUB_NAMES = {
    "mnist": "ylecun/mnist",
    "fashion_mnist": "zalando-datasets/fashion_mnist",
    "cifar100": "uoft-cs/cifar100",
    "tiny_imagenet": "zh-plus/tiny-imagenet",
}
COLOR_SETS = {  # file in the local folder, side of an image, the hub's split and column names
    "cifar100": ("test.npz", 32, ("test", "img", "fine_label")),
    "tiny_imagenet": ("val.tar", 64, ("valid", "image", "label")),
}
MD5 = {
    "mnist": {
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    },
    "fashion_mnist": {
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    },
}


class DataNotFoundError(FileNotFoundError):
    """Data asked for by name is not on this machine; the message names the ways to get it."""


class CorruptDataError(ValueError):
    """A data file is not the published one."""


@dataclass(frozen=True)
class Images:
    """Images as rows.

    Attributes
    ----------
    pixels : Tensor (N, H·W) float64, or (N, H·W·3) float32 for the color sets
        In [0, 1], row by row, the three channels of a pixel next to each other.
    labels : Tensor (N,) int64
    shape : tuple
        (H, W), or (H, W, 3).
    name, source : str
        Which data, and where they were found ("scikit-learn", "local folder", "hub").
    """

    pixels: Float[Tensor, "N D"]
    labels: Int[Tensor, " N"]
    shape: tuple[int, ...]
    name: str
    source: str

    @property
    def grid(self) -> Float[Tensor, "N C H W"]:
        """The images as networks take them: channels, rows, columns."""
        height, width, *channels = self.shape
        return self.pixels.view(-1, height, width, *(channels or [1])).movedim(-1, 1)


def images(name: str = "digits", split: Split = "train") -> Images:
    """Images by name: ``digits`` (always there), or one of the four sets in the module's table.

    The folder named by the environment variable ``MPT_LML_DATA`` is asked first, then the hub (only
    where the ``datasets`` package is installed and ``HF_HUB_OFFLINE`` is not set).

    Raises
    ------
    ValueError
        For an unknown name or split.
    DataNotFoundError
        When the data are in none of the places; the message lists the three ways to get them.
    CorruptDataError
        When a local file is truncated or fails its checksum.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}.")
    if name == "digits":
        return _digits(split)
    if name not in HUB_NAMES:
        known = ", ".join(["digits", *HUB_NAMES])
        raise ValueError(f"unknown image data {name!r}; there are {known}.")
    folder = _local_folder(name)
    if name in COLOR_SETS:
        return _color(name, folder, split)
    if folder is not None:
        pixels, labels = (_read_idx(name, folder, split, part) for part in ("images", "labels"))
        return _as_images(pixels, labels, name, "local folder")
    return _from_hub(name, split)


def _digits(split: Split) -> Images:
    """scikit-learn's 1797 digits of 8×8; every third image (599) is the test split."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    held_out = np.arange(len(bunch.data)) % 3 == 2
    chosen = held_out if split == "test" else ~held_out
    grid = (bunch.images[chosen] / 16.0).astype(np.float64)
    return Images(
        torch.from_numpy(grid.reshape(len(grid), -1)),
        torch.from_numpy(bunch.target[chosen].astype(np.int64)),
        (8, 8),
        "digits",
        "scikit-learn",
    )


def _color(name: str, folder: Path | None, split: Split) -> Images:
    """A color set, of which every fifth image is the test split."""
    source = "hub" if folder is None else "local folder"
    if folder is None:
        _, _, (hub_split, picture, label) = COLOR_SETS[name]
        rows = _hub_rows(name, hub_split)
        pixels = np.stack([np.asarray(each.convert("RGB")) for each in rows[picture]])
        labels = np.asarray(rows[label])
    else:
        pixels, labels = _read_color(name, folder)
    held_out = np.arange(len(pixels)) % 5 == 4
    chosen = held_out if split == "test" else ~held_out
    flat = torch.from_numpy(pixels[chosen].reshape(chosen.sum(), -1)).float().div_(255.0)
    label_rows = torch.from_numpy(labels[chosen].astype(np.int64))
    return Images(flat, label_rows, tuple(map(int, pixels.shape[1:])), name, source)


def _read_color(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (N, H, W, 3) bytes and labels (N,) of the set's file, its form checked."""
    file, side, _ = COLOR_SETS[name]
    path = folder / file
    if not path.is_file():
        raise DataNotFoundError(f"{name}: {file} is missing in {folder}.")
    try:
        pixels, labels = (_read_npz if name == "cifar100" else _read_tar)(path)
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise CorruptDataError(
            f"{path} cannot be read ({error}). It may be truncated; fetch it again."
        ) from error
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), side, side, 3):
        raise CorruptDataError(
            f"{path} holds {pixels.dtype} images of shape {pixels.shape} with {len(labels)} labels, "
            f"expected bytes of shape ({len(labels)}, {side}, {side}, 3)."
        )
    return pixels, labels


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """``images`` and ``labels``, in one fixed random order: a file may be sorted by class."""
    with np.load(path, allow_pickle=False) as stored:
        pixels, labels = stored["images"], stored["labels"]
    if len(pixels) != len(labels):
        raise ValueError(f"{len(pixels)} images, {len(labels)} labels")
    order = np.random.RandomState(0).permutation(len(labels))  # this generator's stream is frozen
    return pixels[order], labels[order]


def _read_tar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """JPEGs ``val_0.JPEG`` ... in the order of their numbers; labels from ``val_annotations.txt``."""
    from PIL import Image

    lines = (path.parent / "val_annotations.txt").read_text(encoding="utf-8").splitlines()
    kinds = {line.split("\t")[0]: line.split("\t")[1] for line in lines if line}
    order = {kind: number for number, kind in enumerate(sorted(set(kinds.values())))}
    pictures = {}
    with tarfile.open(path) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is not None:
                picture = Image.open(io.BytesIO(stream.read())).convert("RGB")
                pictures[Path(member.name).name] = np.asarray(picture)
    names = sorted(pictures, key=lambda each: int(each.partition("_")[2].partition(".")[0]))
    if set(names) != set(kinds):
        raise ValueError(f"{len(names)} images, {len(kinds)} of them annotated")
    return np.stack([pictures[n] for n in names]), np.array([order[kinds[n]] for n in names])


def _as_images(pixels: np.ndarray, labels: np.ndarray, name: str, source: str) -> Images:
    rows = torch.from_numpy(pixels.reshape(len(pixels), -1).astype(np.float64) / 255.0)
    shape = (int(pixels.shape[1]), int(pixels.shape[2]))
    return Images(rows, torch.from_numpy(labels.astype(np.int64)), shape, name, source)


def _local_folder(name: str) -> Path | None:
    root = os.environ.get(DATA_VARIABLE)
    if not root:
        return None
    if not Path(root).is_dir():
        raise DataNotFoundError(
            f"{DATA_VARIABLE} names {root!r}, which is not a folder. Correct it or unset it."
        )
    folder = Path(root) / name
    return folder if folder.is_dir() else None


def _read_idx(name: str, folder: Path, split: str, part: str) -> np.ndarray:
    """One IDX file as published, checked against its MD5 before it is read."""
    path = folder / IDX_FILES[split, part]
    if not path.is_file():
        raise DataNotFoundError(
            f"{name}: {path.name} is missing in {folder}. The folder needs the four IDX files as "
            f"published: {', '.join(IDX_FILES.values())}."
        )
    packed = path.read_bytes()
    expected, got = MD5[name][path.name], hashlib.md5(packed).hexdigest()
    if got != expected:
        raise CorruptDataError(
            f"{path} is not the published file: its MD5 is {got}, expected {expected} "
            f"({len(packed)} bytes read). It may be truncated; fetch it again."
        )
    raw = gzip.decompress(packed)
    dims = raw[3]  # IDX: two zero bytes, the type, the number of axes, then their lengths
    shape = np.frombuffer(raw, dtype=">i4", count=dims, offset=4)
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * dims).reshape(shape)


def _from_hub(name: str, split: Split) -> Images:
    rows = _hub_rows(name, split)
    pixels = np.stack([np.asarray(picture) for picture in rows["image"]])
    return _as_images(pixels, np.asarray(rows["label"]), name, "hub")


def _hub_rows(name: str, split: str) -> Any:
    try:
        if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
            raise ConnectionError("HF_HUB_OFFLINE is set")
        from datasets import load_dataset

        return load_dataset(HUB_NAMES[name], split=split)
    except (ImportError, OSError) as error:
        raise DataNotFoundError(_three_ways(name)) from error


def _three_ways(name: str) -> str:
    files = ", ".join(IDX_FILES.values())
    if name == "cifar100":
        files = "test.npz with the arrays images (N, 32, 32, 3) uint8 and labels"
    if name == "tiny_imagenet":
        files = "val.tar with the JPEGs, val_annotations.txt"
    return (
        f"{name} is not on this machine. Three ways to get it:\n"
        f"  1. put the published files ({files}) into a folder {name}/ and "
        f"name its parent: export {DATA_VARIABLE}=/path/to/parent;\n"
        f"  2. with a network: pip install 'mpt-lml[hub]', which loads {HUB_NAMES[name]} from the "
        "hub (and unset HF_HUB_OFFLINE);\n"
        "  3. use the default that is always there: images('digits')."
    )


@dataclass(frozen=True)
class GaussianDraw:
    """Data of the paper's PPCA experiments with the loadings they were drawn from."""

    x: Float[Tensor, "N D"]
    loadings: Float[Tensor, "D K"]


def paper_gaussian(
    num_data: int,
    num_features: int,
    latent_dim: int,
    *,
    generator: torch.Generator,
    precision: float = 5.0,
) -> GaussianDraw:
    """The paper's own draw, number for number: x = Z Wᵀ + ε/precision with **one** ε a datum.

    W (D, K), Z (N, K) and ε (N, 1) are drawn in this order in float32, as the authors' published
    code does, and returned in float64. The noise is shared by all D coordinates and has standard
    deviation 1/precision where the model has variance 1/precision, so these data do not come from
    the model that scores them. Use it to reproduce printed numbers; elsewhere ``PPCA.sample``.
    """
    for name, value in (("num_data", num_data), ("num_features", num_features)):
        require_count(name, value, 1)
    require_count("latent_dim", latent_dim, 0)
    require_generator(generator)
    single = torch.float32  # named: the numbers must not follow torch's default dtype
    loadings = torch.randn(num_features, latent_dim, generator=generator, dtype=single)
    latent = torch.randn(num_data, latent_dim, generator=generator, dtype=single)
    noise = torch.randn(num_data, 1, generator=generator, dtype=single) * (1.0 / precision)
    return GaussianDraw((latent @ loadings.T + noise).double(), loadings.double())
