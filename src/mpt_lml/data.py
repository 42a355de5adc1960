"""Data: what is always there, what a local folder has, what a hub has (wing).

==================  ====================  ====================================  ===================
name                always there          folder named by ``MPT_LML_DATA``      hub
==================  ====================  ====================================  ===================
``digits``          with scikit-learn     --                                    --
``mnist``           --                    ``mnist/*.gz`` (IDX, MD5-checked)     ``ylecun/mnist``
``fashion_mnist``   --                    ``fashion_mnist/*.gz`` (the same)     Fashion-MNIST
==================  ====================  ====================================  ===================
"""

from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
HUB_NAMES = {"mnist": "ylecun/mnist", "fashion_mnist": "zalando-datasets/fashion_mnist"}
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
    pixels : Tensor (N, H·W) float64
        In [0, 1].
    labels : Tensor (N,) int64
    shape : tuple
        (H, W).
    name, source : str
        Which data, and where they were found ("scikit-learn", "local folder", "hub").
    """

    pixels: Float[Tensor, "N D"]
    labels: Int[Tensor, " N"]
    shape: tuple[int, int]
    name: str
    source: str


def images(name: str = "digits", split: Split = "train") -> Images:
    """Images by name: ``digits`` (always there), ``mnist`` or ``fashion_mnist``.

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
    try:
        if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
            raise ConnectionError("HF_HUB_OFFLINE is set")
        from datasets import load_dataset

        rows = load_dataset(HUB_NAMES[name], split=split)
    except (ImportError, OSError) as error:
        raise DataNotFoundError(_three_ways(name)) from error
    pixels = np.stack([np.asarray(picture) for picture in rows["image"]])
    return _as_images(pixels, np.asarray(rows["label"]), name, "hub")


def _three_ways(name: str) -> str:
    return (
        f"{name} is not on this machine. Three ways to get it:\n"
        f"  1. put the published files ({', '.join(IDX_FILES.values())}) into a folder {name}/ and "
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
