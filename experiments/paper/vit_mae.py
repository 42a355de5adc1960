"""Figure 6: mask-rate curves of masked autoencoders of images, and of PPCA on the same patches."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from experiments.experiment import (
    Arrays,
    Experiment,
    RunContext,
    on_cpu,
    revision_of,
    seeded,
    setting,
    weights_of,
)
from experiments.paper.table_2 import shape_distance_to_bert
from experiments.records import finding_over
from experiments.trainings import small_mae
from experiments.trainings.small_mae import SmallMAESettings, sizes_of
from mpt_lml import data, masks, scores
from mpt_lml.models.base import Grouped
from mpt_lml.models.ppca import PPCA
from mpt_lml.numerics import log_normal
from mpt_lml.recorded import Finding, Outcome
from mpt_lml.results import trapezoid_weights
from mpt_score.networks import load_network, random_twin
from mpt_score.networks.hub import VIT_MAE_BASE
from mpt_score.networks.vit_mae import IMAGENET, ViTMAE


class _Images(NamedTuple):
    """Data set with all that its networks share; mean and scale are of each channel."""

    x: Float[Tensor, "N C H W"]
    test: Float[Tensor, "Q C H W"]
    patch: int
    settings: SmallMAESettings | None  # None where the network is loaded
    mean: Float[Tensor, " C"]
    scale: Float[Tensor, " C"]
    num_patches: int
    sizes: list[int]

    @property
    def weights(self) -> Float[Tensor, " L"]:
        """Weights of the scores of the sizes in the area."""
        return trapezoid_weights(torch.tensor(self.sizes), self.num_patches)


class Figure6(Experiment, name="figure-6", resumable=True):
    """Figure 6: curves of masked autoencoders on three image sets.

    With ``model``, "trained" are its weights, "random" its twin; both see enlarged images. Arrays,
    for every data set and kind (random, trained): ``sizes/SET`` (L,); ``score/SET/KIND/size`` (seeds,
    L), nats a patch, and ``area/SET/KIND/size`` (seeds,), nats an image, with the variance of each
    size that training images make most likely; ``baseline/SET`` (), the squared test error of each
    channel's mean; ``linear/SET`` (K, L) and ``linear-area/SET`` (K,) of PPCA on the same patches,
    pixel by pixel; ``numbers/SET`` (), of an image. What the findings are, the ledger says.
    """

    seeds: tuple[int, ...] = setting((4, 44, 444), quick=(4, 44))
    data_sets: tuple[tuple[str, int, int], ...] = setting(  # name, side of a patch, training steps
        (("fashion_mnist", 4, 1200), ("cifar100", 4, 600), ("tiny_imagenet", 8, 500)),
        quick=(("digits", 2, 20),),
    )
    rates: tuple[float, ...] = setting(tuple(k / 20 for k in range(1, 20)), quick=(0.1, 0.5, 0.9))
    width: int = setting(64, quick=16)
    num_layers: int = setting(2, quick=1)
    matrix_rate: float | None = setting(0.03, quick=None)  # of Muon, for matrices inside the layers
    linear_dims: tuple[int, ...] = setting((20, 50, 200), quick=(2, 20))  # K of PPCA on the patches
    linear_masks: int = setting(25, quick=5)  # a size, each for the same share of the test images
    num_train: int = setting(8000, quick=200)
    num_variance: int = setting(300, quick=50)  # training images whose residuals give the variance
    num_test: int = setting(500, quick=50)
    model: str | Path | None = None  # a hub name or a folder instead of the small networks

    def measure(self, context: RunContext) -> Outcome:
        arrays: Arrays = {}
        used: list[Tensor] = []
        loaded = None
        if self.model:
            loaded = load_network(self.model, revision=revision_of(self.model))
        weights = weights_of(self.model, loaded)
        for name, patch, num_steps in self.data_sets:
            x = data.images(name).grid[: self.num_train].float()
            test = data.images(name, "test").grid[: self.num_test].float()
            used += [x, test]
            inputs = {"data": context.checksum([x, test]), "weights": weights}
            if loaded is None:
                images = self._small(x, test, self._settings_of(patch, num_steps))
                linear = context.computed_once(
                    f"{name}-linear", partial(self._linear, images), **inputs
                )
                for key, value in on_cpu(linear).items():
                    arrays[f"{key}/{name}"] = value
            else:
                images = self._enlarged(x, test, loaded)
            for kind in ("random", "trained"):
                measure = partial(self._measure, images, kind, context, loaded)
                of_seed = partial(self._once, context, f"{name}-{kind}", measure, inputs)
                scores = context.stack(of_seed, self.seeds, f"{name}, {kind}, seed")
                for key, values in scores.items():
                    arrays[f"{key}/{name}/{kind}/size"] = values
            offset = images.test.double() - images.mean.view(-1, 1, 1)
            arrays[f"sizes/{name}"] = torch.tensor(images.sizes)
            arrays[f"patches/{name}"] = torch.tensor(images.num_patches)
            arrays[f"baseline/{name}"] = offset.square().mean()
            arrays[f"numbers/{name}"] = torch.tensor(images.test[0].numel())
        return Outcome(self._findings(arrays), arrays, context.checksum(used), weights)

    @staticmethod
    def _once(
        context: RunContext,
        name: str,
        measure: Callable[[int], Arrays],
        inputs: Mapping[str, Any],
        seed: int,
    ) -> Arrays:
        """Result of ``measure`` for a seed, computed now or stored in ``context``."""
        return context.computed_once(f"{name}-{seed}", partial(measure, seed), **inputs)

    def _settings_of(self, patch: int, num_steps: int) -> SmallMAESettings:
        """Settings of the networks of one data set."""
        return SmallMAESettings(
            patch_size=patch,
            num_steps=num_steps,
            width=self.width,
            num_layers=self.num_layers,
            matrix_rate=self.matrix_rate,
        )

    def _small(self, x: Tensor, test: Tensor, settings: SmallMAESettings) -> _Images:
        """Images in the units of networks that are trained here."""
        channels = x.double().movedim(1, 0).flatten(1)
        num_patches = (x.shape[-1] // settings.patch_size) ** 2
        return _Images(
            x,
            test,
            settings.patch_size,
            settings,
            mean=channels.mean(dim=1),
            scale=channels.std(dim=1),
            num_patches=num_patches,
            sizes=sizes_of(self.rates, num_patches),
        )

    def _findings(self, arrays: Arrays) -> dict[str, Finding]:
        gains = []
        falls = []
        flatness = []
        findings = {}
        for name, _, _ in self.data_sets:
            trained = arrays[f"score/{name}/trained/size"]
            area = arrays[f"area/{name}/trained/size"]
            gains.append(area - arrays[f"area/{name}/random/size"])
            fall = trained[:, 0] - trained[:, -1]
            falls.append(fall)
            random = arrays[f"score/{name}/random/size"].mean(dim=0)
            flatness.append(((random.max() - random.min()) / fall.mean().abs()).item())
            if self.model is None and name != "digits":  # the quick preset's, not one of the paper
                nats = area - arrays[f"linear-area/{name}"][0]
                bits = nats / (arrays[f"numbers/{name}"] * math.log(2))
                findings[f"fig-6-linear/{name.replace('_', '-')}"] = finding_over(bits)
        findings["fig-6-gain"] = _smallest(gains)
        findings["fig-6-falls"] = _smallest(falls)
        findings["fig-6-flat"] = Finding(max(flatness))
        return findings

    def _linear(self, images: _Images) -> Arrays:
        """Curves (K, L) and areas (K,) of PPCA on the test images, pixel by pixel; the same masks."""
        channels, side = images.x.shape[1:3]
        patch_of_number = Grouped.patches(side, side, images.patch).repeat(channels)
        test = images.test.flatten(1).double()
        curves = []
        for model in fit_ppca(images.x.flatten(1).double(), self.linear_dims):
            generator = seeded(3)
            rows = []
            for size in images.sizes:
                mask = masks.sample_masks(
                    self.linear_masks, images.num_patches, size, generator=generator
                )
                parts = [
                    log_conditional(model, some_images, one_mask).sum(dim=1)
                    for some_images, one_mask in zip(
                        test.chunk(self.linear_masks), mask[:, patch_of_number], strict=True
                    )
                ]
                rows.append(torch.cat(parts) / size)
            curves.append(torch.stack(rows))
        return {
            "linear": torch.stack([curve.mean(dim=1) for curve in curves]),
            "linear-area": torch.stack([(images.weights @ curve).mean() for curve in curves]),
        }

    def _enlarged(self, x: Tensor, test: Tensor, network: Any) -> _Images:
        """Images of the size and in the units that the network takes."""
        model = ViTMAE(network, 1.0)
        channels, side, _ = model.image_shape
        num_patches = model.num_features
        return _Images(
            model.enlarged(x[: self.num_variance]),
            model.enlarged(test),
            patch=side // math.isqrt(num_patches),
            settings=None,
            mean=IMAGENET["pixel_mean"][:channels],
            scale=IMAGENET["pixel_scale"][:channels],
            num_patches=num_patches,
            sizes=sizes_of(self.rates, num_patches),
        )

    def _measure(
        self, images: _Images, kind: str, context: RunContext, loaded: Any, seed: int
    ) -> Arrays:
        """Scores (L,) and area () of a network under the variances of maximum likelihood a size."""
        if images.settings is not None:
            network: Any = small_mae.small_network(images.settings, images.x, seed)
        elif kind == "trained":
            network = loaded
        else:
            network = random_twin(loaded, seed=seed)
        network.to(context.device)
        model = ViTMAE(network, 1.0, pixel_mean=images.mean, pixel_scale=images.scale)
        if kind == "trained" and images.settings is not None:
            small_mae.train(
                model, images.x, images.settings, seeded(seed), progress=context.progress
            )
        curve = model.fitted_curve(
            images.x[: self.num_variance],
            images.test,
            generator=seeded(1000 + seed),
            sizes=images.sizes,
        )
        return {"score": curve.score, "area": torch.tensor(curve.area(), dtype=torch.float64)}


def _smallest(values: Sequence[Float[Tensor, " seeds"]]) -> Finding:
    """Finding of the data set with the smallest mean."""
    return finding_over(min(values, key=lambda each: each.mean().item()))


class PreTrained(Figure6, name="figure-6-pretrained", resumable=True):
    """Figure 6 with the paper's network: needs the weights of vit-mae-base.

    The finding is how far its curves differ in shape from BERT-base's, on the set where they do most.
    """

    num_variance: int = setting(100, quick=50)
    num_test: int = setting(100, quick=50)
    model: str | Path | None = setting(VIT_MAE_BASE, quick=None)

    def measure(self, context: RunContext) -> Outcome:
        outcome = super().measure(context)
        arrays = outcome.arrays
        percents = {}
        for name, _, _ in self.data_sets:
            rates = arrays[f"sizes/{name}"] / arrays[f"patches/{name}"]
            percents[name] = [min(99, round(100 * rate)) for rate in rates.tolist()]
        findings = {"fig-6": farthest_from_bert(arrays, percents)}
        return dataclasses.replace(outcome, findings=findings)


def farthest_from_bert(arrays: Arrays, percents: Mapping[str, Sequence[int]]) -> Finding:
    """Distance in shape of trained curves from BERT-base's, mean over seeds, on the worst set.

    ``percents``: of each data set, the masking rates of its curves, which BERT-base's have as well.
    """
    distances = [
        finding_over(shape_distance_to_bert(arrays[f"score/{name}/trained/size"], of_set))
        for name, of_set in percents.items()
    ]
    return max(distances, key=lambda distance: distance.measured)


class Patches(Experiment, name="patches", gpu=False):
    """Proposition 1 with patches as coordinates, by enumeration.

    The sum of all scores S(x; M) of held-out digits, over every mask of four patches. Patches are
    scored by their joint density, which gives log p(x), and pixel by pixel. Nothing is random.
    """

    def measure(self, context: RunContext) -> Outcome:
        x = data.images("digits", "train").pixels
        test = data.images("digits", "test").pixels
        model = PPCA.fit_closed_form(x, 20)
        patch_of_pixel = Grouped.patches(8, 8, 4)

        def area(jointly: bool) -> Float[Tensor, " N"]:
            grouped = Grouped(model, patch_of_pixel, jointly=jointly)
            rows = []
            for size in range(1, 5):
                mask = masks.all_masks(4, size)
                values = grouped.log_conditional(test, mask)
                rows.append(scores.mask_score(values, mask).mean(dim=0))
            return torch.stack(rows).sum(dim=0)

        of_patches = area(jointly=True)
        error = (of_patches - model.log_marginal(test)).abs().max()
        findings = {
            "claim-patches": finding_over(of_patches - area(jointly=False)),
            "patches-jointly": Finding(error.item()),
        }
        return Outcome(findings, data_sha256=context.checksum([x, test]))


def fit_ppca(x: Float[Tensor, "N d"], dims: Sequence[int]) -> list[PPCA]:
    """Maximum likelihood for every K in ``dims``, as :meth:`PPCA.fit_closed_form`, d being large.

    Only the largest eigenvalues are computed, by subspace iteration in float32; the sum of the
    others, which is all that the noise variance needs, follows from the total variance.
    """
    center = x.mean(dim=0)
    centered = x - center
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        rank = min(max(dims) + 20, *x.shape)
        _, singular, axes = torch.svd_lowrank(centered.float(), q=rank, niter=6)
    eigenvalues = singular.double().square() / len(x)
    axes = axes.double()
    total = centered.double().square().mean(dim=0).sum()
    models = []
    for K in dims:
        noise_variance = (total - eigenvalues[:K].sum()) / (x.shape[1] - K)
        loadings = axes[:, :K] * (eigenvalues[:K] - noise_variance).clamp(min=0).sqrt()
        models.append(PPCA(loadings, noise_variance, center))
    return models


def log_conditional(
    model: PPCA, x: Float[Tensor, "N d"], mask: Bool[Tensor, " d"]
) -> Float[Tensor, "N m"]:
    """log p(x_j | x_R) of the masked j only, one mask: d K² operations and no table of d K² numbers."""
    observed = model.loadings[~mask]
    hidden = model.loadings[mask]
    centered = x - model.mean
    noise = model.noise_variance
    precision = torch.eye(model.latent_dim).to(observed) + observed.T @ observed / noise
    inverse = torch.linalg.inv(precision)
    mean = centered[:, ~mask] @ observed @ inverse @ hidden.T / noise
    variance = noise + (hidden @ inverse * hidden).sum(dim=1)
    return log_normal(centered[:, mask] - mean, variance)
