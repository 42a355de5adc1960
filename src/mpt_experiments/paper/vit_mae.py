"""Figure 6: mask-rate curves of masked autoencoders of images, and of PPCA on the same patches."""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mpt_experiments.autoencoders import train
from mpt_experiments.experiment import (
    Arrays,
    Experiment,
    Finding,
    Outcome,
    RunContext,
    seeded,
    setting,
    weights_of,
)
from mpt_experiments.paper.table_2 import unlike_bert
from mpt_lml import data, masks, scores
from mpt_lml.models.base import Grouped
from mpt_lml.models.ppca import PPCA
from mpt_lml.numerics import log_normal
from mpt_lml.results import trapezoid_weights
from mpt_score.networks import fast_linear, load_network, random_twin, small_mae
from mpt_score.networks.hub import VIT_MAE_BASE
from mpt_score.networks.vit_mae import ViTMAE

# What facebook/vit-mae-base subtracts and divides by, from its preprocessor (ImageNet's channels).
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class _Images(NamedTuple):
    """One data set with what all its networks share; mean and scale are of each channel."""

    x: Float[Tensor, "N C H W"]
    test: Float[Tensor, "Q C H W"]
    patch: int
    num_steps: int
    mean: Float[Tensor, " C"]
    scale: Float[Tensor, " C"]
    num_patches: int
    sizes: list[int]

    @property
    def weights(self) -> Float[Tensor, " L"]:
        """Of the scores of the sizes in the area."""
        return trapezoid_weights(torch.tensor(self.sizes), self.num_patches)


class Figure6(Experiment, name="figure-6", cost="about 10 min", resumable=True):
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
        used, loaded = [], load_network(self.model) if self.model else None
        weights = weights_of(self.model, loaded)
        for name, patch, num_steps in self.data_sets:
            x = data.images(name).grid[: self.num_train].float()
            test = data.images(name, "test").grid[: self.num_test].float()
            used += [x, test]
            same = {"data": context.checksum([x, test]), "weights": weights}
            if loaded is None:
                flat = x.double().movedim(1, 0).flatten(1)
                moments = flat.mean(dim=1), flat.std(dim=1)
                count = (x.shape[-1] // patch) ** 2
                sizes = count, _sizes(self.rates, count)
                images = _Images(x, test, patch, num_steps, *moments, *sizes)
                linear = context.computed_once(
                    f"{name}-linear", partial(self._linear, images), **same
                )
                arrays |= {f"{key}/{name}": value for key, value in linear.items()}
            else:
                images = self._enlarged(x, test, loaded)
            for kind in ("random", "trained"):
                one = partial(self._scores, images, f"{name}-{kind}", context, loaded, same)
                found = context.stack(one, self.seeds, f"{name}, {kind}, seed")
                arrays |= {f"{key}/{name}/{kind}/size": each for key, each in found.items()}
            arrays[f"sizes/{name}"] = torch.tensor(images.sizes)
            arrays[f"patches/{name}"] = torch.tensor(images.num_patches)
            offset = images.test.double() - images.mean.view(-1, 1, 1)
            arrays[f"baseline/{name}"] = offset.square().mean()
            arrays[f"numbers/{name}"] = torch.tensor(images.test[0].numel())
        return Outcome(self._findings(arrays), arrays, context.checksum(used), weights)

    def _findings(self, arrays: Arrays) -> dict[str, Finding]:
        gains, falls, shares, found = [], [], [], {}
        for name, _, _ in self.data_sets:
            trained, random = (arrays[f"score/{name}/{k}/size"] for k in ("trained", "random"))
            area, untrained = (arrays[f"area/{name}/{k}/size"] for k in ("trained", "random"))
            gains.append(area - untrained)
            falls.append(trained[:, 0] - trained[:, -1])
            flat = random.mean(dim=0)
            shares.append(((flat.max() - flat.min()) / falls[-1].mean().abs()).item())
            if self.model is None and name != "digits":  # the quick preset's, not one of the paper
                nats = area - arrays[f"linear-area/{name}"][0]
                bits = nats / (arrays[f"numbers/{name}"] * math.log(2))
                found[f"fig-6-linear/{name.replace('_', '-')}"] = Finding.over(bits)
        for key, each in (("gain", gains), ("falls", falls)):
            found[f"fig-6-{key}"] = Finding.over(min(each, key=lambda values: values.mean().item()))
        return found | {"fig-6-flat": Finding(max(shares))}

    def _linear(self, of: _Images) -> Arrays:
        """Curves (K, L) and areas (K,) of PPCA on the test images, pixel by pixel; the same masks."""
        channels, side = of.x.shape[1:3]
        group = Grouped.patches(side, side, of.patch).repeat(channels)
        rows, curves = of.test.flatten(1).double(), []
        for model in fit_ppca(of.x.flatten(1).double(), self.linear_dims):
            g, score = seeded(3), []
            for size in of.sizes:
                drawn = masks.sample_masks(self.linear_masks, of.num_patches, size, generator=g)
                parts = zip(rows.chunk(self.linear_masks), drawn[:, group], strict=True)
                each = [log_conditional(model, *part).sum(dim=1) for part in parts]
                score.append(torch.cat(each) / size)
            curves.append(torch.stack(score))
        areas = [(of.weights @ curve).mean() for curve in curves]
        means = [curve.mean(dim=1) for curve in curves]
        return {"linear": torch.stack(means), "linear-area": torch.stack(areas)}

    def _enlarged(self, x: Tensor, test: Tensor, network: Any) -> _Images:
        """Images as the network takes them (bilinear), one channel repeated to three."""
        model = ViTMAE(network, 1.0)
        channels, side, _ = model.image_shape
        warnings.warn(
            f"images {tuple(x.shape[1:])} become {model.image_shape}: log-densities are of enlarged "
            "images, whose pixels repeat each other.",
            stacklevel=2,
        )
        resize = partial(torch.nn.functional.interpolate, size=(side, side), mode="bilinear")
        x, test = (
            resize(each).expand(-1, channels, -1, -1).clamp(0.0, 1.0)
            for each in (x[: self.num_variance], test)
        )
        mean, scale = (torch.tensor(each)[:channels] for each in IMAGENET)
        patch, count = side // math.isqrt(model.num_features), model.num_features
        return _Images(x, test, patch, 0, mean, scale, count, _sizes(self.rates, count))

    def _measure(
        self, images: _Images, kind: str, seed: int, context: RunContext, loaded: Any
    ) -> Arrays:
        """Squared errors of a network, (L,) on training and (L, Q) on test images."""
        channels, side = images.x.shape[1:3]
        if loaded is None:
            size = {"width": self.width, "num_layers": self.num_layers, "decoder_layers": 1}
            network: Any = small_mae(side, channels, images.patch, seed=seed, **size)
        else:
            network = loaded if kind == "trained" else random_twin(loaded, seed=seed)
        network.to(context.device)
        model = ViTMAE(network, 1.0, pixel_mean=images.mean, pixel_scale=images.scale)
        if kind == "trained" and self.model is None:
            how: dict[str, Any] = {"matrix_rate": self.matrix_rate, "progress": context.progress}
            how |= {"batch_size": 32, "learning_rate": 4e-3}
            train(model, images.x, images.num_steps, seeded(seed), **how)
        g = seeded(1000 + seed)
        error = partial(model.squared_error, generator=g, sizes=images.sizes)
        with torch.no_grad(), fast_linear(network):
            return {
                "train": error(images.x[: self.num_variance]).mean(dim=1).double().cpu(),
                "test": error(images.test).double().cpu(),
            }

    def _scores(
        self, images: _Images, name: str, context: RunContext, loaded: Any, same: Any, seed: int
    ) -> Arrays:
        """Scores and area under the variances of maximum likelihood a size."""
        kind, pixels = name.split("-")[-1], images.patch**2 * images.x.shape[1]
        work = partial(self._measure, images, kind, seed, context, loaded)
        kept = context.computed_once(f"{name}-{seed}", work, **same)
        score = pixels * log_normal(kept["test"].sqrt(), kept["train"][:, None])  # (L, Q)
        return {"score": score.mean(dim=1), "area": (images.weights @ score).mean()}


class PreTrained(Figure6, name="figure-6-pretrained", cost="GPU advised", resumable=True):
    """Figure 6 with the paper's network: needs the weights of vit-mae-base.

    The finding is how far its curves differ in shape from BERT-base's, on the set where they do most.
    """

    num_variance: int = setting(100, quick=50)
    num_test: int = setting(100, quick=50)
    model: str | Path | None = setting(VIT_MAE_BASE, quick=None)

    def measure(self, context: RunContext) -> Outcome:
        found = super().measure(context)
        percents = {}
        for name, _, _ in self.data_sets:
            rates = found.arrays[f"sizes/{name}"] / found.arrays[f"patches/{name}"]
            percents[name] = [min(99, round(100 * rate)) for rate in rates.tolist()]
        distance = farthest_from_bert(found.arrays, percents)
        return dataclasses.replace(found, findings={"fig-6": distance})


def farthest_from_bert(arrays: Arrays, percents: Mapping[str, Sequence[int]]) -> Finding:
    """How far trained curves differ in shape from BERT-base's, mean over seeds, on the worst set.

    ``percents``: of each data set, the masking rates of its curves, which BERT-base's have as well.
    """
    distances = [
        Finding.over(unlike_bert(arrays[f"score/{name}/trained/size"], at))
        for name, at in percents.items()
    ]
    return max(distances, key=lambda each: each.measured)


def _sizes(rates: Sequence[float], num_features: int) -> list[int]:
    """The nearest numbers of patches, each once."""
    return sorted({min(num_features, max(1, round(rate * num_features))) for rate in rates})


class Patches(Experiment, name="patches", cost="seconds", gpu=False):
    """Proposition 1 with patches as coordinates, by enumeration.

    The sum of all scores S(x; M) of held-out digits, over every mask of four patches. Patches are
    scored by their joint density, which gives log p(x), and pixel by pixel. Nothing is random.
    """

    def measure(self, context: RunContext) -> Outcome:
        x, test = (data.images("digits", split).pixels for split in ("train", "test"))
        model, group = PPCA.fit_closed_form(x, 20), Grouped.patches(8, 8, 4)
        every = [masks.all_masks(4, size) for size in range(1, 5)]

        def area(jointly: bool) -> Float[Tensor, " N"]:
            of = Grouped(model, group, jointly=jointly)
            found = [scores.mask_score(of.log_conditional(test, m), m).mean(dim=0) for m in every]
            return torch.stack(found).sum(dim=0)

        off = (area(True) - model.log_marginal(test)).abs().max()
        findings = {
            "claim-patches": Finding.over(area(True) - area(False)),
            "patches-jointly": Finding(off.item()),
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
    top, axes = singular.double().square() / len(x), axes.double()
    total, models = centered.double().square().mean(dim=0).sum(), []
    for K in dims:
        noise = (total - top[:K].sum()) / (x.shape[1] - K)
        loadings = axes[:, :K] * (top[:K] - noise).clamp(min=0).sqrt()
        models.append(PPCA(loadings, noise, center))
    return models


def log_conditional(
    model: PPCA, x: Float[Tensor, "N d"], mask: Bool[Tensor, " d"]
) -> Float[Tensor, "N m"]:
    """log p(x_j | x_R) of the masked j only, one mask: d K² operations and no table of d K² numbers."""
    seen, hidden, centered = model.loadings[~mask], model.loadings[mask], x - model.mean
    noise = model.noise_variance
    inverse = torch.linalg.inv(torch.eye(model.latent_dim).to(seen) + seen.T @ seen / noise)
    mean = centered[:, ~mask] @ seen @ inverse @ hidden.T / noise
    variance = noise + (hidden @ inverse * hidden).sum(dim=1)
    return log_normal(centered[:, mask] - mean, variance)
