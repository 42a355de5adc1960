"""Curves of BERTs with weights, the book's own or any other: areas, and which masking rate is right."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.experiment import (
    Experiment,
    RunContext,
    on_cpu,
    revision_of,
    setting,
    weights_of,
)
from experiments.paper.area import shape_distance
from mpt_lml.data import published_curves
from mpt_lml.files import digest
from mpt_lml.recorded import Finding, Outcome
from mpt_lml.results import Estimate
from mpt_lml.theory import rates
from mpt_lml.verdicts import mean_and_error
from mpt_score import Design, SentenceCurves, load, networks
from mpt_score.networks.hub import BERT_BASE
from mpt_score.networks.masked_lm import MaskedLM
from mpt_score.quantities.sentence_curves import (
    CHUNK_SIZE,
    chunks_by_length,
    curves_of_chunks,
    score_chunk,
)
from mpt_score.scorer import Scorer
from mpt_score.texts import some_tokens
from mpt_score.tokens import Tokens

GLUE = ("glue/ax", "glue/cola", "glue/qnli", "glue/mrpc", "glue/sst-2")
PRINTED = GLUE[:4]  # in Table 2
EVERY_PERCENT = tuple(range(1, 100))


def curves_in_parts(
    context: RunContext,
    prefix: str,
    scorer: Scorer,
    tokens: Tokens,
    design: Design,
    chunk_size: int = CHUNK_SIZE,
) -> SentenceCurves:
    """Curves as of :func:`mpt_score.curve`, with each part of some texts computed once."""
    chunks = chunks_by_length(tokens, chunk_size)
    compute = [partial(score_chunk, scorer, tokens, numbers, design) for numbers in chunks]
    scores = each_computed_once(context, prefix, scorer, tokens, compute)
    return curves_of_chunks(design, tokens, chunks, scores)


def each_computed_once(
    context: RunContext,
    prefix: str,
    scorer: Scorer,
    tokens: Tokens,
    compute: Sequence[Callable[[], Mapping[str, Tensor]]],
) -> list[Mapping[str, Tensor]]:
    """Results of ``scorer`` for parts of ``tokens``, computed now or in an earlier run."""
    inputs = {**(scorer.identity or {}), "data": digest("", vars(tokens))}
    inside = f"./{prefix}".replace("..", "_")  # a set of sentences may be a path
    results: list[Mapping[str, Tensor]] = []
    for number, part in enumerate(context.progress(list(compute), prefix)):
        computed = context.computed_once(f"{inside}part-{number:05d}", part, **inputs)
        results.append(on_cpu(computed))  # scores of texts stay on the CPU, wherever the network is
    return results


class OnSentences(Experiment):
    """Curves on sets of sentences, each a name of ``texts.sentences`` or a file with one a line."""

    seeds: tuple[int, ...] = (4,)
    data_sets: tuple[str, ...] = setting(GLUE, quick=("written",))
    num_sentences: int = setting(1000, quick=4)

    part_size: ClassVar[int] = CHUNK_SIZE

    def curves(
        self,
        context: RunContext,
        network: Any,
        tokenizer: Any,
        design: Design,
        label: str = "",
        **options: Any,
    ) -> dict[str, tuple[Tokens, SentenceCurves]]:
        """Sentences of each set and their curve, computed now or stored in ``context``."""
        scorer = load(MaskedLM.of(network.to(context.device), tokenizer, **options), tokenizer)

        def of_set(name: str) -> tuple[Tokens, SentenceCurves]:
            tokens = some_tokens(name, tokenizer, self.num_sentences, scorer.max_length)
            prefix = f"{label}{name}/"
            curves = curves_in_parts(context, prefix, scorer, tokens, design, self.part_size)
            return tokens, curves

        return {name: of_set(name) for name in self.data_sets}


def network_of(model: str | Path | None) -> tuple[Any, Any]:
    """The book's own BERT (``None``), or that of a folder or a name on the hub, and its tokenizer."""
    if model is None:
        return networks.load_small_bert()
    revision = revision_of(model)
    network = networks.load_network(model, revision=revision)
    return network, networks.load_tokenizer(model, revision=revision)


class PreTrained(OnSentences, name="table-2-pretrained", resumable=True):
    """Table 2, second row, and Figure 5, right: needs the weights of bert-base-uncased.

    Arrays: ``area/SET`` (2,) in the paper's unit with its error over sentences, ``curve/SET`` and
    ``error/SET`` (R,), nats per token, ``mean_rate/SET`` (2,), r* in percent, its error. The finding
    fig-5-right is how far the curves differ in shape from the authors', on the set where they do most.
    """

    model: str | Path | None = setting(BERT_BASE, quick=None)  # or a folder; None: the small one
    rates: tuple[int, ...] = setting(EVERY_PERCENT, quick=(25, 50, 75))

    def measure(self, context: RunContext) -> Outcome:
        design = design_at(self.rates, self.seeds[0])
        design.require_area()
        network, tokenizer = network_of(self.model)
        # One precision for every GPU: a T4 has no bfloat16 of its own, and imitates it slowly.
        options: dict[str, Any] = {"precision": "float32", "max_tokens": 16384}
        results = self.curves(context, network, tokenizer, design, **options)
        arrays: dict[str, Tensor] = {}
        findings: dict[str, Finding] = {}
        for name, (_, result) in results.items():
            area = result.area("paper")
            arrays |= {
                f"area/{name}": pair(area).float(),
                f"curve/{name}": result.score,
                f"error/{name}": result.standard_error,
                f"mean_rate/{name}": 100 * pair(result.mean_rate()),
            }
            short = "ax" if self.model is None else name.removeprefix("glue/")
            if short != "sst-2":
                key = f"table-2/rerun-pretrained-{short}"
                findings[key] = Finding(float(area), area.standard_error)
        if self.rates == EVERY_PERCENT and set(PRINTED) <= set(results):
            curves = {name: results[name][1].score for name in PRINTED}
            findings["fig-5-right"] = farthest_from_published(curves)
        checksum = context.checksum(tokens.ids for tokens, _ in results.values())
        return Outcome(findings, arrays, checksum, weights_of(self.model, network))


def farthest_from_published(curves: Mapping[str, Float[Tensor, " R"]]) -> Finding:
    """Largest distance in shape of curves at 1, ..., 99 % from the authors' of the same sets.

    Args:
        curves: by the names of their sets, as in :data:`PRINTED`.
    """
    published = published_curves()
    distances = []
    for name, score in curves.items():
        stored = published["pretrained/" + name.removeprefix("glue/")]
        distances.append(shape_distance(score, stored.to(score)).item())
    return Finding(max(distances))


def design_at(percents: Sequence[int], seed: int) -> Design:
    """Design with one mask at each rate; settings and stored arrays have rates in percent."""
    return Design(tuple(percent / 100 for percent in percents), seed=seed)


def pair(estimate: Estimate) -> Float[Tensor, " two"]:
    """A value and its standard error, float64."""
    return torch.tensor([estimate, estimate.standard_error], dtype=torch.float64)


class BertCurve(OnSentences, name="bert-curve", resumable=True):
    """Figure 5, right, in small: the book's BERT before and after training on eight texts.

    Arrays, for KIND in (trained, random) and each set: ``curve/KIND/SET`` and ``error/KIND/SET``
    (R,), nats per token; ``hidden/KIND/SET`` (): the score with everything hidden;
    ``num_features/SET`` (): mean D. Where the rates have an area ``area/KIND/SET`` (3, 2): per token,
    per sentence and in the paper's unit, each with its error; and ``mean_rate/SET`` (2,): the rate in
    percent at which the trained curve has its mean height.
    """

    data_sets: tuple[str, ...] = setting(
        ("written", "books", "wikitext-2", *GLUE), quick=("written",)
    )
    num_sentences: int = setting(300, quick=4)
    rates: tuple[int, ...] = setting(tuple(range(1, 100, 2)), quick=(25, 50, 75))
    model: str | Path | None = None  # the book's small one; or a folder, or a name on the hub

    def measure(self, context: RunContext) -> Outcome:
        trained, tokenizer = network_of(self.model)
        random = networks.random_twin(trained, seed=self.seeds[0])
        design = design_at(self.rates, self.seeds[0])
        arrays: dict[str, Tensor] = {}
        falls = []
        for kind, network in (("trained", trained), ("random", random)):
            results = self.curves(
                context, network, tokenizer, design, f"{kind}/", precision="bfloat16"
            )
            for name, (tokens, result) in results.items():
                arrays |= {
                    f"curve/{kind}/{name}": result.score,
                    f"error/{kind}/{name}": result.standard_error,
                    f"hidden/{kind}/{name}": result.hidden.mean(),
                    f"num_features/{name}": tokens.num_features.double().mean(),
                }
                if design.has_area:
                    areas = [pair(result.area(per)) for per in ("token", "sentence", "paper")]
                    arrays[f"area/{kind}/{name}"] = torch.stack(areas).float()
                if kind == "trained":
                    if design.has_area:
                        arrays[f"mean_rate/{name}"] = 100 * pair(result.mean_rate())
                    falls.append(_fall(result))
        smallest = min(falls, key=lambda finding: finding.measured)
        checksum = context.checksum(tokens.ids for tokens, _ in results.values())
        weights = weights_of(self.model, trained)
        return Outcome({"small-bert-falls": smallest}, arrays, checksum, weights)


def _fall(result: SentenceCurves) -> Finding:
    """Fall of a curve from its first rate to its last, nats per token."""
    error = result.standard_error
    fall = result.score[0] - result.score[-1]
    return Finding(fall.item(), torch.hypot(error[0], error[-1]).item())


class TextRates(OnSentences, name="text-rates", resumable=True):
    """Which masking rate? The book's small BERT on held-out books and Wikipedia.

    Arrays, for each set: ``groups/SET`` (G, R), mean curves of groups of sentences, nats per token;
    ``crossover/SET`` (2,), ρ* with its jackknife error over groups; ``bias/SET`` (R, 2), the mean
    over sentences of D·S(rate) − area with its error, nats per sentence; ``change/SET`` (2,), the
    same for D·S(25 %) − D·S(15 %); ``num_features/SET`` (), mean D.
    """

    data_sets: tuple[str, ...] = setting(("books", "wikitext-2"), quick=("written",))
    num_sentences: int = setting(1000, quick=12)
    rates: tuple[int, ...] = setting(tuple(range(1, 100, 2)), quick=tuple(range(5, 100, 10)))
    num_groups: int = setting(50, quick=4)

    def measure(self, context: RunContext) -> Outcome:
        design = design_at(self.rates, self.seeds[0])
        network, tokenizer = network_of(None)
        results = self.curves(context, network, tokenizer, design, precision="bfloat16")
        arrays = {
            f"{key}/{name}": value
            for name, (_, result) in results.items()
            for key, value in self.summary(result).items()
        }
        first = self.data_sets[0]
        findings = {
            "crossover/small-bert": Finding(*arrays[f"crossover/{first}"].tolist()),
            "25-against-15/small-bert": Finding(*arrays[f"change/{first}"].tolist()),
        }
        checksum = context.checksum(tokens.ids for tokens, _ in results.values())
        return Outcome(findings, arrays, checksum)

    def summary(self, result: SentenceCurves) -> dict[str, Tensor]:
        """The arrays of one set."""
        rate = torch.tensor(self.rates).double() / 100
        score = result.by_sentence
        groups = torch.stack([part.mean(dim=0) for part in score.tensor_split(self.num_groups)])
        num_features = result.num_features.double()
        bias = num_features[:, None] * (score - score.mean(dim=1, keepdim=True))
        change = bias[:, self.rates.index(25)] - bias[:, self.rates.index(15)]
        crossover = rates.jackknife(lambda curve: rates.crossover(curve, rate), groups)
        return {
            "groups": groups,
            "crossover": torch.tensor(crossover, dtype=torch.float64),
            "bias": torch.stack(mean_and_error(bias), dim=1),
            "change": torch.stack(mean_and_error(change)),
            "num_features": num_features.mean(),
        }
