"""What a scorer does beside its network: batches, their shapes, and microseconds of the processor.

    python benchmarks/batches.py

On a GPU the processor's time between two batches is time in which the card waits. Here the network
answers zeros at once, so that what is left is the scorer's own work; batches are those of a GPU.
A hundred lines of 20 to 60 tokens are scored along four orders each, and then asked about with masks
that are made before.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

import mpt_score
from mpt_lml import masks
from mpt_score import MaskedLM
from mpt_score.networks.masked_lm import MAX_TOKENS_ON_GPU

CLS, SEP, MASK, FIRST_WORD = 2, 3, 4, 5
VOCABULARY = 8
NUM_LINES = 100
SHORTEST, LONGEST = 20, 60
NUM_ORDERS = 4


class Row(NamedTuple):
    """What a way of asking costs."""

    what: str
    passes: int
    batches: int
    shapes: int  # different (rows, length)
    largest_batch: int  # tokens
    microseconds: float  # of the processor, a pass


class _First(nn.Module):
    """What comes after attention in the last layer: where the scorer picks the hidden places."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


class StubBert(nn.Module):
    """A ``BertModel`` that answers zeros, and counts what it is asked."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layer = nn.Module()
        layer.attention = nn.Module()
        layer.attention.output = _First()
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList([layer])
        self.state = nn.Parameter(torch.zeros(1, 1, width))
        self.shapes: Counter[tuple[int, int]] = Counter()

    def forward(self, input_ids: Tensor, **_: Any) -> BaseModelOutput:
        self.shapes[tuple(input_ids.shape)] += 1
        hidden = self.state.expand(*input_ids.shape, -1)
        after_attention: Any = self.encoder.layer[-1].attention
        return BaseModelOutput(last_hidden_state=after_attention.output(hidden))


class StubLayer(nn.Module):
    """All tokens are as probable as each other."""

    def forward(self, states: Tensor) -> Tensor:
        return torch.zeros(1, VOCABULARY).expand(len(states), -1)


def stub(max_tokens: int = MAX_TOKENS_ON_GPU) -> tuple[mpt_score.Scorer, StubBert]:
    """A scorer of a network that costs nothing, and that network's body."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=LONGEST,
    )
    network = transformers.BertForMaskedLM(config)
    network.bert = StubBert(config.hidden_size)
    network.cls.predictions.transform = nn.Identity()
    network.cls.predictions.decoder = StubLayer()
    model = MaskedLM(
        network, MASK, special_token_ids=(CLS, SEP), precision="float32", max_tokens=max_tokens
    )
    return mpt_score.load(model), network.bert


def lines(
    num_lines: int = NUM_LINES, vocab_size: int = VOCABULARY, seed: int = 0
) -> list[list[int]]:
    """Rows of random tokens of random lengths, special ones included."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (num_lines,), generator=generator)
    rows = []
    for length in lengths.tolist():
        words = torch.randint(FIRST_WORD, vocab_size, (length - 2,), generator=generator)
        rows.append([CLS, *words.tolist(), SEP])
    return rows


def questions(rows: list[list[int]]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each length its texts, and of each question its text and its mask, along four orders."""
    by_length: dict[int, list[list[int]]] = {}
    for row in rows:
        by_length.setdefault(len(row), []).append(row)
    asked = []
    generator = torch.Generator().manual_seed(1)
    for length, texts in by_length.items():
        count = length - 2
        sizes = torch.arange(1, count + 1).repeat(NUM_ORDERS)
        ranks = masks.sample_ranks(NUM_ORDERS, count, generator=generator)
        hidden = masks.from_ranks(ranks.repeat_interleave(count, dim=0), sizes)
        hidden = nn.functional.pad(hidden, (1, 1)).repeat(len(texts), 1)
        text = torch.arange(len(texts)).repeat_interleave(NUM_ORDERS * count)
        asked.append((torch.tensor(texts), text, hidden))
    return asked


def measure(what: str, body: StubBert, call: Callable[[], Any], repeats: int) -> Row:
    """The shortest of some calls."""
    seconds = []
    for _ in range(repeats):
        body.shapes.clear()
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    passes = sum(rows * count for (rows, _), count in body.shapes.items())
    return Row(
        what=what,
        passes=passes,
        batches=sum(body.shapes.values()),
        shapes=len(body.shapes),
        largest_batch=max(rows * length for rows, length in body.shapes),
        microseconds=1e6 * min(seconds) / passes,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=NUM_LINES)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    scorer, body = stub()
    rows = lines(options.lines)
    asked = questions(rows)

    def ask_all() -> None:
        answers = [scorer.ask(*each) for each in asked]
        for answer in answers:
            answer()

    def sentences() -> None:
        mpt_score.sentences(scorer, rows, num_orders=NUM_ORDERS)

    print(*Row._fields)
    for what, call in (("questions", ask_all), ("sentences", sentences)):
        print(*measure(what, body, call, options.repeats))


if __name__ == "__main__":
    main()
