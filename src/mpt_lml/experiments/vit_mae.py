"""Figure 6: mask-rate curves of masked autoencoders of images, trained here and untrained."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import data, fit, masks
from mpt_lml.checkpoints import VIT_MAE_BASE
from mpt_lml.experiments.base import (
    Bench,
    Experiment,
    Finding,
    Outcome,
    checksum,
    experiment,
    weights_of,
)
from mpt_lml.experiments.patches import linear_curves
from mpt_lml.fit import Progress, silent
from mpt_lml.models.vit_mae import ViTMAE
from mpt_lml.networks import fast_linear, load_network, random_twin, small_mae
from mpt_lml.numerics import LOG_2PI, mean_and_error
from mpt_lml.results import MaskCurve
from mpt_lml.theory.rates import crossover, jackknife

# What facebook/vit-mae-base subtracts and divides by, from its preprocessor (ImageNet's channels).
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_SCALE = (0.229, 0.224, 0.225)
QUICK = {
    "seeds": (4, 44),
    "data_sets": (("digits", 2, 20),),
    "rates": (0.1, 0.5, 0.9),
    "width": 16,
    "num_layers": 1,
    "matrix_rate": None,
    "linear_dims": (2, 20),
    "linear_masks": 5,
    "num_train": 200,
    "num_variance": 50,
    "num_test": 50,
    "num_pictures": 1,
}


@experiment(
    "figure-6",
    title="Figure 6: curves of masked autoencoders on three image sets",
    cost="about 10 min",
    quick=QUICK,
    resumable=True,
)
@dataclass(frozen=True)
class Figure6(Experiment):
    """Small autoencoders on the paper's image sets: squared errors and scores, with and without training.

    With ``model``, "trained" are its weights and "random" the same network at random
    initialization, both on enlarged images. A finished network is kept as its numbers.

    Arrays, for every data set, for kind in (random, trained) and variance in (one, size):
    ``sizes/SET`` (L,); ``error/train/SET/KIND``, ``error/test/SET/KIND`` (seeds, L) in squared
    units of pixels in [0, 1]; ``score/SET/KIND/VARIANCE`` and ``score-error/...`` (seeds, L), nats
    a patch and standard error over test images; ``area/SET/KIND/VARIANCE`` and ``area-error/...``
    (seeds,), nats an image; ``rate/SET/KIND/VARIANCE`` and ``rate-error/...`` (seeds,), the rate r*
    at which D·S equals the area; ``baseline/SET`` (), the test error of each channel's mean;
    ``linear/SET`` and ``linear-error/SET`` (K, L), PPCA on the same patches, pixel by pixel, and
    ``linear-area/SET``, ``linear-area-error/SET``, ``linear-exact/SET`` (K,), exact being log p(x);
    ``picture/SET``, ``picture-RATE/SET`` and ``picture-mask-RATE/SET``, test images, reconstructions
    (0..63) and their masks; ``parameters/SET`` (), how many numbers were trained; ``numbers/SET``
    (), how many an image has.

    Findings: ``fig-6-linear/SET``, the area of the trained networks minus that of PPCA at the
    smallest K, bits per number of the image; ``fig-6-gain``, the smallest gain of area by training,
    nats per image; ``fig-6-falls``, the smallest fall of the trained curve, nats per patch, errors
    over seeds; ``fig-6-flat``, the largest range of a random curve as a share of it.
    """

    seeds: tuple[int, ...] = (4, 44, 444)
    data_sets: tuple[tuple[str, int, int], ...] = (  # name, side of a patch, training steps
        ("fashion_mnist", 4, 1200),
        ("cifar100", 4, 600),
        ("tiny_imagenet", 8, 500),
    )
    rates: tuple[float, ...] = tuple(round(0.05 * k, 2) for k in range(1, 20))  # 5 .. 95 %
    width: int = 64
    num_layers: int = 2
    decoder_layers: int = 1
    batch_size: int = 32
    learning_rate: float = 4e-3
    matrix_rate: float | None = 0.03  # of Muon, for the matrices inside the layers
    linear_dims: tuple[int, ...] = (20, 50, 200)  # K of PPCA on the same patches
    linear_masks: int = 25  # a size, each for the same share of the test images
    num_train: int = 8000
    num_variance: int = 300  # training images whose residuals give the variance
    num_test: int = 500
    num_pictures: int = 3
    picture_rates: tuple[float, ...] = (0.25, 0.75)
    model: str | None = None  # a hub name or a folder instead of the small networks

    def run(self, bench: Bench) -> Outcome:
        arrays: dict[str, Tensor] = {}
        used = []
        for name, patch, num_steps in self.data_sets:
            x = data.images(name).grid[: self.num_train].float()
            test = data.images(name, "test").grid[: self.num_test].float()
            used += [x, test]
            task = _Task(self, x, test, patch, num_steps, bench)
            identity: dict[str, Any] = {"data": checksum([x, test])}
            if self.model is not None:
                task = task.enlarged()
                identity["weights"] = checksum(load_network(self.model).state_dict().values())
            runs: dict[str, list[dict[str, Tensor]]] = {"random": [], "trained": []}
            for seed in bench.progress(self.seeds, f"{name}, seed"):
                for kind, done in runs.items():
                    work = partial(task.measure, kind, seed)
                    done.append(bench.keep(f"{name}-{kind}-{seed}", work, **identity))
            found = task.summary(runs)
            if self.model is None:
                found |= bench.keep(f"{name}-linear", task.linear, **identity)
            arrays |= {_named(key, name): value for key, value in found.items()}
        return Outcome(self._findings(arrays), arrays, checksum(used), weights_of(self.model))

    def _findings(self, arrays: dict[str, Tensor]) -> dict[str, Finding]:
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


@experiment(
    "figure-6-pretrained",
    title="Figure 6 with the paper's network: needs the weights of vit-mae-base",
    cost="GPU advised",
    quick={**QUICK, "picture_rates": (0.25, 0.75), "model": None},
    resumable=True,
)
@dataclass(frozen=True)
class PreTrained(Figure6):
    """Figure 6 with loaded weights; finds the smallest gain over a random twin."""

    num_variance: int = 100
    num_test: int = 100
    num_pictures: int = 5
    picture_rates: tuple[float, ...] = (0.75,)
    model: str | None = VIT_MAE_BASE

    def run(self, bench: Bench) -> Outcome:
        found = super().run(bench)
        return dataclasses.replace(found, findings={"fig-6": found.findings["fig-6-gain"]})


def _named(key: str, name: str) -> str:
    """``score/random/one`` of a data set is ``score/SET/random/one``; so are errors by split."""
    head, *rest = key.split("/")
    if head == "error":
        head, rest = f"{head}/{rest[0]}", rest[1:]
    return "/".join([head, name, *rest])


@dataclass(frozen=True)
class _Task:
    """One data set with everything that its networks share."""

    settings: Figure6
    x: Float[Tensor, "N C H W"]
    test: Float[Tensor, "Q C H W"]
    patch: int
    num_steps: int
    bench: Bench

    def enlarged(self) -> _Task:
        """For a network that takes larger images."""
        model = ViTMAE(load_network(self.settings.model or ""), 1.0)
        x, test = self.x[: self.settings.num_variance], self.test
        larger = [as_inputs(each, model.image_shape) for each in (x, test)]
        patch = model.image_shape[1] // math.isqrt(model.num_features)
        return dataclasses.replace(self, x=larger[0], test=larger[1], patch=patch)

    @property
    def num_patches(self) -> int:
        return int(self.x.shape[-1] // self.patch) ** 2

    @property
    def sizes(self) -> list[int]:
        return grid_sizes(self.settings.rates, self.num_patches)

    @property
    def units(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel, (C,) both: what the network is fed with."""
        if self.settings.model is not None:
            channels = self.x.shape[1]
            return torch.tensor(IMAGENET_MEAN)[:channels], torch.tensor(IMAGENET_SCALE)[:channels]
        flat = self.x.double().movedim(1, 0).flatten(1)
        return flat.mean(dim=1), flat.std(dim=1)

    def measure(self, kind: str, seed: int) -> dict[str, Tensor]:
        """Squared errors, (L,) on training and (L, N) on test images, and pictures of a network."""
        settings, g = self.settings, torch.Generator().manual_seed(1000 + seed)
        network = self._network(kind, seed)
        torch.nn.Module.to(network, self.bench.device)
        mean, scale = self.units
        model = ViTMAE(network, 1.0, pixel_mean=mean, pixel_scale=scale)
        if kind == "trained" and settings.model is None:
            train(
                model,
                self.x,
                num_steps=self.num_steps,
                batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                matrix_rate=settings.matrix_rate,
                generator=torch.Generator().manual_seed(seed),
                progress=self.bench.progress,
            )
        count = sum(each.numel() for each in network.parameters() if each.requires_grad)
        with torch.no_grad(), fast_linear(network):
            some = self.x[: settings.num_variance]
            fitted = model.squared_error(some, generator=g, sizes=self.sizes).mean(dim=1)
            held_out = model.squared_error(self.test, generator=g, sizes=self.sizes)
            pictures = self._pictures(model, g)
        errors = {"train": fitted.double().cpu(), "test": held_out.double().cpu()}
        return {**errors, "parameters": torch.tensor(count), **pictures}

    def _network(self, kind: str, seed: int) -> Any:
        settings = self.settings
        if settings.model is not None:
            loaded = load_network(settings.model)
            return loaded if kind == "trained" else random_twin(loaded, seed=seed)
        size = {name: getattr(settings, name) for name in ("width", "num_layers", "decoder_layers")}
        return small_mae(self.x.shape[-1], self.x.shape[1], self.patch, **size, seed=seed)

    def _pictures(self, model: ViTMAE, generator: torch.Generator) -> dict[str, Tensor]:
        """Originals, masks and reconstructions at some rates; large images at half their side."""
        x = self.test[: self.settings.num_pictures]
        if len(x) == 0:
            return {}
        result = {"picture": _levels(x)}
        for rate in self.settings.picture_rates:
            size = grid_sizes([rate], model.num_features)[0]
            mask = masks.sample_masks(len(x), model.num_features, size, generator=generator)
            mask = mask.to(model.device)
            shown = torch.where(mask[:, :, None], model.predict(x, mask), model.patches(x))
            result[f"picture-{100 * rate:.0f}"] = _levels(model.images(shown))
            result[f"picture-mask-{100 * rate:.0f}"] = mask.int().cpu()
        return result

    def linear(self) -> dict[str, Tensor]:
        """PPCA with the patches of the networks as coordinates, on the same images."""
        dims, count = self.settings.linear_dims, self.settings.linear_masks
        return linear_curves(self.x, self.test, self.patch, self.sizes, dims, count)

    def summary(self, runs: dict[str, list[dict[str, Tensor]]]) -> dict[str, Tensor]:
        """The arrays of this data set, as :class:`Figure6` lists them."""
        offset = self.test.double() - self.units[0].view(-1, 1, 1)
        rows: dict[str, list[Tensor]] = defaultdict(list)
        for kind, found in runs.items():
            for each in found:
                rows[f"error/train/{kind}"].append(each["train"])
                rows[f"error/test/{kind}"].append(each["test"].mean(dim=1))
                for key, value in self._scores(each["train"], each["test"]).items():
                    what, variance = key.split("/")
                    rows[f"{what}/{kind}/{variance}"].append(value)
        first = runs["trained"][0]
        return {
            "sizes": torch.tensor(self.sizes),
            "baseline": offset.square().mean(),
            "numbers": torch.tensor(self.test[0].numel()),
            **{key: torch.stack(value) for key, value in rows.items()},
            **{k: v for k, v in first.items() if k.startswith(("picture", "parameters"))},
        }

    def _scores(self, fitted: Tensor, held_out: Tensor) -> dict[str, Tensor]:
        """Scores, area and r* of one network under two variances, errors over test images.

        The variances are those of maximum likelihood on the residuals of training images: one
        number for the area, and one a size.
        """
        sizes, count = torch.tensor(self.sizes), self.num_patches
        weights = MaskCurve(sizes, fitted, fitted, count).area_weights()
        one = (weights @ fitted / weights.sum()).expand_as(fitted)
        result = {}
        for name, variance in (("one", one), ("size", fitted)):
            pixels = self.patch**2 * self.x.shape[1]
            score = gaussian_score(held_out, variance[:, None], pixels)  # (L, N)
            parts = min(10, score.shape[1])
            groups = torch.stack([score[:, k::parts].mean(dim=1) for k in range(parts)])
            rate = jackknife(
                lambda rows: crossover(rows, sizes.to(rows) / count, rows @ weights / count), groups
            )
            for key, (value, error) in {
                "score": mean_and_error(score.T),
                "area": mean_and_error(weights @ score),
                "rate": (torch.tensor(rate[0]), torch.tensor(rate[1])),
            }.items():
                result[f"{key}/{name}"], result[f"{key}-error/{name}"] = value, error
        return result


def train(
    model: ViTMAE,
    x: Float[Tensor, "N C H W"],
    *,
    num_steps: int,
    batch_size: int,
    learning_rate: float,
    generator: torch.Generator,
    matrix_rate: float | None = None,
    progress: Progress = silent,
) -> Float[Tensor, " E"]:
    """Fit the network of ``model`` to ``x`` (in place) by :meth:`ViTMAE.loss`, which it returns.

    Every D steps visit each number of masked patches once, in random order, with a mask of its own
    for every image. With ``matrix_rate``, the matrices inside the layers follow Muon (torch 2.9).
    """
    count, sizes = model.num_features, []

    def loss(step: int) -> Tensor:
        if step % count == 0:
            sizes.extend((torch.randperm(count, generator=generator) + 1).tolist())
        rows = torch.randint(len(x), (batch_size,), generator=generator)
        mask = masks.sample_masks(batch_size, count, sizes.pop(), generator=generator)
        return model.loss(x[rows], mask)

    cycle = partial(torch.optim.lr_scheduler.OneCycleLR, total_steps=num_steps, pct_start=0.1)
    named = [pair for pair in model.network.named_parameters() if pair[1].requires_grad]
    inner = [each for name, each in named if each.ndim == 2 and "layer" in name and matrix_rate]
    rest = [each for _, each in named if not any(each is other for other in inner)]
    adam = torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedules = [cycle(adam, learning_rate)]
    if matrix_rate is not None:
        muon = torch.optim.Muon(inner, lr=matrix_rate, weight_decay=0.01)
        schedules.append(cycle(muon, matrix_rate, cycle_momentum=False))
    model.network.train()
    how: dict[str, Any] = {"max_norm": 1.0, "progress": progress, "label": "training step"}
    losses, _ = fit.descend(model.network, loss, schedules, num_steps=num_steps, **how)
    model.network.eval()
    return losses


def grid_sizes(rates: Sequence[float], num_features: int) -> list[int]:
    """The nearest numbers of patches, each once."""
    return sorted({min(num_features, max(1, round(rate * num_features))) for rate in rates})


def gaussian_score(error: Tensor, variance: Tensor, pixels: int) -> Tensor:
    """−(d/2)(log 2πσ² + e/σ²): nats a patch of d pixels with mean squared residual e."""
    return -0.5 * pixels * (LOG_2PI + variance.log() + error / variance)


def as_inputs(
    x: Float[Tensor, "N C H W"], image_shape: tuple[int, int, int]
) -> Float[Tensor, "N c h w"]:
    """Images enlarged to what a network takes (bilinear), one channel repeated to three.

    An enlarged image is a function of fewer numbers than it has pixels: densities of it are not
    densities of the original, and a warning says so.
    """
    channels, *size = image_shape
    if x.shape[1] not in (1, channels):
        raise ValueError(f"images have {x.shape[1]} channels, the network takes {channels}.")
    if tuple(x.shape[1:]) == image_shape:
        return x
    warnings.warn(
        f"images {tuple(x.shape[1:])} become {image_shape}: log-densities are of the enlarged "
        "images, whose pixels repeat each other, not of the originals.",
        stacklevel=2,
    )
    larger = torch.nn.functional.interpolate(x, size, mode="bilinear", align_corners=False)
    return larger.expand(-1, channels, -1, -1).clamp(0.0, 1.0)


def _levels(x: Tensor) -> Tensor:
    """Pixels in [0, 1] as 0..63, at most 32 a side."""
    if x.shape[-1] > 32:
        x = torch.nn.functional.avg_pool2d(x, x.shape[-1] // 32)
    return (63 * x.clamp(0, 1)).round().int().cpu()
