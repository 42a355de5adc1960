"""Figure 1, right: one fixed mask size, and how many masks a point of the panel stands on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import curves, data, estimators, masks
from mpt_lml.experiments.convergence import NOISE_VARIANCE, mean_of_last, seeded
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


@dataclass(frozen=True)
class Figure1Right(Config):
    """Settings of Figure 1, right: one size, M = 76 of D = 512; all seeds share one draw of data."""

    num_features: int = 512
    num_masked: int = 76
    num_data: int = 100
    latent_dim: int = 2
    data_seed: int = 111
    num_masks: int = 199

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
    title="Figure 1, right: one fixed size, 76 of 512, from 512·P masks and from P",
    cost="about 2 min",
    config=Figure1Right,
)
def figure_1_right(
    config: Figure1Right, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """LML − D · Ŝ(M) after 1..P steps of the one size, for every seed.

    The authors' script draws the size M in each of the D terms of the sum: D fresh masks a step,
    D · P at the abscissa P. Arrays ``difference`` (seeds, P) and ``standard_error`` (seeds,) at the
    last P are of these; ``difference_single`` (seeds, P) is from one mask a step. ``spread`` (2,):
    standard deviation at P = 1 of the two, over all steps of all seeds. Nats per datum.
    """
    size = config.num_features
    draw = data.paper_gaussian(
        config.num_data, size, config.latent_dim, generator=seeded(config.data_seed)
    )
    model, x = PPCA(draw.loadings.to(device), NOISE_VARIANCE), draw.x.to(device)
    truth = estimators.exact(model, x)

    def estimates(count: int, generator: torch.Generator) -> Float[Tensor, " count"]:
        mask = masks.sample_masks(count, size, config.num_masked, generator=generator)
        return size * curves.size_scores(model, x, mask.to(device)[None])[0].cpu()

    single, step = [], []
    for seed in progress(config.seeds, "seed"):
        generator = seeded(seed)
        single.append(estimates(config.num_masks, generator))
        step.append(
            torch.stack([estimates(size, generator).mean() for _ in range(config.num_masks)])
        )
    one, all_terms = torch.stack(single), torch.stack(step)
    arrays = {
        "difference": torch.stack([truth - curves.running_area(row[None]) for row in all_terms]),
        "standard_error": all_terms.std(dim=1) / math.sqrt(config.num_masks),
        "difference_single": torch.stack([truth - curves.running_area(row[None]) for row in one]),
        "spread": torch.stack([all_terms.std(), one.std()]),
    }
    last = arrays["difference"][:, -1].std().item()
    ratio = (arrays["spread"][1] / arrays["spread"][0]).item()
    settled = mean_of_last(arrays)
    findings = {
        "fig-1-right": Finding(abs(settled.measured), settled.standard_error),
        "fig-1-right-limit": Finding(last, last / math.sqrt(2 * len(one) - 2)),
        # two standard deviations, each with relative standard error 1/√(2n)
        "fig-1-right-masks": Finding(ratio, ratio / math.sqrt(one.numel())),
    }
    return Outcome(findings, arrays, checksum([draw.x, draw.loadings]))
