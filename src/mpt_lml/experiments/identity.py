"""Equations 1 to 7 and Proposition 1 as numbers on random models (the proofs are in the chapters)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import curves, estimators, gaussian, masks
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    Verdict,
    experiment,
    silent,
)
from mpt_lml.models.base import TractableModel
from mpt_lml.models.joint_table import JointTable
from mpt_lml.models.ppca import PPCA
from mpt_lml.numerics import log_normal

EXACT = 1e-10
"""What float64 leaves of an identity between sums of at most a few thousand log-probabilities."""


@dataclass(frozen=True)
class Identity(Config):
    """How many random models are tried, and how large they get."""

    max_features: int = 12
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)

    @classmethod
    def paper(cls) -> Identity:
        """D up to 12."""
        return cls()

    @classmethod
    def quick(cls) -> Identity:
        """D up to 6."""
        return cls(max_features=6, seeds=(1, 2))


def random_ppca(num_features: int, latent_dim: int, generator: torch.Generator) -> PPCA:
    """A PPCA with normal loadings, non-zero mean and a noise variance between 0.1 and 1.1."""
    draws = torch.randn(num_features, latent_dim + 1, generator=generator, dtype=torch.float64)
    noise = 0.1 + torch.rand((), generator=generator, dtype=torch.float64)
    return PPCA(draws[:, 1:], noise, draws[:, 0])


def random_models(max_features: int, seed: int) -> list[TractableModel]:
    """PPCA with D = 1..``max_features`` and K = 0..D, and joint tables of two and three values."""
    generator = torch.Generator().manual_seed(seed)
    models: list[TractableModel] = []
    for num_features in range(1, max_features + 1):
        for latent_dim in {0, 1, num_features // 2, num_features}:
            models.append(random_ppca(num_features, latent_dim, generator))
    for sizes in ((2,), (2, 3), (2, 2, 2), (3, 2, 2, 3), (2,) * 6, (2,) * 9):
        models.append(JointTable.random(sizes, generator=generator))
    return [model for model in models if model.num_features <= max_features]


@experiment(
    "identity",
    title="Equations 1-7 and Proposition 1 on random models",
    cost="about 5 s",
    config=Identity,
)
def identity(
    config: Identity, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """The largest errors of the identities, and the size of the errors of what is misprinted.

    Always on the CPU. No arrays.
    """
    worst = dict.fromkeys(("eq-2", "eq-3", "eq-a3", "prop-1", "claim-uniform-size-unbiased"), 0.0)
    worst["eq-6"] = 0.0
    for seed in progress(config.seeds, "seed"):
        generator = torch.Generator().manual_seed(seed)
        for model in random_models(config.max_features, seed):
            x = model.sample(5, generator=generator)
            for name, error in _identity_errors(model, x, generator).items():
                worst[name] = max(worst[name], error)
    worst["eq-a1"], worst["eq-a2"] = worst["eq-2"], worst["eq-3"]
    findings = {name: Finding(error) for name, error in worst.items()}
    return Outcome(findings | _misprints(config.seeds[0]) | _counts())


def _identity_errors(
    model: TractableModel, x: Tensor, generator: torch.Generator
) -> dict[str, float]:
    truth = estimators.exact(model, x)
    chain = curves.sampled_scores(
        model, x, 20, generator=generator, scheme="nested", tokens="one"
    ).sum(dim=0)
    curve = curves.exact_curve(model, x)
    errors = {
        "eq-2": (chain - truth).abs().max().item(),
        "prop-1": abs(curve.area() - truth),
        # the same sum with the multiplicities of Eq. 4 put in by hand, size by size
        "eq-a3": abs(_regrouped(curve.score, repaired=True) - truth),
        "claim-uniform-size-unbiased": abs(len(curve.score) * curve.score.mean().item() - truth),
    }
    if model.num_features <= 5:
        orders = list(itertools.permutations(range(model.num_features)))
        errors["eq-3"] = abs(_order_average(model, x, torch.tensor(orders)) - truth)
    if isinstance(model, PPCA):
        errors["eq-6"] = _dense_error(model, x, generator)
    return errors


def _order_average(model: TractableModel, x: Tensor, orders: Tensor) -> float:
    """Mean over the given orders of Σ_t log p(x_σ(t) | x_σ(t+1..D))."""
    mask = masks.nested_masks(orders).flatten(0, 1)
    values = model.mean_log_conditional(x, mask).view(len(orders), *[orders.shape[1]] * 2)
    return values.gather(2, orders[:, :, None]).sum(dim=(1, 2)).mean().item()


def _regrouped(score: Float[Tensor, " D"], *, repaired: bool) -> float:
    """(1/D!) Σ_M c_M Σ_{|A|=M} Σ_{j∈A} log p(x_j|x_R), c_M = (M−1)!(D−M)! or, as printed, 1."""
    size = len(score)
    total = 0.0
    for num_masked, value in enumerate(score.tolist(), start=1):
        pairs = num_masked * math.comb(size, num_masked)
        orders = math.factorial(num_masked - 1) * math.factorial(size - num_masked)
        total += pairs * value * (orders if repaired else 1)
    return total / math.factorial(size)


def _dense_error(model: PPCA, x: Tensor, generator: torch.Generator) -> float:
    """Largest difference of low-rank and dense conditionals, and of the two log-densities."""
    mask = masks.sample_masks(5, model.num_features, masks.UniformSize(), generator=generator)
    low_rank = model.log_conditional(x, mask)
    worst = (model.log_marginal(x) - gaussian.log_density(x, model.mean, model.covariance)).abs()
    errors = [worst.max().item()]
    for row, values in zip(mask, low_rank, strict=True):
        mean, covariance = gaussian.condition_dense(x, model.mean, model.covariance, row)
        dense = log_normal(x[:, row] - mean, covariance.diagonal())
        errors.append((dense - values[:, row]).abs().max().item())
    return max(errors)


def _misprints(seed: int) -> dict[str, Finding]:
    """How far the printed forms of Eqs. 1, 4, 7 and of Proposition 1's middle line are off."""
    generator = torch.Generator().manual_seed(seed)
    table = JointTable.random((2, 2), generator=generator)
    both = torch.zeros(1, 2, dtype=torch.int64)
    curve = curves.exact_curve(table, both)
    sizes = torch.arange(1, 3)
    middle = (curve.partial_sums() / sizes).sum().item() - curve.area()
    subset = table.log_subset_marginal(both, masks.subsets(2))[:, 0]
    half_information = 0.5 * (subset[3] - subset[1] - subset[2]).item()
    larger = JointTable.random((2, 2, 2), generator=generator)
    corner = torch.zeros(1, 3, dtype=torch.int64)
    triple = curves.exact_curve(larger, corner)
    grouping = _regrouped(triple.score, repaired=False) - triple.area()
    repaired = _regrouped(triple.score, repaired=True) - triple.area()
    gap = total_correlation(larger)
    sign = printed_sign_error(random_ppca(5, 2, generator), generator)
    return {
        "eq-1": Finding(gap, verdict="corrected" if gap > EXACT else "refuted"),
        "eq-4": Finding(grouping, verdict=_repaired(grouping, repaired)),
        "prop-1-middle": Finding(middle, verdict=_repaired(middle, middle - half_information)),
        "eq-7": Finding(sign, verdict="corrected" if abs(sign) > EXACT else "refuted"),
    }


def _repaired(printed_error: float, repaired_error: float) -> Verdict:
    """``corrected`` when the printed form is off and the repaired one is not."""
    holds = abs(printed_error) > EXACT and abs(repaired_error) <= EXACT
    return "corrected" if holds else "refuted"


def total_correlation(model: JointTable) -> float:
    """Expected gap of Eq. 1 with everything masked: Σ_j H(x_j) − H(x) ≥ 0, nats (Watanabe 1960)."""
    sizes = model.log_table.shape
    x = torch.cartesian_prod(*[torch.arange(size) for size in sizes]).view(-1, len(sizes))
    everything = torch.ones(1, len(sizes), dtype=torch.bool)
    separate = model.log_conditional(x, everything)[0].sum(dim=1)
    joint = model.log_marginal(x)
    return (joint.exp() * (joint - separate)).sum().item()


def printed_sign_error(model: PPCA, generator: torch.Generator) -> float:
    """Mean of log p(x_j | x_R) with the right sign in Eq. 7 minus the same with the printed one."""
    x = model.sample(1000, generator=generator)
    mask = masks.sample_masks(1, model.num_features, 2, generator=generator)[0]
    mean, covariance = gaussian.condition_dense(x, model.mean, model.covariance, mask)
    variance = covariance.diagonal()
    printed = 2.0 * model.covariance[mask][:, mask].diagonal() - variance
    residual = x[:, mask] - mean
    return (log_normal(residual, variance) - log_normal(residual, printed)).mean().item()


def _counts() -> dict[str, Finding]:
    return {"count-512-76": Finding(float(masks.count(512, 76)))}
