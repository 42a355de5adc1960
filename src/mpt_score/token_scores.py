"""Scores of each token and each word: terms of the mean over orders, and of pseudo-log-likelihoods.

Along an order π a token adds log q(x_j | the tokens that π shows before it) to log p_π. Its mean over
orders is the token's share of the text's log-score: the shares of a text add up to it. It is
the token's log-probability in contexts of all sizes, from nothing to everything else. The terms of
pseudo-log-likelihoods have one context each, which is nearly everything else, and add up to no
log-probability.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import Index, checked
from mpt_lml.masks import subsets
from mpt_lml.results import as_rows
from mpt_lml.verdicts import mean_and_error
from mpt_score.estimate import (
    Dialogue,
    Plan,
    answer_dialogues,
    ask,
    generator_of,
    masks_along_orders,
    mean_terms,
    terms_along_orders,
)
from mpt_score.loading import load
from mpt_score.parts import Part, Runner, compute_parts, named_parts, run_parts
from mpt_score.scorer import Scorer
from mpt_score.sentence_scores import NATS_TO_BITS, USUAL_ORDERS, parts_by_length, windows_of
from mpt_score.tokens import Texts, Tokens, as_list

Kind = Literal["orders", "pseudo", "within_word"]
Unit = Literal["bits", "nats"]
NOT_KNOWN = -1
"""Where a token begins and ends in a text that is not known as a string."""


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
        terms: log q of the token along each of S orders, given the tokens before it, (T, S). Where
            all orders are in it, their mean S times.
        pseudo_log_likelihood: log q given all other tokens (Salazar et al. 2020), (T,).
        within_word: log q given all but the later tokens of its word, which are hidden as well
            (Kauf and Ivanova 2023), (T,).

    >>> from mpt_score import load
    >>> coin = load(lambda ids, mask: torch.zeros(ids.shape + (2,)).log_softmax(-1))
    >>> surprisals(coin, [[0, 1, 1]]).surprisal()
    tensor([1.0000, 1.0000, 1.0000], dtype=torch.float64)
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

    @property
    def log_score(self) -> Float[Tensor, " T"]:
        """The mean of :attr:`terms` over orders, (T,); those of a text add up to its log-score."""
        return self.terms.mean(dim=1)

    @property
    def standard_error(self) -> Float[Tensor, " T"]:
        """Of :attr:`log_score` over orders, (T,); nan from fewer than two.

        Tokens of one text are scored along the same orders: their errors are not independent. Those
        of words (:meth:`by_word`) are right.
        """
        if self.terms.shape[1] == 0:  # of pseudo-log-likelihoods alone
            return torch.full_like(self.log_score, torch.nan)
        return mean_and_error(self.terms, dim=1)[1]

    @checked
    def surprisal(self, kind: Kind = "orders", unit: Unit = "bits") -> Float[Tensor, " T"]:
        """Minus a log-probability.

        Args:
            kind: "orders" for :attr:`log_score`, "pseudo" for :attr:`pseudo_log_likelihood`,
                "within_word" for :attr:`within_word`.
            unit: bits or nats.

        Returns:
            Of each token, (T,).
        """
        values = {
            "orders": self.log_score,
            "pseudo": self.pseudo_log_likelihood,
            "within_word": self.within_word,
        }
        return _factor(unit) * values[kind]

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
        return TokenScores(
            strings=self.strings,
            pieces=tuple(names),
            text=self.text[first],
            word=self.word[first],
            start=start,
            end=end,
            terms=total(self.terms),
            pseudo_log_likelihood=total(self.pseudo_log_likelihood),
            within_word=total(self.within_word),
        )

    @checked
    def rows(self, unit: Unit = "bits") -> list[dict[str, Any]]:
        """One dictionary a token (or word), for a table; what was not asked for is left out.

        Args:
            unit: of surprisals and their standard errors, named in each row. None stands where a
                token has none.

        Returns:
            Rows that ``pandas.DataFrame`` takes as they are.
        """
        columns: dict[str, Any] = {
            "text": self.text,
            "word": self.word,
            "token": self.pieces,
            "start": self.start,
            "end": self.end,
        }
        numbers = {
            "surprisal": self.surprisal("orders", unit),
            "standard_error": -_factor(unit) * self.standard_error,
            "pseudo_surprisal": self.surprisal("pseudo", unit),
            "within_word_surprisal": self.surprisal("within_word", unit),
        }
        for name, values in numbers.items():
            if not values.isnan().all():
                columns[name] = [None if value != value else value for value in values.tolist()]
        columns["unit"] = [unit] * len(self.pieces)
        return as_rows(columns)


def _factor(unit: Unit) -> float:
    """Of a log-probability in nats, to make it a surprisal."""
    return NATS_TO_BITS if unit == "bits" else -1.0


@checked
def surprisals(
    model: Any,
    texts: Texts,
    *,
    tokenizer: Any = None,
    num_orders: Index = USUAL_ORDERS,
    pseudo: bool = False,
    within_word: bool = False,
    words: Literal["tokenizer", "space"] = "tokenizer",
    seed: Index = 0,
    run: Runner = compute_parts,
) -> TokenScores:
    """Of every token its share of the log-score, and its terms of pseudo-log-likelihoods.

    With the same orders and seed the shares of a text add up to its log-score of
    :func:`~mpt_score.sentence_scores.sentences`.

    Args:
        model: as of :func:`~mpt_score.loading.load`.
        texts: as of :meth:`Scorer.encode`. One that is longer than the model takes is scored in
            windows, and a word that is cut by their border in two parts.
        tokenizer: as of :func:`~mpt_score.loading.load`.
        num_orders: whole orders of D masks for each text, or all 2^D − 1 masks where that is not
            more; 0 for none.
        pseudo: whether each token is hidden alone as well, D more masks (Salazar et al. 2020).
        within_word: whether it is hidden together with the later tokens of its word (Kauf and Ivanova
            2023), at most D more masks, one for each token that is not the last of its word where
            ``pseudo`` is asked for as well.
        words: "tokenizer" for the words in which the tokenizer cuts a text before it looks for
            pieces, as published (punctuation is a word of its own). "space" for what lies between
            white space, as the regions of a reading experiment. Without offsets (token ids, and
            tokenizers written in Python) each token is a word.
        seed: of the orders.
        run: as of :func:`~mpt_score.sentence_scores.sentences`.

    Raises:
        TextError: as :meth:`Scorer.encode`, and where an answer of the model is not finite.
        ValueError: where nothing is asked for.

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
    plan = _TokenPlan(num_orders, pseudo, within_word, words, seed)
    parts = list(parts_by_length(scorer, texts, plan.most_passes))
    strings = _strings(texts)
    layouts: dict[int, _Layout] = {}
    works = []
    for numbers, tokens in parts:
        for place, number in enumerate(numbers):
            layouts[number] = _layout(scorer, strings[number], tokens.row(place), words)
        works.append(partial(_score_part, scorer, numbers, tokens, layouts, plan))
    named = named_parts("part", plan, [tokens for _, tokens in parts], works)
    results = run_parts(run, "tokens", named, *_TokenTerms._fields)
    return _assembled(strings, parts, results, layouts)


class _TokenPlan(NamedTuple):
    """What is asked of every token; see :func:`surprisals`."""

    num_orders: int
    pseudo: bool
    within_word: bool
    words: str
    seed: int

    def most_passes(self, count: int) -> int:
        return (self.num_orders + self.pseudo + self.within_word) * count


class _Layout(NamedTuple):
    """The tokens of one text but for its frame, U of them, in their order."""

    pieces: list[str]
    word: Int[Tensor, " U"]
    start: Int[Tensor, " U"]
    end: Int[Tensor, " U"]
    is_scored: Bool[Tensor, " U"]


class _TokenTerms(NamedTuple):
    """What the tokens of a row got, nats; nan where something was not asked for."""

    terms: Float[Tensor, "D S"]
    pseudo: Float[Tensor, " D"]
    within_word: Float[Tensor, " D"]


# -- words --------------------------------------------------------------------------------------------


def _strings(texts: Texts) -> list[str]:
    if isinstance(texts, Tokens):
        return [""] * len(texts)
    return [text if isinstance(text, str) else "" for text in texts]


def _layout(scorer: Scorer, string: str, row: Tokens, words: str) -> _Layout:
    """Pieces, words and places of the tokens of a text, which is one row of ids."""
    ids = row.ids[0]
    is_inner = ~scorer.is_frame(ids) | row.maskable[0]
    inner = is_inner.nonzero().flatten().tolist()
    tokenizer = scorer.tokenizer
    if tokenizer is None:
        pieces = [str(token) for token in ids.tolist()]
    else:
        pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    spans = [(NOT_KNOWN, NOT_KNOWN)] * len(ids)
    labels: list[Any] = list(range(len(ids)))  # equal for neighbors in one word
    if string and getattr(tokenizer, "is_fast", False):
        encoding = tokenizer(string, return_offsets_mapping=True, verbose=False)
        spans = [_without_space(string, *span) for span in encoding["offset_mapping"]]
        labels = _words_between_spaces(string, spans)
        if words == "tokenizer":
            labels = encoding.word_ids(0)
    elif string:
        spans = _found_in_order(string, [pieces[place] for place in inner], inner, len(ids))
    of_words = groupby(inner, key=lambda place: labels[place])
    word = [number for number, (_, places) in enumerate(of_words) for _ in places]
    return _Layout(
        pieces=[pieces[place] for place in inner],
        word=torch.tensor(word),
        start=torch.tensor([spans[place][0] for place in inner]),
        end=torch.tensor([spans[place][1] for place in inner]),
        is_scored=row.maskable[0][inner],
    )


def _without_space(string: str, start: int, end: int) -> tuple[int, int]:
    """A span without the white space around it, which tokenizers count to either neighbor, or not.

    One of white space only shrinks to its end: its token belongs to what follows.
    """
    part = string[start:end]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())


def _words_between_spaces(string: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each span the number of the stretch between white space that it begins in, from 1."""
    beginnings = [match.start() for match in re.finditer(r"\S+", string)]
    return [bisect_right(beginnings, start) for start, _ in spans]


def _found_in_order(
    string: str, pieces: Sequence[str], places: Sequence[int], length: int
) -> list[tuple[int, int]]:
    """Where each piece stands in a text, each looked for behind the one before."""
    spans = [(NOT_KNOWN, NOT_KNOWN)] * length
    position = 0
    for place, piece in zip(places, pieces, strict=True):
        start = string.find(piece, position)
        if start >= 0:
            position = start + len(piece)
            spans[place] = (start, position)
    return spans


# -- scores -------------------------------------------------------------------------------------------


def _score_part(
    scorer: Scorer,
    numbers: list[int],
    tokens: Tokens,
    layouts: Mapping[int, _Layout],
    plan: _TokenPlan,
) -> Part:
    """The fields of :class:`_TokenTerms` of all scored tokens of some texts, one after the other."""
    windows: list[Tokens] = []
    number_of_window: list[int] = []
    dialogues: list[Dialogue[_TokenTerms]] = []
    for place, number in enumerate(numbers):
        # The windows of a text have its scored tokens, all of them, in their order.
        words = layouts[number].word[layouts[number].is_scored]
        windows_of_text = windows_of(scorer, tokens.row(place))
        sizes = [int(window.num_features) for window in windows_of_text]
        for window, word in zip(windows_of_text, words.split(sizes), strict=True):
            windows.append(window)
            number_of_window.append(number)
            dialogues.append(_score_tokens(window, word, plan))
    of_windows = answer_dialogues(scorer, windows, torch.tensor(number_of_window), dialogues)
    return {
        field: torch.cat([getattr(each, field) for each in of_windows])
        for field in _TokenTerms._fields
    }


def _score_tokens(row: Tokens, word: Int[Tensor, " D"], plan: _TokenPlan) -> Dialogue[_TokenTerms]:
    """The terms of each of D tokens of a row that the model takes whole."""
    count = len(word)
    generator = generator_of(row, plan.seed)
    has_all_orders = Plan(plan.num_orders, None).takes_every_mask(count)
    if has_all_orders:
        hidden = subsets(count)[1:]
    else:
        hidden = masks_along_orders(plan.num_orders, count, generator)
    single = torch.eye(count, dtype=torch.bool)
    in_same_word = word[:, None] == word
    rest_of_word = in_same_word & torch.ones(count, count, dtype=torch.bool).triu()
    nothing = single[:0]
    asked = yield from ask(
        row,
        [
            hidden,
            single if plan.pseudo else nothing,
            rest_of_word if plan.within_word else nothing,
        ],
    )
    values, alone, with_rest_of_word = asked.values
    if has_all_orders:
        terms = mean_terms(values, hidden)[:, None].repeat(1, plan.num_orders)
    else:
        terms = terms_along_orders(values, hidden).T
    not_asked_for = torch.full((count,), torch.nan, dtype=torch.float64)
    return _TokenTerms(
        terms=terms.contiguous(),
        pseudo=alone.diagonal().clone() if plan.pseudo else not_asked_for,
        within_word=with_rest_of_word.diagonal().clone() if plan.within_word else not_asked_for,
    )


def _assembled(
    strings: list[str],
    parts: Sequence[tuple[list[int], Tokens]],
    results: Sequence[Part],
    layouts: Mapping[int, _Layout],
) -> TokenScores:
    """The terms of all parts in the order of the texts, with nan for what is not scored."""
    of_text: dict[int, _TokenTerms] = {}
    for (numbers, _), result in zip(parts, results, strict=True):
        sizes = [int(layouts[number].is_scored.sum()) for number in numbers]
        columns = [result[field].split(sizes) for field in _TokenTerms._fields]
        for number, *columns_of_text in zip(numbers, *columns, strict=True):
            is_scored = layouts[number].is_scored
            of_text[number] = _TokenTerms(
                *(_with_nan(values, is_scored) for values in columns_of_text)
            )
    order = range(len(strings))
    sizes_of_texts = torch.tensor([len(layouts[number].pieces) for number in order])
    return TokenScores(
        strings=tuple(strings),
        pieces=tuple(piece for number in order for piece in layouts[number].pieces),
        text=torch.arange(len(strings)).repeat_interleave(sizes_of_texts),
        word=torch.cat([layouts[number].word for number in order]),
        start=torch.cat([layouts[number].start for number in order]),
        end=torch.cat([layouts[number].end for number in order]),
        terms=torch.cat([of_text[number].terms for number in order]),
        pseudo_log_likelihood=torch.cat([of_text[number].pseudo for number in order]),
        within_word=torch.cat([of_text[number].within_word for number in order]),
    )


def _with_nan(values: Float[Tensor, " D *rest"], is_scored: Bool[Tensor, " U"]) -> Tensor:
    """Values of scored tokens among all, (U, ...)."""
    result = values.new_full((len(is_scored), *values.shape[1:]), torch.nan)
    result[is_scored] = values
    return result
