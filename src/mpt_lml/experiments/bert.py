"""Table 2, second row, and Figure 5, right: curves of BERT-base with its weights, and in small."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from mpt_lml import data
from mpt_lml.data import Tokens, encode
from mpt_lml.experiments.bert_curve import (
    PAPER_LENGTH,
    PAPER_RATES,
    Design,
    SentenceCurves,
    curves,
)
from mpt_lml.experiments.registry import (
    Config,
    Finding,
    Outcome,
    Progress,
    checksum,
    experiment,
    silent,
    weights_of,
)
from mpt_lml.models.bert_networks import (
    HUB_NAME,
    load_network,
    load_small_bert,
    load_tokenizer,
    random_twin,
)
from mpt_lml.models.masked_lm import MaskedLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GLUE = ("glue/ax", "glue/cola", "glue/qnli", "glue/mrpc", "glue/sst-2")
PUBLISHED = GLUE[:4]
PER_TOKEN = 0.01 * PAPER_LENGTH * PAPER_RATES
"""The paper's area of a curve that is 1 everywhere."""


def some_tokens(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    *,
    max_length: int = 512,
    split: Literal["train", "test"] = "test",
) -> Tokens:
    """``count`` sentences, the same ones every time, of those that fit the model whole."""
    found = data.sentences(name, split)
    tokens = encode(tokenizer, found.first, found.second)
    fits = ((tokens.lengths <= max_length) & (tokens.num_features >= 2)).nonzero().flatten()
    generator = torch.Generator().manual_seed(0)
    return tokens.rows(fits[torch.randperm(len(fits), generator=generator)[:count]])


@dataclass(frozen=True)
class PreTrained(Config):
    """Table 2, second row: 99 rates on as many sentences as the paper may have used."""

    seeds: tuple[int, ...] = (4,)
    model: str | None = HUB_NAME  # or a folder; None: the book's small one
    data_sets: tuple[str, ...] = GLUE
    num_sentences: int = 1000
    rates: tuple[int, ...] = tuple(range(1, 100))

    @classmethod
    def paper(cls) -> PreTrained:
        """The paper's network, from the hub or its cache; it has to be there."""
        return cls()

    @classmethod
    def quick(cls) -> PreTrained:
        """The small BERT of the book in its place."""
        return cls(model=None, data_sets=("written",), num_sentences=4, rates=(10, 50, 90))


@experiment(
    "table-2-pretrained",
    title="Table 2, second row, and Figure 5, right: needs the weights of bert-base-uncased",
    cost="GPU advised",
    config=PreTrained,
    resumable=True,
)
def table_2_pretrained(
    config: PreTrained,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """Area of the pre-trained network on each set, and whether it is the printed one.

    ``config.model`` is a name on the hub or a folder made by ``save_pretrained``.
    Arrays: ``area/SET`` (2,) in the paper's unit with its error over sentences, ``curve/SET`` and
    ``error/SET`` (R,), nats per token, ``mean_rate/SET`` (2,), r* in percent with its error.
    """
    if config.model is None:
        network, tokenizer = load_small_bert()
    else:
        network, tokenizer = load_network(config.model), load_tokenizer(config.model)
    model = MaskedLM.of(network.to(device), tokenizer, batch_tokens=16384)  # type: ignore[arg-type]
    arrays: dict[str, Tensor] = {}
    findings: dict[str, Finding] = {}
    ids = []
    for name in config.data_sets:
        tokens = some_tokens(name, tokenizer, config.num_sentences)
        ids.append(tokens.ids)
        folder = None if checkpoints is None else checkpoints / name.replace("/", "-")
        design = Design(rates=config.rates, seed=config.seeds[0])
        result = curves(model, tokens, design, folder=folder, progress=progress)
        assert result is not None
        area = result.paper_area()
        arrays[f"area/{name}"] = torch.tensor([area.value, area.standard_error])
        arrays[f"curve/{name}"] = result.score
        arrays[f"error/{name}"] = result.standard_error
        crossover = torch.tensor(found_rate(result))
        arrays |= {f"mean_rate/{name}": crossover} if crossover.isfinite().all() else {}
        if name in PUBLISHED or config.model is None:
            short = "ax" if config.model is None else name.removeprefix("glue/")
            key = f"table-2/rerun-pretrained-{short}"
            findings[key] = Finding(area.value, area.standard_error)
    return Outcome(findings, arrays, checksum(ids), weights_of(config.model))


@dataclass(frozen=True)
class BertCurve(Config):
    """The book's small BERT, trained and untrained, on held-out books, Wikipedia and GLUE."""

    seeds: tuple[int, ...] = (4,)
    data_sets: tuple[str, ...] = ("written", "books", "wikitext-2", *GLUE)
    num_sentences: int = 300
    rates: tuple[int, ...] = tuple(range(1, 100, 2))

    @classmethod
    def paper(cls) -> BertCurve:
        """The book's run; the paper's is ``table-2-pretrained``."""
        return cls()

    @classmethod
    def quick(cls) -> BertCurve:
        """Three rates on four sentences."""
        return cls(data_sets=("written",), num_sentences=4, rates=(5, 50, 95))


@experiment(
    "bert-curve",
    title="Figure 5, right, in small: the book's BERT before and after training on eight texts",
    cost="about 10 min",
    config=BertCurve,
    resumable=True,
)
def bert_curve(
    config: BertCurve,
    *,
    device: torch.device = torch.device("cpu"),
    progress: Progress = silent,
    checkpoints: Path | None = None,
) -> Outcome:
    """Curves of the small BERT with standard errors over sentences.

    Arrays, for kind in (trained, random) and each set: ``curve/KIND/SET`` and ``error/KIND/SET``
    (R,), nats per token; ``area/KIND/SET`` (3, 2): per token, per sentence and in the paper's unit,
    each with its error; ``hidden/KIND/SET`` (): the score with everything hidden.
    ``num_features/SET`` (): mean D; ``mean_rate/SET`` (2,): the rate, in percent, at which the
    trained curve has its mean height, with its error.
    """
    trained, tokenizer = load_small_bert()
    networks = {"trained": trained, "random": random_twin(trained, seed=config.seeds[0])}
    arrays: dict[str, Tensor] = {}
    ids = []
    for name in config.data_sets:
        longest = trained.config.max_position_embeddings
        tokens = some_tokens(name, tokenizer, config.num_sentences, max_length=longest)
        ids.append(tokens.ids)
        arrays[f"num_features/{name}"] = tokens.num_features.double().mean()
        for kind, network in networks.items():
            folder = None if checkpoints is None else checkpoints / kind / name.replace("/", "-")
            model = MaskedLM.of(network.to(device), tokenizer, half_precision=True)  # type: ignore[arg-type]
            design = Design(rates=config.rates, seed=config.seeds[0])
            result = curves(model, tokens, design, folder=folder, progress=progress)
            assert result is not None
            arrays |= _summary(result, f"{kind}/{name}")
            if kind == "trained":
                arrays[f"mean_rate/{name}"] = torch.tensor(rate_of_mean(result))
    return Outcome(_curve_findings(config, arrays), arrays, checksum(ids))


def _summary(result: SentenceCurves, name: str) -> dict[str, Tensor]:
    areas = (result.area_per_token(), result.area_per_sentence(), result.paper_area())
    return {
        f"curve/{name}": result.score,
        f"error/{name}": result.standard_error,
        f"area/{name}": torch.tensor([[each.value, each.standard_error] for each in areas]),
        f"hidden/{name}": result.hidden.mean(),
    }


def _curve_findings(config: BertCurve, arrays: dict[str, Tensor]) -> dict[str, Finding]:
    """How far the trained curve falls from its first rate to its last, the least over the sets."""
    names = config.data_sets
    falls = torch.stack([_fall(arrays[f"curve/trained/{name}"]) for name in names])
    errors = torch.stack([_end_error(arrays[f"error/trained/{name}"]) for name in names])
    least = int(falls.argmin())
    return {"small-bert-falls": Finding(falls[least].item(), errors[least].item())}


def _fall(curve: Tensor) -> Tensor:
    return curve[0] - curve[-1]


def _end_error(error: Tensor) -> Tensor:
    return torch.hypot(error[0], error[-1])


def rate_of_mean(result: SentenceCurves, num_groups: int = 10) -> tuple[float, float]:
    """The rate at which the curve has its mean height, and its jackknife error over sentences."""
    each = result.values.mean(dim=1)
    groups = torch.arange(len(each)) % min(num_groups, len(each))

    def rate(curve: Tensor) -> float:
        return mean_rate(result.rates, curve, curve.mean().item())

    left_out = torch.tensor([rate(each[groups != k].mean(dim=0)) for k in groups.unique()])
    count = len(left_out)
    error = ((count - 1) * left_out.var(correction=0)).sqrt().item()
    return rate(each.mean(dim=0)), error


def found_rate(result: SentenceCurves) -> tuple[float, float]:
    """:func:`rate_of_mean`, or nan where the curve does not fall: the network has learned nothing."""
    try:
        return rate_of_mean(result)
    except ValueError:
        return math.nan, math.nan


def mean_rate(rates: Sequence[float] | Sequence[int], curve: Tensor, area: float) -> float:
    """The rate, in percent, at which the falling ``curve`` has the height ``area``."""
    below = (curve < area).nonzero().flatten()
    if len(below) == 0 or int(below[0]) == 0:
        raise ValueError("the curve does not cross this height between its first and last rate.")
    right = int(below[0])
    left = right - 1
    share = ((curve[left] - area) / (curve[left] - curve[right])).item()
    return rates[left] + share * (rates[right] - rates[left])
