"""Beside the small BERT: other seeds, 15 % only, left to right, n-grams; on its own text."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mpt_experiments.experiment import Arrays, Finding, Outcome, RunContext, setting
from mpt_experiments.findings.small_bert import LENGTH, SmallBertTraining, next_scores
from mpt_experiments.paper.bert import kept, pair, some_tokens
from mpt_score import Design, curve, load, networks, sentences
from mpt_score.blocks import Blocks
from mpt_score.networks.masked_lm import MaskedLM
from mpt_score.tokens import Tokens


class Siblings(SmallBertTraining, name="siblings", cost="about 1 h", resumable=True):
    """Networks of the small BERT's size and text: other seeds, 15 % only, left to right.

    A third of the small BERT's steps each; ``kinds`` are architecture, law of sizes, seed. All are
    read on the same sentences; ``seeds`` are for the masks and orders of the reading. Arrays, for
    each network LAW/SEED: ``watched/NETWORK`` (W, 4) as of small-bert. For each set ``tokens/SET``
    (N,), and (N,), nats a sentence: ``log_p/NAME/SET`` of the causal network and of 1-, 2- and
    3-grams; of a masked NETWORK ``area``, its ``error`` over masks, ``pseudo`` (-log-likelihood),
    ``mixture``, log of the mean p_σ over S random orders, the same ones for each network, and
    ``spread`` of log p_σ over them, /NETWORK/SET. ``curve`` (R,), ``hidden`` (), nats per token;
    ``mean_rate`` (2,), r* in percent. NETWORK small-bert is the book's own, where its word pieces are
    those of the others.
    """

    num_steps: int = setting(2000, quick=4)
    kinds: tuple[tuple[networks.Architecture, str, int], ...] = (
        ("decoder", "next", 4),
        ("modern", "mixture", 4),
        ("modern", "mixture", 5),
        ("modern", "fifteen", 4),
    )
    data_sets: tuple[str, ...] = setting(("books", "wikitext-2"), quick=("written",))
    num_sentences: int = setting(300, quick=4)
    num_orders: int = setting(4, quick=2)
    rates: tuple[int, ...] = setting(tuple(range(1, 100, 2)), quick=(25, 50, 75))

    def measure(self, context: RunContext) -> Outcome:
        own = self.read()
        tokenizer = own.tokenizer
        arrays: Arrays = {}
        trained: dict[str, Any] = {}
        for architecture, law, seed in self.kinds:
            network, name = self.network(own, architecture, seed), f"{law}/{seed}"
            arrays[f"watched/{name}"] = self.train(context, name, network, own, (law, seed))
            trained[name] = network.eval()
        small, pieces = networks.load_small_bert()
        if pieces.get_vocab() == tokenizer.get_vocab():
            trained["small-bert"] = small.to(context.device)
        rows = [each for each in own.stream.split(own.lengths.tolist()) if len(each)]
        grams = {f"{n}-gram": KneserNey(rows, len(tokenizer), n) for n in (1, 2, 3)}
        for text in self.data_sets:
            tokens = some_tokens(text, tokenizer, self.num_sentences, LENGTH)
            arrays[f"tokens/{text}"] = tokens.num_features
            shown = tokens.maskable[:, 1:-1]
            for name, gram in grams.items():
                values = gram.log_probability(tokens.ids[:, 1:-1])
                arrays[f"log_p/{name}/{text}"] = (values * shown).sum(dim=1)
            for name, network in trained.items():
                if name.startswith("next/"):
                    found = {"log_p": log_probability(network, tokens)}
                else:
                    found = self.score(context, f"{name}/{text}", network, tokenizer, tokens)
                arrays |= {f"{key}/{name}/{text}": value for key, value in found.items()}
        return Outcome(self.findings(arrays), arrays, context.checksum([own.stream, own.held_out]))

    def findings(self, arrays: Arrays) -> dict[str, Finding]:
        """How far areas lie above the causal network's log-probability, and above trigrams."""
        text = self.data_sets[0]
        count = arrays[f"tokens/{text}"].double().mean()

        def ahead(one: str, other: str) -> Finding:
            return Finding.over((arrays[f"{one}/{text}"] - arrays[f"log_p/{other}/{text}"]) / count)

        causal = "{1}/{2}".format(*self.kinds[0])
        found = {}
        for _, law, seed in self.kinds[1:]:
            found[f"siblings-{law}-{seed}"] = ahead(f"area/{law}/{seed}", causal)
        if f"area/small-bert/{text}" in arrays:
            for key in ("area", "pseudo"):
                found[f"ngrams-{key}"] = ahead(f"{key}/small-bert", "3-gram")
        return found

    def score(
        self, context: RunContext, name: str, network: Any, reader: Any, tokens: Tokens
    ) -> Arrays:
        """What a masked network says of ``tokens``."""
        scorer = load(MaskedLM.of(network, reader, precision="bfloat16"), reader)
        design = Design(self.rates, seed=self.seeds[0])
        kinds = ("mixture", "area", "curve")
        mixture, area, along_rates = (kept(context, f"{name}/{k}-", scorer, tokens) for k in kinds)
        rows = [tokens], tokens.maskable, torch.arange(len(tokens))
        blocks = Blocks(scorer, self.num_orders, self.seeds[0])
        along, spread = blocks(*rows, mixture)
        each = sentences(scorer, tokens, seed=self.seeds[0], run=area)
        found = curve(scorer, tokens, design, run=along_rates)
        return {
            "area": each.log_score,
            "error": each.standard_error,
            "pseudo": each.pseudo_log_likelihood,
            "mixture": along.logsumexp(dim=1) - math.log(along.shape[1]),
            "spread": spread,
            "curve": found.score,
            "hidden": found.hidden.mean(),
            "mean_rate": pair(found.mean_rate()),
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


Gram = tuple[int, ...]
Level = tuple[Counter[Gram], Counter[Gram], Counter[Gram], float]


class KneserNey:
    """Interpolated n-grams with one discount an order (Kneser and Ney 1995; Chen and Goodman 1999).

    A word's count in a context of n − 1 words less d, plus what the discounts have saved times its
    probability in the context of n − 2; below the longest n, counts are numbers of different words
    in front. d = n₁/(n₁ + 2n₂) from how many counts are one and two; the shortest context mixes
    with the uniform distribution. Each text begins with n − 1 start symbols and has no end: the
    probabilities of all texts of D words add up to one for each D, as a masked model's do.

    >>> model = KneserNey([torch.tensor([0, 1, 0, 1, 0])], 2, order=2)
    >>> rows = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> model.log_probability(rows).sum(dim=1).exp().sum()
    tensor(1..., dtype=torch.float64)
    """

    def __init__(self, texts: Sequence[Int[Tensor, " _"]], vocab_size: int, order: int = 3) -> None:
        self.vocab_size, self.order, self.levels = vocab_size, order, list[Level]()
        counts = Counter(gram for text in texts for gram in self._grams(text))
        for _ in range(order):
            one, two = (sum(count == n for count in counts.values()) for n in (1, 2))
            totals: Counter[Gram] = Counter()
            for gram, count in counts.items():
                totals[gram[:-1]] += count
            types, discount = Counter(gram[:-1] for gram in counts), one / (one + 2 * two or 1)
            self.levels.insert(0, (counts, totals, types, discount))
            counts = Counter(gram[1:] for gram in counts)  # each counts once for what it ends with

    def log_probability(self, rows: Int[Tensor, "N L"]) -> Float[Tensor, "N L"]:
        """log p of each word given those before it, nats."""
        found = [self._probability(gram) for row in rows for gram in self._grams(row)]
        return torch.tensor(found, dtype=torch.float64).view(rows.shape).log()

    def _probability(self, gram: Gram) -> float:
        p = 1.0 / self.vocab_size
        for length, (counts, totals, types, discount) in enumerate(self.levels, start=1):
            own = gram[-length:]
            if total := totals[own[:-1]]:
                p = (max(counts[own] - discount, 0) + discount * types[own[:-1]] * p) / total
        return p

    def _grams(self, text: Int[Tensor, " _"]) -> Iterator[Gram]:
        """The longest n-gram that ends at each word."""
        words = [self.vocab_size] * (self.order - 1) + text.tolist()
        return zip(*(words[start:] for start in range(self.order)), strict=False)
