"""Objectives of a deep VAE beside the paper's: choices of its recursion, an encoder of x_R, the grid."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.trainings import dense_vae
from experiments.trainings.deep_vae import (
    ELBO,
    FIXED,
    NUM_ROUNDS,
    DeepVAESettings,
    Draws,
    Noise,
    Objective,
    for_masks,
    masks_from,
    normal,
)
from experiments.trainings.dense_vae import Parameters
from mpt_lml import grids, scores
from mpt_lml.masks import SizeLaw
from mpt_lml.models.mixture import GridConditional
from mpt_lml.numerics import log_likelihood
from mpt_lml.objectives.bounds import mean_elbo


@dataclass(frozen=True)
class MaskedObjective(Objective):
    """D times the score of one mask an image, nats; sizes are stratified over the ``law``."""

    law: SizeLaw = FIXED

    def noise(self, shape: tuple[int, int], settings: DeepVAESettings) -> dict[str, Noise]:
        return for_masks(*shape) | self.other_noise(shape, settings)

    def to_device(self, draws: Draws, device: torch.device) -> dict[str, Tensor]:
        others = {key: value for key, value in draws.items() if key not in ("shift", "order")}
        return super().to_device(others, device) | {"mask": masks_from(draws, self.law, device)}

    def value(
        self, parameters: Parameters, x: Tensor, draws: Draws, settings: DeepVAESettings
    ) -> Float[Tensor, " B"]:
        return self.score(parameters, x, draws["mask"], draws, settings)

    @abstractmethod
    def other_noise(self, shape: tuple[int, int], settings: DeepVAESettings) -> dict[str, Noise]:
        """The random numbers besides the masks'."""

    @abstractmethod
    def score(
        self,
        parameters: Parameters,
        x: Tensor,
        mask: Tensor,
        draws: Draws,
        settings: DeepVAESettings,
    ) -> Float[Tensor, " B"]:
        """Training objective in place of D·S, given masks (B, n, D)."""


@dataclass(frozen=True)
class RecursiveVariant(MaskedObjective):
    """The recursion with other choices; the defaults are those of ``deep_vae.RecursiveScore``.

    ``num_rounds`` times z is drawn given the filled image, in the last ``num_samples`` times. Holes
    begin at 0, or at the decoder's output at z = 0, and are filled with its means, or with draws.
    The gradient goes through the last round, through all of them, or only to the decoder.
    """

    num_rounds: int = NUM_ROUNDS
    num_samples: int = 1
    from_decoder: bool = False
    filled_with_draws: bool = False
    gradient: Literal["last", "all", "decoder"] = "last"

    def other_noise(self, shape: tuple[int, int], settings: DeepVAESettings) -> dict[str, Noise]:
        num_images, num_features = shape
        num_before = self.num_rounds - 1
        num_draws = num_before + self.num_samples
        noise = {"noise": normal(num_draws, num_images, settings.latent_dim)}
        if self.filled_with_draws:
            noise["pixel_noise"] = normal(num_before, num_images, num_features)
        return noise

    def score(
        self,
        parameters: Parameters,
        x: Tensor,
        mask: Tensor,
        draws: Draws,
        settings: DeepVAESettings,
    ) -> Float[Tensor, " B"]:
        num_before = self.num_rounds - 1
        noise = draws["noise"].to(x).transpose(0, 1)
        filling = noise[:num_before]
        pixels = None
        if self.filled_with_draws:
            pixels = draws["pixel_noise"].to(x).transpose(0, 1)
            pixels = math.sqrt(settings.noise_variance) * pixels
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.gradient == "all"):
            filled = self.fill(parameters, x, mask, filling, pixels)
        if self.gradient == "decoder":
            parameters = {
                name: value.detach() if name.startswith("encoder") else value
                for name, value in parameters.items()
            }
        return dense_vae.recursive(
            parameters, x, mask, filled, noise[num_before:], settings.noise_variance
        )

    def fill(
        self,
        parameters: Parameters,
        x: Tensor,
        mask: Tensor,
        noise: Float[Tensor, "r B N K"],
        pixels: Float[Tensor, "r B N D"] | None,
    ) -> Float[Tensor, "B N D"]:
        """``dense_vae.refill`` from another start, or with ``pixels`` added to what fills the holes."""
        filled = torch.where(mask, 0.0, x)
        if self.from_decoder:
            origin = noise.new_zeros(len(mask), 1, noise.shape[-1])
            filled = torch.where(mask, dense_vae.dense(parameters, "decoder", origin), x)
        for number, of_round in enumerate(noise):
            z = dense_vae.encode(parameters, filled, of_round).z
            output = dense_vae.dense(parameters, "decoder", z)
            if pixels is not None:
                output = output + pixels[number]
            filled = torch.where(mask, output, x)
        return filled


class EncoderByELBO(RecursiveVariant):
    """The recursion trains the decoder alone; the encoder follows the ELBO of whole images."""

    def __init__(self) -> None:
        super().__init__(gradient="decoder")

    def noise(self, shape: tuple[int, int], settings: DeepVAESettings) -> dict[str, Noise]:
        return super().noise(shape, settings) | ELBO().noise(shape, settings)

    def value(
        self, parameters: Parameters, x: Tensor, draws: Draws, settings: DeepVAESettings
    ) -> Float[Tensor, " B"]:
        score = super().value(parameters, x, draws, settings)
        fixed_decoder = {
            name: value.detach() if name.startswith("decoder") else value
            for name, value in parameters.items()
        }
        bound = ELBO().value(fixed_decoder, x, draws, settings)
        return score + bound - bound.detach()  # of the bound its gradient only


@dataclass(frozen=True)
class PartialEncoder(MaskedObjective):
    """D times the mean of (1/M) Σ_{j∈A} log Σ_s w̄_s p(x_j | z_s), z_s ~ q(z | x_R), without recursion.

    The encoder has 2D inputs: x_R with zeros in the holes (MIWAE, Mattei & Frellsen 2019) and the mask
    (VAEAC, Ivanov et al. 2019). Where it follows the bound, w̄_s ∝ p(x_R, z_s)/q(z_s | x_R): the decoder
    follows the score, the encoder the ELBO of x_R. Otherwise all w̄_s are 1/S and both follow the score.
    """

    num_samples: int = 1
    encoder_follows: Literal["bound", "score"] = "bound"

    def networks(
        self, num_features: int, settings: DeepVAESettings, generators: Sequence[torch.Generator]
    ) -> dict[str, Tensor]:
        widths, latent_dim = settings.hidden, settings.latent_dim
        encoder = dense_vae.draw_layers(
            "encoder", [2 * num_features, *widths, 2 * latent_dim], generators
        )
        decoder = dense_vae.draw_layers(
            "decoder", [latent_dim, *widths[::-1], num_features], generators
        )
        return encoder | decoder

    def of_images(self, parameters: Parameters) -> Parameters:
        return without_mask(parameters)

    def other_noise(self, shape: tuple[int, int], settings: DeepVAESettings) -> dict[str, Noise]:
        return {"noise": normal(self.num_samples, shape[0], settings.latent_dim)}

    def score(
        self,
        parameters: Parameters,
        x: Tensor,
        mask: Tensor,
        draws: Draws,
        settings: DeepVAESettings,
    ) -> Float[Tensor, " B"]:
        noise = draws["noise"].to(x).transpose(0, 1)
        variance = settings.noise_variance
        observed = torch.where(mask, 0.0, x)
        inputs = torch.cat([observed, mask.to(observed)], dim=-1)
        code = dense_vae.encode(parameters, inputs, noise)
        if self.encoder_follows == "score":
            output = dense_vae.decode(parameters, code.z)
            log_p = log_likelihood(x, output, variance)
            values = log_p.logsumexp(dim=0) - math.log(len(noise))
            return dense_vae.mean_score(values, mask)

        z = code.z.detach()
        log_p = log_likelihood(x, dense_vae.decode(parameters, z), variance)
        log_q = -0.5 * (noise.square() + code.log_variance.detach()).sum(dim=-1)
        log_joint = log_p.where(~mask, 0.0).sum(dim=-1) - 0.5 * z.square().sum(dim=-1)
        log_weight = (log_joint - log_q).log_softmax(dim=0)
        values = (log_weight[..., None] + log_p).logsumexp(dim=0)
        score = dense_vae.mean_score(values, mask)

        # The value is the score's; the encoder's derivative is that of the ELBO of x_R, for which the
        # decoder is held.
        held = {name: value.detach() for name, value in parameters.items()}
        output = dense_vae.dense(held, "decoder", code.z[0])
        log_p_held = log_likelihood(x, output, variance)
        log_p_observed = log_p_held.where(~mask, 0.0).sum(dim=-1)
        encoder_elbo = mean_elbo(log_p_observed, code.mean, code.log_variance.exp())
        return score + encoder_elbo - encoder_elbo.detach()


def without_mask(parameters: Parameters) -> Parameters:
    """The networks without an encoder's inputs for a mask, which are 0 where nothing is masked."""
    first_layer = "encoder/0/weight"
    last_bias = [name for name in parameters if name.startswith("decoder")][-1]
    num_features = parameters[last_bias].shape[-1]
    return {**parameters, first_layer: parameters[first_layer][:, :num_features]}


class Exact(Objective):
    """The model's exact conditionals on a grid, K ≤ 3; the encoder stays as it was drawn.

    Four masks a minibatch, 20 nodes an axis. The grid moves at random by less than its spacing: the
    decoder learns to fit between fixed nodes.
    """

    num_masks = 4
    nodes_per_axis = 20

    def noise(self, shape: tuple[int, int], settings: DeepVAESettings) -> dict[str, Noise]:
        of_grid = Noise(torch.rand, (settings.latent_dim,))
        return for_masks(self.num_masks, shape[1]) | {"of_grid": of_grid}

    def to_device(self, draws: Draws, device: torch.device) -> dict[str, Tensor]:
        return {
            "mask": masks_from(draws, FIXED, device),
            "of_grid": draws["of_grid"].to(device),
        }

    def value(
        self, parameters: Parameters, x: Tensor, draws: Draws, settings: DeepVAESettings
    ) -> Float[Tensor, " B"]:
        grid = grids.trapezoid(settings.latent_dim, self.nodes_per_axis).to(x)
        width = grid.nodes.max() - grid.nodes.min()
        values = []
        for run, images in enumerate(x):
            mask = draws["mask"][run]
            shift = draws["of_grid"][run].to(x) - 0.5
            nodes = grid.nodes + shift * width / (self.nodes_per_axis - 1)
            log_weights = (-0.5 * nodes.square().sum(dim=-1)).log_softmax(dim=0)
            model = dense_vae.dense_model(parameters, run, settings.noise_variance)
            table = GridConditional(model, grids.Grid(nodes, log_weights))
            score = scores.mask_score(table.log_conditional(images, mask), mask)
            values.append(x.shape[2] * score.mean())
        # The encoder needs a gradient, too, which is 0.
        encoder = [value for name, value in parameters.items() if name.startswith("encoder")]
        idle = sum(value.sum() for value in encoder)
        return torch.stack(values) + 0.0 * idle
