"""Estimates of log p(x), and of conditionals that have no closed form."""

from mpt_lml.estimators.area import area, exact, exact_variance
from mpt_lml.estimators.conditionals import GibbsConditional, ImportanceConditional
from mpt_lml.estimators.latent import at_mode, from_encoder, from_prior, iwae, log_weights

__all__ = [
    "GibbsConditional",
    "ImportanceConditional",
    "area",
    "at_mode",
    "exact",
    "exact_variance",
    "from_encoder",
    "from_prior",
    "iwae",
    "log_weights",
]
