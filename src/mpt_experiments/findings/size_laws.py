"""Laws of the mask size, measured in passes: how soon a network comes within a fixed KL of the truth."""

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from mpt_experiments import language_trainings
from mpt_experiments.experiment import (
    Arrays,
    Experiment,
    Finding,
    Outcome,
    RunContext,
    seeded,
    setting,
)
from mpt_experiments.findings.known_language import masked_scores
from mpt_experiments.language_trainings import Recipe
from mpt_lml import fit, masks
from mpt_lml.models.base import ConditionalModel
from mpt_lml.models.hmm import HMM
from mpt_score.networks.symbol_bert import SymbolBERT

RECIPES = {
    "uniform": language_trainings.RECIPES["uniform"],
    "root": language_trainings.RECIPES["inverse-root"],
    "bell": language_trainings.RECIPES["bell"],
    "middle": language_trainings.RECIPES["band-45-55"],
}


class Referee:
    """The exact divergence of a network's conditionals from the source's, on fixed random masks.

    Every size comes as often as every other, so that the mean over masks is the area's gap,
    E_σ KL(p ‖ p_σ), with the sum over symbols in place of a drawn one.
    """

    def __init__(self, source: HMM, num_masks: int, *, generator: torch.Generator) -> None:
        length = source.num_features
        self.x = source.sample(num_masks, generator=generator)
        self.mask = masks.stratified_masks(
            num_masks, length, masks.UniformSize(), generator=generator
        )
        self.log_p = source.log_values(self.x, self.mask)

    @torch.no_grad()
    def gap(self, model: ConditionalModel) -> Float[Tensor, ""]:
        """D times the mean over hidden places of KL(p(x_j | x_R) ‖ q(x_j | x_R)), nats a sequence."""
        log_q = model.log_values(self.x, self.mask)[..., : self.log_p.shape[2]]
        divergence = (self.log_p.exp() * (self.log_p - log_q)).sum(dim=2)
        num_masked = self.mask.sum(dim=1)
        of_each = (divergence * self.mask).sum(dim=1) / num_masked
        return self.mask.shape[1] * of_each.mean()


def passes_to(gap: Float[Tensor, "*B T"], every: int, target: float) -> Float[Tensor, "*B"]:
    """The first time at which ``gap``, seen after 0, every, 2·every, ... steps, is at most ``target``.

    Straight lines in the logarithm of the gap join what was seen.

    Args:
        gap: positive, nats, (..., T).
        every: steps from one to the next.
        target: nats.

    Returns:
        Steps, (...); infinite where the target is not reached.

    >>> passes_to(torch.tensor([4.0, 2.0, 1.0, 0.5]), 100, 1.5).round()
    tensor(142.)
    """
    reached = gap <= target
    first = reached.int().argmax(dim=-1).clamp(min=1)
    after = gap.gather(-1, first[..., None])[..., 0].log()
    before = gap.gather(-1, first[..., None] - 1)[..., 0].log()
    above = before - math.log(target)
    share = (above / (before - after)).where(above > 0, 0.0)
    steps = every * (first - 1 + share)
    return steps.where(reached.any(dim=-1), torch.inf)


class LawsOfSizes(Experiment, name="laws-of-sizes", cost="about 10 min", resumable=True, gpu=False):
    """Passes until a BERT is within a fixed exact KL of a known language, by law of the mask size.

    Four recipes (``RECIPES``): uniform sizes; sizes ∝ M^(−1/2) with weights; a bell around one half;
    rates of 45 to 55 % only. The last two have equal weights.
    All runs of a seed have the same start and the same sequences, each sequence seen once; a step is
    one pass of ``batch_size`` sequences. The learning rate rises for ``num_warmup`` steps and stays.

    The rule, from before the run: the loss of a recipe is the steps to ``target`` nats, in units of
    those of uniform sizes with the same seed. A recipe is called faster, or slower, than uniform sizes
    where the 99 % interval of the mean logarithm over the seeds (Student's t) lies below zero, or
    above; else nothing is said. A recipe that does not reach the target in some seed is called so.
    The learning rate and the target were chosen in a pilot with uniform sizes and another seed.

    Arrays: ``gap/RECIPE`` (seeds, evaluations), the exact KL in nats a sequence after 0,
    ``every``, ... steps; ``passes/RECIPE`` (seeds,), steps to the target.
    """

    seeds: tuple[int, ...] = setting((4, 44, 444, 4444, 44444), quick=(4, 44))
    num_features: int = setting(16, quick=8)
    batch_size: int = setting(64, quick=16)
    num_steps: int = setting(900, quick=8)
    every: int = setting(25, quick=2)
    num_warmup: int = setting(100, quick=2)
    learning_rate: float = 3e-3
    width: int = setting(64, quick=16)
    num_masks: int = setting(256, quick=16)
    target: float = setting(2.5, quick=8.0)
    half_precision: bool = True  # products in bfloat16; the weights and AdamW stay float32

    def measure(self, context: RunContext) -> Outcome:
        source = HMM.cyclic(num_features=self.num_features)
        referee = Referee(source, self.num_masks, generator=seeded(10))
        checksum = context.checksum([referee.x, referee.mask])

        def trained(name: str, seed: int) -> Arrays:
            def compute() -> Arrays:
                return {"gap": self.train(source, referee, RECIPES[name], seed, context)}

            return context.computed_once(f"{name}-{seed}", compute, data=checksum)

        arrays: Arrays = {}
        for name in RECIPES:
            gap = context.stack(partial(trained, name), self.seeds, name)["gap"]
            arrays[f"gap/{name}"] = gap
            arrays[f"passes/{name}"] = passes_to(gap, self.every, self.target)
        return Outcome(self.findings(arrays), arrays, checksum)

    def findings(self, arrays: Arrays) -> dict[str, Finding]:
        """Mean logarithm of the steps to the target, minus that of uniform sizes, where both reach it."""
        result = {}
        for name in RECIPES:
            ratio = (arrays[f"passes/{name}"] / arrays["passes/uniform"]).log()
            if name != "uniform" and ratio.isfinite().all():
                result[f"laws-of-sizes/{name}"] = Finding.over(ratio)
        return result

    def train(
        self, source: HMM, referee: Referee, recipe: Recipe, seed: int, context: RunContext
    ) -> Float[Tensor, " T"]:
        """The gap after 0, ``every``, ... steps of one training."""
        length = source.num_features
        model = SymbolBERT(source.num_values, length, self.width, seed=seed)
        data_generator = seeded(seed)
        mask_generator = seeded(seed + 1)
        optimizer = AdamW(model.network.parameters(), lr=self.learning_rate, fused=True)
        schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / self.num_warmup))
        weight_of_size = recipe.weights(length)

        def loss(step: int) -> Tensor:
            x = source.sample(self.batch_size, generator=data_generator)
            size = recipe.law.sample(len(x), length, generator=mask_generator)
            ranks = masks.sample_ranks(len(x), length, generator=mask_generator)
            score = masked_scores(model, x, masks.from_ranks(ranks, size), self.half_precision)
            return -(weight_of_size[size - 1] * score).mean()

        _, gaps = fit.descend(
            model.network,
            loss,
            [schedule],
            num_steps=self.num_steps,
            generators=[data_generator, mask_generator],
            watch=lambda: referee.gap(model),
            watched=range(0, self.num_steps + 1, self.every),
            progress=context.progress,
            label="step",
        )
        return torch.stack(gaps)
