"""Figure 3, lower row: a deep VAE trained by the ELBO and by masks."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_experiments.experiment import Experiment, Finding, Outcome, RunContext, seeded, setting
from mpt_lml import data, estimators, fit, grids, masks, objectives, scores
from mpt_lml.masks import FixedRate, SizeLaw
from mpt_lml.models import vae
from mpt_lml.models.mixture import GridConditional
from mpt_lml.models.vae import Parameters
from mpt_lml.results import Estimate, History

FIXED = FixedRate(0.33)  # the paper's
Generators = Sequence[torch.Generator]
Objective = Callable[[Parameters, Tensor, Generators, "Training"], Tensor]
"""(parameters, minibatches (B, n, D), generators, settings) -> (B,), nats."""


def noise(count: int, x: Float[Tensor, "B n D"], size: int, g: Generators) -> Tensor:
    """``count`` standard normal vectors of length ``size`` per image, (count, B, n, size)."""
    shape = (count, x.shape[1], size)
    return torch.stack([torch.randn(shape, generator=own) for own in g], dim=1).to(x)


def elbo(p: Parameters, x: Tensor, g: Generators, of: "Training") -> Tensor:
    """The usual objective."""
    return objectives.elbo(p, x, noise(1, x, of.latent_dim, g)[0], of.noise_variance)


@dataclass(frozen=True)
class Masked:
    """The score of one mask per image; the defaults are our reading of the paper's recursion.

    With ``gradient`` "decoder" the encoder follows the ELBO of whole images; ``partial`` is an encoder
    q(z | x_R) without recursion, which follows the ELBO of x_R ("bound") or the score.
    """

    rounds: int = 3
    samples: int = 1
    from_decoder: bool = False
    draws: bool = False
    gradient: Literal["last", "all", "decoder"] = "last"
    partial: Literal["bound", "score"] | None = None
    law: SizeLaw = FIXED

    def __call__(self, p: Parameters, x: Tensor, g: Generators, of: "Training") -> Tensor:
        mask = masks.stratified_masks(x.shape[1], x.shape[2], self.law, generator=g).to(x.device)
        score = self.score(p, x, mask, g, of)
        if self.gradient != "decoder":
            return score
        held = {k: v.detach() if k.startswith("decoder") else v for k, v in p.items()}
        own = elbo(held, x, g, of)
        return score + own - own.detach()

    def score(
        self, p: Parameters, x: Tensor, mask: Tensor, g: Generators, of: "Training"
    ) -> Float[Tensor, " B"]:
        """What is trained on in place of D·S, nats."""
        variance = of.noise_variance
        if self.partial:
            draws = noise(self.samples, x, of.latent_dim, g)
            weighted = self.partial == "bound"
            return objectives.partial(p, x, mask, draws, variance, weighted=weighted)
        before = self.rounds - 1
        draws = noise(before + self.samples, x, of.latent_dim, g)
        pixels = noise(before, x, x.shape[2], g) if self.draws else None
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.gradient == "all"):
            filled = objectives.refill(
                p,
                x,
                mask,
                draws[:before],
                variance,
                from_decoder=self.from_decoder,
                pixel_noise=pixels,
            )
        train_encoder = self.gradient != "decoder"
        return objectives.recursive(
            p, x, mask, filled, draws[before:], variance, train_encoder=train_encoder
        )


def exact(p: Parameters, x: Tensor, g: Generators, of: "Training") -> Tensor:
    """The model's own conditionals on a grid, K ≤ 3; the encoder stays as it was drawn.

    Four masks a minibatch, 20 nodes an axis. The grid moves at random by less than its spacing: the
    decoder learns to fit between fixed nodes.
    """
    grid, values = grids.trapezoid(of.latent_dim, 20).to(x), []
    width = grid.nodes.max() - grid.nodes.min()
    for run, (images, own) in enumerate(zip(x, g, strict=True)):
        mask = masks.stratified_masks(4, x.shape[2], FIXED, generator=own).to(x.device)
        shift = torch.rand(of.latent_dim, generator=own).to(x) - 0.5
        nodes = grid.nodes + shift * width / 19
        log_weights = (-0.5 * nodes.square().sum(dim=-1)).log_softmax(dim=0)
        model = vae.dense_model(p, run, of.noise_variance)
        table = GridConditional(model, grids.Grid(nodes, log_weights))
        score = scores.mask_score(table.log_conditional(images, mask), mask)
        values.append(x.shape[2] * score.mean())
    idle = sum(value.sum() for name, value in p.items() if name.startswith("encoder"))
    return torch.stack(values) + 0.0 * idle


def on_grid(model: vae.VAE) -> GridConditional:
    """``model`` on a grid that knows its log p(x), K ≤ 3: 161 nodes per axis agree to 1e-5 nats."""
    return GridConditional(model, grids.trapezoid(model.latent_dim, 41))


class Training(Experiment):
    """A dense VAE with a Gaussian likelihood of stated variance; Adam on minibatches of images."""

    dataset: str = setting("mnist", quick="digits")
    num_data: int = setting(2000, quick=100)
    hidden: tuple[int, ...] = setting((200,), quick=(8,))
    latent_dim: int = setting(10, quick=4)
    noise_variance: float = 0.1
    num_steps: int = setting(3000, quick=6)
    learning_rate: float = 1e-3
    track_every: int = setting(200, quick=3)
    track_data: int = setting(100, quick=10)
    track_samples: int = setting(200, quick=20)  # around the modes
    track_draws: int = 50  # from the encoder
    precision: str = "float32"

    def images(self) -> Float[Tensor, "N D"]:
        """Training images in [0, 1]."""
        return data.images(self.dataset).pixels[: self.num_data].to(getattr(torch, self.precision))

    def train(
        self, x: Tensor, objective: Objective, context: RunContext, name: str, **options: Any
    ) -> History:
        """All seeds side by side; an "epoch" of the history is one step on a minibatch of each."""
        generators, few = [seeded(seed) for seed in self.seeds], x[: self.track_data]
        partial = isinstance(objective, Masked) and objective.partial is not None
        start = self.start(x, generators, partial)

        def on_minibatch(p: Parameters, g: Generators) -> Tensor:
            rows = [torch.randint(len(x), (100,), generator=own) for own in g]
            return objective(p, x[torch.stack(rows).to(x.device)], g, self)

        return fit.maximize(
            start,
            on_minibatch,
            num_epochs=self.num_steps,
            learning_rate=self.learning_rate,
            generators=generators,
            track={
                "lml": lambda p: self.log_likelihood(p, few.double()).to(x),
                "encoder": lambda p: self.by_encoder(p, few).to(x),
            },
            track_every=self.track_every,
            checkpoint=context.checkpoint(name, every=200, data=context.checksum([x])),
            progress=context.progress,
            **options,
        )

    def start(self, x: Tensor, generators: Generators, partial: bool = False) -> Parameters:
        """The networks before the first step, one for each of the ``generators``."""
        sizes = (x.shape[1], self.hidden, self.latent_dim)
        drawn = vae.dense_parameters(*sizes, generators=generators, partial=partial)
        return {key: value.to(x) for key, value in drawn.items()}

    def models(self, parameters: Parameters, dtype: torch.dtype = torch.float64) -> list[vae.VAE]:
        """The model of every seed."""
        own = {name: value.detach().to(dtype) for name, value in parameters.items()}
        variance, runs = self.noise_variance, range(len(self.seeds))
        return [vae.dense_model(own, run, variance) for run in runs]

    def log_likelihood(self, parameters: Parameters, x: Tensor) -> Float[Tensor, " seeds"]:
        """Mean log p(x) of every run, nats: on a grid for K ≤ 3, else weighted around the modes."""
        models = enumerate(self.models(parameters))
        if self.latent_dim <= grids.MAX_LATENT_DIM:
            return torch.stack([on_grid(model).log_marginal(x).mean() for _, model in models])
        count = self.track_samples
        values = [estimators.iwae(m, x, count, generator=seeded(run)) for run, m in models]
        return torch.tensor(values, dtype=torch.float64)

    def by_encoder(self, parameters: Parameters, x: Tensor) -> Float[Tensor, " seeds"]:
        """What ``track_draws`` draws from the encoder report, a lower bound to look at."""
        draws, rule = self.track_draws, estimators.from_encoder
        every = self.models(parameters, x.dtype)
        values = [estimators.iwae(m, x, draws, generator=seeded(0), proposal=rule) for m in every]
        return torch.tensor(values)


class Figure3Lower(Training, name="figure-3-lower", cost="about 15 min", resumable=True):
    """Figure 3, lower: a deep VAE trained by the ELBO and by masks.

    The paper states the data, the likelihood, the recursion and 33 %; sizes are ours. Trained by the
    ELBO, through the recursion ("fixed") and with a partial encoder ("partial"). Arrays of each, nats:
    ``track/NAME`` and ``encoder/NAME`` (tracked steps, seeds), log p(x) and what draws from the encoder
    report; ``loss/NAME``, the objective's mean over the steps before; ``lml/NAME`` and ``error/NAME``
    (seeds,), estimates at the end on more data; ``ais/NAME`` (2, some seeds), AIS minus IWAE and its
    error; with ``keep_weights`` the networks, ``weights/NAME/PART/LAYER/KIND`` (seeds, ...).
    """

    lml_data: int = setting(200, quick=10)
    lml_samples: int = setting(2000, quick=100)
    ais_data: int = setting(10, quick=4)
    ais_temperatures: int = setting(1000, quick=10)
    ais_chains: int = setting(10, quick=4)
    ais_seeds: int = setting(2, quick=1)  # annealing is the most expensive check
    objectives: tuple[str, ...] = ("elbo", "fixed", "partial")  # "fixed" among them
    keep_weights: bool = False

    def measure(self, context: RunContext) -> Outcome:
        x = self.images().to(context.device)
        steps = [*range(0, self.num_steps, self.track_every), self.num_steps]
        arrays: dict[str, Tensor] = {"steps": torch.tensor(steps)}
        trained: dict[str, Objective] = {
            "elbo": elbo,
            "fixed": Masked(),
            "partial": Masked(samples=3, partial="bound"),
        }
        for name in self.objectives:
            history = self.train(x, trained[name], context, f"{self.dataset}-{name}")
            arrays[f"track/{name}"] = history.values["lml"][steps].cpu()
            arrays[f"encoder/{name}"] = history.values["encoder"][steps].cpu()
            loss = history.values["objective"][:-1].cpu()
            means = [loss[a:b].mean(dim=0) for a, b in itertools.pairwise(steps)]
            arrays[f"loss/{name}"] = torch.stack([loss[0], *means])
            models = context.progress(self.models(history.parameters), f"{name}, LML of seed")
            found = [self.evaluate(model, x, run) for run, model in enumerate(models)]
            arrays[f"lml/{name}"], arrays[f"error/{name}"] = torch.stack([f[0] for f in found], 1)
            arrays[f"ais/{name}"] = torch.stack([f[1] for f in found[: self.ais_seeds]], 1)
            kept = history.parameters if self.keep_weights else {}
            arrays |= {f"weights/{name}/{key}": value.cpu() for key, value in kept.items()}
        return Outcome(self.findings(arrays), arrays, context.checksum([x]))

    def evaluate(self, model: vae.VAE, x: Tensor, run: int) -> list[Tensor]:
        """log p(x) and its error; for the first runs also AIS minus that, on fewer data."""
        few, g = x[: self.lml_data].double(), seeded(run)
        found = [estimators.iwae(model, few, self.lml_samples, generator=g)]
        if run < self.ais_seeds:
            some, steps = few[: self.ais_data], self.ais_temperatures
            weighted = estimators.iwae(model, some, self.lml_samples, generator=g)
            annealed = estimators.ais(model, some, self.ais_chains, steps, generator=g)
            error = math.hypot(annealed.standard_error, weighted.standard_error)
            found.append(Estimate(annealed - weighted, error))
        return [torch.tensor([f, f.standard_error], dtype=torch.float64) for f in found]

    def findings(self, arrays: dict[str, Tensor]) -> dict[str, Finding]:
        """Means over seeds with their standard errors."""

        def gap(name: str) -> Finding:
            noise = arrays[f"error/{name}"].square() + arrays["error/fixed"].square()
            own = Finding.over(arrays[f"lml/{name}"] - arrays["lml/fixed"])
            error = math.hypot(own.standard_error or 0.0, noise.mean().sqrt().item())
            return Finding(own.measured, error)

        track, others = arrays["track/fixed"], [name for name in self.objectives if name != "fixed"]
        return {
            "deep-vae-late-gain": Finding.over(track[-1] - track[1]),
            "encoder-bound-gap": Finding.over(arrays["encoder/fixed"][-1] - track[-1]),
            **{f"{name}-against-recursion": gap(name) for name in others},
        }
