"""Data by name: what is always there, what a local folder has, what a hub has.

The folder is the one that the environment variable ``MPT_LML_DATA`` names.
"""

from mpt_lml.data.drawn import GaussianDraw, paper_gaussian
from mpt_lml.data.image_sets import Images, images
from mpt_lml.data.places import DATA_VARIABLE, CorruptDataError, DataNotFoundError
from mpt_lml.data.published import published_curves
from mpt_lml.data.texts import Sentences, bert_vocabulary, sentences
from mpt_lml.data.tokens import Tokens, encode, train_tokenizer

__all__ = [
    "DATA_VARIABLE",
    "CorruptDataError",
    "DataNotFoundError",
    "GaussianDraw",
    "Images",
    "Sentences",
    "Tokens",
    "bert_vocabulary",
    "encode",
    "images",
    "paper_gaussian",
    "published_curves",
    "sentences",
    "train_tokenizer",
]
