"""Answers to a prompt: only the answer is hidden, under the same masks for all options."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.results import as_rows
from mpt_lml.spec import require
from mpt_lml.verdicts import mean_and_error
from mpt_score.blocks import Blocks
from mpt_score.design import SEED
from mpt_score.errors import TextError
from mpt_score.keep import Run, afresh
from mpt_score.scorer import Scorer, load
from mpt_score.tokens import Tokens, require_texts


@dataclass(frozen=True, eq=False)
class AnswerScores:
    """Log-scores of up to O options for each of N prompts, nats; nan where a prompt has fewer.

    ``log_score`` (N, O) is the mean over orders of log q(answer | prompt); its ``standard_error`` is
    over orders, 0 where all are in it. ``difference`` is that to the ``best`` option, its error over
    orders that both share. ``num_tokens`` (N, O): k of each option, 0 for none.

    ``comparable`` (N,): whether a prompt's options have as many tokens. A masked model is told their
    number; where these differ, its probability is missing from the comparison. ``merged`` (N,): whether
    a token has characters of both the prompt and an option. All its options then begin after the last
    token that they share with the prompt.

    >>> coin = lambda ids, mask: torch.tensor([0.25, 0.75]).double().log().expand(ids.shape + (2,))
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

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary an option, for a table."""
        n, o = self.num_tokens.nonzero().T
        each = {k: v[n, o] if v.ndim == 2 else v[n] for k, v in vars(self).items()}
        return as_rows({"prompt": n, "option": o, **each, "best": self.best[n] == o})


def answers(
    model: Any,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    options: Sequence[Sequence[str]] | Sequence[Sequence[Sequence[int]]],
    *,
    tokenizer: Any = None,
    num_orders: int = 8,
    seed: int = 0,
    run: Run = afresh,
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
    require(locals(), "num_orders 2.., run Callable, options Sequence, " + SEED)
    for name, each in (("prompts", prompts), *(("options", some) for some in options)):
        require_texts(each, name)
    if (
        len(prompts) != len(options)
        or len({isinstance(t[0], str) for t in (prompts, *options)}) > 1
    ):
        raise ValueError("give a list of prompts, and for each a list of options of the same kind.")
    asked = torch.tensor([n for n, each in enumerate(options) for _ in each])
    texts: list[Any] = [
        head + tail if isinstance(head, str) and isinstance(tail, str) else [*head, *tail]
        for head, tails in zip(prompts, options, strict=True)
        for tail in tails
    ]
    tokens = scorer.encode(texts)
    start, merged = _starts(scorer, tokens, prompts, asked)
    places = tokens.maskable & (torch.arange(tokens.ids.shape[1]) >= start[:, None])
    blocks, count = Blocks(scorer, num_orders, seed), places.sum(dim=1)
    totals, _ = blocks([tokens], places, asked, run)
    at = asked, torch.tensor([o for each in options for o in range(len(each))])
    every = torch.full((len(options), max(map(len, options)), num_orders), torch.nan).double()
    every = every.index_put(at, totals)
    num_tokens = torch.zeros(every.shape[:2], dtype=torch.int64).index_put(at, count)
    log_score, error = mean_and_error(every, dim=2)
    best = log_score.nan_to_num(-torch.inf).argmax(dim=1)
    difference = mean_and_error(every - every[torch.arange(len(best)), best][:, None], dim=2)
    alike = (num_tokens == 0) | (num_tokens == num_tokens.amax(dim=1, keepdim=True))
    passes = torch.zeros_like(best).index_add(0, asked, blocks.num_masks(count))
    return AnswerScores(
        log_score, error, *difference, num_tokens, best, alike.all(dim=1), merged, passes
    )


def _starts(
    scorer: Scorer, tokens: Tokens, prompts: Any, asked: Int[Tensor, " F"]
) -> tuple[Int[Tensor, " F"], Bool[Tensor, " N"]]:
    """Where answers start, and whether a prompt's end was joined with an option.

    They start where a prompt, tokenized alone, no longer agrees with all of its texts.
    """
    if isinstance(prompts[0], str):
        prompts = scorer.tokenizer(list(prompts), verbose=False)["input_ids"]
    unknown = getattr(scorer.tokenizer, "unk_token_id", None)
    rows = [row[:length] for row, length in zip(tokens.ids.tolist(), tokens.lengths, strict=True)]
    starts, merged = [], []
    for n, head in enumerate(prompts):
        mine = (asked == n).nonzero().flatten().tolist()
        together = zip(head, *(rows[f] for f in mine), strict=False)
        starts.append(sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, together)))
        ends = [int(tokens.maskable[f].nonzero().max()) + 1 for f in mine]
        merged.append(starts[n] < len(head) - (len(rows[mine[0]]) - ends[0]))
        for option, (f, end) in enumerate(zip(mine, ends, strict=True)):
            answer = tokens.maskable[f, starts[n] : end]
            most = scorer.max_length or len(rows[f])
            lost = not answer.all() or unknown in rows[f][starts[n] :]
            if lost or not len(answer) or len(rows[f]) > most:
                raise TextError(
                    f"option {option} of prompt {n} cannot be scored: it has no token, an unknown or a "
                    f"special one, or its row of {len(rows[f])} tokens is longer than {most}.",
                    n,
                )
    return torch.tensor(starts)[asked], torch.tensor(merged)
