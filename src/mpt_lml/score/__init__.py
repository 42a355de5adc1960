"""Score any masked model of tokens, or of images: the right quantity, with an honest error."""

from mpt_lml.score.answers import AnswerScores, answers
from mpt_lml.score.curve import SentenceCurves, curve
from mpt_lml.score.design import Design
from mpt_lml.score.door import Scorer, load
from mpt_lml.score.images import ImageScores, images
from mpt_lml.score.pairs import PairScores, pairs
from mpt_lml.score.sentences import SentenceScores, sentences

__all__ = [
    "AnswerScores",
    "Design",
    "ImageScores",
    "PairScores",
    "Scorer",
    "SentenceCurves",
    "SentenceScores",
    "answers",
    "curve",
    "images",
    "load",
    "pairs",
    "sentences",
]
