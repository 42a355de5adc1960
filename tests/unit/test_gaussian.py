from __future__ import annotations

import pytest
import torch
from models import random_ppca

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


def lost(p: torch.Tensor, q: torch.Tensor, mask: torch.Tensor) -> float:
    """(1/M) Σ_{j∈A} E KL(p(x_j | x_R) ‖ q(x_j | x_R)): of R and j together less that of R."""

    def divergence(rows: torch.Tensor) -> float:
        if not rows.any():
            return 0.0
        return gaussian.divergence(p[rows][:, rows], q[rows][:, rows]).item()

    hidden = torch.eye(len(mask)).bool()[mask]
    each = [divergence(~mask | j) - divergence(~mask) for j in hidden]
    return sum(each) / len(each)


def test_divergence_is_what_the_score_loses_in_expectation() -> None:
    """The mean score of x from N(0, p) needs only its second moment, which is p."""
    first, second = random_ppca(5, 2, seed=1), random_ppca(5, 2, seed=2)
    p, q = first.covariance, second.covariance
    mask = masks.subsets(5)[1:]
    noise = torch.tensor(0.3, dtype=torch.float64)
    right, wrong = (objectives.mask_scores(m.loadings, noise, p, mask) for m in (first, second))
    for row, expected in zip(mask, (right - wrong).tolist(), strict=True):
        assert lost(p, q, row) == pytest.approx(expected, abs=EXACT)


def test_bias_identity() -> None:
    """bias_M(θ) − bias_M(θ*) = KL(p* ‖ p_θ) − D K_M(θ), both sides from different formulas."""
    first, second = random_ppca(5, 2, seed=1), random_ppca(5, 2, seed=2)
    p, q = first.covariance, second.covariance
    noise = torch.tensor(0.3, dtype=torch.float64)
    pairs = torch.stack([second.loadings, first.loadings])
    bias = 5 * objectives.curve(pairs, noise, p) - objectives.log_marginal(pairs, noise, p)[:, None]
    for size in range(1, 6):
        rows = masks.all_masks(5, size)
        right = gaussian.divergence(p, q).item() - 5 * sum(lost(p, q, r) for r in rows) / len(rows)
        moved = (bias[0, size - 1] - bias[1, size - 1]).item()
        assert moved == pytest.approx(right, abs=1e-9)
