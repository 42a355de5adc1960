"""How much of a network's error is self-contradiction: area, mixture and exact log p."""

from collections.abc import Iterator
from typing import Literal, NamedTuple, Protocol, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from experiments.experiment import Arrays, Experiment, RunContext, seeded, setting, stacked
from experiments.trainings.row_network import hidden_rows, objective
from experiments.whole_tables import along, log_evidence
from mpt_lml import masks, orders, scores, verdicts
from mpt_lml.models.hmm import HMM
from mpt_lml.models.row_network import NUM_ROWS, PRIORS, Prior, RowNetwork, draw_tables
from mpt_lml.recorded import Finding, Outcome
from mpt_score.networks.symbol_bert import SymbolBERT

Family = Literal["language", "linear", "quadratic"]
"""The known language, and both priors of tables."""

FAMILIES: tuple[Family, ...] = get_args(Family)

FIRST_SEED = 1_000_000
"""Added to a network's seed, for the data that decide which looks count; twice, for those that judge."""

LEAST_SHARE = 0.5
"""The claim."""

LOW, HIGH, GAP, PLAIN = range(4)
"""Places in the means of a look, as :func:`split` has them."""

SEQUENCES_AT_ONCE = 64
"""Sequences that pass the network together, each with D masks."""

WARM_UP = 0.1
"""Share of the steps until the learning rate is at its largest."""


class SelfContradiction(Experiment, name="self-contradiction", resumable=True, gpu=False):
    """How much of a network's error is self-contradiction: area, mixture and exact log p.

    A network's *gap* is the mean over data of log p − area. Part of it is *self-contradiction*, the
    mean of log p_mix − area, which averaging over orders removes. The *share* is the second over the
    first, a ratio of means over data. Three families have an exact log p: the language of ``HMM.cyclic``
    (D = 16), and tables of twelve rows of a linear and of a quadratic prior (D = 12). Networks are
    trained with uniform sizes, and looked at six times while they learn.

    **The claim**: once the gap is below .01 · D nats, the share is at least one half.

    This rule was written before the run, with the settings below. Old runs suggest the claim, so seeds,
    data and networks are new.

    *Bounds.* The mixture of all orders lies between the two bounds of ``orders.mixture_bounds`` from 16
    random orders of each datum, in expectation: so the share has a lower and an upper bound.

    *The gap* is the mean of log p − area + r − 1, where r is the mean probability of the 16 orders over
    p(x). Each order is a distribution, so r has the mean 1 under p, and what is added has the mean 0.
    It takes away most of the luck of the data.

    *Which looks count.* A look of a network counts if its gap, on data of its own, is below
    .01 · D nats. The share of a look that counts is measured on other, fresh data.

    *Errors.* The means of a share are over the data of all networks of the family that count at this
    look. Its standard error is over data, by the delta method, and its interval has 99 %.

    *The verdict.* The claim holds for a family if at every look at which a network counts, the lower
    bound's interval lies above one half, and no network's own lower bound lies below one half. It fails
    if at some look the upper bound's interval lies below one half. Otherwise it is not decided, as where
    no look counts. It holds if it does in all three families, and fails if it does in one.

    Settings of several numbers are of the families, in this order. A family's networks have the first
    seeds.

    Arrays, for F in ``FAMILIES``, K networks, L looks: ``first/F`` and ``judged/F`` (K, L, 4), means over
    data of the lower and upper bound of log p_mix − area, of the gap, and of log p − area alone, nats;
    ``first_covariance/F`` and ``judged_covariance/F`` (K, L, 4, 4), covariance of these means, nats²;
    ``first_heavy/F`` and ``judged_heavy/F`` (K, L), share of data of which one order has more than half
    of the probability of all. ``judged`` is NaN where a look does not count. ``steps/F`` (L,).
    ``share/F`` (L, 4), over all networks that count, lower bound, its error, upper bound, its error; NaN
    where none does. ``verdict/F`` (), 1 holds, −1 fails, 0 not decided.
    """

    seeds: tuple[int, ...] = setting((8, 88, 888, 8888, 88888), quick=(8, 88))
    num_networks: tuple[int, int, int] = setting((3, 5, 3), quick=(2, 2, 2))
    num_steps: tuple[int, int, int] = setting((5000, 1500, 8000), quick=(8, 8, 8))
    batch_size: tuple[int, int, int] = setting((128, 96, 96), quick=(8, 12, 12))
    learning_rate: tuple[float, float, float] = (3e-3, 6e-3, 6e-3)
    width: tuple[int, int, int] = setting((64, 48, 48), quick=(8, 8, 8))
    looks: tuple[float, ...] = setting((0.125, 0.25, 0.5, 0.75, 0.875, 1.0), quick=(0.5, 1.0))
    num_first: tuple[int, int, int] = setting((100, 300, 300), quick=(6, 6, 6))
    num_judged: tuple[int, int, int] = setting((600, 1000, 1000), quick=(8, 8, 8))
    num_orders: int = setting(16, quick=3)
    small_gap: float = setting(0.01, quick=10.0)  # nats a coordinate; a look with less counts

    def measure(self, context: RunContext) -> Outcome:
        arrays: Arrays = {}
        judged_data = []
        for number, family in enumerate(FAMILIES):
            rows = []
            for seed in self.seeds[: self.num_networks[number]]:
                learner = self.learner(family, seed)
                first, judged = self.data(learner, family, seed)
                judged_data.append(judged.x)
                rows.append(self.looked_at(learner, first, judged, f"{family}-{seed}", context))
            arrays |= {f"{name}/{family}": value for name, value in stacked(rows).items()}
            means, covariances = arrays[f"judged/{family}"], arrays[f"judged_covariance/{family}"]
            arrays[f"steps/{family}"] = torch.tensor(self.look_steps(family))
            arrays[f"share/{family}"] = shares_of_looks(means, covariances)
            arrays[f"verdict/{family}"] = torch.tensor(verdict(means, covariances))
        return Outcome(findings(arrays), arrays, context.checksum(judged_data))

    def learner(self, family: Family, seed: int) -> "Learner":
        """A network of a family, not yet trained."""
        number = FAMILIES.index(family)
        size = (self.width[number], self.batch_size[number], seed)
        return OfLanguage(*size) if family == "language" else OfTables(family, *size)

    def look_steps(self, family: Family) -> list[int]:
        """Steps after which the networks of a family are looked at."""
        return [round(part * self.num_steps[FAMILIES.index(family)]) for part in self.looks]

    def data(self, learner: "Learner", family: Family, seed: int) -> tuple["Data", "Data"]:
        """Data that decide which looks of a network count, and others that judge these."""
        number = FAMILIES.index(family)
        sizes = (self.num_first[number], self.num_judged[number])
        first, judged = (
            learner.draw(size, self.num_orders, seeded(times * FIRST_SEED + seed))
            for times, size in enumerate(sizes, start=1)
        )
        return first, judged

    def looked_at(
        self, learner: "Learner", first: "Data", judged: "Data", name: str, context: RunContext
    ) -> Arrays:
        """The looks of one network, computed now or by an earlier part of the run."""
        number = FAMILIES.index(learner.family)
        num_steps = self.num_steps[number]
        look_steps = self.look_steps(learner.family)
        limit = self.small_gap * learner.num_features

        def look() -> Arrays:
            looks = []
            steps = training(learner, num_steps, self.learning_rate[number])
            for step in context.progress(steps, f"{name}, step"):
                if step in look_steps:
                    looks.append(one_look(learner, first, judged, limit))
            return stacked(looks)

        data = context.checksum([*first, *judged])
        return context.computed_once(name, look, data=data)


# -- networks, and what is exact about their data ---------------------------------------------------


class Data(NamedTuple):
    """N data with their exact log p and k orders of each."""

    x: Tensor
    """What a network reads, N first."""
    exact: Float[Tensor, " N"]
    order: Int[Tensor, "k N D"]


class Learner(Protocol):
    """A network with the source of its data."""

    family: Family
    num_features: int
    network: nn.Module

    def loss(self) -> Tensor:
        """Minus the mean score of a fresh batch with masks of uniform sizes."""

    def draw(self, num_data: int, num_orders: int, generator: torch.Generator) -> Data:
        """Data with their exact log p, and orders."""

    def along(self, x: Tensor, order: Int[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """log p_π of each datum along an order of its own, nats.

        Tables read it as it is written, the language from its end, as the record did.
        """


class OfLanguage:
    """A BERT of the known language. The mask token is no symbol: its logit is left out everywhere."""

    family: Family = "language"

    def __init__(self, width: int, batch_size: int, seed: int) -> None:
        self.source = HMM.cyclic()
        self.num_features = self.source.num_features
        self.num_symbols = self.source.num_values
        self.model = SymbolBERT(self.num_symbols, self.num_features, width, seed=seed)
        self.network: nn.Module = self.model.network
        self.batch_size = batch_size
        self.draws = seeded(seed)

    def log_values(self, x: Tensor, mask: Tensor) -> Tensor:
        """log q of every symbol at every place, (B, D, symbols)."""
        shown = x.masked_fill(mask, self.model.mask_token)
        logits: Tensor = self.network(input_ids=shown).logits
        return logits[..., : self.num_symbols].log_softmax(dim=2)

    def loss(self) -> Tensor:
        x = self.source.sample(self.batch_size, generator=self.draws)
        law = masks.UniformSize()
        mask = masks.sample_masks(len(x), self.num_features, law, generator=self.draws)
        log_each = self.log_values(x, mask).gather(2, x[..., None])[..., 0]
        return -scores.mask_score(log_each.where(mask, 0.0), mask).mean()

    def draw(self, num_data: int, num_orders: int, generator: torch.Generator) -> Data:
        x = self.source.sample(num_data, generator=generator)
        order = drawn_orders(num_orders, num_data, self.num_features, generator)
        return Data(x, self.source.log_marginal(x), order)

    @torch.inference_mode()
    def along(self, x: Tensor, order: Int[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """As :meth:`Learner.along`; the last place of ``order`` is shown first."""
        mask = masks.nested_masks(order.flip(1))
        totals = []
        for rows in torch.arange(len(x)).split(SEQUENCES_AT_ONCE):
            repeated = x[rows].repeat_interleave(self.num_features, dim=0)
            log_values = self.log_values(repeated, mask[rows].flatten(0, 1)).double()
            # Of the mask that hides order[:M], the place that is shown next: order[M − 1].
            place = order[rows].flatten()
            each = torch.arange(len(place))
            shown = log_values[each, place, repeated[each, place]]
            totals.append(shown.view(len(rows), -1).sum(dim=1))
        return torch.cat(totals)


class OfTables:
    """A network of the rows of tables of one prior."""

    num_features = NUM_ROWS

    def __init__(self, prior: Prior, width: int, batch_size: int, seed: int) -> None:
        self.family: Family = prior
        self.prior = prior
        self.rows = RowNetwork(width, seed=seed)
        self.network: nn.Module = self.rows
        self.mask = hidden_rows(batch_size)
        self.draws = seeded(seed)

    def loss(self) -> Tensor:
        x, y = draw_tables(self.prior, len(self.mask), generator=self.draws)
        return -objective(self.rows, x, y, self.mask)

    def draw(self, num_data: int, num_orders: int, generator: torch.Generator) -> Data:
        x, y = draw_tables(self.prior, num_data, generator=generator)
        order = drawn_orders(num_orders, num_data, self.num_features, generator)
        return Data(torch.stack([x, y], dim=1), log_evidence(x, y, PRIORS[self.prior]), order)

    def along(self, x: Tensor, order: Int[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """As :meth:`Learner.along`; ``x`` has the inputs and the outputs of a table, (N, 2, D)."""
        return along(self.rows, x[:, 0], x[:, 1], order)


def drawn_orders(
    num_orders: int, num_data: int, num_features: int, generator: torch.Generator
) -> Int[Tensor, "k N D"]:
    """Random orders for each datum."""
    drawn = masks.sample_ranks(num_orders * num_data, num_features, generator=generator)
    return drawn.view(num_orders, num_data, num_features)


def training(learner: Learner, num_steps: int, learning_rate: float) -> Iterator[int]:
    """Train a network by AdamW with one cycle of the learning rate; the steps taken so far.

    The network rests while the caller looks at it.
    """
    weights = list(learner.network.parameters())
    optimizer = AdamW(weights, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    cycle = OneCycleLR(
        optimizer, learning_rate, total_steps=num_steps, pct_start=WARM_UP, cycle_momentum=False
    )
    for step in range(1, num_steps + 1):
        optimizer.zero_grad()
        learner.loss().backward()
        clip_grad_norm_(weights, 1.0)
        optimizer.step()
        cycle.step()
        yield step


# -- what is judged -------------------------------------------------------------------------------


def one_look(learner: Learner, first: Data, judged: Data, limit: float) -> Arrays:
    """Means of a look, by the first data, and by those that judge where the gap is below a limit."""
    of_first = means_of(learner, first)
    if of_first["mean"][GAP] < limit:
        of_judged = means_of(learner, judged)
    else:
        of_judged = {name: torch.full_like(value, torch.nan) for name, value in of_first.items()}
    looks = {"first": of_first, "judged": of_judged}
    names = {"mean": "", "covariance": "_covariance", "heavy": "_heavy"}
    return {
        f"{data}{ending}": looks[data][name] for data in looks for name, ending in names.items()
    }


def means_of(learner: Learner, data: Data) -> Arrays:
    """Means of :func:`split` over data, their covariance, and the share of heavy tails."""
    log_p = torch.stack([learner.along(data.x, order) for order in data.order])
    parts, is_heavy = split(data.exact, log_p)
    return {
        "mean": parts.mean(dim=0),
        "covariance": parts.T.cov() / len(parts),
        "heavy": is_heavy.double().mean(),
    }


def split(
    exact: Float[Tensor, " N"], log_p: Float[Tensor, "k N"]
) -> tuple[Float[Tensor, "N 4"], Tensor]:
    """What the orders of each datum say, nats, and whether one order has most of the probability.

    Args:
        exact: log p(x).
        log_p: log p_π(x) of k random orders.

    Returns:
        log p_mix − area from below and from above, the gap, and log p − area alone; then (N,).
    """
    bounds = orders.mixture_bounds(log_p)
    area = log_p.double().mean(dim=0)
    plain = exact - area
    # The mean probability of the orders over p has the mean 1 under p.
    gap = plain + (bounds.lower - exact).expm1()
    parts = torch.stack([bounds.lower - area, bounds.upper - area, gap, plain], dim=1)
    return parts, bounds.is_heavy_tailed


def ratio_of_means(
    mean: Float[Tensor, "4"], covariance: Float[Tensor, "4 4"], place: int
) -> tuple[float, float]:
    """One of the means over the gap, and its standard error by the delta method."""
    share = mean[place] / mean[GAP]
    slope = torch.zeros_like(mean)
    slope[place] = 1.0
    slope[GAP] = -share
    error = (slope @ covariance @ slope).sqrt() / mean[GAP]
    return share.item(), error.item()


def pooled(
    means: Float[Tensor, "K 4"], covariances: Float[Tensor, "K 4 4"]
) -> tuple[Float[Tensor, "4"], Float[Tensor, "4 4"]]:
    """Means over the data of several networks, each of which has data of its own, as many."""
    return means.mean(dim=0), covariances.sum(dim=0) / len(covariances) ** 2


def shares_of_looks(
    means: Float[Tensor, "K L 4"], covariances: Float[Tensor, "K L 4 4"]
) -> Float[Tensor, "L 4"]:
    """Lower bound, its error, upper bound, its error, of the networks that count at each look."""
    shares = torch.full((means.shape[1], 4), torch.nan, dtype=torch.float64)
    for number in range(means.shape[1]):
        is_counted = ~means[:, number, GAP].isnan()
        if is_counted.any():
            together = pooled(means[is_counted, number], covariances[is_counted, number])
            lower, upper = (ratio_of_means(*together, place) for place in (LOW, HIGH))
            shares[number] = torch.tensor([*lower, *upper])
    return shares


def verdict(means: Float[Tensor, "K L 4"], covariances: Float[Tensor, "K L 4 4"]) -> int:
    """1 where the claim holds for a family, −1 where it fails, 0 where that is not decided."""
    shares = shares_of_looks(means, covariances)
    counted = shares[~shares[:, 0].isnan()].tolist()
    if any(
        verdicts.interval(upper, upper_error)[1] < LEAST_SHARE
        for _, _, upper, upper_error in counted
    ):
        return -1
    of_each = means[..., LOW] / means[..., GAP]
    holds = all(
        verdicts.exceeds(lower, lower_error, at=LEAST_SHARE) for lower, lower_error, _, _ in counted
    )
    return int(bool(counted) and holds and not (of_each < LEAST_SHARE).any())


def findings(arrays: Arrays) -> dict[str, Finding]:
    """The smallest lower bound of each family's looks; none where no look counts."""
    values = {}
    for family in FAMILIES:
        shares = arrays[f"share/{family}"]
        counted = shares[~shares[:, 0].isnan()]
        if len(counted) > 0:
            lower, error, _, _ = counted[counted[:, 0].argmin()].tolist()
            values[f"self-contradiction/{family}"] = Finding(lower, error)
    return values
