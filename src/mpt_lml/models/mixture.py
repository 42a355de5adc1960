"""Latent-variable models with their prior on a grid: finite mixtures, exact in every conditional."""

from collections.abc import Iterator
from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import grids
from mpt_lml.grids import Grid
from mpt_lml.models.base import TractableModel
from mpt_lml.models.vae import LatentVariableModel
from mpt_lml.numerics import chunks, double
from mpt_lml.spec import require, require_binary, require_entries

_CACHE_BYTES = 2**24  # larger chunks leave the cache, and the kernel clears pages all the time


@final
class BernoulliPCA(TractableModel, LatentVariableModel):
    """x_d ~ Bernoulli(sigmoid(w_d·z + b_d)) independently given z ~ N(0, I_K).

    Paper, Section 3.1 ("linear VAE", Figure 3, upper row); Tipping 1998. ``loadings`` (D, K) are W,
    K ≤ 3; ``offset`` (D,) is b, zero by default. z lives on ``grid``, 40 nodes an axis on [−5, 5] by
    default (20 for K = 3): all methods without "adaptive" in their name are exact for that mixture.

    Raises ``ValueError`` for K > 3 (``estimators.iwae`` and ``estimators.ais`` need no grid), shapes
    that do not fit, entries that are not finite.

    >>> model = BernoulliPCA(torch.zeros(3, 2))
    >>> model.log_marginal(torch.ones(1, 3)).exp()
    tensor([0.1250])
    """

    def __init__(
        self,
        loadings: Float[Tensor, "D K"],
        offset: Float[Tensor, " D"] | None = None,
        *,
        grid: Grid | None = None,
    ) -> None:
        require(locals(), "loadings D K, offset? D")
        offset = loadings.new_zeros(len(loadings)) if offset is None else offset
        self.loadings, self.offset, self._dtype = loadings, offset.to(loadings), loadings.dtype
        self.num_features, self.latent_dim = loadings.shape
        if grid is None:
            grid = grids.trapezoid(self.latent_dim, 40 if self.latent_dim < 3 else 20)
        self.grid = _fitting(grid, self.latent_dim).to(loadings)

    def _decoded(self, z: Tensor) -> Tensor:
        require({"z": z, "W": self.loadings}, "z ... K, W D K", finite=False)
        return z @ self.loadings.T + self.offset

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.sample_given(self.grid.sample(n, generator=generator), generator=generator)

    def posterior_weights(
        self, x: Float[Tensor, "N D"], observed: Bool[Tensor, "P D"]
    ) -> Float[Tensor, "P N G"]:
        """ω_g(x_R), the probability of every node given x_R, (P, N, G); the prior's for empty R."""
        self.require_data(x)
        require(locals(), "bool observed P D", D=self.num_features)
        rows = [weights.softmax(dim=-1).to(x) for weights in self._log_weights(x, observed)]
        return _numbers(torch.stack(rows))

    def adaptive_log_marginal(
        self, x: Float[Tensor, "N D"], *, nodes_per_axis: int = 11, extent: float = 5.0
    ) -> Float[Tensor, " N"]:
        """log p(x) of the model with continuous z, nats, (N,): every datum on its own grid.

        The difference from ``log_marginal`` is the error of the shared grid. With hundreds of pixels
        a posterior is nearly normal and the defaults leave an error below 1e-5; with a handful its
        tails are longer than the curvature at the mode says, and ``extent`` has to grow.
        """
        self.require_data(x)
        require(locals(), "nodes_per_axis 2.., extent (0,inf)")
        per_datum = 8 * 4 * self.num_features * nodes_per_axis**self.latent_dim
        start, options = x.new_zeros(len(x), self.latent_dim), (nodes_per_axis, extent)
        parts = [
            grids.log_integral(partial(self.log_joint, x[rows]), start[rows], *options)
            for rows in chunks(len(x), per_datum, _CACHE_BYTES)
        ]
        return torch.cat(parts)

    def require_data(self, x: Tensor) -> None:
        require(vars(self) | {"x": x}, "loadings D K, x N D")
        require_binary(x)

    def _log_weights(
        self, x: Tensor, observed: Bool[Tensor, "P D"]
    ) -> Iterator[Float[Tensor, "N G"]]:
        """``grids.log_weights`` of one set after the other."""
        model = self.grid, self.loadings, self.offset
        # One set asks for its own coordinates only, two for as many as all that there are.
        normalizers = grids.log_normalizers(*model) if len(observed) > 1 else None
        for row in observed:
            yield grids.log_weights(*model, x, row, normalizers)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        rows = [weights.logsumexp(dim=-1).to(x) for weights in self._log_weights(x, observed)]
        return _numbers(torch.stack(rows))

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        logits = self._decoded(self.grid.nodes)
        values = []
        for row, weights in zip(mask, self._log_weights(x, ~mask), strict=True):
            hidden = row.nonzero().flatten()
            mixed = grids.log_mixture(weights, logits[:, hidden], x[:, hidden])
            values.append(torch.zeros_like(x).index_copy(1, hidden, mixed))
        return _numbers(torch.stack(values))


@final
class GridConditional(TractableModel):
    """A latent-variable model with its prior on a grid, such as a ``VAE`` with K ≤ 3.

    The decoder is evaluated at the nodes once; no encoder is asked. It is a finite mixture, so
    Proposition 1 holds to rounding on any grid, and log p(x) converges as the grid is refined.
    Gradients of the model's parameters are kept. Raises ``ValueError`` for a grid of another K.

    >>> model = BernoulliPCA(torch.ones(3, 1))
    >>> x, mask = torch.ones(2, 3), torch.tensor([[True, False, False]])
    >>> same = GridConditional(model, model.grid).log_conditional(x, mask)
    >>> torch.allclose(same, model.log_conditional(x, mask), atol=1e-5)
    True
    """

    def __init__(self, model: LatentVariableModel, grid: Grid) -> None:
        require(locals(), "model LatentVariableModel")
        self.model, self.grid = model, _fitting(grid, model.latent_dim)
        self.num_features = model.num_features

    def require_data(self, x: Tensor) -> None:
        self.model.require_data(x)

    def _sample(self, n: int, generator: torch.Generator) -> Tensor:
        nodes = self.grid.sample(n, generator=generator)
        nodes = nodes.to(self.model._dtype or nodes.dtype)
        return self.model.sample_given(nodes, generator=generator)

    def _log_subset_marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        parts = [self._log_weights(f, observed).logsumexp(dim=-1) for f in self._factors(x)]
        return torch.cat(parts, dim=1).to(x)

    def _log_conditional(self, x: Tensor, mask: Tensor) -> Tensor:
        parts = [self._log_mixed(factors, mask) for factors in self._factors(x)]
        return torch.cat(parts, dim=1)

    def _log_mixed(self, factors: Float[Tensor, "G N D"], mask: Tensor) -> Tensor:
        """log Σ_g ω_g(x_R) p(x_d | z_g) of some data, (P, N, D)."""
        log_weights = self._log_weights(factors, ~mask)
        omega = log_weights.softmax(dim=-1).to(factors)
        top = factors.detach().amax(dim=0)
        mixed = torch.einsum("png,gnd->pnd", omega, (factors - top).exp())

        def log_terms(entries: tuple[Tensor, ...]) -> Float[Tensor, "entries G"]:
            p, n, d = entries
            log_omega = log_weights.log_softmax(dim=-1)[p, n]
            return log_omega + (factors - top).permute(1, 2, 0)[n, d]

        return grids.log_or_sum(mixed, log_terms, len(factors)) + top

    def _factors(self, x: Tensor) -> Iterator[Float[Tensor, "G N D"]]:
        """log p(x_d | z_g) for some data at a time."""
        nodes, each = self.grid.nodes.to(x), x.element_size() * len(self.grid) * self.num_features
        for rows in chunks(len(x), 2 * each, _CACHE_BYTES):  # it makes about four such arrays
            factors = self.model.log_table(x[rows], nodes)
            if not factors.detach().sum().isfinite():  # one pass, where all is well
                remedy = "Look at what the decoder answers at the grid's nodes."
                require_entries("log p(x_d | z_g)", factors, ~factors.isfinite(), "finite", remedy)
            yield factors

    def _log_weights(self, factors: Float[Tensor, "G N D"], observed: Tensor) -> Tensor:
        """In double precision, as in ``grids.log_weights`` and for its reason."""
        # einsum would copy the factors
        seen = (double(factors) @ double(observed).mT).permute(2, 1, 0)
        return seen + double(self.grid.log_weights)


def _numbers(values: Tensor) -> Tensor:
    """``values``, unless loadings or offset are so large that their logits are not finite."""
    remedy = "The logits W z + b overflow at the grid's nodes: loadings and offset are too large."
    require_entries("what the model says", values, ~values.isfinite(), "finite", remedy)
    return values


def _fitting(grid: Grid, latent_dim: int) -> Grid:
    if not isinstance(grid, Grid) or grid.latent_dim != latent_dim:
        got = f"has K = {grid.latent_dim}" if isinstance(grid, Grid) else f"is {grid!r}"
        raise ValueError(
            f"the grid {got} but the model has K = {latent_dim}. "
            f"Use for example grids.trapezoid({latent_dim}, 40)."
        )
    return grid
