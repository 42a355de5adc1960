"""What a model has to answer (floor 2)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.numerics import LOG_2PI, chunks
from mpt_lml.shapes import require_data


class ConditionalModel(ABC):
    """Given the observed coordinates of x, what is log p(x_j | x_R) for each masked one?"""

    @property
    @abstractmethod
    def num_features(self) -> int:
        """D."""

    @abstractmethod
    def log_conditional(self, x: Tensor, mask: Bool[Tensor, "P D"]) -> Float[Tensor, "P N D"]:
        """log p(x_j | x_R), nats, (P, N, D); entries where ``mask`` is False are 0."""

    def mean_log_conditional(self, x: Tensor, mask: Bool[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """:meth:`log_conditional` averaged over the data, (P, D), in bounded memory."""
        per_mask = 8 * 4 * x.shape[0] * x.shape[1]
        parts = [
            self.log_conditional(x, mask[rows]).mean(dim=1) for rows in chunks(len(mask), per_mask)
        ]
        return torch.cat(parts)


class TractableModel(ConditionalModel):
    """A model whose joint and marginal probabilities are known exactly."""

    @abstractmethod
    def log_marginal(self, x: Tensor) -> Float[Tensor, " N"]:
        """log p(x), nats, shape (N,), exact."""

    @abstractmethod
    def log_subset_marginal(self, x: Tensor, observed: Bool[Tensor, "P D"]) -> Float[Tensor, "P N"]:
        """log p(x_R) for every row R of ``observed`` (True = in R), (P, N); 0 for the empty set."""

    def mean_log_subset_marginal(
        self, x: Tensor, observed: Bool[Tensor, "P D"]
    ) -> Float[Tensor, " P"]:
        """:meth:`log_subset_marginal` averaged over the data, (P,)."""
        return self.log_subset_marginal(x, observed).mean(dim=1)

    @abstractmethod
    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws from p(x), shape (n, D)."""


class LatentVariableModel(ABC):
    """p(x, z) = N(z; 0, I_K) Π_d p(x_d | z): what has to be integrated over z to be known."""

    @property
    @abstractmethod
    def num_features(self) -> int:
        """D."""

    @property
    @abstractmethod
    def latent_dim(self) -> int:
        """K."""

    @abstractmethod
    def log_factors(
        self, x: Float[Tensor, "N D"], z: Float[Tensor, "*S N K"]
    ) -> Float[Tensor, "*S N D"]:
        """log p(x_d | z) for every datum and its own z, nats, (..., N, D)."""

    def log_table(
        self, x: Float[Tensor, "N D"], nodes: Float[Tensor, "G K"]
    ) -> Float[Tensor, "G N D"]:
        """log p(x_d | z_g) for every datum and every node, nats, (G, N, D)."""
        return self.log_factors(x, nodes[:, None, :].expand(-1, len(x), -1))

    @abstractmethod
    def sample_given(
        self, z: Float[Tensor, "*S K"], *, generator: torch.Generator
    ) -> Float[Tensor, "*S D"]:
        """One x ~ p(x | z) for every z, (..., D)."""

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is (N, D), finite, and something the likelihood can have made."""
        require_data(x, self.num_features)

    def log_prior(self, z: Float[Tensor, "*S K"]) -> Float[Tensor, "*S"]:
        """log N(z; 0, I), nats."""
        return -0.5 * (z.square().sum(dim=-1) + self.latent_dim * LOG_2PI)

    def log_joint(
        self,
        x: Float[Tensor, "N D"],
        z: Float[Tensor, "*S N K"],
        observed: Bool[Tensor, "#N D"] | None = None,
    ) -> Float[Tensor, "*S N"]:
        """log p(x_R, z), nats, (..., N); R is everything unless ``observed`` says otherwise."""
        factors = self.log_factors(x, z)
        if observed is not None:
            factors = factors.where(observed, 0.0)
        return self.log_prior(z) + factors.sum(dim=-1)
