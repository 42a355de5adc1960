"""What a default score costs and how far it is off, beside the default that there was before.

Texts of about 10, 30, 120 and 500 tokens under the book's small BERT, which reads 62 at a time: the
longer ones go in windows. With ``--random`` under a BERT of random weights, which reads 512 at a
time, so that texts are whole. A pool of whole orders of each window is computed once. A default score
is then four orders from the pool of each window, drawn as often as is wanted, and the pool's own mean
is the truth that its intervals should hold. The former default was 32 masks in strata above 16 tokens;
each score of these is computed as it is.

    python benchmarks/usual_scores.py
    python benchmarks/usual_scores.py --random --tokens 120 500 --pool 60
"""

import argparse
import math
from typing import NamedTuple

import torch
import transformers
from jaxtyping import Float
from torch import Tensor

import mpt_score
from mpt_score import networks, texts
from mpt_score.sentence_scores import windows_of

FORMER_MASKS = 33
"""32 in strata, and the one that hides everything."""
FORMER_ORDERS = 2
LONGEST_BY_FORMER_ORDERS = 16
NUM_ORDERS = 4
RANDOM_VOCABULARY = 2000
CLS, SEP, MASK, FIRST_WORD = 2, 3, 4, 5


class Row(NamedTuple):
    """One length of text."""

    num_tokens: int
    num_windows: int
    former_passes: int
    former_error: float  # root mean square, nats
    passes: int
    error: float  # root mean square, nats
    coverage: float  # of intervals that should hold 95 %
    inconsistency: float  # nats
    inconsistency_coverage: float


def random_bert(seed: int = 0) -> mpt_score.Scorer:
    """A small BERT of random weights, ten times as large as at the start of a training.

    At that start tokens hardly depend on each other, and any order says nearly the same.
    """
    config = transformers.BertConfig(
        vocab_size=RANDOM_VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        initializer_range=0.2,
    )
    network = networks.at_random(transformers.BertForMaskedLM, config, seed=seed)
    return mpt_score.load(mpt_score.MaskedLM(network, MASK, special_token_ids=(CLS, SEP)))


def random_text(num_tokens: int, seed: int = 0) -> list[list[int]]:
    """Tokens drawn uniformly, between the first and the last special one."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(FIRST_WORD, RANDOM_VOCABULARY, (num_tokens,), generator=generator)
    return [[CLS, *tokens.tolist(), SEP]]


def windows_of_length(scorer: mpt_score.Scorer, num_tokens: int) -> list[list[int]]:
    """A text of so many tokens, from the book's own sentences, as the rows it is scored in."""
    framed = scorer.encode([" ".join(texts.sentences("written").first)]).ids[0]
    tokens = framed[1:-1].repeat(math.ceil(num_tokens / (len(framed) - 2)))[:num_tokens]
    row = scorer.encode([[int(framed[0]), *tokens.tolist(), int(framed[-1])]])
    return [window.ids[0].tolist() for window in windows_of(scorer, row)]


def drawn_scores(
    pool: Float[Tensor, "W S"], num_orders: int, num_draws: int, generator: torch.Generator
) -> mpt_score.SentenceScores:
    """Scores of the whole text from random orders of the pool."""
    num_windows, size = pool.shape
    chosen = torch.randint(size, (num_windows, num_draws * num_orders), generator=generator)
    totals = pool.gather(1, chosen).view(num_windows, num_draws, num_orders)
    spread = totals.var(dim=2)  # of each window, as estimate.py has it
    order_variance = spread.sum(dim=0)
    degrees = (num_orders - 1) * order_variance.square() / spread.square().sum(dim=0)
    nothing = torch.zeros(num_draws, dtype=torch.int64)
    unknown = torch.full((num_draws,), math.nan).double()
    return mpt_score.SentenceScores(
        num_tokens=nothing,
        num_unknown=nothing,
        num_bytes=nothing,
        num_windows=nothing,
        num_passes=nothing,
        log_score=totals.mean(dim=2).sum(dim=0),
        standard_error=(order_variance / num_orders).sqrt(),
        degrees=degrees,
        inconsistency=order_variance.sqrt(),
        inconsistency_degrees=degrees,
        mixture_lower=unknown,
        mixture_lower_error=unknown,
        mixture_upper=unknown,
        mixture_upper_error=unknown,
        is_heavy_tailed=nothing.bool(),
        pseudo_log_likelihood=unknown,
        documents=nothing,
    )


def root_mean_square(values: Tensor) -> float:
    return values.square().mean().sqrt().item()


def share_inside(interval: Float[Tensor, "N two"], truth: float) -> float:
    low, high = interval.T
    return ((low <= truth) & (truth <= high)).double().mean().item()


def compare(
    scorer: mpt_score.Scorer,
    rows: list[list[int]],
    pool_size: int,
    former_runs: int,
    num_draws: int,
) -> Row:
    """One text: both defaults.

    Args:
        scorer: of the network.
        rows: token ids of the text's windows.
        pool_size: orders of each window.
        former_runs: scores of the former default.
        num_draws: scores of four orders.
    """
    terms = mpt_score.surprisals(scorer, rows, num_orders=pool_size)
    pool = torch.zeros(len(rows), pool_size, dtype=torch.float64)
    pool = pool.index_add(0, terms.text, terms.terms.nan_to_num())
    truth = pool.mean(dim=1).sum().item()
    inconsistency = pool.var(dim=1, correction=0).sum().sqrt().item()
    generator = torch.Generator().manual_seed(0)
    drawn = drawn_scores(pool, NUM_ORDERS, num_draws, generator)
    sizes = [len(row) - 2 for row in rows]
    if max(sizes) <= LONGEST_BY_FORMER_ORDERS:
        former_orders = (FORMER_MASKS - 1) // max(sizes) + FORMER_ORDERS
        former = drawn_scores(pool, former_orders, num_draws, generator).log_score
        former_passes = sum(1 + former_orders * (size - 2) + size for size in sizes)
    else:
        scores = [
            mpt_score.sentences(scorer, rows, num_masks=FORMER_MASKS, seed=seed).log_score.sum()
            for seed in range(former_runs)
        ]
        former = torch.stack(scores)
        former_passes = sum(FORMER_MASKS + FORMER_ORDERS * (size - 2) + size for size in sizes)
    return Row(
        num_tokens=sum(sizes),
        num_windows=len(rows),
        former_passes=former_passes,
        former_error=root_mean_square(former - truth),
        passes=int(mpt_score.passes(scorer, rows).sum()),
        error=root_mean_square(drawn.log_score - truth),
        coverage=share_inside(drawn.interval(), truth),
        inconsistency=inconsistency,
        inconsistency_coverage=share_inside(drawn.inconsistency_interval(), inconsistency),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pool", type=int, default=100, help="orders of each window")
    parser.add_argument("--former", type=int, default=40, help="scores of the former default")
    parser.add_argument("--draws", type=int, default=4000, help="scores of four orders")
    parser.add_argument("--tokens", type=int, nargs="*", default=[10, 30, 120, 500])
    parser.add_argument("--random", action="store_true", help="a BERT of random weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    network = random_bert() if options.random else mpt_score.load(networks.small_bert_folder())
    print(*Row._fields)
    for length in options.tokens:
        rows = random_text(length) if options.random else windows_of_length(network, length)
        row = compare(network, rows, options.pool, options.former, options.draws)
        print(*(f"{value:.3g}" if isinstance(value, float) else value for value in row), flush=True)
