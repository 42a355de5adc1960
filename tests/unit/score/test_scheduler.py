"""How a model is asked about rows: each mask once, in batches, and with what it cannot answer."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from models import generator
from tiny_bert import tiny, tokenizer
from transformers import BertConfig, BertForMaskedLM

import mpt_score
from mpt_score import networks
from mpt_score.errors import TextError
from mpt_score.networks import masked_lm
from mpt_score.rows import scheduler
from mpt_score.rows.requests import Request, Row, stream
from mpt_score.rows.scheduler import Answers, BatchScheduler, bucket_by_shape
from mpt_score.tokens import Tokens

NUM_VALUES = 3


class Model:
    """Answers that depend on each shown token and each place; it remembers what it was asked."""

    def __init__(self, bad: dict[tuple[int, ...], float] | None = None) -> None:
        self.rows: list[str] = []  # each text, and what of it was shown
        self.num_calls = 0
        self.bad = bad or {}  # what it says of every hidden token of a text

    def log_tokens(self, ids: torch.Tensor, mask: torch.Tensor, **_: Any) -> torch.Tensor:
        shown = ids.masked_fill(mask, -1)
        self.rows += map(str, torch.cat([ids, shown], dim=1).tolist())
        self.num_calls += 1
        values = torch.tensor([literal(row, text) for row, text in zip(shown, ids, strict=True)])
        for number, text in enumerate(ids.tolist()):
            values[number] += self.bad.get(tuple(text), 0.0)
        return values.where(mask, 0.0)  # in float32: scores are in float64 all the same


def literal(shown: torch.Tensor, ids: torch.Tensor) -> list[float]:
    """log q of every token of one row: −1 less a number of 0 to 1 for what is shown."""
    length = len(ids)
    context = sum((value + 2) * (7 * place + 3) for place, value in enumerate(shown.tolist()))
    return [-1 - (context * (place + 1) + 5 * int(ids[place])) % 97 / 97 for place in range(length)]


def piece(ids: list[int], places: list[int], text: int = 0, hidden: tuple[int, ...] = ()) -> Row:
    row = torch.tensor(ids)
    always = torch.zeros(len(ids), dtype=torch.bool)
    always[list(hidden)] = True
    return Row(row, 0 * row, torch.tensor(places), always, text, f"0 {ids}")


def scheduler_of(model: Model) -> BatchScheduler:
    return BatchScheduler(mpt_score.Scorer(model), skip=False)


def results(
    batches: BatchScheduler, groups: list[list[Row]], requests: list[Request]
) -> list[Answers]:
    """The answers to requests about groups of rows that are asked together."""
    asked = [
        scheduler.batch_of([number], group, lambda count: 0) for number, group in enumerate(groups)
    ]
    return batches.ask_group(asked, lambda batch: requests[batch.numbers[0]])


def random_request(num_rows: int, num_masks: int, count: int, seed: int = 0) -> Request:
    """Masks that hide something, and of the hidden places about half that are wanted."""
    draws = torch.rand(2, num_rows, num_masks, count, generator=generator(seed))
    hidden = draws[0] < 0.5
    hidden[..., 0] |= ~hidden.any(dim=-1)
    return Request(hidden, hidden & (draws[1] < 0.5))


def by_hand(pieces: list[Row], question: Request) -> torch.Tensor:
    """What is wanted of each row's places, mask by mask."""
    values = torch.zeros(question.hidden.shape, dtype=torch.float64)
    for row, number in itertools.product(range(len(pieces)), range(question.hidden.shape[1])):
        one = pieces[row]
        mask = one.hidden.clone()
        mask[one.places] = question.hidden[row, number]
        answers = torch.tensor(literal(one.ids.masked_fill(mask, -1), one.ids))
        values[row, number] = answers[one.places] * question.wanted[row, number]
    return values


def test_answers_are_those_of_a_loop_over_rows_and_masks() -> None:
    """Two forms of one length, one of another, and places that each mask hides besides."""
    groups = [
        [piece([0, 1, 2, 1, 0], [1, 2, 4]), piece([2, 2, 0, 1, 1], [0, 3, 4], hidden=(1,))],
        [piece([1, 1, 0, 2, 0], [3, 1])],
        [piece([2, 0, 1], [0, 2], hidden=(1,)), piece([0, 0, 1], [0, 1])],
    ]
    requests = [
        random_request(len(group), 6, len(group[0].places), seed)
        for seed, group in enumerate(groups)
    ]
    model = Model()
    found = results(scheduler_of(model), groups, requests)
    assert model.num_calls == 2  # of two lengths
    for group, request, answers in zip(groups, requests, found, strict=True):
        torch.testing.assert_close(answers.values, by_hand(group, request), rtol=0, atol=1e-6)


def test_equal_masks_are_asked_once() -> None:
    """Of each row; what an order wants of a mask and what another wants are one question."""
    pieces = [piece([0, 1, 2], [0, 1, 2]), piece([2, 1, 0], [0, 1, 2])]
    hidden = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 0], [0, 1, 0]]).bool()
    wanted = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0], [0, 1, 0]]).bool()
    hidden = torch.stack([hidden, hidden.roll(1, dims=1)])
    hidden[1, 4] = hidden[1, 1]
    wanted = torch.stack([wanted, hidden[1]])
    question = Request(hidden, wanted)
    model = Model()
    (answers,) = results(scheduler_of(model), [pieces], [question])
    assert len(model.rows) == len(set(model.rows)) == 5
    assert answers.num_passes.tolist() == [3, 2]
    torch.testing.assert_close(answers.values, by_hand(pieces, question), rtol=0, atol=1e-6)


def test_masks_of_many_places_are_told_apart() -> None:
    """Of 40 places, masks that differ in any one of them are different, and those of any two rows."""
    pieces = [piece([number] * 40, list(range(40))) for number in range(2)]
    hidden = torch.eye(40, dtype=torch.bool).repeat(2, 1).expand(2, -1, -1)
    model = Model()
    (answers,) = results(scheduler_of(model), [pieces], [Request(hidden, hidden)])
    assert len(model.rows) == len(set(model.rows)) == 80
    assert answers.num_passes.tolist() == [40, 40]


@pytest.mark.parametrize("kind", ["function", "network"])
def test_what_is_wanted_changes_no_number(kind: str) -> None:
    pieces = [piece([2, 5, 6, 7, 3], [1, 2, 3]), piece([2, 9, 10, 6, 3], [1, 2, 3])]
    scorer = mpt_score.load(tiny(), tokenizer())
    if kind == "function":
        scorer = mpt_score.Scorer(Model())
    few = random_request(2, 12, 3)
    every = Request(few.hidden, few.hidden)
    asks = BatchScheduler(scorer, skip=False)
    (minimal,) = results(asks, [pieces], [few])
    (whole,) = results(asks, [pieces], [every])
    assert not torch.equal(few.wanted, few.hidden)
    of_wanted = whole.values.where(few.wanted, 0.0)
    # The network computes in float64, in batches of other sizes.
    torch.testing.assert_close(minimal.values, of_wanted, rtol=0, atol=1e-9)
    assert torch.equal(minimal.num_passes, whole.num_passes)


def test_what_a_row_gets_does_not_depend_on_its_place() -> None:
    texts = [[0, 1, 2, 1, 0, 2], [2, 0, 1], [1, 1, 0, 2, 2, 0], [0, 0, 0], [2, 2, 0, 1, 1, 1]]
    scorer = mpt_score.Scorer(Model())
    whole = mpt_score.sentences(scorer, texts, num_orders=3, pseudo=True)
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        turned = mpt_score.sentences(scorer, [texts[n] for n in order], num_orders=3, pseudo=True)
        for name in ("log_score", "standard_error", "pseudo_log_likelihood", "num_passes"):
            expected = getattr(whole, name)[order]
            torch.testing.assert_close(getattr(turned, name), expected, equal_nan=True)


def test_rows_of_one_shape_are_sorted_by_what_they_show() -> None:
    pieces = [
        piece([2, 0, 1], [0, 1]),
        piece([0, 1], [0, 1]),
        piece([0, 2, 2], [1, 2]),
        piece([0, 0, 0], [0]),
    ]
    assert bucket_by_shape(pieces, lambda count: count) == [[1], [3], [0, 2]]


def test_rows_that_show_the_same_are_asked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets of three rows at most, or of five; a border lies between sites where it can."""
    site = [piece([token, 1, 0], [0]) for token in range(4)]
    other = [piece([0, token, 2], [1]) for token in range(4)]
    for most, buckets in ((3, [[0, 1, 2], [3], [4, 5, 6], [7]]), (5, [[0, 1, 2, 3], [4, 5, 6, 7]])):
        monkeypatch.setattr(scheduler, "BATCH_TOKENS", 3 * most)
        assert bucket_by_shape(site + other, lambda count: 1) == buckets


class Watched:
    """A function of three tokens that remembers what it was shown, row by row."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.scorer = mpt_score.load(self)
        mpt_score.sentences(
            self.scorer, [[0, 1, 2, 1, 0]]
        )  # tried once in rows as long as any below
        self.rows.clear()

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shown = ids.masked_fill(mask, -1)
        self.rows += map(tuple, shown.tolist())
        return self.log_q(shown)

    def log_q(self, shown: torch.Tensor) -> torch.Tensor:
        """Logits that depend on each shown token, its place, and the place that is asked for."""
        places = torch.arange(shown.shape[1])
        context = ((shown + 2) * (7 * places + 3)).sum(dim=1)
        angles = context[:, None, None] * (places + 1)[:, None] + 2.0 * torch.arange(NUM_VALUES)
        return angles.double().sin().log_softmax(dim=-1)


class TestEqualRows:
    """A row that several texts ask for goes through the network once in a call."""

    WILD_TYPE = (0, 1, 2, 1, 0)

    def mutants(self) -> list[list[int]]:
        mutants = []
        for place, residue in enumerate(self.WILD_TYPE):
            for other in range(NUM_VALUES):
                if other != residue:
                    mutant = list(self.WILD_TYPE)
                    mutant[place] = other
                    mutants.append(mutant)
        return mutants

    def test_a_scan_of_single_substitutions_takes_a_pass_a_site(self) -> None:
        watched = Watched()
        mutants = self.mutants()
        found = mpt_score.pairs(watched.scorer, mutants, [list(self.WILD_TYPE)] * len(mutants))
        sites = torch.tensor([self.WILD_TYPE]).repeat(5, 1)
        sites.fill_diagonal_(-1)
        assert sorted(watched.rows) == sorted(map(tuple, sites.tolist()))
        assert found.num_passes.tolist() == [1] * len(mutants)
        log_q = watched.log_q(sites)
        for number, mutant in enumerate(mutants):
            place = number // 2
            ratio = log_q[place, place, mutant[place]] - log_q[place, place, self.WILD_TYPE[place]]
            assert found.log_ratio[number].item() == pytest.approx(ratio.item(), abs=1e-12)

    def test_a_network_reads_several_tokens_from_one_pass(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In parts of two places: each place with all of its tokens in one part."""
        shown = []
        network = tiny()
        network.register_forward_pre_hook(
            lambda _, __, inputs: shown.extend(inputs["input_ids"].tolist()), with_kwargs=True
        )
        monkeypatch.setattr(masked_lm, "WORKING_BYTES", 2 * masked_lm._BYTES_OF_A_LOGIT * 12)
        first = ["the cat sat", "the dog sat", "a cat sat", "the cat sat"]
        second = ["the dog sat", "the a sat", "a dog sat", "the cat cat"]
        together = mpt_score.pairs(network, first, second, tokenizer=tokenizer())
        assert len(shown) == 3
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            alone = mpt_score.pairs(network, [one], [other], tokenizer=tokenizer())
            assert together.log_ratio[number].item() == pytest.approx(alone.log_ratio.item())

    def test_texts_of_one_length_share_the_row_that_hides_all(self) -> None:
        watched = Watched()
        texts = [[0, 1, 2], [2, 1, 0], [0, 1, 2]]
        found = mpt_score.sentences(watched.scorer, texts)
        assert len(watched.rows) == len(set(watched.rows))
        assert watched.rows.count((-1, -1, -1)) == 1
        assert found.num_passes.tolist() == [7, 7, 7]
        alone = [mpt_score.sentences(watched.scorer, [text]).log_score.item() for text in texts]
        assert found.log_score.tolist() == pytest.approx(alone, abs=1e-12)

    def test_options_of_a_prompt_share_theirs(self) -> None:
        watched = Watched()
        found = mpt_score.answers(watched.scorer, [[0, 1]], [[[0, 1], [0, 2], [2, 0]]])
        # Of nine masks all hide both tokens three times; the first two hide what differs once more.
        assert len(watched.rows) == len(set(watched.rows)) == 9 - 2 - 1
        assert found.num_passes.tolist() == [6]

    def test_types_tell_rows_apart(self) -> None:
        """A network that tells the second sentence of a pair sees other rows."""
        ids = torch.tensor([[2, 5, 6, 3]] * 2)
        types = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1]])
        maskable = torch.tensor([[False, True, True, False]] * 2)
        texts = Tokens(ids, types, maskable, torch.tensor([4, 4]))
        sizes = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8}
        config = BertConfig(vocab_size=12, num_hidden_layers=1, initializer_range=1.0, **sizes)
        network = networks.at_random(BertForMaskedLM, config, seed=0)
        both = mpt_score.sentences(network, texts, tokenizer=tokenizer())
        assert (both.log_score[0] - both.log_score[1]).abs() > 1e-6
        for number in range(2):
            alone = mpt_score.sentences(network, texts.row(number), tokenizer=tokenizer())
            torch.testing.assert_close(alone.log_score[0], both.log_score[number])

    def test_what_says_log_q_of_its_own_tokens_alone_is_asked_of_each_text(self) -> None:
        model = Model()
        found = mpt_score.pairs(mpt_score.Scorer(model), [[0, 1, 2]], [[0, 2, 2]])
        assert len(model.rows) == 2 and found.num_passes.tolist() == [2]


def test_what_is_asked_together_is_bounded_by_its_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five tokens along three orders: 13 masks, as all begin with everything hidden; 65 tokens."""
    texts = [[0, 1, 2, 1, 0], [2, 0, 1, 1, 1], [1, 1, 0, 2, 2]]
    calls = []
    found = []
    for most, num_calls in ((195, 1), (130, 1), (65, 2), (32, 3)):
        monkeypatch.setattr(scheduler, "BATCH_TOKENS", most)
        model = Model()
        found.append(mpt_score.sentences(mpt_score.Scorer(model), texts, num_orders=3))
        calls.append((model.num_calls, num_calls))
    assert [seen for seen, _ in calls] == [expected for _, expected in calls]
    for each in found[1:]:
        torch.testing.assert_close(each.log_score, found[0].log_score)


def test_a_stream_follows_from_its_key() -> None:
    keys = ["0 [2, 5, 3]", "1 [2, 5, 3]", "0 [2, 5]", "0 [2, 5, 3], row 0"]
    first = [torch.rand(4, generator=stream(key)).tolist() for key in keys]
    again = [torch.rand(4, generator=stream(key)).tolist() for key in keys]
    assert first == again
    assert all(a != b for a, b in itertools.combinations(first, 2))


@pytest.mark.bad_input
@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_an_answer_that_is_not_finite_costs_its_text(value: float) -> None:
    texts = [[0, 1, 2, 0], [2, 1], [1, 1, 1, 1], [0, 2, 0, 0]]
    model = Model(bad={(1, 1, 1, 1): value, (0, 2, 0, 0): value})
    with pytest.raises(TextError, match=rf"^text 2: the model says {value} of token ") as error:
        mpt_score.sentences(mpt_score.Scorer(model), texts)
    assert error.value.number == 2
    found = mpt_score.sentences(mpt_score.Scorer(model), texts, skip=True, pseudo=True)
    assert list(found.skipped) == [2, 3]
    assert found.skipped[2].startswith(f"the model says {value} of token ")
    alone = mpt_score.sentences(mpt_score.Scorer(Model()), texts[:2], pseudo=True)
    for name in ("log_score", "standard_error", "pseudo_log_likelihood", "mixture_lower"):
        assert torch.equal(getattr(found, name)[:2], getattr(alone, name))
        assert getattr(found, name)[2:].isnan().all()
    assert found.num_passes.tolist() == [*alone.num_passes.tolist(), 0, 0]
    assert found.log_score.dtype == torch.float64
    assert found.mean() == alone.mean() and found.mean().num_samples == 2
    rows = found.rows()
    assert rows[2]["log_score"] is None and rows[2]["skipped"] and rows[0]["skipped"] is None


@pytest.mark.bad_input
def test_each_text_that_is_skipped_has_a_reason_of_its_own() -> None:
    model = Model(bad={(0, 0, 0, 1): math.nan, (1, 0, 0, 2): -math.inf})
    texts = [[0, 0, 0, 1], [1, 0, 0, 2]]
    found = mpt_score.sentences(mpt_score.Scorer(model), texts, skip=True)
    assert found.skipped[0].startswith("the model says nan of token 3: no log-probability.")
    assert found.skipped[1].startswith("the model says -inf of token 3: it gives the id 2 probab")


@pytest.mark.bad_input
def test_tokens_of_a_text_that_is_skipped_are_left_out() -> None:
    texts = [[1, 1, 1, 1], [0, 1, 2, 0], [2, 1]]
    model = Model(bad={(1, 1, 1, 1): -math.inf})
    found = mpt_score.surprisals(mpt_score.Scorer(model), texts, skip=True)
    alone = mpt_score.surprisals(mpt_score.Scorer(Model()), texts[1:])
    assert list(found.skipped) == [0] and found.text.tolist() == [1, 1, 1, 1, 2, 2]
    assert torch.equal(found.terms, alone.terms)
    with pytest.raises(TextError, match="no text can be scored: text 0 the model says -inf"):
        mpt_score.surprisals(mpt_score.Scorer(model), texts[:1], skip=True)
