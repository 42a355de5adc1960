"""The trainings that a reader repeats on a page, at their tiny settings: what a page compares with."""


from experiments.experiment import Arrays, Experiment, RunContext, on_cpu
from mpt_lml.recorded import Outcome
from mpt_score.trainings import small_bert


def _small_bert() -> Arrays:
    return {"watched": small_bert.train_small_bert(small_bert.TINY).watched}


TRAININGS = {
    "small-bert": _small_bert,
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
