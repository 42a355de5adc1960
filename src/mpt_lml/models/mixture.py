"""Latent-variable models with their prior on a grid: finite mixtures, exact in every conditional."""

from collections.abc import Iterator
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import grids
from mpt_lml.checks import (
    Data,
    Positive,
    check,
    checked,
    require_entries,
    require_one_dtype,
)
from mpt_lml.grids import Grid, NodesPerAxis
from mpt_lml.models.base import TractableModel
from mpt_lml.models.vae import LatentVariableModel, require_binary
from mpt_lml.numerics import CACHE_BYTES, chunks, double

__all__ = ["BernoulliPCA", "GridConditional"]

_DATA = Float[Tensor, "N D"]


@final
class BernoulliPCA(TractableModel, LatentVariableModel):
    """x_d ~ Bernoulli(sigmoid(w_d·z + b_d)) independently given z ~ N(0, I_K).

    Paper, Section 3.1 ("linear VAE", Figure 3, upper row); Tipping 1998. z lives on a grid: all
    methods without "adaptive" in their name are exact for that mixture.

    Args:
        loadings: W, (D, K), K ≤ 3.
        offset: b, (D,); zero by default.
        grid: the nodes of z; by default 40 an axis on [−5, 5], 20 for K = 3.

    Raises:
        TypeError: for tensors that are not floating point, or of two dtypes.
        ValueError: for K > 3 (``estimators.iwae`` needs no grid), shapes that do not fit, entries that
            are not finite, and (when it is used) for logits that are too large.

    >>> model = BernoulliPCA(torch.zeros(3, 2))
    >>> model.log_marginal(torch.ones(1, 3)).exp()
    tensor([0.1250])
    """

    @checked
    def __init__(
        self,
        loadings: Float[Tensor, "D K"],
        offset: Float[Tensor, " D"] | None = None,
        *,
        grid: Grid | None = None,
    ) -> None:
        if offset is None:
            offset = loadings.new_zeros(len(loadings))
        self.loadings = loadings
        self.offset = offset.to(loadings)
        self._weight = loadings
        self.num_features, self.latent_dim = loadings.shape
        if grid is None:
            nodes_per_axis = 40 if self.latent_dim < 3 else 20
            grid = grids.trapezoid(self.latent_dim, nodes_per_axis)
        _require_fit(grid, self.latent_dim)
        self.grid = grid.to(loadings)

    def _decoded(self, z: Tensor) -> Tensor:
        require_one_dtype(z=z, loadings=self.loadings)
        return z @ self.loadings.T + self.offset

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.sample_given(self.grid.sample(n, generator=generator), generator=generator)

    @checked
    def posterior_weights(self, x: Data, observed: Bool[Tensor, "P D"]) -> Float[Tensor, "P N G"]:
        """ω_g(x_R), the probability of every node given x_R.

        Args:
            x: data, (N, D), zeros and ones.
            observed: sets R, (P, D), boolean; True means in R.

        Returns:
            Probabilities, (P, N, G); the prior's for the empty set.

        Raises:
            ValueError: for loadings and offset whose logits are too large.
        """
        all_weights = self._log_weights(self._mixture(), x, observed)
        return torch.stack([weights.softmax(dim=-1).to(x) for weights in all_weights])

    @checked
    def adaptive_log_marginal(
        self,
        x: Data,
        *,
        nodes_per_axis: NodesPerAxis = 11,
        extent: Positive = 5.0,
    ) -> Float[Tensor, " N"]:
        """log p(x) of the model with continuous z: every datum on its own grid.

        The difference from ``log_marginal`` is the error of the shared grid. With hundreds of pixels
        a posterior is nearly normal and the defaults leave an error below 1e-5; with a handful its
        tails are longer than the curvature at the mode says, and ``extent`` has to grow.

        Args:
            x: data, (N, D), zeros and ones.
            nodes_per_axis: of each datum's grid.
            extent: half the length of its axes, in standard deviations of the normal at the mode.

        Returns:
            Nats, (N,).

        Raises:
            RuntimeError: where no mode is found.
            ValueError: for nodes so far apart that a normal posterior is off by a tenth of a nat.
        """
        num_nodes = nodes_per_axis**self.latent_dim
        bytes_of_a_datum = 8 * 4 * self.num_features * num_nodes
        # A Newton step in single precision does not get as near to a mode as is asked for.
        wide = BernoulliPCA(double(self.loadings), double(self.offset), grid=self.grid)
        wide_x = double(x)
        origin = wide_x.new_zeros(len(x), self.latent_dim)
        values = []
        for rows in chunks(len(x), bytes_of_a_datum, 4 * CACHE_BYTES):
            log_joint = wide._log_joint_of(wide_x[rows])
            values.append(grids.log_integral(log_joint, origin[rows], nodes_per_axis, extent))
        return torch.cat(values).to(x)

    @property
    def data_device(self) -> torch.device | None:
        return self.loadings.device

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is (N, D), zeros and ones, and of the dtype of the loadings."""
        check(("x", x, _DATA), D=self.num_features)
        require_one_dtype(loadings=self.loadings, x=x)
        require_binary(x)

    def _mixture(self) -> grids.BernoulliMixture:
        return grids.BernoulliMixture(self.grid, self.loadings, self.offset)

    def _log_weights(
        self, mixture: grids.BernoulliMixture, x: Tensor, observed: Bool[Tensor, "P D"]
    ) -> Iterator[Float[Tensor, "N G"]]:
        """log w_g + log p(x_R | z_g) of one set after the other."""
        # One set needs the normalizers of its own coordinates only, two of nearly all that there are.
        share = len(observed) > 1
        for row in observed:
            yield mixture.log_weights(x, row, share=share)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        all_weights = self._log_weights(self._mixture(), x, observed)
        return torch.stack([weights.logsumexp(dim=-1).to(x) for weights in all_weights])

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        mixture = self._mixture()
        values = []
        for row, weights in zip(mask, self._log_weights(mixture, x, ~mask), strict=True):
            hidden = row.nonzero().flatten()
            mixed = mixture.log_conditional(weights, x, hidden)
            values.append(torch.zeros_like(x).index_copy(1, hidden, mixed))
        return torch.stack(values)


@final
class GridConditional(TractableModel):
    """A latent-variable model with its prior on a grid, such as a ``VAE`` with K ≤ 3.

    The decoder is evaluated at the nodes once; no encoder is asked. It is a finite mixture, so
    Proposition 1 holds to rounding on any grid, and log p(x) converges as the grid is refined.
    Gradients of the model's parameters are kept.

    Args:
        model: with K ≤ 3.
        grid: the nodes of z, of the same K.

    Raises:
        ValueError: for a grid of another K, and (when it is used) for a decoder that is not finite at
            a node, and data of which no node's log p(x | z) is above −10⁶ nats.

    >>> model = BernoulliPCA(torch.ones(3, 1))
    >>> x, mask = torch.ones(2, 3), torch.tensor([[True, False, False]])
    >>> same = GridConditional(model, model.grid).log_conditional(x, mask)
    >>> torch.allclose(same, model.log_conditional(x, mask), atol=1e-5)
    True
    """

    @checked
    def __init__(self, model: LatentVariableModel, grid: Grid) -> None:
        _require_fit(grid, model.latent_dim)
        self.model = model
        self.grid = grid
        self.num_features = model.num_features

    @property
    def data_device(self) -> torch.device | None:
        return self.model.data_device  # where a network was moved to since, too; the grid follows

    def require_data(self, x: Tensor) -> None:
        """Check that ``x`` is something the model can have made."""
        self.model.require_data(x)

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        nodes = self.grid.sample(n, generator=generator)
        if self.model._weight is not None:
            nodes = nodes.to(self.model._weight)
        return self.model.sample_given(nodes, generator=generator)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        values = []
        for factors in self._factors(x):
            values.append(self._log_weights(factors, observed).logsumexp(dim=-1))
        return torch.cat(values, dim=1).to(x)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        values = [self._log_mixture(factors, mask) for factors in self._factors(x)]
        return torch.cat(values, dim=1)

    def _log_mixture(self, factors: Float[Tensor, "G N D"], mask: Tensor) -> Tensor:
        """log Σ_g ω_g(x_R) p(x_d | z_g) of some data, (P, N, D)."""
        log_weights = self._log_weights(factors, ~mask)
        omega = log_weights.softmax(dim=-1).to(factors)
        largest = factors.detach().amax(dim=0)
        sums = torch.einsum("png,gnd->pnd", omega, (factors - largest).exp())

        def log_terms(entries: tuple[Tensor, ...]) -> Float[Tensor, "entries G"]:
            p, n, d = entries
            log_omega = log_weights.log_softmax(dim=-1)[p, n]
            return log_omega + (factors - largest).permute(1, 2, 0)[n, d]

        return grids.log_or_sum(sums, log_terms, len(factors)) + largest

    def _factors(self, x: Tensor) -> Iterator[Float[Tensor, "G N D"]]:
        """log p(x_d | z_g) for some data at a time."""
        nodes = self.grid.nodes.to(x)
        bytes_of_a_datum = x.element_size() * len(self.grid) * self.num_features
        # About four arrays of that size are made; two of them are in use at a time.
        for rows in chunks(len(x), 2 * bytes_of_a_datum, 4 * CACHE_BYTES):
            factors = self.model.log_factors_at_nodes(x[rows], nodes)
            _require_sums(factors.detach())
            yield factors

    def _log_weights(
        self, factors: Float[Tensor, "G N D"], observed: Tensor
    ) -> Float[Tensor, "P N G"]:
        """log w_g + log p(x_R | z_g), in double precision."""
        # einsum would copy the factors.
        log_observed = double(factors) @ double(observed).mT  # (G, N, P)
        return log_observed.permute(2, 1, 0) + double(self.grid.log_weights).to(log_observed)


def _require_sums(factors: Float[Tensor, "G N D"]) -> None:
    """Refuse log p(x_d | z_g) that are not finite, or add up to so much that sums lose digits."""
    totals = double(factors).sum(dim=-1)
    if not totals.sum().isfinite():
        remedy = "Look at what the decoder answers at the grid's nodes."
        require_entries("log p(x_d | z_g)", factors, ~factors.isfinite(), "finite", remedy)
        require_entries("log p(x | z_g)", totals, ~totals.isfinite(), "finite", remedy)
    # A node that is nowhere near the likeliest has no weight, however its sum is rounded.
    least = totals.amax(dim=0).min().item()
    if least < -grids.MAX_NATS:
        raise ValueError(
            f"log p(x | z) is {least:.3g} nats at the likeliest node of the grid, below "
            f"{-grids.MAX_NATS:.0e}: log-densities would lose too many digits. Use data "
            "nearer to the model, or more nodes."
        )


def _require_fit(grid: Grid, latent_dim: int) -> None:
    if grid.latent_dim != latent_dim:
        raise ValueError(
            f"the grid has K = {grid.latent_dim} but the model has K = {latent_dim}. "
            f"Use for example grids.trapezoid({latent_dim}, 40)."
        )
