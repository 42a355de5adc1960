"""Stored weights of networks: which revision of a name, and what is refused unread (floor 0)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import torch

PINNED = {
    "google-bert/bert-base-uncased": "86b5e0934494bd15c9632b12f734a8a67f723594",
    "facebook/vit-mae-base": "25b184bea5538bf5c4c852c79d221195fdd2778d",
}
"""Names on the hub and the commits of theirs that the book means; both hold safetensors.

:meta hide-value:
"""


class CheckpointError(OSError):
    """Weights that were asked for are not there, or are not what they have to be."""


def pinned_revision(source: str | Path) -> str | None:
    """The commit that a name on the hub stands for here; ``None`` for a folder.

    Raises
    ------
    ValueError
        For a name without one: what stands behind a bare name can change.
    """
    if Path(source).is_dir():
        return None
    if str(source) not in PINNED:
        raise ValueError(
            f"{source} is neither a folder nor a hub name with a known revision. Pin the revision "
            "(a commit of the hub's repository): the weights behind a bare name can change."
        )
    return PINNED[str(source)]


def resolved_revision(source: str | Path, revision: str | None = None) -> str | None:
    """The commit that a name on the hub was loaded from; ``None`` for a folder.

    Read from where the hub's cache put the file: a branch's name can mean another commit tomorrow.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if Path(source).exists():
        return None
    found = try_to_load_from_cache(
        str(source),
        "config.json",
        revision=revision or pinned_revision(source),
        cache_dir=constants.HF_HUB_CACHE,
    )
    return Path(found).parent.name if isinstance(found, str) else None


HUB_SECONDS = 4.0
"""How long the hub is waited for before a page goes on without it.

:meta hide-value:
"""


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


def require_checkpoint(source: str | Path) -> None:
    """Refuse a path that is not a checkpoint folder before ``transformers`` looks at the hub."""
    folder = Path(source)
    if not folder.is_dir():
        looks_like_a_path = isinstance(source, Path) or source.startswith((".", "/", "~"))
        if looks_like_a_path or folder.exists():
            raise CheckpointError(f"{source} is not a folder. Name one made by save_pretrained.")
        return
    if not (folder / "config.json").is_file():
        found = ", ".join(sorted(each.name for each in folder.iterdir())[:5]) or "nothing"
        raise CheckpointError(
            f"{source} is not a checkpoint: it has no config.json (it holds {found}). Name a "
            "folder made by save_pretrained."
        )
    if not list(folder.glob("*.safetensors")):
        pickles = [each.name for each in folder.glob("*.bin")]
        what = f"only pickled weights ({', '.join(pickles)})" if pickles else "no weights"
        raise CheckpointError(
            f"{source} has {what}. Pickles can run code and are refused: save with "
            "save_pretrained(folder), which writes model.safetensors."
        )


def load_pretrained(
    loader: Any,
    source: str | Path,
    require_config: Callable[[Any], None],
    *,
    revision: str | None,
    what: str,
    otherwise: str,
) -> Any:
    """A network of ``transformers`` from a ``save_pretrained`` folder or the hub, to evaluate.

    Safetensors only; weights are float32, in whatever precision they were stored.

    Parameters
    ----------
    loader
        A class of ``transformers`` with ``from_pretrained``.
    source : str or Path
    require_config
        Raises ValueError for the configuration of a wrong kind of model.
    revision : str, optional
        A commit of the hub's repository; by default the pinned one.
    what, otherwise : str
        What all weights belong to, and what can be done without them, for the messages.

    Raises
    ------
    CheckpointError
        When ``source`` is a folder without a checkpoint or with pickled weights only, when some of
        the weights are missing, or when the hub cannot be reached.
    ValueError
        For a hub name without a revision, and from ``require_config``.
    """
    from transformers import AutoConfig

    require_checkpoint(source)
    revision = revision or pinned_revision(source) or "main"  # a folder has none
    try:
        config = AutoConfig.from_pretrained(source, revision=revision)
        require_config(config)
        with quiet_if_local(source):
            network, report = loader.from_pretrained(
                source,
                config=config,
                revision=revision,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except OSError as error:
        raise CheckpointError(
            f"{source} (revision {revision}) could not be loaded as safetensors: there is no "
            "network, no such name, or only pickled weights, which are refused. Either download it "
            "where there is a network and name the folder that save_pretrained made, or go on "
            f"without it: {otherwise}"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointError(
            f"{source} lacks {len(missing)} of the weights of {what}, such as {missing[0]}; they "
            "would be random. It may be an encoder alone."
        )
    return network.eval()


@contextmanager
def quiet_if_local(source: str | Path) -> Iterator[None]:
    """No progress bar of ``transformers`` while a folder is read; a download keeps its own.

    Reading takes a moment, and a bar would stay in a notebook's output.
    """
    from transformers.utils import logging

    if not Path(source).is_dir() or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
