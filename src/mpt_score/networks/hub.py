"""Stored weights of networks: which revision of a name, and what is refused unread."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from safetensors import SafetensorError

from mpt_lml.checks import checked
from mpt_lml.data.remote import offline
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
def loading(
    source: str | Path, revision: str | None, *needed: str, fetched: str
) -> Iterator[dict[str, Any]]:
    """Around a call of ``from_pretrained``: its options, the hub with little time, our own errors.

    Of a name on the hub, the wanted files are brought into the cache first, and what is in the cache
    is loaded: nothing is asked while the block runs.

    Args:
        source: a folder, or a name on the hub.
        revision: of a name, its commit, tag or branch; by default the newest commit. Where it is no
            commit, the one that was taken is said.
        needed: patterns of files that a folder must have, as for :func:`require_folder`.
        fetched: patterns of the files that are brought of a name, with | between them.

    Yields:
        Options for ``from_pretrained``.

    Raises:
        CheckpointError: for whatever goes wrong, with what to do.
        MemoryError: where there is too little memory.
        ValueError: for a revision of a folder.
    """
    require_transformers()
    require_folder(source, *needed)
    is_folder = Path(source).is_dir()
    if is_folder:
        require_no_revision(f"the folder {source}", revision)
    revision = revision or NEWEST
    unreachable: Exception | None = None
    try:
        if not is_folder:
            unreachable = fetch(str(source), revision, fetched.split("|"))
        with _no_progress_bar() if is_folder else offline():
            yield {"revision": revision, "trust_remote_code": False}
        commit = resolved_revision(source, revision)
        if commit not in (None, revision):
            _log.warning(
                "%s is at commit %s; what is behind a name can change, revision (--revision) with this "
                "commit brings the same again.",
                source,
                commit,
            )
    except Exception as error:  # tokenizers raise nothing more special
        if is_out_of_memory(error):
            reason = _first_line(error)
            raise MemoryError(f"{source} needs more memory than there is: {reason}.") from error
        if isinstance(error, SafetensorError | RuntimeError):
            raise CheckpointError(
                f"{source} is damaged: its weights are not whole, or not those of its config.json. "
                "Fetch it, or save it with save_pretrained, again."
            ) from error
        # What is not in the cache is missing because the hub could not be asked.
        reason = _first_line(unreachable or error)
        if is_folder:
            remedy = "Save it again with save_pretrained, network and tokenizer."
            raise CheckpointError(f"{source} could not be loaded: {reason}. {remedy}") from error
        raise CheckpointError(
            f"{source} (revision {revision}) could not be loaded: {reason}. No folder is called that. "
            "Are there a network, such a name, such a revision (--revision, revision=), and safetensors "
            "(pickles are refused)? Else name a folder made by save_pretrained."
        ) from error


def _first_line(error: Exception) -> str:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return "it asks to run code of its own, which is refused" if "custom code" in reason else reason


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """The bar of ``transformers`` for a folder, which takes no time, would stay in a notebook."""
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


def fetch(name: str, revision: str, patterns: list[str]) -> Exception | None:
    """Bring files of a name on the hub into the cache.

    Args:
        name: on the hub.
        revision: its commit, or a branch.
        patterns: of the files' names; files in folders are left out.

    Returns:
        Why the hub could not be asked, None where it could.

    Raises:
        OSError: when the hub answered and has no such file, or breaks off while it hands one out.
    """
    from huggingface_hub import constants, hf_hub_download, model_info

    try:
        # Once and without repetitions: see mpt_lml.data.remote.
        seconds = constants.HF_HUB_ETAG_TIMEOUT
        info = model_info(name, revision=revision, files_metadata=True, timeout=seconds)
    except Exception as error:
        return error
    wanted = []
    for entry in info.siblings or ():
        file = entry.rfilename
        if "/" not in file and any(fnmatchcase(file, pattern) for pattern in patterns):
            wanted.append((entry.size or 0, file))
    if not wanted:
        raise CheckpointError(f"the hub has no {' or '.join(patterns)} of it")
    # The smallest first: a tokenizer that was fetched in part lacks its vocabulary and is refused.
    for _, file in sorted(wanted):
        hf_hub_download(name, file, revision=revision)
    return None


def resolved_revision(source: str | Path, revision: str | None = None) -> str | None:
    """The commit that a name on the hub was loaded from, as its cache says; ``None`` for a folder.

    Of ``antiberty``, which is a package, it is the version.
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
def require_here(source: Source, revision: str | None = None) -> None:
    """Refuse a name on the hub that a page should not load unasked; a folder may be run anywhere.

    Args:
        source: a folder, or a name on the hub.
        revision: of a name, its commit, tag or branch; by default the newest commit.

    Raises:
        CheckpointError: for a name, where there is no GPU, or neither a copy in the cache nor a hub that
            has it.

    >>> from mpt_score import networks
    >>> require_here(networks.small_bert_folder())
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
