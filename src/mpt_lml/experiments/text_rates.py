"""Which masking rate, for the book's small BERT on real text: crossover, 15 % and 25 %."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml.experiments.bert import some_tokens
from mpt_lml.experiments.bert_curve import Design, SentenceCurves, curves
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    checksum,
    experiment,
    silent,
)
from mpt_lml.models.bert_networks import load_small_bert
from mpt_lml.models.masked_lm import MaskedLM
from mpt_lml.theory.rates import crossover, jackknife


@dataclass(frozen=True)
class TextRates(Config):
    """Sentences that fit the network whole; one mask for each sentence and rate."""

    seeds: tuple[int, ...] = (4,)
    data_sets: tuple[str, ...] = ("books", "wikitext-2")
    num_sentences: int = 1000
    rates: tuple[int, ...] = tuple(range(1, 100, 2))
    num_groups: int = 50

    @classmethod
    def paper(cls) -> TextRates:
        """The book's run (the paper asks the question and has no such network)."""
        return cls()

    @classmethod
    def quick(cls) -> TextRates:
        """The sentences that are always there, in few groups."""
        return cls(
            data_sets=("written",), num_sentences=12, rates=tuple(range(5, 100, 10)), num_groups=4
        )


@experiment(
    "text-rates",
    title="Which masking rate? The book's small BERT on held-out books and Wikipedia",
    cost="about 3 min",
    config=TextRates,
    resumable=True,
)
def text_rates(
    config: TextRates,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """Crossover of the network's own curve, and how far 15 % and 25 % lie from its own area.

    Arrays, for each set: ``groups/SET`` (G, R), mean curves of groups of sentences, nats per token;
    ``crossover/SET`` (2,), M*/D with its jackknife error over groups; ``bias/SET`` (R, 2), the mean
    over sentences of D·S(rate) − area with its error, nats per sentence; ``change/SET`` (2,), the
    same for D·S(25 %) − D·S(15 %); ``num_features/SET`` (), the mean D.
    """
    network, tokenizer = load_small_bert()
    longest = network.config.max_position_embeddings
    model = MaskedLM.of(network.to(device), tokenizer, half_precision=True)  # type: ignore[arg-type]
    arrays: dict[str, Tensor] = {}
    ids = []
    for name in config.data_sets:
        tokens = some_tokens(name, tokenizer, config.num_sentences, max_length=longest)
        ids.append(tokens.ids)
        folder = None if checkpoints is None else checkpoints / name.replace("/", "-")
        design = Design(rates=config.rates, seed=config.seeds[0])
        result = curves(model, tokens, design, folder=folder, progress=progress)
        assert result is not None  # there is one process
        found = summary(result, config.rates, config.num_groups)
        arrays |= {f"{key}/{name}": value for key, value in found.items()}
    return Outcome(_findings(config, arrays), arrays, checksum(ids))


def summary(result: SentenceCurves, percent: Sequence[int], num_groups: int) -> dict[str, Tensor]:
    """The arrays of one set of sentences, see :func:`text_rates`."""
    each = result.values.mean(dim=1)
    groups = torch.stack([part.mean(dim=0) for part in each.tensor_split(num_groups)])
    size = result.num_features.double()
    bias = size[:, None] * (each - result.each_area[:, None])
    low, high = percent.index(15), percent.index(25)
    return {
        "groups": groups,
        "crossover": torch.tensor(mean_crossover(percent, groups), dtype=torch.float64),
        "bias": _mean_and_error(bias),
        "change": _mean_and_error((bias[:, high] - bias[:, low])[:, None])[0],
        "num_features": size.mean(),
    }


def mean_crossover(percent: Sequence[int], groups: Float[Tensor, "G R"]) -> tuple[float, float]:
    """M*/D of the mean of G curves at ``percent``, evenly spaced over 0..100, and its jackknife error."""
    rate = torch.tensor(percent, dtype=torch.float64) / 100
    return jackknife(lambda v: crossover(v, rate), groups)


def _mean_and_error(values: Float[Tensor, "N R"]) -> Float[Tensor, "R two"]:
    error = values.std(dim=0) / math.sqrt(len(values))
    return torch.stack([values.mean(dim=0), error], dim=1)


def _findings(config: TextRates, arrays: Mapping[str, Tensor]) -> dict[str, Finding]:
    """Of the first set: M*/D, and D·S(25 %) − D·S(15 %); tighter where both lie above the area."""
    name = config.data_sets[0]
    return {
        "crossover/small-bert": Finding(*arrays[f"crossover/{name}"].tolist()),
        "25-against-15/small-bert": Finding(*arrays[f"change/{name}"].tolist()),
    }
