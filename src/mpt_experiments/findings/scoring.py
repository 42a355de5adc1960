"""How well a few masks tell the score of a text, by look-up among all masks."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from numpy.polynomial.legendre import leggauss
from torch import Tensor
from torch.nn.functional import pad

from mpt_experiments.experiment import Experiment, Finding, Outcome, RunContext, seeded, setting
from mpt_lml import masks, scores
from mpt_lml.models.base import ConditionalModel
from mpt_lml.models.hmm import HMM
from mpt_score import networks, tokens
from mpt_score.networks.masked_lm import MaskedLM
from mpt_score.networks.symbol_bert import SymbolBERT
from mpt_score.texts import sentences

# Coins at a rate t near 0 hide a token with probability t and weigh it 1/t, so for t uniform on
# (0, 1) the estimate has an infinite variance. The training losses of MDLM (`sampling_eps`) and of
# LLaDA (`eps`) draw t uniformly from 0.001 to 1 instead; so do the two rows of random t here.
SMALLEST_RATE = 1e-3


def table(model: ConditionalModel, x: Int[Tensor, "1 L"], most: int) -> Float[Tensor, "subsets D"]:
    """log q(x_j | x_R) of the last D ≤ ``most`` places of ``x`` under all their masks, (2^D, D)."""
    num_before = max(0, x.shape[1] - most)
    mask = pad(masks.subsets(x.shape[1] - num_before)[1:], (num_before, 0))
    values = model.log_conditional(x, mask)[:, 0, num_before:].double()
    return pad(values, (0, 0, 1, 0))  # the empty mask is row 0


class _Draws:
    """Random passes over a text whose conditionals are in a table; in ``repeats`` repetitions."""

    def __init__(
        self,
        values: Float[Tensor, "subsets D"],
        repeats: int,
        generator: torch.Generator,
    ) -> None:
        self.values = values
        self.total = values.sum(dim=1)
        self.num_features = values.shape[1]
        self.repeats = repeats
        self.generator = generator

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in (0, 1), (repeats, *shape)."""
        return torch.rand(self.repeats, *shape, generator=self.generator, dtype=torch.float64)

    def rows_of_sizes(self, level: Float[Tensor, "R P"], largest: int) -> Int[Tensor, "R P"]:
        """Rows of masks whose sizes are 1..``largest``, as the levels in (0, 1) say."""
        ranks = self.uniform(level.shape[1], self.num_features).argsort(dim=-1)
        return masks.row_of(masks.from_ranks(ranks, (level * largest).long() + 1))

    def at_rates(self, rate: Float[Tensor, "R P"], weight: Tensor | float) -> Float[Tensor, " R"]:
        """Σ weight V(A)/t: every token is hidden by a coin with probability t, and weighs 1/t."""
        mask = self.uniform(rate.shape[1], self.num_features) < rate[..., None]
        return (self.total[masks.row_of(mask)] / rate * weight).sum(dim=1)

    def along_orders(self, order: Int[Tensor, "R O D"]) -> Float[Tensor, " R"]:
        """Mean over orders of the log-probability along each; NaN without an order."""
        row = (1 << order).cumsum(dim=-1)
        return self.values[row, order].sum(dim=-1).mean(dim=1)


def errors(
    values: Float[Tensor, "subsets D"],
    num_passes: int,
    repeats: int,
    slope: float,
    generator: torch.Generator,
) -> dict[str, Float[Tensor, " repeats"]]:
    """Estimates minus the area, nats, from so many rows of the table ``values``."""
    num_features = values.shape[1]
    mask = masks.subsets(num_features)
    size = mask.sum(dim=1)
    score = values.sum(dim=1) / size
    alone = values[-1]
    control = mask.double() @ alone / size - alone.mean()
    draws = _Draws(values, repeats, generator)
    passes = torch.arange(num_passes)

    # In this order: it is part of the record.
    u = draws.uniform(num_passes)
    order = draws.uniform(num_passes // num_features, num_features).argsort(dim=-1)
    half = order[:, : num_passes // num_features // 2]
    # One pass hides everything: it is size D, and what the control variate is made of.
    level = (passes[:-1] + u[:, 1:]) / (num_passes - 1)
    smaller = draws.rows_of_sizes(level, num_features - 1)
    controlled = (score - slope * control)[smaller].mean(dim=1)
    estimates = {
        "random t, coins": draws.at_rates(_away_from_zero(u), 1 / num_passes),
        "shifted grid of t, coins": draws.at_rates(
            _away_from_zero((passes + draws.uniform(1)) / num_passes), 1 / num_passes
        ),
        "8 Gauss nodes of t, coins": draws.at_rates(*_gauss_nodes(num_passes, repeats)),
        "uniform sizes": num_features * score[draws.rows_of_sizes(u, num_features)].mean(dim=1),
        "strata": num_features
        * score[draws.rows_of_sizes((passes + u) / num_passes, num_features)].mean(dim=1),
        "strata, control": (num_features - 1) * controlled + score[-1],
        "orders": draws.along_orders(order),
        "orders and reverses": draws.along_orders(torch.cat([half, half.flip(-1)], dim=1)),
    }
    area = scores.mean_by_size(score, size, num_features)[1:].sum()
    return {name: estimate - area for name, estimate in estimates.items()}


def _away_from_zero(u: Tensor) -> Tensor:
    return SMALLEST_RATE + (1 - SMALLEST_RATE) * u


def _gauss_nodes(num_passes: int, repeats: int) -> tuple[Tensor, Tensor]:
    """The nodes of an eight-point rule on (0, 1), as often as there are passes, and their weights."""
    times = num_passes // 8
    node, weight = (torch.from_numpy(each).repeat(times) / 2 for each in leggauss(8))
    return (node + 0.5).expand(repeats, -1), weight / times


def exact_squares(values: Float[Tensor, "subsets D"], num_passes: int) -> dict[str, Tensor]:
    """Mean squares of the errors of the two rows of random t, () each, without sampling.

    Drawn ones hang on a few very small t, which carry much of the variance. With V(A) the sum of the
    hidden log-probabilities, a pass at the rate t says V(A)/t. Its first two moments given t are sums
    over the sizes k of t^(k−1) (1−t)^(D−k) and t^(k−2) (1−t)^(D−k). These are polynomials in t, up to
    a part in 1/t from the single tokens: D Gauss nodes, and a logarithm, integrate them exactly.
    """
    D = values.shape[1]
    size = masks.subsets(D).sum(dim=1)
    total = values.sum(dim=1)
    k = torch.arange(D + 1).double()
    first = total.new_zeros(D + 1).index_add(0, size, total)
    second = total.new_zeros(D + 1).index_add(0, size, total.square())
    area = scores.mean_by_size(total / size, size, D)[1:].sum()
    node, weight = (torch.from_numpy(each) / 2 for each in leggauss(D))
    node = node + 0.5
    width = 1 - SMALLEST_RATE

    def mean_at(t: Tensor) -> Tensor:
        powers = t[..., None] ** (k - 1) * (1 - t[..., None]) ** (D - k)
        return powers[..., 1:] @ first[1:]

    def square_at(t: Tensor) -> Tensor:  # without second[1] / t
        powers = t[:, None] ** (k - 2) * (1 - t[:, None]) ** (D - k)
        return powers[:, 1:] @ second[1:] - second[1] / t

    t = SMALLEST_RATE + width * node
    square = weight @ square_at(t) - second[1] * math.log(SMALLEST_RATE) / width
    mean = weight @ mean_at(t)
    # The cells of a grid share one shift. Given it their coins are independent.
    grid = SMALLEST_RATE + width * (torch.arange(num_passes) + node[:, None]) / num_passes
    of_shift = weight @ (mean_at(grid).mean(dim=1) - area).square()
    of_coins = (square - weight @ mean_at(t).square()) / num_passes
    return {
        "random t, coins": (square - mean.square()) / num_passes + (mean - area).square(),
        "shifted grid of t, coins": of_coins + of_shift,
    }


class Scoring(Experiment, name="scoring", cost="about 11 min", gpu=False):
    """Estimators of the score of a text, by look-up among all its masks.

    Arrays (texts, P), over draws of the masks, by number of passes: ``bias/KIND/ESTIMATOR``, the mean
    error in nats, ``square/KIND/ESTIMATOR``, its mean square, and ``median/KIND/ESTIMATOR``, its median
    size. NaN where the passes do not suffice. The mean squares at random t hang on a few tiny rates:
    ``exact/KIND/ESTIMATOR`` has theirs without sampling.
    """

    seeds: tuple[int, ...] = (18,)
    # Last places that are masked, of a sentence, of a sequence.
    most: tuple[int, int] = setting((13, 16), quick=(5, 5))
    num_texts: int = setting(4, quick=2)
    passes: tuple[int, ...] = (8, 32, 128)
    repeats: int = setting(1000, quick=40)
    slope: float = 0.75  # of the control variate; one fitted to a text's few masks is biased

    def measure(self, context: RunContext) -> Outcome:
        generator = seeded(self.seeds[0])
        texts = self._sentences()
        sequences = HMM.cyclic().sample(self.num_texts, generator=generator)
        network = SymbolBERT.load()
        texts += [_Text("language", network, row) for row in sequences.split(1)]
        cells: dict[str, list[Tensor]] = {}
        for text in context.progress(texts, "text"):
            values = table(text.model, text.x, self.most[text.kind == "language"])
            for num_passes in self.passes:
                for key, cell in self._cells(values, num_passes, text.kind, generator).items():
                    cells.setdefault(key, []).append(cell)
        arrays = {
            key: torch.stack(column).view(-1, len(self.passes)) for key, column in cells.items()
        }
        findings = {f"scoring-orders/{kind}": _gain(arrays, kind) for kind in ("text", "language")}
        ids = [text.x for text in texts if text.kind == "text"]
        return Outcome(findings, arrays, context.checksum([sequences, *ids]))

    def _sentences(self) -> list["_Text"]:
        """The shortest of the book's own, for its small BERT."""
        bert, tokenizer = networks.load_small_bert()
        rows = tokens.encode(tokenizer, sentences().first)
        shortest = rows.lengths.argsort(stable=True)[: self.num_texts]
        ids = [rows.rows(number).ids[:, 1:-1] for number in shortest.split(1)]
        return [_Text("text", MaskedLM.of(bert, tokenizer, row.shape[1]), row) for row in ids]

    def _cells(
        self, values: Tensor, num_passes: int, kind: str, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """What one text adds to each array with so many passes, () each."""
        cells = {}
        drawn = errors(values, num_passes, self.repeats, self.slope, generator)
        for name, error in drawn.items():
            cells[f"bias/{kind}/{name}"] = error.mean()
            cells[f"square/{kind}/{name}"] = error.square().mean()
            cells[f"median/{kind}/{name}"] = error.abs().median()
        for name, square in exact_squares(values, num_passes).items():
            cells[f"exact/{kind}/{name}"] = square
        return cells


class _Text(NamedTuple):
    """A row of token ids and the model that is asked about it."""

    kind: str
    model: ConditionalModel
    x: Int[Tensor, "1 L"]


def _gain(arrays: dict[str, Tensor], kind: str) -> Finding:
    """Typical error of strata over that of orders, at 32 passes, by text."""
    strata, orders = (
        arrays[f"square/{kind}/{name}"][:, 1] for name in ("strata, control", "orders")
    )
    return Finding.over((strata / orders).sqrt())
