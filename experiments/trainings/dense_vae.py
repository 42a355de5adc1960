"""Variational autoencoders of dense networks, B runs side by side, and their objectives.

The likelihood is normal with a stated variance. All draws are given: ``noise`` are standard normal
numbers, which make z ~ q(z | x). No value is looked at, so that on a GPU a step of a training waits for
nothing: NaN in the data is NaN in the answer.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import scores
from mpt_lml.models.vae import VAE
from mpt_lml.numerics import log_likelihood
from mpt_lml.objectives.bounds import mean_elbo

Part = Literal["encoder", "decoder"]
Parameters = Mapping[str, Tensor]


# -- networks -----------------------------------------------------------------------------------------


def dense_parameters(
    num_features: int,
    widths: Sequence[int],
    latent_dim: int,
    *,
    generators: Sequence[torch.Generator],
) -> dict[str, Tensor]:
    """Weights of dense networks with tanh units, D–widths–2K and back, in single precision.

    Weights are uniform on ±1/√in as in ``torch.nn.Linear``, biases zero.

    Args:
        num_features: D.
        widths: units of each layer of the encoder but the last; the decoder has them in reverse.
        latent_dim: K.
        generators: one for each run, B of them.

    Returns:
        ``"encoder/0/weight"`` (B, in, out), ``"encoder/0/bias"`` (B, 1, out), and so on.
    """
    encoder = draw_layers("encoder", [num_features, *widths, 2 * latent_dim], generators)
    decoder = draw_layers("decoder", [latent_dim, *widths[::-1], num_features], generators)
    return encoder | decoder


def draw_layers(
    part: Part, widths: Sequence[int], generators: Sequence[torch.Generator]
) -> dict[str, Tensor]:
    """Draw one network of :func:`dense_parameters`, with a layer from each width to the next."""
    layers = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        uniform = torch.stack([torch.rand(inputs, outputs, generator=g) for g in generators])
        layers[f"{part}/{layer}/weight"] = (2 * uniform - 1) / math.sqrt(inputs)
        layers[f"{part}/{layer}/bias"] = torch.zeros(len(generators), 1, outputs)
    return layers


def dense(
    parameters: Parameters, part: Part, inputs: Float[Tensor, "B N I"]
) -> Float[Tensor, "B N O"]:
    """The network ``part`` of every run applied to the inputs of that run."""
    num_layers = sum(name.startswith(f"{part}/") for name in parameters) // 2
    units = inputs
    for layer in range(num_layers):
        weight = parameters[f"{part}/{layer}/weight"]
        bias = parameters[f"{part}/{layer}/bias"]
        units = torch.baddbmm(bias, units, weight)
        if layer < num_layers - 1:
            units = units.tanh()
    return units


def dense_model(parameters: Parameters, run: int, noise_variance: float | None = None) -> VAE:
    """The VAE of one run of :func:`dense_parameters`.

    Args:
        parameters: of B runs.
        run: which one, in 0..B−1.
        noise_variance: σ² of a Gaussian likelihood; None for a Bernoulli one.

    Returns:
        The model, whose networks share the memory of the parameters.
    """
    of_run = {name: value[run : run + 1] for name, value in parameters.items()}
    first_weight = of_run["decoder/0/weight"]

    def apply(part: Part, inputs: Tensor) -> Tensor:
        flat = inputs.reshape(1, -1, inputs.shape[-1])
        return dense(of_run, part, flat).reshape(*inputs.shape[:-1], -1)

    def encoder(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = apply("encoder", x).chunk(2, dim=-1)
        return mean, log_variance

    model = VAE(
        encoder,
        functools.partial(apply, "decoder"),
        num_features=of_run["encoder/0/weight"].shape[1],
        latent_dim=first_weight.shape[1],
        noise_variance=noise_variance,
    )
    model._weight = first_weight
    return model


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
    return Code(mean + (0.5 * log_variance).exp() * noise, mean, log_variance)


def decode(parameters: Parameters, z: Float[Tensor, "S B N K"]) -> Float[Tensor, "S B N D"]:
    """The decoder's mean at S draws of z."""
    flat = dense(parameters, "decoder", z.transpose(0, 1).flatten(1, 2))
    return flat.unflatten(1, (z.shape[0], z.shape[2])).transpose(0, 1)


# -- objectives ---------------------------------------------------------------------------------------


def elbo(
    parameters: Parameters,
    x: Float[Tensor, "*#B N D"],
    noise: Float[Tensor, "B N K"],
    noise_variance: float,
) -> Float[Tensor, " B"]:
    """Mean ELBO of VAEs, one z a datum (Kingma & Welling 2014).

    Args:
        parameters: weights of every run.
        x: data, (N, D) or (B, N, D).
        noise: standard normal numbers that make z, (B, N, K).
        noise_variance: σ².

    Returns:
        Nats, (B,).
    """
    code = encode(parameters, x.expand(len(noise), *x.shape[-2:]), noise)
    output = dense(parameters, "decoder", code.z)
    log_p = log_likelihood(x, output, noise_variance).sum(dim=-1)
    return mean_elbo(log_p, code.mean, code.log_variance.exp())


def refill(
    parameters: Parameters,
    x: Float[Tensor, "*#B N D"],
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
    """
    filled = torch.where(mask, 0.0, x)
    for of_round in noise:
        z = encode(parameters, filled, of_round).z
        filled = torch.where(mask, dense(parameters, "decoder", z), x)
    return filled


def recursive(
    parameters: Parameters,
    x: Float[Tensor, "*#B N D"],
    mask: Bool[Tensor, "B N D"],
    filled: Float[Tensor, "B N D"],
    noise: Float[Tensor, "S B N K"],
    noise_variance: float,
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
    """
    output = decode(parameters, encode(parameters, filled, noise).z)
    log_p = log_likelihood(x, output, noise_variance)
    return mean_score(log_p.logsumexp(dim=0) - math.log(len(noise)), mask)


def mean_score(values: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N D"]) -> Float[Tensor, " B"]:
    """D times the mean over data of the scores of what is masked."""
    return mask.shape[-1] * scores._mask_score(values, mask).mean(dim=-1)
