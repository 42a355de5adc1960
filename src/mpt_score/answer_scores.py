"""Answers to a prompt: only the answer is hidden, under the same masks for all options."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import Within, checked
from mpt_lml.results import as_rows
from mpt_lml.verdicts import mean_and_error
from mpt_score.blocks import Blocks
from mpt_score.errors import TextError
from mpt_score.loading import load
from mpt_score.parts import Runner, compute_parts
from mpt_score.scorer import Scorer
from mpt_score.streams import StreamSeed
from mpt_score.tokens import Tokens, require_texts

if TYPE_CHECKING:
    Prompts = Sequence[str] | Sequence[Sequence[int]]
    Options = Sequence[Sequence[str]] | Sequence[Sequence[Sequence[int]]]
else:
    Prompts = Annotated[Any, require_texts]
    Options = Sequence[Any]


@dataclass(frozen=True, eq=False)
class AnswerScores:
    """Log-scores of up to O options for each of N prompts; :func:`answers` makes them.

    Numbers are in nats, and nan where a prompt has fewer options.

    Attributes:
        log_score: the mean over orders of log q(answer | prompt), (N, O).
        standard_error: of ``log_score``, over orders; 0 where all are in it, (N, O).
        difference: of ``log_score`` to that of the best option, (N, O).
        difference_error: standard error of ``difference``, over orders that both share, (N, O).
        num_tokens: k of each option, 0 for none, (N, O).
        best: the option with the highest ``log_score``, (N,).
        comparable: whether a prompt's options have as many tokens, (N,). A masked model is told their
            number; where these differ, its probability is missing from the comparison.
        merged: whether a token has characters of both the prompt and an option, (N,). All its options
            then begin after the last token that they share with the prompt.
        num_passes: rows that went through the model, (N,).

    >>> coin = lambda ids, mask: torch.tensor([0.25, 0.75]).double().log().expand(ids.shape + (2,))
    >>> scores = answers(coin, [[0, 1]], [[[0, 1], [1, 1]]])
    >>> scores.best.tolist(), scores.difference.exp()
    ([1], tensor([[0.3333, 1.0000]], dtype=torch.float64))
    """

    log_score: Float[Tensor, "N O"]
    standard_error: Float[Tensor, "N O"]
    difference: Float[Tensor, "N O"]
    difference_error: Float[Tensor, "N O"]
    num_tokens: Int[Tensor, "N O"]
    best: Int[Tensor, " N"]
    comparable: Bool[Tensor, " N"]
    merged: Bool[Tensor, " N"]
    num_passes: Int[Tensor, " N"]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary an option, for a table."""
        prompt, option = self.num_tokens.nonzero().T
        columns: dict[str, Tensor] = {"prompt": prompt, "option": option}
        for name, value in vars(self).items():
            columns[name] = value[prompt, option] if value.ndim == 2 else value[prompt]
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
    seed: StreamSeed = 0,
    run: Runner = compute_parts,
) -> AnswerScores:
    """log q(answer | prompt) of each of a prompt's options, averaged over orders of the answer.

    A text is prompt + option as they stand: the space between belongs to one of them. Only the
    option's k tokens hide, under all 2^k − 1 masks, or along ``num_orders`` random orders where that
    takes fewer (8: k > 5). The masks of options of as many tokens are the same.

    Args:
        model: as of :func:`~mpt_score.loading.load`.
        prompts: strings, or token ids.
        options: of each prompt a list, of the same kind.
        tokenizer: as of :func:`~mpt_score.loading.load`.
        num_orders: most random orders.
        seed: of the orders.
        run: takes a label and the parts, and returns what each gives, computed now or in an earlier
            call: see :meth:`Scorer.checkpoints_in`.

    Raises:
        TextError: for an option without a token, with an unknown one, or too long.
        ValueError: for prompts and options of different kinds or numbers.

    >>> from mpt_lml import HMM
    >>> language = HMM.cyclic(num_features=5)
    >>> scores = answers(language.log_values, [[0, 2]], [[[4, 6, 8], [4, 6, 2]]])
    >>> log_p = language.log_marginal(torch.tensor([[0, 2, 4, 6, 8], [0, 2, 4, 6, 2]]))
    >>> torch.allclose(scores.difference, log_p - log_p.max())
    True
    """
    scorer = load(model, tokenizer)
    _require_questions(prompts, options)
    questions = _Questions.of(prompts, options)
    tokens = scorer.encode(questions.texts)
    starts = _starts(scorer, tokens, prompts, questions)
    places = tokens.maskable & (torch.arange(tokens.ids.shape[1]) >= starts.of_texts[:, None])
    count = places.sum(dim=1)
    blocks = Blocks(scorer, num_orders, seed)
    totals = blocks([tokens], places, questions.prompt, run).totals
    shape = (len(options), max(len(options_of_prompt) for options_of_prompt in options))
    where = (questions.prompt, questions.option)
    of_options = torch.full((*shape, num_orders), torch.nan, dtype=torch.float64)
    of_options = of_options.index_put(where, totals)
    num_tokens = torch.zeros(shape, dtype=torch.int64).index_put(where, count)
    log_score, error = mean_and_error(of_options, dim=2)
    best = log_score.nan_to_num(-torch.inf).argmax(dim=1)
    of_best = of_options[torch.arange(len(best)), best][:, None]
    difference, difference_error = mean_and_error(of_options - of_best, dim=2)
    is_longest = num_tokens == num_tokens.amax(dim=1, keepdim=True)
    num_passes = torch.zeros_like(best).index_add(0, questions.prompt, blocks.num_masks(count))
    return AnswerScores(
        log_score=log_score,
        standard_error=error,
        difference=difference,
        difference_error=difference_error,
        num_tokens=num_tokens,
        best=best,
        comparable=(is_longest | (num_tokens == 0)).all(dim=1),
        merged=starts.merged,
        num_passes=num_passes,
    )


def _require_questions(prompts: Any, options: Any) -> None:
    """Refuse options that are not texts of the prompts' kind, as many lists as prompts."""
    for options_of_prompt in options:
        require_texts("options", options_of_prompt)
    kinds = {isinstance(texts[0], str) for texts in (prompts, *options)}
    if len(prompts) != len(options) or len(kinds) > 1:
        raise ValueError("give a list of prompts, and for each a list of options of the same kind.")


class _Questions(NamedTuple):
    """F texts, each a prompt and one of its options."""

    texts: list[Any]
    prompt: Int[Tensor, " F"]
    option: Int[Tensor, " F"]

    @classmethod
    def of(cls, prompts: Sequence[Any], options: Sequence[Sequence[Any]]) -> "_Questions":
        texts: list[Any] = []
        prompt_of_text = []
        option_of_text = []
        for number, (prompt, options_of_prompt) in enumerate(zip(prompts, options, strict=True)):
            for place, option in enumerate(options_of_prompt):
                texts.append(prompt + option if isinstance(prompt, str) else [*prompt, *option])
                prompt_of_text.append(number)
                option_of_text.append(place)
        return cls(texts, torch.tensor(prompt_of_text), torch.tensor(option_of_text))


class _Starts(NamedTuple):
    """Where answers start, and whether a prompt's end was joined with an option."""

    of_texts: Int[Tensor, " F"]
    merged: Bool[Tensor, " N"]


def _starts(scorer: Scorer, tokens: Tokens, prompts: Any, questions: _Questions) -> _Starts:
    """Answers start where a prompt, tokenized alone, no longer agrees with all of its texts."""
    if isinstance(prompts[0], str):
        prompts = scorer.tokenizer(list(prompts), verbose=False)["input_ids"]
    rows = [row[:n] for row, n in zip(tokens.ids.tolist(), tokens.lengths, strict=True)]
    starts = []
    merged = []
    for number, prompt in enumerate(prompts):
        texts = (questions.prompt == number).nonzero().flatten().tolist()
        start = _num_shared(prompt, [rows[text] for text in texts])
        ends = [int(tokens.maskable[text].nonzero().max()) + 1 for text in texts]
        num_behind = len(rows[texts[0]]) - ends[0]  # [SEP], which the prompt alone has as well
        starts.append(start)
        merged.append(start < len(prompt) - num_behind)
        for option, (text, end) in enumerate(zip(texts, ends, strict=True)):
            is_scored = tokens.maskable[text, start:end]
            _require_option(scorer, rows[text], start, is_scored, option, number)
    return _Starts(torch.tensor(starts)[questions.prompt], torch.tensor(merged))


def _num_shared(prompt: Sequence[int], rows: Sequence[Sequence[int]]) -> int:
    """How many tokens a prompt and all rows begin with together."""
    together = zip(prompt, *rows, strict=False)
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, together))


def _require_option(
    scorer: Scorer, row: list[int], start: int, is_scored: Tensor, option: int, prompt: int
) -> None:
    longest = scorer.max_length or len(row)
    has_unknown = scorer.unknown_id in row[start:]
    if len(is_scored) == 0 or not is_scored.all() or has_unknown or len(row) > longest:
        raise TextError(
            f"option {option} of prompt {prompt} cannot be scored: it has no token, an unknown or a "
            f"special one, or its row of {len(row)} tokens is longer than {longest}.",
            prompt,
        )
