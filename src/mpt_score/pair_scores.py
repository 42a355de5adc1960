"""Two texts that differ in k tokens: the log-ratio of those k given the rest."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_lml.results import as_rows
from mpt_lml.spec import require
from mpt_lml.verdicts import mean_and_error
from mpt_score.blocks import Blocks
from mpt_score.design import SEED
from mpt_score.errors import TextError
from mpt_score.keep import Run, afresh
from mpt_score.scorer import Scorer, Texts, load
from mpt_score.tokens import Tokens


@dataclass(frozen=True, eq=False)
class PairScores:
    """Log-ratios of N pairs of texts, every Tensor (N,); nan for those that are not comparable.

    ``log_ratio`` is log q(x_A | x_R) − log q(y_A | x_R) in nats, A being the ``num_changed`` places k
    where x and y differ, mean over orders of A; its ``standard_error`` is over orders, 0 where all k!
    are in it. ``inconsistency`` is the standard deviation over orders, both texts in the same order: 0
    for conditionals of one joint distribution, and no error of the truth. ``num_passes`` are rows that
    went through the model for both texts, ``incomparable`` the pairs that were skipped, with the
    reason. ``pseudo_difference``, of two pseudo-log-likelihoods (2D more passes), is another quantity.

    >>> coin = lambda ids, mask: torch.tensor([0.25, 0.75]).double().log().expand(ids.shape + (2,))
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

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a pair, for a table."""
        return as_rows({k: each for k, each in vars(self).items() if isinstance(each, Tensor)})


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
    run: Run = afresh,
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
    require(locals(), "num_orders 2.., pseudo bool, skip bool, run Callable, " + SEED)
    one, other = scorer.encode(first), scorer.encode(second)
    if len(one) != len(other):
        raise ValueError(f"{len(one)} first texts came with {len(other)} second ones.")
    faults = {n: why for n in range(len(one)) if (why := _fault(scorer, one, other, n))}
    if faults and not skip:
        number, why = next(iter(faults.items()))
        remedy = f"({len(faults)} such pairs). Leave it out, or skip=True gives nan and lists it."
        raise TextError(f"pair {number} {why} {remedy}", number)
    good = torch.tensor([n not in faults for n in range(len(one))])
    width, numbers = min(one.ids.shape[1], other.ids.shape[1]), torch.arange(len(one))
    texts = [
        Tokens(
            t.ids[:, :width], t.types[:, :width], t.maskable[:, :width], t.lengths.clamp(max=width)
        )
        for t in (one, other)
    ]
    changed = (texts[0].ids != texts[1].ids) & good[:, None]
    blocks = Blocks(scorer, num_orders, seed)
    totals, spread = blocks(texts, changed, numbers, run)
    alone = Blocks(scorer, 0, seed)
    places = texts[0].maskable & changed.any(dim=1, keepdim=True) & pseudo
    difference = alone(texts, places, numbers, run)[0][:, 0] if pseudo else None
    count = changed.sum(dim=1)
    mean, error = mean_and_error(totals, dim=1)
    return PairScores(
        log_ratio=mean.where(good, torch.nan),
        standard_error=error.where(good, torch.nan),
        inconsistency=spread.where(good, torch.nan),
        num_changed=count,
        num_passes=2 * blocks.num_masks(count),
        incomparable=faults,
        pseudo_difference=None if difference is None else difference.where(good, torch.nan),
    )


def _fault(scorer: Scorer, one: Tokens, other: Tokens, n: int) -> str | None:
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
