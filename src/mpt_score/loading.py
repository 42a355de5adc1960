"""What can be scored with: a folder, a name on the hub, a network, or a function.

A masked language model of ``transformers`` comes by its folder, by its name or loaded; what needs
code of its own (LLaDA, MDLM and others) comes as a function, or as the ``module:function`` where it
is.
"""

from pathlib import Path
from typing import Any

import torch

from mpt_lml.checks import Count, check, checked
from mpt_score import networks
from mpt_score.functions import TokenFunction
from mpt_score.networks.devices import gpu, require_device
from mpt_score.networks.hub import Source, require_no_revision, resolved_revision
from mpt_score.networks.kinds import Tokenizer
from mpt_score.networks.masked_lm import MAX_TOKENS_ON_CPU, MaskedLM
from mpt_score.networks.precision import Precision, cast, precision_of
from mpt_score.outside import is_outside_name, outside_model
from mpt_score.scorer import Scorer

SMALL_BERT = "small-bert"
"""The book's own small BERT, which comes with the package; a folder of that name is ``./small-bert``."""


@checked
def load(
    model: Any,
    tokenizer: Any = None,
    *,
    revision: str | None = None,
    device: str = "auto",
    precision: Precision | None = None,
    max_tokens: Count | None = None,
    max_length: Count | None = None,
) -> Scorer:
    """A :class:`Scorer` of whatever can say log q(x_j | x_R).

    Args:
        model: a folder made by ``save_pretrained``; a name on the hub; ``small-bert``, the book's own,
            which is good for trying; ``antiberty``, a BERT for antibodies (see
            ``networks.load_network``); a loaded network, or a pipeline of
            ``transformers`` that holds one with its tokenizer (of a network that ``torch.compile`` has
            wrapped the one inside is taken); a
            :class:`~mpt_score.MaskedLM` or a :class:`Scorer`, taken as they are; a function (ids
            (B, L) int64, mask (B, L) bool, True = masked) → log-probabilities (B, L, V), nats; or
            ``"module:function"``, of a module in the current folder or an installed one, which names
            such a function, or one without arguments that returns it, alone or with its tokenizer.
            The function is shown the tokenizer's mask token where ``mask`` is True; without one it
            must not read ``ids`` there, which is tried at the start, with most tokens hidden and with
            one, and again in each longer row. It gets copies, on the CPU.
        tokenizer: of ``transformers``, or its folder or name; by default that of the folder or name.
        revision: of a name on the hub, its commit, tag or branch; by default the newest commit, which
            is said. Of a function's or loaded network's tokenizer, where that is a name.
        device: "auto" is a CUDA GPU where there is one for what is loaded here, and where a loaded
            network is.
        precision: of a network's weights and products; by default what its device computes fast, as
            of :class:`~mpt_score.MaskedLM`: "float32" on a CPU. A loaded network that has another
            one is copied, not changed.
        max_tokens: tokens that go through a network or function at a time; by default 8192, and
            65536 through a network on a GPU.
        max_length: tokens of the longest row, special ones counted; at most, and by default, those
            that a network has positions for.

    Raises:
        OSError: as ``networks.load_network``.
        ValueError: as ``networks.load_network``, for a module or function that is not there or fails, for
            a network without its tokenizer, for a device that cannot be used, and for rows longer
            than the network takes.
        TypeError: for anything else and for a network without a masked-LM head.

    >>> load("small-bert").max_length
    64
    """
    if isinstance(model, Scorer):
        require_no_revision("a Scorer", revision)
        return model
    if _is_pipeline(model):
        tokenizer = model.tokenizer if tokenizer is None else tokenizer
        model = model.model
    if isinstance(model, torch.nn.Module):
        # torch.compile wraps a network; its graphs would be made anew for each shape of a batch.
        model = getattr(model, "_orig_mod", model)
    if device != "auto":
        require_device(device)
    for name, value in (("model", model), ("tokenizer", tokenizer)):
        if isinstance(value, str | Path):
            check((name, value, Source))
    settings: dict[str, Any] = {}
    function_name: str | None = None
    if is_outside_name(model) and not Path(model).exists():
        settings["source"] = model
        outside = outside_model(model)
        model = outside.model
        tokenizer = outside.tokenizer if tokenizer is None else tokenizer
        function_name = outside.identity
        if isinstance(model, Scorer):
            require_no_revision(settings["source"], revision)
            return model
    is_loaded_here = isinstance(model, str | Path)
    if is_loaded_here:
        source = str(model)
        is_own_tokenizer = tokenizer is None or str(tokenizer) == source
        tokenizer = source if is_own_tokenizer else tokenizer
        place = _place_of(source)
        model = networks.load_network(place, revision=revision)
        commit = resolved_revision(place, revision)
        revision = (commit or revision) if is_own_tokenizer else None
        settings |= {"source": source, "commit": commit}
        device = str(gpu() or "cpu") if device == "auto" else device
    elif not isinstance(tokenizer, str | Path):
        require_no_revision(settings.get("source", f"a loaded {type(model).__name__}"), revision)
    if isinstance(tokenizer, str | Path):
        tokenizer = networks.load_tokenizer(_place_of(tokenizer), revision=revision)
    check(("tokenizer", tokenizer, Tokenizer | None))
    if isinstance(model, MaskedLM):
        return _scorer_of_masked_lm(model, tokenizer, max_length, settings)
    if isinstance(model, torch.nn.Module) and hasattr(model, "config"):
        if tokenizer is None:
            raise ValueError(
                f"a loaded {type(model).__name__} needs its tokenizer (tokenizer=, --tokenizer)."
            )
        if device.startswith("mps") and model.dtype == torch.float64:
            raise ValueError(
                f"a {type(model).__name__} in double precision cannot be on Apple's GPUs, which have "
                "none. Give network.float(), or device='cpu'."
            )
        network: Any = model if device == "auto" else model.to(device)
        if is_loaded_here:
            precision = precision_of(network, precision)
            network = cast(network, precision)
        masked_lm = MaskedLM.of(network, tokenizer, precision=precision, max_tokens=max_tokens)
        return _scorer_of_masked_lm(masked_lm, tokenizer, max_length, settings)
    if not callable(model):
        raise TypeError(
            "model must be a folder, a name on the hub, a network, a MaskedLM, a function (ids, "
            "mask) -> log-probabilities or 'module:function' that names one, got "
            f"{type(model).__name__}."
        )
    function = TokenFunction(model, getattr(tokenizer, "mask_token_id", None))
    settings["max_tokens"] = max_tokens or MAX_TOKENS_ON_CPU
    return Scorer(function, tokenizer, max_length, function_name=function_name, **settings)


def _place_of(source: str | Path) -> str | Path:
    """The folder of the book's own small BERT for its name; else what is given."""
    return networks.small_bert_folder() if source == SMALL_BERT else source


def _is_pipeline(model: Any) -> bool:
    """Whether it is a pipeline of ``transformers``; by name, as its import takes seconds."""
    return "Pipeline" in {base.__name__ for base in type(model).__mro__}


def _scorer_of_masked_lm(
    model: MaskedLM, tokenizer: Any, max_length: int | None, settings: dict[str, Any]
) -> Scorer:
    longest = model.max_length
    if max_length is not None and longest is not None and max_length > longest:
        raise ValueError(f"max_length {max_length} is more than the network's {longest}.")
    return Scorer(model, tokenizer, max_length or longest, **settings)
