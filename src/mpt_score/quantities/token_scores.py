"""Scores of each token and each word: terms of the mean over orders, and of pseudo-log-likelihoods.

Along an order π a token adds log q(x_j | the tokens that π shows before it) to log p_π. Its mean over
orders is the token's share of the text's log-score: the shares of a text add up to it. It is
the token's log-probability in contexts of all sizes, from nothing to everything else. The terms of
pseudo-log-likelihoods have one context each, which is nearly everything else, and add up to no
log-probability.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import Index, checked
from mpt_score.errors import TextError
from mpt_score.loading import load
from mpt_score.quantities.contrasts import Contrast, contrast_of, error_over_orders, item_names
from mpt_score.quantities.estimate import along_orders, mean_terms
from mpt_score.quantities.means import as_rows
from mpt_score.quantities.sentence_scores import NATS_TO_BITS, USUAL_ORDERS
from mpt_score.rows.reading import TextRows, read_in_chunks, rows_of_text
from mpt_score.rows.requests import (
    ORDERS_OF_QUARTET,
    Request,
    Row,
    Rows,
    each_alone,
    first_equal,
    orders_differ,
    orders_of_places,
    takes_every_order,
)
from mpt_score.rows.scheduler import Answers, Batch, BatchScheduler
from mpt_score.rows.words import NOT_KNOWN, Layout, layout_of
from mpt_score.tokens import Texts, Tokens, as_list


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Scores of the T tokens of some texts, one text after the other; :func:`surprisals` makes them.

    Log-probabilities are in nats. Those of an unknown token are nan: which word it is is lost. So are
    those that were not asked for.

    Attributes:
        strings: the texts, empty where token ids came.
        pieces: the tokens as the tokenizer writes them.
        text: the number of each token's text, (T,).
        word: the number of its word within the text, from 0, (T,).
        start: the place of its first character in the text, −1 where that is not known, (T,).
        end: the place behind its last character, (T,).
        terms: log q of the token along each of S orders, given the tokens before it, (T, S); where
            items were named, the mean along each of S quartets of orders. Where all orders are in it,
            their mean S times.
        pseudo_log_likelihood: log q given all other tokens (Salazar et al. 2020), (T,).
        within_word: log q given all but the later tokens of its word, which are hidden as well
            (Kauf and Ivanova 2023), (T,).
        degrees: of freedom of :attr:`standard_error`: 0 where that is nan, without end where all orders
            are in it, (T,).
        skipped: the texts that could not be scored, with the reason, by their number.
        items: the item of each text, where items were named.
        same_orders: equal for tokens that were scored along the same orders, (T,).

    >>> from mpt_score import load
    >>> coin = load(lambda ids, mask: torch.zeros(ids.shape + (2,)).log_softmax(-1))
    >>> surprisals(coin, [[0, 1, 1]]).log_score.exp()
    tensor([0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """

    strings: tuple[str, ...]
    pieces: tuple[str, ...]
    text: Int[Tensor, " T"]
    word: Int[Tensor, " T"]
    start: Int[Tensor, " T"]
    end: Int[Tensor, " T"]
    terms: Float[Tensor, "T S"]
    pseudo_log_likelihood: Float[Tensor, " T"]
    within_word: Float[Tensor, " T"]
    degrees: Float[Tensor, " T"]
    skipped: dict[int, str] = field(default_factory=dict)
    items: tuple[Any, ...] = ()
    same_orders: Int[Tensor, " T"] | None = None

    @property
    def log_score(self) -> Float[Tensor, " T"]:
        """The mean of :attr:`terms` over orders, (T,); those of a text add up to its log-score."""
        return self.terms.mean(dim=1)

    @property
    def standard_error(self) -> Float[Tensor, " T"]:
        """Of :attr:`log_score` over orders, (T,); nan where no two that differ were drawn.

        Tokens of one text are scored along the same orders: their errors are not independent. Those
        of words (:meth:`by_word`) are right.
        """
        num_orders = self.terms.shape[1]
        if num_orders == 0:  # of pseudo-log-likelihoods alone
            return torch.full_like(self.log_score, torch.nan)
        return error_over_orders(self.terms).where(self.degrees > 0, torch.nan)

    def by_word(self) -> "TokenScores":
        """The same of words: sums over the tokens of each, nan where one of them is."""
        place = torch.stack([self.text, self.word])
        _, index, size = place.unique_consecutive(dim=1, return_inverse=True, return_counts=True)
        first = size.cumsum(0) - size
        last = size.cumsum(0) - 1

        def total(values: Tensor) -> Tensor:
            return values.new_zeros(len(size), *values.shape[1:]).index_add(0, index, values)

        start = self.start[first]
        end = self.end[last]
        names = []
        for number, low, high, a, b in zip(
            self.text[first].tolist(),
            first.tolist(),
            last.tolist(),
            start.tolist(),
            end.tolist(),
            strict=True,
        ):
            is_known = a != NOT_KNOWN and b != NOT_KNOWN
            joined = " ".join(self.pieces[low : high + 1])
            names.append(self.strings[number][a:b] if is_known else joined)
        return replace(
            self,
            pieces=tuple(names),
            text=self.text[first],
            word=self.word[first],
            start=start,
            end=end,
            terms=total(self.terms),
            pseudo_log_likelihood=total(self.pseudo_log_likelihood),
            within_word=total(self.within_word),
            degrees=self.degrees[first],
            same_orders=None if self.same_orders is None else self.same_orders[first],
        )

    def contrast(self, weights: Any, *, region: Any = None) -> Contrast:
        """A difference of conditions, or an interaction, in the surprisal of each item.

        Args:
            weights: one a token, or a word of :meth:`by_word`, in the order of :meth:`rows`, in a list
                or a column: 1 and −1 where a region stands in two conditions; 1, −1, −1 and 1 for the
                interaction of a 2 × 2 design; 0 outside the region. With ``region``, one a text.
            region: The word of each text that has the text's weight, one a text, for scores of words: its
                number, from 0, or the word itself where it stands once in the text.

        Returns:
            Σ w · surprisal of each item in bits, its error over orders, and means over items. nan for an
            item of which a text was skipped, as nothing says what this one's weights were, and where
            a token that counts is unknown.

        Raises:
            ValueError: where items were not named, without orders, for another number of weights, and
                for an item whose texts have other weights than those of most items: one is missing, or
                there twice. Words of a region have one weight, or weights that add up to the text's.
                For a region that its text does not have, or has twice.

        >>> coin = lambda ids, mask: torch.tensor([0.25, 0.75]).log().expand(ids.shape + (2,))
        >>> scores = surprisals(coin, [[1, 0], [1, 1]], items=["a", "a"])
        >>> 2 ** scores.contrast([0, 1, 0, -1]).value
        tensor([3.0000], dtype=torch.float64)
        """
        if self.same_orders is None or self.terms.shape[1] == 0:
            raise ValueError(
                "a contrast takes items and orders: surprisals(..., items=[...]), one a text."
            )
        if region is not None:
            weights = self._weights_of_words(as_list(weights), as_list(region))
        items = [self.items[number] for number in self.text.tolist()]
        incomplete = {self.items[number] for number in self.skipped}
        is_complete = torch.tensor([item not in incomplete for item in items])
        terms = NATS_TO_BITS * self.terms.where(is_complete[:, None], math.nan)
        return contrast_of(weights, terms, items, self.text, self.same_orders, self.degrees, "bits")

    def _weights_of_words(self, weights: list[Any], region: list[Any]) -> list[float]:
        """The weight of each text at its region, and 0 at its other words."""
        for name, values in (("weights", weights), ("region", region)):
            if len(values) != len(self.strings):
                raise ValueError(
                    f"{name} must be one for each of {len(self.strings)} texts, got {len(values)}."
                )
        words_of_text: dict[int, dict[int, str]] = {}
        for number, word, name in zip(
            self.text.tolist(), self.word.tolist(), self.pieces, strict=True
        ):
            words_of_text.setdefault(number, {})[word] = name
        word_of_text = {
            number: _word_at(region[number], words, number)
            for number, words in words_of_text.items()
        }
        return [
            weights[number] if word == word_of_text[number] else 0.0
            for number, word in zip(self.text.tolist(), self.word.tolist(), strict=True)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a token (or word), for a table; what was not asked for is left out.

        Surprisals and their standard errors are in bits. None stands where a token has none.

        Returns:
            Dictionaries that ``pandas.DataFrame`` takes as they are.
        """
        columns: dict[str, Any] = {
            "text": self.text,
            "word": self.word,
            "token": self.pieces,
            "start": self.start,
            "end": self.end,
        }
        numbers = {
            "surprisal": NATS_TO_BITS * self.log_score,
            "standard_error": -NATS_TO_BITS * self.standard_error,
            "pseudo_surprisal": NATS_TO_BITS * self.pseudo_log_likelihood,
            "within_word_surprisal": NATS_TO_BITS * self.within_word,
        }
        for name, values in numbers.items():
            if not values.isnan().all():
                columns[name] = [None if value != value else value for value in values.tolist()]
        columns["unit"] = ["bits"] * len(self.pieces)
        if self.items:
            columns["item"] = [self.items[number] for number in self.text.tolist()]
        return as_rows(columns)


def _word_at(region: Any, words: dict[int, str], number: int) -> int:
    """The number of the word that is a text's region; ``region`` is that number, or the word."""
    places = [place for place, word in words.items() if region in (place, word)]
    if len(places) == 1:
        return places[0]
    if places:
        numbers = " and ".join(map(str, places))
        raise ValueError(
            f"text {number} has the word {region!r} at {numbers}, counted from 0. Give its number."
        )
    has = ", ".join(f"{place} {word!r}" for place, word in words.items())
    raise ValueError(f"text {number} has no word {region!r}; its words are {has}.")


@checked
def surprisals(
    model: Any,
    texts: Texts,
    *,
    tokenizer: Any = None,
    items: Any = None,
    num_orders: Index = USUAL_ORDERS,
    pseudo: bool = False,
    within_word: bool = False,
    words: Literal["tokenizer", "space"] = "tokenizer",
    seed: Index = 0,
    skip: bool = False,
) -> TokenScores:
    """Of every token its share of the log-score, and its terms of pseudo-log-likelihoods.

    Without items, with the same orders and seed, the shares of a text add up to its log-score of
    :func:`~mpt_score.quantities.sentence_scores.sentences`.

    Args:
        model: as of :func:`~mpt_score.loading.load`.
        texts: as of :meth:`Scorer.encode`. One that is longer than the model takes is scored in
            windows, and a word that is cut by their border in two pieces.
        tokenizer: as of :func:`~mpt_score.loading.load`.
        items: the item of each text, as of :func:`~mpt_score.quantities.sentence_scores.sentences`, for
            :meth:`TokenScores.contrast`. An interaction of two words is seen only where one is shown
            before the other is asked for. So that it is seen in two of four orders, and not by luck,
            an order is then the first of a quartet: with it are the same order with its halves
            exchanged, and both reversed.
        num_orders: whole orders of D masks for each text, or quartets of them, 4 D masks each, where
            items are named; all 2^D − 1 masks where that is not more; 0 for none.
        pseudo: whether each token is hidden alone as well, D more masks (Salazar et al. 2020).
        within_word: whether it is hidden together with the later tokens of its word (Kauf and Ivanova
            2023), at most D more masks, one for each token that is not the last of its word where
            ``pseudo`` is asked for as well.
        words: "tokenizer" for the words in which the tokenizer cuts a text before it looks for
            pieces, as published (punctuation is a word of its own). "space" for what lies between
            white space, as the regions of a reading experiment. Without offsets (token ids, and
            tokenizers written in Python) each token is a word.
        seed: of the orders.
        skip: a text that cannot be scored has no tokens in the result, and is listed there.

    Raises:
        TextError: without ``skip``, as :meth:`Scorer.encode`, and where an answer of the model is not
            finite; with it where no text is left.
        ValueError: where nothing is asked for, for another number of items than of texts, and for an
            item that is None or nan.

    >>> from mpt_score.networks import small_bert_folder
    >>> scores = surprisals(small_bert_folder(), ["She was alone."], num_orders=0, pseudo=True)
    >>> [row["token"] for row in scores.rows()]
    ['she', 'was', 'alone', '.']
    """
    if num_orders == 0 and not pseudo and not within_word:
        raise ValueError(
            "num_orders is 0 and neither pseudo nor within_word is asked for: nothing to score."
        )
    scorer = load(model, tokenizer)
    texts = as_list(texts)
    names = [] if items is None else item_names(items, len(texts))
    asked = PlacesAsked(num_orders, pseudo, within_word, in_quartets=bool(names))
    strings = _strings(texts)
    scheduler = BatchScheduler(scorer, skip=skip)
    of_text: dict[int, _ScoredText] = {}
    for numbers, tokens in read_in_chunks(scorer, texts, scheduler.faults, skip=skip):
        texts_of_chunk = []
        for place, number in enumerate(numbers):
            row = tokens.row(place)
            item = names[number] if names else None
            text = rows_of_text(scorer, row, number, seed, item)
            texts_of_chunk.append((text, layout_of(scorer, strings[number], row, words)))
        scores = _score_chunk(scheduler, texts_of_chunk, asked)
        of_text |= dict(zip(numbers, scores, strict=True))
    scored = sorted(set(of_text) - set(scheduler.faults))
    if not scored:
        number, reason = min(scheduler.faults.items())
        raise TextError(f"no text can be scored: text {number} {reason}", number, reason)
    scores_of_texts = [of_text[number] for number in scored]
    layouts = [text.layout for text in scores_of_texts]
    sizes = torch.tensor([len(layout.pieces) for layout in layouts])
    keys = [text.key for text in scores_of_texts]
    same_orders = torch.tensor(first_equal(keys)) if names else None
    degrees = torch.tensor([text.degrees for text in scores_of_texts], dtype=torch.float64)
    return TokenScores(
        strings=tuple(strings),
        pieces=tuple(piece for layout in layouts for piece in layout.pieces),
        text=torch.tensor(scored).repeat_interleave(sizes),
        word=torch.cat([layout.word for layout in layouts]),
        start=torch.cat([layout.start for layout in layouts]),
        end=torch.cat([layout.end for layout in layouts]),
        terms=torch.cat([text.terms for text in scores_of_texts]),
        pseudo_log_likelihood=torch.cat([text.pseudo for text in scores_of_texts]),
        within_word=torch.cat([text.within_word for text in scores_of_texts]),
        degrees=degrees.repeat_interleave(sizes),
        skipped=dict(sorted(scheduler.faults.items())),
        items=tuple(names),
        same_orders=None if same_orders is None else same_orders.repeat_interleave(sizes),
    )


class TokenTerms(NamedTuple):
    """What the k places of B rows got, nats; nan where something was not asked for."""

    terms: Float[Tensor, "B S k"]
    pseudo: Float[Tensor, "B k"]
    within_word: Float[Tensor, "B k"]
    degrees: Float[Tensor, " B"]  # of freedom of their errors; as of TokenScores
    num_passes: Int[Tensor, " B"]


class _ScoredText(NamedTuple):
    """The U tokens of a text, with what they got; nan where one is not scored."""

    layout: Layout
    terms: Float[Tensor, "U S"]
    pseudo: Float[Tensor, " U"]
    within_word: Float[Tensor, " U"]
    degrees: float
    key: str  # equal where the orders are; "" without items


# -- scores -------------------------------------------------------------------------------------------


def _strings(texts: Texts) -> list[str]:
    if isinstance(texts, Tokens):
        return [""] * len(texts)
    return [text if isinstance(text, str) else "" for text in texts]


def _score_chunk(
    scheduler: BatchScheduler, texts: Sequence[tuple[TextRows, Layout]], asked: "PlacesAsked"
) -> list[_ScoredText]:
    """The terms of all tokens of some texts."""
    rows: list[Row] = []
    words: list[Tensor] = []
    for text, layout in texts:
        rows += text.rows
        # The windows of a text have its scored tokens, all of them, in their order.
        words += layout.word[layout.is_scored].split(text.sizes)

    def request_of(batch: Batch) -> Request:
        return asked.request(batch.rows, [words[number] for number in batch.numbers])

    of_row: dict[int, TokenTerms] = {}
    for answers in scheduler.ask(rows, request_of, asked.most_masks):
        terms_of_batch = asked.terms(answers)
        for place, number in enumerate(answers.batch.numbers):
            of_row[number] = TokenTerms(*(column[place] for column in terms_of_batch))
    scores = []
    start = 0
    for text, layout in texts:
        terms = [of_row[row] for row in range(start, start + len(text.rows))]
        start += len(text.rows)
        within_word = torch.cat([each.within_word for each in terms])
        scores.append(
            _ScoredText(
                layout,
                terms=_with_nan(torch.cat([each.terms.T for each in terms]), layout.is_scored),
                pseudo=_with_nan(torch.cat([each.pseudo for each in terms]), layout.is_scored),
                within_word=_with_nan(within_word, layout.is_scored),
                degrees=min(each.degrees.item() for each in terms),
                key=text.key,
            )
        )
    return scores


class PlacesAsked(NamedTuple):
    """What is asked about each of the k places of rows, and what the answers say of it."""

    num_orders: int
    """S; all k! orders where their masks are not more than those of S, S times."""
    pseudo: bool
    """Whether each place is hidden alone."""
    within_word: bool
    """Whether it is hidden with the later places of its word."""
    in_quartets: bool = False
    """Whether each of S is a quartet of orders, whose mean is one sample."""

    def most_masks(self, count: int) -> int:
        """Masks that a row with k = ``count`` places is asked about, at most."""
        num_orders = self.num_orders * (ORDERS_OF_QUARTET if self.in_quartets else 1)
        return (num_orders + self.pseudo + self.within_word) * count

    def request(self, rows: Rows, words: list[Tensor]) -> Request:
        """The masks of orders, then those of each place alone, and of each with its word.

        Args:
            rows: of one shape.
            words: the word of each place of each row, where words are asked for.
        """
        count = rows.num_places
        requests = []
        if self.num_orders:
            requests.append(orders_of_places(rows, self.num_orders, in_quartets=self.in_quartets))
        if self.pseudo:
            requests.append(each_alone(rows))
        if self.within_word:
            word = torch.stack(words)
            in_same_word = word[:, :, None] == word[:, None]
            later = torch.ones(count, count, dtype=torch.bool).triu()
            requests.append(Request(in_same_word & later, each_alone(rows).wanted))
        return Request.joined(requests)

    def terms(self, answers: Answers) -> TokenTerms:
        """What the k places of each row add along orders of them, and their pseudo-log-likelihoods."""
        rows = answers.batch.rows
        count = rows.num_places
        num_alone = count if self.pseudo else 0
        num_with_word = count if self.within_word else 0
        num_of_orders = answers.values.shape[1] - num_alone - num_with_word
        of_orders, alone, with_word = answers.values.split(
            [num_of_orders, num_alone, num_with_word], dim=1
        )
        masks = answers.request.first(num_of_orders)
        not_asked_for = torch.full((len(rows), count), math.nan, dtype=torch.float64)
        terms = not_asked_for[:, None][:, :0]
        degrees = torch.zeros(len(rows), dtype=torch.float64)
        if self.num_orders:
            if takes_every_order(rows, self.num_orders, in_quartets=self.in_quartets):
                terms = mean_terms(of_orders, masks.hidden)[:, None].repeat(1, self.num_orders, 1)
                degrees = torch.full_like(degrees, math.inf)
            else:
                each = along_orders(of_orders, masks)
                terms = each.unflatten(1, (self.num_orders, -1)).mean(dim=2)
                of_samples = masks.hidden.unflatten(1, (self.num_orders, -1))
                first_orders = of_samples[:, :, :count].flatten(1, 2)
                degrees = (self.num_orders - 1.0) * orders_differ(first_orders).double()
        return TokenTerms(
            terms=terms,
            pseudo=alone.diagonal(dim1=1, dim2=2) if self.pseudo else not_asked_for,
            within_word=with_word.diagonal(dim1=1, dim2=2) if self.within_word else not_asked_for,
            degrees=degrees,
            num_passes=answers.num_passes,
        )


def _with_nan(values: Float[Tensor, " D *rest"], is_scored: Bool[Tensor, " U"]) -> Tensor:
    """Values of scored tokens among all, (U, ...)."""
    result = values.new_full((len(is_scored), *values.shape[1:]), torch.nan)
    result[is_scored] = values
    return result
