"""Every function for every family of masked language models, against literal sums.

The literal side is the network alone: one row at a time, nothing padded, the softmax of everything,
and each sum written out. It shares no line with the package.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, LETTERS, MORE_FAMILIES, Family
from models import generator

import mpt_score
from mpt_score import Design, Scorer

KNOWN = {name: family for name, family in (FAMILIES | MORE_FAMILIES).items() if family.is_known}
# At the length for which they are published: relative and windowed attention, several ways to count.
SPARSE = {"attention_type": "block_sparse", "block_size": 16, "num_random_blocks": 2}
AT_512 = {
    name: FAMILIES[name].of_length(512)
    for name in FAMILIES
    if name not in ("DeBERTa-v2", "ModernBERT")
} | {
    "DeBERTa-v2": FAMILIES["DeBERTa-v2"].of_length(512, position_buckets=64),
    "ModernBERT": FAMILIES["ModernBERT"].of_length(512, local_attention=128),
    "CamemBERT": MORE_FAMILIES["CamemBERT"].of_length(512),
    "Longformer": MORE_FAMILIES["Longformer"].of_length(512, attention_window=[64, 64]),
    "BigBird": MORE_FAMILIES["BigBird"].of_length(512, **SPARSE),
}
# Networks are compared in float64, but for one that has float32 written into it.
CLOSE = {"rel": 1e-9, "abs": 1e-9}
CLOSE_IN_FLOAT32 = {"rel": 1e-5, "abs": 2e-5}
IN_FLOAT32 = ("Mra",)
Order = Sequence[int]


@dataclass(frozen=True)
class Literal:
    """log q of the hidden tokens of a row, by the network as its authors would call it."""

    network: Any
    mask_token_id: int
    known: dict[tuple[tuple[int, ...], frozenset[int]], dict[int, float]] = field(
        default_factory=dict
    )

    @torch.no_grad()
    def log_q(self, row: Sequence[int], hidden: frozenset[int]) -> dict[int, float]:
        key = (tuple(row), hidden)
        if key not in self.known:
            network = self.network
            if getattr(network.config, "attention_type", None) == "block_sparse":
                network = copy.deepcopy(network)  # BigBird keeps what a short row changes
            shown = [self.mask_token_id if j in hidden else v for j, v in enumerate(row)]
            logits = network(input_ids=torch.tensor([shown])).logits[0].double()
            log_q = logits - logits.exp().sum(dim=1, keepdim=True).log()
            self.known[key] = {j: log_q[j, row[j]].item() for j in hidden}
        return self.known[key]

    def along(self, row: Sequence[int], order: Order) -> list[float]:
        """log q of each place of ``order`` when it is shown next, all later ones still hidden."""
        return [self.log_q(row, frozenset(order[n:]))[j] for n, j in enumerate(order)]

    def mean_over_orders(self, row: Sequence[int], places: Sequence[int]) -> float:
        totals = [sum(self.along(row, order)) for order in itertools.permutations(places)]
        return sum(totals) / len(totals)

    def mean_of_hidden(self, row: Sequence[int], hidden: frozenset[int]) -> float:
        return sum(self.log_q(row, hidden).values()) / len(hidden)


@dataclass(frozen=True)
class Case:
    scorer: Scorer
    literal: Literal
    longest: int
    close: dict[str, float]

    def row(self, text: str) -> list[int]:
        return self.scorer.tokenizer(text)["input_ids"]

    def text(self, length: int, seed: int = 0) -> str:
        """A sentence that is a row of ``length`` tokens, two of them special."""
        draws = torch.randint(len(LETTERS), (length - 2,), generator=generator(seed))
        return " ".join(LETTERS[each] for each in draws.tolist())


def case_of(family: Family, folder: Path) -> Case:
    family.save(folder)
    network = family.network_class.from_pretrained(folder).eval()
    if getattr(network.config, "token_dropout", False):
        _without_factor(network)
    scorer = mpt_score.load(folder)
    close = CLOSE_IN_FLOAT32
    if family.kind not in IN_FLOAT32:
        close = CLOSE
        network.double()
        scorer.network.double()
    mask_token_id = scorer.tokenizer.convert_tokens_to_ids(family.mask)
    return Case(scorer, Literal(network, mask_token_id), family.longest, close)


def _without_factor(network: Any) -> None:
    """Divide what an ESM shows by 0.88 / (1 - hidden share), by which it will multiply it."""

    def divide(_: Any, inputs: tuple[torch.Tensor], embedded: torch.Tensor) -> torch.Tensor:
        share = (inputs[0] == network.config.mask_token_id).float().mean()
        return embedded * (1 - share) / 0.88

    network.esm.embeddings.word_embeddings.register_forward_hook(divide)


def in_one_process(families: dict[str, Family]) -> list[Any]:
    """Names of families: what asks one of them shares its network and the literal answers."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in families]


@pytest.fixture(scope="module", params=in_one_process(KNOWN))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return case_of(KNOWN[request.param], tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module", params=in_one_process(AT_512))
def long_case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return case_of(AT_512[request.param], tmp_path_factory.mktemp("family"))


Asked = dict[tuple[int, ...], list[frozenset[int]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What was hidden of each row, in the order in which it was asked."""
    asked_of_rows: Asked = {}
    ask = Scorer.ask

    def spy(scorer: Scorer, ids: Any, text: Any, mask: Any, *more: Any, **wanted: Any) -> Any:
        for number, hidden in zip(text.tolist(), mask, strict=True):
            places = frozenset(hidden.nonzero().flatten().tolist())
            asked_of_rows.setdefault(tuple(ids[number].tolist()), []).append(places)
        return ask(scorer, ids, text, mask, *more, **wanted)

    monkeypatch.setattr(Scorer, "ask", spy)
    return asked_of_rows


def order_of(masks: list[frozenset[int]], row: Sequence[int]) -> list[int]:
    """The order in which nested masks show the tokens of a row, from the largest to the smallest."""
    everything = frozenset(range(1, len(row) - 1))
    by_size = sorted(set(masks), key=len, reverse=True)
    assert by_size[0] == everything
    assert [len(hidden) for hidden in by_size] == list(range(len(everything), 0, -1))
    order = []
    for hidden, next_hidden in itertools.pairwise([*by_size, frozenset()]):
        assert next_hidden < hidden
        order += hidden - next_hidden
    return order


class TestAtFullLength:
    """Each family at the most tokens it has positions for, beside shorter rows in the same call."""

    def test_the_length_is_that_of_its_positions(self, case: Case, request) -> None:
        family = KNOWN[request.node.callspec.params["case"]]
        assert case.scorer.max_length == (case.longest if family.has_limit else None)
        assert len(case.row(case.text(case.longest))) == case.longest

    def test_sentences_along_an_order(self, case: Case, asked: Asked) -> None:
        lengths = (case.longest, 6, case.longest - 3)
        texts = [case.text(length, seed) for seed, length in enumerate(lengths)]
        scores = mpt_score.sentences(case.scorer, texts, num_orders=1)
        for text, score in zip(texts, scores.log_score.tolist(), strict=True):
            row = case.row(text)
            order = order_of(asked[tuple(row)], row)
            assert score == pytest.approx(sum(case.literal.along(row, order)), **case.close)

    def test_surprisals(self, case: Case, asked: Asked) -> None:
        texts = [case.text(6, 1), case.text(case.longest)]
        scores = mpt_score.surprisals(case.scorer, texts, num_orders=1)
        for number, text in enumerate(texts):
            row = case.row(text)
            order = order_of(asked[tuple(row)], row)
            wanted = dict(zip(order, case.literal.along(row, order), strict=True))
            found = scores.log_score[scores.text == number].tolist()
            assert found == pytest.approx([wanted[j] for j in sorted(wanted)], **case.close)
        alone = mpt_score.surprisals(case.scorer, texts[:1], num_orders=0, pseudo=True)
        row = case.row(texts[0])
        wanted_alone = [case.literal.log_q(row, frozenset([j]))[j] for j in range(1, len(row) - 1)]
        assert alone.pseudo_log_likelihood.tolist() == pytest.approx(wanted_alone, **case.close)

    def test_sentences_over_all_orders(self, case: Case) -> None:
        texts = [case.text(length) for length in (6, 5)]
        scores = mpt_score.sentences(case.scorer, texts, num_masks=15, pseudo=True)
        assert not scores.standard_error.any()
        for number, text in enumerate(texts):
            row = case.row(text)
            places = range(1, len(row) - 1)
            wanted = case.literal.mean_over_orders(row, places)
            pseudo = sum(case.literal.log_q(row, frozenset([j]))[j] for j in places)
            assert scores.log_score[number].item() == pytest.approx(wanted, **case.close)
            assert scores.pseudo_log_likelihood[number].item() == pytest.approx(
                pseudo, **case.close
            )

    def test_pairs_answers_and_the_curve(self, case: Case, asked: Asked) -> None:
        check_pairs(case)
        check_answers(case)
        check_curve(case, asked)


class TestAt512:
    def test_pairs_answers_and_the_curve(self, long_case: Case, asked: Asked) -> None:
        check_pairs(long_case)
        check_answers(long_case)
        check_curve(long_case, asked)

    def test_sentences_from_one_mask(self, long_case: Case, asked: Asked) -> None:
        texts = [long_case.text(length) for length in (512, 40, 509)]
        scores = mpt_score.sentences(long_case.scorer, texts, num_masks=1)
        for text, score in zip(texts, scores.log_score.tolist(), strict=True):
            row = long_case.row(text)
            (hidden,) = set(asked[tuple(row)])
            wanted = (len(row) - 2) * long_case.literal.mean_of_hidden(row, hidden)
            assert score == pytest.approx(wanted, **long_case.close)

    def test_a_longer_text_goes_in_windows(self, long_case: Case) -> None:
        price = mpt_score.passes(long_case.scorer, [long_case.text(513)], num_orders=1)
        assert long_case.scorer.max_length == 512
        assert price.item() == 511  # of 256 and 255 tokens


def check_pairs(case: Case) -> None:
    """Two tokens of a long text and three of a short one are exchanged: all orders are in it."""
    first, second = [], []
    for length, changed in ((case.longest, (2, -3)), (8, (0, 3, 5))):
        letters = case.text(length).split()
        others = list(letters)
        for place in changed:
            others[place] = LETTERS[(LETTERS.index(letters[place]) + 1) % len(LETTERS)]
        first.append(" ".join(letters))
        second.append(" ".join(others))
    scores = mpt_score.pairs(case.scorer, first, second)
    for number, texts in enumerate(zip(first, second, strict=True)):
        x, y = (case.row(text) for text in texts)
        places = [j for j in range(len(x)) if x[j] != y[j]]
        terms = [case.literal.mean_over_orders(row, places) for row in (x, y)]
        assert len(places) == 2 + number
        # A difference is off by what its terms are off.
        error = case.close["abs"] + case.close["rel"] * sum(map(abs, terms))
        assert scores.log_ratio[number].item() == pytest.approx(terms[0] - terms[1], abs=error)


def check_answers(case: Case) -> None:
    prompts = [case.text(case.longest - 2), case.text(6)]
    options = [[" a b", " c d"], [" b a", " d"]]
    scores = mpt_score.answers(case.scorer, prompts, options)
    for number, option in itertools.product(range(2), range(2)):
        row = case.row(prompts[number] + options[number][option])
        count = len(options[number][option].split())
        places = range(len(row) - 1 - count, len(row) - 1)
        wanted = case.literal.mean_over_orders(row, places)
        assert scores.log_score[number, option].item() == pytest.approx(wanted, **case.close)


def check_curve(case: Case, asked: Asked) -> None:
    asked.clear()
    rates = (0.3, 0.8)
    texts = [case.text(case.longest, 7), case.text(9, 8)]
    scores = mpt_score.curve(case.scorer, texts, Design(rates))
    for number, text in enumerate(texts):
        row = case.row(text)
        count = len(row) - 2
        sizes = [math.ceil(rate * count) for rate in rates] + [count]
        masks = sorted(asked[tuple(row)], key=len)
        assert [len(hidden) for hidden in masks] == sizes
        wanted = [case.literal.mean_of_hidden(row, hidden) for hidden in masks]
        found = [*scores.raw[number, 0].tolist(), scores.hidden[number].item()]
        assert found == pytest.approx(wanted, **case.close)
