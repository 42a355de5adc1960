from __future__ import annotations

import math

import pytest
import torch
from models import generator, random_ppca

from mpt_lml import gaussian, masks, objectives

EXACT = 1e-10


def pair(num_features: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(random_ppca(num_features, 2, seed=s).covariance for s in (1, 2))


def test_divergence_is_torchs() -> None:
    p, q = pair()
    zero = torch.zeros(5, dtype=torch.float64)
    first, second = (torch.distributions.MultivariateNormal(zero, c) for c in (p, q))
    expected = torch.distributions.kl_divergence(first, second).item()
    assert gaussian.divergence(p, q).item() == pytest.approx(expected, abs=EXACT)
    assert abs(gaussian.divergence(p, p).item()) <= EXACT


def test_conditional_divergence_is_what_the_score_loses_in_expectation() -> None:
    """The mean score of x from N(0, p) needs only its second moment, which is p."""
    first, second = random_ppca(5, 2, seed=1), random_ppca(5, 2, seed=2)
    p, q = first.covariance, second.covariance
    mask = masks.subsets(5)[1:]
    noise = torch.tensor(0.3, dtype=torch.float64)
    right, wrong = (objectives.mask_scores(m.loadings, noise, p, mask) for m in (first, second))
    for row, lost in zip(mask, right - wrong, strict=True):
        value = gaussian.conditional_divergence(p, q, row)
        assert value.item() == pytest.approx(lost.item(), abs=EXACT)
        assert value >= -EXACT


def test_bias_identity() -> None:
    """bias_M(θ) − bias_M(θ*) = KL(p* ‖ p_θ) − D K_M(θ), both sides from different formulas."""
    first, second = random_ppca(5, 2, seed=1), random_ppca(5, 2, seed=2)
    p, q = first.covariance, second.covariance
    noise = torch.tensor(0.3, dtype=torch.float64)
    pairs = torch.stack([second.loadings, first.loadings])
    bias = 5 * objectives.curve(pairs, noise, p) - objectives.log_marginal(pairs, noise, p)[:, None]
    for size in range(1, 6):
        rows = masks.all_masks(5, size)
        lost = torch.stack([gaussian.conditional_divergence(p, q, row) for row in rows]).mean()
        right = gaussian.divergence(p, q) - 5 * lost
        assert (bias[0, size - 1] - bias[1, size - 1]).item() == pytest.approx(
            right.item(), abs=1e-9
        )


@pytest.mark.parametrize(("num_features", "latent_dim"), [(400, 10), (400, 100)])
def test_random_loadings_variance_is_the_limit(num_features: int, latent_dim: int) -> None:
    loadings = torch.randn(num_features, latent_dim, generator=generator(3), dtype=torch.float64)
    noise = torch.tensor(0.2, dtype=torch.float64)
    for observed in (0, 1, latent_dim // 2, 2 * latent_dim, 3 * latent_dim):
        mask = masks.sample_masks(20, num_features, num_features - observed, generator=generator(4))
        variance = gaussian.LowRankPosterior.of(loadings, noise, ~mask).variance()
        mean = variance[mask].mean().item()
        count = torch.tensor(float(observed), dtype=torch.float64)
        value = gaussian.random_loadings_variance(count, latent_dim, 0.2).item()
        # Self-averaging: the spread of w_j' A^-1 w_j is O(1/sqrt(K)) an entry and averaged over
        # hundreds; what is left is the O(1/K) correction of the limit.
        assert mean == pytest.approx(value, rel=3 / latent_dim)


def test_random_loadings_variance_at_the_ends() -> None:
    ends = torch.tensor([0.0, 1e6], dtype=torch.float64)
    start, end = gaussian.random_loadings_variance(ends, 5, 0.2).tolist()
    assert start == pytest.approx(5.2)
    assert end == pytest.approx(0.2, rel=1e-4)
    assert math.isfinite(end)
