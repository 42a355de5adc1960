"""The curve of a masked language model on sentences of many lengths: exact sizes, no padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.results import Estimate, as_rows
from mpt_lml.scores import mask_score
from mpt_lml.spec import require, require_count
from mpt_lml.theory.rates import crossover, jackknife
from mpt_lml.verdicts import mean_and_error
from mpt_score.design import Design
from mpt_score.keep import Part, Run, afresh, named, parts_of
from mpt_score.scorer import Scorer, Texts, load
from mpt_score.tokens import Tokens

PAPER_UNIT = 0.01 * 512 * 99
"""The paper's area of a curve that is 1 everywhere: 512 · 0.01 · Σ over 1, ..., 99 %."""


@dataclass(frozen=True, eq=False)
class SentenceCurves:
    """Scores of every sentence, repeat and rate, with a control variate for each.

    ``raw`` (N, K, R) is (1/M) Σ_{j∈A} log q(x_j | x_R), nats per token; ``control`` (N, K, R) is
    (1/M) Σ_{j∈A} b_j less its mean over masks, b_j = log q(x_j), everything hidden; ``hidden`` (N,) is
    (1/D) Σ_j b_j, the curve's right end, exact. ``num_features`` is D of each sentence.

    >>> raw, sizes = torch.tensor([[[-1.0, -3.0]], [[-2.0, -6.0]]]), torch.tensor([10, 20])
    >>> SentenceCurves(Design(strata=2), raw, 0 * raw, raw[:, 0, 1], sizes).area("sentence")
    -50.0000 ± 30.0000 nats
    """

    design: Design
    raw: Float[Tensor, "N K R"]
    control: Float[Tensor, "N K R"]
    hidden: Float[Tensor, " N"]
    num_features: Int[Tensor, " N"]

    def __post_init__(self) -> None:
        require(vars(self), "design Design")
        spec = "raw N K R, control N K R, hidden N, int num_features N"
        require(vars(self), spec, R=len(self.design.columns))
        require({"num_features": self.num_features.tolist()}, "num_features* 1..")

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
        require(locals(), "per token|sentence|paper")
        self.design.require_area()
        unit = PAPER_UNIT if per == "paper" else self.num_features if per == "sentence" else 1.0
        mean, error = mean_and_error(self.each.mean(dim=1) * unit)
        return Estimate(mean.item(), error.item(), len(self.raw))

    def mean_rate(self, num_groups: int = 10) -> Estimate:
        """r*, the rate in percent at which the curve has its mean height; jackknife error over sentences.

        Raises ``ValueError`` where the design's rates have no area, or all lie on one side of it.
        """
        require(locals(), "num_groups 2..")
        self.design.require_area()
        require_count("texts behind a jackknife", len(self.raw), 2)
        percent, each = torch.tensor(self.design.columns).double(), self.each
        count = min(num_groups, len(each))
        # Sums for means: a curve has its mean height where any multiple of it has.
        sums = torch.stack([each[k::count].sum(dim=0) for k in range(count)])
        rate, error = jackknife(lambda curve: crossover(curve, percent), sums)
        return Estimate(rate, error, count, "%")

    def bias_at(self, rates: Sequence[int | float] = (15, 25, 40)) -> dict[Any, Estimate]:
        """D·S(rate) − area at each of ``rates`` in percent, with its error over sentences, nats.

        What a fixed rate says of a sentence too much, between two rates of the design by a straight
        line. Raises ``ValueError`` for a rate outside them, and where they have no area.
        """
        require(locals(), "rates Sequence, rates* (-inf,inf)")
        self.design.require_area()
        columns, found = np.array(self.design.columns), {}
        for rate in rates:
            if not columns[0] <= rate <= columns[-1]:
                raise ValueError(
                    f"a rate of {rate} % is outside the design's {columns[0]}..{columns[-1]} %."
                )
            weights = np.array([np.interp(rate, columns, row) for row in np.eye(len(columns))])
            excess = self.each @ torch.tensor(weights) - self.each.mean(dim=1)
            mean, error = mean_and_error(self.num_features * excess)
            found[rate] = Estimate(mean.item(), error.item(), len(self.raw))
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One a rate, for a table: percent, score and its error over sentences, nats a token."""
        columns = {"rate": self.design.columns, "score": self.score}
        return as_rows(columns | {"standard_error": self.standard_error})

    def plot(self, ax: Any, label: str | None = None) -> None:
        """Draw the curve on a matplotlib ``ax``, two standard errors shaded; an area's mean dashed."""
        require(locals(), "ax Axes, label? str")
        percent, score = self.design.columns, self.score.numpy()
        reach = 2 * self.standard_error.nan_to_num().numpy()
        (line,) = ax.plot(percent, score, marker="o" if len(score) <= 30 else "", label=label)
        shade = {"color": line.get_color(), "alpha": 0.25, "lw": 0}
        ax.fill_between(percent, score - reach, score + reach, **shade)
        if self.design.has_area:
            ax.axhline(self.area(), color=line.get_color(), ls="--", lw=1.0)
        ax.set_xlabel("masked tokens  [%]")
        ax.set_ylabel("score  [nats / token]")

    def mask_error(self, *, control: bool = True) -> float:
        """Standard error of :meth:`area` per token for these very sentences, over masks, nats."""
        require(locals(), "control bool")
        areas = (self.values if control else self.raw).mean(dim=2)
        require_count("masks for each rate", areas.shape[1], 2)
        return mean_and_error(areas, dim=1)[1].square().sum().sqrt().item() / len(areas)


def _slope(control: Float[Tensor, "N K R"], score: Float[Tensor, "N K R"]) -> Float[Tensor, " R"]:
    """Least squares within sentences where several masks of one rate allow it, else over all."""
    axes = (1,) if score.shape[1] > 1 else (0, 1)
    x, y = (each - each.mean(dim=axes, keepdim=True) for each in (control, score))
    return (x * y).sum(dim=(0, 1)) / x.square().sum(dim=(0, 1)).clamp_min(1e-30)


def curve(
    model: Any,
    texts: Texts,
    design: Design | None = None,
    *,
    tokenizer: Any = None,
    part_size: int = 16,
    run: Run = afresh,
) -> SentenceCurves:
    """Score every text under every mask of ``design``, by default one at 1, 2, ..., 99 % (paper, 3.2).

    ``model``, ``tokenizer`` and ``texts`` are those of :func:`load` and :meth:`Scorer.encode`. Texts
    go in order of their length, ``part_size`` at a time; ``run(label, parts)`` returns what each of
    the named parts gives, now or in an earlier call. Raises ``ValueError`` for a text that is longer
    than the model takes.

    >>> from mpt_score.networks import small_bert_folder
    >>> texts = ["She was alone in the house."]
    >>> curve(small_bert_folder(), texts, Design((20, 50, 80))).score.shape
    torch.Size([3])
    """
    require(locals(), "design? Design, run Callable, part_size 1..")
    scorer, design = load(model, tokenizer), design or Design()
    tokens = scorer.encode(texts)
    scorer.require_length(tokens)
    order = tokens.lengths.argsort(stable=True)
    works = (partial(_part, scorer, tokens, some, design) for some in order.split(part_size))
    work, names = named("part", (design, part_size), [tokens], works), ("raw", "control", "hidden")
    found = parts_of(run, "sentences", work, *names)
    raw, control, hidden = (
        torch.cat([part[name] for part in found])[order.argsort()] for name in names
    )
    return SentenceCurves(design, raw, control, hidden, tokens.num_features)


def _part(model: Scorer, tokens: Tokens, chosen: Int[Tensor, " B"], design: Design) -> Part:
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
            rows.types.repeat_interleave(mask.shape[1], dim=0),
            numbers=numbers.repeat_interleave(mask.shape[1]),
            generator=design.generator(int(numbers[0]) + 2**30),
        ).view(mask.shape)
        alone = values[:, -1:].expand_as(values)  # b_j, as the last mask hides everything
        found.append(torch.stack([mask_score(values, mask), mask_score(alone, mask)]))
    raw, alone = torch.cat(found, dim=1)
    hidden = raw[:, -1]
    shape = (len(chosen), design.num_masks, -1)
    control = (alone[:, :-1] - hidden[:, None]).reshape(shape)
    return {"raw": raw[:, :-1].reshape(shape), "control": control, "hidden": hidden}
