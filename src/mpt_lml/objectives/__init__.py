"""Training objectives as functions of parameters, nats a datum, one number for each of B runs.

All are *maximized* and comparable with the mean log p(x): D Σ_M ν(M) S(x; M) for a law ν of mask sizes,
the LML itself for the uniform law (Proposition 1). What is not finite in parameters is passed on, since
training stops there and says where. Data that are not finite are refused.
"""

from mpt_lml.objectives.bernoulli import linear_elbo, mixture
from mpt_lml.objectives.ppca import (
    curve,
    exact,
    log_marginal,
    mask_scores,
    sampled,
    second_moment,
)

__all__ = [
    "curve",
    "exact",
    "linear_elbo",
    "log_marginal",
    "mask_scores",
    "mixture",
    "sampled",
    "second_moment",
]
