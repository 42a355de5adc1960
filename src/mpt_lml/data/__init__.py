"""Data by name: what is always there, what a local folder has, what a hub has.

The folder is the one that the environment variable ``MPT_LML_DATA`` names.
"""

from mpt_lml.data.image_sets import Images, images
from mpt_lml.data.paper import paper_gaussian, published_curves
from mpt_lml.data.sources import CorruptDataError, DataNotFoundError

__all__ = [
    "CorruptDataError",
    "DataNotFoundError",
    "Images",
    "images",
    "paper_gaussian",
    "published_curves",
]
