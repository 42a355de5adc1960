"""Masked language models against an evaluation loop: throughput, and time to one standard error.

    python benchmarks/language.py [--sentences 64] [--only small|base]

Needs GLUE's AX (and BERT's vocabulary for the random BERT-base) in the folder that MPT_LML_DATA
names. The literal loop makes one pass for each rate, 1..99 %, with one Bernoulli mask a sentence;
a few of its passes are timed and the rest extrapolated. Times are CPU times of one thread.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import literal
import numpy as np
import torch
from torch import Tensor

import mpt_score
from mpt_lml import masks
from mpt_score import Design, curve, networks
from mpt_score import texts as data
from mpt_score.networks.masked_lm import MaskedLM
from mpt_score.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RATES = (1, 2, 4, 7, 11, 18, 30, 50, 70, 90, 99)
"""Where the literal estimate's mean and variance are measured; both are interpolated between."""
NUM_RATES = 99
TIMED = (4, 6, 7, 8, 9)  # places in RATES, of the passes that are timed


@dataclass(frozen=True)
class Comparison:
    """Measured on one network; times in CPU seconds, errors in nats a token."""

    what: str
    tokens: int  # of all sentences, special ones counted, padding not
    literal_pass: float
    our_pass: float
    agreement: float
    literal_error: float
    our_error: float
    our_seconds: float
    literal_area: float
    our_area: float

    @property
    def throughput_ratio(self) -> float:
        """Tokens a second, ours over literal, at the same masks."""
        return self.literal_pass / self.our_pass

    @property
    def time_ratio(self) -> float:
        """Time to the same standard error of the area over masks, literal over ours."""
        literal_cost = NUM_RATES * self.literal_pass * self.literal_error**2
        return literal_cost / (self.our_seconds * self.our_error**2)


def bernoulli_masks(tokens: Tokens, rate: int, *, generator: torch.Generator) -> Tensor:
    """Every word piece hidden with probability ``rate`` percent."""
    chance = torch.rand(tokens.ids.shape, generator=generator)
    return (100 * chance < rate) & tokens.maskable


def our_sums(model: MaskedLM, tokens: Tokens, masks: Tensor) -> Tensor:
    """Sum of log q over each mask (P, N, L) -> (P, N): equally long sentences in one batch."""
    sums = torch.empty(masks.shape[:2], dtype=torch.float64)
    count = len(masks)
    for length in tokens.lengths.unique():
        rows = (tokens.lengths == length).nonzero().flatten()
        batch = tokens.rows(rows)
        hidden = masks[:, rows, : batch.ids.shape[1]].flatten(0, 1)
        ids, types = batch.ids.repeat(count, 1), batch.types.repeat(count, 1)
        values = model.log_tokens(ids, hidden, types=types)
        sums[:, rows] = values.sum(dim=1).view(count, len(rows))
    return sums


def token_average(sums: Tensor, sizes: Tensor) -> tuple[float, float]:
    """Mean over hidden tokens of all sentences, and its variance over masks; (2, N) each.

    The variance of a ratio, to first order, from two masks of each sentence.
    """
    mean = (sums.sum() / sizes.sum()).item()
    residual = sums - mean * sizes
    variance = residual.var(dim=0).sum() / sizes.double().mean(dim=0).sum() ** 2
    return mean, variance.item()


def over_rates(values: Sequence[float]) -> float:
    """Mean over 1, 2, ..., 99 % of what is known at RATES: straight lines between."""
    return float(np.interp(range(1, NUM_RATES + 1), RATES, values).mean())


def compare(what: str, network: PreTrainedModel, model: MaskedLM, tokens: Tokens) -> Comparison:
    """The literal loop and ours on the same sentences."""
    generator = torch.Generator().manual_seed(0)
    masks = torch.stack(
        [bernoulli_masks(tokens, r, generator=generator) for r in RATES for _ in range(2)]
    )
    first = masks[::2]
    some = first[list(TIMED)]
    start = time.process_time()
    slow = torch.stack([literal.masked_lm(network, tokens, m, model.mask_token_id) for m in some])
    literal_pass = (time.process_time() - start) / len(TIMED)
    both = masks.view(len(RATES), 2, *masks.shape[1:])[list(TIMED)].flatten(0, 1)
    start = time.process_time()
    fast = our_sums(model, tokens, both)[::2]
    our_pass = (time.process_time() - start) / len(both)
    pairs = our_sums(model, tokens, masks).view(len(RATES), 2, -1)
    sizes = masks.sum(dim=2).view(pairs.shape)
    found = [token_average(*each) for each in zip(pairs, sizes, strict=True)]
    mean, variance = (over_rates(each) for each in zip(*found, strict=True))
    design = Design(strata=8, num_masks=2)
    start = time.process_time()
    result = curve(model, tokens, design)
    share = result.num_features / result.num_features.sum()
    spread = result.values.mean(dim=2).var(dim=1) / design.num_masks
    return Comparison(
        what,
        int(tokens.lengths.sum()),
        literal_pass,
        our_pass,
        ((slow - fast).abs() / some.sum(dim=2).clamp_min(1)).max().item(),
        math.sqrt(variance / NUM_RATES),
        (share.square() * spread).sum().sqrt().item(),
        time.process_time() - start,
        mean,
        (result.area("sentence") / result.num_features.double().mean()).item(),
    )


@dataclass(frozen=True)
class Scores:
    """Log-scores of sentences: CPU seconds, and root-mean-square errors over masks in nats."""

    what: str
    sentences: int
    literal_seconds: float
    our_seconds: float
    literal_error: float
    our_error: float
    agreement: float

    @property
    def same_error_seconds(self) -> float:
        """What the loop takes to our error: as many copies more as its variance is larger."""
        return self.literal_seconds * (self.literal_error / self.our_error) ** 2


def score_sentences(
    what: str, network: PreTrainedModel, tokenizer: Any, texts: list[str]
) -> Scores:
    """``score.sentences`` against a loop of D masked copies of each, one random mask of each size."""
    scorer = mpt_score.load(network, tokenizer)
    tokens = scorer.encode(texts)
    mask_token, g = tokenizer.mask_token_id, torch.Generator().manual_seed(0)
    areas, singles, seconds = [], [], 0.0
    for n in range(len(tokens)):
        row = tokens.rows(torch.tensor([n]))
        count = int(row.num_features[0])
        some = [row.rows(torch.zeros(count).long()).sample_ranks(generator=g) for _ in range(2)]
        sizes = torch.arange(1, count + 1)
        start = time.process_time()
        first = literal.masked_copies(network, row, masks.from_ranks(some[0], sizes), mask_token)
        seconds += time.process_time() - start
        again = literal.masked_copies(network, row, masks.from_ranks(some[1], sizes), mask_token)
        areas.append(torch.stack([(each / sizes).sum() for each in (first, again)]))
        single = torch.zeros(count, row.ids.shape[1], dtype=torch.bool)
        single[range(count), row.maskable[0].nonzero().flatten()] = True
        singles.append(literal.masked_copies(network, row, single, mask_token).sum())
    start = time.process_time()
    found = mpt_score.sentences(scorer, tokens, num_masks=33)
    ours = time.process_time() - start
    pseudo = mpt_score.sentences(scorer, tokens, num_masks=1, pseudo=True).pseudo_log_likelihood
    return Scores(
        what,
        len(tokens),
        seconds,
        ours,
        torch.stack(areas).var(dim=1).mean().sqrt().item(),
        found.standard_error.square().mean().sqrt().item(),
        (pseudo - torch.stack(singles)).abs().max().item(),
    )


def report(each: Comparison) -> str:
    """A few lines of text."""
    rate = each.tokens / each.literal_pass, each.tokens / each.our_pass
    return "\n".join(
        [
            f"{each.what}: {each.tokens} tokens",
            f"  throughput, tokens/s: literal {rate[0]:.0f}, ours {rate[1]:.0f}, "
            f"ratio {each.throughput_ratio:.2f}; largest difference of a sentence's score "
            f"{each.agreement:.1e} nats a token",
            f"  standard error over masks: literal {each.literal_error:.5f} in "
            f"{NUM_RATES * each.literal_pass:.0f} s (extrapolated), ours {each.our_error:.5f} in "
            f"{each.our_seconds:.1f} s; time to the same error {each.time_ratio:.1f} times less",
            f"  area: literal {each.literal_area:.4f} (interpolated), ours {each.our_area:.4f} nats a "
            "token, all tokens alike",
        ]
    )


def small(num_sentences: int) -> Comparison:
    """The book's small BERT, trained."""
    network, tokenizer = networks.load_small_bert()
    longest = network.config.max_position_embeddings
    tokens = data.some_tokens("glue/ax", tokenizer, num_sentences, longest)
    model = MaskedLM.of(network, tokenizer, max_tokens=4096)
    return compare("small BERT, AX", network, model, tokens)


def small_scores(num_sentences: int) -> Scores:
    """The same network, whole texts of the same set."""
    texts = list(data.sentences("glue/ax").first[:num_sentences])
    return score_sentences("small BERT, AX", *networks.load_small_bert(), texts)


def base(num_sentences: int) -> Comparison:
    """BERT-base at random initialization."""
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = networks.load_tokenizer(data.bert_vocabulary())
    network = networks.at_random(BertForMaskedLM, BertConfig(), seed=4)
    tokens = data.some_tokens("glue/ax", tokenizer, num_sentences, 512)
    model = MaskedLM.of(network, tokenizer, max_tokens=2048)
    return compare("random BERT-base, AX", network, model, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--only", choices=("small", "base"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, function in (("small", small), ("base", base)):
        if options.only in (None, name):
            print(report(function(options.sentences)), flush=True)
    if options.only != "base":
        print(small_scores(options.sentences))


if __name__ == "__main__":
    main()
