"""Which choice of the recursion makes its encoder collapse, and what an encoder of x_R does instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import grids, masks, scores
from mpt_lml.experiments import approximate_conditionals
from mpt_lml.experiments.deep_vae import EXACT, NODES, DeepVAE, images, log_likelihood, train
from mpt_lml.experiments.deep_vae import trained_models as models_of
from mpt_lml.experiments.figure_3_lower import over_seeds
from mpt_lml.experiments.recursion_variants import VARIANTS, Variant, masked_score, objective
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    checksum,
    experiment,
    silent,
)
from mpt_lml.masks import FixedRate
from mpt_lml.models.mixture import GridConditional

REFERENCES = ("elbo", "uniform", "partial_uniform", "exact")
SIZES = (1, 8, 16, 24, 32, 40, 48, 56, 64)
"""Mask sizes at which the area's error is measured, of digits with 64 pixels."""


@dataclass(frozen=True)
class Ablation(Config):
    """Digits, K = 2, 33 %, otherwise as :meth:`DeepVAE.on_digits`; five seeds per variant.

    ``judged_seeds`` further runs of the baseline decide the two entries of the ledger: with five the
    interval would be wider than the margin.
    """

    num_steps: int = 1500
    judged_seeds: int = 20
    examined: int = 200  # images
    num_masks: int = 4  # at 33 %, for the bias of the score
    repeats: int = 10
    chain_data: int = 30
    area_data: int = 40
    area_draws: int = 100

    @classmethod
    def paper(cls) -> Ablation:
        """The recorded run."""
        return cls()

    @classmethod
    def quick(cls) -> Ablation:
        """A few steps."""
        return cls(
            num_steps=4,
            judged_seeds=2,
            examined=6,
            num_masks=1,
            repeats=2,
            chain_data=3,
            area_data=2,
            area_draws=5,
            seeds=(4, 44),
        )

    def deep_vae(self, seeds: Sequence[int]) -> DeepVAE:
        """Settings of the training."""
        digits = DeepVAE.paper().on_digits()
        return dataclasses.replace(
            digits,
            num_steps=self.num_steps,
            track_every=self.num_steps,
            track_data=min(digits.track_data, self.examined),
            seeds=tuple(seeds),
        )


def score_bias(
    config: DeepVAE,
    variant: Variant,
    parameters: Mapping[str, Tensor],
    x: Float[Tensor, "N D"],
    num_masks: int,
    repeats: int,
) -> Float[Tensor, " seeds"]:
    """Expected training score minus D·S of the model's own conditionals (grid), same masks, nats."""
    mask = masks.sample_masks(
        num_masks,
        x.shape[1],
        FixedRate(config.fixed_rate),
        generator=torch.Generator().manual_seed(1),
    )
    double = {name: value.detach().double() for name, value in parameters.items()}
    runs, x = len(config.seeds), x.double()
    every = x.repeat(num_masks, 1).expand(runs, -1, -1)
    hidden = mask.repeat_interleave(len(x), dim=0).expand(runs, -1, -1)
    generators = [torch.Generator().manual_seed(100 + run) for run in range(runs)]
    with torch.no_grad():
        drawn = [
            masked_score(config, variant, double, every, hidden, generators) for _ in range(repeats)
        ]
    grid = grids.trapezoid(config.latent_dim, NODES)
    exact = []
    for model in models_of(config, parameters):
        log_p = GridConditional(model, grid).log_conditional(x, mask)
        exact.append(x.shape[1] * scores.mask_score(log_p, mask).mean())
    return torch.stack(drawn).mean(dim=0) - torch.stack(exact)


def examine(
    config: Ablation, training: DeepVAE, name: str, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Exact log p(x), widths of encoder and posterior, bias of the training score, of the chain."""
    x = images(training)[: config.examined].double()
    arrays = {f"lml/{name}": log_likelihood(training, parameters, x)}
    if name in EXACT:
        return arrays
    models = models_of(training, parameters)
    found = [approximate_conditionals.codes(model, x) for model in models]
    for part in found[0]:
        arrays[f"{part}/{name}"] = torch.tensor([codes[part] for codes in found])
    variant = VARIANTS.get(name)
    if variant is not None:
        arrays[f"bias/{name}"] = score_bias(
            training, variant, parameters, x, config.num_masks, config.repeats
        )
    if not (name.startswith("partial") or (variant is not None and variant.partial)):
        few = x[: config.chain_data]
        tables = [approximate_conditionals.compare_conditionals(model, few) for model in models]
        for rate in tables[0]:
            arrays[f"conditionals/{name}/{rate}"] = torch.stack([each[rate] for each in tables])
    return arrays


@experiment(
    "recursion",
    title="The recursion of Figure 3, lower, choice by choice, and an encoder of x_R",
    cost="about 10 min, resumable",
    config=Ablation,
    resumable=True,
)
def recursion(
    config: Ablation,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """Digits, K = 2: every choice changed by itself; all exact values from a grid.

    Arrays (seeds,) for each of ``REFERENCES`` and ``VARIANTS``: ``lml/NAME`` log p(x); for those with
    an encoder ``encoder/NAME`` and ``posterior/NAME`` mean standard deviations, ``square/NAME`` mean
    square length of the codes; for the variants ``bias/NAME`` of the training score
    (:func:`score_bias`). ``conditionals/NAME/RATE`` (seeds, methods, 3) of
    :func:`approximate_conditionals.compare_conditionals` where the encoder takes filled images: its
    first method is the evaluated recursion, from decode(0), with draws and 40 steps. ``area/elbo``
    and ``area/baseline`` (seeds,), what Σ_M S(M) through that chain misses of log p(x), and
    ``area_model/...`` on images drawn from each model; ``judged/lml`` and ``judged/area`` of the
    judged runs.
    """
    training = config.deep_vae(config.seeds)
    x = images(training)
    arrays: dict[str, Tensor] = {}

    def parameters(settings: DeepVAE, name: str, file: str) -> Mapping[str, Tensor]:
        variant = VARIANTS.get(name)
        return train(
            settings,
            x,
            name,
            function=None if variant is None else objective(settings, variant, x),
            partial=None if variant is None else variant.partial,
            checkpoint=None if checkpoints is None else checkpoints / f"{file}.npz",
            progress=progress,
        ).parameters

    for number, name in enumerate(progress([*VARIANTS, *REFERENCES], "variant")):
        trained = parameters(training, name, str(number))
        arrays |= examine(config, training, name, trained)
        if name in ("elbo", "baseline"):
            arrays[f"area/{name}"] = _areas(config, training, trained, x)
            arrays[f"area_model/{name}"] = _areas(config, training, trained, None)
    judged = config.deep_vae(range(1000, 1000 + config.judged_seeds))
    trained = parameters(judged, "baseline", "judged")
    arrays["judged/lml"] = log_likelihood(judged, trained, x[: config.examined])
    arrays["judged/area"] = _areas(config, judged, trained, x)
    bare = _mean_image(judged, x, x[: config.examined])
    return Outcome(_findings(arrays, bare), arrays, checksum([x]))


def _areas(
    config: Ablation,
    training: DeepVAE,
    parameters: Mapping[str, Tensor],
    x: Float[Tensor, "N D"] | None,
) -> Float[Tensor, " seeds"]:
    """Error of the area through pseudo-Gibbs on ``x``, or on as many draws of each model."""
    values = []
    grid = grids.trapezoid(training.latent_dim, NODES)
    for run, model in enumerate(models_of(training, parameters)):
        if x is None:
            exact = GridConditional(model, grid)
            generator = torch.Generator().manual_seed(run)
            some = exact.sample(config.area_data, generator=generator)
        else:
            some = x[: config.area_data].double()
        methods = approximate_conditionals.conditional_models(model, config.area_draws)
        errors = approximate_conditionals.score_errors(model, methods["pseudo-Gibbs"], some, SIZES)
        values.append(approximate_conditionals.area_error(errors, SIZES).mean())
    return torch.stack(values)


def _mean_image(config: DeepVAE, x: Float[Tensor, "N D"], some: Float[Tensor, "n D"]) -> float:
    """Mean log p of ``some`` without z: independent pixels around the mean image of ``x``, nats."""
    variance = torch.tensor(config.noise_variance, dtype=torch.float64)
    off = some.double() - x.double().mean(dim=0)
    terms = -0.5 * (off.square() / variance + (2 * torch.pi * variance).log())
    return terms.sum(dim=1).mean().item()


def _findings(arrays: Mapping[str, Tensor], mean_image: float) -> dict[str, Finding]:
    """Two entries of the paper's, and what the choices do to encoder and likelihood."""

    def width(name: str) -> Finding:
        return over_seeds(arrays[f"encoder/{name}"] / arrays[f"posterior/{name}"])

    def gap(first: str, second: str) -> Finding:
        return over_seeds(arrays[f"lml/{first}"] - arrays[f"lml/{second}"])

    return {
        "claim-approximate-estimation": over_seeds(arrays["judged/area"]),
        "claim-approximate-maximization": over_seeds(arrays["judged/lml"] - mean_image),
        "recursion-encoder-width": width("baseline"),
        "recursion-many-draws": gap("20 draws of z", "baseline"),
        "recursion-encoder-by-elbo": gap("encoder by the ELBO", "baseline"),
        "recursion-uniform-size": gap("uniform", "baseline"),
        "recursion-against-exact": gap("baseline", "exact"),
        "partial-against-exact": gap("partial, weighted, 20", "exact"),
        "partial-uniform-against-elbo": gap("partial_uniform", "elbo"),
        "pseudo-gibbs-bias": over_seeds(arrays["conditionals/elbo/fixed"][:, 0, 1]),
        "pseudo-gibbs-area": over_seeds(arrays["area/elbo"]),
    }
