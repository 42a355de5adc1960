"""Table 1 and Figure 1: how fast the accumulated masked score finds log p(x)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import curves, data, estimators, masks
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    checksum,
    experiment,
    silent,
)
from mpt_lml.models.ppca import PPCA

NOISE_VARIANCE = 0.2
"""The paper's 1/sigma^2 = 5."""


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def paper_masks(
    num_masks: int, num_features: int, *, generator: torch.Generator
) -> Bool[Tensor, "D P D"]:
    """The masks of the paper's stream: sizes 1..D in order, ``num_masks`` permutations for each.

    The first M entries of a permutation are masked. Drawing with ``torch.randperm`` one by one is
    slower than :func:`mpt_lml.masks.sample_ranks` and kept because it reproduces printed digits.
    """
    draws = num_features * num_masks
    orders = torch.stack([torch.randperm(num_features, generator=generator) for _ in range(draws)])
    ranks = orders.argsort(dim=1).view(num_features, num_masks, num_features)
    return ranks < torch.arange(1, num_features + 1)[:, None, None]


@dataclass(frozen=True)
class Table1(Config):
    """Settings of Table 1. The text suggests K = 2; the printed values come from K = 5, D = 200."""

    num_data: int = 1000
    num_features: int = 200
    latent_dim: int = 5
    data_seed: int = 1991
    num_masks: tuple[int, ...] = (1, 10, 100)

    @classmethod
    def paper(cls) -> Table1:
        """As published."""
        return cls()

    @classmethod
    def quick(cls) -> Table1:
        """Small enough for a test; its findings are not the paper's."""
        return cls(num_data=50, num_features=20, num_masks=(1, 10))


@experiment(
    "table-1",
    title="Table 1: LML and its estimate from P = 1, 10, 100 masks a size",
    cost="about 5 s",
    config=Table1,
)
def table_1(
    config: Table1, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """Mean and sample standard deviation over the mask seeds, and the exact value.

    Arrays: ``estimates`` (columns, seeds) in nats a datum, ``num_masks`` (columns,).
    """
    draw = data.paper_gaussian(
        config.num_data,
        config.num_features,
        config.latent_dim,
        generator=_generator(config.data_seed),
    )
    x = draw.x.to(device)
    model = PPCA(draw.loadings.to(device), NOISE_VARIANCE)
    findings = {"table-1/true": Finding(float(estimators.exact(model, x)))}
    columns = []
    cells = [(column, seed) for column in config.num_masks for seed in config.seeds]
    for num_masks, seed in progress(cells, "masks a size, seed"):
        mask = paper_masks(num_masks, config.num_features, generator=_generator(seed))
        columns.append(curves.size_scores(model, x, mask.to(device)).mean(dim=1).sum().item())
    estimates = torch.tensor(columns, dtype=torch.float64).view(-1, len(config.seeds))
    for num_masks, row in zip(config.num_masks, estimates, strict=True):
        spread = row.std().item()
        error = spread / math.sqrt(len(row))
        findings[f"table-1/p{num_masks}-mean"] = Finding(row.mean().item(), error)
        # Normal theory: the standard error of a sample standard deviation.
        findings[f"table-1/p{num_masks}-sd"] = Finding(spread, spread / math.sqrt(2 * len(row) - 2))
    arrays = {"estimates": estimates, "num_masks": torch.tensor(config.num_masks)}
    return Outcome(findings, arrays, checksum([draw.x, draw.loadings]))


@dataclass(frozen=True)
class Figure1(Config):
    """Settings of Figure 1, left (D = 5) and center (D = 50): every seed has its own W, Z, noise."""

    num_features: int = 50
    num_data: int = 100
    latent_dim: int = 2
    num_masks: int = 200


@dataclass(frozen=True)
class Figure1Left(Figure1):
    """D = 5."""

    num_features: int = 5

    @classmethod
    def paper(cls) -> Figure1Left:
        """As published."""
        return cls()

    @classmethod
    def quick(cls) -> Figure1Left:
        """20 masks a size."""
        return cls(num_masks=20)


@dataclass(frozen=True)
class Figure1Center(Figure1):
    """D = 50, and the replicates that the rate of convergence is measured on."""

    rate_replicates: int = 200
    rate_masks: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)

    @classmethod
    def paper(cls) -> Figure1Center:
        """As published."""
        return cls()

    @classmethod
    def quick(cls) -> Figure1Center:
        """20 masks a size and few replicates."""
        return cls(num_masks=20, rate_replicates=20, rate_masks=(1, 4, 16))


def seeded_problem(
    config: Figure1, seed: int
) -> tuple[PPCA, Float[Tensor, "N D"], torch.Generator]:
    """The paper's model and data for one seed, and the generator that goes on to draw the masks."""
    generator = _generator(seed)
    draw = data.paper_gaussian(
        config.num_data, config.num_features, config.latent_dim, generator=generator
    )
    return PPCA(draw.loadings, NOISE_VARIANCE), draw.x, generator


def _running_difference(config: Figure1, device: torch.device, progress: Progress) -> Outcome:
    """LML − Σ_M Ŝ(M) after 1..P masks a size, for every seed.

    Arrays: ``difference`` (seeds, P) and ``standard_error`` (seeds,), the latter at the last P.
    """
    rows, errors, used = [], [], []
    for seed in progress(config.seeds, "seed"):
        model, x, generator = seeded_problem(config, seed)
        used += [x, model.loadings]
        model, x = PPCA(model.loadings.to(device), NOISE_VARIANCE), x.to(device)
        values = curves.sampled_scores(model, x, config.num_masks, generator=generator).cpu()
        rows.append(estimators.exact(model, x) - curves.running_area(values))
        errors.append((values.var(dim=1).sum() / config.num_masks).sqrt())
    arrays = {"difference": torch.stack(rows), "standard_error": torch.stack(errors)}
    return Outcome({}, arrays, checksum(used))


def _mean_of_last(arrays: dict[str, Tensor]) -> tuple[float, float]:
    """Mean difference at the last P, and its standard error from the spread of the masks."""
    last, error = arrays["difference"][:, -1], arrays["standard_error"]
    return last.mean().item(), error.square().sum().sqrt().item() / len(error)


def _settles_at_zero(arrays: dict[str, Tensor]) -> Finding:
    mean, error = _mean_of_last(arrays)
    return Finding(mean, error, "confirmed" if abs(mean) <= 3 * error else "refuted")


@experiment(
    "figure-1-left",
    title="Figure 1, left: convergence at D = 5",
    cost="under 1 s",
    config=Figure1Left,
)
def figure_1_left(
    config: Figure1Left, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """LML minus the running area at D = 5, and its bias by enumeration (none).

    Arrays as in ``figure-1-center``.
    """
    outcome = _running_difference(config, device, progress)
    model, x, _ = seeded_problem(config, config.seeds[0])
    bias = abs(curves.exact_curve(model, x).area() - estimators.exact(model, x))
    findings = {
        "fig-1-left": _settles_at_zero(outcome.arrays),
        "claim-convergence": Finding(bias),
    }
    return Outcome(findings, outcome.arrays, outcome.data_sha256)


@experiment(
    "figure-1-center",
    title="Figure 1, center: convergence at D = 50, and its rate",
    cost="about 5 s",
    config=Figure1Center,
)
def figure_1_center(
    config: Figure1Center,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
) -> Outcome:
    """LML minus the running area at D = 50, and the slope of log error against log P.

    Arrays: ``difference`` (seeds, P), ``standard_error`` (seeds,), ``rate_masks`` (G,) and
    ``rate_error`` (G,), the root-mean-square error over independent replicates with that many masks.
    """
    outcome = _running_difference(config, device, progress)
    grid = torch.tensor(config.rate_masks)
    error = _error_by_masks(config, progress)
    slope, slope_error = _log_slope(grid, error, config.rate_replicates)
    agrees = abs(slope + 0.5) <= 3 * slope_error
    findings = {
        "fig-1-center": _settles_at_zero(outcome.arrays),
        "claim-convergence-rate": Finding(slope, slope_error, "confirmed" if agrees else "refuted"),
    }
    arrays = outcome.arrays | {"rate_masks": grid, "rate_error": error}
    return Outcome(findings, arrays, outcome.data_sha256)


def _error_by_masks(config: Figure1Center, progress: Progress) -> Float[Tensor, " G"]:
    """Root-mean-square error of the area, from replicates that share no mask."""
    model, x, generator = seeded_problem(config, config.seeds[0])
    truth = estimators.exact(model, x)
    errors = []
    for num_masks in progress(config.rate_masks, "masks a size"):
        total = num_masks * config.rate_replicates
        values = curves.sampled_scores(model, x, total, generator=generator)
        areas = values.sum(dim=0).view(config.rate_replicates, num_masks).mean(dim=1)
        errors.append((areas - truth).square().mean().sqrt())
    return torch.stack(errors)


def _log_slope(
    num_masks: Tensor, error: Float[Tensor, " G"], replicates: int
) -> tuple[float, float]:
    """Least-squares slope of log error on log P and its standard error.

    A root mean square over R independent normal errors has relative standard error 1/√(2R).
    """
    position = num_masks.double().log()
    position = position - position.mean()
    slope = (position @ error.log()) / position.square().sum()
    slope_error = (1.0 / (2.0 * replicates)) ** 0.5 / position.square().sum().sqrt()
    return slope.item(), slope_error.item()


@dataclass(frozen=True)
class Figure1Right(Config):
    """Settings of Figure 1, right: one size, M = 76 of D = 512; all seeds share one draw of data."""

    num_features: int = 512
    num_masked: int = 76
    num_data: int = 100
    latent_dim: int = 2
    data_seed: int = 111
    num_masks: int = 200

    @classmethod
    def paper(cls) -> Figure1Right:
        """As published; the data seed is that of the authors' published script."""
        return cls()

    @classmethod
    def quick(cls) -> Figure1Right:
        """20 masks of a quarter as many coordinates."""
        return cls(num_features=128, num_masked=19, num_masks=20)


@experiment(
    "figure-1-right",
    title="Figure 1, right: one fixed size, 76 of 512",
    cost="about 1 s",
    config=Figure1Right,
)
def figure_1_right(
    config: Figure1Right, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """LML − D · Ŝ(M) after 1..P masks of the one size, for every seed.

    Arrays: ``difference`` (seeds, P) and ``standard_error`` (seeds,) at the last P.
    """
    draw = data.paper_gaussian(
        config.num_data,
        config.num_features,
        config.latent_dim,
        generator=_generator(config.data_seed),
    )
    model, x = PPCA(draw.loadings.to(device), NOISE_VARIANCE), draw.x.to(device)
    truth = estimators.exact(model, x)
    rows, errors = [], []
    for seed in progress(config.seeds, "seed"):
        mask = masks.sample_masks(
            config.num_masks, config.num_features, config.num_masked, generator=_generator(seed)
        )
        values = config.num_features * curves.size_scores(model, x, mask.to(device)[None]).cpu()
        rows.append(truth - curves.running_area(values))
        errors.append((values.var() / config.num_masks).sqrt())
    arrays = {"difference": torch.stack(rows), "standard_error": torch.stack(errors)}
    mean, error = _mean_of_last(arrays)
    settled = Finding(mean, error, "confirmed" if abs(mean) > 3 * error else "refuted")
    return Outcome({"fig-1-right": settled}, arrays, checksum([draw.x, draw.loadings]))
