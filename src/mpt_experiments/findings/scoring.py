"""How well a few masks tell the score of a text, by look-up among all masks."""

import torch
from numpy.polynomial.legendre import leggauss
from torch import Generator, Tensor
from torch.nn.functional import pad

from mpt_experiments.bench import Bench, Experiment, Finding, Outcome, setting
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


class Scoring(Experiment, name="scoring", cost="about 11 min", gpu=False):
    """Estimators of the score of a text, by look-up among all its masks.

    Arrays (texts, P), over draws of the masks, by number of passes: ``bias/KIND/ESTIMATOR``, the mean
    error in nats, ``square/KIND/ESTIMATOR``, its mean square, and ``median/KIND/ESTIMATOR``, its median
    size. The last hardly feels where random rates are cut. NaN where the passes do not suffice.
    """

    seeds: tuple[int, ...] = (18,)
    # Last places that are masked, of a sentence, of a sequence.
    most: tuple[int, int] = setting((13, 16), quick=(5, 5))
    num_texts: int = setting(4, quick=2)
    passes: tuple[int, ...] = (8, 32, 128)
    repeats: int = setting(1000, quick=40)
    slope: float = 0.75  # of the control variate; one fitted to a text's few masks is biased

    def measure(self, bench: Bench) -> Outcome:
        g, cells = torch.Generator().manual_seed(self.seeds[0]), dict[str, list[Tensor]]()
        bert, pieces = networks.load_small_bert()
        rows = tokens.encode(pieces, sentences().first)
        short = rows.lengths.argsort(stable=True)[: self.num_texts].split(1)
        ids = [rows.rows(number).ids[:, 1:-1] for number in short]
        texts = [("text", MaskedLM.of(bert, pieces, row.shape[1]), row) for row in ids]
        x, network = HMM.cyclic().sample(self.num_texts, generator=g), SymbolBERT.load()
        problems = [*texts, *(("language", network, row) for row in x.split(1))]
        for kind, model, row in bench.progress(problems, "text"):
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
        arrays = {key: torch.stack(v).view(-1, len(self.passes)) for key, v in cells.items()}

        def gain(kind: str, worse: str, better: str) -> Finding:  # of errors at 32 passes, by text
            one, other = (arrays[f"square/{kind}/{name}"][:, 1] for name in (worse, better))
            return Finding.over((one / other).sqrt())

        best = "strata, control"
        findings = {f"scoring-orders/{k}": gain(k, best, "orders") for k in ("text", "language")}
        return Outcome(findings, arrays, bench.checksum([x, *ids]))
