"""Training objectives of VAEs as pure functions, in nats a datum (floor 3).

Parameters are those of :func:`mpt_lml.models.vae.dense_parameters`: a leading axis B holds runs.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.models.vae import Parameters, dense, divergence_from_prior, log_likelihood


def elbo(
    parameters: Parameters,
    x: Float[Tensor, "#B N D"] | Float[Tensor, "N D"],
    noise: Float[Tensor, "B N K"],
    noise_variance: float | None,
) -> Float[Tensor, " B"]:
    """Mean ELBO with one reparameterized z a datum, shape (B,); Bernoulli where σ² is None."""
    batch = noise.shape[0]
    mean, log_variance = _encode(parameters, x.expand(batch, *x.shape[-2:]))
    z = mean + (0.5 * log_variance).exp() * noise
    fit = log_likelihood(x, dense(parameters, "decoder", z), noise_variance).sum(dim=-1)
    return (fit - divergence_from_prior(mean, log_variance.exp())).mean(dim=-1)


def recursive(
    parameters: Parameters,
    x: Float[Tensor, "#B N D"] | Float[Tensor, "N D"],
    mask: Bool[Tensor, "B N D"],
    noise: Float[Tensor, "R B N K"],
    noise_variance: float | None,
) -> Float[Tensor, " B"]:
    """D times the mean of (1/M) Σ_{j∈A} log p(x_j | z_R), z_R after R encodings and decodings, (B,).

    The paper's masked training of a deep VAE, with the conditionals of Rezende et al. 2014
    (Appendix F): hidden coordinates start at 0, z ~ q(z | filled x), hidden coordinates are replaced by
    the decoder's mean, and so on. The gradient goes through the last encoding and decoding only;
    earlier rounds fill in the holes as a constant. log p(x_j | z) at one z is in expectation below
    log E_z p(x_j | z) (Jensen), so this is a bound on the conditionals of the chain, not on those of
    the model.
    """
    filled = torch.where(mask, 0.0, x)
    output = filled
    rounds = len(noise)
    for number, draw in enumerate(noise):
        with torch.set_grad_enabled(torch.is_grad_enabled() and number == rounds - 1):
            mean, log_variance = _encode(parameters, filled)
            output = dense(parameters, "decoder", mean + (0.5 * log_variance).exp() * draw)
        expected = output.sigmoid() if noise_variance is None else output
        filled = torch.where(mask, expected.detach(), x)
    values = log_likelihood(x, output, noise_variance).where(mask, 0.0)
    scores = values.sum(dim=-1) / mask.sum(dim=-1)
    return x.shape[-1] * scores.mean(dim=-1)


def _encode(
    parameters: Parameters, x: Float[Tensor, "B N D"]
) -> tuple[Float[Tensor, "B N K"], Float[Tensor, "B N K"]]:
    mean, log_variance = dense(parameters, "encoder", x).chunk(2, dim=-1)
    return mean, log_variance
