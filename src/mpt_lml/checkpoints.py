"""Stored weights of networks: which revision of a name, and what is refused unread."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import get_ident
from typing import Any
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
PATIENCE = 10.0  # seconds for an answer to somebody who asked for weights


class CheckpointError(OSError):
    """Weights that were asked for are not there, or are not what they have to be."""


def require_folder(source: str | Path, *needed: str) -> None:
    """Refuse a path that is no folder with the ``needed`` files; ``transformers`` would try the hub.

    Each of ``needed`` is one or more patterns with | between them.
    """
    folder = Path(source)
    if not folder.is_dir():
        named = isinstance(source, str) and re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", source)
        if folder.exists() or not named:
            raise CheckpointError(f"{source} is not a folder. Name one made by save_pretrained.")
        return
    for patterns in needed:
        if not any(True for pattern in patterns.split("|") for _ in folder.glob(pattern)):
            found = ", ".join(sorted(each.name for each in folder.iterdir())[:5]) or "nothing"
            raise CheckpointError(
                f"{source} has no {patterns.replace('|', ' or ')} (it holds {found}). Name a folder "
                "made by save_pretrained; pickled weights can run code and are refused."
            )


@contextmanager
def loading(source: str | Path, revision: str | None, *needed: str) -> Iterator[dict[str, Any]]:
    """Options of ``from_pretrained``; what goes wrong in our words, the hub with little time.

    No progress bar for a folder: it would stay in a notebook.
    """
    from transformers.utils import logging

    require_folder(source, *needed)
    revision = revision or pinned_revision(source) or "main"  # a folder has none
    here = Path(source).is_dir()
    quiet = here and logging.is_progress_bar_enabled()
    if quiet:
        logging.disable_progress_bar()
    try:
        with nullcontext() if here else impatient():
            yield {"revision": revision, "trust_remote_code": False}
    except (SafetensorError, RuntimeError) as error:
        raise CheckpointError(
            f"{source} is damaged: its weights are not whole, or not those of its config.json. "
            "Fetch it, or save it with save_pretrained, again."
        ) from error
    except Exception as error:  # tokenizers raise nothing more special
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        if "custom code" in reason:
            reason = "it asks to run code of its own, which is refused"
        remedy = "Save it again with save_pretrained, network and tokenizer."
        if not here:
            remedy = (
                "Are there a network, such a name, such a revision (--revision, revision=), and "
                "safetensors (pickles are refused)? Else name a folder made by save_pretrained, or "
                "go on without: the book's small BERT needs no download, small_mae(...) no weights."
            )
        raise CheckpointError(
            f"{source} (revision {revision}) could not be loaded: {reason}. {remedy}"
        ) from error
    finally:
        if quiet:
            logging.enable_progress_bar()


@contextmanager
def impatient() -> Iterator[None]:
    """A thread whose request the hub left unanswered asks it no more: what is not here is missing.

    ``huggingface_hub`` asks seven times and waits for 60 seconds each, whatever its settings.
    """
    from huggingface_hub import set_client_factory
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import _http

    usual, waiting = _http._GLOBAL_CLIENT_FACTORY, set()

    def ask(request: Any) -> None:
        if get_ident() in waiting:
            raise OfflineModeIsEnabled("the hub does not answer")
        times = {kind: t or PATIENCE for kind, t in request.extensions["timeout"].items()}
        if min(times.values()) >= PATIENCE:  # less is for what can be done without
            waiting.add(get_ident())
            request.extensions["timeout"] = dict.fromkeys(times, PATIENCE)

    def client() -> Any:
        made = usual()
        made.event_hooks["request"].append(ask)
        made.event_hooks["response"].append(lambda _: waiting.discard(get_ident()))
        return made

    set_client_factory(client)
    try:
        yield
    finally:
        set_client_factory(usual)


def pinned_revision(source: str | Path) -> str | None:
    """The commit that a name on the hub stands for here; ``None`` for a folder."""
    if Path(source).is_dir():
        return None
    if str(source) not in PINNED:
        raise ValueError(
            f"there is no folder {source} here. If it is a name on the hub, say which commit by "
            "--revision, revision=...: the weights behind a bare name can change."
        )
    return PINNED[str(source)]


def resolved_revision(source: str | Path, revision: str | None = None) -> str | None:
    """The commit that a name on the hub was loaded from, as its cache says; ``None`` for a folder."""
    from huggingface_hub import constants, try_to_load_from_cache

    if Path(source).exists():
        return None
    revision = revision or pinned_revision(source)
    place = {"revision": revision, "cache_dir": constants.HF_HUB_CACHE}
    found = try_to_load_from_cache(str(source), "config.json", **place)
    return Path(found).parent.name if isinstance(found, str) else None


def gpu() -> torch.device | None:
    return torch.device("cuda") if torch.cuda.is_available() else None


def why_not_here(name: str) -> str | None:
    """Why a page does not load ``name`` unasked: no GPU, or no network and no copy; else ``None``."""
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
