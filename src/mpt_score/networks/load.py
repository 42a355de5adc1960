"""Networks and tokenizers of ``transformers``, loaded with care."""

import json
import logging
from pathlib import Path
from typing import Any

import torch

from mpt_lml.checks import checked
from mpt_lml.files import book_file, digest
from mpt_score.networks import antiberty
from mpt_score.networks.esm import constant_scale, has_token_dropout
from mpt_score.networks.hub import (
    ANTIBERTY,
    TOKENIZER_FILES,
    WEIGHT_FILES,
    CheckpointError,
    Source,
    loading,
    require_no_revision,
    require_transformers,
    resolved_revision,
)
from mpt_score.networks.kinds import Network, Tokenizer

_log = logging.getLogger(__name__)
_SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def fingerprint(network: Network) -> str:
    """SHA-256 of a network's weights and of the configuration that says what they compute."""
    config = json.loads(network.config.to_json_string())
    # The same weights compute the same whichever version has saved them.
    config["transformers_version"] = None
    return digest(json.dumps(config), network.state_dict())


def load_small_bert() -> tuple[Any, Tokenizer]:
    """The book's own small BERT (2.5M parameters, see its model card) and its tokenizer.

    >>> len(load_small_bert()[1])
    6000
    """
    return load_network(small_bert_folder()), load_tokenizer(small_bert_folder())


def small_bert_folder() -> Path:
    """Where the book's own small BERT lies."""
    return book_file("results/small_bert")


@checked
def load_tokenizer(source: Source, *, revision: str | None = None) -> Tokenizer:
    """The tokenizer of a folder, of a ``vocab.txt``, or of a name on the hub.

    Args:
        source: the folder, the file, or the name; or ``antiberty``, as for :func:`load_network`.
        revision: of a name, its commit, tag or branch; by default the newest commit, which is said.

    Raises:
        CheckpointError: when there is none.
        ValueError: for a revision of a folder or a file.

    >>> load_tokenizer(small_bert_folder()).mask_token_id
    4
    """
    require_transformers()
    from transformers import AutoTokenizer, BertTokenizer

    if source == ANTIBERTY:
        return antiberty.load_tokenizer(revision)
    if Path(source).is_file():
        require_no_revision(f"the file {source}", revision)
        pieces = Path(source).read_text(encoding="utf-8", errors="replace").splitlines()
        missing = set(_SPECIAL_PIECES) - set(pieces)
        if missing:
            raise CheckpointError(f"{source} is no vocabulary of BERT: no line is {min(missing)}.")
        return BertTokenizer(vocab={piece: n for n, piece in enumerate(pieces)}, do_lower_case=True)
    needed = "tokenizer*|vocab*|*.model"
    with loading(source, revision, needed, fetched=TOKENIZER_FILES) as folder:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@checked
def load_network(source: Source, *, revision: str | None = None) -> Any:
    """A masked language model or a ViT-MAE from a ``save_pretrained`` folder or from the hub.

    Safetensors only, as float32. The factor of an ESM's ``token_dropout`` is taken out, which is said
    (:func:`~mpt_score.networks.esm.constant_scale`).

    The name ``antiberty`` is that of a Python package whose wheel carries the weights of a BERT for
    antibodies: version 0.1.3, MIT licence, Ruffolo, Gray & Sulam (2021). No hub is asked for it:
    ``pip install --no-deps antiberty==0.1.3``. Its texts are chains of residues.

    Args:
        source: the folder, or the name on the hub; or ``antiberty``.
        revision: of a name, its commit, tag or branch; by default the newest commit, which is said.

    Returns:
        The network, in evaluation mode.

    Raises:
        CheckpointError: for a folder without a checkpoint, with pickled or damaged weights or code of
            its own, for missing weights (an encoder alone), and where the hub cannot be reached.
        ValueError: for another kind of model, and for a revision of a folder.

    >>> load_network(small_bert_folder()).config.hidden_size
    160
    """
    require_transformers()
    from transformers import (
        MODEL_FOR_MASKED_LM_MAPPING,
        AutoConfig,
        AutoModelForMaskedLM,
        ViTMAEForPreTraining,
    )

    if source == ANTIBERTY:
        return antiberty.load_network(revision)
    with loading(source, revision, "config.json", "*.safetensors", fetched="config.json") as folder:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    is_mae = config.model_type == "vit_mae"
    if not is_mae and type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        kind = f"a {config.model_type!r} model, which has no masked-LM head and is no ViT-MAE"
        raise ValueError(f"{source} is {kind}: use a model of BERT's kind.")
    loader: Any = ViTMAEForPreTraining if is_mae else AutoModelForMaskedLM
    # A branch may move while its files are fetched: the weights are those of the configuration.
    commit = resolved_revision(source, revision)
    with loading(source, commit, fetched=WEIGHT_FILES) as folder:
        network, report = loader.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    _require_whole(source, network, report["missing_keys"])
    if has_token_dropout(network):
        constant_scale(network)
        _log.warning(
            "%s: token_dropout is taken out. This ESM multiplies what it shows by 0.88 / (1 - hidden "
            "share), which is 1 in training and 8.8 where 90 %% are hidden; here it is 1.",
            source,
        )
    return network.eval()


def _require_whole(source: str | Path, network: Any, missing_keys: set[str]) -> None:
    """Refuse weights that are not there, which ``transformers`` draws at random, or not finite."""
    missing = sorted(missing_keys)
    if missing:
        raise CheckpointError(
            f"{source} lacks {len(missing)} of the weights of {type(network).__name__}, such as "
            f"{missing[0]}; they would be random. It may be an encoder alone."
        )
    for name, parameter in network.named_parameters():
        if not parameter.isfinite().all():
            raise CheckpointError(f"{source} is damaged: {name} is not finite. Fetch it again.")
