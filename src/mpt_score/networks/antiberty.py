"""AntiBERTy, a BERT pre-trained on antibodies, from the files of its Python package.

Ruffolo, Gray & Sulam (2021), "Deciphering antibody affinity maturation with language models and weakly
supervised learning", arXiv:2112.07782; MIT licence. 8 layers, 26 million weights, pre-trained on 558
million natural antibody sequences of six species, one chain at a time. The wheel of the package
``antiberty`` 0.1.3 carries weights and vocabulary; later versions do not. None of its code is needed, and
none is imported.
"""

import hashlib
import io
import json
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from mpt_lml.data.sources import DATA_VARIABLE, local_path
from mpt_score.networks.hub import (
    ANTIBERTY,
    ANTIBERTY_VERSION,
    CheckpointError,
    require_no_revision,
)
from mpt_score.networks.kinds import Tokenizer

VERSION = ANTIBERTY_VERSION
SOURCE = f"antiberty {VERSION}, MIT licence: Ruffolo, Gray & Sulam 2021, arXiv:2112.07782"
"""What a :class:`~mpt_score.Scorer` says of it in its identity."""
COMMAND = f"pip install --no-deps antiberty=={VERSION}"
WHEEL = f"antiberty-{VERSION}-py3-none-any.whl"
"""Its SHA-256 is 30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a."""
VOCABULARY_FILE = "antiberty/trained_models/vocab.txt"
CONFIG_FILE = "antiberty/trained_models/AntiBERTy_md_smooth/config.json"
WEIGHTS_FILE = "antiberty/trained_models/AntiBERTy_md_smooth/pytorch_model.bin"
CHECKSUMS = {
    VOCABULARY_FILE: "6db8c6cd6361eb233005b2dfe665d40d7f1ba78951bdf0fe61fa670ce192419a",
    CONFIG_FILE: "e199c1692b5f0246ebc5522102044d6e900ffc7d56fa5932fdd5b3d56ef487e9",
    WEIGHTS_FILE: "f1ae33eac8cc8784a7d4be5a600141d2fa7bc7d8d5b3f5324d64a6a63bd0f137",
}
"""SHA-256 of each file that is read."""
NOT_NEEDED = (
    "bert.pooler.",
    "bert.embeddings.position_ids",
    "cls.species.",
    "cls.chain.",
    "cls.graft.",
)
"""Beginnings of the names of weights that say nothing about residues.

The three heads guess species, chain and grafting from the pooled [CLS]; the positions' ids are 0, 1, ....
"""


def load_network(revision: str | None = None) -> Any:
    """The masked language model: BERT's, without the heads for species, chain and grafting.

    Args:
        revision: nothing but the version.

    Returns:
        A ``BertForMaskedLM`` in float32, in evaluation mode.

    Raises:
        CheckpointError: where the package is not there, in another version, or damaged.
        ValueError: for another revision, as a package on the index has no commits.
    """
    _require_this_version(revision)
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig.from_dict(json.loads(_verified(CONFIG_FILE)))
    config.architectures = ["BertForMaskedLM"]
    config.source = SOURCE
    # A pickle: its bytes are the published ones, and it is read as tensors only.
    content = io.BytesIO(_verified(WEIGHTS_FILE))
    weights = torch.load(content, map_location="cpu", weights_only=True)
    with torch.random.fork_rng(devices=[]):  # what it draws here is overwritten
        network = BertForMaskedLM(config)
    network.load_state_dict(
        {name: value for name, value in weights.items() if not name.startswith(NOT_NEEDED)}
    )
    return network.eval()


def load_tokenizer(revision: str | None = None) -> Tokenizer:
    """BERT's tokenizer on residues: :class:`~mpt_score.networks.residues.ResidueTokenizer`.

    Args:
        revision: as of :func:`load_network`.

    Raises:
        CheckpointError: as :func:`load_network`.
        ValueError: likewise.
    """
    _require_this_version(revision)
    from mpt_score.networks.residues import ResidueTokenizer

    return ResidueTokenizer(tuple(_verified(VOCABULARY_FILE).decode().split()))


def _require_this_version(revision: str | None) -> None:
    if revision != VERSION:
        require_no_revision(f"{ANTIBERTY}, version {VERSION} of a package,", revision)


# -- where its files are ----------------------------------------------------------------------------


def _root() -> Path | zipfile.Path:
    """Where the installed package is; else the wheel, or where its folder is, among the local data."""
    installed = _installed_version()
    if installed == VERSION:
        return Path(str(metadata.distribution(ANTIBERTY).locate_file("")))
    wheel = local_path(WHEEL)
    if wheel is not None:
        return zipfile.Path(wheel)
    folder = local_path(ANTIBERTY)
    if folder is not None:
        return folder.parent
    state = "is not installed"
    if installed is not None:
        state = (
            f"{VERSION} is needed, and {installed} is installed, which may not carry the weights"
        )
    raise CheckpointError(
        f"{ANTIBERTY} {state}: {COMMAND} (97 MB; its files are read, its code is not run). Or put "
        f"{WHEEL}, or the folder antiberty that is in it, into the folder that {DATA_VARIABLE} names."
    )


def _installed_version() -> str | None:
    try:
        return metadata.version(ANTIBERTY)
    except metadata.PackageNotFoundError:
        return None


def _verified(name: str) -> bytes:
    """A file of the wheel, if it is the published one."""
    again = f"Get the package again: pip install --no-deps --force-reinstall antiberty=={VERSION}."
    try:
        content = (_root() / name).read_bytes()
    except CheckpointError:  # an OSError too, and says more
        raise
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{ANTIBERTY}: {name} cannot be read ({error}). {again}") from error
    checksum = hashlib.sha256(content).hexdigest()
    if checksum != CHECKSUMS[name]:
        raise CheckpointError(
            f"{ANTIBERTY}: {name} is not the published file: its SHA-256 is {checksum}, expected "
            f"{CHECKSUMS[name]}. {again}"
        )
    return content
