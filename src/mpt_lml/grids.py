"""Grids for integrals against a standard normal prior, K ≤ 3, and mixtures with a node for each z.

Every grid turns ∫ N(z; 0, I_K) f(z) dz into Σ_g w_g f(z_g) with weights that sum to 1: a model on it is
a finite mixture, one joint distribution whatever the grid is worth as an approximation.
"""

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import (
    Count,
    Positive,
    Within,
    checked,
    require_answer,
    require_finite,
    require_gradient,
    require_log_enumerable,
)
from mpt_lml.numerics import (
    LOG_2PI,
    chunks,
    double,
    draw_categories,
    softplus,
)

__all__ = ["Grid", "find_modes", "trapezoid"]

MAX_LATENT_DIM = 3  # 20 nodes an axis are 160,000 at K = 4
_MASS_TOLERANCE = 1e-3  # of a prior that a grid may miss, of a posterior at a grid's edge
_WIDEST_SPACING = 2.5  # of adaptive nodes: the rule is off by 2 exp(−2π²/2.5²) = 0.085 of the mass

_ROUNDING = 1e-9  # relative, of a distance between nodes
_MOST_NEWTON_STEPS = 100  # of the search for a mode

_LogJoint = Callable[[Float[Tensor, "*S N K"]], Float[Tensor, "*S N"]]
NodesPerAxis = Annotated[int, Within(2)]


@checked(finite=False)
@dataclass(frozen=True, eq=False)
class Grid:
    """Nodes and log-weights for a standard normal prior.

    Args:
        nodes: z_g, (G, K).
        log_weights: of probabilities that sum to 1, (G,); −∞ is one of 0.

    Raises:
        ValueError: for nodes that are not finite, and weights of another sum.

    >>> Grid(torch.zeros(1, 2), torch.zeros(1)).sample(3, generator=torch.Generator()).shape
    torch.Size([3, 2])
    """

    nodes: Float[Tensor, "G K"]
    log_weights: Float[Tensor, " G"]

    def __post_init__(self) -> None:
        require_finite("nodes", self.nodes)
        if not (self.log_weights.logsumexp(dim=0).exp() - 1.0).abs() <= _MASS_TOLERANCE:
            raise ValueError("log_weights must be those of probabilities that sum to 1.")

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def latent_dim(self) -> int:
        """Number K of latent dimensions."""
        return self.nodes.shape[1]

    @checked
    def sample(self, n: Count, *, generator: torch.Generator) -> Float[Tensor, "n K"]:
        """``n`` nodes drawn by their weights, (n, K)."""
        return self.nodes[draw_categories(self.log_weights.exp(), n, generator=generator)]

    @checked(finite=False)
    def to(self, like: Float[Tensor, "..."]) -> "Grid":
        """The same grid with the dtype and on the device of ``like``."""
        return Grid(self.nodes.to(like), self.log_weights.to(like))


@checked
def trapezoid(latent_dim: Count, nodes_per_axis: NodesPerAxis, extent: Positive = 5.0) -> Grid:
    """Equally spaced nodes on [−extent, extent]^K with weights ∝ N(z; 0, I): nodes_per_axis^K of them.

    Its error falls exponentially in the number of nodes (Trefethen & Weideman 2014). A grid too coarse
    or too narrow for the prior warns with the mass that it holds.

    Args:
        latent_dim: K ≤ 3.
        nodes_per_axis: at least 2.
        extent: half the length of an axis.

    Returns:
        The grid, in double precision.

    Raises:
        ValueError: for K > 3, and for more nodes than are enumerated.

    >>> trapezoid(2, 20).nodes.shape
    torch.Size([400, 2])
    """
    _require_axes(latent_dim, nodes_per_axis)
    axis = torch.linspace(-extent, extent, nodes_per_axis, dtype=torch.float64)
    log_density = -0.5 * (axis.square() + LOG_2PI)
    log_spacing = math.log(2 * extent / (nodes_per_axis - 1))
    name = " × ".join([str(nodes_per_axis)] * latent_dim) + f" on ±{extent:g}"
    return _product(axis, log_density + log_spacing, latent_dim, name)


# -- mixtures with a node for each z: log p(x_R | z_g) of Bernoulli logits W z + b ----------------------

MAX_NATS = 1e6
"""Largest sum of |ℓ_d| over the coordinates, and largest −log p(x | z) at the likeliest node, in nats.

The rounding error of such a sum is 1e-9 nats at most. The weights of two nodes that have nearly the same
likelihood depend on it."""

# Largest |ℓ_d|. One rounding in single precision is 2e-4 nats of it.
_MAX_LOGIT = {torch.float64: MAX_NATS, torch.float32: 4e3}


@dataclass(frozen=True, eq=False)
class BernoulliMixture:
    """The finite mixture that a grid makes of Bernoulli logits ℓ = W z + b.

    log p(x_R | z_g) = Σ_{d in R} (x_d ℓ_d − softplus(ℓ_d)): the first sum is a product in which each
    datum is K + 1 numbers, the second has no data, and nothing is tiled to (N, D, G). The two sums
    nearly cancel for large logits. They are made in double precision, whatever that of the arguments,
    and logits are refused where Σ_d (Σ_k |w_dk z_k| + |b_d|) is above 10⁶ at some node, or one of its
    terms above 4,000 in single precision.

    Args:
        grid: G nodes and their weights w_g.
        loadings: W, (D, K).
        offset: b, (D,).

    Raises:
        ValueError: for finite parameters whose logits are too large. What is not finite itself is
            passed on, to be seen in the result.
    """

    grid: Grid
    loadings: Float[Tensor, "D K"]
    offset: Float[Tensor, " D"]

    @torch.no_grad()
    def __post_init__(self) -> None:
        farthest = double(self.grid.nodes).abs().amax(dim=0)
        magnitudes = double(self.loadings).abs() @ farthest + double(self.offset).abs()
        # Both in one copy to the host.
        of_all, of_one = torch.stack([magnitudes.sum(), magnitudes.max()]).tolist()
        if of_all > MAX_NATS or of_one > _MAX_LOGIT[self.loadings.dtype]:
            self._refuse()

    def _refuse(self) -> None:
        largest = self.loadings.abs().max().item()
        largest_offset = self.offset.abs().max().item()
        if math.isfinite(largest) and math.isfinite(largest_offset):
            raise ValueError(
                f"loadings of up to {largest:.3g} and an offset of up to {largest_offset:.3g} are too "
                "large: the logits W z + b at the grid's nodes would lose too many digits. Make both "
                "smaller, or use float64."
            )

    @functools.cached_property
    def _log_normalizers(self) -> Float[Tensor, "G D"]:
        """log(1 + exp(ℓ)), nats, in double precision."""
        return _log_normalizers(self.grid, self.loadings, self.offset)

    def log_weights(
        self, x: Float[Tensor, "N D"], observed: Bool[Tensor, " D"], *, share: bool = False
    ) -> Float[Tensor, "N G"]:
        """Unnormalised log-weights log w_g + log p(x_R | z_g), (N, G), in double precision.

        Args:
            x: data, (N, D), zeros and ones.
            observed: R, (D,), boolean; True means in R.
            share: whether other sets R follow: the normalizers of all coordinates are kept then.
        """
        rows = observed.nonzero().flatten()  # searched once; index_select's gradient sorts nothing
        w = self.loadings.index_select(0, rows)
        b = self.offset.index_select(0, rows)
        if share:
            normalizer = self._log_normalizers @ observed.to(self._log_normalizers)
        else:
            normalizer = _log_normalizers(self.grid, w, b).sum(dim=-1)
        # One pass over (N, G): the offset's share travels as one more coordinate of z, always 1.
        statistics = double(x[:, rows]) @ double(torch.cat([w, b[:, None]], dim=1))
        nodes = F.pad(double(self.grid.nodes), (0, 1), value=1.0)
        return torch.addmm(double(self.grid.log_weights) - normalizer, statistics, nodes.T)

    def log_conditional(
        self, log_weights: Float[Tensor, "N G"], x: Float[Tensor, "N D"], hidden: Int[Tensor, " M"]
    ) -> Float[Tensor, "N M"]:
        """Log-probability of x_d given x_R, for some coordinates.

        Args:
            log_weights: those of R, (N, G).
            x: data, (N, D), zeros and ones.
            hidden: the numbers of the coordinates, (M,).

        Returns:
            Nats, (N, M).
        """
        logits = self.grid.nodes @ self.loadings[hidden].T + self.offset[hidden]
        return log_mixture(log_weights, logits, x[:, hidden].to(logits)).to(x)


def _log_normalizers(grid: Grid, loadings: Tensor, offset: Tensor) -> Float[Tensor, "G D"]:
    return softplus(double(grid.nodes) @ double(loadings).mT + double(offset))


def log_total(log_weights: Float[Tensor, "N G"]) -> Float[Tensor, " N"]:
    """The bits of ``log_weights.logsumexp(-1)``, faster where weights are far apart."""
    # exp takes ten times as long below 1e-38.
    # exp(−80) is 2e-35 of the largest term: nothing to the last digit of either precision.
    floor = log_weights.detach().amax(dim=-1, keepdim=True) - 80.0
    return log_weights.clamp(min=floor).logsumexp(dim=-1)


def log_mixture(
    log_weights: Float[Tensor, "N G"], logits: Float[Tensor, "G M"], x: Float[Tensor, "N M"]
) -> Float[Tensor, "N M"]:
    """Logarithm of the mixture Σ_g ω_g p(x_d | z_g) with ω ∝ exp(log_weights).

    Ones and zeros each have their own product, so that neither is 1 − p. Where all of a sum is so
    small that its terms may have underflowed, logarithms are added up instead.

    Args:
        log_weights: (N, G).
        logits: of p(x_d = 1 | z_g), (G, M).
        x: data, (N, M), zeros and ones.

    Returns:
        Nats, (N, M).
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
    """The logarithm of sums of G numbers, also where numbers below the smallest float were lost.

    Args:
        sums: (...).
        log_terms: the logarithms of the terms, (pairs, G), from the indices of some entries, a tensor
            for every axis of ``sums``. They are added up instead where such a loss could be seen in
            the last digit.
        num_terms: G.

    Returns:
        Nats, (...).
    """
    precision = torch.finfo(sums.dtype)
    is_small = sums.detach() < num_terms * precision.tiny / precision.eps
    if not is_small.any():
        return sums.log()
    indices = is_small.nonzero(as_tuple=True)
    log_sums = []
    for pairs in chunks(len(indices[0]), 4 * 8 * num_terms):
        log_sums.append(log_terms(tuple(index[pairs] for index in indices)).logsumexp(dim=-1))
    # Its derivative would be infinite at 0, and times 0 no number.
    return sums.where(~is_small, 1.0).log().index_put(indices, torch.cat(log_sums).to(sums))


# -- adaptive grids: every datum on one of its own ------------------------------------------------------


def log_integral(
    log_joint: _LogJoint, start: Float[Tensor, "N K"], nodes_per_axis: int = 11, extent: float = 5.0
) -> Float[Tensor, " N"]:
    """Logarithm of ∫ p(x_n, z) dz, with a separate grid for every datum (Naylor & Smith 1982).

    Nodes z = mode + L ξ with L Lᵀ the inverse of the negative Hessian at the mode, and ξ equally
    spaced on [−extent, extent]^K: the trapezoidal rule. It warns where posterior mass lies at the edge
    of a grid.

    Args:
        log_joint: log p(x_n, z), (..., N), from z (..., N, K).
        start: where the modes are searched from, (N, K).
        nodes_per_axis: of each datum's grid.
        extent: half the length of its axes, in standard deviations of the normal at the mode.

    Returns:
        Nats, (N,).

    Raises:
        RuntimeError: where no mode is found.
        ValueError: for nodes so far apart that a normal posterior is off by a tenth of a nat.
    """
    latent_dim = start.shape[-1]
    _require_axes(latent_dim, nodes_per_axis)
    spacing = 2 * extent / (nodes_per_axis - 1)
    if spacing > _WIDEST_SPACING * (1 + _ROUNDING):
        raise ValueError(
            f"nodes_per_axis = {nodes_per_axis} on extent = {extent:g} lie {spacing:.3g} posterior "
            f"standard deviations apart, more than {_WIDEST_SPACING:g}: raise nodes_per_axis with extent."
        )
    mode, precision = find_modes(log_joint, start)
    axis = torch.linspace(-extent, extent, nodes_per_axis, dtype=mode.dtype, device=mode.device)
    standard_nodes = torch.cartesian_prod(*[axis] * latent_dim).reshape(-1, latent_dim)
    factor = torch.linalg.cholesky(precision)  # Λ = C Cᵀ, so L = C⁻ᵀ
    columns = standard_nodes.T.expand(len(mode), -1, -1)
    shift = torch.linalg.solve_triangular(factor.mT, columns, upper=True)
    log_joint_at_nodes = log_joint(mode + shift.permute(2, 0, 1))  # (G, N)
    is_at_edge = (standard_nodes.abs() >= extent * (1 - _ROUNDING)).any(dim=-1)
    mass_at_edge = log_joint_at_nodes.softmax(dim=0)[is_at_edge].sum(dim=0).max().item()
    if mass_at_edge > _MASS_TOLERANCE:
        _warn(
            f"the adaptive grid's edge holds {mass_at_edge:.2g} of a posterior's mass. Raise extent."
        )
    # dz is dξ times |L|, and |L| is 1/|C|.
    log_cell = latent_dim * math.log(spacing)
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    return log_joint_at_nodes.logsumexp(dim=0) + log_cell - log_det


@checked
def find_modes(
    log_joint: _LogJoint,
    start: Float[Tensor, "N K"],
    *,
    tolerance: Positive = 1e-8,
    accepted: Positive | None = None,
) -> tuple[Float[Tensor, "N K"], Float[Tensor, "N K K"]]:
    """Find the modes of log p(x_n, z) in z, and the curvature there.

    Damped Newton with automatic derivatives, all data at once; the negative Hessian's eigenvalues
    are at least 1, the prior's.

    Args:
        log_joint: log p(x_n, z), nats, (N,), from z (N, K).
        start: where the search begins, (N, K).
        tolerance: length of a step, in posterior standard deviations, at which the search ends.
        accepted: longest last step with which the search counts as arrived; ``tolerance`` by default.

    Returns:
        The modes, (N, K), and the negative Hessians there, with eigenvalues of at least 1, (N, K, K).

    Raises:
        RuntimeError: when a step still moves by more than is ``accepted`` at the end.

    >>> mode, precision = find_modes(lambda z: -2 * (z - 3).square().sum(-1), torch.zeros(1, 1))
    >>> mode.item(), precision.item()
    (3.0, 4.0)
    """
    if accepted is None:
        accepted = tolerance
    with torch.no_grad():
        z = start.detach().clone()
        for _ in range(_MOST_NEWTON_STEPS):
            newton = _newton(log_joint, z)
            if newton.decrement.max() < tolerance * tolerance:
                return z, newton.precision
            z = _line_search(log_joint, z, newton)
        newton = _newton(log_joint, z)
    remaining = newton.decrement.max().sqrt().item()
    if remaining <= accepted:
        return z, newton.precision
    raise RuntimeError(f"no mode after {_MOST_NEWTON_STEPS} Newton steps: {remaining:.1e} sd off.")


class _Newton(NamedTuple):
    """A step of Newton's method for every datum."""

    value: Tensor  # of the log-density, (N,)
    step: Tensor  # (N, K)
    decrement: Tensor  # squared length of the step in standard deviations, (N,)
    precision: Tensor  # negative Hessian with eigenvalues of at least 1, (N, K, K)


def _newton(log_joint: _LogJoint, z: Tensor) -> _Newton:
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        value = log_joint(z)
        require_answer("log_joint(z)", value, z.shape[:1])
        require_finite("log_joint(z)", value)
        (gradient,) = torch.autograd.grad(value.sum(), z, create_graph=True, allow_unused=True)
        require_gradient("log_joint(z)", gradient)
        axes = torch.eye(z.shape[1]).to(z)[:, None].expand(-1, len(z), -1)
        rows = torch.zeros_like(axes)
        if gradient.requires_grad:  # the gradient of a linear function does not
            (rows,) = torch.autograd.grad(gradient, z, axes, is_grads_batched=True)
    gradient = gradient.detach()
    hessian = rows.transpose(0, 1)
    eigenvalues, vectors = torch.linalg.eigh(-0.5 * (hessian + hessian.mT))
    precision = (vectors * eigenvalues.clamp(min=1.0)[:, None, :]) @ vectors.mT
    step = torch.linalg.solve(precision, gradient)
    return _Newton(value.detach().to(z.device), step, (step * gradient).sum(dim=-1), precision)


_MOST_HALVINGS = 30  # 2^−30 of a step is no step
_SHARE_OF_RISE = 1e-4  # of the rise that the gradient predicts; Armijo's usual constant


def _line_search(log_joint: _LogJoint, z: Tensor, newton: _Newton) -> Tensor:
    """Halve the steps of those data whose log-density did not rise (Armijo)."""
    scale = torch.ones_like(newton.value)
    # Rounding: near the mode a rise is not visible any more.
    slack = 1e-12 * (1 + newton.value.abs())
    for _ in range(_MOST_HALVINGS):
        trial = z + scale[:, None] * newton.step
        wanted = newton.value + _SHARE_OF_RISE * scale * newton.decrement - slack
        value = log_joint(trial).detach().to(z.device)
        is_poor = ~(value >= wanted)  # NaN is, too
        if not is_poor.any():
            return trial
        scale = torch.where(is_poor, 0.5 * scale, scale)
    return torch.where(is_poor[:, None], z, trial)


# -- products of one axis -------------------------------------------------------------------------------


def _product(axis: Tensor, log_weights: Tensor, latent_dim: int, name: str) -> Grid:
    """The grid of K equal axes, with weights that are divided by their sum."""
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
    if latent_dim > MAX_LATENT_DIM:
        raise ValueError(
            f"latent_dim = {latent_dim} is too large for a grid (at most {MAX_LATENT_DIM}). "
            "estimators.iwae needs no grid."
        )
    what = f"the nodes of a grid with nodes_per_axis = {nodes_per_axis} in {latent_dim} dimensions"
    require_log_enumerable(what, latent_dim * math.log(nodes_per_axis), "fewer nodes per axis")


def _warn(message: str) -> None:
    # At the line that called the public function, past this one, its helper, itself and its checks.
    warnings.warn(message, RuntimeWarning, stacklevel=5)
