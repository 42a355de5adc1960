"""Score texts with any masked model: the right quantity, with an honest error.

The modules, in the order in which a stranger should read them:

* ``tokens``: texts as rows of ids, and which places are scored.
* ``texts``: sentences by name or from files.
* ``networks``: networks of ``transformers``, built or loaded.
* ``networks.masked_lm``: a network as a conditional model, the conventions of its family included.
* ``networks.symbol_bert``: a small BERT of symbols, for the book's known language.
* ``networks.vit_mae``: masked autoencoders of images.
* ``trainings.small_bert``: the training of the book's own BERT, from nothing.
* ``trainings.known_language``: that of a BERT of symbols, and what it lacks of the source.
* ``trainings.small_mae``: that of a small masked autoencoder.
* ``scorer``: a network with its tokenizer.
* ``loading``: from a name, a folder or a function to a scorer.
* ``design``: at which rates or sizes texts are masked.
* ``sentence_curves``: the mask-rate curve of texts.
* ``rows``: rows of tokens with places to score, and how a model is asked about many together.
* ``estimate``: orders and masks of a text, and the error of its log-score.
* ``sentence_scores``: log-scores and pseudo-log-likelihoods of texts.
* ``pair_scores``: which of two texts is the likelier.
* ``answer_scores``: which answer follows a question.
* ``token_scores``: the surprisal of each token.
* ``contrasts``: differences of conditions, item by item.
* ``antibodies``: what a network says of one chain, residue by residue.
* ``command``: ``mpt-score``; ``lm_eval`` and ``masked_log_score`` are bridges to other harnesses.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# As mpt_lml does it, before torch is loaded: waiting threads soon sleep.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from mpt_score import networks, texts, tokens
    from mpt_score.answer_scores import AnswerScores, answers
    from mpt_score.contrasts import Contrast
    from mpt_score.design import Design
    from mpt_score.loading import load
    from mpt_score.networks.masked_lm import MaskedLM
    from mpt_score.pair_scores import Accuracy, PairScores, pairs
    from mpt_score.scorer import Scorer
    from mpt_score.sentence_curves import SentenceCurves, curve
    from mpt_score.sentence_scores import SentenceScores, passes, sentences
    from mpt_score.token_scores import TokenScores, surprisals

__all__ = [
    "Accuracy",
    "AnswerScores",
    "Contrast",
    "Design",
    "MaskedLM",
    "PairScores",
    "Scorer",
    "SentenceCurves",
    "SentenceScores",
    "TokenScores",
    "answers",
    "curve",
    "load",
    "networks",
    "pairs",
    "passes",
    "sentences",
    "surprisals",
    "texts",
    "tokens",
]

# No name here is also a module's, so that what is brought late cannot be shadowed by its module.
_HOMES = {
    "Accuracy": "pair_scores",
    "AnswerScores": "answer_scores",
    "Contrast": "contrasts",
    "Design": "design",
    "MaskedLM": "networks.masked_lm",
    "PairScores": "pair_scores",
    "Scorer": "scorer",
    "SentenceCurves": "sentence_curves",
    "SentenceScores": "sentence_scores",
    "TokenScores": "token_scores",
    "answers": "answer_scores",
    "curve": "sentence_curves",
    "load": "loading",
    "pairs": "pair_scores",
    "passes": "sentence_scores",
    "sentences": "sentence_scores",
    "surprisals": "token_scores",
}


def __getattr__(name: str) -> Any:
    """Bring a public name when it is used: ``mpt-score --help`` needs no torch."""
    if name in ("networks", "texts", "tokens"):
        return import_module(f"mpt_score.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'mpt_score' has no attribute {name!r}")
    value = getattr(import_module(f"mpt_score.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, before they are brought: for ``dir`` and for completion by a key."""
    return [*globals(), *__all__]
