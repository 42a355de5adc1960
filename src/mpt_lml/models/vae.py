"""Models with a latent z and a Bernoulli or Gaussian likelihood, and variational autoencoders."""

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.checks import (
    Count,
    Data,
    Positive,
    check,
    checked,
    require_answer,
    require_count,
    require_dtype,
    require_entries,
    require_finite,
    require_one_dtype,
)
from mpt_lml.numerics import LOG_2PI, draw_normal, draw_uniform, log_likelihood

__all__ = ["VAE", "dense_model", "dense_parameters"]

Encoder = Callable[[Tensor], tuple[Tensor, Tensor]]
Decoder = Callable[[Tensor], Tensor]
Part = Literal["encoder", "decoder"]
Parameters = Mapping[str, Tensor]

_DATA = Float[Tensor, "N D"]
_WEIGHT = Float[Tensor, "B I O"]
_BIAS = Float[Tensor, "B 1 O"]


class LatentVariableModel(ABC):
    """p(x, z) = N(z; 0, I_K) Π_d p(x_d | z): what has to be integrated over z to be known.

    x_d is Bernoulli, or Gaussian where there is a ``noise_variance``. A subclass writes ``_decoded``:
    logits or means of x, (..., D), from z (..., K).
    """

    num_features: int  # D
    latent_dim: int  # K
    noise_variance: float | None = None  # σ²
    _weight: Tensor | None = None  # of the decoder, where the model knows one

    @property
    def data_device(self) -> torch.device | None:
        """Device of the decoder's weights, on which data have to be; None where the model knows none."""
        return None if self._weight is None else self._weight.device

    @abstractmethod
    def _decoded(self, z: Tensor) -> Tensor: ...

    @checked(finite=False)
    def decode(self, z: Float[Tensor, "*S K"]) -> Float[Tensor, "*S D"]:
        """Mean of p(x | z).

        Args:
            z: (..., K).

        Returns:
            Probabilities or Gaussian means, (..., D).
        """
        output = self._decoded(z)
        return output.sigmoid() if self.noise_variance is None else output

    @checked(finite=False)
    def log_factors(self, x: Data, z: Float[Tensor, "*S N K"]) -> Float[Tensor, "*S N D"]:
        """log p(x_d | z) for every datum and its z.

        Args:
            x: data, (N, D).
            z: one for each datum, (..., N, K).

        Returns:
            Nats, (..., N, D).

        Raises:
            ValueError: for data that the model cannot have made, or another number of them than of z.
        """
        self._require_one_for_each(x, z)
        return log_likelihood(x, self._decoded(z), self.noise_variance)

    @checked(finite=False)
    def log_table(
        self, x: Float[Tensor, "N D"], nodes: Annotated[Float[Tensor, "G K"], require_finite]
    ) -> Float[Tensor, "G N D"]:
        """log p(x_d | z_g); every node is decoded once, whatever N.

        Args:
            x: data, (N, D).
            nodes: z_g, (G, K).

        Returns:
            Nats, (G, N, D).

        Raises:
            ValueError: for a decoder that is not finite at a node.
        """
        output = self._decoded(nodes)
        is_wrong = ~output.detach().isfinite()
        require_entries(
            "the decoder's output at the nodes",
            output.detach(),
            is_wrong,
            "finite",
            "Look at its weights.",
        )
        return log_likelihood(x, output[:, None, :], self.noise_variance)

    @checked
    def sample_given(
        self, z: Float[Tensor, "*S K"], *, generator: torch.Generator
    ) -> Float[Tensor, "*S D"]:
        """One x ~ p(x | z) for every z.

        Args:
            z: (..., K).
            generator: source of the draws.

        Returns:
            Data, (..., D).
        """
        mean = self.decode(z)
        if self.noise_variance is None:
            uniform = draw_uniform(mean.shape, generator=generator, like=mean)
            return (uniform < mean).to(mean)
        noise = draw_normal(mean.shape, generator=generator, like=mean)
        return mean + math.sqrt(self.noise_variance) * noise

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is (N, D), finite, and zeros and ones where there is no σ²."""
        check(("x", x, _DATA), D=self.num_features)
        if self.noise_variance is None:
            require_binary(x)

    def _log_prior(self, z: Tensor) -> Tensor:
        """log N(z; 0, I)."""
        return -0.5 * (z.square().sum(dim=-1) + self.latent_dim * LOG_2PI)

    @checked(finite=False)
    def log_joint(
        self,
        x: Data,
        z: Float[Tensor, "*S N K"],
        observed: Bool[Tensor, "... D"] | None = None,
    ) -> Float[Tensor, "*S N"]:
        """log p(x_R, z) for every datum and its z.

        Args:
            x: data, (N, D).
            z: one for each datum, (..., N, K).
            observed: R, of a shape that can be broadcast to (..., N, D), boolean; True means in R.
                None: every coordinate.

        Returns:
            Nats, (..., N).

        Raises:
            ValueError: for data that the model cannot have made, or shapes that do not fit.
        """
        return self._log_joint_with(x, observed)(z)

    def _log_joint_with(
        self, x: Tensor, observed: Tensor | None = None
    ) -> Callable[[Tensor], Tensor]:
        """:meth:`log_joint` as a function of z, for searches and chains, whose data are checked once."""

        def log_joint(z: Tensor) -> Tensor:
            self._require_one_for_each(x, z)
            factors = log_likelihood(x, self._decoded(z), self.noise_variance)
            if observed is not None:
                _require_broadcast("observed", observed, factors.shape)
                factors = factors.where(observed, 0.0)
            return self._log_prior(z) + factors.sum(dim=-1)

        return log_joint

    def _require_one_for_each(self, x: Tensor, z: Tensor) -> None:
        """Check that there is one z for each datum, in its precision: a single one would be broadcast."""
        if z.shape[-2:] != (len(x), self.latent_dim):
            raise ValueError(
                f"z must have shape (..., {len(x)}, {self.latent_dim}), got {tuple(z.shape)} beside "
                f"x {tuple(x.shape)}."
            )
        require_one_dtype(x=x, z=z)


def require_binary(x: Tensor) -> None:
    """Check that the data ``x`` are zeros and ones."""
    remedy = (
        "Binarize with (pixels >= 0.5).to(pixels), or use a Gaussian likelihood (a noise_variance)."
    )
    if (x * (x - 1)).any():  # faster than two comparisons: this runs at every training step
        require_entries("x", x, (x != 0) & (x != 1), "0 or 1 for a Bernoulli likelihood", remedy)


def _require_broadcast(name: str, value: Tensor, shape: torch.Size) -> None:
    """Check that ``value`` can be broadcast to ``shape``."""
    sizes = itertools.zip_longest(value.shape[::-1], shape[::-1], fillvalue=1)
    for size, wanted in sizes:
        if size not in (1, wanted):
            raise ValueError(
                f"{name} must have shape {tuple(shape)}, or 1 in some axes, got "
                f"{tuple(value.shape)}."
            )


@final
class VAE(LatentVariableModel):
    """z ~ N(0, I_K), x_d | z from a decoder network; q(z | x) = N(m(x), diag v(x)) from an encoder.

    Kingma & Welling 2014; Rezende et al. 2014; paper, Figure 3, lower row. Neither log p(x) nor
    log p(x_j | x_R) has a closed form: see ``mpt_lml.estimators``, and ``GridConditional``.

    Args:
        encoder: maps (N, D) to mean and log-variance, (N, K).
        decoder: maps (..., K) to (..., D): logits for a Bernoulli likelihood, means for a Gaussian one.
        num_features: D.
        latent_dim: K.
        noise_variance: σ² > 0 of a Gaussian likelihood; None for a Bernoulli one. log p(x) depends on
            it: a mean squared error is not a likelihood until it is chosen.

    Raises:
        ValueError: (when it is used) where the networks do not map between D and K dimensions.

    >>> parameters = dense_parameters(5, [4], 2, generators=[torch.Generator().manual_seed(0)])
    >>> model = dense_model(parameters, 0, 0.5)
    >>> model.decode(torch.zeros(3, 2)).shape
    torch.Size([3, 5])
    """

    @checked
    def __init__(
        self,
        encoder: Encoder,
        decoder: Decoder,
        *,
        num_features: Count,
        latent_dim: Count,
        noise_variance: Positive | None = None,
    ) -> None:
        self.encoder = encoder
        self.decoder = decoder
        self.num_features = num_features
        self.latent_dim = latent_dim
        self.noise_variance = noise_variance
        if isinstance(decoder, torch.nn.Module):
            self._weight = next(decoder.parameters(), None)

    @checked(finite=False)
    def encode(self, x: Float[Tensor, "... D"]) -> tuple[Tensor, Tensor]:
        """The normal distribution q(z | x).

        Args:
            x: data, (..., D).

        Returns:
            Its mean and its variance, both (..., K).

        Raises:
            TypeError: for an encoder that returns no mean and log-variance.
            ValueError: where they are of another shape.
        """
        output = self.encoder(x)
        if not isinstance(output, tuple | list) or len(output) != 2:
            raise TypeError(f"encoder must return a mean and a log-variance, got {output!r}.")
        mean, log_variance = output
        shape = (*x.shape[:-1], self.latent_dim)
        require_answer("the encoder's mean", mean, shape, gradient=False)
        require_answer("the encoder's log-variance", log_variance, shape, gradient=False)
        return mean, log_variance.exp()

    def _decoded(self, z: Tensor) -> Tensor:
        try:
            output = self.decoder(z)
        except RuntimeError as error:
            if "shapes cannot be multiplied" in str(error):
                raise ValueError(
                    f"the decoder does not take z of K = {self.latent_dim} numbers: {error}. Check "
                    "latent_dim."
                ) from error
            if "dtype" not in str(error):
                raise
            raise TypeError(f"the decoder is of another precision than z, {z.dtype}.") from error
        shape = (*z.shape[:-1], self.num_features)
        require_answer("the decoder's output", output, shape, gradient=False)
        return output


# -- dense networks, B runs side by side ----------------------------------------------------------------


@checked
def dense_parameters(
    num_features: Count,
    hidden: Sequence[Count],
    latent_dim: Count,
    *,
    generators: Sequence[torch.Generator],
) -> dict[str, Tensor]:
    """Weights of dense networks with tanh units, D–hidden–2K and back, in single precision.

    Weights are uniform on ±1/√in as in ``torch.nn.Linear``, biases zero.

    Args:
        num_features: D.
        hidden: widths of the encoder's hidden layers; the decoder has them in reverse.
        latent_dim: K.
        generators: one for each run, B of them.

    Returns:
        ``"encoder/0/weight"`` (B, in, out), ``"encoder/0/bias"`` (B, 1, out), and so on.

    Raises:
        ValueError: without a generator.

    >>> two_runs = [torch.Generator().manual_seed(seed) for seed in (4, 44)]
    >>> dense_parameters(64, [200], 10, generators=two_runs)["decoder/0/weight"].shape
    torch.Size([2, 10, 200])
    """
    if not generators:
        raise ValueError("generators must be one for each run, got none.")
    encoder = draw_layers("encoder", [num_features, *hidden, 2 * latent_dim], generators)
    decoder = draw_layers("decoder", [latent_dim, *hidden[::-1], num_features], generators)
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


def dense(parameters: Parameters, part: Part, inputs: Tensor) -> Float[Tensor, "B N O"]:
    """The network ``part`` of every run applied to the inputs of that run.

    Args:
        parameters: those of :func:`dense_parameters`, of B runs.
        part: "encoder" or "decoder".
        inputs: (B, N, in).

    Returns:
        (B, N, out).

    Raises:
        TypeError: for inputs of another precision.
        ValueError: without weights of the part, and for inputs of another width.
    """
    num_layers = _num_layers(parameters, part)
    width = parameters[f"{part}/0/weight"].shape[1]
    if inputs.shape[-1] != width:
        raise ValueError(f"the {part} takes {width} numbers a datum, got {tuple(inputs.shape)}.")
    units = inputs
    for layer in range(num_layers):
        weight = parameters[f"{part}/{layer}/weight"]
        bias = parameters[f"{part}/{layer}/bias"]
        require_dtype(f"what the {part} reads", units, weight.dtype)
        units = torch.baddbmm(bias, units, weight)
        if layer < num_layers - 1:
            units = units.tanh()
    return units


@checked
def dense_model(parameters: Parameters, run: int, noise_variance: Positive | None = None) -> VAE:
    """The VAE of one run of :func:`dense_parameters`.

    Args:
        parameters: of B runs.
        run: which one, in 0..B−1.
        noise_variance: σ² of a Gaussian likelihood; None for a Bernoulli one.

    Returns:
        The model, whose networks share the memory of the parameters.

    Raises:
        TypeError: for a network with weights of several precisions.
        ValueError: without weights of a part, for weights that do not fit each other, and without
            such a run.

    >>> parameters = dense_parameters(3, [4], 1, generators=[torch.Generator().manual_seed(0)])
    >>> dense_model(parameters, 0).decode(torch.zeros(5, 1)).shape
    torch.Size([5, 3])
    """
    sizes = network_sizes(parameters)
    require_count("run", run, 0, sizes.num_runs - 1)
    of_run = {name: value[run : run + 1] for name, value in parameters.items()}

    def apply(part: Part, inputs: Tensor) -> Tensor:
        flat = inputs.reshape(1, -1, inputs.shape[-1])
        return dense(of_run, part, flat).reshape(*inputs.shape[:-1], -1)

    def encoder(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = apply("encoder", x).split(sizes.latent_dim, dim=-1)
        return mean, log_variance

    model = VAE(
        encoder,
        functools.partial(apply, "decoder"),
        num_features=sizes.num_features,
        latent_dim=sizes.latent_dim,
        noise_variance=noise_variance,
    )
    model._weight = of_run["decoder/0/weight"]
    return model


class NetworkSizes(NamedTuple):
    """Sizes of networks that :func:`dense_parameters` makes."""

    num_runs: int
    num_features: int
    latent_dim: int


def network_sizes(parameters: Parameters) -> NetworkSizes:
    """Read the sizes that :func:`dense_parameters` was called with from its weights.

    Args:
        parameters: of B runs.

    Raises:
        TypeError: for a network with weights of several precisions.
        ValueError: without weights of a part, and for weights that do not fit each other.
    """
    num_inputs, num_outputs = _ends(parameters, "encoder")
    latent_dim, num_features = _ends(parameters, "decoder")
    num_runs = len(parameters["encoder/0/weight"])
    if len(parameters["decoder/0/weight"]) != num_runs:
        raise ValueError(
            f"parameters must be of the same runs, got an encoder of {num_runs} and a decoder of "
            f"{len(parameters['decoder/0/weight'])}."
        )
    if num_outputs != 2 * latent_dim:
        raise ValueError(
            f"parameters must have an encoder with a mean and a log-variance of each of the K = "
            f"{latent_dim} numbers that the decoder takes, got {num_outputs} outputs."
        )
    if num_inputs != num_features:
        raise ValueError(
            f"parameters must have an encoder of the D = {num_features} numbers that the decoder "
            f"makes, got {num_inputs} inputs."
        )
    return NetworkSizes(num_runs, num_features, latent_dim)


def _ends(parameters: Parameters, part: Part) -> tuple[int, int]:
    """Numbers of inputs and outputs of a network, whose layers have to fit each other."""
    require_one_dtype(**{name: v for name, v in parameters.items() if name.startswith(f"{part}/")})
    sizes: dict[str, int] = {}  # of runs and inputs, once they are known
    for layer in range(_num_layers(parameters, part)):
        of_weight = f"{part}/{layer}/weight"
        of_bias = f"{part}/{layer}/bias"
        weight = parameters[of_weight]
        check(
            (f"parameters[{of_weight!r}]", weight, _WEIGHT),
            (f"parameters[{of_bias!r}]", parameters[of_bias], _BIAS),
            finite=False,  # NaN is seen in the objective
            **sizes,
        )
        sizes = {"B": weight.shape[0], "I": weight.shape[2]}
    return parameters[f"{part}/0/weight"].shape[1], sizes["I"]


def _num_layers(parameters: Parameters, part: Part) -> int:
    """Number of layers of a network, each with a weight and a bias."""
    num_tensors = sum(name.startswith(f"{part}/") for name in parameters)
    if not num_tensors:
        raise ValueError(
            f"parameters have no weights of the {part}, but {sorted(parameters)}. "
            "vae.dense_parameters makes them."
        )
    num_layers = math.ceil(num_tensors / 2)
    for layer in range(num_layers):
        for kind in ("weight", "bias"):
            name = f"{part}/{layer}/{kind}"
            if name not in parameters:
                raise ValueError(f"parameters must have {name!r}, got {sorted(parameters)}.")
    return num_layers
