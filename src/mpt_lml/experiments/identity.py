"""Equations 1 to 7, Proposition 1 and Appendix A as numbers (the proofs are in the chapters).

What the paper prints correctly is tried on random models. What is misprinted is computed as printed
(:mod:`mpt_lml.experiments.printed`), on small tables that the chapters use: the city of chapter 1,
the apples of chapter 2, the weather of chapter 3.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import curves, estimators, gaussian, masks
from mpt_lml.experiments import printed
from mpt_lml.experiments.registry import Config, Finding, Outcome, Progress, experiment, silent
from mpt_lml.models.base import TractableModel
from mpt_lml.models.ppca import PPCA
from mpt_lml.models.regression import ConjugateRegression
from mpt_lml.models.tables import JointTable
from mpt_lml.numerics import log_normal, mean_and_error

APPLES = ((0.4, 0.1), (0.2, 0.3))
"""Chapter 2: color (green, red) by taste (sour, sweet) of ten apples."""

CITY = ((0.400, 0.190, 0.005, 0.005), (0.005, 0.005, 0.300, 0.090))
"""Chapter 1: San and New by Francisco, Diego, York and Orleans."""

TODAY = (1, 1, 1, 0)
"""Chapter 3: cloudy, rain, a wet street, no umbrella."""


@dataclass(frozen=True)
class Identity(Config):
    """How many random models are tried, how large they get, and how many draws are averaged."""

    max_features: int = 12
    num_draws: int = 1000
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
    title="Equations 1-7, Proposition 1 and Appendix A, each as printed",
    cost="about 5 s",
    config=Identity,
)
def identity(
    config: Identity, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """The largest errors of the identities, and the size of the errors of what is misprinted.

    Always on the CPU. No arrays.
    """
    worst: dict[str, float] = {}
    for seed in progress(config.seeds, "seed"):
        generator = torch.Generator().manual_seed(seed)
        for model in random_models(config.max_features, seed):
            x = model.sample(5, generator=generator)
            _keep_largest(worst, _identity_errors(model, x, generator))
        _keep_largest(worst, _assumption_errors(generator))
    identities = {name: Finding(error) for name, error in worst.items()}
    return Outcome(identities | _misprints() | _ppca_slips(config) | _bias_at_a_fixed_rate(config))


def _keep_largest(worst: dict[str, float], errors: dict[str, float]) -> None:
    for name, error in errors.items():
        worst[name] = max(worst.get(name, 0.0), error)


# -------------------------------------------------------------------------- what is printed rightly


def _identity_errors(
    model: TractableModel, x: Tensor, generator: torch.Generator
) -> dict[str, float]:
    size = model.num_features
    truth = float(estimators.exact(model, x))
    curve = curves.exact_curve(model, x)
    as_written = _order_terms(model, x, torch.arange(size)[None])
    errors = {
        "eq-2": abs(as_written.sum().item() - truth),
        "prop-1": abs(curve.area() - truth),
    }
    if size <= 5:
        orders = torch.tensor(list(itertools.permutations(range(size))))
        average = _order_terms(model, x, orders)
        errors["eq-3"] = abs(average.sum().item() - truth)
        errors["eq-4-set"] = (average - curve.score).abs().max().item()
    if isinstance(model, PPCA):
        errors["eq-6"] = _dense_error(model, x, generator)
    return errors


def _order_terms(model: TractableModel, x: Tensor, orders: Tensor) -> Float[Tensor, " D"]:
    """Mean over the orders and the data of log p(x_σ(t) | x_σ(t+1..D)), t = 1..D."""
    mask = masks.nested_masks(orders).flatten(0, 1)
    values = model.mean_log_conditional(x, mask).view(len(orders), *[orders.shape[1]] * 2)
    return values.gather(2, orders[:, :, None]).mean(dim=0)[:, 0]


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


def _assumption_errors(generator: torch.Generator) -> dict[str, float]:
    """Proposition 1 without its assumptions, and row by row what Fong and Holmes sum."""
    table = JointTable.random((2, 3, 2, 2), generator=generator)  # no latent variable anywhere
    probabilities, x = table.log_table.exp(), (1, 2, 0, 1)
    scores = [printed.score(probabilities, x, size) for size in range(1, 5)]
    inputs = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    dependent = ConjugateRegression(inputs)  # rows that share unknown weights and noise
    y = dependent.sample(1, generator=generator)
    errors = [sum(scores) - math.log(probabilities[x])]
    errors.append(curves.exact_curve(dependent, y).area() - dependent.log_marginal(y).item())
    columns = curves.exact_curve(PPCA(1.5 * inputs, 0.4), y).score  # observations as coordinates
    rows = _leave_out(1.5 * inputs, y[0], 0.4)
    return {
        "claim-latent-variable": max(abs(error) for error in errors),
        "claim-transpose": (columns - rows).abs().max().item(),
    }


def _leave_out(inputs: Tensor, y: Tensor, noise: float) -> Float[Tensor, " n"]:
    """Leave-p-out, p = 1..n: mean log posterior predictive of y_j over held-out sets and members.

    Regression of y on the inputs with weights N(0, I) and a known noise variance.
    """
    prior = torch.eye(inputs.shape[1], dtype=y.dtype)
    scores = []
    for p in range(1, len(y) + 1):
        values = []
        for held_out in itertools.combinations(range(len(y)), p):
            out = torch.isin(torch.arange(len(y)), torch.tensor(held_out))
            kept, rows = inputs[~out], inputs[out]
            precision = prior + kept.T @ kept / noise
            weights = torch.linalg.solve(precision, kept.T @ y[~out] / noise)
            variance = noise + (rows * torch.linalg.solve(precision, rows.T).T).sum(dim=1)
            values.append(log_normal(y[out] - rows @ weights, variance).mean())
        scores.append(torch.stack(values).mean())
    return torch.stack(scores)


# ---------------------------------------------------------------------------------- what is misprinted


def total_correlation(model: JointTable) -> float:
    """Expected gap of Eq. 1 with everything masked: Σ_j H(x_j) − H(x) ≥ 0, nats (Watanabe 1960)."""
    sizes = model.log_table.shape
    x = torch.cartesian_prod(*[torch.arange(size) for size in sizes]).view(-1, len(sizes))
    everything = torch.ones(1, len(sizes), dtype=torch.bool)
    separate = model.log_conditional(x, everything)[0].sum(dim=1)
    joint = model.log_marginal(x)
    return (joint.exp() * (joint - separate)).sum().item()


def weather() -> JointTable:
    """The table of chapter 3: clouds, rain, wet street, umbrella."""
    f64 = torch.float64
    clouds = torch.tensor([0.55, 0.45], dtype=f64)
    rain = torch.tensor([[0.97, 0.03], [0.45, 0.55]], dtype=f64)
    street = torch.tensor([[0.90, 0.10], [0.04, 0.96]], dtype=f64)
    umbrella = torch.tensor([[[0.95, 0.05], [0.25, 0.75]], [[0.70, 0.30], [0.10, 0.90]]], dtype=f64)
    return JointTable(torch.einsum("c,cr,rs,cru->crsu", clouds, rain, street, umbrella))


def _misprints() -> dict[str, Finding]:
    apples = torch.tensor(APPLES, dtype=torch.float64)
    city = JointTable(torch.tensor(CITY, dtype=torch.float64))
    least_margin = min(
        math.factorial(size) - math.comb(size, t - 1)
        for size in range(1, 13)
        for t in range(1, size + 1)
    )
    return {
        "count-512-76": Finding(float(masks.count(512, 76))),
        "eq-1": Finding(total_correlation(city)),
        "eq-4": Finding(printed.equation_four(apples, (0, 0), 1)),
        "eq-4-reason": Finding(float(least_margin)),
        "eq-a3-line": Finding(printed.line_before_a3(apples, (0, 0), 1)),
        "eq-a3": Finding(printed.mislabeled_size(weather().log_table.exp(), TODAY, 1)),
        "prop-1-middle": Finding(printed.middle_expression(apples, (0, 0))),
    }


def _ppca_slips(config: Identity) -> dict[str, Finding]:
    """The sign of Eq. 7 costs nats; the transposes of Appendix B do not conform."""
    generator = torch.Generator().manual_seed(config.seeds[0])
    loss = printed.sign_loss(random_ppca(5, 2, generator), config.num_draws, generator)
    mean, error = mean_and_error(loss)
    bad = sum(not printed.conforms(random_ppca(10, 2, generator), size) for size in range(1, 10))
    return {"eq-7": Finding(mean.item(), error.item()), "eq-b": Finding(float(bad))}


def _bias_at_a_fixed_rate(config: Identity) -> dict[str, Finding]:
    """Appendix C.1 at the settings of Figure 2, which it cites: D = 10, K = 2, two tokens masked.

    The sign of the sentence is left open: the nearer of plus and minus counts, at the nearest seed.
    """
    scaled_sum, truncated = [], []
    for seed in config.seeds:
        generator = torch.Generator().manual_seed(seed)
        model = PPCA(torch.randn(10, 2, generator=generator, dtype=torch.float64), 0.2)
        x = model.sample(100, generator=generator)
        curve, log_p = curves.exact_curve(model, x), model.log_marginal(x).mean().item()
        visible = model.log_subset_marginal(x, ~masks.all_masks(10, 2)).mean().item()
        scaled = 10 * curve.score[1].item() - log_p
        scaled_sum.append(min(abs(scaled - visible), abs(scaled + visible)))
        truncated.append(abs(curve.score[:2].sum().item() - log_p + visible))
    return {
        "claim-bias-unmasked": Finding(min(scaled_sum)),
        "bias-truncated-sum": Finding(max(truncated)),
    }
