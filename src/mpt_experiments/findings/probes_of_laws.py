"""Does more area go with better features, over laws of the mask size? A pilot, and the run."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from scipy import optimize
from torch import Tensor

from mpt_experiments import autoencoders, law_correlation, probed_networks
from mpt_experiments.experiment import (
    Arrays,
    Experiment,
    Finding,
    Outcome,
    RunContext,
    setting,
)
from mpt_experiments.findings.linear_probes import labeled_text, mean_accuracy, text_features
from mpt_experiments.language_trainings import RECIPES
from mpt_experiments.probed_networks import Kind, ProbedNetworks
from mpt_lml.verdicts import mean_and_error
from mpt_score import networks

AREA = 0
AT_RATES = (2, 3, 4)
ACCURACY = 5
"""Columns of ``probed_networks.MEASURED``."""

Setting = tuple[str, Kind, str, int, int]
"""Name, kind of network, images, training steps, how many of the seeds."""

# -- rules --------------------------------------------------------------------------------------------
# Committed before the runs that they judge.

# Of the pilot. Pre-training with uniform sizes helps clearly where the probe's accuracy is higher by so
# much than with random weights, and by so many standard errors over seeds.
CLEAR_GAIN = 0.02
NUM_ERRORS = 2.0

# A setting can be paid for where fifteen laws with three seeds each train this long on one core.
PAYABLE_SECONDS = 900.0
FEWEST_TRAININGS = 15 * 3

LEFT_OUT = ("fashion-mnist",)
"""Admitted by the pilot, and not run for want of time; decided before any law of it was."""

SECONDS_OF_SMALL_BERT = 2700.0
"""On one core, by its model card."""


def is_clear(gain: Finding) -> bool:
    """Whether trained features are clearly better than random ones."""
    error = gain.standard_error or 0.0
    return gain.measured >= CLEAR_GAIN and gain.measured > NUM_ERRORS * error


def is_payable(seconds: float) -> bool:
    """Whether ``seconds`` a training allow fifteen laws and three seeds."""
    return FEWEST_TRAININGS * seconds <= PAYABLE_SECONDS


# Of the run: ``OfLaws.direction`` of area and accuracy. 1: in this setting more area goes with better
# features. −1: with worse ones. 0: undecided.

POWER = 0.8


def detectable(num_laws: int) -> float:
    """The smallest true correlation whose interval lies above 0 with a probability of ``POWER``.

    >>> print(f"{detectable(15):.3f}")
    0.756
    """

    def excess(correlation: float) -> float:
        return law_correlation.power(correlation, num_laws) - POWER

    return float(optimize.brentq(excess, 0.0, 1.0 - 1e-9))


# -- experiments --------------------------------------------------------------------------------------


class ImageProbes(Experiment):
    """Settings that the pilot and the run have in common."""

    width: int = setting(48, quick=16)  # of the ViT-MAEs
    hidden: int = setting(200, quick=8)  # units of the VAEs
    num_data: int = setting(10_000, quick=300)  # without labels; of the digits all there are
    num_labels: int = setting(400, quick=250)
    num_test: int = setting(2000, quick=200)  # of the digits all there are
    num_scored: int = setting(200, quick=10)  # of these, for area and scores
    num_samples: int = setting(50, quick=3)  # weights of a conditional of a VAE

    def probed(self, wanted: Setting, context: RunContext) -> ProbedNetworks:
        """The networks of one setting."""
        _, kind, images, num_steps, num_seeds = wanted
        chosen: ProbedNetworks = probed_networks.KINDS[kind](
            data=probed_networks.images(
                images, self.num_data, self.num_labels, self.num_test, self.num_scored
            ),
            seeds=self.seeds[:num_seeds],
            num_steps=num_steps,
            width=self.hidden if kind == "vae" else self.width,
            num_samples=self.num_samples,
            progress=context.progress,
        )
        return chosen


class ProbePilot(ImageProbes, name="probe-pilot", cost="about 10 min", resumable=True, gpu=False):
    """Where pre-training beats random features clearly, and at what price: a pilot of probes-of-laws.

    Uniform sizes only. Of images, the accuracy of a linear probe before and after training, in the
    settings ``images`` (name, kind of network, images, steps, seeds), and the seconds of a training on
    one core. What is admitted to ``probes-of-laws`` follows from them by the rules ``is_clear`` and
    ``is_payable``, from before the run.

    Of texts, the book's own small BERT against the same network with random weights. Its training took
    three quarters of an hour, so that laws by seeds of it cannot be paid for here; the question is
    whether they would be enough. There is one such network. The error takes its accuracy to vary over
    seeds as that of random networks does.

    Arrays: ``random/SETTING`` (seeds,) and ``trained/SETTING`` (seeds,), accuracies; of texts (1,)
    trained ones; ``seconds/SETTING`` () of the processor, a training; ``clear/SETTING`` () and
    ``payable/SETTING`` (), 1 or 0.
    """

    seeds: tuple[int, ...] = setting((6, 66, 666), quick=(6, 66))
    images: tuple[Setting, ...] = setting(
        (
            ("vae", "vae", "digits", 1000, 3),
            ("vae-fashion-mnist", "vae", "fashion_mnist", 400, 3),
            ("digits", "mae", "digits", 500, 3),
            ("fashion-mnist", "mae", "fashion_mnist", 500, 3),
            ("fashion-mnist-long", "mae", "fashion_mnist", 2000, 3),
        ),
        quick=(("vae", "vae", "digits", 6, 2), ("digits", "mae", "digits", 4, 2)),
    )
    texts: tuple[str, ...] = setting(("glue/cola", "glue/sst-2"), quick=("written",))
    num_random: int = setting(5, quick=2)  # BERTs with random weights

    def measure(self, context: RunContext) -> Outcome:
        findings: dict[str, Finding] = {}
        arrays: Arrays = {}
        used: list[Tensor] = []
        for wanted in context.progress(self.images, "settings"):
            name = wanted[0]
            probed = self.probed(wanted, context)
            data = [probed.data.unlabeled, *probed.data.labeled]
            used += data
            found = context.computed_once(
                name, partial(self._images, probed), data=context.checksum(data)
            )
            findings[f"probe-pilot/{name}"] = Finding.over(found["trained"] - found["random"])
            arrays |= {f"{key}/{name}": values for key, values in found.items()}
        for name in self.texts:
            short = "cola" if name == "written" else name.removeprefix("glue/")
            network, tokenizer = networks.load_small_bert()
            folds = labeled_text(name, tokenizer)
            data = [tensor for fold in folds for tensor in fold]
            used += data
            found = context.computed_once(
                short,
                partial(self._text, network, folds),
                data=context.checksum(data),
                weights=networks.fingerprint(network),
            )
            findings[f"probe-pilot/{short}"] = gain_of_one(found["trained"], found["random"])
            arrays |= {f"{key}/{short}": values for key, values in found.items()}
        for key, gain in findings.items():
            name = key.removeprefix("probe-pilot/")
            arrays[f"clear/{name}"] = torch.tensor(float(is_clear(gain)))
            payable = is_payable(arrays[f"seconds/{name}"].item())
            arrays[f"payable/{name}"] = torch.tensor(float(payable))
        return Outcome(findings, arrays, context.checksum(used))

    def _images(self, probed: ProbedNetworks) -> Arrays:
        before = probed.before()
        after = probed.after(RECIPES["uniform"])
        return {
            "random": before["measured"][:, ACCURACY],
            "trained": after["measured"][:, ACCURACY],
            "seconds": after["seconds"],
        }

    @torch.no_grad()
    def _text(self, trained: Any, folds: list[autoencoders.Labeled]) -> Arrays:
        def accuracy(network: Any) -> float:
            batches = folds[0].x.split(128)
            features = torch.cat([text_features(network.eval(), batch) for batch in batches])
            return mean_accuracy(features, folds)

        twins = [networks.random_twin(trained, seed=seed) for seed in range(self.num_random)]
        return {
            "random": torch.tensor([accuracy(twin) for twin in twins]),
            "trained": torch.tensor([accuracy(trained)]),
            "seconds": torch.tensor(SECONDS_OF_SMALL_BERT),
        }


def gain_of_one(trained: Float[Tensor, " 1"], random: Float[Tensor, " seeds"]) -> Finding:
    """A single network less the mean of random ones, with the spread over seeds of the latter.

    >>> gain_of_one(torch.tensor([0.7]), torch.tensor([0.5, 0.6])).standard_error
    0.0866...
    """
    mean, error = mean_and_error(random.double())
    # Of one network, and of the mean of the others.
    of_difference = error * (1 + len(random)) ** 0.5
    return Finding((trained.double()[0] - mean).item(), of_difference.item())


class ProbesOfLaws(
    ImageProbes, name="probes-of-laws", cost="about 30 min", resumable=True, gpu=False
):
    """Area against linear probes of frozen features, over sixteen laws of the mask size.

    In settings where pre-training beats random features clearly (``probe-pilot``): the same
    networks, data and steps for every law, areas on held-out images, features of complete ones. The
    laws are ``RECIPES`` of ``language_trainings``; those that are unbiased weight each size.
    ``num_labels`` is small, because pre-training is for where labels are few. Steps and ``num_scored``
    are what half an hour pays.

    ``LEFT_OUT`` was admitted by the pilot, by a hair, and has not been run: it would take a quarter of an
    hour more. Its setting is ("fashion-mnist", "mae", "fashion_mnist", 500, 3), and of its 16 patches
    45 to 55 % are eight, as 50 % are, so that there are fifteen laws.

    The rule, from before the run, is ``OfLaws.direction``. The unit is the law: its area and its
    accuracy are means over seeds. One law that learns nothing stays among them, and ``without-one``
    tells whether the answer hangs on it.

    Arrays: ``found/SETTING`` (laws, seeds, 6) and, with random weights, ``before/SETTING`` (seeds, 6),
    the columns ``probed_networks.MEASURED``; ``laws/SETTING`` (laws,), their numbers in ``RECIPES``;
    ``of-laws/SETTING`` (8,), area and accuracy by the fields of ``law_correlation.OfLaws``;
    ``at-rates/SETTING`` (3, 3), the correlation with the accuracy and its interval of the score at
    15, 50 and 75 % in place of the area; ``without-one/SETTING`` (laws,), the correlation without each
    law; ``ranks/SETTING`` (), Spearman's; ``direction/SETTING`` (); ``detectable/SETTING`` (), the
    smallest true correlation that so many laws find with a probability of 0.8.
    """

    seeds: tuple[int, ...] = setting((5, 55, 555, 5555, 55555), quick=(5, 55))
    laws: tuple[str, ...] = setting(
        tuple(RECIPES), quick=("uniform", "inverse-root", "fixed-15", "fixed-75")
    )
    images: tuple[Setting, ...] = setting(
        (
            ("vae", "vae", "digits", 1000, 5),
            ("vae-fashion-mnist", "vae", "fashion_mnist", 400, 5),
        ),
        quick=(("vae", "vae", "digits", 6, 2),),
    )

    def measure(self, context: RunContext) -> Outcome:
        findings: dict[str, Finding] = {}
        arrays: Arrays = {}
        used: list[Tensor] = []
        for wanted in self.images:
            name = wanted[0]
            probed = self.probed(wanted, context)
            data = [probed.data.unlabeled, *probed.data.labeled]
            used += data
            # What is kept depends on no other setting, so that a run of more of them goes on.
            own = replace(context, settings={**context.settings, "images": [wanted]})
            once = partial(own.computed_once, data=context.checksum(data))
            before = once(f"{name}-before", probed.before)
            laws = probed.laws(self.laws)
            after = [
                once(f"{name}-{law}", partial(probed.after, RECIPES[law]))
                for law in context.progress(laws, name)
            ]
            found = torch.stack([of_law["measured"] for of_law in after])
            arrays[f"found/{name}"] = found
            arrays[f"before/{name}"] = before["measured"]
            arrays[f"laws/{name}"] = torch.tensor([list(RECIPES).index(law) for law in laws])
            answers = over_laws(found)
            arrays |= {f"{key}/{name}": values for key, values in answers.items()}
            of_laws = law_correlation.of_laws(found[..., AREA], found[..., ACCURACY])
            findings[f"probes-of-laws/{name}"] = Finding(
                of_laws.correlation, of_laws.standard_error
            )
        return Outcome(findings, arrays, context.checksum(used))


def over_laws(found: Float[Tensor, "laws seeds 6"]) -> Arrays:
    """What area and scores tell about the accuracy, by the arrays' names."""
    accuracy = found[..., ACCURACY]
    area = found[..., AREA]
    of_laws = law_correlation.of_laws(area, accuracy)
    at_rates = []
    for column in AT_RATES:
        of_rate = law_correlation.of_laws(found[..., column], accuracy)
        at_rates.append([of_rate.correlation, of_rate.low, of_rate.high])
    ranks = autoencoders.rank_correlation(area.mean(dim=1), accuracy.mean(dim=1))
    return {
        "of-laws": torch.tensor(of_laws, dtype=torch.float64),
        "at-rates": torch.tensor(at_rates, dtype=torch.float64),
        "without-one": without_one(area.mean(dim=1), accuracy.mean(dim=1)),
        "ranks": ranks,
        "direction": torch.tensor(of_laws.direction),
        "detectable": torch.tensor(detectable(len(found)), dtype=torch.float64),
    }


def without_one(x: Float[Tensor, " laws"], y: Float[Tensor, " laws"]) -> Float[Tensor, " laws"]:
    """The correlation of the others, each law left out in turn.

    >>> without_one(torch.tensor([0.0, 1.0, 2.0, 9.0]), torch.tensor([0.0, 1.0, 2.0, 0.0]))[3]
    tensor(1.)
    """
    correlations = []
    for others in ~torch.eye(len(x), dtype=torch.bool):
        both = torch.stack([x[others], y[others]])
        correlations.append(torch.corrcoef(both)[0, 1])
    return torch.stack(correlations)
