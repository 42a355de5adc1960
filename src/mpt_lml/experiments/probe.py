"""The title, tested: does a larger area mean better features? Linear probes along training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

from mpt_lml import data, estimators, fit, masks, networks, scores
from mpt_lml.data import image_sets, texts, tokens
from mpt_lml.experiments import deep_vae, mae_training, small_bert
from mpt_lml.experiments.base import Bench, Experiment, Finding, Outcome, checksum, experiment
from mpt_lml.models.masked_lm import MaskedLM
from mpt_lml.models.vae import VAE
from mpt_lml.models.vit_mae import ViTMAE
from mpt_lml.results import trapezoid_weights
from mpt_lml.verdicts import mean_and_error

RATES = (0.15, 0.5, 0.75)
LAWS: tuple[masks.SizeLaw, ...] = (*map(masks.FixedRate, RATES), masks.UniformSize())
PROBES = {"books": ("sst-2", "cola"), "fashion_mnist": ("fashion-mnist",)}  # by set, else its name
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
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = torch.arange(int((~of.test).sum())).numpy()
    line = LogisticRegression(class_weight="balanced", max_iter=5000)
    penalties = {"logisticregression__C": [0.001, 0.01, 0.1, 1.0]}
    parts = [(rows[rows % 5 != 4], rows[rows % 5 == 4])]
    both, how = make_pipeline(StandardScaler(), line), {"scoring": "balanced_accuracy"}
    seen, asked = (features[each].double().numpy() for each in (~of.test, of.test))
    search = GridSearchCV(both, penalties, cv=parts, **how).fit(seen, of.y[~of.test].numpy())
    return float(search.score(asked, of.y[of.test].numpy()))


def rank_correlation(a: Float[Tensor, "... n"], b: Float[Tensor, "... n"]) -> Float[Tensor, "..."]:
    """Spearman's, ties at their mean rank; 0 where all values of one side are equal."""
    a, b = ((v[..., None] - v[..., None, :]).sign().sum(dim=-1).double() for v in (a, b))
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt().clamp_min(1e-9)


def image_features(network: Any, x: Tensor) -> Float[Tensor, "N w"]:
    """Mean over patches of the encoder's last layer, nothing hidden, ``x`` in the network's units."""
    embeddings = network.vit.embeddings
    embeddings.config.mask_ratio = 0.0
    order = torch.arange(embeddings.patch_embeddings.num_patches).expand(len(x), -1).float()
    return network.vit(x, noise=order).last_hidden_state[:, 1:].mean(dim=1)


def text_features(network: Any, ids: Int[Tensor, "N L"]) -> Float[Tensor, "N w"]:
    """Mean over the tokens of the last layer, special ones too; 0 is padding."""
    seen = (ids > 0)[:, : int((ids > 0).sum(dim=1).max())]
    network.eval()
    inputs = {"input_ids": ids[:, : seen.shape[1]], "attention_mask": seen.long()}
    hidden = network.model(**inputs).last_hidden_state
    return (hidden * seen[..., None]).sum(dim=1) / seen.sum(dim=1, keepdim=True)


def supervised(network: Any, features: Any, of: Labeled, num_steps: int, seed: int) -> float:
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
    return torch.stack([*area, *found[[sizes.index(m) for m in _sizes(count)]].mean(dim=1)])


def _sizes(count: int) -> list[int]:
    return [masks.FixedRate(rate).num_masked(count) for rate in RATES]


@experiment(
    "probes",
    title="Area against linear probes of frozen features, by law of the mask size",
    cost="about 45 min",
    quick={"seeds": (4, 44), "sets": ("digits", "vae"), "width": 16, "image_steps": (0, 2, 6)}
    | {"vae_steps": (0, 2, 6), "num_data": 300, "num_scored": 20, "hidden": 8, "samples": 5},
    resumable=True,
    gpu=False,
)
@dataclass(frozen=True)
class Probes(Experiment):
    """Four laws of the mask size; the same network, data and steps; areas on held-out data.

    ``sets``: a small ViT-MAE on ``digits`` and ``fashion_mnist``, a deep VAE with a partial encoder
    on the digits (``vae``), a small BERT on ``books``, probed by SST-2 and CoLA (``text_seeds``).

    The rule, from before the run: of each probe and seed, Spearman's correlation over the four laws
    at the last step, area against accuracy. More area means better features where its 99 % interval
    (t over seeds) lies above 0, the contrary where it lies below, else it is undecided; the title
    has its "yes" only if every probe has. A rate predicts better where the correlation of its score
    exceeds that of the area by the same interval, seed by seed. Correlation along training, over
    steps, is reported apart: all that improves with time raises it.

    Arrays: ``found/SET`` (laws, seeds, steps, 5 + probes): area and its standard error, scores at
    15, 50 and 75 %, nats, then accuracies; ``steps/SET``; ``supervised/PROBE`` (seeds,), of the
    same network trained on the labels; ``pixels/SET`` (), of the pixels themselves.
    """

    sets: tuple[str, ...] = ("digits", "vae", "fashion_mnist", "books")
    image_steps: tuple[int, ...] = (0, 30, 100, 300)
    vae_steps: tuple[int, ...] = (0, 50, 200, 1000)
    text_steps: tuple[int, ...] = (0, 40, 120, 360)
    text_seeds: int = 3
    width: int = 48
    hidden: int = 200  # units of the VAE
    num_data: int = 2000  # to train on, unlabeled and labeled
    num_test: int = 1000  # for the probe
    num_scored: int = 300  # of these for the area
    samples: int = 50  # for the VAE's conditionals

    def run(self, bench: Bench) -> Outcome:
        arrays: Arrays = {}
        used: list[Tensor] = []
        for name in self.sets:
            special = {"vae": self._vae, "books": self._books}
            arrays |= special.get(name, partial(self._images, name))(bench, used)
        return Outcome(self._findings(arrays), arrays, checksum(used))

    def _findings(self, arrays: Arrays) -> dict[str, Finding]:
        result = {}
        for name in self.sets:
            found = arrays[f"found/{name}"]
            for key, accuracy in zip(
                PROBES.get(name, (name,)), found[..., 5:].unbind(-1), strict=True
            ):
                last, end = found[:, :, -1].transpose(0, 1), accuracy[..., -1].T  # seeds, laws
                area, *rates = (rank_correlation(last[..., k], end) for k in (0, 2, 3, 4))
                best = max(rates, key=lambda each: each.mean().item())
                along = rank_correlation(found[..., 0], accuracy).mean(dim=0)
                parts = {"laws": area, "rate": best - area, "along": along}
                result |= {f"probe-{k}/{key}": Finding.over(each) for k, each in parts.items()}
        return result

    def _labeled(self, name: str) -> Labeled:
        """Training images, then held-out ones."""
        x, y = [], []
        for split, count in (("train", self.num_data), ("test", self.num_test)):
            x.append(data.images(name, split).grid[:count].float())  # type: ignore[arg-type]
            y.append(image_sets.labels(name, split)[:count])  # type: ignore[arg-type]
        return Labeled(torch.cat(x), torch.cat(y), torch.arange(sum(map(len, y))) >= len(y[0]))

    def _images(self, name: str, bench: Bench, used: list[Tensor]) -> Arrays:
        of, steps, patch = self._labeled(name), self.image_steps, 2 if name == "digits" else 7
        train, held_out = of.x[~of.test], of.x[of.test][: self.num_scored]
        units = {"pixel_mean": train.mean(), "pixel_scale": train.std()}
        inside = of._replace(x=(of.x - train.mean()) / train.std())
        sizes = {"width": self.width, "num_layers": 2, "decoder_layers": 1}
        new = partial(networks.small_mae, of.x.shape[-1], 1, patch, **sizes)

        def watch(network: Any) -> Tensor:
            few, g = train[: self.num_scored], torch.Generator().manual_seed(1)
            with networks.fast_linear(network):
                model = ViTMAE.fit_variance(network, few, generator=g, per="size", **units)
                area = scores_of(model, held_out, range(1, 17))
                own = probe(image_features(network, inside.x), inside)
            return torch.cat([area, area.new_tensor([own])])

        def work(law: masks.SizeLaw, seed: int) -> Tensor:
            model = ViTMAE(network := new(seed=seed), 1.0, **units)
            g, recipe = torch.Generator().manual_seed(seed), {"law": law, "watched": steps}
            recipe |= {"batch_size": 32, "learning_rate": 4e-3, "matrix_rate": 0.03}
            how = {"watch": partial(watch, network), "progress": bench.progress, **recipe}
            return torch.stack(mae_training.train(model, train, steps[-1], g, **how))

        def labels(seed: int) -> float:
            return supervised(new(seed=seed), image_features, inside, steps[-1], seed)

        used += [of.x, of.y]
        pixels = torch.tensor(probe(of.x.flatten(1), of))
        found = self._all(name, work, {name: labels}, self.seeds, bench, checksum([of.x, of.y]))
        return found | {f"steps/{name}": torch.tensor(steps), f"pixels/{name}": pixels}

    def _vae(self, bench: Bench, used: list[Tensor]) -> Arrays:
        """All seeds side by side; the area is log p(x), by importance weights."""
        of, steps, samples = self._labeled("digits"), self.vae_steps, self.samples
        train, few = of.x[~of.test].flatten(1), of.x[of.test][: self.num_scored].flatten(1).double()
        few_tracked = {
            "track_every": steps[-1],
            "track_data": 1,
            "track_samples": 2,
            "track_draws": 2,
        }
        settings = {"dataset": "digits", "hidden": (self.hidden,), "num_steps": steps[-1]}
        like = deep_vae.Figure3Lower(self.seeds, **settings, **few_tracked)

        def look(model: VAE) -> Tensor:
            g = torch.Generator().manual_seed(1)
            area = estimators.iwae(model, few, 4 * samples, generator=g)
            row = scores_of(
                estimators.ImportanceConditional(model, samples, generator=g), few, _sizes(64)
            )
            own = probe(model.encode(of.x.flatten(1).double())[0], of)
            return torch.tensor([area, area.standard_error, *row[2:], own], dtype=torch.float64)

        def work(law: masks.SizeLaw) -> Arrays:
            masked = deep_vae.Masked(samples=3, partial="bound", law=law)
            kept = like.train(train, masked, Bench(), "vae", snapshots=steps).snapshots
            rows = [torch.stack([look(m) for m in like.models(kept[step])]) for step in steps]
            return {"found": torch.stack(rows, dim=1)}

        same = {"data": checksum([of.x, of.y])}
        laws = bench.progress(LAWS, "vae, law")
        found = [bench.keep(f"vae-{k}", partial(work, law), **same) for k, law in enumerate(laws)]
        used += [of.x, of.y]
        return {
            "found/vae": torch.stack([each["found"] for each in found]),
            "steps/vae": torch.tensor(steps),
        }

    def _books(self, bench: Bench, used: list[Tensor]) -> Arrays:
        tokenizer, steps = networks.load_tokenizer(networks.small_bert_folder()), self.text_steps
        batches = small_bert.Batches(data.sentences("books", "train").first, tokenizer, 1024)
        held_out = small_bert.SmallBert(num_held_out=128).held_out(tokenizer)[:, 1:-1]
        count, tasks = held_out.shape[1], {}
        for name in PROBES["books"]:
            ids = tokens.encode(tokenizer, data.sentences(f"glue/{name}").first).ids
            fits = (ids > 0).sum(dim=1) <= small_bert.LENGTH
            y = torch.tensor([int(each) for each in texts.labels(f"glue/{name}")])[fits]
            rows = ids[fits, : small_bert.LENGTH]
            tasks[name] = Labeled(rows, y, torch.arange(len(y)) % 2 == 1)
            used += [rows, y]
        new = partial(networks.small_masked_lm, len(tokenizer), width=64, num_layers=2)

        def watch(network: Any) -> Tensor:
            sizes = [1, *_sizes(count), count - 5, count]
            area = scores_of(MaskedLM.of(network, tokenizer, count), held_out, sizes)
            own = [probe(text_features(network, of.x), of) for of in tasks.values()]
            return torch.cat([area, area.new_tensor(own)])

        def work(law: masks.SizeLaw, seed: int) -> Tensor:
            network, g = new(seed=seed), torch.Generator().manual_seed(seed)
            adam = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=0.01)

            def loss(step: int) -> Tensor:
                rows = batches.draw(step, generator=g)
                drawn = masks.stratified_masks(len(rows), rows.shape[1] - 2, law, generator=g)
                return -small_bert.mean_score(network, rows, drawn, batches.mask_token)

            how = {"num_steps": steps[-1], "max_norm": 1.0, "progress": bench.progress}
            how |= {"watch": partial(watch, network), "watched": steps}
            cycle = OneCycleLR(adam, 3e-3, steps[-1], pct_start=0.1)
            return torch.stack(fit.descend(network, loss, [cycle], **how)[1])

        def labels(of: Labeled, seed: int) -> float:
            return supervised(new(seed=seed), text_features, of, 100, seed)

        used += [batches.stream, held_out]
        seeds, ends = (
            self.seeds[: self.text_seeds],
            {k: partial(labels, v) for k, v in tasks.items()},
        )
        found = self._all("books", work, ends, seeds, bench, checksum(used[-6:]))
        return found | {"steps/books": torch.tensor(steps)}

    def _all(
        self, name: str, work: Any, labels: Any, seeds: Sequence[int], bench: Bench, used: str
    ) -> Arrays:
        """Every law, and training on labels, from every seed, kept one by one."""

        def kept(key: str, one: Callable[[int], Any]) -> Tensor:
            def found(seed: int) -> Arrays:
                return {"found": torch.as_tensor(one(seed))}

            every = bench.progress(seeds, f"{name}, {key}, seed")
            each = [bench.keep(f"{name}-{key}-{s}", partial(found, s), data=used) for s in every]
            return torch.stack([tensors["found"] for tensors in each])

        rows = [kept(f"law-{k}", partial(work, law)) for k, law in enumerate(LAWS)]
        own = {f"supervised/{key}": kept(key, one) for key, one in labels.items()}
        return {f"found/{name}": torch.stack(rows), **own}
