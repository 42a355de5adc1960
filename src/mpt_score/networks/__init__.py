"""Networks of ``transformers``: built here at random, or loaded with care."""

from mpt_score.networks.build import (  # noqa: F401
    FIXED_POSITIONS,
    at_random,
    random_twin,
    small_mae,
    small_masked_lm,
)
from mpt_score.networks.esm import constant_scale
from mpt_score.networks.hub import (
    BERT_BASE,
    BERT_BASE_COMMIT,
    VIT_MAE_BASE,
    VIT_MAE_BASE_COMMIT,
    CheckpointError,
    require_available,
)
from mpt_score.networks.load import (  # noqa: F401
    fingerprint,
    load_network,
    load_small_bert,
    load_tokenizer,
    small_bert_folder,
)

__all__ = [
    "BERT_BASE",
    "BERT_BASE_COMMIT",
    "VIT_MAE_BASE",
    "VIT_MAE_BASE_COMMIT",
    "CheckpointError",
    "at_random",
    "constant_scale",
    "load_network",
    "load_small_bert",
    "load_tokenizer",
    "random_twin",
    "require_available",
    "small_mae",
    "small_masked_lm",
]
