"""A real pre-trained network, AntiBERTy: its curves on antibodies, and each residue of one chain.

What is drawn, left out and compared stands here, and stood here before the runs were made.

The antibodies are a table of the repository Merck/BioPhi-2021-publication (MIT licence; commit
d6323cee83ebd544026c03da87d9805dbaf0ba7d; Prihoda et al. 2022, mAbs 14:1), read as it is published from
the folder ``antibodies`` of the local data. Its sequences: IMGT/mAb-DB (Poiron et al. 2010),
Thera-SAbDab (Raybould et al. 2019). Six antibodies are always there.
"""

import csv
import io
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from experiments.experiment import Arrays, Experiment, RunContext, seeded, setting, weights_of
from experiments.paper.bert import curves_in_parts, design_at, each_computed_once, pair
from experiments.records import finding_over
from mpt_lml.checks import require_count
from mpt_lml.data.sources import local_path, not_found, verified
from mpt_lml.recorded import Finding, Outcome
from mpt_lml.theory.rates import crossover, jackknife
from mpt_lml.verdicts import mean_and_error
from mpt_score import Design, SentenceCurves, load, networks, sentences, surprisals
from mpt_score.antibodies import chain_scores
from mpt_score.networks.hub import ANTIBERTY
from mpt_score.networks.masked_lm import MaskedLM, Precision
from mpt_score.quantities.sentence_curves import chunks_by_length
from mpt_score.scorer import Scorer
from mpt_score.tokens import Tokens

THERAPEUTIC = "antibodies/therapeutic_antibodies.tsv"
SHA_256 = "b9d78db35bc34524ff532ee516c73871c97c9da7fc7f5fc86719124ca20ee4d4"
"""Checksum of the table of therapeutic antibodies."""
FEW_TABLE = Path(__file__).with_name("antibodies.tsv")
"""File with six rows of the table: two human antibodies, a mouse's, a chimeric and two humanized ones."""
_CHAINS = "Seqs (comma-separated)"
_HEAVY_END = re.compile(r"W[A-Z][^F]G")
_END = 12
"""Number of last residues of a variable domain in which ``_HEAVY_END`` is looked for."""

NETWORK_SCORES = ("log-score", "pseudo", "fifteen")
"""Scores of a network: the area from masks in strata, every residue hidden alone, D·S at 15 %."""
OF_ORDERS = ("one-order", "two-orders", "all-orders", *NETWORK_SCORES)
KINDS = ("heavy", "light")
GROUPS = ("human", "mouse", "other")
"""Groups by the origin of the genes of the variable domains: those of a chimeric antibody are a mouse's,
a few another animal's; "other" is humanized (or made a dog's or a cat's), wholly or in one chain."""
GROUP_OF_SPECIES = {"Human": "human", "Mouse": "mouse", "Chimeric": "mouse"}
TRAINED_RATE = 0.15
"""Masking rate of AntiBERTy's training: each residue was hidden with this probability (a coin each)."""
UNTRAINED_RATE = 0.25
"""Masking rate above which training is rare: 3 standard deviations of 114 coins above 15 %."""
UNIFORM = -math.log(20)
"""log q of each residue, nats, where all twenty are as likely."""


# -- whose chains -----------------------------------------------------------------------------------


class Antibody(NamedTuple):
    """One antibody and its variable domains."""

    name: str
    species: str
    heavy: str
    light: str


def therapeutic() -> tuple[Antibody, ...]:
    """Antibodies of known origin that have two chains (of 553), each pair of chains once.

    Left out: rows without exactly one heavy and one light chain; rows with the chains of an earlier
    one (conjugates, products of another maker), which would count one antibody twice; and all rows of
    a pair of chains that is listed with two origins.

    Raises:
        DataNotFoundError: where the table is not in the local data.
        CorruptDataError: for another table.

    >>> len(therapeutic())  # doctest: +SKIP
    473
    """
    path = local_path(THERAPEUTIC)
    if path is None:
        hub = "fetch it from Merck/BioPhi-2021-publication; no hub is asked for it"
        raise not_found(
            f"the table {THERAPEUTIC}", THERAPEUTIC, hub, "experiments.antibodies.few()"
        )
    pairs = []
    for row in _rows(verified(path, SHA_256).decode()):
        chains = row[_CHAINS].split(",")
        heavy = [chain for chain in chains if is_heavy(chain)]
        light = [chain for chain in chains if not is_heavy(chain)]
        if len(heavy) == len(light) == 1:
            pairs.append(Antibody(row["Antibody"], row["Species"], heavy[0], light[0]))
    return _each_once(pairs)


def few() -> tuple[Antibody, ...]:
    """Six antibodies that are always there.

    >>> few()[0].name, len(few()[0].heavy)
    ('abagovomab', 119)
    """
    rows = _rows(FEW_TABLE.read_text(encoding="utf-8"))
    return tuple(Antibody(row["Antibody"], row["Species"], row["VH"], row["VL"]) for row in rows)


def is_heavy(chain: str) -> bool:
    """Check whether a variable domain belongs to a heavy chain, by its end.

    Heavy chains end in W-G-x-G-T..., light ones in F-G-x-G-T...: the tryptophan that the J segments of
    heavy chains have. Of the 553 antibodies, 533 have two chains, and of each of these one is heavy.

    Args:
        chain: from the amino end to the end of framework 4.

    >>> is_heavy("EVQLVESGGGLVQPGYFDYWGQGTLVTVSS"), is_heavy("DIQMTQSPSSLSYPWTFGQGTKVEIK")
    (True, False)
    """
    return _HEAVY_END.search(chain[-_END:]) is not None


def _each_once(pairs: Sequence[Antibody]) -> tuple[Antibody, ...]:
    species = defaultdict(set)
    for antibody in pairs:
        species[antibody.heavy, antibody.light].add(antibody.species)
    first: dict[tuple[str, str], Antibody] = {}
    for antibody in pairs:
        chains = (antibody.heavy, antibody.light)
        if len(species[chains]) == 1:
            first.setdefault(chains, antibody)
    return tuple(first.values())


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t"))


def group_of(antibody: Antibody) -> str:
    """Group of an antibody, one of :data:`GROUPS`."""
    return GROUP_OF_SPECIES.get(antibody.species, "other")


class AntiBERTyExperiment(Experiment):
    """Experiment on AntiBERTy, or on another network of residues."""

    seeds: tuple[int, ...] = (4,)
    # Its name, or a folder; None: a small random network on the same residues.
    model: str | Path | None = setting(ANTIBERTY, quick=None)

    def scorer(self, context: RunContext, precision: Precision = "bfloat16") -> Scorer:
        """The network with its tokenizer."""
        if self.model is None:
            from mpt_score.networks.residues import VOCABULARY, ResidueTokenizer

            tokenizer: Any = ResidueTokenizer()
            options: dict[str, Any] = {"width": 32, "num_layers": 1, "max_length": 160}
            network = networks.small_masked_lm(
                len(VOCABULARY), "classic", seed=self.seeds[0], **options
            )
        else:
            network = networks.load_network(self.model)
            tokenizer = networks.load_tokenizer(self.model)
        model = MaskedLM.of(network.to(context.device), tokenizer, precision=precision)
        return load(model, tokenizer)


# -- one chain --------------------------------------------------------------------------------------


class AntibodyChain(AntiBERTyExperiment, name="antibody-chain", gpu=False):
    """The heavy chain of adalimumab, and what AntiBERTy says of each of its residues.

    In single precision on the CPU, so that a page can compute it again and compare. Arrays: ``score``,
    ``error`` (R,), the curve in strata of the sizes, over its masks, nats a residue; ``alone`` (D,), log
    q of each residue, hidden alone; ``everything`` (D, 20), log q of each of the twenty residues in the
    order of ``residues.RESIDUES``, where all D are hidden; ``residue`` (D,), which of them is there.
    """

    antibody: str = "adalimumab"
    num_strata: int = setting(20, quick=4)
    num_masks: int = setting(4, quick=2)

    def measure(self, context: RunContext) -> Outcome:
        chain = next(one.heavy for one in few() if one.name == self.antibody)
        scorer = self.scorer(context, "float32")
        design = Design(strata=self.num_strata, num_masks=self.num_masks, seed=self.seeds[0])
        arrays = chain_scores(scorer, chain, design)
        checksum = context.checksum([scorer.encode([chain]).ids])
        return Outcome({}, arrays, checksum, weights_of(self.model, scorer.network))


# -- curves -----------------------------------------------------------------------------------------


class AntibodyCurves(AntiBERTyExperiment, name="antibody-curves", resumable=True):
    """AntiBERTy's curve on therapeutic antibodies: heavy and light chains, human, mouse, other.

    Of each group so many antibodies, in an order drawn once from seed 0; one that shares a chain with
    an earlier one is passed over. A antibodies give 2A chains, first all heavy, then all light ones, in
    the same order. Arrays: ``antibody`` (A,), the places in the table; ``group`` (A,), 0 human, 1 mouse,
    2 other. For each chain (2A,): ``num_residues`` D; in nats a chain ``log-score``, the area from masks
    in strata, its ``error`` over masks, ``pseudo``, ``fifteen``, D·S(15 %), and ``log_p`` (2A, S), log
    p_π along random orders; in nats a residue ``curves`` (2A, R), one mask of exact size a rate,
    ``hidden``, everything hidden, ``frequencies``, the mean log frequency of its residues in the other
    chains of its kind. For KIND heavy, light: ``curve/KIND``, ``error/KIND`` (R,), nats a residue;
    ``area/KIND`` (2, 2), a residue and a chain; and (2,), a value and its error over chains, ``tail``,
    the share of the fall beyond 85 %, ``mean_rate`` r* in percent, the first crossing of the mean
    height, ``beyond``, the share of the area asked at rates above 25 %, and in nats a chain
    ``bias/15/KIND``, 25, 40, D·S − area, ``spread``, the standard deviation of log p_π over orders,
    ``mixture``, log of the mean p_π less the mean log p_π. Added when the curves had been seen, because
    1 % is one mask of two residues: ``tail_from_one``, the tail of a fall that begins at the
    pseudo-log-likelihood, which is S(1) exactly, and ``last_rate``, the last crossing; ``positions``
    (2A,), as ``frequencies``, by place from the chain's beginning, and ``lost``, nats a chain: what the
    area would gain if the network said as much wherever it says less.
    ``scores`` (H, 6), nats a residue, of the H human and mouse antibodies: along one order, two, all;
    strata, pseudo, 15 %; ``auc`` (6, 2), the probability that a human one has the higher score;
    ``auc_difference`` (6, 6, 2), row less column, errors by bootstrap.
    """

    table: Literal["published", "few"] = setting("published", quick="few")
    num_masks: int = setting(16, quick=8)
    num_draws: int = setting(2000, quick=50)  # of a bootstrap
    num_human: int = setting(25, quick=2)
    num_mouse: int = setting(25, quick=2)
    num_other: int = setting(10, quick=2)
    num_orders: int = setting(4, quick=2)
    rates: tuple[int, ...] = setting(tuple(range(1, 100, 2)), quick=tuple(range(5, 100, 10)))

    def measure(self, context: RunContext) -> Outcome:
        require_count("num_orders", self.num_orders, 2)  # whose spread is asked for
        available = few() if self.table == "few" else therapeutic()
        chosen = self.sample(available)
        sample = [available[number] for number in chosen]
        scorer = self.scorer(context)
        chains = [one.heavy for one in sample] + [one.light for one in sample]
        tokens = scorer.encode(chains)
        design = design_at(self.rates, self.seeds[0])
        curves = curves_in_parts(context, "curve-", scorer, tokens, design)
        arrays = {
            "antibody": torch.tensor(chosen),
            "group": torch.tensor([GROUPS.index(group_of(one)) for one in sample]),
            "num_residues": tokens.num_features,
            "curves": curves.by_sentence,
            "hidden": curves.hidden,
        }
        of_kinds = (chains[: len(sample)], chains[len(sample) :])
        arrays["frequencies"] = torch.cat([frequency_score(part) for part in of_kinds])
        arrays["positions"] = torch.cat([position_score(part) for part in of_kinds])
        arrays |= self.score(context, scorer, tokens)
        for kind, rows in zip(KINDS, torch.arange(len(tokens)).chunk(2), strict=True):
            arrays |= self.summary(kind, rows, curves, arrays)
        arrays |= self.of_orders(arrays)
        weights = weights_of(self.model, scorer.network)
        return Outcome(self.findings(arrays), arrays, context.checksum([tokens.ids]), weights)

    def sample(self, available: Sequence[Antibody]) -> list[int]:
        """Places of the antibodies that are scored, group by group."""
        wanted = dict(zip(GROUPS, (self.num_human, self.num_mouse, self.num_other), strict=True))
        order = torch.randperm(len(available), generator=seeded(0)).tolist()
        chosen = []
        taken: set[str] = set()
        for group, number in wanted.items():
            count = 0
            for place in order:
                antibody = available[place]
                chains = {antibody.heavy, antibody.light}
                if count < number and group_of(antibody) == group and not chains & taken:
                    chosen.append(place)
                    taken |= chains
                    count += 1
            if count < number:
                raise ValueError(f"{number} {group} antibodies were asked for, there are {count}.")
        return chosen

    def score(self, context: RunContext, scorer: Scorer, tokens: Tokens) -> Arrays:
        """The :data:`NETWORK_SCORES` of each chain, nats a chain, the error of the first over masks, and
        log p along each order. The orders follow from the chain; those of the record, which an
        earlier rule drew, followed from its place among the others.
        """
        seed = self.seeds[0]
        chunks = chunks_by_length(tokens)
        compute = [partial(self.score_part, scorer, tokens.rows(numbers)) for numbers in chunks]
        scores = each_computed_once(context, "scores-", scorer, tokens, compute)
        place = torch.cat(chunks).argsort()
        names = ("log-score", "error", "pseudo", "log_p")
        arrays = {name: torch.cat([score[name] for score in scores])[place] for name in names}
        as_trained = Design((TRAINED_RATE,), num_masks=self.num_masks, seed=seed)
        fifteen = curves_in_parts(context, "fifteen-", scorer, tokens, as_trained)
        arrays["fifteen"] = tokens.num_features * fifteen.by_sentence[:, 0]
        return arrays

    def score_part(self, scorer: Scorer, tokens: Tokens) -> Arrays:
        """Arrays of chains that do not depend on other chains."""
        seed = self.seeds[0]
        num_masks = self.num_masks + 1  # one of them hides everything
        areas = sentences(scorer, tokens, num_masks=num_masks, seed=seed)
        by_order = surprisals(scorer, tokens, num_orders=self.num_orders, pseudo=True, seed=seed)
        nothing = torch.zeros(len(tokens), dtype=torch.float64)
        log_p = nothing[:, None].repeat(1, self.num_orders)
        return {
            "log-score": areas.log_score,
            "error": areas.standard_error,
            "pseudo": nothing.index_add(0, by_order.text, by_order.pseudo_log_likelihood),
            "log_p": log_p.index_add(0, by_order.text, by_order.terms),
        }

    def summary(
        self, kind: str, rows: Int[Tensor, " N"], curves: SentenceCurves, arrays: Arrays
    ) -> Arrays:
        """Statistics of the chains of one kind."""
        part = SentenceCurves(
            curves.design,
            arrays["curves"][rows][:, None],  # their control variates are taken off already
            torch.zeros_like(arrays["curves"][rows][:, None]),
            arrays["hidden"][rows],
            arrays["num_residues"][rows],
        )
        percents = torch.tensor(self.rates)
        low = int((percents == 85).nonzero())
        trained = percents <= 100 * UNTRAINED_RATE
        alone = (arrays["pseudo"][rows] / arrays["num_residues"][rows])[:, None]
        # In nats a chain: the curve, and behind it what positions alone say.
        lengths = arrays["num_residues"][rows, None].double()
        positions = arrays["positions"][rows, None]
        with_positions = lengths * torch.cat([part.by_sentence, positions], dim=1)
        log_p = arrays["log_p"][rows]
        mixture = log_p.logsumexp(dim=1) - math.log(self.num_orders) - log_p.mean(dim=1)
        result = {
            f"curve/{kind}": part.score,
            f"error/{kind}": part.standard_error,
            f"area/{kind}": torch.stack([pair(part.area()), pair(part.area("sentence"))]),
            f"tail/{kind}": _jackknife(lambda mean: _tail(mean, low), part.by_sentence),
            f"tail_from_one/{kind}": _jackknife(
                lambda mean: _tail(mean, low + 1), torch.cat([alone, part.by_sentence], dim=1)
            ),
            f"last_rate/{kind}": self.last_rate(part.by_sentence),
            f"lost/{kind}": _jackknife(_shortfall, with_positions),
            f"beyond/{kind}": _jackknife(lambda mean: _share(mean, ~trained), part.by_sentence),
            f"mean_rate/{kind}": 100 * pair(part.mean_rate()),
            f"spread/{kind}": _mean(log_p.std(dim=1)),
            f"mixture/{kind}": _mean(mixture),
        }
        for rate, bias in part.bias_at().items():
            result[f"bias/{100 * rate:.0f}/{kind}"] = pair(bias)
        return result

    def last_rate(self, curves: Float[Tensor, "N R"]) -> Float[Tensor, " two"]:
        """The last crossing of the mean curve, in percent; its error by bootstrap over chains.

        A jackknife would miss it: it jumps where noise lifts a rate above the mean height.
        """
        percents = torch.tensor(self.rates, dtype=torch.float64)
        counts = _counts(self.num_draws, len(curves), seeded(self.seeds[0]))
        drawn = _last_crossing(counts @ curves / len(curves), percents)
        return torch.stack([_last_crossing(curves.mean(dim=0), percents), drawn.std()])

    def of_orders(self, arrays: Arrays) -> Arrays:
        """Separation of origins by the scores of one order, of several, and by the cheaper scores."""
        log_p = arrays["log_p"]
        of_chain = [log_p[:, 0], log_p[:, :2].mean(dim=1), log_p.mean(dim=1)]
        of_chain += [arrays[name] for name in NETWORK_SCORES]
        heavy, light = torch.stack(of_chain, dim=1).chunk(2)
        lengths = arrays["num_residues"].view(2, -1, 1).sum(dim=0)
        is_other = arrays["group"] == GROUPS.index("other")
        scores = ((heavy + light) / lengths)[~is_other]
        is_human = (arrays["group"] == GROUPS.index("human"))[~is_other]
        drawn = bootstrap_auc(scores, is_human, self.num_draws, seeded(self.seeds[0]))
        return {
            "scores": scores,
            "auc": drawn.values_and_errors(),
            "auc_difference": drawn.differences(),
        }

    def findings(self, arrays: Arrays) -> dict[str, Finding]:
        """Findings, one for each question, over all chains where they are not split by kind."""
        findings = {}
        for kind, rows in zip(KINDS, torch.arange(len(arrays["hidden"])).chunk(2), strict=True):
            findings[f"antibody-tail/{kind}"] = Finding(*arrays[f"tail/{kind}"].tolist())
            from_one = arrays[f"tail_from_one/{kind}"]
            findings[f"antibody-tail-from-one/{kind}"] = Finding(*from_one.tolist())
            rate = arrays[f"mean_rate/{kind}"] / 100
            findings[f"antibody-crossover/{kind}"] = Finding(*rate.tolist())
            last_rate = arrays[f"last_rate/{kind}"] / 100
            findings[f"antibody-last-crossover/{kind}"] = Finding(*last_rate.tolist())
            findings[f"antibody-hidden/{kind}"] = finding_over(arrays["hidden"][rows] - UNIFORM)
            below = arrays["hidden"][rows] - arrays["frequencies"][rows]
            findings[f"antibody-frequencies/{kind}"] = finding_over(below)
            below = arrays["hidden"][rows] - arrays["positions"][rows]
            findings[f"antibody-positions/{kind}"] = finding_over(below)
            findings[f"antibody-lost/{kind}"] = Finding(*arrays[f"lost/{kind}"].tolist())
            findings[f"antibody-bias/{kind}"] = Finding(*arrays[f"bias/15/{kind}"].tolist())
            findings[f"antibody-beyond/{kind}"] = Finding(*arrays[f"beyond/{kind}"].tolist())
            findings[f"antibody-spread/{kind}"] = Finding(*arrays[f"spread/{kind}"].tolist())
            above = arrays["pseudo"][rows] - arrays["log_p"][rows].mean(dim=1)
            findings[f"antibody-pseudo/{kind}"] = finding_over(above)
        all_orders, strata = OF_ORDERS.index("all-orders"), OF_ORDERS.index("log-score")
        gain = arrays["auc_difference"][all_orders, strata]
        findings["antibody-orders"] = Finding(*gain.tolist())
        return findings


def frequency_score(chains: Sequence[str]) -> Float[Tensor, " N"]:
    """Mean log frequency of each chain's residues in the other chains, one more of each; nats."""
    from mpt_score.networks.residues import RESIDUES

    counts = torch.tensor([[chain.count(letter) for letter in RESIDUES] for chain in chains])
    counts = counts.double()
    of_others = counts.sum(dim=0) - counts + 1.0
    log_frequency = (of_others / of_others.sum(dim=1, keepdim=True)).log()
    return (counts * log_frequency).sum(dim=1) / counts.sum(dim=1)


def position_score(chains: Sequence[str]) -> Float[Tensor, " N"]:
    """Mean log frequency of each chain's residues at their places in the other chains; nats.

    Places are counted from the beginning, of the other chains that are as long. To the residues at a
    place one more is added, distributed as all residues of the other chains are.
    """
    scores = []
    for number, chain in enumerate(chains):
        others = [*chains[:number], *chains[number + 1 :]]
        count = Counter("".join(others))
        total = count.total() + 20
        score = 0.0
        for place, residue in enumerate(chain):
            at_place = [other[place] for other in others if place < len(other)]
            anywhere = (count[residue] + 1) / total
            score += math.log((at_place.count(residue) + anywhere) / (len(at_place) + 1))
        scores.append(score / len(chain))
    return torch.tensor(scores, dtype=torch.float64)


def _shortfall(curve: Float[Tensor, "... R"]) -> Float[Tensor, "..."]:
    """Mean shortfall of a curve below its last column, 0 where it is above."""
    return (curve[..., -1:] - curve[..., :-1]).clamp(min=0).mean(dim=-1)


def _tail(curve: Float[Tensor, "... R"], low: int) -> Float[Tensor, "..."]:
    """The share of the fall from the first to the last rate that lies beyond rate number ``low``."""
    return (curve[..., low] - curve[..., -1]) / (curve[..., 0] - curve[..., -1])


def _last_crossing(
    curve: Float[Tensor, "... R"], percents: Float[Tensor, " R"]
) -> Float[Tensor, "..."]:
    """The last rate, in percent, at which a curve passes its mean height."""
    from_the_right = (100 - percents).flip(0)
    return 100 - crossover(curve.flip(-1), from_the_right)


def _share(curve: Float[Tensor, "... R"], chosen: Bool[Tensor, " R"]) -> Float[Tensor, "..."]:
    return curve[..., chosen].sum(dim=-1) / curve.sum(dim=-1)


def _jackknife(
    statistic: Callable[[Tensor], Tensor], curves: Float[Tensor, "N R"]
) -> Float[Tensor, " two"]:
    return torch.tensor(jackknife(statistic, curves), dtype=torch.float64)


def _mean(values: Float[Tensor, " N"]) -> Float[Tensor, " two"]:
    return torch.stack(mean_and_error(values))


# -- errors -----------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """A statistic of each of S scores, and its values on samples of the same antibodies."""

    value: Float[Tensor, " S"]
    draws: Float[Tensor, "B S"]

    def values_and_errors(self) -> Float[Tensor, "S two"]:
        """The statistic and its standard error, the standard deviation over draws."""
        return torch.stack([self.value, self.draws.std(dim=0)], dim=1)

    def differences(self) -> Float[Tensor, "S S two"]:
        """Row less column, and its standard error: antibodies are the same on both sides."""
        difference = self.value[:, None] - self.value
        of_draws = self.draws[:, :, None] - self.draws[:, None]
        return torch.stack([difference, of_draws.std(dim=0)], dim=-1)


def bootstrap_auc(
    scores: Float[Tensor, "N S"],
    is_human: Bool[Tensor, " N"],
    num_draws: int,
    generator: torch.Generator,
) -> Drawn:
    """The area under the ROC curve, and its bootstrap over antibodies within either group.

    It is the probability that a random human antibody has a higher score than a random other one,
    ties counting one half.
    """
    human = scores[is_human]
    others = scores[~is_human]
    difference = human[:, None] - others
    wins = (difference > 0).double() + 0.5 * (difference == 0).double()  # (H, M, S)
    # How often each antibody is in each draw.
    of_human = _counts(num_draws, len(human), generator)
    of_others = _counts(num_draws, len(others), generator)
    sums = torch.einsum("bh,hms->bms", of_human, wins)
    draws = (sums * of_others[..., None]).sum(dim=1) / (len(human) * len(others))
    return Drawn(wins.mean(dim=(0, 1)), draws)


def _counts(num_draws: int, size: int, generator: torch.Generator) -> Float[Tensor, "B n"]:
    """Counts of each of ``size`` items in ``size`` draws with replacement."""
    number = torch.randint(size, (num_draws, size), generator=generator)
    ones = torch.ones(number.shape, dtype=torch.float64)
    return torch.zeros(num_draws, size, dtype=torch.float64).scatter_add(1, number, ones)
