"""Ways to train a deep VAE through approximate conditionals: the recursion, choice by choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import fit, objectives
from mpt_lml.experiments.deep_vae import Batches, DeepVAE
from mpt_lml.masks import FixedRate


@dataclass(frozen=True)
class Variant:
    """One way to train through approximate conditionals; the defaults are the trained recursion.

    Attributes
    ----------
    encoder : "filled", "elbo", "score" or "bound"
        Of filled images, trained by the masked score or by the ELBO of whole images; or a partial
        encoder q(z | x_R), trained by the score or by the ELBO of x_R.
    """

    rounds: int = 3
    start: Literal["zeros", "decoder"] = "zeros"
    refill: Literal["mean", "draw"] = "mean"
    gradient: Literal["last", "all"] = "last"
    samples: int = 1
    encoder: Literal["filled", "elbo", "score", "bound"] = "filled"

    @property
    def partial(self) -> bool:
        """Whether the encoder sees the mask."""
        return self.encoder in ("score", "bound")


VARIANTS = {
    "baseline": Variant(),
    "1 round": Variant(rounds=1),
    "10 rounds": Variant(rounds=10),
    "start from decoder": Variant(start="decoder"),
    "draws, from decoder": Variant(start="decoder", refill="draw"),
    "gradient through all": Variant(gradient="all"),
    "5 draws of z": Variant(samples=5),
    "20 draws of z": Variant(samples=20),
    "encoder by the ELBO": Variant(encoder="elbo"),
    "partial, by score": Variant(encoder="score"),
    "partial, weighted, 20": Variant(encoder="bound", samples=20),
}


def masked_score(
    config: DeepVAE,
    variant: Variant,
    parameters: Mapping[str, Tensor],
    x: Float[Tensor, "B n D"],
    mask: Tensor,
    generators: Sequence[torch.Generator],
) -> Float[Tensor, " B"]:
    """The score that ``variant`` trains on, D·S in nats, one value per run."""
    draw = Batches(dataclasses.replace(config, batch_size=x.shape[1]), x[0])
    count = variant.samples if variant.partial else variant.rounds - 1 + variant.samples
    noise = draw.noise(count, config.latent_dim, generators)
    variance = config.noise_variance
    if variant.partial:
        weighted = variant.encoder == "bound"
        return objectives.partial(parameters, x, mask, noise, variance, weighted=weighted)
    pixels = None
    if variant.refill == "draw":
        pixels = draw.noise(variant.rounds - 1, x.shape[-1], generators)
    return objectives.recursive(
        parameters,
        x,
        mask,
        noise,
        variance,
        samples=variant.samples,
        from_decoder=variant.start == "decoder",
        pixel_noise=pixels,
        gradient="decoder" if variant.encoder == "elbo" else variant.gradient,
    )


def objective(config: DeepVAE, variant: Variant, x: Float[Tensor, "N D"]) -> fit.Objective:
    """The training objective of ``variant`` for :func:`mpt_lml.fit.maximize`."""
    draw, law = Batches(config, x), FixedRate(config.fixed_rate)

    def function(p: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        batch, mask = draw.images(generators), draw.masks(law, generators)
        score = masked_score(config, variant, p, batch, mask, generators)
        if variant.encoder != "elbo":
            return score
        held = {k: v.detach() if k.startswith("decoder") else v for k, v in p.items()}
        noise = draw.noise(1, config.latent_dim, generators)[0]
        own = objectives.elbo(held, batch, noise, config.noise_variance)
        return score + own - own.detach()

    return function
