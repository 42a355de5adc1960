"""Orders on AntiBERTy against the rate of the matrix products that they consist of.

    python benchmarks/antiberty.py [--orders 2] [--precision float32]

Needs AntiBERTy (pip install --no-deps antiberty==0.1.3) or, with --random, no weights. The products
are those of one pass, as many and of the same shapes, alone: eight layers' queries, keys, values,
outputs and feed-forward blocks, attention, and the vocabulary head. The last layer's feed-forward
block and the head see one residue of each row, the one that its order shows next. Both are timed in
turns, several times over, in CPU seconds of one thread; the ratio is of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import mpt_score
from experiments.antibodies import few
from mpt_score import networks
from mpt_score.networks.residues import VOCABULARY, ResidueTokenizer
from mpt_score.scorer import Scorer

REPEATS = 5


def scorer_of(precision: str, *, random: bool) -> Scorer:
    """AntiBERTy, or a network of its size without its weights."""
    options: dict[str, Any] = {"precision": precision}
    if not random:
        return mpt_score.load("antiberty", **options)
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=512,
        intermediate_size=2048,
        num_attention_heads=8,
        num_hidden_layers=8,
    )
    network = networks.at_random(BertForMaskedLM, config, seed=4)
    return mpt_score.load(network, ResidueTokenizer(), **options)


def products(config: Any, rows: int, length: int) -> list[tuple[int, tuple[int, ...]]]:
    """The products of one batch: how many of each, and (batch, m, k, n).

    Args:
        config: of the network.
        rows: that go through it together.
        length: tokens of a row, of which one is scored.
    """
    width = config.hidden_size
    inner = config.intermediate_size
    layers = config.num_hidden_layers
    heads = config.num_attention_heads
    size = width // heads
    tokens = rows * length
    return [
        (4 * layers - 1, (1, tokens, width, width)),  # queries, keys, values and outputs
        (1, (1, rows, width, width)),  # ... the last layer's output
        (layers - 1, (1, tokens, width, inner)),
        (layers - 1, (1, tokens, inner, width)),
        (1, (1, rows, width, inner)),
        (1, (1, rows, inner, width)),
        (layers, (rows * heads, length, size, length)),  # attention
        (layers, (rows * heads, length, length, size)),
        (1, (1, rows, width, width)),  # the head
        (1, (1, rows, width, config.vocab_size)),
    ]


def operands(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    batch, m, k, n = shape
    if batch == 1:
        return torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
    return torch.randn(batch, m, k, dtype=dtype), torch.randn(batch, k, n, dtype=dtype)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """As the network computes it: a linear layer, or a batch of products."""
    if x.ndim == 3:
        return x @ weight
    return functional.linear(x, weight)


@torch.no_grad()
def seconds_of_products(shapes: list[tuple[int, tuple[int, ...]]], dtype: torch.dtype) -> float:
    """CPU seconds of all of them, each timed by itself."""
    total = 0.0
    for times, shape in shapes:
        x, weight = operands(shape, dtype)
        product(x, weight)  # once before the clock
        start = time.process_time()
        for _ in range(times):
            product(x, weight)
        total += time.process_time() - start
    return total


def operations(shapes: list[tuple[int, tuple[int, ...]]]) -> float:
    return sum(2.0 * times * b * m * k * n for times, (b, m, k, n) in shapes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=2)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--random", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scorer = scorer_of(options.precision, random=options.random)
    tokens = scorer.encode([few()[2].heavy])
    count = int(tokens.num_features)
    length = count + 2
    rows = max(1, scorer.model.max_tokens // length)
    passes = options.orders * (count - 1) + 1  # all orders begin with everything hidden
    batches = passes / rows
    shapes = products(scorer.network.config, rows, length)
    dtype = getattr(torch, options.precision)
    ours, alone = [], []
    for repeat in range(REPEATS + 1):
        start = time.process_time()
        mpt_score.surprisals(scorer, tokens, num_orders=options.orders, seed=4)
        elapsed = time.process_time() - start
        of_products = batches * seconds_of_products(shapes, dtype)
        if repeat:  # the first is a warm-up
            ours.append(elapsed)
            alone.append(of_products)
    own, bare = statistics.median(ours), statistics.median(alone)
    work = batches * operations(shapes)
    print(
        f"{options.orders} orders of {count} residues, {options.precision}, {rows} rows a batch:\n"
        f"  ours     {own:7.2f} s, {own / passes:.4f} s a pass, {work / own / 1e9:6.1f} GFlop/s\n"
        f"  products {bare:7.2f} s, {bare / passes:.4f} s a pass, {work / bare / 1e9:6.1f} GFlop/s\n"
        f"  rate: {bare / own:.2f} of the products'"
    )


if __name__ == "__main__":
    main()
