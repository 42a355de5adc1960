"""Objectives of variational autoencoders whose weights ``vae.dense_parameters`` makes, B runs at once.

Without a noise variance the likelihood is Bernoulli. All draws are given: ``noise`` are standard normal
numbers, which make z ~ q(z | x).
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import scores
from mpt_lml.checks import (
    Positive,
    check,
    checked,
    require_binary,
    require_finite,
    require_mask,
    require_one_dtype,
)
from mpt_lml.models.vae import Parameters, dense, network_sizes
from mpt_lml.numerics import log_normal, require_variance, softplus
from mpt_lml.objectives.bounds import mean_elbo

_Data = Float[Tensor, "... N D"]  # the same for every run, (N, D), or (B, N, D)


@checked(finite=False)
def elbo(
    parameters: Parameters,
    x: _Data,
    noise: Float[Tensor, "B N K"],
    noise_variance: Positive | None,
) -> Float[Tensor, " B"]:
    """Mean ELBO of VAEs, one z a datum (Kingma & Welling 2014).

    Args:
        parameters: weights of every run.
        x: data, (N, D) or (B, N, D).
        noise: (B, N, K).
        noise_variance: σ² of a Gaussian likelihood; None: Bernoulli.

    Returns:
        Nats, (B,).

    Raises:
        ValueError: for x that is not 0 or 1 under a Bernoulli likelihood, and for weights of other
            dimensions.

    >>> from mpt_lml.models.vae import dense_parameters
    >>> weights = dense_parameters(3, [4], 1, generators=[torch.Generator().manual_seed(0)])
    >>> zero = {
    ...     name: 0 * value for name, value in weights.items()
    ... }  # p(x | z) = 1/8, q(z | x) = p(z)
    >>> elbo(zero, torch.ones(2, 3), torch.zeros(1, 2, 1), None).exp()
    tensor([0.1250])
    """
    _require_data(parameters, x, noise, noise_variance)
    return _elbo(parameters, x, noise, noise_variance)


def _elbo(
    parameters: Parameters, x: Tensor, noise: Tensor, noise_variance: float | None
) -> Float[Tensor, " B"]:
    code = _encode(parameters, x.expand(len(noise), *x.shape[-2:]), noise)
    output = dense(parameters, "decoder", code.z)
    log_p = _log_likelihood(x, output, noise_variance).sum(dim=-1)
    return mean_elbo(log_p, code.mean, code.log_variance.exp())


@checked(finite=False)
def refill(
    parameters: Parameters,
    x: _Data,
    mask: Bool[Tensor, "B N D"],
    noise: Float[Tensor, "r B N K"],
    noise_variance: Positive | None,
    *,
    from_decoder: bool = False,
    pixel_noise: Float[Tensor, "r B N D"] | None = None,
) -> Float[Tensor, "B N D"]:
    """x with its hidden coordinates replaced by what the VAE makes of them, r rounds one after another.

    The recursive encoding and decoding of Rezende et al. 2014, Appendix F, by which the paper trains a
    deep VAE: z ~ q(z | filled x), then the hidden coordinates become the decoder's mean at z. Wrap it in
    ``torch.no_grad()`` to train the last round only.

    Args:
        parameters: weights of every run.
        x: data, (N, D) or (B, N, D).
        mask: one mask a datum and run, (B, N, D); True means masked.
        noise: (r, B, N, K); r = 0 leaves the start.
        noise_variance: σ² of a Gaussian likelihood; None: Bernoulli.
        from_decoder: start the hidden coordinates at the decoder's mean at z = 0 instead of at 0.
        pixel_noise: (r, B, N, D); with it they become draws from p(x | z) instead of its mean.

    Returns:
        (B, N, D).

    Raises:
        ValueError: for x that is not 0 or 1 under a Bernoulli likelihood, and for ``pixel_noise``
            without a noise variance.

    >>> from mpt_lml.models.vae import dense_parameters
    >>> weights = dense_parameters(3, [4], 1, generators=[torch.Generator().manual_seed(0)])
    >>> zero = {name: 0 * value for name, value in weights.items()}  # its decoder's mean is 1/2
    >>> refill(zero, torch.ones(1, 3), torch.eye(3).bool()[None, :1], torch.zeros(1, 1, 1, 1), None)
    tensor([[[0.5000, 1.0000, 1.0000]]])
    """
    _require_data(parameters, x, noise, noise_variance)
    if pixel_noise is not None and noise_variance is None:
        raise ValueError("refilling with pixel_noise needs a noise_variance, got None.")
    return _refill(
        parameters,
        x,
        mask,
        noise,
        noise_variance,
        from_decoder=from_decoder,
        pixel_noise=pixel_noise,
    )


def _refill(
    parameters: Parameters,
    x: Tensor,
    mask: Tensor,
    noise: Tensor,
    noise_variance: float | None,
    *,
    from_decoder: bool = False,
    pixel_noise: Tensor | None = None,
) -> Float[Tensor, "B N D"]:
    def filled_with(output: Tensor) -> Tensor:
        return torch.where(mask, output.sigmoid() if noise_variance is None else output, x)

    filled = torch.where(mask, 0.0, x)
    if from_decoder:
        origin = noise.new_zeros(len(mask), 1, noise.shape[-1])
        filled = filled_with(dense(parameters, "decoder", origin))
    for number in range(len(noise)):
        z = _encode(parameters, filled, noise[number]).z
        output = dense(parameters, "decoder", z)
        if pixel_noise is not None and noise_variance is not None:
            output = output + math.sqrt(noise_variance) * pixel_noise[number]
        filled = filled_with(output)
    return filled


@checked(finite=False)
def recursive(
    parameters: Parameters,
    x: _Data,
    mask: Bool[Tensor, "B N D"],
    filled: Float[Tensor, "B N D"],
    noise: Float[Tensor, "S B N K"],
    noise_variance: Positive | None,
    *,
    train_encoder: bool = True,
) -> Float[Tensor, " B"]:
    """D times the mean of (1/M) Σ_{j∈A} log (1/S) Σ_s p(x_j | z_s), z_s ~ q(z | filled x).

    The paper's masked training of a deep VAE, after the rounds of :func:`refill`.

    Args:
        parameters: weights of every run.
        x: data, (N, D) or (B, N, D).
        mask: one mask a datum and run, (B, N, D); True means masked.
        filled: x with something in its hidden coordinates, (B, N, D).
        noise: (S, B, N, K).
        noise_variance: σ² of a Gaussian likelihood; None: Bernoulli.
        train_encoder: False keeps the derivative from the encoder and what was filled in.

    Returns:
        Nats, (B,).

    Raises:
        ValueError: for x that is not 0 or 1 under a Bernoulli likelihood.

    >>> from mpt_lml.models.vae import dense_parameters
    >>> weights = dense_parameters(3, [4], 1, generators=[torch.Generator().manual_seed(0)])
    >>> zero = {name: 0 * value for name, value in weights.items()}  # its decoder's mean is 1/2
    >>> x, mask = torch.ones(1, 3), torch.eye(3).bool()[None, :1]
    >>> recursive(zero, x, mask, x[None], torch.zeros(1, 1, 1, 1), None).exp()
    tensor([0.1250])
    """
    _require_data(parameters, x, noise, noise_variance)
    require_mask(mask)
    return _recursive(
        parameters, x, mask, filled, noise, noise_variance, train_encoder=train_encoder
    )


def _recursive(
    parameters: Parameters,
    x: Tensor,
    mask: Tensor,
    filled: Tensor,
    noise: Tensor,
    noise_variance: float | None,
    *,
    train_encoder: bool = True,
) -> Float[Tensor, " B"]:
    z = _encode(parameters, filled, noise).z
    output = _decode(parameters, z if train_encoder else z.detach())
    log_p = _log_likelihood(x, output, noise_variance)
    return _mean_score(log_p.logsumexp(dim=0) - math.log(len(noise)), mask)


@checked(finite=False)
def partial(
    parameters: Parameters,
    x: _Data,
    mask: Bool[Tensor, "B N D"],
    noise: Float[Tensor, "S B N K"],
    noise_variance: Positive | None,
    *,
    weighted: bool = True,
) -> Float[Tensor, " B"]:
    """D times the mean of (1/M) Σ_{j∈A} log Σ_s w̄_s p(x_j | z_s), z_s ~ q(z | x_R).

    The encoder sees x_R with zeros in the holes (MIWAE, Mattei & Frellsen 2019) and the mask (VAEAC,
    Ivanov et al. 2019).

    Args:
        parameters: weights of every run, of a ``partial`` encoder.
        x: data, (N, D) or (B, N, D).
        mask: one mask a datum and run, (B, N, D); True means masked.
        noise: (S, B, N, K).
        noise_variance: σ² of a Gaussian likelihood; None: Bernoulli.
        weighted: weights w̄_s ∝ p(x_R, z_s)/q(z_s | x_R); the decoder follows the score, the encoder
            the ELBO of x_R. Otherwise all w̄_s are 1/S and both follow the score.

    Returns:
        Nats, (B,).

    Raises:
        ValueError: for x that is not 0 or 1 under a Bernoulli likelihood.

    >>> from mpt_lml.models.vae import dense_parameters
    >>> g = [torch.Generator().manual_seed(0)]
    >>> weights = dense_parameters(3, [4], 1, generators=g, partial=True)
    >>> zero = {name: 0 * value for name, value in weights.items()}  # its decoder's mean is 1/2
    >>> x, mask = torch.ones(1, 3), torch.eye(3).bool()[None, :1]
    >>> partial(zero, x, mask, torch.zeros(1, 1, 1, 1), None).exp()
    tensor([0.1250])
    """
    _require_data(parameters, x, noise, noise_variance, partial=True)
    require_mask(mask)
    return _partial(parameters, x, mask, noise, noise_variance, weighted=weighted)


def _partial(
    parameters: Parameters,
    x: Tensor,
    mask: Tensor,
    noise: Tensor,
    noise_variance: float | None,
    *,
    weighted: bool = True,
) -> Float[Tensor, " B"]:
    observed = torch.where(mask, 0.0, x)
    code = _encode(parameters, torch.cat([observed, mask.to(observed)], dim=-1), noise)
    if not weighted:
        log_p = _log_likelihood(x, _decode(parameters, code.z), noise_variance)
        values = log_p.logsumexp(dim=0) - math.log(len(noise))
        return _mean_score(values, mask)

    z = code.z.detach()
    log_p = _log_likelihood(x, _decode(parameters, z), noise_variance)
    log_q = -0.5 * (noise.square() + code.log_variance.detach()).sum(dim=-1)
    log_joint = log_p.where(~mask, 0.0).sum(dim=-1) - 0.5 * z.square().sum(dim=-1)
    log_weight = (log_joint - log_q).log_softmax(dim=0)
    values = (log_weight[..., None] + log_p).logsumexp(dim=0)
    score = _mean_score(values, mask)

    # The value is the score's; the encoder's derivative is that of the ELBO of x_R, for which the
    # decoder is held.
    held = {name: value.detach() for name, value in parameters.items()}
    log_p_held = _log_likelihood(x, dense(held, "decoder", code.z[0]), noise_variance)
    log_p_observed = log_p_held.where(~mask, 0.0).sum(dim=-1)
    encoder_elbo = mean_elbo(log_p_observed, code.mean, code.log_variance.exp())
    return score + encoder_elbo - encoder_elbo.detach()


def _require_data(
    parameters: Parameters,
    x: Tensor,
    noise: Tensor,
    noise_variance: float | None,
    *,
    partial: bool = False,
) -> None:
    """Check that networks fit each other, data and draws the networks, and data the likelihood.

    A ``partial`` encoder reads x_R and the mask.
    """
    if noise_variance is None:
        require_binary(x)
    else:
        require_finite("x", x)
        require_variance("noise_variance", float(noise_variance), x.dtype)
    sizes = network_sizes(parameters)
    if sizes.is_partial != partial:
        wanted = "partial=True" if partial else "partial=False"
        raise ValueError(
            f"parameters have an encoder of another kind: vae.dense_parameters(..., {wanted}) makes "
            "the one that is needed here."
        )
    check(("x", x, _Data), finite=False, D=sizes.num_features)
    num_runs = sizes.num_runs
    if x.ndim > 2 and (x.ndim > 3 or len(x) not in (1, num_runs)):
        raise ValueError(
            f"x must have shape (N, D), or (B, N, D) with the B = {num_runs} runs of parameters, got "
            f"{tuple(x.shape)}."
        )
    if noise.shape[-3] != num_runs:
        raise ValueError(
            f"noise must have an axis of the B = {num_runs} runs of parameters, got "
            f"{tuple(noise.shape)}."
        )
    require_one_dtype(noise=noise, **parameters)


def _log_likelihood(x: Tensor, output: Tensor, noise_variance: float | None) -> Tensor:
    """``numerics.log_likelihood`` without a copy from the CPU, which a CUDA graph could not hold."""
    if noise_variance is None:
        return x * output - softplus(output)
    return log_normal(x - output, x.new_full((), noise_variance))


def _mean_score(values: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N D"]) -> Float[Tensor, " B"]:
    return mask.shape[-1] * scores._mask_score(values, mask).mean(dim=-1)


class _Code(NamedTuple):
    """Draws of z, and the normal distribution that they are from."""

    z: Float[Tensor, "... B N K"]
    mean: Float[Tensor, "B N K"]
    log_variance: Float[Tensor, "B N K"]


def _encode(
    parameters: Parameters, x: Float[Tensor, "B N I"], noise: Float[Tensor, "... B N K"]
) -> _Code:
    mean, log_variance = dense(parameters, "encoder", x).chunk(2, dim=-1)
    latent_dim = mean.shape[-1]
    if noise.shape[-1] != latent_dim:
        raise ValueError(f"noise must have K = {latent_dim} numbers, got {tuple(noise.shape)}.")
    return _Code(mean + (0.5 * log_variance).exp() * noise, mean, log_variance)


def _decode(parameters: Parameters, z: Float[Tensor, "S B N K"]) -> Float[Tensor, "S B N D"]:
    flat = dense(parameters, "decoder", z.transpose(0, 1).flatten(1, 2))
    return flat.unflatten(1, (z.shape[0], z.shape[2])).transpose(0, 1)
