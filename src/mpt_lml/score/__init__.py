"""Score any masked model of tokens: the right quantity, with an honest error."""

from mpt_lml.score.door import Scorer, load

__all__ = ["Scorer", "load"]
