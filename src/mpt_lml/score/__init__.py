"""Score any masked model of tokens: the right quantity, with an honest error."""

from mpt_lml.score.answers import AnswerScores, answers
from mpt_lml.score.door import Scorer, load
from mpt_lml.score.pairs import PairScores, pairs

__all__ = ["AnswerScores", "PairScores", "Scorer", "answers", "load", "pairs"]
