"""Random models and generators for the tests."""

from __future__ import annotations

import torch

from mpt_lml import HMM, PPCA, VAE, BernoulliPCA, JointTable, grids


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(num_features: int, num_values: int) -> torch.Tensor:
    """All V^D points, (V^D, D)."""
    return torch.cartesian_prod(*[torch.arange(num_values)] * num_features).view(-1, num_features)


def random_ppca(num_features: int, latent_dim: int, seed: int = 0) -> PPCA:
    normal = {"generator": generator(seed), "dtype": torch.float64}
    loadings = torch.randn(num_features, latent_dim, **normal)
    return PPCA(loadings, 0.3, torch.randn(num_features, **normal))


def random_table(*sizes: int, seed: int = 0) -> JointTable:
    return JointTable.random(sizes, generator=generator(seed))


def random_bernoulli(num_features: int, latent_dim: int, nodes: int, seed: int = 0) -> BernoulliPCA:
    normal = {"generator": generator(seed), "dtype": torch.float64}
    loadings = 1.5 * torch.randn(num_features, latent_dim, **normal)
    offset = torch.randn(num_features, **normal)
    return BernoulliPCA(loadings, offset, grid=grids.trapezoid(latent_dim, nodes))


def random_hmm(num_states: int, num_symbols: int, num_features: int, seed: int = 0) -> HMM:
    def rows(*shape: int) -> torch.Tensor:
        weights = torch.empty(*shape, dtype=torch.float64).exponential_(generator=draws)
        return weights / weights.sum(dim=-1, keepdim=True)

    draws = generator(seed)
    initial, transition = rows(num_states), rows(num_states, num_states)
    return HMM(initial, transition, rows(num_states, num_symbols), num_features)


def elbo(model: VAE, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Mean over draws of log p(x|z) less the divergence that PyTorch knows."""
    mean, variance = model.encode(x)
    fit = model.log_factors(x, mean + variance.sqrt() * noise).sum(dim=-1).mean(dim=0)
    q = torch.distributions.Normal(mean, variance.sqrt())
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    return fit - torch.distributions.kl_divergence(q, prior).sum(dim=-1)
