"""Training Bernoulli PCA by the ELBO, by masks and by log p(x) itself: Figure 3, upper (wing).

What is run with it is in :mod:`mpt_lml.experiments.bernoulli_runs`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import data, estimators, fit, objectives
from mpt_lml.experiments.registry import Config, Progress, checksum, silent
from mpt_lml.grids import Grid, LostMassWarning, gauss_hermite, trapezoid
from mpt_lml.masks import FixedRate, SizeLaw, UniformSize, stratified_masks
from mpt_lml.models.mixture import BernoulliPCA
from mpt_lml.results import History

PRINTED = ("published/1/1", "elbo/1/0")
REPAIRED = ("block/1/1", "block/1/10", "elbo-small/1/0", "uniform/1/10")
ROWS = (
    *(*PRINTED, *REPAIRED[:2], "elbo-small/1/0/long", "uniform/1/10/long", "marginal/1/0/long"),
    *("marginal/0.01/0", "elbo/0.01/0", "fixed/1/1", "uniform/1/1", "fixed/1/10", "block/0.01/1"),
)
"""OBJECTIVE/SCALE/MASKS: masks per epoch, that many parts of the data with a mask each (0: none)."""


@dataclass(frozen=True)
class Bernoulli(Config):
    """Full-batch Adam, fresh masks every epoch; the axes are masks per epoch and start scale."""

    trained: tuple[str, ...] = (  # in this order
        *(f"mnist/{row}" for row in ROWS),
        *(f"fashion_mnist/{row}" for row in (*PRINTED, *REPAIRED)),
        *(f"digits/{row}" for row in ROWS),
        *("digits/block/1/2", "digits/block/1/20"),
    )
    num_data: int = 2000
    held_out: int = 2000
    latent_dim: int = 2
    num_epochs: int = 800
    long_epochs: tuple[int, ...] = (1200, 4000)  # of rows that end in "long": MNIST, others
    encoder_scale: float = 0.01  # of the encoder alone, for "elbo-small"
    long_masks: int = 10  # masks per epoch where the ledger compares objectives
    learning_rate: float = 0.01
    fixed_rate: float = 0.15
    grid_nodes: int = 14  # an axis, for training
    grid_extent: float = 5.0
    track_nodes: int = 64  # an axis on [−8, 8]², for the LML along the way
    track_every: int = 50
    judge_nodes: int = 7  # an axis, of the adaptive grids
    arbiter_data: int = 200  # on which grids are compared with importance sampling
    arbiter_samples: int = 2000

    @classmethod
    def paper(cls) -> Bernoulli:
        """The published configuration and its repair, with both axes."""
        return cls()

    @classmethod
    def quick(cls) -> Bernoulli:
        """Few digits, few epochs."""
        return cls(
            trained=tuple(f"digits/{row}" for row in ROWS),
            num_data=60,
            held_out=40,
            num_epochs=6,
            long_epochs=(9, 9),
            track_every=3,
            track_nodes=30,
            arbiter_data=10,
            arbiter_samples=200,
            seeds=(4, 44),
        )

    def grid(self, objective: str) -> Grid:
        """Where ``objective`` integrates: 4 × 4 nodes on [−5, 5]² if "published"."""
        if objective == "published":
            return grids(self.latent_dim)["4 × 4"]
        return trapezoid(self.latent_dim, self.grid_nodes, self.grid_extent)


OBJECTIVES = ("elbo", "fixed", "uniform", "block", "marginal")
"""Other names: "published" is "block" on 4 × 4 nodes, "elbo-small" the ELBO with a small encoder."""


def binary_images(
    name: str, num_data: int, split: Literal["train", "test"] = "train"
) -> Float[Tensor, "N D"]:
    """The first ``num_data`` images of a split, 1 where a pixel is at least one half, float32."""
    pixels = data.images(name, split).pixels[:num_data]
    return (pixels >= 0.5).to(torch.float32)


def start(
    config: Bernoulli, num_features: int, scale: float = 1.0, encoder_scale: float = 1.0
) -> dict[str, Tensor]:
    """Normal loadings, offsets and encoders of every seed, times ``scale``; (B, ...) each.

    Standard normal ones, ``scale`` 1, are the authors' script's; ``encoder_scale`` multiplies the
    encoder once more. The encoder's log-variances are standard normal at every scale.
    """
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
    for name in ("loadings", "offset", "encoder"):
        drawn[name] *= scale * (encoder_scale if name == "encoder" else 1.0)
    # Theirs encodes V (x − b); ours V x + c, which starts there and may leave.
    drawn["encoder_offset"] = -(drawn["encoder"] @ drawn["offset"][..., None])[..., 0]
    return drawn


def train(
    config: Bernoulli,
    x: Float[Tensor, "N D"],
    objective: str,
    *,
    masks: int = 1,
    scale: float = 1.0,
    num_epochs: int | None = None,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> History:
    """All seeds side by side, in nats per datum; parameters at ``config.num_epochs`` are a snapshot.

    ``values["lml"]`` is the LML on the tracking grid and ``values["read"]`` the one that 4 × 4 nodes
    read off, NaN between tracked epochs.

    Parameters
    ----------
    objective : str
        One of :data:`OBJECTIVES`, "published" or "elbo-small".
    masks : int
        Masks per epoch: the data are cut into that many parts, each with a mask of its own.
    scale : float
        Of the parameters at the start.
    num_epochs : int, optional
        ``config.num_epochs`` by default.
    """
    epochs = num_epochs or config.num_epochs
    grid, coarse = (config.grid(name).to(x) for name in (objective, "published"))
    fine = trapezoid(config.latent_dim, config.track_nodes, extent=8.0).to(x)
    small = config.encoder_scale if objective == "elbo-small" else 1.0
    parameters = {
        name: value.to(x) for name, value in start(config, x.shape[1], scale, small).items()
    }
    if not objective.startswith("elbo"):
        parameters = {name: parameters[name] for name in ("loadings", "offset")}
    settings: dict[str, Any] = {
        "seeds": list(config.seeds),
        "objective": objective,
        "masks": masks,
        "scale": scale,
        "encoder_scale": small,
        "fixed_rate": config.fixed_rate,
        "learning_rate": config.learning_rate,
        "num_epochs": epochs,
        "track": [config.track_every, fine.name],
        "grid": grid.name,
        "data": checksum([x.cpu()]),
    }

    def lml_on(nodes: Grid) -> fit.Tracked:
        return lambda p: objectives.mixture_log_marginal(p["loadings"], p["offset"], x, nodes)

    return fit.maximize(
        parameters,
        _objective(config, x, objective, grid, masks),
        num_epochs=epochs,
        learning_rate=config.learning_rate,
        generators=[torch.Generator().manual_seed(seed + 1) for seed in config.seeds],
        track={"lml": lml_on(fine), "read": lml_on(coarse)},
        track_every=config.track_every,
        snapshots=(min(config.num_epochs, epochs),),
        checkpoint=None if checkpoint is None else fit.Checkpoint(checkpoint, settings, every=50),
        progress=progress,
    )


def _objective(
    config: Bernoulli, x: Float[Tensor, "N D"], objective: str, grid: Grid, masks: int
) -> fit.Objective:
    def marginal(p: Mapping[str, Tensor], _: Sequence[torch.Generator]) -> Tensor:
        return objectives.mixture_log_marginal(p["loadings"], p["offset"], x, grid)

    def elbo(p: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        shape = (len(x), config.latent_dim)
        noise = torch.stack([torch.randn(shape, generator=g) for g in generators]).to(x)
        return _elbo(p, x, noise)

    law: SizeLaw = UniformSize() if objective == "uniform" else FixedRate(config.fixed_rate)
    conditional = objective in ("fixed", "uniform")

    def masked(p: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        drawn = stratified_masks(masks, x.shape[1], law, generator=generators)
        pair = (p["loadings"], p["offset"])
        return objectives.mixture(*pair, x, drawn.to(x.device), grid, block=not conditional)

    return {"elbo": elbo, "elbo-small": elbo, "marginal": marginal}.get(objective, masked)


def _elbo(p: Mapping[str, Tensor], x: Tensor, noise: Tensor) -> Float[Tensor, " B"]:
    return objectives.linear_elbo(
        p["loadings"],
        p["offset"],
        p["encoder"],
        p["encoder_offset"],
        p["encoder_log_variance"],
        x,
        noise,
    )


def grids(latent_dim: int) -> dict[str, Grid]:
    """The shared grids that are compared, coarse to fine; the authors' command uses the first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LostMassWarning)
        coarse = trapezoid(latent_dim, 4)
    return {
        "4 × 4": coarse,
        "20 × 20": trapezoid(latent_dim, 20),
        "40 × 40": trapezoid(latent_dim, 40),
        "Gauss–Hermite 20": gauss_hermite(latent_dim, 20),
        "Gauss–Hermite 40": gauss_hermite(latent_dim, 40),
        "160 × 160": trapezoid(latent_dim, 160),
    }


def compare_grids(
    model: BernoulliPCA, x: Float[Tensor, "N D"], num_samples: int
) -> Float[Tensor, "G two"]:
    """Mean log p(x) by every grid of :func:`grids` and the adaptive one, minus importance sampling.

    Rows in that order, columns: difference and its standard error, in nats, (G + 1, 2). The error is
    that of the importance weights, drawn around the modes.
    """
    arbiter = estimators.iwae(model, x, num_samples, generator=torch.Generator().manual_seed(0))
    values = [
        BernoulliPCA(model.loadings, model.offset, grid=grid).log_marginal(x).mean()
        for grid in grids(model.latent_dim).values()
    ]
    values.append(model.adaptive_log_marginal(x).mean())
    difference = torch.stack(values) - float(arbiter)
    return torch.stack([difference, torch.full_like(difference, arbiter.standard_error)], dim=1)


def models(parameters: Mapping[str, Tensor]) -> list[BernoulliPCA]:
    """The trained models, one a seed, in double precision."""
    pairs = zip(parameters["loadings"], parameters["offset"], strict=True)
    return [BernoulliPCA(w.detach().double(), b.detach().double()) for w, b in pairs]


def bound(
    parameters: Mapping[str, Tensor], x: Float[Tensor, "N D"], num_draws: int = 20
) -> Float[Tensor, " B"]:
    """The ELBO of every seed's model and encoder, mean over the data and ``num_draws`` z, nats, (B,)."""
    p = {name: value.detach() for name, value in parameters.items()}
    generator = torch.Generator().manual_seed(0)
    shape = (len(p["loadings"]), len(x), p["loadings"].shape[-1])
    noises = [torch.randn(shape, generator=generator).to(x) for _ in range(num_draws)]
    draws = [_elbo(p, x, noise) for noise in noises]
    return torch.stack(draws).mean(dim=0)
