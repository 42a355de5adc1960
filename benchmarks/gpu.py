"""A scorer's tokens a second on a GPU beside those of its network alone.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --json gpu.json

The network has BERT-base's shape and random weights. Lines have 20 to 60 random tokens, about 40. The
network alone is its body without the vocabulary head, in the same precision and at the very shapes that
the scorer gave it, on random ids that are on the card already. The goal is half of its rate for 100
lines and 0.8 of it from 1,000 lines on. A thousand are for a card's fast precision alone: in float32
they take minutes, as on cards before compute capability 8, such as the T4.

The naive pseudo-log-likelihood is a loop over texts: D copies of each, the logits of all their places,
their softmax, and one number from each row; the goal is five times its rate.

It needs no file. Without a GPU ``--tiny`` tries the script itself.
"""

import argparse
import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from batches import CLS, FIRST_WORD, MASK, SEP, lines
from torch import Tensor

import mpt_score
from experiments.records import write_json
from mpt_score import MaskedLM, networks
from mpt_score.networks.precision import Precision, fast_precision, in_precision

NUM_ORDERS = 4
TINY = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 100,
}

Shapes = Counter[tuple[int, int]]


class Rates(NamedTuple):
    """Of the log-scores of some lines, along four orders."""

    precision: str
    num_lines: int
    passes: int
    batches: int
    shapes: int
    cold_seconds: float  # the first call of all
    seconds: float
    tokens_per_second: float
    network_tokens_per_second: float
    share_of_network: float
    peak_gibibytes: float


class PseudoLogLikelihood(NamedTuple):
    """Of some lines, against a loop."""

    precision: str
    num_lines: int
    seconds: float
    loop_seconds: float
    ratio: float
    largest_difference: float  # nats a token


class Rounding(NamedTuple):
    """What a precision changes of log q of single tokens, in nats."""

    precision: str
    root_mean_square: float
    largest: float


def timed(call: Callable[[], Any], device: torch.device, repeats: int = 3) -> tuple[float, float]:
    """Seconds of the first call, and the fewest of ``repeats`` more."""
    seconds = []
    for _ in range(1 + repeats):
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return seconds[0], min(seconds[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def shapes_of(network: Any) -> Iterator[Shapes]:
    """(rows, length) of the batches that go through a network."""
    shapes: Shapes = Counter()

    def count(_: Any, __: Any, named: dict[str, Tensor]) -> None:
        rows, length = named["input_ids"].shape
        shapes[rows, length] += 1

    with network.register_forward_pre_hook(count, with_kwargs=True):
        yield shapes


@torch.no_grad()
def body_alone(model: MaskedLM, shapes: Shapes) -> float:
    """Seconds that the body needs for these batches."""
    network = model.network
    generator = torch.Generator().manual_seed(0)
    inputs = []
    for (rows, length), count in shapes.items():
        ids = torch.randint(
            FIRST_WORD, network.config.vocab_size, (rows, length), generator=generator
        )
        inputs.append((ids.to(model.device), count))

    def run() -> None:
        with model._evaluation_context(max(length for _, length in shapes)):
            for ids, count in inputs:
                for _ in range(count):
                    network.base_model(input_ids=ids)

    return timed(run, model.device)[1]


def rates(model: MaskedLM, num_lines: int) -> Rates:
    """``mpt_score.sentences`` beside the body at the same shapes."""
    scorer = mpt_score.load(model)
    rows = lines(num_lines, vocab_size=model.network.config.vocab_size)

    def score() -> None:
        mpt_score.sentences(scorer, rows, num_orders=NUM_ORDERS)

    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(model.device)
    cold, seconds = timed(score, model.device)
    peak = torch.cuda.max_memory_allocated(model.device) if model.device.type == "cuda" else 0
    with shapes_of(model.network) as shapes:
        score()
    tokens = sum(count * rows * length for (rows, length), count in shapes.items())
    alone = tokens / body_alone(model, shapes)
    return Rates(
        precision=model.precision,
        num_lines=num_lines,
        passes=sum(count * rows for (rows, _), count in shapes.items()),
        batches=sum(shapes.values()),
        shapes=len(shapes),
        cold_seconds=cold,
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        network_tokens_per_second=alone,
        share_of_network=tokens / seconds / alone,
        peak_gibibytes=peak / 2**30,
    )


def pseudo_log_likelihood(model: MaskedLM, num_lines: int) -> PseudoLogLikelihood:
    """``mpt_score.surprisals`` beside the naive loop, in the same precision."""
    scorer = mpt_score.load(model)
    rows = lines(num_lines, vocab_size=model.network.config.vocab_size)
    found: dict[str, Tensor] = {}

    def ours() -> None:
        scores = mpt_score.surprisals(scorer, rows, num_orders=0, pseudo=True)
        found["ours"] = scores.pseudo_log_likelihood

    @torch.no_grad()
    def loop() -> None:
        values = []
        for row in rows:
            count = len(row) - 2
            copies = torch.tensor(row, device=model.device).repeat(count, 1)
            places = torch.arange(1, count + 1, device=model.device)
            each = torch.arange(count, device=model.device)
            wanted = copies[each, places]
            copies[each, places] = MASK
            logits = model.network(input_ids=copies).logits
            log_probabilities = logits.float().log_softmax(dim=-1)
            values += log_probabilities[each, places, wanted].tolist()
        found["loop"] = torch.tensor(values, dtype=torch.float64)

    model.network.eval()
    _, seconds = timed(ours, model.device)
    _, loop_seconds = timed(loop, model.device, repeats=1)
    return PseudoLogLikelihood(
        precision=model.precision,
        num_lines=num_lines,
        seconds=seconds,
        loop_seconds=loop_seconds,
        ratio=loop_seconds / seconds,
        largest_difference=(found["ours"] - found["loop"]).abs().max().item(),
    )


def rounding(precision: Precision, device: torch.device) -> Rounding:
    """On the book's small BERT, against float64 on the CPU; apart from that, the page's numbers."""
    network, tokenizer = networks.load_small_bert()
    texts = list(mpt_score.texts.sentences("written").first)

    def terms(network: Any, precision: Precision) -> Tensor:
        scorer = mpt_score.load(network, tokenizer, precision=precision)
        return mpt_score.surprisals(scorer, texts, num_orders=NUM_ORDERS).terms

    exact = terms(copy.deepcopy(network).double(), "float32")  # which leaves float64 as it is
    error = terms(network.to(device), precision) - exact
    return Rounding(precision, error.square().mean().sqrt().item(), error.abs().max().item())


def line_counts(device: torch.device, precision: Precision) -> tuple[int, ...]:
    """How many lines are scored, one after the other."""
    if precision == "float32" or torch.cuda.get_device_capability(device)[0] < 8:
        return (100,)  # a thousand would take minutes
    return (100, 1000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="PATH", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a tiny network, on a CPU too")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.tiny:
        print("not measured: there is no GPU of CUDA's here")
        return 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    print(f"{name}, torch {torch.__version__}, transformers {transformers.__version__}")
    config = transformers.BertConfig(**(TINY if options.tiny else {}))
    network = networks.at_random(transformers.BertForMaskedLM, config, seed=4).to(device)
    rows: list[Any] = []

    def keep(row: Any) -> None:
        rows.append({"what": type(row).__name__, **row._asdict()})
        print(row, flush=True)
        if options.json:  # now, since the rest may be stopped
            write_json(options.json, {"device": name, "torch": torch.__version__, "rows": rows})

    for precision in dict.fromkeys(("float32", "bfloat16", "float16", fast_precision(device))):
        keep(rounding(precision, device))
    for precision in dict.fromkeys((fast_precision(device), "float32")):
        model = MaskedLM(
            in_precision(network, precision),
            MASK,
            special_token_ids=(CLS, SEP),
            precision=precision,
        )
        keep(pseudo_log_likelihood(model, 4 if options.tiny else 100))
        for num_lines in (4,) if options.tiny else line_counts(device, precision):
            keep(rates(model, num_lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
