"""Answers to a prompt: only the answer is hidden, under the same masks for all options."""

import logging
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import Index, Within, check, checked
from mpt_lml.verdicts import mean_and_error
from mpt_score.errors import TextError
from mpt_score.loading import load
from mpt_score.quantities.means import as_rows
from mpt_score.quantities.token_scores import PlacesAsked
from mpt_score.rows.reading import read
from mpt_score.rows.requests import Request, Row
from mpt_score.rows.scheduler import Batch, BatchScheduler
from mpt_score.rows.words import words_of
from mpt_score.scorer import Scorer
from mpt_score.tokens import Tokens, as_list, require_texts

if TYPE_CHECKING:
    Prompts = Sequence[str] | Sequence[Sequence[int]]
    Options = Sequence[Sequence[str]] | Sequence[Sequence[Sequence[int]]]
else:

    def _require_lists(name: str, options: Any) -> None:
        check((name, as_list(options), Sequence[Any]))

    Prompts = Annotated[Any, require_texts]
    Options = Annotated[Any, _require_lists]

_log = logging.getLogger(__name__)

_JOINING = frozenset("-‐‑–—'’‘\"“„«([{</\\_#@$€£+=~")
"""After these a word begins without a space: hyphens, apostrophes and quotes, what opens, and signs."""


@dataclass(frozen=True, eq=False)
class AnswerScores:
    """Log-scores of up to O options for each of N prompts; :func:`answers` makes them.

    Numbers are in nats, and nan where a prompt has fewer options or was skipped.

    Attributes:
        log_score: the mean over orders of log q(answer | prompt), (N, O).
        standard_error: of ``log_score``, over orders; 0 where all are in it, nan where the drawn ones
            happen to be the same, (N, O).
        difference: of ``log_score`` to that of the best option, (N, O).
        difference_error: standard error of ``difference``, over orders, which options of as many
            tokens share, (N, O).
        pseudo_log_likelihood: Σ_j log q(x_j | all others) over the option's tokens (Salazar et al.
            2020), the prompt and the rest of the option being shown; nan where it was not asked for,
            (N, O).
        within_word: the same with the later tokens of the word of each hidden as well (Kauf and
            Ivanova 2023), (N, O).
        num_tokens: k of each option, 0 for none, (N, O).
        best: the option with the highest ``log_score``, −1 for a prompt that was skipped, (N,).
        comparable: whether a prompt's options have as many tokens, (N,). A masked model is told their
            number; where these differ, its probability is missing from the comparison.
        merged: whether a token has characters of both the prompt and an option, (N,). All its options
            then begin after the last token that they share with the prompt.
        num_passes: different rows that the prompt's options ask of the model, (N,); as of
            :class:`~mpt_score.PairScores`.
        skipped: the prompts that were skipped, with the reason.

    >>> coin = lambda ids, mask: torch.tensor([0.25, 0.75]).double().log().expand(ids.shape + (2,))
    >>> scores = answers(coin, [[0, 1]], [[[0, 1], [1, 1]]])
    >>> scores.best.tolist(), scores.difference.exp()
    ([1], tensor([[0.3333, 1.0000]], dtype=torch.float64))
    """

    log_score: Float[Tensor, "N O"]
    standard_error: Float[Tensor, "N O"]
    difference: Float[Tensor, "N O"]
    difference_error: Float[Tensor, "N O"]
    pseudo_log_likelihood: Float[Tensor, "N O"]
    within_word: Float[Tensor, "N O"]
    num_tokens: Int[Tensor, "N O"]
    best: Int[Tensor, " N"]
    comparable: Bool[Tensor, " N"]
    merged: Bool[Tensor, " N"]
    num_passes: Int[Tensor, " N"]
    skipped: dict[int, str]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary an option, for a table; none for a prompt that was skipped."""
        prompt, option = self.num_tokens.nonzero().T
        columns: dict[str, Tensor] = {"prompt": prompt, "option": option}
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        for name, value in tensors.items():
            column = value[prompt, option] if value.ndim == 2 else value[prompt]
            if not column.isnan().all():
                columns[name] = column
        columns["best"] = self.best[prompt] == option
        return as_rows(columns)


@checked
def answers(
    model: Any,
    prompts: Prompts,
    options: Options,
    *,
    tokenizer: Any = None,
    num_orders: Annotated[int, Within(2)] = 8,
    pseudo: bool = False,
    within_word: bool = False,
    skip: bool = False,
    seed: Index = 0,
) -> AnswerScores:
    """log q(answer | prompt) of each of a prompt's options, averaged over orders of the answer.

    A text is prompt + option as they stand: the space between belongs to one of them. Only the
    option's k tokens hide, under all 2^k − 1 masks, or along ``num_orders`` random orders where that
    takes fewer (8: k > 5). The masks of options of as many tokens are the same: they follow from
    ``seed`` and the prompt.

    Args:
        model: as of :func:`~mpt_score.loading.load`.
        prompts: strings, or token ids.
        options: of each prompt a list, of the same kind. Lists may be columns of pandas or NumPy.
        tokenizer: as of :func:`~mpt_score.loading.load`.
        num_orders: most random orders.
        pseudo: whether each token of an option is hidden alone as well: the conditional
            pseudo-log-likelihood, k more passes.
        within_word: whether it is hidden with the later tokens of its word, as the tokenizer cuts the
            text, at most k more passes.
        skip: a prompt of which an option cannot be scored gives nan, and is listed in the result.
        seed: of the orders.

    Raises:
        TextError: without ``skip`` for an option without a token, with an unknown or a special one,
            or too long.
        ValueError: for prompts and options of different kinds or numbers.

    >>> from mpt_lml import HMM
    >>> language = HMM.cyclic(num_features=5)
    >>> scores = answers(language.log_values, [[0, 2]], [[[4, 6, 8], [4, 6, 2]]])
    >>> log_p = language.log_marginal(torch.tensor([[0, 2, 4, 6, 8], [0, 2, 4, 6, 2]]))
    >>> torch.allclose(scores.difference, log_p - log_p.max())
    True
    """
    scorer = load(model, tokenizer)
    prompts = as_list(prompts)
    options = [as_list(options_of_prompt) for options_of_prompt in as_list(options)]
    _require_questions(prompts, options)
    prompts = _plain(prompts)
    options = [_plain(options_of_prompt) for options_of_prompt in options]
    _say_missing_space(prompts, options)
    texts, refused = _read(scorer, prompts, options)
    merged = torch.zeros(len(prompts), dtype=torch.bool)
    rows: list[Row] = []
    option_of_row: list[int] = []
    words: list[Tensor] = []  # of the places of each row, where words are asked for
    for number, texts_of_prompt in enumerate(texts):
        if number in refused:
            continue
        start, merged[number], reason = _start(scorer, prompts[number], texts_of_prompt)
        if reason is not None:
            refused[number] = reason
            continue
        for option, text in enumerate(texts_of_prompt):
            row = _row(text, number, start, seed)
            rows.append(row)
            option_of_row.append(option)
            if within_word:
                whole = _joined(prompts[number], options[number][option])
                string = whole if isinstance(whole, str) else ""
                words.append(words_of(scorer, string, text)[row.places])
    if refused and not skip:
        _refuse_first(refused)
    asked = PlacesAsked(num_orders, pseudo, within_word)

    def request_of(batch: Batch) -> Request:
        words_of_batch = [words[number] for number in batch.numbers] if within_word else []
        return asked.request(batch.rows, words_of_batch)

    scheduler = BatchScheduler(scorer, skip=skip, noun="prompt")
    shape = (len(options), max(map(len, options)))
    totals = torch.full((*shape, num_orders), torch.nan, dtype=torch.float64)  # along orders
    pseudo_log_likelihood = totals[..., 0].clone()
    sum_within_word = totals[..., 0].clone()
    has_spread = torch.zeros(shape, dtype=torch.bool)
    num_tokens = torch.zeros(shape, dtype=torch.int64)
    num_passes = torch.zeros(shape, dtype=torch.int64)
    for answers in scheduler.ask(rows, request_of, asked.most_masks):
        terms = asked.terms(answers)
        options_of_batch = [option_of_row[place] for place in answers.batch.numbers]
        where = (answers.batch.rows.text, torch.tensor(options_of_batch))
        totals[where] = terms.terms.sum(dim=2)
        pseudo_log_likelihood[where] = terms.pseudo.sum(dim=1)
        sum_within_word[where] = terms.within_word.sum(dim=1)
        has_spread[where] = terms.degrees > 0
        num_tokens[where] = answers.batch.rows.num_places
        num_passes[where] = terms.num_passes
    refused |= scheduler.faults
    for column in (totals, pseudo_log_likelihood, sum_within_word):
        column[list(refused)] = torch.nan
    for column in (has_spread, num_tokens, num_passes):
        column[list(refused)] = 0
    log_score, error = mean_and_error(totals, dim=2)
    best = log_score.nan_to_num(-torch.inf).argmax(dim=1)
    where_best = (torch.arange(len(best)), best)
    of_best = totals[where_best][:, None]
    difference, difference_error = mean_and_error(totals - of_best, dim=2)
    has_error = has_spread & has_spread[where_best][:, None]
    has_error[where_best] = True  # 0: nothing differs from itself
    is_longest = num_tokens == num_tokens.amax(dim=1, keepdim=True)
    return AnswerScores(
        log_score=log_score,
        standard_error=error.where(has_spread, torch.nan),
        difference=difference,
        difference_error=difference_error.where(has_error, torch.nan),
        pseudo_log_likelihood=pseudo_log_likelihood,
        within_word=sum_within_word,
        num_tokens=num_tokens,
        best=best.where(num_tokens.any(dim=1), -1),
        comparable=(is_longest | (num_tokens == 0)).all(dim=1),
        merged=merged,
        num_passes=num_passes.sum(dim=1),
        skipped=dict(sorted(refused.items())),
    )


def _read(
    scorer: Scorer, prompts: Sequence[Any], options: Sequence[Sequence[Any]]
) -> tuple[list[list[Tokens]], dict[int, str]]:
    """Of each prompt its texts, one an option and each one row; and which prompts cannot be read."""
    texts = []
    owners = []
    for number, options_of_prompt in enumerate(options):
        for option, answer in enumerate(options_of_prompt):
            texts.append(_joined(prompts[number], answer))
            owners.append((number, option))
    reading = read(scorer, texts, skip=True)
    refused: dict[int, str] = {}
    for text, reason in sorted(reading.faults.items()):
        number, option = owners[text]
        refused.setdefault(number, f"option {option} after its prompt {reason.rstrip('.')}")
    texts_of_prompts: list[list[Tokens]] = [[] for _ in prompts]
    for text, row in reading.rows.items():
        number, _ = owners[text]
        texts_of_prompts[number].append(row)
    return texts_of_prompts, refused


def _joined(prompt: Any, option: Any) -> Any:
    """A prompt and an option as they stand."""
    return prompt + option if isinstance(prompt, str) else [*prompt, *option]


def _start(scorer: Scorer, prompt: Any, texts: Sequence[Tokens]) -> tuple[int, bool, str | None]:
    """Where a prompt's answers start, whether its end was joined with one, and what is no answer.

    They start where the prompt, tokenized alone, no longer agrees with all of its texts.
    """
    if isinstance(prompt, str):
        prompt = scorer.tokenizer(prompt, verbose=False)["input_ids"]
    rows = [text.ids[0].tolist() for text in texts]
    start = num_shared(prompt, rows)
    ends = [1 + int(text.maskable[0].nonzero()[-1]) for text in texts]  # behind its last word piece
    num_behind = len(rows[0]) - ends[0]  # [SEP], which the prompt alone has as well
    is_merged = start < len(prompt) - num_behind
    for option, (text, end) in enumerate(zip(texts, ends, strict=True)):
        reason = _why_no_answer(scorer, rows[option], start, text.maskable[0, start:end])
        if reason is not None:
            return start, is_merged, f"option {option} cannot be scored: {reason}"
    return start, is_merged, None


def _row(text: Tokens, number: int, start: int, seed: int) -> Row:
    """The row of a text, of which the tokens from ``start`` on are scored.

    Args:
        text: as one row.
        number: of its prompt.
        start: where its option begins.
        seed: of the orders. They follow from it, the prompt and the number of the option's tokens.
    """
    ids = text.ids[0]
    places = start + text.maskable[0, start:].nonzero().flatten()
    key = f"{seed} after {ids[:start].tolist()}, {len(places)} tokens"
    return Row(ids, text.types[0], places, torch.zeros_like(text.maskable[0]), number, key)


def _plain(texts: Any) -> list[Any]:
    """Strings, or token ids as lists: numbers of a tensor are not equal to each other."""
    return [text.tolist() if isinstance(text, Tensor) else text for text in texts]


def _refuse_first(refused: dict[int, str]) -> None:
    number = min(refused)
    remedy = f"({len(refused)} such prompts). Leave it out, or skip=True gives nan and lists it."
    reason = refused[number]
    raise TextError(f"prompt {number}: {reason} {remedy}", number, f"{reason}.")


def _require_questions(prompts: Any, options: Any) -> None:
    """Refuse options that are not texts of the prompts' kind, as many lists as prompts."""
    for options_of_prompt in options:
        require_texts("options", options_of_prompt)
    kinds = {isinstance(texts[0], str) for texts in (prompts, *options)}
    if len(prompts) != len(options) or len(kinds) > 1:
        raise ValueError("give a list of prompts, and for each a list of options of the same kind.")


def _say_missing_space(prompts: Any, options: Any) -> None:
    """Say of the first option that is likely to miss its space that it is."""
    if not isinstance(prompts[0], str):
        return
    for prompt, options_of_prompt in zip(prompts, options, strict=True):
        for option in options_of_prompt:
            hint = missing_space_hint(prompt, option)
            if hint is not None:
                _log.warning(hint)
                return


def missing_space_hint(prompt: str, option: str) -> str | None:
    """What to say where an option of a prompt begins a word without its space; None where it does not.

    A text is the prompt and the option as they stand. "The cake is" and "done" make "isdone", whose
    pieces are others than those of "is done", and so is its score.

    A prompt without any white space is left alone, as a sequence of residues is; so are scripts that
    write no spaces between words.

    Args:
        prompt: ends at the option's place.
        option: follows it directly.

    >>> missing_space_hint("The cake is", "done")
    'prompt and option join to "isdone": begin the option with a space (" done") if it is a word.'
    >>> missing_space_hint("The cake is", " done"), missing_space_hint("The well-", "done")
    (None, None)
    """
    if not prompt or not option or not option[0].isalnum():
        return None
    last = prompt[-1]
    if last.isspace() or last in _JOINING or not any(letter.isspace() for letter in prompt):
        return None
    if _is_wide(last) or _is_wide(option[0]):
        return None
    last_word = prompt.split()[-1]
    first_word = option.split()[0]
    return (
        f'prompt and option join to "{last_word}{first_word}": begin the option with a space '
        f'(" {first_word}") if it is a word.'
    )


def _is_wide(letter: str) -> bool:
    """Of the scripts of China and Japan, mostly, which write words without spaces between."""
    return unicodedata.east_asian_width(letter) in ("W", "F")


def num_shared(prompt: Sequence[Any], rows: Sequence[Sequence[Any]]) -> int:
    """How many tokens a prompt and all rows begin with together.

    Args:
        prompt: token ids.
        rows: token ids of each.

    >>> num_shared([2, 5, 3], [[2, 5, 6, 3], [2, 5, 7, 3]])
    2
    """
    together = zip(prompt, *rows, strict=False)
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, together))


def _why_no_answer(
    scorer: Scorer, row: list[int], start: int, is_scored: Bool[Tensor, " k"]
) -> str | None:
    """Why the tokens of a row from ``start`` on cannot be scored; None where they can."""
    if scorer.unknown_id in row[start:]:
        return "it has a token that is unknown to the tokenizer and may stand for any word"
    if len(is_scored) == 0:
        return "it has no token"
    if not is_scored.all():
        return "it has a special token, which has no probability"
    if scorer.max_length is not None and len(row) > scorer.max_length:
        return f"its row of {len(row)} tokens is longer than {scorer.max_length}"
    return None
