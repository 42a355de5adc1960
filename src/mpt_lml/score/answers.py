"""Answers to a prompt: only the answer is hidden, under the same masks for all options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml import masks
from mpt_lml.data import Tokens
from mpt_lml.score.door import Keep, Part, Progress, Scorer, afresh, in_parts, load, silent
from mpt_lml.scores import mask_score, mean_by_size
from mpt_lml.shapes import require_count

__all__ = ["AnswerScores", "answers"]


@dataclass(frozen=True)
class AnswerScores:
    """Log-scores of up to O options for each of N prompts, nats; nan where a prompt has fewer.

    Attributes
    ----------
    log_score, standard_error : Tensor (N, O)
        Mean over orders of log q(answer | prompt), and its error over masks: 0 where all are used.
    difference, difference_error : Tensor (N, O)
        To the best option, and its error over the masks that both share.
    best : Tensor (N,) int64
        The option of the greatest log-score.
    num_tokens : Tensor (N, O) int64
        k of each option.
    comparable : Tensor (N,) bool
        Whether all options have the same number of tokens. A masked model is told the number: where
        they differ, the model's log q of each option lacks the probability of its length.
    merged : Tensor (N,) bool
        Whether the tokenizer joined the end of the prompt with the beginning of an option. The
        answer then begins, for all options, after the last token that they share with the prompt.
    num_passes : Tensor (N,) int64
        Rows that went through the model.

    >>> coin = lambda ids, mask: torch.tensor([0.25, 0.75]).log().expand(*ids.shape, 2)
    >>> found = answers(coin, [[0, 1]], [[[0, 1], [1, 1]]])
    >>> found.best.tolist(), found.difference.tolist()
    ([1], [[-1.0986122886681098, 0.0]])
    """

    log_score: Float[Tensor, "N O"]
    standard_error: Float[Tensor, "N O"]
    difference: Float[Tensor, "N O"]
    difference_error: Float[Tensor, "N O"]
    best: Int[Tensor, " N"]
    num_tokens: Int[Tensor, "N O"]
    comparable: Bool[Tensor, " N"]
    merged: Bool[Tensor, " N"]
    num_passes: Int[Tensor, " N"]

    def rows(self) -> list[dict[str, Any]]:
        """One dict an option, for a table."""
        names = ("log_score", "standard_error", "difference", "difference_error", "num_tokens")
        return [
            {"prompt": n, "option": o, **{name: getattr(self, name)[n, o].item() for name in names}}
            | {"best": o == int(self.best[n]), "comparable": bool(self.comparable[n])}
            for n, o in self.num_tokens.nonzero().tolist()
        ]


def answers(
    model: Any,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    options: Sequence[Sequence[str]] | Sequence[Sequence[Sequence[int]]],
    *,
    tokenizer: Any = None,
    budget: int = 64,
    seed: int = 0,
    keep: Keep = afresh,
    progress: Progress = silent,
) -> AnswerScores:
    """log q(answer | prompt) of each of a prompt's ``options``, averaged over orders of the answer.

    A text is prompt + option as they stand (the space between belongs to either), and only the
    option's k tokens hide. The area over their sizes is exact from all 2^k − 1 masks while these are
    at most ``budget``; otherwise so many masks have sizes from ``budget`` // 2 strata, two of each.
    Options of as many tokens share their masks, others the levels that decide the sizes.

    Raises ``ValueError`` for an option that has no token or an unknown one, or is too long.

    >>> language = HMM.cyclic(num_features=5)
    >>> exact = load(lambda ids, mask: language.log_values(ids, mask))
    >>> found = answers(exact, [[0, 2]], [[[4, 6, 8], [4, 6, 2]]])
    >>> x = torch.tensor([[0, 2, 4, 6, 8], [0, 2, 4, 6, 2]])
    >>> torch.allclose(found.difference, language.log_marginal(x) - language.log_marginal(x).max())
    True
    """
    scorer = load(model, tokenizer)
    require_count("budget", budget, 2)
    if isinstance(prompts, str) or len(prompts) != len(options) or not all(map(len, options)):
        raise ValueError("give a list of prompts, and for each a list of at least one option.")
    asked = torch.tensor([n for n, each in enumerate(options) for _ in each])
    texts: list[Any] = [
        head + tail if isinstance(head, str) else [*head, *tail]
        for head, tails in zip(prompts, options, strict=True)
        for tail in tails
    ]
    task = _Task.of(scorer, scorer.encode(texts), prompts, asked, budget, seed)
    # Options in an order of their own, so that exchanging them changes no batch.
    kinds = torch.stack([task.tokens.lengths, task.count], dim=1)
    keys = zip(kinds.tolist(), asked.tolist(), task.tokens.ids.tolist(), strict=True)
    order = torch.tensor([f for _, f in sorted((key, f) for f, key in enumerate(keys))])
    cost = (task.passes * task.tokens.lengths)[order]
    found = in_parts(task, order, kinds[order], cost, keep, progress, "options")
    return task.summary(found["draws"][order.argsort()])


@dataclass(frozen=True)
class _Task:
    """F options with the place where each answer starts, its k, and its prompt's number."""

    scorer: Scorer
    tokens: Tokens
    start: Int[Tensor, " F"]
    count: Int[Tensor, " F"]
    asked: Int[Tensor, " F"]
    merged: Bool[Tensor, " N"]
    budget: int
    seed: int

    @classmethod
    def of(cls, scorer: Scorer, tokens: Tokens, prompts: Any, asked: Tensor, *rest: int) -> _Task:
        """Answers begin after the tokens that a prompt shares with itself and all its options."""
        if isinstance(prompts[0], str):
            prompts = scorer.tokenizer(list(prompts), verbose=False)["input_ids"]
        heads = [torch.as_tensor(each, dtype=torch.int64) for each in prompts]
        lengths = torch.tensor([len(each) for each in heads])
        width = tokens.ids.shape[1]
        padded = torch.full((len(heads), width), -1)
        for row, head in zip(padded, heads, strict=True):
            row[: len(head)] = head[:width]
        shared = (padded[asked] == tokens.ids).long().cumprod(dim=1).sum(dim=1)
        first = torch.full_like(lengths, width).scatter_reduce(0, asked, shared, "amin")
        places = torch.arange(width)
        end = torch.where(tokens.maskable, places + 1, 0).amax(dim=1)
        start = first[asked]
        inside = (places >= start[:, None]) & (places < end[:, None])
        unknown = getattr(scorer.tokenizer, "unk_token_id", None)
        lost = (places >= start[:, None]) & (tokens.ids == (-1 if unknown is None else unknown))
        lost |= inside & ~tokens.maskable
        most = width if scorer.max_length is None else scorer.max_length
        bad = lost.any(dim=1) | (end <= start) | (tokens.lengths > most)
        if bad.any():
            flat = int(bad.long().argmax())
            raise ValueError(
                f"option {int((asked[:flat] == asked[flat]).sum())} of prompt {int(asked[flat])} "
                f"cannot be scored: it has {int(end[flat] - start[flat])} tokens, "
                f"{int(lost[flat].sum())} of them special or unknown, in a row of "
                f"{int(tokens.lengths[flat])} (at most {most}). Leave it out."
            )
        closing = torch.zeros_like(lengths).scatter(0, asked, tokens.lengths - end)
        return cls(scorer, tokens, start, end - start, asked, first < lengths - closing, *rest)

    @property
    def passes(self) -> Int[Tensor, " F"]:
        """Masks of each option."""
        every = 2 ** self.count.clamp(max=60) - 1
        return every.where(every <= self.budget, self.budget // 2 * 2)

    def __call__(self, chosen: Int[Tensor, " B"]) -> Part:
        """Unbiased values of log-scores, two of each stratum, for options of one length and k."""
        rows, count = self.tokens.rows(chosen), int(self.count[chosen[0]])
        hidden = torch.stack([self._masks(count, int(n)) for n in self.asked[chosen]])
        where = self.start[chosen, None, None] + torch.arange(count).expand_as(hidden)
        mask = torch.zeros(*hidden.shape[:2], rows.ids.shape[1], dtype=torch.bool)
        mask.scatter_(2, where, hidden)
        row = torch.arange(len(mask)).repeat_interleave(mask.shape[1])
        values = self.scorer.log_tokens(
            rows.ids[row], mask.flatten(0, 1), rows.types[row], numbers=chosen[row]
        )
        draws = count * mask_score(values.view(mask.shape), mask)
        if 2**count - 1 <= self.budget:  # exact, and all draws the same
            by_size = mean_by_size(draws.T, hidden[0].sum(dim=1), count)[1:]
            draws = by_size.mean(dim=0)[:, None].repeat(1, self.budget // 2 * 2)
        return {"draws": draws}

    def _masks(self, count: int, prompt: int) -> Bool[Tensor, "P k"]:
        if 2**count - 1 <= self.budget:
            return masks.subsets(count)[1:]
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + prompt)
        strata = self.budget // 2
        jitter = torch.rand(strata, 2, generator=generator, dtype=torch.float64)
        level = (torch.arange(strata)[:, None] + jitter).flatten() / strata
        ranks = masks.sample_ranks(2 * strata, count, generator=generator)
        return masks.from_ranks(ranks, (level * count).long() + 1)

    def summary(self, draws: Float[Tensor, "F P"]) -> AnswerScores:
        """Scores, errors and differences by prompt and option."""
        number = torch.tensor([int((self.asked[:f] == n).sum()) for f, n in enumerate(self.asked)])
        at = (self.asked, number)
        shape = (len(self.merged), int(number.max()) + 1)
        tokens = torch.zeros(shape, dtype=torch.int64).index_put(at, self.count)
        every = torch.full((*shape, draws.shape[1]), torch.nan).double().index_put(at, draws)
        log_score, error = _mean_of_strata(every)
        best = log_score.nan_to_num(-torch.inf).argmax(dim=1)
        own = torch.arange(len(best))
        difference, difference_error = _mean_of_strata(every - every[own, best][:, None])
        least = tokens.where(tokens > 0, tokens.amax()).amin(dim=1)
        return AnswerScores(
            log_score,
            error,
            difference,
            difference_error,
            best,
            tokens,
            least == tokens.amax(dim=1),
            self.merged,
            torch.zeros_like(best).index_add(0, self.asked, self.passes),
        )


def _mean_of_strata(draws: Float[Tensor, "N O P"]) -> tuple[Tensor, Tensor]:
    """Mean, and its standard error from the two draws of each stratum."""
    pairs = draws.unflatten(-1, (-1, 2))
    within = pairs.diff(dim=-1).square().sum(dim=(-1, -2)).sqrt()
    return draws.mean(dim=-1), within / draws.shape[-1]
