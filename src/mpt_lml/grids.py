"""Grids for integrals against a standard normal prior, K ≤ 3, and mixtures with a node for each z.

Every grid turns ∫ N(z; 0, I_K) f(z) dz into Σ_g w_g f(z_g) with weights that sum to 1: a model on it is
a finite mixture, one joint distribution whatever the grid is worth as an approximation.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml.numerics import LOG_2PI, chunks, differentiable, double, softplus
from mpt_lml.spec import (
    require,
    require_answer,
    require_dtype,
    require_enumerable,
    require_finite,
    require_slope,
)

__all__ = ["Grid", "find_modes", "gauss_hermite", "trapezoid"]

MAX_LATENT_DIM = 3  # 20 nodes an axis are 160,000 at K = 4
_MASS_TOLERANCE = 1e-3
_WIDEST_SPACING = 2.5  # of adaptive nodes: the rule is off by 2 exp(−2π²/2.5²) = 0.085 of the mass
_MAX_GAUSS_HERMITE = 370  # the outer weight is 3e-308; beyond, NumPy's are NaN

_LogJoint = Callable[[Float[Tensor, "*S N K"]], Float[Tensor, "*S N"]]


@dataclass(frozen=True, eq=False)
class Grid:
    """Nodes (G, K) and log-weights (G,) for a standard normal prior.

    >>> Grid(torch.zeros(1, 2), torch.zeros(1)).sample(3, generator=torch.Generator()).shape
    torch.Size([3, 2])
    """

    nodes: Float[Tensor, "G K"]
    log_weights: Float[Tensor, " G"]

    def __post_init__(self) -> None:
        require(vars(self), "nodes G K, log_weights G", finite=False)
        require(vars(self), "nodes G K")
        if not (self.log_weights.logsumexp(dim=0).exp() - 1.0).abs() <= _MASS_TOLERANCE:
            raise ValueError("log_weights must be those of probabilities that sum to 1.")

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def latent_dim(self) -> int:
        """K."""
        return self.nodes.shape[1]

    def sample(self, n: int, *, generator: torch.Generator) -> Float[Tensor, "n K"]:
        """``n`` nodes drawn by their weights."""
        require(locals(), "n 1.., generator")
        weights = self.log_weights.exp()
        return self.nodes[torch.multinomial(weights, n, replacement=True, generator=generator)]

    def to(self, like: Tensor) -> "Grid":
        """The same grid with the dtype and on the device of ``like``."""
        require_dtype("like", like)
        return Grid(self.nodes.to(like), self.log_weights.to(like))


def trapezoid(latent_dim: int, nodes_per_axis: int, extent: float = 5.0) -> Grid:
    """Equally spaced nodes on [−extent, extent]^K with weights ∝ N(z; 0, I): nodes_per_axis^K of them.

    Its error falls exponentially in the number of nodes (Trefethen & Weideman 2014). A grid too coarse
    or too narrow for the prior warns with the mass that it sees. Raises ``ValueError`` for K > 3, and
    for more nodes than memory is wise to hold.

    >>> trapezoid(2, 20).nodes.shape
    torch.Size([400, 2])
    """
    _require_axes(latent_dim, nodes_per_axis)
    require(locals(), "extent (0,inf)")
    axis = torch.linspace(-extent, extent, nodes_per_axis, dtype=torch.float64)
    log_density = -0.5 * (axis.square() + LOG_2PI) + math.log(2 * extent / (nodes_per_axis - 1))
    name = " × ".join([str(nodes_per_axis)] * latent_dim) + f" on ±{extent:g}"
    return _product(axis, log_density, latent_dim, name)


def gauss_hermite(latent_dim: int, nodes_per_axis: int) -> Grid:
    """Gauss–Hermite nodes for N(0, I_K): exact for polynomials of degree 2·nodes_per_axis − 1.

    Raises ``ValueError`` for K > 3, and for so many nodes that the outer weights are 0 in double
    precision.

    >>> (gauss_hermite(1, 3).nodes ** 2).flatten().round(decimals=9).tolist()
    [3.0, 0.0, 3.0]
    """
    _require_axes(latent_dim, nodes_per_axis)
    if nodes_per_axis > _MAX_GAUSS_HERMITE:
        raise ValueError(
            f"nodes_per_axis must be in 2..{_MAX_GAUSS_HERMITE} for Gauss–Hermite, got "
            f"{nodes_per_axis}: the outer weights are too small for double precision. "
            "grids.trapezoid takes more."
        )
    nodes, weights = np.polynomial.hermite_e.hermegauss(nodes_per_axis)
    log_weights = torch.from_numpy(weights).log() - 0.5 * LOG_2PI
    name = f"Gauss–Hermite {nodes_per_axis}^{latent_dim}"
    return _product(torch.from_numpy(nodes), log_weights, latent_dim, name)


def log_normalizers(grid: Grid, loadings: Tensor, offset: Tensor) -> Float[Tensor, "G D"]:
    """log(1 + exp(w_d·z_g + b_d)) of every node and coordinate, nats, in double precision."""
    return softplus(double(grid.nodes) @ double(loadings).mT + double(offset))


def log_weights(
    grid: Grid,
    loadings: Tensor,
    offset: Tensor,
    x: Tensor,
    observed: Bool[Tensor, " D"],
    normalizers: Float[Tensor, "G D"] | None = None,
) -> Float[Tensor, "N G"]:
    """log w_g + log p(x_R | z_g) for Bernoulli logits W z + b, nats; R is what is ``observed``.

    In double precision, whatever that of the arguments: sums over thousands of coordinates are large
    numbers, and only their differences between nodes count. Nothing is tiled to (N, D, G): the data
    enter through K + 1 numbers each. ``normalizers`` are those of :func:`log_normalizers`, which
    many sets R share.
    """
    rows = observed.nonzero().flatten()  # searched once; the gradient of index_select sorts nothing
    w = loadings.index_select(0, rows)
    b = offset.index_select(0, rows)
    if normalizers is None:
        normalizer = log_normalizers(grid, w, b).sum(dim=-1)
    else:
        normalizer = normalizers @ observed.to(normalizers)
    # One pass over (N, G): the offset's share travels as one more coordinate of z, always 1.
    short = double(x[:, rows]) @ double(torch.cat([w, b[:, None]], dim=1))
    nodes = F.pad(double(grid.nodes), (0, 1), value=1.0)
    return torch.addmm(double(grid.log_weights) - normalizer, short, nodes.T)


def log_total(log_weights: Float[Tensor, "N G"]) -> Float[Tensor, " N"]:
    """``log_weights.logsumexp(-1)`` in the same bits: exp takes ten times as long below 1e-38."""
    floor = log_weights.detach().amax(dim=-1, keepdim=True) - 80.0
    return log_weights.clamp(min=floor).logsumexp(dim=-1)


def log_mixture(
    log_weights: Float[Tensor, "N G"], logits: Float[Tensor, "G M"], x: Float[Tensor, "N M"]
) -> Float[Tensor, "N M"]:
    """log Σ_g ω_g p(x_d | z_g) with ω ∝ exp(log_weights), nats, for Bernoulli ``logits``.

    Ones and zeros each have their own product, so that neither is 1 − p. Where all of a sum is so
    small that its terms may have underflowed, logarithms are added up instead.
    """
    omega = log_weights.softmax(dim=-1).to(logits)
    both = torch.cat([logits.sigmoid(), (-logits).sigmoid()], dim=1)
    one, zero = (omega @ both).chunk(2, dim=1)

    def log_terms(pairs: tuple[Tensor, ...]) -> Float[Tensor, "pairs G"]:
        row, column = pairs
        sign = 2.0 * x[row, column] - 1.0
        log_factors = F.logsigmoid(sign[:, None] * logits.T[column])
        return log_weights.log_softmax(dim=-1)[row] + log_factors

    return log_or_sum(x * one + (1 - x) * zero, log_terms, len(logits))


def log_or_sum(
    sums: Float[Tensor, "..."],
    log_terms: Callable[[tuple[Tensor, ...]], Float[Tensor, "pairs G"]],
    num_terms: int,
) -> Float[Tensor, "..."]:
    """The logarithm of sums of G numbers, of which each smaller one than the smallest float is lost.

    Where that could be seen in the last digit, the sum is done again from ``log_terms``, which is
    given the indices of the entries, a tensor for every axis of ``sums``.
    """
    precision = torch.finfo(sums.dtype)
    small = sums.detach() < num_terms * precision.tiny / precision.eps
    if not small.any():
        return sums.log()
    indices = small.nonzero(as_tuple=True)
    again = [
        log_terms(tuple(index[some] for index in indices)).logsumexp(dim=-1)
        for some in chunks(len(indices[0]), 4 * 8 * num_terms)
    ]
    # Its derivative would be infinite at 0, and times 0 no number.
    return sums.where(~small, 1.0).log().index_put(indices, torch.cat(again).to(sums))


def log_integral(
    log_joint: _LogJoint, start: Float[Tensor, "N K"], nodes_per_axis: int = 11, extent: float = 5.0
) -> Float[Tensor, " N"]:
    """log ∫ p(x_n, z) dz, nats, every datum on a grid of its own (Naylor & Smith 1982).

    Nodes z = mode + L ξ with L Lᵀ the inverse of the negative Hessian at the mode, which is searched
    from ``start``, and ξ equally spaced on [−extent, extent]^K: the trapezoidal rule. It warns where
    posterior mass lies at the edge of a grid, and raises ``RuntimeError`` where no mode is found,
    and ``ValueError`` for nodes so far apart that a normal posterior is off by a tenth of a nat.
    """
    latent_dim = start.shape[-1]
    _require_axes(latent_dim, nodes_per_axis)
    spacing = 2 * extent / (nodes_per_axis - 1)
    if spacing > _WIDEST_SPACING * (1 + 1e-9):
        raise ValueError(
            f"nodes_per_axis = {nodes_per_axis} on extent = {extent:g} lie {spacing:.3g} posterior "
            f"standard deviations apart, more than {_WIDEST_SPACING:g}: raise nodes_per_axis with extent."
        )
    mode, precision = find_modes(log_joint, start)
    axis = torch.linspace(-extent, extent, nodes_per_axis, dtype=mode.dtype, device=mode.device)
    unit = torch.cartesian_prod(*[axis] * latent_dim).reshape(-1, latent_dim)
    factor = torch.linalg.cholesky(precision)  # Λ = C Cᵀ, so L = C⁻ᵀ
    shift = torch.linalg.solve_triangular(factor.mT, unit.T.expand(len(mode), -1, -1), upper=True)
    values = log_joint(mode + shift.permute(2, 0, 1))  # (G, N)
    edge = (unit.abs() >= extent * (1 - 1e-9)).any(dim=-1)
    lost = values.softmax(dim=0)[edge].sum(dim=0).max().item()
    if lost > _MASS_TOLERANCE:
        _warn(f"the adaptive grid's edge holds {lost:.2g} of a posterior's mass. Raise extent.")
    log_cell = latent_dim * math.log(spacing)
    return values.logsumexp(dim=0) + log_cell - factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)


def find_modes(
    log_joint: _LogJoint,
    start: Float[Tensor, "N K"],
    *,
    max_steps: int = 100,
    tolerance: float = 1e-8,
    accepted: float | None = None,
) -> tuple[Float[Tensor, "N K"], Float[Tensor, "N K K"]]:
    """Modes of log p(x_n, z) in z and the negative Hessians there, (N, K) and (N, K, K).

    Damped Newton with automatic derivatives, all data at once; the Hessian's eigenvalues are floored
    at 1, the prior's. Raises ``RuntimeError`` when a step still moves by more than ``accepted``
    posterior standard deviations at the end (``tolerance`` by default).

    >>> mode, precision = find_modes(lambda z: -2 * (z - 3).square().sum(-1), torch.zeros(1, 1))
    >>> mode.item(), precision.item()
    (3.0, 4.0)
    """
    require(locals(), "log_joint Callable, start N K, max_steps 1..")
    require(locals(), "tolerance (0,inf), accepted? (0,inf)")
    with differentiable(), torch.no_grad():
        z = start.detach().clone()
        for _ in range(max_steps):
            value, step, decrement, precision = _newton(log_joint, z)
            if decrement.max() < tolerance**2:
                return z, precision
            z = _line_search(log_joint, z, value, step, decrement)
        _, _, decrement, precision = _newton(log_joint, z)
    remaining = decrement.max().sqrt().item()
    if remaining <= (tolerance if accepted is None else accepted):
        return z, precision
    raise RuntimeError(f"no mode after {max_steps} Newton steps: {remaining:.1e} sd off.")


def _newton(log_joint: _LogJoint, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Value, step, its squared length in standard deviations, and floored negative Hessian."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        value = log_joint(z)
        require_answer("log_joint(z)", value, z.shape[:1])
        require_finite("log_joint(z)", value)
        (gradient,) = torch.autograd.grad(value.sum(), z, create_graph=True, allow_unused=True)
        require_slope("log_joint(z)", gradient)
        axes = torch.eye(z.shape[1]).to(z)[:, None].expand(-1, len(z), -1)
        rows = torch.zeros_like(axes)
        if gradient.requires_grad:  # the gradient of a linear function does not
            (rows,) = torch.autograd.grad(gradient, z, axes, is_grads_batched=True)
    gradient, hessian = gradient.detach(), rows.transpose(0, 1)
    eigenvalues, vectors = torch.linalg.eigh(-0.5 * (hessian + hessian.mT))
    precision = (vectors * eigenvalues.clamp(min=1.0)[:, None, :]) @ vectors.mT
    step = torch.linalg.solve(precision, gradient)
    return value.detach(), step, (step * gradient).sum(dim=-1), precision


def _line_search(
    log_joint: _LogJoint, z: Tensor, value: Tensor, step: Tensor, decrement: Tensor
) -> Tensor:
    """Halve the steps of those data whose log-density did not rise (Armijo)."""
    scale = torch.ones_like(value)
    for _ in range(30):
        trial = z + scale[:, None] * step
        slack = 1e-12 * (1 + value.abs())  # rounding: near the mode a rise is not visible any more
        poor = ~(log_joint(trial).detach() >= value + 1e-4 * scale * decrement - slack)
        if not poor.any():
            return trial
        scale = torch.where(poor, 0.5 * scale, scale)
    return torch.where(poor[:, None], z, trial)


def _product(axis: Tensor, log_weights: Tensor, latent_dim: int, name: str) -> Grid:
    nodes = torch.cartesian_prod(*[axis] * latent_dim).reshape(-1, latent_dim)
    total = torch.cartesian_prod(*[log_weights] * latent_dim).reshape(-1, latent_dim).sum(dim=1)
    mass = total.exp().sum().item()
    if mass == 0.0:
        raise ValueError(
            f"the grid {name} sees nothing of a standard normal prior: lower extent, or raise "
            "nodes_per_axis."
        )
    if abs(mass - 1.0) > _MASS_TOLERANCE:
        _warn(
            f"the grid {name} sees a mass of {mass:.4f} of a standard normal prior instead of 1; "
            "its weights were divided by that. Use more nodes or another extent."
        )
    return Grid(nodes, total - math.log(mass))


def _require_axes(latent_dim: int, nodes_per_axis: int) -> None:
    require(locals(), "latent_dim 1.., nodes_per_axis 2..")
    if latent_dim > MAX_LATENT_DIM:
        raise ValueError(
            f"latent_dim = {latent_dim} is too large for a grid (at most {MAX_LATENT_DIM}). "
            "estimators.iwae and estimators.ais need no grid."
        )
    what = f"the nodes of a grid with nodes_per_axis = {nodes_per_axis} in {latent_dim} dimensions"
    require_enumerable(what, nodes_per_axis**latent_dim, "fewer nodes per axis")


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
