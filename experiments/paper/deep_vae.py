"""Figure 3, lower row: a deep VAE trained by the ELBO and by masks."""

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.experiment import Experiment, RunContext, on_cpu, seeded, setting
from mpt_lml import data, estimators, fit, grids, masks, objectives, scores
from mpt_lml.masks import FixedRate, SizeLaw
from mpt_lml.models import vae
from mpt_lml.models.mixture import GridConditional
from mpt_lml.models.vae import Parameters
from mpt_lml.recorded import Finding, Outcome
from mpt_lml.results import Estimate, History

FIXED = FixedRate(0.33)  # the paper's
MINIBATCH = 100
Generators = Sequence[torch.Generator]
Objective = Callable[[Parameters, Tensor, Generators, "DeepVAETraining"], Tensor]
"""(parameters, minibatches (B, n, D), generators, settings) -> (B,), nats."""


def normal_noise(
    count: int, x: Float[Tensor, "B n D"], size: int, generators: Generators
) -> Float[Tensor, "count B n size"]:
    """``count`` standard normal vectors of length ``size`` per image."""
    shape = (count, x.shape[1], size)
    drawn = [torch.randn(shape, generator=generator) for generator in generators]
    return torch.stack(drawn, dim=1).to(x)


def elbo(
    p: Parameters, x: Tensor, generators: Generators, settings: "DeepVAETraining"
) -> Float[Tensor, " B"]:
    """The usual objective."""
    noise = normal_noise(1, x, settings.latent_dim, generators)
    return objectives.elbo(p, x, noise[0], settings.noise_variance)


@dataclass(frozen=True)
class MaskedObjective(ABC):
    """D times the score of one mask per image, nats."""

    law: SizeLaw = FIXED

    def __call__(
        self, p: Parameters, x: Tensor, generators: Generators, settings: "DeepVAETraining"
    ) -> Float[Tensor, " B"]:
        mask = masks.stratified_masks(x.shape[1], x.shape[2], self.law, generator=generators)
        return self.score(p, x, mask, generators, settings)

    @abstractmethod
    def score(
        self,
        p: Parameters,
        x: Tensor,
        mask: Tensor,
        generators: Generators,
        settings: "DeepVAETraining",
    ) -> Float[Tensor, " B"]:
        """What is trained on in place of D·S."""


@dataclass(frozen=True)
class RecursiveScore(MaskedObjective):
    """By the recursion; the defaults are our reading of the paper's.

    ``num_rounds`` times z is drawn given the filled image, in the last ``num_samples`` times. Holes
    begin at 0, or at the decoder's output at z = 0, and are filled with its means, or with draws.
    The gradient goes through the last round or through all of them.
    """

    num_rounds: int = 3
    num_samples: int = 1
    from_decoder: bool = False
    filled_with_draws: bool = False
    gradient: Literal["last", "all", "decoder"] = "last"

    def score(
        self,
        p: Parameters,
        x: Tensor,
        mask: Tensor,
        generators: Generators,
        settings: "DeepVAETraining",
    ) -> Float[Tensor, " B"]:
        num_before = self.num_rounds - 1
        noise = normal_noise(num_before + self.num_samples, x, settings.latent_dim, generators)
        pixel_noise = None
        if self.filled_with_draws:
            pixel_noise = normal_noise(num_before, x, x.shape[2], generators)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.gradient == "all"):
            filled = objectives.refill(
                p,
                x,
                mask,
                noise[:num_before],
                settings.noise_variance,
                from_decoder=self.from_decoder,
                pixel_noise=pixel_noise,
            )
        return objectives.recursive(
            p,
            x,
            mask,
            filled,
            noise[num_before:],
            settings.noise_variance,
            train_encoder=self.gradient != "decoder",
        )


class EncoderByELBO(RecursiveScore):
    """The recursion trains the decoder alone; the encoder follows the ELBO of whole images."""

    def __init__(self) -> None:
        super().__init__(gradient="decoder")

    def __call__(
        self, p: Parameters, x: Tensor, generators: Generators, settings: "DeepVAETraining"
    ) -> Float[Tensor, " B"]:
        score = super().__call__(p, x, generators, settings)
        fixed_decoder = {
            name: value.detach() if name.startswith("decoder") else value
            for name, value in p.items()
        }
        bound = elbo(fixed_decoder, x, generators, settings)
        return score + bound - bound.detach()  # of the bound its gradient only


@dataclass(frozen=True)
class PartialEncoder(MaskedObjective):
    """An encoder q(z | x_R) without recursion, which follows the ELBO of x_R or the score itself."""

    num_samples: int = 1
    encoder_follows: Literal["bound", "score"] = "bound"

    def score(
        self,
        p: Parameters,
        x: Tensor,
        mask: Tensor,
        generators: Generators,
        settings: "DeepVAETraining",
    ) -> Float[Tensor, " B"]:
        noise = normal_noise(self.num_samples, x, settings.latent_dim, generators)
        return objectives.partial(
            p,
            x,
            mask,
            noise,
            settings.noise_variance,
            weighted=self.encoder_follows == "bound",
        )


def exact(
    p: Parameters, x: Tensor, generators: Generators, settings: "DeepVAETraining"
) -> Float[Tensor, " B"]:
    """The model's own conditionals on a grid, K ≤ 3; the encoder stays as it was drawn.

    Four masks a minibatch, 20 nodes an axis. The grid moves at random by less than its spacing: the
    decoder learns to fit between fixed nodes.
    """
    nodes_per_axis = 20
    grid = grids.trapezoid(settings.latent_dim, nodes_per_axis).to(x)
    width = grid.nodes.max() - grid.nodes.min()
    values = []
    for run, (images, generator) in enumerate(zip(x, generators, strict=True)):
        mask = masks.stratified_masks(4, x.shape[2], FIXED, generator=generator)
        shift = torch.rand(settings.latent_dim, generator=generator).to(x) - 0.5
        nodes = grid.nodes + shift * width / (nodes_per_axis - 1)
        log_weights = (-0.5 * nodes.square().sum(dim=-1)).log_softmax(dim=0)
        model = vae.dense_model(p, run, settings.noise_variance)
        table = GridConditional(model, grids.Grid(nodes, log_weights))
        score = scores.mask_score(table.log_conditional(images, mask), mask)
        values.append(x.shape[2] * score.mean())
    # The encoder needs a gradient, too, which is 0.
    idle = sum(value.sum() for name, value in p.items() if name.startswith("encoder"))
    return torch.stack(values) + 0.0 * idle


def on_grid(model: vae.VAE) -> GridConditional:
    """``model`` on a grid that knows its log p(x), K ≤ 3: 161 nodes per axis agree to 1e-5 nats."""
    return GridConditional(model, grids.trapezoid(model.latent_dim, 41))


class DeepVAETraining(Experiment):
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

    def images(self) -> Float[Tensor, "N D"]:
        """Training images in [0, 1]."""
        return data.images(self.dataset).pixels[: self.num_data].float()

    def train(
        self, x: Tensor, objective: Objective, context: RunContext, name: str, **options: Any
    ) -> History:
        """All seeds side by side; an "epoch" of the history is one step on a minibatch of each."""
        generators = [seeded(seed) for seed in self.seeds]
        start = self.start(x, generators, partial=isinstance(objective, PartialEncoder))
        tracked_x = x[: self.track_data]

        def on_minibatch(p: Parameters, generators: Generators) -> Tensor:
            rows = [torch.randint(len(x), (MINIBATCH,), generator=g) for g in generators]
            return objective(p, x[torch.stack(rows)], generators, self)

        return fit.maximize(
            start,
            on_minibatch,
            num_epochs=self.num_steps,
            learning_rate=self.learning_rate,
            generators=generators,
            track={
                "lml": lambda p: self.log_likelihood(p, tracked_x.double()).to(x),
                "encoder": lambda p: self.by_encoder(p, tracked_x).to(x),
            },
            track_every=self.track_every,
            progress=lambda items, _: context.progress(items, name),
            **options,
        )

    def start(self, x: Tensor, generators: Generators, partial: bool = False) -> Parameters:
        """The networks before the first step, one for each of the ``generators``."""
        sizes = (x.shape[1], self.hidden, self.latent_dim)
        drawn = vae.dense_parameters(*sizes, generators=generators, partial=partial)
        return {name: value.to(x) for name, value in drawn.items()}

    def models(self, parameters: Parameters, dtype: torch.dtype = torch.float64) -> list[vae.VAE]:
        """The model of every seed."""
        trained = {name: value.detach().to(dtype) for name, value in parameters.items()}
        runs = range(len(self.seeds))
        return [vae.dense_model(trained, run, self.noise_variance) for run in runs]

    def log_likelihood(self, parameters: Parameters, x: Tensor) -> Float[Tensor, " seeds"]:
        """Mean log p(x) of every run, nats: on a grid for K ≤ 3, else weighted around the modes."""
        models = self.models(parameters)
        if self.latent_dim <= grids.MAX_LATENT_DIM:
            return torch.stack([on_grid(model).log_marginal(x).mean() for model in models])
        values = [
            estimators.iwae(model, x, self.track_samples, generator=seeded(run))
            for run, model in enumerate(models)
        ]
        return torch.tensor(values, dtype=torch.float64)

    def by_encoder(self, parameters: Parameters, x: Tensor) -> Float[Tensor, " seeds"]:
        """What ``track_draws`` draws from the encoder report, a lower bound to look at."""
        values = [
            estimators.iwae(
                model,
                x,
                self.track_draws,
                generator=seeded(0),
                proposal=estimators.from_encoder,
            )
            for model in self.models(parameters, x.dtype)
        ]
        return torch.tensor(values)


class Figure3Lower(DeepVAETraining, name="figure-3-lower", resumable=True):
    """Figure 3, lower: a deep VAE trained by the ELBO and by masks.

    The paper states the data, the likelihood, the recursion and 33 %; sizes are ours. Trained by the
    ELBO, through the recursion ("fixed") and with a partial encoder ("partial"). Arrays of each, nats:
    ``track/NAME`` and ``encoder/NAME`` (tracked steps, seeds), log p(x) and what draws from the encoder
    report; ``loss/NAME``, the objective's mean over the steps before; ``lml/NAME`` and ``error/NAME``
    (seeds,), estimates at the end on more data; ``ais/NAME`` (2, some seeds), AIS minus IWAE and its
    error.
    """

    lml_data: int = setting(200, quick=10)
    lml_samples: int = setting(2000, quick=100)
    ais_data: int = setting(10, quick=4)
    ais_temperatures: int = setting(1000, quick=10)
    ais_chains: int = setting(10, quick=4)
    ais_seeds: int = setting(2, quick=1)  # annealing is the most expensive check
    objectives: tuple[str, ...] = ("elbo", "fixed", "partial")  # "fixed" among them

    def measure(self, context: RunContext) -> Outcome:
        x = self.images().to(context.device)
        steps = [*range(0, self.num_steps, self.track_every), self.num_steps]
        arrays: dict[str, Tensor] = {"steps": torch.tensor(steps)}
        trained: dict[str, Objective] = {
            "elbo": elbo,
            "fixed": RecursiveScore(),
            "partial": PartialEncoder(num_samples=3),
        }
        checksum = context.checksum([x])
        for name in self.objectives:
            arrays |= context.computed_once(
                f"{self.dataset}-{name}",
                functools.partial(self._trained_and_judged, name, trained[name], x, steps, context),
                data=checksum,
            )
        arrays = on_cpu(arrays)
        return Outcome(self.findings(arrays), arrays, checksum)

    def _trained_and_judged(
        self,
        name: str,
        objective: Objective,
        x: Float[Tensor, "N D"],
        steps: Sequence[int],
        context: RunContext,
    ) -> dict[str, Tensor]:
        """Train by one objective and judge what it has made."""
        history = self.train(x, objective, context, name)
        loss = history.values["objective"][:-1]
        means = [loss[a:b].mean(dim=0) for a, b in itertools.pairwise(steps)]
        models = context.progress(self.models(history.parameters), f"{name}, LML of seed")
        judged = [self.judge(model, x, run) for run, model in enumerate(models)]
        lml, error = torch.stack([judgement.lml for judgement in judged], 1)
        excess = [each.ais_excess for each in judged if each.ais_excess is not None]
        return {
            f"track/{name}": history.values["lml"][steps],
            f"encoder/{name}": history.values["encoder"][steps],
            f"loss/{name}": torch.stack([loss[0], *means]),
            f"lml/{name}": lml,
            f"error/{name}": error,
            f"ais/{name}": torch.stack(excess, 1),
        }

    def judge(self, model: vae.VAE, x: Tensor, run: int) -> "Judgement":
        """log p(x) and its error; for the first runs also AIS minus that, on fewer data."""
        generator = seeded(run)
        few = x[: self.lml_data].double()
        lml = estimators.iwae(model, few, self.lml_samples, generator=generator)
        if run >= self.ais_seeds:
            return Judgement(_with_error(lml))
        fewer = few[: self.ais_data]
        weighted = estimators.iwae(model, fewer, self.lml_samples, generator=generator)
        annealed = estimators.ais(
            model, fewer, self.ais_chains, self.ais_temperatures, generator=generator
        )
        error = math.hypot(annealed.standard_error, weighted.standard_error)
        return Judgement(_with_error(lml), _with_error(Estimate(annealed - weighted, error)))

    def findings(self, arrays: dict[str, Tensor]) -> dict[str, Finding]:
        """Means over seeds with their standard errors."""

        def gap(name: str) -> Finding:
            of_estimates = arrays[f"error/{name}"].square() + arrays["error/fixed"].square()
            over_seeds = Finding.over(arrays[f"lml/{name}"] - arrays["lml/fixed"])
            error = math.hypot(over_seeds.standard_error or 0.0, of_estimates.mean().sqrt().item())
            return Finding(over_seeds.measured, error)

        track = arrays["track/fixed"]
        findings = {
            "deep-vae-late-gain": Finding.over(track[-1] - track[1]),
            "encoder-bound-gap": Finding.over(arrays["encoder/fixed"][-1] - track[-1]),
        }
        for name in self.objectives:
            if name != "fixed":
                findings[f"{name}-against-recursion"] = gap(name)
        return findings


class Judgement(NamedTuple):
    """Of one trained model, each a value and its standard error, (2,), nats."""

    lml: Tensor
    ais_excess: Tensor | None = None  # over importance weights; of the first runs


def _with_error(estimate: Estimate) -> Float[Tensor, " two"]:
    return torch.tensor([estimate, estimate.standard_error], dtype=torch.float64)
