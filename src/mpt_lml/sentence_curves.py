"""The curve of a masked language model on sentences of many lengths: exact sizes, no padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.data import Tokens
from mpt_lml.masks import from_ranks
from mpt_lml.models.masked_lm import MaskedLM
from mpt_lml.results import Estimate
from mpt_lml.scores import mask_score
from mpt_lml.shapes import require_count
from mpt_lml.verdicts import mean_and_error

__all__ = ["Design", "SentenceCurves", "curves"]

_Part = Mapping[str, Tensor]
PAPER_UNIT = 0.01 * 512 * 99
"""The paper's area of a curve that is 1 everywhere: 512 · 0.01 · Σ over 1, ..., 99 %."""


@dataclass(frozen=True)
class Design:
    """Which masks each sentence gets, all drawn on their own.

    Attributes
    ----------
    rates : tuple of int
        In percent; M = ⌈rD/100⌉ of a sentence's D tokens.
    strata : int, optional
        Instead of rates, for an unbiased area: the sizes 1..D are cut into so many strata, and
        each mask takes a random size from its own.
    num_masks : int
        Masks for each rate or stratum.
    seed : int
        Every sentence has a generator of its own: its masks depend on its number, not on batches.

    Raises ``ValueError`` for rates that do not increase within 1..100, and for counts below one.

    >>> Design(strata=4).columns
    (12.5, 37.5, 62.5, 87.5)
    """

    rates: tuple[int, ...] = tuple(range(1, 100))
    strata: int | None = None
    num_masks: int = 1
    seed: int = 4

    def __post_init__(self) -> None:
        require_count("num_masks", self.num_masks, 1)
        if self.strata is not None:
            require_count("strata", self.strata, 1)
        for rate in self.rates:
            require_count("rate in percent", rate, 1, 100)
        if not self.rates or list(self.rates) != sorted(set(self.rates)):
            raise ValueError(f"rates must increase, in percent, got {self.rates}.")

    @property
    def columns(self) -> tuple[float, ...]:
        """The rates, or the centers of the strata, in percent."""
        if self.strata is None:
            return tuple(float(rate) for rate in self.rates)
        return tuple(100.0 * (k + 0.5) / self.strata for k in range(self.strata))

    @property
    def has_area(self) -> bool:
        """Whether the mean over the columns is an area, and not, as at 15 % alone, a height.

        It is for strata, and for three or more rates a step apart, with half a step to a step left
        at either end, and as much.
        """
        if self.strata is not None or len(self.rates) < 3:
            return self.strata is not None
        first, second, last = self.rates[0], self.rates[1], self.rates[-1]
        step = second - first
        even = self.rates == tuple(range(first, last + 1, step))
        return even and step / 2 - 1 <= first <= step and abs(first + last - 100) <= 1

    def require_area(self) -> None:
        """Raise ``ValueError`` where the rates have no area."""
        if not self.has_area:
            raise ValueError(
                f"the mean over {self.rates} % is no area: that takes rates all over the range, "
                "such as 5, 15, ..., 95."
            )

    def generator(self, sentence: int) -> torch.Generator:
        """The source of randomness of one sentence."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + sentence)

    def masks(self, row: Tokens, sentence: int) -> Bool[Tensor, "P L"]:
        """The masks of one sentence, for each repeat all columns, and last the one of everything."""
        generator = self.generator(sentence)
        count = self.num_masks * len(self.columns)
        ranks = row.rows(torch.zeros(count).long()).sample_ranks(generator=generator)
        if self.strata is None:
            sizes = row.sizes_at(torch.tensor(self.rates))
        else:
            jitter = torch.rand(self.num_masks, self.strata, generator=generator)
            edges = torch.arange(self.strata + 1, dtype=torch.float64) / self.strata
            level = edges[:-1] + edges.diff() * jitter
            sizes = ((level * row.num_features).long() + 1).clamp(max=row.num_features)
        sizes = sizes.expand(self.num_masks, -1).flatten()
        return torch.cat([from_ranks(ranks, sizes), row.maskable])


@dataclass(frozen=True)
class SentenceCurves:
    """Scores of every sentence, repeat and rate, with a control variate for each.

    Attributes
    ----------
    design : Design
    raw : Tensor (N, K, R) float64
        (1/M) Σ_{j∈A} log q(x_j | x_R), nats per token.
    control : Tensor (N, K, R)
        (1/M) Σ_{j∈A} b_j less its mean over masks; b_j = log q(x_j), everything hidden.
    hidden : Tensor (N,)
        (1/D) Σ_j b_j, the score of the mask that hides everything: the curve's right end, exact.
    num_features : Tensor (N,)
        D of each sentence.

    >>> raw, sizes = torch.tensor([[[-1.0, -3.0]], [[-2.0, -6.0]]]), torch.tensor([10, 20])
    >>> SentenceCurves(Design(strata=2), raw, 0 * raw, raw[:, 0, 1], sizes).area("sentence")
    -50.0000 ± 30.0000 nats
    """

    design: Design
    raw: Float[Tensor, "N K R"]
    control: Float[Tensor, "N K R"]
    hidden: Float[Tensor, " N"]
    num_features: Int[Tensor, " N"]

    @property
    def values(self) -> Float[Tensor, "N K R"]:
        """The scores less a multiple of their control variates, nats per token.

        The factor for each rate comes from the other half of the sentences, so that the mean stays
        what it was. From fewer than five degrees of freedom it has no finite variance; the raw
        scores are better then.
        """
        half, repeats = len(self.raw) // 2, self.raw.shape[1]
        if (half * (repeats - 1) if repeats > 1 else half - 1) < 5:
            return self.raw
        result = self.raw.clone()
        for own in (slice(0, None, 2), slice(1, None, 2)):
            other = slice(1 - own.start, None, 2)
            result[own] -= _slope(self.control[other], self.raw[other]) * self.control[own]
        return result

    @property
    def each(self) -> Float[Tensor, "N R"]:
        """The curve of each sentence: mean over its masks, nats per token."""
        return self.values.mean(dim=1)

    @property
    def score(self) -> Float[Tensor, " R"]:
        """The curve: mean over sentences and masks, nats per token."""
        return self.each.mean(dim=0)

    @property
    def standard_error(self) -> Float[Tensor, " R"]:
        """Of :attr:`score`, over sentences (it contains the spread over masks); nan for one."""
        return mean_and_error(self.each)[1]

    def area(self, per: Literal["token", "sentence", "paper"] = "token") -> Estimate:
        """The area with its error over sentences, nats.

        ``"token"``: mean score over the rates. ``"sentence"``: Σ_{M=1}^D S(M), each over its own D.
        ``"paper"``: 512 · 0.01 · Σ over 1..99 %, as if every sentence had 512 tokens.

        Raises ``ValueError`` where the design's rates have no area.
        """
        self.design.require_area()
        unit = PAPER_UNIT if per == "paper" else self.num_features if per == "sentence" else 1.0
        mean, error = mean_and_error(self.each.mean(dim=1) * unit)
        return Estimate(mean.item(), error.item(), len(self.raw))

    def mask_error(self, *, control: bool = True) -> float:
        """Standard error of :meth:`area` per token for these very sentences, over masks, nats."""
        areas = (self.values if control else self.raw).mean(dim=2)
        require_count("masks for each rate", areas.shape[1], 2)
        return mean_and_error(areas, dim=1)[1].square().sum().sqrt().item() / len(areas)


def _slope(control: Float[Tensor, "N K R"], score: Float[Tensor, "N K R"]) -> Float[Tensor, " R"]:
    """Least squares within sentences where several masks of one rate allow it, else over all."""
    axes = (1,) if score.shape[1] > 1 else (0, 1)
    x, y = (each - each.mean(dim=axes, keepdim=True) for each in (control, score))
    return (x * y).sum(dim=(0, 1)) / x.square().sum(dim=(0, 1)).clamp_min(1e-30)


def curves(
    model: MaskedLM,
    tokens: Tokens,
    design: Design,
    *,
    keep: Callable[[str, Callable[[], _Part]], _Part] = lambda _, work: work(),
    part_size: int = 16,
    progress: Callable[[Iterable[Any], str], Iterable[Any]] = lambda items, _: items,
) -> SentenceCurves:
    """Score every sentence under every mask of ``design`` (paper, Section 3.2).

    Sentences go in order of their length, ``part_size`` at a time; ``keep(name, work)`` may return
    what an earlier call kept of a part instead of ``work()``.

    >>> from mpt_lml import data, networks
    >>> network, tokenizer = networks.load_small_bert()
    >>> rows = data.encode(tokenizer, ["She was alone in the house."])
    >>> curves(MaskedLM.of(network, tokenizer), rows, Design((20, 50, 80))).score.shape
    torch.Size([3])
    """
    order = tokens.lengths.argsort(stable=True)
    parts = [
        keep(f"part-{index:05d}", partial(_part, model, tokens, chosen, design))
        for index, chosen in progress(list(enumerate(order.split(part_size))), "sentences")
    ]
    raw, control, hidden = (
        torch.cat([part[name] for part in parts])[order.argsort()]
        for name in ("raw", "control", "hidden")
    )
    return SentenceCurves(design, raw, control, hidden, tokens.num_features)


def _part(model: MaskedLM, tokens: Tokens, chosen: Int[Tensor, " B"], design: Design) -> _Part:
    """Scores and control variates of a few sentences, equally long ones in one batch."""
    found = []
    lengths = tokens.lengths[chosen]
    for length in lengths.unique():
        numbers = chosen[lengths == length]
        rows = tokens.rows(numbers)
        each = [design.masks(rows.rows(torch.tensor([i])), int(n)) for i, n in enumerate(numbers)]
        mask = torch.stack(each)
        values = model.log_tokens(
            rows.ids.repeat_interleave(mask.shape[1], dim=0),
            mask.flatten(0, 1),
            types=rows.types.repeat_interleave(mask.shape[1], dim=0),
            generator=design.generator(int(numbers[0]) + 2**30),
        ).view(mask.shape)
        alone = values[:, -1:].expand_as(values)  # b_j, as the last mask hides everything
        found.append(torch.stack([mask_score(values, mask), mask_score(alone, mask)]))
    raw, alone = torch.cat(found, dim=1)
    hidden = raw[:, -1]
    shape = (len(chosen), design.num_masks, -1)
    control = (alone[:, :-1] - hidden[:, None]).reshape(shape)
    return {"raw": raw[:, :-1].reshape(shape), "control": control, "hidden": hidden}
