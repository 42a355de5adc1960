"""Estimates of log p(x), and of conditionals that have no closed form (floor 4).

``orders``: exact values, areas of curves, random orders and sizes, for any model with conditionals.
``proposals``: where to look for p(z | x).
``latent``: importance weighting and annealing, for models that are an integral over z.
``conditionals``: log p(x_j | x_R) of such models, on a grid or by sampling.
"""

from mpt_lml.estimators.conditionals import (
    GibbsConditional,
    GridConditional,
    ImportanceConditional,
)
from mpt_lml.estimators.latent import ais, iwae, log_mean_of, log_weights
from mpt_lml.estimators.orders import (
    area,
    exact,
    exact_variance,
    ordered_chain,
    random_size,
)
from mpt_lml.estimators.proposals import (
    GaussianProposal,
    ProposalRule,
    at_mode,
    from_encoder,
    from_prior,
)

__all__ = [
    "GaussianProposal",
    "GibbsConditional",
    "GridConditional",
    "ImportanceConditional",
    "ProposalRule",
    "ais",
    "area",
    "at_mode",
    "exact",
    "exact_variance",
    "from_encoder",
    "from_prior",
    "iwae",
    "log_mean_of",
    "log_weights",
    "ordered_chain",
    "random_size",
]
