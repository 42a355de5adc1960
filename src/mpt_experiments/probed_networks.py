"""Small networks of images, trained by masks of one law of their size, and probes of their features."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_experiments import autoencoders
from mpt_experiments.autoencoders import Labeled
from mpt_experiments.experiment import Arrays, RunContext, seeded
from mpt_experiments.language_trainings import RECIPES, Recipe
from mpt_experiments.paper import deep_vae
from mpt_lml import estimators
from mpt_lml.fit import Progress, silent
from mpt_lml.models.vae import VAE
from mpt_score import networks
from mpt_score.networks.vit_mae import ViTMAE

Kind = Literal["vae", "mae"]
MEASURED = ("area", "its error", "score at 15 %", "score at 50 %", "score at 75 %", "accuracy")
"""What is measured of a network, nats and a share; the last axis of every array below."""


class Data(NamedTuple):
    """Images to train on, others for the area, and those with the labels that the probe is given."""

    unlabeled: Float[Tensor, "N C H W"]
    held_out: Float[Tensor, "Q C H W"]
    labeled: Labeled


def images(name: str, num_data: int, num_labels: int, num_test: int, num_scored: int) -> Data:
    """The first ``num_labels`` training images have a label, the first test images are scored."""
    every = autoencoders.labeled_images(name, num_data, num_test)
    unlabeled = every.x[~every.is_test]
    is_shown = every.is_test.clone()
    is_shown[:num_labels] = True
    labeled = Labeled(every.x[is_shown], every.label[is_shown], every.is_test[is_shown])
    return Data(unlabeled, every.x[every.is_test][:num_scored], labeled)


@dataclass(frozen=True, eq=False)
class ProbedNetworks(ABC):
    """Networks of one kind, one a seed, before and after a training of so many steps."""

    data: Data
    seeds: Sequence[int]
    num_steps: int
    width: int
    num_samples: int = 50
    progress: Progress = silent

    @property
    @abstractmethod
    def num_features(self) -> int:
        """D: how many coordinates a mask chooses from."""

    @abstractmethod
    def before(self) -> Arrays:
        """``measured`` (seeds, 6) with random weights; the columns are ``MEASURED``."""

    @abstractmethod
    def after(self, recipe: Recipe) -> Arrays:
        """``measured`` (seeds, 6) after training; ``seconds`` () of the processor, one training."""

    def laws(self, names: Sequence[str]) -> list[str]:
        """Those of the ``names`` that are laws of their own for this D; of two alike the later."""
        last_of: dict[tuple[float, ...], str] = {}
        for name in names:
            recipe = RECIPES[name]
            sizes = recipe.law.probabilities(self.num_features)
            of_each_size = torch.cat([sizes, recipe.weights(self.num_features)])
            last_of[tuple(of_each_size.tolist())] = name
        return [name for name in names if name in last_of.values()]


class ProbedVAEs(ProbedNetworks):
    """Deep VAEs with a partial encoder, trained side by side; features are the means of q(z | x).

    The coordinates are pixels, and the area is log p(x), by importance weights. Its error is that of the
    weights. The images are the same for every network.
    """

    @property
    def num_features(self) -> int:
        return self.data.unlabeled[0].numel()

    @property
    def settings(self) -> deep_vae.Figure3Lower:
        return deep_vae.Figure3Lower(
            tuple(self.seeds),
            hidden=(self.width,),
            num_steps=self.num_steps,
            track_every=self.num_steps,
            track_data=1,
            track_samples=2,
            track_draws=2,
        )

    def before(self) -> Arrays:
        generators = [seeded(seed) for seed in self.seeds]
        x = self.data.unlabeled.flatten(1)
        return {"measured": self._measured(self.settings.start(x, generators, partial=True))}

    def after(self, recipe: Recipe) -> Arrays:
        objective = deep_vae.PartialEncoder(
            num_samples=3, law=recipe.law, is_unbiased=recipe.is_unbiased
        )
        start = time.process_time()
        x = self.data.unlabeled.flatten(1)
        context = RunContext(progress=self.progress)
        history = self.settings.train(x, objective, context, "deep VAEs")
        seconds = (time.process_time() - start) / len(self.seeds)
        measured = self._measured(history.parameters)
        return {"measured": measured, "seconds": torch.tensor(seconds)}

    def _measured(self, parameters: deep_vae.Parameters) -> Float[Tensor, "seeds 6"]:
        models = self.settings.models(parameters)
        return torch.stack([self._measured_of(model) for model in models])

    @torch.no_grad()
    def _measured_of(self, model: VAE) -> Float[Tensor, " 6"]:
        generator = seeded(1)
        x = self.data.held_out.flatten(1).double()
        area = estimators.iwae(model, x, 2 * self.num_samples, generator=generator)
        conditional = estimators.ImportanceConditional(model, self.num_samples, generator=generator)
        sizes = autoencoders.sizes_at_rates(self.num_features)
        scores = autoencoders.area_and_scores(conditional, x, sizes)[2:]
        labeled = self.data.labeled
        mean, _ = model.encode(labeled.x.flatten(1).double())
        accuracy = autoencoders.probe_accuracy(mean, labeled)
        return scores.new_tensor([area, area.standard_error, *scores, accuracy])


class ProbedMAEs(ProbedNetworks):
    """Small ViT-MAEs of 16 patches; features are the mean over patches of the encoder's last layer.

    The coordinates are patches. The area has one variance a size, fitted to training images, and its
    error is that over held-out images, which are the same for every network.
    """

    num_features = 16

    def before(self) -> Arrays:
        measured = [self._measured(self._network(seed)) for seed in self.seeds]
        return {"measured": torch.stack(measured)}

    def after(self, recipe: Recipe) -> Arrays:
        start = time.process_time()
        trained = [self._trained(recipe, seed) for seed in self.seeds]
        seconds = (time.process_time() - start) / len(self.seeds)
        measured = torch.stack([self._measured(network) for network in trained])
        return {"measured": measured, "seconds": torch.tensor(seconds)}

    def _network(self, seed: int) -> Any:
        side = self.data.unlabeled.shape[-1]
        return networks.small_mae(
            side,
            1,
            side // 4,
            seed=seed,
            width=self.width,
            num_layers=2,
            decoder_layers=1,
        )

    @property
    def _units(self) -> dict[str, Tensor]:
        x = self.data.unlabeled
        return {"pixel_mean": x.mean(), "pixel_scale": x.std()}

    def _trained(self, recipe: Recipe, seed: int) -> Any:
        network = self._network(seed)
        autoencoders.train(
            ViTMAE(network, 1.0, **self._units),
            self.data.unlabeled,
            self.num_steps,
            seeded(seed),
            batch_size=32,
            learning_rate=4e-3,
            matrix_rate=0.03,
            law=recipe.law,
            weight_of_size=recipe.weights(self.num_features),
            progress=self.progress,
        )
        return network

    @torch.no_grad()
    def _measured(self, network: Any) -> Float[Tensor, " 6"]:
        units = self._units
        held_out = self.data.held_out
        fitted_on = self.data.unlabeled[: len(held_out)]
        labeled = self.data.labeled
        standardized = (labeled.x - units["pixel_mean"]) / units["pixel_scale"]
        with networks.fast_linear(network):
            model = ViTMAE.fit_variance(
                network, fitted_on, generator=seeded(1), per="size", **units
            )
            sizes = range(1, self.num_features + 1)
            scores = autoencoders.area_and_scores(model, held_out, sizes)
            features = autoencoders.features(network, standardized)
        accuracy = autoencoders.probe_accuracy(features, labeled)
        return torch.cat([scores, scores.new_tensor([accuracy])])


KINDS: dict[Kind, Any] = {"vae": ProbedVAEs, "mae": ProbedMAEs}
