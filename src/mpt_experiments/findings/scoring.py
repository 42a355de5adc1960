"""How well a few masks tell the score of a text, by look-up among all masks."""

import math

import torch
from numpy.polynomial.legendre import leggauss
from torch import Generator, Tensor
from torch.nn.functional import pad

from mpt_experiments.experiment import Experiment, Finding, Outcome, RunContext, setting
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


def table(model: ConditionalModel, x: Tensor, most: int) -> Tensor:
    """log q(x_j | x_R) of the last D ≤ ``most`` places of ``x`` under all their masks, (2^D, D)."""
    before = max(0, x.shape[1] - most)
    mask = pad(masks.subsets(x.shape[1] - before)[1:], (before, 0))
    return pad(model.log_conditional(x, mask)[:, 0, before:].double(), (0, 0, 1, 0))


def errors(values: Tensor, P: int, repeats: int, slope: float, g: Generator) -> dict[str, Tensor]:
    """Estimates minus the area, (repeats,) each, from ``P`` rows of the table ``values``."""
    D, alone, slots = values.shape[1], values[-1], torch.arange(P)
    size, bits = (hidden := masks.subsets(D)).sum(dim=1), 1 << torch.arange(D)
    each, control = values.sum(dim=1) / size, hidden.double() @ alone / size - alone.mean()

    def uniform(*shape: int) -> Tensor:
        return torch.rand(repeats, *shape, generator=g, dtype=torch.float64)

    def sized(level: Tensor, most: int) -> Tensor:
        ranks = uniform(level.shape[1], D).argsort(dim=-1)
        return masks.from_ranks(ranks, (level * most).long() + 1).long() @ bits

    def cut(u: Tensor) -> Tensor:
        return SMALLEST_RATE + (1 - SMALLEST_RATE) * u

    def coins(t: Tensor, weight: Tensor | float) -> Tensor:
        row = (uniform(t.shape[1], D) < t[..., None]).long() @ bits
        return (values.sum(dim=1)[row] / t * weight).sum(dim=1)

    def along(order: Tensor) -> Tensor:  # nan without one
        return values[(1 << order).cumsum(dim=-1), order].sum(dim=-1).mean(dim=1)

    gauss = (torch.from_numpy(a).repeat(P // 8) / 2 for a in leggauss(8))
    nodes, weights = (next(gauss) + 0.5).expand(repeats, -1), next(gauss) / (P // 8)
    u, order = uniform(P), uniform(P // D, D).argsort(dim=-1)
    # One pass hides everything: it is size D, and what the control variate is made of.
    fewer, half = sized((slots[:-1] + u[:, 1:]) / (P - 1), D - 1), order[:, : P // D // 2]
    found = {
        "random t, coins": coins(cut(u), 1 / P),
        "shifted grid of t, coins": coins(cut((slots + uniform(1)) / P), 1 / P),
        "8 Gauss nodes of t, coins": coins(nodes, weights),
        "uniform sizes": D * each[sized(u, D)].mean(dim=1),
        "strata": D * each[sized((slots + u) / P, D)].mean(dim=1),
        "strata, control": (D - 1) * (each - slope * control)[fewer].mean(dim=1) + each[-1],
        "orders": along(order),
        "orders and reverses": along(torch.cat([half, half.flip(-1)], dim=1)),
    }
    return {name: v - scores.mean_by_size(each, size, D)[1:].sum() for name, v in found.items()}


def exact_squares(values: Tensor, P: int) -> dict[str, Tensor]:
    """Mean squares of the errors of the two rows of random t, () each, without sampling.

    Drawn ones hang on a few very small t, which carry much of the variance. With V(A) the sum of the
    hidden log-probabilities, a pass at the rate t says V(A)/t. Its first two moments given t are sums
    over the sizes k of t^(k−1) (1−t)^(D−k) and t^(k−2) (1−t)^(D−k). These are polynomials in t, up to
    a part in 1/t from the single tokens: D Gauss nodes, and a logarithm, integrate them exactly.
    """
    D = values.shape[1]
    size, total = masks.subsets(D).sum(dim=1), values.sum(dim=1)
    k = torch.arange(D + 1).double()
    first, second = (total.new_zeros(D + 1).index_add(0, size, v) for v in (total, total.square()))
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
    grid = SMALLEST_RATE + width * (torch.arange(P) + node[:, None]) / P
    of_shift = weight @ (mean_at(grid).mean(dim=1) - area).square()
    return {
        "random t, coins": (square - mean.square()) / P + (mean - area).square(),
        "shifted grid of t, coins": (square - weight @ mean_at(t).square()) / P + of_shift,
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
        g, cells = torch.Generator().manual_seed(self.seeds[0]), dict[str, list[Tensor]]()
        bert, pieces = networks.load_small_bert()
        rows = tokens.encode(pieces, sentences().first)
        short = rows.lengths.argsort(stable=True)[: self.num_texts].split(1)
        ids = [rows.rows(number).ids[:, 1:-1] for number in short]
        texts = [("text", MaskedLM.of(bert, pieces, row.shape[1]), row) for row in ids]
        x, network = HMM.cyclic().sample(self.num_texts, generator=g), SymbolBERT.load()
        problems = [*texts, *(("language", network, row) for row in x.split(1))]
        for kind, model, row in context.progress(problems, "text"):
            values = table(model, row, self.most[kind == "language"])
            for P in self.passes:
                for name, error in errors(values, P, self.repeats, self.slope, g).items():
                    summaries = {
                        "bias": error.mean(),
                        "square": error.square().mean(),
                        "median": error.abs().median(),
                    }
                    for part, value in summaries.items():
                        cells.setdefault(f"{part}/{kind}/{name}", []).append(value)
                for name, square in exact_squares(values, P).items():
                    cells.setdefault(f"exact/{kind}/{name}", []).append(square)
        arrays = {key: torch.stack(v).view(-1, len(self.passes)) for key, v in cells.items()}

        def gain(kind: str, worse: str, better: str) -> Finding:  # of errors at 32 passes, by text
            one, other = (arrays[f"square/{kind}/{name}"][:, 1] for name in (worse, better))
            return Finding.over((one / other).sqrt())

        best = "strata, control"
        findings = {f"scoring-orders/{k}": gain(k, best, "orders") for k in ("text", "language")}
        return Outcome(findings, arrays, context.checksum([x, *ids]))
