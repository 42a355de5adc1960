"""The pre-trained ViT-MAE on the page: live where a GPU and a network are, else what is stored."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import torch
from torch import Tensor

from mpt_lml import data
from mpt_lml.checkpoints import VIT_MAE_BASE, CheckpointError, pinned_revision
from mpt_lml.data import DataNotFoundError
from mpt_lml.experiments.registry import weights_of
from mpt_lml.experiments.vit_mae import Figure6, figure_6
from mpt_lml.files import read_json

NUM_IMAGES = 32
"""Of every set and split: 19 rates with a network and its random twin then take a minute or two."""


def pretrained_curves(
    stored: str | Path, *, model: str = VIT_MAE_BASE, device: torch.device | None = None
) -> tuple[dict[str, Tensor] | None, str]:
    """Figure 6 with loaded weights: the arrays of :func:`figure_6`, and a line on their origin.

    With ``device`` or a GPU the network runs on a few images of each set that can be had (on the
    digits where none can). Otherwise, and where there are no weights, the arrays are those of
    ``stored``, what ``mpt-lml run figure-6-pretrained`` wrote, or ``None``. Without a GPU nothing
    is loaded and no connection is tried.
    """
    device = torch.device("cuda") if device is None and torch.cuda.is_available() else device
    missing = "No GPU here"
    if device is not None:
        try:
            return _live(model, device), f"Live on {device.type}: {_weights(model)}."
        except CheckpointError:
            missing = "No weights here and no network to get them"
    if Path(stored).is_file():
        found = read_json(stored)
        arrays = {key: torch.tensor(value) for key, value in found["arrays"].items()}
        weights, origin = found["weights"], found["provenance"]
        name = f"{Path(weights['name']).name}, commit {weights['revision']}"
        return arrays, f"Recorded: {name}, by {origin['command']!r} on {origin['date']}."
    return None, (
        f"{missing}. On a GPU this cell downloads {model}, commit {str(pinned_revision(model))[:7]},"
        " and draws its curves, r* and five reconstructions beside its random twin's."
    )


def _live(model: str, device: torch.device) -> dict[str, Tensor]:
    """Arrays of :func:`figure_6` for a few images; pictures are five a set."""
    available = []
    for each in Figure6().data_sets:
        try:
            data.images(each[0], "test")
            available.append(each)
        except DataNotFoundError:
            continue
    config = dataclasses.replace(
        Figure6.pretrained(model),
        seeds=(4,),
        data_sets=tuple(available) or Figure6.quick().data_sets,
        num_variance=NUM_IMAGES,
        num_test=NUM_IMAGES,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*images are.*|.*log-densities are of.*")
        return figure_6(config, device=device).arrays


def _weights(model: str) -> str:
    weights = weights_of(model)
    assert weights is not None
    revision = "a local folder" if weights["revision"] is None else weights["revision"][:7]
    return f"{Path(model).name}, commit {revision}, {NUM_IMAGES} images of each set"
