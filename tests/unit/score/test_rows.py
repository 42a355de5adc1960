"""How a model is asked about rows: each mask once, in batches, and with what it cannot answer."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from models import generator
from tiny_bert import tiny, tokenizer

import mpt_score
from mpt_score import rows
from mpt_score.errors import TextError
from mpt_score.rows import Answer, Asker, Dialogue, Piece, Question, Rows, by_form, stream

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


def piece(ids: list[int], places: list[int], text: int = 0, hidden: tuple[int, ...] = ()) -> Piece:
    row = torch.tensor(ids)
    always = torch.zeros(len(ids), dtype=torch.bool)
    always[list(hidden)] = True
    return Piece(row, 0 * row, torch.tensor(places), always, text, f"0 {ids}")


def conversation(*questions: Question) -> Dialogue[list[Answer]]:
    """Asks one question after the other, and returns the answers."""
    answers = []
    for question in questions:
        answers.append((yield question))
    return answers


def asker(model: Model) -> Asker:
    return Asker(mpt_score.Scorer(model), skip=False)


def results(
    asker: Asker, groups: list[list[Piece]], dialogues: list[Dialogue[list[Answer]]]
) -> list[list[Answer]]:
    """What dialogues about groups of rows return that are gone through together."""
    talks = [
        rows._Talk(list(range(len(group))), Rows.of(group), dialogue, num_tokens=0)
        for group, dialogue in zip(groups, dialogues, strict=True)
    ]
    return [each.result for each in asker._finish(talks)]


def random_question(num_rows: int, num_masks: int, count: int, seed: int = 0) -> Question:
    """Masks that hide something, and of the hidden places about half that are wanted."""
    draws = torch.rand(2, num_rows, num_masks, count, generator=generator(seed))
    hidden = draws[0] < 0.5
    hidden[..., 0] |= ~hidden.any(dim=-1)
    return Question(hidden, hidden & (draws[1] < 0.5))


def by_hand(pieces: list[Piece], question: Question) -> torch.Tensor:
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
    rounds = [
        [
            random_question(len(group), 6, len(group[0].places), seed + 7 * number)
            for number in (0, 1)
        ]
        for seed, group in enumerate(groups)
    ]
    model = Model()
    dialogues = [conversation(*questions) for questions in rounds]
    found = results(asker(model), groups, dialogues)
    assert model.num_calls == 4  # two rounds of two lengths
    for group, questions, answers in zip(groups, rounds, found, strict=True):
        for question, answer in zip(questions, answers, strict=True):
            torch.testing.assert_close(answer.values, by_hand(group, question), rtol=0, atol=1e-6)


def test_equal_masks_are_asked_once() -> None:
    """Of each row; what an order wants of a mask and what another wants are one question."""
    pieces = [piece([0, 1, 2], [0, 1, 2]), piece([2, 1, 0], [0, 1, 2])]
    hidden = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 0], [0, 1, 0]]).bool()
    wanted = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0], [0, 1, 0]]).bool()
    hidden = torch.stack([hidden, hidden.roll(1, dims=1)])
    hidden[1, 4] = hidden[1, 1]
    wanted = torch.stack([wanted, hidden[1]])
    question = Question(hidden, wanted)
    model = Model()
    (answers,) = results(asker(model), [pieces], [conversation(question)])
    assert len(model.rows) == len(set(model.rows)) == 5
    assert answers[0].num_passes.tolist() == [3, 2]
    torch.testing.assert_close(answers[0].values, by_hand(pieces, question), rtol=0, atol=1e-6)


def test_masks_of_many_places_are_told_apart() -> None:
    """Of 40 places, masks that differ in any one of them are different, and those of any two rows."""
    pieces = [piece([number] * 40, list(range(40))) for number in range(2)]
    hidden = torch.eye(40, dtype=torch.bool).repeat(2, 1).expand(2, -1, -1)
    model = Model()
    (answers,) = results(asker(model), [pieces], [conversation(Question(hidden, hidden))])
    assert len(model.rows) == len(set(model.rows)) == 80
    assert answers[0].num_passes.tolist() == [40, 40]


@pytest.mark.parametrize("kind", ["function", "network"])
def test_what_is_wanted_changes_no_number(kind: str) -> None:
    pieces = [piece([2, 5, 6, 7, 3], [1, 2, 3]), piece([2, 9, 10, 6, 3], [1, 2, 3])]
    scorer = mpt_score.load(tiny(), tokenizer())
    if kind == "function":
        scorer = mpt_score.Scorer(Model())
    few = random_question(2, 12, 3)
    every = Question(few.hidden, few.hidden)
    asks = Asker(scorer, skip=False)
    (minimal,) = results(asks, [pieces], [conversation(few)])
    (whole,) = results(asks, [pieces], [conversation(every)])
    assert not torch.equal(few.wanted, few.hidden)
    of_wanted = whole[0].values.where(few.wanted, 0.0)
    # The network computes in float64, in batches of other sizes.
    torch.testing.assert_close(minimal[0].values, of_wanted, rtol=0, atol=1e-9)
    assert torch.equal(minimal[0].num_passes, whole[0].num_passes)


def test_what_a_row_gets_does_not_depend_on_its_place() -> None:
    texts = [[0, 1, 2, 1, 0, 2], [2, 0, 1], [1, 1, 0, 2, 2, 0], [0, 0, 0], [2, 2, 0, 1, 1, 1]]
    scorer = mpt_score.Scorer(Model())
    whole = mpt_score.sentences(scorer, texts, num_orders=3, pseudo=True)
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        turned = mpt_score.sentences(scorer, [texts[n] for n in order], num_orders=3, pseudo=True)
        for name in ("log_score", "standard_error", "pseudo_log_likelihood", "num_passes"):
            expected = getattr(whole, name)[order]
            torch.testing.assert_close(getattr(turned, name), expected, equal_nan=True)


def test_pieces_of_one_form_are_sorted_by_their_tokens() -> None:
    pieces = [
        piece([2, 0, 1], [0, 1]),
        piece([0, 1], [0, 1]),
        piece([0, 2, 2], [1, 2]),
        piece([0, 0, 0], [0]),
    ]
    assert by_form(pieces, lambda count: count) == [[1], [3], [2, 0]]


def test_what_is_asked_together_is_bounded_by_its_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five tokens along three orders: 13 masks, as all begin with everything hidden; 65 tokens."""
    texts = [[0, 1, 2, 1, 0], [2, 0, 1, 1, 1], [1, 1, 0, 2, 2]]
    calls = []
    found = []
    for most, num_calls in ((195, 1), (130, 1), (65, 2), (32, 3)):
        monkeypatch.setattr(rows, "GROUP_TOKENS", most)
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
def test_tokens_of_a_text_that_is_skipped_are_left_out() -> None:
    texts = [[1, 1, 1, 1], [0, 1, 2, 0], [2, 1]]
    model = Model(bad={(1, 1, 1, 1): -math.inf})
    found = mpt_score.surprisals(mpt_score.Scorer(model), texts, skip=True)
    alone = mpt_score.surprisals(mpt_score.Scorer(Model()), texts[1:])
    assert list(found.skipped) == [0] and found.text.tolist() == [1, 1, 1, 1, 2, 2]
    assert torch.equal(found.terms, alone.terms)
    with pytest.raises(TextError, match="no text can be scored: text 0 the model says -inf"):
        mpt_score.surprisals(mpt_score.Scorer(model), texts[:1], skip=True)
