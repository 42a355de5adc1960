"""Table 2 and Figure 5, right: twelve random BERT-base networks, and the authors' stored curves."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from experiments import ledger
from experiments.experiment import Experiment, RunContext, seeded, setting
from experiments.paper.area import shape_distance
from experiments.paper.bert import GLUE, OnSentences, pair
from experiments.records import finding_over
from experiments.trainings.small_bert import train_tokenizer
from mpt_lml.data import published_curves
from mpt_lml.recorded import Finding, Outcome
from mpt_lml.theory import rates
from mpt_score import Design, networks
from mpt_score.networks.hub import require_transformers
from mpt_score.quantities.sentence_curves import PAPER_UNIT
from mpt_score.texts import bert_vocabulary, sentences
from mpt_score.tokens import Tokens

SETS = ("ax", "cola", "qnli", "mrpc", "sst2")  # of the authors' files; the last is not in Table 2


class Table2(OnSentences, name="table-2", resumable=True):
    """Table 2, first row: area of a randomly initialized BERT-base, twelve initializations.

    Arrays, for each set: ``area/SET``, in the paper's unit, and ``sentence_error/SET`` (seeds,), the
    second over sentences; ``curve/SET`` (seeds, strata), nats per token; ``repetition/SET`` (), the
    probability that two scored tokens are the same, Σ_v f_v².
    """

    seeds: tuple[int, ...] = setting(tuple(range(1, 13)), quick=(1, 2))
    num_sentences: int = setting(48, quick=4)
    strata: int = setting(4, quick=2)
    small: bool = setting(False, quick=True)
    part_size = 8  # of both of the replacements' streams and of batches: it is part of the record

    def measure(self, context: RunContext) -> Outcome:
        texts: dict[str, Tokens] = {}

        def of_seed(seed: int) -> dict[str, Tensor]:
            network, tokenizer = self._before_training(seed)
            design = Design(strata=self.strata, seed=seed)
            results = self.curves(
                context, network, tokenizer, design, f"{seed}/mask/", precision="bfloat16"
            )
            arrays = {}
            for name, (tokens, result) in results.items():
                texts[name] = tokens
                area, error = pair(result.area("paper"))
                arrays[f"curve/{name}"] = result.score.double()
                arrays[f"area/{name}"] = area
                arrays[f"sentence_error/{name}"] = error
            return arrays

        arrays = context.stack(of_seed, self.seeds, "initializations")
        arrays |= {f"repetition/{name}": repetition(tokens) for name, tokens in texts.items()}
        return Outcome(
            self.findings(arrays), arrays, context.checksum(t.ids for t in texts.values())
        )

    def _before_training(self, seed: int) -> tuple[Any, Any]:
        if not self.small:
            require_transformers()
            from transformers import BertConfig, BertForMaskedLM  # BERT-base is their default

            tokenizer = networks.load_tokenizer(bert_vocabulary())
            return networks.at_random(BertForMaskedLM, BertConfig(), seed=seed), tokenizer
        tokenizer = train_tokenizer(sentences("written").first, 150)
        network = networks.small_masked_lm(
            len(tokenizer), "classic", width=32, num_layers=1, seed=seed
        )
        return network, tokenizer

    def findings(self, arrays: Mapping[str, Tensor]) -> dict[str, Finding]:
        """Largest range of the mean curves, and the joint p of the printed row."""
        curves = torch.stack([arrays[f"curve/{name}"].mean(dim=0) for name in self.data_sets])
        level = (curves.amax(dim=1) - curves.amin(dim=1)).max()
        findings = {"random-bert-flat": Finding(level.item())}
        if self.data_sets[:4] == GLUE[:4]:
            areas = torch.stack([arrays[f"area/{name}"] for name in GLUE[:4]])
            errors = torch.stack([arrays[f"sentence_error/{name}"].mean() for name in GLUE[:4]])
            printed = torch.tensor(ledger.published(f"table-2/random-{name}" for name in SETS[:4]))
            findings["table-2/random"] = Finding(*joint_p(printed, areas, errors))
        return findings


def repetition(tokens: Tokens) -> Tensor:
    """Σ_v f_v² for the frequencies f of the scored tokens, a sentence's tokens weighing 1/D each."""
    share = torch.repeat_interleave(1.0 / tokens.num_features.double(), tokens.num_features)
    return (tokens.ids[tokens.maskable].bincount(weights=share) / len(tokens)).square().sum()


def joint_p(
    published: Float[Tensor, " S"],
    areas: Float[Tensor, "S I"],
    sentence_error: Float[Tensor, " S"],
    num_draws: int = 200_000,
) -> tuple[float, float]:
    """Are ``published`` areas of S further networks like those of I networks on the same S sets?

    p, and its error of simulation, of Σ_s (published − mean)² / (sd² (1 + 1/I) + e²), e over sentences:
    normal areas with the measured covariance for I shared networks, and S more for ``published``.
    """
    generator = seeded(0)
    count = areas.shape[1]
    covariance = areas.cov()
    factor = torch.linalg.cholesky(covariance).T
    spread = covariance.diagonal().sqrt()

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def statistic(further: Tensor, areas: Tensor) -> Tensor:  # areas (..., I, S)
        variance = areas.var(dim=-2) * (1 + 1 / count) + sentence_error.double().square()
        return ((further - areas.mean(dim=-2)).square() / variance).sum(dim=-1)

    observed = statistic(published.double(), areas.T)
    larger = 0
    for _ in range(10):
        shared = normal(num_draws // 10, count, len(areas)) @ factor
        of_network, of_sentences = normal(2, num_draws // 10, len(areas))
        further = of_network * spread + of_sentences * sentence_error
        larger += int((statistic(further, shared) >= observed).sum())
    p = larger / num_draws
    return p, (p * (1 - p) / num_draws) ** 0.5


class PublishedCurves(Experiment, name="published-curves", gpu=False):
    """Table 2 and Figure 5, right, from the authors' stored curves of BERT-base.

    Arrays, for KIND in (random, pretrained) and each SET: ``area/KIND/SET`` () in the paper's unit;
    for the pre-trained ones those of :func:`shape`, ``crossover/SET`` for one.
    """

    seeds: tuple[int, ...] = ()  # nothing is drawn

    def measure(self, context: RunContext) -> Outcome:
        published = published_curves()
        arrays = {f"area/{key}": PAPER_UNIT * curve.mean() for key, curve in published.items()}
        pairs = [(published[f"pretrained/{name}"], published[f"random/{name}"]) for name in SETS]
        shapes = context.stack(lambda pair: shape(*pair), pairs, "set")
        for key, rows in shapes.items():
            for name, row in zip(SETS, rows, strict=True):
                arrays[f"{key}/{name}"] = row
        table = {
            f"table-2/{kind}-{name}": Finding(arrays[f"area/{kind}/{name}"].item())
            for kind, name in product(("random", "pretrained"), SETS[:4])
        }
        findings = table | {
            # of the printed sets the worst
            "fig-5-right-flat": Finding(shapes["flatness"][:4].max().item()),
            "fig-5-right-tail": Finding(shapes["tail"][:4].min().item()),
            "table-2-cut-digits": Finding(float(ledger.cut_digits(table))),
            "crossover/bert-base": finding_over(shapes["crossover"] / 100),
        }
        for rate, over in zip((15, 25, 40), shapes["bias"].T, strict=True):
            findings[f"bias/bert-base-{rate}"] = finding_over(over)
        return Outcome(findings, arrays, context.checksum(published.values()))


def shape_distance_to_bert(
    score: Float[Tensor, "*B R"], percents: Sequence[int]
) -> Float[Tensor, "*B"]:
    """Distance in shape of a curve at these rates from that of pre-trained BERT-base.

    It is the smallest one, as a share of the fall, to the authors' curves of the four printed sets.
    """
    published = published_curves()
    rows = [percent - 1 for percent in percents]
    curves = [published[f"pretrained/{name}"][rows].to(score) for name in SETS[:4]]
    return torch.stack([shape_distance(score, curve) for curve in curves]).amin(dim=0)


def shape(curve: Float[Tensor, " R"], random: Float[Tensor, " R"]) -> dict[str, Tensor]:
    """Statistics of a curve at 1, ..., 99 % and of the level one of a random network.

    ``crossover`` r* in percent; ``bias`` (3,), D·S − area at 15, 25 and 40 %, nats in the paper's
    unit; ``tail``, the share of the fall from 1 to 99 % beyond 85 %, 0.14 for a straight line;
    ``flatness``, the range of the random curve as a share of this fall.
    """
    fall = curve[0] - curve[-1]
    return {
        "crossover": rates.crossover(curve, torch.arange(1, 100).double()),
        "bias": PAPER_UNIT * (curve[[14, 24, 39]] - curve.mean()),
        "tail": (curve[84] - curve[-1]) / fall,
        "flatness": (random.max() - random.min()) / fall,
    }
