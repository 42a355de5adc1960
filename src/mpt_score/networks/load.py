"""Networks and tokenizers of ``transformers``, loaded with care."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mpt_lml.files import book_file, digest
from mpt_lml.spec import require
from mpt_score.networks.hub import (
    TOKENIZER_FILES,
    WEIGHT_FILES,
    CheckpointError,
    loading,
    require_transformers,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def fingerprint(network: Any) -> str:
    """SHA-256 of a network's weights and of the configuration that says what they compute."""
    config = json.loads(network.config.to_json_string())
    return digest(json.dumps(config | {"transformers_version": None}), network.state_dict())


def load_small_bert() -> "tuple[Any, PreTrainedTokenizerBase]":
    """The book's own small BERT (2.5M parameters, see its model card) and its tokenizer.

    >>> len(load_small_bert()[1])
    6000
    """
    return load_network(small_bert_folder()), load_tokenizer(small_bert_folder())


def small_bert_folder() -> Path:
    """Where the book's own small BERT lies."""
    return book_file("results/small_bert")


def load_tokenizer(source: str | Path, *, revision: str | None = None) -> "PreTrainedTokenizerBase":
    """The tokenizer of a folder, of a ``vocab.txt``, or of a name on the hub.

    Raises ``CheckpointError`` when there is none, ``ValueError`` for a hub name without a revision.

    >>> load_tokenizer(small_bert_folder()).mask_token_id
    4
    """
    require_transformers()
    from transformers import AutoTokenizer, BertTokenizer

    require(locals(), "source path, revision? str")
    if Path(source).is_file():
        pieces = Path(source).read_text(encoding="utf-8", errors="replace").splitlines()
        if lost := {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} - set(pieces):
            raise CheckpointError(f"{source} is no vocabulary of BERT: no line is {min(lost)}.")
        return BertTokenizer(vocab={piece: n for n, piece in enumerate(pieces)}, do_lower_case=True)
    needed = "tokenizer*|vocab*|*.model"
    with loading(source, revision, needed, fetched=TOKENIZER_FILES) as how:
        return AutoTokenizer.from_pretrained(source, **how)


def load_network(source: str | Path, *, revision: str | None = None) -> Any:
    """A masked language model or a ViT-MAE from a ``save_pretrained`` folder or from the hub.

    Safetensors only, as float32. A name on the hub means the commit that the book pins, unless
    ``revision`` names another. Raises ``CheckpointError`` for a folder without a checkpoint, with
    pickled or damaged weights or code of its own, for missing weights (an encoder alone), and where
    the hub cannot be reached, ``ValueError`` for another kind of model or a name without a revision.

    >>> load_network(small_bert_folder()).config.hidden_size
    160
    """
    require_transformers()
    from transformers import AutoConfig, AutoModelForMaskedLM, ViTMAEForPreTraining

    require(locals(), "source path, revision? str")
    needed = ("config.json", "*.safetensors")
    with loading(source, revision, *needed, fetched="config.json") as how:
        config = AutoConfig.from_pretrained(source, **how)
    is_mae = config.model_type == "vit_mae"
    if not is_mae and type(config) not in AutoModelForMaskedLM._model_mapping:
        kind = f"a {config.model_type!r} model, which has no masked-LM head and is no ViT-MAE"
        raise ValueError(f"{source} is {kind}: use a model of BERT's kind.")
    loader: Any = ViTMAEForPreTraining if is_mae else AutoModelForMaskedLM
    with loading(source, revision, fetched=WEIGHT_FILES) as how:
        how |= {"config": config, "dtype": torch.float32, "use_safetensors": True}
        network, report = loader.from_pretrained(source, output_loading_info=True, **how)
    if missing := sorted(report["missing_keys"]):
        raise CheckpointError(
            f"{source} lacks {len(missing)} of the weights of {type(network).__name__}, such as "
            f"{missing[0]}; they would be random. It may be an encoder alone."
        )
    if bad := [name for name, each in network.named_parameters() if not each.isfinite().all()]:
        raise CheckpointError(f"{source} is damaged: {bad[0]} is not finite. Fetch it again.")
    return network.eval()


@contextmanager
def fast_linear(network: nn.Module) -> Iterator[None]:
    """Float32 linear layers of ``network`` on a CPU through oneDNN, where nothing is differentiated.

    PyTorch asks MKL, which does not use the widest registers of every maker's processors; there oneDNN
    takes less than half the time. Layers of another type, precision or device stay as they are.
    """
    # The operation that torch.compile puts in the place of a linear layer; it has no other name.
    product = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    changed = []
    for layer in network.modules() if product and torch.backends.mkldnn.is_available() else ():
        # A layer that others have changed keeps what they put there.
        if type(layer) is nn.Linear and "forward" not in vars(layer):
            vars(layer)["forward"] = partial(_linear, layer, product)
            changed.append(layer)
    try:
        yield
    finally:
        for layer in changed:
            del vars(layer)["forward"]


def _linear(layer: nn.Linear, product: Any, x: Tensor) -> Tensor:
    plain = x.dtype == layer.weight.dtype == torch.float32 and x.device.type == "cpu"
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not plain or x.numel() == 0:
        return functional.linear(x, layer.weight, layer.bias)
    return product(x, layer.weight, layer.bias, "none", [], "")
