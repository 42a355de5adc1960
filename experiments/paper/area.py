"""Figure 4: area and shape of the mask-rate curve, and the closed form that predicts it."""

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.experiment import Experiment, RunContext, seeded, setting
from experiments.paper.convergence import NOISE_VARIANCE, paper_masks, paper_problem
from experiments.records import finding_over
from mpt_lml import curves, masks, objectives
from mpt_lml.models.ppca import PPCA
from mpt_lml.recorded import Finding, Outcome
from mpt_lml.theory.rates import random_loadings_curve


class Figure4(Experiment, name="figure-4", gpu=False):
    """Figure 4: area under the mask-rate curve at D = 200.

    Three panels as (K, P), on the paper's draw and on data from the model with the same loadings.
    One mask per size leaves much to chance: those panels draw under fifteen more seeds. Arrays, for
    draw in (paper, model): ``score/PANEL/DRAW`` (seeds, D), ``lml/PANEL/DRAW`` ().
    """

    num_data: int = setting(1000, quick=50)
    num_features: int = setting(200, quick=20)
    panels: tuple[tuple[str, int, int], ...] = setting(
        # The authors' published command draws five masks a size on the right.
        (("left", 5, 1), ("center", 5, 100), ("right", 50, 5)),
        quick=(("left", 2, 1), ("center", 2, 10), ("right", 10, 5)),
    )

    def measure(self, context: RunContext) -> Outcome:
        arrays: dict[str, Tensor] = {}
        findings: dict[str, Finding] = {}
        used: list[Tensor] = []
        for panel, latent_dim, num_masks in self.panels:
            generator = seeded(1991)
            shape = (self.num_data, self.num_features, latent_dim)
            model, x = paper_problem(shape, generator)
            draws = {"paper": x, "model": model.sample(self.num_data, generator=generator)}
            used += draws.values()
            seeds = self.seeds
            if num_masks == 1:
                seeds += tuple(range(15))
            scores: dict[str, list[Tensor]] = {draw: [] for draw in draws}
            for seed in context.progress(seeds, f"{panel}, seed"):  # its masks serve both draws
                mask = paper_masks(num_masks, self.num_features, generator=seeded(seed))
                for draw, x in draws.items():
                    scores[draw].append(curves.size_scores(model, x, mask).mean(1))
            for draw, x in draws.items():
                arrays[f"score/{panel}/{draw}"] = torch.stack(scores[draw])
                arrays[f"lml/{panel}/{draw}"] = model.log_marginal(x).mean()
            area = arrays[f"score/{panel}/paper"].sum(dim=1)
            findings[f"fig-4-{panel}"] = finding_over(area - arrays[f"lml/{panel}/paper"])
        return Outcome(findings, arrays, context.checksum(used))


def dense_curve(
    model: PPCA, moment: Float[Tensor, "D D"], num_masks: int, *, generator: torch.Generator
) -> Float[Tensor, " D"]:
    """S(M), M = 1..D, in nats from the data's second moment, with masks that favor no coordinate.

    They are ``num_masks`` cyclic shifts of random orders. With a multiple of D every coordinate is
    hidden equally often, and S(1) and S(D) are exact; with fewer, every D/num_masks-th shift is
    taken. One size's masks are in the next one's: the curve is smooth.
    """
    size = model.num_features
    noise = model.noise_variance
    orders = masks.sample_ranks(max(1, num_masks // size), size, generator=generator)
    shifts = torch.arange(0, size, max(1, size // num_masks))
    ranks = ((orders[:, None] + shifts[:, None]) % size).flatten(0, 1)
    score = [
        objectives.mask_scores(model.loadings, noise, moment, masks.from_ranks(ranks, m)).mean()
        for m in range(1, size + 1)
    ]
    return torch.stack(score)


class CurveShape(Experiment, name="curve-shape", gpu=False):
    """Figure 4: tail, decay and its beginning, at twenty truths.

    Smooth curves on the paper's draw, and expected ones under the model, at several truths.
    ``panels`` are (K, P); ``seeds`` draw loadings and data. For "model" the second moment is the
    model's covariance. Findings are shares of a curve's range, or rates.
    """

    seeds: tuple[int, ...] = setting((1991, *range(1, 20)), quick=(1991, 1))
    num_data: int = setting(1000, quick=50)
    num_features: int = setting(200, quick=20)
    panels: tuple[tuple[int, int], ...] = setting(((5, 200), (50, 40)), quick=((2, 20), (8, 5)))

    def measure(self, context: RunContext) -> Outcome:
        used = []

        def smooth(latent_dim: int, num_masks: int, seed: int) -> dict[str, Tensor]:
            model, x = paper_problem((self.num_data, self.num_features, latent_dim), seeded(seed))
            used.append(x)
            moments = {"paper": objectives.second_moment(x), "model": model.covariance}
            return {
                draw: dense_curve(model, moment, num_masks, generator=seeded(seed))
                for draw, moment in moments.items()
            }

        def exponential(score: Tensor, decaying: bool = False) -> Tensor:
            return torch.stack([exponential_residual(row, decaying=decaying) for row in score])

        def closed(latent_dim: int, score: Tensor) -> Tensor:
            closed_form = random_loadings_curve(self.num_features, latent_dim, NOISE_VARIANCE)
            error = (score - closed_form).abs().amax(dim=1)
            return error / (score.amax(dim=1) - score.amin(dim=1))

        (few, _), (many, _) = self.panels
        low, high = (
            context.stack(partial(smooth, *panel), self.seeds, "truth") for panel in self.panels
        )
        values = {
            "claim-tail-90": fall_beyond(low["paper"], 0.9),
            "tail-90/k50": fall_beyond(high["paper"], 0.9),
            "tail-85/k50": fall_beyond(high["paper"], 0.85),
            "claim-exponential": exponential(low["paper"], decaying=True),
            "exponential-residual": exponential(low["paper"]),
            "claim-decay-50": rate_of_fall(high["paper"], 0.05),
            "decay-begins/2": rate_of_fall(high["paper"], 0.02),
            "decay-begins/10": rate_of_fall(high["paper"], 0.10),
            "decay-begins/20": rate_of_fall(high["paper"], 0.20),
            "steepest-rate-k-50": (high["paper"].diff(dim=1).argmin(dim=1) + 1) / self.num_features,
            "closed-form-residual": closed(few, low["model"]),
            "closed-form-residual-k-50": closed(many, high["model"]),
            "exponential-residual-k-50": exponential(high["model"]),
        }
        findings = {name: finding_over(value) for name, value in values.items()}
        return Outcome(findings, data_sha256=context.checksum(used))


def fall_beyond(score: Float[Tensor, "*B D"], rate: float) -> Float[Tensor, "*B"]:
    """Share of the fall S(1) − S(D) that lies at masking rates above ``rate``."""
    size = score.shape[-1]
    at_rate = score[..., math.floor(rate * size) - 1]
    return (at_rate - score[..., -1]) / (score[..., 0] - score[..., -1])


def rate_of_fall(score: Float[Tensor, "B D"], share: float) -> Float[Tensor, " B"]:
    """The first masking rate M/D at which ``share`` of the fall S(1) − S(D) is behind."""
    size = score.shape[1]
    fallen = (score[:, :1] - score) / (score[:, :1] - score[:, -1:])
    return ((fallen >= share).int().argmax(dim=1) + 1).to(score.dtype) / size


def shape_distance(
    first: Float[Tensor, "*#B R"], second: Float[Tensor, "*#B R"]
) -> Float[Tensor, "*#B"]:
    """Distance in shape of two curves at the same rates, as a share of the fall.

    Each is shifted and scaled so that it falls from 1 at the first rate to 0 at the last; the largest
    distance counts. Two straight lines have 0, whatever their slopes.

    >>> line, curve = torch.tensor([4.0, 3.0, 2.0]), torch.tensor([1.0, 1.0, 0.0])
    >>> shape_distance(line, curve).item()
    0.5
    """
    first, second = (
        (curve - curve[..., -1:]) / (curve[..., :1] - curve[..., -1:]) for curve in (first, second)
    )
    return (first - second).abs().amax(dim=-1)


def exponential_residual(
    score: Float[Tensor, " D"], *, decaying: bool = False
) -> Float[Tensor, ""]:
    """Distance of the nearest exponential a + b exp(c M/D) from a curve, as a share of its range.

    *Nearest* is the one whose largest error over M is smallest: a, b and one of 400 constants c from
    −100 to 100 (the smallest are nearly straight lines) are chosen for that. It counts for the curve
    S(M) or for the predictive probability exp S(M), whichever is nearer to an exponential. With
    ``decaying`` only negative c count: a curve that falls steeply at first and then levels off.
    A constant alone, b = 0, misses by half of the range, so no residual is larger than 0.5.
    """
    rate = torch.arange(1, len(score) + 1, dtype=score.dtype) / len(score)
    power = torch.linspace(-100, 100, 400, dtype=score.dtype)[:, None]
    if decaying:
        power = power[power[:, 0] < 0]
    column = (power * (rate - (power > 0).to(rate))).exp()  # at most 1
    nearest = [smallest_largest_error(values, column).min() for values in (score, score.exp())]
    return torch.stack(nearest).min()


def smallest_largest_error(
    values: Float[Tensor, " D"], column: Float[Tensor, "C D"]
) -> Float[Tensor, " C"]:
    """Minimum over a, b of max |values − a − b column| for each ``column``, as a share of the range.

    For a given b the best a is the middle of what is left, so that the largest error is half of the
    range of values − b column. That is convex in b: a ternary search finds the best b.
    """
    values = (values - values.min()) / (values.max() - values.min())
    lowest, highest = column.amin(dim=1, keepdim=True), column.amax(dim=1, keepdim=True)
    column = (column - lowest) / (highest - lowest)

    def largest_error(slope: Float[Tensor, "C 1"]) -> Float[Tensor, "C 1"]:
        left = values - slope * column
        return (left.amax(dim=1, keepdim=True) - left.amin(dim=1, keepdim=True)) / 2

    # Between the smallest and the largest entry of a column the values differ by at most 1, and what
    # is left of the best fit also: so |b| is at most 2.
    low, high = torch.full_like(lowest, -2.0), torch.full_like(lowest, 2.0)
    for _ in range(60):  # each step leaves two thirds of the interval
        first = low + (high - low) / 3
        second = high - (high - low) / 3
        left_is_better = largest_error(first) < largest_error(second)
        low = torch.where(left_is_better, low, first)
        high = torch.where(left_is_better, second, high)
    return largest_error((low + high) / 2)[:, 0]
