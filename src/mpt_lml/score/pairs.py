"""Two texts that differ in k tokens: the log-ratio of those k given the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from mpt_lml.data import Tokens
from mpt_lml.score.blocks import Blocks, in_parts
from mpt_lml.score.door import Keep, Part, Progress, Scorer, Texts, afresh, load, silent
from mpt_lml.shapes import require_count
from mpt_lml.verdicts import mean_and_error

__all__ = ["PairScores", "pairs"]


@dataclass(frozen=True)
class PairScores:
    """Log-ratios of N pairs of texts, every Tensor (N,); nan for those that are not comparable.

    Attributes
    ----------
    log_ratio, standard_error : Tensor
        log q(x_A | x_R) − log q(y_A | x_R) in nats, A being the k places where x and y differ, mean
        over orders of A; the error is over orders, 0 where all k! are in it.
    inconsistency : Tensor
        Standard deviation over orders, both texts in the same order. It is 0 for conditionals of
        one joint distribution, and no error of the truth.
    num_changed, num_passes : Tensor
        k, and rows that went through the model for both texts.
    incomparable : dict of int to str
        The pairs that were skipped, each with the reason.
    pseudo_difference : Tensor, optional
        Difference of two pseudo-log-likelihoods, of 2D more passes: the usual, another quantity.

    >>> coin = lambda ids, mask: torch.tensor([0.25, 0.75]).double().log().expand(*ids.shape, 2)
    >>> pairs(coin, [[0, 1, 0]], [[0, 0, 0]]).log_ratio.exp()
    tensor([3.0000], dtype=torch.float64)
    """

    log_ratio: Float[Tensor, " N"]
    standard_error: Float[Tensor, " N"]
    inconsistency: Float[Tensor, " N"]
    num_changed: Int[Tensor, " N"]
    num_passes: Int[Tensor, " N"]
    incomparable: dict[int, str]
    pseudo_difference: Float[Tensor, " N"] | None = None


def pairs(
    model: Any,
    first: Texts,
    second: Texts,
    *,
    tokenizer: Any = None,
    num_orders: int = 32,
    pseudo: bool = False,
    skip: bool = False,
    seed: int = 0,
    keep: Keep = afresh,
    progress: Progress = silent,
) -> PairScores:
    """log p(x) − log p(y) of texts x of ``first`` and y of ``second``, by the k tokens that differ.

    For conditionals of one joint that is log p(x_A | x_R) − log p(y_A | x_R), in any order of A. A
    network's orders differ: their mean is taken. All k! are in the 2^k − 1 masks of each text; where
    k masks for each of ``num_orders`` are fewer (32: k > 8), so many are drawn, the same for both.
    k = 0 gives 0 without a pass.

    Texts with different numbers of tokens are not comparable by any masked model, which is told the
    number; nor are those with unknown tokens, which stand for any word, and too long ones. Raises
    ``ValueError`` for such a pair, by its number, or with ``skip`` gives nan and lists it.

    >>> language = HMM.cyclic(num_features=4)
    >>> x, y = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 4, 2, 9]])
    >>> found = pairs(language.log_values, x, y)
    >>> torch.allclose(found.log_ratio, language.log_marginal(x) - language.log_marginal(y))
    True
    """
    scorer = load(model, tokenizer)
    require_count("num_orders", num_orders, 2)
    one, other = scorer.encode(first), scorer.encode(second)
    if len(one) != len(other):
        raise ValueError(f"{len(one)} first texts came with {len(other)} second ones.")
    faults = {n: why for n in range(len(one)) if (why := _fault(scorer, one, other, n))}
    if faults and not skip:
        number, why = next(iter(faults.items()))
        remedy = f"({len(faults)} such pairs). Leave it out, or skip=True gives nan and lists it."
        raise ValueError(f"pair {number} {why} {remedy}")
    task = _Task(Blocks(scorer, num_orders, seed), one, other, pseudo)
    good = torch.tensor([n not in faults for n in range(len(one))])
    width = min(one.ids.shape[1], other.ids.shape[1])
    count = (one.ids[:, :width] != other.ids[:, :width]).sum(dim=1).where(good, 0)
    passes = torch.tensor([2 * task.blocks.num_masks(k) for k in count.tolist()])
    cost = (passes + 2 * pseudo * one.num_features) * one.lengths
    kinds = torch.stack([one.lengths, count], dim=1)
    order = (one.lengths * (width + 1) + count).argsort(stable=True)
    order = order[count[order] > 0]
    found = in_parts(task, order, kinds[order], cost[order], keep, progress)
    names = ("log_ratio", "standard_error", "inconsistency", *["pseudo_difference"] * pseudo)
    result = {name: torch.where(good, 0.0, torch.nan).double() for name in names}
    for name, values in found.items():
        result[name][order] = values
    return PairScores(num_changed=count, num_passes=passes, incomparable=faults, **result)


def _fault(scorer: Scorer, one: Tokens, other: Tokens, n: int) -> str | None:
    """Why a pair is not comparable."""
    x, y = (each.ids[n, : each.lengths[n]].tolist() for each in (one, other))
    if len(x) != len(y):
        return (
            f"has texts of {one.num_features[n]} and {other.num_features[n]} tokens; a masked model "
            "is told their number and cannot compare them without a model of length"
        )
    if scorer.max_length is not None and len(x) > scorer.max_length:
        return f"has {len(x)} tokens, the model has places for {scorer.max_length}"
    if getattr(scorer.tokenizer, "unk_token_id", None) in x + y:
        return "has a token that is unknown to the tokenizer and may stand for any word"
    shown = zip(one.maskable[n].tolist(), other.maskable[n].tolist(), x, y, strict=False)
    if any(a != b and not (can and also) for can, also, a, b in shown):
        return "differs in a special token, which has no probability"
    return None


@dataclass(frozen=True)
class _Task:
    blocks: Blocks
    one: Tokens
    other: Tokens
    pseudo: bool

    def __call__(self, chosen: Int[Tensor, " B"]) -> Part:
        """The scores of pairs of one length that differ in as many tokens.

        Each text in a call of its own: exchanging the two then turns signs and nothing else.
        """
        texts = one, other = self.one.rows(chosen), self.other.rows(chosen)
        places = (one.ids != other.ids).nonzero()[:, 1].view(len(one), -1)
        x, y = (self.blocks.terms(text, places, chosen) for text in texts)
        totals, spread = self.blocks.totals(x - y)
        mean, error = mean_and_error(totals, dim=1)
        found = {"log_ratio": mean, "standard_error": error, "inconsistency": spread}
        if self.pseudo:
            x, y = (self._pseudo(text, chosen) for text in texts)
            found["pseudo_difference"] = x - y
        return found

    def _pseudo(self, rows: Tokens, numbers: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        row, place = rows.maskable.nonzero().T
        each, mask = rows.rows(row), one_hot(place, rows.ids.shape[1]).bool()
        scorer, total = self.blocks.scorer, torch.zeros(len(rows), dtype=torch.float64)
        values = scorer.log_tokens(each.ids, mask, each.types, numbers=numbers[row]).sum(dim=1)
        return total.index_add(0, row, values)
