"""Score texts with any masked model: the right quantity, with an honest error.

The modules, in the order in which a text meets them on its way from the command to its score. A program
begins at ``quantities``, where each public function has its module:

* ``command``: the options of ``mpt-score``, which ``command_line`` reads.
* ``score_file``: its run: the ``lines`` of a file, a part at a time, are scored, written and summed up.
* ``loading``: from a name, a folder, a network or a function to a scorer.
* ``scorer``: a model with its tokenizer and the longest row that it takes.
* ``quantities``: what is asked of texts, pairs, answers, words and curves, and how it is summed.
* ``tokens``: texts as rows of ids, and which places are scored.
* ``rows``: texts cut to rows, what of a row is hidden, and batches of rows, equal ones asked once.
* ``functions``: a function as a model of tokens, which is tried before it is believed.
* ``networks.masked_lm``: a network as a model of tokens, the conventions of its family included.
* ``output``: the records of a run, from which it goes on; ``summaries`` of them are printed.

Beside the way:

* ``texts``: sentences by name or from files.
* ``networks``: networks of ``transformers``, built or loaded.
* ``networks.symbol_bert``: a small BERT of symbols, for the book's known language.
* ``networks.vit_mae``: masked autoencoders of images.
* ``antibodies``: what a network says of one chain, residue by residue.

``lm_eval`` and ``masked_log_score`` are bridges to lm-evaluation-harness and to ``evaluate``.

The words: what is asked is a *model*, a *network* of ``transformers`` or a function. A *row* is a line
of tokens that goes through it, a *masked row* that line under one mask, and a *pass* one masked row. The
lines of a file are scored in *parts*, the texts of a call in *chunks* of like length, and rows in
*batches* of one shape. What a run writes are *records*.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# As mpt_lml does it, before torch is loaded: waiting threads soon sleep.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from mpt_score import networks, texts, tokens
    from mpt_score.loading import load
    from mpt_score.networks.masked_lm import MaskedLM
    from mpt_score.quantities.answer_scores import AnswerScores, answers
    from mpt_score.quantities.contrasts import Contrast
    from mpt_score.quantities.design import Design
    from mpt_score.quantities.pair_scores import Accuracy, PairScores, pairs
    from mpt_score.quantities.sentence_curves import SentenceCurves, curve
    from mpt_score.quantities.sentence_scores import SentenceScores, passes, sentences
    from mpt_score.quantities.token_scores import TokenScores, surprisals
    from mpt_score.scorer import Scorer

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
    "Accuracy": "quantities.pair_scores",
    "AnswerScores": "quantities.answer_scores",
    "Contrast": "quantities.contrasts",
    "Design": "quantities.design",
    "MaskedLM": "networks.masked_lm",
    "PairScores": "quantities.pair_scores",
    "Scorer": "scorer",
    "SentenceCurves": "quantities.sentence_curves",
    "SentenceScores": "quantities.sentence_scores",
    "TokenScores": "quantities.token_scores",
    "answers": "quantities.answer_scores",
    "curve": "quantities.sentence_curves",
    "load": "loading",
    "pairs": "quantities.pair_scores",
    "passes": "quantities.sentence_scores",
    "sentences": "quantities.sentence_scores",
    "surprisals": "quantities.token_scores",
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
