"""Stored weights of networks: which revision of a name, and what is refused unread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import torch
from safetensors import SafetensorError

BERT_BASE = "google-bert/bert-base-uncased"
VIT_MAE_BASE = "facebook/vit-mae-base"
PINNED = {  # names on the hub and the commits of theirs that the book means
    BERT_BASE: "86b5e0934494bd15c9632b12f734a8a67f723594",
    VIT_MAE_BASE: "25b184bea5538bf5c4c852c79d221195fdd2778d",
}
HUB_SECONDS = 4.0  # how long the hub is waited for before a page goes on without it


class CheckpointError(OSError):
    """Weights that were asked for are not there, or are not what they have to be."""


def require_checkpoint(source: str | Path) -> None:
    """Refuse a path that is not a checkpoint folder before ``transformers`` looks at the hub."""
    folder = Path(source)
    if not folder.is_dir():
        looks_like_a_path = isinstance(source, Path) or source.startswith((".", "/", "~"))
        if looks_like_a_path or folder.exists():
            raise CheckpointError(f"{source} is not a folder. Name one made by save_pretrained.")
        return
    found = sorted(each.name for each in folder.iterdir())
    if "config.json" not in found:
        raise CheckpointError(
            f"{source} is not a checkpoint: it has no config.json (it holds "
            f"{', '.join(found[:5]) or 'nothing'}). Name a folder made by save_pretrained."
        )
    if not list(folder.glob("*.safetensors")):
        pickles = ", ".join(name for name in found if name.endswith(".bin"))
        what = f"only pickled weights ({pickles})" if pickles else "no weights"
        raise CheckpointError(
            f"{source} has {what}. Pickles can run code and are refused: save with "
            "save_pretrained(folder), which writes model.safetensors."
        )


@contextmanager
def loading(source: str | Path, revision: str) -> Iterator[None]:
    """No progress bar for a folder (it would stay in a notebook); what goes wrong, in our words."""
    from transformers.utils import logging

    quiet = Path(source).is_dir() and logging.is_progress_bar_enabled()
    if quiet:
        logging.disable_progress_bar()
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{source} (revision {revision}) could not be loaded as safetensors: there is no "
            "network, no such name, or only pickled weights, which are refused. Either download it "
            "where there is a network and name the folder that save_pretrained made, or go on "
            "without it: the small BERT of the book needs no download, small_mae(...) no weights."
        ) from error
    except (SafetensorError, RuntimeError) as error:
        raise CheckpointError(
            f"{source} is damaged: its weights are not whole, or not those of its config.json. "
            "Fetch it, or save it with save_pretrained, again."
        ) from error
    except ValueError as error:
        if "custom code" not in str(error):
            raise
        raise CheckpointError(
            f"{source} asks to run code of its own, which is refused: only kinds of models that "
            "transformers brings are loaded."
        ) from error
    finally:
        if quiet:
            logging.enable_progress_bar()


def pinned_revision(source: str | Path) -> str | None:
    """The commit that a name on the hub stands for here; ``None`` for a folder."""
    if Path(source).is_dir():
        return None
    if str(source) not in PINNED:
        raise ValueError(
            f"{source} is neither a folder nor a hub name with a known revision. Pin the revision "
            "(a commit of the hub's repository): the weights behind a bare name can change."
        )
    return PINNED[str(source)]


def resolved_revision(source: str | Path) -> str | None:
    """The commit that a name on the hub was loaded from, as its cache says; ``None`` for a folder."""
    from huggingface_hub import constants, try_to_load_from_cache

    if Path(source).exists():
        return None
    place = {"revision": pinned_revision(source), "cache_dir": constants.HF_HUB_CACHE}
    found = try_to_load_from_cache(str(source), "config.json", **place)
    return Path(found).parent.name if isinstance(found, str) else None


def gpu() -> torch.device | None:
    """The GPU, where there is one."""
    return torch.device("cuda") if torch.cuda.is_available() else None


def why_not_here(name: str) -> str | None:
    """Why a page does not load ``name`` unasked: no GPU, or no network and no cached copy.

    ``None`` where it can. Without a GPU nothing is tried; the hub is asked once, for
    ``HUB_SECONDS`` at most.
    """
    from huggingface_hub import constants

    if gpu() is None:
        return "no GPU"
    if resolved_revision(name) is not None:
        return None
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    address = f"{constants.ENDPOINT}/{name}/resolve/{pinned_revision(name)}/config.json"
    try:
        with urlopen(Request(address, method="HEAD"), timeout=HUB_SECONDS):
            return None
    except OSError:
        return "no network"
