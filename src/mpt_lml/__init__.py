"""Masked pre-training and the marginal likelihood: the package behind the book."""

from mpt_lml import curves, data, estimators, gaussian, masks, plots, scores
from mpt_lml.models.joint_table import JointTable
from mpt_lml.models.ppca import PPCA

__all__ = [
    "PPCA",
    "JointTable",
    "curves",
    "data",
    "estimators",
    "gaussian",
    "masks",
    "plots",
    "scores",
]
__version__ = "0.1.0"
