"""Choices of the recursion that make its encoder collapse, and an encoder of x_R instead of it."""

from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.experiment import RunContext, seeded, setting
from experiments.masked_vae import (
    EncoderByELBO,
    Exact,
    MaskedObjective,
    PartialEncoder,
    RecursiveVariant,
)
from experiments.paper.deep_vae import DeepVAETraining
from experiments.records import finding_over
from experiments.trainings.deep_vae import ELBO, FIXED, Objective, drawn, on_grid
from experiments.trainings.dense_vae import Parameters
from mpt_lml import estimators, masks, scores
from mpt_lml.masks import UniformSize
from mpt_lml.models import vae
from mpt_lml.models.base import ConditionalModel
from mpt_lml.recorded import Outcome
from mpt_lml.results import trapezoid_weights
from mpt_lml.verdicts import mean_and_error

VARIANTS: dict[str, MaskedObjective] = {
    "baseline": RecursiveVariant(),
    "1 round": RecursiveVariant(num_rounds=1),
    "10 rounds": RecursiveVariant(num_rounds=10),
    "start from decoder": RecursiveVariant(from_decoder=True),
    "draws, from decoder": RecursiveVariant(from_decoder=True, filled_with_draws=True),
    "gradient through all": RecursiveVariant(gradient="all"),
    "5 draws of z": RecursiveVariant(num_samples=5),
    "20 draws of z": RecursiveVariant(num_samples=20),
    "encoder by the ELBO": EncoderByELBO(),
    "partial, by score": PartialEncoder(encoder_follows="score"),
    "partial, weighted, 20": PartialEncoder(num_samples=20),
}
REFERENCES: dict[str, Objective] = {
    "elbo": ELBO(),
    "uniform": RecursiveVariant(law=UniformSize()),
    "partial_uniform": PartialEncoder(num_samples=20, law=UniformSize()),
    "exact": Exact(),
}
SIZES = (1, 8, 16, 24, 32, 40, 48, 56, 64)
"""Mask sizes at which the area's error is measured, of digits with 64 pixels."""


def approximations(model: vae.VAE, num_draws: int) -> list[ConditionalModel]:
    """Pseudo-Gibbs, Metropolis-within-Gibbs, importance sampling around the mode.

    With ``num_draws`` weights or used steps per mask; the chains run ten at a time.
    """
    chains = [
        estimators.GibbsConditional(
            model, num_draws // 5, num_chains=10, generator=seeded(0), corrected=corrected
        )
        for corrected in (False, True)
    ]
    return [*chains, estimators.ImportanceConditional(model, num_draws, generator=seeded(0))]


def compare(model: vae.VAE, x: Float[Tensor, "N D"]) -> Float[Tensor, "methods 3"]:
    """Every approximation against the grid, at two masks of 33 %.

    Root-mean-square error of log p(x_j | x_R), bias of D·S, its standard error over data, nats.
    """
    mask = masks.sample_masks(2, x.shape[1], FIXED, generator=seeded(1))
    truth = on_grid(model).log_conditional(x, mask)
    rows = []
    for method in approximations(model, 200):
        error = method.log_conditional(x, mask) - truth
        score = x.shape[1] * scores.mask_score(error, mask).mean(dim=0)
        of_masked = error[mask[:, None, :].expand_as(error)]
        rows.append(torch.stack([of_masked.square().mean().sqrt(), *mean_and_error(score)]))
    return torch.stack(rows)


def area_error(model: vae.VAE, method: ConditionalModel, x: Tensor) -> Float[Tensor, " N"]:
    """Error of Σ_M S(x; M) through ``method`` as log p(x), nats: linear between ``SIZES``."""
    table = on_grid(model)
    generator = seeded(2)
    errors = []
    for size in SIZES:
        mask = masks.sample_masks(2, x.shape[1], size, generator=generator)
        error = method.log_conditional(x, mask) - table.log_conditional(x, mask)
        errors.append(scores.mask_score(error, mask).mean(dim=0))
    return trapezoid_weights(torch.tensor(SIZES), x.shape[1]).to(x) @ torch.stack(errors)


def codes(model: vae.VAE, x: Float[Tensor, "N D"]) -> dict[str, float]:
    """Mean standard deviations of encoder and posterior."""
    grid = on_grid(model).grid.to(x)
    log_likelihood = model.log_factors_at_nodes(x, grid.nodes).sum(dim=-1)
    posterior = (grid.log_weights[:, None] + log_likelihood).softmax(dim=0).T
    mean = posterior @ grid.nodes
    mean_square = posterior @ grid.nodes.square()
    return {
        "encoder": model.encode(x)[1].sqrt().mean().item(),
        "posterior": (mean_square - mean.square()).clamp(min=0).sqrt().mean().item(),
    }


class Recursion(DeepVAETraining, name="recursion", resumable=True, gpu=False):
    """The recursion of Figure 3, lower, choice by choice, and an encoder of x_R.

    Digits, K = 2, 33 %: every choice changed by itself; all exact values from a grid. Arrays
    (seeds,) for each of ``VARIANTS`` and ``REFERENCES``: ``lml/NAME`` log p(x); for those with an
    encoder ``encoder/NAME`` and ``posterior/NAME`` of :func:`codes`; for the variants ``bias/NAME``
    of the training score. For NAME in (elbo, baseline): ``conditionals/NAME/fixed`` (seeds,
    methods, 3) of :func:`compare`; ``area/NAME`` (seeds,), what Σ_M S(M) through pseudo-Gibbs
    misses of log p(x), ``area_model/NAME`` on images drawn from each model. ``judged/lml`` and
    ``judged/area`` of the judged runs.
    """

    dataset: str = "digits"
    num_data: int = 1198
    hidden: tuple[int, ...] = (64,)
    latent_dim: int = 2
    num_steps: int = setting(1500, quick=2)
    learning_rate: float = 3e-3
    track_every: int = 1500  # both ends
    track_data: int = setting(50, quick=2)
    judged_seeds: int = setting(20, quick=2)  # five would leave an interval wider than the margin
    examined: int = setting(200, quick=2)  # images
    num_masks: int = setting(4, quick=1)  # at 33 %, for the bias of the score
    repeats: int = setting(10, quick=2)
    chain_data: int = setting(30, quick=2)
    area_data: int = setting(40, quick=2)
    area_draws: int = setting(100, quick=5)

    def measure(self, context: RunContext) -> Outcome:
        x = self.images()
        checksum = context.checksum([x])
        arrays: dict[str, Tensor] = {}
        objectives: dict[str, Objective] = {**VARIANTS, **REFERENCES}
        for number, name in enumerate(context.progress(list(objectives), "variant")):
            variant = partial(self._variant, name, objectives[name], x, context)
            arrays |= context.computed_once(str(number), variant, data=checksum)
        arrays |= context.computed_once("judged", partial(self._judged, x, context), data=checksum)

        def gap(first: str, second: str) -> Tensor:
            return arrays[f"lml/{first}"] - arrays[f"lml/{second}"]

        values = {
            "claim-approximate-estimation": arrays["judged/area"],
            "recursion-encoder-width": arrays["encoder/baseline"] / arrays["posterior/baseline"],
            "recursion-many-draws": gap("20 draws of z", "baseline"),
            "recursion-encoder-by-elbo": gap("encoder by the ELBO", "baseline"),
            "recursion-uniform-size": gap("uniform", "baseline"),
            "recursion-against-exact": gap("baseline", "exact"),
            "partial-against-exact": gap("partial, weighted, 20", "exact"),
            "partial-uniform-against-elbo": gap("partial_uniform", "elbo"),
            "pseudo-gibbs-bias": arrays["conditionals/elbo/fixed"][:, 0, 1],
            "pseudo-gibbs-area": arrays["area/elbo"],
        }
        findings = {name: finding_over(value) for name, value in values.items()}
        return Outcome(findings, arrays, checksum)

    def _variant(
        self, name: str, objective: Objective, x: Float[Tensor, "N D"], context: RunContext
    ) -> dict[str, Tensor]:
        """Train by one choice and examine what it has made."""
        few = x[: self.examined].double()
        parameters = self.train(x, objective, context, name).parameters
        arrays = {f"lml/{name}": self.log_likelihood(parameters, few)}
        if name != "exact":
            arrays |= self.examine(name, parameters, few)
        return arrays

    def _judged(self, x: Float[Tensor, "N D"], context: RunContext) -> dict[str, Tensor]:
        """The baseline from many seeds, for the claim that is judged."""
        few = x[: self.examined].double()
        judged = replace(self, seeds=tuple(range(1000, 1000 + self.judged_seeds)))
        parameters = judged.train(x, VARIANTS["baseline"], context, "judged").parameters
        return {
            "judged/lml": judged.log_likelihood(parameters, few),
            "judged/area": self.areas(judged.models(parameters), few),
        }

    def examine(self, name: str, parameters: Parameters, x: Tensor) -> dict[str, Tensor]:
        """Widths of encoder and posterior, bias of the training score, errors of the chains."""
        models = self.models(parameters)
        widths = [codes(model, x) for model in models]
        arrays = {}
        for network in widths[0]:
            arrays[f"{network}/{name}"] = torch.tensor([width[network] for width in widths])
        if name in VARIANTS:
            arrays[f"bias/{name}"] = self.score_bias(VARIANTS[name], parameters, x)
        if name in ("elbo", "baseline"):
            tables = [compare(model, x[: self.chain_data]) for model in models]
            arrays[f"conditionals/{name}/fixed"] = torch.stack(tables)
            arrays[f"area/{name}"] = self.areas(models, x)
            arrays[f"area_model/{name}"] = self.areas(models)
        return arrays

    def score_bias(
        self, variant: MaskedObjective, parameters: Parameters, x: Tensor
    ) -> Float[Tensor, " seeds"]:
        """Expected training score minus D·S of the model's exact conditionals, same masks, nats."""
        mask = masks.sample_masks(self.num_masks, x.shape[1], FIXED, generator=seeded(1))
        generators = [seeded(100 + run) for run in range(len(self.seeds))]
        # Every image under every mask, in every run.
        images = x.repeat(self.num_masks, 1).expand(len(generators), -1, -1)
        hidden = mask.repeat_interleave(len(x), dim=0).expand_as(images)
        double = {name: value.double() for name, value in parameters.items()}
        settings = self.settings
        values = []
        for _ in range(self.repeats):
            noise = variant.other_noise((images.shape[1], images.shape[2]), settings)
            draws = {name: value[0] for name, value in drawn(noise, 1, generators).items()}
            values.append(variant.score(double, images, hidden, draws, settings))
        trained_on = torch.stack(values)
        tables = [on_grid(model).log_conditional(x, mask) for model in self.models(parameters)]
        of_model = torch.stack([scores.mask_score(table, mask).mean() for table in tables])
        return trained_on.mean(dim=0) - x.shape[1] * of_model

    def areas(self, models: list[vae.VAE], x: Tensor | None = None) -> Float[Tensor, " seeds"]:
        """Error of the area through pseudo-Gibbs on ``x``, or on as many draws of each model."""
        values = []
        for run, model in enumerate(models):
            data = x
            if data is None:
                data = on_grid(model).sample(self.area_data, generator=seeded(run))
            pseudo_gibbs = approximations(model, self.area_draws)[0]
            values.append(area_error(model, pseudo_gibbs, data[: self.area_data]).mean())
        return torch.stack(values)
