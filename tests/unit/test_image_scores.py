"""Scores of images: the area under a stated variance, units, folders, refusals."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from models import generator
from PIL import Image

import mpt_score
from mpt_lml import curves
from mpt_score import ViTMAE, networks

X = torch.rand(6, 1, 8, 8, generator=generator(1))


def network() -> torch.nn.Module:
    return networks.small_mae(8, 1, 4, width=16, seed=4)  # four patches


def test_the_estimate_is_that_of_all_masks() -> None:
    model = ViTMAE(network(), 0.3)
    exact = float(curves.exact_curve(model, X).area())
    found = mpt_score.images(model, X, variance=0.3, num_masks=8, num_replicates=60)
    error = found.standard_error.square().sum().sqrt() / len(X)  # images have masks of their own
    assert abs(found.log_score.mean() - exact) < 5 * error < 0.05 * abs(exact)
    assert found.per_patch[0] == found.log_score[0] / 4
    assert found.bits_per_dimension[0] == pytest.approx(-found.log_score[0] / 64 / math.log(2))
    assert found.mean() == pytest.approx(found.bits_per_dimension.mean().item())


def test_parts_are_whole_images_with_masks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer a part: the first has the masks it had, and each part the images it is about."""
    whole = mpt_score.images(network(), X, variance=0.1)
    module = importlib.import_module("mpt_score.image_scores")  # the name is the function's
    monkeypatch.setattr(module, "PART_IMAGES", 4)
    parts = mpt_score.images(network(), X, variance=0.1)
    alone = mpt_score.images(network(), X[:4], variance=0.1)
    assert torch.equal(parts.log_score[:4], alone.log_score)
    assert not torch.equal(parts.log_score[4:], whole.log_score[4:])
    same = mpt_score.images(network(), X[:1].expand(8, -1, -1, -1), variance=0.1).log_score
    assert same[4] != same[0]  # the second part's masks are not the first's
    gap = (parts.log_score - whole.log_score).abs()
    both = torch.hypot(parts.standard_error, whole.standard_error)
    assert (gap < 64 * both).all()  # two replicates, 2 degrees: P(|t| > 64) < 0.0003 each


def test_the_variance_is_that_of_the_other_half() -> None:
    found = mpt_score.images(network(), X)
    assert found.variance[::2].unique().numel() == 1 and found.variance[0] != found.variance[1]
    changed = X.clone()
    changed[::2] = 1 - changed[::2]
    other = mpt_score.images(network(), changed)
    assert other.variance[0] == pytest.approx(found.variance[0].item(), rel=1e-6)
    assert other.variance[1] != found.variance[1]
    changed = X.clone()
    changed[1::2] = 1 - changed[1::2]
    other = mpt_score.images(network(), changed)
    assert other.variance[1] == pytest.approx(found.variance[1].item(), rel=1e-6)
    same = mpt_score.images(network(), X, variance=found.variance[0].item())
    assert same.log_score[0] == found.log_score[0] and same.log_score[1] != found.log_score[1]


def test_a_checkpoint_and_a_folder_of_pictures(tmp_path: Path) -> None:
    network().save_pretrained(tmp_path / "mae")
    said = {"image_mean": [0.4], "image_std": [0.2]}
    (tmp_path / "mae/preprocessor_config.json").write_text(json.dumps(said))
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "notes.txt").write_text("no picture")
    levels = (255 * X[:3, 0]).round().byte()
    for name, pixels in zip("bac", levels, strict=True):
        Image.fromarray(pixels.numpy()).save(pictures / f"{name}.png")
    found = mpt_score.images(tmp_path / "mae", pictures, variance=0.1)
    assert found.names == ("a.png", "b.png", "c.png")
    model = ViTMAE(network(), 1.0, pixel_mean=0.4, pixel_scale=0.2)
    wanted = mpt_score.images(model, levels[[1, 0, 2], None].float() / 255, variance=0.1)
    # float32 through two kernels of attention
    torch.testing.assert_close(found.log_score, wanted.log_score, rtol=1e-4, atol=1e-3)
    rows = found.rows()
    assert rows[0]["image"] == "a.png" and rows[0]["variance"] == 0.1
    assert np.isclose(rows[2]["per_patch"], found.per_patch[2])


@pytest.mark.bad_input
def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"give variance="):
        mpt_score.images(network(), X[:1])
    with pytest.raises(ValueError, match="has no pictures"):
        mpt_score.images(network(), tmp_path)
    with pytest.raises(ValueError, match=r"pixels must lie in \[0, 1\]"):
        mpt_score.images(network(), 255 * X)
    with pytest.raises(ValueError, match="num_replicates must be >= 2"):
        mpt_score.images(network(), X, num_replicates=1)
    with pytest.raises(TypeError, match="x must"):
        mpt_score.images(network(), X.numpy())


def test_a_network_goes_where_it_is_asked_to(tmp_path: Path, monkeypatch) -> None:
    network().save_pretrained(tmp_path)
    module, asked = importlib.import_module("mpt_score.image_scores"), []
    monkeypatch.setattr(module, "gpu", lambda: "cuda:3")
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, device: asked.append(device))
    for device in ("auto", "cpu"):
        module.load_mae(tmp_path, device=device)
    assert asked == ["cuda:3", "cpu"]


def test_a_picture_that_is_cut_off_is_named(tmp_path: Path) -> None:
    whole = tmp_path / "whole.png"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    Image.fromarray(noise).save(whole)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"cut\.png cannot be read"):
        mpt_score.images(network(), tmp_path, variance=0.1)
