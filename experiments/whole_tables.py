"""Networks that integrate over a prior: their evidence of whole tables, and when not to trust it."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor
from torch.distributions import MultivariateNormal

from experiments.experiment import Arrays, Experiment, RunContext, on_cpu, seeded, setting, stacked
from experiments.records import finding_over
from experiments.trainings.row_network import train_row_network
from mpt_lml import masks
from mpt_lml.models.row_network import (
    LARGEST_INPUT,
    NOISE_VARIANCE,
    NUM_ROWS,
    PRIORS,
    Prior,
    RowNetwork,
    draw_tables,
)
from mpt_lml.numerics import standard_gamma
from mpt_lml.recorded import Finding, Outcome
from mpt_lml.verdicts import mean_and_error

ELSEWHERE = ("other", "cubic", "noise", "student")
"""Families of tables that a network has never seen."""

OTHER_PRIOR: dict[Prior, Prior] = {"linear": "quadratic", "quadratic": "linear"}

TIMES_THE_NOISE = 3.0
"""Standard deviation of the noise in the family "noise", in that of the prior."""

STUDENT_DF = 2.0
"""Degrees of freedom in the family "student"; its scale is the prior's standard deviation."""

TEST_SEED = 1_000_000
"""Added to a network's seed, for the tables on which it is judged; twice, for the orders."""

TABLES_AT_ONCE = 1024
"""Tables that pass the network together."""

NATS_OFF = 2.0
"""A total is off where it is further than this from the exact evidence."""

NEWTON_STEPS = 20
"""Of the logistic regression, whose likelihood is concave."""

FEWEST = 20
"""Tables that have to be off, and tables that have not, for an area under the ROC curve."""


class WholeTables(Experiment, name="whole-tables", resumable=True):
    """The evidence of whole tables by a network: two priors, orders of rows, tables from elsewhere.

    A network of each prior and seed is trained on tables of twelve rows. Its *total* of a table along
    an order is the sum of its log-scores, each row given those before it. Its *area* is the mean of
    the totals along 16 random orders, its *mixture* the logarithm of the mean of their exponentials,
    its *spread* their standard deviation. The exact evidence is that of the network's own prior.

    These rules were written before the run, with the settings below; the numbers of steps were chosen
    by short trials with another seed, 7. In both priors the noise has the variance 0.25.

    (a) In the mean over 4,000 fresh tables of the network's prior, the area and the mixture are both
    within 0.1 nat of the exact log-evidence, for both priors and each of five seeds.

    (b) Of tables of both priors, 4,000 each, whose exact log Bayes factor is beyond one nat, the two
    networks' mixtures choose the same prior as the exact factor in at least 99 %, for each seed.

    (c) A total is off where the area is more than two nats from the exact evidence. Four families,
    1,000 tables each, come from elsewhere: "other" is the other prior; "cubic" a polynomial of degree
    3 with coefficients from N(0, 1); "noise" has noise of three times the standard deviation;
    "student" has noise 0.5 t with 2 degrees of freedom. The spread tells which are off: its area under
    the ROC curve (AUC), in the mean over seeds, is at least 0.9 for each network and family, both
    within the family and pooled with as many tables of the network's prior. The AUC of a seed counts
    where at least 20 of these tables are off, and at least 20 are not.

    Beside the spread stands the warning that costs nothing, a low total itself. Both together are a
    logistic regression on log spread and log(1 + shortfall), where the shortfall is by how much the
    area lies below the highest that a table of the network's prior has. It is fitted on tables of all
    five kinds from the next seed, and judged on this one's. Orders are worth their price if, pooled
    and in the mean over seeds and over networks and families, both together have an AUC that is at
    least 0.02 above that of the low total alone.

    Arrays, for P in ``PRIORS`` and F in "own" and ``ELSEWHERE``, nats: ``area_error/P`` and
    ``mixture_error/P``, mean less exact, and their standard errors over tables ``.../P/error``,
    all (seeds,); ``error/P/F`` (seeds, 2), mean size of the area's error and the largest;
    ``mean_spread/P/F`` (seeds,); ``off/P/F`` (seeds,), share that is off; ``auc/P/F`` (seeds, 2, 3),
    within and pooled; of spread, low total, both; NaN where it does not count. ``choice`` (seeds, 2),
    share of the same choice and number of tables beyond one nat; ``factor`` (seeds, 3), error of the
    log Bayes factor: mean, standard deviation, largest.
    """

    num_steps: tuple[int, int] = setting((2500, 8000), quick=(4, 4))  # of the two priors
    batch_size: int = setting(96, quick=12)
    learning_rate: float = 6e-3
    width: int = setting(48, quick=8)
    num_tables: int = setting(4000, quick=40)
    num_elsewhere: int = setting(1000, quick=30)
    num_orders: int = setting(16, quick=3)

    def measure(self, context: RunContext) -> Outcome:
        of_priors = {
            prior: [self.answers(prior, seed, context) for seed in self.seeds] for prior in PRIORS
        }
        arrays: Arrays = {}
        for prior, of_seeds in of_priors.items():
            arrays |= stacked([errors(prior, answers) for answers in of_seeds])
            arrays |= self._warnings(prior, of_seeds)
        choices = []
        factors = []
        for linear, quadratic in zip(of_priors["linear"], of_priors["quadratic"], strict=True):
            choice, factor = same_choice(linear, quadratic)
            choices.append(choice)
            factors.append(factor)
        arrays["choice"] = torch.stack(choices)
        arrays["factor"] = torch.stack(factors)
        exact = [answers["own/exact"] for of_seeds in of_priors.values() for answers in of_seeds]
        return Outcome(findings(arrays), arrays, context.checksum(exact))

    def tables(self, prior: Prior, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
        """Inputs and outputs of the tables on which networks of a prior are judged, by family.

        The networks of both priors have the same tables of both: the one's own are the other's.
        """
        draws = seeded(TEST_SEED + seed)
        of_priors = {name: draw_tables(name, self.num_tables, generator=draws) for name in PRIORS}
        families = {"own": of_priors[prior], "other": of_priors[OTHER_PRIOR[prior]]}
        for name in ELSEWHERE[1:]:
            families[name] = tables_from(name, PRIORS[prior], self.num_elsewhere, draws)
        return families

    def network(self, prior: Prior, seed: int, context: RunContext, data: str) -> RowNetwork:
        """The network of a prior and a seed, trained now or by an earlier part of the run."""

        def train() -> Arrays:
            trained = train_row_network(
                prior,
                seed=seed,
                num_steps=self.num_steps[list(PRIORS).index(prior)],
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                width=self.width,
                device=context.device,
                progress=context.progress,
            )
            return trained.state_dict()

        network = RowNetwork(self.width, seed=seed).to(context.device)
        network.load_state_dict(context.computed_once(f"{prior}-{seed}", train, data=data))
        return network.requires_grad_(False).eval()

    def answers(self, prior: Prior, seed: int, context: RunContext) -> Arrays:
        """Exact evidence, area, mixture and spread of every table, by family: ``F/area`` (N,)."""
        families = self.tables(prior, seed)
        data = context.checksum(tensor for pair in families.values() for tensor in pair)

        def ask() -> Arrays:
            network = self.network(prior, seed, context, data)
            draws = seeded(2 * TEST_SEED + seed)
            answers = {}
            for family, (x, y) in families.items():
                label = f"{prior}, seed {seed}, {family}, order"
                totals = []
                for _ in context.progress(range(self.num_orders), label):
                    order = masks.sample_ranks(len(x), x.shape[1], generator=draws)
                    places = (tensor.to(context.device) for tensor in (x, y, order))
                    totals.append(along(network, *places))
                total = torch.stack(totals)
                answers[f"{family}/exact"] = log_evidence(x, y, PRIORS[prior])
                answers[f"{family}/area"] = total.mean(dim=0)
                answers[f"{family}/mixture"] = total.logsumexp(dim=0) - math.log(len(total))
                answers[f"{family}/spread"] = total.std(dim=0)
            return answers

        return on_cpu(context.computed_once(f"{prior}-{seed}-answers", ask, data=data))

    def _warnings(self, prior: str, of_seeds: list[Arrays]) -> Arrays:
        """How well spread, low total and both tell which totals are off, by family."""
        rows = []
        for number, answers in enumerate(of_seeds):
            next_seed = of_seeds[(number + 1) % len(of_seeds)]
            fitted = OffTotals(next_seed, self.num_elsewhere)
            rows.append(
                {
                    f"auc/{prior}/{family}": fitted.judged(answers, family, self.num_elsewhere)
                    for family in ELSEWHERE
                }
            )
        return stacked(rows)


# -- tables and their evidence --------------------------------------------------------------------


def tables_from(
    family: str, degree: int, num_tables: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Tables of a family that no network has seen: inputs and outputs, (N, n) each.

    Args:
        family: "cubic", "noise" or "student".
        degree: of the polynomials of the network's prior, which "cubic" replaces.
        num_tables: N.
        generator: of all draws.
    """
    shape = (num_tables, NUM_ROWS)
    num_coefficients = 4 if family == "cubic" else degree + 1
    x = LARGEST_INPUT * (2.0 * torch.rand(shape, generator=generator) - 1.0)
    coefficients = torch.randn(num_tables, num_coefficients, 1, generator=generator)
    noise = math.sqrt(NOISE_VARIANCE) * torch.randn(shape, generator=generator)
    if family == "noise":
        noise = TIMES_THE_NOISE * noise
    if family == "student":
        half_df = torch.full(shape, STUDENT_DF / 2)
        noise = noise / (standard_gamma(half_df, generator=generator) / half_df).sqrt()
    powers = torch.linalg.vander(x, N=num_coefficients)
    return x, (powers @ coefficients)[..., 0] + noise


def log_evidence(x: Float[Tensor, "N n"], y: Float[Tensor, "N n"], degree: int) -> Tensor:
    """Exact log p(y | x) of every table under the prior of polynomials of a degree, nats, (N,)."""
    powers = torch.linalg.vander(x.double(), N=degree + 1)
    noise = NOISE_VARIANCE * torch.eye(x.shape[1]).to(powers)
    covariance = powers @ powers.mT + noise
    return MultivariateNormal(torch.zeros_like(powers[..., 0]), covariance).log_prob(y.double())


@torch.inference_mode()
def along(
    network: RowNetwork,
    x: Float[Tensor, "N n"],
    y: Float[Tensor, "N n"],
    order: Int[Tensor, "N n"],
) -> Float[Tensor, " N"]:
    """log q(y | x) along an order of each table's rows: each given those before it, nats, (N,).

    Rows that come later are not read, so that they are left out.
    """
    totals = []
    for rows in torch.arange(len(x), device=x.device).split(TABLES_AT_ONCE):
        inputs = x[rows].gather(1, order[rows])
        outputs = y[rows].gather(1, order[rows])
        total = torch.zeros(len(rows), dtype=torch.float64, device=x.device)
        for last in range(x.shape[1]):
            mask = torch.zeros(len(rows), last + 1, dtype=torch.bool, device=x.device)
            mask[:, last] = True
            shown = slice(last + 1)
            each = network.log_each(inputs[:, shown], outputs[:, shown], mask)
            total += each[:, last]
        totals.append(total)
    return torch.cat(totals)


# -- what is judged -------------------------------------------------------------------------------


def errors(prior: str, answers: Mapping[str, Tensor]) -> Arrays:
    """Errors of one network's totals, by family."""
    values: Arrays = {}
    for name in ("area", "mixture"):
        mean, error = mean_and_error(answers[f"own/{name}"] - answers["own/exact"])
        values[f"{name}_error/{prior}"] = mean
        values[f"{name}_error/{prior}/error"] = error
    for family in ("own", *ELSEWHERE):
        size = (answers[f"{family}/area"] - answers[f"{family}/exact"]).abs()
        values[f"error/{prior}/{family}"] = torch.stack([size.mean(), size.max()])
        values[f"off/{prior}/{family}"] = (size > NATS_OFF).double().mean()
        values[f"mean_spread/{prior}/{family}"] = answers[f"{family}/spread"].mean()
    return values


def same_choice(
    linear: Mapping[str, Tensor], quadratic: Mapping[str, Tensor]
) -> tuple[Float[Tensor, "2"], Float[Tensor, "3"]]:
    """How two networks' factor compares with the exact one, on tables of both priors.

    Returns:
        The share of the same choice beyond one nat and the number of these tables; the error of the
        log Bayes factor: its mean, standard deviation and largest size, nats.
    """
    exact = log_factor(linear, quadratic, "exact")
    mixture = log_factor(linear, quadratic, "mixture")
    is_clear = exact.abs() > 1.0
    is_same = (mixture > 0) == (exact > 0)
    error = mixture - exact
    choice = torch.stack([is_same[is_clear].double().mean(), is_clear.double().sum()])
    return choice, torch.stack([error.mean(), error.std(), error.abs().max()])


def log_factor(
    linear: Mapping[str, Tensor], quadratic: Mapping[str, Tensor], name: str
) -> Float[Tensor, " N"]:
    """Quadratic over linear on the tables of both priors, which one has as "own", one as "other"."""
    of_linear_tables = quadratic[f"other/{name}"] - linear[f"own/{name}"]
    of_quadratic_tables = quadratic[f"own/{name}"] - linear[f"other/{name}"]
    return torch.cat([of_linear_tables, of_quadratic_tables])


class OffTotals:
    """Logistic regression that says from spread and low total whether a total is off."""

    def __init__(self, answers: Mapping[str, Tensor], num_tables: int) -> None:
        """Fit to the first tables of all families.

        Args:
            answers: of one network.
            num_tables: of each family.
        """
        self.highest = answers["own/area"].max()
        every = {name: first(answers, name, num_tables) for name in ("own", *ELSEWHERE)}
        features = torch.cat([self._features(part) for part in every.values()])
        is_off = torch.cat([off(part) for part in every.values()])
        self.coefficients = logistic_regression(features, is_off)

    def _features(self, part: Mapping[str, Tensor]) -> Float[Tensor, "N 3"]:
        """One, log spread and log(1 + shortfall) of every table."""
        shortfall = (self.highest - part["area"]).clamp(min=0.0)
        log_spread = part["spread"].clamp(min=1e-6).log()
        return torch.stack([torch.ones_like(shortfall), log_spread, shortfall.log1p()], dim=1)

    def judged(
        self, answers: Mapping[str, Tensor], family: str, num_tables: int
    ) -> Float[Tensor, "2 3"]:
        """AUC within the family, and pooled with the network's prior: of spread, low total, both."""
        elsewhere = first(answers, family, num_tables)
        own = first(answers, "own", num_tables)
        pooled = {name: torch.cat([own[name], elsewhere[name]]) for name in own}
        rows = []
        for part in (elsewhere, pooled):
            together = self._features(part) @ self.coefficients
            scores = (part["spread"], -part["area"], together)
            rows.append(torch.tensor([roc_area(score, off(part)) for score in scores]))
        return torch.stack(rows)


def first(answers: Mapping[str, Tensor], family: str, num_tables: int) -> Arrays:
    """What is said of the first tables of a family."""
    names = ("exact", "area", "spread")
    return {name: answers[f"{family}/{name}"][:num_tables] for name in names}


def off(part: Mapping[str, Tensor]) -> Bool[Tensor, " N"]:
    """Whether the total of each table is off."""
    return (part["area"] - part["exact"]).abs() > NATS_OFF


def logistic_regression(features: Float[Tensor, "N k"], is_true: Bool[Tensor, " N"]) -> Tensor:
    """Coefficients of the maximum likelihood by Newton's steps, with a prior N(0, 10^2) on each."""
    coefficients = features.new_zeros(features.shape[1])
    precision = 0.01 * torch.eye(len(coefficients)).to(features)
    for _ in range(NEWTON_STEPS):
        probability = (features @ coefficients).sigmoid()
        gradient = features.T @ (is_true.to(features) - probability) - precision @ coefficients
        weighted = features * (probability * (1.0 - probability))[:, None]
        coefficients = coefficients + torch.linalg.solve(
            features.T @ weighted + precision, gradient
        )
    return coefficients


def roc_area(score: Float[Tensor, " N"], is_true: Bool[Tensor, " N"]) -> float:
    """Probability that one that is true has the higher score, ties by half; NaN with too few."""
    num_true = int(is_true.sum())
    num_false = len(is_true) - num_true
    if min(num_true, num_false) < FEWEST:
        return math.nan
    ranks = torch.from_numpy(stats.rankdata(score.numpy()))
    lowest = num_true * (num_true + 1) / 2
    return (ranks[is_true].sum().item() - lowest) / (num_true * num_false)


def findings(arrays: Arrays) -> dict[str, Finding]:
    """What the ledger has: the worst of (a), (b) and (c), and what orders are worth.

    Without an AUC that counts there is no finding of (c).
    """
    errors_of = {
        name: [arrays[f"{name}_error/{prior}"] for prior in PRIORS] for name in ("area", "mixture")
    }
    values = {
        f"whole-tables/{name}": Finding(torch.stack(of_networks).abs().max().item())
        for name, of_networks in errors_of.items()
    }
    values["whole-tables/choice"] = Finding(arrays["choice"][:, 0].min().item())
    # (networks and families, seeds, within and pooled, scores)
    auc = torch.stack([arrays[f"auc/{prior}/{family}"] for prior in PRIORS for family in ELSEWHERE])
    for place, name in enumerate(("within", "pooled")):
        of_spread = auc[:, :, place, 0].nanmean(dim=1)
        counted = of_spread[~of_spread.isnan()]
        if len(counted) > 0:
            values[f"whole-tables/spread-{name}"] = Finding(counted.min().item())
    gain = (auc[:, :, 1, 2] - auc[:, :, 1, 1]).nanmean(dim=0)
    if not gain.isnan().any():
        values["whole-tables/worth"] = finding_over(gain)
    return values
