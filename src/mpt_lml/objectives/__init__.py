"""Training objectives as pure functions of parameters, in nats a datum (floor 3).

All of them are *maximized* and comparable with the mean log p(x). The functions named here are those
of PPCA; ``objectives.bernoulli`` has the ones of Bernoulli PCA and ``objectives.vae`` those of VAEs.
"""

from mpt_lml.objectives import bernoulli, vae
from mpt_lml.objectives.ppca import (
    curve,
    exact,
    log_marginal,
    mask_scores,
    sampled,
    second_moment,
    weighted_masks,
)

__all__ = [
    "bernoulli",
    "curve",
    "exact",
    "log_marginal",
    "mask_scores",
    "sampled",
    "second_moment",
    "vae",
    "weighted_masks",
]
