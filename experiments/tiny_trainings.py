"""The trainings that a reader repeats on a page, at their tiny settings: what a page compares with."""

import torch

from experiments.experiment import Arrays, Experiment, RunContext, on_cpu, seeded
from mpt_lml import data
from mpt_lml.recorded import Outcome
from mpt_score.trainings import small_bert, small_mae


def _small_bert() -> Arrays:
    return {"watched": small_bert.train_small_bert(small_bert.TINY).watched}


def _small_mae() -> Arrays:
    (settings,) = small_mae.TINY
    x = data.images(settings.images).grid[: settings.num_train].float()
    test = data.images(settings.images, "test").grid[: settings.num_test].float()
    rows = []
    for seed in settings.seeds:
        model = small_mae.train_small_mae(settings, x, seed=seed).model
        sizes = settings.sizes(model.num_features)
        generator = seeded(1000 + seed)
        curve = model.fitted_curve(
            x[: settings.num_variance], test, generator=generator, sizes=sizes
        )
        rows.append(curve.score)
    return {"scores": torch.stack(rows)}


TRAININGS = {
    "small-bert": _small_bert,
    "small-mae": _small_mae,
}


class Trainings(Experiment, name="trainings", gpu=False):
    """The trainings of the chapters at tiny settings, which pages compare with.

    No number of the ledger comes from them. Arrays: those of each training, by its name and theirs, as
    the function that trains documents them, in nats.
    """

    def measure(self, context: RunContext) -> Outcome:
        arrays: Arrays = {}
        for name in context.progress(list(TRAININGS), "training"):
            made = on_cpu(TRAININGS[name]())
            arrays |= {f"{name}/{key}": value for key, value in made.items()}
        return Outcome({}, arrays)
