"""The rate at which one score is right; nats per coordinate.

Under the model E S(x; M) falls with M (Han 1978): D·S(M) is too high at low rates and too low at high
ones. The *crossover rate* ρ* is the one at which it is right.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.checks import (
    Count,
    Index,
    Positive,
    check,
    checked,
    require_count,
)
from mpt_lml.numerics import LOG_2PI, double
from mpt_lml.verdicts import jackknife_error

__all__ = [
    "chain_crossover",
    "crossover",
    "jackknife",
    "random_loadings_curve",
]


# -- the crossover rate -----------------------------------------------------------------------------


@checked
def crossover(
    score: Float[Tensor, "*B L"],
    rate: Tensor | None = None,
    height: float | None = None,
) -> Float[Tensor, "*B"]:
    """ρ*, the rate at which a curve, joined by straight lines, *first* passes a height.

    Args:
        score: S of one curve or several, nats a coordinate, (..., L).
        rate: the increasing masking rates of ``score``, (L,); M/D for M = 1..D by default.
        height: log p(x)/D, one for all curves; by default the mean of each ``score``.

    Returns:
        In the unit of ``rate``, (...).

    Raises:
        ValueError: where a curve stays on one side of its height, and for rates that do not increase.

    >>> crossover(torch.tensor([0.0, -1.0, -5.0], dtype=torch.float64)).item()
    0.75
    """
    num_rates = score.shape[-1]
    # Apart from score: rates of another precision are welcome.
    check(("rate", rate, Float[Tensor, " L"] | None), L=num_rates)
    require_count("the number of rates", num_rates, 2)
    if rate is None:
        rate = torch.arange(1, num_rates + 1).to(score) / num_rates
    if (rate.diff() <= 0).any():
        raise ValueError(f"rate must increase, got {rate.tolist()}.")
    above = score - (score.mean(dim=-1, keepdim=True) if height is None else height)
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
    return statistic(total / num_groups).item(), jackknife_error(without_one).item()


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
    observed = torch.arange(num_features - 1, -1, -1, dtype=torch.float64)
    gap = noise_variance + latent_dim - observed
    root = (gap.square() + 4.0 * noise_variance * observed).sqrt()
    # Both are the same number: a sum that cancels is replaced by one that does not.
    variance = torch.where(
        gap < 0, 2.0 * noise_variance * observed / (root - gap), 0.5 * (gap + root)
    )
    return -0.5 * (LOG_2PI + 1.0 + variance.log())
