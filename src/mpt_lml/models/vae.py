"""Models with a latent z and a Bernoulli or Gaussian likelihood, and variational autoencoders."""

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.numerics import LOG_2PI, log_likelihood
from mpt_lml.spec import (
    require,
    require_answer,
    require_binary,
    require_count,
    require_dtype,
    require_entries,
)

Encoder = Callable[[Tensor], tuple[Tensor, Tensor]]
Decoder = Callable[[Tensor], Tensor]
Part = Literal["encoder", "decoder"]
Parameters = Mapping[str, Tensor]


class LatentVariableModel(ABC):
    """p(x, z) = N(z; 0, I_K) Π_d p(x_d | z): what has to be integrated over z to be known.

    x_d is Bernoulli, or Gaussian where there is a ``noise_variance``. A subclass writes ``_decoded``:
    logits or means of x, (..., D), from z (..., K).
    """

    num_features: int  # D
    latent_dim: int  # K
    noise_variance: float | None = None  # σ²
    _dtype: torch.dtype | None = None  # of z, where the model says it

    @abstractmethod
    def _decoded(self, z: Tensor) -> Tensor: ...

    def decode(self, z: Float[Tensor, "... K"]) -> Float[Tensor, "... D"]:
        """Mean of p(x | z): probabilities or Gaussian means, (..., D)."""
        output = self._decoded(z)
        return output.sigmoid() if self.noise_variance is None else output

    def log_factors(self, x: Tensor, z: Float[Tensor, "*S N K"]) -> Float[Tensor, "*S N D"]:
        """log p(x_d | z) for every datum and its own z, nats, (..., N, D)."""
        self.require_data(x)
        require(locals(), "x N D, z ... N K", finite=False, D=self.num_features)
        return log_likelihood(x, self._decoded(z), self.noise_variance)

    def log_table(self, x: Tensor, nodes: Float[Tensor, "G K"]) -> Float[Tensor, "G N D"]:
        """log p(x_d | z_g), nats, (G, N, D); every node is decoded once, whatever N.

        Raises ``ValueError`` for a decoder that is not finite at a node.
        """
        require(locals(), "x N D, nodes G K", finite=False, D=self.num_features)
        output = self._decoded(nodes)
        bad, remedy = ~output.detach().isfinite(), "Look at its weights."
        require_entries("the decoder's output at the nodes", output.detach(), bad, "finite", remedy)
        return log_likelihood(x, output[:, None, :], self.noise_variance)

    def sample_given(self, z: Tensor, *, generator: torch.Generator) -> Float[Tensor, "*S D"]:
        """One x ~ p(x | z) for every z (..., K), (..., D)."""
        require(locals(), "generator, z ... K", K=self.latent_dim)
        mean = self.decode(z)
        if self.noise_variance is None:
            noise = torch.rand(mean.shape, generator=generator, dtype=mean.dtype)
            return (noise < mean).to(mean)
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
        return mean + math.sqrt(self.noise_variance) * noise

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is (N, D), finite, and zeros and ones where there is no σ²."""
        require(locals(), "x N D", D=self.num_features)
        if self.noise_variance is None:
            require_binary(x)

    def log_prior(self, z: Float[Tensor, "*S K"]) -> Float[Tensor, "*S"]:
        """log N(z; 0, I), nats."""
        require(locals(), "z ... K", finite=False, K=self.latent_dim)
        return -0.5 * (z.square().sum(dim=-1) + self.latent_dim * LOG_2PI)

    def log_joint(
        self, x: Tensor, z: Float[Tensor, "*S N K"], observed: Tensor | None = None
    ) -> Float[Tensor, "*S N"]:
        """log p(x_R, z), nats, (..., N); R is everything unless ``observed`` says otherwise."""
        factors = self.log_factors(x, z)
        require(locals(), "x N D, bool observed? ... D", finite=False)
        if observed is not None and any(
            size not in (1, wanted)
            for size, wanted in itertools.zip_longest(
                observed.shape[::-1], factors.shape[::-1], fillvalue=1
            )
        ):
            raise ValueError(
                f"observed must have shape {tuple(factors.shape)}, or 1 in some axes, got "
                f"{tuple(observed.shape)}."
            )
        seen = factors if observed is None else factors.where(observed, 0.0)
        return self.log_prior(z) + seen.sum(dim=-1)


@final
class VAE(LatentVariableModel):
    """z ~ N(0, I_K), x_d | z from a decoder network; q(z | x) = N(m(x), diag v(x)) from an encoder.

    Kingma & Welling 2014; Rezende et al. 2014; paper, Figure 3, lower row. Neither log p(x) nor
    log p(x_j | x_R) has a closed form: see ``mpt_lml.estimators``, and ``GridConditional``.

    ``encoder`` maps (N, D) to mean and log-variance (N, K), ``decoder`` (..., K) to (..., D): logits
    for a Bernoulli likelihood, means for a Gaussian one, which alone has a ``noise_variance`` σ² > 0.
    log p(x) depends on it: a mean squared error is not a likelihood until it is chosen.

    Raises ``ValueError`` when the networks do not map between D and K dimensions.

    >>> parameters = dense_parameters(5, [4], 2, generators=[torch.Generator().manual_seed(0)])
    >>> model = dense_model(parameters, 0, 0.5)
    >>> model.decode(torch.zeros(3, 2)).shape
    torch.Size([3, 5])
    """

    def __init__(
        self,
        encoder: Encoder,
        decoder: Decoder,
        *,
        num_features: int,
        latent_dim: int,
        noise_variance: float | None = None,
    ) -> None:
        require(locals(), "encoder Callable, decoder Callable, num_features 1.., latent_dim 1..")
        require(locals(), "noise_variance? (0,inf)")
        self.encoder, self.decoder = encoder, decoder
        weights = decoder.parameters() if isinstance(decoder, torch.nn.Module) else ()
        self._dtype = next((each.dtype for each in weights), None)
        self.num_features, self.latent_dim = num_features, latent_dim
        self.noise_variance = noise_variance

    def encode(self, x: Float[Tensor, "... D"]) -> tuple[Tensor, Tensor]:
        """Mean and variance of q(z | x), both (..., K)."""
        require(locals(), "x ... D", finite=False, D=self.num_features)
        output = self.encoder(x)
        if not isinstance(output, tuple | list) or len(output) != 2:
            raise TypeError(f"encoder must return a mean and a log-variance, got {output!r}.")
        mean, log_variance = output
        wanted = (*x.shape[:-1], self.latent_dim)
        require_answer("the encoder's mean", mean, wanted, slope=False)
        require_answer("the encoder's log-variance", log_variance, wanted, slope=False)
        return mean, log_variance.exp()

    def _decoded(self, z: Tensor) -> Tensor:
        require(locals(), "z ... K", finite=False, K=self.latent_dim)
        try:
            output = self.decoder(z)
        except RuntimeError as error:
            if "shapes cannot be multiplied" in str(error):
                said = f"the decoder does not take z of K = {self.latent_dim} numbers"
                raise ValueError(f"{said}: {error}. Check latent_dim.") from error
            if "dtype" not in str(error):
                raise
            raise TypeError(f"the decoder is of another precision than z, {z.dtype}.") from error
        wanted = (*z.shape[:-1], self.num_features)
        require_answer("the decoder's output", output, wanted, slope=False)
        return output


def dense_parameters(
    num_features: int,
    hidden: Sequence[int],
    latent_dim: int,
    *,
    generators: Sequence[torch.Generator],
    partial: bool = False,
) -> dict[str, Tensor]:
    """Weights of dense networks with tanh units, D–hidden–2K and back, one run a generator, float32.

    A ``partial`` encoder q(z | x_R) has 2D inputs: x with zeros in the holes, and the mask. Weights
    (B, in, out) are uniform on ±1/√in as in ``torch.nn.Linear``, biases (B, 1, out) zero.
    """
    require(
        locals(), "num_features 1.., hidden Sequence, hidden* 1.., latent_dim 1.., partial bool"
    )
    require(locals(), "generators Sequence, generators* Generator")
    if not generators:
        raise ValueError("generators must be one for each run, got none.")
    encoder = [(1 + partial) * num_features, *hidden, 2 * latent_dim]
    decoder, parameters = [latent_dim, *hidden[::-1], num_features], {}
    for part, widths in (("encoder", encoder), ("decoder", decoder)):
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            uniform = torch.stack([torch.rand(inputs, outputs, generator=g) for g in generators])
            parameters[f"{part}/{layer}/weight"] = (2 * uniform - 1) / math.sqrt(inputs)
            parameters[f"{part}/{layer}/bias"] = torch.zeros(len(generators), 1, outputs)
    return parameters


def dense(parameters: Parameters, part: Part, inputs: Tensor) -> Float[Tensor, "B N O"]:
    """The network ``part`` of every run applied to its own inputs."""
    layers = sum(name.startswith(part) for name in parameters) // 2
    if not layers:
        said = f"parameters have no weights of the {part}, but {sorted(parameters)}"
        raise ValueError(f"{said}. vae.dense_parameters makes them.")
    width = parameters[f"{part}/0/weight"].shape[1]
    if inputs.shape[-1] != width:
        raise ValueError(f"the {part} takes {width} numbers a datum, got {tuple(inputs.shape)}.")
    for layer in range(layers):
        require_dtype(f"what the {part} sees", inputs, parameters[f"{part}/{layer}/weight"].dtype)
        weight, bias = (parameters[f"{part}/{layer}/{kind}"] for kind in ("weight", "bias"))
        inputs = torch.baddbmm(bias, inputs, weight)
        if layer < layers - 1:
            inputs = inputs.tanh()
    return inputs


def dense_model(parameters: Parameters, run: int, noise_variance: float | None = None) -> VAE:
    """The VAE of one run of :func:`dense_parameters`; a partial encoder is told that all is seen."""
    require(locals(), "parameters Mapping, noise_variance? (0,inf)")
    for part in ("encoder", "decoder"):
        if f"{part}/0/weight" not in parameters:
            said = f"parameters have no weights of the {part}, but {sorted(parameters)}"
            raise ValueError(f"{said}. vae.dense_parameters makes them.")
    require_count("run", run, 0, len(parameters["encoder/0/weight"]) - 1)
    own = {name: value[run : run + 1] for name, value in parameters.items()}
    latent_dim = own["decoder/0/weight"].shape[1]
    last = [value for name, value in own.items() if name.startswith("decoder")][-1]
    num_features = last.shape[-1]
    partial = own["encoder/0/weight"].shape[1] == 2 * num_features

    def apply(part: Part, inputs: Tensor) -> Tensor:
        flat = inputs.reshape(1, -1, inputs.shape[-1])
        return dense(own, part, flat).reshape(*inputs.shape[:-1], -1)

    def encoder(x: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.cat([x, torch.zeros_like(x)], dim=-1) if partial else x
        mean, log_variance = apply("encoder", seen).split(latent_dim, dim=-1)
        return mean, log_variance

    return VAE(
        encoder,
        functools.partial(apply, "decoder"),
        num_features=num_features,
        latent_dim=latent_dim,
        noise_variance=noise_variance,
    )
