"""Score any masked model of tokens: the right quantity, with an honest error."""

from mpt_lml.score.answers import AnswerScores, answers
from mpt_lml.score.curve import SentenceCurves, curve
from mpt_lml.score.design import Design
from mpt_lml.score.door import Scorer, load
from mpt_lml.score.pairs import PairScores, pairs

__all__ = [
    "AnswerScores",
    "Design",
    "PairScores",
    "Scorer",
    "SentenceCurves",
    "answers",
    "curve",
    "load",
    "pairs",
]
