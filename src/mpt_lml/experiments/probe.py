"""The title, tested: does a larger area mean better features? Linear probes along training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

from mpt_lml import data, estimators, fit, masks, networks, scores
from mpt_lml.data import image_sets
from mpt_lml.experiments import deep_vae, vit_mae
from mpt_lml.experiments.base import Bench, Experiment, Finding, Outcome, checksum, experiment
from mpt_lml.models.vae import VAE
from mpt_lml.models.vit_mae import ViTMAE
from mpt_lml.results import trapezoid_weights
from mpt_lml.verdicts import mean_and_error

RATES = (0.15, 0.5, 0.75)
LAWS: tuple[masks.SizeLaw, ...] = (*map(masks.FixedRate, RATES), masks.UniformSize())
Arrays = dict[str, Tensor]


class Labeled(NamedTuple):
    """What probes are fitted to, and where ``test``, judged on."""

    x: Tensor
    y: Int[Tensor, " N"]
    test: Bool[Tensor, " N"]


def probe(features: Float[Tensor, "N k"], of: Labeled) -> float:
    """Balanced test accuracy, the mean over classes, of a logistic regression on the features.

    They are standardized. Every fifth training row chooses the penalty; then all fit the weights.
    """
    from sklearn import linear_model, model_selection, pipeline, preprocessing

    held = torch.arange(int((~of.test).sum())).numpy() % 5 == 4
    how = {"scoring": "balanced_accuracy", "cv": [(*np.nonzero(~held), *np.nonzero(held))]}
    line = linear_model.LogisticRegression(class_weight="balanced", max_iter=5000)
    both = pipeline.make_pipeline(preprocessing.StandardScaler(), line)
    penalties = {"logisticregression__C": [0.01, 0.1, 1.0]}
    search = model_selection.GridSearchCV(both, penalties, **how)
    seen, asked = ((features[e].double().numpy(), of.y[e].numpy()) for e in (~of.test, of.test))
    return float(search.fit(*seen).score(*asked))


def rank_correlation(a: Float[Tensor, "... n"], b: Float[Tensor, "... n"]) -> Float[Tensor, "..."]:
    """Spearman's, ties at their mean rank; 0 where all values of one side are equal."""
    a, b = ((v[..., None] - v[..., None, :]).sign().sum(dim=-1).double() for v in (a, b))
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt().clamp_min(1e-9)


def features(network: Any, x: Tensor) -> Float[Tensor, "N w"]:
    """Mean over patches of the encoder's last layer, nothing hidden, ``x`` in the network's units."""
    embeddings = network.vit.embeddings
    embeddings.config.mask_ratio = 0.0
    order = torch.arange(embeddings.patch_embeddings.num_patches).expand(len(x), -1).float()
    return network.vit(x, noise=order).last_hidden_state[:, 1:].mean(dim=1)


def supervised(network: Any, of: Labeled, num_steps: int, seed: int) -> float:
    """The probe's accuracy after ``network`` and a linear layer were trained on the labels."""
    rows, g = (~of.test).nonzero().flatten(), torch.Generator().manual_seed(seed)
    head = nn.Linear(network.config.hidden_size, int(of.y.max()) + 1)
    head.requires_grad_(False).weight.zero_(), head.bias.zero_()

    def loss(step: int) -> Tensor:
        chosen = rows[torch.randint(len(rows), (32,), generator=g)]
        return functional.cross_entropy(head(features(network, of.x[chosen])), of.y[chosen])

    both = nn.ModuleList([network, head.requires_grad_()])
    cycle = OneCycleLR(torch.optim.AdamW(both.parameters(), 2e-3), 2e-3, num_steps, pct_start=0.1)
    fit.descend(both, loss, [cycle], num_steps=num_steps, max_norm=1.0)
    with torch.no_grad():
        return probe(features(network, of.x), of)


def scores_of(model: Any, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Area (trapezoid), its standard error over data and masks, scores at the three rates, nats.

    One random mask of each size for every datum, the same ones for every model of D coordinates.
    """
    g, count = torch.Generator().manual_seed(2), model.num_features
    drawn = [masks.sample_masks(len(x), count, size, generator=g) for size in sizes]
    found = torch.stack([scores.mask_score(model.log_each(x, m), m) for m in drawn]).double()
    area = mean_and_error(torch.tensor(trapezoid_weights(np.array(sizes), count)) @ found)
    return torch.stack([*area, *found[[sizes.index(m) for m in sizes_of(count)]].mean(dim=1)])


def sizes_of(count: int) -> list[int]:
    return [masks.FixedRate(rate).num_masked(count) for rate in RATES]


@experiment(
    "probes",
    title="Area against linear probes of frozen features, by law of the mask size",
    cost="about 40 min",
    quick={"seeds": (4, 44), "sets": ("digits", "vae"), "width": 16, "image_steps": (0, 2, 6)}
    | {"vae_steps": (0, 6), "num_data": 300, "num_scored": 10, "hidden": 8, "samples": 3},
    resumable=True,
    gpu=False,
)
class Probes(Experiment):
    """Four laws of the mask size; the same network, data and steps; areas on held-out data.

    ``sets``: a small ViT-MAE on ``digits`` and ``fashion_mnist``, in 16 patches, and a deep VAE with
    a partial encoder on the digits (``vae``), whose features are the means of q(z | x).

    The rule, from before the run: of each set and seed, Spearman's correlation over the four laws
    at the last step, area against accuracy. More area means better features where its 99 % interval
    (t over seeds) lies above 0, the contrary where it lies below, else it is undecided; the title
    has its "yes" only if every set has. A rate predicts better where the correlation of its score
    exceeds that of the area by the same interval, seed by seed. Correlation along training, over
    steps, is reported apart: all that improves with time raises it.

    Arrays: ``found/SET`` (laws, seeds, steps, 6): area and its standard error, scores at
    15, 50 and 75 %, nats, accuracy; ``steps/SET``; ``supervised/SET`` (seeds,), accuracy of the
    same network trained on the labels; ``pixels/SET`` (), of the pixels themselves.
    """

    sets: tuple[str, ...] = ("vae", "digits", "fashion_mnist")
    image_steps: tuple[int, ...] = (0, 30, 90, 240)
    vae_steps: tuple[int, ...] = (0, 50, 200, 1000)
    width: int = 48
    hidden: int = 200  # units of the VAE
    num_data: int = 2000  # to train on, unlabeled and labeled
    num_test: int = 1000  # for the probe
    num_scored: int = 200  # of these for the area
    samples: int = 50  # for the VAE's conditionals

    def run(self, bench: Bench) -> Outcome:
        arrays: Arrays = {}
        used: list[Tensor] = []
        # What one set leaves does not depend on which others are asked for.
        own = {key: value for key, value in bench.settings.items() if key != "sets"}
        bench = replace(bench, settings=own)
        for name in self.sets:
            of = self._labeled("digits" if name == "vae" else name)
            used += [of.x, of.y]
            kept = partial(bench.keep, data=checksum(used[-2:]))
            found = (self._vae if name == "vae" else self._images)(name, of, kept, bench)
            arrays |= {f"{key}/{name.replace('_', '-')}": each for key, each in found.items()}
        return Outcome(self._findings(arrays), arrays, checksum(used))

    def _findings(self, arrays: Arrays) -> dict[str, Finding]:
        result: dict[str, Finding] = {}
        for name in [key[6:] for key in arrays if key.startswith("found/")]:
            found = arrays[f"found/{name}"].transpose(0, 1)  # seeds first
            last, end = found[:, :, -1], found[:, :, -1, -1]
            area, *rates = (rank_correlation(last[..., k], end) for k in (0, 2, 3, 4))
            best = max(rates, key=lambda each: each.mean().item())
            along = rank_correlation(found[..., 0], found[..., -1]).mean(dim=1)
            parts = {"laws": area, "rate": best - area, "along": along}
            result |= {f"probe-{key}/{name}": Finding.over(each) for key, each in parts.items()}
        return result

    def _labeled(self, name: str) -> Labeled:
        """Training images, then held-out ones."""
        x, y = [], []
        for split, count in (("train", self.num_data), ("test", self.num_test)):
            x.append(data.images(name, split).grid[:count].float())  # type: ignore[arg-type]
            y.append(image_sets.labels(name, split)[:count])  # type: ignore[arg-type]
        return Labeled(torch.cat(x), torch.cat(y), torch.arange(sum(map(len, y))) >= len(y[0]))

    def _images(self, name: str, of: Labeled, kept: Any, bench: Bench) -> Arrays:
        train, held_out = of.x[~of.test], of.x[of.test][: self.num_scored]
        units = {"pixel_mean": train.mean(), "pixel_scale": train.std()}
        inside = of._replace(x=(of.x - train.mean()) / train.std())
        patch, sizes = of.x.shape[-1] // 4, {"num_layers": 2, "decoder_layers": 1}
        new = partial(networks.small_mae, of.x.shape[-1], 1, patch, width=self.width, **sizes)
        steps, recipe = self.image_steps, {"batch_size": 32, "learning_rate": 4e-3}

        def look(network: Any) -> Tensor:
            g, few = torch.Generator().manual_seed(1), train[: self.num_scored]
            with torch.no_grad(), networks.fast_linear(network):
                model = ViTMAE.fit_variance(network, few, generator=g, per="size", **units)
                area = scores_of(model, held_out, range(1, 17))
                return torch.cat([area, area.new_tensor([probe(features(network, inside.x), of)])])

        start = cache(lambda seed: look(new(seed=seed)))  # the same for every law

        def trained(law: masks.SizeLaw, seed: int) -> Arrays:
            network, g = new(seed=seed), torch.Generator().manual_seed(seed)
            how: dict[str, Any] = {"law": law, "watch": partial(look, network), **recipe}
            how |= {"watched": steps[1:], "matrix_rate": 0.03, "progress": bench.progress}
            seen = vit_mae.train(ViTMAE(network, 1.0, **units), train, steps[-1], g, **how)
            return {"found": torch.stack([start(seed), *seen])}

        def taught(seed: int) -> Arrays:
            return {"found": torch.tensor(supervised(new(seed=seed), inside, steps[-1], seed))}

        def all_seeds(key: str, work: Callable[[int], Arrays]) -> Tensor:
            every = bench.progress(self.seeds, f"{name}, {key}, seed")
            found = [kept(f"{name}-{key}-{seed}", partial(work, seed)) for seed in every]
            return torch.stack([each["found"] for each in found])

        found = [all_seeds(f"law-{k}", partial(trained, law)) for k, law in enumerate(LAWS)]
        pixels = torch.tensor(probe(of.x.flatten(1), of))
        own = {"supervised": all_seeds("labels", taught), "pixels": pixels}
        return {"found": torch.stack(found), "steps": torch.tensor(steps), **own}

    def _vae(self, name: str, of: Labeled, kept: Any, bench: Bench) -> Arrays:
        """All seeds side by side; the area is log p(x), by importance weights."""
        x, steps, end = of.x.flatten(1), self.vae_steps, self.vae_steps[-1]
        few = x[of.test][: self.num_scored].double()
        like = deep_vae.Figure3Lower(self.seeds, "digits", hidden=(self.hidden,), num_steps=end)
        like = replace(like, track_every=end, track_data=1, track_samples=2, track_draws=2)

        def look(model: VAE) -> Tensor:
            g = torch.Generator().manual_seed(1)
            area = estimators.iwae(model, few, 4 * self.samples, generator=g)
            sampler = estimators.ImportanceConditional(model, self.samples, generator=g)
            at, own = scores_of(sampler, few, sizes_of(64)), probe(model.encode(x.double())[0], of)
            return at.new_tensor([area, area.standard_error, *at[2:], own])

        def work(law: masks.SizeLaw) -> Arrays:
            masked = deep_vae.Masked(samples=3, partial="bound", law=law)
            states = like.train(x[~of.test], masked, Bench(), name, snapshots=steps).snapshots
            rows = [torch.stack([look(each) for each in like.models(states[s])]) for s in steps]
            return {"found": torch.stack(rows, dim=1)}

        laws = bench.progress(list(enumerate(LAWS)), "VAE, law")
        found = [kept(f"{name}-{k}", partial(work, law))["found"] for k, law in laws]
        return {"found": torch.stack(found), "steps": torch.tensor(steps)}
