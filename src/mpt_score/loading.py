"""What can be scored with: a folder, a name on the hub, a network, or a function.

A masked language model of ``transformers`` comes by its folder, by its name or loaded; what needs
code of its own (LLaDA, MDLM and others) comes as a function.
"""

from pathlib import Path
from typing import Any

import torch

from mpt_lml.checks import Count, check, checked
from mpt_score import networks
from mpt_score.functions import TokenFunction
from mpt_score.networks.hub import Source, gpu
from mpt_score.networks.kinds import Tokenizer
from mpt_score.networks.masked_lm import MaskedLM, Precision
from mpt_score.scorer import Scorer


@checked
def load(
    model: Any,
    tokenizer: Any = None,
    *,
    revision: str | None = None,
    device: str = "auto",
    precision: Precision = "float32",
    max_tokens: Count = 8192,
    max_length: Count | None = None,
    identity: str | None = None,
) -> Scorer:
    """A :class:`Scorer` of whatever can say log q(x_j | x_R).

    Args:
        model: a folder made by ``save_pretrained``; a name on the hub; a loaded network; a
            :class:`~mpt_score.MaskedLM` or a :class:`Scorer`, taken as they are; or a function (ids
            (B, L) int64, mask (B, L) bool, True = masked) → log-probabilities (B, L, V), nats. The
            function is shown the tokenizer's mask token where ``mask`` is True; without one it must
            not read ``ids`` there, which is tried once.
        tokenizer: of ``transformers``, or its folder or name; by default that of the folder or name.
        revision: the commit of a name on the hub; by default the one that the book pins.
        device: "auto" is a GPU where there is one for what is loaded here, and where a loaded network
            is.
        precision: of a network's products.
        max_tokens: tokens that go through a network or function at a time.
        max_length: tokens of the longest row, special ones counted; at most, and by default, those
            that a network has positions for.
        identity: what a function is called where its results are kept.

    Raises:
        OSError: as ``networks.load_network``.
        ValueError: as ``networks.load_network``, for a network without its tokenizer, for a device
            that cannot be used, and for rows longer than the network takes.
        TypeError: for anything else and for a network without a masked-LM head.

    >>> load(networks.small_bert_folder()).max_length
    64
    """
    if isinstance(model, Scorer):
        return model
    _require_device(device)
    for name, value in (("model", model), ("tokenizer", tokenizer)):
        if isinstance(value, str | Path):
            check((name, value, Source))
    if isinstance(model, str | Path):
        tokenizer = model if tokenizer is None else tokenizer
        model = networks.load_network(model, revision=revision)
        device = str(gpu() or "cpu") if device == "auto" else device
    if isinstance(tokenizer, str | Path):
        tokenizer = networks.load_tokenizer(tokenizer, revision=revision)
    check(("tokenizer", tokenizer, Tokenizer | None))
    if isinstance(model, MaskedLM):
        return _scorer_of_masked_lm(model, tokenizer, max_length, None)
    if isinstance(model, torch.nn.Module) and hasattr(model, "config"):
        if tokenizer is None:
            raise ValueError(f"a loaded {type(model).__name__} needs its tokenizer=.")
        network: Any = model if device == "auto" else model.to(device)
        masked_lm = MaskedLM.of(network, tokenizer, precision=precision, batch_tokens=max_tokens)
        return _scorer_of_masked_lm(masked_lm, tokenizer, max_length, max_tokens)
    if not callable(model):
        raise TypeError(
            "model must be a folder, a name on the hub, a network, a MaskedLM or a function (ids, "
            f"mask) -> log-probabilities, got {type(model).__name__}."
        )
    function = TokenFunction(model, getattr(tokenizer, "mask_token_id", None))
    return Scorer(function, tokenizer, max_length, max_tokens, identity)


def _require_device(device: str) -> None:
    try:
        torch.empty(0, device="cpu" if device == "auto" else device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} cannot be used here: {error}") from error


def _scorer_of_masked_lm(
    model: MaskedLM, tokenizer: Any, max_length: int | None, max_tokens: int | None
) -> Scorer:
    longest = model.max_length
    if max_length is not None and longest is not None and max_length > longest:
        raise ValueError(f"max_length {max_length} is more than the network's {longest}.")
    return Scorer(model, tokenizer, max_length or longest, max_tokens)
