"""Figure 5, left: the mask-rate curve along a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import curves, masks, objectives
from mpt_lml.experiments.area import dense_curve, fall_beyond
from mpt_lml.experiments.convergence import NOISE_VARIANCE
from mpt_lml.experiments.registry import Finding, Outcome, Progress, checksum, experiment, silent
from mpt_lml.experiments.training import Problem, Training, over, problem, train
from mpt_lml.models.ppca import PPCA


@dataclass(frozen=True)
class Figure5Left(Training):
    """The curve along a training run at D = 50."""

    num_data: int = 1000
    num_features: int = 50
    num_epochs: int = 600
    num_masks: int = 20
    dense_masks: int = 100
    every: int = 100

    @classmethod
    def paper(cls) -> Figure5Left:
        """As published."""
        return cls()

    @classmethod
    def quick(cls) -> Figure5Left:
        """Few epochs at D = 12."""
        return cls(num_data=100, num_features=12, num_epochs=40, dense_masks=12, every=20)


@experiment(
    "figure-5-left",
    title="Figure 5, left: the mask-rate curve during training",
    cost="about 5 s",
    config=Figure5Left,
)
def figure_5_left(
    config: Figure5Left, *, device: torch.device = torch.device("cpu"), progress: Progress = silent
) -> Outcome:
    """Curves of the first seed's model at epochs 0, 100, ..., with P masks a size.

    Arrays: ``epochs`` (C,), ``score`` and ``standard_error`` (C, D), ``lml`` (epochs + 1, seeds),
    ``true_lml`` () of the generating loadings, ``areas`` (C, seeds) of every seed's model, ``first``
    and ``last`` (seeds, D), smooth curves of every seed before and after training; all in nats.
    """
    of = problem(config, "paper", device)
    epochs = range(0, config.num_epochs + 1, config.every)
    history = train(config, of, masks.UniformSize(), snapshots=epochs, progress=progress)
    generator = torch.Generator().manual_seed(config.data_seed)
    drawn = {
        epoch: curves.sampled_curve(
            PPCA(history.snapshots[epoch]["loadings"][0], NOISE_VARIANCE),
            of.x,
            config.num_masks,
            generator=generator,
        )
        for epoch in epochs
    }
    # The same for every start, from the second moment and fresh masks; then many masks at both ends.
    areas = [
        [_area(config, of, kept, generator) for kept in history.snapshots[epoch]["loadings"]]
        for epoch in epochs
    ]
    first, last = (
        torch.stack([_dense(config, of, kept, generator) for kept in snapshot["loadings"]])
        for snapshot in (history.snapshots[0], history.snapshots[config.num_epochs])
    )
    arrays = {
        "epochs": torch.tensor(list(epochs)),
        "score": torch.stack([curve.score for curve in drawn.values()]),
        "standard_error": torch.stack([curve.standard_error for curve in drawn.values()]),
        "lml": history.values["lml"].cpu(),
        "true_lml": of.log_marginal(of.loadings).cpu(),
        "areas": torch.tensor(areas, dtype=torch.float64),
        "first": first,
        "last": last,
    }
    return Outcome(_findings_5(arrays, drawn), arrays, checksum([of.x.cpu()]))


def _area(
    config: Figure5Left, of: Problem, loadings: Float[Tensor, "D K"], generator: torch.Generator
) -> float:
    """Area in nats from P fresh masks of every size."""
    size = config.num_features
    drawn = [
        masks.sample_masks(config.num_masks, size, m, generator=generator)
        for m in range(1, size + 1)
    ]
    mask = torch.cat(drawn).to(of.x.device)
    scores = objectives.mask_scores(loadings, of.best.noise_variance, of.moment, mask)
    return scores.sum().item() / config.num_masks


def _dense(
    config: Figure5Left, of: Problem, loadings: Float[Tensor, "D K"], generator: torch.Generator
) -> Float[Tensor, " D"]:
    model = PPCA(loadings, NOISE_VARIANCE)
    return dense_curve(model, of.moment, config.dense_masks, generator=generator)


def _findings_5(
    arrays: dict[str, Tensor], drawn: dict[int, curves.MaskCurve]
) -> dict[str, Finding]:
    """Over the starts, but for the growth of the first one's sampled area."""
    first, last = arrays["first"], arrays["last"]
    exact = arrays["lml"][arrays["epochs"]]
    before, after = drawn[0].area(), drawn[max(drawn)].area()
    error = math.hypot(before.standard_error, after.standard_error)
    fall = (last[:, 0] - last[:, -1]).abs()
    flatness = (first.amax(dim=1) - first.amin(dim=1)) / fall
    return {
        "fig-5-left": over((arrays["areas"] - exact).mean(dim=0)),
        "claim-area-converges": over(arrays["areas"][-1] - arrays["true_lml"]),
        "claim-tail-85": over(fall_beyond(last, 0.85)),
        "claim-flat-at-init": over(flatness),
        "flat-at-init-rise": over(first[:, -1] - first[:, 0]),
        "area-growth": Finding(after - before, error),
    }
