"""Answers to a prompt: only the answer is hidden, under the same masks for all options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.data import Tokens
from mpt_lml.score.blocks import Blocks, in_parts
from mpt_lml.score.door import Keep, Part, Progress, Scorer, afresh, load, silent
from mpt_lml.shapes import require_count
from mpt_lml.verdicts import mean_and_error

__all__ = ["AnswerScores", "answers"]


@dataclass(frozen=True)
class AnswerScores:
    """Log-scores of up to O options for each of N prompts, nats; nan where a prompt has fewer.

    Attributes
    ----------
    log_score, standard_error : Tensor (N, O)
        Mean over orders of log q(answer | prompt); the error is over orders, 0 where all are in it.
    difference, difference_error : Tensor (N, O)
        To the best option, with the error over orders that both share.
    best : Tensor (N,) int64
        The option of the greatest log-score.
    num_tokens : Tensor (N, O) int64
        k of each option, 0 for none.
    comparable : Tensor (N,) bool
        Whether a prompt's options have as many tokens. A masked model is told their number; where
        these differ, the probability of the number is missing from the comparison.
    merged : Tensor (N,) bool
        Whether a token has characters of both the prompt and an option. All its options then begin
        after the last token that they share with the prompt.
    num_passes : Tensor (N,) int64

    >>> coin = lambda ids, mask: torch.tensor([0.25, 0.75]).double().log().expand(*ids.shape, 2)
    >>> found = answers(coin, [[0, 1]], [[[0, 1], [1, 1]]])
    >>> found.best.tolist(), found.difference.exp()
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


def answers(
    model: Any,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    options: Sequence[Sequence[str]] | Sequence[Sequence[Sequence[int]]],
    *,
    tokenizer: Any = None,
    num_orders: int = 8,
    seed: int = 0,
    keep: Keep = afresh,
    progress: Progress = silent,
) -> AnswerScores:
    """log q(answer | prompt) of each of a prompt's ``options``, averaged over orders of the answer.

    A text is prompt + option as they stand: the space between belongs to one of them. Only the
    option's k tokens hide, under all 2^k − 1 masks, or along ``num_orders`` random orders where that
    takes fewer (8: k > 5). The masks of options of as many tokens are the same.

    Raises ``ValueError`` for an option without a token, with an unknown one, or too long.

    >>> language = HMM.cyclic(num_features=5)
    >>> found = answers(language.log_values, [[0, 2]], [[[4, 6, 8], [4, 6, 2]]])
    >>> log_p = language.log_marginal(torch.tensor([[0, 2, 4, 6, 8], [0, 2, 4, 6, 2]]))
    >>> torch.allclose(found.difference, log_p - log_p.max())
    True
    """
    scorer = load(model, tokenizer)
    require_count("num_orders", num_orders, 2)
    if isinstance(prompts, str) or len(prompts) != len(options) or not all(map(len, options)):
        raise ValueError("give a list of prompts, and for each a list of at least one option.")
    asked = torch.tensor([n for n, each in enumerate(options) for _ in each])
    texts: list[Any] = [
        head + tail if isinstance(head, str) and isinstance(tail, str) else [*head, *tail]
        for head, tails in zip(prompts, options, strict=True)
        for tail in tails
    ]
    tokens = scorer.encode(texts)
    start, merged = _starts(scorer, tokens, prompts, asked)
    count = _ends(tokens) - start
    blocks = Blocks(scorer, num_orders, seed)

    def work(chosen: Tensor) -> Part:
        """Log-scores of options of one length and k along the orders."""
        places = start[chosen, None] + torch.arange(int(count[chosen[0]]))
        return {
            "totals": blocks.totals(blocks.terms(tokens.rows(chosen), places, asked[chosen]))[0]
        }

    # Options in an order of their own, so that exchanging them changes no batch.
    kinds = torch.stack([tokens.lengths, count], dim=1)
    keys = zip(kinds.tolist(), asked.tolist(), tokens.ids.tolist(), strict=True)
    order = torch.tensor([f for _, f in sorted((key, f) for f, key in enumerate(keys))])
    passes = torch.tensor([blocks.num_masks(k) for k in count.tolist()])
    cost = passes * tokens.lengths
    found = in_parts(work, order, kinds[order], cost[order], keep, progress)
    number = torch.tensor([o for each in options for o in range(len(each))])
    every = torch.full((len(options), max(map(len, options)), num_orders), torch.nan).double()
    every[asked, number] = found["totals"][order.argsort()]
    num_tokens = torch.zeros(every.shape[:2], dtype=torch.int64)
    num_tokens[asked, number] = count
    log_score, error = mean_and_error(every, dim=2)
    best = log_score.nan_to_num(-torch.inf).argmax(dim=1)
    difference = mean_and_error(every - every[torch.arange(len(best)), best][:, None], dim=2)
    alike = (num_tokens == 0) | (num_tokens == num_tokens.amax(dim=1, keepdim=True))
    total = torch.zeros_like(best).index_add(0, asked, passes)
    return AnswerScores(
        log_score, error, *difference, num_tokens, best, alike.all(dim=1), merged, total
    )


def _ends(tokens: Tokens) -> Int[Tensor, " F"]:
    return torch.where(tokens.maskable, torch.arange(tokens.ids.shape[1]) + 1, 0).amax(dim=1)


def _starts(
    scorer: Scorer, tokens: Tokens, prompts: Any, asked: Int[Tensor, " F"]
) -> tuple[Int[Tensor, " F"], Bool[Tensor, " N"]]:
    """Where answers start, and whether a prompt's end was joined with an option.

    They start where a prompt, tokenized alone, no longer agrees with all of its texts.
    """
    if isinstance(prompts[0], str):
        prompts = scorer.tokenizer(list(prompts), verbose=False)["input_ids"]
    rows = [row[:length] for row, length in zip(tokens.ids.tolist(), tokens.lengths, strict=True)]
    starts, merged = [], []
    for n, head in enumerate(prompts):
        mine = (asked == n).nonzero().flatten().tolist()
        together = zip(head, *(rows[f] for f in mine), strict=False)
        starts.append(sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, together)))
        for number, f in enumerate(mine):
            _require_answer(
                scorer, tokens.rows(torch.tensor([f])), starts[n], f"{number} of prompt {n}"
            )
        closing = len(rows[mine[0]]) - int(_ends(tokens)[mine[0]])
        merged.append(starts[n] < len(head) - closing)
    return torch.tensor(starts)[asked], torch.tensor(merged)


def _require_answer(scorer: Scorer, row: Tokens, start: int, name: str) -> None:
    unknown = getattr(scorer.tokenizer, "unk_token_id", None)
    answer, length = row.maskable[0, start : int(_ends(row))], len(row.ids[0])
    most = scorer.max_length or length
    if (
        not len(answer)
        or not answer.all()
        or unknown in row.ids[0, start:].tolist()
        or length > most
    ):
        raise ValueError(
            f"option {name} cannot be scored: it has no token, or an unknown or a special one, or its "
            f"row of {length} tokens is longer than {most}. Leave it out."
        )
