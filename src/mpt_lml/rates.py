"""Where one masking rate is right: expected curves, the crossover, few sizes instead of all (floor 3).

Under the model E S(x; M) falls with M (Han 1978), so D·S(M) overestimates E log p(x) at low rates
and underestimates it at high ones. The *crossover* M*/D is the rate at which it is right. Everything
here is in nats per coordinate; a curve is a tensor (..., D) for M = 1..D.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.gaussian import random_loadings_variance
from mpt_lml.shapes import require_count

Rule = Literal["midpoint", "trapezoid", "gauss-legendre", "clenshaw-curtis"]
LOG_2PIE = math.log(2.0 * math.pi * math.e)


def crossover(
    rate: Float[Tensor, " L"], score: Float[Tensor, "*B L"], height: Float[Tensor, "*#B"]
) -> Float[Tensor, "*B"]:
    """The rate at which a curve, joined by straight lines, *first* passes ``height`` = log p(x)/D.

    A curve that falls passes it once. Others can pass it more often (an overfitted model on held-out
    data): :func:`crossings` counts.

    Parameters
    ----------
    rate : Tensor (L,)
        Masking rates M/D, increasing.
    score : Tensor (..., L)
        S at these rates.
    height : Tensor (...)
        Area over D.

    Returns
    -------
    Tensor (...)
        M*/D, between the first and the last rate.

    Raises
    ------
    ValueError
        Where a curve does not pass its height between the first and the last rate.
    """
    require_count("the number of rates", len(rate), 2)
    above = score - height[..., None]
    crosses = (above[..., :-1] * above[..., 1:] <= 0) & (above[..., :-1] != above[..., 1:])
    if not crosses.any(dim=-1).all():
        raise ValueError(
            f"no crossover: a curve over the rates {rate[0]:.3g}..{rate[-1]:.3g} stays on one side "
            "of log p(x)/D. Widen the rates, or look whether all coordinates are independent."
        )
    first = crosses.double().argmax(dim=-1, keepdim=True)
    left, right = above.gather(-1, first), above.gather(-1, first + 1)
    share = (left / (left - right))[..., 0]
    start, end = rate[first[..., 0]], rate[first[..., 0] + 1]
    return start + share * (end - start)


def crossings(score: Float[Tensor, "*B L"], height: Float[Tensor, "*#B"]) -> Int[Tensor, "*B"]:
    """How often a curve, joined by straight lines, passes ``height``: 1 for one that falls, (...)."""
    above = score >= height[..., None]
    return (above[..., 1:] != above[..., :-1]).sum(dim=-1)


def curve_crossover(score: Float[Tensor, "*B D"]) -> Float[Tensor, "*B"]:
    """M*/D of complete curves (..., D): the rate at which D·S equals the area Σ_M S(M), (...)."""
    size = score.shape[-1]
    rate = torch.arange(1, size + 1, dtype=score.dtype, device=score.device) / size
    return crossover(rate, score, score.mean(dim=-1))


def jackknife(
    statistic: Callable[[Float[Tensor, "... L"]], Float[Tensor, "..."]],
    groups: Float[Tensor, "G L"],
) -> tuple[float, float]:
    """``statistic`` of the mean of G independent rows, and its jackknife standard error.

    Leaves out one row at a time: error² = (G − 1)/G Σ (t_g − t̄)².
    """
    require_count("the number of groups", len(groups), 2)
    count = len(groups)
    total = groups.sum(dim=0)
    without = statistic((total - groups) / (count - 1))
    error = ((count - 1) / count * (without - without.mean()).square().sum()).sqrt()
    return statistic(total / count).item(), error.item()


def autoregressive_curve(num_features: int, correlation: float) -> Float[Tensor, " D"]:
    """E S(x; M) of a stationary Gaussian AR(1) with variance 1 and lag-one correlation φ, exact.

    log det of a subset is the sum of ln(1 − φ^{2g}) over its gaps g, and a random set of r
    coordinates has (D − g) C(D − g − 1, r − 2)/C(D, r) gaps g on average.
    """
    _require_correlation("correlation", correlation, -1.0)
    require_count("num_features", num_features, 2)
    gap = torch.arange(1, num_features, dtype=torch.float64)
    size = torch.arange(num_features + 1, dtype=torch.float64)[:, None]
    # Gap 1 occurs r(r − 1)/D times; from g to g + 1 the number changes by (D − g − r + 1)/(D − g).
    change = (num_features - gap - size + 1.0).clamp(min=0.0) / (num_features - gap)
    first = size * (size - 1.0) / num_features
    pairs = torch.cat([first, first * change[:, :-1].cumprod(dim=1)], dim=1)
    log_det = pairs @ torch.log1p(-(abs(correlation) ** (2.0 * gap)))
    return _from_log_det(log_det)


def equicorrelated_curve(num_features: int, correlation: float) -> Float[Tensor, " D"]:
    """E S(x; M) of Gaussian coordinates with variance 1 and one correlation ρ > −1/(D − 1), exact."""
    require_count("num_features", num_features, 2)
    _require_correlation("correlation", correlation, -1.0 / (num_features - 1))
    size = torch.arange(num_features + 1, dtype=torch.float64)
    log_det = (size - 1.0) * math.log1p(-correlation) + torch.log1p((size - 1.0) * correlation)
    log_det[0] = 0.0
    return _from_log_det(log_det)


def random_loadings_curve(
    num_features: int, latent_dim: int, noise_variance: float
) -> Float[Tensor, " D"]:
    """S(M) ≈ −½ ln(2πe v(D − M)) of PPCA with N(0, 1) loadings, data from the model."""
    observed = torch.arange(num_features - 1, -1, -1, dtype=torch.float64)
    variance = random_loadings_variance(observed, latent_dim, noise_variance)
    return -0.5 * (LOG_2PIE + variance.log())


def random_loadings_crossover(num_features: int, latent_dim: int, noise_variance: float) -> float:
    """M*/D of PPCA with N(0, 1) loadings for large D and K = κD < D (ours):

    M*/D ≈ 1 − κ/(1 − e^{−E}) + σ² e^E/D,  E = κ (ln(D/σ²) − 1) − (1 − κ) ln(1 − κ).

    For κ → 0 it is 1 − 1/ln(D/σ²), whatever K.
    """
    require_count("num_features", num_features, 2)
    require_count("latent_dim", latent_dim, 1, num_features - 1)
    share = latent_dim / num_features
    drop = share * (math.log(num_features / noise_variance) - 1.0)
    drop -= (1.0 - share) * math.log1p(-share)
    return 1.0 - share / -math.expm1(-drop) + noise_variance * math.exp(drop) / num_features


def sizes_and_weights(
    num_features: int, num_sizes: int, rule: Rule = "gauss-legendre"
) -> tuple[Int[Tensor, " L"], Float[Tensor, " L"]]:
    """Few sizes M_l and weights with Σ_l w_l S(M_l) ≈ Σ_{M=1}^D S(M), shapes (L,) and L ≤ num_sizes.

    The nodes of ``rule`` on [½, D + ½] are rounded to whole sizes (equal ones become one). The
    trapezoid joins them by straight lines. The other rules get the weights that sum every
    polynomial of degree below L exactly over M = 1..D, so that rounding costs no order;
    ``midpoint`` is even nodes with equal weights.
    """
    require_count("num_features", num_features, 1)
    require_count("num_sizes", num_sizes, 1, num_features)
    nodes = 0.5 + num_features * (_nodes(num_sizes, rule) + 1.0) / 2.0
    sizes = np.unique(np.clip(np.rint(nodes), 1, num_features).astype(np.int64))
    every = np.arange(1, num_features + 1)
    if rule == "midpoint":
        weights = np.full(len(sizes), num_features / len(sizes))
    elif rule == "trapezoid":
        weights = np.array([np.interp(every, sizes, row).sum() for row in np.eye(len(sizes))])
    else:
        scale = 2.0 / num_features
        basis = [
            np.polynomial.legendre.legvander(scale * (m - 0.5) - 1.0, len(sizes) - 1)
            for m in (sizes, every)
        ]
        weights = np.linalg.solve(basis[0].T, basis[1].sum(axis=0))
    return torch.from_numpy(sizes), torch.from_numpy(weights)


def _nodes(count: int, rule: Rule) -> np.ndarray:
    """Nodes of a rule on [−1, 1], increasing."""
    if rule == "gauss-legendre":
        return np.polynomial.legendre.leggauss(count)[0]
    if rule == "midpoint" or count == 1:
        return (2.0 * np.arange(count) + 1.0) / count - 1.0
    if rule == "clenshaw-curtis":
        return -np.cos(np.pi * np.arange(count) / (count - 1))
    if rule == "trapezoid":
        return np.linspace(-1.0, 1.0, count)
    raise ValueError(
        f"rule must be 'midpoint', 'trapezoid', 'gauss-legendre' or 'clenshaw-curtis', got {rule!r}."
    )


def _from_log_det(log_det: Float[Tensor, " L"]) -> Float[Tensor, " D"]:
    """E S(M) = −(h_{D−M+1} − h_{D−M}) from the mean log-determinants of subsets of size 0..D."""
    return -0.5 * (LOG_2PIE + log_det.diff()).flip(0)


def _require_correlation(name: str, value: float, low: float) -> None:
    if not low < value < 1.0:
        raise ValueError(
            f"{name} must lie between {low:.4g} and 1, both excluded, got {value}: "
            "otherwise the covariance is not positive definite."
        )
