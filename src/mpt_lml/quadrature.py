"""Grids for integrals against a standard normal prior, K ≤ 3 (floor 1).

Every grid turns ∫ N(z; 0, I_K) f(z) dz into Σ_g w_g f(z_g). With weights that sum to 1 it is itself
a prior with finitely many atoms: a model on it is a finite mixture, whose marginals and conditionals
belong to one joint distribution whatever the grid is worth as an approximation of the integral.

==== =========================================
G    nodes of a grid
N    data, where every datum has a grid of its own
==== =========================================
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.numerics import LOG_2PI, cholesky
from mpt_lml.shapes import require_count, require_finite

MAX_LATENT_DIM = 3
"""Largest K with a grid: nodes grow as a power of K, and 20 an axis are 160,000 at K = 4."""

MASS_TOLERANCE = 1e-3
"""A grid whose weights add up to 1 up to this has lost nothing that matters."""


class LostMassWarning(UserWarning):
    """A grid does not hold the probability mass it should."""


@dataclass(frozen=True)
class Grid:
    """Nodes and weights for a standard normal prior.

    Attributes
    ----------
    nodes : Tensor (G, K) or (N, G, K)
        With a leading axis every datum has nodes of its own.
    log_weights : Tensor (G,) or (N, G)
        log w_g. The weights of a shared grid sum to 1; those of a grid around a datum's posterior do
        not, because they cover a part of the prior.
    mass : float
        What the weights summed to before they were divided by it: 1 for a rule that is fine and wide
        enough.
    name : str
        For figures and messages.
    """

    nodes: Float[Tensor, "*N G K"]
    log_weights: Float[Tensor, "*N G"]
    mass: float = 1.0
    name: str = "grid"

    @property
    def latent_dim(self) -> int:
        """K."""
        return self.nodes.shape[-1]

    def __len__(self) -> int:
        """G."""
        return self.nodes.shape[-2]

    def to(self, like: Tensor) -> Grid:
        """The same grid with the dtype and on the device of ``like``."""
        return Grid(self.nodes.to(like), self.log_weights.to(like), self.mass, self.name)


def trapezoid(latent_dim: int, nodes_per_axis: int, extent: float = 5.0) -> Grid:
    """Equally spaced nodes on [−extent, extent]^K with weights ∝ N(z; 0, I): (nodes_per_axis^K, K).

    The trapezoidal rule; for analytic integrands that have decayed at ±extent its error falls
    exponentially in the number of nodes (Trefethen & Weideman 2014). A grid too coarse or too narrow
    for the prior itself warns with the mass that it sees.
    """
    _require_axes(latent_dim, nodes_per_axis)
    if not extent > 0:
        raise ValueError(f"extent must be > 0, got {extent}.")
    axis = torch.linspace(-extent, extent, nodes_per_axis, dtype=torch.float64)
    log_density = -0.5 * (axis.square() + LOG_2PI) + math.log(2 * extent / (nodes_per_axis - 1))
    name = " × ".join([str(nodes_per_axis)] * latent_dim) + f" on ±{extent:g}"
    return _product(axis, log_density, latent_dim, name)


def gauss_hermite(latent_dim: int, nodes_per_axis: int) -> Grid:
    """Gauss–Hermite nodes for N(0, I_K): exact for polynomials of degree 2·nodes_per_axis − 1."""
    _require_axes(latent_dim, nodes_per_axis)
    nodes, weights = np.polynomial.hermite_e.hermegauss(nodes_per_axis)
    log_weights = torch.from_numpy(weights).log() - 0.5 * LOG_2PI
    name = f"Gauss–Hermite {nodes_per_axis}^{latent_dim}"
    return _product(torch.from_numpy(nodes), log_weights, latent_dim, name)


def adaptive(
    log_joint: Callable[[Float[Tensor, "N G K"]], Float[Tensor, "N G"]],
    mode: Float[Tensor, "N K"],
    precision: Float[Tensor, "N K K"],
    *,
    nodes_per_axis: int = 11,
    extent: float = 5.0,
) -> Grid:
    """A trapezoid grid around every datum's posterior (Naylor & Smith 1982, with other nodes).

    Nodes z = mode + L ξ with L Lᵀ = precision⁻¹ and ξ equally spaced on [−extent, extent]^K; the
    weights hold the prior and |L|, so that Σ_g w_g p(x|z_g) approximates p(x) = ∫ p(z) p(x|z) dz.

    Parameters
    ----------
    log_joint : callable
        (N, G, K) -> (N, G), log p(x_n, z) up to a constant; only used to see whether mass lies at
        the edge, of which it warns.
    mode, precision : Tensor (N, K) and (N, K, K)
        Mode and negative Hessian of log p(z | x), see :func:`find_modes`.
    """
    latent_dim = mode.shape[-1]
    _require_axes(latent_dim, nodes_per_axis)
    axis = torch.linspace(-extent, extent, nodes_per_axis, dtype=mode.dtype, device=mode.device)
    unit = torch.cartesian_prod(*[axis] * latent_dim).reshape(-1, latent_dim)
    factor = cholesky(precision, "the precision at the mode")  # Λ = C Cᵀ, so L = C⁻ᵀ
    shift = torch.linalg.solve_triangular(factor.mT, unit.T.expand(len(mode), -1, -1), upper=True)
    nodes = mode[:, None, :] + shift.mT
    log_cell = latent_dim * math.log(2 * extent / (nodes_per_axis - 1))
    log_volume = log_cell - factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    log_prior = -0.5 * (nodes.square().sum(dim=-1) + latent_dim * LOG_2PI)
    grid = Grid(
        nodes, log_prior + log_volume[:, None], 1.0, f"adaptive {nodes_per_axis}^{latent_dim}"
    )
    edge = (unit.abs() >= extent * (1 - 1e-9)).any(dim=-1)
    posterior = log_joint(nodes).softmax(dim=-1)
    lost = posterior[:, edge].sum(dim=-1).max().item()
    if lost > MASS_TOLERANCE:
        _warn(f"the adaptive grid's edge holds {lost:.2g} of a posterior's mass. Raise extent.")
    return grid


def find_modes(
    log_joint: Callable[[Float[Tensor, "N K"]], Float[Tensor, " N"]],
    start: Float[Tensor, "N K"],
    *,
    max_steps: int = 100,
    tolerance: float = 1e-8,
    accepted: float | None = None,
) -> tuple[Float[Tensor, "N K"], Float[Tensor, "N K K"]]:
    """Modes of log p(x_n, z) in z and the negative Hessians there, (N, K) and (N, K, K).

    Damped Newton with derivatives by automatic differentiation, all data at once; the Hessian's
    eigenvalues are floored at 1, the prior's, where the decoder makes it indefinite.

    Raises
    ------
    RuntimeError
        When a step still moves by more than ``accepted`` posterior standard deviations at the end
        (``tolerance`` by default). Where the curvature is below the prior's, the floor makes Newton
        slow, and a point near the mode may be all that is needed.
    """
    z = start.detach().clone()
    value = log_joint(z).detach()
    for _ in range(max_steps):
        gradient, precision = _derivatives(log_joint, z)
        step = torch.linalg.solve(precision, gradient)
        decrement = (step * gradient).sum(dim=-1)
        if decrement.max() < tolerance**2:
            return z, precision
        z, value = _line_search(log_joint, z, value, step, decrement)
    gradient, precision = _derivatives(log_joint, z)
    decrement = (torch.linalg.solve(precision, gradient) * gradient).sum(dim=-1)
    remaining = decrement.max().sqrt().item()
    if remaining <= (tolerance if accepted is None else accepted):
        return z, precision
    raise RuntimeError(
        f"no mode after {max_steps} Newton steps (largest remaining step {remaining:.1e} posterior "
        "standard deviations). Start elsewhere."
    )


def _derivatives(
    log_joint: Callable[[Tensor], Tensor], z: Float[Tensor, "N K"]
) -> tuple[Float[Tensor, "N K"], Float[Tensor, "N K K"]]:
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(log_joint(z).sum(), z, create_graph=True)
        rows = [
            torch.autograd.grad(gradient[:, k].sum(), z, retain_graph=True)[0]
            for k in range(z.shape[-1])
        ]
    precision = -torch.stack(rows, dim=-2)
    eigenvalues, vectors = torch.linalg.eigh(0.5 * (precision + precision.mT))
    precision = (vectors * eigenvalues.clamp(min=1.0)[:, None, :]) @ vectors.mT
    return gradient.detach(), precision.detach()


def _line_search(
    log_joint: Callable[[Tensor], Tensor],
    z: Float[Tensor, "N K"],
    value: Float[Tensor, " N"],
    step: Float[Tensor, "N K"],
    decrement: Float[Tensor, " N"],
) -> tuple[Float[Tensor, "N K"], Float[Tensor, " N"]]:
    """Halve the steps of those data whose log-density did not rise (Armijo)."""
    scale = torch.ones_like(value)
    for _ in range(30):
        trial = z + scale[:, None] * step
        reached = log_joint(trial).detach()
        slack = 1e-12 * (1 + value.abs())  # rounding: near the mode a rise is not visible any more
        poor = ~(reached >= value + 1e-4 * scale * decrement - slack)
        if not poor.any():
            return trial, reached
        scale = torch.where(poor, 0.5 * scale, scale)
    keep = poor[:, None]
    return torch.where(keep, z, trial), torch.where(poor, value, reached)


def _product(
    axis: Float[Tensor, " A"], log_weights: Float[Tensor, " A"], latent_dim: int, name: str
) -> Grid:
    """The product rule, normalized; warns when the prior's mass is not there."""
    nodes = torch.cartesian_prod(*[axis] * latent_dim).reshape(-1, latent_dim)
    total = torch.cartesian_prod(*[log_weights] * latent_dim).reshape(-1, latent_dim).sum(dim=1)
    mass = total.exp().sum().item()
    if abs(mass - 1.0) > MASS_TOLERANCE:
        _warn(
            f"the grid {name} sees a mass of {mass:.4f} of a standard normal prior instead of 1; "
            "its weights were divided by that. Use more nodes or another extent."
        )
    return Grid(nodes, total - math.log(mass), mass, name)


def _require_axes(latent_dim: int, nodes_per_axis: int) -> None:
    require_count("latent_dim", latent_dim, 1)
    require_count("nodes_per_axis", nodes_per_axis, 2)
    if latent_dim > MAX_LATENT_DIM:
        raise ValueError(
            f"latent_dim = {latent_dim} is too large for a grid (at most {MAX_LATENT_DIM}: "
            f"{nodes_per_axis} nodes an axis would be {nodes_per_axis**latent_dim:.3g} nodes). "
            "estimators.iwae and estimators.ais need no grid."
        )


def _warn(message: str) -> None:
    warnings.warn(message, LostMassWarning, stacklevel=3)


def require_grid(grid: Grid, latent_dim: int) -> None:
    """Check that ``grid`` is a shared grid of the right dimension."""
    if not isinstance(grid, Grid) or grid.nodes.ndim != 2:
        raise TypeError(f"grid must be a shared quadrature.Grid with nodes (G, K), got {grid!r}.")
    if grid.latent_dim != latent_dim:
        raise ValueError(
            f"the grid has K = {grid.latent_dim} but the model has K = {latent_dim}. "
            f"Use for example quadrature.trapezoid({latent_dim}, 40)."
        )
    require_finite("grid.nodes", grid.nodes)
