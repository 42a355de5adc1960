"""Masked pre-training and the marginal likelihood: the package behind the book.

Every model answers one question: given the observed coordinates of x, what is log p(x_j | x_R) for each
masked coordinate j? Everything else is arithmetic on the answers.

Letters are the same everywhere. A mask hides a set A of M coordinates; R is the rest, which is
observed. N data of D coordinates meet P masks; where B stands in place of both, each datum has its own
mask. A public function refuses arguments that do not fit its annotations (``@checked``). The same name
with an underscore in front is its arithmetic without these checks, for calls from inside.

A model computes where its numbers are. Data have to be there, masks and other indices follow them, and
results are there, too. Generators are on the CPU, so that draws are the same on every device.

The spine, in the order in which a stranger should read it:

* ``scores``: the mean over the masked coordinates, and its relatives.
* ``masks``: which coordinates are hidden; a law of the size is an object.
* ``models.base``: what a model is, and what follows from its answers.
* ``models.tables``: the smallest models, by enumeration.
* ``curves``: the score at every size, and the area under it.
* ``results``: a number with its error, and a curve.
* ``estimators.area``: log p(x) from masks, exactly and by sampling.
* ``models.ppca``: probabilistic PCA.
* ``gaussian``: its posterior and conditionals for a batch of masks.

Behind it, as a chapter needs them:

* ``objectives``: what training maximizes, in nats a datum.
* ``fit``: Adam and BFGS for several runs side by side.
* ``models.trial``: whether a user's function answers as conditionals do.
* ``models.hmm``: hidden Markov models.
* ``grids``: integrals over one to three latent dimensions.
* ``models.mixture``: models on a grid, Bernoulli PCA first.
* ``models.vae``: deep latent variable models.
* ``models.regression``: coordinates that are outputs of a regression.
* ``models.row_network``: a network that guesses hidden rows of a table.
* ``estimators``: log p(x) of models with a latent variable.
* ``orders``: log q along orders, and bounds.
* ``theory.rates``: the shape of a curve, and what one rate tells.
* ``theory.chains``: masks and blocks of a Markov chain.
* ``theory.godambe``: how efficient training at some sizes is.
* ``theory.diffusion``: masked diffusion as the same area.
* ``data``: images, the paper's own draw, the authors' curves.
* ``recorded``: what the long runs of the book have found.
* ``verdicts``: a number with its error, judged.
* ``plots``: curves as figures.
* ``drawings``: pictures of masks and orders.
* ``page``: numbers of a cell in the text beside it.

Below all of them lie ``checks`` (arguments are refused at the door), ``numerics`` and ``files``.
"""

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

# Before torch is loaded: OpenMP's idle threads sleep after microseconds. By default they spin on, which
# beside other busy processes takes the cores from those that work. A setting of the user's
# wins, of either variable: GNU's OpenMP lets GOMP_SPINCOUNT overrule OMP_WAIT_POLICY.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from mpt_lml import curves, data, estimators, masks, objectives, orders, scores
from mpt_lml.curves import exact_curve, sampled_curve
from mpt_lml.models.base import ConditionalModel, FromFunction, Grouped, TractableModel
from mpt_lml.models.hmm import HMM
from mpt_lml.models.mixture import BernoulliPCA, GridConditional
from mpt_lml.models.ppca import PPCA
from mpt_lml.models.regression import ConjugateRegression
from mpt_lml.models.tables import ConditionalTable, JointTable
from mpt_lml.models.vae import VAE
from mpt_lml.recorded import load
from mpt_lml.results import Estimate, MaskCurve

if TYPE_CHECKING:
    from mpt_lml import plots

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
    "GridConditional",
    "Grouped",
    "JointTable",
    "MaskCurve",
    "TractableModel",
    "curves",
    "data",
    "estimators",
    "exact_curve",
    "load",
    "masks",
    "objectives",
    "orders",
    "plots",
    "sampled_curve",
    "scores",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    """Modules that no public name here needs are brought when they are used, matplotlib's above all."""
    if name.startswith("_"):
        raise AttributeError(f"module 'mpt_lml' has no attribute {name!r}")
    try:
        return importlib.import_module(f"mpt_lml.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"mpt_lml.{name}":
            raise
        raise AttributeError(f"module 'mpt_lml' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    """Names that completion shows; all other modules are imported by their names."""
    return __all__
