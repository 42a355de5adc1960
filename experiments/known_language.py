"""A language whose likelihood is known: what a trained BERT still lacks, by law of the mask size."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.experiment import Arrays, Experiment, RunContext, seeded, setting, stacked
from mpt_lml import masks, scores
from mpt_lml.models.base import ConditionalModel
from mpt_lml.models.hmm import HMM
from mpt_lml.recorded import Finding, Outcome
from mpt_lml.verdicts import mean_and_error
from mpt_score.networks.side_by_side import train_side_by_side
from mpt_score.networks.symbol_bert import SymbolBERT


class Stratified(masks.UniformSize):
    """Uniform sizes, spread evenly over each batch: ``masks.sample_masks`` asks a law's ``sample``."""

    sample = masks.SizeLaw.stratified


LAWS: dict[str, masks.SizeLaw] = {
    "fixed-15": masks.FixedRate(0.15),
    "fixed-50": masks.FixedRate(0.5),
    "fixed-80": masks.FixedRate(0.8),
    "uniform": masks.UniformSize(),
    "stratified": Stratified(),
}


class Problem:
    """Fresh sequences of a source, random orders for each, and what the source says about them.

    N sequences of D symbols with O orders each. An order gives D nested masks, of sizes 1..D, so that
    there are P = N · O · D rows of a sequence and a mask, the sizes fastest. ``x`` is (N, D), ``order``
    (N, O, D); ``rows``, ``mask`` and ``values``, the source's log p(x_j | x_R), are (P, D).
    """

    def __init__(
        self, source: HMM, num_data: int, num_orders: int, *, generator: torch.Generator
    ) -> None:
        features = source.num_features
        self.x = source.sample(num_data, generator=generator)
        ranks = masks.sample_ranks(num_data * num_orders, features, generator=generator)
        self.order = ranks.argsort(dim=1).view(num_data, num_orders, features)
        self.mask = masks.nested_masks(self.order).flatten(0, 2)
        self.rows = self.x.repeat_interleave(num_orders * features, dim=0)
        self.values = source.log_each(self.rows, self.mask)

    def by_size(self, values: Float[Tensor, "P D"]) -> Float[Tensor, "N O D"]:
        """Score of every mask, by sequence, order and size."""
        # ``order`` happens to have this shape: an order has as many places as there are sizes.
        return scores.mask_score(values, self.mask).view(self.order.shape)

    def compare(self, model: ConditionalModel) -> dict[str, Tensor]:
        """The source minus ``model`` at the same sequences and masks, with standard errors, nats.

        ``area`` and ``chain`` (N, O): every masked token scored, and log p(x) − log p_π(x).
        """
        difference = self.values - model.log_each(self.rows, self.mask)
        by_size = self.by_size(difference)
        # Of the mask of size M, which hides order[:M], the token that is shown next: order[M − 1].
        shown_next = difference.view(*self.order.shape, -1).gather(3, self.order[..., None])
        area = by_size.sum(dim=2)
        chain = shown_next.sum(dim=(2, 3))
        gap, gap_error = mean_and_error(area.mean(dim=1))
        size_gap, size_gap_error = mean_and_error(by_size.mean(dim=1))
        return {
            "area": area,
            "chain": chain,
            "spread": chain.var(dim=1).mean().sqrt(),  # over orders of the same sequence
            "gap": gap,
            "gap_error": gap_error,
            "size_gap": size_gap,
            "size_gap_error": size_gap_error,
        }

    def designs(self, area: Float[Tensor, "N O"]) -> dict[str, Tensor]:
        """Standard error of one gap, one order a sequence, by what source and network share.

        Args:
            area: of :meth:`compare`, source minus network.
        """
        source = self.by_size(self.values).sum(dim=2)
        network = source - area
        separate = (source[:, 0].var() + network[:, 0].var()) / len(source)
        return {
            "error/same masks, all tokens": mean_and_error(area[:, 0])[1],
            # The source has the first order of each sequence, the network the second.
            "error/same sequences, other masks": mean_and_error(source[:, 0] - network[:, 1])[1],
            "error/other sequences": separate.sqrt(),
        }


class KnownLanguage(Experiment, name="known-language", resumable=True):
    """A BERT on a language of known likelihood: laws of the size, and what closes the gap.

    Five laws of the mask size with several seeds each, and shorter, longer and wider runs. A variant
    is (width, steps, learning rate), trained with uniform sizes and the first seed.

    Arrays, for law in ``LAWS``, nats: ``gap/LAW``, ``gap_error/LAW`` (over sequences),
    ``excess_error/LAW`` (of the gap minus that of uniform sizes with the same seed, over sequences)
    and ``spread/LAW`` (log p_π over orders π), all (seeds,); ``size_gap/LAW`` (seeds, D).
    ``variant/WIDTH-STEPS-RATE`` (4,): parameters, gap, its error, spread. ``error/*`` (): standard
    error of one gap, one order a sequence, by what source and network share.
    """

    seeds: tuple[int, ...] = setting((4, 44, 444), quick=(4, 44))
    num_steps: int = setting(3000, quick=10)
    batch_size: int = setting(128, quick=32)
    learning_rate: float = 3e-3
    half_precision: bool = True  # products in bfloat16; the weights and AdamW stay float32
    width: int = setting(64, quick=16)
    variants: tuple[tuple[int, int, float], ...] = setting(
        ((64, 1000, 3e-3), (128, 3000, 3e-3), (64, 12_000, 3e-3)), quick=((32, 5, 3e-3),)
    )
    num_test: int = setting(2000, quick=20)
    num_orders: int = setting(4, quick=2)

    def measure(self, context: RunContext) -> Outcome:
        source = HMM.cyclic()
        problem = Problem(source, self.num_test, self.num_orders, generator=seeded(10))
        checksum = context.checksum([problem.x])

        runs = {
            law: self._compared(law, self.seeds, source, problem, context, checksum) for law in LAWS
        }
        uniform_area = runs["uniform"]["area"]
        arrays = problem.designs(uniform_area[0])
        for law, rows in runs.items():
            for name in ("gap", "gap_error", "spread", "size_gap"):
                arrays[f"{name}/{law}"] = rows[name]
            excess = (rows["area"] - uniform_area).mean(dim=2)
            arrays[f"excess_error/{law}"] = mean_and_error(excess, dim=1)[1]
        for width, num_steps, rate in self.variants:
            settings = replace(self, width=width, num_steps=num_steps, learning_rate=rate)
            variant = settings._compared(
                "uniform", self.seeds[:1], source, problem, context, checksum
            )
            summary = [
                variant[name][0] for name in ("num_parameters", "gap", "gap_error", "spread")
            ]
            arrays[f"variant/{width}-{num_steps}-{rate:g}"] = torch.stack(summary)
        # How much larger the smallest gap of a fixed rate is than that of uniform sizes.
        fixed = torch.stack([arrays[f"gap/{law}"] for law in LAWS if law.startswith("fixed")])
        excess = fixed - arrays["gap/uniform"]
        least = Finding.over(excess[excess.mean(dim=1).argmin()])
        return Outcome({"known-language-uniform-size": least}, arrays, checksum)

    def _compared(
        self,
        law: str,
        seeds: Sequence[int],
        source: HMM,
        problem: Problem,
        context: RunContext,
        checksum: str,
    ) -> Arrays:
        """What the networks of these seeds lack of the source: a file for each, with its weights.

        All of them are trained where one file is missing, since they are trained side by side.
        """

        @functools.cache
        def models() -> list[SymbolBERT]:
            return self.train(source, law, seeds, context)

        def compare(number: int) -> Arrays:
            weights = dict(models()[number].network.named_parameters())
            num_parameters = sum(weight.numel() for weight in weights.values())
            comparison = problem.compare(models()[number])
            return comparison | {"num_parameters": torch.tensor(num_parameters)} | weights

        size = f"{self.width}-{self.num_steps}-{self.learning_rate:g}"
        rows = []
        for number, seed in enumerate(seeds):
            name = f"{law}-{size}-{seed}"
            rows.append(context.computed_once(name, partial(compare, number), data=checksum))
        return stacked(rows)

    def train(
        self, source: HMM, law: str, seeds: Sequence[int], context: RunContext
    ) -> list[SymbolBERT]:
        """Networks of these seeds, trained side by side on the device of ``context``."""
        size = (source.num_values, source.num_features, self.width)
        models = [SymbolBERT(*size, seed=seed) for seed in seeds]
        for model in models:
            model.network.to(context.device)
        train_side_by_side(
            models,
            source,
            LAWS[law],
            generators=[seeded(seed) for seed in seeds],
            num_steps=self.num_steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            half_precision=self.half_precision,
            progress=lambda steps, _: context.progress(steps, f"{law}, step"),
        )
        return models
