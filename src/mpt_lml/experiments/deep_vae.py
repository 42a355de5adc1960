"""Training a deep VAE by the ELBO and by masks: the settings and objectives of Figure 3, lower row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_lml import data, estimators, fit, grids, objectives, scores
from mpt_lml.experiments.registry import Config, Progress, checksum, silent
from mpt_lml.grids import Grid
from mpt_lml.masks import FixedRate, SizeLaw, UniformSize, stratified_masks
from mpt_lml.models import vae
from mpt_lml.models.mixture import GridConditional
from mpt_lml.results import History

EXACT = ("exact", "exact_uniform")
NODES = 41
"""Nodes per axis that know log p(x) of digits: 161 agree to 1e-5 nats."""


@dataclass(frozen=True)
class DeepVAE(Config):
    """A dense VAE with a Gaussian likelihood of stated variance; Adam on minibatches.

    The paper states the data, the likelihood, the recursion and 33 %; no script for this row was
    published, so the sizes of the networks and of the steps are ours.
    """

    dataset: str = "mnist"
    num_data: int = 2000
    hidden: tuple[int, ...] = (200,)
    latent_dim: int = 10
    noise_variance: float = 0.1
    num_steps: int = 3000
    batch_size: int = 100
    learning_rate: float = 1e-3
    fixed_rate: float = 0.33
    num_rounds: int = 3
    partial_samples: int = 3  # weights per conditional with a partial encoder
    track_every: int = 200
    track_data: int = 100
    track_samples: int = 200  # around the modes
    track_draws: int = 50  # from the encoder
    lml_data: int = 200
    lml_samples: int = 2000
    ais_data: int = 10
    ais_temperatures: int = 1000
    ais_chains: int = 10
    ais_seeds: int = 2  # annealing is the most expensive check, so of two models only
    exact_nodes: int = 20  # per axis, to train with exact conditionals, shifted at every step
    exact_masks: int = 4  # per minibatch, scored on all of it

    @classmethod
    def paper(cls) -> DeepVAE:
        """MNIST, Gaussian likelihood, 33 %."""
        return cls()

    @classmethod
    def quick(cls) -> DeepVAE:
        """Digits, few steps."""
        return cls(
            dataset="digits",
            num_data=100,
            hidden=(8,),
            latent_dim=4,
            num_steps=6,
            track_every=3,
            track_data=10,
            track_samples=20,
            lml_data=10,
            lml_samples=100,
            ais_data=4,
            ais_temperatures=10,
            ais_chains=4,
            ais_seeds=1,
            seeds=(4, 44),
        )

    def on_digits(self) -> DeepVAE:
        """The small problem on which conditionals are compared with a grid."""
        return dataclasses.replace(
            self,
            dataset="digits",
            num_data=1198,
            hidden=(64,),
            latent_dim=2,
            num_steps=1500,
            learning_rate=3e-3,
            partial_samples=20,
            track_every=250,
            track_data=50,
        )

    def law(self, objective: str) -> SizeLaw:
        """Sizes of the masked objectives."""
        return UniformSize() if "uniform" in objective else FixedRate(self.fixed_rate)


def images(config: DeepVAE) -> Float[Tensor, "N D"]:
    """Training images in [0, 1], float32."""
    return data.images(config.dataset).pixels[: config.num_data].to(torch.float32)


@dataclass(frozen=True)
class Batches:
    """What a step of every run draws from its own generator: images, masks, noise."""

    config: DeepVAE
    x: Float[Tensor, "N D"]

    def images(self, generators: Sequence[torch.Generator]) -> Float[Tensor, "B n D"]:
        """A minibatch per run."""
        size = (self.config.batch_size,)
        rows = [torch.randint(len(self.x), size, generator=g) for g in generators]
        return self.x[torch.stack(rows).to(self.x.device)]

    def masks(self, law: SizeLaw, generators: Sequence[torch.Generator]) -> Bool[Tensor, "B n D"]:
        """One mask per image."""
        shape = (self.config.batch_size, self.x.shape[1])
        return stratified_masks(*shape, law, generator=generators).to(self.x.device)

    def noise(
        self, count: int, size: int, generators: Sequence[torch.Generator]
    ) -> Float[Tensor, "S B n K"]:
        """``count`` standard normal vectors of length ``size`` per image."""
        shape = (count, self.config.batch_size, size)
        return torch.stack([torch.randn(shape, generator=g) for g in generators], dim=1).to(self.x)


def train(
    config: DeepVAE,
    x: Float[Tensor, "N D"],
    objective: str,
    *,
    function: fit.Objective | None = None,
    partial: bool | None = None,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> History:
    """All seeds side by side; an "epoch" of the history is one step on a minibatch of each.

    ``objective`` is "elbo", "fixed" or "uniform" (sizes, with recursive encoding–decoding),
    "partial" and "partial_uniform" (an encoder that sees the mask, importance-weighted
    conditionals), "exact" and "exact_uniform" (the model's own conditionals, on a grid that is
    shifted at random at every step; K ≤ 3, no encoder), or any name with a ``function`` of one's
    own and ``partial`` for its encoder. Tracked, NaN in between: ``values["lml"]``, log p(x) of some
    data, on a grid for K ≤ 3, else by importance weighting around the modes; ``values["encoder"]``,
    what ``track_draws`` draws from the encoder report, a lower bound to look at.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in config.seeds]
    parameters = vae.dense_parameters(
        x.shape[1],
        config.hidden,
        config.latent_dim,
        generators=generators,
        partial=objective.startswith("partial") if partial is None else partial,
    )
    settings: dict[str, Any] = dataclasses.asdict(config) | {
        "objective": objective,
        "data": checksum([x.cpu()]),
    }
    settings = {name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()}
    parameters = {name: value.to(x) for name, value in parameters.items()}
    idle = {}
    if objective in EXACT:  # no encoder: it stays as it was drawn
        idle = {name: value for name, value in parameters.items() if name.startswith("encoder")}
    chosen = _objective(config, x, objective) if function is None else function
    few = x[: config.track_data]
    track: dict[str, fit.Tracked] = {
        "lml": lambda p: log_likelihood(config, {**idle, **p}, few).to(x)
    }
    if not idle:
        track["encoder"] = lambda p: _from_encoder(config, p, few)
    history = fit.maximize(
        {name: value for name, value in parameters.items() if name not in idle},
        lambda p, g: chosen({**idle, **p}, g),
        num_epochs=config.num_steps,
        learning_rate=config.learning_rate,
        generators=generators,
        track=track,
        track_every=config.track_every,
        checkpoint=None if checkpoint is None else fit.Checkpoint(checkpoint, settings, every=200),
        progress=progress,
    )
    return dataclasses.replace(history, parameters=idle | history.parameters)


def _objective(config: DeepVAE, x: Float[Tensor, "N D"], objective: str) -> fit.Objective:
    draw, variance = Batches(config, x), config.noise_variance
    latent_dim, law = config.latent_dim, config.law(objective)

    def elbo(p: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        batch = draw.images(generators)
        return objectives.elbo(p, batch, draw.noise(1, latent_dim, generators)[0], variance)

    def recursive(p: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        batch, mask = draw.images(generators), draw.masks(law, generators)
        noise = draw.noise(config.num_rounds, latent_dim, generators)
        return objectives.recursive(p, batch, mask, noise, variance)

    def partial(p: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        batch, mask = draw.images(generators), draw.masks(law, generators)
        noise = draw.noise(config.partial_samples, latent_dim, generators)
        return objectives.partial(p, batch, mask, noise, variance)

    def exact(p: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        batch, values = draw.images(generators), []
        for run, g in enumerate(generators):
            mask = stratified_masks(config.exact_masks, x.shape[1], law, generator=g)
            model = vae.dense_model(p, run, "gaussian", variance)
            shifted = _shifted(grid, config.exact_nodes, generator=g)
            table = GridConditional(model, shifted)
            log_p = table.log_conditional(batch[run], mask.to(x.device))
            values.append(x.shape[1] * scores.mask_score(log_p, mask.to(x.device)).mean())
        return torch.stack(values)

    if objective in EXACT:
        grid = grids.trapezoid(latent_dim, config.exact_nodes).to(x)
        return exact
    if objective.startswith("partial"):
        return partial
    return elbo if objective == "elbo" else recursive


def _shifted(grid: Grid, nodes_per_axis: int, *, generator: torch.Generator) -> Grid:
    """The equally spaced ``grid`` moved by a random fraction of its spacing.

    On nodes that stay, training makes the decoder fit between them: log p(x) on that grid rises and on
    any other one falls.
    """
    width = grid.nodes[:, 0].max() - grid.nodes[:, 0].min()
    fraction = torch.rand(grid.latent_dim, generator=generator).to(grid.nodes) - 0.5
    nodes = grid.nodes + fraction * width / (nodes_per_axis - 1)
    log_weights = (-0.5 * nodes.square().sum(dim=-1)).log_softmax(dim=0)
    return Grid(nodes, log_weights, name=f"{grid.name}, shifted")


def log_likelihood(
    config: DeepVAE, parameters: Mapping[str, Tensor], x: Float[Tensor, "N D"]
) -> Float[Tensor, " seeds"]:
    """Mean log p(x) of every run, nats: on a grid for K ≤ 3, else weighted around the modes."""
    values, x = [], x.double()
    for run, model in enumerate(trained_models(config, parameters)):
        if config.latent_dim <= grids.MAX_LATENT_DIM:
            grid = grids.trapezoid(config.latent_dim, NODES)
            values.append(GridConditional(model, grid).log_marginal(x).mean().item())
        else:
            generator = torch.Generator().manual_seed(run)
            values.append(
                float(estimators.iwae(model, x, config.track_samples, generator=generator))
            )
    return torch.tensor(values, dtype=torch.float64)


def _from_encoder(
    config: DeepVAE, parameters: Mapping[str, Tensor], x: Float[Tensor, "N D"]
) -> Float[Tensor, " B"]:
    values = []
    for run in range(len(config.seeds)):
        estimate = estimators.iwae(
            vae.dense_model(parameters, run, "gaussian", config.noise_variance),
            x,
            config.track_draws,
            generator=torch.Generator().manual_seed(0),
            proposal=estimators.from_encoder,
        )
        values.append(float(estimate))
    return torch.tensor(values, dtype=x.dtype)


def trained_models(config: DeepVAE, parameters: Mapping[str, Tensor]) -> list[vae.VAE]:
    """The trained models, one per seed, in double precision."""
    double = {name: value.detach().double() for name, value in parameters.items()}
    return [
        vae.dense_model(double, run, "gaussian", config.noise_variance)
        for run in range(len(config.seeds))
    ]
