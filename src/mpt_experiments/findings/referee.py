"""Which "likelihood" of a masked network is nearest to the truth, where the truth is known."""

from collections.abc import Callable
from copy import copy
from dataclasses import asdict
from itertools import product
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_experiments.experiment import (
    Arrays,
    Experiment,
    Finding,
    Outcome,
    RunContext,
    seeded,
    setting,
)
from mpt_experiments.language_trainings import ModernTraining, Training
from mpt_lml import masks, orders
from mpt_lml.files import computed_once
from mpt_lml.models.base import ConditionalModel
from mpt_lml.verdicts import mean_and_error

LAWS = ("uniform", "inverse-root", "fixed-15")
"""Of the size of the mask, by their names in ``RECIPES``."""

# -- numbers ------------------------------------------------------------------------------------------

RULES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "confidence": orders.confidence,
    "margin": orders.margin,
    "entropy": orders.entropy,
    "left-to-right": orders.left_to_right,
    "blocks": orders.by_blocks(orders.confidence, 4),
}

MIXTURE_SIZES = (4, 16)
"""Orders in a bound on the mixture. With a single one the bound from below is the area."""

DISTRIBUTIONS = ("area", "mixture-4", "mixture-16", *RULES)
"""Numbers that are the logarithm of a probability or lie below one, in the mean."""

NUMBERS = (*DISTRIBUTIONS, "pseudo", "mixture-4-above", "mixture-16-above")

CHECKPOINT_ORDERS = 4
"""Orders behind a number along a training, and as many others behind the truth."""


class Questions:
    """Sequences, and random orders of each: what every network is asked."""

    def __init__(
        self, x: Int[Tensor, "N D"], num_orders: int, *, generator: torch.Generator
    ) -> None:
        self.x = x
        ranks = masks.sample_ranks(len(x) * num_orders, x.shape[1], generator=generator)
        self.order = ranks.argsort(dim=1).view(len(x), num_orders, x.shape[1])

    def first(self, num_data: int, num_orders: int) -> "Questions":
        """The same questions, of fewer sequences and orders."""
        fewer = copy(self)
        fewer.x = self.x[:num_data]
        fewer.order = self.order[:num_data, :num_orders]
        return fewer

    def answers(self, model: ConditionalModel) -> Arrays:
        """What ``model`` says of every sequence: along random orders (S, N), by rule, pseudo (N,)."""
        answers = {"random": self.along_random_orders(model).sum(dim=2).T}
        for name, rule in RULES.items():
            answers[name] = orders.adaptive(model, self.x, rule).log_probability.double()
        one_hidden = torch.eye(self.x.shape[1], dtype=torch.bool)
        answers["pseudo"] = model.log_conditional(self.x, one_hidden).double().sum(dim=(0, 2))
        return answers

    def along_random_orders(self, model: ConditionalModel) -> Float[Tensor, "N S D"]:
        """log q of the token that each step of an order shows next, with 1, ..., D hidden."""
        mask = masks.nested_masks(self.order).flatten(0, 2)
        rows = self.x.repeat_interleave(len(mask) // len(self.x), dim=0)
        values = model.log_each(rows, mask).double().view(*self.order.shape, -1)
        return values.gather(3, self.order[..., None])[..., 0]


def numbers(answers: Arrays) -> Arrays:
    """Every number of every sequence, (N,), nats, from what :class:`Questions` collected.

    Bounds on the mixture are means over disjoint groups of orders, as many as there are.
    """
    random = answers["random"]
    values = {"area": random.mean(dim=0)}
    for count in MIXTURE_SIZES:
        if count <= len(random):
            values[f"mixture-{count}"] = orders.mixture_bound(random, count).mean(dim=0)
    for name in (*RULES, "pseudo"):
        values[name] = answers[name]
    for count in MIXTURE_SIZES:
        if count <= len(random):
            whole_groups = random[: len(random) // count * count].split(count)
            bounds = [orders.mixture_bounds(group).upper for group in whole_groups]
            values[f"mixture-{count}-above"] = torch.stack(bounds).mean(dim=0)
    return values


CURVE_TEST = 8
CURVE_ORDERS = 2
"""Sequences, and orders of each, behind what each size adds to the area's gap."""

# -- verdicts -----------------------------------------------------------------------------------------
# Committed before the runs that they judge.

NUM_ERRORS = 2.0
"""A difference counts from so many standard errors over seeds, and on every source with one sign."""

RANKS_ALIKE = 0.9
"""Kendall's tau, on every source, from which a number ranks checkpoints as the truth does."""


def nearer(first: Float[Tensor, "sources seeds"], second: Float[Tensor, "sources seeds"]) -> bool:
    """Whether a number is nearer to the truth than another, by their distances from it, nats.

    The seeds are paired: they share network and sequences. A seed draws the weights, the sequences of
    the training and those of the test, so that its error has all of them.
    """
    mean, error = mean_and_error(second.abs() - first.abs(), dim=1)
    return bool((mean > NUM_ERRORS * error).all())


def agreement(first: Tensor, second: Tensor) -> float:
    """Kendall's tau of two lists of numbers: 1 where they rank alike, −1 where they rank in reverse."""
    from scipy.stats import kendalltau

    return float(kendalltau(first.flatten().numpy(), second.flatten().numpy()).statistic)


# -- experiments --------------------------------------------------------------------------------------


class Referee(Experiment, name="referee", cost="about 8 min", resumable=True, gpu=False):
    """Which number of a masked network is nearest to the truth, on languages of known likelihood.

    Lengths, widths and languages are settings. The trainings and what was asked of each network are
    kept one file a network, under names that say their own settings, so that runs of other settings
    share a folder and what they have in common.

    Arrays, with NUMBER one of ``NUMBERS`` and the axes (sources, laws, seeds): ``gap/NUMBER``, the mean
    of log p(x) minus the number over the test sequences, nats, which for ``DISTRIBUTIONS`` is a
    divergence from the truth or an estimate of one from above; ``error/NUMBER``, the standard error over
    these sequences of the number minus the area; ``texts/NUMBER``, Kendall's tau of the number
    and log p over the sequences; ``spread``, the standard deviation of log p_π over random orders.
    ``heavy`` is the share of sequences of which one order in 16 holds more than half of the probability.

    ``checkpoint/NUMBER`` (sources, laws, seeds, steps): the gap along the training, from fewer
    sequences, and ``checkpoint/truth`` the mean divergence of the network's conditionals from the
    source's, which is the area's gap, from orders that no number uses. ``ranks/NUMBER`` (sources,):
    Kendall's tau of the two over every law, seed and step. ``curve`` (sources, laws, seeds, D): what each
    size of the mask adds to the area's gap.

    ``nearer/LAW`` (numbers, numbers): 1 where the number of the row is nearer to the truth than that of
    the column, by :func:`nearer`; numbers in the order of ``gap/NUMBER``.
    """

    sources: tuple[str, ...] = setting(("middle", "far", "grammar"), quick=("near",))
    num_features: int = setting(16, quick=4)
    width: int = setting(64, quick=8)
    num_steps: int = setting(600, quick=8)
    batch_size: int = setting(32, quick=8)
    learning_rate: float = 3e-3
    half_precision: bool = True  # products in bfloat16 in training, never in a measurement
    num_test: int = setting(32, quick=6)
    num_orders: int = setting(16, quick=16)
    checkpoint_test: int = setting(8, quick=4)

    def measure(self, context: RunContext) -> Outcome:
        cells = list(product(self.sources, LAWS))
        results = {}
        for cell in context.progress(cells, "trainings"):
            training = self.training(*cell)
            for number, seed in enumerate(self.seeds):
                results[*cell, seed] = self.examined(training, number, context)
        arrays = self.as_grid(results)
        arrays |= self.verdicts(arrays)
        log_probabilities = [result["log_probability"] for result in results.values()]
        findings = self.findings(arrays)
        return Outcome(findings, arrays, context.checksum(log_probabilities))

    @property
    def largest_mixture(self) -> int:
        return max(count for count in MIXTURE_SIZES if count <= self.num_orders)

    def findings(self, arrays: Arrays) -> dict[str, Finding]:
        """How much nearer than the area three numbers are, mean over languages, error over seeds."""
        found = {}
        for law_number, law in enumerate(LAWS):
            area = arrays["gap/area"][:, law_number]
            for name in (f"mixture-{self.largest_mixture}", "confidence", "left-to-right"):
                gain = area - arrays[f"gap/{name}"][:, law_number]
                found[f"{self.name}-{name}/{law}"] = Finding.over(gain.mean(dim=0))
        return found

    def training(self, source: str, law: str) -> Training:
        return Training(
            source=source,
            num_features=self.num_features,
            law=law,
            width=self.width,
            seeds=self.seeds,
            num_steps=self.num_steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            half_precision=self.half_precision,
        )

    def examined(self, training: Training, number: int, context: RunContext) -> Arrays:
        """What :meth:`examine` measures, from its file where it was done before."""

        def compute() -> Arrays:
            weights = training.weights(context)
            own = {int(step): of_seeds[number] for step, of_seeds in weights.items()}
            return self.examine(training, training.seeds[number], own)

        if context.folder is None:
            return compute()
        name = f"{training.name}-number-{number}"
        path = Path(context.folder, "examined", f"{name}.safetensors")
        path.parent.mkdir(exist_ok=True)
        identity = {
            **training.identity(),
            "number": number,
            "num_test": self.num_test,
            "num_orders": self.num_orders,
            "checkpoint_test": self.checkpoint_test,
        }
        return computed_once(path, compute, identity)

    def examine(self, training: Training, seed: int, weights: dict[int, Tensor]) -> Arrays:
        """Numbers of every sequence after the last step, and means of fewer after every step."""
        source = training.language()
        generator = seeded(31_000_000 + seed)
        x = source.sample(self.num_test, generator=generator)
        log_probability = source.log_marginal(x)
        questions = Questions(x, self.num_orders, generator=generator)
        few = questions.first(self.checkpoint_test, 2 * CHECKPOINT_ORDERS)
        last = training.network_after(weights[training.num_steps])
        answers = questions.answers(last)
        result = {"log_probability": log_probability, "random": answers["random"]}
        for name, values in numbers(answers).items():
            result[f"number/{name}"] = values
        gaps: dict[str, list[Tensor]] = {}
        steps = training.steps_kept() if self.checkpoint_test else []
        for step in steps:
            answers = few.answers(training.network_after(weights[step]))
            truth, asked = answers["random"].split(CHECKPOINT_ORDERS)
            of_step = numbers({**answers, "random": asked}) | {"truth": truth.mean(dim=0)}
            for name, value in of_step.items():
                gap = (log_probability[: len(value)] - value).mean()
                gaps.setdefault(f"checkpoint/{name}", []).append(gap)
        for name, along in gaps.items():
            result[name] = torch.stack(along)
        fewest = questions.first(CURVE_TEST, CURVE_ORDERS)
        terms = fewest.along_random_orders(source) - fewest.along_random_orders(last)
        result["curve"] = terms.mean(dim=(0, 1))
        return result

    def as_grid(self, results: dict[tuple[str, str, int], Arrays]) -> Arrays:
        """One array a quantity, (sources, laws, seeds, ...)."""
        columns: dict[str, list[Tensor]] = {}
        for cell in product(self.sources, LAWS, self.seeds):
            for name, value in _summary(results[cell]).items():
                columns.setdefault(name, []).append(value)
        axes = (len(self.sources), len(LAWS), len(self.seeds))
        return {name: torch.stack(column).unflatten(0, axes) for name, column in columns.items()}

    def verdicts(self, arrays: Arrays) -> Arrays:
        """What the two rules say."""
        names = [name.removeprefix("gap/") for name in arrays if name.startswith("gap/")]
        decided = {}
        for law_number, law in enumerate(LAWS):
            distances = [arrays[f"gap/{name}"][:, law_number] for name in names]
            rows = [[float(nearer(row, other)) for other in distances] for row in distances]
            decided[f"nearer/{law}"] = torch.tensor(rows)
        for key, along in arrays.items():
            name = key.removeprefix("checkpoint/")
            if name != key and name != "truth":
                truth = arrays["checkpoint/truth"]
                of_source = [agreement(*pair) for pair in zip(along, truth, strict=True)]
                decided[f"ranks/{name}"] = torch.tensor(of_source)
        return decided


def _summary(result: Arrays) -> Arrays:
    """Of one network, () or (steps,) each."""
    log_probability = result["log_probability"]
    area = result["number/area"]
    summary = {}
    for key, values in result.items():
        name = key.removeprefix("number/")
        if name == key:
            continue
        summary[f"gap/{name}"] = (log_probability - values).mean()
        summary[f"error/{name}"] = mean_and_error(values - area)[1]
        summary[f"texts/{name}"] = torch.tensor(agreement(values, log_probability))
    random = result["random"]
    summary["spread"] = random.var(dim=0).mean().sqrt()
    is_heavy = orders.mixture_bounds(random).is_heavy_tailed
    summary["heavy"] = is_heavy.double().mean()
    summary["curve"] = result["curve"]
    return summary | {key: value for key, value in result.items() if "checkpoint/" in key}


class RefereeTrained(
    Referee, name="referee-trained", cost="about 10 min", resumable=True, gpu=False
):
    """The referee, with two and a half times as many steps.

    Arrays as those of :class:`Referee`.
    """

    num_steps: int = setting(1500, quick=8)


class RefereeNarrow(Referee, name="referee-narrow", cost="about 5 min", resumable=True, gpu=False):
    """The referee, with networks of half the width.

    Arrays as those of :class:`Referee`.
    """

    width: int = setting(32, quick=8)


class RefereeOfLength64(Referee, name="referee-64", cost="about 20 min", resumable=True, gpu=False):
    """The referee, on sequences of 64 symbols, with ModernBERTs.

    Of BERTs with a vector for each position, none had learned more of *middle* after 1,500 steps than
    how frequent symbols are. Arrays as those of :class:`Referee`.
    """

    num_features: int = setting(64, quick=4)
    batch_size: int = setting(16, quick=8)
    num_test: int = setting(8, quick=6)
    checkpoint_test: int = setting(2, quick=4)

    def training(self, source: str, law: str) -> Training:
        return ModernTraining(**asdict(super().training(source, law)))


class RefereeOfLength256(
    RefereeOfLength64, name="referee-256", cost="about 30 min", resumable=True, gpu=False
):
    """The referee, on sequences of 256 symbols of the two hidden Markov languages, with ModernBERTs.

    Fewer seeds, sequences and orders, and no checkpoints: what a processor can do in half an hour. So
    there is no mixture of 16 orders and no ``checkpoint/NUMBER``. Arrays as those of :class:`Referee`.
    """

    seeds: tuple[int, ...] = setting((4, 44, 444), quick=(4, 44))
    sources: tuple[str, ...] = setting(("middle", "far"), quick=("near",))
    num_features: int = setting(256, quick=4)
    num_steps: int = setting(400, quick=8)
    batch_size: int = setting(8, quick=8)
    num_test: int = setting(4, quick=6)
    num_orders: int = setting(4, quick=4)
    checkpoint_test: int = setting(0, quick=0)
