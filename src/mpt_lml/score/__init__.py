"""Score any masked model of tokens, or of images: the right quantity, with an honest error."""

from mpt_lml.score.curve import SentenceCurves, curve
from mpt_lml.score.design import Design
from mpt_lml.score.door import Scorer, load
from mpt_lml.score.images import ImageScores, images
from mpt_lml.score.sentences import SentenceScores, sentences

__all__ = [
    "Design",
    "ImageScores",
    "Scorer",
    "SentenceCurves",
    "SentenceScores",
    "curve",
    "images",
    "load",
    "sentences",
]
