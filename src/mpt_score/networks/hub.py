"""Stored weights of networks: which revision of a name, and what is refused unread."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from safetensors import SafetensorError

from mpt_lml.checks import checked
from mpt_score.errors import is_out_of_memory
from mpt_score.networks.devices import gpu

_log = logging.getLogger(__name__)

BERT_BASE = "google-bert/bert-base-uncased"
BERT_BASE_COMMIT = "86b5e0934494bd15c9632b12f734a8a67f723594"
VIT_MAE_BASE = "facebook/vit-mae-base"
VIT_MAE_BASE_COMMIT = "25b184bea5538bf5c4c852c79d221195fdd2778d"
"""What the book and its runs load by these names; for everybody else a name is its newest commit."""
ANTIBERTY = "antiberty"
"""No name on the hub: a Python package whose wheel carries weights."""
ANTIBERTY_VERSION = "0.1.3"
NEWEST = "main"
"""The revision of a name on the hub where none is asked for."""
HUB_SECONDS = 4.0
"""How long the hub is waited for before a page goes on without it."""
TOKENIZER_FILES = "*.json|*.txt|*.model|*.codes|*.jinja"
"""What a tokenizer may consist of."""
WEIGHT_FILES = "model.safetensors|model.safetensors.index.json|model-*.safetensors"
"""Where a network's weights are."""


def _not_empty(name: str, value: Any) -> None:
    if value == "":  # as a path it would be the current folder
        raise TypeError(f"{name} must be a folder or a name on the hub, got ''.")


Source = Annotated[str | Path, _not_empty]
"""Where weights come from: a folder, a name on the hub, or ``antiberty``."""


class CheckpointError(OSError):
    """Weights that were asked for are not there, or are not what they have to be.

    Its message says what is missing or wrong, and how to get it.

    >>> from mpt_score import networks
    >>> try:
    ...     network = networks.load_network("no-such-folder/weights.bin")
    ... except CheckpointError:
    ...     print("without the weights")
    without the weights
    """


def require_transformers() -> None:
    """Raise ``ImportError`` with what to install where ``transformers`` is missing."""
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "this needs a network of transformers, which is not installed: "
            "pip install 'mpt-lml[score]'."
        ) from error


def require_folder(source: str | Path, *needed: str) -> None:
    """Refuse a path that is no folder with the ``needed`` files; ``transformers`` would try the hub.

    Args:
        source: a folder, or a name on the hub, which is let through.
        needed: of each file that a folder must have one or more patterns, with | between them.

    Raises:
        CheckpointError: for a file, for what can be no name on the hub, and for a folder that lacks
            one of the files.
    """
    folder = Path(source)
    if not folder.is_dir():
        is_hub_name = isinstance(source, str) and re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", source)
        if folder.exists() or not is_hub_name:
            raise CheckpointError(f"{source} is not a folder. Name one made by save_pretrained.")
        return
    for patterns in needed:
        if not any(True for pattern in patterns.split("|") for _ in folder.glob(pattern)):
            present = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
            raise CheckpointError(
                f"{source} has no {patterns.replace('|', ' or ')} (it holds {present}). Name a folder "
                "made by save_pretrained; pickled weights can run code and are refused."
            )


@contextmanager
def loading(source: str | Path, revision: str | None, *needed: str, fetched: str) -> Iterator[Path]:
    """Open a folder or a name on the hub around a call of ``from_pretrained``, with our own errors.

    The files of a name are brought into the cache first, and ``from_pretrained`` reads their folder:
    it asks the hub nothing.

    Args:
        source: A folder, or a name on the hub.
        revision: The commit, tag or branch of a name; by default the newest commit. Where it is no
            commit, the one that was taken is said.
        needed: Patterns of files that a folder must have, as for :func:`require_folder`.
        fetched: Patterns of the files that are brought of a name, with | between them.

    Yields:
        The folder to load from.

    Raises:
        CheckpointError: For whatever goes wrong, with what to do.
        MemoryError: Where there is too little memory.
        ValueError: For a revision of a folder.
    """
    require_transformers()
    require_folder(source, *needed)
    is_folder = Path(source).is_dir()
    if is_folder:
        require_no_revision(f"the folder {source}", revision)
    revision = revision or NEWEST
    try:
        folder = Path(source) if is_folder else fetch(str(source), revision, fetched.split("|"))
        with _no_progress_bar():
            yield folder
    except Exception as error:  # tokenizers raise nothing more special
        if is_out_of_memory(error):
            reason = _first_line(error)
            raise MemoryError(f"{source} needs more memory than there is: {reason}.") from error
        if isinstance(error, SafetensorError | RuntimeError):
            raise CheckpointError(
                f"{source} is damaged: its weights are not whole, or not those of its config.json. "
                "Fetch it, or save it with save_pretrained, again."
            ) from error
        reason = _first_line(error)
        if is_folder:
            remedy = "Save it again with save_pretrained, network and tokenizer."
            raise CheckpointError(f"{source} could not be loaded: {reason}. {remedy}") from error
        raise CheckpointError(
            f"{source} (revision {revision}) could not be loaded: {reason}. No folder is called that. "
            "Are there a network, such a name, such a revision (--revision, revision=), and safetensors "
            "(pickles are refused)? Else name a folder made by save_pretrained."
        ) from error
    if not is_folder and folder.name != revision:
        _log.warning(
            "%s is at commit %s; what is behind a name can change, revision (--revision) with this "
            "commit brings the same again.",
            source,
            folder.name,
        )


def _first_line(error: Exception) -> str:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return "it asks to run code of its own, which is refused" if "custom code" in reason else reason


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Hide the bar of ``transformers`` for a folder, which takes no time and would stay in a notebook."""
    from transformers.utils import logging

    is_enabled = logging.is_progress_bar_enabled()
    if is_enabled:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if is_enabled:
            logging.enable_progress_bar()


def require_no_revision(what: str, revision: str | None) -> None:
    """Refuse a revision of what is no name on the hub; ``what`` says what it is."""
    if revision is not None:
        raise ValueError(
            f"{what} has no revision {revision!r}, only a name on the hub has: leave --revision, "
            "revision=... out."
        )


def fetch(name: str, revision: str, patterns: list[str]) -> Path:
    """Bring files of a name on the hub into the cache.

    A hub that does not answer is asked once, for ``HF_HUB_ETAG_TIMEOUT`` seconds (10 by default), and
    then the cache has to do. ``snapshot_download`` alone would repeat its questions for minutes.

    Args:
        name: The name on the hub.
        revision: Its commit, tag or branch.
        patterns: Patterns of the files' names. Files in folders are left out.

    Returns:
        The folder in the cache, which is called as the commit.

    Raises:
        OSError: Where the hub has no such file or breaks off; and where it cannot be asked, and the
            cache lacks a file.
    """
    from huggingface_hub import constants, model_info, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    unreachable: Exception | None = None
    try:
        model_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:
        unreachable = error
    try:
        folder = snapshot_download(
            name,
            revision=revision,
            allow_patterns=patterns,
            ignore_patterns="*/*",
            local_files_only=unreachable is not None,
        )
    except LocalEntryNotFoundError as error:
        raise unreachable or error from error
    if not any(True for pattern in patterns for _ in Path(folder).glob(pattern)):
        raise unreachable or CheckpointError(f"the hub has no {' or '.join(patterns)} of it")
    return Path(folder)


def resolved_revision(source: str | Path, revision: str | None = None) -> str | None:
    """The commit that a name on the hub was loaded from, as its cache says; ``None`` for a folder.

    For ``antiberty``, which is a package, it is the version.
    """
    require_transformers()
    from huggingface_hub import constants, try_to_load_from_cache

    if source == ANTIBERTY:
        return ANTIBERTY_VERSION
    if Path(source).exists():
        return None
    place = {"revision": revision or NEWEST, "cache_dir": constants.HF_HUB_CACHE}
    path = try_to_load_from_cache(str(source), "config.json", **place)
    return Path(path).parent.name if isinstance(path, str) else None


@checked
def require_available(source: Source, revision: str | None = None) -> None:
    """Refuse a name on the hub that a page should not load unasked; a folder may be run anywhere.

    Args:
        source: A folder, or a name on the hub.
        revision: The commit, tag or branch of a name; by default the newest commit.

    Raises:
        CheckpointError: For a name where there is no GPU, or where neither the cache nor the hub has it.

    >>> from mpt_score import networks
    >>> require_available(networks.small_bert_folder())
    """
    require_transformers()
    from huggingface_hub import model_info

    if Path(source).exists():
        return
    if gpu() is None:
        raise CheckpointError("no GPU")
    if resolved_revision(source, revision) is not None:
        return
    try:
        model_info(str(source), revision=revision or NEWEST, timeout=HUB_SECONDS)
    except Exception as error:
        raise CheckpointError("no network") from error
