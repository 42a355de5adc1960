"""Networks for a language whose likelihood is known: their training, and what they lack of the source."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.seeds import require_seeds
from experiments.trainings.side_by_side import train_side_by_side
from mpt_lml import masks, scores
from mpt_lml.checks import Count, Positive, Within, checked
from mpt_lml.fit import Progress, silent
from mpt_lml.models.base import ConditionalModel
from mpt_lml.models.hmm import HMM
from mpt_lml.verdicts import mean_and_error
from mpt_score.networks.symbol_bert import SymbolBERT


class Stratified(masks.UniformSize):
    """Uniform sizes, spread evenly over each batch: ``masks.sample_masks`` asks a law's ``sample``."""

    sample = masks.SizeLaw.stratified


TEST_SEED = 10
"""Seed of the sequences and orders on which networks are compared with the source."""

LAWS: dict[str, masks.SizeLaw] = {
    "fixed-15": masks.FixedRate(0.15),
    "fixed-50": masks.FixedRate(0.5),
    "fixed-80": masks.FixedRate(0.8),
    "uniform": masks.UniformSize(),
    "stratified": Stratified(),
}
"""The laws of the mask size that the chapter compares, by name."""


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
        # The mask of size 1 hides rank 0, which is therefore revealed last.
        order = ranks.argsort(dim=1, descending=True)
        self.order = order.view(num_data, num_orders, features)
        self.mask = masks.nested_masks(self.order).flatten(0, 2)
        self.rows = self.x.repeat_interleave(num_orders * features, dim=0)
        self.values = source.log_each(self.rows, self.mask)

    @classmethod
    def of_the_record(cls, source: HMM, settings: "KnownLanguageSettings") -> "Problem":
        """The sequences and orders on which the record compares: those of seed 10."""
        test_draws = torch.Generator().manual_seed(TEST_SEED)
        return cls(source, settings.num_test, settings.num_orders, generator=test_draws)

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
        # Of the mask of size M, which hides the last M of the order, the one shown next: order[D − M].
        next_of_size = self.order.flip(-1)[..., None]
        shown_next = difference.view(*self.order.shape, -1).gather(3, next_of_size)
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


# -- the training ------------------------------------------------------------------------------


@checked
@dataclass(frozen=True)
class KnownLanguageSettings:
    """Networks that are trained side by side, one for each law and seed. The defaults are the record's.

    Args:
        laws: names in :data:`LAWS`.
        seeds: of a network's first weights, and of its sequences and masks.
        num_steps: of AdamW.
        batch_size: sequences a step and network.
        learning_rate: the largest of one cycle.
        half_precision: products in bfloat16, where the device has it.
        width: units of a layer.
        num_test: fresh sequences on which source and networks are compared.
        num_orders: of each of them, each with D masks.
    """

    laws: tuple[str, ...] = tuple(LAWS)
    seeds: tuple[int, ...] = (4, 44, 444)
    num_steps: Count = 3000
    batch_size: Count = 128
    learning_rate: Positive = 3e-3
    half_precision: bool = True
    width: Annotated[int, Within(4)] = 64
    num_test: Annotated[int, Within(2)] = 2000
    num_orders: Annotated[int, Within(2)] = 4

    def __post_init__(self) -> None:
        require_seeds(self.seeds)
        unknown = [law for law in self.laws if law not in LAWS]
        if unknown or not self.laws:
            raise ValueError(f"laws must be some of {', '.join(LAWS)}, got {self.laws}.")


@checked
def train_known_language(
    settings: KnownLanguageSettings,
    *,
    source: HMM | None = None,
    device: torch.device | None = None,
    progress: Progress = silent,
) -> dict[str, list[SymbolBERT]]:
    """Train one network for each law and seed, all of them side by side.

    Args:
        settings: of networks and training.
        source: the language; None is ``HMM.cyclic()``, the book's.
        device: where the networks are trained; None is the CPU. Draws are the same on every device.
        progress: shows the steps as they pass.

    Returns:
        The networks of each law, one for each seed, on ``device``.

    Raises:
        FloatingPointError: where a loss is not finite any more.

    >>> short = KnownLanguageSettings(laws=("uniform",), num_steps=2, batch_size=4, width=8)
    >>> train_known_language(short)["uniform"][0].num_features
    16
    """
    language = HMM.cyclic() if source is None else source
    size = (language.num_values, language.num_features, settings.width)
    models = {
        law: [SymbolBERT(*size, seed=seed) for seed in settings.seeds] for law in settings.laws
    }
    in_a_row = [model.to(device or "cpu") for of_law in models.values() for model in of_law]
    # One for each network, in the same order: seeds fastest.
    laws = [LAWS[law] for law in settings.laws for _ in settings.seeds]
    generators = [torch.Generator().manual_seed(s) for _ in settings.laws for s in settings.seeds]
    train_side_by_side(
        in_a_row,
        language,
        laws,
        generators=generators,
        num_steps=settings.num_steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        half_precision=settings.half_precision,
        progress=progress,
    )
    return models
