"""Pre-trained BERT-base on the page: live where there is a GPU and a network, else one line."""

from __future__ import annotations

import os
from dataclasses import dataclass

from mpt_lml.checkpoints import PINNED, CheckpointError, gpu, why_not_here
from mpt_lml.data import DataNotFoundError
from mpt_lml.experiments.bert import found_rate, some_tokens
from mpt_lml.experiments.bert_curve import Design, SentenceCurves, curves
from mpt_lml.experiments.registry import resolve_device
from mpt_lml.models.bert_networks import HUB_NAME, load_network, load_tokenizer
from mpt_lml.models.masked_lm import MaskedLM
from mpt_lml.results import Estimate

VARIABLE = "MPT_LML_BERT"
"""Names a folder made by ``save_pretrained``, or a name on the hub, to be run on any device."""


@dataclass(frozen=True)
class LiveCurve:
    """A network's curve at 1, ..., 99 % on one set of sentences.

    Attributes
    ----------
    data : str
        Which sentences.
    curve : SentenceCurves
    area : Estimate
        In the unit of Table 2, with its error over sentences.
    crossover : tuple of float
        r* in percent and its jackknife error.
    """

    data: str
    curve: SentenceCurves
    area: Estimate
    crossover: tuple[float, float]


def pretrained(
    data: str = "glue/ax",
    *,
    num_sentences: int = 128,
    rates: tuple[int, ...] = tuple(range(1, 100)),
) -> LiveCurve | None:
    """Score ``data`` with the network that ``MPT_LML_BERT`` names, else BERT-base where it can be had.

    BERT-base is downloaded only where there is a GPU, at the pinned commit. Where ``data`` is not
    to be had its place is taken by the sentences that are always there. Prints one line, what it
    found or what it would do; returns ``None`` in the second case. Single precision: 128 sentences
    take about a minute on a small GPU.
    """
    asked = os.environ.get(VARIABLE)
    source = asked or HUB_NAME
    reason = None if asked else why_not_here(source)
    if reason is None:
        try:
            return _run(source, data, num_sentences, rates)
        except CheckpointError as error:
            reason = str(error)
    print(
        f"not run here ({reason}): with a GPU and a network this cell takes {HUB_NAME} (440 MB, "
        f"commit {PINNED[HUB_NAME][:7]}) and scores {num_sentences} sentences of {data} at "
        f"{len(rates)} rates, in under three minutes"
    )
    return None


def _run(source: str, data: str, num_sentences: int, rates: tuple[int, ...]) -> LiveCurve:
    network, tokenizer = load_network(source), load_tokenizer(source)
    longest = network.config.max_position_embeddings
    try:
        tokens = some_tokens(data, tokenizer, num_sentences, max_length=longest)
    except DataNotFoundError:
        data = "written"
        tokens = some_tokens(data, tokenizer, num_sentences, max_length=longest)
    network = network.to(gpu() or resolve_device("cpu"))  # type: ignore[arg-type]
    model = MaskedLM.of(network, tokenizer, half_precision=False, batch_tokens=8192)
    result = curves(model, tokens, Design(rates=rates))
    assert result is not None  # there is one process
    where = found_rate(result)
    found = LiveCurve(data, result, result.paper_area(), where)
    print(
        f"{source}, {len(tokens)} sentences of {data}: area {found.area:.0f} ± "
        f"{found.area.standard_error:.0f} in the unit of Table 2, r* = {where[0]:.0f} ± {where[1]:.0f} %"
    )
    return found
