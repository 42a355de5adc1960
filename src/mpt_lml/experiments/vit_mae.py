"""Figure 6: mask-rate curves of masked autoencoders of images, trained here and untrained."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml import data, masks
from mpt_lml.checkpoints import VIT_MAE_BASE
from mpt_lml.experiments.image_baselines import linear_curves
from mpt_lml.experiments.mae_training import channel_moments, train
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    checksum,
    experiment,
    silent,
    weights_of,
)
from mpt_lml.files import replacing
from mpt_lml.models.networks import (
    load_network,
    random_twin,
    small_mae,
)
from mpt_lml.models.vit_mae import ViTMAE
from mpt_lml.numerics import LOG_2PI
from mpt_lml.results import MaskCurve
from mpt_lml.theory.rates import crossover, jackknife

if TYPE_CHECKING:
    from transformers import ViTMAEForPreTraining


# What facebook/vit-mae-base subtracts and divides by, from its preprocessor (ImageNet's channels).
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_SCALE = (0.229, 0.224, 0.225)


def as_inputs(
    x: Float[Tensor, "N C H W"], image_shape: tuple[int, int, int]
) -> Float[Tensor, "N c h w"]:
    """Images enlarged to what a network takes (bilinear), one channel repeated to three.

    An enlarged image is a function of fewer numbers than it has pixels: densities of it are not
    densities of the original, and a warning says so.
    """
    channels, height, width = image_shape
    if x.shape[1] not in (1, channels):
        raise ValueError(f"images have {x.shape[1]} channels, the network takes {channels}.")
    if tuple(x.shape[1:]) == image_shape:
        return x
    warnings.warn(
        f"images {tuple(x.shape[1:])} become {image_shape}: log-densities are of the enlarged "
        "images, whose pixels repeat each other, not of the originals.",
        stacklevel=2,
    )
    size = (height, width)
    larger = torch.nn.functional.interpolate(x, size, mode="bilinear", align_corners=False)
    return larger.expand(-1, channels, -1, -1).clamp(0.0, 1.0)


@dataclass(frozen=True)
class Figure6(Config):
    """Small autoencoders in place of the paper's pre-trained one, on the paper's image sets."""

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

    @classmethod
    def paper(cls) -> Figure6:
        """The paper's data and rates."""
        return cls()

    @classmethod
    def quick(cls) -> Figure6:
        """Digits, which are always there, and a few steps."""
        return cls(
            seeds=(4, 44),
            data_sets=(("digits", 2, 20),),
            rates=(0.1, 0.5, 0.9),
            width=16,
            num_layers=1,
            decoder_layers=1,
            matrix_rate=None,
            linear_dims=(2, 20),
            linear_masks=5,
            num_train=200,
            num_variance=50,
            num_test=50,
            num_pictures=1,
        )

    @classmethod
    def pretrained(cls, model: str = VIT_MAE_BASE) -> Figure6:
        """The paper's own network, where its weights can be had, against its random twin."""
        return cls(
            model=model, num_variance=100, num_test=100, num_pictures=5, picture_rates=(0.75,)
        )


@dataclass(frozen=True)
class PreTrained(Figure6):
    """The paper's own network on its image sets; it has to be on the hub, its cache or a folder."""

    @classmethod
    def paper(cls) -> PreTrained:
        """As :meth:`Figure6.pretrained`."""
        return cls(**vars(Figure6.pretrained()))

    @classmethod
    def quick(cls) -> PreTrained:
        """Small networks trained here in its place."""
        return cls(**vars(Figure6.quick()))


def grid_sizes(rates: Sequence[float], num_features: int) -> list[int]:
    """The nearest numbers of patches, each once."""
    return sorted({min(num_features, max(1, round(rate * num_features))) for rate in rates})


def gaussian_score(
    error: Float[Tensor, "*L"], variance: Tensor, pixels: int
) -> Float[Tensor, "*L"]:
    """−(d/2)(log 2πσ² + e/σ²): nats a patch of d pixels with mean squared residual e."""
    return -0.5 * pixels * (LOG_2PI + variance.log() + error / variance)


def chosen_variances(
    error: Float[Tensor, " L"], sizes: Int[Tensor, " L"], num_features: int
) -> dict[str, Float[Tensor, " L"]]:
    """Maximum likelihood on training residuals: one number for the area, and one a size."""
    weights = MaskCurve(sizes, error, torch.zeros_like(error), num_features).area_weights()
    return {"one": (weights @ error / weights.sum()).expand_as(error), "size": error}


@experiment(
    "figure-6",
    title="Figure 6: curves of masked autoencoders on three image sets",
    cost="about 10 min",
    config=Figure6,
    resumable=True,
)
def figure_6(
    config: Figure6,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """Squared errors and scores of small autoencoders, before and after training.

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

    With ``config.model`` (see :meth:`Figure6.pretrained`) "trained" are the loaded weights and
    "random" the same network at random initialization, both on enlarged images.
    A finished network is kept in ``checkpoints`` as its numbers; training itself starts again.
    """
    arrays: dict[str, Tensor] = {}
    used = []
    for name, patch, num_steps in config.data_sets:
        x = data.images(name).grid[: config.num_train].float()
        test = data.images(name, "test").grid[: config.num_test].float()
        used += [x, test]
        if config.model is None:
            moments = channel_moments(x)
            task = Task(config, name, patch, num_steps, x, test, *moments, device)
        else:
            task = _pretrained(config, name, x, test, device)
        runs: dict[str, list[dict[str, Tensor]]] = {"random": [], "trained": []}
        for seed in progress(config.seeds, f"{name}, seed"):
            for kind, finished in runs.items():
                path = None if checkpoints is None else checkpoints / f"{name}-{kind}-{seed}.npz"
                finished.append(_kept(path, partial(task.run, kind, seed, progress)))
        arrays.update(task.summary(runs))
        if config.model is None:
            path = None if checkpoints is None else checkpoints / f"{name}-linear.npz"
            arrays.update(_kept(path, task.linear))
    return Outcome(_findings(config, arrays), arrays, checksum(used), weights_of(config.model))


@experiment(
    "figure-6-pretrained",
    title="Figure 6 with the paper's network: needs the weights of vit-mae-base",
    cost="GPU advised",
    config=PreTrained,
    resumable=True,
)
def figure_6_pretrained(
    config: PreTrained,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """:func:`figure_6` with loaded weights; finds the smallest gain over a random twin."""
    found = figure_6(config, device=device, progress=progress, checkpoints=checkpoints)
    return dataclasses.replace(found, findings={"fig-6": found.findings["fig-6-gain"]})


@dataclass(frozen=True)
class Task:
    """One data set with everything that its networks share."""

    config: Figure6
    name: str
    patch: int
    num_steps: int
    x: Float[Tensor, "N C H W"]
    test: Float[Tensor, "Q C H W"]
    mean: Float[Tensor, " C"]
    scale: Float[Tensor, " C"]
    device: torch.device

    @property
    def num_patches(self) -> int:
        """D."""
        return int(self.x.shape[-1] // self.patch) ** 2

    @property
    def sizes(self) -> list[int]:
        """The numbers of masked patches on the curve."""
        return grid_sizes(self.config.rates, self.num_patches)

    def run(self, kind: str, seed: int, progress: Progress) -> dict[str, Tensor]:
        """Squared errors and pictures of one network, ``random`` or ``trained``."""
        config = self.config
        network = self._network(kind, seed)
        torch.nn.Module.to(network, self.device)
        if kind == "trained" and config.model is None:
            train(
                network,
                self.x,
                num_steps=self.num_steps,
                batch_size=config.batch_size,
                learning_rate=config.learning_rate,
                generator=torch.Generator().manual_seed(seed),
                pixel_mean=self.mean,
                pixel_scale=self.scale,
                matrix_rate=config.matrix_rate,
                progress=progress,
            )
        model = ViTMAE(network, 1.0, pixel_mean=self.mean, pixel_scale=self.scale)
        return self.measure(model, torch.Generator().manual_seed(1000 + seed))

    def _network(self, kind: str, seed: int) -> ViTMAEForPreTraining:
        config = self.config
        if config.model is not None:
            loaded = load_network(config.model)
            return loaded if kind == "trained" else random_twin(loaded, seed=seed)
        return small_mae(
            self.x.shape[-1],
            self.x.shape[1],
            self.patch,
            width=config.width,
            num_layers=config.num_layers,
            decoder_layers=config.decoder_layers,
            seed=seed,
        )

    def measure(self, model: ViTMAE, generator: torch.Generator) -> dict[str, Tensor]:
        """Squared errors, (L,) on training and (L, N) on test images, and reconstructions."""
        some = self.x[: self.config.num_variance]
        fitted = model.squared_error(some, generator=generator, sizes=self.sizes).mean(dim=1)
        held_out = model.squared_error(self.test, generator=generator, sizes=self.sizes)
        weights = [each for each in model.network.parameters() if each.requires_grad]
        result = {
            "train": fitted.double().cpu(),
            "test": held_out.double().cpu(),
            "parameters": torch.tensor(sum(each.numel() for each in weights)),
        }
        return result | _pictures(self.config, model, self.test, generator)

    def linear(self) -> dict[str, Tensor]:
        """PPCA with the patches of the networks as coordinates, on the same images."""
        config = self.config
        images, dims = (self.x, self.test), config.linear_dims
        found = linear_curves(*images, self.patch, self.sizes, dims, config.linear_masks)
        return {f"{key}/{self.name}": value for key, value in found.items()}

    def summary(self, runs: dict[str, list[dict[str, Tensor]]]) -> dict[str, Tensor]:
        """The arrays of this data set, as :func:`figure_6` lists them."""
        sizes = torch.tensor(self.sizes)
        offset = self.test.double() - self.mean.view(-1, 1, 1)
        arrays = {f"sizes/{self.name}": sizes, f"baseline/{self.name}": offset.square().mean()}
        arrays[f"numbers/{self.name}"] = torch.tensor(self.test[0].numel())
        pixels = self.patch**2 * self.x.shape[1]
        for kind, found in runs.items():
            end = f"{self.name}/{kind}"
            arrays[f"error/train/{end}"] = torch.stack([each["train"] for each in found])
            arrays[f"error/test/{end}"] = torch.stack([each["test"].mean(1) for each in found])
            arrays.update(_scores(found, sizes, self.num_patches, pixels, end))
        first = runs["trained"][0]
        kept = (key for key in first if key.startswith(("picture", "parameters")))
        return arrays | {f"{key}/{self.name}": first[key] for key in kept}


def _pretrained(config: Figure6, name: str, x: Tensor, test: Tensor, device: torch.device) -> Task:
    """The task for a network that takes larger images, with ImageNet's channel moments."""
    assert config.model is not None
    model = ViTMAE(load_network(config.model), 1.0)
    channels, side, _ = model.image_shape
    x = as_inputs(x[: config.num_variance], model.image_shape)
    test = as_inputs(test, model.image_shape)
    patch = side // math.isqrt(model.num_features)
    mean, scale = torch.tensor(IMAGENET_MEAN)[:channels], torch.tensor(IMAGENET_SCALE)[:channels]
    return Task(config, name, patch, 0, x, test, mean, scale, device)


@torch.no_grad()
def _pictures(
    config: Figure6, model: ViTMAE, x: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Originals, masks and reconstructions at some rates; large images at half their side."""
    if config.num_pictures == 0:
        return {}
    x = x[: config.num_pictures]
    result = {"picture": _levels(x)}
    for rate in config.picture_rates:
        size = grid_sizes([rate], model.num_features)[0]
        mask = masks.sample_masks(len(x), model.num_features, size, generator=generator)
        mask = mask.to(model.device)
        shown = torch.where(mask[:, :, None], model.predict(x, mask), model.patches(x))
        label = f"{100 * rate:.0f}"
        result[f"picture-{label}"] = _levels(model.images(shown))
        result[f"picture-mask-{label}"] = mask.int().cpu()
    return result


def _levels(x: Tensor) -> Tensor:
    """Pixels in [0, 1] as 0..63, at most 32 a side."""
    if x.shape[-1] > 32:
        x = torch.nn.functional.avg_pool2d(x, x.shape[-1] // 32)
    return (63 * x.clamp(0, 1)).round().int().cpu()


def _kept(path: Path | None, work: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What ``path`` holds, or the outcome of ``work``, which is then written there."""
    if path is not None and path.is_file():
        with np.load(path, allow_pickle=False) as stored:
            return {key: torch.from_numpy(stored[key]) for key in stored.files}
    result = work()
    if path is not None:
        with replacing(path) as unfinished, unfinished.open("wb") as stream:
            plain: dict[str, Any] = {key: value.numpy() for key, value in result.items()}
            np.savez(stream, **plain)
    return result


def _scores(
    found: list[dict[str, Tensor]],
    sizes: Int[Tensor, " L"],
    count: int,
    pixels: int,
    name: str,
) -> dict[str, Tensor]:
    """Scores and areas of every seed under the two variances, with errors over test images."""
    rows: dict[str, list[Tensor]] = {}
    for each in found:
        for label, variance in chosen_variances(each["train"], sizes, count).items():
            score = gaussian_score(each["test"], variance[:, None], pixels)  # (L, N)
            weights = MaskCurve(sizes, each["train"], each["train"], count).area_weights()
            area, root = weights @ score, math.sqrt(score.shape[1])
            end = f"{name}/{label}"
            rows.setdefault(f"score/{end}", []).append(score.mean(dim=1))
            rows.setdefault(f"score-error/{end}", []).append(score.std(dim=1) / root)
            rows.setdefault(f"area/{end}", []).append(area.mean())
            rows.setdefault(f"area-error/{end}", []).append(area.std() / root)
            rate, error = _rate_of_mean(sizes / count, score, weights / count)
            rows.setdefault(f"rate/{end}", []).append(rate)
            rows.setdefault(f"rate-error/{end}", []).append(error)
    return {key: torch.stack(value) for key, value in rows.items()}


def _rate_of_mean(
    rates: Float[Tensor, " L"], score: Float[Tensor, "L N"], weights: Float[Tensor, " L"]
) -> tuple[Tensor, Tensor]:
    """r*, at which D·S equals the area, and its jackknife error over ten groups of images."""
    count = min(10, score.shape[1])
    groups = torch.stack([score[:, k::count].mean(dim=1) for k in range(count)])
    found = jackknife(lambda rows: crossover(rows, rates.to(rows), rows @ weights), groups)
    return torch.tensor(found[0]), torch.tensor(found[1])


def _findings(config: Figure6, arrays: dict[str, Tensor]) -> dict[str, Finding]:
    """Own networks: against PPCA, against random ones, and from the first to the last rate.

    ``fig-6-linear/SET``: the area of the trained networks minus that of PPCA at the smallest K,
    bits per number of the image; errors over seeds. ``fig-6-gain``: the smallest gain of area by
    training, nats per image, over the data sets. ``fig-6-falls``: the smallest fall of the trained
    curve, nats per patch. ``fig-6-flat``: the largest range of a random curve as a share of it.
    """
    gains, falls, shares = [], [], []
    found = {}
    for name, _, _ in config.data_sets:
        trained, random = (arrays[f"score/{name}/{kind}/size"] for kind in ("trained", "random"))
        area = [arrays[f"area/{name}/{kind}/size"] for kind in ("trained", "random")]
        gains.append(area[0] - area[1])
        falls.append(trained[:, 0] - trained[:, -1])
        flat = random.mean(dim=0)
        shares.append(((flat.max() - flat.min()) / falls[-1].mean().abs()).item())
        if config.model is None and name != "digits":  # the quick preset's, not a set of the paper
            nats = area[0] - arrays[f"linear-area/{name}"][0]
            bits = nats / (arrays[f"numbers/{name}"] * math.log(2))
            found[f"fig-6-linear/{name.replace('_', '-')}"] = _over_seeds(bits)
    found["fig-6-gain"], found["fig-6-falls"] = (
        _over_seeds(min(each, key=lambda values: values.mean().item())) for each in (gains, falls)
    )
    found["fig-6-flat"] = Finding(max(shares))
    return found


def _over_seeds(values: Tensor) -> Finding:
    """Mean and standard error; a single seed has none."""
    count = len(values)
    error = values.std().item() / math.sqrt(count) if count > 1 else None
    return Finding(values.mean().item(), error)
