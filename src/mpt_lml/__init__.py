"""Masked pre-training and the marginal likelihood: the package behind the book."""

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

# Before torch is loaded: OpenMP's idle threads sleep after microseconds. By default they spin on, which
# beside other busy processes takes the cores from those that work. A setting of the user's
# wins, of either variable: GNU's OpenMP lets GOMP_SPINCOUNT overrule OMP_WAIT_POLICY.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from mpt_lml import (
    curves,
    data,
    estimators,
    fit,
    gaussian,
    grids,
    masks,
    objectives,
    orders,
    page,
    recorded,
    scores,
    theory,
    verdicts,
)
from mpt_lml.models.base import ConditionalModel, FromFunction, Grouped, TractableModel
from mpt_lml.models.grammar import Grammar
from mpt_lml.models.hmm import HMM
from mpt_lml.models.mixture import BernoulliPCA, GridConditional
from mpt_lml.models.ppca import PPCA
from mpt_lml.models.regression import ConjugateRegression
from mpt_lml.models.tables import ConditionalTable, JointTable
from mpt_lml.models.vae import VAE
from mpt_lml.recorded import load
from mpt_lml.results import Estimate, MaskCurve

if TYPE_CHECKING:
    from mpt_lml import drawings, plots, symbolic

__all__ = [
    "HMM",
    "PPCA",
    "VAE",
    "BernoulliPCA",
    "ConditionalModel",
    "ConditionalTable",
    "ConjugateRegression",
    "Estimate",
    "FromFunction",
    "Grammar",
    "GridConditional",
    "Grouped",
    "JointTable",
    "MaskCurve",
    "TractableModel",
    "curves",
    "data",
    "drawings",
    "estimators",
    "fit",
    "gaussian",
    "grids",
    "load",
    "masks",
    "objectives",
    "orders",
    "page",
    "plots",
    "recorded",
    "scores",
    "symbolic",
    "theory",
    "verdicts",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    """`drawings`, `plots` and `symbolic` bring matplotlib and SymPy when they are used."""
    if name in ("drawings", "plots", "symbolic"):
        return importlib.import_module(f"mpt_lml.{name}")
    raise AttributeError(f"module 'mpt_lml' has no attribute {name!r}")
