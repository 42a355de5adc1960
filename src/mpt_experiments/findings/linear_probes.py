"""The title, tested: does a larger area mean better features? Linear probes along training."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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
from mpt_experiments.findings.small_bert import (
    FIXED,
    LENGTH,
    Batches,
    SmallBertTraining,
    mean_score,
)
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
    for key in arrays:
        kind, _, name = key.partition("/")
        if kind != "found":
            continue
        rows = arrays[key].transpose(0, 1)  # seeds first
        last = rows[:, :, -1]
        accuracy = last[..., -1]
        over_laws = autoencoders.rank_correlation(last[..., 0], accuracy)
        at_rates = [autoencoders.rank_correlation(last[..., k], accuracy) for k in (2, 3, 4)]
        best_rate = max(at_rates, key=lambda correlation: correlation.mean().item())
        along_steps = autoencoders.rank_correlation(rows[..., 0], rows[..., -1])
        result[f"probe-laws/{name}"] = Finding.over(over_laws)
        result[f"probe-rate/{name}"] = Finding.over(best_rate - over_laws)
        result[f"probe-along/{name}"] = Finding.over(along_steps.mean(dim=1))
    return result


def stack_computed_once(
    context: RunContext,
    name: str,
    work: Callable[[Any], Tensor],
    items: Sequence[Any],
    data: str,
) -> Tensor:
    """``work`` of each of the ``items``, which are the first axis; each is kept when it is done."""

    def of_number(number: int) -> Arrays:
        return context.computed_once(
            f"{name}-{number}", lambda: {"found": work(items[number])}, data=data
        )

    return context.stack(of_number, range(len(items)), name)["found"]


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
            images = "digits" if name == "vae" else name
            data = autoencoders.labeled_images(images, self.num_data, 1000)
            used += [data.x, data.label]
            checksum = context.checksum([data.x, data.label])
            measure = self._vae if name == "vae" else self._images
            for key, values in measure(name, data, context, checksum).items():
                arrays[f"{key}/{name.replace('_', '-')}"] = values
        return Outcome(findings(arrays), arrays, context.checksum(used))

    def _images(
        self, name: str, data: autoencoders.Labeled, context: RunContext, checksum: str
    ) -> Arrays:
        train = data.x[~data.is_test]
        held_out = data.x[data.is_test][: self.num_scored]
        units = {"pixel_mean": train.mean(), "pixel_scale": train.std()}
        standardized = data._replace(x=(data.x - train.mean()) / train.std())
        side = data.x.shape[-1]
        new_network = partial(
            networks.small_mae,
            side,
            1,
            side // 4,
            width=self.width,
            num_layers=2,
            decoder_layers=1,
        )

        def look(network: Any) -> Tensor:
            with torch.no_grad(), networks.fast_linear(network):
                model = ViTMAE.fit_variance(
                    network, train[: self.num_scored], generator=seeded(1), per="size", **units
                )
                scores = autoencoders.area_and_scores(model, held_out, range(1, 17))
                features = autoencoders.features(network, standardized.x)
                accuracy = autoencoders.probe_accuracy(features, standardized)
                return torch.cat([scores, scores.new_tensor([accuracy])])

        def trained(law: masks.SizeLaw, seed: int) -> Tensor:
            network = new_network(seed=seed)
            rows = vit_mae.train(
                ViTMAE(network, 1.0, **units),
                train,
                self.image_steps[-1],
                seeded(seed),
                batch_size=32,
                learning_rate=4e-3,
                matrix_rate=0.03,
                law=law,
                watch=partial(look, network),
                watched=self.image_steps,
                progress=context.progress,
            )
            return torch.stack(rows)

        def supervised(seed: int) -> Tensor:
            accuracy = autoencoders.supervised_accuracy(
                new_network(seed=seed), standardized, self.image_steps[-1], seed
            )
            return torch.tensor(accuracy)

        of_each_seed = partial(stack_computed_once, context, items=self.seeds, data=checksum)
        of_laws = [
            of_each_seed(f"{name}-law-{number}", partial(trained, law))
            for number, law in enumerate(autoencoders.LAWS)
        ]
        labels = of_each_seed(f"{name}-labels", supervised)
        pixels = torch.tensor(autoencoders.probe_accuracy(data.x.flatten(1), data))
        return {"found": torch.stack(of_laws), "supervised": labels, "pixels": pixels}

    def _vae(
        self, name: str, data: autoencoders.Labeled, context: RunContext, checksum: str
    ) -> Arrays:
        """All seeds side by side; the area is log p(x), by importance weights."""
        x = data.x.flatten(1)
        few = x[data.is_test][: self.num_scored].double()
        last = self.vae_steps[-1]
        settings = deep_vae.Figure3Lower(
            self.seeds,
            "digits",
            hidden=(self.hidden,),
            num_steps=last,
            track_every=last,
            track_data=1,
            track_samples=2,
            track_draws=2,
        )

        def look(model: VAE) -> Tensor:
            generator = seeded(1)
            area = estimators.iwae(model, few, 4 * self.samples, generator=generator)
            sampler = estimators.ImportanceConditional(model, self.samples, generator=generator)
            sizes = autoencoders.sizes_at_rates(64)
            scores = autoencoders.area_and_scores(sampler, few, sizes)
            accuracy = autoencoders.probe_accuracy(model.encode(x.double())[0], data)
            return scores.new_tensor([area, area.standard_error, *scores[2:], accuracy])

        def trained(law: masks.SizeLaw) -> Tensor:
            objective = deep_vae.PartialEncoder(num_samples=3, law=law)
            history = settings.train(
                x[~data.is_test], objective, RunContext(), name, snapshots=self.vae_steps
            )
            columns = []
            for step in self.vae_steps:
                models = settings.models(history.snapshots[step])
                columns.append(torch.stack([look(model) for model in models]))
            return torch.stack(columns, dim=1)

        laws = autoencoders.LAWS
        return {"found": stack_computed_once(context, name, trained, laws, checksum)}


def text_features(network: Any, ids: Int[Tensor, "N L"]) -> Float[Tensor, "N w"]:
    """Mean of the last layer over a sentence's known pieces, nothing hidden; rows end in padding."""
    longest = int((ids != 0).sum(dim=1).max())
    ids = ids[:, :longest]
    layer = network.base_model(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
    is_piece = (ids >= len(SPECIAL_TOKENS)).float()
    weight = functional.normalize(is_piece, p=1.0, dim=1)
    return torch.einsum("nl,nlw->nw", weight, layer)


def labeled_text(name: str, tokenizer: Any) -> list[autoencoders.Labeled]:
    """Rows by their length; tested on the test split, or in turn on every fourth row without one."""
    splits = texts.labeled_splits(name)
    parts = [texts.labeled(name, split) for split in splits]
    sentences = [sentence for part, _ in parts for sentence in part]
    label = torch.tensor([each for _, classes in parts for each in classes])
    ids = encode(tokenizer, sentences).ids[:, :LENGTH]
    order = (ids != 0).sum(dim=1).argsort(stable=True)
    if "train" in splits:
        num_train = len(parts[0][0])
        tests = [order >= num_train]
    else:
        fourth = torch.arange(len(ids)) % 4
        tests = [fourth == number for number in range(4)]
    return [autoencoders.Labeled(ids[order], label[order], is_test) for is_test in tests]


def mean_accuracy(features: Tensor, folds: list[autoencoders.Labeled]) -> float:
    """Of a linear probe, the mean over the folds."""
    return sum(autoencoders.probe_accuracy(features, fold) for fold in folds) / len(folds)


@torch.no_grad()
def text_areas(network: Any, rows: Int[Tensor, "N L"], mask_token: int) -> Float[Tensor, " 5"]:
    """Mean score with uniform sizes, its error over 8 parts, scores at the shares, nats a token."""
    generator = seeded(0)
    num_features = rows.shape[1] - 2
    uniform = masks.UniformSize().stratified(len(rows), num_features, generator=generator)
    ranks = masks.sample_ranks(len(rows), num_features, generator=generator)
    fixed: list[Any] = [round(share * num_features) for share in FIXED.values()]
    score = []
    for size in [uniform, *fixed]:
        mask = masks.from_ranks(ranks, size)
        score.append(
            [
                mean_score(network, rows[part::8], mask[part::8], mask_token).item()
                for part in range(8)
            ]
        )
    area, *at_shares = torch.tensor(score, dtype=torch.float64)
    return torch.stack([*mean_and_error(area), *(values.mean() for values in at_shares)])


class TextProbes(
    SmallBertTraining, name="text-probes", cost="about 55 min", resumable=True, gpu=False
):
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
        sets = {}
        for name in self.sets:
            short = "cola" if name == "written" else name.removeprefix("glue/")
            sets[short] = labeled_text(name, text.tokenizer)
        tensors = [tensor for folds in sets.values() for fold in folds for tensor in fold]
        checksum = context.checksum([text.stream, text.held_out, *tensors])
        of_each_seed = partial(stack_computed_once, context, items=self.seeds, data=checksum)
        of_laws = [
            of_each_seed(law, partial(self._trained, context, text, sets, law))
            for law in (*FIXED, "uniform")
        ]
        rows = torch.stack(
            of_laws
        )  # (laws, seeds, steps, ...): step, area, error, 3 scores, accuracies
        arrays: Arrays = {}
        for number, (name, folds) in enumerate(sets.items()):
            supervised = of_each_seed(f"{name}-labels", partial(self._supervised, text, folds))
            arrays[f"found/{name}"] = rows[..., [*range(1, 6), 6 + number]]
            arrays[f"supervised/{name}"] = supervised.mean(dim=1)
            arrays[f"pieces/{name}"] = _accuracy_of_counts(folds, len(text.tokenizer))
        return Outcome(findings(arrays), arrays, checksum)

    def _trained(
        self,
        context: RunContext,
        text: Batches,
        sets: dict[str, list[autoencoders.Labeled]],
        law: str,
        seed: int,
    ) -> Tensor:
        network = self.network(text, "modern", seed=seed)

        @torch.no_grad()
        def look() -> Tensor:
            areas = text_areas(network.eval(), text.held_out, text.mask_token)
            accuracies = []
            for folds in sets.values():
                batches = folds[0].x.split(128)
                features = torch.cat([text_features(network, batch) for batch in batches])
                accuracies.append(mean_accuracy(features, folds))
            return torch.cat([areas, areas.new_tensor(accuracies)])

        without_state = replace(context, folder=None)  # it is kept when it is finished
        return self.train(without_state, law, network, text, (law, seed), look)

    def _supervised(
        self, text: Batches, folds: list[autoencoders.Labeled], seed: int
    ) -> Float[Tensor, " folds"]:
        accuracies = []
        for fold in folds:
            network = self.network(text, "modern", seed=seed)
            accuracies.append(
                autoencoders.supervised_accuracy(
                    network, fold, self.label_steps, seed, text_features
                )
            )
        return torch.tensor(accuracies)


def _accuracy_of_counts(folds: list[autoencoders.Labeled], vocab_size: int) -> Tensor:
    """Of a linear probe of how often each word piece stands in a sentence, ()."""
    counts = torch.stack([row.bincount(minlength=vocab_size) for row in folds[0].x])
    return torch.tensor(mean_accuracy(counts[:, len(SPECIAL_TOKENS) :].float(), folds))
