"""Models with a latent z and a Bernoulli or Gaussian likelihood, and variational autoencoders."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, final

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
    require_entries,
    require_finite,
    require_one_dtype,
)
from mpt_lml.numerics import LOG_2PI, draw_normal, draw_uniform, log_likelihood

__all__ = ["VAE"]

Encoder = Callable[[Tensor], tuple[Tensor, Tensor]]
Decoder = Callable[[Tensor], Tensor]

_DATA = Float[Tensor, "N D"]


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
    def log_factors_at_nodes(
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
    def log_joint(self, x: Data, z: Float[Tensor, "*S N K"]) -> Float[Tensor, "*S N"]:
        """log p(x, z) for every datum and its z.

        Args:
            x: data, (N, D).
            z: one for each datum, (..., N, K).

        Returns:
            Nats, (..., N).

        Raises:
            ValueError: for data that the model cannot have made, or another number of them than of z.
        """
        return self._log_joint_of(x)(z)

    def _log_joint_of(
        self, x: Float[Tensor, "N D"], observed: Bool[Tensor, "... D"] | None = None
    ) -> Callable[[Tensor], Tensor]:
        """log p(x_R, z) as a function of z, for searches and chains, whose data are checked once.

        Args:
            x: data, (N, D).
            observed: R of each datum, (N, D), or in one row for all; None: every coordinate.
        """

        def log_joint(z: Tensor) -> Tensor:
            self._require_one_for_each(x, z)
            factors = log_likelihood(x, self._decoded(z), self.noise_variance)
            if observed is not None:
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

    >>> encoder = lambda x: (x[..., :2], torch.zeros_like(x[..., :2]))
    >>> decoder = torch.nn.Linear(2, 5)
    >>> model = VAE(encoder, decoder, num_features=5, latent_dim=2, noise_variance=0.5)
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
            error.add_note(
                f"The decoder was given z of K = {self.latent_dim} numbers in {z.dtype}: check "
                "latent_dim, and the precision of its weights."
            )
            raise
        shape = (*z.shape[:-1], self.num_features)
        require_answer("the decoder's output", output, shape, gradient=False)
        return output
