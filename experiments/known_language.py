"""A language whose likelihood is known: what a trained BERT still lacks, by law of the mask size."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from experiments.experiment import Arrays, Experiment, RunContext, setting, stacked
from experiments.records import finding_over
from experiments.trainings.known_language import (
    LAWS,
    KnownLanguageSettings,
    Problem,
    train_known_language,
)
from mpt_lml.models.hmm import HMM
from mpt_lml.recorded import Outcome
from mpt_lml.verdicts import mean_and_error
from mpt_score.networks.symbol_bert import SymbolBERT


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
        problem = Problem.of_the_record(source, self._settings("uniform", self.seeds))
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
        least = finding_over(excess[excess.mean(dim=1).argmin()])
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
        """Gaps of the networks of these seeds to the source: a file for each, with its weights.

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
        models = train_known_language(
            self._settings(law, seeds),
            source=source,
            device=context.device,
            progress=lambda steps, _: context.progress(steps, f"{law}, step"),
        )
        return models[law]

    def _settings(self, law: str, seeds: Sequence[int]) -> KnownLanguageSettings:
        return KnownLanguageSettings(
            laws=(law,),
            seeds=tuple(seeds),
            num_steps=self.num_steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            half_precision=self.half_precision,
            width=self.width,
            num_test=self.num_test,
            num_orders=self.num_orders,
        )
