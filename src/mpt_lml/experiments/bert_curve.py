"""The curve of a masked language model on a list of sentences: exact sizes, no padding, resumable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.data import Tokens
from mpt_lml.experiments.registry import Progress, silent
from mpt_lml.files import replacing
from mpt_lml.models.masked_lm import MaskedLM
from mpt_lml.results import Estimate
from mpt_lml.shapes import require_count

PAPER_LENGTH = 512
"""Tokens in the paper's area: 512 · 0.01 · Σ over rates in percent."""
PAPER_RATES = 99


@dataclass(frozen=True)
class Design:
    """Which masks each sentence gets, all drawn on their own.

    Attributes
    ----------
    rates : tuple of int
        In percent; M = ⌈rD/100⌉ of a sentence's D tokens.
    strata : int, optional
        For the area alone, instead of fixed rates: the sizes 1..D are cut into so many strata,
        and each mask takes a random size from its own. The area is then unbiased.
    power : float
        Where the strata are cut, at (k / strata)^power: equal ones for 1, narrow ones at small
        sizes for 2. There a mask says least, as it scores few tokens.
    num_masks : int
        Masks for each rate or stratum.
    seed : int
        Every sentence draws from a generator of its own, so that its masks depend on its number
        and not on batches or processes.
    """

    rates: tuple[int, ...] = tuple(range(1, 100))
    strata: int | None = None
    power: float = 1.0
    num_masks: int = 1
    seed: int = 4

    def __post_init__(self) -> None:
        require_count("num_masks", self.num_masks, 1)
        if not self.power > 0:
            raise ValueError(f"power must be positive, got {self.power}.")
        if self.strata is not None:
            require_count("strata", self.strata, 1)
        if not self.rates or list(self.rates) != sorted(set(self.rates)):
            raise ValueError(f"rates must increase, in percent, got {self.rates}.")

    @property
    def columns(self) -> tuple[float, ...]:
        """The rates, or the centers of the strata, in percent."""
        if self.strata is None:
            return tuple(float(rate) for rate in self.rates)
        return tuple((100.0 * (self._edges[1:] + self._edges[:-1]) / 2).tolist())

    @property
    def weights(self) -> Float[Tensor, " R"]:
        """The share of each column in the area: the width of its stratum."""
        if self.strata is None:
            return torch.full((len(self.rates),), 1.0 / len(self.rates), dtype=torch.float64)
        return self._edges.diff()

    @property
    def _edges(self) -> Float[Tensor, " edges"]:
        assert self.strata is not None
        return (torch.arange(self.strata + 1, dtype=torch.float64) / self.strata) ** self.power

    def generator(self, sentence: int) -> torch.Generator:
        """The source of randomness of one sentence."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + sentence)

    def masks(self, row: Tokens, sentence: int) -> Bool[Tensor, "P L"]:
        """The masks of one sentence, for each repeat all rates, and last the one of everything."""
        generator = self.generator(sentence)
        count = self.num_masks * len(self.columns)
        repeated = row.rows(torch.zeros(count, dtype=torch.int64))
        ranks = repeated.sample_ranks(generator=generator)
        if self.strata is None:
            sizes = row.sizes_at(torch.tensor(self.rates)).flatten()
            sizes = sizes.repeat(self.num_masks)
        else:
            jitter = torch.rand(self.num_masks, self.strata, generator=generator)
            level = (self._edges[:-1] + self.weights * jitter).flatten()
            sizes = ((level * row.num_features).long() + 1).clamp(max=row.num_features)
        return torch.cat([ranks < sizes[:, None], row.maskable])


@dataclass(frozen=True)
class SentenceCurves:
    """Scores of every sentence, repeat and rate, with a control variate for each.

    Which tokens a mask happens to hide moves its score more than anything else: rare words are
    hard under every mask. How hard token j is when everything is hidden, b_j, is known after one
    more row, and with it (1/M) Σ_{j∈A} b_j − (1/D) Σ_j b_j, which has mean zero over masks. A
    multiple of it is subtracted from each score, with a factor for each rate that comes from the
    other half of the sentences, so that the mean stays what it was.

    Attributes
    ----------
    rates : tuple of float
        In percent.
    raw : Tensor (N, K, R) float64
        (1/M) Σ_{j∈A} log q(x_j | x_R), nats per token.
    control : Tensor (N, K, R)
        The control variates.
    hidden : Tensor (N,)
        (1/D) Σ_j b_j, the score of the mask that hides everything: the curve's right end, exact.
    num_features : Tensor (N,)
        D of each sentence.
    weights : Tensor (R,)
        The share of each rate in the area.
    """

    rates: tuple[float, ...]
    raw: Float[Tensor, "N K R"]
    control: Float[Tensor, "N K R"]
    hidden: Float[Tensor, " N"]
    num_features: Int[Tensor, " N"]
    weights: Float[Tensor, " R"]

    @property
    def values(self) -> Float[Tensor, "N K R"]:
        """The scores with their control variates subtracted, where there are enough to fit them.

        A factor from fewer than five degrees of freedom has no finite variance; the raw scores
        are better then.
        """
        half, repeats = len(self.raw) // 2, self.raw.shape[1]
        if (half * (repeats - 1) if repeats > 1 else half - 1) < 5:
            return self.raw
        result = self.raw.clone()
        for own in (slice(0, None, 2), slice(1, None, 2)):
            other = slice(1 - own.start, None, 2)
            factor = _slope(self.control[other], self.raw[other])
            result[own] -= factor * self.control[own]
        return result

    @property
    def score(self) -> Float[Tensor, " R"]:
        """The curve: mean over sentences and masks, nats per token."""
        return self.values.mean(dim=(0, 1))

    @property
    def standard_error(self) -> Float[Tensor, " R"]:
        """Of :attr:`score`, over sentences (it contains the spread over masks); nan for one."""
        if len(self.raw) < 2:
            return torch.full_like(self.score, math.nan)
        return self.values.mean(dim=1).std(dim=0) / math.sqrt(len(self.raw))

    @property
    def each_area(self) -> Float[Tensor, " N"]:
        """Of each sentence: its mean score over the rates, nats per token."""
        return (self.values.mean(dim=1) * self.weights).sum(dim=1)

    def area_per_token(self) -> Estimate:
        """Mean score over the rates, nats per token."""
        return _estimate(self.each_area)

    def area_per_sentence(self) -> Estimate:
        """Σ_{M=1}^D S(M), each sentence over its own D, nats per sentence."""
        return _estimate(self.each_area * self.num_features)

    def paper_area(self) -> Estimate:
        """The paper's unit: 512 · 0.01 · Σ over 1..99 %, as if every sentence had 512 tokens."""
        return _estimate(0.01 * PAPER_LENGTH * PAPER_RATES * self.each_area)

    def mask_error(self, *, control: bool = True, sentences: str = "alike") -> float:
        """Standard error of :meth:`area_per_token` for these very sentences, over masks.

        With ``sentences="by length"`` that of the mean over all tokens, Σ_n D_n a_n / Σ_n D_n.
        """
        values = ((self.values if control else self.raw) * self.weights).sum(dim=2)
        require_count("masks for each rate", values.shape[1], 2)
        share = torch.ones(len(values), dtype=torch.float64)
        share = share if sentences == "alike" else self.num_features.double()
        share = share / share.sum()
        return (share.square() * values.var(dim=1) / values.shape[1]).sum().sqrt().item()


def _slope(control: Float[Tensor, "N K R"], score: Float[Tensor, "N K R"]) -> Float[Tensor, " R"]:
    """Least squares within sentences where several masks of one rate allow it, else over all."""
    axes = (1,) if score.shape[1] > 1 else (0, 1)
    x, y = (each - each.mean(dim=axes, keepdim=True) for each in (control, score))
    size = x.square().sum(dim=(0, 1))
    return (x * y).sum(dim=(0, 1)) / size.clamp_min(1e-30)


def _estimate(values: Float[Tensor, " N"]) -> Estimate:
    error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Estimate(values.mean().item(), error, len(values))


def curves(
    model: MaskedLM,
    tokens: Tokens,
    design: Design,
    *,
    folder: Path | None = None,
    process: tuple[int, int] = (0, 1),
    part_size: int = 16,
    progress: Progress = silent,
) -> SentenceCurves | None:
    """Score every sentence under every mask of ``design``.

    Sentences go in order of their length, ``part_size`` at a time. With ``folder`` each part is
    kept there and not computed again. ``process`` = (rank, number) takes every number-th part;
    the result is ``None`` where parts of other processes are not there yet.
    """
    order = tokens.lengths.argsort(stable=True)
    parts = list(enumerate(order.split(part_size)))
    rank, number = process
    found: dict[int, Parts] = {}
    for index, chosen in progress(parts[rank::number], "sentences"):
        found[index] = _part(model, tokens, chosen, design, folder, index)
    if number > 1 and folder is not None:
        for index, _ in parts:
            path = _path(folder, index)
            if index not in found and path.exists():
                found[index] = _load(path)
    if len(found) < len(parts):
        return None
    back = order.argsort()
    raw, control, hidden = (
        torch.cat([found[index][name] for index, _ in parts])[back] for name in PART
    )
    return SentenceCurves(design.columns, raw, control, hidden, tokens.num_features, design.weights)


Parts = dict[str, Tensor]
PART = ("raw", "control", "hidden")


def _path(folder: Path, index: int) -> Path:
    return folder / f"part-{index:05d}.safetensors"


def _load(path: Path) -> Parts:
    from safetensors.torch import load_file

    return load_file(path)


def _part(
    model: MaskedLM,
    tokens: Tokens,
    chosen: Int[Tensor, " B"],
    design: Design,
    folder: Path | None,
    index: int,
) -> Parts:
    """The scores of a few sentences, or what an earlier run kept of them."""
    from safetensors.torch import save_file

    path = None if folder is None else _path(folder, index)
    if path is not None and path.exists():
        return _load(path)
    found = list(_scores(model, tokens, chosen, design))
    part = {name: torch.cat([each[name] for each in found]) for name in PART}
    if path is not None:
        with replacing(path) as partial:
            save_file(part, partial)
    return part


def _scores(
    model: MaskedLM, tokens: Tokens, chosen: Int[Tensor, " B"], design: Design
) -> Iterator[Parts]:
    """Scores of sentences ordered by length, equally long ones in one batch."""
    for same in _runs(tokens.lengths[chosen].tolist()):
        numbers = chosen[same]
        rows = tokens.rows(numbers)
        mask = torch.stack(
            [design.masks(rows.rows(torch.tensor([i])), int(n)) for i, n in enumerate(numbers)]
        )
        count = mask.shape[1]
        scores = model.log_each(
            rows.ids.repeat_interleave(count, dim=0),
            mask.flatten(0, 1),
            types=rows.types.repeat_interleave(count, dim=0),
            generator=design.generator(int(numbers[0]) + 2**30),
        ).view(mask.shape)
        yield _summary(scores, mask, design)


def _summary(scores: Float[Tensor, "B P L"], mask: Bool[Tensor, "B P L"], design: Design) -> Parts:
    """Scores and control variates from the log-probabilities; the last mask hides everything."""
    shape = (len(scores), design.num_masks, len(design.columns))
    sizes = mask.sum(dim=2)
    everything = scores[:, -1:, :]
    hidden = everything.sum(dim=2) / sizes[:, -1:]
    control = (everything * mask).sum(dim=2) / sizes - hidden
    raw = scores.sum(dim=2) / sizes
    return {
        "raw": raw[:, :-1].reshape(shape),
        "control": control[:, :-1].reshape(shape),
        "hidden": hidden[:, 0],
    }


def _runs(lengths: Sequence[int]) -> Iterator[slice]:
    """Slices of equal neighbors."""
    start = 0
    for stop in range(1, len(lengths) + 1):
        if stop == len(lengths) or lengths[stop] != lengths[start]:
            yield slice(start, stop)
            start = stop


def chance(vocab_size: int, num_rates: int = PAPER_RATES) -> float:
    """The paper's area of a uniform guess: −512 · 0.01 · rates · ln V, nats."""
    return -0.01 * PAPER_LENGTH * num_rates * math.log(vocab_size)
