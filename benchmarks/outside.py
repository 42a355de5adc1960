"""Pseudo-log-likelihoods, log-ratios and log-scores against minicons and masked copies: time, agreement.

    python benchmarks/outside.py

Needs ``pip install mpt-lml[peers]``, and the books in the folder that MPT_LML_DATA names; without them
there are no rows. Times are CPU times of one thread, on the book's small trained BERT and 120 different
short sentences, of which minicons gets eight in a batch.

Time to equal error: minicons has no log-score, but a whole order is as many of its masked copies as a
pseudo-log-likelihood. The variance of one order, or of one masked copy of a uniformly random size, over
the squared error of our default is how many of them have that error; their time is multiplied by it.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

import corpus
import torch
from torch import Tensor

import mpt_score
from mpt_lml import masks
from mpt_score import networks

NUM_SENTENCES = 120


def timed(function: Callable[[], Tensor], repeats: int = 3) -> tuple[float, Tensor]:
    """Shortest CPU time of ``repeats`` calls after one that is not counted, and the last value."""
    value, times = function(), []
    for _ in range(repeats):
        start = time.process_time()
        value = function()
        times.append(time.process_time() - start)
    return min(times), value


def rows() -> list[dict[str, float | str]]:
    """What, seconds of ours and of minicons, their ratio, and where both say it, the difference."""
    if importlib.util.find_spec("minicons") is None:
        print("not measured: minicons is not installed")
        return []
    from minicons.scorer import MaskedLMScorer

    network, tokenizer = networks.load_small_bert()
    theirs = MaskedLMScorer(network, "cpu", tokenizer=tokenizer)
    scorer = mpt_score.load(network, tokenizer)
    texts = corpus.short_sentences(NUM_SENTENCES)
    tokens = scorer.encode(texts)

    def outside() -> Tensor:
        found = []
        for start in range(0, len(texts), 8):
            batch = tokenizer(texts[start : start + 8], padding=True)
            found += theirs.compute_stats(theirs.get_masked_tensors(batch))
        return torch.tensor([sum(each) for each in found])

    def pseudo(scorer: mpt_score.Scorer = scorer) -> Tensor:
        terms = mpt_score.surprisals(scorer, tokens, num_orders=0, pseudo=True)
        sums = torch.zeros(len(texts), dtype=torch.float64)
        return sums.index_add(0, terms.text, terms.pseudo_log_likelihood)

    half = mpt_score.load(network, tokenizer, precision="bfloat16")

    def default() -> Tensor:
        found = mpt_score.sentences(scorer, texts)
        return torch.stack([found.standard_error, found.inconsistency])

    @torch.no_grad()
    def copies() -> Tensor:
        """Sixteen masked copies of each text, of uniformly random sizes: D times their scores."""
        generator, found = torch.Generator().manual_seed(4), []
        for row, places in zip(tokens.ids, tokens.maskable, strict=True):
            at, count = places.nonzero()[:, 0], int(places.sum())
            mask = torch.zeros(16, len(row), dtype=torch.bool)
            mask[:, at] = masks.sample_masks(16, count, masks.UniformSize(), generator=generator)
            ids, seen = row.expand(16, -1), row[: int(places.nonzero().max()) + 2]
            shown = ids.masked_fill(mask, tokenizer.mask_token_id)[:, : len(seen)]
            logs = (
                network(shown).logits.log_softmax(-1).gather(2, ids[:, : len(seen), None])[..., 0]
            )
            mask = mask[:, : len(seen)]
            found.append(count * (logs * mask).sum(dim=1) / mask.sum(dim=1))
        return torch.stack(found)

    def ratio() -> Tensor:
        return mpt_score.pairs(scorer, tokens, changed).log_ratio

    changed = tokens.ids.clone()
    changed[:, 2] = changed[:, 3]  # one word piece is another's
    changed = [row[:length].tolist() for row, length in zip(changed, tokens.lengths, strict=True)]
    slow, wanted = timed(outside)
    fast, found = timed(pseudo)
    faster, rounded = timed(lambda: pseudo(half))
    pair, _ = timed(ratio)
    mean, (error, spread) = timed(default)
    loop, values = timed(copies)
    # An order takes as many passes of minicons as a pseudo-log-likelihood: one a token.
    orders = (spread.square().sum() / error.square().sum()).item()
    drawn = (values.var(dim=1).sum() / error.square().sum()).item()
    agreement = (found - wanted).abs().max().item()
    off = ((rounded - wanted).abs() / tokens.num_features).max().item()
    said = (
        ("pseudo-log-likelihood", fast, slow, agreement),
        ("pseudo-log-likelihood in bfloat16; agreement a token", faster, slow, off),
        ("log-ratio, one token, against two pseudo-log-likelihoods", pair, 2 * slow, "–"),
        (f"log-score, against {orders:.2g} orders of equal error", mean, orders * slow, "–"),
        (
            f"log-score, against {drawn:.0f} masked copies of equal error, one text a time",
            mean,
            drawn / 16 * loop,
            "–",
        ),
    )
    return [
        {"what": what, "ours": ours, "minicons": other, "ratio": other / ours, "agreement": apart}
        for what, ours, other, apart in said
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in rows():
        print(*(f"{x:.3g}" if isinstance(x, float) else x for x in row.values()), sep=" | ")
