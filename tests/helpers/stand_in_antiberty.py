"""A package that looks like antiberty 0.1.3 on disk, with a network of one small layer."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from models import generator

from mpt_score import networks
from mpt_score.networks import antiberty
from mpt_score.networks.residues import VOCABULARY

METADATA = "Metadata-Version: 2.1\nName: antiberty\nVersion: {version}\n"


def weights(seed: int = 0, max_length: int = 40) -> dict[str, torch.Tensor]:
    """What the published file holds: a masked language model's weights, and some that it has not."""
    network = networks.small_masked_lm(
        len(VOCABULARY), "classic", width=32, num_layers=1, max_length=max_length, seed=seed
    )
    draws = generator(seed)
    state = {}
    for name, value in network.state_dict().items():
        state[name] = value + 0.3 * torch.randn(value.shape, generator=draws)
    # The last layer's weights are those of the embeddings, its bias is the head's.
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
    state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
    state["bert.pooler.dense.weight"] = torch.randn(32, 32, generator=draws)
    state["bert.pooler.dense.bias"] = torch.zeros(32)
    state["bert.embeddings.position_ids"] = torch.arange(max_length)[None]
    for head, size in (("species", 6), ("chain", 2), ("graft", 2)):
        state[f"cls.{head}.weight"] = torch.randn(size, 32, generator=draws)
        state[f"cls.{head}.bias"] = torch.zeros(size)
    return state


def content(state: dict[str, Any] | None = None, max_length: int = 40) -> dict[str, bytes]:
    """The files that are read, by name."""
    config = {
        "architectures": ["AntiBERTy"],
        "hidden_size": 32,
        "intermediate_size": 96,
        "max_position_embeddings": max_length,
        "model_type": "bert",
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "pad_token_id": 0,
        "type_vocab_size": 1,
        "vocab_size": len(VOCABULARY),
    }
    saved = io.BytesIO()
    torch.save(weights(max_length=max_length) if state is None else state, saved)
    return {
        antiberty.VOCABULARY_FILE: "\n".join(VOCABULARY).encode(),
        antiberty.CONFIG_FILE: json.dumps(config).encode(),
        antiberty.WEIGHTS_FILE: saved.getvalue(),
    }


def checksums(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(file).hexdigest() for name, file in files.items()}


def write_wheel(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / antiberty.WHEEL
    with zipfile.ZipFile(path, "w") as wheel:
        for name, file in files.items():
            wheel.writestr(name, file)
        wheel.writestr("antiberty/__init__.py", "raise AssertionError('its code was run')")
    return path


def install(folder: Path, files: dict[str, bytes], version: str = antiberty.VERSION) -> None:
    """As pip leaves it in a folder of ``sys.path``."""
    about = folder / f"antiberty-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(METADATA.format(version=version))
    unpack(folder, files)


def unpack(folder: Path, files: dict[str, bytes]) -> None:
    for name, file in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file)
    (folder / "antiberty/__init__.py").write_text("raise AssertionError('its code was run')")
