"""Stored weights of networks: which revision of a name, and what is refused unread (floor 0)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
