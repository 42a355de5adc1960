"""Figure 3, lower row: a deep VAE trained by the ELBO and by masks."""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.annealing import ais
from experiments.experiment import Experiment, RunContext, on_cpu, seeded, setting
from experiments.masked_vae import PartialEncoder, without_mask
from experiments.records import finding_over
from experiments.trainings.deep_vae import (
    ELBO,
    OBJECTIVES,
    DeepVAERun,
    DeepVAESettings,
    Objective,
    log_p_x,
    models_of,
    train_deep_vae,
)
from experiments.trainings.dense_vae import Parameters
from mpt_lml import estimators
from mpt_lml.models import vae
from mpt_lml.recorded import Finding, Outcome
from mpt_lml.results import Estimate


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

    @property
    def settings(self) -> DeepVAESettings:
        """Settings of this experiment that are those of a training."""
        of_training = [field.name for field in fields(DeepVAESettings) if hasattr(self, field.name)]
        return DeepVAESettings(**{name: getattr(self, name) for name in of_training})

    def images(self) -> Float[Tensor, "N D"]:
        """Training images in [0, 1]."""
        return self.settings.images()

    def train(self, x: Tensor, objective: Objective, context: RunContext, name: str) -> DeepVAERun:
        """Train all seeds side by side, each on separate minibatches."""
        return train_deep_vae(
            self.settings, objective, images=x, progress=context.progress, label=name
        )

    def start(self, x: Tensor) -> Parameters:
        """The networks before the first step, one for each seed."""
        settings = self.settings
        drawn = ELBO().networks(x.shape[1], settings, settings.generators())
        return {name: value.to(x) for name, value in drawn.items()}

    def models(self, parameters: Parameters) -> list[vae.VAE]:
        """The model of every seed, in double precision."""
        return models_of(without_mask(parameters), self.settings)

    def log_likelihood(self, parameters: Parameters, x: Tensor) -> Float[Tensor, " seeds"]:
        """Mean log p(x) of every run, nats: on a grid for K ≤ 3, else weighted around the modes."""
        return log_p_x(without_mask(parameters), x, self.settings)


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
        trained = {**OBJECTIVES, "partial": PartialEncoder(num_samples=3)}
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
        run = self.train(x, objective, context, name)
        loss = run.objective
        means = [loss[a:b].mean(dim=0) for a, b in itertools.pairwise(steps)]
        models = context.progress(self.models(run.parameters), f"{name}, LML of seed")
        judged = [self.judge(model, x, number) for number, model in enumerate(models)]
        lml, error = torch.stack([judgement.lml for judgement in judged], 1)
        excess = [each.ais_excess for each in judged if each.ais_excess is not None]
        return {
            f"track/{name}": run.log_p_x,
            f"encoder/{name}": run.by_encoder,
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
        annealed = ais(model, fewer, self.ais_chains, self.ais_temperatures, generator=generator)
        error = math.hypot(annealed.standard_error, weighted.standard_error)
        return Judgement(_with_error(lml), _with_error(Estimate(annealed - weighted, error)))

    def findings(self, arrays: dict[str, Tensor]) -> dict[str, Finding]:
        """Means over seeds with their standard errors."""

        def gap(name: str) -> Finding:
            of_estimates = arrays[f"error/{name}"].square() + arrays["error/fixed"].square()
            over_seeds = finding_over(arrays[f"lml/{name}"] - arrays["lml/fixed"])
            error = math.hypot(over_seeds.standard_error or 0.0, of_estimates.mean().sqrt().item())
            return Finding(over_seeds.measured, error)

        track = arrays["track/fixed"]
        findings = {
            "deep-vae-late-gain": finding_over(track[-1] - track[1]),
            "encoder-bound-gap": finding_over(arrays["encoder/fixed"][-1] - track[-1]),
        }
        for name in self.objectives:
            if name != "fixed":
                findings[f"{name}-against-recursion"] = gap(name)
        return findings


class Judgement(NamedTuple):
    """Estimates of one trained model, each a value and its standard error, (2,), nats."""

    lml: Tensor
    ais_excess: Tensor | None = None  # over importance weights; of the first runs


def _with_error(estimate: Estimate) -> Float[Tensor, " two"]:
    return torch.tensor([estimate, estimate.standard_error], dtype=torch.float64)
