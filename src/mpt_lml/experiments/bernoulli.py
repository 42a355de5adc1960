"""Figure 3, upper row: Bernoulli PCA trained by the ELBO and by masks, its LML on fine grids."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import data, fit, objectives, quadrature
from mpt_lml.experiments.registry import (
    Config,
    Progress,
    checksum,
    silent,
)
from mpt_lml.masks import FixedRate, SizeLaw, UniformSize
from mpt_lml.quadrature import Grid
from mpt_lml.results import History


@dataclass(frozen=True)
class Bernoulli(Config):
    """Full-batch Adam from randn starts, as in the authors' script; fresh masks every epoch."""

    datasets: tuple[str, ...] = ("mnist", "fashion_mnist")
    num_data: int = 2000
    latent_dim: int = 2
    num_epochs: int = 800
    learning_rate: float = 0.01
    fixed_rate: float = 0.15
    grid_nodes: int = 20  # an axis, for training: 400 nodes on [−5, 5]²
    track_nodes: int = 80  # an axis, for the LML along the way
    track_every: int = 50
    masks_an_epoch: int = 10  # the data are cut into that many parts, each with a mask of its own
    arbiter_data: int = 200  # on which grids are compared with importance sampling
    arbiter_samples: int = 2000

    @classmethod
    def paper(cls) -> Bernoulli:
        """As published, with a grid of 400 nodes."""
        return cls()

    @classmethod
    def quick(cls) -> Bernoulli:
        """Few digits, few epochs."""
        return cls(
            datasets=("digits",),
            num_data=60,
            num_epochs=6,
            track_every=3,
            track_nodes=30,
            masks_an_epoch=3,
            arbiter_data=10,
            arbiter_samples=200,
            seeds=(4, 44),
        )

    def laws(self) -> dict[str, SizeLaw]:
        """Size laws of the masked objectives; "block" is the authors' (D/M) log p(x_A)."""
        fixed = FixedRate(self.fixed_rate)
        return {"fixed": fixed, "uniform": UniformSize(), "block": fixed}


OBJECTIVES = ("elbo", "fixed", "uniform", "block")


def binary_images(name: str, num_data: int) -> Float[Tensor, "N D"]:
    """The first ``num_data`` training images, 1 where a pixel is at least one half, float32."""
    pixels = data.images(name).pixels[:num_data]
    return (pixels >= 0.5).to(torch.float32)


def start(config: Bernoulli, num_features: int) -> dict[str, Tensor]:
    """Standard normal loadings, offsets and encoders under every seed, as in the authors' script."""
    latent_dim = config.latent_dim
    shapes = {
        "loadings": (num_features, latent_dim),
        "offset": (num_features,),
        "encoder": (latent_dim, num_features),
        "encoder_log_variance": (latent_dim,),
    }
    generators = [torch.Generator().manual_seed(seed) for seed in config.seeds]
    drawn = {
        name: torch.stack([torch.randn(shape, generator=g) for g in generators])
        for name, shape in shapes.items()
    }
    # Theirs encodes V (x − b); ours V x + c, which starts there and may leave.
    drawn["encoder_offset"] = -(drawn["encoder"] @ drawn["offset"][..., None])[..., 0]
    return drawn


def train(
    config: Bernoulli,
    x: Float[Tensor, "N D"],
    objective: str,
    *,
    grid: Grid | None = None,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> History:
    """All seeds side by side; ``values["lml"]`` is the LML on the tracking grid, NaN in between.

    ``objective`` is "elbo", "fixed", "uniform" or "block"; the masked ones integrate on ``grid``
    (the configuration's by default).
    """
    grid = grid or quadrature.trapezoid(config.latent_dim, config.grid_nodes)
    grid = grid.to(x)
    fine = quadrature.trapezoid(config.latent_dim, config.track_nodes).to(x)
    parameters = {name: value.to(x) for name, value in start(config, x.shape[1]).items()}
    if objective != "elbo":
        parameters = {name: parameters[name] for name in ("loadings", "offset")}
    settings: dict[str, Any] = dataclasses.asdict(config) | {
        "objective": objective,
        "grid": grid.name,
        "data": checksum([x.cpu()]),
    }
    return fit.maximize(
        parameters,
        _objective(config, x, objective, grid),
        num_epochs=config.num_epochs,
        learning_rate=config.learning_rate,
        generators=[torch.Generator().manual_seed(seed + 1) for seed in config.seeds],
        track={
            "lml": lambda p: objectives.bernoulli.log_marginal(p["loadings"], p["offset"], x, fine)
        },
        track_every=config.track_every,
        checkpoint=None if checkpoint is None else fit.Checkpoint(checkpoint, settings, every=25),
        progress=progress,
    )


def _objective(
    config: Bernoulli, x: Float[Tensor, "N D"], objective: str, grid: Grid
) -> fit.Objective:
    def elbo(p: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        shape = (len(x), config.latent_dim)
        noise = torch.stack([torch.randn(shape, generator=g) for g in generators]).to(x)
        return objectives.bernoulli.elbo(
            p["loadings"],
            p["offset"],
            p["encoder"],
            p["encoder_offset"],
            p["encoder_log_variance"],
            x,
            noise,
        )

    def masked(p: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        law = config.laws()[objective]
        drawn = [
            objectives.draw_masks(config.masks_an_epoch, x.shape[1], law, generator=g)
            for g in generators
        ]
        score = objectives.bernoulli.block if objective == "block" else objectives.bernoulli.masked
        return score(p["loadings"], p["offset"], x, torch.stack(drawn).to(x.device), grid)

    return elbo if objective == "elbo" else masked
