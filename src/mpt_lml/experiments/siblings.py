"""Networks of the small BERT's size and text: other seeds, 15 % only, left to right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mpt_lml import networks
from mpt_lml.data import Tokens
from mpt_lml.experiments.base import Bench, Finding, Outcome, checksum, experiment
from mpt_lml.experiments.bert import some_tokens
from mpt_lml.experiments.small_bert import LENGTH, Training, next_scores
from mpt_lml.files import digest
from mpt_lml.score import Design, curve, load
from mpt_lml.score.blocks import Blocks
from mpt_lml.score.door import Part


@experiment(
    "siblings",
    title="Networks of the small BERT's size and text: other seeds, 15 % only, left to right",
    cost="about 1 h",
    quick={"vocab_size": 200, "width": 32, "num_layers": 2, "num_steps": 4, "batch_tokens": 256}
    | {"num_held_out": 8, "every": 2, "source": "written", "data_sets": ("written",)}
    | {"num_sentences": 4, "num_orders": 2, "rates": (25, 50, 75)},
    resumable=True,
)
class Siblings(Training):
    """A third of the small BERT's steps each; ``kinds`` are architecture, law of sizes, seed.

    Read on the same sentences; ``seeds`` are for the masks and orders of the reading.
    """

    num_steps: int = 2000
    kinds: tuple[tuple[networks.Architecture, str, int], ...] = (
        ("decoder", "next", 4),
        ("modern", "mixture", 4),
        ("modern", "mixture", 5),
        ("modern", "fifteen", 4),
    )
    data_sets: tuple[str, ...] = ("books", "wikitext-2")
    num_sentences: int = 300
    num_orders: int = 16
    rates: tuple[int, ...] = tuple(range(1, 100, 2))

    def run(self, bench: Bench) -> Outcome:
        """Train, then score the same sentences.

        Arrays, for each network LAW/SEED: ``watched/NETWORK`` (W, 4) as of small-bert. For each set
        ``tokens/SET`` (N,); ``log_p/NETWORK/SET`` (N,) of the causal network, nats a sentence; of a
        masked one ``area``, ``mixture`` (log of the mean p_σ over S random orders, the same ones for
        each network) and ``spread`` (of log p_σ over them), /NETWORK/SET (N,), nats a sentence;
        ``curve`` and ``error`` (R,), ``hidden`` (), nats per token; ``mean_rate`` (2,), r* in
        percent. NETWORK small-bert is the book's own, where its word pieces are those of the others.
        """
        tokenizer, batches, held_out = self.read()
        size = {"width": self.width, "num_layers": self.num_layers}
        arrays: dict[str, Tensor] = {}
        trained: dict[str, Any] = {}
        for architecture, law, seed in self.kinds:
            network = networks.small_masked_lm(len(tokenizer), architecture, seed=seed, **size)
            name, how = f"{law}/{seed}", (law, self.num_steps, self.num_steps, seed)
            arrays[f"watched/{name}"] = self.train(bench, name, network, batches, held_out, *how)
            trained[name] = network.eval()
        own, pieces = networks.load_small_bert()
        if pieces.get_vocab() == tokenizer.get_vocab():
            trained["small-bert"] = own.to(bench.device)
        for text in self.data_sets:
            tokens = some_tokens(text, tokenizer, self.num_sentences, LENGTH)
            arrays[f"tokens/{text}"] = tokens.num_features
            for name, network in trained.items():
                if name.startswith("next/"):
                    found = {"log_p": log_probability(network, tokens)}
                else:
                    found = self.score(bench, f"{name}/{text}", network, tokenizer, tokens)
                arrays |= {f"{key}/{name}/{text}": value for key, value in found.items()}
        text, causal = self.data_sets[0], "{1}/{2}".format(*self.kinds[0])
        count, findings = arrays[f"tokens/{text}"].double().mean(), {}
        for name in [each for each in trained if each != causal]:  # nats a token, first set
            ahead = (arrays[f"area/{name}/{text}"] - arrays[f"log_p/{causal}/{text}"]) / count
            findings[f"siblings-{name.replace('/', '-')}"] = Finding.over(ahead)
        return Outcome(findings, arrays, checksum([batches.stream, held_out]))

    def score(
        self, bench: Bench, name: str, network: Any, tokenizer: Any, tokens: Tokens
    ) -> dict[str, Tensor]:
        """Curve and orders of a masked network."""
        scorer = load(network, tokenizer, precision="bfloat16")
        design, identity = Design(self.rates, seed=self.seeds[0]), scorer.identity or {}

        def keep(part: str, work: Callable[[], Part]) -> Part:
            return bench.keep(f"{name}/{part}", work, data=digest("", vars(tokens)), **identity)

        found = curve(scorer, tokens, design, keep=keep, progress=bench.progress)
        along, spread = Blocks(scorer, self.num_orders, self.seeds[0])(
            [tokens], tokens.maskable, torch.arange(len(tokens)), keep, bench.progress
        )
        rate = found.mean_rate()
        return {
            "area": found.each.mean(dim=1) * tokens.num_features,
            "mixture": along.logsumexp(dim=1) - math.log(along.shape[1]),
            "spread": spread,
            "curve": found.score,
            "error": found.standard_error,
            "hidden": found.hidden.mean(),
            "mean_rate": torch.tensor([rate, rate.standard_error], dtype=torch.float64),
        }


@torch.no_grad()
def log_probability(network: Any, tokens: Tokens) -> Float[Tensor, " N"]:
    """log p of each sentence of a causal network, nats, pieces that are not scored shown."""
    found = torch.zeros(len(tokens), dtype=torch.float64)
    for length in tokens.lengths.unique():
        rows = (tokens.lengths == length).nonzero()[:, 0]
        values = next_scores(network, tokens.ids[rows, :length]).double().cpu()
        found[rows] = (values * tokens.maskable[rows, 1 : length - 1]).sum(dim=1)
    return found
