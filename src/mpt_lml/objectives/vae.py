"""Objectives of variational autoencoders whose weights ``vae.dense_parameters`` makes, B runs at once.

The likelihood is normal with a stated variance. All draws are given: ``noise`` are standard normal
numbers, which make z ~ q(z | x). No value is looked at, so that on a GPU a step of a training waits for
nothing: NaN in the data is NaN in the answer.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import scores
from mpt_lml.checks import Positive, check, checked, require_one_dtype
from mpt_lml.models.vae import Parameters, dense, network_sizes
from mpt_lml.numerics import log_normal, require_variance
from mpt_lml.objectives.bounds import mean_elbo

_Data = Float[Tensor, "... N D"]  # the same for every run, (N, D), or (B, N, D)


@checked(finite=False)
def elbo(
    parameters: Parameters,
    x: _Data,
    noise: Float[Tensor, "B N K"],
    noise_variance: Positive,
) -> Float[Tensor, " B"]:
    """Mean ELBO of VAEs, one z a datum (Kingma & Welling 2014).

    Args:
        parameters: weights of every run.
        x: data, (N, D) or (B, N, D).
        noise: standard normal numbers that make z, (B, N, K).
        noise_variance: σ².

    Returns:
        Nats, (B,).

    Raises:
        ValueError: for weights of other dimensions.

    >>> from mpt_lml.models.vae import dense_parameters
    >>> weights = dense_parameters(3, [4], 1, generators=[torch.Generator().manual_seed(0)])
    >>> zero = {name: 0 * value for name, value in weights.items()}  # q(z | x) = p(z), a mean of 0
    >>> elbo(zero, torch.zeros(2, 3), torch.zeros(1, 2, 1), 1.0)  # 3 log N(0; 0, 1)
    tensor([-2.7568])
    """
    _require_fit(parameters, x, noise, noise_variance)
    code = encode(parameters, x.expand(len(noise), *x.shape[-2:]), noise)
    output = dense(parameters, "decoder", code.z)
    log_p = log_likelihood(x, output, noise_variance).sum(dim=-1)
    return mean_elbo(log_p, code.mean, code.log_variance.exp())


@checked(finite=False)
def refill(
    parameters: Parameters,
    x: _Data,
    mask: Bool[Tensor, "B N D"],
    noise: Float[Tensor, "r B N K"],
) -> Float[Tensor, "B N D"]:
    """x with its hidden coordinates replaced by what the VAE makes of them, r rounds one after another.

    The recursive encoding and decoding of Rezende et al. 2014, Appendix F, by which the paper trains a
    deep VAE: hidden coordinates begin at 0; z ~ q(z | filled x), then they become the decoder's mean
    at z. Wrap it in ``torch.no_grad()`` to train the last round only.

    Args:
        parameters: weights of every run.
        x: data, (N, D) or (B, N, D).
        mask: one mask a datum and run, (B, N, D); True means masked.
        noise: standard normal numbers that make z, (r, B, N, K); r = 0 leaves zeros.

    Returns:
        (B, N, D).

    Raises:
        ValueError: for weights of other dimensions.

    >>> from mpt_lml.models.vae import dense_parameters
    >>> weights = dense_parameters(3, [4], 1, generators=[torch.Generator().manual_seed(0)])
    >>> weights["decoder/1/bias"] += 0.5  # at z = 0 its decoder's mean is 1/2
    >>> weights["encoder/1/weight"] *= 0
    >>> refill(weights, torch.ones(1, 3), torch.eye(3).bool()[None, :1], torch.zeros(1, 1, 1, 1))
    tensor([[[0.5000, 1.0000, 1.0000]]])
    """
    _require_fit(parameters, x, noise)
    filled = torch.where(mask, 0.0, x)
    for of_round in noise:
        z = encode(parameters, filled, of_round).z
        filled = torch.where(mask, dense(parameters, "decoder", z), x)
    return filled


@checked(finite=False)
def recursive(
    parameters: Parameters,
    x: _Data,
    mask: Bool[Tensor, "B N D"],
    filled: Float[Tensor, "B N D"],
    noise: Float[Tensor, "S B N K"],
    noise_variance: Positive,
) -> Float[Tensor, " B"]:
    """D times the mean of (1/M) Σ_{j∈A} log (1/S) Σ_s p(x_j | z_s), z_s ~ q(z | filled x).

    The paper's masked training of a deep VAE, after the rounds of :func:`refill`. A mask that hides
    nothing makes it NaN.

    Args:
        parameters: weights of every run.
        x: data, (N, D) or (B, N, D).
        mask: one mask a datum and run, (B, N, D); True means masked.
        filled: x with something in its hidden coordinates, (B, N, D).
        noise: standard normal numbers that make z, (S, B, N, K).
        noise_variance: σ².

    Returns:
        Nats, (B,).

    Raises:
        ValueError: for weights of other dimensions.

    >>> from mpt_lml.models.vae import dense_parameters
    >>> weights = dense_parameters(3, [4], 1, generators=[torch.Generator().manual_seed(0)])
    >>> zero = {name: 0 * value for name, value in weights.items()}  # its decoder's mean is 0
    >>> x, mask = torch.zeros(1, 3), torch.eye(3).bool()[None, :1]
    >>> recursive(zero, x, mask, x[None], torch.zeros(1, 1, 1, 1), 1.0)  # 3 log N(0; 0, 1)
    tensor([-2.7568])
    """
    _require_fit(parameters, x, noise, noise_variance)
    output = decode(parameters, encode(parameters, filled, noise).z)
    log_p = log_likelihood(x, output, noise_variance)
    return mean_score(log_p.logsumexp(dim=0) - math.log(len(noise)), mask)


def _require_fit(
    parameters: Parameters, x: Tensor, noise: Tensor, noise_variance: float | None = None
) -> None:
    """Check that networks fit each other, and data and draws the networks."""
    if noise_variance is not None:
        require_variance("noise_variance", float(noise_variance), x.dtype)
    sizes = network_sizes(parameters)
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


def log_likelihood(x: Tensor, output: Tensor, noise_variance: float) -> Tensor:
    """log N(x; ``output``, σ²), without a copy from the CPU, for which a GPU would wait."""
    return log_normal(x - output, x.new_full((), noise_variance))


def mean_score(values: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N D"]) -> Float[Tensor, " B"]:
    """D times the mean over data of the scores of what is masked."""
    return mask.shape[-1] * scores._mask_score(values, mask).mean(dim=-1)


class Code(NamedTuple):
    """Draws of z, and the normal distribution that they are from."""

    z: Float[Tensor, "... B N K"]
    mean: Float[Tensor, "B N K"]
    log_variance: Float[Tensor, "B N K"]


def encode(
    parameters: Parameters, x: Float[Tensor, "B N I"], noise: Float[Tensor, "... B N K"]
) -> Code:
    """Draws z ~ q(z | x) that are made of ``noise``."""
    mean, log_variance = dense(parameters, "encoder", x).chunk(2, dim=-1)
    latent_dim = mean.shape[-1]
    if noise.shape[-1] != latent_dim:
        raise ValueError(f"noise must have K = {latent_dim} numbers, got {tuple(noise.shape)}.")
    return Code(mean + (0.5 * log_variance).exp() * noise, mean, log_variance)


def decode(parameters: Parameters, z: Float[Tensor, "S B N K"]) -> Float[Tensor, "S B N D"]:
    """The decoder's mean at S draws of z."""
    flat = dense(parameters, "decoder", z.transpose(0, 1).flatten(1, 2))
    return flat.unflatten(1, (z.shape[0], z.shape[2])).transpose(0, 1)
