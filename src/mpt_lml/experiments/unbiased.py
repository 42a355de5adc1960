"""Is the estimate biased when only some masks are drawn? Many replicates at D = 50."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mpt_lml import curves, estimators, masks
from mpt_lml.experiments.convergence import Figure1Center, seeded, seeded_problem
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    checksum,
    experiment,
    silent,
)


@dataclass(frozen=True)
class Unbiased(Config):
    """Replicates per problem; the problems (W and data) are those of Figure 1, center."""

    one_per_size: int = 2000
    random_size: int = 100_000

    @classmethod
    def paper(cls) -> Unbiased:
        """Five problems of the paper's Figure 1."""
        return cls()

    @classmethod
    def quick(cls) -> Unbiased:
        """Few replicates of two problems."""
        return cls(seeds=(4, 44), one_per_size=20, random_size=200)


@experiment(
    "unbiased",
    title="Bias at D = 50 of one mask per size and of one mask of a random size",
    cost="about 15 s",
    config=Unbiased,
)
def unbiased(
    config: Unbiased, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """Mean of estimate minus log p(x), for the paper's estimator at P = 1 and for D · s(A).

    Arrays: ``bias`` (2, S) and ``spread`` (2, S), mean and standard deviation over the replicates
    of each problem, first for one mask per size, then for one mask of a uniform size; nats per
    datum.
    """
    problem, used = Figure1Center(), []
    errors: tuple[list[Tensor], list[Tensor]] = ([], [])
    for seed in progress(config.seeds, "seed"):
        model, x, _ = seeded_problem(problem, seed)
        used += [x, model.loadings]
        truth = estimators.exact(model, x)
        generator = seeded(seed + 1)  # other masks than those of the figure
        values = curves.sampled_scores(model, x, config.one_per_size, generator=generator)
        errors[0].append(values.sum(dim=0) - truth)
        size = model.num_features
        mask = masks.sample_masks(
            config.random_size, size, masks.UniformSize(), generator=generator
        )
        errors[1].append(size * curves.size_scores(model, x, mask[None])[0] - truth)
    samples = [torch.stack(rows) for rows in errors]
    bias = torch.stack([rows.mean(dim=1) for rows in samples])
    spread = torch.stack([rows.std(dim=1) for rows in samples])
    findings = {}
    names = ("claim-unbiased", "claim-uniform-size-unbiased")
    for name, rows, mean, deviation in zip(names, samples, bias, spread, strict=True):
        standard_error = (deviation.square().sum() / rows.shape[1]).sqrt().item() / len(rows)
        findings[name] = Finding(mean.mean().item(), standard_error)
    return Outcome(findings, {"bias": bias, "spread": spread}, checksum(used))
