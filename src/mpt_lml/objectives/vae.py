"""Training objectives of VAEs as pure functions, in nats per datum (floor 3).

Parameters are those of :func:`mpt_lml.models.vae.dense_parameters`: a leading axis B holds runs.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import scores
from mpt_lml.models.vae import Parameters, dense, divergence_from_prior, log_likelihood


def elbo(
    parameters: Parameters,
    x: Float[Tensor, "#B N D"] | Float[Tensor, "N D"],
    noise: Float[Tensor, "B N K"],
    noise_variance: float | None,
) -> Float[Tensor, " B"]:
    """Mean ELBO with one reparameterized z per datum, shape (B,); Bernoulli where σ² is None."""
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
    *,
    samples: int = 1,
    from_decoder: bool = False,
    pixel_noise: Float[Tensor, "r B N D"] | None = None,
    gradient: Literal["last", "all", "decoder"] = "last",
) -> Float[Tensor, " B"]:
    """D times the mean of (1/M) Σ_{j∈A} log (1/S) Σ_s p(x_j | z_s), after rounds of refilling, (B,).

    The paper's masked training of a deep VAE, with the conditionals of Rezende et al. 2014
    (Appendix F): hidden coordinates start at 0, z ~ q(z | filled x), hidden coordinates are replaced by
    the decoder's mean, and so on; in the last round ``samples`` draws z_s are scored. For one of them
    the logarithm is in expectation below that of the chain's average (Jensen), so this bounds the
    conditionals of the chain, not those of the model.

    Parameters
    ----------
    noise : Tensor (rounds − 1 + samples, B, N, K)
        The last ``samples`` belong to the last round.
    from_decoder : bool
        Start at the decoder's output at z = 0 instead of at 0.
    pixel_noise : Tensor (rounds − 1, B, N, D), optional
        Refill with draws of the decoder (Gaussian likelihood) instead of its mean.
    gradient : "last", "all" or "decoder"
        Through the last round (the fillings are constants), through all rounds, or through the last
        decoding only: then nothing here trains the encoder.
    """
    _require_draws(noise, samples)
    batch, before = mask.shape[0], len(noise) - samples
    if pixel_noise is not None and (noise_variance is None or len(pixel_noise) != before):
        raise ValueError(
            f"refilling with draws needs a Gaussian likelihood and pixel_noise for {before} rounds, "
            f"got noise_variance={noise_variance} and {len(pixel_noise)}."
        )

    def filled_with(output: Tensor) -> Tensor:
        return torch.where(mask, output.sigmoid() if noise_variance is None else output, x)

    with torch.set_grad_enabled(torch.is_grad_enabled() and gradient == "all"):
        filled = torch.where(mask, 0.0, x)
        if from_decoder:
            filled = filled_with(
                dense(parameters, "decoder", noise.new_zeros(batch, 1, noise.shape[-1]))
            )
        for number in range(before):
            mean, log_variance = _encode(parameters, filled)
            output = dense(parameters, "decoder", mean + (0.5 * log_variance).exp() * noise[number])
            if pixel_noise is not None and noise_variance is not None:
                output = output + math.sqrt(noise_variance) * pixel_noise[number]
            filled = filled_with(output)
    mean, log_variance = _encode(parameters, filled)
    z = mean + (0.5 * log_variance).exp() * noise[before:]
    factors = log_likelihood(
        x, _decode(parameters, z.detach() if gradient == "decoder" else z), noise_variance
    )
    return _score(factors.logsumexp(dim=0) - math.log(samples), mask)


def partial(
    parameters: Parameters,
    x: Float[Tensor, "#B N D"] | Float[Tensor, "N D"],
    mask: Bool[Tensor, "B N D"],
    noise: Float[Tensor, "S B N K"],
    noise_variance: float | None,
    *,
    weighted: bool = True,
) -> Float[Tensor, " B"]:
    """D times the mean of (1/M) Σ_{j∈A} log Σ_s w̄_s p(x_j | z_s), z_s ~ q(z | x_R), (B,).

    The encoder sees x_R, with zeros in the holes (MIWAE, Mattei & Frellsen 2019), and the mask (as the
    network of x_R in VAEAC, Ivanov et al. 2019; ``partial`` in
    :func:`mpt_lml.models.vae.dense_parameters`).
    Weights w̄_s ∝ p(x_R, z_s)/q(z_s | x_R) make the conditionals consistent as S grows. The decoder
    follows the score, the encoder the ELBO of x_R alone, whose best answer is p(z | x_R). With
    ``weighted`` false all w̄_s are 1/S and both networks follow the score.
    """
    _require_draws(noise, 1)
    seen = torch.where(mask, 0.0, x)
    mean, log_variance = _encode(parameters, torch.cat([seen, mask.to(seen)], dim=-1))
    z = mean + (0.5 * log_variance).exp() * noise
    if not weighted:
        factors = log_likelihood(x, _decode(parameters, z), noise_variance)
        return _score(factors.logsumexp(dim=0) - math.log(len(noise)), mask)
    fixed = z.detach()
    factors = log_likelihood(x, _decode(parameters, fixed), noise_variance)
    log_q = -0.5 * (noise.square() + log_variance.detach()).sum(dim=-1)
    joint = factors.where(~mask, 0.0).sum(dim=-1) - 0.5 * fixed.square().sum(dim=-1)
    weight = (joint - log_q).log_softmax(dim=0)
    score = _score((weight[..., None] + factors).logsumexp(dim=0), mask)
    held = {name: value.detach() for name, value in parameters.items()}
    fit = log_likelihood(x, dense(held, "decoder", z[0]), noise_variance).where(~mask, 0.0)
    bound = fit.sum(dim=-1) - divergence_from_prior(mean, log_variance.exp())
    own = bound.mean(dim=-1)
    return score + own - own.detach()


def _score(values: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N D"]) -> Float[Tensor, " B"]:
    """D times the mean over masked coordinates, then over data."""
    return mask.shape[-1] * scores.mask_score(values, mask).mean(dim=-1)


def _require_draws(noise: Tensor, samples: int) -> None:
    if not 1 <= samples <= len(noise):
        raise ValueError(f"{samples} draws of z are asked for and noise holds {len(noise)}.")


def _encode(
    parameters: Parameters, x: Float[Tensor, "B N I"]
) -> tuple[Float[Tensor, "B N K"], Float[Tensor, "B N K"]]:
    mean, log_variance = dense(parameters, "encoder", x).chunk(2, dim=-1)
    return mean, log_variance


def _decode(parameters: Parameters, z: Float[Tensor, "S B N K"]) -> Float[Tensor, "S B N D"]:
    flat = dense(parameters, "decoder", z.transpose(0, 1).flatten(1, 2))
    return flat.unflatten(1, (z.shape[0], z.shape[2])).transpose(0, 1)
