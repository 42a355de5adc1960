"""Requests about many rows, sent to a model in batches of like shape, equal masked rows once.

A :class:`BatchScheduler` sorts rows into batches of one shape, lets its caller say of each batch what is
hidden and of which hidden places log q is wanted (a :class:`~mpt_score.rows.requests.Request`), sends
the requests of one length together, and gives each batch back with its answers.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_score.errors import TextError
from mpt_score.rows.requests import Request, Row, Rows
from mpt_score.scorer import Scorer

BATCH_TOKENS = 2**21
"""The most tokens of all masked rows of a batch, whose answers are then 16 MB; a group has twice them."""
MostMasks = Callable[[int], int]
"""How many masks a row with k places is asked about at a time, at most."""
RequestOf = Callable[["Batch"], Request]
"""What is asked about the rows of a batch."""


class Batch(NamedTuple):
    """Rows of one shape, and how much is asked about them."""

    numbers: list[int]  # of the rows, without their partners
    rows: Rows
    num_tokens: int  # of all masks that are asked about at a time, at most


class Answers(NamedTuple):
    """What a request about the B rows of a batch gets."""

    batch: Batch
    request: Request
    values: Float[Tensor, "B P k"]  # nats, 0 where not wanted
    num_passes: Int[Tensor, " B"]
    """Different masked rows; one that rows with the same orders share counts for the first of them."""


def bucket_by_shape(rows: Sequence[Row], most_masks: MostMasks) -> list[list[int]]:
    """The numbers of rows that have the same length and number of places, some at a time.

    Within a shape they are sorted by what is shown where all places are hidden, and then by their
    tokens: mutants of one site come together, so that what they share is asked once, and what a row gets
    does not depend on the order in which texts came.
    """
    shapes: dict[tuple[int, int], list[int]] = {}
    shown = [row.ids.index_fill(0, row.places, -1).tolist() for row in rows]
    order = sorted(range(len(rows)), key=lambda number: (shown[number], rows[number].ids.tolist()))
    for number in order:
        row = rows[number]
        shapes.setdefault((len(row.ids), len(row.places)), []).append(number)
    buckets = []
    for length, count in sorted(shapes):
        numbers = shapes[length, count]
        most = max(1, BATCH_TOKENS // (length * most_masks(count)))
        start = 0
        while start < len(numbers):
            stop = min(start + most, len(numbers))
            # Between rows that show the same, it is cut only where there are too many of them.
            border = stop
            while (
                start < border < len(numbers)
                and shown[numbers[border - 1]] == shown[numbers[border]]
            ):
                border -= 1
            stop = border if border > start else stop
            buckets.append(numbers[start:stop])
            start = stop
    return buckets


class BatchScheduler:
    """Asks a model about many rows, and keeps the reason for each text that it had no answer about.

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

    def ask(
        self,
        rows: Sequence[Row],
        request_of: RequestOf,
        most_masks: MostMasks,
        *,
        partners: Sequence[Row] | None = None,
    ) -> Iterator[Answers]:
        """Ask about rows, and give the answers batch by batch.

        Args:
            rows: of any shape.
            request_of: what is asked about a batch.
            most_masks: of a row with k places, so that memory holds what is asked together.
            partners: of each row another one of its shape, which is asked about in the same batch:
                the B partners are behind the B rows.

        Raises:
            TextError: where an answer is not finite, without ``skip``.
        """
        batches = []
        for numbers in bucket_by_shape(rows, most_masks):
            of_batch = [rows[number] for number in numbers]
            if partners is not None:
                of_batch += [partners[number] for number in numbers]
            batches.append(batch_of(numbers, of_batch, most_masks))
        for group in groups_for_memory(batches):
            yield from self.ask_group(group, request_of)

    def ask_group(self, batches: Sequence[Batch], request_of: RequestOf) -> list[Answers]:
        """Ask about batches that memory holds together, in the order of the lengths of their rows.

        All requests are sent before the first answer is read: a GPU works on those about one length
        while the masks of the next are drawn.
        """
        fetches = []
        for _, of_length in groupby(batches, key=lambda batch: batch.rows.ids.shape[1]):
            masks = [_Masks.of(batch, request_of(batch)) for batch in of_length]
            fetches.append(self._send(masks))
        return [answers for fetch in fetches for answers in fetch()]

    def _send(self, masks: Sequence["_Masks"]) -> Callable[[], list[Answers]]:
        """Send the masked rows of batches of one length; what is returned waits for the answers."""
        masked_rows = _MaskedRows.of(masks)
        same = masked_rows.numbered(with_tokens=not self.scorer.says_every_token)
        num_passes = masked_rows.num_passes(same)
        fetch = self.scorer.ask(
            masked_rows.ids,
            masked_rows.row,
            masked_rows.hidden,
            masked_rows.types,
            wanted=masked_rows.wanted,
            same=same,
        )

        def answers() -> list[Answers]:
            values = self._without_faults(fetch(), masked_rows)
            values_of_batches = values.split([len(each.row) for each in masks])
            passes_of_batches = num_passes.split([len(each.batch.rows) for each in masks])
            return [
                each.answers(values_of_batch, passes_of_batch)
                for each, values_of_batch, passes_of_batch in zip(
                    masks, values_of_batches, passes_of_batches, strict=True
                )
            ]

        return answers

    def _without_faults(
        self, values: Float[Tensor, "R L"], masked_rows: "_MaskedRows"
    ) -> Float[Tensor, "R L"]:
        """The values, with 0 where they are not finite and texts may be skipped."""
        is_bad = ~values.isfinite()
        if not is_bad.any():
            return values
        bad_rows = is_bad.any(dim=1).nonzero().flatten()
        text = masked_rows.text[masked_rows.row[bad_rows]]
        for number in text.unique().tolist():
            first = int(bad_rows[text == number][0])
            place = int(is_bad[first].int().argmax())
            token_id = int(masked_rows.ids[masked_rows.row[first], place])
            reason = self.scorer.fault(token_id, place, values[first, place].item())
            if not self.skip:
                raise TextError(f"{self.noun} {number}: {reason}", number, reason)
            self.faults.setdefault(number, reason)
        return values.masked_fill(is_bad, 0.0)


def batch_of(numbers: list[int], rows: Sequence[Row], most_masks: MostMasks) -> Batch:
    """Rows of one shape together."""
    together = Rows.of(rows)
    num_tokens = together.ids.numel() * most_masks(together.num_places)
    return Batch(numbers, together, num_tokens)


def groups_for_memory(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Batches in groups whose masks and answers memory holds together."""
    group: list[Batch] = []
    num_tokens = 0
    for batch in batches:
        group.append(batch)
        num_tokens += batch.num_tokens
        if num_tokens >= 2 * BATCH_TOKENS:
            yield group
            group = []
            num_tokens = 0
    if group:
        yield group


class _Masks(NamedTuple):
    """The different masks of the B rows of a batch, R of them: as many masked rows."""

    batch: Batch
    request: Request
    row: Int[Tensor, " R"]
    hidden: Bool[Tensor, "R L"]
    wanted: Bool[Tensor, "R L"]
    places: Int[Tensor, "R k"]
    number: Int[Tensor, "B P"]  # of each mask that was asked for among the different ones

    @classmethod
    def of(cls, batch: Batch, request: Request) -> "_Masks":
        rows = batch.rows
        shape = request.hidden.shape
        first, number = _different(request.hidden)
        row = first // shape[1]
        places = rows.places[row]
        wanted = torch.zeros(len(first), shape[2], dtype=torch.int64)
        wanted.index_add_(0, number, request.wanted.flatten(0, 1).long())
        nowhere = torch.zeros(len(first), rows.ids.shape[1], dtype=torch.bool)
        return cls(
            batch=batch,
            request=request,
            row=row,
            hidden=rows.hidden[row].scatter(1, places, request.hidden.flatten(0, 1)[first]),
            wanted=nowhere.scatter(1, places, wanted > 0),
            places=places,
            number=number.view(shape[:2]),
        )

    def answers(self, values: Float[Tensor, "R L"], num_passes: Int[Tensor, " B"]) -> Answers:
        """The answers to all masks that were asked for."""
        of_places = values.gather(1, self.places)[self.number]
        values_of_request = of_places.where(self.request.wanted, 0.0)
        return Answers(self.batch, self.request, values_of_request, num_passes)


class _MaskedRows(NamedTuple):
    """R masked rows of the B rows of several batches of one length."""

    ids: Int[Tensor, "B L"]
    types: Int[Tensor, "B L"]
    text: Int[Tensor, " B"]
    keys: list[str]  # of the B rows: what their orders follow from
    row: Int[Tensor, " R"]  # which of the B it is
    hidden: Bool[Tensor, "R L"]
    wanted: Bool[Tensor, "R L"]

    @classmethod
    def of(cls, masks: Sequence[_Masks]) -> "_MaskedRows":
        rows = [each.batch.rows for each in masks]
        first_row = np.cumsum([0, *map(len, rows)]).tolist()
        return cls(
            ids=torch.cat([each.ids for each in rows]),
            types=torch.cat([each.types for each in rows]),
            text=torch.cat([each.text for each in rows]),
            keys=[key for each in rows for key in each.keys],
            row=torch.cat(
                [each.row + start for each, start in zip(masks, first_row, strict=False)]
            ),
            hidden=torch.cat([each.hidden for each in masks]),
            wanted=torch.cat([each.wanted for each in masks]),
        )

    def numbered(self, *, with_tokens: bool) -> Int[Tensor, " R"]:
        """A number for each masked row, equal where a model is asked the same.

        Orders begin with everything hidden and end with one token, so that they have masks in common.
        Rows that differ in hidden places only look the same to a model: it is asked once.

        Args:
            with_tokens: whether what is hidden tells them apart as well, for a model that says log q of
                the tokens of its rows alone.
        """
        tokens = self.ids[self.row]
        types = self.types[self.row]
        if with_tokens:
            seen = [tokens, self.hidden.long(), types]
        else:
            seen = [tokens.masked_fill(self.hidden, -1), types]
        return _numbered(torch.cat(seen, dim=1))

    def num_passes(self, same: Int[Tensor, " R"]) -> Int[Tensor, " B"]:
        """How many of the different masked rows each of the B rows asks for.

        One that rows with the same orders share counts for the first of them. These are always asked
        about together, so that the count does not depend on what else is asked.

        Args:
            same: as of :meth:`numbered`.
        """
        owners: dict[tuple[int, str], int] = {}
        keys = zip(self.text.tolist(), self.keys, strict=True)
        owner = torch.tensor([owners.setdefault(key, len(owners)) for key in keys])
        is_first = _is_first(owner[self.row] * len(self.row) + same)
        return torch.bincount(self.row[is_first], minlength=len(self.ids))


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


def _numbered(rows: Int[Tensor, "R C"]) -> Int[Tensor, " R"]:
    """A number for each row of whole numbers, equal where rows are, from 0 in the order of the first."""
    numbers: dict[bytes, int] = {}
    return torch.tensor([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows.numpy()])


def _is_first(numbers: Int[Tensor, " R"]) -> Bool[Tensor, " R"]:
    """Whether each number is the first of those that are equal."""
    is_first = torch.zeros(len(numbers), dtype=torch.bool)
    is_first[torch.from_numpy(np.unique(numbers.numpy(), return_index=True)[1])] = True
    return is_first
