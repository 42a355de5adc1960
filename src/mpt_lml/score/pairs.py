"""Two texts that differ in k tokens: the log-ratio of those k given the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from mpt_lml import masks
from mpt_lml.data import Tokens
from mpt_lml.score.door import Keep, Part, Progress, Scorer, Texts, afresh, in_parts, load, silent
from mpt_lml.scores import over_orders
from mpt_lml.shapes import require_count
from mpt_lml.verdicts import mean_and_error

__all__ = ["PairScores", "pairs"]


@dataclass(frozen=True)
class PairScores:
    """Log-ratios of N pairs of texts; nan for those that are not comparable.

    Attributes
    ----------
    log_ratio : Tensor (N,)
        log q(x_A | x_R) − log q(y_A | x_R) in nats, A being the k places where x and y differ: the
        mean over orders of A.
    standard_error : Tensor (N,)
        Of :attr:`log_ratio`: 0 where all k! orders are in it, else over the orders that were drawn.
    inconsistency : Tensor (N,)
        Standard deviation over orders, both texts in the same order. It is 0 for conditionals of
        one joint distribution, and no error of the truth.
    num_changed, num_passes : Tensor (N,) int64
        k, and rows that went through the model for both texts.
    incomparable : dict of int to str
        The pairs that were skipped, each with the reason.
    pseudo_difference : Tensor (N,), optional
        The usual difference of two pseudo-log-likelihoods, of 2D more passes: another quantity.

    >>> coin = lambda ids, mask: torch.tensor([0.25, 0.75]).log().expand(*ids.shape, 2)
    >>> pairs(coin, [[0, 1, 0]], [[0, 0, 0]]).rows()[0]["log_ratio"]
    1.0986122886681098
    """

    log_ratio: Float[Tensor, " N"]
    standard_error: Float[Tensor, " N"]
    inconsistency: Float[Tensor, " N"]
    num_changed: Int[Tensor, " N"]
    num_passes: Int[Tensor, " N"]
    incomparable: dict[int, str]
    pseudo_difference: Float[Tensor, " N"] | None = None

    def rows(self) -> list[dict[str, Any]]:
        """One dict a pair, for a table."""
        columns = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        each = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [
            {
                "pair": n,
                **dict(zip(columns, row, strict=True)),
                "note": self.incomparable.get(n, ""),
            }
            for n, row in enumerate(each)
        ]


def pairs(
    model: Any,
    first: Texts,
    second: Texts,
    *,
    tokenizer: Any = None,
    budget: int = 255,
    pseudo: bool = False,
    skip: bool = False,
    seed: int = 0,
    keep: Keep = afresh,
    progress: Progress = silent,
) -> PairScores:
    """log p(x) − log p(y) of texts x of ``first`` and y of ``second``, by the k tokens that differ.

    For conditionals of one joint the ratio is log p(x_A | x_R) − log p(y_A | x_R), in any order of
    A; a network's orders differ, and their mean is taken. 2^k − 1 masks of each text have all k! of
    them: when the places A are hidden and M = |A|, a random order is there and shows j next with
    probability (M − 1)! (k − M)! / k!. Beyond ``budget`` masks of a text (255: k > 8), ⌊budget / k⌋
    orders are drawn, at least two, the same for both. Equal texts have 0 without a pass.

    Texts with different numbers of tokens are not comparable by any masked model, which is told the
    number; nor are texts with unknown tokens, which stand for any word, and too long ones.

    Raises ``ValueError`` for such a pair, by its number, or with ``skip`` gives nan and lists it.

    >>> language = HMM.cyclic(num_features=4)
    >>> exact = load(lambda ids, mask: language.log_values(ids, mask))
    >>> x, y = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 4, 2, 9]])
    >>> found = pairs(exact, x, y)
    >>> torch.allclose(found.log_ratio, language.log_marginal(x) - language.log_marginal(y))
    True
    """
    scorer = load(model, tokenizer)
    require_count("budget", budget, 1)
    one, other = scorer.encode(first), scorer.encode(second)
    if len(one) != len(other):
        raise ValueError(f"{len(one)} first texts came with {len(other)} second ones.")
    faults = _faults(scorer, one, other)
    if faults and not skip:
        number, reason = next(iter(faults.items()))
        raise ValueError(f"pair {number} {reason} ({len(faults)} such pairs). {_REMEDY}")
    task = _Task(scorer, one, other, budget, seed, pseudo)
    good = torch.tensor([n not in faults for n in range(len(one))])
    width = min(one.ids.shape[1], other.ids.shape[1])
    count = (one.ids[:, :width] != other.ids[:, :width]).sum(dim=1).where(good, 0)
    passes = torch.tensor([2 * task.num_masks(k) for k in count.tolist()])
    kinds = torch.stack([one.lengths, count], dim=1)
    order = (one.lengths * (width + 1) + count).argsort(stable=True)
    order = order[count[order] > 0]
    cost = (passes + 2 * pseudo * one.num_features) * one.lengths
    found = in_parts(task, order, kinds[order], cost[order], keep, progress, "pairs")
    names = ("log_ratio", "standard_error", "inconsistency", *["pseudo_difference"] * pseudo)
    result = {name: torch.where(good, 0.0, torch.nan).double() for name in names}
    for name, values in found.items():
        result[name][order] = values
    return PairScores(num_changed=count, num_passes=passes, incomparable=faults, **result)


_REMEDY = "Leave it out, or skip=True gives nan and lists it."


def _faults(scorer: Scorer, one: Tokens, other: Tokens) -> dict[int, str]:
    """Which pairs are not comparable, and why."""
    faults = {}
    unknown = getattr(scorer.tokenizer, "unk_token_id", None)
    for n, lengths in enumerate(zip(one.lengths.tolist(), other.lengths.tolist(), strict=True)):
        length = min(lengths)
        x, y = one.ids[n, :length], other.ids[n, :length]
        changed = one.maskable[n, :length].logical_and(other.maskable[n, :length])[x != y]
        if lengths[0] != lengths[1]:
            faults[n] = (
                f"has texts of {one.num_features[n]} and {other.num_features[n]} tokens; a masked "
                "model is told their number and cannot compare them without a model of length"
            )
        elif scorer.max_length is not None and length > scorer.max_length:
            faults[n] = f"has {length} tokens, and the model has places for {scorer.max_length}"
        elif unknown in x.tolist() + y.tolist():
            faults[n] = "has a token that is unknown to the tokenizer and may stand for any word"
        elif not changed.all():
            faults[n] = "differs in a special token, which has no probability"
    return faults


@dataclass(frozen=True)
class _Task:
    scorer: Scorer
    one: Tokens
    other: Tokens
    budget: int
    seed: int
    pseudo: bool

    def num_masks(self, count: int) -> int:
        """Masks of a text whose k = ``count`` tokens differ."""
        every = 2**count - 1
        return every if every <= self.budget else count * max(2, self.budget // count)

    def __call__(self, chosen: Int[Tensor, " B"]) -> Part:
        """The scores of pairs of one length that differ in as many tokens."""
        one, other = self.one.rows(chosen), self.other.rows(chosen)
        places = (one.ids != other.ids).nonzero()[:, 1].view(len(one), -1)
        count = places.shape[1]
        every = 2**count - 1 <= self.budget
        if every:
            hidden = masks.subsets(count)[1:].expand(len(one), -1, -1)
        else:
            hidden = torch.stack([self._along_orders(count, int(n)) for n in chosen])
        where = places[:, None].expand_as(hidden)
        mask = torch.zeros(*hidden.shape[:2], one.ids.shape[1], dtype=torch.bool)
        mask.scatter_(2, where, hidden)
        rows = torch.arange(len(one)).repeat_interleave(mask.shape[1])
        ratio = self._log_ratios(chosen[rows], mask.flatten(0, 1)).view(mask.shape).gather(2, where)
        if every:
            mean, variance, *_ = over_orders(ratio.transpose(0, 1), masks.subsets(count))
            error, spread = 0 * mean, variance.sqrt()
        else:
            steps = hidden.unflatten(1, (-1, count))
            shown_next = steps & ~pad(steps[:, :, :-1], (0, 0, 1, 0))
            each = (ratio.view(steps.shape) * shown_next).sum(dim=(2, 3))
            (mean, error), spread = mean_and_error(each, dim=1), each.std(dim=1)
        found = {"log_ratio": mean, "standard_error": error, "inconsistency": spread}
        return found | ({"pseudo_difference": self._pseudo(chosen, one)} if self.pseudo else {})

    def _along_orders(self, count: int, number: int) -> Bool[Tensor, "P k"]:
        """Masks of sizes 1..k along random orders of a pair's places, one order after another."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        orders = masks.sample_ranks(self.num_masks(count) // count, count, generator=generator)
        return masks.nested_masks(orders).flatten(0, 1)

    def _log_ratios(self, rows: Int[Tensor, " R"], mask: Bool[Tensor, "R L"]) -> Tensor:
        """Of hidden tokens; each text in a call of its own, so that exchange turns signs only."""
        texts = (self.one.rows(rows), self.other.rows(rows))
        one, other = (self.scorer.log_tokens(t.ids, mask, t.types, numbers=rows) for t in texts)
        return one - other

    def _pseudo(self, chosen: Int[Tensor, " B"], rows: Tokens) -> Float[Tensor, " B"]:
        row, place = rows.maskable.nonzero().T
        ratio = self._log_ratios(chosen[row], one_hot(place, rows.ids.shape[1]).bool()).sum(dim=1)
        return ratio.new_zeros(len(chosen)).index_add(0, row, ratio)
