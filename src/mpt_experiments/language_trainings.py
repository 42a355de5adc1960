"""Small BERTs trained on languages of known probability, by law of the mask size."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import vector_to_parameters
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from mpt_experiments.experiment import Arrays, RunContext, seeded
from mpt_experiments.resume import surroundings
from mpt_experiments.side_by_side import SideBySide
from mpt_lml import fit, masks, scores
from mpt_lml.files import computed_once
from mpt_lml.models.base import TractableModel
from mpt_lml.models.grammar import Grammar
from mpt_lml.models.hmm import HMM
from mpt_score.networks.symbol_bert import SymbolBERT

# -- languages ----------------------------------------------------------------------------------------


def circle(num_features: int, *, advance: float, uniform: float, preferred: float) -> HMM:
    """Six states on a circle with two symbols each, as ``HMM.cyclic`` has them, and other habits.

    A state is followed by its successor (``advance``), by any state at random (``uniform``), or by
    itself. How fast the chain forgets follows from the first two; ``preferred`` is the share of a state's
    own symbols among what it emits.
    """
    language = HMM.cyclic(num_features=num_features, preferred=preferred)
    stay = torch.eye(6, dtype=torch.float64)
    successor = stay.roll(1, dims=1)
    transition = advance * successor + uniform / 6 + (1 - advance - uniform) * stay
    return HMM(language.initial, transition, language.emission, num_features)


def near(num_features: int) -> HMM:
    """A circle that forgets a third or more at every step, and shows its state well."""
    return circle(num_features, advance=0.5, uniform=0.4, preferred=0.95)


def middle(num_features: int) -> HMM:
    """The known language of Chapter 10."""
    return HMM.cyclic(num_features=num_features)


def far(num_features: int) -> HMM:
    """A circle that runs like a clock, and shows its state badly: many symbols tell where it is."""
    return circle(num_features, advance=0.97, uniform=0.01, preferred=0.8)


def brackets(num_features: int) -> Grammar:
    """Nested brackets of three kinds, given the length."""
    return Grammar.brackets(num_features=num_features)


SOURCES: dict[str, Callable[[int], TractableModel]] = {
    "near": near,
    "middle": middle,
    "far": far,
    "grammar": brackets,
}


# -- laws of the size ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class BellSize(masks.SizeLaw):
    """P(M) proportional to a normal density at the rate M/D."""

    mean: float
    deviation: float

    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        rate = torch.arange(1, num_features + 1).double() / num_features
        return (-0.5 * ((rate - self.mean) / self.deviation).square()).softmax(dim=0)


@dataclass(frozen=True)
class BandSize(masks.SizeLaw):
    """Uniform over the sizes whose rate M/D lies from ``low`` to ``high``."""

    low: float
    high: float

    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        rate = torch.arange(1, num_features + 1).double() / num_features
        inside = ((rate >= self.low) & (rate <= self.high)).double()
        return inside / inside.sum()


@dataclass(frozen=True)
class EitherRate(masks.SizeLaw):
    """One of two rates, each half of the time."""

    low: float
    high: float

    def probabilities(self, num_features: int) -> Float[Tensor, " D"]:
        both = [masks.FixedRate(rate).probabilities(num_features) for rate in (self.low, self.high)]
        return (both[0] + both[1]) / 2


class Recipe(NamedTuple):
    """A law of sizes, and by what a size's score is multiplied."""

    law: masks.SizeLaw
    is_unbiased: bool = (
        False  # weights 1/(D P(M)), so that the objective is the area; else all are 1
    )

    def weights(self, num_features: int) -> Float[Tensor, " D"]:
        """Of the scores of each size 1..D."""
        if self.is_unbiased:
            return self.law.weights(num_features).float()
        return torch.ones(num_features)


RECIPES: dict[str, Recipe] = {
    "uniform": Recipe(masks.UniformSize(), is_unbiased=True),
    "inverse-root": Recipe(masks.PowerSize(-0.5), is_unbiased=True),
    "bell": Recipe(BellSize(0.5, 0.2)),
    "band-45-55": Recipe(BandSize(0.45, 0.55)),
    "either-5-50": Recipe(EitherRate(0.05, 0.5)),
    "either-15-85": Recipe(EitherRate(0.15, 0.85)),
    "either-50-95": Recipe(EitherRate(0.5, 0.95)),
    "fixed-5": Recipe(masks.FixedRate(0.05)),
    "fixed-15": Recipe(masks.FixedRate(0.15)),  # BERT's: what users have
    "fixed-25": Recipe(masks.FixedRate(0.25)),
    "fixed-40": Recipe(masks.FixedRate(0.4)),
    "fixed-50": Recipe(masks.FixedRate(0.5)),
    "fixed-60": Recipe(masks.FixedRate(0.6)),
    "fixed-75": Recipe(masks.FixedRate(0.75)),
    "fixed-85": Recipe(masks.FixedRate(0.85)),
    "fixed-95": Recipe(masks.FixedRate(0.95)),
}


# -- trainings ----------------------------------------------------------------------------------------

CHECKPOINT_SHARES = (0.25, 0.375, 0.5, 0.625, 0.75, 1.0)
"""Of the steps, after which the weights are kept. In the first quarter the pilot learned which symbols
there are, and nothing else."""


@dataclass(frozen=True)
class Training:
    """Everything that decides the weights of some networks: one a seed, trained side by side."""

    source: str
    num_features: int
    law: str
    width: int
    seeds: tuple[int, ...]
    num_steps: int
    batch_size: int
    learning_rate: float
    half_precision: bool
    # By torch.compile: a step takes 0.6 of its time, after half a minute with a C++ compiler.
    is_compiled: bool = False

    @property
    def name(self) -> str:
        seeds = "-".join(map(str, self.seeds))
        return (
            f"{self.source}-{self.num_features}-{self.law}-width-{self.width}-"
            f"steps-{self.num_steps}-batch-{self.batch_size}-rate-{self.learning_rate:g}-"
            f"seeds-{seeds}{'-compiled' if self.is_compiled else ''}"
        )

    def steps_kept(self) -> list[int]:
        return sorted({max(1, round(share * self.num_steps)) for share in CHECKPOINT_SHARES})

    def language(self) -> TractableModel:
        return SOURCES[self.source](self.num_features)

    def network(self, seed: int) -> SymbolBERT:
        """As it is before the training."""
        num_values = self.language().num_values
        assert num_values is not None
        return SymbolBERT(num_values, self.num_features, self.width, seed=seed)

    def weights(self, context: RunContext) -> Arrays:
        """The weights after each of :meth:`steps_kept`, by step, (seeds, weights) each: in one file.

        The file depends on the training alone, so that another experiment finds it in the same folder.
        """
        if context.folder is None:
            return self.train(context)
        path = Path(context.folder, "trainings", f"{self.name}.safetensors")
        path.parent.mkdir(exist_ok=True)
        return computed_once(path, lambda: self.train(context), self.identity())

    def identity(self) -> dict[str, Any]:
        """What the weights depend on; of the sequences, the first batch stands for all."""
        first = self.language().sample(self.batch_size, generator=seeded(self.seeds[0]))
        return {**asdict(self), "data": RunContext.checksum([first]), **surroundings("cpu")}

    def train(self, context: RunContext) -> Arrays:
        """One mask a sequence, sizes spread evenly over a batch, sequences never seen twice.

        Trainings with the same seeds and batches see the same sequences, whatever their law.
        """
        source = self.language()
        networks = [self.network(seed) for seed in self.seeds]
        mask_token = networks[0].mask_token
        together = SideBySide([model.network for model in networks])
        if self.is_compiled:
            together.compile()
        of_sequences = seeded(self.seeds[0])
        of_masks = seeded(self.seeds[0] + 1)
        recipe = RECIPES[self.law]
        weight_of_size = recipe.weights(self.num_features)
        dtype = torch.bfloat16 if self.half_precision else torch.float32
        optimizer = AdamW(together.parameters(), lr=self.learning_rate, fused=True)
        schedule = OneCycleLR(optimizer, self.learning_rate, total_steps=self.num_steps)
        shape = (len(self.seeds), self.batch_size, self.num_features)

        def loss(step: int) -> Tensor:
            x = source.sample(shape[0] * shape[1], generator=of_sequences)
            of_each = [
                masks.stratified_masks(self.batch_size, shape[2], recipe.law, generator=of_masks)
                for _ in self.seeds
            ]
            mask = torch.cat(of_each)
            logits = together(x.masked_fill(mask, mask_token).view(shape), dtype)
            losses = functional.cross_entropy(logits.flatten(0, 2), x.flatten(), reduction="none")
            score = scores.mask_score(losses.view_as(x), mask)
            weighted = weight_of_size[mask.sum(dim=1) - 1] * score
            return weighted.view(shape[:2]).mean(dim=1).sum()

        _, kept = fit.descend(
            together,
            loss,
            [schedule],
            num_steps=self.num_steps,
            generators=[of_sequences, of_masks],
            watch=together.vectors,
            watched=self.steps_kept(),
            progress=context.progress,
            label=self.name,
        )
        return {f"{step}": weights for step, weights in zip(self.steps_kept(), kept, strict=True)}

    def network_after(self, weights: Float[Tensor, " weights"]) -> SymbolBERT:
        """The network that has these weights: a row of what :meth:`weights` gives."""
        model = self.network(seed=0)
        vector_to_parameters(weights, model.network.parameters())
        model.network.requires_grad_(False)
        return model


@dataclass(frozen=True)
class ModernTraining(Training):
    """The same with ModernBERTs, which learn long sequences much sooner."""

    @property
    def name(self) -> str:
        return f"modern-{super().name}"

    def network(self, seed: int) -> SymbolBERT:
        num_values = self.language().num_values
        assert num_values is not None
        return SymbolBERT(num_values, self.num_features, self.width, "modern", seed=seed)

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "architecture": "modern"}
