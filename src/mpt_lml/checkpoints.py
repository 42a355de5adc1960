"""Stored weights of networks: what is refused before they are read (floor 0)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
