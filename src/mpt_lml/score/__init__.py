"""Score any masked model of tokens: the right quantity, with an honest error."""

from mpt_lml.score.curve import SentenceCurves, curve
from mpt_lml.score.design import Design
from mpt_lml.score.door import Scorer, load

__all__ = ["Design", "Scorer", "SentenceCurves", "curve", "load"]
