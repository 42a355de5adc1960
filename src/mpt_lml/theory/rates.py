"""Where one masking rate is right, and few mask sizes in place of all; nats per coordinate.

Under the model E S(x; M) falls with M (Han 1978): D·S(M) is too high at low rates and too low at high
ones. The *crossover rate* ρ* is the one at which it is right.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.numerics import LOG_2PI
from mpt_lml.results import trapezoid_weights
from mpt_lml.spec import require, require_count, require_memory

__all__ = [
    "chain_crossover",
    "chain_curve",
    "crossover",
    "jackknife",
    "random_loadings_curve",
    "sizes_and_weights",
]

Rule = Literal["midpoint", "trapezoid", "gauss-legendre", "clenshaw-curtis"]

MOST_POLYNOMIAL = 4096
"""Most sizes through which a polynomial is laid; long before, its weights turn negative."""


def crossover(
    score: Float[Tensor, "*B L"],
    rate: Float[Tensor, " L"] | None = None,
    height: Float[Tensor, "*#B"] | float | None = None,
) -> Float[Tensor, "*B"]:
    """ρ*, the rate at which a curve, joined by straight lines, *first* passes ``height``, (...).

    ``score`` (..., L) is S in nats at the increasing masking rates ``rate`` (L,), without them at M/D
    for M = 1..D; ``height`` (...) is log p(x)/D, the mean of ``score`` where none is given.

    Raises ``ValueError`` where a curve stays on one side of its height.

    >>> crossover(torch.tensor([0.0, -1.0, -5.0], dtype=torch.float64)).item()
    0.75
    """
    require({"score": score}, "score ... L")
    require({"rate": rate}, "rate? L", L=score.shape[-1])
    require(locals(), "height? ..." if isinstance(height, Tensor) else "height? (-inf,inf)")
    count, curves = score.shape[-1], score.shape[:-1]
    if isinstance(height, Tensor):
        require_height(height, curves)
    require_count("the number of rates", count, 2)
    rate = torch.arange(1, count + 1).to(score) / count if rate is None else rate
    if (rate.diff() <= 0).any():
        raise ValueError(f"rate must increase, got {rate.tolist()}.")
    height = score.mean(dim=-1) if height is None else height
    above = score - torch.as_tensor(height, dtype=score.dtype, device=score.device)[..., None]
    crosses = (above[..., :-1] * above[..., 1:] <= 0) & (above[..., :-1] != above[..., 1:])
    if not crosses.any(dim=-1).all():
        ends = f"{rate[0]:.3g}..{rate[-1]:.3g}"
        raise ValueError(f"no crossover in {ends}: a curve stays on one side. Widen the rates.")
    first = crosses.double().argmax(dim=-1, keepdim=True)
    left, right = above.gather(-1, first), above.gather(-1, first + 1)
    share = (left / (left - right))[..., 0]
    start, end = rate[first[..., 0]], rate[first[..., 0] + 1]
    return start + share * (end - start)


def require_height(height: Tensor, curves: torch.Size) -> None:
    """Check that there is one height for each of the ``curves``, or one for all."""
    try:
        fits = torch.broadcast_shapes(height.shape, curves) == curves
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"height must have the shape of score without its last axis, {tuple(curves)}, got "
            f"{tuple(height.shape)}."
        )


def chain_curve(gap_entropy: Float[Tensor, " G"], marginal_entropy: float) -> Float[Tensor, " D"]:
    """E S(x; M) of a stationary Markov chain of D = G + 1 coordinates, exact for every D, (D,) nats.

    ``gap_entropy`` (G,) is h(g), the entropy of x_{j+g} given x_j in nats for g = 1..D−1, and
    ``marginal_entropy`` that of x_j. −E log p(x_R) is the marginal entropy and Σ_g h(g) over the gaps
    of R; of the sets of r coordinates, a share of C(D−g−1, r−2)/C(D, r) has a gap g at a given place.
    Raises ``ValueError`` where h falls, is not concave or exceeds the marginal: no chain has it.

    >>> chain_curve(torch.tensor([0.5, 0.75], dtype=torch.float64), 1.0)
    tensor([-0.4167, -0.5833, -1.0000], dtype=torch.float64)
    """
    require(locals(), "gap_entropy G, marginal_entropy (-inf,inf)")
    h, slack = _of_a_chain(gap_entropy)
    if h[-1] > marginal_entropy + slack:
        raise ValueError(
            f"gap_entropy ends at {h[-1].item():.6g}, above marginal_entropy = {marginal_entropy:.6g}: "
            "what is given never raises an entropy."
        )
    size = len(h) + 1
    r, gap = torch.arange(size + 1).double()[:, None], torch.arange(1, size).double()
    shrink = (size - gap - r + 1).clamp(min=0) / (size - gap)  # of the number of gaps, g to g + 1
    gaps = torch.cat([r * (r - 1) / size, shrink[:, :-1]], dim=1).cumprod(dim=1)
    joint = gaps @ h + marginal_entropy * r[:, 0].clamp(max=1)
    return -joint.diff().flip(0).to(gap_entropy.dtype)


def chain_crossover(gap_entropy: Float[Tensor, " G"]) -> float:
    """ρ* of a stationary Markov chain of infinite length, at least 1/2 (ours).

    The maximum over q of (1 − q) Σ_g δ_g q^g, δ_g = h(g+1) − h(g), for h(g) = ``gap_entropy`` (G,) in
    nats, g = 1..G. Where δ_1 = 0 the curve of infinite length is flat, and nothing crosses. Raises
    ``ValueError`` there, for what is no chain's and for what is too short.

    >>> logarithm = torch.arange(1.0, 200.0, dtype=torch.float64).log()
    >>> round(chain_crossover(logarithm), 6)
    0.658322
    """
    require(locals(), "gap_entropy G")
    require_count("the length of gap_entropy", len(gap_entropy), 3)
    h, slack = _of_a_chain(gap_entropy)
    step = h.diff()
    if step[0] <= slack:
        raise ValueError(
            "no crossover: gap_entropy begins with two equal values, so that the curve of a long "
            "chain is flat. Give a chain in which two steps are less certain than one."
        )
    order, low, high = torch.arange(2, len(gap_entropy)).to(step), 0.5, 1.0
    while high - low > 1e-15:
        q = (low + high) / 2
        rises = step[0] + (order * q ** (order - 1)) @ step.diff() > 0  # the derivative
        low, high = (q, high) if rises else (low, q)
    if step[-1] * len(gap_entropy) * low ** (len(gap_entropy) - 1) > 1e-9 * step[0]:
        raise ValueError(f"gap_entropy must reach further than {len(gap_entropy)} gaps.")
    return low


def _of_a_chain(gap_entropy: Tensor) -> tuple[Tensor, float]:
    """In double precision, and how far it may be off by rounding, here as in what follows from it."""
    h, slack = gap_entropy.double(), 0.1 * torch.finfo(gap_entropy.dtype).eps ** 0.5
    if (h.diff() < -slack).any() or (h.diff().diff() > slack).any():
        raise ValueError("gap_entropy must rise with the gap, by less and less.")
    return h, slack


def jackknife(
    statistic: Callable[[Float[Tensor, "... L"]], Float[Tensor, "..."]],
    groups: Float[Tensor, "G L"],
) -> tuple[float, float]:
    """``statistic`` of the mean of G independent rows, and its jackknife standard error.

    Leaves out one row at a time: error² = (G − 1)/G Σ (t_g − t̄)² (Efron & Stein 1981).

    >>> jackknife(lambda mean: mean[..., 0], torch.tensor([[1.0], [3.0]]))
    (2.0, 1.0)
    """
    require(locals(), "statistic Callable, groups G L")
    count = len(groups)
    require_count("the number of groups", count, 2)
    total = groups.sum(dim=0)
    without = statistic((total - groups) / (count - 1))
    require({"statistic(groups)": without}, "statistic(groups) G", G=count)
    error = ((count - 1) / count * (without - without.mean()).square().sum()).sqrt()
    return statistic(total / count).item(), error.item()


def random_loadings_curve(
    num_features: int, latent_dim: int, noise_variance: float
) -> Float[Tensor, " D"]:
    """S(M) ≈ −½ ln(2πe v(D − M)) of PPCA with N(0, 1) loadings and data from the model, (D,) (ours).

    v(r) = ½ [σ² + K − r + √((σ² + K − r)² + 4 σ² r)] is Var(x_j | x_R) at r observed coordinates, in
    the limit of large D, K and r: σ² + K at r = 0, close to σ² well above the bend at r = K.

    >>> [round(v, 3) for v in random_loadings_curve(4, 1, 0.2).tolist()]
    [-0.796, -0.892, -1.127, -1.51]
    """
    require(locals(), "num_features 1.., latent_dim 0.., noise_variance (0,inf)")
    observed = torch.arange(num_features - 1, -1, -1, dtype=torch.float64)
    gap = noise_variance + latent_dim - observed
    root = (gap.square() + 4.0 * noise_variance * observed).sqrt()
    # Both are the same number: a sum that cancels is replaced by one that does not.
    variance = torch.where(
        gap < 0, 2.0 * noise_variance * observed / (root - gap), 0.5 * (gap + root)
    )
    return -0.5 * (LOG_2PI + 1.0 + variance.log())


def sizes_and_weights(
    num_features: int, num_sizes: int, rule: Rule = "gauss-legendre"
) -> tuple[Int[Tensor, " L"], Float[Tensor, " L"]]:
    """Few sizes M_l and weights with Σ_l w_l S(M_l) ≈ Σ_{M=1}^D S(M), shapes (L,) and L ≤ num_sizes.

    The nodes of ``rule`` on [½, D + ½] are rounded to whole sizes (equal ones become one).
    ``midpoint`` has equal weights, the trapezoid straight lines; the other rules sum polynomials of
    degree below L exactly over M = 1..D.

    The noise of sampled scores is multiplied by up to Σ|w|/D, which is 1 where all weights are
    positive. Through nodes that are nearly as close as whole sizes are, a polynomial swings: beyond
    about 2.8 √D of them, here and there before, weights turn negative, and soon are larger than D.
    Raises ``ValueError`` there, with a number of sizes that works, and for another rule.

    >>> sizes, weights = sizes_and_weights(200, 3)
    >>> sizes.tolist(), round(weights.sum().item(), 9)
    ([23, 100, 178], 200.0)
    """
    require(locals(), "num_features 1.., rule midpoint|trapezoid|gauss-legendre|clenshaw-curtis")
    require_count("num_sizes", num_sizes, 1, num_features)
    if rule == "trapezoid":
        require_memory(f"weights of {num_sizes} sizes", 8 * num_sizes**2, "fewer num_sizes")
    if rule in ("gauss-legendre", "clenshaw-curtis"):
        require_count("num_sizes", num_sizes, 1, MOST_POLYNOMIAL)
        bytes_needed = 8 * num_features * num_sizes
        require_memory(f"polynomials at {num_features} sizes", bytes_needed, "fewer num_sizes")
    sizes, weights = _sizes_and_weights(num_features, num_sizes, rule)
    if _has_negative(weights):
        fewer = _largest_below(num_features, num_sizes, rule)
        raise ValueError(
            f"num_sizes = {num_sizes} of D = {num_features} by {rule} need the weight "
            f"{weights.min():.3g}: noise would be multiplied by up to "
            f"{np.abs(weights).sum() / num_features:.3g}. Use num_sizes={fewer}, or rule='trapezoid'."
        )
    return torch.from_numpy(sizes), torch.from_numpy(weights)


def _has_negative(weights: np.ndarray) -> bool:
    return bool(weights.min() < -1e-9 * weights.sum())


def _largest_below(num_features: int, num_sizes: int, rule: Rule) -> int:
    """The largest number of sizes below ``num_sizes`` that needs no negative weight.

    Of many sizes none above 2.8 √D is tried: it would take long and hardly ever work. A single size
    always does.
    """
    most = max(30, int(2.8 * num_features**0.5))
    for fewer in range(min(num_sizes - 1, most), 1, -1):
        if not _has_negative(_sizes_and_weights(num_features, fewer, rule)[1]):
            return fewer
    return 1


def _sizes_and_weights(
    num_features: int, num_sizes: int, rule: Rule
) -> tuple[np.ndarray, np.ndarray]:
    step = np.linspace(0.0, 1.0, num_sizes) if num_sizes > 1 else np.array([0.5])
    if rule == "midpoint":
        nodes = (2.0 * np.arange(num_sizes) + 1.0) / num_sizes - 1.0
    elif rule == "trapezoid":
        nodes = 2.0 * step - 1.0
    elif rule == "gauss-legendre":
        nodes = np.polynomial.legendre.leggauss(num_sizes)[0]
    else:
        nodes = -np.cos(np.pi * step)
    rounded = np.rint(0.5 + num_features * (nodes + 1.0) / 2.0)
    sizes = np.unique(np.clip(rounded, 1, num_features).astype(np.int64))
    if rule == "midpoint":
        weights = np.full(len(sizes), num_features / len(sizes))
    elif rule == "trapezoid":
        weights = trapezoid_weights(sizes, num_features).numpy()
    else:
        few, every = (
            np.polynomial.legendre.legvander(2.0 / num_features * (m - 0.5) - 1.0, len(sizes) - 1)
            for m in (sizes, np.arange(1, num_features + 1))
        )
        weights = np.linalg.solve(few.T, every.sum(axis=0))
    return sizes, weights
