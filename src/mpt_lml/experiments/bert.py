"""Table 2 and Figure 5, right: curves of BERT-base at initialization, pre-trained, and in small."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from scipy import stats
from torch import Tensor

from mpt_lml import text
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
    random_bert_base,
    random_twin,
    small_network,
    train_tokenizer,
)
from mpt_lml.models.masked_lm import MaskedLM, Replacement
from mpt_lml.numerics import mean_and_error
from mpt_lml.tokens import Tokens, encode, mask_token

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

GLUE = ("glue/ax", "glue/cola", "glue/qnli", "glue/mrpc", "glue/sst-2")
PUBLISHED = GLUE[:4]
PER_TOKEN = 0.01 * PAPER_LENGTH * PAPER_RATES
"""The paper's area of a curve that is 1 everywhere."""


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


def conditionals(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    replacement: Replacement = "mask",
    half_precision: bool | None = None,
    batch_tokens: int = 2048,
) -> MaskedLM:
    """``network`` with the special tokens of its ``tokenizer``, for whole rows."""
    return MaskedLM(
        network,
        mask_token(tokenizer),
        special_token_ids=tokenizer.all_special_ids,
        replacement=replacement,
        half_precision=half_precision,
        batch_tokens=batch_tokens,
    )


def some_tokens(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    *,
    max_length: int = 512,
    split: text.Split = "test",
) -> Tokens:
    """``count`` sentences, the same ones every time, of those that fit the model whole."""
    found = text.sentences(name, split)
    tokens = encode(tokenizer, found.first, found.second)
    fits = ((tokens.lengths <= max_length) & (tokens.num_features >= 2)).nonzero().flatten()
    generator = torch.Generator().manual_seed(0)
    return tokens.rows(fits[torch.randperm(len(fits), generator=generator)[:count]])


def _starting_point(small: bool, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A network before training and its tokenizer."""
    if small:
        tokenizer = train_tokenizer(text.WRITTEN, 150)
        network = small_network(len(tokenizer), "classic", width=32, num_layers=1, seed=seed)
        return network, tokenizer
    return random_bert_base(seed=seed), load_tokenizer(text.bert_vocabulary())


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
    sentences; ``curve/SET`` (seeds, strata), nats a token; ``repetition/SET`` (), the probability
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
        model = conditionals(network, tokenizer, replacement=kind, half_precision=True)
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
    """Whether the published area is one that another initialization could have given.

    Confirmed inside the two-sided 99 % prediction interval of Student's t for one more
    initialization; the rows of sentences are a sample too, so their error is added.
    """
    published = {"glue/ax": -5245.31, "glue/cola": -5283.52}
    published |= {"glue/qnli": -5343.98, "glue/mrpc": -5362.21}
    findings = {}
    count = len(config.seeds)
    for name in config.data_sets:
        mean, error = mean_and_error(arrays[f"area/{name}"])
        key = f"table-2/random-{name.removeprefix('glue/')}"
        if name not in published:
            continue
        sentences = arrays[f"sentence_error/{name}"].mean()
        spread = torch.sqrt(error.square() * (count + 1) + sentences.square())
        limit = stats.t.ppf(0.995, count - 1) * spread.item()
        near = abs(published[name] - mean.item()) < limit
        findings[key] = Finding(
            mean.item(),
            math.hypot(error.item(), sentences.item()),
            "confirmed" if near else "refuted",
        )
    ranges = torch.stack([_range(arrays[f"curve/{name}"]) for name in config.data_sets])
    flat = "confirmed" if bool((ranges < 0.1).all()) else "refuted"
    return findings | {"fig-5-right-flat": Finding(ranges.max().item(), None, flat)}  # type: ignore[arg-type]


def _range(curve: Tensor) -> Tensor:
    mean = curve.mean(dim=0)
    return mean.max() - mean.min()


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
    Arrays: ``area/SET`` (2,) in the paper's unit with its error over sentences, ``curve/SET`` (R,).
    """
    if config.model is None:
        network, tokenizer = load_small_bert()
    else:
        network, tokenizer = load_network(config.model), load_tokenizer(config.model)
    model = conditionals(network.to(device), tokenizer, batch_tokens=16384)  # type: ignore[arg-type]
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
        if name in PUBLISHED or config.model is None:
            key = f"table-2/pretrained-{name.removeprefix('glue/')}"
            key = "table-2/pretrained-ax" if config.model is None else key
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
    (R,), nats a token; ``area/KIND/SET`` (3, 2): per token, per sentence and in the paper's unit,
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
            model = conditionals(network.to(device), tokenizer, half_precision=True)  # type: ignore[arg-type]
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
    sure = bool((falls > 5 * errors).all())
    return {
        "fig-5-right-falls": Finding(
            falls[least].item(), errors[least].item(), "confirmed" if sure else "refuted"
        )
    }


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


def mean_rate(rates: Sequence[float] | Sequence[int], curve: Tensor, area: float) -> float:
    """The rate, in percent, at which the falling ``curve`` has the height ``area``."""
    below = (curve < area).nonzero().flatten()
    if len(below) == 0 or int(below[0]) == 0:
        raise ValueError("the curve does not cross this height between its first and last rate.")
    right = int(below[0])
    left = right - 1
    share = ((curve[left] - area) / (curve[left] - curve[right])).item()
    return rates[left] + share * (rates[right] - rates[left])
