"""The rate at which one score is right, and few mask sizes in place of all; nats per coordinate.

Under the model E S(x; M) falls with M (Han 1978): D·S(M) is too high at low rates and too low at high
ones. The *crossover rate* ρ* is the one at which it is right.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.checks import (
    Count,
    Index,
    Positive,
    check,
    checked,
    require_count,
    require_memory,
)
from mpt_lml.numerics import LOG_2PI, double
from mpt_lml.results import trapezoid_weights

__all__ = [
    "chain_crossover",
    "crossover",
    "jackknife",
    "random_loadings_curve",
    "sizes_and_weights",
]

Rule = Literal["midpoint", "trapezoid", "gauss-legendre", "clenshaw-curtis"]

MOST_POLYNOMIAL = 4096
"""Most sizes through which a polynomial is laid; long before, its weights turn negative."""

_SMALLEST_WEIGHT = 1e-9  # of D: some weights are 0, up to rounding


# -- the crossover rate -----------------------------------------------------------------------------


@checked
def crossover(
    score: Float[Tensor, "*B L"],
    rate: Tensor | None = None,
    height: Tensor | float | None = None,
) -> Float[Tensor, "*B"]:
    """ρ*, the rate at which a curve, joined by straight lines, *first* passes a height.

    Args:
        score: S of one curve or several, nats a coordinate, (..., L).
        rate: the increasing masking rates of ``score``, (L,); M/D for M = 1..D by default.
        height: log p(x)/D, one for all curves or (...); by default the mean of ``score``.

    Returns:
        In the unit of ``rate``, (...).

    Raises:
        ValueError: where a curve stays on one side of its height, and for rates that do not increase.

    >>> crossover(torch.tensor([0.0, -1.0, -5.0], dtype=torch.float64)).item()
    0.75
    """
    num_rates = score.shape[-1]
    # Apart from score: rates and heights of another precision are welcome.
    check(("rate", rate, Float[Tensor, " L"] | None), L=num_rates)
    if isinstance(height, Tensor):
        check(("height", height, Float[Tensor, "..."]))
        _require_one_for_each_curve(height, score.shape[:-1])
    require_count("the number of rates", num_rates, 2)
    if rate is None:
        rate = torch.arange(1, num_rates + 1).to(score) / num_rates
    if (rate.diff() <= 0).any():
        raise ValueError(f"rate must increase, got {rate.tolist()}.")
    if height is None:
        height = score.mean(dim=-1)
    above = score - torch.as_tensor(height, dtype=score.dtype, device=score.device)[..., None]
    side = above.sign()  # a product of two small differences would be 0
    crosses = (side[..., :-1] * side[..., 1:] <= 0) & (above[..., :-1] != above[..., 1:])
    if not crosses.any(dim=-1).all():
        ends = f"{rate[0]:.3g}..{rate[-1]:.3g}"
        raise ValueError(f"no crossover in {ends}: a curve stays on one side. Widen the rates.")
    first = crosses.int().argmax(dim=-1, keepdim=True)
    left = above.gather(-1, first)
    right = above.gather(-1, first + 1)
    share = (left / (left - right))[..., 0]
    start = rate[first[..., 0]]
    end = rate[first[..., 0] + 1]
    return start + share * (end - start)


def _require_one_for_each_curve(height: Tensor, shape_of_curves: torch.Size) -> None:
    try:
        fits = torch.broadcast_shapes(height.shape, shape_of_curves) == shape_of_curves
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"height must have the shape of score without its last axis, {tuple(shape_of_curves)}, got "
            f"{tuple(height.shape)}."
        )


@checked
def jackknife(
    statistic: Callable[[Float[Tensor, "... L"]], Float[Tensor, "..."]],
    groups: Float[Tensor, "G L"],
) -> tuple[float, float]:
    """A statistic of the mean of G independent rows, and its jackknife standard error.

    Leaves out one row at a time: error² = (G − 1)/G Σ (t_g − t̄)² (Efron & Stein 1981).

    Args:
        statistic: of means (L,), or of several (G, L) at once.
        groups: the rows, (G, L), at least two.

    Returns:
        The statistic and its error, in its own unit.

    Raises:
        ValueError: for a single row, and for a statistic that does not give one number for each mean.

    >>> jackknife(lambda mean: mean[..., 0], torch.tensor([[1.0], [3.0]]))
    (2.0, 1.0)
    """
    num_groups = len(groups)
    require_count("the number of groups", num_groups, 2)
    total = groups.sum(dim=0)
    without_one = statistic((total - groups) / (num_groups - 1))
    check(("statistic(groups)", without_one, Float[Tensor, " G"]), G=num_groups)
    squares = (without_one - without_one.mean()).square().sum()
    error = ((num_groups - 1) / num_groups * squares).sqrt()
    return statistic(total / num_groups).item(), error.item()


# -- curves in closed form --------------------------------------------------------------------------


@checked
def chain_crossover(gap_entropy: Float[Tensor, " G"]) -> float:
    """ρ* of a Markov chain of infinite length, at least 1/2 (ours).

    The q at which (1 − q) Σ_g δ_g q^g is largest, with δ_g = h(g+1) − h(g). Of a chain that is not
    stationary, h(g) is the mean over its places j (note A).

    Args:
        gap_entropy: h(g), the entropy of x_{j+g} given x_j in nats, for g = 1..G, (G,).

    Returns:
        A rate.

    Raises:
        ValueError: for what is no chain's or too short, and where δ_1 = 0: then the curve of infinite
            length is flat, and nothing crosses.

    >>> logarithm = torch.arange(1.0, 200.0, dtype=torch.float64).log()
    >>> round(chain_crossover(logarithm), 6)
    0.658322
    """
    num_gaps = len(gap_entropy)
    require_count("the length of gap_entropy", num_gaps, 3)
    h, slack = _entropy_of_a_chain(gap_entropy)
    step = h.diff()
    if step[0] <= slack:
        raise ValueError(
            "no crossover: gap_entropy begins with two equal values, so that the curve of a long "
            "chain is flat. Give a chain in which two steps are less certain than one."
        )
    order = torch.arange(2, num_gaps).to(step)
    low = 0.5
    high = 1.0
    while high - low > 1e-15:
        q = (low + high) / 2
        derivative = step[0] + (order * q ** (order - 1)) @ step.diff()
        if derivative > 0:
            low = q
        else:
            high = q
    # What the gaps beyond the last would add to the derivative at the maximum.
    if step[-1] * num_gaps * low ** (num_gaps - 1) > 1e-9 * step[0]:
        raise ValueError(f"gap_entropy must reach further than {num_gaps} gaps.")
    return low


def _entropy_of_a_chain(gap_entropy: Tensor) -> tuple[Tensor, float]:
    """The entropies in double precision, and a tolerance for their rounding errors."""
    h = double(gap_entropy)
    slack = 0.1 * torch.finfo(gap_entropy.dtype).eps ** 0.5
    if (h.diff() < -slack).any() or (h.diff().diff() > slack).any():
        raise ValueError("gap_entropy must rise with the gap, by less and less.")
    return h, slack


@checked
def random_loadings_curve(
    num_features: Count, latent_dim: Index, noise_variance: Positive
) -> Float[Tensor, " D"]:
    """S(M) ≈ −½ ln(2πe v(D − M)) of PPCA with N(0, 1) loadings and data from the model (ours).

    v(r) = ½ [σ² + K − r + √((σ² + K − r)² + 4 σ² r)] is Var(x_j | x_R) at r observed coordinates, in
    the limit of large D, K and r: σ² + K at r = 0, close to σ² well above the bend at r = K.

    Args:
        num_features: D.
        latent_dim: K.
        noise_variance: σ².

    Returns:
        Nats a coordinate, for M = 1..D, (D,).

    >>> [round(v, 3) for v in random_loadings_curve(4, 1, 0.2).tolist()]
    [-0.796, -0.892, -1.127, -1.51]
    """
    require_memory(f"a curve of {num_features} sizes", 8 * num_features, "a smaller num_features")
    observed = torch.arange(num_features - 1, -1, -1, dtype=torch.float64)
    gap = noise_variance + latent_dim - observed
    root = (gap.square() + 4.0 * noise_variance * observed).sqrt()
    # Both are the same number: a sum that cancels is replaced by one that does not.
    variance = torch.where(
        gap < 0, 2.0 * noise_variance * observed / (root - gap), 0.5 * (gap + root)
    )
    return -0.5 * (LOG_2PI + 1.0 + variance.log())


# -- few sizes in place of all ----------------------------------------------------------------------


@checked
def sizes_and_weights(
    num_features: Count, num_sizes: Count, rule: Rule = "gauss-legendre"
) -> tuple[Int[Tensor, " L"], Float[Tensor, " L"]]:
    """Few sizes M_l and weights with Σ_l w_l S(M_l) ≈ Σ_{M=1}^D S(M).

    The nodes of a rule on [½, D + ½] are rounded to whole sizes (equal ones become one).

    The noise of sampled scores is multiplied by up to Σ|w|/D, which is 1 where all weights are
    positive. Through nodes that are nearly as close as whole sizes are, a polynomial swings: beyond
    about 2.8 √D of them, here and there before, weights turn negative, and soon are larger than D.

    Args:
        num_features: D.
        num_sizes: how many, at most D.
        rule: ``midpoint`` has equal weights, ``trapezoid`` straight lines; the other rules sum
            polynomials of degree below L exactly over M = 1..D.

    Returns:
        Sizes and weights, (L,) each, with L ≤ ``num_sizes``.

    Raises:
        ValueError: where weights are negative or lost to rounding, with a number of sizes that works.

    >>> sizes, weights = sizes_and_weights(200, 3)
    >>> sizes.tolist(), round(weights.sum().item(), 9)
    ([23, 100, 178], 200.0)
    """
    require_count("num_sizes", num_sizes, 1, num_features)
    bytes_of_rule = {
        "midpoint": 8 * num_sizes,
        "trapezoid": 8 * max(num_sizes**2, num_features),
    }
    if rule in bytes_of_rule:
        what = f"weights of {num_sizes} of {num_features} sizes"
        require_memory(what, bytes_of_rule[rule], "fewer num_sizes")
    else:
        require_count("num_sizes", num_sizes, 1, MOST_POLYNOMIAL)
        bytes_needed = 8 * num_features * num_sizes
        require_memory(f"polynomials at {num_features} sizes", bytes_needed, "fewer num_sizes")
    sizes = _sizes(num_features, num_sizes, rule)
    weights = _weights(sizes, num_features, rule)
    if weights is None:
        fewer = _largest_below(num_features, num_sizes, rule)
        raise ValueError(
            f"num_sizes = {num_sizes} are too many for D = {num_features} by {rule}: a polynomial "
            "through sizes so close swings between them, and its weights are negative or lost to "
            f"rounding. Use num_sizes={fewer}, or rule='trapezoid'."
        )
    return torch.from_numpy(sizes), torch.from_numpy(weights)


def _sizes(num_features: int, num_sizes: int, rule: Rule) -> np.ndarray:
    """The nodes of ``rule``, on [−1, 1] at first, as whole sizes."""
    even = np.linspace(0.0, 1.0, num_sizes) if num_sizes > 1 else np.array([0.5])
    if rule == "midpoint":
        nodes = (2.0 * np.arange(num_sizes) + 1.0) / num_sizes - 1.0
    elif rule == "trapezoid":
        nodes = 2.0 * even - 1.0
    elif rule == "gauss-legendre":
        nodes = np.polynomial.legendre.leggauss(num_sizes)[0]
    else:
        nodes = -np.cos(np.pi * even)
    rounded = np.rint(0.5 + num_features * (nodes + 1.0) / 2.0)
    return np.unique(np.clip(rounded, 1, num_features).astype(np.int64))


def _weights(sizes: np.ndarray, num_features: int, rule: Rule) -> np.ndarray | None:
    """Weights of a rule at its sizes; None where one of them is negative or may be."""
    if rule == "midpoint":
        return np.full(len(sizes), num_features / len(sizes))
    if rule == "trapezoid":
        return trapezoid_weights(sizes, num_features).numpy()
    at_sizes = _legendre(sizes, num_features, len(sizes) - 1)
    # By how much weights may be off, in parts of their sum; infinite where nothing is known of them.
    rounding = 10 * np.finfo(np.float64).eps * np.linalg.cond(at_sizes, 1)
    if rounding >= 1.0:
        return None
    at_every_size = _legendre(np.arange(1, num_features + 1), num_features, len(sizes) - 1)
    weights = np.linalg.solve(at_sizes.T, at_every_size.sum(axis=0))
    smallest = weights.min() / num_features
    is_zero = max(abs(smallest), rounding) < _SMALLEST_WEIGHT
    return weights if is_zero or smallest > rounding else None


def _legendre(sizes: np.ndarray, num_features: int, degree: int) -> np.ndarray:
    """Legendre polynomials up to ``degree`` on [½, D + ½], (sizes, degree + 1)."""
    return np.polynomial.legendre.legvander(2.0 / num_features * (sizes - 0.5) - 1.0, degree)


def _largest_below(num_features: int, num_sizes: int, rule: Rule) -> int:
    """The largest number of sizes below ``num_sizes`` that needs no negative weight.

    Of many sizes none above 2.8 √D is tried: it would take long and hardly ever work. A single size
    always does.
    """
    most = max(30, int(2.8 * num_features**0.5))
    for fewer in range(min(num_sizes - 1, most), 1, -1):
        if _weights(_sizes(num_features, fewer, rule), num_features, rule) is not None:
            return fewer
    return 1
