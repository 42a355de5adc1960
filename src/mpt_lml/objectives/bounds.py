"""The evidence lower bound of an encoder with independent normal z."""

from jaxtyping import Float
from torch import Tensor


def mean_elbo(
    log_likelihood: Float[Tensor, "... N"],
    mean: Float[Tensor, "... N K"],
    variance: Float[Tensor, "... #N K"],
) -> Float[Tensor, "..."]:
    """``log_likelihood`` less KL(N(mean, diag variance) ‖ N(0, I)), mean over the data, nats.

    Kingma & Welling 2014, Appendix B.
    """
    divergence = 0.5 * (mean.square() + variance - variance.log() - 1.0).sum(dim=-1)
    return (log_likelihood - divergence).mean(dim=-1)
