from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from models import generator
from PIL import Image
from sklearn.datasets import load_digits

from mpt_lml import data
from mpt_lml.data import image_sets, sources

TEST_FILE = image_sets._SETS["mnist"]["test"]["file"]


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}i", *array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small stand-in for the published MNIST files, with its own checksums."""
    monkeypatch.setenv(sources.DATA_VARIABLE, str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    home = tmp_path / "mnist"
    home.mkdir()
    about = image_sets._SETS["mnist"]
    pictures = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    for split, array in (("test", pictures), ("train", pictures[:2] + 9)):
        packed = idx_bytes(array)
        (home / about[split]["file"]).write_bytes(packed)
        monkeypatch.setitem(about[split], "md5", hashlib.md5(packed).hexdigest())
    return home


def test_idx_files_are_read(folder: Path) -> None:
    images = data.images("mnist", "test")
    assert images.pixels.shape == (3, 20)
    assert images.shape == (4, 5)
    assert images.pixels[2, 19].item() == pytest.approx(59 / 255)
    assert data.images("mnist").pixels[0, 0].item() == pytest.approx(9 / 255)


def test_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / TEST_FILE
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(data.CorruptDataError, match=f"{path.name}.*MD5.*truncated"):
        data.images("mnist", "test")


def test_a_changed_byte_is_found(folder: Path) -> None:
    path = folder / TEST_FILE
    changed = bytearray(path.read_bytes())
    changed[-9] ^= 1
    path.write_bytes(bytes(changed))
    with pytest.raises(data.CorruptDataError, match="not the published file"):
        data.images("mnist", "test")


def test_a_missing_file_in_a_folder_that_is_there(folder: Path) -> None:
    (folder / TEST_FILE).unlink()
    with pytest.raises(data.DataNotFoundError, match=r"t10k-images.*needs the IDX files"):
        data.images("mnist", "test")


def test_data_that_are_nowhere_name_the_three_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sources.DATA_VARIABLE, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(data.DataNotFoundError) as caught:
        data.images("fashion_mnist")
    message = str(caught.value)
    assert "MPT_LML_DATA" in message
    assert "mpt-lml[datasets]" in message
    assert "images('digits')" in message


def test_the_variable_names_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sources.DATA_VARIABLE, "nowhere/at/all")
    with pytest.raises(data.DataNotFoundError, match="nowhere/at/all"):
        data.images("mnist")


def test_the_hub_is_asked_when_no_folder_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.delenv(sources.DATA_VARIABLE, raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    asked = []

    def load_dataset(name: str, split: str) -> dict:
        asked.append((name, split))
        return {"image": [Image.new("L", (2, 2), 51)] * 3}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    images = data.images("mnist", "test")
    assert asked == [("ylecun/mnist", "test")]
    assert images.pixels.tolist() == [[0.2] * 4] * 3


def color_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    """Ten images of one color each, pixel value 20 n in the first channel, as the set's file."""
    monkeypatch.setenv(sources.DATA_VARIABLE, str(tmp_path))
    monkeypatch.setitem(image_sets._SETS[name], "num_images", 10)
    home = tmp_path / name
    home.mkdir()
    side = image_sets._SETS[name]["side"]
    pictures = np.zeros((10, side, side, 3), dtype=np.uint8)
    pictures[..., 0] = 20 * np.arange(10)[:, None, None]
    if name == "cifar100":
        np.savez(home / "test.npz", images=pictures)
        return home / "test.npz"
    with tarfile.open(home / "val.tar", "w") as archive:
        for n in (10, *range(2, 10), 1):  # files lie in any order
            packed = io.BytesIO()
            Image.fromarray(pictures[n - 1]).save(packed, "JPEG", quality=95)
            entry = tarfile.TarInfo(f"val/images/val_{n}.JPEG")
            entry.size = packed.tell()
            packed.seek(0)
            archive.addfile(entry, packed)
    return home / "val.tar"


@pytest.mark.parametrize("name", ["cifar100", "tiny_imagenet"])
def test_color_sets_and_their_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    color_folder(tmp_path, monkeypatch, name)
    train, test = data.images(name), data.images(name, "test")
    side = image_sets._SETS[name]["side"]
    assert train.grid.shape == (8, 3, side, side)
    assert test.grid.shape == (2, 3, side, side)
    assert train.shape == (side, side, 3)
    # JPEG is not exact: within two levels of 255
    order = np.random.RandomState(0).permutation(10) if name == "cifar100" else np.arange(10)
    expected = torch.from_numpy(20.0 * order[[4, 9]]).float() / 255
    torch.testing.assert_close(test.grid[:, 0, 3, 5], expected, atol=2.1 / 255, rtol=0)
    assert test.grid[:, 1:].max() < 2.1 / 255
    assert torch.equal(test.grid[0, :, 3, 5], test.pixels[0].view(side, side, 3)[3, 5])


@pytest.mark.parametrize("name", ["cifar100", "tiny_imagenet"])
def test_a_color_set_with_fewer_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    color_folder(tmp_path, monkeypatch, name)
    monkeypatch.undo()
    monkeypatch.setenv(sources.DATA_VARIABLE, str(tmp_path))
    with pytest.raises(data.CorruptDataError, match=r"of shape \(10, .*expected .*\(10000, "):
        data.images(name)


@pytest.mark.parametrize("name", ["cifar100", "tiny_imagenet"])
def test_a_truncated_color_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = color_folder(tmp_path, monkeypatch, name)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(data.CorruptDataError, match=f"{path.name} cannot be read.*truncated"):
        data.images(name)


@pytest.mark.parametrize("content", [b"", bytes(1000), pickle.dumps([1, 2])])
def test_what_is_no_array_is_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    path = color_folder(tmp_path, monkeypatch, "cifar100")
    path.write_bytes(content)
    with pytest.raises(data.CorruptDataError, match=f"{path} cannot be read.*fetch it") as caught:
        data.images("cifar100")
    assert "pickle" not in str(caught.value)


def test_a_color_set_of_the_wrong_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = color_folder(tmp_path, monkeypatch, "cifar100")
    np.savez(path, images=np.zeros((2, 28, 28), dtype=np.uint8))
    with pytest.raises(data.CorruptDataError, match=r"\(2, 28, 28\).*expected.*\(10, 32, 32, 3\)"):
        data.images("cifar100")
    path.unlink()
    with pytest.raises(data.DataNotFoundError, match="test.npz is missing"):
        data.images("cifar100")


@pytest.mark.parametrize("name", ["cifar100", "tiny_imagenet"])
def test_color_sets_that_are_nowhere(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(sources.DATA_VARIABLE, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(data.DataNotFoundError) as caught:
        data.images(name)
    message = str(caught.value)
    assert all(
        way in message for way in (image_sets._SETS[name]["file"], "mpt-lml[datasets]", "'digits'")
    )


@pytest.mark.data
def test_the_color_sets_at_hand() -> None:
    for name in ("cifar100", "tiny_imagenet"):
        test = data.images(name, "test")
        assert len(test.pixels) == 2000
        assert 0.3 < test.pixels.mean() < 0.6


def test_digits_are_all_there_and_split_once() -> None:
    train, test = data.images("digits"), data.images("digits", "test")
    assert (len(train.pixels), len(test.pixels)) == (1198, 599)
    rows = torch.from_numpy(load_digits().data / 16)
    assert torch.equal(test.pixels, rows[2::3]) and torch.equal(train.pixels[1::2], rows[1::3])
    assert train.pixels.max().item() == 1.0


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_published_files(name: str) -> None:
    for split, count in (("train", 60_000), ("test", 10_000)):
        images = data.images(name, split)
        assert images.pixels.shape == (count, 784)
    assert os.environ[sources.DATA_VARIABLE]


def test_the_papers_draw_shares_one_noise_value_a_datum() -> None:
    draw = data.paper_gaussian(200, 30, 0, generator=generator(1))
    assert (draw.x == draw.x[:, :1]).all()
    # 200 values of standard deviation 1/5: relative error of the estimate 1/sqrt(400) = 5 %
    assert draw.x[:, 0].std().item() == pytest.approx(0.2, rel=0.2)


def test_the_papers_draw_follows_its_order_of_draws() -> None:
    draw = data.paper_gaussian(3, 4, 2, generator=generator(1991))
    torch.manual_seed(1991)
    loadings, latent, noise = torch.randn(4, 2), torch.randn(3, 2), torch.randn(3, 1)
    assert torch.equal(draw.loadings, loadings.double())
    assert torch.equal(draw.x, (latent @ loadings.T + noise * 0.2).double())


def test_the_papers_draw_does_not_follow_the_default_dtype() -> None:
    expected = data.paper_gaussian(3, 4, 2, generator=generator(1991))
    torch.set_default_dtype(torch.float64)
    try:
        again = data.paper_gaussian(3, 4, 2, generator=generator(1991))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(expected.x, again.x)


def test_an_image_that_is_not_square_keeps_its_rows() -> None:
    gray = torch.arange(12).double().div(11).view(2, 6)
    grid = data.Images(gray, (2, 3)).grid
    assert grid.shape == (2, 1, 2, 3)
    assert torch.equal(grid[1, 0], gray[1].view(2, 3))
    color = torch.arange(18).double().div(17)[None]
    grid = data.Images(color, (3, 2, 3)).grid
    assert grid.shape == (1, 3, 3, 2)
    # row i, column j, channel c stands at 3 (2 i + j) + c
    assert all(
        grid[0, c, i, j] == color[0, 3 * (2 * i + j) + c]
        for c in range(3)
        for i in range(3)
        for j in range(2)
    )
