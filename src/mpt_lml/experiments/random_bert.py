"""Table 2, first row: twelve random initializations of BERT-base on the same sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import data
from mpt_lml.data import Tokens
from mpt_lml.experiments.bert import GLUE, PUBLISHED, some_tokens
from mpt_lml.experiments.bert_curve import Design, curves
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    checksum,
    experiment,
    silent,
)
from mpt_lml.models.bert_networks import (
    load_tokenizer,
    random_bert_base,
    small_network,
    train_tokenizer,
)
from mpt_lml.models.masked_lm import MaskedLM, Replacement

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RANDOM_ROW = (-5245.31, -5283.52, -5343.98, -5362.21)
"""Table 2, first row, in the order of ``PUBLISHED``."""


@dataclass(frozen=True)
class Table2(Config):
    """Several initializations of BERT-base, the paper has one for each set of sentences."""

    seeds: tuple[int, ...] = tuple(range(1, 13))
    data_sets: tuple[str, ...] = GLUE
    num_sentences: int = 48
    strata: int = 4
    small: bool = False

    @classmethod
    def paper(cls) -> Table2:
        """The paper's network and sentences; fewer of them, and more initializations."""
        return cls()

    @classmethod
    def quick(cls) -> Table2:
        """A small network on sentences that are always there."""
        return cls(seeds=(1, 2), data_sets=("written",), num_sentences=4, strata=2, small=True)


def _starting_point(small: bool, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A network before training and its tokenizer."""
    if small:
        tokenizer = train_tokenizer(data.sentences().first, 150)
        network = small_network(len(tokenizer), "classic", width=32, num_layers=1, seed=seed)
        return network, tokenizer
    return random_bert_base(seed=seed), load_tokenizer(data.bert_vocabulary())


@experiment(
    "table-2",
    title="Table 2, first row: area of a randomly initialized BERT-base, twelve initializations",
    cost="about 15 min",
    config=Table2,
    resumable=True,
)
def table_2(
    config: Table2,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """Areas in the paper's unit, for every initialization and set of sentences.

    Arrays, for each set: ``area/SET`` and ``sentence_error/SET`` (seeds,), the second over
    sentences; ``curve/SET`` (seeds, strata), nats per token; ``repetition/SET`` (), the probability
    that two scored tokens are the same, Σ_v f_v²; ``num_features/SET`` (sentences,). For the first
    set also ``area_bert/SET``: areas with BERT's 80/10/10. ``logit_variance`` (): what the
    initialization gives each logit.
    """
    arrays: dict[str, Tensor] = {}
    sums: list[Tensor] = []
    for seed in progress(config.seeds, "initializations"):
        network, tokenizer = _starting_point(config.small, seed)
        network = network.to(device)  # type: ignore[arg-type]
        for name in config.data_sets:
            tokens = some_tokens(name, tokenizer, config.num_sentences)
            sums.append(tokens.ids)
            arrays[f"repetition/{name}"] = repetition(tokens)
            arrays[f"num_features/{name}"] = tokens.num_features
            for key, value in _areas(
                network, tokenizer, tokens, config, name, seed, checkpoints
            ).items():
                before = arrays.get(key, torch.empty(0, *value.shape, dtype=torch.float64))
                arrays[key] = torch.cat([before, value[None]])
        size = network.config.hidden_size
        variance = size * network.config.initializer_range**2
        arrays["logit_variance"] = torch.tensor(variance, dtype=torch.float64)
    return Outcome(_table_findings(config, arrays), arrays, checksum(sums[: len(config.data_sets)]))


def _areas(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tokens: Tokens,
    config: Table2,
    name: str,
    seed: int,
    checkpoints: Path | None,
) -> dict[str, Tensor]:
    """Area, its error over sentences and the coarse curve, for one network."""
    design = Design(strata=config.strata, seed=seed)
    found: dict[str, Tensor] = {}
    kinds: list[Replacement] = ["mask", "bert"] if name == config.data_sets[0] else ["mask"]
    for kind in kinds:
        folder = None
        if checkpoints is not None:
            folder = checkpoints / f"{name.replace('/', '-')}-{kind}-{seed}"
        model = MaskedLM.of(network, tokenizer, replacement=kind, half_precision=True)
        result = curves(model, tokens, design, folder=folder, part_size=8)
        assert result is not None  # there is one process
        area = result.paper_area()
        if kind == "bert":
            found[f"area_bert/{name}"] = torch.tensor(area.value, dtype=torch.float64)
            continue
        found[f"area/{name}"] = torch.tensor(area.value, dtype=torch.float64)
        found[f"sentence_error/{name}"] = torch.tensor(area.standard_error, dtype=torch.float64)
        found[f"curve/{name}"] = result.score
    return found


def repetition(tokens: Tokens) -> Tensor:
    """Σ_v f_v² for the frequencies f of the scored tokens, a sentence's tokens weighing 1/D each."""
    weights = (1.0 / tokens.num_features.double())[:, None].expand(tokens.ids.shape)
    shown = tokens.maskable
    counts = torch.bincount(tokens.ids[shown], weights=weights[shown]) / len(tokens)
    return counts.square().sum()


def _table_findings(config: Table2, arrays: dict[str, Tensor]) -> dict[str, Finding]:
    """The joint p of the printed row, and how far the mean curves are from level."""
    ranges = torch.stack([_range(arrays[f"curve/{name}"]) for name in config.data_sets])
    findings = {"random-bert-flat": Finding(ranges.max().item())}
    if all(name in config.data_sets for name in PUBLISHED):
        found = [arrays[f"area/{name}"] for name in PUBLISHED]
        errors = [arrays[f"sentence_error/{name}"].mean() for name in PUBLISHED]
        p, error = joint_p(torch.tensor(RANDOM_ROW), torch.stack(found), torch.stack(errors))
        findings["table-2/random"] = Finding(p, error)
    return findings


def joint_p(
    published: Float[Tensor, " S"],
    areas: Float[Tensor, "S I"],
    sentence_error: Float[Tensor, " S"],
    num_draws: int = 200_000,
) -> tuple[float, float]:
    """Are ``published`` areas of S further networks like those of I networks on the same S sets?

    The statistic is Σ_s (published − mean)² / (sd² (1 + 1/I) + e²) with the measured spreads sd and
    the errors e over sentences. Its distribution is simulated: normal areas with the measured
    covariance between sets for the I shared networks, S networks of their own for ``published``.
    Returns p with the error of the simulation.
    """
    generator = torch.Generator().manual_seed(0)
    count = areas.shape[1]

    def statistic(further: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        spread = variance * (1 + 1 / count) + sentence_error.double().square()
        return ((further - mean).square() / spread).sum(dim=-1)

    observed = statistic(published.double(), areas.mean(dim=1), areas.var(dim=1))
    covariance = areas.cov()
    larger = 0
    for _ in range(10):
        size = (num_draws // 10, count, len(areas))
        noise = torch.randn(size, generator=generator, dtype=torch.float64)
        shared = noise @ torch.linalg.cholesky(covariance).T
        own, text = torch.randn((2, size[0], size[2]), generator=generator, dtype=torch.float64)
        further = own * covariance.diagonal().sqrt() + text * sentence_error
        drawn = statistic(further, shared.mean(dim=1), shared.var(dim=1))
        larger += int((drawn >= observed).sum())
    p = larger / num_draws
    return p, math.sqrt(p * (1 - p) / num_draws)


def _range(curve: Tensor) -> Tensor:
    mean = curve.mean(dim=0)
    return mean.max() - mean.min()
