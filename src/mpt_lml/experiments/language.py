"""A language whose likelihood is known: what a trained BERT still lacks, by law of the mask size."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpt_lml.experiments.language_gap import Problem
from mpt_lml.experiments.language_network import (
    LAWS,
    Recipe,
    build_network,
    save_network,
    train,
)
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    checksum,
    experiment,
    silent,
)
from mpt_lml.files import replacing
from mpt_lml.models.hmm import HMM
from mpt_lml.numerics import mean_and_error

if TYPE_CHECKING:
    from transformers import BertForMaskedLM

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class KnownLanguage(Config):
    """Five laws of the mask size with several seeds each, and shorter, longer and wider runs.

    A variant is (width, steps, learning rate), trained with uniform sizes and the first seed.
    """

    seeds: tuple[int, ...] = (4, 44, 444)
    recipe: Recipe = field(default_factory=Recipe)
    width: int = 64
    variants: tuple[tuple[int, int, float], ...] = (
        (64, 1000, 3e-3),
        (128, 3000, 3e-3),
        (64, 12_000, 3e-3),
    )
    num_test: int = 2000
    num_orders: int = 4
    test_seed: int = 10
    watched: tuple[int, ...] = (0, 100, 300, 1000, 3000)

    @classmethod
    def paper(cls) -> KnownLanguage:
        """The book's run (the paper has no such experiment)."""
        return cls()

    @classmethod
    def quick(cls) -> KnownLanguage:
        """Ten steps."""
        return cls(
            seeds=(4, 44),
            recipe=Recipe(num_steps=10, batch_size=32),
            width=16,
            variants=((32, 5, 3e-3),),
            num_test=20,
            num_orders=2,
            watched=(0, 5),
        )


@dataclass(frozen=True)
class Job:
    """One training run and its comparison with the source."""

    law: str
    width: int
    seed: int
    recipe: Recipe

    @property
    def name(self) -> str:
        """Of its files."""
        recipe = self.recipe
        return f"{self.law}-{self.width}-{recipe.num_steps}-{recipe.learning_rate:g}-{self.seed}"

    def result(
        self,
        problem: Problem,
        few: Problem,
        watched: tuple[int, ...],
        folder: Path | None,
        progress: Progress,
    ) -> Tensors:
        """:meth:`run`, or what it stored in ``folder`` earlier."""
        from safetensors.torch import load_file, save_file

        if folder is None:
            return self.run(problem, few, watched, progress)[1]
        path = folder / f"{self.name}.result.safetensors"
        if not path.exists():
            network, found = self.run(problem, few, watched, progress)
            save_network(network, folder / f"{self.name}.safetensors")
            with replacing(path) as partial:
                save_file(found, partial)
        return load_file(path)

    def run(
        self, problem: Problem, few: Problem, watched: tuple[int, ...], progress: Progress
    ) -> tuple[BertForMaskedLM, Tensors]:
        """Train, looking at the curve on ``few`` on the way, then compare on ``problem``."""
        network = build_network(problem.source, self.width, seed=self.seed)
        curves = []

        def watch(step: int) -> None:
            if step in watched:
                curves.append(few.compare(network).curve)

        generator = torch.Generator().manual_seed(self.seed)
        train(
            network,
            problem.source,
            self.law,
            self.recipe,
            generator=generator,
            watch=watch,
            progress=progress,
        )
        compared = problem.compare(network)
        size_gap, size_gap_error = mean_and_error(compared.by_size.mean(dim=1))
        gap, gap_error = mean_and_error(compared.area.mean(dim=1))
        parameters = torch.tensor(float(sum(each.numel() for each in network.parameters())))
        spread = torch.tensor(compared.spread)
        return network, {
            "summary": torch.stack([parameters.double(), gap, gap_error, spread.double()]),
            "area": compared.area,
            "chain": compared.chain,
            "size_gap": size_gap,
            "size_gap_error": size_gap_error,
            "watched": torch.stack(curves) if curves else torch.empty(0, *problem.shape[2:]),
        }


@experiment(
    "known-language",
    title="A BERT on a language of known likelihood: laws of the size, and what closes the gap",
    cost="about 25 min",
    config=KnownLanguage,
    resumable=True,
    gpu=False,
)
def known_language(
    config: KnownLanguage,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """Train every run of the configuration and compare each with the source at the same masks.

    Arrays, for law in (fixed-15, fixed-50, fixed-80, uniform, stratified), nats: ``gap/LAW``,
    ``gap_error/LAW`` (over sequences), ``excess_error/LAW`` (of the gap minus that of uniform
    sizes, over sequences) and ``spread/LAW`` (log p_σ over orders σ), all (seeds,);
    ``size_gap/LAW`` and ``size_gap_error/LAW`` (seeds, D); ``watched/LAW`` (seeds, W, D), the
    curves on the way on fewer sequences. ``exact``, ``exact_few`` (D,) and ``log_marginal`` (2,)
    are the source's, the last with its standard error. ``variant/WIDTH-STEPS-RATE`` (4,):
    parameters, gap, its error, spread. ``error/*`` (): standard error of one gap by what source
    and network share; ``gap/one token`` (): that gap from single tokens.
    """
    source = HMM.cyclic()
    generator = torch.Generator().manual_seed(config.test_seed)
    problem = Problem(source, config.num_test, config.num_orders, generator=generator)
    few = Problem(source, min(500, config.num_test), 1, generator=generator)

    def result(law: str, seed: int, width: int, recipe: Recipe) -> Tensors:
        job = Job(law, width, seed, recipe)
        return job.result(problem, few, config.watched, checkpoints, progress)

    runs = {
        (law, seed): result(law, seed, config.width, config.recipe)
        for seed in config.seeds
        for law in LAWS
    }
    arrays = _tables(config, runs)
    for width, num_steps, rate in config.variants:
        recipe = replace(config.recipe, num_steps=num_steps, learning_rate=rate)
        found = result("uniform", config.seeds[0], width, recipe)
        arrays[f"variant/{width}-{num_steps}-{rate:g}"] = found["summary"]
    arrays["log_marginal"] = torch.stack(mean_and_error(problem.log_marginal))
    arrays["exact"] = problem.by_size(problem.values).mean(dim=(0, 1))
    arrays["exact_few"] = few.by_size(few.values).mean(dim=(0, 1))
    arrays |= _designs(problem, runs["uniform", config.seeds[0]])
    return Outcome(_findings(config, arrays), arrays, checksum([problem.x, few.x]))


def _tables(config: KnownLanguage, runs: dict[tuple[str, int], Tensors]) -> Tensors:
    """Results of the seeds side by side; differences are to uniform sizes with the same seed."""
    arrays: Tensors = {}
    for law in LAWS:
        found = [runs[law, seed] for seed in config.seeds]
        summary = torch.stack([each["summary"] for each in found])
        arrays[f"gap/{law}"], arrays[f"gap_error/{law}"] = summary[:, 1], summary[:, 2]
        arrays[f"spread/{law}"] = summary[:, 3]
        for name in ("size_gap", "size_gap_error", "watched"):
            arrays[f"{name}/{law}"] = torch.stack([each[name] for each in found])
        uniform = [runs["uniform", seed]["area"] for seed in config.seeds]
        errors = [
            mean_and_error((each["area"] - area).mean(dim=1))[1]
            for each, area in zip(found, uniform, strict=True)
        ]
        arrays[f"excess_error/{law}"] = torch.stack(errors)
    return arrays


def _designs(problem: Problem, found: Tensors) -> Tensors:
    """Standard error of one gap, one order a sequence, by what source and network share."""
    source = problem.by_size(problem.values).sum(dim=2)
    network = source - found["area"]
    pairs = {
        "same masks, all tokens": found["area"][:, 0],
        "same masks, one token": found["chain"][:, 0],
        "same sequences, other masks": source[:, 0] - network[:, 1],
    }
    arrays = {f"error/{name}": mean_and_error(each)[1] for name, each in pairs.items()}
    separate = source[:, 0].var() + network[:, 0].var()
    arrays["error/other sequences"] = (separate / len(source)).sqrt()
    arrays["gap/one token"] = found["chain"].mean()
    return arrays


def _findings(config: KnownLanguage, arrays: Tensors) -> dict[str, Finding]:
    """How much larger the smallest gap of a fixed rate is than that of uniform sizes."""
    fixed = torch.stack([arrays[f"gap/{law}"] for law in LAWS if law.startswith("fixed")])
    difference, error = mean_and_error(fixed - arrays["gap/uniform"], dim=1)
    smallest = int(difference.argmin())
    several = len(config.seeds) > 1
    found = Finding(difference[smallest].item(), error[smallest].item() if several else None)
    return {"known-language-uniform-size": found}
