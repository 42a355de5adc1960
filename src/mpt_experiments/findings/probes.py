"""The title, tested: does a larger area mean better features? Linear probes along training."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from mpt_experiments import autoencoders
from mpt_experiments.experiment import (
    Arrays,
    Experiment,
    Finding,
    Outcome,
    RunContext,
    seeded,
    setting,
)
from mpt_experiments.findings.small_bert import FIXED, LENGTH, Training, mean_score
from mpt_experiments.paper import deep_vae, vit_mae
from mpt_lml import estimators, masks
from mpt_lml.models.vae import VAE
from mpt_lml.verdicts import mean_and_error
from mpt_score import networks, texts
from mpt_score.networks.vit_mae import ViTMAE
from mpt_score.tokens import SPECIAL_TOKENS, encode


def findings(arrays: Arrays) -> dict[str, Finding]:
    """Of each ``found/SET``: the correlation over laws, what a rate adds to it, and along steps."""
    result: dict[str, Finding] = {}
    for name in [key[6:] for key in arrays if key.startswith("found/")]:
        found = arrays[f"found/{name}"].transpose(0, 1)  # seeds first
        last, end = found[:, :, -1], found[:, :, -1, -1]
        area, *rates = (autoencoders.rank_correlation(last[..., k], end) for k in (0, 2, 3, 4))
        best = max(rates, key=lambda each: each.mean().item())
        along = autoencoders.rank_correlation(found[..., 0], found[..., -1]).mean(dim=1)
        parts = {"laws": area, "rate": best - area, "along": along}
        result |= {f"probe-{key}/{name}": Finding.over(each) for key, each in parts.items()}
    return result


def kept(
    context: RunContext, name: str, work: Callable[[Any], Tensor], items: Sequence[Any], data: str
) -> Tensor:
    """``work`` of each of the ``items``, which are the first axis and kept one by one."""

    def one(number: int) -> Arrays:
        how = partial(work, items[number])
        return context.computed_once(f"{name}-{number}", lambda: {"found": how()}, data=data)

    return context.stack(one, range(len(items)), name)["found"]


class Probes(Experiment, name="probes", cost="about 40 min", resumable=True, gpu=False):
    """Area against linear probes of frozen features, by law of the mask size.

    Four laws of the mask size; the same network, data and steps; areas on held-out data. ``sets``: a
    small ViT-MAE on ``digits`` and ``fashion_mnist``, in 16 patches, and a deep VAE with a partial
    encoder on the digits (``vae``), whose features are the means of q(z | x).

    The rule, from before the run, stands in chapter 12: of each set and seed, Spearman's correlation
    over the four laws at the last step, area against accuracy. That along training, over steps, is
    reported apart: all that improves with time raises it.

    Arrays: ``found/SET`` (laws, seeds, steps, 6): area and its standard error, scores at 15, 50 and
    75 %, nats, accuracy; ``supervised/SET`` (seeds,), accuracy of the same network trained on the
    labels; ``pixels/SET`` (), of the pixels themselves.
    """

    sets: tuple[str, ...] = setting(("vae", "digits", "fashion_mnist"), quick=("digits", "vae"))
    image_steps: tuple[int, ...] = setting((0, 30, 90, 240), quick=(0, 2, 6))
    vae_steps: tuple[int, ...] = setting((0, 50, 200, 1000), quick=(0, 6))
    width: int = setting(48, quick=16)
    hidden: int = setting(200, quick=8)  # units of the VAE
    num_data: int = setting(2000, quick=300)  # to train on, unlabeled and labeled
    num_scored: int = setting(200, quick=10)  # of these for the area
    samples: int = setting(50, quick=3)  # for the VAE's conditionals

    def measure(self, context: RunContext) -> Outcome:
        arrays: Arrays = {}
        used: list[Tensor] = []
        for name in self.sets:
            of = autoencoders.labeled("digits" if name == "vae" else name, self.num_data, 1000)
            used += [of.x, of.y]
            measure = self._vae if name == "vae" else self._images
            found = measure(name, of, context, context.checksum(used[-2:]))
            arrays |= {f"{key}/{name.replace('_', '-')}": each for key, each in found.items()}
        return Outcome(findings(arrays), arrays, context.checksum(used))

    def _images(
        self, name: str, of: autoencoders.Labeled, context: RunContext, data: str
    ) -> Arrays:
        train, held_out = of.x[~of.test], of.x[of.test][: self.num_scored]
        units = {"pixel_mean": train.mean(), "pixel_scale": train.std()}
        inside = of._replace(x=(of.x - train.mean()) / train.std())
        patch, sizes = of.x.shape[-1] // 4, {"num_layers": 2, "decoder_layers": 1}
        new = partial(networks.small_mae, of.x.shape[-1], 1, patch, width=self.width, **sizes)
        steps, recipe = self.image_steps, {"batch_size": 32, "learning_rate": 4e-3}

        def look(network: Any) -> Tensor:
            g, few = seeded(1), train[: self.num_scored]
            with torch.no_grad(), networks.fast_linear(network):
                model = ViTMAE.fit_variance(network, few, generator=g, per="size", **units)
                area = autoencoders.scores_of(model, held_out, range(1, 17))
                own = autoencoders.probe(autoencoders.features(network, inside.x), of)
                return torch.cat([area, area.new_tensor([own])])

        def trained(law: masks.SizeLaw, seed: int) -> Tensor:
            network, g = new(seed=seed), seeded(seed)
            how: dict[str, Any] = {"law": law, "watch": partial(look, network), **recipe}
            how |= {"watched": steps, "matrix_rate": 0.03, "progress": context.progress}
            seen = vit_mae.train(ViTMAE(network, 1.0, **units), train, steps[-1], g, **how)
            return torch.stack(seen)

        def taught(seed: int) -> Tensor:
            return torch.tensor(autoencoders.supervised(new(seed=seed), inside, steps[-1], seed))

        every, laws = (
            partial(kept, context, items=self.seeds, data=data),
            enumerate(autoencoders.LAWS),
        )
        found = [every(f"{name}-law-{k}", partial(trained, law)) for k, law in laws]
        labels = every(f"{name}-labels", taught)
        pixels = torch.tensor(autoencoders.probe(of.x.flatten(1), of))
        return {"found": torch.stack(found), "supervised": labels, "pixels": pixels}

    def _vae(self, name: str, of: autoencoders.Labeled, context: RunContext, data: str) -> Arrays:
        """All seeds side by side; the area is log p(x), by importance weights."""
        x, steps, end = of.x.flatten(1), self.vae_steps, self.vae_steps[-1]
        few = x[of.test][: self.num_scored].double()
        like = deep_vae.Figure3Lower(self.seeds, "digits", hidden=(self.hidden,), num_steps=end)
        like = replace(like, track_every=end, track_data=1, track_samples=2, track_draws=2)

        def look(model: VAE) -> Tensor:
            g = seeded(1)
            area = estimators.iwae(model, few, 4 * self.samples, generator=g)
            sampler = estimators.ImportanceConditional(model, self.samples, generator=g)
            at = autoencoders.scores_of(sampler, few, autoencoders.sizes_of(64))
            own = autoencoders.probe(model.encode(x.double())[0], of)
            return at.new_tensor([area, area.standard_error, *at[2:], own])

        def work(law: masks.SizeLaw) -> Tensor:
            masked = deep_vae.PartialEncoder(num_samples=3, law=law)
            states = like.train(x[~of.test], masked, RunContext(), name, snapshots=steps).snapshots
            rows = [torch.stack([look(each) for each in like.models(states[s])]) for s in steps]
            return torch.stack(rows, dim=1)

        return {"found": kept(context, name, work, autoencoders.LAWS, data)}


def text_features(network: Any, ids: Int[Tensor, "N L"]) -> Float[Tensor, "N w"]:
    """Mean of the last layer over a sentence's known pieces, nothing hidden; rows end in padding."""
    ids = ids[:, : int((ids != 0).sum(dim=1).max())]
    layer = network.base_model(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
    pieces = (ids >= len(SPECIAL_TOKENS)).float()
    return torch.einsum("nl,nlw->nw", functional.normalize(pieces, p=1.0, dim=1), layer)


def labeled_text(name: str, tokenizer: Any) -> list[autoencoders.Labeled]:
    """Rows by their length; tested on the test split, or in turn on every fourth row without one."""
    splits = ("train", "test") if f"{name} train" in texts._GLUE else ("test",)
    found = [texts.labeled(name, split) for split in splits]  # type: ignore[arg-type]
    ids = encode(tokenizer, [each for text, _ in found for each in text]).ids[:, :LENGTH]
    order = (ids != 0).sum(dim=1).argsort(stable=True)
    y, rows = torch.tensor([each for _, own in found for each in own]), torch.arange(len(ids))
    tests = [rows % 4 == k for k in range(4)] if len(found) == 1 else [order >= len(found[0][0])]
    return [autoencoders.Labeled(ids[order], y[order], test) for test in tests]


def accuracy(x: Tensor, folds: list[autoencoders.Labeled]) -> float:
    """Of a linear probe of ``x``, the mean over the folds."""
    return sum(autoencoders.probe(x, of) for of in folds) / len(folds)


@torch.no_grad()
def text_areas(network: Any, rows: Int[Tensor, "N L"], token: int) -> Float[Tensor, " 5"]:
    """Mean score with uniform sizes, its error over 8 parts, scores at the shares, nats a token."""
    g, count, found = torch.Generator().manual_seed(0), rows.shape[1] - 2, []
    sizes = masks.UniformSize().stratified(len(rows), count, generator=g)
    ranks = masks.sample_ranks(len(rows), count, generator=g)
    shares: list[Any] = [round(share * count) for share in FIXED.values()]
    for size in [sizes, *shares]:
        mask, parts = masks.from_ranks(ranks, size), [slice(k, None, 8) for k in range(8)]
        found.append([mean_score(network, rows[part], mask[part], token) for part in parts])
    area, *each = torch.tensor(found, dtype=torch.float64)
    return torch.stack([*mean_and_error(area), *(score.mean() for score in each)])


class TextProbes(Training, name="text-probes", cost="about 55 min", resumable=True, gpu=False):
    """Area against linear probes of small BERTs' frozen features, by law of the mask size.

    As ``probes``, with areas on held-out windows, nats a token. ``sets``: CoLA (``written`` in its
    place: quick), tested on dev; SST-2, whose dev sentences are cross-validated in four parts. In
    place of ``pixels/SET`` it has ``pieces/SET`` (), of counts of the word pieces themselves.
    """

    seeds: tuple[int, ...] = setting(Experiment.seeds, quick=(4, 44))
    vocab_size: int = setting(2000, quick=200)
    width: int = setting(64, quick=32)
    num_layers: int = 2
    num_steps: int = setting(400, quick=4)
    batch_tokens: int = setting(2048, quick=256)
    num_held_out: int = setting(128, quick=8)
    every: int = setting(200, quick=2)
    sets: tuple[str, ...] = setting(("glue/cola", "glue/sst-2"), quick=("written",))
    label_steps: int = setting(100, quick=2)

    def measure(self, context: RunContext) -> Outcome:
        text = self.read()
        tokenizer, token = text.tokenizer, text.mask_token
        short = {name: name.removeprefix("glue/") for name in self.sets} | {"written": "cola"}
        sets = {short[name]: labeled_text(name, tokenizer) for name in self.sets}
        data = context.checksum(chain([text.stream, text.held_out], *chain(*sets.values())))
        new = partial(self.network, text, "modern")

        @torch.no_grad()
        def look(network: Any) -> Tensor:
            area, found = text_areas(network.eval(), text.held_out, token), []
            for folds in sets.values():
                x = torch.cat([text_features(network, part) for part in folds[0].x.split(128)])
                found.append(accuracy(x, folds))
            return torch.cat([area, area.new_tensor(found)])

        def trained(law: str, seed: int) -> Tensor:
            network, alone = (
                new(seed=seed),
                replace(context, folder=None),
            )  # kept when it is finished
            return self.train(alone, law, network, text, (law, seed), partial(look, network))

        def taught(name: str, seed: int) -> Tensor:
            how = self.label_steps, seed, text_features
            return torch.tensor(
                [autoencoders.supervised(new(seed=seed), of, *how) for of in sets[name]]
            )

        def counted(name: str) -> Tensor:
            rows = [row.bincount(minlength=len(tokenizer)) for row in sets[name][0].x]
            counts = torch.stack(rows)[:, len(SPECIAL_TOKENS) :].float()
            return torch.tensor(accuracy(counts, sets[name]))

        every = partial(kept, context, items=self.seeds, data=data)
        laws = (*FIXED, "uniform")
        found = torch.stack([every(law, partial(trained, law)) for law in laws])
        arrays: Arrays = {}
        for k, name in enumerate(sets):
            arrays |= {
                f"found/{name}": found[..., [*range(1, 6), 6 + k]],
                f"supervised/{name}": every(f"{name}-labels", partial(taught, name)).mean(dim=1),
                f"pieces/{name}": counted(name),
            }
        return Outcome(findings(arrays), arrays, data)
