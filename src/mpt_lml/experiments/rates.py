"""Which masking rate: crossovers of PPCA, few sizes for all, and what a better law of sizes gains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import masks, objectives
from mpt_lml.experiments.convergence import NOISE_VARIANCE
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    checksum,
    experiment,
    silent,
)
from mpt_lml.gaussian import LowRankPosterior
from mpt_lml.numerics import LOG_2PI, chunks
from mpt_lml.theory import rates
from mpt_lml.theory.godambe import GaussianFamily, Godambe

RULES: tuple[rates.Rule, ...] = ("midpoint", "trapezoid", "clenshaw-curtis", "gauss-legendre")
LAWS = ("uniform", "gradient")


@dataclass(frozen=True)
class MaskingRates(Config):
    """PPCA with N(0, 1) loadings, data from the model; the first setting is that of Figure 4."""

    settings: tuple[tuple[int, int, float], ...] = (
        (200, 5, NOISE_VARIANCE),
        (200, 1, NOISE_VARIANCE),
        (200, 2, NOISE_VARIANCE),
        (200, 20, NOISE_VARIANCE),
        (200, 50, NOISE_VARIANCE),
        (200, 100, NOISE_VARIANCE),
        (20, 5, NOISE_VARIANCE),
        (50, 5, NOISE_VARIANCE),
        (500, 5, NOISE_VARIANCE),
        (200, 5, 0.02),
        (200, 5, 1.0),
        (200, 5, 5.0),
    )
    num_masks: int = 30
    few_masks: int = 400  # per size, for the two settings in which few sizes stand for all
    few_settings: tuple[int, ...] = (0, 4)
    num_sizes: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    num_steps: int = 4000
    num_runs: int = 64
    learning_rate: float = 1e-3
    batch: int = 4

    @classmethod
    def paper(cls) -> MaskingRates:
        """K = 5, D = 200 and σ² = 1/5 of Figure 4, and each of them varied."""
        return cls()

    @classmethod
    def quick(cls) -> MaskingRates:
        """Two small settings."""
        return cls(
            settings=((20, 2, NOISE_VARIANCE), (20, 5, NOISE_VARIANCE)),
            num_masks=5,
            few_masks=20,
            few_settings=(0,),
            num_sizes=(1, 2, 4),
            num_steps=20,
            num_runs=4,
        )


def expected_scores(
    loadings: Float[Tensor, "D K"],
    noise_variance: float,
    num_masks: int,
    *,
    generator: torch.Generator,
    balanced: bool = False,
) -> Float[Tensor, "D P"]:
    """E s(A) under the model for P random masks of every size: no data are drawn, (D, P).

    ``balanced``: the P masks of a size are windows of one random order read as a circle, which hide
    every coordinate equally often (up to one). Each is uniform; together they are less noisy.
    """
    num_features, latent_dim = loadings.shape
    orders = 1 if balanced else num_masks
    ranks = masks.sample_ranks(num_features * orders, num_features, generator=generator)
    if balanced:
        start = torch.arange(num_masks) * num_features // num_masks
        ranks = ((ranks[:, None, :] - start[:, None]) % num_features).flatten(0, 1)
    sizes = torch.arange(1, num_features + 1).repeat_interleave(num_masks)
    masked, noise = ranks < sizes[:, None], torch.tensor(noise_variance, dtype=loadings.dtype)
    values = []
    for rows in chunks(len(masked), 8 * (3 * latent_dim**2 + 4 * num_features), 2**24):
        variance = LowRankPosterior.of(loadings, noise, ~masked[rows]).variance()
        entropy = 0.5 * ((LOG_2PI + 1.0) + variance.log())
        values.append(-(entropy * masked[rows]).sum(dim=1) / sizes[rows])
    return torch.cat(values).view(num_features, num_masks)


def expected_log_marginal(loadings: Float[Tensor, "D K"], noise_variance: float) -> float:
    """E log p(x) under the model, nats."""
    num_features, latent_dim = loadings.shape
    gram = torch.eye(latent_dim, dtype=loadings.dtype) + loadings.mT @ loadings / noise_variance
    log_det = num_features * math.log(noise_variance) + torch.logdet(gram).item()
    return -0.5 * (num_features * (LOG_2PI + 1.0) + log_det)


@experiment(
    "masking-rates",
    title="Which masking rate: crossovers, few sizes, laws of sizes",
    cost="about 3 min",
    config=MaskingRates,
)
def masking_rates(
    config: MaskingRates, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """Runs on the CPU whatever ``device``: the matrices are small.

    Arrays: ``crossover`` (L, seeds), M*/D; ``predicted`` (L, 3), of :func:`predicted`; ``error``
    (L, seeds, 5), D·S(M) − LML in nats at M = 1, 15, 25, 85 % and D; ``few/I/bias`` and
    ``few/I/variance`` (seeds, rules, counts), of the area from few sizes with D masks in all;
    ``few/I/every_size`` (seeds,), the variance of one mask of every size; ``excess`` (laws, runs), the
    mean divergence along SGD.
    """
    arrays: dict[str, Tensor] = {}
    used, crossings, errors = [], [], []
    for setting in progress(config.settings, "setting"):
        drawn = [_one_draw(config, setting, seed) for seed in config.seeds]
        used += [loadings for loadings, _, _ in drawn]
        crossings.append(torch.stack([found for _, found, _ in drawn]))
        errors.append(torch.stack([error for _, _, error in drawn]))
    arrays["crossover"], arrays["error"] = torch.stack(crossings), torch.stack(errors)
    arrays["predicted"] = torch.tensor([predicted(*s) for s in config.settings]).double()
    for index in config.few_settings:
        few = [_few(config, config.settings[index], seed) for seed in config.seeds]
        arrays |= {f"few/{index}/{k}": torch.stack([each[k] for each in few]) for k in few[0]}
    arrays["excess"], arrays["excess_predicted"] = _descend(config, progress)
    return Outcome(_findings(config, arrays), arrays, checksum(used))


def _draw(setting: tuple[int, int, float], seed: int) -> tuple[Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(setting[0], setting[1], generator=generator, dtype=torch.float64), generator


def _one_draw(
    config: MaskingRates, setting: tuple[int, int, float], seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Loadings, crossover, and D·S(M) − LML at M = 1, 15, 25, 85 % and D."""
    loadings, generator = _draw(setting, seed)
    count = config.num_masks
    scores = expected_scores(loadings, setting[2], count, generator=generator, balanced=True)
    score = scores.mean(dim=1)
    truth = expected_log_marginal(loadings, setting[2])
    size = len(score)
    found = rates.crossover(score, height=truth / size)
    at = torch.tensor([1, *(masks.FixedRate(r).num_masked(size) for r in (0.15, 0.25, 0.85)), size])
    return loadings, found, size * score[at - 1] - truth


def predicted(num_features: int, latent_dim: int, noise_variance: float) -> tuple[float, ...]:
    """Crossover rates of the hyperbola v(r), of the large-D formula and of its limit for K ≪ D."""
    hyperbola = rates.random_loadings_curve(num_features, latent_dim, noise_variance)
    return (
        rates.crossover(hyperbola).item(),
        rates.random_loadings_crossover(num_features, latent_dim, noise_variance),
        1.0 - 1.0 / math.log(1.0 + num_features / noise_variance),
    )


def _few(config: MaskingRates, setting: tuple[int, int, float], seed: int) -> dict[str, Tensor]:
    """Bias and variance of Σ w Ŝ with D masks in all, (rules, counts), and of one mask per size."""
    loadings, generator = _draw(setting, seed)
    scores = expected_scores(loadings, setting[2], config.few_masks, generator=generator)
    mean, spread = scores.mean(dim=1), scores.var(dim=1)
    truth = expected_log_marginal(loadings, setting[2])
    num_features = setting[0]
    bias, variance = [], []
    for rule in RULES:
        for count in config.num_sizes:
            sizes, weights = rates.sizes_and_weights(num_features, count, rule)
            each = num_features / len(sizes)  # masks per size
            bias.append((weights @ mean[sizes - 1]).item() - truth)
            variance.append((weights.square() @ spread[sizes - 1]).item() / each)
    shape = (len(RULES), len(config.num_sizes))
    return {
        "bias": torch.tensor(bias, dtype=torch.float64).view(shape),
        "variance": torch.tensor(variance, dtype=torch.float64).view(shape),
        "every_size": spread.sum(),
    }


def sgd_family(seed: int) -> tuple[Tensor, GaussianFamily]:
    """The loadings on which the laws are compared, D = 10 and K = 2, and their family."""
    loadings, _ = _draw((10, 2, NOISE_VARIANCE), seed)
    return loadings, GaussianFamily.ppca(loadings, NOISE_VARIANCE)


def _descend(config: MaskingRates, progress: Progress) -> tuple[Tensor, Tensor]:
    """Plain SGD from the true loadings, one mask per datum, sizes from two laws: mean divergence.

    Near the optimum of a weighted objective, whose Hessian is the Fisher information, the stationary
    excess is η tr(J)/4 to first order in the learning rate η, J the variance of the gradient used.
    """
    truth, family = sgd_family(config.seeds[0])
    info = Godambe.of(family)
    rms = info.gradient_rms()
    laws = torch.stack([torch.full_like(rms, 1.0 / len(rms)), rms / rms.sum()])
    second = (rms.square() / laws).sum(dim=1) / config.batch  # mean square of the gradient
    generator = torch.Generator().manual_seed(config.seeds[0])
    loadings = truth.repeat(len(laws), config.num_runs, 1, 1)
    total = torch.zeros(len(laws), config.num_runs, dtype=torch.float64)
    warm = config.num_steps // 4
    for step in progress(range(config.num_steps), "SGD step"):
        loadings = loadings + config.learning_rate * _gradient(
            loadings, family, laws, config, generator
        )
        if step >= warm:
            total += _divergence(loadings, family.covariance)
    return total / (config.num_steps - warm), config.learning_rate * second / 4.0


def _gradient(
    loadings: Tensor,
    family: GaussianFamily,
    laws: Tensor,
    config: MaskingRates,
    generator: torch.Generator,
) -> Tensor:
    """Of s(A)/π(M), one mask per datum, mean over a batch: the same data and shifts for both laws."""
    num_laws, runs, num_features, _ = loadings.shape
    factor = torch.linalg.cholesky(family.covariance)
    noise = torch.randn(runs, config.batch, num_features, generator=generator, dtype=torch.float64)
    x = noise @ factor.mT
    level = torch.rand(runs * config.batch, generator=generator, dtype=torch.float64)
    sizes = torch.stack([torch.bucketize(level, law.cumsum(0)[:-1], right=True) for law in laws])
    ranks = masks.sample_ranks(runs * config.batch, num_features, generator=generator)
    mask = (ranks <= sizes[..., None]).view(num_laws, runs, config.batch, 1, num_features)
    weight = 1.0 / laws.gather(1, sizes).view(num_laws, runs, config.batch)
    moment = (x[..., :, None] * x[..., None, :]).expand(num_laws, -1, -1, -1, -1)
    free = loadings.detach().requires_grad_()
    each = free[:, :, None].expand(-1, -1, config.batch, -1, -1)
    noise_variance = torch.tensor(NOISE_VARIANCE, dtype=torch.float64)
    score = objectives.mask_scores(each, noise_variance, moment, mask)[..., 0]
    (gradient,) = torch.autograd.grad((weight * score).mean(dim=-1).sum(), free)
    return gradient


def _divergence(loadings: Tensor, truth: Float[Tensor, "D D"]) -> Tensor:
    """KL(true ‖ model) of every run."""
    identity = torch.eye(len(truth), dtype=truth.dtype)
    covariance = loadings @ loadings.mT + NOISE_VARIANCE * identity
    ratio = torch.linalg.solve(covariance, truth)
    trace = ratio.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return 0.5 * (trace - len(truth) - torch.linalg.slogdet(ratio).logabsdet)


def few_ratio(arrays: Mapping[str, Tensor], index: int, count: int) -> Float[Tensor, "S R"]:
    """Root mean square error of the area from few sizes over that of one mask of every size.

    Both use D masks in all; ``count`` is a position in ``num_sizes``, ``index`` one in ``settings``.
    """
    square = arrays[f"few/{index}/bias"].square() + arrays[f"few/{index}/variance"]
    return (square[..., count] / arrays[f"few/{index}/every_size"][:, None]).sqrt()


def _findings(config: MaskingRates, arrays: dict[str, Tensor]) -> dict[str, Finding]:
    """Of the first setting (Figure 4's) unless the name says otherwise; errors over the draws."""
    error = arrays["error"]
    low, high = error[..., 0], error[..., -1]
    sided = torch.minimum(low, -high)  # positive: above at the lowest rate and below at the highest
    sizes = config.num_sizes.index(12) if 12 in config.num_sizes else -1
    values = {
        "claim-masking-rate": error[0, :, 1] - error[0, :, 3],
        "claim-bound-by-rate": sided[sided.mean(dim=1).argmin()],
        "25-against-15": error[0, :, 2].abs() - error[0, :, 1].abs(),
        "crossover": arrays["crossover"][0],
    }
    for name, index in zip(("few-sizes/k5", "few-sizes/k50"), config.few_settings, strict=False):
        values[name] = few_ratio(arrays, index, sizes)[:, -1]
    count = math.sqrt(len(config.seeds))
    found = {k: Finding(v.mean().item(), v.std().item() / count) for k, v in values.items()}
    return found | {"25-against-15/constraint": Finding(_counterexample())}


def _counterexample() -> float:
    """|error| at 25 % minus at 15 % where one constraint ties 100 coordinates, nats, exact."""
    correlation, size = -(1.0 - 1e-3) / 99, torch.arange(101, dtype=torch.float64)
    log_det = (size - 1.0) * math.log1p(-correlation) + torch.log1p((size - 1.0) * correlation)
    score = -0.5 * (LOG_2PI + 1.0 + log_det.diff()).flip(0)
    error = (100 * score - score.sum())[[14, 24]].abs()
    return (error[1] - error[0]).item()
