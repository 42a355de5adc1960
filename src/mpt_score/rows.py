"""Rows of tokens with places to score, and how a model is asked about many of them at once.

Whoever scores rows writes a *dialogue*: a coroutine that yields which places it hides and of which of
them it wants to know, is sent log q of these, and returns its result. An :class:`Asker` goes through many
dialogues together, so that rows of one length go through the model in the same batches.
"""

import hashlib
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_score.errors import TextError
from mpt_score.scorer import Scorer
from mpt_score.tokens import Tokens

Result = TypeVar("Result")
GROUP_TOKENS = 2**21
"""Tokens of all masks that one dialogue asks about at a time: answers of 16 MB."""
MostMasks = Callable[[int], int]
"""How many masks a row with k places is asked about at a time, at most."""


class Read(NamedTuple):
    """Texts as tokens, without those that cannot be read."""

    numbers: list[int]  # of the texts that can
    tokens: Tokens | None  # of these; None where there are none
    faults: dict[int, str]  # why the others cannot


def read(scorer: Scorer, texts: Any, *, skip: bool) -> Read:
    """Encode texts, all together if that goes, else one by one to find those that cannot be read.

    Args:
        scorer: encodes them.
        texts: as of :meth:`Scorer.encode`.
        skip: whether a text that cannot be read is left out.

    Raises:
        TextError: for the first such text, without ``skip``.
    """
    try:
        return Read(list(range(len(texts))), scorer.encode(texts), {})
    except TextError:
        if not skip:
            raise
    faults = {}
    for number, text in enumerate(texts):
        try:
            scorer.encode([text])
        except TextError as error:
            faults[number] = error.reason
    numbers = [number for number in range(len(texts)) if number not in faults]
    tokens = scorer.encode([texts[number] for number in numbers]) if numbers else None
    return Read(numbers, tokens, faults)


def num_unknown(scorer: Scorer, tokens: Tokens) -> Int[Tensor, " N"]:
    """How many tokens of each text stand for any word."""
    if scorer.unknown_id is None:
        return torch.zeros(len(tokens), dtype=torch.int64)
    is_token = torch.arange(tokens.ids.shape[1]) < tokens.lengths[:, None]
    return (is_token & (tokens.ids == scorer.unknown_id)).sum(dim=1)


class Piece(NamedTuple):
    """One row, of which k places are scored."""

    ids: Int[Tensor, " L"]
    types: Int[Tensor, " L"]
    places: Int[Tensor, " k"]
    hidden: Bool[Tensor, " L"]  # further places, which every mask hides
    text: int  # its number, for messages
    key: str  # what its random orders follow from


@dataclass(frozen=True, eq=False)
class Rows:
    """B rows of L tokens with k places each.

    Args:
        ids: token ids, (B, L).
        types: of the tokens, (B, L).
        places: the places that are scored, (B, k).
        hidden: further places, which every mask hides, (B, L).
        text: the number of each row's text, for messages, (B,).
        keys: what the random orders of each row follow from.
    """

    ids: Int[Tensor, "B L"]
    types: Int[Tensor, "B L"]
    places: Int[Tensor, "B k"]
    hidden: Bool[Tensor, "B L"]
    text: Int[Tensor, " B"]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> "Rows":
        """Pieces of one length and as many places each."""
        return cls(
            ids=torch.stack([piece.ids for piece in pieces]),
            types=torch.stack([piece.types for piece in pieces]),
            places=torch.stack([piece.places for piece in pieces]),
            hidden=torch.stack([piece.hidden for piece in pieces]),
            text=torch.tensor([piece.text for piece in pieces]),
            keys=tuple(piece.key for piece in pieces),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_places(self) -> int:
        """k."""
        return self.places.shape[1]

    def generators(self) -> list[torch.Generator]:
        """Of each row the source of its random orders."""
        return [stream(key) for key in self.keys]


def stream(key: str) -> torch.Generator:
    """The source of random numbers that belongs to a key: of a seed, and of what is scored.

    >>> first = torch.rand(1, generator=stream("0 [2, 5, 3]"))
    >>> bool(first == torch.rand(1, generator=stream("0 [2, 6, 3]")))
    False
    """
    digest = hashlib.sha256(key.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


def by_form(pieces: Sequence[Piece], most_masks: MostMasks) -> list[list[int]]:
    """The numbers of pieces that have the same length and number of places, some at a time.

    Within a form they are sorted by their tokens: what a row gets does not depend on the order in
    which texts came.
    """
    forms: dict[tuple[int, int], list[int]] = {}
    order = sorted(range(len(pieces)), key=lambda number: pieces[number].ids.tolist())
    for number in order:
        piece = pieces[number]
        forms.setdefault((len(piece.ids), len(piece.places)), []).append(number)
    groups = []
    for length, count in sorted(forms):
        numbers = forms[length, count]
        most = max(1, GROUP_TOKENS // (length * most_masks(count)))
        groups += [numbers[start : start + most] for start in range(0, len(numbers), most)]
    return groups


class Question(NamedTuple):
    """What a dialogue asks of each of its B rows, of which it knows k places."""

    hidden: Bool[Tensor, "B P k"]
    wanted: Bool[Tensor, "B P k"]  # of the hidden places, those whose log q it reads


class Answer(NamedTuple):
    """What it gets."""

    values: Float[Tensor, "B P k"]  # nats, 0 where not wanted
    num_passes: Int[Tensor, " B"]  # different masks of each row


Dialogue = Generator[Question, Answer, Result]


@dataclass(frozen=True, eq=False)
class Scored(Generic[Result]):
    """What pieces of one form got."""

    numbers: list[int]  # of the pieces
    rows: Rows
    result: Result


class Asker:
    """Asks a model, and remembers of which texts it had no answer.

    Args:
        scorer: says log q of tokens.
        skip: whether a text of which an answer is not finite is listed in :attr:`faults`; its
            values are 0 then. Otherwise it is an error.
        noun: what the numbers of rows count: texts, pairs or prompts.

    Attributes:
        faults: the reason for each such text, by its number.
    """

    def __init__(self, scorer: Scorer, *, skip: bool, noun: str = "text") -> None:
        self.scorer = scorer
        self.skip = skip
        self.noun = noun
        self.faults: dict[int, str] = {}

    def score(
        self,
        pieces: Sequence[Piece],
        dialogue_of: Callable[[Rows, list[int]], Dialogue[Result]],
        most_masks: MostMasks,
        *,
        partners: Sequence[Piece] | None = None,
        one_by_one: bool = False,
    ) -> list[Scored[Result]]:
        """What the dialogues of pieces return, one dialogue for pieces of one form.

        All questions are sent before the first answer is read: a GPU works on those about one length
        while the masks of the next are drawn.

        Args:
            pieces: of any form.
            dialogue_of: the dialogue of some rows, given the numbers of their pieces.
            most_masks: of a row with k places, so that memory holds what is asked together.
            partners: of each piece another one of its form, which is asked about in the same dialogue:
                its B rows are behind those of the pieces.
            one_by_one: whether each piece has a dialogue of its own.

        Raises:
            TextError: where an answer is not finite, without ``skip``.
        """
        groups = by_form(pieces, most_masks)
        if one_by_one:
            groups = [[number] for group in groups for number in group]
        talks = []
        for numbers in groups:
            of_group = [pieces[number] for number in numbers]
            if partners is not None:
                of_group += [partners[number] for number in numbers]
            rows = Rows.of(of_group)
            num_tokens = rows.ids.numel() * most_masks(rows.num_places)
            talks.append(_Talk(numbers, rows, dialogue_of(rows, numbers), num_tokens))
        scored: list[Scored[Result]] = []
        for some in _some_at_a_time(talks):
            scored += self._finish(some)
        return scored

    def _finish(self, talks: Sequence["_Talk[Result]"]) -> list[Scored[Result]]:
        """Go through dialogues, question by question, to their ends."""
        questions: dict[int, Question] = {}
        results: dict[int, Result] = {}
        while len(results) < len(talks):
            fetches: dict[int, Callable[[], Answer]] = {}
            for numbers in _of_equal_length(talks, without=results):
                for number in numbers:
                    if number not in questions:
                        questions[number] = next(talks[number].dialogue)
                fetches |= self._ask({n: (talks[n].rows, questions[n]) for n in numbers})
            for number, fetch in fetches.items():
                try:
                    questions[number] = talks[number].dialogue.send(fetch())
                except StopIteration as end:
                    results[number] = end.value
        return [Scored(talk.numbers, talk.rows, results[n]) for n, talk in enumerate(talks)]

    def _ask(self, asked: dict[int, tuple[Rows, Question]]) -> dict[int, Callable[[], Answer]]:
        """Send questions about rows of one length together; what is returned fetches."""
        masks = {number: _Masks.of(rows, question) for number, (rows, question) in asked.items()}
        rows = [rows for rows, _ in asked.values()]
        ids = torch.cat([each.ids for each in rows])
        first_row = np.cumsum([0, *map(len, rows)]).tolist()
        row = torch.cat(
            [each.row + start for each, start in zip(masks.values(), first_row, strict=False)]
        )
        text = torch.cat([each.text for each in rows])
        fetch_all = self.scorer.ask(
            ids,
            row,
            torch.cat([each.hidden for each in masks.values()]),
            torch.cat([each.types for each in rows]),
            wanted=torch.cat([each.wanted for each in masks.values()]),
        )
        sizes = [len(each.row) for each in masks.values()]
        parts: list[Tensor] = []  # of each group, once they are there

        def fetch(place: int, number: int) -> Answer:
            if not parts:
                values = self._without_faults(fetch_all().double(), ids[row], text[row])
                parts.extend(values.split(sizes))
            return masks[number].answer(parts[place])

        return {number: partial(fetch, place, number) for place, number in enumerate(asked)}

    def _without_faults(
        self, values: Float[Tensor, "R L"], ids: Int[Tensor, "R L"], text: Int[Tensor, " R"]
    ) -> Float[Tensor, "R L"]:
        """The values, with 0 where they are not finite and texts may be skipped."""
        is_bad = ~values.isfinite()
        if not is_bad.any():
            return values
        bad_rows = is_bad.any(dim=1).nonzero().flatten()
        for number in text[bad_rows].unique().tolist():
            row = int(bad_rows[text[bad_rows] == number][0])
            place = int(is_bad[row].int().argmax())
            reason = self.scorer.fault(int(ids[row, place]), place, values[row, place].item())
            if not self.skip:
                raise TextError(f"{self.noun} {number}: {reason}", number, reason)
            self.faults.setdefault(number, reason)
        return values.masked_fill(is_bad, 0.0)


@dataclass(frozen=True, eq=False)
class _Talk(Generic[Result]):
    """A dialogue that has not begun, and whose it is."""

    numbers: list[int]
    rows: Rows
    dialogue: Dialogue[Result]
    num_tokens: int  # of all masks that it asks about at a time, at most


def _some_at_a_time(talks: Sequence[_Talk[Result]]) -> Iterator[list[_Talk[Result]]]:
    """Dialogues whose masks and answers memory holds together."""
    some: list[_Talk[Result]] = []
    num_tokens = 0
    for talk in talks:
        some.append(talk)
        num_tokens += talk.num_tokens
        if num_tokens >= 2 * GROUP_TOKENS:
            yield some
            some = []
            num_tokens = 0
    if some:
        yield some


def _of_equal_length(
    talks: Sequence[_Talk[Result]], without: Container[int]
) -> Iterable[list[int]]:
    """The numbers of the dialogues about rows of each length, but for some."""
    of_length: dict[int, list[int]] = {}
    for number, talk in enumerate(talks):
        if number not in without:
            of_length.setdefault(talk.rows.ids.shape[1], []).append(number)
    return of_length.values()


@dataclass(frozen=True, eq=False)
class _Masks:
    """The different masks of B rows, R of them, as they go through the model.

    Orders begin with everything hidden and end with one token, so that they have masks in common.
    """

    row: Int[Tensor, " R"]
    hidden: Bool[Tensor, "R L"]
    wanted: Bool[Tensor, "R L"]
    places: Int[Tensor, "R k"]
    index: Int[Tensor, "B P"]  # of each mask that was asked for among the different ones
    is_wanted: Bool[Tensor, "B P k"]

    @classmethod
    def of(cls, rows: Rows, question: Question) -> "_Masks":
        shape = question.hidden.shape
        masks = question.hidden.flatten(0, 1)
        first, index = _different(question.hidden)
        row = first // shape[1]
        places = rows.places[row]
        wanted = torch.zeros(len(first), shape[2], dtype=torch.int64)
        wanted.index_add_(0, index, question.wanted.flatten(0, 1).long())
        nowhere = torch.zeros(len(first), rows.ids.shape[1], dtype=torch.bool)
        return cls(
            row=row,
            hidden=rows.hidden[row].scatter(1, places, masks[first]),
            wanted=nowhere.scatter(1, places, wanted > 0),
            places=places,
            index=index.view(shape[:2]),
            is_wanted=question.wanted,
        )

    def answer(self, values: Float[Tensor, "R L"]) -> Answer:
        of_places = values.gather(1, self.places)[self.index]
        num_passes = torch.bincount(self.row, minlength=len(self.index))
        return Answer(of_places.where(self.is_wanted, 0.0), num_passes)


def _different(masks: Bool[Tensor, "B P k"]) -> tuple[Int[Tensor, " R"], Int[Tensor, " BP"]]:
    """The first of each row's equal masks among all, and for each mask the number of its like."""
    num_rows, num_masks, count = masks.shape
    row = np.arange(num_rows, dtype=">u4").repeat(num_masks).view(np.uint8).reshape(-1, 4)
    bits = np.packbits(masks.numpy().reshape(-1, count), axis=1)
    # As one value of so many bytes each, which NumPy sorts.
    keys = np.ascontiguousarray(np.concatenate([row, bits], axis=1))
    keys = keys.view(np.dtype((np.void, keys.shape[1]))).ravel()
    _, first, index = np.unique(keys, return_index=True, return_inverse=True)
    return torch.from_numpy(first), torch.from_numpy(index.reshape(-1))
