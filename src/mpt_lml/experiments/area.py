"""Figure 4: the area under the mask-rate curve, and the closed form that predicts the curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import curves, data, estimators, gaussian
from mpt_lml.experiments.convergence import NOISE_VARIANCE, paper_masks
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
class Figure4(Config):
    """Three panels as (K, P): one mask a size, a hundred, and fifty latent dimensions."""

    num_data: int = 1000
    num_features: int = 200
    data_seed: int = 1991
    panels: tuple[tuple[str, int, int], ...] = (
        ("left", 5, 1),
        ("center", 5, 100),
        ("right", 50, 5),  # the authors' published command draws five masks a size here
    )

    @classmethod
    def paper(cls) -> Figure4:
        """As published."""
        return cls()

    @classmethod
    def quick(cls) -> Figure4:
        """D = 20."""
        panels = (("left", 2, 1), ("center", 2, 10), ("right", 10, 5))
        return cls(num_data=50, num_features=20, panels=panels)


def predicted_curve(
    num_features: int, latent_dim: int, noise_variance: float
) -> Float[Tensor, " D"]:
    """S(M) ≈ −½ ln(2πe v(D − M)) for M = 1..D: normal loadings, data from the model."""
    observed = torch.arange(num_features - 1, -1, -1, dtype=torch.float64)
    variance = gaussian.random_loadings_variance(observed, latent_dim, noise_variance)
    return -0.5 * (2.0 * math.pi * math.e * variance).log()


@experiment(
    "figure-4",
    title="Figure 4: area under the mask-rate curve at D = 200",
    cost="about 15 s",
    config=Figure4,
)
def figure_4(
    config: Figure4, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """The three panels on the paper's own draw and on data from the model with the same loadings.

    Arrays, for panel in (left, center, right) and draw in (paper, model): ``score/PANEL/DRAW``
    (seeds, D), ``lml/PANEL/DRAW`` (), and ``predicted/PANEL`` (D,) for data from the model.
    """
    arrays: dict[str, Tensor] = {}
    used = []
    for panel, latent_dim, num_masks in config.panels:
        generator = torch.Generator().manual_seed(config.data_seed)
        drawn = data.paper_gaussian(
            config.num_data, config.num_features, latent_dim, generator=generator
        )
        own = PPCA(drawn.loadings, NOISE_VARIANCE).sample(config.num_data, generator=generator)
        used += [drawn.x, own]
        model = PPCA(drawn.loadings.to(device), NOISE_VARIANCE)
        scores: dict[str, list[Tensor]] = {"paper": [], "model": []}
        for seed in progress(config.seeds, f"{panel}, seed"):
            mask_generator = torch.Generator().manual_seed(seed)
            mask = paper_masks(num_masks, config.num_features, generator=mask_generator)
            for draw, x in (("paper", drawn.x), ("model", own)):
                values = curves.size_scores(model, x.to(device), mask.to(device))
                scores[draw].append(values.mean(dim=1).cpu())
        for draw, x in (("paper", drawn.x), ("model", own)):
            arrays[f"score/{panel}/{draw}"] = torch.stack(scores[draw])
            exact = float(estimators.exact(model, x.to(device)))
            arrays[f"lml/{panel}/{draw}"] = torch.tensor(exact, dtype=torch.float64)
        arrays[f"predicted/{panel}"] = predicted_curve(
            config.num_features, latent_dim, NOISE_VARIANCE
        )
    return Outcome(_findings(config, arrays), arrays, checksum(used))


def _findings(config: Figure4, arrays: dict[str, Tensor]) -> dict[str, Finding]:
    """Area minus exact LML on the paper's draw; its error is the spread over the mask seeds."""
    findings = {}
    for panel, _, _ in config.panels:
        area = arrays[f"score/{panel}/paper"].sum(dim=1)
        difference = (area.mean() - arrays[f"lml/{panel}/paper"]).item()
        error = area.std().item() / math.sqrt(len(area))
        # Student's t with 4 degrees of freedom: 4.6 standard errors are its two-sided 1 %.
        agrees = abs(difference) <= 4.6 * error
        findings[f"fig-4-{panel}"] = Finding(
            difference, error, "confirmed" if agrees else "refuted"
        )
    return findings
